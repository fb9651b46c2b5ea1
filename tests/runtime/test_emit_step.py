"""Steps of loops: what they match again, which tensors take turns, and how they end early."""

from __future__ import annotations

import signal
import threading
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.bytecode import (
    Alloc,
    Call,
    Eval,
    FunctionCode,
    Heap,
    If,
    Instr,
    IntOp,
    Kernel,
    MakePrim,
    MakeTuple,
    Move,
    ObjectPattern,
    PrimPattern,
    Reg,
    Return,
    View,
)
from relaxpy.runtime.tail_calls import steps
from tests.runtime.support import ADD, ADD1, executable, f32, floats, function

N = Heap(0)


def loop(step: list[Instr], end: list[Instr], *carried: Any) -> FunctionCode:
    """`main(k, *carried)`: while k > 0, `step` with k - 1 in register 9; the result is in register 8."""
    body = [
        Eval(0, 2, IntOp("lt", (0, Heap(1)))),
        Eval(0, 3, IntOp("sub", (Heap(1), 1))),
        MakePrim(0, 7, Heap(2), "bool"),
        If(0, 7, len(step) + 1, len(end)),
        MakePrim(0, 9, Heap(3), "int64"),
        *(*step, *end, Return(0, 8)),
    ]
    params = [("k", PrimPattern("int64", Heap(1))), *((f"p{i}", p) for i, p in enumerate(carried))]
    return function("main", params, body)


def machine(code: FunctionCode) -> tuple[Any, str]:
    vm = relaxpy.VirtualMachine(executable(code))
    return vm["main"], vm["main"].source


def new(reg: int) -> Alloc:
    return Alloc(0, reg, 0, 1, "float32", -1)


def again(*args: int) -> list[Instr]:
    return [Call(0, 6, 0, (9, *args)), Move(0, 8, 6)]


def test_a_variable_has_two_tensors() -> None:
    """What comes in and what goes out is neither of them."""
    code = loop([new(3), Kernel(0, ADD1, (Reg(1), Reg(3)), N), *again(3)], [Move(0, 8, 1)], f32(N))
    main, source = machine(code)
    assert "spare1" in source
    x = floats(1, 2)
    results = [main(k, x) for k in range(5)]
    for k, result in enumerate(results):
        np.testing.assert_array_equal(result.numpy(), x + k)
    np.testing.assert_array_equal(x, [1, 2])
    np.testing.assert_array_equal(main(101, floats(1)).numpy(), [102])


@pytest.mark.parametrize(
    "way", ["also an argument of another", "seen by a view", "in two places", "kept"]
)
def test_what_others_have_takes_no_turns(way: str) -> None:
    """The tensor of a step is still there in the step after the next one."""
    make = [new(3), Kernel(0, ADD1, (Reg(1), Reg(3)), N)]
    end: list[Instr] = [MakeTuple(0, 8, (1, 2))]
    x, y = floats(1, 2), floats(5, 6)
    if way == "also an argument of another":  # (x, y) → (x + 1, x)
        code = loop([*make, *again(3, 1)], end, f32(N), f32(None))
        wanted = lambda k: (x + k, x + k - 1 if k else y)
    elif way == "seen by a view":
        step = [*make, View(0, 4, 1, 0, 1, "float32"), *again(3, 4)]
        code = loop(step, end, f32(N), f32(None))
        wanted = lambda k: (x + k, x + k - 1 if k else y)
    elif way == "in two places":  # (x, y) → (x + 1, the same)
        code = loop([*make, *again(3, 3)], end, f32(N), f32(None))
        wanted = lambda k: (x + k, x + k if k else y)
    else:  # a tuple grows around all of them
        step = [*make, MakeTuple(0, 4, (1, 2)), *again(3, 4)]
        code = loop(step, end, f32(N), ObjectPattern())
        wanted = None
    main, source = machine(code)
    assert "spare1" not in source
    for k in (0, 1, 2, 3, 4, 7):
        first, second = main(k, x, y)
        np.testing.assert_array_equal(first.numpy(), x + k)
        if wanted is not None:
            np.testing.assert_array_equal(second.numpy(), wanted(k)[1])
            continue
        for number in range(k - 1, -1, -1):
            inner, second = second
            np.testing.assert_array_equal(inner.numpy(), x + number)


def test_variables_that_change_places() -> None:
    """Sizes, too: all arguments are assigned before any is matched."""
    other = Heap(2)
    step = [*again(2, 1)]
    code = function(
        "main",
        [("k", PrimPattern("int64", Heap(1))), ("x", f32(N)), ("y", f32(other))],
        [
            Eval(0, 3, IntOp("lt", (0, Heap(1)))),
            MakePrim(0, 7, Heap(3), "bool"),
            Eval(0, 4, IntOp("sub", (Heap(1), 1))),
            If(0, 7, 3, 3),
            MakePrim(0, 9, Heap(4), "int64"),
            *step,
            Alloc(0, 3, 0, 1, "float32", -1),
            Kernel(0, ADD1, (Reg(1), Reg(3)), N),
            Move(0, 8, 3),
            Return(0, 8),
        ],
        heap=(0,) * 5,
    )
    main, _ = machine(code)
    x, y = floats(1, 2), floats(5, 6, 7)
    for k in range(4):
        np.testing.assert_array_equal(main(k, x, y).numpy(), (y if k % 2 else x) + 1)


def test_a_size_that_changes() -> None:
    """The spare tensor of another size is not used."""
    code = loop(
        [new(3), Kernel(0, ADD, (Reg(1), Reg(1), Reg(3)), N), *again(2, 3)],
        [Move(0, 8, 1)],
        f32(N),
        f32(None),
    )
    main, _ = machine(code)
    a, b = floats(1, 2, 3), floats(4)
    x, y = a, b
    for k in range(6):
        np.testing.assert_array_equal(main(k, a, b).numpy(), x)
        x, y = y, x + x


def test_an_argument_that_does_not_fit_is_located() -> None:
    code = loop([*again(2, 1)], [Move(0, 8, 1)], f32(N), f32(None, None))
    main, _ = machine(code)
    with pytest.raises(RuntimeCheckError, match="parameter p0") as caught:
        main(3, floats(1, 2), np.ones((2, 2), np.float32))
    assert caught.value.code == "check"
    assert caught.value.span is not None
    np.testing.assert_array_equal(main(0, floats(1), np.ones((2, 2), np.float32)).numpy(), [1])


def test_a_loop_can_be_interrupted() -> None:
    text = """
@R.function
def main(n: R.Prim("int64"), x: R.Tensor((3,), "float32")):
    for i in range(n):
        x = x + 1
    return x
"""
    main = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(text)))["main"]
    x = np.zeros(3, np.float32)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            main(1 << 40, x)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_array_equal(main(4, x).numpy(), [4, 4, 4])  # its frame is free again


def test_a_failure_in_a_step_is_located() -> None:
    text = """
@R.function
def main(n: R.Prim("int64"), x: R.Tensor((3,), "float32")):
    k = 1
    for i in range(n):
        x = x + 1
        k = k * 4
    return (x, k)
"""
    main = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(text)))["main"]
    assert main(31, np.zeros(3, np.float32))[1] == 4**31
    with pytest.raises(RuntimeCheckError) as caught:
        main(40, np.zeros(3, np.float32))
    assert caught.value.code == "shape-arithmetic"
    assert caught.value.span is not None
    assert 5 <= caught.value.span.line <= 7


def test_every_kind_of_loop_is_one() -> None:
    """Results of unknown size, tuples and branches are returned as they are."""
    text = """
@R.function
def main(n: R.Prim("int64"), x: R.Tensor(("m",), "float32")):
    rows = x
    k = 0
    for i in range(n):
        if R.sum(rows) > 1000:
            break
        if k > 3:
            k = 0
            continue
        rows = R.concat([rows, x])
        k = k + 1
    return (rows, k)
"""
    exe = relaxpy.build(relaxpy.parse(text))
    index = next(i for i, code in enumerate(exe.functions) if "loop" in code.name)
    assert len(steps(exe.functions[index], index)) == 2
    rows, k = relaxpy.VirtualMachine(exe)["main"](9, floats(1, 2))
    assert (rows.shape, k) == ((18,), 4)


def test_threads_do_not_share_a_step() -> None:
    code = loop([new(3), Kernel(0, ADD1, (Reg(1), Reg(3)), N), *again(3)], [Move(0, 8, 1)], f32(N))
    main, _ = machine(code)
    wrong: list[Any] = []

    def run(number: int) -> None:
        for k in range(200):
            found = main(k, floats(number, number + 0.5)).numpy()
            if not np.array_equal(found, floats(number + k, number + 0.5 + k)):
                wrong.append((number, k))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
