"""Which functions of a module others mention."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

import pytest

import relaxpy
from relaxpy.analysis.called_functions import cycles, with_callees
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.errors import UsageError

MODULE = relaxpy.parse("""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def copy(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("copy"):
                vi = T.axis.spatial(n, i)
                y[vi] = x[vi]

    @R.function(private=True)
    def inner(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        cls = Module
        y = R.call_tir(cls.copy, (x,), out_ty=R.Tensor((n,), dtype="float32"))
        return y

    @R.function
    def other(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        return R.exp(x)

    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        cls = Module
        f = cls.inner
        return f(x)

    @R.function
    def again(n: R.Prim("int64")) -> R.Prim("int64"):
        cls = Module
        return cls.again(n)
""")


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("copy", ["copy"]),
        ("other", ["other"]),
        ("main", ["copy", "inner", "main"]),
        ("again", ["again"]),
    ],
)
def test_a_function_with_what_it_calls(name: str, want: list[str]) -> None:
    """All that it needs, used as values too, in the module's order; what is left is well formed."""
    cut = with_callees(MODULE, name)
    assert list(cut.functions) == want
    check_well_formed(cut)


def test_a_name_that_there_is_not() -> None:
    with pytest.raises(UsageError) as error:
        with_callees(MODULE, "iner")
    assert error.value.code == "unknown-function"
    assert error.value.help == "did you mean 'inner'?"


def leads_back(name: str, callees: Mapping[str, Sequence[str]], goal: str = "") -> bool:
    """The definition: a function (or another one, `goal`) can be reached from what it calls."""
    seen: set[str] = set()
    waiting = list(callees[name])
    while waiting:
        callee = waiting.pop()
        if callee not in seen:
            seen.add(callee)
            waiting += callees.get(callee, ())
    return (goal or name) in seen


def test_recursive_functions_of_random_modules() -> None:
    rng = random.Random(0)
    for _ in range(300):
        names = [f"f{i}" for i in range(rng.randint(1, 9))]
        others = [*names, "a_tensor_program"]
        calls = {n: tuple(rng.choices(others, k=rng.randint(0, 3))) for n in names}
        found = cycles(calls)
        assert set(found) == {n for n in names if leads_back(n, calls)}, calls
        for a, b in itertools.combinations(found, 2):
            together = leads_back(a, calls, b) and leads_back(b, calls, a)
            assert (found[a] == found[b]) == together, (a, b, calls)


class Counted(dict[str, tuple[str, ...]]):
    """A mapping that counts how often a value is asked for."""

    asked = 0

    def __getitem__(self, name: str) -> tuple[str, ...]:
        self.asked += 1
        return super().__getitem__(name)


@pytest.mark.parametrize("back", [False, True])
def test_looking_for_recursion_is_linear(back: bool) -> None:
    """In a chain of functions, and in a chain of which each calls the one before it, too."""

    def asked(count: int) -> int:
        calls = Counted({f"f{i}": (f"f{i + 1}",) for i in range(count)})
        if back:
            calls |= {f"f{i}": (f"f{i + 1}", f"f{i - 1}") for i in range(1, count, 2)}
        assert len(cycles(calls)) == (count if back else 0)
        return calls.asked

    assert asked(2000) <= 2.1 * asked(1000) < 10_000
