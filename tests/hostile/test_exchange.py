"""Another library on the hostile device: memory goes there and comes from there by DLPack, in the order of streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import finalize

import numpy as np
import pytest

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime import VirtualMachine
from relaxpy.runtime.bytecode import Const, Return
from relaxpy.runtime.capsule import dlpack_record
from relaxpy.runtime.devices.registry import runtime_of
from relaxpy.runtime.devices.tensor import DeviceTensor
from relaxpy.runtime.updates import require_updatable
from tests.hostile.device import HostileRuntime, fail, hostile_devices, set_policy
from tests.hostile.test_device import CHAIN, machine, main_of
from tests.hostile.test_queues import beside, increasing, ramp

POLICIES = ("lazy", "others", 1)


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with hostile_devices(monkeypatch):
        yield


class _Described:
    """Memory that nobody can look at, as numpy describes memory."""

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": "<f4",
            "data": (address, False),
        }


class Library:
    """It has a queue of its own, and memory."""

    def __init__(self) -> None:
        found = runtime_of("hostile", 0)
        assert isinstance(found, HostileRuntime)
        self.runtime = found
        self.queue = found.open_queue()
        self.reads: list[memoryview] = []

    def take(self, tensor: Any, stream: int | None = 0) -> object:
        """Its memory, and a copy of the numbers that is put into our queue."""
        capsule = tensor.__dlpack__(stream=stream or self.queue, max_version=(1, 0))
        record = dlpack_record(capsule)
        assert (record.device_type, record.device_id) == (12, 0) == tensor.__dlpack_device__()
        handle = self.runtime.wrap(record.data, 0)
        self.reads.append(memoryview(bytearray(tensor.nbytes)))
        self.runtime.download(self.queue, handle, record.byte_offset, self.reads[-1])
        return capsule

    def numbers(self) -> np.ndarray:
        """What was taken last."""
        self.runtime.synchronise(self.queue)
        return np.frombuffer(self.reads[-1], np.float32)

    def give(self, array: np.ndarray, **changes: int) -> Given:
        return Given(self, array, changes)


class Given:
    """A tensor of the library, which writes to the memory as soon as it is given back."""

    def __init__(self, library: Library, array: np.ndarray, changes: dict[str, int]) -> None:
        self.library, self.changes = library, changes
        self.shape = array.shape
        runtime, queue = library.runtime, library.queue
        self.handle = runtime.allocate(max(array.nbytes, 1024), queue)
        data = memoryview(bytearray(array.tobytes()))
        runtime.upload(queue, self.handle, 0, data)
        self.given_back = False

    def __dlpack_device__(self) -> tuple[int, int]:
        return HostileRuntime.dlpack_type, 0

    def __dlpack__(self, *, stream: int | None, max_version: tuple[int, int] = (0, 8)) -> object:
        runtime = self.library.runtime
        runtime.wait(runtime.queue_of(stream), self.library.queue)
        described = _Described(runtime.address(self.handle), self.shape)
        finalize(described, self.back).atexit = False
        capsule: object = np.asarray(described).__dlpack__(max_version=max_version)
        record = dlpack_record(capsule)
        record.device_type, record.device_id = self.__dlpack_device__()
        for name, value in self.changes.items():
            setattr(record, name, value)
        return capsule

    def back(self) -> None:
        self.given_back = True
        garbage = memoryview(bytearray(b"\xff" * 1024))
        self.library.runtime.process.tell_later(
            "put", self.library.queue, "upload", self.handle, 0, bytes(garbage)
        )


def lent_numbers_are_there_for_the_stream() -> None:
    vm, library = machine(main_of(CHAIN)), Library()
    for n in (5, 3000):
        out = vm(ramp(n))
        library.take(out)
        np.testing.assert_array_equal(library.numbers(), 3 * ramp(n))


def what_another_queue_does_with_lent_memory_comes_before() -> None:
    """A tensor that was updated in place elsewhere is lent as it is then."""
    vm, library = increasing(), Library()
    x = vm.upload(ramp(300))
    side = beside(vm)
    side(x)
    library.take(x)
    np.testing.assert_array_equal(library.numbers(), ramp(300) + 1)


def lent_memory_is_used_again_behind_the_stream() -> None:
    vm, library = machine(main_of(CHAIN)), Library()
    for turn in range(4):
        out = vm(ramp(3000, turn))
        library.take(out)
        del out
    again = vm(ramp(3000, 9))  # in the memory of what is gone
    np.testing.assert_array_equal(again.numpy(), 3 * ramp(3000, 9))
    np.testing.assert_array_equal(library.numbers(), 3 * ramp(3000, 3))
    vm.synchronise()


def who_takes_care_of_the_order_is_not_waited_for() -> None:
    vm, library = machine(main_of(CHAIN)), Library()
    out = vm(ramp(300))
    vm.synchronise()
    library.take(out, stream=-1)
    np.testing.assert_array_equal(library.numbers(), 3 * ramp(300))
    assert not out.buffer.users


def constants_are_lent_as_copies() -> None:
    vm, library = machine(main_of([Const(0, 1, 0, 1), Return(0, 1)]), constants=(ramp(50),)), Library()  # fmt: skip
    named = vm._bound.scope["c0_1"]
    assert isinstance(named, DeviceTensor)
    library.take(named)
    assert not named.buffer.users
    np.testing.assert_array_equal(library.numbers(), ramp(50))


def borrowed_memory_is_used_behind_what_made_it() -> None:
    vm, library = machine(main_of(CHAIN)), Library()
    for n in (5, 3000):
        given = library.give(ramp(n))
        np.testing.assert_array_equal(vm(given).numpy(), 3 * ramp(n))
        library.runtime.synchronise(library.queue)


def borrowed_memory_is_given_back_when_it_was_used() -> None:
    """By all queues that had it, though nobody refers to it any more."""
    vm, library = machine(main_of(CHAIN)), Library()
    same = machine(main_of([Return(0, 0)])).on(vm.queues["there"])
    side = beside(vm)
    given = library.give(ramp(200))
    tensor: Any = same(given)
    out, other = vm(tensor), side(tensor)
    del tensor
    assert not given.given_back
    np.testing.assert_array_equal(out.numpy(), 3 * ramp(200))
    assert given.given_back
    library.runtime.synchronise(library.queue)  # which has written to it since
    np.testing.assert_array_equal(other.numpy(), 3 * ramp(200))


TESTS: list[Callable[[], None]] = [
    lent_numbers_are_there_for_the_stream,
    what_another_queue_does_with_lent_memory_comes_before,
    lent_memory_is_used_again_behind_the_stream,
    who_takes_care_of_the_order_is_not_waited_for,
    constants_are_lent_as_copies,
    borrowed_memory_is_used_behind_what_made_it,
    borrowed_memory_is_given_back_when_it_was_used,
]
"""What must fail where a wait is taken out (`tests.hostile.test_mutations`)."""


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.__name__)
def test_exchange(test: Callable[[], None]) -> None:
    for policy in POLICIES:
        set_policy(policy)
        test()


def test_a_default_stream() -> None:
    vm, library = machine(main_of(CHAIN)), Library()
    library.queue = library.runtime.queue_of(None)
    out = vm(ramp(300))
    library.take(out, stream=None)
    np.testing.assert_array_equal(library.numbers(), 3 * ramp(300))


def test_memory_that_is_not_taken() -> None:
    vm, library = machine(main_of(CHAIN)), Library()
    for changes, message in (
        (
            {"byte_offset": 4},
            "begins at byte 4, but tensors on hostile must begin at multiples of 256",
        ),
        ({"bits": 24}, "DLPack type 2:24x1 cannot be passed"),
        ({"lanes": 4}, "DLPack type 2:32x4 cannot be passed"),
        ({"data": 7}, "memory of hostile begins elsewhere"),
    ):
        with pytest.raises(RuntimeCheckError, match=message) as caught:
            vm(library.give(ramp(5), **changes))
        assert caught.value.code == "dlpack"
    np.testing.assert_array_equal(vm(library.give(ramp(0))).numpy(), [])
    np.testing.assert_array_equal(vm(library.give(ramp(50), byte_offset=256)).numpy()[:0], [])


def test_many_pieces_are_given_back_without_a_question() -> None:
    """A machine whose results nobody reads does not keep all that it ever borrowed."""
    vm, library = machine(main_of(CHAIN)), Library()
    given = [library.give(ramp(5)) for _ in range(100)]
    for each in given:
        vm(each)
    assert sum(each.given_back for each in given) >= 30
    vm.synchronise()
    assert all(each.given_back for each in given)


def test_copies_are_asked_for() -> None:
    vm = machine(main_of(CHAIN))
    out = vm(ramp(5))
    np.testing.assert_array_equal(np.from_dlpack(out, device="cpu"), 3 * ramp(5))
    with pytest.raises(BufferError, match="cannot be exported"):
        out.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="cannot be exported"):
        out.__dlpack__(dl_device=(1, 0), copy=False)
    tensor: Any = machine(main_of([Return(0, 0)]))(Library().give(ramp(5)))
    require_updatable(tensor)
    fail(tensor.queue, "the sky fell")
    with pytest.raises(RuntimeCheckError, match="the sky fell"):
        tensor.__dlpack__(dl_device=(1, 0))


def test_a_machine_is_called_with_anothers() -> None:
    """Memory comes from a library, and goes on to the next machine and back."""
    vm, library = machine(main_of(CHAIN)), Library()
    assert isinstance(vm, VirtualMachine)
    out = vm(beside(vm)(library.give(ramp(300))))
    library.take(out)
    np.testing.assert_array_equal(library.numbers(), 9 * ramp(300))
