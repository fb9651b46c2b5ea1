"""Links and anchors between pages lead somewhere, and every page is in the navigation of the site."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from docs._ext.navigation import DOCS, SUFFIXES, groups_of, listed, pages_below, toctrees
from tests.docs.markdown_pages import PAGES, ROOT, anchors, broken, headings, links, slug

INDEX = DOCS / "index.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link names a page, file or picture that exists; an anchor names a heading."""
    assert not broken(page)


def test_every_page_is_in_the_navigation() -> None:
    """Each page is listed once: in a table of docs/index.md, or in the index of its folder."""
    count = Counter(pages_below(INDEX))
    pages = {p for p in DOCS.rglob("*") if p.suffix in SUFFIXES and p != INDEX}
    assert not {str(p) for p in pages - count.keys()}, "list it in docs/index.md"
    assert not {str(p) for p in count.keys() - pages}, "is listed and not there"
    assert not {str(p): n for p, n in count.items() if n > 1}, "is listed twice"


def test_the_groups_of_the_sidebar() -> None:
    groups = listed(INDEX)
    assert [group.title for group in groups] == [
        "Start", "Models", "Training", "Language models", "Devices", "Compiler", "Reference",
    ]  # fmt: skip
    assert all(len(group.pages) <= 10 for group in groups), "a group is seen at a glance"


def test_a_page_has_one_title() -> None:
    """That of the table is that of the page, which the sidebar shows; no two pages share one."""
    listed_as = {p: t for g in listed(INDEX) for p, t in zip(g.pages, g.titles, strict=True)}
    assert listed_as == {page: headings(page)[0] for page in listed_as}
    titles = Counter(headings(page)[0] for page in pages_below(INDEX))
    assert not {title for title, count in titles.items() if count > 1}


def test_the_navigation_is_that_of_the_tables(tmp_path: Path) -> None:
    """A table is a group under its heading; an index without tables lists its folder."""
    index = tmp_path / "index.md"
    index.write_text(
        "# Top\n\n## First\n\n| page | |\n|---|---|\n| [A](a.md) | see [B](b.md) |\n\n"
        "## Second\n\n| [B](sub/index.md) | |\n"
    )
    assert [(g.title, [p.name for p in g.pages]) for g in groups_of(index)] == [
        ("First", ["a.md"]),
        ("Second", ["index.md"]),
    ]
    inner = tmp_path / "sub" / "index.md"
    inner.parent.mkdir()
    inner.write_text("# Sub\n")
    (inner.parent / "2.md").touch()
    (inner.parent / "1.ipynb").touch()
    (inner.parent / "data.txt").touch()
    assert [p.name for p in pages_below(index)] == ["a.md", "index.md", "1.ipynb", "2.md"]
    assert toctrees(inner) == "\n```{toctree}\n:maxdepth: 1\n\n1\n2\n```\n"
    assert ":hidden:" in toctrees(index)
    assert "\na\n" in toctrees(index)


@pytest.mark.parametrize(
    ("title", "anchor"),
    [
        ("`python-syntax`", "python-syntax"),
        ("Where the time goes", "where-the-time-goes"),
        ("What a build does: a page to look at", "what-a-build-does-a-page-to-look-at"),
        ("1. Text → IR: `relaxpy/script`, `relaxpy/ir`", "1-text--ir-relaxpyscript-relaxpyir"),
        ("See [the IR](ir.md)", "see-the-ir"),
        ("Größe & snake_case", "größe--snake_case"),
    ],
)
def test_anchors_are_those_of_the_site(title: str, anchor: str) -> None:
    assert slug(title) == anchor


def test_what_is_no_link(tmp_path: Path) -> None:
    """Code is no link and no heading; wrong links are found with their lines."""
    other = tmp_path / "other.md"
    other.write_text("# Other\n\n## Same\n\n## Same\n\n```python\n## not a heading\n```\n")
    assert anchors(other) == {"other", "same", "same-1"}
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n`a[0](missing.md)` and [here](#page) and [there](other.md#same-1)\n\n"
        "````text\n```\n[no](missing.md)\n```\n````\n\n"
        "[gone](gone.md) [no heading](other.md#nowhere) [web](https://example.org/x.md)\n"
        "![picture](gone.svg) [folder](.)\n"
    )
    assert broken(page) == [
        "page.md:11 links to gone.md, which is not there",
        "page.md:11: other.md has no heading for #nowhere",
        "page.md:12 links to gone.svg, which is not there",
        "page.md:12 links to the folder .: link to a page in it",
    ]
    assert [link.target for link in links(page)][-1] == "."
