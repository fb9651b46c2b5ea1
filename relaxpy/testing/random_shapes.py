"""Shape values, tuples and casts in random programs."""

from __future__ import annotations

from collections.abc import Mapping

from relaxpy import op
from relaxpy.errors import DeduceError
from relaxpy.ir.accessors import expect, tensor_of
from relaxpy.ir.annotation import Annotation, ObjectType, PrimType, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import Dim
from relaxpy.ir.expr import Expr, PrimValue, ShapeExpr, Tuple, TupleGetItem, Var
from relaxpy.op.row_major import product
from relaxpy.testing.random_body import UNDECIDED, Body, Rule


def reshape(g: Body) -> bool:
    """The same elements with a computed shape."""
    x = g.tensor(least=1)
    dims = list(g.dims(x))
    i = g.rng.randrange(len(dims))
    choices: list[list[Dim]] = [dims[::-1], [product(tuple(dims))]]
    if i + 1 < len(dims):
        choices.append([*dims[:i], dims[i] * dims[i + 1], *dims[i + 2 :]])
    half = dims[i].divide_exact(2)
    if half is not None and dims[i] != 0:
        choices += [[*dims[:i], Dim.of(2), half, *dims[i + 1 :]]] * 2
    if all(d.value != 0 for d in dims[1:]):
        choices.append([Dim.of(-1), *dims[1:]])
    g.emit(op.reshape(x, ShapeExpr(g.rng.choice(choices))))
    return True


def shape_value(g: Body) -> bool:
    """A shape value: of a tensor, a literal, or from a tensor of its dimensions."""
    x = g.tensor()
    choice = g.rng.randrange(4)
    if choice == 0:
        g.emit(ShapeExpr([g.dimension() for _ in range(g.rng.choice((0, 1, 2, 3)))]))
        return True
    shape = g.emit(op.shape_of(x))
    if choice > 1:
        vector = g.emit(op.shape_to_tensor(shape))
        if choice == 3:
            found = g.emit(op.tensor_to_shape(vector))
            symbols = [g.fresh_symbol() for _ in range(_rank(vector))]
            g.add(g.builder.match_cast(found, ShapeType(symbols)))
    return True


def use_shape(g: Body) -> bool:
    """Creates a tensor from a shape value."""
    shape = g.pick(lambda a: isinstance(a, ShapeType) and 0 <= a.ndim <= 4)
    choice = g.rng.randrange(4)
    if choice == 0:
        g.emit(g.rng.choice((op.zeros, op.ones))(shape, dtype="float32"))
    elif choice == 1:
        g.emit(op.broadcast_to(g.tensor(ndim=0), shape))
    elif choice == 2:
        g.emit(op.shape_to_tensor(shape))
    else:
        same = [
            v
            for v in g.pool
            if isinstance(v.annotation, TensorType)
            and v.annotation.dims is not None
            and v.annotation.dims == expect(ShapeType, shape.annotation).dims
        ]
        if not same:
            return False
        g.emit(op.reshape(g.rng.choice(same), shape))
    return True


def scalar(g: Body) -> bool:
    """A scalar on the host, and a range up to it."""
    value: Expr = PrimValue(g.dimension())
    if g.rng.random() < 0.5:
        value = g.emit(value)
    if g.rng.random() < 0.6:
        g.emit(op.arange(0, value, 1, dtype=g.rng.choice(("int64", "float32"))))
    return True


def places(g: Body) -> bool:
    """A slice with bounds that may be out of range, negative, or reversed."""
    if not g.places:
        return False
    x = g.tensor(least=1)
    axis = g.rng.randrange(len(g.dims(x)))
    ends = [Dim.of(g.rng.choice((g.rng.choice(g.places), *(0, 1, -2)))) for _ in range(2)]
    step = g.rng.choice((1, 1, 1, 2, -1))
    axes, begin, end, strides = (ShapeExpr([Dim.of(value)]) for value in (axis, *ends, step))
    g.emit(op.strided_slice(x, axes, begin, end, strides))
    return True


def negative_size(g: Body) -> bool:
    """A size that is negative for some values of the symbols."""
    if g.rng.random() >= UNDECIDED:
        return False
    size = Dim.of(g.rng.choice(g.symbols))
    less = g.rng.choice((Dim.of(1), Dim.of(2), Dim.of(g.rng.choice(g.symbols))))
    g.emit(op.zeros(ShapeExpr([size - less, 2]), dtype=g.rng.choice(("float32", "int64"))))
    return True


def tuples(g: Body) -> bool:
    """Puts values into nested tuples, and takes them out again."""
    values = [g.rng.choice(g.pool) for _ in range(g.rng.choice((1, 2, 3)))]
    inner = Tuple(tuple(values))
    whole = g.builder.emit(Tuple((values[0], inner)) if g.rng.random() < 0.5 else inner)
    g.pool.append(whole)
    index = g.rng.randrange(len(expect(TupleType, whole.annotation).fields))
    g.add(g.builder.emit(TupleGetItem(whole, index)))
    return True


def name_dimensions(g: Body) -> bool:
    """Binds new symbols to the dimensions of a tensor, whose shape may be known or unknown."""
    x = g.tensor(least=1)
    kind = tensor_of(x)
    dims: list[Dim] = [Dim.of(g.fresh_symbol()) for _ in range(kind.ndim)]
    if kind.dims is not None and g.rng.random() < 0.4:
        i = g.rng.randrange(kind.ndim)
        dims[i] = kind.dims[i]
    g.add(g.builder.match_cast(x, TensorType(dims, kind.dtype)))
    return True


def data_dependent(g: Body) -> bool:
    """A size that depends on the data, with or without a symbol."""
    x = g.tensor("int" if g.rng.random() < 0.8 else "")
    found = g.emit(op.unique(x))
    kind = tensor_of(found)
    if g.rng.random() < 0.6:
        g.add(g.builder.match_cast(found, TensorType([g.fresh_symbol()], kind.dtype)))
    return True


def forget(g: Body) -> bool:
    """Makes an annotation less precise, and perhaps recovers it with a match_cast."""
    x = g.pick(lambda a: isinstance(a, (TensorType, ShapeType, TupleType, PrimType)))
    known = x.annotation
    vague = ObjectType() if g.rng.random() < 0.3 else g.coarser(known)
    less = g.builder.match_cast(x, vague)
    g.pool.append(less)
    if g.rng.random() < 0.7:
        g.add(g.builder.match_cast(less, _renamed(g, known)))
    return True


def _renamed(g: Body, annotation: Annotation) -> Annotation:
    """The same annotation, or one with new symbols for some dimensions."""
    if not isinstance(annotation, TensorType) or annotation.dims is None:
        return annotation
    dims = [Dim.of(g.fresh_symbol()) if g.rng.random() < 0.4 else d for d in annotation.dims]
    return TensorType(dims, annotation.dtype)


def _rank(vector: Var) -> int:
    """The rank of the shape that is stored in this tensor."""
    kind = vector.annotation
    count = kind.dims[0].value if isinstance(kind, TensorType) and kind.dims else None
    if count is None:
        raise DeduceError("op-arguments", "the rank is not known")
    return count


RULES: Mapping[Rule, int] = {
    reshape: 3, shape_value: 1, use_shape: 1, scalar: 1, tuples: 2, name_dimensions: 1, data_dependent: 1, forget: 1,
    places: 3, negative_size: 1,
}  # fmt: skip
