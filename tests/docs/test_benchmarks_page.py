"""The summary on top of docs/benchmarks.md has the figures of the sections below it, which benchmarks write."""

from __future__ import annotations

import re

from tests.docs.markdown_pages import ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
FIGURE = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?:e-\d+)?%?(?![\w.-]*\w)")


def test_figures_of_the_summary_are_in_the_sections() -> None:
    before, _, rest = PAGE.read_text("utf-8").partition("## Summary\n")
    assert before
    summary, _, sections = rest.partition("\n## ")
    rows = [line.strip("|").split("|") for line in summary.splitlines() if line.startswith("| ")]
    figures = {f for row in rows[1:] for cell in row[1:] for f in FIGURE.findall(cell)}
    assert len(figures) > 20
    below = set(FIGURE.findall(sections))
    assert not sorted(figures - below), "the sections have changed: write the summary anew"
