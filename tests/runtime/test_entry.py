"""The generated function that callers call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RuntimeCheckError, UsageError
from relaxpy.runtime import VirtualMachine
from relaxpy.runtime.bytecode import (
    Eval,
    Heap,
    Item,
    Match,
    Move,
    ObjectPattern,
    Pattern,
    PrimPattern,
    Return,
    TuplePattern,
)
from relaxpy.runtime.entry import entry_source
from relaxpy.runtime.parameters import entry_tests, parameter_patterns
from relaxpy.runtime.tensor import from_numpy
from tests.runtime.support import f32, function

SOURCE = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("n",), "float32")):
        return R.add(x, y)

    @R.function
    def closure(x: R.Tensor((2,), "float32")):
        @R.function
        def inner(y: R.Tensor((2,), "float32"), z: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
            return R.add(R.add(x, y), z)
        return inner

    @R.function
    def one():
        return R.const([1.0], "float32")

    @R.function
    def results(x: R.Tensor((2,), "float32")):
        c = R.const([1.0, 2.0], "float32")
        y = R.add(x, x)
        return (y, (c, y), R.shape([3]))
"""


@pytest.fixture(scope="module")
def vm() -> VirtualMachine:
    return VirtualMachine(relaxpy.build(relaxpy.parse(SOURCE)))


def test_patterns_are_found_through_moves() -> None:
    code = function("f", [("x", f32(Heap(0)))], [Return(0, 0)])
    assert parameter_patterns(code) == (f32(Heap(0)),)
    moved = function("f", [("x", ObjectPattern()), ("y", f32(3))], [Return(0, 0)])
    object.__setattr__(
        moved,
        "code",
        (Move(0, 5, 1), Match(0, 5, f32(3), 1), Item(0, 0, 1, 0), Match(0, 0, f32(9), 0)),
    )
    assert parameter_patterns(moved) == (ObjectPattern(), f32(3))


def test_a_slot_of_the_heap_is_no_register() -> None:
    """`Eval` sets slot 1: what is in register 1 stays the second parameter."""
    code = function("f", [("x", f32(Heap(0))), ("y", f32(3))], [Return(0, 1)])
    first, second, rest = code.code
    between = replace(code, code=(first, Eval(0, 1, Heap(0)), second, rest))
    assert parameter_patterns(between) == (f32(Heap(0)), f32(3))


def test_its_code() -> None:
    assert entry_source(("A", "True"), 2, (), generator=False, gives_new=True) == (
        "def call(r0=missing, r1=missing, /, *more, **named):\n"
        " if r1 is missing or more or named: (r0, r1,) = bind((r0, r1,), more, named)\n"
        " if A: r0 = enter(0, r0)\n"
        " if True: r1 = enter(1, r1)\n"
        " return run(r0, r1)\n"
    )
    assert entry_source(("A", "B"), 1, (0,), generator=True, gives_new=False) == (
        "def call(r1, r0=missing, /, *more, **named):\n"
        " if r0 is missing or more or named: (r0,) = bind((r0,), more, named)\n"
        " if r0.__class__ is not PackedTensor or r0.layout != layouts[0]: raise not_packed(0, r0)\n"
        " r0 = r0.tensor\n"
        " if A: r0 = enter(0, r0)\n"
        " return leave(drive(run(r0, r1)))\n"
    )
    assert entry_source((), 0, (), generator=False, gives_new=True) == (
        "def call(*more, **named):\n if more or named: bind((), more, named)\n return run()\n"
    )


def test_what_has_to_be_converted() -> None:
    """Tensors need one test each, also in tuples; tuples with other values, and deep ones, always go to `enter`."""

    def tests(pattern: Pattern) -> tuple[str, ...]:
        code = function("f", [("x", pattern)], [Return(0, 0)])
        return entry_tests(code, lambda slot, value: f"{value} not in {slot}")

    tensors = TuplePattern((f32(3), f32(Heap(0))))
    own = "r0.__class__ is not tuple or len(r0) != 2"
    assert tests(f32(3)) == ("r0 not in 0",)
    assert tests(tensors) == (f"{own} or r0[0] not in 0 or r0[1] not in 0",)
    assert tests(TuplePattern((f32(3), PrimPattern("int64")))) == ("True",)
    deep: Pattern = tensors
    for _ in range(5000):
        deep = TuplePattern((deep,))
    assert tests(deep) == ("True",)


@pytest.mark.parametrize("kind", [tuple, list])
def test_tensors_in_a_tuple(kind: Callable[[list[Any]], Any]) -> None:
    source = """
@I.ir_module
class Module:
    @R.function
    def main(t: R.Tuple(R.Tensor((2,), "float32"), R.Tuple(R.Tensor((2,), "float32")))):
        return (R.add(t[0], t[1][0]), t[0])
"""
    main = VirtualMachine(relaxpy.build(relaxpy.parse(source)))["main"]
    x = from_numpy(np.array([1, 2], np.float32))
    for values in ([x, (x,)], [x, (x.numpy(),)], [x.numpy(), [x]]):
        total, first = main(kind(values))
        np.testing.assert_array_equal(total.numpy(), [2, 4])
        assert first.pointer == x.pointer
    with pytest.raises(RuntimeCheckError, match="expected 2 fields, got 1"):
        main((x,))
    with pytest.raises(RuntimeCheckError, match="the dtype of field 0 of field 1 is int32"):
        main(kind([x, (np.zeros(2, np.int32),)]))


@pytest.mark.parametrize(
    ("args", "named", "problem"),
    [
        ((), {}, "lacks x, y"),
        ((1,), {}, "lacks y"),
        ((1, 2, 3), {}, "takes 2 arguments, got 3"),
        ((1, 2), {"y": 1}, "got 'y' twice"),
        ((1, 2), {"r0": 1}, "has no parameter 'r0'"),
        ((1,), {"r1": 1}, "has no parameter 'r1'; lacks y"),
    ],
)
def test_other_arguments_than_it_has(
    vm: VirtualMachine, args: tuple[Any, ...], named: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError) as error:
        vm["main"](*args, **named)
    assert error.value.message == f"main {problem}"


def test_arguments_by_name_and_position(vm: VirtualMachine) -> None:
    x, y = np.array([1, 2], np.float32), np.array([3, 5], np.float32)
    main = vm["main"]
    for result in (main(x, y), main(x, y=y), main(y=y, x=x), functools.partial(main, x)(y)):
        np.testing.assert_array_equal(result.numpy(), x + y)
    with pytest.raises(UsageError, match="one takes 0 arguments, got 1"):
        vm["one"](x)


def test_a_closure_has_the_parameters_that_are_not_captured(vm: VirtualMachine) -> None:
    x, y, z = (np.full(2, n, np.float32) for n in (1, 20, 300))
    inner = vm["closure"](x)
    for result in (inner(y, z), inner(z=z, y=y)):
        np.testing.assert_array_equal(result.numpy(), [321, 321])
    assert list(inspect.signature(inner).parameters) == ["y", "z"]
    with pytest.raises(UsageError, match=r" takes 2 arguments, got 3"):
        inner(x, y, z)


def test_constants_in_results_are_copies(vm: VirtualMachine) -> None:
    """Also beside results that are new, which are not copied."""
    x = np.ones(2, np.float32)
    y, (c, again), shape = vm["results"](x)
    assert again is y
    assert tuple(shape) == (3,)
    for constant in (c, vm["one"]()):
        constant.numpy()[...] = 7
    np.testing.assert_array_equal(vm["results"](x)[1][0].numpy(), [1, 2])
    np.testing.assert_array_equal(vm["one"]().numpy(), [1])
