"""What the benchmark of decoders counts, and how it reports."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from multiprocessing import Pipe
from threading import Thread

import numpy as np
import pytest

from benchmarks.llm import (
    PEERS,
    Result,
    Turn,
    read_cell,
    results_of,
    start,
    tables,
    with_kept,
)
from benchmarks.llm_peers import SCHEMES, Cell, Kernels, Shape, relaxpy, work
from benchmarks.turns import Service, _serve
from tests.sweeps import full

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


@full
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
    slow, fast = (Turn(time, 20e9, 100e9, 1.0, "compute") for time in (2.0, 1.9))
    mine = Result("int4 (W4A8)", "prefill 128", 128, [slow, fast, slow])
    other = Result("llama.cpp q4_0", "prefill 128", 128, [Turn(3.0)])
    report = {
        "results": [each.record() for each in (mine, other)],
        "cells": ["prefill 128", "decode 1 × 64"],
        "peak_bytes": {"int4 (W4A8)": 2**20},
        "load_seconds": {"int4 (W4A8)": 1.0},
        "executables": {"int4 (W4A8)": 1},
        "kernels": [["int4 (W4A8)", "prefill 128", "linear", 22, 1500.0, 0.75, 1.0, 250.0]],
    }
    assert results_of(report) == [mine, other]
    (_, rates), (_, limits), (_, goals), _ = tables(report)
    assert rates[0] == ["prefill 128", "64.0", "42.7"]
    assert rates[1] == ["decode 1 × 64", "—", "—"]
    assert limits == [
        ["int4 (W4A8)", "prefill 128", "2000.0", "1000.0", "compute", "20.0", "100", "50%", "60%"]
    ]
    why = "linear: 1500.0 ms, 75%; 1.0 GB/s, 250 GOP/s"
    assert goals == [
        ["int4 (W4A8)", "prefill 128", "60% of the limit", "50%", "lost", why],
        ["int4 (W4A8)", "prefill 128", "ahead of every peer", "1.50 times llama.cpp q4_0", "reached", ""],
    ]  # fmt: skip


def test_a_run_of_some_cells_replaces_them() -> None:
    def report(cell: str, seconds: float, **more: object) -> dict[str, object]:
        result = Result("int4 (W4A8)", cell, 1, [Turn(seconds)])
        return {
            "shape": {"layers": 22},
            "threads": 2,
            "cells": [cell],
            "results": [result.record()],
            "kernels": [["int4 (W4A8)", cell, "linear", 1, seconds, 1.0, 1.0, 1.0]],
            "absent": {},
            "load_seconds": {"int4 (W4A8)": seconds},
            "peak_bytes": {"int4 (W4A8)": int(seconds)},
            "executables": {"int4 (W4A8)": 1},
            **more,
        }

    first, second = report("decode 1 × 64", 3.0), report("prefill 32", 1.0)
    both = with_kept(second, first)
    assert both["cells"] == ["prefill 32", "decode 1 × 64"]
    assert [each["seconds"] for each in both["results"]] == [3.0, 1.0]
    assert both["peak_bytes"] == {"int4 (W4A8)": 3}
    again = with_kept(report("prefill 32", 2.0), both)
    assert [each["seconds"] for each in again["results"]] == [3.0, 2.0]
    assert len(again["kernels"]) == 2
    other = report("prefill 32", 1.0, shape={"layers": 4})
    assert with_kept(other, first) == other
    assert with_kept(second, {}) == second
    lost = {"int4 (W4A8), prefill 32": "no reason", "torch, prefill 32": "none"}
    assert with_kept(second, report("decode 1 × 64", 3.0, absent=lost))["absent"] == {
        "torch, prefill 32": "none"
    }


class _Tally:
    """A service whose calls are counted."""

    def __init__(self) -> None:
        self.prepared, self.calls = 0, 0

    def service(self) -> Service:
        def prepare(request: object) -> Callable[[], int]:
            self.prepared += 1
            return self.call

        return Service(prepare)

    def call(self) -> int:
        self.calls += 1
        return self.calls


def test_a_request_that_is_repeated_is_prepared_once() -> None:
    tally, (ours, theirs) = _Tally(), Pipe()
    thread = Thread(target=_serve, args=(tally.service, (), theirs))
    thread.start()
    assert ours.recv() >= 0
    for request, calls, prepared, called in (
        ("a", 2, 1, 3), ("a", 2, 1, 5), ("b", 1, 2, 7), ("b", 0, 3, 8), ("b", 1, 4, 10),
    ):  # fmt: skip
        ours.send((request, calls, 0.0))
        ok, _ = ours.recv()
        assert ok
        assert (tally.prepared, tally.calls) == (prepared, called)
    ours.close()
    thread.join()
