"""`relaxpy bench-serve`: what it sends and when, and what it shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.cli.main import main
from tests.server.running import KEY, Running
from tests.sweeps import full

pytest.importorskip("fastapi")


def test_arrivals_are_those_of_a_poisson_process() -> None:
    from relaxpy.server.bench import Load

    gaps = np.diff(Load("http://a", requests=4000, rate=5).arrivals())
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps.std() == pytest.approx(0.2, rel=0.1)  # an exponential distribution's
    assert set(Load("http://a", requests=3).arrivals()) == {0.0}
    one, other = Load("http://a", shared=0.5).prompts()[:2]
    assert one.split()[:50] == other.split()[:50]
    assert one.split()[50:] != other.split()[50:]


def run(capsys: Any, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["bench-serve", *arguments])
    out, err = capsys.readouterr()
    return ended.value.code, out, err


@full
def test_a_server_is_measured(running: Running, capsys: Any, tmp_path: Path) -> None:
    given = (running.url, "--api-key", KEY, "--requests", "6", "-n", "5", "--prompt-words", "40")
    plot = tmp_path / "times.svg"
    code, out, _ = run(capsys, *given, "--concurrency", "2", "--json", "--plot", str(plot))
    data = json.loads(out)
    assert code == 0
    assert data["answered"] == 6
    assert data["completion_tokens"] == 30
    assert data["errors"] == {}
    for name in ("first_token_ms", "between_tokens_ms", "whole_ms"):
        times = data[name]
        assert 0 <= times["p50"] <= times["p90"] <= times["p99"] <= times["max"]
    assert data["first_token_ms"]["max"] <= data["whole_ms"]["max"]
    assert KEY not in out
    assert plot.read_text().count("<polyline") == 3
    code, out, _ = run(capsys, *given, "--rate", "50", "--shared", "1")
    assert code == 0
    assert "6 of 6 requests" in out
    assert "first token" in out


def test_nobody_there(running: Running, capsys: Any) -> None:
    code, _, err = run(capsys, "http://127.0.0.1:9")
    assert code == 1
    assert "nobody answers" in err
    assert "status 401" in run(capsys, running.url)[2]
    assert "is a URL" in run(capsys, "localhost:8000")[2]
