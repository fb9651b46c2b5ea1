"""Programs on a device that is not the host: slots, copies, launches, errors that come late."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import ExecutableError, RelaxError, RuntimeCheckError, UsageError
from relaxpy.runtime import Device, Executable, Tensor, VirtualMachine, load, register_function
from relaxpy.runtime.bytecode import (
    HOST_SLOT,
    Alloc,
    Const,
    Copy,
    FunctionCode,
    Heap,
    If,
    Instr,
    IntOp,
    Kernel,
    MakeTuple,
    Move,
    Packed,
    Param,
    Read,
    Reg,
    Return,
    Slot,
    TensorPattern,
    View,
)
from relaxpy.runtime.tensor import from_numpy
from tests.runtime import toy_device
from tests.runtime.support import floats, function, times
from tests.runtime.toy_device import ADD, ADD1, BROKEN, LESS, TOY, ToyRuntime, is_on_toy

N = Heap(0)


def there(*shape: None | int | Heap, slot: int = 1) -> TensorPattern:
    """A float32 tensor of a slot."""
    return TensorPattern(shape, len(shape), "float32", slot)


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    with toy_device.toys(monkeypatch) as found:
        yield found


def executable(
    *functions: FunctionCode, slots: Sequence[Slot] = (TOY,), **fields: Any
) -> Executable:
    return Executable(
        functions,
        kernels=toy_device.KERNELS,
        objects=toy_device.OBJECTS,
        slots=(HOST_SLOT, *slots),
        **fields,
    )


def add1(at: int, src: int, dst: int, storage: int = -1, kernel: int = ADD1) -> list[Instr]:
    return [
        Alloc(at, dst, 0, 1, "float32", storage, 0, 1),
        Kernel(at, kernel, (Reg(src), Reg(dst)), N),
    ]


def main_of(
    body: Sequence[Instr],
    params: Sequence[str] = ("x",),
    pattern: TensorPattern | None = None,
    storages: Sequence[int] = (),
    **fields: Any,
) -> FunctionCode:
    """`main`, whose parameters live on the toy; its storages hold as many bytes as the first of them, and are of these
    slots."""
    patterns = [(name, pattern or there(N)) for name in params]
    sizes = [times(0, 4) for _ in storages]
    return replace(
        function("main", patterns, body, storages=sizes, **fields), storage_slots=tuple(storages)
    )


def vm_of(body: Sequence[Instr], *args: Any, **fields: Any) -> VirtualMachine:
    """A machine that runs `main_of` them; fields of the executable and options of the machine may be among them."""
    machine = {name: fields.pop(name) for name in ("check_memory", "devices") if name in fields}
    exe = {name: fields.pop(name) for name in ("constants", "packed") if name in fields}
    return VirtualMachine(executable(main_of(body, *args, **fields), **exe), **machine)


def test_arrays_are_uploaded_and_results_stay_until_they_are_asked_for(log: list[str]) -> None:
    vm = vm_of([*add1(0, 0, 1), *add1(1, 1, 2), Return(1, 2)])
    out = vm(floats(*range(100)))
    assert is_on_toy(out)
    assert isinstance(out, Tensor)
    assert out.device == Device("toy", 0) == vm.device
    assert log == [
        "allocate",
        "upload",
        "allocate",
        "add1 (2, 64) (100,)",
        "allocate",
        "add1 (2, 64) (100,)",
    ]
    np.testing.assert_array_equal(out.numpy(), np.arange(100) + 2)
    assert log[-1] == "download"
    assert "Tensor([100], float32)" in repr(out)
    assert (out + 1)[0] == 3


def test_a_tensor_of_the_device_is_taken_as_it_is(log: list[str]) -> None:
    vm = vm_of([*add1(0, 0, 1), Return(1, 1)])
    x = vm.upload(floats(1, 2))
    assert vm.upload(floats(1), "toy").device == x.device
    log.clear()
    out = vm(vm(x))
    assert "upload" not in log
    np.testing.assert_array_equal(out.numpy(), [3, 4])
    with pytest.raises(UsageError, match="no slot 'gpu'"):
        vm.upload(floats(1), "gpu")
    with pytest.raises(UsageError, match="a str is not a tensor"):
        vm.upload("x")


def test_memory_of_what_is_gone_is_used_again(log: list[str]) -> None:
    vm = vm_of([*add1(0, 0, 1), Return(1, 1)])
    x = vm.upload(floats(*range(5000)))
    for _ in range(5):
        np.testing.assert_array_equal(vm(x).numpy(), np.arange(5000) + 1)
    assert log.count("allocate") == 2
    assert vm.memory.results == 2 * 20480 - 20480
    assert vm.release_memory() == 20480
    assert log[-1] == "free"


def test_planned_storage_grows() -> None:
    body = [*add1(0, 0, 1, 0), *add1(1, 1, 2, 1), *add1(2, 2, 3, 0), *add1(3, 3, 4), Return(4, 4)]
    vm = vm_of(body, storages=(1, 1))
    for size in (3, 1000, 1, 100_000, 5):
        np.testing.assert_array_equal(vm(np.full(size, 2, np.float32)).numpy(), np.full(size, 6))


def test_constants_live_on_the_device_and_leave_as_copies() -> None:
    body = [
        Const(0, 1, 0, 1),
        Alloc(0, 2, 0, 1, "float32", -1, 0, 1),
        Kernel(0, ADD, (Reg(0), Reg(1), Reg(2)), N),
        MakeTuple(0, 3, (1, 2)),
        Return(0, 3),
    ]
    vm = vm_of(body, constants=(floats(10, 20),))
    constant, out = vm(floats(1, 2))
    np.testing.assert_array_equal(out.numpy(), [11, 22])
    assert is_on_toy(constant)
    assert constant.buffer is not vm(floats(1, 2))[0].buffer


def test_views() -> None:
    body = [
        View(0, 1, 0, 1, 2, "float32", 1),
        View(0, 2, 1, 0, 1, "float32", 1),
        *add1(0, 2, 3),
        MakeTuple(0, 4, (1, 3)),
        Return(0, 4),
    ]
    vm = vm_of(body, heap=(0, 2, 2, 0))
    seen, out = vm(floats(1, 2, 3, 4))
    np.testing.assert_array_equal(seen.numpy(), [[1, 2], [3, 4]])
    np.testing.assert_array_equal(out.numpy(), [2, 3, 4, 5])


def test_conditions_are_read() -> None:
    body = [
        Alloc(0, 2, 0, 0, "bool", -1, 0, 1),
        Kernel(0, LESS, (Reg(0), Reg(1), Reg(2)), N),
        Read(0, 3, 2),
        If(0, 3, 1, 1),
        Move(1, 4, 0),
        Move(1, 4, 1),
        Return(1, 4),
    ]
    vm = vm_of(body, params=("x", "y"))
    np.testing.assert_array_equal(vm(floats(1), floats(2)).numpy(), [1])
    np.testing.assert_array_equal(vm(floats(5), floats(2)).numpy(), [2])


def test_a_condition_on_the_device_is_refused() -> None:
    body = [
        Alloc(0, 2, 0, 0, "bool", -1, 0, 1),
        Kernel(0, LESS, (Reg(0), Reg(1), Reg(2)), N),
        If(0, 2, 0, 0),
        Return(1, 0),
    ]
    with pytest.raises(ExecutableError, match="its condition lives on toy: read it first"):
        vm_of(body, params=("x", "y"))


def test_copies_to_the_host_and_back(log: list[str]) -> None:
    body = [
        *add1(0, 0, 1),
        Copy(0, 2, 1, 0),
        Packed(0, 3, 0, (Reg(2),)),
        Copy(0, 4, 3, 1),
        Copy(0, 5, 4, 1),
        *add1(0, 5, 6),
        MakeTuple(0, 7, (2, 4, 5, 6)),
        Return(0, 7),
    ]
    vm = vm_of(body, packed=("vm.builtin.copy",))
    host, back, same, out = vm(floats(1, 2))
    assert host.device == Device("cpu", 0)
    assert host.pointer
    assert back is same
    np.testing.assert_array_equal(out.numpy(), [3, 4])


def test_a_kernel_takes_tensors_of_its_own_slot() -> None:
    with pytest.raises(ExecutableError, match="argument 0 must live on toy, and lives on host"):
        vm_of([Copy(0, 1, 0, 0), *add1(0, 1, 2), Return(0, 2)])
    with pytest.raises(ExecutableError, match="views a tensor of another slot"):
        vm_of([View(0, 1, 0, 0, 1, "float32", 0), Return(0, 1)])
    body = [Packed(0, 1, 0, (Reg(0),)), *add1(0, 1, 2), Return(0, 2)]
    vm = vm_of(body, packed=("vm.builtin.copy",))
    np.testing.assert_array_equal(vm(floats(1)).numpy(), [2])


@register_function("relaxpy.test.host")
def on_host(x: Tensor) -> Tensor:
    return from_numpy(x.numpy().copy())


def test_what_is_not_proved_is_compared() -> None:
    body = [Packed(0, 1, 0, (Reg(0),)), *add1(0, 1, 2), Return(0, 2)]
    vm = vm_of(body, packed=("relaxpy.test.host",))
    with pytest.raises(
        RuntimeCheckError, match="argument 0 of the kernel add1 must be on toy:0, is on cpu:0"
    ):
        vm(floats(1))


def test_errors_come_when_results_are_asked_for() -> None:
    vm = vm_of([*add1(0, 0, 1, kernel=BROKEN), *add1(1, 1, 2), Return(1, 2)])
    out = vm(floats(1))
    with pytest.raises(RuntimeCheckError, match="toy:0: the sky fell") as caught:
        out.numpy()
    assert caught.value.code == "device-failed"
    vm(floats(1))
    with pytest.raises(RuntimeCheckError, match="the sky fell"):
        vm.synchronise()
    vm.synchronise()


def test_a_read_asks_for_errors() -> None:
    body = [
        *add1(0, 0, 1, kernel=BROKEN),
        Alloc(0, 2, 0, 0, "bool", -1, 0, 1),
        Kernel(0, LESS, (Reg(0), Reg(1), Reg(2)), N),
        Read(1, 3, 2),
        Return(1, 3),
    ]
    with pytest.raises(RuntimeCheckError, match="the sky fell"):
        vm_of(body)(floats(1))


def test_check_memory_names_the_kernel() -> None:
    body = [*add1(0, 0, 1), *add1(1, 1, 2, kernel=BROKEN), *add1(2, 2, 3), Return(2, 3)]
    with pytest.raises(
        RuntimeCheckError, match="the kernel broken failed: toy:0: the sky fell"
    ) as caught:
        vm_of(body, check_memory=True)(floats(1))
    assert caught.value.code == "kernel-failed"
    assert caught.value.span is not None
    assert caught.value.span.line == 11


def test_no_memory() -> None:
    vm = vm_of([*add1(0, 0, 1), Return(1, 1)])
    x = vm.upload(np.zeros(10, np.float32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ToyRuntime, "room", 1 << 10)
        vm(x)
        with pytest.raises(
            RuntimeCheckError, match="cannot allocate 4000 bytes on toy:0"
        ) as caught:
            vm(np.zeros(1000, np.float32))
    assert caught.value.code == "out-of-memory"
    np.testing.assert_array_equal(vm(x).numpy(), np.ones(10))


def updating() -> VirtualMachine:
    main = main_of([Kernel(0, ADD1, (Reg(1), Reg(0)), N), Return(0, 0)], ("x", "y"))
    x = Param("x", "annotation of x", updated=True)
    return VirtualMachine(executable(replace(main, params=(x, main.params[1]))))


def test_an_array_is_not_updated_in_place_on_a_device() -> None:
    vm = updating()
    with pytest.raises(
        RuntimeCheckError, match="parameter x: the value is on cpu:0, not on toy:0"
    ) as caught:
        vm(floats(1), floats(2))
    assert caught.value.code == "update-lost"
    assert caught.value.span is not None
    assert "vm.upload(x)" in str(caught.value)
    x = vm.upload(floats(1))
    vm(x, floats(2))
    np.testing.assert_array_equal(x.numpy(), [3])
    with pytest.raises(RuntimeCheckError, match="share memory"):
        vm(x, x)


def test_no_buffer_is_given_twice(log: list[str]) -> None:
    body = [
        Alloc(0, 1, 0, 1, "float32", -1, 0, 1),
        Kernel(0, ADD, (Reg(0), Reg(0), Reg(1)), N),
        Kernel(0, ADD, (Reg(0), Reg(1), Reg(1)), N),
        Return(0, 1),
    ]
    vm = vm_of(body)
    np.testing.assert_array_equal(vm(floats(1, 2)).numpy(), [3, 6])
    assert log.count("copy") == 2


def two_queues(*between: Instr) -> VirtualMachine:
    """x + 1 on one queue, then these; x + 2 on the other queue of the same device, from a copy."""
    body = [
        *add1(0, 0, 1, 0),
        Copy(0, 2, 1, 2),
        *between,
        Alloc(0, 4, 0, 1, "float32", -1, 0, 2),
        Kernel(0, 4, (Reg(2), Reg(4)), N),
        Return(0, 4),
    ]
    exe = executable(main_of(body, storages=(1,)), slots=(TOY, Slot("other", "toy")))
    kernels = (*toy_device.KERNELS, toy_device.kernel("add1", 2, slot=2))
    return VirtualMachine(replace(exe, kernels=kernels))


def test_two_slots_are_two_queues(log: list[str]) -> None:
    """Of one device: what one queue made is copied behind its work, and it goes on behind the copy."""
    vm = two_queues(*add1(0, 0, 3, 0), *add1(0, 0, 3, 0))  # in the memory that was copied
    np.testing.assert_array_equal(vm(floats(1, 2)).numpy(), [3, 4])
    assert log.count("wait") >= 2


def test_errors_of_another_queue_come_with_its_numbers() -> None:
    out = two_queues(*add1(0, 0, 3, kernel=BROKEN))(floats(1))
    with pytest.raises(RuntimeCheckError, match="the sky fell"):
        out.numpy()


def test_a_device_that_exchanges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a runtime does not say is refused, in its words."""
    vm = vm_of([*add1(0, 0, 1), Return(1, 1)])
    x = vm.upload(floats(1, 2))
    with pytest.raises(BufferError, match="toy cannot export memory"):
        x.__dlpack__()
    monkeypatch.setattr(ToyRuntime, "dlpack_type", 0)
    with pytest.raises(BufferError, match="toy cannot export memory"):
        x.__dlpack__()


def test_tensors_of_another_machine_are_waited_for(log: list[str]) -> None:
    one, two = (vm_of([*add1(0, 0, 1), Return(1, 1)]) for _ in range(2))
    x = one(floats(*range(5000)))
    out = two(x)
    np.testing.assert_array_equal(out.numpy(), np.arange(5000) + 2)
    x_memory = x.buffer.handle
    assert x.buffer.users
    del x
    log.clear()
    again = one(floats(*range(5000)))  # in the memory of x, when the other machine has read it
    assert log.count("wait") >= 1
    assert x_memory is again.buffer.handle or "allocate" not in log
    np.testing.assert_array_equal(again.numpy(), np.arange(5000) + 1)


def test_another_device_of_the_kind() -> None:
    one = vm_of([*add1(0, 0, 1), Return(1, 1)])
    two = vm_of([*add1(0, 0, 1), Return(1, 1)], devices={"toy": "toy:1"})
    assert two.device == Device("toy", 1)
    out = two(one(floats(1)))
    assert out.device == Device("toy", 1)
    np.testing.assert_array_equal(out.numpy(), [3])
    for devices in ({"toy": "cpu"}, {"gpu": "toy"}, {7: "toy"}, {"toy": "toy:5"}):
        with pytest.raises(UsageError) as caught:
            vm_of([Return(1, 0)], devices=devices)
        assert caught.value.code == "device"


def test_a_host_parameter_gets_a_copy_of_what_is_on_a_device() -> None:
    vm = vm_of([Return(0, 0)], pattern=there(N, slot=0))
    out = vm(vm.upload(floats(1, 2)))
    assert not is_on_toy(out)
    np.testing.assert_array_equal(out.numpy(), [1, 2])


def test_offsets_are_aligned() -> None:
    body = [Alloc(0, 1, 0, 1, "float32", 0, 4, 1), Return(0, 0)]
    main = replace(main_of(body, storages=(1,)), storages=(IntOp("add", (times(0, 4), 4)),))
    with pytest.raises(ExecutableError, match="multiples of 256") as caught:
        VirtualMachine(executable(main))
    assert caught.value.code == "device-offset"


def test_files_name_their_slots(tmp_path: Path) -> None:
    main = main_of([*add1(0, 0, 1), Return(0, 1)])
    exe = executable(main)
    exe.save(tmp_path / "toy.rxe")
    again = load(tmp_path / "toy.rxe")
    assert again.slots == exe.slots
    assert again.functions == exe.functions
    assert again.kernels == exe.kernels
    np.testing.assert_array_equal(VirtualMachine(again)(floats(1)).numpy(), [2])
    text = again.as_text()
    for line in (
        "slot 1: toy, a device of kind toy",
        "float32[h0] on toy",
        "alloc float32[h0] on toy",
    ):
        assert line in text


def test_a_launch_is_part_of_the_symbol() -> None:
    main = main_of([*add1(0, 0, 1), Return(0, 1)])
    exe = executable(main)
    image = replace(exe.kernels[0].image, launch=(1000, 1000))
    forged = replace(exe.kernels[0], images=(image,))
    with pytest.raises(ExecutableError, match="compiled with other parameters"):
        VirtualMachine(replace(exe, kernels=(forged, *exe.kernels[1:])))


def test_profiles_wait_for_kernels() -> None:
    vm = vm_of([*add1(0, 0, 1), Copy(0, 2, 1, 0), Return(1, 2)])
    text = str(vm.profile("main", floats(1, 2), repeat=2))
    assert "add1" in text
    assert "copy" in text


def test_pointers_are_the_hosts() -> None:
    vm = vm_of([Return(0, 0)])
    x = vm.upload(floats(1))
    with pytest.raises(RelaxError, match="no addresses in this process"):
        _ = x.pointer
    with pytest.raises(ValueError, match="read-only"):
        x[0] = 1
    with pytest.raises(BufferError, match="cannot export memory"):
        x.__dlpack__()
    assert vm.upload(x).buffer is not x.buffer
