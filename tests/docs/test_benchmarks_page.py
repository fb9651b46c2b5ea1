"""The summary on top of docs/benchmarks.md has the figures of the sections below it, which benchmarks write."""

from __future__ import annotations

import re

import pytest

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


@pytest.mark.parametrize(
    ("page", "heading"), [("docs/index.md", "## Figures\n"), ("README.md", "## What is here\n")]
)
def test_figures_of_other_pages_are_those_of_the_benchmarks(page: str, heading: str) -> None:
    """Times and shares; the front page says which processors."""
    _, found, rest = (ROOT / page).read_text("utf-8").partition(heading)
    assert found
    figures = {f for f in FIGURE.findall(rest.partition("\n## ")[0]) if "." in f}
    assert len(figures) > 1
    assert not sorted(figures - set(FIGURE.findall(PAGE.read_text("utf-8"))))
