"""Every snippet of the documentation runs.

The ```python blocks of a page run in order and share a namespace. In ```console blocks, lines `$ relaxpy …` run in an
empty directory of the page's own (files that a python block wrote are there), and the lines below are the output that
the page promises; "…" in it stands for anything. Other `$` lines are for people.

A block right after `<!-- no-test -->` is skipped; one after `<!-- fails: CODE -->` must raise the RelaxError of that
code. A ```text block after `<!-- shows: EXPRESSION -->` is an excerpt: its lines (all but "…") stand in the text that
the expression gives, in order.
"""

from __future__ import annotations

import io
import linecache
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from relaxpy.cli.main import main
from relaxpy.errors import RelaxError
from relaxpy.ir.module import IRModule
from relaxpy.op.base import OPS
from relaxpy.testing.round_trip import check_all
from tests.sweeps import some_modules

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>no-test|fails: [\w-]+|shows: [^\n]+) -->\n+)?"
    r"^```(?P<language>python|console|text)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    line: int
    """Number of the line before the first one of the text."""
    mark: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(m["language"], m["text"], text.count("\n", 0, m.start("text")), m["mark"] or "")
        for m in BLOCK.finditer(text)
    ]


def run_python(page: Path, block: Block, namespace: dict[str, object]) -> None:
    """Run a block so that tracebacks, and decorators that read their source, see the page's lines."""
    name = f"{page}:{block.line}"
    source = "\n" * block.line + block.text
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    code = compile(source, name, "exec", dont_inherit=True)
    if block.mark.startswith("fails: "):
        with pytest.raises(RelaxError) as caught:
            exec(code, namespace)
        assert caught.value.code == block.mark.removeprefix("fails: "), caught.value.render()
    else:
        exec(code, namespace)


def check_excerpt(block: Block, namespace: dict[str, object]) -> None:
    """The lines of an excerpt are in the text that it is taken from, in order; indentation aside."""
    text = eval(block.mark.removeprefix("shows: "), namespace)
    rest = iter([line.strip() for line in str(text).splitlines()])
    for line in filter(None, (line.strip() for line in block.text.splitlines())):
        assert line == "…" or line in rest, f"{line!r} is not (or not there) in\n{text}"


def run_console(block: Block) -> None:
    """Run the `$ relaxpy` lines of a block, in this process, and compare what they print with what the page says."""
    for session in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, promised = session.partition("\n")
        words = shlex.split(command)
        if words[0] != "relaxpy":
            continue
        with (
            redirect_stdout(io.StringIO()) as output,
            redirect_stderr(output),
            pytest.raises(SystemExit) as done,
        ):
            main(words[1:])
        printed = output.getvalue()
        if promised.strip():
            pattern = ".*".join(re.escape(part) for part in promised.strip().split("…"))
            assert re.fullmatch(pattern, printed.strip(), re.DOTALL), printed
        else:
            assert not done.value.code, printed


@pytest.fixture
def operators(request: pytest.FixtureRequest, modules_round_trip: list[IRModule]) -> Iterator[None]:
    """Operators that a page defines are gone after it, when the modules made with them have been looked at."""
    before = dict(OPS)
    yield
    check_all(some_modules(modules_round_trip, request.node.nodeid))
    modules_round_trip.clear()
    OPS.clear()
    OPS.update(before)


@pytest.mark.usefixtures("operators")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of the page run, from top to bottom."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__docs__"}
    for block in blocks(page):
        if block.mark == "no-test":
            continue
        if block.language == "python":
            run_python(page, block, namespace)
        elif block.language == "text":
            if block.mark:
                check_excerpt(block, namespace)
        else:
            # A page on the cache has one of its own: it may empty it, and that of all tests is needed by others.
            with monkeypatch.context() as patch:
                if "$ relaxpy cache" in page.read_text(encoding="utf-8"):
                    patch.setenv("RELAXPY_CACHE_DIR", str(tmp_path / "cache"))
                run_console(block)
