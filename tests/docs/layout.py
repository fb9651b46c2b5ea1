"""The pages of the site in a browser, wide and narrow: what is wider than the page, and what is cut off.

    python -m tests.docs.layout [SITE]        # build/site, or where `make docs` wrote it; `make docs-layout`
    python -m tests.docs.layout --pictures    # writes docs/site_wide.png and docs/site_narrow.png, too

A page may not scroll sideways. What is wide (tables, programs) scrolls inside of itself; text is cut off nowhere. Needs
Chromium.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.docs.markdown_pages import ROOT
from tests.server.chromium import Page, browser

WIDTHS = (1280, 390)

FAULTS = """(() => {
  const wide = innerWidth, found = [];
  const name = (e) => e.tagName.toLowerCase() + (e.className && e.className.baseVal === undefined ? "." + [...e.classList].join(".") : "")
    + ": " + e.textContent.trim().replace(/\\s+/g, " ").slice(0, 50);
  const scrolls = (e) => ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
  const scrolled = (e) => { for (e = e.parentElement; e && e.tagName !== "ARTICLE"; e = e.parentElement) if (scrolls(e)) return true; };
  const most = document.scrollingElement.scrollWidth;
  if (most > wide) found.push(`the page is ${most} wide`);
  for (const e of document.querySelectorAll("article *:not(pre *), .sidebar-tree *, .toc-tree *")) {
    const box = e.getBoundingClientRect(), style = getComputedStyle(e);
    if (!box.width || !box.height || style.visibility === "hidden" || style.position === "absolute") continue;
    const within = e.closest("article") && !e.closest("svg");
    if (within && (box.right > wide + 1 || box.left < -1) && !scrolled(e)) found.push(`outside of the page, ${name(e)}`);
    const cuts = ["hidden", "clip"].includes(style.overflowX) || style.textOverflow === "ellipsis";
    const cell = ["TD", "TH"].includes(e.tagName);
    if ((cuts || cell) && e.scrollWidth > e.clientWidth + 1 && e.clientWidth) found.push(`cut off, ${name(e)}`);
  }
  return found;
})()"""
"""What is wrong with the page that is open: a list of texts."""


def resize(page: Page, width: int, height: int = 844) -> None:
    """Give the page another size; a window of its own cannot be as narrow as a phone."""
    page.send(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=height, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip


def faults(page: Page, file: Path) -> Iterator[str]:
    """What is wrong with a page of the site, at each width."""
    page.open(file.as_uri())
    for width in WIDTHS:
        resize(page, width)
        for each in page.run(FAULTS):
            yield f"{width}: {each}"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the layout of the site.")
    parser.add_argument("site", type=Path, nargs="?", default=ROOT / "build" / "site")
    parser.add_argument(
        "--pictures", action="store_true", help="write docs/site_wide.png and docs/site_narrow.png"
    )
    given = parser.parse_args()
    files = sorted(given.site.resolve().rglob("*.html"))
    if not files:
        sys.exit(f"there is no page in {given.site}: run `make docs`")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder), *WIDTHS) as page:
        for file in files:
            for each in faults(page, file):
                wrong += 1
                say(f"{file.relative_to(given.site.resolve())} {each}")
        if given.pictures:
            page.open((given.site.resolve() / "index.html").as_uri())
            for width, height, name in (
                (1280, 1500, "site_wide.png"),
                (390, 1500, "site_narrow.png"),
            ):
                resize(page, width, height)
                page.picture(ROOT / "docs" / name)
    say(f"{len(files)} pages at {' and '.join(map(str, WIDTHS))} pixels: {wrong} faults")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
