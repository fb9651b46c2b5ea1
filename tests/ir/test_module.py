"""Modules: names to functions, immutable."""

from __future__ import annotations

import pytest

from relaxpy.errors import UsageError
from relaxpy.ir import ExternFunc, Function, IRModule, ObjectType, Var
from relaxpy.ir.expr import seq


def identity() -> Function:
    x = Var("x", ObjectType())
    return Function((x,), seq([], x), ObjectType())


def test_changes_make_new_modules() -> None:
    f, g = identity(), identity()
    mod = IRModule({"f": f})
    more = mod.with_function("g", g)
    assert list(mod) == ["f"]
    assert list(more) == ["f", "g"]
    assert more["g"] is g
    with pytest.raises(TypeError):
        mod.functions["h"] = f  # type: ignore[index]


def test_what_changes_nothing_is_the_same_object() -> None:
    mod = IRModule({"f": identity()})
    assert mod.with_functions(dict(mod.functions)) is mod
    assert mod.map_graph_functions(lambda _, f: f) is mod
    assert mod.map_graph_functions(lambda _, f: identity()) is not mod


def test_the_given_mapping_may_change() -> None:
    functions = {"f": identity()}
    mod = IRModule(functions)  # type: ignore[arg-type]
    functions.clear()
    assert "f" in mod
    assert len(mod) == 1


def test_kinds_of_functions() -> None:
    mod = IRModule({"f": identity(), "e": ExternFunc("lib.e")})
    assert list(mod.graph_functions) == ["f"]
    assert mod.prim_funcs == {}
    assert mod.annotation_of("e") is None
    assert mod.annotation_of("f") == mod["f"].annotation  # type: ignore[union-attr]


def test_fresh_names() -> None:
    mod = IRModule({"f": identity(), "f1": identity()})
    assert mod.fresh_name("f") == "f2"
    assert mod.fresh_name("g") == "g"


def test_a_function_that_is_not_there() -> None:
    mod = IRModule({"main": identity()})
    with pytest.raises(UsageError, match="no function 'mian'") as caught:
        mod["mian"]
    assert caught.value.help == "did you mean 'main'?"


def test_notebooks_show_the_script_with_colours() -> None:
    shown = IRModule({"main": identity()})._repr_html_()
    assert "main" in shown
    assert "<span style=" in shown
    assert "<script" not in shown
