"""Pass, Sequential: errors of passes, instruments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from relaxpy.errors import PassError, RelaxError
from relaxpy.ir import Function, IRModule
from relaxpy.script import parse
from relaxpy.transform import (
    Normalize,
    Pass,
    PassContext,
    Sequential,
    function_pass,
    module_pass,
)


@dataclass(frozen=True)
class Broken(Pass):
    """Fails."""

    name: ClassVar[str] = "broken"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        raise ZeroDivisionError("oh")


def test_a_crash_names_the_pass_and_keeps_the_module() -> None:
    mod = IRModule({})
    with pytest.raises(PassError, match=r"pass broken failed: ZeroDivisionError: oh") as error:
        Sequential((Normalize(), Broken()))(mod)
    assert error.value.module is mod
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def a_pass(change: Any) -> Pass:
    return module_pass("mine")(lambda mod, ctx: change(mod))


def test_a_crash_is_placed_where_the_users_code_failed() -> None:
    """In the pass of a user, or in what it calls; a crash in relaxpy's own code is a defect of relaxpy."""

    def helper() -> None:
        raise ValueError("my own bug")

    with pytest.raises(PassError, match="pass mine failed: ValueError: my own bug") as caught:
        Sequential((Normalize(), a_pass(lambda _: helper())))(TWO)
    span = caught.value.span
    assert span is not None
    assert span.source_line() == '        raise ValueError("my own bug")'
    assert "bug in relaxpy" not in str(caught.value)


def test_a_crash_without_a_line_of_the_user_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    code = {"__name__": "relaxpy.transform.normalize"}
    exec("def run(self, mod, ctx):\n    raise IndexError", code)
    monkeypatch.setattr(Normalize, "run", code["run"])
    with pytest.raises(PassError, match="this is a bug in relaxpy") as caught:
        Sequential((Normalize(),))(TWO)
    assert caught.value.span is None


@pytest.mark.parametrize(
    ("mine", "got"),
    [
        (a_pass(lambda _: None), "must return a module, got NoneType"),
        (a_pass(lambda mod: mod["f"]), "must return a module, got Function"),
        (a_pass(lambda mod: mod.with_function("f", 3)), "a module of functions, got int"),
        (function_pass("mine")(lambda f, mod, ctx: None), "a function for f, got NoneType"),
    ],
    ids=["no module", "a function", "no function of a module", "no function"],
)
def test_what_a_pass_returns(mine: Pass, got: str) -> None:
    """In a sequence and alone, with the place of the pass."""
    for run in (mine, Sequential((Normalize(), mine, Normalize()))):
        with pytest.raises(PassError, match=got) as caught:
            run(TWO)
        assert caught.value.code == "pass-result"
        assert caught.value.span is not None
        assert caught.value.span.file == __file__


def test_an_invalid_module_is_said_of_the_pass_that_made_it() -> None:
    """And not of the one that meets it."""
    cut = a_pass(lambda mod: mod.with_function("f", replace(mod["f"], params=())))
    with pytest.raises(RelaxError) as caught:
        Sequential((cut, Normalize()))(TWO)
    assert "this is so after the pass mine" in str(caught.value)


def test_instruments_see_every_pass() -> None:
    seen: list[tuple[int, str]] = []
    context = PassContext(
        instruments=[lambda i, step, _before, _after: seen.append((i, step.name))]
    )
    Sequential((Normalize(), Normalize()))(IRModule({}), context)
    assert seen == [(0, "normalize"), (1, "normalize")]


TWO = parse("""
@I.ir_module
class Module:
    @R.function
    def f(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        return x

    @R.function
    def g(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        return x
""")


def test_functions_as_passes() -> None:
    """Decorated, they are passes like others: named, called, in sequences."""
    seen: list[tuple[str, object]] = []

    @module_pass("only-f")
    def only_f(mod: IRModule, ctx: PassContext) -> IRModule:
        """Keeps f."""
        return mod.with_functions({"f": mod["f"]})

    @function_pass("look")
    def look(function: Function, mod: IRModule, ctx: PassContext) -> Function:
        seen.append((str(function.attrs["global_symbol"]), ctx.target))
        return function

    assert isinstance(only_f, Pass)
    assert (only_f.name, only_f.__doc__, look.name) == ("only-f", "Keeps f.", "look")
    assert look(TWO) is TWO
    result = Sequential((look, only_f, look)).run(TWO, PassContext(target="here"))
    assert list(result.functions) == ["f"]
    assert seen == [("f", None), ("g", None), ("f", "here"), ("g", "here"), ("f", "here")]
