"""accepts, join, erase: right for values. A verdict is checked against every concrete tensor that an annotation
allows."""

from __future__ import annotations

import itertools
import random

import pytest

from relaxpy.ir import (
    CallableType,
    Dim,
    ObjectType,
    PrimType,
    ShapeType,
    SymVar,
    TensorType,
    TupleType,
    Var,
)
from relaxpy.ir.annotation import Annotation
from relaxpy.shape.lattice import (
    Verdict,
    accepts,
    common_dtype,
    equal_dims,
    erase,
    join,
    substitute,
)
from relaxpy.shape.prove import equal

n, m, k = SymVar("n"), SymVar("m"), SymVar("k")
YES, MAYBE, NO = Verdict.YES, Verdict.MAYBE, Verdict.NO
SIZES = (0, 1, 2, 3)
VALUES = [dict(zip((n, m), pair, strict=True)) for pair in itertools.product(SIZES, repeat=2)]


def random_annotation(rng: random.Random, depth: int = 2) -> Annotation:
    """A tensor, shape, scalar or tuple over n and m, coarse or fine."""
    dims = [
        rng.choice((n.dim, m.dim, n.dim + 1, n.dim * 2, Dim.of(2), Dim.of(3), n.dim + m))
        for _ in range(rng.randrange(3))
    ]
    match rng.randrange(6 if depth else 5):
        case 0:
            return TensorType(dims, rng.choice(("float32", "int64", None)))
        case 1:
            return TensorType(None, rng.choice(("float32", None)), rng.choice((-1, 0, 1, 2)))
        case 2:
            return rng.choice((ShapeType(dims), ShapeType(None, rng.choice((-1, 1, 2)))))
        case 3:
            return PrimType("int64", rng.choice((None, n.dim, Dim.of(2))))
        case 4:
            return ObjectType()
        case _:
            return TupleType([random_annotation(rng, depth - 1) for _ in range(rng.randrange(3))])


def fits(value: Annotation, pattern: Annotation) -> bool:
    """May a concrete value (an annotation without unknowns) be used as a pattern without symbols? Spelled out, as an
    oracle."""
    match pattern, value:
        case ObjectType(), _:
            return True
        case TensorType(), TensorType():
            return (
                (pattern.dims is None or pattern.dims == value.dims)
                and pattern.ndim in (-1, value.ndim)
                and pattern.dtype in (None, value.dtype)
            )
        case ShapeType(), ShapeType():
            return (pattern.dims is None or pattern.dims == value.dims) and pattern.ndim in (
                -1,
                value.ndim,
            )
        case PrimType(), PrimType():
            return pattern.dtype == value.dtype and pattern.value in (None, value.value)
        case TupleType(), TupleType():
            return len(pattern.fields) == len(value.fields) and all(
                fits(v, p) for v, p in zip(value.fields, pattern.fields, strict=True)
            )
        case _:
            return False


def concrete(annotation: Annotation, rng: random.Random) -> Annotation:
    """A value that an annotation without symbols allows."""
    match annotation:
        case TensorType(dims=dims, dtype=dtype, ndim=ndim):
            rank = rng.randrange(3) if ndim < 0 else ndim
            shape = dims if dims is not None else [rng.choice(SIZES) for _ in range(rank)]
            return TensorType(shape, dtype or rng.choice(("float32", "int64", "int8")))
        case ShapeType(dims=dims, ndim=ndim):
            rank = rng.randrange(3) if ndim < 0 else ndim
            return ShapeType(dims if dims is not None else [rng.choice(SIZES) for _ in range(rank)])
        case PrimType(value=value):
            return PrimType("int64", rng.choice(SIZES) if value is None else value)
        case TupleType(fields=fields):
            return TupleType([concrete(item, rng) for item in fields])
        case _:
            return concrete(rng.choice((TensorType(), ShapeType(), PrimType("int64"))), rng)


@pytest.mark.parametrize("equality", [equal_dims, equal], ids=["normal form", "proof"])
def test_verdicts_hold_for_values(equality: object) -> None:
    """YES: every value of `actual` fits `pattern`. NO: none does."""
    rng = random.Random(1)
    seen = set()
    for _ in range(400):
        pattern, actual = random_annotation(rng), random_annotation(rng)
        verdict = accepts(pattern, actual, None, equality)  # type: ignore[arg-type]
        seen.add(verdict)
        for values in VALUES:
            wanted, value = substitute(pattern, values), concrete(substitute(actual, values), rng)
            if verdict is YES:
                assert fits(value, wanted), f"{value!r} against {pattern!r}"
            elif verdict is NO:
                assert not fits(value, wanted), f"{value!r} against {pattern!r}"
    assert seen == {YES, MAYBE, NO}


def test_reflexive() -> None:
    rng = random.Random(2)
    for _ in range(200):
        annotation = random_annotation(rng)
        assert accepts(annotation, annotation) is YES


def test_join_accepts_both() -> None:
    """What is known after a branch holds for either side, and the order does not matter."""
    rng = random.Random(3)
    for _ in range(400):
        a, b = random_annotation(rng), random_annotation(rng)
        both = join(a, b)
        assert accepts(both, a) is YES
        assert accepts(both, b) is YES
        assert accepts(both, join(b, a)) is YES
        assert accepts(join(b, a), both) is YES
        assert join(a, a) == a


def test_join_keeps_what_agrees() -> None:
    assert join(TensorType((n, 4), "float32"), TensorType((n, 5), "float32")) == TensorType(
        None, "float32", 2
    )
    assert join(TensorType((n,), "float32"), TensorType((n,), "int64")) == TensorType((n,))
    assert join(PrimType("int64", 1), PrimType("int64", 2)) == PrimType("int64")
    assert join(TupleType([ObjectType()]), TupleType([])) == ObjectType()


def test_functions_that_differ_in_the_names_of_variables_join() -> None:
    """After `if c: f = square`, `else: f = cube` the signature that both have is known."""
    square = CallableType([TensorType((n, 4))], TensorType((n, 8)))
    cube = CallableType([TensorType((m, 4))], TensorType((m, 8)))
    assert join(square, cube) == square
    assert join(cube, square) == cube
    other = CallableType([TensorType((m, 4))], TensorType((m, 9)))
    assert join(square, other) == CallableType([TensorType((n, 4))], TensorType(None, ndim=2))
    same = CallableType([TensorType((n, n))], TensorType((n,)))
    two = CallableType([TensorType((n, m))], TensorType((n,)))
    assert join(same, two) == join(two, same) == CallableType()


def test_erase_is_coarser() -> None:
    """An erased annotation accepts the original and mentions no hidden symbol."""
    rng = random.Random(4)
    for _ in range(300):
        annotation = random_annotation(rng)
        erased = erase(annotation, lambda var: var is not n)
        assert accepts(erased, annotation) is YES
        assert n not in set(_symbols(erased))


def _symbols(annotation: Annotation) -> list[SymVar]:
    from relaxpy.ir.visitor import free_sym_vars

    return list(free_sym_vars([annotation]))


def test_erase_keeps_rank_and_the_rest() -> None:
    assert erase(TensorType((n, m), "float32"), lambda var: var is m) == TensorType(
        None, "float32", 2
    )
    assert erase(TensorType((4, m), "float32"), lambda var: var is m) == TensorType(
        (4, m), "float32"
    )
    shape = Var("s", ShapeType(ndim=2))
    assert erase(TensorType(shape, "int8"), lambda _: True, lambda _: False) == TensorType(
        None, "int8", 2
    )
    own = CallableType([TensorType((k,))], TensorType((k, n)))
    assert erase(own, lambda var: False) == CallableType([TensorType((k,))], TensorType(ndim=2))
    assert erase(own, lambda var: var is n) == own


def test_binding_a_callee() -> None:
    """Symbols of a callee's parameters are bound where they stand alone, and hold everywhere."""
    bound: dict[SymVar, Dim] = {}
    assert (
        accepts(TensorType((k, k), "float32"), TensorType((n.dim * 2, n.dim * 2), "float32"), bound)
        is YES
    )
    assert bound == {k: n.dim * 2}
    assert accepts(TensorType((k.dim + 1,)), TensorType((n.dim * 2 + 1,)), bound) is YES
    assert accepts(TensorType((k,)), TensorType((n.dim * 2 + 1,)), bound) is NO
    assert accepts(TensorType((k,)), TensorType((m,)), bound) is MAYBE


def test_a_compound_is_solved_where_that_is_exact() -> None:
    bound: dict[SymVar, Dim] = {}
    assert accepts(TensorType((k.dim * 2 + 1,)), TensorType((n.dim * 4 + 3,)), bound) is YES
    assert bound == {k: n.dim * 2 + 1}
    assert accepts(TensorType((k.dim * 2,)), TensorType((6,)), {}) is YES
    assert accepts(TensorType((k.dim * 2,)), TensorType((n,)), {}) is MAYBE
    assert accepts(TensorType((k.dim * m.dim,)), TensorType((n,)), {}) is MAYBE


@pytest.mark.parametrize(
    ("pattern", "actual", "verdict"),
    [
        (TensorType((n,)), TensorType((n.dim + 1,)), NO),
        (TensorType((n,)), TensorType((m,)), MAYBE),
        (TensorType((4,)), TensorType(ndim=1), MAYBE),
        (TensorType((4,)), TensorType(ndim=2), NO),
        (TensorType((4,)), ObjectType(), MAYBE),
        (TensorType((4,)), ShapeType((4,)), NO),
        (TensorType(dtype="int8"), TensorType(), MAYBE),
        (
            CallableType([TensorType((n,))], TensorType((n,))),
            CallableType([TensorType((m,))], TensorType((m,))),
            YES,
        ),
        (
            CallableType([TensorType((n,))], TensorType((n,))),
            CallableType([TensorType((m,))], TensorType((m.dim + 1,))),
            NO,
        ),
        (CallableType([ObjectType()]), CallableType([ObjectType()], pure=False), NO),
        (CallableType(pure=False), CallableType([ObjectType()]), YES),
        (CallableType([ObjectType()]), CallableType([]), NO),
    ],
)
def test_verdict(pattern: Annotation, actual: Annotation, verdict: Verdict) -> None:
    assert accepts(pattern, actual) is verdict


def test_common_dtype() -> None:
    from relaxpy.ir import DType

    assert common_dtype([DType("int8"), DType("int8")]) == "int8"
    assert common_dtype([DType("int8"), None]) is None
    assert common_dtype([DType("int8"), DType("int16")]) is None
