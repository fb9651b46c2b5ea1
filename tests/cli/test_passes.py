"""`relaxpy passes`."""

from __future__ import annotations

import json

from click.testing import CliRunner

from relaxpy.build.pipeline import default_pipeline
from relaxpy.cli.main import cli


def listed(*args: str) -> str:
    result = CliRunner().invoke(cli, ["passes", *args])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_text_and_json_are_the_same() -> None:
    rows = json.loads(listed("--json"))
    assert [row["pass"] for row in rows] == [step.name for step in default_pipeline().passes]
    assert all(row["summary"] for row in rows)
    lines = [" ".join(line.split()) for line in listed().splitlines() if line.startswith(" ")]
    assert lines == [f"{row['pass']} {row['level']} {row['summary']}" for row in rows]
    levels = {row["pass"]: row["level"] for row in rows}
    assert [levels[n] for n in ("legalize-ops", "fuse-ops", "fold-constant", "plan-memory")] == [
        0,
        1,
        2,
        3,
    ]
    phases = [line for line in listed().splitlines() if not line.startswith(" ")]
    assert phases == list(dict.fromkeys(row["phase"] for row in rows))


def test_targets_differ() -> None:
    """Only processors have their weights packed."""
    names = [
        {row["pass"] for row in json.loads(listed("--json", "-t", t))} for t in ("llvm", "opencl")
    ]
    assert "pack-weights" in names[0] - names[1]
