"""The pages of the API reference have every public name, and docstrings become what Sphinx reads."""

from __future__ import annotations

import pytest

from docs._ext.docstrings import inline, summary, to_rst
from docs._ext.navigation import DOCS, pages_below
from docs._ext.pictures import PICTURES
from docs._ext.reference import API, Entry, blocks_of, docstring_of, expanded, module_of, owners

PACKAGES = (
    "",
    ".ir",
    ".op",
    ".nn",
    ".analysis",
    ".transform",
    ".build",
    ".explain",
    ".runtime",
    ".serve",
    ".llm",
    ".script",
    ".torch",
)
"""Packages whose `__all__` is the public interface."""


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_documented(package: str) -> None:
    """On one page; the functions of operators are all on that of relaxpy.op."""
    module = f"relaxpy{package}"
    documented = owners()
    entries = [
        Entry(module, name) for name in module_of(module).__all__ if not name.startswith("__")
    ]
    operators = set() if package != ".op" else set(module_of(module).functions())
    missing = [
        e.full
        for e in entries
        if e.key not in documented
        and e.name not in operators
        and type(e.value).__name__ not in ("module", "Namespace")
    ]
    assert not missing, f"list them on a page of docs/api: {', '.join(missing)}"


def test_what_is_listed_exists() -> None:
    """And has a docstring, which the page shows."""
    for entry in owners().values():
        assert docstring_of(entry).strip(), entry.full


def test_pages_of_the_reference_have_blocks() -> None:
    pages = list(pages_below(API))
    assert len(pages) > 10
    assert not [page.name for page in pages if not list(blocks_of(page))]


def test_a_name_has_one_place() -> None:
    """relaxpy.IRModule is documented where users find it, and relaxpy.ir links there."""
    page = expanded("```{api} relaxpy.ir\nIRModule Call\n```\n")
    assert "`IRModule <relaxpy.IRModule>`" in page
    assert "autoclass:: relaxpy.ir::IRModule" not in page
    assert ".. autoclass:: relaxpy.ir::Call" in page


def test_the_function_and_the_package_of_one_name() -> None:
    assert module_of("relaxpy.build").__name__ == "relaxpy.build"
    assert Entry("relaxpy", "build").value.__qualname__ == "build"


def test_operators_and_commands_have_pages() -> None:
    page = expanded("```{operators}\n```\n")
    assert ".. autofunction:: relaxpy.op::nn.softmax\n" in page
    assert "## Linear algebra" in page
    page = expanded("```{commands}\n```\n")
    assert "## relaxpy compile" in page
    assert ".. option:: --bound" in page
    assert "relaxpy plan mlp.py --bound n=2048" in page


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_drawn_from_what_is_there(name: str) -> None:
    assert (DOCS / name).read_text("utf-8") == PICTURES[name](), "run: python -m docs._ext.pictures"


NAMES = {"Call": "relaxpy.ir.Call", "relaxpy.build": "relaxpy.build"}


@pytest.mark.parametrize(
    ("text", "rst"),
    [
        ("a `b` c", "a ``b`` c"),
        ("`Call`s", ":py:obj:`Call <relaxpy.ir.Call>`\\ s"),
        ("see `relaxpy.build(mod)`.", "see :py:obj:`relaxpy.build(mod) <relaxpy.build>`."),
        ("2**bits and _x_ and |y|", r"2\*\*bits and \_x\_ and \|y\|"),
        ("n`x`", "n\\ ``x``"),
        ("`a_b*` stays", "``a_b*`` stays"),
        ("``double``", "``double``"),
    ],
)
def test_inline(text: str, rst: str) -> None:
    assert inline(text, NAMES) == rst


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("One. Two.", "One."),
        ("Over\ntwo lines: more", "Over two lines."),
        ("`a.b. c` first. Second", "`a.b. c` first."),
        ("No end", "No end"),
        ("Version 0.1 is one. Two", "Version 0.1 is one."),
    ],
)
def test_summary(text: str, first: str) -> None:
    assert summary(text) == first


def test_blocks() -> None:
    """Indented lines are code, lists are lists, text after a list is text."""
    text = """Makes it:

    exe = build(mod)

    run(exe)

Kinds:
* one `x`
  goes on
* two:

      code

Before:
    def f(): ...
After:
    pass
End."""
    assert [line for line in to_rst(text.splitlines()) if line] == [
        "Makes it:",
        ".. code-block:: python",
        "   exe = build(mod)",
        "   run(exe)",
        "Kinds:",
        "- one ``x``",
        "  goes on",
        "- two:",
        "  .. code-block:: python",
        "     code",
        "Before:",
        ".. code-block:: python",
        "   def f(): ...",
        "After:",
        ".. code-block:: python",
        "   pass",
        "End.",
    ]
    lines = to_rst(text.splitlines())
    assert lines[lines.index("- one ``x``") - 1] == ""  # a list begins after a blank line
