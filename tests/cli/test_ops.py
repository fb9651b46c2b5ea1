"""`relaxpy ops`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from relaxpy.cli.main import cli
from relaxpy.op import OPS, Op

NAMES = {name for name, op in OPS.items() if issubclass(op, Op)}
"""Operators of programs; those of lowered programs only are left out."""


def listed(*args: str) -> str:
    result = CliRunner().invoke(cli, ["ops", *args])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_text_and_json_are_the_same() -> None:
    """Every operator, its parameters in order, its summary."""
    rows, text = json.loads(listed("--json")), listed()
    assert [row["name"] for row in rows] == sorted(NAMES)
    shown = []
    for row in rows:
        parameters = [
            p["name"] + (f"={p['default']}" if "default" in p else "") for p in row["parameters"]
        ]
        shown.append(f"R.{row['name']}({', '.join(parameters)})\n    {row['summary']}\n")
    assert text == "".join(shown)
    assert all(row["summary"] for row in rows)


@pytest.mark.parametrize(
    ("pattern", "some"),
    [("softmax", {"nn.softmax", "nn.log_softmax"}), ("nn.*pool2d", {"nn.max_pool2d"})],
)
def test_patterns(pattern: str, some: set[str]) -> None:
    names = {row["name"] for row in json.loads(listed(pattern, "--json"))}
    assert some <= names < NAMES


def test_signatures() -> None:
    (row,) = (row for row in json.loads(listed("softmax", "--json")) if row["name"] == "nn.softmax")
    assert row["parameters"] == [{"name": "data"}, {"name": "axis", "default": "-1"}]


def test_nothing_of_that_name() -> None:
    result = CliRunner().invoke(cli, ["ops", "sofmax"])
    assert result.exit_code == 2
    assert "did you mean nn.softmax" in result.output
