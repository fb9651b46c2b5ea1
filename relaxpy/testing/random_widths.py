"""Odd widths in random programs, of operators and of products with weights of floats and of codes; expressions that are
used many times; updates of narrow elements; the smallest integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from relaxpy import op
from relaxpy.errors import DeduceError
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Constant, Expr, GlobalVar, Var
from relaxpy.op.call import call_tir
from relaxpy.op.weight_scheme import WeightScheme
from relaxpy.testing.random_body import Body, Rule

WIDTHS = (1, 3, 5, 7, 9, 13, 15, 17, 31, 33, 47, 49, 63, 65, 97, 127, 129, 145, 161, 209, 257)
"""Odd, prime, or one beside a multiple of a vector."""
DEPTHS = (1, 3, 7, 8, 17, 32, 33)
ELEMENTS = 1300
"""The most elements of a weight: the interpreter multiplies each in Python."""
SCHEMES = (
    WeightScheme(8, 32), WeightScheme(8, None), WeightScheme(4, 32), WeightScheme(4, 8, "zero_point"),
    WeightScheme(4, None, "minimum"), WeightScheme(3, 40, "minimum"),
)  # fmt: skip
LONGEST = 12
"""The most times that an expression is used twice."""
NARROW = ("int8", "uint8", "int16", "uint16")


def _rows(g: Body, depth: int, dtype: str) -> Var:
    """Rows of this depth, of which there are few or more than a tile has."""
    if not g.may_add_params:
        raise DeduceError("op-arguments", "no parameter can be added here")
    several = g.rng.choice((3, 3, 2, 1))
    return g.param(TensorType([Dim.of(g.rng.choice(g.symbols)) * several, depth], dtype))


def _sizes(g: Body) -> tuple[int, int]:
    """The width and the depth of a weight."""
    while True:
        width, depth = g.rng.choice(WIDTHS), g.rng.choice(DEPTHS)
        if width * depth <= ELEMENTS:
            return width, depth


def _weight(g: Body, shape: Sequence[int], dtype: str) -> np.ndarray:
    numbers = np.random.default_rng(g.rng.randrange(1 << 30))
    if "int" in dtype:
        return numbers.integers(-9, 10, shape).astype(dtype)
    return (numbers.integers(-8, 9, shape) / 8).astype(DType(dtype).numpy)


def product(g: Body) -> bool:
    """A product with a constant weight, perhaps with a bias."""
    width, depth = _sizes(g)
    dtype = g.rng.choice(("float32", "float32", "bfloat16", "float16", "int8"))
    x = _rows(g, depth, dtype)
    out = "int32" if dtype == "int8" else None
    if g.rng.random() < 0.5:
        value: Expr = op.linear(
            x, Constant(_weight(g, (width, depth), dtype), dtype), out_dtype=out
        )
    else:
        value = op.matmul(x, Constant(_weight(g, (depth, width), dtype), dtype), out_dtype=out)
    found = g.emit(value)
    if g.rng.random() < 0.5 and out is None:
        g.emit(op.nn.relu(op.add(found, Constant(_weight(g, (width,), dtype), dtype))))
    return True


def codes(g: Body, _: str) -> tuple[str, Callable[[GlobalVar], Rule]]:
    """A program that computes a weight of its codes, and the product with it."""
    width, depth = _sizes(g)
    scheme = g.rng.choice(SCHEMES)
    dtype = g.rng.choice(("float32", "float32", "bfloat16"))
    shape, axis = ((width, depth), 1) if g.rng.random() < 0.6 else ((depth, width), 0)
    parts = scheme.quantize(_weight(g, shape, "float32"), axis)
    text = scheme.program(shape, axis, dtype).script("f")

    def use(name: GlobalVar) -> Rule:
        def rule(g: Body) -> bool:
            given = [Constant(each) for each in parts.values()]
            x = _rows(g, depth, dtype)
            weight = g.builder.emit(call_tir(name, given, TensorType(shape, dtype)))
            g.emit(op.linear(x, weight) if axis else op.matmul(x, weight))
            return True

        return rule

    return text.partition("f(")[2], use


def odd(g: Body) -> bool:
    """A new tensor of an odd width, for other operators."""
    if not g.may_add_params:
        return False
    x = g.param(TensorType([Dim.of(g.rng.choice(g.symbols)), g.rng.choice(WIDTHS)], "float32"))
    names = ("nn.softmax", "sum", "max", "argmax", "cumsum", "mean")
    g.emit(op.OPS[g.rng.choice(names)].make(x, axis=g.rng.choice((0, 1, -1))))
    return True


def shared(g: Body) -> bool:
    """An expression whose parts are used twice each, as one expression."""
    x = g.as_number(g.tensor())
    value: Expr = x
    for _ in range(g.rng.randint(2, LONGEST)):
        make = g.rng.choice((op.add, op.maximum, op.minimum, op.subtract))
        value = make(value, value)
        if make is op.subtract and g.rng.random() < 0.8:
            value = op.add(value, x)
    g.emit(value)
    return True


def scattered(g: Body) -> bool:
    """Elements of few bits, each updated several times."""
    x, i = g.as_number(g.tensor(ndim=1)), g.tensor("int", ndim=1)
    size = g.dims(x)[0]
    if size.value == 0:
        return False
    dtype = g.rng.choice(NARROW)
    narrow = g.emit(op.astype(x, dtype=dtype))
    places = g.emit(op.astype(i, dtype="int64"))
    # Valid in vectors of any size, those without elements, too.
    joined = g.emit(op.concat((narrow, Constant(np.array([1, 2, 3], dtype))), axis=0))
    within = g.emit(op.minimum(op.maximum(places, Constant(-3, "int64")), Constant(2, "int64")))
    updates = g.emit(op.astype(i, dtype=dtype))
    kind = g.rng.choice(("add", "mul", "max", "min", "update"))
    if kind == "update":
        updates = g.emit(op.full_like(updates, Constant(7, dtype)))
    g.emit(op.scatter_elements(joined, within, updates, axis=0, reduction=kind))
    return True


def smallest(g: Body) -> bool:
    """Arithmetic on the smallest integer of a dtype, by -1 among others."""
    dtype = g.rng.choice(("int8", "int16", "int32", "int64"))
    least = int(np.iinfo(dtype).min)
    x = g.emit(op.astype(g.tensor("int"), dtype=dtype))
    is_small = g.emit(op.less(x, Constant(g.rng.choice((1, 2)), dtype)))
    value = g.emit(op.where(is_small, Constant(least, dtype), x))
    name = g.rng.choice(("abs", "negative", "floor_divide", "floor_mod", "mod"))
    if name in ("abs", "negative"):
        g.emit(op.OPS[name].make(value))
        return True
    divisor = Constant(-1, dtype)
    if g.rng.random() < 0.5:
        divisor = g.emit(op.where(is_small, divisor, Constant(g.rng.choice((0, 3)), dtype)))
    g.emit(op.OPS[name].make(value, divisor))
    return True


RULES: Mapping[Rule, int] = {product: 1, odd: 1, shared: 1, scattered: 1, smallest: 1}
