"""Programs that are written as ONNX files: the checker takes them, and ONNX Runtime, where it is installed, and our own
reader compute the same from them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.errors import RelaxError, UsageError
from relaxpy.ir import BindingBlock, Function, IRModule, SeqExpr, Tuple, Var, VarBinding
from relaxpy.models.decoder import Decoder, step_spec
from relaxpy.models.llama import TINY
from relaxpy.op.base import OPS, Sample
from relaxpy.op.deduce import deduce
from relaxpy.testing.interpret import interpret
from relaxpy.testing.op_samples import apply, dtype_variants, run_reference
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


@sweep(6)
@pytest.mark.parametrize("name", NAMES)
def test_operators(name: str) -> None:
    """Every sample that ONNX can say: what our reader, and ONNX Runtime or ONNX's own evaluator, compute from the file.
    What is refused is refused by name."""
    written = 0
    for i, sample in enumerate(OPS[name].samples()):
        if sample.code:
            continue
        found = _written(sample, i % 2 > 0)
        if found is None:
            continue
        model, arrays = found
        written += 1
        wanted = flat(run_reference(sample))
        equal(of_reader(model, arrays), wanted)
        if i in RUNTIME.get(name, ((), ""))[0]:
            assert not _runs_as(model, arrays, wanted), "the entry in RUNTIME is of no use"
        else:
            equal(_of_others(model, arrays), wanted)
    assert written


def _written(sample: Sample, symbolic: bool) -> tuple[Any, list[np.ndarray]] | None:
    """The model of a sample, and its inputs; None: it is refused."""
    applied = apply(sample, symbolic and not _of_unknown_sizes(sample))
    call = sample.op.normal(applied.call)
    params, out = _variables(call.args), Var("out", deduce(call))
    body = SeqExpr((BindingBlock((VarBinding(out, call),)),), out)
    main = Function(params, body, out.annotation, True, {"global_symbol": "main"})
    try:
        model = _exported(IRModule({"main": main}))
    except UsageError as error:
        if error.code in ("onnx-operator", "onnx-dtype"):
            return None
        raise
    onnx.checker.check_model(model, full_check=True)
    return model, applied.arrays


OTHER_DTYPES: dict[str, tuple[tuple[str, ...], str]] = {
    "sum": (("int32", "int16"), "a sum beyond int32 is its limit"),
    "prod": (("int64", "int32", "int16", "int8", "uint16", "uint8"), "a product beyond int32 is its limit"),
    "sign": (("float16",), "NaN has a sign"), "nn.log_softmax": (("float64",), "overflows"),
    "bucketize": (("uint8",), "edges that are not sorted any more"),
    "nn.layer_norm": (("bfloat16",), "ONNX rounds before the weights"),
    "nn.gru": (("float64", "float8_e4m3fn"), "no kernel; rounds at each step"),
    "nn.lstm": (("float64", "float8_e4m3fn"), "no kernel; rounds at each step"),
    "nn.rnn": (("float64", "float8_e4m3fn"), "no kernel; rounds at each step"),
}  # fmt: skip
"""Operator → dtypes in which its samples differ, or are refused with another error than that there is no kernel."""


@sweep(20)
@pytest.mark.parametrize("name", NAMES)
def test_operators_in_other_dtypes(name: str) -> None:
    """The same in every dtype that tensors may be cast to."""
    for i, base in enumerate(OPS[name].samples()):
        if base.code or i in RUNTIME.get(name, ((), ""))[0]:
            continue
        for dtype, sample in dtype_variants(base):
            if dtype in OTHER_DTYPES.get(name, ((), ""))[0]:
                continue
            try:
                found = _written(sample, i % 2 > 0)
            except RelaxError:  # the operator does not take it
                continue
            if found is not None:
                tolerance = max(1e-3, sample.rtol, sample.atol)
                wanted = flat(run_reference(sample))
                equal(of_reader(*found), wanted, tolerance)
                if (runtime := of_kernels(*found)) is not None:
                    equal(runtime, wanted, tolerance)


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


def of_reader(model: Any, arrays: Sequence[np.ndarray]) -> list[Any]:
    """What our own reader makes of a model, interpreted."""
    mod, params = relaxpy.from_onnx(model)
    weights = [np.asarray(value) for value in params.values()]
    return flat(interpret(mod, "main", *arrays, *weights))


def of_runtime(model: Any, arrays: Sequence[np.ndarray]) -> list[Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [each.name for each in model.graph.input]
    return session.run(None, dict(zip(names, arrays, strict=True)))


def of_kernels(model: Any, arrays: Sequence[np.ndarray]) -> list[Any] | None:
    """What ONNX Runtime computes; None: it has no kernel, or numpy no dtype for it."""
    kinds = {each.type.tensor_type.elem_type for each in (*model.graph.input, *model.graph.output)}
    if onnxruntime is not None and kinds.isdisjoint(OF_NO_NUMPY):
        with suppress(onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented):
            return of_runtime(model, arrays)
    return None


def _of_others(model: Any, arrays: Sequence[np.ndarray]) -> list[Any]:
    """What ONNX Runtime computes, or ONNX's own evaluator."""
    found = of_kernels(model, arrays)
    if found is not None:
        return found
    names = [each.name for each in model.graph.input]
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))


OF_NO_NUMPY = [
    onnx.TensorProto.BFLOAT16,
    onnx.TensorProto.FLOAT8E4M3FN,
    onnx.TensorProto.FLOAT8E5M2,
    onnx.TensorProto.INT4,
    onnx.TensorProto.UINT4,
]


def _runs_as(model: Any, arrays: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> bool:
    """Does ONNX Runtime compute this?"""
    if onnxruntime is None:
        return False
    errors = onnxruntime.capi.onnxruntime_pybind11_state
    try:
        equal(of_runtime(model, arrays), wanted)
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


def flat(value: Any) -> list[Any]:
    if isinstance(value, relaxpy.Shape):
        return [np.array(list(value), "int64")]
    if isinstance(value, tuple) and all(type(each) is int for each in value):
        return [np.array(value, "int64")]
    if isinstance(value, (tuple, list)):
        return [each for part in value for each in flat(part)]
    return [np.asarray(value)]


def equal(found: Sequence[Any], wanted: Sequence[np.ndarray], tolerance: float = 1e-3) -> None:
    """Arrays of equal shapes and elements, up to a tolerance."""
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted, strict=True):
        got = np.asarray(got)
        assert got.shape == want.shape
        narrow = want.dtype.itemsize < 4 and want.dtype.kind == "f"
        most = max(tolerance, 2e-2) if narrow else tolerance
        if want.dtype.kind in "iu":
            np.testing.assert_array_equal(got.astype(want.dtype), want)
            continue
        if want.dtype.kind != "b":
            got, want = got.astype("float64"), want.astype("float64")
        np.testing.assert_allclose(got, want, most, most / 10)


MLP = """
@R.function
def main(x: R.Tensor(("n", 7), "float32"), w: R.Tensor((7, 300), "float32"), b: R.Tensor((300,), "float32")):
    return R.tanh(R.add(R.matmul(x, w), b))
"""


@pytest.mark.parametrize("beside", [False, True, None])
def test_weights_are_in_the_file_or_beside_it(
    beside: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: beside it where protobuf would not take it."""
    monkeypatch.setattr("relaxpy.onnx.exporter.LARGEST", 8000 if beside is None else 1 << 31)
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((7, 300), dtype=np.float32),
        "b": rng.standard_normal(300, dtype=np.float32),
    }
    mod, path = relaxpy.parse(MLP), tmp_path / "model.onnx"
    relaxpy.onnx.export((mod, weights), path, external_data=beside)
    onnx.checker.check_model(str(path), full_check=True)
    outside = beside is not False
    assert (tmp_path / "model.onnx.data").exists() == outside
    assert (path.stat().st_size < 4 * 7 * 300) == outside
    stored = onnx.load(path, load_external_data=False).graph.initializer
    assert any(each.external_data for each in stored) == outside
    for rows in (5, 1):
        x = rng.standard_normal((rows, 7), dtype=np.float32)
        wanted = [np.tanh(x @ weights["w"] + weights["b"])]
        again, params = relaxpy.from_onnx(path)
        equal(flat(interpret(again, "main", x, *params.values())), wanted)
        if onnxruntime is not None:
            equal(onnxruntime.InferenceSession(path).run(None, {"x": x}), wanted)


def test_what_is_too_large_for_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relaxpy.onnx.exporter.LARGEST", 8000)
    weights = {"w": np.ones((7, 300), np.float32)}
    with pytest.raises(UsageError, match="cannot be in one piece"):
        relaxpy.onnx.export(relaxpy.parse(MLP), params=weights)
    with pytest.raises(UsageError, match="cannot be in one piece"):
        relaxpy.onnx.export(
            relaxpy.parse(MLP), tmp_path / "m.onnx", params=weights, external_data=False
        )
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    with pytest.raises(UsageError, match="external_data needs a path"):
        relaxpy.onnx.export(relaxpy.parse(MLP), params=weights, external_data=True)


def test_all_that_onnx_cannot_say_is_told_at_once() -> None:
    """By the operators' names, with counts, places, and what to do: a decoder with a paged cache."""
    mod, _ = Decoder(TINY).export(step_spec(TINY))
    with pytest.raises(UsageError) as caught:
        relaxpy.onnx.export(mod, function="step")
    error = caught.value
    assert error.code == "onnx-operator"
    assert "4 operators of this program are not supported" in error.message
    layers = TINY.num_hidden_layers
    for told in (
        rf"nn\.paged_attention \({layers} times, first at .*decoder\.py:\d+\): export the model with a cache that is a",
        rf"call_tir_inplace \({2 * layers} times, first at .*: a file does not change memory of its caller",
        r"nn\.page_slots \(once, first at",
        r'call_pure_packed of "[\w.]+" \(once, first at .*: a function of Python has no counterpart',
    ):
        assert re.search(told, error.message), told
    assert error.span is not None


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
    same = relaxpy.parse(
        """
@R.function
def main(x: R.Tuple(R.Tensor((2,), "float32"), R.Tensor((2,), "float32")), x_1: R.Tensor((2,), "float32")):
    y = x[0]
    return R.add(y, x_1)
"""
    )
    with pytest.raises(UsageError, match="two inputs would be 'x_1'"):
        relaxpy.onnx.export(same)
    with pytest.raises(UsageError, match="has no results"):
        relaxpy.onnx.export(
            relaxpy.parse('@R.function\ndef main(x: R.Tensor(("n",), "float32")):\n    return ()\n')
        )
