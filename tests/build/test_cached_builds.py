"""Whole builds in the cache: the same executable without a pass, and never another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxpy
import relaxpy.version
from relaxpy.build import cached_builds
from relaxpy.build.build_cache import BuildCache
from relaxpy.build.kernels import compiler_id
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import RelaxError
from relaxpy.ir import IRModule
from relaxpy.runtime import Executable
from relaxpy.transform.base import Pass, PassContext, module_pass

PROGRAM = """
@R.function
def main(x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 16), "float32")):
    a = R.matmul(R.exp(x), w)
    b = R.add(a, R.const([1.0] * 16, "float32"))
    return (b, R.nn.softmax(b))
"""
TARGET = "llvm -opt-level=0"


@pytest.fixture(autouse=True)
def unchanged_sources(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Somebody may be editing them while the tests run; nothing would be kept."""
    compiler_id.cache_clear()
    monkeypatch.setattr(relaxpy.version, "LOADED_AT", float("inf"))
    yield
    compiler_id.cache_clear()


@pytest.fixture
def weights() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)


def whole(exe: Executable) -> bool:
    assert exe.build_report is not None
    return exe.build_report.whole


def saved(exe: Executable, folder: Path) -> bytes:
    exe.save(folder / "module.rxe")
    return (folder / "module.rxe").read_bytes()


def test_the_second_build_is_the_first(tmp_path: Path, weights: np.ndarray[Any, Any]) -> None:
    def build(cache: Any) -> Executable:
        mod = relaxpy.parse(PROGRAM)
        return relaxpy.build(mod, TARGET, {"w": weights}, cache=cache)

    without, cold, warm = build(False), build(tmp_path / "cache"), build(tmp_path / "cache")
    assert [whole(exe) for exe in (without, cold, warm)] == [False, False, True]
    assert len({saved(exe, tmp_path) for exe in (without, cold, warm)}) == 1
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
    expected = np.exp(x) @ weights + 1
    for exe in (cold, warm, relaxpy.load(tmp_path / "module.rxe")):
        result = relaxpy.VirtualMachine(exe)["main"](x)[0].numpy()
        np.testing.assert_allclose(result, expected, rtol=1e-5)
    assert warm.as_text() == cold.as_text()
    report = warm.build_report
    assert report is not None
    assert [name for name, _ in report.steps] == ["key", "load"]
    assert report.kernels
    assert all(kernel.cached for kernel in report.kernels)
    assert "all of it from the cache" in str(report)


def test_constants_are_aligned_and_not_to_be_written(
    tmp_path: Path, weights: np.ndarray[Any, Any]
) -> None:
    mod = relaxpy.parse(PROGRAM)
    relaxpy.build(mod, TARGET, {"w": weights}, cache=tmp_path)
    warm = relaxpy.build(mod, TARGET, {"w": weights}, cache=tmp_path)
    assert whole(warm)
    for constant in warm.constants:
        assert constant.ctypes.data % 64 == 0
        assert not constant.flags.writeable


def test_other_values_are_another_build(tmp_path: Path, weights: np.ndarray[Any, Any]) -> None:
    """Even in the same array."""
    mod = relaxpy.parse(PROGRAM)
    first = relaxpy.build(mod, TARGET, {"w": weights.copy()}, cache=tmp_path)
    weights[3, 3] += 1
    second = relaxpy.build(mod, TARGET, {"w": weights}, cache=tmp_path)
    assert not whole(first)
    assert not whole(second)
    assert not whole(relaxpy.build(mod, TARGET, cache=tmp_path))
    assert not whole(relaxpy.build(mod, TARGET, bounds={"n": 9}, cache=tmp_path))
    assert not whole(relaxpy.build(mod, TARGET, check_arguments=True, cache=tmp_path))
    assert whole(relaxpy.build(mod, TARGET, bounds={"n": 9}, cache=tmp_path))


def test_a_damaged_entry_is_built_again(tmp_path: Path) -> None:
    mod = relaxpy.parse(PROGRAM)
    first = relaxpy.build(mod, TARGET, cache=tmp_path)
    for entry in BuildCache(tmp_path).entries():
        content = bytearray(entry.path.read_bytes())
        content[len(content) // 2] ^= 1
        entry.path.write_bytes(content)
    second = relaxpy.build(mod, TARGET, cache=tmp_path)
    assert not whole(second)
    assert second.objects == first.objects
    assert whole(relaxpy.build(mod, TARGET, cache=tmp_path))


def test_passes_run_where_somebody_looks_on_or_brings_his_own(tmp_path: Path) -> None:
    mod = relaxpy.parse(PROGRAM)
    relaxpy.build(mod, TARGET, cache=tmp_path)
    seen: list[str] = []

    def look(_number: int, step: Pass, _before: IRModule, _after: IRModule) -> None:
        seen.append(step.name)

    assert not whole(relaxpy.build(mod, TARGET, instruments=[look], cache=tmp_path))
    assert "fuse-ops" in seen
    ran: list[int] = []

    @module_pass("mine")
    def mine(mod: IRModule, ctx: PassContext) -> IRModule:
        ran.append(len(mod))
        return mod

    for _ in range(2):
        pipeline = default_pipeline().before("fuse-ops", mine)
        assert not whole(relaxpy.build(mod, TARGET, pipeline=pipeline, cache=tmp_path))
    assert len(ran) == 2
    for expected in (False, True):
        pipeline = default_pipeline(without=["fuse-ops"])
        exe = relaxpy.build(mod, TARGET, pipeline=pipeline, cache=tmp_path)
        assert whole(exe) is expected


def test_large_weights_are_not_kept(
    tmp_path: Path, weights: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_builds, "MOST_BYTES", weights.nbytes)
    mod = relaxpy.parse(PROGRAM)
    for _ in range(2):
        assert not whole(relaxpy.build(mod, TARGET, {"w": weights}, cache=tmp_path))


def test_changed_sources_keep_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs is not what the files say."""
    monkeypatch.setattr(relaxpy.version, "LOADED_AT", 0.0)
    compiler_id.cache_clear()
    mod = relaxpy.parse(PROGRAM)
    for _ in range(2):
        assert not whole(relaxpy.build(mod, TARGET, cache=tmp_path))
    assert not BuildCache(tmp_path).entries()


def test_what_cannot_be_built_fails_each_time(
    tmp_path: Path, weights: np.ndarray[Any, Any]
) -> None:
    mod = relaxpy.parse(PROGRAM)
    for params in ({"v": weights}, {"w": weights[:3]}, {"w": object()}):
        for _ in range(2):
            with pytest.raises(RelaxError):
                relaxpy.build(mod, TARGET, params, cache=tmp_path)


def test_hits_are_counted_by_kernel(tmp_path: Path) -> None:
    mod = relaxpy.parse(PROGRAM)
    exe = relaxpy.build(mod, TARGET, cache=tmp_path)
    assert exe.build_report is not None
    count = len(exe.build_report.kernels)
    assert BuildCache(tmp_path).usage() == (0, count)
    relaxpy.build(mod, TARGET, cache=tmp_path)
    assert BuildCache(tmp_path).usage() == (count, count)
