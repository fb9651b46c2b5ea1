"""Loops as recursion: tail calls take constant space, in the virtual machine and in the interpreter."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.runtime import trampoline
from relaxpy.testing.differential import Call, check
from relaxpy.testing.interpret import interpret
from tests.sweeps import sweep

ITSELF = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n",), "float32"), times: R.Tensor((), "int64")) -> R.Tensor(("n",), "float32"):
        cls = Module
        return cls.loop(R.const(0, "int64"), x, times)

    @R.function(private=True)
    def loop(
        i: R.Tensor((), "int64"), x: R.Tensor(("n",), "float32"), times: R.Tensor((), "int64")
    ) -> R.Tensor(("n",), "float32"):
        cls = Module
        if i < times:
            y = R.multiply(x, R.const(0.5, "float32")) + R.const(1, "float32")
            r = cls.loop(i + R.const(1, "int64"), y, times)
        else:
            r = x
        return r
"""
OTHERS = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n",), "float32"), times: R.Tensor((), "int64")) -> R.Tensor(("n",), "float32"):
        cls = Module
        return cls.even(times, x)

    @R.function(private=True)
    def even(i: R.Tensor((), "int64"), x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        cls = Module
        if i == 0:
            r = x
        else:
            r = cls.odd(i - R.const(1, "int64"), R.negative(x))
        return r

    @R.function(private=True)
    def odd(i: R.Tensor((), "int64"), x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        cls = Module
        if i == 0:
            r = R.add(x, x)
        else:
            if i == 3:
                r = cls.odd(R.const(1, "int64"), x)
            else:
                r = cls.even(i - R.const(1, "int64"), R.add(x, R.const(1, "float32")))
        return r
"""
CLOSURE = """
@R.function
def main(x: R.Tensor(("n",), "float32"), times: R.Tensor((), "int64")) -> R.Tensor(("n",), "float32"):
    n = T.int64()
    step = R.multiply(x, R.const(0.25, "float32"))

    @R.function
    def loop(i: R.Tensor((), "int64"), y: R.Tensor((n,), "float32")) -> R.Tensor((n,), "float32"):
        if i < times:
            r = loop(i + R.const(1, "int64"), R.add(R.multiply(y, R.const(0.5, "float32")), step))
        else:
            r = y
        return r

    return loop(R.const(0, "int64"), x)
"""
VALUE = """
@I.ir_module
class Module:
    @R.function(pure=False)
    def main(x: R.Tensor((3,), "float32"), times: R.Tensor((), "int64")) -> R.Object:
        cls = Module
        f = cls.step
        return f(f, times, x)

    @R.function(private=True, pure=False)
    def step(f: R.Object, i: R.Tensor((), "int64"), x: R.Tensor((3,), "float32")) -> R.Object:
        if i == 0:
            r = x
        else:
            r = f(f, i - R.const(1, "int64"), R.multiply(x, R.const(0.5, "float32")))
        return r
"""
TYPED = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n",), "float32"), times: R.Tensor((), "int64")) -> R.Tensor(("n",), "float32"):
        cls = Module
        return cls.loop(times, x)

    @R.function(private=True)
    def loop(i: R.Tensor((), "int64"), x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        cls = Module

        @R.function
        def go_on(y: R.Tensor((n,), "float32")) -> R.Tensor((n,), "float32"):
            return cls.loop(i - R.const(1, "int64"), R.add(y, x))

        if i == 0:
            r = x
        else:
            r = cls.apply(go_on, R.multiply(x, R.const(0.25, "float32")))
        return r

    @R.function(private=True)
    def apply(
        f: R.Callable((R.Tensor(("m",), "float32"),), R.Tensor(("m",), "float32")), x: R.Tensor(("m",), "float32")
    ) -> R.Tensor(("m",), "float32"):
        y = R.multiply(x, R.const(0.5, "float32"))
        return f(y)
"""
PROGRAMS = {
    "itself": ITSELF,
    "others": OTHERS,
    "a closure": CLOSURE,
    "a value": VALUE,
    "a value with a type": TYPED,
}
each = pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)


@pytest.fixture(autouse=True)
def shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that keeps the frames of its steps fails."""
    monkeypatch.setattr(trampoline, "MAX_CALLS", 20)


def machine(text: str, **options: Any) -> Any:
    return relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(text)), **options)["main"]


@sweep(2)
@each
def test_all_ways_to_run_agree(text: str) -> None:
    x, mod = np.array([1, -2, 3], np.float32), relaxpy.parse(text)
    assert not check([Call(mod, "main", [x, np.array(times)]) for times in (0, 1, 2, 7)])


@each
def test_steps_take_constant_space(text: str) -> None:
    x = np.array([1, -2, 3], np.float32)
    mod = relaxpy.parse(text)
    np.testing.assert_allclose(
        machine(text)(x, np.array(301)).numpy(), interpret(mod, "main", x, np.array(301)), rtol=1e-5
    )


@each
def test_results_outlive_the_steps(text: str) -> None:
    """What earlier calls gave, and the arguments, stay as they were."""
    main = machine(text)
    x = np.array([1, -2, 3], np.float32)
    found = [main(x, np.array(times)) for times in range(9)]
    before = [each.numpy().copy() for each in found]
    for times in (100, 101):
        main(x, np.array(times))
    for each_, kept in zip(found, before, strict=True):
        np.testing.assert_array_equal(each_.numpy(), kept)
    np.testing.assert_array_equal(x, [1, -2, 3])


@each
def test_the_checking_mode_finds_nothing(text: str) -> None:
    x = np.array([1, -2, 3], np.float32)
    found = machine(text, check_memory=True)(x, np.array(7))
    np.testing.assert_array_equal(found.numpy(), machine(text)(x, np.array(7)).numpy())


@sweep(2)
@each
def test_two_threads_run_one_loop(text: str) -> None:
    main = machine(text)
    found: list[Any] = [None] * 4

    def run(number: int) -> None:
        x = np.full(3, number, np.float32)
        found[number] = [main(x, np.array(times)).numpy() for times in range(100, 160)]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, results in enumerate(found):
        x = np.full(3, number, np.float32)
        for times, result in zip(range(100, 160), results, strict=True):
            np.testing.assert_array_equal(result, main(x, np.array(times)).numpy())
