"""One machine on several queues, and several threads on one queue, on the hostile device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RuntimeCheckError, UsageError
from relaxpy.runtime import Queue, VirtualMachine
from relaxpy.runtime.bytecode import HOST_SLOT, Const, Copy, IntOp, Kernel, Reg, Return, Slot
from tests.hostile.backend import hostile_targets
from tests.hostile.device import HostileRuntime, fail, set_policy
from tests.hostile.test_device import CHAIN, INCREASE, N, add, alloc, machine, main_of

POLICIES = ("lazy", "others", 1)
SIZE = IntOp("mul", (N, 4))
PLANNED = [
    alloc(1, 0), add(0, 0, 1), alloc(2, 1), add(1, 0, 2), alloc(3, 0), add(2, 0, 3), alloc(4), add(3, 2, 4),
    Return(0, 4),
]  # fmt: skip
"""Seven times the argument, over two storages of the frame."""


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with hostile_targets(monkeypatch):
        yield


def planned() -> VirtualMachine:
    return machine(main_of(PLANNED, storages=[SIZE, SIZE]))


def increasing() -> VirtualMachine:
    """A function that adds 1 to its argument in place."""
    code = main_of([Kernel(0, INCREASE, (Reg(0),), N), Return(0, 0)])
    return machine(replace(code, params=(replace(code.params[0], updated=True),)))


def beside(vm: VirtualMachine) -> VirtualMachine:
    return vm.on({"there": vm.open_queue("there")})


def ramp(n: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + n, dtype=np.float32)


def results_stay_on_the_queue_of_their_call() -> None:
    vm = planned()
    side = beside(vm)
    for turn in range(3):
        for each in (vm, side):
            out = each(ramp(300, turn))
            assert out.queue is each.queues["there"]
            np.testing.assert_array_equal(out.numpy(), 7 * ramp(300, turn))
    assert vm.queues["there"] is not side.queues["there"]


def results_go_from_queue_to_queue() -> None:
    vm = planned()
    turns = [vm, beside(vm), beside(vm)]
    value: Any = ramp(3000)
    for turn in range(6):
        value = turns[turn % 3](value)
    np.testing.assert_allclose(value.numpy(), 7.0**6 * ramp(3000), rtol=1e-5)
    for each in turns:
        each.synchronise()


def memory_is_used_again_behind_the_other_queue() -> None:
    vm = machine(main_of(CHAIN))
    side = beside(vm)
    results = [side(vm(ramp(5000, turn))) for turn in range(5)]
    for turn, result in enumerate(results):
        np.testing.assert_array_equal(result.numpy(), 9 * ramp(5000, turn))
    vm.synchronise()
    side.synchronise()


def constants_are_uploaded_once() -> None:
    """The second queue waits for that, whatever comes first."""
    x = ramp(500)
    body = [Const(0, 1, 0, 1), alloc(2), add(1, 0, 2), Return(0, 2)]
    vm = machine(main_of(body), constants=(x,))
    before = HostileRuntime.allocations
    side = beside(vm)
    assert HostileRuntime.allocations == before
    np.testing.assert_array_equal(side(x).numpy(), 2 * x)
    np.testing.assert_array_equal(vm(x).numpy(), 2 * x)
    again = machine(main_of([Const(0, 1, 0, 1), Return(0, 1)]), constants=(x,))
    np.testing.assert_array_equal(beside(again)(x).numpy(), x)


def copies_between_slots_on_other_queues() -> None:
    slots = (HOST_SLOT, Slot("there", "hostile"), Slot("beside", "hostile"))
    body = [alloc(1), add(0, 0, 1), Copy(0, 2, 1, 2), Copy(0, 3, 2, 1), alloc(1), add(3, 0, 1), Return(0, 1)]  # fmt: skip
    vm = machine(main_of(body), slots=slots)
    side = vm.on({1: vm.open_queue("there"), "beside": vm.open_queue("beside")})
    half = side.on({"beside": vm.queues["beside"]})
    assert half.queues == {**side.queues, "beside": vm.queues["beside"]}
    for n in (10, 3000, 10):
        for each in (side, vm, half):
            np.testing.assert_array_equal(each(ramp(n)).numpy(), 3 * ramp(n))


FUNCTIONS = """
@I.ir_module
class Module:
    @R.function
    def adder(x: R.Tensor(("n",), "float32")):
        n = T.int64()

        @R.function
        def inner(z: R.Tensor((n,), "float32")) -> R.Tensor((n,), "float32"):
            return R.add(z, x)

        return inner

    @R.function
    def twice(f: R.Callable((R.Tensor(("n",), "float32"),), R.Tensor(("n",), "float32")), x: R.Tensor(("n",), "float32")
              ) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        y: R.Tensor((n,), "float32") = f(R.add(x, x))
        z: R.Tensor((n,), "float32") = f(y)
        return z
"""


@cache
def _functions() -> relaxpy.Executable:
    return relaxpy.build(relaxpy.parse(FUNCTIONS), "hostile")


def function_values_run_on_the_queues_of_their_call() -> None:
    vm = VirtualMachine(_functions())
    side = vm.on(vm.open_queue())
    x, y = ramp(300), ramp(300, 5)
    ours, theirs = vm["adder"](x), side["adder"](x)
    for f, each in ((ours, vm), (theirs, side)):
        assert f(y).queue is each.queues["hostile"]
        np.testing.assert_array_equal(f(y).numpy(), x + y)
    for each in (vm, side, vm):
        for f in (ours, theirs):
            out = each["twice"](f, y)
            assert out.queue is each.queues["hostile"]
            np.testing.assert_array_equal(out.numpy(), 2 * y + 2 * x)


def errors_are_told_on_every_queue_that_depends_on_them() -> None:
    vm = machine(main_of(CHAIN))
    second, third = beside(vm), beside(vm)
    value = vm(ramp(50))
    fail(value.queue, "the sky fell")
    next_ = second(value)
    last = third(next_)
    for result in (value, next_, last, third(next_)):
        with suppress(RuntimeCheckError):
            result.queue.settle()
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        values: list[Any] = [vm(ramp(50))]
        fail(values[0].queue, "the sky fell")
        values.append(second(values[0]))
        values.append(third(values[1]))
        for number in order:
            with pytest.raises(RuntimeCheckError, match="the sky fell"):
                values[number].numpy()
        for each in values:
            np.testing.assert_array_equal(each.numpy()[:2], [0, each.numpy()[1]])  # told once


@contextmanager
def meanwhile(vm: VirtualMachine, name: str, other: Callable[..., None]) -> Iterator[None]:
    """Something happens right behind each call of a method of the runtime, as another thread's would."""
    runtime = vm.queues["there"].runtime
    method = getattr(runtime, name)

    def called(*args: Any) -> None:
        method(*args)
        other(*args)

    setattr(runtime, name, called)
    try:
        yield
    finally:
        delattr(runtime, name)


def who_waits_meanwhile_is_told_as_well() -> None:
    """Another thread asks for the errors of the queue between this one's copy and its own question."""
    vm = machine(main_of(CHAIN))
    out = vm(ramp(50))
    fail(out.queue, "the sky fell")
    told: list[str] = []

    def asks(*_: Any) -> None:
        try:
            out.queue.synchronise()
        except RuntimeCheckError as error:
            told.append(error.message)

    with meanwhile(vm, "download", asks), pytest.raises(RuntimeCheckError, match="the sky fell"):
        out.numpy()
    assert len(told) == 1


def what_was_waited_for_meanwhile_is_asked_the_next_time() -> None:
    """Another thread has the queue wait once more, while this one asks for errors."""
    vm = machine(main_of(CHAIN))
    side = beside(vm)
    out = side(vm(ramp(50)))
    first, second = vm.queues["there"], side.queues["there"]
    put: list[str] = []

    def waits(raw: int) -> None:
        if raw == first.raw and not put:
            put.append("")
            fail(first, "the sky fell")
            second.behind({first})

    with meanwhile(vm, "synchronise", waits):
        out.numpy()
    with pytest.raises(RuntimeCheckError, match="the sky fell"):
        out.numpy()


def an_error_between_two_waits_is_told() -> None:
    """It is of what the first wait was for, though somebody was told before the second."""
    vm = machine(main_of(CHAIN))
    side = beside(vm)
    value = vm(ramp(50))
    fail(value.queue, "the sky fell")
    out = side(value)
    with pytest.raises(RuntimeCheckError, match="the sky fell"):
        vm.synchronise()
    side(vm(ramp(50)))
    with pytest.raises(RuntimeCheckError, match="the sky fell"):
        out.numpy()


TESTS: list[Callable[[], None]] = [
    results_stay_on_the_queue_of_their_call,
    results_go_from_queue_to_queue,
    memory_is_used_again_behind_the_other_queue,
    constants_are_uploaded_once,
    copies_between_slots_on_other_queues,
    function_values_run_on_the_queues_of_their_call,
    errors_are_told_on_every_queue_that_depends_on_them,
    who_waits_meanwhile_is_told_as_well,
    what_was_waited_for_meanwhile_is_asked_the_next_time,
    an_error_between_two_waits_is_told,
]
"""What must fail where a wait is taken out (`tests.hostile.test_mutations`)."""


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.__name__)
def test_one_machine_on_several_queues(test: Callable[[], None]) -> None:
    for policy in POLICIES:
        set_policy(policy)
        test()


def in_threads(*work: Callable[[], None]) -> None:
    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(each) for each in work]:
            done.result()


def calls(vm: VirtualMachine, seed: int, turns: int = 25) -> None:
    """Calls of many sizes, of which some results are kept, some dropped, some passed on."""
    rng = np.random.default_rng(seed)
    kept: list[tuple[Any, np.ndarray]] = []
    for _ in range(turns):
        x = rng.integers(0, 9, rng.choice([1, 300, 5000])).astype(np.float32)
        out, wanted = vm(x), 7 * x
        if rng.random() < 0.5:
            out, wanted = vm(out), 49 * x
        kept.append((out, wanted))
        if rng.random() < 0.5:
            got, expected = kept.pop(int(rng.integers(len(kept))))
            np.testing.assert_array_equal(got.numpy(), expected)
    for got, expected in kept:
        np.testing.assert_array_equal(got.numpy(), expected)
    vm.synchronise()


@pytest.mark.parametrize("policy", POLICIES)
def test_threads_with_a_queue_each(policy: str | int) -> None:
    set_policy(policy)
    vm = planned()
    machines = [vm, beside(vm), beside(vm), beside(vm)]
    in_threads(*(lambda n=n, each=each: calls(each, n) for n, each in enumerate(machines)))


@pytest.mark.parametrize("policy", POLICIES)
def test_threads_on_one_queue(policy: str | int) -> None:
    set_policy(policy)
    vm = planned()
    in_threads(*(lambda n=n: calls(vm, n) for n in range(4)))


@pytest.mark.parametrize("policy", POLICIES)
def test_threads_that_read_what_others_make(policy: str | int) -> None:
    """Every thread takes the results of all the others, on its own queue or on a shared one."""
    set_policy(policy)
    vm = planned()
    machines = [vm, vm, beside(vm), beside(vm)]
    made: list[tuple[Any, np.ndarray]] = [(vm(ramp(3000)), 7 * ramp(3000))]

    def work(each: VirtualMachine, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(15):
            value, numbers = made[int(rng.integers(len(made)))]
            out = each(value)
            made.append((value, numbers) if numbers[1] > 1e20 else (out, 7 * numbers))
            if rng.random() < 0.3:
                np.testing.assert_allclose(out.numpy(), 7 * numbers, rtol=1e-5)

    in_threads(*(lambda n=n, each=each: work(each, n) for n, each in enumerate(machines)))
    for value, numbers in made:
        np.testing.assert_allclose(value.numpy(), numbers, rtol=1e-5)
    for each in machines:
        each.synchronise()


def come_and_go(
    vm: VirtualMachine, made: list[tuple[Any, np.ndarray]], seed: int, turns: int
) -> None:
    """A thread that makes machines of `vm`, on queues of its own and shared ones, and drops them with work under way.
    Each takes results of other threads, whose machines may be gone."""
    rng = np.random.default_rng(seed)
    shared = vm.queues["there"]
    for turn in range(turns):
        machine = (lambda: beside(vm), lambda: vm.on(shared), lambda: vm.on(communicator=seed))[
            turn % 3
        ]()
        value, numbers = made[int(rng.integers(len(made)))]
        out = machine(value)
        np.testing.assert_array_equal(out.numpy(), 7 * numbers)
        calls(machine, seed * turns + turn, 3)
        x = ramp(int(rng.choice([1, 300, 5000])), seed)
        made.append((machine(x), 7 * x))
        if rng.random() < 0.3:
            machine.synchronise()


@pytest.mark.parametrize("threads", [4, 8])
@pytest.mark.parametrize("policy", POLICIES)
def test_machines_that_threads_make_and_drop(policy: str | int, threads: int) -> None:
    """Two and four threads a core of a small machine."""
    set_policy(policy)
    vm = planned()
    made: list[tuple[Any, np.ndarray]] = [(vm(ramp(300)), 7 * ramp(300))]
    in_threads(*(lambda n=n: come_and_go(vm, made, n, 3) for n in range(threads)))
    for value, numbers in made:
        np.testing.assert_array_equal(value.numpy(), numbers)
    vm.synchronise()


def test_queues_that_a_machine_does_not_take() -> None:
    slots = (HOST_SLOT, Slot("there", "hostile"), Slot("beyond", "hostile", 1))
    vm = machine(main_of(CHAIN), slots=slots)
    there, beyond = vm.open_queue("there"), vm.open_queue()
    assert (str(there.device), str(beyond.device)) == ("hostile:0", "hostile:1")
    assert vm.on(beyond).queues == {"there": vm.queues["there"], "beyond": beyond}
    for given, message in (
        ({"there": beyond}, "slot there runs on queues of hostile:0, got a queue of hostile:1"),
        ({"there": 7}, "slot there runs on queues of hostile:0, got 7"),
        ({"gpu": there}, "no slot 'gpu'"),
        ({0: there}, "slot host runs on queues of cpu:0"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            vm.on(given)  # type: ignore[arg-type]
        assert caught.value.code == "device"
    with pytest.raises(UsageError, match="cpu:0 has no queues"):
        vm.open_queue("host")
    both = machine(main_of(CHAIN), slots=(HOST_SLOT, Slot("there", "hostile"), Slot("beside", "hostile")))  # fmt: skip
    queue = both.open_queue()
    with pytest.raises(UsageError, match="two slots cannot share a queue"):
        both.on({"there": queue, "beside": queue})


def test_memory_is_told_by_machine() -> None:
    vm = planned()
    side = beside(vm)
    x = vm.upload(ramp(5000))
    before = vm.memory
    out = side(x)
    assert vm.memory == before
    assert side.memory.planned == 2 * 20480
    assert side.memory.results == 20480
    del out
    assert side.release_memory() == 3 * 20480
    assert isinstance(side.queues["there"], Queue)
