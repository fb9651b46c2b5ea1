"""Functions that are told what their call runs on: an all-reduce between threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RuntimeCheckError, UsageError
from relaxpy.runtime import CallState, Tensor, register_function, register_library
from relaxpy.runtime.call_state import with_state
from relaxpy.runtime.ffi import ffi
from relaxpy.runtime.library import find_function
from relaxpy.runtime.tensor import from_numpy
from tests.hostile.backend import hostile_targets
from tests.hostile.device import set_policy


class Group:
    """Threads of this process that exchange tensors."""

    def __init__(self, size: int) -> None:
        self.parts: list[Any] = [None] * size
        self.barrier = Barrier(size, timeout=60)


class Member:
    """What one of them has of the group: a communicator."""

    def __init__(self, group: Group, rank: int) -> None:
        self.group, self.rank = group, rank

    def exchange(self, part: Any, use: Callable[[list[Any]], Any]) -> Any:
        """What `use` makes of the parts of all members, which nobody changes before all are done."""
        self.group.parts[self.rank] = part
        self.group.barrier.wait()
        found = use(self.group.parts)
        self.group.barrier.wait()
        return found


def _member(state: CallState) -> Member:
    if not isinstance(state.communicator, Member):
        raise RuntimeCheckError(
            "check", "an all-reduce needs a communicator: vm.on(communicator=…)"
        )
    return state.communicator


@register_library("test.state.all_reduce", with_state=True)
def into(state: CallState, x: Tensor, out: Tensor) -> None:
    """Of the host: a sum into what the program allocated."""
    total = _member(state).exchange(x, lambda parts: sum(part.numpy() for part in parts))
    out.numpy()[...] = total


@register_function("test.state.all_reduce", anywhere=True, with_state=True)
def of_devices(state: CallState, x: Any) -> Any:
    """Of any device: each member's queue takes the parts of the others, when they are there."""
    queue = state.queues["hostile"]
    assert x.queue is queue

    def total(parts: list[Any]) -> Any:
        arrays = [queue.take(part).numpy() for part in parts]
        return queue.upload(from_numpy(np.sum(arrays, axis=0)))

    return _member(state).exchange(x, total)


def reduced(vm: relaxpy.VirtualMachine, size: int, **options: bool) -> list[np.ndarray]:
    """What each of several members gets of a call with its number, all at once."""
    group = Group(size)

    def run(rank: int) -> np.ndarray:
        queues = {"hostile": vm.open_queue()} if options.get("queues") else {}
        mine = vm.on(queues, communicator=Member(group, rank))
        value: Any = np.full((3, 4), rank + 1, np.float32)
        for _ in range(4):
            value = mine["main"](value)
        found: np.ndarray = value.numpy()
        return found

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


LIBRARY = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
    n = T.int64()
    y = R.call_dps_library("test.state.all_reduce", (R.add(x, x),), out_ty=R.Tensor((n, 4), "float32"))
    return R.multiply(y, R.const(0.5, "float32"))
"""
FUNCTION = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
    n = T.int64()
    y = R.call_pure_packed("test.state.all_reduce", R.add(x, x), ty_args=R.Tensor((n, 4), "float32"))
    return R.multiply(y, R.const(0.5, "float32"))
"""


@pytest.mark.parametrize("members", [3, 8])
def test_an_all_reduce_of_threads(members: int) -> None:
    vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(LIBRARY)))
    once = members * (members + 1) // 2
    for found in reduced(vm, members):
        np.testing.assert_array_equal(found, np.full((3, 4), once * members**3))
    with pytest.raises(RuntimeCheckError, match="needs a communicator"):
        vm(np.zeros((1, 4), np.float32))  # the machine itself has none


@pytest.mark.parametrize("policy", ["lazy", "others", 1])
def test_an_all_reduce_of_queues(monkeypatch: pytest.MonkeyPatch, policy: str | int) -> None:
    with hostile_targets(monkeypatch, policy):
        set_policy(policy)
        vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(FUNCTION), "hostile"))
        for found in reduced(vm, 2, queues=True):
            np.testing.assert_array_equal(found, np.full((3, 4), 3 * 2**3))


CLOSURE = """
@I.ir_module
class Module:
    @R.function
    def make(k: R.Prim("int64")):
        @R.function
        def ask(x: R.Tensor((), "float32")) -> R.Tensor((), "float32"):
            return R.call_pure_packed("test.state.who", x, ty_args=R.Tensor((), "float32"))

        return ask

    @R.function
    def main(f: R.Callable((R.Tensor((), "float32"),), R.Tensor((), "float32")), x: R.Tensor((), "float32")
             ) -> R.Tensor((), "float32"):
        y: R.Tensor((), "float32") = f(x)
        return y
"""


def test_function_values_have_the_communicator_of_who_calls() -> None:
    register_function("test.state.who", lambda state, x: np.asarray(x.numpy() + state.communicator, np.float32), with_state=True)  # fmt: skip
    vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(CLOSURE)))
    one, two = vm.on(communicator=1), vm.on(communicator=2)
    f, zero = one["make"](0), np.float32(0)
    assert float(f(zero)) == 1
    assert float(one["main"](f, zero)) == 1
    assert float(two["main"](f, zero)) == 2
    assert float(two.on()["main"](f, zero)) == 2


def test_others_are_called_as_ever() -> None:
    state = CallState()
    assert with_state(len, state) is len
    register_function("test.state.given", lambda given, x: (given, x), with_state=True)
    found = find_function("test.state.given")
    assert with_state(found, state)(1) == (state, 1)
    given, _ = found(1)  # outside of a machine
    assert given.communicator is None
    assert not given.queues


def test_functions_of_other_languages_take_no_state() -> None:
    func = ffi().convert(lambda x: x)
    with pytest.raises(UsageError, match="is not a Python function") as caught:
        register_library("test.state.ffi", func, with_state=True)
    assert caught.value.code == "library-name"
