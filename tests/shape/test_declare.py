"""Bounds that are given beside a program."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RuntimeCheckError, UsageError
from relaxpy.ir import IRModule
from relaxpy.shape.bounds import UPPER
from relaxpy.shape.declare import symbols_of, with_bounds
from relaxpy.testing.interpret import interpret

TEXT = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", "m"), "float32")) -> R.Tensor(("n", "m"), "float32"):
        return R.exp(x)

    @R.function
    def unique(x: R.Tensor(("n",), "float32")) -> R.Tensor("float32", ndim=1):
        k = T.int64()
        y = R.unique(x)
        z = R.match_cast(y, R.Tensor((k,), "float32"))
        w = R.exp(z)
        return w

    @R.function(private=True)
    def inner(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        return R.exp(x)
"""


@pytest.fixture
def mod() -> IRModule:
    return relaxpy.parse(TEXT)


def limits(mod: IRModule) -> dict[str, dict[str, int]]:
    return {n: dict(f.attrs[UPPER]) for n, f in mod.graph_functions.items() if UPPER in f.attrs}


def test_symbols(mod: IRModule) -> None:
    assert symbols_of(mod.graph_functions["main"]) == ("n", "m")
    assert symbols_of(mod.graph_functions["unique"]) == ("n", "k")


def test_a_name_is_that_of_every_public_function(mod: IRModule) -> None:
    assert limits(with_bounds(mod, {"n": 8})) == {"main": {"n": 8}, "unique": {"n": 8}}
    assert limits(with_bounds(mod, {"m": 3})) == {"main": {"m": 3}}


def test_a_name_of_one_function(mod: IRModule) -> None:
    assert limits(with_bounds(mod, {"inner.n": 8, "unique.k": 4})) == {
        "inner": {"n": 8},
        "unique": {"k": 4},
    }


def test_the_smaller_bound_holds(mod: IRModule) -> None:
    assert limits(with_bounds(with_bounds(mod, {"m": 8}), {"m": 9}))["main"] == {"m": 8}
    assert limits(with_bounds(mod, {"n": 8, "main.n": 5}))["main"] == {"n": 5}


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"q": 3}, "no function has a symbolic variable 'q'"),
        ({"mian.n": 3}, "no function has a symbolic variable 'mian.n'"),
        ({"n": -1}, "a non-negative integer"),
        ({"n": 2.5}, "a non-negative integer"),
        ({"n": True}, "a non-negative integer"),
    ],
)
def test_what_is_refused(mod: IRModule, bounds: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        with_bounds(mod, bounds)
    assert error.value.code == "bounds"


def test_a_near_name_is_suggested(mod: IRModule) -> None:
    with pytest.raises(UsageError) as error:
        with_bounds(mod, {"mian.n": 3})
    assert error.value.help == "did you mean 'main.n'?"


def test_a_broken_bound_is_refused_where_the_variable_gets_its_value(mod: IRModule) -> None:
    """The same by the interpreter and the virtual machine; a size that depends on the data, too."""
    bounded = with_bounds(mod, {"main.n": 4, "unique.k": 2})
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, bounds={"main.n": 4, "unique.k": 2}))
    calls = [
        ("main", np.ones((5, 1), np.float32), "main: n exceeds its upper bound 4"),
        ("unique", np.arange(3, dtype=np.float32), "unique: k exceeds its upper bound 2"),
    ]
    for name, x, message in calls:
        with pytest.raises(RuntimeCheckError, match=message) as error:
            vm[name](x)
        assert error.value.code == "check"
        assert error.value.span is not None
        with pytest.raises(RuntimeCheckError, match=message):
            interpret(bounded, name, x)
        fine = x[: 2 if name == "unique" else 4]
        np.testing.assert_allclose(vm[name](fine).numpy(), np.exp(fine), rtol=1e-6)
