"""What the documentation names is there: functions, files, environment variables, options, TVM's names."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import click
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.cli.main import LazyGroup
from relaxpy.runtime.builtins import FUNCTIONS
from tests.docs.test_snippets import PAGES, ROOT

CODE = re.compile(r"`([^`\n]+)`")
DOTTED = re.compile(r"\brelaxpy(?!\.js\b|\.d\.ts\b)(?:\.\w+)+(?P<call>\(?)")  # relaxpy.js is a file
VARIABLE = re.compile(r"\bRELAXPY_[A-Z_]+\b")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]+")


def inline(page: Path) -> list[str]:
    """Pieces of code inside of sentences: snippets run, which is a test of its own."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return CODE.findall(text)


def resolve(name: str) -> object:
    """What a dotted name of the package means, read from the left."""
    found: object = relaxpy
    path = "relaxpy"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(path)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_are_there(page: Path) -> None:
    """`relaxpy.a.b` is something, `relaxpy.a.b(…)` can be called."""
    for code in inline(page):
        for match in DOTTED.finditer(code):
            name = match[0].rstrip("(")
            if name in FUNCTIONS:  # by this name programs call it
                continue
            value = resolve(name)
            assert not match["call"] or callable(value), code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_are_there(page: Path) -> None:
    """`op/unary.py` is a file: of the repository, or of the package; what a command writes into `build/` is not."""
    for code in inline(page):
        if (
            re.fullmatch(r"(?:[\w-]+/)+[\w-]+\.\w+", code)
            and "NAME" not in code
            and not code.startswith("build/")
        ):
            assert any((root / code).exists() for root in (ROOT, ROOT / "relaxpy")), code


def test_environment_variables_are_read() -> None:
    folders = ("relaxpy", "tests", "benchmarks")
    source = "".join(path.read_text("utf-8") for f in folders for path in (ROOT / f).rglob("*.py"))
    for page in PAGES:
        for name in VARIABLE.findall(page.read_text("utf-8")):
            assert name in source, f"{page.name}: {name}"


def options() -> set[str]:
    """The options of all commands."""
    group = next(
        value
        for value in vars(importlib.import_module("relaxpy.cli.main")).values()
        if isinstance(value, LazyGroup)
    )
    context = click.Context(group)
    commands = [group.get_command(context, name) for name in group.list_commands(context)]
    return {
        opt
        for command in commands
        if command is not None
        for param in command.params
        for opt in (*param.opts, *param.secondary_opts)
    } | {"--help", "--version"}


def test_options_are_there() -> None:
    known = options()
    for page in PAGES:
        for code in inline(page):
            if code.startswith("relaxpy ") or page.name == "command_line.md":
                assert set(OPTION.findall(code)) <= known, f"{page.name}: {code}"


def test_layers_are_called_as_in_tvm() -> None:
    """The names that the page of TVM's names says are the same."""
    theirs = pytest.importorskip("tvm.relax.frontend.nn")
    row = next(
        line
        for line in (ROOT / "docs/from_tvm.md").read_text("utf-8").splitlines()
        if line.startswith("| `relax.frontend.nn`")
    )
    same = CODE.findall(row.split("called the same: ")[1].split(";")[0])
    assert len(same) > 5
    for name in same:
        assert hasattr(theirs, name)
        assert hasattr(nn, name)
    assert hasattr(theirs, "Conv2D")
    assert hasattr(nn, "Conv2d")
    # and no layer of ours that TVM has is left out
    layers = {name for name in nn.__all__ if name[0].isupper() and hasattr(theirs, name)}
    assert layers == set(same)
    assert nn.Linear(2, 3).weight.shape == (3, 2)


def test_passes_of_tvm_are_listed() -> None:
    """Every public name of `tvm.relax.transform` is on the page for those who come from there."""
    theirs = pytest.importorskip("tvm.relax.transform")
    page = (ROOT / "docs/from_tvm.md").read_text("utf-8")
    names = {n for n in vars(theirs) if n[0].isupper()}
    assert len(names) > 60
    assert not {n for n in names if not re.search(rf"\b{n}\b", page)}
