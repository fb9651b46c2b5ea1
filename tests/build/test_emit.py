"""Schedules that are compiled to be measured elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import relaxpy
from relaxpy.backend.cuda import kernel_image
from relaxpy.backend.cuda.compiler import Compiled, compile_source
from relaxpy.build.emit import emit, nearby
from relaxpy.build.tuning import TuningRecords
from relaxpy.errors import BuildError, UsageError
from relaxpy.runtime.container import MemoryContainer
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.inspect.candidate_results import RESULTS
from relaxpy.runtime.inspect.candidates import LAUNCHES
from relaxpy.runtime.tuned import FamilyRecord, write_families

pytest.importorskip("cuda.bindings.nvrtc")
TARGET = "cuda -arch=sm_80"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAXPY_CACHE_DIR", str(tmp_path / "cache"))


def program(count: int = 1) -> relaxpy.IRModule:
    """A product and its activation, and others of the same family."""
    functions = "\n".join(
        f'    @R.function\n    def f{i}(x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 16), "float32")):\n'
        f"        y = R.nn.softmax(R.{op}(R.matmul(x, w)))\n        return y\n"
        for i, op in enumerate(("nn.relu", "exp", "tanh")[:count])
    )
    return relaxpy.parse(f"@I.ir_module\nclass Products:\n{functions}")


def test_settings_near_the_present_ones() -> None:
    knobs = {"a": (1, 2, 3), "b": ("x", "y")}
    found = list(nearby(knobs, {}))
    assert found == [{}, {"a": 2}, {"a": 3}, {"b": "y"}, {"a": 2, "b": "y"}, {"a": 3, "b": "y"}]
    near = list(nearby(knobs, {"a": 3, "b": "gone", "c": 1}))
    assert near[:4] == [{"a": 3}, {}, {"a": 2}, {"a": 3, "b": "y"}]
    assert len(near) == 6
    assert list(nearby({}, {})) == [{}]


def test_what_an_archive_has(tmp_path: Path) -> None:
    """Kernels of one family once, those without a family not at all; executables that run the kernel often."""
    told: list[tuple[str, int]] = []
    made = emit(
        program(3), [{"n": 2}, {"n": 70}], tmp_path / "here", TARGET,
        trials=3, progress=lambda *each: told.append(each),
    )  # fmt: skip
    (kernel,) = made.archive.kernels
    assert told == [(kernel.kernel, number) for number in range(3)]
    assert made.left_out == {kernel.kernel: {}}
    assert kernel.family == (
        "matmul float32 float32 float32 rows=any depth=8 columns=16 along=columns epilogue=0"
    )
    assert kernel.choices == ({}, {"few": 1}, {"few": 2})
    for site, rows in zip(kernel.sites, (2, 70), strict=True):
        assert site.sizes == {"n": rows}
        assert [weight.shape for weight in site.inputs] == [(rows, 8), (8, 16)]
        assert site.flops == 2 * rows * 8 * 16
        assert site.nbytes == 4 * (rows * 8 + 8 * 16 + rows * 16)
    codes: set[bytes] = set()
    for number in range(3):
        data = made.archive.executable(0, number)
        exe = Executable.from_sections(MemoryContainer.of(memoryview(data)))
        counts = {each.name: len(each.params) for each in exe.functions}
        assert counts == {"at0": 2, "many0": 2 * LAUNCHES, "at1": 2, "many1": 2 * LAUNCHES}
        codes |= {*exe.objects}
    assert len(codes) == 3


def test_sizes_if_none_are_given(tmp_path: Path) -> None:
    """Symbols have the same; what takes too much memory is left out."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("a", "b", 64), "float32"), w: R.Tensor((512, 64), "float32")):
    y = R.linear(x, w)
    return y
""")
    (kernel,) = emit(mod, [], tmp_path, TARGET, trials=2).archive.kernels
    assert [{*site.sizes.values()} for site in kernel.sites] == [{1}, {16}, {64}, {256}]


def test_beside_a_library(tmp_path: Path) -> None:
    """A record is for the kernel whose few rows are ours, too."""
    target = f"{TARGET} -libs=cublas"
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 64), "float16"), w: R.Tensor((32, 64), "float16")):
    y = R.linear(x, w)
    return y
""")
    made = emit(mod, [{"n": 1}], tmp_path / "here", target, trials=2)
    (kernel,) = made.archive.kernels
    assert kernel.choices == ({}, {"few": 1})
    exes = [
        Executable.from_sections(MemoryContainer.of(memoryview(made.archive.executable(0, i))))
        for i in range(2)
    ]
    assert exes[0].objects != exes[1].objects
    record = FamilyRecord(made.archive.target, kernel.family, {"few": 1}, "k", "a GPU", "1")
    records = TuningRecords(families={record.key: record})
    for given, found in ((records, record.title), (False, "")):
        report = relaxpy.build(mod, target, tuning=given).build_report
        assert report is not None
        assert {each.record for each in report.kernels} == {found}


def test_the_same_bytes_again(tmp_path: Path) -> None:
    first, second = (
        emit(program(), [{"n": 2}], tmp_path / name, TARGET, trials=2) for name in "ab"
    )
    assert first.archive.digest == second.archive.digest


def test_a_record_is_where_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's records are the present schedules."""
    (kernel,) = emit(program(), [{"n": 2}], tmp_path / "a", TARGET, trials=2).archive.kernels
    record = FamilyRecord(TARGET, kernel.family, {"tile": 8}, "k", "a GPU", "1")
    path = tmp_path / "tuning.json"
    write_families(path, {record.key: record})
    monkeypatch.setenv("RELAXPY_TUNING", str(path))
    (kernel,) = emit(program(), [{"n": 2}], tmp_path / "b", TARGET, trials=2).archive.kernels
    assert kernel.choices == ({"tile": 8}, {"few": 1, "tile": 8})
    TuningRecords().write(path)
    assert TuningRecords.read(path).families == {record.key: record}


def test_what_spills_or_does_not_compile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0

    def compiled(source: str, arch: str, name: str) -> Compiled:
        nonlocal count
        count += 1
        if count == 2:
            raise BuildError("kernel-compile", "too much shared memory")
        made = compile_source(source, arch, name)
        resources: Mapping[str, int] = {**made.resources, "spills": 4 * (count == 3)}
        return Compiled(made.code, made.format, resources)

    monkeypatch.setattr(kernel_image, "compile_source", compiled)
    made = emit(program(), [{"n": 2}], tmp_path / "here", TARGET, trials=4)
    (kernel,) = made.archive.kernels
    assert kernel.choices == ({}, {"few": 8})
    assert made.left_out == {kernel.kernel: {"do not compile": 1, "spill registers": 1}}


def test_the_limit(tmp_path: Path) -> None:
    whole = emit(program(), [{"n": 2}], tmp_path / "a", TARGET, trials=4)
    made = emit(program(), [{"n": 2}], tmp_path / "b", TARGET, trials=4, limit=whole.nbytes - 1)
    (kernel,) = made.archive.kernels
    assert made.nbytes < whole.nbytes
    assert 1 <= len(kernel.choices) < 4
    left = {"are beyond the size limit": 4 - len(kernel.choices)}
    assert made.left_out == {kernel.kernel: left}
    with pytest.raises(UsageError, match="100 are the limit") as caught:
        emit(program(), [{"n": 2}], tmp_path / "c", TARGET, trials=2, limit=100)
    assert caught.value.code == "tuning-archive"


def test_nothing_to_tune(tmp_path: Path) -> None:
    mod = relaxpy.parse(
        "@R.function\ndef main(x: R.Tensor((3,), 'float32')):\n    return R.exp(x)\n"
    )
    for given, target in ((mod, TARGET), (program(), "llvm")):
        with pytest.raises(UsageError, match="no kernel of the program can be tuned") as caught:
            emit(given, [{"n": 2}] if given is not mod else [{}], tmp_path, target)
        assert caught.value.code == "tuning-kernel"


def test_results_are_not_written_over(tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text("")
    with pytest.raises(UsageError, match="has results of an earlier archive"):
        emit(program(), [{"n": 2}], tmp_path, TARGET)
