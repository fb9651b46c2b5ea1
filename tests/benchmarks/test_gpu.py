"""The benchmark of GPUs with tiny sizes on the emulated driver, in processes that cannot import TVM; and what it does
about items that fail.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu
from benchmarks.gpu import main, run_section, section, summary
from benchmarks.gpu_plan import QUICK
from benchmarks.gpu_prepare import prepare
from tests.runtime.devices.cuda import compiled as cuda
from tests.runtime.devices.cuda.emulation import folder as driver_folder
from tests.sweeps import FULL, full

pytestmark = cuda.needs_cuda
NEED_PACKAGES = "encoder", "libraries", "decoders", "matmul", "convolutions", "transformers"
"""Sections with items that need torch, or NVIDIA's libraries."""
ROOT = Path(__file__).resolve().parents[2]
REFUSES = '''"""Lets nothing of the compiler be imported."""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tvm", "tvm_ffi", "tvm_ffi_orcjit", "rich"):
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, Refuse())
'''


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that `--prepare` wrote, whose kernels the emulated driver runs."""
    folder = tmp_path_factory.mktemp("gpu")
    # A cache of its own: kernels that were compiled by others have no bodies here.
    cache = tmp_path_factory.mktemp("cache")
    with cuda.emulated_compiled():
        plan = QUICK
        if not FULL:
            plan = replace(
                plan, operators=(1, 160), schemes=plan.schemes[:1], variants=plan.variants[:1]
            )
            plan = replace(plan, agreeing={}, library_dtypes={}, encoder_shapes=())
        prepare(folder, plan, cuda.TARGET, cache=str(cache))
        yield folder


@pytest.fixture
def environment(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children find the emulated driver, and cannot import the compiler."""
    (tmp_path / "sitecustomize.py").write_text(REFUSES)
    libraries = [str(driver_folder()), os.environ.get("LD_LIBRARY_PATH", "")]
    monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join(filter(None, libraries)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (tmp_path, ROOT))))


@full
@pytest.mark.usefixtures("environment")
def test_all_sections(prepared: Path, tmp_path: Path) -> None:
    """Every item of every section has a result, and results are right; those of torch are skipped."""
    report = tmp_path / "gpu.json"
    command = [
        sys.executable,
        str(ROOT / "benchmarks/gpu.py"),
        "--from",
        str(prepared),
        "--json",
        str(report),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    sections = json.loads(report.read_text())["sections"]
    assert [*sections] == [*gpu.ORDER]
    assert {*gpu.ORDER} == {*gpu.SECTIONS}
    for name, found in sections.items():
        assert not found["errors"], found["errors"]
        assert all(not each.get("wrong") for each in found["results"].values()), name
        assert bool(found["skipped"]) == (name in NEED_PACKAGES), name
    assert sections["operators"]["results"]["operators-0"]["calls"] > 2
    graphs = sections["encoder"]["results"]
    assert all((each["replays"] > 0) == ("without" not in item) for item, each in graphs.items())
    memory = {item: each["bytes"] for item, each in sections["memory"]["results"].items()}
    assert memory["steps, all"] <= memory["steps, without a memory plan"]
    assert "operators: 1 done, 0 skipped, 0 failed, 0 wrong" in done.stdout


@full
@pytest.mark.usefixtures("environment")
def test_a_failing_item_stops_no_other(prepared: Path, tmp_path: Path) -> None:
    """A file is broken: the section goes on behind it, in another process."""
    broken = prepared / "programs-0.rxe"
    data = broken.read_bytes()
    try:
        broken.write_bytes(data[: len(data) // 2])
        found = run_section("programs", prepared, "cuda", 60)
    finally:
        broken.write_bytes(data)
    assert [*found["errors"]] == ["programs-0"]
    assert "programs-0.rxe" in found["errors"]["programs-0"]
    assert [*found["results"]] == ["programs-1"]
    assert "1 done, 0 skipped, 1 failed" in summary("programs", {**found, "seconds": 1.0})


@pytest.mark.usefixtures("environment")
def test_an_item_that_hangs_is_given_up(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is ended when the section's time is over; what follows is skipped."""
    monkeypatch.setattr(gpu, "GRACE", 1.0)
    hung = tmp_path / "hung"
    shutil.copytree(prepared, hung)
    (hung / "programs-0.calls").unlink()
    os.mkfifo(hung / "programs-0.calls")  # nobody writes into it
    found = run_section("programs", hung, "cuda", 3)
    assert found["errors"] == {"programs-0": "it took more than 3 s"}
    assert found["skipped"] == {"programs-1": gpu.NO_TIME}


@pytest.mark.usefixtures("environment")
def test_without_ml_dtypes(prepared: Path, tmp_path: Path) -> None:
    """Decoders in bfloat16 run, and programs with such numbers outside are skipped."""
    path = tmp_path / "sitecustomize.py"
    path.write_text(path.read_text().replace('"rich"', '"rich", "ml_dtypes"'))
    for name in ("programs", "operators", *(["decoders", "matmul"] if FULL else [])):
        assert not run_section(name, prepared, "cuda", 60)["errors"]


def test_without_a_device(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each item says what is missing."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    found = run_section("device", prepared, "cuda:7", 60)
    assert {*found["errors"]} == {"device", "copy"}
    assert not found["results"]


def test_no_time(prepared: Path, tmp_path: Path) -> None:
    """Items that do not fit are skipped, and say so."""
    lines = tmp_path / "lines"
    assert section("matmul", prepared, "cuda", 0, -1.0, lines) == 0
    events = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len(events) == 12
    assert all(e["kind"] == "skipped" and "no time left" in e["value"] for e in events)


def test_unknown_sections_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--only", "device,nothing"])
    with pytest.raises(SystemExit):
        main()
    assert "no section nothing" in capsys.readouterr().err
