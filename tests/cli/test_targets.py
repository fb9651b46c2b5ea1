"""`relaxpy targets`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

import relaxpy
from relaxpy.backend import registry
from relaxpy.cli.main import cli


def listed(*args: str) -> str:
    result = CliRunner().invoke(cli, ["targets", *args])
    assert result.exit_code == 0, result.output
    return result.stdout


def from_package(row: dict[str, Any]) -> str:
    return "" if row["package"] == "relaxpy" else f"({row['package']})"


def test_text_and_json_are_the_same() -> None:
    data, text = json.loads(listed("--json")), listed()
    targets, devices = text.split("\n\n")
    assert [line.split() for line in targets.splitlines()[1:]] == [
        [row["kind"], *f"{row['target'] or row['problem']} {from_package(row)}".split()]
        for row in data["targets"]
    ]
    assert [line.strip() for line in devices.splitlines()[1:]] == [
        f"{row['kind']}:{row['number']}  {row['name']}" for row in data["devices"]
    ]


def test_this_machine() -> None:
    data = json.loads(listed("--json"))
    (llvm,) = (row for row in data["targets"] if row["kind"] == "llvm")
    assert llvm["target"] == str(relaxpy.Target.host())
    assert {"kind": "cpu", "number": 0} in [
        {key: row[key] for key in ("kind", "number")} for row in data["devices"]
    ]


def test_a_backend_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package's broken backend is listed, with what is wrong."""
    broken = registry.Listed("abacus", "nowhere:Backend", "abacus 1.0")
    monkeypatch.setattr(registry, "_installed", lambda: [broken])
    registry._backend.cache_clear()
    (row,) = (row for row in json.loads(listed("--json"))["targets"] if row["kind"] == "abacus")
    assert (row["target"], row["package"]) == (None, "abacus 1.0")
    assert "nowhere" in row["problem"]
    assert "(abacus 1.0)" in listed()
