"""Where a file is tested, and where a name is explained.

    python -m tests.where relaxpy/serve/scheduler.py      the tests of a file
    python -m tests.where Scheduler                       the file of a name, its tests, and the pages that have it

Tests of a file are the one with its path, then those that import it by name; of a file that has none, those of the
files that import it. They are found by reading imports, so the answer is today's.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LINKED = ROOT / "relaxpy" / "models"
"""In a checkout a link to models/."""


def module_of(path: Path) -> str:
    """The module of a file of the project."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    own = ("relaxpy", *parts) if parts[0] == "models" else parts
    return ".".join(own[:-1] if own[-1] == "__init__" else own)


@cache
def sources() -> Sequence[Path]:
    """The files of the product."""
    found = [*(ROOT / "relaxpy").rglob("*.py"), *(ROOT / "models").glob("*.py")]
    return sorted(path for path in found if not path.is_relative_to(_LINKED))


@cache
def _imports() -> dict[Path, frozenset[str]]:
    """File of the product or of the tests → the modules and names that it imports, dotted."""
    return {
        path: frozenset(_imported(ast.parse(path.read_text(encoding="utf-8"))))
        for path in [*sorted((ROOT / "tests").rglob("*.py")), *sources()]
    }


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def covering(path: Path) -> list[Path]:
    """The tests of a file: the one with its path first."""
    if found := _importing(path, "tests"):
        return found
    users = [user for part in ("relaxpy", "models") for user in _importing(path, part)]
    return [*dict.fromkeys(test for user in users for test in _importing(user, "tests"))]


def _importing(path: Path, part: str) -> list[Path]:
    """The files of a part of the project that import a file; among tests the one with its path first."""
    own = path.relative_to(ROOT)
    inside = own.relative_to("relaxpy") if own.parts[0] == "relaxpy" else own
    mirror = ROOT / "tests" / inside.with_name(f"test_{inside.name}")
    module = module_of(path)
    found = [
        user
        for user, names in _imports().items()
        if module in names and user != mirror and user.is_relative_to(ROOT / part)
    ]
    return [*([mirror] if part == "tests" and mirror.exists() else []), *found]


def files_of(name: str) -> list[Path]:
    """The files that define a name at their top."""
    defined = re.compile(
        rf"^(?:class|(?:async )?def) {re.escape(name)}\b|^{re.escape(name)}\b.*=", re.M
    )
    return [path for path in sources() if defined.search(path.read_text(encoding="utf-8"))]


def pages_of(name: str) -> list[Path]:
    """The pages that have a name, those of the interface first."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    pages = [path for path in (ROOT / "docs").rglob("*.md") if word.search(path.read_text("utf-8"))]
    return sorted(pages, key=lambda path: (path.parent.name != "api", path))


def main() -> int:
    """The command-line entry point."""
    parser = argparse.ArgumentParser(prog="python -m tests.where", description=__doc__)
    parser.add_argument("what", help="a file, or a name")
    what = parser.parse_args().what
    files = [Path(what).resolve()] if what.endswith(".py") else files_of(what)
    lines = [f"tests  {test.relative_to(ROOT)}" for path in files for test in covering(path)]
    if not what.endswith(".py"):
        lines = [f"file   {path.relative_to(ROOT)}" for path in files] + lines
        lines += [f"page   {page.relative_to(ROOT)}" for page in pages_of(what)]
    print("\n".join(dict.fromkeys(lines)) or f"nothing of {what} is found")
    return 0 if lines else 1


if __name__ == "__main__":
    sys.exit(main())
