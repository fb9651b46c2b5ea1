"""A call of each version of each operator whose inputs or attributes changed from one version to the next.

`CASES` has calls by operator and by the first version of those that are called alike. A call of versions that ONNX Runtime
does not run says what it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


@dataclass(frozen=True)
class Called:
    """A call. None is an input that is left out; int64 inputs behind the first, and those of `fixed`, are weights."""

    inputs: Sequence[Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    wanted: Callable[..., Any] | None = None
    """What it gives for the inputs, for versions that ONNX Runtime does not run."""
    outputs: int = 1
    fixed: Sequence[int] = ()

    def model(self, op: str, version: int) -> Any:
        infos, stored, names = [], [], []
        for k, value in enumerate(self.inputs):
            names.append("" if value is None else f"x{k}")
            if value is None:
                continue
            if k in self.fixed or (k and value.dtype == np.int64):
                stored.append(numpy_helper.from_array(value, f"x{k}"))
            else:
                kind = helper.np_dtype_to_tensor_dtype(value.dtype)
                infos.append(helper.make_tensor_value_info(f"x{k}", kind, value.shape))
        results = [f"y{k}" for k in range(self.outputs)]
        node = helper.make_node(op, names, results, **self.attributes)
        outputs = [helper.make_empty_tensor_value_info(name) for name in results]
        graph = helper.make_graph([node], "g", infos, outputs, stored)
        imports = [helper.make_opsetid("", version)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)

    def given(self) -> list[np.ndarray]:
        return [
            value
            for k, value in enumerate(self.inputs)
            if value is not None and k not in self.fixed and not (k and value.dtype == np.int64)
        ]


@cache
def groups() -> Mapping[str, Sequence[Sequence[int]]]:
    """Operator of ai.onnx → its versions, those together that are called alike."""
    found: dict[str, list[list[int]]] = {}
    last: dict[str, Any] = {}
    schemas = [each for each in onnx.defs.get_all_schemas_with_history() if not each.domain]
    for each in sorted(schemas, key=lambda s: s.since_version):
        signature = _signature(each)
        versions = found.setdefault(each.name, [])
        if last.get(each.name) != signature:
            versions.append([])
        versions[-1].append(each.since_version)
        last[each.name] = signature
    return found


def _signature(schema: Any) -> Any:
    attributes = sorted(
        (name, each.type.value, each.required, each.default_value.SerializeToString())
        for name, each in schema.attributes.items()
    )
    return (
        attributes,
        [i.option.value for i in schema.inputs],
        [o.option.value for o in schema.outputs],
    )


def rand(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    values = np.random.default_rng([seed, *shape]).standard_normal(shape) * 2
    return values.astype(dtype)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


X, SMALL, IMAGE = rand(2, 3, 5), np.abs(rand(2, 3, 5)) + 0.5, rand(1, 4, 6, 7)
CONSUMED = {"consumed_inputs": [0]}


def both(call: Called, since: int = 6, **first: Any) -> dict[int, Called]:
    """The call, and that of version 1 with further attributes."""
    old = Called(call.inputs, {**call.attributes, **first}, call.wanted, call.outputs)
    return {1: old, since: call}


def unary(function: Any, x: np.ndarray = X, **attributes: Any) -> dict[int, Called]:
    return both(Called([x], attributes, function), consumed_inputs=[0])


def along(y: np.ndarray) -> np.ndarray:
    """An operand along axis 1 of `X`."""
    return y[None, :, None]


def arithmetic(function: Any) -> dict[int, Called]:
    y = SMALL[0, :, 0]
    attributes = {"broadcast": 1, "axis": 1}
    return {
        1: Called(
            [X, y], {**attributes, "consumed_inputs": [0, 0]}, lambda a, b: function(a, along(b))
        ),
        6: Called([X, y], attributes, lambda a, b: function(a, along(b))),
        7: Called([X, SMALL[:, :1]], {}, function),
    }


def compared(function: Any, dtype: Any = np.float32) -> dict[int, Called]:
    x = (X > 0) if dtype is bool else np.round(X).astype(dtype)
    y = x[0, :, 0].copy()
    return {
        1: Called([x, y], {"broadcast": 1, "axis": 1}, lambda a, b: function(a, along(b))),
        7: Called([x, x[:, :1]], {}, function),
    }


def flat(function: Any) -> dict[int, Called]:
    """Before version 13 all axes from one on are one."""
    x = rand(2, 3, 4, 5)
    return {
        1: Called([x], {"axis": 2}, lambda x: function(x.reshape(6, 20)).reshape(x.shape)),
        13: Called([x], {"axis": 2}),
    }


def softmax(x: np.ndarray) -> np.ndarray:
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def hardmax(x: np.ndarray) -> np.ndarray:
    return np.eye(x.shape[-1], dtype=x.dtype)[x.argmax(-1)]


def reduction(function: Any, since: int = 18) -> dict[int, Called]:
    return {
        1: Called([SMALL], {"axes": [0, 2], "keepdims": 0}, lambda x: function(x, (0, 2))),
        since: Called([SMALL, ints(0, 2)], {"keepdims": 0}),
    }


def variadic(function: Any) -> dict[int, Called]:
    call = Called([X, SMALL, -X], {}, lambda *xs: function(np.stack(xs), 0))
    return both(call, consumed_inputs=[0, 0, 0])


def normalized(x: np.ndarray, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    shape = (-1, 1, 1)
    scale, bias, mean, variance = (each.reshape(shape) for each in (scale, bias, mean, variance))
    return (x - mean) / np.sqrt(variance + 0.25) * scale + bias


NORM = [IMAGE, *(rand(4, seed=k) for k in (1, 2, 3)), np.abs(rand(4, seed=4)) + 0.5]
PER_ELEMENT = [
    IMAGE,
    *(rand(4, 6, 7, seed=k) for k in (1, 2, 3)),
    np.abs(rand(4, 6, 7, seed=4)) + 0.5,
]
POOL = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 0]}


def windows(x: np.ndarray, fill: float) -> np.ndarray:
    """The windows of POOL, in the last two axes."""
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)), constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(wide, (3, 2), (2, 3))[:, :, ::2, ::2]


def lp_pool(x: np.ndarray, p: float = 2) -> np.ndarray:
    return (np.abs(windows(x, 0)) ** p).sum((-2, -1)) ** (1 / p)


def average_pool(x: np.ndarray) -> np.ndarray:
    return np.nanmean(windows(x, np.nan), (-2, -1))


SEQUENCE = rand(4, 2, 3)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def rnn(x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    h, rows = np.zeros((x.shape[1], 5), np.float32), []
    for row in x:
        h = np.tanh(row @ w[0].T + h @ r[0].T + b[0, :5] + b[0, 5:])
        rows.append(h[None])
    return [np.stack(rows), h[None]]


def gru(x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    h, rows = np.zeros((x.shape[1], 5), np.float32), []
    wz, wr, wh = np.split(w[0], 3)
    rz, rr, rh = np.split(r[0], 3)
    bz, br, bh, cz, cr, ch = np.split(b[0], 6)
    for row in x:
        z = sigmoid(row @ wz.T + h @ rz.T + bz + cz)
        gate = sigmoid(row @ wr.T + h @ rr.T + br + cr)
        new = np.tanh(row @ wh.T + (gate * h) @ rh.T + bh + ch)
        h = (1 - z) * new + z * h
        rows.append(h[None])
    return [np.stack(rows), h[None]]


def lstm(x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    h = c = np.zeros((x.shape[1], 5), np.float32)
    rows: list[Any] = []
    for row in x:
        gates = row @ w[0].T + h @ r[0].T + b[0, :20] + b[0, 20:]
        i, o, f, new = np.split(gates, 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(new)
        h = sigmoid(o) * np.tanh(c)
        rows.append(h[None])
    return [np.stack(rows), h[None], c[None]]


def cell(gates: int, function: Any, outputs: int, versions: Sequence[int]) -> dict[int, Called]:
    inputs = [SEQUENCE, rand(1, 5 * gates, 3), rand(1, 5 * gates, 5), rand(1, 10 * gates)]
    found: dict[int, Called] = {}
    for version in versions:
        old = {"output_sequence": 1} if version < 7 else {}
        found[version] = Called(inputs, {"hidden_size": 5, **old}, function, outputs)
    turned = [SEQUENCE.transpose(1, 0, 2), *inputs[1:]]
    found[14] = Called(turned, {"hidden_size": 5, "layout": 0}, None, outputs)
    return found


def upsampled(x: np.ndarray, *_: Any) -> np.ndarray:
    return x.repeat(2, 2).repeat(3, 3)


def top(x: np.ndarray, *_: Any) -> list[np.ndarray]:
    order = np.argsort(-x, axis=1, kind="stable")[:, :2]
    return [np.take_along_axis(x, order, 1), order]


BODY = helper.make_graph(
    [helper.make_node("Add", ["a", "r"], ["c"]), helper.make_node("Neg", ["c"], ["d"])],
    "body",
    [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "ar"],
    [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "cd"],
)


def scanned(_: Any, start: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
    sums = start[:, None] + np.cumsum(rows, 1)
    return [sums[:, -1], -sums]


QUANTISED = np.random.default_rng(5).integers(0, 255, (4, 6), np.uint8)
SCALE, ZERO = np.array(0.05, np.float32), np.array(7, np.uint8)
SCALES, ZEROS = np.linspace(0.01, 0.1, 6, dtype=np.float32), np.arange(6, dtype=np.uint8)
BLOCKS = np.linspace(0.01, 0.1, 12, dtype=np.float32).reshape(2, 6)
BLOCK_ZEROS = np.arange(12, dtype=np.uint8).reshape(2, 6)
HEADS = [rand(1, 2, 3, 4, seed=k) for k in range(3)]
ROIS = [IMAGE, floats(0, 0, 4, 5, 1, 1, 6, 5).reshape(2, 4), ints(0, 0)]
GRID = np.clip(rand(1, 3, 5, 2) / 3, -0.9, 0.9)
ROW = np.array([[1, 0, 2], [0, 2, 1]], np.int64)

CASES: Mapping[str, Mapping[int, Called]] = {
    "Abs": unary(np.abs), "Ceil": unary(np.ceil), "Exp": unary(np.exp), "Floor": unary(np.floor),
    "Log": unary(np.log, SMALL), "Neg": unary(np.negative), "Reciprocal": unary(np.reciprocal, SMALL),
    "Relu": unary(lambda x: np.maximum(x, 0)), "Sigmoid": unary(sigmoid), "Sqrt": unary(np.sqrt, SMALL),
    "Tanh": unary(np.tanh), "Elu": unary(lambda x: np.where(x < 0, 0.5 * np.expm1(x), x), alpha=0.5),
    "HardSigmoid": unary(lambda x: np.clip(0.3 * x + 0.4, 0, 1), alpha=0.3, beta=0.4),
    "LeakyRelu": unary(lambda x: np.where(x < 0, 0.2 * x, x), alpha=0.2),
    "Selu": unary(lambda x: 1.2 * np.where(x < 0, 0.5 * np.expm1(x), x), alpha=0.5, gamma=1.2),
    "Add": arithmetic(np.add), "Sub": arithmetic(np.subtract), "Mul": arithmetic(np.multiply),
    "Div": arithmetic(np.divide),
    "And": compared(np.logical_and, bool), "Or": compared(np.logical_or, bool),
    "Xor": compared(np.logical_xor, bool), "Equal": compared(np.equal, np.int32),
    "Greater": compared(np.greater), "Less": compared(np.less),
    "Pow": {
        1: Called([SMALL, X[0, :, 0]], {"broadcast": 1, "axis": 1}, lambda a, b: a ** along(b)),
        7: Called([SMALL, X[:, :1]]),
    },
    "PRelu": both(Called([X, floats(0.25)], {}, lambda x, s: np.where(x < 0, s * x, x)), consumed_inputs=[0, 0]),
    "Max": variadic(np.max), "Min": variadic(np.min), "Mean": variadic(np.mean), "Sum": variadic(np.sum),
    "ArgMax": {
        1: Called([np.round(X)], {"axis": 1, "keepdims": 0}, lambda x: x.argmax(1)),
        12: Called([np.round(X)], {"axis": 1, "select_last_index": 1}),
    },
    "ArgMin": {
        1: Called([np.round(X)], {"axis": 1, "keepdims": 0}, lambda x: x.argmin(1)),
        12: Called([np.round(X)], {"axis": 1, "select_last_index": 1}),
    },
    "Attention": {v: Called(HEADS, {"is_causal": 1}) for v in (23, 24, 25)},
    "AveragePool": {
        1: Called([IMAGE], POOL, average_pool), 7: Called([IMAGE], {**POOL, "count_include_pad": 1}),
        10: Called([IMAGE], {**POOL, "ceil_mode": 1}), 19: Called([IMAGE], {**POOL, "dilations": [1, 2]}),
    },
    "BatchNormalization": {
        1: Called(NORM, {"epsilon": 0.25, "is_test": 1, "consumed_inputs": [0, 0, 0, 1, 1]}, normalized),
        6: Called(NORM, {"epsilon": 0.25, "is_test": 1}, normalized), 7: Called(NORM, {"epsilon": 0.25}),
        9: Called(NORM, {"epsilon": 0.25}), 14: Called(NORM, {"epsilon": 0.25}),
    },
    "Cast": {
        1: Called([X], {"to": "INT32"}, lambda x: x.astype(np.int32)), 6: Called([X], {"to": TensorProto.INT32}),
        19: Called([X], {"to": TensorProto.FLOAT16}), 24: Called([X], {"to": TensorProto.INT8}),
    },
    "CastLike": {v: Called([X, np.zeros(1, np.int32)]) for v in (15, 19, 24)},
    "Clip": {
        1: Called([X], {"min": -0.5, "max": 0.75, **CONSUMED}, lambda x: np.clip(x, -0.5, 0.75)),
        6: Called([X], {"max": 0.75}, lambda x: np.minimum(x, 0.75)), 11: Called([X, None, np.array(0.75, np.float32)]),
    },
    "Concat": {1: Called([X, X], {}, lambda a, b: np.concatenate([a, b], 1)), 4: Called([X, X], {"axis": -1 % 3}, lambda a, b: np.concatenate([a, b], 2))},
    "Constant": {
        1: Called([], {"value": numpy_helper.from_array(X)}, lambda: X),
        11: Called([], {"value": numpy_helper.from_array(X)}), 12: Called([], {"value_floats": [0.5, 1.5]}),
    },
    "DFT": {
        17: Called([rand(2, 5, 1)], {"axis": 1, "onesided": 1}), 20: Called([rand(2, 5, 1), None, np.int64(1)], {"onesided": 1}),
    },
    "DepthToSpace": {1: Called([IMAGE], {"blocksize": 2}, lambda x: x.reshape(1, 2, 2, 1, 6, 7).transpose(0, 3, 4, 1, 5, 2).reshape(1, 1, 12, 14)),
                     11: Called([IMAGE], {"blocksize": 2, "mode": "CRD"})},
    "SpaceToDepth": {
        1: Called([IMAGE[..., :6]], {"blocksize": 3}, lambda x: x.reshape(1, 4, 2, 3, 2, 3).transpose(0, 3, 5, 1, 2, 4).reshape(1, 36, 2, 2)),
        28: Called([IMAGE[..., :6]], {"blocksize": 3}),
    },
    "DequantizeLinear": {
        10: Called([QUANTISED, SCALE, ZERO]), 13: Called([QUANTISED, SCALES, ZEROS], {"axis": 1}),
        21: Called([QUANTISED, BLOCKS, BLOCK_ZEROS], {"axis": 0, "block_size": 2}),
        23: Called([QUANTISED, BLOCKS, BLOCK_ZEROS], {"axis": 0, "block_size": 2},
                   lambda x, s, z: (x.astype(np.float32) - z.repeat(2, 0)) * s.repeat(2, 0)),
    },
    "QuantizeLinear": {
        10: Called([rand(4, 6), SCALE, ZERO]), 13: Called([rand(4, 6), SCALES, ZEROS], {"axis": 1}),
        19: Called([rand(4, 6), SCALES, ZEROS], {"axis": 1, "saturate": 0}),
        21: Called([rand(4, 6), BLOCKS, BLOCK_ZEROS], {"axis": 0, "block_size": 2}),
        23: Called([rand(4, 6), BLOCKS, BLOCK_ZEROS], {"axis": 0, "block_size": 2},
                   lambda x, s, z: np.clip(np.rint(x / s.repeat(2, 0)) + z.repeat(2, 0), 0, 255).astype(np.uint8)),
    },
    "Dropout": {
        1: Called([X], {"is_test": 1, "ratio": 0.4, **CONSUMED}, lambda x: x), 6: Called([X], {"is_test": 1}, lambda x: x),
        7: Called([X], {"ratio": 0.4}), 12: Called([X, np.array(0.4, np.float32)]),
    },
    "GRU": cell(3, gru, 2, (1, 3, 7)), "LSTM": cell(4, lstm, 3, (1, 7)), "RNN": cell(1, rnn, 2, (1, 7)),
    "GatherND": {11: Called([X, ROW[:, :2] % 2]), 12: Called([X, ROW[:, :2] % 3], {"batch_dims": 1})},
    "Gemm": {
        1: Called([rand(3, 4), rand(3, 5), rand(5)], {"transA": 1, "alpha": 0.5, "beta": 2.0, "broadcast": 1},
                  lambda a, b, c: 0.5 * (a.T @ b) + 2 * c),
        7: Called([rand(4, 3), rand(3, 5), rand(4, 1)], {"beta": 2.0}), 11: Called([rand(4, 3), rand(5, 3)], {"transB": 1}),
    },
    "GlobalLpPool": {
        1: Called([IMAGE], {"p": 3.0}, lambda x: (np.abs(x) ** 3).sum((2, 3), keepdims=True) ** (1 / 3)),
        2: Called([IMAGE], {"p": 3}, lambda x: (np.abs(x) ** 3).sum((2, 3), keepdims=True) ** (1 / 3)),
    },
    "GridSample": {16: Called([IMAGE, GRID], {"mode": "bilinear"}), 20: Called([IMAGE, GRID], {"mode": "linear", "align_corners": 1})},
    "GroupNormalization": {
        18: Called([IMAGE, rand(2, seed=1), rand(2, seed=2)], {"num_groups": 2}),
        21: Called([IMAGE, rand(4, seed=1), rand(4, seed=2)], {"num_groups": 2}),
    },
    "Hardmax": flat(hardmax), "Softmax": flat(softmax), "LogSoftmax": flat(lambda x: np.log(softmax(x))),
    "InstanceNormalization": both(
        Called([IMAGE, *NORM[1:3]], {"epsilon": 0.25},
               lambda x, s, b: normalized(x, s, b, x.mean((2, 3)), x.var((2, 3)))), consumed_inputs=[0, 0, 0]),
    "LpPool": {
        1: Called([IMAGE], {**POOL, "p": 3.0}, lambda x: lp_pool(x, 3)), 2: Called([IMAGE], {**POOL, "p": 3}, lambda x: lp_pool(x, 3)),
        18: Called([IMAGE], {**POOL, "dilations": [1, 2]}),
    },
    "MaxPool": {
        1: Called([IMAGE], POOL, lambda x: windows(x, -np.inf).max((-2, -1))),
        8: Called([IMAGE], {**POOL, "storage_order": 1}, outputs=2), 10: Called([IMAGE], {**POOL, "dilations": [1, 2], "ceil_mode": 1}),
    },
    "Pad": {
        1: Called([X], {"paddings": [0, 1, 2, 1, 0, 0], "value": 1.5}, lambda x: np.pad(x, ((0, 1), (1, 0), (2, 0)), constant_values=1.5)),
        2: Called([X], {"pads": [0, 1, 2, 1, 0, 0], "mode": "reflect"}, lambda x: np.pad(x, ((0, 1), (1, 0), (2, 0)), "reflect")),
        11: Called([X, ints(0, 1, 2, 1, 0, 0), np.array(1.5, np.float32)]), 18: Called([X, ints(1, 2), np.array(1.5, np.float32), ints(-1)]),
    },
    "Range": {v: Called([ints(2)[0], ints(11)[0], ints(3)[0]], {}, lambda *_: np.arange(2, 11, 3), fixed=[0]) for v in (11, 27)},
    "ReduceL1": reduction(lambda x, a: np.abs(x).sum(a)), "ReduceL2": reduction(lambda x, a: np.sqrt((x * x).sum(a))),
    "ReduceLogSum": reduction(lambda x, a: np.log(x.sum(a))), "ReduceLogSumExp": reduction(lambda x, a: np.log(np.exp(x).sum(a))),
    "ReduceMax": reduction(np.max), "ReduceMean": reduction(np.mean), "ReduceMin": reduction(np.min), "ReduceProd": reduction(np.prod),
    "ReduceSum": reduction(np.sum, 13), "ReduceSumSquare": reduction(lambda x, a: (x * x).sum(a)),
    "Reshape": {
        1: Called([X], {"shape": [0, -1], **CONSUMED}, lambda x: x.reshape(2, 15)), 5: Called([X, ints(0, -1)], {}, lambda x: x.reshape(2, 15)),
        14: Called([X, ints(-1, 3)], {"allowzero": 1}),
    },
    "Resize": {
        10: Called([IMAGE, floats(1, 1, 2, 1.5)], {"mode": "linear"}, fixed=[1]),
        11: Called([IMAGE, floats(), floats(1, 1, 2, 3)], {"mode": "cubic", "coordinate_transformation_mode": "align_corners"}, fixed=[1, 2]),
        13: Called([IMAGE, None, None, ints(1, 4, 9, 5)], {"mode": "nearest", "nearest_mode": "ceil"}),
        18: Called([IMAGE, None, None, ints(3, 4)], {"mode": "linear", "antialias": 1, "axes": [2, 3]}),
    },
    "RoiAlign": {
        10: Called(ROIS, {"output_height": 3, "output_width": 2, "sampling_ratio": 2}),
        16: Called(ROIS, {"output_height": 3, "output_width": 2, "sampling_ratio": 2, "coordinate_transformation_mode": "output_half_pixel"}),
    },
    "Scan": {
        8: Called([None, rand(2, 3), rand(2, 4, 3)], {"body": BODY, "num_scan_inputs": 1}, lambda a, b: scanned(None, a, b), 2),
        9: Called([rand(3), rand(4, 3)], {"body": BODY, "num_scan_inputs": 1, "scan_input_directions": [1]}, None, 2),
    },
    "ScatterElements": {
        11: Called([X[0], ROW, rand(2, 3)], {"axis": 1}), 16: Called([X[0], ROW, rand(2, 3)], {"axis": 1, "reduction": "add"}),
    },
    "ScatterND": {
        11: Called([X[0], ints(2, 0).reshape(2, 1), rand(2, 5)]), 16: Called([X[0], ints(2, 2).reshape(2, 1), rand(2, 5)], {"reduction": "mul"}),
    },
    "Shape": {1: Called([X], {}, lambda x: ints(*x.shape)), 15: Called([X], {"start": -2, "end": 2})},
    "Slice": {
        1: Called([X], {"starts": [1, -3], "ends": [1000, -1], "axes": [0, 2]}, lambda x: x[1:, :, -3:-1]),
        10: Called([X, ints(4, 1), ints(-100, 2), ints(2, 0), ints(-2, 1)]),
    },
    "Split": {
        1: Called([X], {"axis": 2, "split": [2, 3]}, lambda x: np.split(x, [2], 2), 2),
        2: Called([X], {"axis": 2, "split": [2, 3]}, lambda x: np.split(x, [2], 2), 2),
        13: Called([X, ints(2, 3)], {"axis": -1}, None, 2), 18: Called([X], {"axis": -1, "num_outputs": 2}, None, 2),
    },
    "Squeeze": {1: Called([X[:, :1]], {"axes": [1]}, lambda x: x[:, 0]), 13: Called([X[:, :1], ints(-2)])},
    "Unsqueeze": {1: Called([X], {"axes": [0, 4]}, lambda x: x[None, ..., None]), 13: Called([X, ints(0, -1)])},
    "Tile": {
        1: Called([X, floats(3), floats(1)], {}, lambda x: np.tile(x, (1, 3, 1)), fixed=[1, 2]),
        6: Called([X, ints(1, 3, 2)], {}, lambda x: np.tile(x, (1, 3, 2))),
    },
    "TopK": {
        1: Called([X], {"k": 2, "axis": 1}, top, 2), 10: Called([X, ints(2)], {"axis": 1}, outputs=2),
        11: Called([X, ints(2)], {"axis": 1, "largest": 0}, outputs=2),
    },
    "Upsample": {
        1: Called([IMAGE], {"height_scale": 2.0, "width_scale": 3.0}, upsampled),
        7: Called([IMAGE], {"scales": [1.0, 1.0, 2.0, 1.5], "mode": "linear"}),
        9: Called([IMAGE, floats(1, 1, 2, 3)], {}, upsampled, fixed=[1]),
    },
}  # fmt: skip

LEFT = {
    "OptionalHasElement": "of tensors it is a constant, which ONNX's own tests have",
}
"""Operators that are called otherwise in newer versions, and are not here."""
