"""What the benchmark of decoders counts, and how it reports."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.llm import PEERS, Result, read_cell, start, tables, work
from benchmarks.llm_peers import SCHEMES, Cell, Shape

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
    (_, rates), (_, limits) = tables(report)
    assert rates[0] == ["prefill 128", "64.0"]
    assert rates[1] == ["decode 1 × 64", "—"]
    assert limits == [
        ["int4 (W4A8)", "prefill 128", "2000.0", "1000.0", "compute", "20.0", "100", "50%", "60%"]
    ]
