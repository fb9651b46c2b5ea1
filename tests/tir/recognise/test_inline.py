"""What is read several times is computed once, where it is sure to be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relaxpy.tir.numerics.floats import f32, let
from relaxpy.tir.programs.loops import int64
from relaxpy.tir.recognise.inline import with_named_reads
from relaxpy.tir.tvm import tirx, tvm_ffi

i = tirx.Var("i", "int64")
b = tirx.decl_buffer([16], "float32", "b", layout=None)
x = tirx.decl_buffer([16], "float32", "x", layout=None)


def value(indices: Any) -> Any:
    return tirx.exp(tirx.BufferLoad(x, indices))


def product(indices: Any) -> Any:
    return tirx.BufferLoad(x, indices) * value(indices)


def read(at: Any = i) -> Any:
    return tirx.BufferLoad(b, [at])


def rewritten(expr: Any, of: Callable[[Any], Any] = value) -> Any:
    return with_named_reads(expr, b, of)


def count(node: Any, name: str = "tirx.exp") -> int:
    found: list[Any] = []

    def visit(call: Any) -> None:
        if call.op.name == name:
            found.append(call)

    tvm_ffi.structural_walk(node, (type(tirx.exp(f32(1))), visit))
    return len(found)


def test_once_under_a_name() -> None:
    made = rewritten(read() + read() * f32(2))
    assert isinstance(made, tirx.Let)
    assert count(made) == 1


def test_one_read_needs_no_name() -> None:
    assert tvm_ffi.structural_equal(rewritten(read() + f32(2)), value([i]) + f32(2))


def test_every_place_by_itself() -> None:
    made = rewritten(read() * read() + read(i + int64(1)) * read(i + int64(1)))
    assert count(made) == 2


def test_what_one_arm_reads_is_computed_there() -> None:
    """There the index may be no place of the buffer."""
    inside = i < int64(8)
    made = rewritten(f32(1) + tirx.if_then_else(inside, read() * read(), f32(0)))
    assert isinstance(made, tirx.Add)
    (_, arm, _) = made.b.args
    assert isinstance(arm, tirx.Let)
    assert count(made) == 1


def test_what_both_arms_read_is_computed_before() -> None:
    made = rewritten(tirx.if_then_else(i < int64(8), read(), read() * f32(2)))
    assert isinstance(made, tirx.Let)
    assert count(made) == 1


def test_an_arm_uses_the_name_around_it() -> None:
    made = rewritten(tirx.if_then_else(read() < f32(0), read(), f32(0)))
    assert isinstance(made, tirx.Let)
    assert count(made) == 1


def test_a_product_stays_one() -> None:
    """TVM makes one operation of it and a sum."""
    made = rewritten(read() + read(), product)
    while isinstance(made, tirx.Let):
        made = made.body
    assert isinstance(made.a, tirx.Mul)
    assert isinstance(made.b, tirx.Mul)


def test_a_place_that_the_expression_names_stays_behind_the_name() -> None:
    made = rewritten(let("at", i + int64(1), lambda at: read(at) * read(at)))
    assert str(made.var.name) == "at"
    assert count(made) == 2


def undefined(made: Any) -> set[str]:
    """Names that nothing in the expression defines."""
    from tvm.tirx import analysis

    statement = tirx.Evaluate(made)
    return {var.name for var in analysis.undefined_vars(statement, [])}


def test_elements_that_are_indices_of_others_have_names() -> None:
    """Whether they are read once, several times, or in both arms of a choice, in one of which under another name."""
    at = tirx.Cast("int64", read())
    known = undefined(value([i]))
    other = tirx.Cast("int64", read(i + int64(1)))
    for expr in (
        read(at),
        read(at) * read(at),
        read(at) + read(),
        tirx.if_then_else(i < int64(8), read(at), f32(0)),
        tirx.if_then_else(i < int64(8), read(at) * read(at), read() + read(at)),
        tirx.if_then_else(i < int64(8), read(other) + read(), read(at) * read(at)),
        tirx.if_then_else(
            i < int64(8), read(at), tirx.if_then_else(i < int64(9), read(other), read(at))
        ),
    ):
        assert undefined(rewritten(expr)) == known
