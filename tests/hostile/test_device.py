"""The hostile device by itself: it refuses what devices refuse, and late."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import ExecutableError, RuntimeCheckError
from relaxpy.runtime import Executable, VirtualMachine
from relaxpy.runtime.bytecode import (
    HOST_SLOT,
    Alloc,
    Copy,
    FunctionCode,
    Heap,
    Instr,
    IntOp,
    Kernel,
    Reg,
    Return,
    Slot,
    TensorPattern,
    View,
)
from relaxpy.runtime.devices.base import DeviceError
from relaxpy.runtime.devices.registry import runtime_of
from tests.hostile.device import (
    HostileRuntime,
    fail,
    failing_allocations,
    hostile_devices,
    set_policy,
)
from tests.machine.cases import KERNELS, NAMES
from tests.runtime.support import floats, function

N = Heap(0)
ADD, DOUBLE, COUNT, INCREASE = range(4)
POLICIES = ("lazy", "others", 1, 2)


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with hostile_devices(monkeypatch):
        yield


@cache
def kernels() -> Executable:
    built = relaxpy.build(relaxpy.parse(KERNELS))
    by_name = {kernel.name: kernel for kernel in built.kernels}
    images = {name: replace(by_name[name].image, launchers=-1, needs=-1) for name in NAMES}
    own = [replace(by_name[name], images=(images[name],), slot=1) for name in NAMES]
    return replace(
        built, functions=(), kernels=tuple(own), slots=(HOST_SLOT, Slot("there", "hostile"))
    )


def there(slot: int = 1) -> TensorPattern:
    return TensorPattern((N,), 1, "float32", slot)


def main_of(
    body: Sequence[Instr], params: int = 1, storages: Sequence[Any] = (), **fields: Any
) -> FunctionCode:
    code = function(
        "main", [(f"p{i}", there()) for i in range(params)], body, storages=storages, **fields
    )
    return replace(code, storage_slots=(1,) * len(storages))


def machine(code: FunctionCode, **fields: Any) -> VirtualMachine:
    options = {name: fields.pop(name) for name in ("check_memory",) if name in fields}
    return VirtualMachine(replace(kernels(), functions=(code,), **fields), **options)


def alloc(dst: int, storage: int = -1, offset: int = 0) -> Alloc:
    return Alloc(0, dst, 0, 1, "float32", storage, offset, 1)


def add(a: int, b: int, c: int) -> Kernel:
    return Kernel(0, ADD, (Reg(a), Reg(b), Reg(c)), N)


CHAIN = [alloc(1), add(0, 0, 1), alloc(2), add(1, 0, 2), Return(0, 2)]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_chain_of_kernels(policy: str | int) -> None:
    set_policy(policy)
    vm = machine(main_of(CHAIN))
    for n in (1, 1000, 7, 0):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(vm(x).numpy(), 3 * x)


@pytest.mark.parametrize("policy", POLICIES)
def test_planned_storage(policy: str | int) -> None:
    set_policy(policy)
    size = IntOp("mul", (N, 4))
    body = [
        alloc(1, 0),
        add(0, 0, 1),
        alloc(2, 1),
        add(1, 0, 2),
        alloc(3, 0),
        add(2, 0, 3),
        alloc(4),
        add(3, 2, 4),
        Return(0, 4),
    ]
    for checked in (False, True):
        vm = machine(main_of(body, storages=[size, size]), check_memory=checked)
        for n in (1, 1000, 7, 5000):
            x = np.arange(n, dtype=np.float32)
            np.testing.assert_array_equal(vm(x).numpy(), 7 * x)


def test_an_error_is_told_when_the_queue_is_synchronised() -> None:
    vm = machine(main_of(CHAIN))
    out = vm(floats(1, 2))
    fail(vm.upload(floats(1)).queue, "the sky fell")
    vm(out)
    with pytest.raises(RuntimeCheckError, match="the sky fell") as caught:
        out.numpy()
    assert caught.value.code == "device-failed"
    np.testing.assert_array_equal(out.numpy(), [3, 6])  # told once


def test_a_machine_that_checks_memory_says_which_kernel_failed() -> None:
    vm = machine(main_of(CHAIN), check_memory=True)
    fail(vm.upload(floats(1)).queue, "the sky fell")
    with pytest.raises(RuntimeCheckError, match=r"add.*the sky fell"):
        vm(floats(1, 2))


def test_offsets_that_the_device_does_not_take_are_refused_before_anything_runs() -> None:
    code = main_of([alloc(1, 0, 64), add(0, 0, 1), Return(0, 0)], storages=[4096])
    with pytest.raises(ExecutableError, match="multiples of 256"):
        machine(code)


def raw() -> tuple[HostileRuntime, int]:
    runtime = runtime_of("hostile", 0)
    assert isinstance(runtime, HostileRuntime)
    return runtime, runtime.open_queue()


def numbers(*items: int) -> memoryview:
    return memoryview(bytearray(items))


def mistakes(runtime: HostileRuntime, *queues: int) -> str:
    """What went wrong in queues, synchronised in this order; nothing is an error of its own."""
    found: list[str] = []
    for queue in queues:
        try:
            runtime.synchronise(queue)
        except DeviceError as error:
            found.append(str(error))
    assert found
    return "; ".join(found)


def test_offsets_and_ends() -> None:
    runtime, queue = raw()
    handle = runtime.allocate(1024, queue)
    runtime.upload(queue, handle, 4, numbers(1))
    assert "the offset 4 is no multiple" in mistakes(runtime, queue)
    runtime.upload(queue, handle, 768, numbers(*[1] * 257))
    assert "bytes 768 to 1025 of a buffer of 1024" in mistakes(runtime, queue)
    runtime.copy(queue, handle, 0, handle, 256, 4)
    assert "copied to itself" in mistakes(runtime, queue)
    runtime.synchronise(queue)  # told once


def test_numbers_are_there_when_the_queue_is_synchronised() -> None:
    runtime, queue = raw()
    handle = runtime.allocate(4, queue)
    source, target = numbers(1, 2, 3, 4), numbers(0, 0, 0, 0)
    runtime.upload(queue, handle, 0, source)
    source[:] = b"\x09" * 4  # the caller's again
    runtime.download(queue, handle, 0, target)
    assert bytes(target) == b"\xee" * 4
    runtime.synchronise(queue)
    assert bytes(target) == b"\x01\x02\x03\x04"


def test_freed_memory_is_gone_behind_the_work_that_is_there() -> None:
    runtime, queue = raw()
    handle, other = runtime.allocate(4, queue), runtime.allocate(4, queue)
    runtime.upload(queue, handle, 0, numbers(1, 2, 3, 4))
    runtime.copy(queue, handle, 0, other, 0, 4)
    runtime.free(handle, queue)
    runtime.synchronise(queue)
    runtime.copy(queue, handle, 0, other, 0, 4)
    assert "the memory was freed" in mistakes(runtime, queue)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("ordered", ["not at all", "wait", "synchronise"])
def test_queues_on_one_buffer_are_ordered(policy: str | int, ordered: str) -> None:
    set_policy(policy)
    runtime, first = raw()
    second = runtime.open_queue()
    handle = runtime.allocate(4, first)
    runtime.upload(first, handle, 0, numbers(1, 2, 3, 4))
    if ordered == "wait":
        runtime.wait(second, first)
    elif ordered == "synchronise":
        runtime.synchronise(first)
    target = numbers(0, 0, 0, 0)
    runtime.download(second, handle, 0, target)
    if ordered == "not at all":
        assert "waits for nothing" in mistakes(runtime, second, first)
        return
    runtime.synchronise(second)
    assert bytes(target) == b"\x01\x02\x03\x04"
    # what the other queue reads may be written only behind that
    runtime.upload(first, handle, 0, numbers(5, 6, 7, 8))
    runtime.synchronise(first)


def test_reading_needs_no_order() -> None:
    runtime, first = raw()
    second = runtime.open_queue()
    handle = runtime.allocate(4, first)
    runtime.upload(first, handle, 0, numbers(1, 2, 3, 4))
    runtime.synchronise(first)
    for queue in (first, second):
        runtime.download(queue, handle, 0, numbers(0, 0, 0, 0))
    for queue in (first, second):
        runtime.synchronise(queue)
    runtime.download(second, handle, 0, numbers(0, 0, 0, 0))
    runtime.free(handle, first)
    # which of the two is late depends on the order in which they run
    found = mistakes(runtime, second, first)
    assert "waits for nothing" in found or "was freed" in found


def launch(vm_kernel: int, *args: Any) -> str:
    """A launch that the runtime's lines would not write."""
    runtime, queue = raw()
    exe = kernels()
    first = runtime.process.numbers(4)
    assert runtime.process.ask("load", first, list(exe.objects), list(exe.kernels)) == ""
    handles = [runtime.allocate(1024, queue) for _ in range(9)]
    given = [(handles[arg], 0, (4,), "float32") for arg in args]
    runtime.process.tell("put", queue, "launch", first + vm_kernel, given)
    return mistakes(runtime, queue)


def test_a_launch_has_each_buffer_once_and_eight_at_most() -> None:
    assert "add is given a buffer twice" in launch(ADD, 0, 0, 1)
    assert "add is given 9 buffers, 8 are bound at most" in launch(ADD, *range(9))


def test_a_buffer_that_is_bound_twice_is_copied() -> None:
    """By the runtime: two tensors in one storage, a tensor that is given twice."""
    body = [
        alloc(1, 0),
        add(0, 0, 1),
        alloc(2, 0, 1024),
        add(1, 1, 2),
        alloc(3),
        add(1, 2, 3),
        Return(0, 3),
    ]
    x = np.arange(100, dtype=np.float32)
    np.testing.assert_array_equal(machine(main_of(body, storages=[2048]))(x).numpy(), 6 * x)


@pytest.mark.parametrize("policy", POLICIES)
def test_two_machines_hand_tensors_to_each_other(policy: str | int) -> None:
    set_policy(policy)
    first, second = machine(main_of(CHAIN)), machine(main_of(CHAIN))
    x = np.arange(50, dtype=np.float32)
    value = x
    for turn in range(6):
        value = (first if turn % 2 else second)(value)
    np.testing.assert_array_equal(value.numpy(), 3.0**6 * x)


@pytest.mark.parametrize("policy", POLICIES)
def test_memory_that_another_machine_uses_is_used_again_behind_that(policy: str | int) -> None:
    set_policy(policy)
    first, second = machine(main_of(CHAIN)), machine(main_of(CHAIN))
    x = np.arange(5000, dtype=np.float32)
    results = []
    for turn in range(5):
        results.append(
            second(first(x + turn))
        )  # what the first gave is gone, and the second still reads it
    for turn, result in enumerate(results):
        np.testing.assert_array_equal(result.numpy(), 9 * (x + turn))


def test_a_kernel_that_writes_outside_of_its_buffer() -> None:
    """The kernel is told a larger size than its buffer has; the device sees it before the kernel does."""
    runtime, queue = raw()
    exe = kernels()
    first = runtime.process.numbers(4)
    runtime.process.ask("load", first, list(exe.objects), list(exe.kernels))
    handle = runtime.allocate(64, queue)
    runtime.process.tell("put", queue, "launch", first + INCREASE, [(handle, 0, (17,), "float32")])
    assert "bytes 0 to 68 of a buffer of 64" in mistakes(runtime, queue)


def test_allocations_that_fail() -> None:
    size = IntOp("mul", (N, 4))
    body = [alloc(1, 0), add(0, 0, 1), alloc(2), add(1, 0, 2), Return(0, 2)]
    x = np.arange(3000, dtype=np.float32)
    for failing in range(3):
        vm = machine(main_of(body, storages=[size]))
        # the pool gives back what it keeps, and tries again
        with failing_allocations(failing, failing + 1), pytest.raises(RuntimeCheckError) as caught:
            vm(x)
        assert caught.value.code == "out-of-memory"
        np.testing.assert_array_equal(vm(x).numpy(), 3 * x)
        vm.synchronise()


def test_memory_has_no_address() -> None:
    out = machine(main_of(CHAIN))(floats(1))
    with pytest.raises(RuntimeCheckError, match="has no address"):
        _ = out.pointer
    with pytest.raises((BufferError, RuntimeError)):  # by numpy, which knows no such device
        np.from_dlpack(out)


def test_copies_between_devices() -> None:
    slots = (HOST_SLOT, Slot("there", "hostile"), Slot("beyond", "hostile", 1))
    body = [
        alloc(1),
        add(0, 0, 1),
        Copy(0, 2, 1, 2),
        View(0, 3, 2, 0, 1, "float32", 2),
        Copy(0, 4, 3, 1),
        alloc(5),
        add(4, 1, 5),
        Return(0, 5),
    ]
    x = np.arange(10, dtype=np.float32)
    np.testing.assert_array_equal(machine(main_of(body), slots=slots)(x).numpy(), 4 * x)


@pytest.mark.parametrize("policy", POLICIES)
def test_two_slots_of_one_device_are_two_queues(policy: str | int) -> None:
    set_policy(policy)
    slots = (HOST_SLOT, Slot("there", "hostile"), Slot("beside", "hostile"))
    body = [
        alloc(1),
        add(0, 0, 1),
        Copy(0, 2, 1, 2),
        Copy(0, 3, 2, 1),
        alloc(1),
        add(3, 0, 1),
        Return(0, 1),
    ]
    vm = machine(main_of(body), slots=slots)
    for n in (10, 3000, 10):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(vm(x).numpy(), 3 * x)
