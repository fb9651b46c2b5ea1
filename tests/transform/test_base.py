"""Pass, Sequential: errors of passes, instruments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from relaxpy.errors import PassError
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
