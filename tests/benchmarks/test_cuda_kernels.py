"""The table of kernels for CUDA: the occupancy's formula, rows, and text."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

import relaxpy
from benchmarks.cuda_kernels import (
    Compiled,
    OnArch,
    Row,
    both,
    cells,
    page_section,
    read,
    rows_of,
    summary,
)
from benchmarks.cuda_occupancy import MULTIPROCESSORS
from benchmarks.gpu_models import models, step_sizes
from benchmarks.llm_peers import SCHEMES, Cell, Shape, decoder_modules
from relaxpy.models.families import FAMILIES
from tests.sweeps import full

TINY = Shape(layers=1, hidden=64, inner=96, heads=4, key_heads=2, vocab=64)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "sm_80", "sm_90"),
    [
        (256, 32, 0, 1.0, 1.0),
        (256, 33, 0, 0.75, 0.75),  # 40 registers are given
        (256, 48, 6144, 0.625, 0.625),
        (256, 64, 6144, 0.5, 0.5),
        (256, 207, 0, 0.125, 0.125),
        (256, 255, 0, 0.125, 0.125),
        (1024, 32, 0, 1.0, 1.0),
        (1024, 65, 0, 0.0, 0.0),  # more registers than there are
        (1024, 33, 0, 0.5, 0.5),
        (32, 16, 0, 0.5, 0.5),  # 32 blocks
        (1, 24, 0, 0.5, 0.5),
        (96, 16, 0, 0.984375, 0.984375),  # 21 blocks of 3 warps
        (256, 32, 49_152, 0.375, 0.5),
        (256, 32, 166_912, 0.125, 0.125),  # the most that a block of sm_80 may ask for: 163 KiB
        (256, 32, 232_448, 0.0, 0.125),  # 227 KiB, of sm_90
    ],
)
def test_occupancy(threads: int, registers: int, shared: int, sm_80: float, sm_90: float) -> None:
    """NVIDIA's calculator gives these."""
    found = [each.occupancy(threads, registers, shared) for each in MULTIPROCESSORS.values()]
    assert found == [sm_80, sm_90]


def test_cells_and_section() -> None:
    same = OnArch(registers=64, spills=0, shared=6144, occupancy=0.5)
    fits = Row("linear", "matmul", 256, {"sm_80": same, "sm_90": same}, {"a": 0.998, "b": 341.4})
    spilled = OnArch(registers=255, spills=16, shared=0, occupancy=0.125)
    spills = Row("sort", "threads", 256, {"sm_80": same, "sm_90": spilled}, {"a": None, "b": 0.0})
    assert cells(fits) == ["`linear`", "matmul", "256", "64", "0", "6144", "50%", "0.998 / 341"]
    assert cells(spills)[3:] == ["64 / 255", "0 / 16", "6144 / 0", "50% / 12%", "– / 0"]
    assert both(["1", "1"]) == "1"
    text = page_section([Compiled("M", ("a", "b"), 2.0, (fits,))])
    assert "1 kernels of 1 models" in text
    assert "None spills registers" in text
    found, other = (
        Compiled("M", ("a", "b"), 2.0, (fits,)),
        Compiled("N", ("a", "b"), 1.5, (spills,)),
    )
    text = page_section([found, other])
    assert "2 kernels of 2 models" in text
    assert "in 4 s" in text
    assert "1 spills registers: `sort`" in text
    assert "**N** (a; b), 1 kernels, 1.5 s" in text

    text = page_section([found], [other])
    assert "2 kernels of 2 models" in text
    assert "| N | 1 | 64 / 255 | 0 / 16 | 6144 / 0 | 50% / 12% |" in text
    assert "**N**" not in text
    assert summary([found]) in page_section([], [found])


def test_results_are_read_again() -> None:
    same = OnArch(registers=64, spills=0, shared=6144, occupancy=0.5)
    row = Row("linear", "matmul", 256, {"sm_80": same, "sm_90": same}, {"a": None, "b": 341.4})
    found = Compiled("M", ("a", "b"), 2.0, (row,))
    assert read(json.loads(json.dumps(asdict(found)))) == found


def test_models_have_names_of_their_own() -> None:
    names = [model.name for model in models()]
    assert len({*names}) == len(names)
    assert {*FAMILIES} < {*names}


@full
def test_rows_of_a_decoder() -> None:
    """Every kernel has a row; none spills; a product's operations a byte grow with its rows."""
    mod = decoder_modules(TINY, SCHEMES["fp16"])[1]
    exe = relaxpy.build(mod, "cuda -arch=sm_80,sm_90")
    cases = {
        "decode": step_sizes(Cell(batch=1, context=40)),
        "prefill": step_sizes(Cell(tokens=64)),
    }
    rows = [*rows_of(exe, cases)]
    assert {row.kernel for row in rows} <= {info.name for info in exe.kernels}
    linear = next(row for row in rows if row.rule == "matmul")
    decode, prefill = linear.intensity["decode"], linear.intensity["prefill"]
    assert decode is not None
    assert prefill is not None
    assert decode < 2 < prefill
    for row in rows:
        assert [*row.on] == ["sm_80", "sm_90"]
        for on in row.on.values():
            assert on.registers > 0
            assert on.spills == 0
            assert 0 < on.occupancy <= 1
