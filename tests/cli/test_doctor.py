"""`relaxpy doctor`."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

import relaxpy
from relaxpy.cli import doctor
from relaxpy.cli.probe import PROBES, Finding
from tests.sweeps import full

ROOT = Path(__file__).parents[2]


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
    # A package of two extras is listed for each of them.
    extras = {package.extra for package in doctor.packages() if package.name == "tokenizers"}
    assert extras == {"demo", "llm"}


def test_every_extra_is_known() -> None:
    """Those of pyproject.toml: shown, or for developers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {*doctor.EXTRAS, *doctor.DEVELOPERS} == {*project["optional-dependencies"]}
    assert {*doctor.EXTRAS}.isdisjoint(doctor.DEVELOPERS)


def test_an_extra_that_refers_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "numpy>=1.26",
        "jinja2>=3.1.6; extra == 'llm'",
        "relaxpy[llm]; extra == 'serve'",
        "fastapi>=0.115; extra == 'serve'",
    ]
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: lines)
    assert {package.name for package in doctor.members("serve")} == {"fastapi", "jinja2"}
    assert doctor.members("torch") == []


def invoke(monkeypatch: pytest.MonkeyPatch, llvm: Finding) -> tuple[int, str]:
    """Run the command with probes that answer at once."""
    answers = {"llvm": llvm}
    monkeypatch.setattr(
        doctor, "probe", lambda name: answers.get(name, Finding(False, "nothing", "get one"))
    )
    result = CliRunner().invoke(doctor.doctor)
    return result.exit_code, result.output


@full
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


@full
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
        assert f"{'yes' if extra['complete'] else '   '}  {extra['name']:<8} {extra['use']}" in text
    order = [
        text.index(f"\n{each}") for each in ("Packages", "Targets", "relaxpy works here.", "Extras")
    ]
    assert order == sorted(order)
    assert "no  " not in text[order[-1] :]  # what is not needed is no fault

    findings["llvm"] = Finding(False, "znver5", "it is broken")
    result = CliRunner().invoke(doctor.doctor, ["--json"])
    assert (result.exit_code, json.loads(result.stdout)["works"]) == (1, False)


PROGRAM = """
@R.function
def main(x: R.Tensor((4,), dtype="float32")) -> R.Tensor((4,), dtype="float32"):
    y = R.exp(x)
    return y
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An executable with kernels for two CPUs."""
    path = tmp_path_factory.mktemp("images") / "both.rxe"
    relaxpy.build(relaxpy.parse(PROGRAM), "llvm -mcpu=x86-64-v2,x86-64-v3").save(path)
    return str(path)


def test_the_images_of_a_file(both: str) -> None:
    """Requirements, and what runs here; nothing is tried."""
    done = CliRunner().invoke(doctor.doctor, [both, "--without-feature", "avx2"])
    assert done.exit_code == 0
    assert "x86-64-v3: 1 kernel, cannot run here without avx2" in done.output
    assert "x86-64-v2: 1 kernel, runs here" in done.output
    assert "needs x86_64, " in done.output
    assert done.output.endswith("both.rxe runs here.\n")


def test_a_file_that_does_not_run_here(both: str) -> None:
    arguments = [both, "--without-feature", "avx2,sse4.2", "--json"]
    done = CliRunner().invoke(doctor.doctor, arguments)
    assert done.exit_code == 1
    data = json.loads(done.output)
    assert data["runs"] is False
    assert "runs none of them" in data["problem"]
    assert [image["chosen"] for image in data["images"]] == [0, 0]
    assert set(data["images"][0]["lacks"]) >= {"avx2", "sse4.2"}


def test_features_are_of_a_file() -> None:
    done = CliRunner().invoke(doctor.doctor, ["--without-feature", "avx2"])
    assert done.exit_code == 2
    assert "--without-feature is for an executable" in done.output
