"""`relaxpy doctor`."""

from __future__ import annotations

import json
import subprocess

import pytest
from click.testing import CliRunner

from relaxpy.cli import doctor
from relaxpy.cli.probe import PROBES, Finding


@pytest.mark.parametrize(
    ("version", "spec", "fits"),
    [
        ("0.27.0.post1", "==0.27.0.post1", True),
        ("0.27.0", "==0.27.0.post1", False),
        ("0.28.0", "==0.27.0.post1", False),
        ("0.1.14.post1", "<0.1.15", True),
        ("0.1.15", "<0.1.15", False),
        ("0.1.15.post2", "<0.1.15", False),
        ("2.13.0+cpu", "==2.13.0", True),
        ("1.26.4", ">=1.26", True),
        ("1.9", ">=1.26", False),
        ("8", ">=8.0.0", True),
        ("1.5", ">=1,<2", True),
        ("2.0", ">=1,<2", False),
        ("3", "", True),
    ],
)
def test_versions_are_compared_as_pip_does(version: str, spec: str, fits: bool) -> None:
    """The three operators that pyproject.toml uses."""
    assert doctor.satisfies(version, spec) is fits


def test_requirements_are_read_from_the_metadata() -> None:
    """What relaxpy needs is stated once, in pyproject.toml; extras are told apart."""
    known = {package.name: package for package in doctor.packages()}
    assert known["apache-tvm"].spec == "==0.27.0.post1"
    assert known["apache-tvm"].extra is None
    assert known["apache-tvm"].fits
    assert known["tokenizers"].extra == "demo"


def invoke(monkeypatch: pytest.MonkeyPatch, llvm: Finding) -> tuple[int, str]:
    """Run the command with probes that answer at once."""
    answers = {"llvm": llvm}
    monkeypatch.setattr(
        doctor, "probe", lambda name: answers.get(name, Finding(False, "nothing", "get one"))
    )
    result = CliRunner().invoke(doctor.doctor)
    return result.exit_code, result.output


def test_exit_code_follows_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing GPUs are no failure; a CPU that cannot be compiled for is."""
    code, text = invoke(monkeypatch, Finding(True, "znver5"))
    assert code == 0
    assert "relaxpy works here." in text
    assert all(target in text for target in PROBES)
    assert "└ get one" in text

    code, text = invoke(monkeypatch, Finding(False, "znver5", "it is broken"))
    assert code == 1
    assert "does NOT work" in text


def test_a_probe_that_dies_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that ends the process is reported, and ends nothing else."""
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], -11, "", "")
    )
    assert doctor.probe("cuda") == Finding(False, "the trial failed", "exit code -11")


def test_a_probe_that_hangs_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that never answers is given up on."""

    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("probe", 1)

    monkeypatch.setattr(subprocess, "run", hang)
    assert doctor.probe("cuda").found == "no answer"


@pytest.mark.slow
def test_this_machine() -> None:
    """For real: a kernel is compiled in a process of its own, run and compared."""
    assert doctor.probe("llvm").works, doctor.probe("llvm")


def test_json_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = {"llvm": Finding(True, "znver5")}
    monkeypatch.setattr(
        doctor, "probe", lambda name: findings.get(name, Finding(False, "nothing", "get one"))
    )
    text = CliRunner().invoke(doctor.doctor).output
    result = CliRunner().invoke(doctor.doctor, ["--json"])
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert data["works"] is True
    assert [row["kind"] for row in data["targets"]][: len(PROBES)] == list(PROBES)
    for row in data["targets"]:
        assert f"{'yes' if row['works'] else 'no '}  {row['kind']:<8} {row['found']}" in text
    for package in data["packages"]:
        assert f"{package['name']:<24} {package['version']}" in text
    for extra in data["extras"]:
        assert f"{'yes' if extra['complete'] else 'no '}  {extra['name']:<8} {extra['use']}" in text

    findings["llvm"] = Finding(False, "znver5", "it is broken")
    result = CliRunner().invoke(doctor.doctor, ["--json"])
    assert (result.exit_code, json.loads(result.stdout)["works"]) == (1, False)
