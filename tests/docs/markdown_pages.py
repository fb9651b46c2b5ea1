"""Pages as people read them: their headings' anchors, and their links. Markdown files and the text of notebooks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "docs").rglob("*.ipynb"),
    ]
)

_FENCE = re.compile(
    r"^(?P<fence>`{3,}|~{3,})[^\n]*\n.*?^(?P=fence)`*[ ]*$", re.MULTILINE | re.DOTALL
)
_HEADING = re.compile(r"^#{1,6} +(?P<title>.+?)(?: +#+)?$", re.MULTILINE)
_CODE = re.compile(r"(`+)(?:(?!\1).)+?\1", re.DOTALL)
_LINK = re.compile(
    r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?(?P<target>[^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)"
)
_REFERENCE = re.compile(r"^\[[^\]]+\]: *(?P<target>\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Link:
    """A link of a page."""

    target: str
    line: int

    @property
    def path(self) -> str:
        """The file; "" for the page itself."""
        return self.target.partition("#")[0]

    @property
    def anchor(self) -> str:
        return self.target.partition("#")[2]

    @property
    def is_outside(self) -> bool:
        """Whether it is an address of the web or of a person."""
        return re.match(r"[a-z]+:", self.target) is not None


@cache
def prose(page: Path) -> str:
    """The text of a page; what is inside of code blocks is blank, so that lines keep their numbers."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return _FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)


def links(page: Path) -> Iterator[Link]:
    """The links and images of a page, those between backticks left out."""
    text = _CODE.sub(lambda code: "c" + "\n" * code[0].count("\n"), prose(page))
    for match in (*_LINK.finditer(text), *_REFERENCE.finditer(text)):
        yield Link(match["target"], text.count("\n", 0, match.start()) + 1)


def slug(title: str) -> str:
    """The anchor of a heading, as GitHub and MyST make it."""
    shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")


def headings(page: Path) -> list[str]:
    """The headings of a page, the title first."""
    return [match["title"] for match in _HEADING.finditer(prose(page))]


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings. Of equal ones the second ends with -1."""
    found: dict[str, int] = {}
    for title in headings(page):
        name = slug(title)
        count = found.get(name, 0)
        found[name] = count + 1
        if count:
            found[f"{name}-{count}"] = 1
    return frozenset(found)


def broken(page: Path) -> list[str]:
    """What is wrong with the links of a page, in words."""
    wrong = []
    for link in links(page):
        if link.is_outside:
            continue
        target = (page.parent / link.path).resolve() if link.path else page
        if not target.exists():
            wrong.append(f"{page.name}:{link.line} links to {link.path}, which is not there")
        elif target.is_dir():
            wrong.append(
                f"{page.name}:{link.line} links to the folder {link.path}: link to a page in it"
            )
        elif (
            link.anchor
            and target.suffix in (".md", ".ipynb")
            and link.anchor not in anchors(target)
        ):
            wrong.append(
                f"{page.name}:{link.line}: {target.name} has no heading for #{link.anchor}"
            )
    return wrong
