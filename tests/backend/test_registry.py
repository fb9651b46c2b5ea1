"""Backends by kind: relaxpy's own, and those that packages declare."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaxpy.backend.registry import GROUP, OWN, backend_of, backends, hidden
from relaxpy.errors import BuildError
from relaxpy.target import Target

SOURCE = """
from dataclasses import dataclass

from relaxpy.backend.base import Backend
from relaxpy.target import Target, first_word, options_of


@dataclass(frozen=True)
class {kind}Target(Target):
    kind: str = "{kind}"
    width: int = 4
    is_host_loadable = False

    def __str__(self):
        return f"{kind} -width={{self.width}}"


class TheBackend(Backend):
    kinds = ("{kind}",)

    def parse(self, text):
        return {kind}Target(width=int(options_of(text, ("width",)).get("width", 4)))

    def schedule(self, func, target, choices):
        raise NotImplementedError

    def compile(self, kernels, target, options, called=""):
        raise NotImplementedError
"""


def install(folder: Path, module: str, source: str, **entries: str) -> None:
    """A package in a folder, as pip leaves it: a module and its metadata."""
    (folder / f"{module}.py").write_text(source, encoding="utf-8")
    info = folder / f"{module}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.5\n")
    lines = "".join(f"{kind} = {place}\n" for kind, place in entries.items())
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for packages on the path."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_package_brings_a_backend(site: Path) -> None:
    install(site, "reg_one", SOURCE.format(kind="one"), one="reg_one:TheBackend")
    target = Target.parse("one -width=8")
    assert str(target) == "one -width=8"
    assert Target.parse(str(target)) == target
    assert backend_of(target) is backend_of("one")
    assert target.facts() == {"kind": "one", "text": "one -width=8"}
    (listed,) = (each for each in backends() if each.kind == "one")
    assert listed.package == "reg_one 1.5"


def test_options_of_a_package_are_checked_as_ours(site: Path) -> None:
    install(site, "reg_options", SOURCE.format(kind="opted"), opted="reg_options:TheBackend")
    with pytest.raises(BuildError, match="unknown target option -widht") as error:
        Target.parse("opted -widht=8")
    assert error.value.help == "did you mean width?"
    with pytest.raises(BuildError, match='cannot read "width"'):
        Target.parse("opted width")


def test_kinds_of_packages_are_suggested(site: Path) -> None:
    install(site, "reg_near", SOURCE.format(kind="wafer"), wafer="reg_near:TheBackend")
    with pytest.raises(BuildError) as error:
        Target.parse("waffer")
    assert error.value.help == "did you mean wafer?"


@pytest.mark.parametrize(
    ("source", "place", "reason"),
    [
        ("import nowhere_to_be_found", ":TheBackend", "No module named 'nowhere_to_be_found'"),
        ("1 / 0", ":TheBackend", "ZeroDivisionError"),
        ("class Other: pass", ":TheBackend", "has no attribute 'TheBackend'"),
        ("class TheBackend: pass", ":TheBackend", "is not a Backend but a TheBackend"),
        ("TheBackend = 5", ":TheBackend", "is not a Backend but a int"),
        (SOURCE.format(kind="another"), ":TheBackend", "is a backend for another"),
        (
            SOURCE.format(kind="abstract").replace("def compile", "def assemble"),
            ":TheBackend",
            "abstract",
        ),
        ("x = 1", "", "is not a Backend but a module"),
    ],
)
def test_a_backend_that_cannot_be_used(site: Path, source: str, place: str, reason: str) -> None:
    """The error says which package it is of, why, and what to do; another target is not concerned."""
    module = f"reg_broken{abs(hash((source, place)))}"
    kind = module.removeprefix("reg_")
    install(site, module, source, **{kind: f"{module}{place}"})
    for _ in range(2):
        with pytest.raises(BuildError) as error:
            Target.parse(kind)
        assert error.value.code == "backend-load"
        assert f'the backend for "{kind}" of {module} 1.5 cannot be used' in error.value.message
        assert reason in error.value.message
        assert error.value.help == f"reinstall or uninstall {module}"
    assert Target.parse("llvm").kind == "llvm"


def test_two_packages_for_one_kind(site: Path) -> None:
    for module in ("reg_left", "reg_right"):
        install(site, module, SOURCE.format(kind="torn"), torn=f"{module}:TheBackend")
    with pytest.raises(BuildError) as error:
        Target.parse("torn")
    assert error.value.code == "backend-clash"
    assert "reg_left 1.5 (reg_left:TheBackend), reg_right 1.5" in error.value.message


def test_a_package_that_is_found_twice_is_one(
    site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """An editable install beside a copy, say."""
    other = tmp_path_factory.mktemp("other")
    monkeypatch.syspath_prepend(other)
    for folder in (site, other):
        install(folder, "reg_twin", SOURCE.format(kind="twin"), twin="reg_twin:TheBackend")
    assert Target.parse("twin").kind == "twin"


@pytest.mark.parametrize("kind", OWN)
def test_nobody_takes_the_place_of_our_own(site: Path, kind: str) -> None:
    ours = backend_of(kind)
    install(
        site,
        f"reg_thief_{kind}",
        SOURCE.format(kind=kind),
        **{kind: f"reg_thief_{kind}:TheBackend"},
    )
    backend_of.__globals__["_backend"].cache_clear()
    assert backend_of(kind) is ours
    assert [each.package for each in hidden() if each.kind == kind] == [f"reg_thief_{kind} 1.5"]
    assert [each.package for each in backends() if each.kind == kind] == [""]


@pytest.mark.parametrize("kind", OWN)
def test_our_own_read_what_they_write(kind: str) -> None:
    target = Target.parse(kind)
    assert kind in backend_of(target).kinds
    assert Target.parse(str(target)) == target
    assert target.facts()["kind"] == {"wasm": "llvm"}.get(kind, kind)
