"""Calls of operators in random programs. Every operator with samples is included. Its attributes are those of a sample.
Its arguments are values of the program if their annotations fit, else those of the sample, with symbols for the
dimensions that the sample names."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from relaxpy import op
from relaxpy.errors import DeduceError
from relaxpy.ir.accessors import tensor_of
from relaxpy.ir.annotation import PrimType, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import Dim
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Constant, Expr, PrimValue, ShapeExpr, Tuple, Var
from relaxpy.ir.visitor import used_vars
from relaxpy.op.base import OPS, ArgSpec, Op, Sample
from relaxpy.testing.random_body import RANK, Body, Rule

COMMON = (
    "add", "subtract", "multiply", "maximum", "minimum", "divide", "where", "less", "equal", "matmul", "sum",
    "mean", "max", "min", "reshape", "flatten", "concat", "permute_dims", "expand_dims", "strided_slice", "take",
    "split", "exp", "tanh", "sigmoid", "nn.relu", "nn.softmax", "nn.layer_norm", "astype", "broadcast_to", "zeros",
    "full", "arange",
)  # fmt: skip
"""Common operators, which are chosen as often as all operators together."""
STEADY = (
    "tanh",
    "sigmoid",
    "sin",
    "atan",
    "erf",
    "nn.silu",
    "nn.relu",
    "nn.gelu",
    "negative",
    "abs",
)
"""Elementwise functions for chains."""
VAGUE = frozenset({"bucketize"})
"""Operators without a defined result for some values: with unsorted boundaries, any bucket is correct."""
SMALL = 600
"""Samples with more elements are left to the operators' own tests."""


@cache
def samples_of(name: str) -> tuple[Sample, ...]:
    """The samples of an operator that random programs can use."""
    return tuple(s for s in OPS[name].samples() if not s.code and _elements(s.inputs) <= SMALL)


@cache
def operator_names() -> tuple[str, ...]:
    """Operators on tensors that have samples."""
    return tuple(
        name
        for name, cls in OPS.items()
        if isinstance(cls, type) and issubclass(cls, Op) and cls.pure and samples_of(name)
        if name not in VAGUE
    )


def _elements(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.size
    return sum(map(_elements, value)) if isinstance(value, (tuple, list)) else 0


def operator(g: Body) -> bool:
    """A call of a random operator."""
    common = g.rng.random() < 0.5
    name = g.rng.choice(COMMON if common else operator_names())
    chosen = g.rng.choice(samples_of(name))
    for _ in range(4):
        try:
            call = chosen.op(*(argument(g, *given) for given in _given(chosen)))
            if used_vars(call):
                g.emit(call)
                return True
        except DeduceError:
            continue
    if common or g.rng.random() < 0.3:
        return False
    return _sampled(g, chosen)


def _given(sample: Sample) -> list[tuple[ArgSpec, Any]]:
    return list(zip(sample.op.args, sample.inputs, strict=False))


def argument(g: Body, spec: ArgSpec, given: Any) -> Any:
    """An argument that resembles a sample's argument, from the values of the program."""
    if given is None:
        return None
    if isinstance(given, np.ndarray):
        return _tensor(g, given)
    if spec.kind is TupleType:
        return Tuple(tuple(_tensor(g, v) if isinstance(v, np.ndarray) else v for v in given))
    if spec.kind is ShapeType and g.rng.random() < 0.5:
        return _shape(g, len(given))
    return given


def _tensor(g: Body, like: np.ndarray) -> Expr:
    """A tensor that mostly has this dtype and rank."""
    dtype = str(DType(like.dtype))
    if like.size <= 32 and g.rng.random() < 0.15:
        return Constant(like)
    try:
        if dtype == "float32" and g.rng.random() < 0.8:
            return g.tensor(dtype, least=1)
        return g.tensor(dtype, like.ndim)
    except DeduceError:
        if like.size > 32:
            raise
        return Constant(like)


def _shape(g: Body, ndim: int) -> Expr:
    """A shape value, or the dimensions of some tensor."""
    if g.rng.random() < 0.4:
        return g.pick(lambda a: isinstance(a, ShapeType) and a.ndim == ndim)
    return ShapeExpr(g.dims(g.tensor(ndim=ndim)))


def _sampled(g: Body, sample: Sample) -> bool:
    """The sample's own call, with its tensors as parameters, and with symbols of the program for the dimensions that it
    names."""
    groups = iter(sample.dims.split("->")[0].split(",") if sample.dims else itertools.repeat(""))
    symbols: dict[str, Dim] = {}

    def dims(sizes: tuple[int, ...]) -> list[Dim]:
        names = next(groups, "").split()
        return [
            dim(name, size) if name is not None else Dim.of(size)
            for name, size in itertools.zip_longest(names[: len(sizes)], sizes)
        ]

    def dim(text: str, size: int) -> Dim:
        result = Dim.of(1)
        for factor in text.split("*"):
            if factor.lstrip("-").isdigit():
                result = result * int(factor)
            elif factor not in symbols:
                own = Dim.of(g.rng.choice(g.symbols))
                constant = Dim.of(size) if "*" not in text else own
                symbols[factor] = g.rng.choice([own, own, own * 2, constant])
                result = result * symbols[factor]
            else:
                result = result * symbols[factor]
        return result

    made: dict[Var, tuple[float, float] | None] = {}

    def value(given: Any, kind: type) -> Any:
        if isinstance(given, np.ndarray):
            name = f"x{len(g.params) + len(made)}"
            param = Var(name, TensorType(dims(given.shape), DType(given.dtype)))
            made[param] = _limits(given)
            return param
        if isinstance(given, bool) or not isinstance(given, (int, tuple, list)):
            return given
        if isinstance(given, int):
            return PrimValue(dims((given,))[0])
        if kind is ShapeType:
            return ShapeExpr(dims(tuple(given)))
        return Tuple(tuple(value(v, TensorType) for v in given))

    call = sample.op(*(value(given, spec.kind) for spec, given in _given(sample)))
    g.check(call)
    if made and not g.may_add_params:
        raise DeduceError("op-arguments", "no parameter can be added here")
    g.adopt(list(made))
    g.ranges.update({param: limits for param, limits in made.items() if limits is not None})
    g.add(g.builder.emit(call))
    return True


def _limits(array: np.ndarray) -> tuple[float, float] | None:
    """The range of a sample's values, so that indices stay valid."""
    if not array.size or array.dtype.kind == "b":
        return None
    numbers = array.astype(np.float64)
    low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
    return (low, high) if np.isfinite([low, high]).all() and max(-low, high) < 1e6 else None


def binary(g: Body) -> bool:
    """Arithmetic with a number, or with a tensor of the same shape."""
    x = g.tensor()
    kind = tensor_of(x)
    if kind.dtype == "bool":
        return False
    make = g.rng.choice((op.add, op.subtract, op.multiply, op.maximum, op.minimum))
    same = [v for v in g.pool if v.annotation == kind]
    other: Var | int = g.rng.choice(same) if g.rng.random() < 0.7 else g.rng.choice((2, 1, 3))
    g.emit(make(x, other))
    return True


def comparison(g: Body) -> bool:
    """A comparison, mostly of narrow floats, whose result is cast to a number or used in a choice."""
    x = g.tensor()
    kind = tensor_of(x)
    if kind.dtype == "bool":
        return False
    same = [v for v in g.pool if v.annotation == kind]
    other: Expr = g.rng.choice(same)
    left: Expr = x
    dtype = g.rng.choice(("bfloat16", "bfloat16", "float16", str(kind.dtype)))
    if dtype != kind.dtype:
        left, other = (g.emit(op.astype(v, dtype=dtype)) for v in (left, other))
    names = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
    found = g.emit(op.OPS[g.rng.choice(names)].make(left, other))
    if g.rng.random() < 0.5:
        g.emit(op.where(found, left, other))
    else:
        narrow = g.emit(op.astype(found, dtype=dtype))
        g.emit(g.rng.choice((op.add, op.subtract, op.multiply))(narrow, narrow))
    return True


def column(g: Body) -> bool:
    """A reduction or a softmax over an axis of a tensor with an axis of size 1, which is mostly the last one."""
    x = g.as_number(g.tensor(least=1))
    rank = len(g.dims(x))
    if rank >= RANK:
        return False
    place = rank if g.rng.random() < 0.7 else g.rng.randrange(rank + 1)
    tall = g.emit(op.expand_dims(x, axis=place))
    axis = g.rng.randrange(rank + 1)
    names = ("sum", "max", "min", "mean", "nn.softmax", "argmax", "cumsum")
    g.emit(op.OPS[g.rng.choice(names)].make(tall, axis=axis))
    return True


def scalar_operand(g: Body) -> bool:
    """Arithmetic or a comparison of a tensor or a scalar with a scalar or a size; or an element at a scalar index."""
    is_scalar = lambda a: isinstance(a, PrimType) and not a.dtype.is_bool  # noqa: E731
    if g.rng.random() < 0.2:
        place = g.pick(lambda a: is_scalar(a) and a.dtype.is_int)  # type: ignore[union-attr]
        g.emit(op.take(g.tensor(least=1), place, axis=0))
        return True
    x = g.pick(is_scalar) if g.rng.random() < 0.4 else g.as_number(g.tensor())
    kind = x.annotation
    assert isinstance(kind, (TensorType, PrimType))
    dtype = str(kind.dtype)
    wide = dtype in ("float32", "int64", "int32")
    if g.rng.random() < 0.5:
        other: Any = g.pick(lambda a: isinstance(a, PrimType) and a.dtype == dtype)
    elif wide and g.rng.random() < 0.6:
        other = g.dimension()
    else:
        other = PrimValue(1.5 if "float" in dtype else 3, dtype)
    pair = (other, x) if g.rng.random() < 0.3 else (x, other)
    names = ("add", "subtract", "multiply", "maximum", "minimum", "less", "equal", "greater_equal")
    g.emit(op.OPS[g.rng.choice(names)].make(*pair))
    return True


def chain(g: Body) -> bool:
    """A chain of elementary functions in float32 or bfloat16, which is fused into one kernel. The functions do not
    magnify errors and keep every number finite."""
    x = g.tensor("float32")
    if g.rng.random() < 0.5:
        x = g.emit(op.astype(x, dtype="bfloat16"))
    for name in g.rng.choices(STEADY, k=g.rng.randint(4, 12)):
        x = g.emit(op.OPS[name].make(x))
    return True


RULES: Mapping[Rule, int] = {
    operator: 12,
    binary: 4,
    chain: 1,
    comparison: 1,
    column: 1,
    scalar_operand: 2,
}
