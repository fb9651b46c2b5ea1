"""Small float models, and what ONNX Runtime's own quantiser makes of them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

BATCH = "batch"
TOKENS = 31


class _Builder:
    """A graph under construction, with one input."""

    def __init__(self, shape: Sequence[Any], kind: int = onnx.TensorProto.FLOAT) -> None:
        self.rng = np.random.default_rng(len(shape))
        self.input = helper.make_tensor_value_info("x", kind, shape)
        self.nodes: list[Any] = []
        self.stored: list[Any] = []

    def weight(self, *shape: int, size: float = 1.0) -> str:
        fan = np.prod(shape[:-1]) if len(shape) > 1 else 10
        values = self.rng.standard_normal(shape) * size / np.sqrt(fan)
        return self.constant(values.astype(np.float32))

    def constant(self, array: np.ndarray) -> str:
        name = f"w{len(self.stored)}"
        self.stored.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"t{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, f"n{len(self.nodes)}", **attributes))
        return names[0] if outputs == 1 else names

    def model(self, *outputs: str) -> Any:
        made = [helper.make_empty_tensor_value_info(name) for name in outputs]
        if any(node.domain for node in self.nodes):
            made = [
                helper.make_tensor_value_info(name, 1, [BATCH, "length", None]) for name in outputs
            ]
        graph = helper.make_graph(self.nodes, "g", [self.input], made, self.stored)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        if any(node.domain for node in self.nodes):
            return model
        inferred = onnx.shape_inference.infer_shapes(model)
        onnx.checker.check_model(inferred, full_check=True)
        return inferred


def perceptron() -> Any:
    b = _Builder([BATCH, 37])
    x = b.add("Relu", b.add("Gemm", "x", b.weight(37, 53), b.weight(53)))
    x = b.add("Sigmoid", b.add("Add", b.add("MatMul", x, b.weight(53, 41)), b.weight(41)))
    return b.model(
        b.add("Softmax", b.add("Gemm", x, b.weight(11, 41), b.weight(11), transB=1), axis=-1)
    )


def convolutions() -> Any:
    b = _Builder([BATCH, 3, 13, 11])
    x = b.add("Conv", "x", b.weight(8, 3, 3, 3), b.weight(8), pads=[1, 1, 1, 1], strides=[1, 1])
    first = b.add("Relu", x)
    x = b.add("Conv", first, b.weight(8, 1, 3, 3), b.weight(8), pads=[1, 1, 1, 1], group=8)
    x = b.add("LeakyRelu", x, alpha=0.1)
    x = b.add("Add", first, x)
    pooled = b.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0])
    means = b.add("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0])
    x = b.add("Concat", pooled, means, axis=1)
    x = b.add("Conv", x, b.weight(12, 16, 1, 1), b.weight(12))
    x = b.add("Mul", x, b.add("Sigmoid", x))
    x = b.add("GlobalAveragePool", x)
    x = b.add("Reshape", x, b.constant(np.array([0, -1], np.int64)))
    return b.model(b.add("Gemm", x, b.weight(12, 7), b.weight(7)))


def recurrent() -> Any:
    n, h = 9, 10
    b = _Builder(["length", BATCH, n])
    weights = b.weight(2, 4 * h, n, size=2.0), b.weight(2, 4 * h, h, size=2.0), b.weight(2, 8 * h)
    y, _, _ = b.add("LSTM", "x", *weights, hidden_size=h, direction="bidirectional", outputs=3)
    y = b.add("Transpose", y, perm=[2, 0, 1, 3])
    y = b.add("Reshape", y, b.constant(np.array([0, 0, -1], np.int64)))
    return b.model(b.add("Add", b.add("MatMul", y, b.weight(2 * h, 5)), b.weight(5)))


def attention() -> Any:
    heads, d = 3, 32
    width = heads * d
    b = _Builder([BATCH, "length", width])
    split = b.constant(np.array([0, 0, heads, d], np.int64))

    def projected(perm: list[int]) -> str:
        x = b.add("Add", b.add("MatMul", "x", b.weight(width, width, size=1.5)), b.weight(width))
        return b.add("Transpose", b.add("Reshape", x, split), perm=perm)

    q, k, v = projected([0, 2, 1, 3]), projected([0, 2, 3, 1]), projected([0, 2, 1, 3])
    scores = b.add("Mul", b.add("MatMul", q, k), b.constant(np.float32(d**-0.5)))
    x = b.add("Transpose", b.add("MatMul", b.add("Softmax", scores), v), perm=[0, 2, 1, 3])
    x = b.add("Reshape", x, b.constant(np.array([0, 0, width], np.int64)))
    x = b.add("Add", b.add("MatMul", x, b.weight(width, width)), "x")
    x = b.add("LayerNormalization", x, b.constant(np.ones(width, np.float32)), b.weight(width))
    x = b.add("Gelu", b.add("Add", b.add("MatMul", x, b.weight(width, 80)), b.weight(80)))
    return b.model(b.add("MatMul", x, b.weight(80, width)))


def embedding() -> Any:
    b = _Builder([BATCH, "length"], onnx.TensorProto.INT64)
    x = b.add("Gather", b.weight(TOKENS, 80), "x")
    x = b.add("Relu", b.add("MatMul", x, b.weight(80, 48)))
    return b.model(b.add("MatMul", x, b.weight(48, 23)))


def fused() -> Any:
    """A layer of BERT as ONNX Runtime's optimiser writes it."""
    width, contrib = 24, {"domain": "com.microsoft"}
    b = _Builder([BATCH, "length"], onnx.TensorProto.INT32)

    def norm() -> tuple[str, str]:
        return b.constant(np.linspace(0.5, 1.5, width, dtype=np.float32)), b.weight(width)

    tables = [b.weight(n, width, size=5.0) for n in (TOKENS, 17)]
    x = b.add("EmbedLayerNormalization", "x", "", *tables, "", *norm(), outputs=2, **contrib)[0]
    weights = b.weight(width, 3 * width, size=2.0), b.weight(3 * width)
    a = b.add("Attention", x, *weights, num_heads=3, **contrib)
    x = b.add(
        "SkipLayerNormalization", b.add("MatMul", a, b.weight(width, width)), x, *norm(), **contrib
    )
    inner = b.add("FastGelu", b.add("MatMul", x, b.weight(width, 41)), b.weight(41), **contrib)
    inner = b.add("MatMul", inner, b.weight(41, width))
    return b.model(b.add("SkipLayerNormalization", inner, x, *norm(), b.weight(width), **contrib))


MODELS: dict[str, Callable[[], Any]] = {
    "perceptron": perceptron, "convolutions": convolutions, "recurrent": recurrent, "attention": attention,
    "embedding": embedding, "fused": fused,
}  # fmt: skip


def arrays(model: Any, batch: int, length: int = 5) -> np.ndarray:
    """An input of a model."""
    sizes = {BATCH: batch, "length": length}
    dims = model.graph.input[0].type.tensor_type.shape.dim
    shape = [sizes.get(d.dim_param, d.dim_value) for d in dims]
    kind = helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    if kind != np.float32:
        return np.random.default_rng(batch).integers(0, TOKENS, shape).astype(kind)
    return np.random.default_rng(batch).standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Way:
    """A way to quantise."""

    kind: str
    """dynamic, QDQ, QOperator, or weights."""
    activations: str = "QUInt8"
    weights: str = "QInt8"
    per_channel: bool = False
    bits: int = 4
    symmetric: bool = True
    qdq: bool = False

    def __str__(self) -> str:
        if self.kind == "weights":
            return (
                f"{self.bits} bits{'' if self.symmetric else ' zeros'}{' qdq' if self.qdq else ''}"
            )
        return f"{self.kind} {self.activations} {self.weights}{' channels' if self.per_channel else ''}"


def ways() -> Iterator[Way]:
    for weights in "QInt8", "QUInt8":
        for per_channel in False, True:
            yield Way("dynamic", "QUInt8", weights, per_channel)
    for kind in "QDQ", "QOperator":
        for activations, weights in ("QUInt8", "QInt8"), ("QInt8", "QInt8"), ("QUInt8", "QUInt8"):
            yield Way(kind, activations, weights, weights == "QInt8")
    yield Way("QDQ", "QUInt16", "QInt8")
    yield Way("QDQ", "QUInt8", "QInt4")
    for bits in 2, 4, 8:
        for symmetric in True, False:
            yield Way("weights", bits=bits, symmetric=symmetric)
    yield Way("weights", qdq=True)
    yield Way("weights", qdq=True, symmetric=False)


def _pairs() -> Iterator[tuple[str, Way]]:
    """Models and the ways in which they are quantised: those that change them."""
    for name in MODELS:
        for way in ways():
            if way.kind == "weights" and (
                name in ("convolutions", "recurrent")  # their weights are of other operators
                or (name == "embedding" and way.qdq)
            ):
                continue
            if name == "fused" and way.kind not in ("dynamic", "weights"):
                continue  # the quantiser fails
            yield name, way


PAIRS = list(_pairs())


class _Samples:
    """What the quantiser learns the ranges from."""

    def __init__(self, model: Any) -> None:
        self.left = [{"x": arrays(model, batch)} for batch in (4, 4, 4)]

    def get_next(self) -> Any:
        return self.left.pop() if self.left else None


def quantised(model: Any, way: Way, folder: Path) -> Any:
    """The model that ONNX Runtime's quantiser writes."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    logging.getLogger().setLevel(logging.ERROR)
    # Without dot products of bytes ONNX Runtime adds pairs of products in 16 bits, with saturation: of weights of 7 bits
    # it is right on all processors.
    seven = way.weights == "QInt8"
    source, target = folder / "float.onnx", folder / "quantised.onnx"
    onnx.save(model, source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if way.kind == "weights":
            form = QuantFormat.QDQ if way.qdq else QuantFormat.QOperator
            changed = onnx.ModelProto()
            changed.CopyFrom(model)
            maker = MatMulNBitsQuantizer(
                changed,
                way.bits,
                16,
                way.symmetric,
                quant_format=form,
                op_types_to_quantize=("MatMul", "Gather"),
            )
            maker.process()
            return maker.model.model
        if way.kind == "dynamic":
            quantize_dynamic(
                source,
                target,
                per_channel=way.per_channel,
                reduce_range=seven,
                weight_type=getattr(QuantType, way.weights),
                extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},  # of contrib's results
            )
        else:

            class Reader(_Samples, CalibrationDataReader):
                pass

            quantize_static(
                source, target, Reader(model), quant_format=getattr(QuantFormat, way.kind),
                activation_type=getattr(QuantType, way.activations), weight_type=getattr(QuantType, way.weights),
                per_channel=way.per_channel, reduce_range=seven,
            )  # fmt: skip
    return onnx.load(target)
