"""The navigation of the site, read from the pages that list others.

`docs/index.md` lists the pages in tables, one under each heading; the navigation of the site is made from these tables,
in their order, and shows each page by its own title. An `index.md` in a folder lists the pages of that folder in the
same way, or has no table: then all pages of the folder belong to it, by name. So a page is listed in one place, which
readers of the repository see too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent
SUFFIXES = (".md", ".ipynb")
"""Endings of the files that are pages."""

_HEADING = re.compile(r"## (?P<title>.+)")
_ROW = re.compile(r"\| \[(?P<title>[^\]]+)\]\((?P<target>[^)#:]+)\)")


@dataclass(frozen=True)
class Group:
    """Pages listed under one heading."""

    title: str
    """The heading; "" before the first one."""
    pages: tuple[Path, ...]
    titles: tuple[str, ...] = ()
    """What the rows of the table call the pages."""


def listed(index: Path) -> list[Group]:
    """The groups of the tables in an index page. Rows name a page by the link in their first column."""
    title, groups = "", dict[str, list[tuple[Path, str]]]()
    for line in index.read_text(encoding="utf-8").splitlines():
        if heading := _HEADING.fullmatch(line):
            title = heading["title"]
        elif row := _ROW.match(line):
            page = (index.parent / row["target"]).resolve()
            groups.setdefault(title, []).append((page, row["title"]))
    return [Group(name, *zip(*rows, strict=True)) for name, rows in groups.items()]


def groups_of(index: Path) -> list[Group]:
    """The groups of an index page; without tables, one group of the other pages in its folder."""
    beside = sorted(p for p in index.parent.iterdir() if p.suffix in SUFFIXES and p != index)
    return listed(index) or [Group("", tuple(beside))]


def pages_below(index: Path) -> Iterator[Path]:
    """All pages that the navigation reaches from an index page, in order."""
    for group in groups_of(index):
        for page in group.pages:
            yield page
            if page.name == "index.md":
                yield from pages_below(page)


def toctrees(index: Path) -> str:
    """The groups of an index page as `toctree` directives, in Markdown. A list without tables is shown on the page."""
    shown = "" if listed(index) else ":maxdepth: 1\n"
    parts: list[str] = []
    for group in groups_of(index):
        caption = f":caption: {group.title}\n" if group.title and index == DOCS / "index.md" else ""
        names = [page.relative_to(index.parent).with_suffix("").as_posix() for page in group.pages]
        options = shown or f":hidden:\n{caption}"
        parts.append("```{toctree}\n" + options + "\n" + "\n".join(names) + "\n```\n")
    return "\n" + "\n".join(parts)
