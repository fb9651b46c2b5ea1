from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from relaxpy.runtime.bytecode import (
    Alloc,
    CallablePattern,
    Eval,
    FunctionCode,
    Heap,
    IntOp,
    Kernel,
    KernelInfo,
    Match,
    Move,
    PrimPattern,
    Reg,
    TuplePattern,
)
from relaxpy.runtime.codec import Malformed, decode, encode
from tests.runtime.support import KERNELS, f32, function, times

CODE = function(
    "main",
    [("x", f32(Heap(0), 4, None))],
    [
        Eval(0, 1, times(0, 3)),
        Alloc(0, 1, 0, 2, "float32", -1),
        Kernel(0, 0, (Reg(0), Heap(1), 3, 2.5, True, "text"), -1),
        Match(0, 1, TuplePattern((PrimPattern("int64", Heap(2)), CallablePattern(3))), 0),
        Move(0, 2, 1),
    ],
)


def as_json() -> Any:
    return json.loads(json.dumps(encode(CODE)))


def test_a_function_survives() -> None:
    assert decode(as_json(), FunctionCode) == CODE
    assert decode(json.loads(json.dumps(encode(KERNELS))), tuple[KernelInfo, ...]) == KERNELS


def change(path: str, value: Any) -> Any:
    """The function as JSON with another value at `path`."""
    tree = node = as_json()
    *before, last = [int(key) if key.lstrip("-").isdigit() else key for key in path.split(".")]
    for key in before:
        node = node[key]
    node[last] = value
    return tree


CODE_AT = "FunctionCode.6"


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (f"{CODE_AT}.5.Move.1", "x", r"code\[5\]\.Move\.dst: expected an integer, got 'x'"),
        (f"{CODE_AT}.5.Move.1", True, "expected an integer, got True"),
        (f"{CODE_AT}.5.Move.1", 1.0, "expected an integer"),
        (f"{CODE_AT}.5.Move.1", -1, "-1 is none of 0"),
        (f"{CODE_AT}.5.Move.1", 1 << 31, "is none of 0"),
        (f"{CODE_AT}.5.Move", [0, 1], "Move has 3 fields"),
        (f"{CODE_AT}.5", {"Movee": [0, 1, 2]}, "expected an instruction"),
        (f"{CODE_AT}.5", {"Reg": [0]}, "expected an instruction"),
        (f"{CODE_AT}.5", [], "expected an instruction"),
        (f"{CODE_AT}.1.Eval.2", {"IntOp": ["pow", [1, 2]]}, "'pow' is none of those known"),
        (f"{CODE_AT}.1.Eval.2", {"IntOp": ["add", [1, "2"]]}, r"IntOp\.args\[1\]: expected"),
        (f"{CODE_AT}.1.Eval.2", 1 << 63, "is none of -9223372036854775808"),
        (f"{CODE_AT}.1.Eval.2", 0.5, "expected an integer or Heap or IntOp"),
        (f"{CODE_AT}.2.Alloc.3", 65, "65 is none of 0…64"),
        (f"{CODE_AT}.2.Alloc.4", "float32'", "is none of those known"),
        (f"{CODE_AT}.2.Alloc.5", -2, "-2 is none of -1"),
        (f"{CODE_AT}.3.Kernel.2.0", None, r"Kernel\.args\[0\]: expected"),
        (f"{CODE_AT}.4.Match.2.TuplePattern.0.0.PrimPattern.0", "intx", "is none of those known"),
        (f"{CODE_AT}.4.Match.2", {"IntOp": ["add", [1, 2]]}, "expected"),
        ("FunctionCode.0", 3, "expected a text, got 3"),
        ("FunctionCode.9", 1, "expected true or false, got 1"),
        ("FunctionCode.4.0", 1 << 63, "is none of"),
        ("FunctionCode.7.0.Check.4.0", ["n", "0"], "expected an integer"),
        ("FunctionCode.7.0.Check.4.0", ["n"], "expected a list of 2"),
    ],
)  # fmt: skip
def test_what_fits_no_annotation(path: str, value: Any, problem: str) -> None:
    with pytest.raises(Malformed, match=problem):
        decode(change(path, value), FunctionCode)


def test_each_field_is_compared() -> None:
    """Nothing of a function may be an object that is not one of its own, or a list."""
    count = 0

    def walk(node: Any, put: Callable[[Any], None]) -> None:
        nonlocal count
        for wrong in ({"Nonsense": []}, [[[None]]]):
            count += 1
            put(wrong)
            with pytest.raises(Malformed):
                decode(tree, FunctionCode)
        put(node)
        items = (
            node.items()
            if isinstance(node, dict)
            else enumerate(node)
            if isinstance(node, list)
            else ()
        )
        for key, item in list(items):
            walk(item, lambda value, key=key: node.__setitem__(key, value))

    tree = as_json()
    walk(tree["FunctionCode"], lambda value: tree.__setitem__("FunctionCode", value))
    assert count > 300
    assert decode(tree, FunctionCode) == CODE


def test_an_integer_operation_in_an_operation() -> None:
    expr = IntOp("max", (IntOp("add", (Heap(0), 1)), 2))
    assert decode(json.loads(json.dumps(encode(Eval(0, 1, expr)))), Eval) == Eval(0, 1, expr)
