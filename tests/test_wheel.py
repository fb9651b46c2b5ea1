"""The wheel and the sdist hold relaxpy, whole, and nothing else; `relaxpy.models` is the folder models/.

Built by the setuptools of the test environment, without network. `make wheel-test` does the rest: fresh environments.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

import relaxpy
from tests.test_conventions import ROOT

BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"
AT_RUN_TIME = {
    ".py", ".pyi", ".typed", ".safetensors", ".json", ".jinja", ".html", ".md", ".js", ".css", ".ts",
}  # fmt: skip
"""Endings of what belongs into the wheel. A file of another kind in relaxpy/ needs an entry in pyproject.toml's
package-data, and here."""


def build(what: str, source: Path, folder: Path) -> Path:
    """`build_wheel` or `build_sdist` of the project in `source`, as build frontends call it."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, what, str(folder)],
        cwd=source, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel from a clean checkout, an sdist, and the wheel that is made from this sdist."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "checkout"
    left_out = shutil.ignore_patterns("__pycache__")
    for folder_name in ("relaxpy", "models", "tests"):
        shutil.copytree(ROOT / folder_name, source / folder_name, symlinks=True, ignore=left_out)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, source)
    wheel = build("build_wheel", source, folder / "wheel")
    for left in ("build", "relaxpy.egg-info"):
        shutil.rmtree(source / left)
    sdist = build("build_sdist", source, folder / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return {
        "wheel": wheel,
        "sdist": sdist,
        "wheel of the sdist": build("build_wheel", unpacked, folder / "again"),
    }


def names(archive: Path) -> set[str]:
    with zipfile.ZipFile(archive) as wheel:
        return set(wheel.namelist())


def sources(folders: Iterable[tuple[str, str]]) -> set[str]:
    """The files that are needed at run time, under the names that they are installed by."""
    return {
        f"{installed}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, installed in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in AT_RUN_TIME
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wheel", "wheel of the sdist"])
def test_wheel_has_all_and_nothing_else(built: dict[str, Path], name: str) -> None:
    about = f"relaxpy-{relaxpy.__version__}.dist-info/"
    files = {file for file in names(built[name]) if not file.startswith(about)}
    assert files == sources([("relaxpy", "relaxpy"), ("models", "relaxpy/models")])
    assert f"{about}licenses/LICENSE" in names(built[name])


def test_no_file_of_another_kind() -> None:
    """A data file beside the sources would be left out of the wheel without a word."""
    odd = [
        path.relative_to(ROOT)
        for folder in ("relaxpy", "models")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in AT_RUN_TIME and "__pycache__" not in path.parts
    ]
    assert not odd, odd


@pytest.mark.slow
def test_sdist_has_no_tests(built: dict[str, Path]) -> None:
    with tarfile.open(built["sdist"]) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    ours = {"relaxpy", "LICENSE", "README.md", "CHANGELOG.md", "MANIFEST.in", "pyproject.toml"}
    assert tops == ours | {"PKG-INFO", "setup.cfg", "relaxpy.egg-info"}


@pytest.fixture(scope="module")
def metadata(built: dict[str, Path]) -> Message:
    with zipfile.ZipFile(built["wheel"]) as wheel:
        return message_from_bytes(wheel.read(f"relaxpy-{relaxpy.__version__}.dist-info/METADATA"))


@pytest.mark.slow
def test_metadata_tells_a_stranger(metadata: Message) -> None:
    assert metadata["Version"] == relaxpy.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Author"]
    assert "dynamic shapes" in metadata["Keywords"]
    classifiers = metadata.get_all("Classifier") or []
    assert "Typing :: Typed" in classifiers
    assert "Programming Language :: Python :: 3.13" in classifiers
    assert not [c for c in classifiers if c.startswith("License ::")]  # the expression says it


def test_models_have_one_name() -> None:
    """Everyone imports `relaxpy.models`: a second name would be a second copy of each class."""
    import relaxpy.models

    assert Path(relaxpy.models.__file__).resolve() == ROOT / "models/__init__.py"
    other = re.compile(r"^ *(from|import) models\b", re.MULTILINE)
    wrong = [
        str(path.relative_to(ROOT))
        for folder in ("relaxpy", "models", "tests", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        if other.search(path.read_text(encoding="utf-8"))
    ]
    assert not wrong, "\n".join(wrong)
