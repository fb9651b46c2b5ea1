"""The index on docs/errors.md is that of the page's sections. `python -m tests.docs.test_errors_page` writes it."""

from __future__ import annotations

import re
from itertools import groupby

from tests.docs.markdown_pages import ROOT, anchors

PAGE = ROOT / "docs" / "errors.md"
INDEX = re.compile(r"(?<=^## Index\n\n).*?(?=^## )", re.MULTILINE | re.DOTALL)


def codes(text: str) -> list[str]:
    """The codes that have a section."""
    return re.findall(r"^### `([\w-]+)`$", text, re.MULTILINE)


def index(text: str) -> str:
    """A table of links to the sections, by the first letter of their codes."""
    rows = [
        f"| **{letter}** | {' · '.join(f'[`{code}`](#{code})' for code in group)} |"
        for letter, group in groupby(sorted(codes(text)), lambda code: code[0])
    ]
    return "\n".join(["| | |", "|---|---|", *rows]) + "\n\n"


def with_index(text: str) -> str:
    return INDEX.sub(lambda _: index(text), text, count=1)


def test_the_index_has_every_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert with_index(text) == text, "run: python -m tests.docs.test_errors_page"
    assert INDEX.search(text)


def test_a_code_is_the_anchor_of_its_section() -> None:
    """So that errors.md#shape-mismatch leads to the paragraph of this error."""
    text = PAGE.read_text(encoding="utf-8")
    assert set(codes(text)) <= anchors(PAGE)
    assert len(set(codes(text))) == len(codes(text))


if __name__ == "__main__":
    PAGE.write_text(with_index(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
