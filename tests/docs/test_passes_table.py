"""The table of passes in docs/add_a_pass.md is that of the pipeline. `python -m tests.docs.test_passes_table` writes it."""

from __future__ import annotations

import re

from relaxpy.build.pipeline import default_pipeline
from tests.docs.markdown_pages import ROOT

PAGE = ROOT / "docs" / "add_a_pass.md"
TABLE = re.compile(r"(?<=\| pass \| phase \| level \| after \|\n\|---\|---\|---\|---\|\n)(\|.*\n)*")


def with_table(text: str) -> str:
    """The page with a row for each pass, once for each phase."""
    rows: dict[str, None] = {}
    for phase in default_pipeline("llvm -mcpu=x86-64-v4").phases:
        for step in phase.passes:
            level = 0 if step.mandatory else step.level
            before = ", ".join(f"`{name}`" for name in step.prerequisites)
            rows[f"| `{step.name}` | {phase.name} | {level} | {before} |\n"] = None
    return TABLE.sub(lambda _: "".join(rows), text, count=1)


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert TABLE.search(text)
    assert with_table(text) == text, "run: python -m tests.docs.test_passes_table"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
