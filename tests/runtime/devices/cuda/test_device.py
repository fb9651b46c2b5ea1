"""Memory of a CUDA device, its facts, DLPack, and errors that come late."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime import VirtualMachine
from relaxpy.runtime.bytecode import KernelParam, Requirement
from relaxpy.runtime.capsule import dlpack_record
from relaxpy.runtime.devices.base import DeviceError
from relaxpy.runtime.devices.cuda.device import CudaRuntime
from relaxpy.runtime.devices.cuda.driver import bindings
from relaxpy.runtime.devices.dlpack import borrow
from relaxpy.runtime.devices.image import Image
from relaxpy.runtime.tensor import from_numpy
from tests.runtime.devices.cuda import program
from tests.runtime.devices.cuda.emulation import Emulation, add_kernel, folder, needs_emulation
from tests.runtime.devices.cuda.kernels import info, ptx, runtime, scale_on

pytestmark = needs_emulation
NUMBERS = (1, 1, 1, 64, 1, 1, 4)


def test_facts(driver: Emulation) -> None:
    assert CudaRuntime.devices() == ["Emulated GPU 0"]
    facts = runtime().facts()
    assert facts["compute_capability"] == "8.0"
    assert facts["total_memory"] == 1 << 30
    assert facts["multiprocessor_count"] == 108
    assert facts["max_shared_memory_per_block"] == 166912
    assert facts["driver"] == "for CUDA 13.0"


@pytest.mark.parametrize(
    ("capability", "runs"),
    [
        (80, ["", "sm_80", "compute_80"]),
        (86, ["", "sm_80", "sm_86", "compute_80"]),
        (90, ["", "sm_90", "sm_90a", "compute_80", "compute_90", "compute_90a"]),
        (103, ["", "sm_100f", "compute_80", "compute_90", "compute_100f"]),
        (120, ["", "sm_120", "compute_80", "compute_90"]),
    ],
)
def test_architectures(driver: Emulation, capability: int, runs: list[str]) -> None:
    driver.configure(capability=capability)
    known = ["", "sm_80", "sm_86", "sm_90", "sm_90a", "sm_100a", "sm_100f", "sm_120", "compute_80", "compute_90",
             "compute_90a", "compute_100a", "compute_100f", "x"]  # fmt: skip
    there = runtime()
    assert [arch for arch in known if not there.missing(Requirement("", arch))] == runs
    assert there.missing(Requirement("", "sm_70", ("fp4",))) == ("sm_70", "fp4")


@pytest.mark.parametrize("pools", [True, False])
def test_memory_is_given_back(driver: Emulation, pools: bool) -> None:
    """In the order of its queue where the device has pools, else when all work is done."""
    driver.configure(pools=pools)
    before = driver.memory()
    queue = runtime().queue()
    tensor = queue.upload(from_numpy(np.ones(4, np.float32)))
    scale_on(queue.raw)(NUMBERS, (4,), tensor, 2.0)
    assert driver.memory() > before
    np.testing.assert_array_equal(tensor.numpy(), [2, 2, 2, 2])
    raw = queue.raw
    del tensor, queue
    gc.collect()
    runtime().synchronise(raw)
    assert driver.memory() == before


def test_out_of_memory(driver: Emulation) -> None:
    """The message says how much is left; the device goes on."""
    driver.configure(memory=1 << 20)
    queue = runtime().queue()
    kept = queue.new((1 << 17,), "float32")
    message = r"cannot allocate 1048576 bytes on cuda:0: 524288 of 1048576 bytes are free"
    with pytest.raises(RuntimeCheckError, match=message) as caught:
        queue.new((1 << 18,), "float32")
    assert caught.value.code == "out-of-memory"
    del kept
    queue.new((1 << 18,), "float32")
    with pytest.raises(RuntimeCheckError, match="cuda:0: the device has 1048576 bytes"):
        queue.new((1 << 62, 64), "float32")


def test_memory_that_was_freed_comes_back(driver: Emulation) -> None:
    """Without waiting for the queue it is still taken."""
    driver.configure(memory=1 << 20)
    there = runtime()
    raw = there.open_queue()
    for _ in range(5):
        there.free(there.allocate(1 << 20, raw), raw)


def test_an_illegal_address(driver: Emulation) -> None:
    """It is told where the work is waited for, and by all that comes later."""
    queue = runtime().queue()
    tensor = queue.upload(from_numpy(np.ones(4, np.float32)))
    launch = scale_on(queue.raw)
    queue.synchronise()
    there = runtime()
    tensor.offset = 1 << 40
    launch(NUMBERS, (4,), tensor, 2.0)
    with pytest.raises(DeviceError, match=r"an illegal memory access .* start it again"):
        there.synchronise(queue.raw)
    tensor.offset = 0
    with pytest.raises(DeviceError, match="earlier work failed: an illegal memory access"):
        launch(NUMBERS, (4,), tensor, 2.0)
    with pytest.raises(RuntimeCheckError, match="an illegal memory access"):
        queue.new((1 << 20,), "float32")
    del tensor, queue, launch  # freeing is quiet
    gc.collect()


def test_a_tensor_where_vectors_cannot_be_loaded(driver: Emulation) -> None:
    queue = runtime().queue()
    tensor = queue.upload(from_numpy(np.ones(4, np.float32)))
    tensor.offset = 4
    scale_on(queue.raw)(NUMBERS, (4,), tensor, 2.0)
    with pytest.raises(DeviceError, match="misaligned address"):
        runtime().synchronise(queue.raw)


@pytest.mark.parametrize("place", [-1, 16])
def test_a_kernel_that_writes_beside_its_memory(driver: Emulation, place: int) -> None:
    """The emulation tells; a device need not."""
    code = ptx("stray", (".u64 .ptr",))
    body = (
        "void stray__launch(const unsigned *g, const unsigned *b, unsigned s, char *const *params)"
    )
    add_kernel(code, f"{body} {{ ((float *)params[0])[{place}] = 0; }}")
    there = runtime()
    queue = there.queue()
    args: Any = ({"memory": 0},)
    image = Image("stray", args, code, format="ptx")
    params = (KernelParam("float32", (16,), access="write"),)
    (kernel,) = there.load([image.encode()], [info("stray", params, (1,) * 6)])
    there.launcher(kernel, queue.raw)((1,) * 6, (), queue.new((16,), "float32"))
    with pytest.raises(DeviceError, match="an illegal memory access"):
        there.synchronise(queue.raw)


class Foreign:
    """A tensor of another library on the device."""

    def __init__(self, tensor: Any, misplaced: int = 0, kind: int = 2) -> None:
        self.tensor = tensor
        self.misplaced = misplaced
        self.kind = kind
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 0

    def __dlpack__(self, *, stream: int | None, max_version: tuple[int, int]) -> object:
        self.streams.append(stream)
        capsule = self.tensor.__dlpack__(stream=stream, max_version=max_version)
        dlpack_record(capsule).data += self.misplaced
        return capsule


def test_dlpack_shares_memory_and_orders_streams(driver: Emulation) -> None:
    """The consumer's stream waits for ours; no host waits."""
    there = runtime()
    ours, theirs = there.queue(), there.queue()
    tensor = ours.upload(from_numpy(np.ones(4, np.float32)))
    scale_on(ours.raw)(NUMBERS, (4,), tensor, 2.0)
    foreign = Foreign(tensor)
    seen = borrow(foreign, theirs)
    assert foreign.streams == [theirs.raw.address]
    assert seen.buffer.handle == tensor.buffer.handle
    scale_on(theirs.raw)(NUMBERS, (4,), seen, 5.0)
    np.testing.assert_array_equal(seen.numpy(), [10, 10, 10, 10])


@pytest.mark.parametrize("has_function", [True, False])
def test_a_stream_that_took_a_tensor_and_is_gone(
    driver: Emulation, has_function: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As CuPy's streams go with their last reference. Its work is waited for nevertheless, and its handle, at which the
    driver ends the process, is not used. Older drivers have no function for that."""
    there, cu = runtime(), bindings()
    if not has_function:

        def missing(*args: object) -> None:
            raise RuntimeError('Function "cuCtxRecordEvent" not found')

        monkeypatch.setattr(cu, "cuCtxRecordEvent", missing)
    queue = there.queue()
    tensor = queue.upload(from_numpy(np.ones(4, np.float32)))
    scale = scale_on(queue.raw)
    scale(NUMBERS, (4,), tensor, 2.0)
    theirs = there.open_queue()
    capsule = tensor.__dlpack__(stream=theirs.address, max_version=(1, 0))
    launch = scale_on(theirs)
    launch(NUMBERS, (4,), tensor, 5.0)
    assert cu.cuStreamDestroy(theirs.handle)[0] == 0
    scale(NUMBERS, (4,), tensor, 1.0)
    np.testing.assert_array_equal(tensor.numpy(), [10, 10, 10, 10])
    tensor.__dlpack__(stream=1, max_version=(1, 0))
    handle = tensor.buffer.handle
    del tensor, capsule
    gc.collect()
    again = queue.upload(from_numpy(np.full(4, 3, np.float32)))
    assert again.buffer.handle == handle
    np.testing.assert_array_equal(again.numpy(), [3, 3, 3, 3])
    queue.synchronise()


@pytest.mark.parametrize("stream", [None, 1, 2, -1])
def test_default_streams(driver: Emulation, stream: int | None) -> None:
    queue = runtime().queue()
    tensor = queue.upload(from_numpy(np.ones(4, np.float32)))
    record = dlpack_record(tensor.__dlpack__(stream=stream, max_version=(1, 0)))
    assert (record.device_type, record.device_id) == (2, 0)
    assert record.data == tensor.buffer.handle
    legacy = runtime().queue_of(stream if stream in (1, 2) else None)
    assert legacy.address == (2 if stream == 2 else 1)


def test_the_stream_0_is_refused(driver: Emulation) -> None:
    """It could be either default stream."""
    tensor = runtime().queue().upload(from_numpy(np.ones(4, np.float32)))
    with pytest.raises(BufferError, match="pass 1"):
        tensor.__dlpack__(stream=0)


def test_a_misaligned_tensor_of_others(driver: Emulation) -> None:
    """As torch exports `x[1:]`."""
    queue = runtime().queue()
    tensor = queue.upload(from_numpy(np.ones(4, np.float32)))
    with pytest.raises(BufferError, match="its address is no multiple of 16 bytes: pass a copy"):
        borrow(Foreign(tensor, misplaced=4), queue)


def _addresses(tensors: Sequence[Any]) -> list[int]:
    return [tensor.buffer.handle for tensor in tensors]


def test_tensors_begin_where_vectors_can_be_loaded(driver: Emulation) -> None:
    queue = runtime().queue()
    tensors = [queue.new((n,), "int8") for n in (1, 3, 17, 100)]
    assert all(address % runtime().offset_alignment == 0 for address in _addresses(tensors))


@pytest.fixture
def bodies(driver: Emulation) -> Emulation:
    """The driver, which runs the kernels of `program`."""
    add_kernel(program.CODE, program.BODY)
    return driver


def test_a_program(bodies: Emulation) -> None:
    vm = VirtualMachine(program.executable())
    assert str(vm.device) == "cuda:0"
    for n in (5, 1, 0, 1000):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(vm["main"](x).numpy(), 4 * x)


def test_a_program_on_two_devices(bodies: Emulation) -> None:
    """A slot each: the value passes through the host."""
    bodies.configure(devices=2)
    vm = VirtualMachine(program.executable(("a", "b")), devices={"b": "cuda:1"})
    out = vm["main"](np.arange(100, dtype=np.float32))
    assert str(out.device) == "cuda:1"
    np.testing.assert_array_equal(out.numpy(), 4 * np.arange(100, dtype=np.float32))


def test_two_slots_on_one_device(bodies: Emulation) -> None:
    """Two streams: one waits for the other."""
    vm = VirtualMachine(program.executable(("a", "b")))
    for n in (100, 3, 100):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(vm["main"](x).numpy(), 4 * x)


@pytest.mark.parametrize("kind", [2, 13])
def test_a_program_takes_tensors_of_others(bodies: Emulation, kind: int) -> None:
    """Also in managed memory: as they are, behind the work of their stream."""
    vm = VirtualMachine(program.executable())
    theirs = vm.on(vm.open_queue())
    foreign = Foreign(theirs["main"](np.ones(5, np.float32)), kind=kind)
    before = bodies.memory(pinned=True)
    out = vm["main"](foreign)
    assert len(foreign.streams) == 1
    assert bodies.memory(pinned=True) == before  # nothing was copied
    np.testing.assert_array_equal(out.numpy(), np.full(5, 16, np.float32))


def test_threads_run_a_program(bodies: Emulation) -> None:
    """Each on streams of its own, or all on one; no context is current in a new thread."""
    vm = VirtualMachine(program.executable())

    def work(number: int) -> None:
        mine = vm.on(vm.open_queue()) if number % 2 else vm
        for n in (number + 1, 300, 0):
            x = np.full(n, number, np.float32)
            np.testing.assert_array_equal(mine["main"](x).numpy(), 4 * x)

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(work, number) for number in range(12)]:
            done.result()


def test_a_program_that_runs_out_of_memory(bodies: Emulation) -> None:
    bodies.configure(memory=1 << 20)
    vm = VirtualMachine(program.executable())
    with pytest.raises(
        RuntimeCheckError, match=r"cannot allocate 800000 bytes on cuda:0: "
    ) as caught:
        vm["main"](np.zeros(200_000, np.float32))
    assert caught.value.code == "out-of-memory"
    where, plan = caught.value.notes
    assert "in function main" in where
    assert plan.startswith(
        "a call of main(n0=200000) takes 1562.5 KiB: 781.2 KiB are planned, and results are 781.2 KiB"
    )
    x = np.ones(1000, np.float32)
    np.testing.assert_array_equal(vm["main"](x).numpy(), 4 * x)


def test_a_program_that_fails(bodies: Emulation) -> None:
    """It is told where its result is read."""
    vm = VirtualMachine(program.executable())
    out = vm["main"](np.ones(4, np.float32))
    bodies.fail(719)
    with pytest.raises(RuntimeCheckError, match=r"cuda:0: .*\(CUDA_ERROR_LAUNCH_FAILED\)"):
        out.numpy()


def test_a_program_that_fails_with_checks(bodies: Emulation) -> None:
    """`check_memory` waits for each launch, and names the kernel."""
    vm = VirtualMachine(program.executable(), check_memory=True)
    x = vm.upload(np.ones(4, np.float32))
    bodies.fail(719)
    with pytest.raises(RuntimeCheckError, match="the kernel twice failed"):
        vm["main"](x)


def test_a_file_runs_without_the_compiler(bodies: Emulation, tmp_path: Path) -> None:
    """In another process, which finds the driver as libcuda.so.1, and cannot import TVM's packages."""
    file = tmp_path / "twice.rxe"
    program.executable().save(file)
    paths = [str(folder()), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths)),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, "-m", program.__name__, str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
