"""What the benchmark of decoders counts, and how it reports."""

from __future__ import annotations

import argparse

import numpy as np
import pytest

from benchmarks.llm import PEERS, Result, read_cell, start, tables, work
from benchmarks.llm_peers import SCHEMES, Cell, Kernels, Shape, relaxpy

TINY = Shape(layers=2, hidden=64, inner=96, heads=4, key_heads=2, vocab=64)


def test_cells() -> None:
    assert read_cell("prefill-128") == Cell(tokens=128)
    assert read_cell("decode-4x64") == Cell(batch=4, context=64)
    for wrong in ("prefill-x", "decode-4", "128"):
        with pytest.raises(SystemExit, match="prefill-TOKENS"):
            read_cell(wrong)


def test_work_of_a_token() -> None:
    """TinyLlama in int4 with scales of 16 bits reads 0.58 GB a token."""
    nbytes, operations = work(Shape(), SCHEMES["int4 (W4A8)"], Cell(batch=1, context=0))
    assert nbytes == pytest.approx(0.582e9, rel=0.01)
    assert operations == pytest.approx(2 * 1.034e9, rel=0.01)
    more, _ = work(Shape(), SCHEMES["int4 (W4A8)"], Cell(batch=2, context=100))
    assert more - nbytes == 2 * 100 * 22 * 2 * 256 * 4


def test_relaxpy_computes_the_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts and steps are calls of one executable, and the kernels have names."""
    monkeypatch.setenv("RELAXPY_NUM_THREADS", "2")
    service = relaxpy(TINY, SCHEMES["int4 (W4A8)"], 2, "")
    for cell in (Cell(tokens=5), Cell(batch=3, context=33)):
        logits = service.prepare(cell)().numpy()
        assert logits.shape == (cell.batch, TINY.vocab)
        assert np.isfinite(logits.astype("float32")).all()
        rows = service.prepare(Kernels(cell))()
        assert 0 < sum(share for _, _, _, share, _, _ in rows) <= 1
        assert all(name for name, *_ in rows)


def test_absent_peer() -> None:
    """A library that is not there has a reason in place of figures."""
    options = argparse.Namespace(threads=1, cache="")
    PEERS["none"] = (_missing, "")
    try:
        assert (
            start("none", TINY, options) == "ModuleNotFoundError: No module named 'no_such_library'"
        )
    finally:
        del PEERS["none"]


def _missing(*_: object) -> None:
    raise ModuleNotFoundError("No module named 'no_such_library'")


def test_tables() -> None:
    result = Result("int4 (W4A8)", "prefill 128", 2.0, 64.0, 20e9, 100e9, 1.0, "compute")
    report = {
        "results": [{**vars(result), "share": result.share}],
        "cells": ["prefill 128", "decode 1 × 64"],
        "peak_bytes": {"int4 (W4A8)": 2**20},
        "load_seconds": {"int4 (W4A8)": 1.0},
    }
    (_, rates), (_, limits), _ = tables(report)
    assert rates[0] == ["prefill 128", "64.0"]
    assert rates[1] == ["decode 1 × 64", "—"]
    assert limits == [
        ["int4 (W4A8)", "prefill 128", "2000.0", "1000.0", "compute", "20.0", "100", "50%", "60%"]
    ]
