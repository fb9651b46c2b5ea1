"""Arguments of data types are compared with their annotation, with all that they contain."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import ExecutableError, RelaxError, RuntimeCheckError
from relaxpy.runtime.check_data import DataCheck
from relaxpy.runtime.terms import (
    DataCase,
    DataInfo,
    DataPattern,
    ObjectPattern,
    ParamPattern,
    TensorPattern,
    TuplePattern,
)
from relaxpy.testing.interpret import interpret

SOURCE = """
@I.ir_module
class Module:
    @R.type
    class List:
        A = R.type_param()

        def Nil(): ...
        def Cons(head: A, tail: "List[A]"): ...

    @R.type
    class Tree:
        def Leaf(x: R.Tensor(("n", 2), "float32")): ...
        def Node(left: "Tree", right: "Tree"): ...

    @R.function
    def main(xs: List[Tree], k: R.Tuple(Tree, R.Prim("int64"))) -> R.Tuple(List[Tree], R.Tuple(Tree, R.Prim("int64"))):
        return xs, k

    @R.function
    def cast(x: R.Object) -> List[Tree]:
        y = R.match_cast(x, List[Tree])
        return y

    @R.function
    def apply(f: R.Callable((R.Prim("int64", value=None),), Tree)) -> Tree:
        y = f(R.prim_value(3))
        return y
"""


@cache
def built() -> Any:
    mod = relaxpy.parse(SOURCE)
    return mod, relaxpy.build(mod)


def leaf(columns: int = 2) -> Any:
    return built()[0].types.Tree.Leaf(np.ones((3, columns), np.float32))


def list_of(*items: Any) -> Any:
    cons, found = built()[0].types.List.Cons, built()[0].types.List.Nil()
    for item in reversed(items):
        found = cons(item, found)
    return found


def wrong(case: str) -> tuple[Any, Any]:
    node = built()[0].types.Tree.Node
    good = list_of(leaf(), node(leaf(), leaf())), (leaf(), 1)
    return {
        "no data": (3, good[1]),
        "another type": (leaf(), good[1]),
        "deep": (list_of(leaf(), node(leaf(), node(leaf(), leaf(3)))), good[1]),
        "an element": (list_of(leaf(), 5), good[1]),
        "in a tuple": (good[0], (list_of(), 1)),
        "dimensions": (list_of(built()[0].types.Tree.Leaf(np.ones(3, np.float32))), good[1]),
        "not called": (built()[0].types.List.Nil, good[1]),
        "a number": (good[0], (leaf(), 1.5)),
        "a tuple": (good[0], (leaf(), 1, 2)),
    }[case]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            "no data",
            r"parameter xs: expected a value of List \(List.Nil, List.Cons\), got the int 3",
        ),
        ("another type", r"expected a value of List \(List.Nil, List.Cons\), got Tree.Leaf"),
        ("deep", "parameter xs: dimension 1 of field x of a Leaf of field right is 3, not 2"),
        ("an element", "expected a value of Tree of field head .*, got the int 5"),
        ("in a tuple", "parameter k: expected a value of Tree of field 0 .*, got List.Nil"),
        ("dimensions", "parameter xs: field x of a Leaf of field head has 1 dimension, not 2"),
        ("not called", r"got the constructor List.Nil itself, without fields: write List.Nil\(\)"),
        ("a number", "expected a scalar of type int64 of field 1, got the float 1.5"),
        ("a tuple", "expected 2 fields, got 3"),
    ],
)
def test_wrong_arguments(case: str, message: str) -> None:
    mod, exe = built()
    with pytest.raises(RuntimeCheckError, match=message) as raised:
        relaxpy.VirtualMachine(exe)["main"](*wrong(case))
    assert any("is annotated" in note for note in raised.value.notes)
    with pytest.raises(RuntimeCheckError, match=message):
        interpret(mod, "main", *wrong(case))


def test_good_arguments_come_back_as_they_are() -> None:
    exe = built()[1]
    xs = list_of(leaf(), leaf())
    found, (tree, number) = relaxpy.VirtualMachine(exe)["main"](xs, (xs.head, 4))
    assert found is xs
    assert tree is xs.head
    assert number == 4


def test_casts_and_results_of_python_look_inside() -> None:
    vm = relaxpy.VirtualMachine(built()[1])
    assert vm["cast"](list_of(leaf())).head.x.shape == (3, 2)
    with pytest.raises(RelaxError, match="match_cast y: dimension 1 of field x of a Leaf"):
        vm["cast"](list_of(leaf(), leaf(4)))
    assert vm["apply"](lambda k: leaf()).x.shape == (3, 2)
    with pytest.raises(RelaxError, match="result y: dimension 1 of field x of a Leaf"):
        vm["apply"](lambda k: leaf(k))


def test_shared_parts_are_compared_once() -> None:
    node, tree = built()[0].types.Tree.Node, leaf()
    for _ in range(60):  # 2**60 leaves
        tree = node(tree, tree)
    start = process_time()
    relaxpy.VirtualMachine(built()[1])["main"](list_of(tree), (tree, 1))
    assert process_time() - start < 5


def test_a_saved_executable_knows_its_types(tmp_path: Path) -> None:
    exe = built()[1]
    exe.save(tmp_path / "x.rxe")
    again = relaxpy.load(tmp_path / "x.rxe")
    assert again.data_types == exe.data_types
    assert again.types.Tree.Leaf is built()[0].types.Tree.Leaf
    assert relaxpy.VirtualMachine(again)["cast"](list_of()) is not None


CASE = DataCase("A", ("x",), (ParamPattern(0),))


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ((), "there is no data type Tree with 0 parameters"),
        ((DataInfo("Tree", 1, ()),), "there is no data type Tree with 0 parameters"),
        ((DataInfo("T", 1, ()), DataInfo("T", 1, ())), "two data types have one name"),
        ((DataInfo("T", 1, (CASE, CASE)),), "two constructors of T have one name"),
        ((DataInfo("T", 0, (CASE,)),), "a data type has no parameter 0"),
        (
            (DataInfo("T", 1, (DataCase("A", ("x", "x"), (ObjectPattern(),) * 2),)),),
            "do not fit their names",
        ),
        ((DataInfo("T", 1, (DataCase("A", ("x",), ()),)),), "do not fit their names"),
        (
            (DataInfo("T", 1, (DataCase("A", ("x",), (TuplePattern((DataPattern("U"),)),)),)),),
            "there is no data type U with 0 parameters",
        ),
    ],
)
def test_damaged_types_are_refused(
    types: tuple[DataInfo, ...], message: str, tmp_path: Path
) -> None:
    exe = built()[1]
    known = () if any(info.name == "Tree" for info in types) or not types else exe.data_types
    replace(exe, data_types=(*known, *types)).save(tmp_path / "x.rxe")
    with pytest.raises(ExecutableError, match=message):
        relaxpy.load(tmp_path / "x.rxe")


@pytest.mark.parametrize("name", ["a b", "class", "", "x.y", "x, y"])
def test_names_that_python_cannot_have_are_refused(name: str, tmp_path: Path) -> None:
    exe = built()[1]
    bad = DataInfo("T", 0, (DataCase("A", (name,), (ObjectPattern(),)),))
    replace(exe, data_types=(*exe.data_types, bad)).save(tmp_path / "x.rxe")
    with pytest.raises(ExecutableError, match="is none of those known"):
        relaxpy.load(tmp_path / "x.rxe")


def test_types_that_grow() -> None:
    """A type whose field is the type of larger arguments is compared as deep as the value is."""
    table = (
        DataInfo(
            "Nest",
            1,
            (
                DataCase("End", (), ()),
                DataCase(
                    "More",
                    ("x", "rest"),
                    (ParamPattern(0), DataPattern("Nest", (TuplePattern((ParamPattern(0),) * 2),))),
                ),
            ),
        ),
    )
    from relaxpy.runtime.check_data import types_of

    nest = types_of(table).Nest
    one = np.ones(1, np.float32)
    check = DataCheck(table)
    pattern = DataPattern("Nest", (TensorPattern((1,), 1, "float32"),))
    good = nest.More(one, nest.More((one, one), nest.More(((one, one), (one, one)), nest.End())))
    assert check.misfit(good, pattern) == ""
    assert "field 1" in check.misfit(nest.More(one, nest.More((one, 3), nest.End())), pattern)
