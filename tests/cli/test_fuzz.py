"""`relaxpy fuzz`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from relaxpy.cli.main import cli
from relaxpy.testing.differential import Failure
from relaxpy.testing.file_mutations import Finding
from relaxpy.testing.fuzz import Outcome
from relaxpy.testing.on_device import Where


def test_clean() -> None:
    """A program that fails nowhere: one line, and code 0. The worker is a process of its own."""
    result = CliRunner().invoke(cli, ["fuzz", "--count", "1", "--seed", "3"])
    assert result.exit_code == 0, result.output
    assert "1 programs from seed 3: none failed" in result.stdout


def test_failures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What failed is shown small and kept, and how to see it again is said."""

    def outcomes(
        count: int, seed: int, jobs: int, where: Where | None, orders: int
    ) -> Iterator[Outcome]:
        assert (count, seed, jobs, where, orders) == (2, 5, 1, None, 0)
        yield Outcome(5)
        yield Outcome(
            6, Failure("vm", "value", "1 of 1 elements differ"), "# call: main []\nprogram\n"
        )

    monkeypatch.setattr("relaxpy.testing.fuzz.fuzz", outcomes)
    folder = tmp_path / "found"
    result = CliRunner().invoke(cli, ["fuzz", "--count", "2", "--seed", "5", "--keep", str(folder)])
    assert result.exit_code == 1
    assert "seed 6: vm: 1 of 1 elements differ" in result.output
    assert "program" in result.output
    assert "again: relaxpy fuzz --count 1 --seed 6" in result.output
    assert (folder / "seed-6.txt").read_text() == "# call: main []\nprogram\n"
    assert [path.name for path in folder.iterdir()] == ["seed-6.txt"]


def test_on_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it refuses is counted, and how to see a failure again names it."""

    def outcomes(count: int, seed: int, jobs: int, where: Where, orders: int) -> Iterator[Outcome]:
        assert (str(where.target.kind), where.compile_only) == ("vulkan", True)
        yield Outcome(5, refused="float64 is not computed there")
        yield Outcome(6, Failure("build", "crash", "no kernel"))

    monkeypatch.setattr("relaxpy.testing.fuzz.fuzz", outcomes)
    args = ["fuzz", "--count", "2", "--seed", "5", "--target", "vulkan", "--compile-only"]
    result = CliRunner().invoke(cli, args)
    assert result.exit_code == 1
    assert "2 programs from seed 5 on vulkan: 1 failed, 1 refused" in result.output
    assert "again: relaxpy fuzz --count 1 --seed 6 --target vulkan --compile-only" in result.output
    found = json.loads(CliRunner().invoke(cli, [*args, "--json"]).stdout)
    assert (found["target"].split()[0], found["refused"]) == ("vulkan", 1)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--compile-only"], "--compile-only needs a --target"),
        (["--files", "5", "--target", "opencl"], "leave --target out"),
        (["--target", "vulcan"], "did you mean vulkan?"),
        (["--target", "llvm -mtriple=aarch64-linux-gnu"], "do not run on this machine"),
    ],
)
def test_targets_that_do_not_fit(args: list[str], words: str) -> None:
    result = CliRunner().invoke(cli, ["fuzz", *args])
    assert result.exit_code != 0
    assert words in result.output or words in str(result.exception)


def test_files() -> None:
    """Changed executables, and what became of them."""
    result = CliRunner().invoke(cli, ["fuzz", "--files", "5", "--seed", "2"])
    assert result.exit_code == 0, result.output
    assert re.search(
        r"5 changed files from seed 2: \d refused, \d stopped .*; none failed", result.stdout
    )


def test_files_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def findings(*_: object) -> Iterator[Finding]:
        yield Finding(8, "the process ended with -11")

    monkeypatch.setattr("relaxpy.testing.file_mutations.mutate_files", findings)
    result = CliRunner().invoke(cli, ["fuzz", "--files", "5"])
    assert result.exit_code == 1
    assert "seed 8: the process ended with -11" in result.output
    assert "again: relaxpy fuzz --files 1 --seed 8" in result.output


def test_json_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def outcomes(*_: object, **__: object) -> Iterator[Outcome]:
        yield Outcome(5)
        yield Outcome(6, Failure("vm", "value", "1 of 1 elements differ"), "program\n")

    monkeypatch.setattr("relaxpy.testing.fuzz.fuzz", outcomes)
    result = CliRunner().invoke(cli, ["fuzz", "--count", "2", "--seed", "5", "--json"])
    assert result.exit_code == 1
    failure = {"seed": 6, "failure": "vm: 1 of 1 elements differ", "program": "program\n"}
    assert json.loads(result.stdout) == {"programs": 2, "seed": 5, "failed": [failure]}

    def findings(*_: object) -> Iterator[Finding]:
        yield Finding(8, "the process ended with -11")

    monkeypatch.setattr("relaxpy.testing.file_mutations.mutate_files", findings)
    data = json.loads(CliRunner().invoke(cli, ["fuzz", "--files", "5", "--json"]).stdout)
    assert data["failed"] == [{"seed": 8, "failure": "the process ended with -11"}]


def test_orders() -> None:
    """Programs through all passes in other orders, which no target is asked for."""
    result = CliRunner().invoke(cli, ["fuzz", "--count", "1", "--seed", "5", "--orders", "1"])
    assert result.exit_code == 0, result.output
    assert "1 programs from seed 5: none failed" in result.output
    result = CliRunner().invoke(cli, ["fuzz", "--orders", "1", "--target", "llvm"])
    assert result.exit_code == 2
    assert "compiles nothing" in result.output
