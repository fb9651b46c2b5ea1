"""The table of what is not taken of torch is that of the importer. `python -m tests.docs.test_not_taken` writes it."""

from __future__ import annotations

import re

from relaxpy.frontend.torch.refused import REFUSED
from tests.docs.markdown_pages import ROOT

PAGE = ROOT / "docs" / "from_torch.md"
TABLE = re.compile(r"(?<=\| operator \| what to write \|\n\|---\|---\|\n)(\|.*\n)*")


def rows() -> str:
    """A row for each advice, with all operators that it is for."""
    names: dict[str, list[str]] = {}
    for name, text in REFUSED.items():
        names.setdefault(text, []).append(name)
    return "".join(
        f"| {', '.join(f'`{name}…`' for name in each)} | {text} |\n" for text, each in names.items()
    )


def with_table(text: str) -> str:
    return TABLE.sub(lambda _: rows(), text, count=1)


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert TABLE.search(text)
    assert with_table(text) == text, "run: python -m tests.docs.test_not_taken"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
