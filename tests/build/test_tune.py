"""tune: the fastest setting is found, recorded, and used by later builds; wrong ones are not."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.cuda.backend import CudaBackend
from relaxpy.backend.registry import backend_of
from relaxpy.build import tune as module
from relaxpy.build.tune import Trial, Tuner, tune
from relaxpy.build.tuning import Record, TuningRecords, record_key
from relaxpy.errors import UsageError
from relaxpy.explain import explain
from relaxpy.explain.page import page
from relaxpy.runtime.tuned import FamilyRecord, write_families
from relaxpy.target import Target
from relaxpy.tir.prim_func import PrimFunc

MOD = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 8), dtype="float32"), w: R.Tensor((8, 8), dtype="float32")):
    y = R.matmul(x, w)
    z = R.nn.softmax(y)
    return z
""")
X, W = np.ones((3, 8), np.float32), np.eye(8, dtype=np.float32)


def matmul_key(tuner: Tuner) -> str:
    program = tuner.programs["matmul"]
    return record_key(program, tuner.target)


def test_another_rule_wins_and_builds_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the rule for matrix products were slow."""
    time_of = Trial._time

    def slow(self: Trial, call: Any, args: Any) -> float:
        return time_of(self, call, args) if self._slow else 1e-3  # type: ignore[attr-defined]

    def calls(self: Trial, choices: Any) -> Any:
        self._slow = not choices  # type: ignore[attr-defined]
        return calls_of(self, choices)

    calls_of = Trial._calls
    monkeypatch.setattr(Trial, "_time", slow)
    monkeypatch.setattr(Trial, "_calls", calls)
    monkeypatch.setattr(Trial, "compare", lambda self, choices: (2.0, 1.0))
    tuner = Tuner(MOD, [{"n": 3}, {"n": 0}], seconds=0.001)
    tuned = tuner.tune("matmul")
    assert tuned.rule == "matmul"
    assert tuned.record.choices
    assert tuned.speedup == 2.0
    assert tuned.record.sizes == ({"n": 3}, {"n": 0})
    records = TuningRecords().with_record(tuned.key, Record("matmul", {"rule": "fallback"}))
    exe = relaxpy.build(MOD, tuning=records)
    assert exe.build_report is not None
    rules = {kernel.name: kernel.rule for kernel in exe.build_report.kernels}
    assert rules["matmul"] == "fallback"
    out = relaxpy.VirtualMachine(exe)["main"](X, W)
    plain = relaxpy.build(MOD, tuning=False)
    np.testing.assert_allclose(
        out.numpy(), relaxpy.VirtualMachine(plain)["main"](X, W).numpy(), rtol=1e-5
    )


def test_nothing_better_is_recorded_as_the_rules_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "compare", lambda self, choices: (1.0, 0.999))
    tuned = Tuner(MOD, [{"n": 3}], seconds=0.001).tune("matmul")
    assert tuned.record.choices == {}
    assert tuned.speedup == 1.0
    assert tuned.settings > 1


def test_a_setting_that_computes_something_else_is_out(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = module._arrays
    seen: list[int] = []

    def wrong(value: Any) -> list[np.ndarray]:
        seen.append(1)
        return [a + (len(seen) > 1) for a in arrays(value)]

    monkeypatch.setattr(module, "_arrays", wrong)
    monkeypatch.setattr(Trial, "_time", lambda self, call, args: 1.0 / len(seen))
    tuned = Tuner(MOD, [{"n": 3}], seconds=0.001).tune("matmul")
    assert tuned.record.choices == {}


def test_sizes_that_are_not_known_are_skipped_and_wrong_names_refused() -> None:
    tuner = Tuner(MOD, [{}])
    assert tuner.kernels() == []
    assert set(tuner.skipped) == {"matmul", "softmax"}
    with pytest.raises(UsageError, match="no symbol 'batch'"):
        Tuner(MOD, [{"batch": 3}])


def test_records_are_kept_and_merged(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tuning.json"
    assert TuningRecords.read(path).records == {}
    record = Record("k", {"chunk": 8, "rule": "fallback"}, (3.0, 2.0), ({"n": 3},))
    TuningRecords({"a": record}).write(path)
    TuningRecords({"b": Record("other", {})}).write(path)  # as another process would
    assert TuningRecords.read(path).records == {"a": record, "b": Record("other", {})}
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 9, "kernels": {}}', '{"version": 1, "kernels": {"a": {}}}']
)
def test_a_damaged_file(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tuning.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="is not a file of tuning records"):
        relaxpy.build(MOD, tuning=path)
    monkeypatch.setenv("RELAXPY_TUNING", str(path))
    with pytest.warns(UserWarning, match="is not a file of tuning records"):
        relaxpy.build(MOD)  # the user's own file never fails a build


def test_the_users_records_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tuning.json"
    monkeypatch.setenv("RELAXPY_TUNING", str(path))
    assert TuningRecords.default_path() == path
    tuner = Tuner(MOD, [{"n": 3}])
    TuningRecords({matmul_key(tuner): Record("matmul", {"rule": "fallback"})}).write(path)
    report = relaxpy.build(MOD).build_report
    assert report is not None
    assert {k.name: k.rule for k in report.kernels}["matmul"] == "fallback"
    monkeypatch.setenv("RELAXPY_TUNING", "")
    assert TuningRecords.default_path() is None
    report = relaxpy.build(MOD).build_report
    assert report is not None
    assert {k.name: k.rule for k in report.kernels}["matmul"] == "matmul"


def test_everything_with_a_call() -> None:
    start = time.perf_counter()
    records = tune(MOD, [{"n": 2}], trials=2)
    assert len(records.records) == 2
    assert time.perf_counter() - start < 60
    assert json.dumps([r.to_json() for r in records.records.values()])


def test_another_target_has_records_of_its_own() -> None:
    program = Tuner(MOD, [{"n": 2}]).programs["matmul"]
    assert isinstance(program, PrimFunc)
    assert record_key(program, Target.host()) != record_key(
        program, Target.parse("llvm -mcpu=x86-64")
    )


def test_of_several_processors_the_one_that_is_here() -> None:
    """Records are found by a build for them all."""
    target = Target.parse("llvm -mtriple=riscv64-linux-gnu -mcpu=generic; llvm")
    tuner = Tuner(MOD, [{"n": 3}], target, params={"w": W}, trials=1)
    assert tuner.measured == Target.host()
    (name, *_) = tuner.kernels()
    assert tuner.tune(name).key == record_key(tuner.programs[name], Target.host())


CUDA = "cuda -arch=sm_80"


def test_records_that_come_with_a_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold for every program of the family, also beside other records, and for one target; kept builds and the
    explanation know them."""
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setenv("RELAXPY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(CudaBackend, "tuned", tmp_path / "tuned.json")

    def taken(tuning: Any = True, target: str = CUDA) -> list[str]:
        report = relaxpy.build(MOD, target, tuning=tuning).build_report
        assert report is not None
        return [kernel.record for kernel in report.kernels if kernel.rule == "matmul"]

    assert taken() == [""]
    program = Tuner(MOD, [{"n": 3}], Target.parse(CUDA)).programs["matmul"]
    family = backend_of("cuda").family(program.func, Target.parse(CUDA))
    record = FamilyRecord(CUDA, family, {"tile": 8}, "k", "a GPU", "1")
    write_families(tmp_path / "tuned.json", {record.key: record})
    assert taken() == [record.title]
    assert taken() == [record.title]  # from the cache
    assert taken(False) == [""]
    assert taken(TuningRecords()) == [record.title]
    assert taken(target="cuda -arch=sm_90") == [""]
    assert sorted(taken(target="cuda -arch=sm_80,sm_90")) == ["", record.title]
    own = Record("matmul", {"few": 1})
    assert taken(TuningRecords({record_key(program, Target.parse(CUDA)): own})) == [own.title]
    (kernel,) = (each for each in explain(MOD, CUDA).kernels if each.rule == "matmul")
    assert kernel.record == record.title
    found = explain(MOD, CUDA)
    assert record.title in [each["tuning_record"] for each in found.as_json()["kernels"]]
    assert record.title in page(found)
    (tmp_path / "tuned.json").write_text("{}")
    with pytest.raises(UsageError, match=r"tuned.json is not a file of tuning records"):
        relaxpy.build(MOD, CUDA)
