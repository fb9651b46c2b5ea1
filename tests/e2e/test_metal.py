"""Whole programs for Metal, on the emulation of its interface: real kernels, in C++ on the processor, behind the real
runtime. No Mac runs them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import BuildError, RuntimeCheckError
from relaxpy.op.base import Sample
from relaxpy.testing.op_samples import apply, samples
from tests.device_emulation.fake_metal import Device, emulated
from tests.device_emulation.runner import needs_compiler
from tests.e2e.devices import (
    GROUPS,
    NUMBERS,
    first_samples,
    machine,
    module_of,
    number_program,
    same,
    wrong_programs,
    wrong_samples,
)
from tests.e2e.test_devices import MODELS, compare_model
from tests.op.support import COMPILED
from tests.sweeps import FULL, part, sweep

pytestmark = needs_compiler
PROGRAMS = 100
"""How many random programs a full run compares."""


@pytest.fixture(autouse=True)
def modules_round_trip() -> None:
    """Other tests print and parse these modules."""


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Device]]:
    with emulated(monkeypatch) as found:
        yield found


def compiling(found: list[Sample]) -> list[Sample]:
    """The samples without float64: the others are refused, with their place."""
    kept: list[Sample] = []
    for sample in found:
        try:
            relaxpy.build(module_of([apply(sample, bool(sample.dims))])[0], "metal")
            kept.append(sample)
        except BuildError as error:
            if error.code != "device-dtype" or "float64" not in error.message or error.span is None:
                raise
    return kept


@sweep
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("group", part(range(GROUPS), GROUPS))
def test_operators(group: int, backwards: bool, devices: list[Device]) -> None:
    """Each operator's first sample, whatever the order of threads and groups."""
    devices[0].backwards = backwards
    wrong = wrong_samples(compiling(first_samples(group)), "metal")
    assert not wrong, "\n".join(wrong)


@sweep
@pytest.mark.parametrize("number", part(range(len(COMPILED)), len(COMPILED)))
def test_all_samples(number: int, devices: list[Device]) -> None:
    """Special values, limits of integers, every dtype."""
    del devices
    found = [s for s in samples(COMPILED[number].name) if not s.code]
    wrong = wrong_samples(compiling(found), "metal")
    assert not wrong, "\n".join(wrong)


@sweep
@pytest.mark.parametrize("seed", range(0, PROGRAMS if FULL else 1, 10))
def test_random_programs(seed: int, devices: list[Device]) -> None:
    """What the interpreter gives, at all sizes; few cannot be compiled, and say so."""
    del devices
    wrong, refused = wrong_programs(range(seed, seed + (10 if FULL else 2)), "metal")
    assert not wrong, "\n".join(wrong)
    assert len(refused) <= 4, refused


ROWS = """
@R.function
def main(x: R.Tensor(("n", "m"), "float32"), w: R.Tensor(("m", 16), "float32"), i: R.Tensor(("n",), "int64")):
    a = R.nn.softmax(R.matmul(x, w))
    b = R.astype(R.std(x, axis=1), "float16")
    c = R.nn.gelu(x)
    return (a, b, c, R.cumsum(i), R.sort(x, axis=1), R.nn.attention(
        R.reshape(a, (1, n, 2, 8)), R.reshape(a, (1, n, 2, 8)), R.reshape(a, (1, n, 2, 8))))
"""


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("threads", [64, 1, 256] if FULL else [64])
def test_rows(threads: int, backwards: bool, devices: list[Device]) -> None:
    """Groups of threads that wait for each other: fewer elements than threads, as many, more, and none."""
    devices[0].backwards = backwards
    rng = np.random.default_rng(0)
    text = ROWS.replace("    a =", "    n = T.int64()\n    m = T.int64()\n    a =", 1)
    for n, m in ((1, 1), (3, 200), (65, 64), (0, 5)):
        x, w = (rng.standard_normal(s).astype("f4") for s in ((n, m), (m, 16)))
        i = rng.integers(-(1 << 62), 1 << 62, n)
        same(text, f"metal -threads={threads}", x, w, i, rtol=2e-3)


@sweep
@pytest.mark.parametrize("name", part(sorted(MODELS), len(MODELS)))
def test_models(name: str, devices: list[Device]) -> None:
    del devices
    compare_model(name, "metal")


HALVES = """
@R.function
def main(x: R.Tensor(("n", 8), "float16")) -> R.Tensor(("n", 8), "float16"):
    y = R.nn.softmax(R.nn.gelu(x))
    return y
"""


@pytest.mark.parametrize(("dtype", "value"), [each for each in NUMBERS if each[0] != "float64"])
def test_numbers_of_tensor_programs(dtype: str, value: float, devices: list[Device]) -> None:
    """Each has 8 bytes in the launch."""
    del devices
    vm = machine(relaxpy.parse(number_program(dtype)), "metal")
    assert vm["main"](np.zeros(3, np.float32), value).numpy().tolist() == [np.float32(value)] * 3


def test_a_saved_program(tmp_path: Path, devices: list[Device]) -> None:
    """A file has the kernels as text; each device runs it."""
    assert len(devices) == 2
    relaxpy.build(relaxpy.parse(HALVES), "metal").save(tmp_path / "halves.rxe")
    again = relaxpy.load(tmp_path / "halves.rxe")
    vm = relaxpy.VirtualMachine(again, device="metal:1", check_memory=True)
    for rows in (0, 1, 5):
        found = vm["main"](np.ones((rows, 8), np.float16))
        assert str(found.device) == "metal:1"
        np.testing.assert_allclose(found.numpy(), 1 / 8, rtol=1e-3)


def test_a_device_that_fails(devices: list[Device]) -> None:
    """The error is told where numbers are read, and the machine goes on."""
    vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(HALVES), "metal"))
    x = np.ones((2, 8), np.float16)
    devices[0].faults.append("Caused GPU Timeout Error")
    with pytest.raises(RuntimeCheckError, match="metal:0: Caused GPU Timeout Error") as caught:
        vm["main"](x).numpy()
    assert caught.value.code == "device-failed"
    np.testing.assert_allclose(vm["main"](x).numpy(), 1 / 8, rtol=1e-3)


def test_two_devices(devices: list[Device]) -> None:
    """Tensors of one are copied to the other."""
    del devices
    exe = relaxpy.build(relaxpy.parse(HALVES), "metal")
    first, second = (relaxpy.VirtualMachine(exe, device=f"metal:{i}") for i in range(2))
    found = second["main"](first["main"](np.ones((3, 8), np.float16)))
    np.testing.assert_allclose(found.numpy(), 1 / 8, rtol=1e-3)


def test_threads_on_queues(devices: list[Device]) -> None:
    """A queue each: every thread goes on with what another one has made."""
    del devices
    exe = relaxpy.build(relaxpy.parse(HALVES), "metal")
    vm = relaxpy.VirtualMachine(exe)
    x = vm["main"](np.ones((3, 8), np.float16))

    def work(_: int) -> None:
        mine = vm.on(vm.open_queue())
        y = x
        for _ in range(10):
            y = mine["main"](y)
        np.testing.assert_allclose(y.numpy(), 1 / 8, rtol=1e-3)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
