"""Benchmarks write their own tables."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report import markdown_table, replace_section


def test_a_section_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n## First\n\nold\n\n### Part\n\nold\n\n## First of all\n\nkept\n")
    replace_section("First", "new", page)
    assert page.read_text() == "# Page\n\n## First\n\nnew\n\n## First of all\n\nkept\n"
    replace_section("First of all", "last", page)
    assert page.read_text() == "# Page\n\n## First\n\nnew\n\n## First of all\n\nlast\n"


def test_a_section_that_is_not_there_is_added(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n")
    replace_section("New", "text", page)
    assert page.read_text() == "# Page\n\n## New\n\ntext\n"


def test_tables() -> None:
    found = markdown_table(("case", "ms"), [["a", "1"], ["b", "2"]], "lr")
    assert found == "| case | ms |\n| --- | ---: |\n| a | 1 |\n| b | 2 |"
