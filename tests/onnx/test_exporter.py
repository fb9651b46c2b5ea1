"""Programs that are written as ONNX files: the checker takes them, and ONNX Runtime, where it is installed, and our own
reader compute the same from them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.ir import BindingBlock, Function, IRModule, SeqExpr, Tuple, Var, VarBinding
from relaxpy.op.base import OPS
from relaxpy.op.deduce import deduce
from relaxpy.testing.interpret import interpret
from relaxpy.testing.op_samples import apply, run_reference
from tests.sweeps import sweep

onnx: Any = pytest.importorskip("onnx")
from onnx.reference import ReferenceEvaluator  # noqa: E402

onnxruntime: Any = None
with suppress(ImportError):
    onnxruntime = importlib.import_module("onnxruntime")
    onnxruntime.set_default_logger_severity(4)

from relaxpy.onnx.write_table import RULES, load_rules  # noqa: E402  (it needs onnx)

load_rules()
NAMES = sorted(each.name for each in RULES)

RUNTIME: dict[str, tuple[tuple[int, ...], str]] = {
    "argmax": ((8,), "NaN is not the largest"), "argmin": ((8,), "NaN is not the smallest"),
    "max": ((9,), "NaN is left out"), "min": ((9,), "NaN is left out"),
    "nn.max_pool1d": ((11,), "NaN is left out"), "nn.max_pool2d": ((3, 11), "NaN, a border as wide as the window"),
    "nn.max_pool3d": ((3, 11), "NaN, a border as wide as the window"),
    "nn.max_pool2d_indices": ((3,), "a border as wide as the window"),
    "nn.max_pool3d_indices": ((3,), "a border as wide as the window"),
    "nn.avg_pool2d": ((5,), "a border as wide as the window"),
    "nn.avg_pool3d": ((5,), "a border as wide as the window"),
    "mean": ((5,), "of nothing"), "std": ((5,), "of nothing"), "variance": ((5,), "of nothing"),
    "prod": ((14,), "a product beyond int32 is its limit"), "quantize": ((5,), "NaN"),
    "image.grid_sample": ((22, 23), "infinite places"),
    "gather_nd": ((5,), "reads an axis of size 0"), "index_tensor": ((5,), "reads an axis of size 0"),
    "take": ((7,), "reads an axis of size 0"),
}  # fmt: skip
"""Operator → samples of which ONNX says nothing and ONNX Runtime something else, or an error. Our reader computes them."""


@sweep(3)
@pytest.mark.parametrize("name", NAMES)
def test_operators(name: str) -> None:
    """Every sample that ONNX can say: what our reader, and ONNX Runtime or ONNX's own evaluator, compute from the file.
    What is refused is refused by name."""
    written = 0
    for i, sample in enumerate(OPS[name].samples()):
        if sample.code:
            continue
        applied = apply(sample, i % 2 > 0 and not _of_unknown_sizes(sample))
        call = sample.op.normal(applied.call)
        params, out = _variables(call.args), Var("out", deduce(call))
        body = SeqExpr((BindingBlock((VarBinding(out, call),)),), out)
        main = Function(params, body, out.annotation, True, {"global_symbol": "main"})
        try:
            model = _exported(IRModule({"main": main}))
        except UsageError as error:
            told = error.code
        else:
            told, written = "onnx-operator", written + 1
            onnx.checker.check_model(model, full_check=True)
            wanted = _flat(run_reference(sample))
            _equal(_of_reader(model, applied.arrays), wanted)
            if i in RUNTIME.get(name, ((), ""))[0]:
                assert not _runs_as(model, applied.arrays, wanted), (
                    "the entry in RUNTIME is of no use"
                )
            else:
                _equal(_of_others(model, applied.arrays), wanted)
        assert told in ("onnx-operator", "onnx-dtype")
    assert written or name in REFUSED


REFUSED = ("atan2", "left_shift", "right_shift")
"""Operators of which all samples are refused: there is none, or only for unsigned numbers."""


def _exported(mod: IRModule) -> Any:
    """A model, in the newest opset if an operator asks for another one."""
    try:
        return relaxpy.onnx.export(mod)
    except UsageError as error:
        if "pass opset=" not in str(error):
            raise
        return relaxpy.onnx.export(mod, opset=onnx.defs.onnx_opset_version())


def _of_unknown_sizes(sample: Any) -> bool:
    """Is a symbol in the sizes that the call gives, and in no tensor? A function of such a call is no program."""
    applied = apply(sample, symbolic=True)
    call = sample.op.normal(applied.call)
    known = {v for p in _variables(call.args) for d in p.annotation.dims or () for v in d.vars}  # type: ignore[union-attr]
    return not known.issuperset(applied.bound)


def _of_reader(model: Any, arrays: Sequence[np.ndarray]) -> list[Any]:
    """What our own reader makes of a model, interpreted."""
    mod, params = relaxpy.from_onnx(model)
    weights = [np.asarray(value) for value in params.values()]
    return _flat(interpret(mod, "main", *arrays, *weights))


def _of_runtime(model: Any, arrays: Sequence[np.ndarray]) -> list[Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [each.name for each in model.graph.input]
    return session.run(None, dict(zip(names, arrays, strict=True)))


def _of_others(model: Any, arrays: Sequence[np.ndarray]) -> list[Any]:
    """What ONNX Runtime computes; where it has no kernel, or numpy no dtype for it, ONNX's own evaluator."""
    kinds = {each.type.tensor_type.elem_type for each in (*model.graph.input, *model.graph.output)}
    if onnxruntime is not None and kinds.isdisjoint(OF_NO_NUMPY):
        with suppress(onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented):
            return _of_runtime(model, arrays)
    names = [each.name for each in model.graph.input]
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))


OF_NO_NUMPY = [
    onnx.TensorProto.BFLOAT16,
    onnx.TensorProto.FLOAT8E4M3FN,
    onnx.TensorProto.FLOAT8E5M2,
]


def _runs_as(model: Any, arrays: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> bool:
    """Does ONNX Runtime compute this?"""
    if onnxruntime is None:
        return False
    errors = onnxruntime.capi.onnxruntime_pybind11_state
    try:
        _equal(_of_runtime(model, arrays), wanted)
    except (AssertionError, errors.Fail, errors.InvalidArgument):
        return False
    return True


def _variables(args: Sequence[Any]) -> tuple[Var, ...]:
    found: dict[Var, None] = {}
    waiting = [*args]
    while waiting:
        arg = waiting.pop(0)
        if isinstance(arg, Var):
            found[arg] = None
        elif isinstance(arg, Tuple):
            waiting = [*arg.fields, *waiting]
    return tuple(found)


def compare(model: Any, arrays: Sequence[np.ndarray], expected: Any) -> None:
    """What our own reader and ONNX Runtime, where it is installed, compute from a model, with what is expected."""
    wanted = _flat(expected)
    _equal(_of_reader(model, arrays), wanted)
    if onnxruntime is not None:
        _equal(_of_runtime(model, arrays), wanted)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, relaxpy.Shape):
        return [np.array(list(value), "int64")]
    if isinstance(value, tuple) and all(type(each) is int for each in value):
        return [np.array(value, "int64")]
    if isinstance(value, (tuple, list)):
        return [each for part in value for each in _flat(part)]
    return [np.asarray(value)]


def _equal(found: Sequence[Any], wanted: Sequence[np.ndarray]) -> None:
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted, strict=True):
        got = np.asarray(got)
        assert got.shape == want.shape
        narrow = want.dtype.itemsize < 4 and want.dtype.kind == "f"
        tolerance = 2e-2 if narrow else 1e-3
        if want.dtype.kind != "b":
            got, want = got.astype("float64"), want.astype("float64")
        np.testing.assert_allclose(got, want, tolerance, tolerance / 10)


SCRIPTS = {
    "loop": (
        """
@R.function
def main(x: R.Tensor(("n", 3), "float32")):
    n = T.int64()
    y = x
    for i in range(n):
        y = R.add(R.tanh(y), x)
    return y
""",
        [[(4, 3)], [(7, 3)]],
    ),
    "branches": (
        """
@R.function
def main(x: R.Tensor(("n", 3), "float32")):
    n = T.int64()
    c = R.greater(R.sum(x), R.const(0.0, "float32"))
    if c:
        y = R.add(x, x)
    else:
        y = R.multiply(x, x)
    return y
""",
        [[(4, 3)], [(7, 3)]],
    ),
    "calls and sizes": (
        """
@I.ir_module
class M:
    @R.function(private=True)
    def g(x: R.Tensor(("n", "m"), "float32")):
        n, m = T.int64(), T.int64()
        return R.reshape(x, (m * n,))

    @R.function
    def main(x: R.Tensor(("n", 3), "float32")):
        n = T.int64()
        cls = M
        a = cls.g(x)
        b = R.concat([a, R.arange(0, n * 3, 1, "float32")], axis=0)
        return b, R.unique(b)
""",
        [[(4, 3)], [(2, 3)]],
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_programs(name: str) -> None:
    text, sizes = SCRIPTS[name]
    mod = relaxpy.parse(text)
    model = relaxpy.onnx.export(mod)
    onnx.checker.check_model(model, full_check=True)
    for shapes in sizes:
        arrays = _random(shapes)
        compare(model, arrays, interpret(mod, "main", *arrays))


X = nn.spec.Tensor
MODELS: dict[str, tuple[nn.Module, Mapping[str, Any], Sequence[Sequence[tuple[int, ...]]]]] = {
    "mlp": (
        nn.Sequential(nn.Linear(4, 7), nn.GELU(), nn.LayerNorm(7), nn.Linear(7, 3)), {"x": X(("n", 4))},
        [[(5, 4)], [(1, 4)]],
    ),
    "conv": (
        nn.Sequential(
            nn.Conv2d(3, 5, 3, padding=1, stride=2), nn.BatchNorm2d(5), nn.ReLU(), nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 2),
        ),
        {"x": X(("n", 3, "h", "w"))}, [[(2, 3, 9, 11)], [(1, 3, 16, 13)]],
    ),
    "lstm": (nn.LSTM(3, 4, 2, bidirectional=True), {"x": X(("l", "b", 3))}, [[(5, 2, 3)], [(9, 1, 3)]]),
    "gru": (nn.GRU(3, 4), {"x": X(("l", "b", 3))}, [[(5, 2, 3)], [(2, 3, 3)]]),
    "encoder": (
        nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), {"src": X(("b", "l", 8))}, [[(2, 5, 8)], [(1, 3, 8)]]
    ),
    "decoder": (
        nn.TransformerDecoderLayer(8, 2, 12, batch_first=True),
        {"tgt": X(("b", "l", 8)), "memory": X(("b", "s", 8))}, [[(2, 5, 8), (2, 4, 8)], [(1, 2, 8), (1, 7, 8)]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, tmp_path: Path) -> None:
    """At two sizes from one file, whose weights are beside it."""
    module, spec, sizes = MODELS[name]
    mod, _ = module.export({"forward": dict(spec)})
    own = [param for param in mod.graph_functions["forward"].params if param.name not in spec]
    shapes = [[int(dim.value) for dim in param.annotation.dims] for param in own]  # type: ignore[union-attr]
    weights = dict(zip((param.name for param in own), _random(shapes, 0.3), strict=True))
    path = tmp_path / "model.onnx"
    relaxpy.onnx.export((mod, weights), path, function="forward", external_data=True)
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(path)
    assert {each.name for each in model.graph.initializer} & {*weights}
    for each in sizes:
        arrays = _random(each)
        compare(model, arrays, interpret(mod, "forward", *arrays, *weights.values()))


def _random(shapes: Sequence[Sequence[int]], scale: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [(rng.standard_normal(shape) * scale).astype("float32") for shape in shapes]


def test_all_that_onnx_cannot_say_is_told_at_once() -> None:
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 3), "float32"), y: R.Tensor(("n", 3), "float32")):
    z = R.atan2(x, y)
    return R.atan2(z, x)
""")
    with pytest.raises(UsageError, match=r"twice|2 times") as caught:
        relaxpy.onnx.export(mod)
    assert caught.value.code == "onnx-operator"
    assert "R.atan" in str(caught.value)


def test_arguments() -> None:
    mod = relaxpy.parse(
        '@R.function\ndef main(x: R.Tensor(("n",), "float32")):\n    return R.exp(x)\n'
    )
    with pytest.raises(UsageError, match="no function 'other'"):
        relaxpy.onnx.export(mod, function="other")
    with pytest.raises(UsageError, match="opset 7 is not written"):
        relaxpy.onnx.export(mod, opset=7)
    with pytest.raises(UsageError, match="no parameter 'w'"):
        relaxpy.onnx.export(mod, params={"w": np.ones(3, "float32")})
    with pytest.raises(UsageError, match="no module of IR"):
        relaxpy.onnx.export(nn.Linear(2, 2))  # type: ignore[arg-type]
