"""Capsules of a device without streams. `tests/hostile/test_exchange.py` tests one that has them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.bytecode import Return
from relaxpy.runtime.capsule import DLTensor, dlpack_record
from relaxpy.runtime.devices.dlpack import borrow, lend
from tests.runtime.devices.test_base import BROKEN, add1, vm_of
from tests.runtime.support import floats
from tests.runtime.toy_device import Memory, ToyRuntime, toys


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    handles: dict[int, Memory] = {}

    def address(self: ToyRuntime, handle: Memory) -> int:
        handles[id(handle)] = handle
        return id(handle)

    monkeypatch.setattr(ToyRuntime, "address", address)
    monkeypatch.setattr(ToyRuntime, "wrap", lambda self, address, nbytes: handles[address])
    with toys(monkeypatch) as log:
        yield log


class Foreign:
    """What another library has of a tensor: a capsule."""

    def __init__(self, capsule: object) -> None:
        self.capsule = capsule
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return ToyRuntime.dlpack_type, 0

    def __dlpack__(self, *, stream: int | None, max_version: tuple[int, int]) -> object:
        self.streams.append((stream, max_version))
        return self.capsule


def record(capsule: object) -> tuple[DLTensor, tuple[int, ...]]:
    found = dlpack_record(capsule)
    return found, tuple((ctypes.c_int64 * found.ndim).from_address(found.shape))


@pytest.mark.parametrize("options", [{}, {"max_version": (1, 0)}])
def test_a_capsule_describes_the_tensor(options: dict[str, Any]) -> None:
    vm = vm_of([Return(0, 0)])
    x: Any = vm.upload(np.zeros((2, 3), np.float16))
    capsule = lend(x, None, **options)
    found, shape = record(capsule)
    assert (found.device_type, found.device_id) == (ToyRuntime.dlpack_type, 0)
    assert (found.code, found.bits, found.lanes, shape, found.byte_offset) == (2, 16, 1, (2, 3), 0)
    assert found.data == id(x.buffer.handle)


def test_types_that_numpy_has_not() -> None:
    import ml_dtypes

    vm = vm_of([Return(0, 0)])
    x: Any = vm.upload(np.zeros(4, ml_dtypes.bfloat16))
    found, shape = record(lend(x, None))
    assert (found.code, found.bits, shape) == (4, 16, (4,))
    again = borrow(Foreign(lend(x, None, max_version=(1, 0))), x.queue)
    assert again.dtype == "bfloat16"


def test_a_capsule_keeps_the_memory(log: list[str]) -> None:
    vm = vm_of([*add1(0, 0, 1), Return(1, 1)])
    out = vm(floats(*range(5000)))
    capsule = lend(out, None)
    del out
    vm.release_memory()
    kept = log.count("free")
    del capsule
    vm.release_memory()
    assert log.count("free") == kept + 1


def test_without_streams_the_queue_is_synchronised(log: list[str]) -> None:
    out = vm_of([*add1(0, 0, 1, kernel=BROKEN), Return(1, 1)])(floats(1))
    with pytest.raises(RuntimeCheckError, match="the sky fell"):
        lend(out, None)
    lend(vm_of([*add1(0, 0, 1, kernel=BROKEN), Return(1, 1)])(floats(1)), -1)  # not asked for


def test_there_and_back(log: list[str]) -> None:
    vm = vm_of([*add1(0, 0, 1), Return(1, 1)])
    x: Any = vm.upload(floats(1, 2))
    foreign = Foreign(x.__dlpack__(max_version=(1, 0)))
    log.clear()
    out = vm(foreign)
    assert "upload" not in log
    assert foreign.streams == [(None, (1, 0))]
    np.testing.assert_array_equal(out.numpy(), [2, 3])


def test_what_is_not_compact() -> None:
    vm = vm_of([Return(0, 0)])
    x: Any = vm.upload(np.zeros((2, 3), np.float32))
    capsule = x.__dlpack__(max_version=(1, 0))
    found, _ = record(capsule)
    strides = (ctypes.c_int64 * 2)(1, 2)
    found.strides, kept = ctypes.addressof(strides), found.strides
    with pytest.raises(BufferError, match="it is not contiguous"):
        borrow(Foreign(capsule), x.queue)
    found.strides = kept


@pytest.mark.parametrize(("flags", "reason"), [(1, "is read-only"), (2, "gives a copy")])
def test_memory_that_is_not_to_be_written_to(flags: int, reason: str) -> None:
    import relaxpy.runtime.devices.dlpack as module

    vm = vm_of([Return(0, 0)])
    x: Any = vm.upload(floats(1, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "dlpack_flags", lambda capsule: flags)
        tensor: Any = borrow(Foreign(x.__dlpack__(max_version=(1, 0))), x.queue)
    assert reason in tensor.owner.reason
    assert tensor.writable == (flags != 1)
    if flags == 1:
        with pytest.raises(BufferError, match="export a copy"):
            tensor.__dlpack__(copy=False)
        found, _ = record(tensor.__dlpack__())
        assert found.data != id(x.buffer.handle)
