"""Schedules are emitted here, measured in processes without the compiler, and adopted: the choice changes, and the
numbers stay. The emulated driver's clock counts 50 µs for each group of threads, so what has fewer groups is faster,
and times are the same in each run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import relaxpy
from relaxpy.build.emit import Emitted, emit
from relaxpy.cli.main import main
from relaxpy.errors import UsageError
from relaxpy.files import locked
from relaxpy.runtime.inspect import measure as module
from relaxpy.runtime.inspect.candidate_results import RESULTS, Results
from relaxpy.runtime.inspect.candidates import Archive
from relaxpy.runtime.inspect.measure import RECORDS, measure
from relaxpy.runtime.tuned import read_families, write_families
from tests.benchmarks.test_gpu import REFUSES
from tests.runtime.devices.cuda import compiled as cuda
from tests.runtime.devices.cuda.emulation import folder as driver_folder
from tests.runtime.devices.opencl.support import needs_opencl
from tests.sweeps import full

pytestmark = cuda.needs_cuda
ROOT = Path(__file__).resolve().parents[3]
SIZES = [{"n": 1}, {"n": 70}]


def program() -> relaxpy.IRModule:
    return relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 8), "float32"), w: R.Tensor((16, 8), "float32"), b: R.Tensor((16,), "float32")):
    y = R.nn.relu(R.add(R.linear(x, w), b))
    return y
""")


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emitted]:
    """An archive whose kernels the emulated driver runs."""
    with cuda.emulated_compiled():
        yield emit(program(), SIZES, tmp_path_factory.mktemp("emitted"), cuda.TARGET, trials=8)


@pytest.fixture
def archive(emitted: Emitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """A copy of the archive, in an environment whose processes find the driver, but neither compiler nor rich."""
    refuses = REFUSES.replace('"rich"', '"rich", "click"')
    (tmp_path / "sitecustomize.py").write_text(refuses + WHEN_IMPORTED.format(what=SHORT))
    libraries = [str(driver_folder()), os.environ.get("LD_LIBRARY_PATH", "")]
    monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join(filter(None, libraries)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (tmp_path, ROOT))))
    shutil.copytree(emitted.archive.folder, tmp_path / "copy")
    return Archive.read(tmp_path / "copy")


@pytest.mark.slow
def test_what_is_fastest_is_adopted(
    archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the archive to the build that uses the record."""
    (kernel,) = archive.kernels
    assert kernel.choices[0] == {}
    assert len(kernel.choices) == 8
    seen: list[tuple[int, int, str]] = []
    (record,) = measure(archive.folder, progress=lambda *each: seen.append(each))
    assert seen[-1][:2] == (9, 9)
    assert record.family == kernel.family
    assert record.target == str(relaxpy.Target.parse(cuda.TARGET))
    assert record.device == "Emulated GPU 0"
    assert [each.sizes for each in record.measured] == SIZES
    # A larger tile for many rows has fewer groups; columns of a group for one row.
    assert record.choices
    assert all(each.after <= each.before for each in record.measured)
    assert record.ratio < 0.98
    times = {i: Results.read(archive).times(0, i) for i in range(8)}
    assert times[0] == [each.before for each in record.measured]
    before = (archive.folder / RESULTS).read_bytes()
    assert measure(archive.folder) == [record]  # nothing is measured twice
    assert (archive.folder / RESULTS).read_bytes() == before
    with pytest.raises(SystemExit) as stop:
        main(["tune", "--measure", str(archive.folder)])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert f"1 record in {archive.folder / RECORDS}" in shown
    assert "Emulated GPU 0" in shown
    path = tmp_path / "tuned.json"
    write_families(path, read_families(archive.folder / RECORDS))
    assert [*read_families(path)] == [record.key]
    exe = relaxpy.build(program(), cuda.TARGET, tuning=path)
    report = exe.build_report
    assert report is not None
    assert [each.record for each in report.kernels] == [record.title]
    plain = relaxpy.build(program(), cuda.TARGET, tuning=False)
    assert plain.objects != exe.objects
    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((16, 8), np.float32), rng.standard_normal(16, np.float32)
    tuned = relaxpy.VirtualMachine(exe)["main"]
    for rows in (0, 1, 3, 70, 130):
        x = rng.standard_normal((rows, 8), np.float32)
        wanted = np.maximum(x @ w.T + b, 0)
        np.testing.assert_allclose(tuned(x, w, b).numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_killed_run_goes_on(archive: Archive) -> None:
    """Both processes are ended within a schedule, and the last line is half written."""
    command = [sys.executable, "-m", "relaxpy.runtime.inspect.measure", str(archive.folder)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    path = archive.folder / RESULTS
    while not path.exists() or len(Results.read(archive).done) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    with locked(archive.folder):
        pass  # the measuring process has ended, too
    done = Results.read(archive).done
    assert 2 <= len(done) < 9
    with path.open("a") as file:
        file.write('{"item": [0, ')
    (record,) = measure(archive.folder)
    assert record.choices
    after = Results.read(archive).done
    assert len(after) == 9
    assert all(after[item] == event for item, event in done.items())
    assert not any("error" in event for event in after.values())


@full
@pytest.mark.slow
def test_a_schedule_that_breaks_the_device(
    archive: Archive, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Its process ends; the others are measured in the next one."""
    (tmp_path / "sitecustomize.py").write_text(
        (tmp_path / "sitecustomize.py").read_text() + breaks("raise SystemError('gone')")
    )
    (record,) = measure(archive.folder)
    assert record.choices
    failed = {k: e["error"] for k, e in Results.read(archive).done.items() if "error" in e}
    assert failed == {(0, 3): "SystemError: gone"}
    with pytest.raises(SystemExit):
        main(["tune", "--measure", str(archive.folder)])
    told = capsys.readouterr().err
    assert f"fused_linear_add_relu, {archive.kernels[0].choices[3]}: SystemError: gone" in told


@pytest.mark.slow
def test_a_schedule_that_hangs(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is given up after two minutes, which are over here as soon as it hangs."""
    hung = tmp_path / "hung"
    now = lambda: time.monotonic() + 2 * module.LONGEST * hung.exists()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=now, sleep=time.sleep))
    (tmp_path / "sitecustomize.py").write_text(
        (tmp_path / "sitecustomize.py").read_text()
        # Time for the other process to see the line of results that says what begins.
        + breaks(f"time.sleep(0.5); open({str(hung)!r}, 'w').close(); time.sleep(1000)")
    )
    measure(archive.folder)
    failed = {k: e["error"] for k, e in Results.read(archive).done.items() if "error" in e}
    assert failed == {(0, 3): "it took more than 120 s"}


@full
@needs_opencl
@pytest.mark.slow
def test_a_device_without_a_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any kind of device is measured, by the host's clock: here one that is the processor."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    emit(program(), SIZES, tmp_path, "opencl", trials=2)
    (record,) = measure(tmp_path, "opencl")
    assert record.target == "opencl"
    assert [each.sizes for each in record.measured] == SIZES
    assert all(each.share for each in record.measured)
    assert {*Results.read(Archive.read(tmp_path)).done} == {(0, 0), (0, 1), (0, -1)}


def test_one_process_at_a_time(archive: Archive) -> None:
    with locked(archive.folder), pytest.raises(UsageError, match="another process measures"):
        measure(archive.folder)


def test_without_a_device(archive: Archive) -> None:
    """Nothing counts as measured."""
    with pytest.raises(UsageError, match=r"nothing can be measured on cuda:7: no device cuda:7"):
        measure(archive.folder, "cuda:7")
    assert not (archive.folder / RESULTS).exists()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"archive": "00"}', "it is of another archive"),
        ("nonsense", "Expecting value"),
        ("[1]", "list indices"),
        ('{"item": [0, 99], "error": ""}', "no result of this archive"),
        ('{"item": [0]}', "not enough values"),
        ('{"item": [0, 1], "microseconds": [1]}', "no result of this archive"),
        ('{"item": [0, 1], "microseconds": [1, -1]}', "no result of this archive"),
        ('{"item": [0, 1], "microseconds": [1, "a"]}', "not supported"),
        ('{"item": [0, 1]}', "microseconds"),
        ('{"item": [0, 1], "error": 3}', "no result of this archive"),
    ],
)
def test_damaged_results(archive: Archive, line: str, reason: str) -> None:
    (archive.folder / RESULTS).write_text('{"begin": [0, 0]}\n' + line + "\n")
    with pytest.raises(UsageError, match="line 2: ") as caught:
        measure(archive.folder)
    assert caught.value.code == "tuning-measure"
    assert reason in caught.value.message


def test_results_of_another_device(archive: Archive) -> None:
    about = {"archive": archive.digest, "name": "another GPU", "driver": "", "bytes_per_second": 1}
    (archive.folder / RESULTS).write_text(json.dumps(about) + "\n")
    with pytest.raises(UsageError, match="the results are of another GPU, and this is Emulated"):
        measure(archive.folder)


WHEN_IMPORTED = """
import threading

def at_import():
    import sys, time
    while "relaxpy.runtime.inspect.candidate_bench" not in sys.modules or not hasattr(
        sys.modules["relaxpy.runtime.inspect.candidate_bench"], "Bench"
    ):
        time.sleep(0.001)
    module = sys.modules["relaxpy.runtime.inspect.candidate_bench"]
    bench = module.Bench
    machine = bench.machine
{what}

threading.Thread(target=at_import, daemon=True).start()
"""
"""What a process does to the module that measures."""
SHORT = "    module.SECONDS = 0.0"
"""No measurement is repeated: the emulated device's times are the same."""


def breaks(what: str) -> str:
    """The process breaks at the schedule of number 3."""
    return WHEN_IMPORTED.format(
        what=f"""
    def broken(self, kernel, candidate):
        if candidate == 3:
            {what}
        return machine(self, kernel, candidate)

    bench.machine = broken
"""
    )
