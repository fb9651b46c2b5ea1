"""Samples of operators: as calls, as tensor programs, as numbers, and in other dtypes and sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from relaxpy.errors import Span
from relaxpy.half_bytes import as_bytes
from relaxpy.ir.annotation import Annotation, PrimType, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Call, Expr, PrimValue, ShapeExpr, Tuple, Var
from relaxpy.ir.storage import byte_dims, is_packed
from relaxpy.op.base import OPS, Sample
from relaxpy.op.deduce import deduce
from relaxpy.op.deduction import Deduction
from relaxpy.runtime import dtype as dtypes
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.te_call import legal_program


@dataclass
class Applied:
    """A sample as a call: with symbols where `dims` names dimensions, and what they stand for."""

    call: Call
    bound: dict[SymVar, int]
    arrays: list[np.ndarray]


def apply(sample: Sample, symbolic: bool) -> Applied:
    """The call of a sample."""
    groups = iter(sample.dims.split(",") if symbolic and sample.dims else itertools.repeat(""))
    symbols: dict[str, SymVar] = {}
    bound: dict[SymVar, int] = {}
    arrays: list[np.ndarray] = []

    def dims(sizes: tuple[int, ...]) -> list[Dim]:
        names = next(groups, "").split()
        assert not names or len(names) == len(sizes), (
            f"dims={sample.dims!r} does not fit the shape {sizes}"
        )
        return [dim(n, s) for n, s in itertools.zip_longest(names, sizes)]

    def dim(text: str | None, size: int) -> Dim:
        result = Dim.of(1)
        for factor in (text or str(size)).split("*"):
            if factor.lstrip("-").isdigit():
                result = result * int(factor)
            else:
                symbol = symbols.setdefault(factor, SymVar(factor))
                result = result * symbol
        # each symbol must be alone somewhere, or come out of one division
        left = [v for v in result.vars if v not in bound]
        if left:
            (var,) = left
            bound[var] = 0
            step = result.substitute({**bound, var: 1}).value or 1
            bound[var] = size // step
        return result

    def expr(value: Any, kind: type[Annotation], name: str) -> Expr:
        if isinstance(value, np.ndarray):
            arrays.append(value)
            return Var(name, TensorType(dims(value.shape), DType(value.dtype)))
        if isinstance(value, int):
            return PrimValue(dims((value,))[0])
        if kind is ShapeType or (value and all(isinstance(v, int) for v in value)):
            return ShapeExpr(dims(value))
        return Tuple(tuple(expr(v, Annotation, f"{name}{i}") for i, v in enumerate(value)))

    specs = sample.op.args
    args = [expr(v, s.kind, s.name) for v, s in zip(sample.inputs, specs, strict=False)]
    return Applied(Call(sample.op, tuple(args), span=Span("sample.py", 1)), bound, arrays)


def type_of(value: Any, deduced: Annotation) -> Annotation:
    """The annotation of a reference's result."""
    if isinstance(value, tuple):
        if isinstance(deduced, ShapeType):
            return ShapeType(value)
        return TupleType(type_of(v, deduced) for v in value)
    if isinstance(deduced, PrimType):
        return PrimType(deduced.dtype, value)
    # a value does not know its virtual device
    device = deduced.vdevice if isinstance(deduced, TensorType) else None
    return TensorType(np.shape(value), DType(np.asarray(value).dtype), vdevice=device)


@cache
def samples(name: str) -> tuple[Sample, ...]:
    return tuple(OPS[name].samples())  # type: ignore[attr-defined]


def run_reference(s: Sample) -> Any:
    """The results of the reference. An argument that is left out before one that is given is None."""
    left_out = [spec.optional and spec.kind is TensorType for spec in s.op.args]
    inputs = [
        None if optional and isinstance(value, tuple) and not value else value
        for value, optional in zip(s.inputs, left_out, strict=False)
    ]
    with np.errstate(all="ignore"):
        return s.op.reference(*inputs)


def program_of(s: Sample, symbolic: bool) -> tuple[PrimFunc, Applied, tuple[Dim, ...]]:
    """The tensor program of a sample, its call, and the values of its scalar parameters."""
    applied = apply(s, symbolic)
    out = Deduction(s.op, applied.call, deduce, exact=True).run()
    specs = list(s.op.args)
    types: list[Annotation | None] = [deduce(arg) for arg in applied.call.args]
    types += [None] * (len(specs) - len(types))
    for i, spec in enumerate(specs):  # an optional argument left out before one that is given
        if spec.optional and spec.kind is TensorType and types[i] == TupleType(()):
            types[i] = None
    program, tir_vars = legal_program(s.op, types, out)
    return program, applied, (tir_vars.dims or ()) if tir_vars else ()


def run_in_memory(
    run: Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], Any],
    call: Call,
    inputs: Sequence[np.ndarray],
    wanted: Sequence[np.ndarray],
) -> list[np.ndarray]:
    """The outputs that a program writes, by `run(inputs, outputs)`, which are like `wanted`. It gets the bytes of
    tensors whose elements share them, in the shape that the annotations of this call say."""
    types = [deduce(arg) for arg in call.args if isinstance(arg, Var)]

    def stored(array: np.ndarray, annotation: Annotation) -> np.ndarray:
        if not is_packed(annotation) or not isinstance(annotation, TensorType):
            return array
        by_rows = len(byte_dims(annotation.dims or ())) == array.ndim and array.shape[-1] % 2 == 0
        rows = (*array.shape[:-1], array.shape[-1] // 2) if by_rows else (-1,)
        return as_bytes(array).reshape(rows)

    given = list(map(stored, inputs, types)) if len(types) == len(inputs) else list(inputs)
    out = deduce(call)
    filled = [np.full(w.shape, 77, w.dtype) for w in wanted]
    outputs = [stored(each, out) for each in filled]
    run(given, outputs)
    if not is_packed(out):
        return outputs
    return [
        dtypes.from_bytes(each.reshape(-1), want.dtype.name, want.shape)
        for each, want in zip(outputs, wanted, strict=True)
    ]


def reference_arrays(s: Sample) -> list[np.ndarray]:
    """The results of the reference, one or several."""
    expected = run_reference(s)
    return [np.asarray(e) for e in (expected if isinstance(expected, tuple) else (expected,))]


def assert_close(got: np.ndarray, want: np.ndarray, s: Sample, what: str) -> None:
    if DType(want.dtype).is_float:
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=s.rtol, atol=s.atol, err_msg=what
        )
    else:
        np.testing.assert_array_equal(got, want, err_msg=what)


# Other dtypes and sizes

FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn")
INTS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
ROUNDING = {"float16": 2e-3, "bfloat16": 1.6e-2, "float8_e4m3fn": 0.13, "float8_e5m2": 0.26}
"""How far apart two right results may be that were rounded to this dtype, relatively."""


def map_arrays(value: Any, f: Callable[[np.ndarray], np.ndarray]) -> Any:
    """`value` with every array in it replaced."""
    if isinstance(value, (tuple, list)):
        return tuple(map_arrays(item, f) for item in value)
    return f(value) if isinstance(value, np.ndarray) else value


def arrays_of(s: Sample) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    map_arrays(s.inputs, lambda a: found.append(a) or a)
    return found


def kinds_of(s: Sample) -> set[str]:
    """Which of "float", "int", "bool" the sample's tensors are."""
    return {
        "float" if kind.is_float else "bool" if kind.is_bool else "int"
        for kind in (DType(a.dtype) for a in arrays_of(s))
    }


def with_dtype(s: Sample, kind: str, dtype: str) -> Sample:
    """The sample with its tensors of `kind` cast to `dtype`, and the tolerance of that."""

    def cast(a: np.ndarray) -> np.ndarray:
        own = DType(a.dtype)
        if not (own.is_float if kind == "float" else own.is_int and not own.is_bool):
            return a
        with np.errstate(all="ignore"):
            finite = a if DType(dtype).is_float else np.asarray(np.nan_to_num(a))
            return finite.astype(DType(dtype).numpy)

    rtol = max(s.rtol, ROUNDING.get(dtype, 0.0))
    return replace(
        s, inputs=map_arrays(s.inputs, cast), rtol=rtol, atol=max(s.atol, ROUNDING.get(dtype, 0.0))
    )


def dtype_variants(s: Sample) -> Iterator[tuple[str, Sample]]:
    """The sample in every dtype that its tensors may be cast to; those that the operator does not
    take are to be refused."""
    kinds = kinds_of(s)
    if "float" in kinds:
        yield from ((d, with_dtype(s, "float", d)) for d in FLOATS)
    if "int" in kinds:
        yield from ((d, with_dtype(s, "int", d)) for d in INTS)
    elif "float" in kinds:
        yield from ((d, with_dtype(s, "float", d)) for d in ("int32", "uint8", "bool"))


def resized(s: Sample, sizes: Mapping[str, int]) -> Sample:
    """The sample with other values of the dimensions that `dims` names."""
    groups = iter(s.dims.split(","))

    def size(text: str) -> int:
        return math.prod(
            int(f) if f.lstrip("-").isdigit() else sizes[f] for f in text.strip().split("*")
        )

    def again(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            shape = tuple(map(size, next(groups, "").split()))
            return np.resize(value, shape) if len(shape) == value.ndim else value
        if not isinstance(value, (int, tuple, list)) or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return size(next(groups, "").strip() or str(value))
        if value and all(isinstance(v, int) for v in value):
            return tuple(map(size, next(groups, "").split())) or value
        return tuple(again(v) for v in value)

    return replace(s, inputs=tuple(again(v) for v in s.inputs))


def special(s: Sample) -> Sample:
    """The sample with NaN, infinities, -0.0 and the limits of integers among its values."""

    def sprinkle(a: np.ndarray) -> np.ndarray:
        kind = DType(a.dtype)
        if kind.is_bool:
            return a
        if kind.is_float:
            values = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.5], kind.numpy)
        else:
            low, high = kind.limits
            values = np.array([low, high, 0, 1, high if low == 0 else -1], kind.numpy)
        rng = np.random.default_rng(a.size)
        replaced = rng.random(a.shape) < 0.4
        return np.where(replaced, rng.choice(values, a.shape), a).astype(a.dtype)

    return replace(s, inputs=map_arrays(s.inputs, sprinkle))
