"""Definitions and uses, in branches and local functions too."""

from __future__ import annotations

import relaxpy
from relaxpy.analysis.use_def import UseDef, use_def
from relaxpy.ir import Function, MatchCast, SeqExpr, Var

SCRIPT = """
@R.function
def main(x: R.Tensor(("n", 4), "float32"), c: R.Tensor((), "bool"), unused: R.Tensor((4,), "float32")):
    a = R.add(x, x)
    dead = R.exp(a)
    @R.function
    def inner(p: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
        q = R.add(p, a)
        return q
    if c:
        y = inner(a)
    else:
        z = R.exp(x)
        y = R.match_cast(z, R.Tensor(("m", 4), "float32"))
    return y
"""


def uses() -> tuple[UseDef, dict[str, Var]]:
    main = relaxpy.parse(SCRIPT)["main"]
    assert isinstance(main, Function)
    found = use_def(main)
    return found, {var.name: var for var in found.definitions}


def users(name: str) -> list[str]:
    """The variables of the bindings that use `name`; "result" for bodies."""
    found, names = uses()
    return ["result" if isinstance(u, SeqExpr) else u.var.name for u in found.users(names[name])]


def test_users_in_order_each_once() -> None:
    assert users("x") == ["a", "z"]
    assert users("a")[:2] == ["dead", "q"]
    assert len(users("a")) == 3
    assert users("p") == ["q"]
    assert users("q") == ["result"]
    assert users("c") == ["y"]


def test_what_nothing_uses() -> None:
    found, names = uses()
    assert {name for name, var in names.items() if found.is_dead(var)} == {"dead", "unused"}


def test_definitions() -> None:
    found, names = uses()
    assert isinstance(found.definitions[names["p"]], Function)
    assert found.definitions[names["p"]] is not found.definitions[names["x"]]
    casts = [d for d in found.definitions.values() if isinstance(d, MatchCast)]
    assert len(casts) == 1
    assert [use for use in found.users(names["z"])] == casts
