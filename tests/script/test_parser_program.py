"""Definitions that were read before: the same program wherever they mean the same."""

from __future__ import annotations

import textwrap

import pytest

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.ir.module import IRModule, TensorProgram

PROGRAM = """
@T.prim_func
def add(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for i in range(4):
        with T.sblock("y"):
            v = T.axis.spatial(4, i)
            y[v] = x[v] + T.float32(amount)
"""


def module(program: str, before: str = "", name: str = "M") -> str:
    return f"{before}\n@I.ir_module\nclass {name}:{textwrap.indent(program, '    ')}"


def read(text: str) -> TensorProgram:
    program = relaxpy.parse(text)["add"]
    assert isinstance(program, TensorProgram)
    return program


def test_read_once() -> None:
    """At any indentation; each knows its own place."""
    plain = PROGRAM.replace("amount", "2.5")
    first, second = read(module(plain)), read("\n\n" + plain)
    assert first.func is second.func  # type: ignore[attr-defined]
    assert first.span is not None
    assert second.span is not None
    assert (first.span.line, first.span.column) != (second.span.line, second.span.column)


def test_values_around_it_are_seen() -> None:
    """Also where the text was read before with another value, or none."""
    texts = [read(module(PROGRAM, f"amount = {value}")).script() for value in (1.5, 3.5)]
    assert "1.5" in texts[0]
    assert "3.5" in texts[1]
    with pytest.raises(RelaxError):
        relaxpy.parse(module(PROGRAM))


def test_a_name_that_has_a_value_later() -> None:
    """A loop's variable hides what is around; a program that was read without it is read anew."""
    plain = PROGRAM.replace("amount", "7.5")
    before = read(module(plain)).script()
    assert read(module(plain, "v = 3")).script() == before
    assert read(module(plain, "i = 5")).script() == before


def test_texts_of_several_lines_keep_their_indentation(modules_round_trip: list[IRModule]) -> None:
    noted = PROGRAM.replace("amount", "1.0").replace(
        "    for i", '    T.func_attr({"note": """a\n    b"""})\n    for i'
    )
    inside, outside = read(module(noted)), read(noted)
    assert inside.attrs["note"] != outside.attrs["note"]
    modules_round_trip.clear()  # TVM does not print them
