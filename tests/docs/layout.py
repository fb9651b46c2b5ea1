"""The pages of the site in a browser, wide and narrow: what is wider than the page, and what is cut off.

    python -m tests.docs.layout [SITE]        # build/site, or where `make docs` wrote it; `make docs-layout`
    python -m tests.docs.layout --pictures    # writes docs/site_wide.png, site_narrow.png and site_pages.png

A page may not scroll sideways. What is wide (tables, programs) scrolls inside of itself; text is cut off nowhere, and
pictures are there. Needs Chromium.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
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
  for (const e of document.images) if (e.complete && !e.naturalWidth) found.push(`a picture that is not there, ${e.src}`);
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


def pictures(page: Page, index: Path) -> None:
    """The front page, wide and narrow, and the list of pages that a narrow one opens: docs/site_*.png."""
    page.open(index.as_uri())
    for name, width, height, opened in (
        ("wide", 1280, 1100, "false"), ("narrow", 390, 1100, "false"), ("pages", 390, 1100, "true"),
    ):  # fmt: skip
        resize(page, width, height)
        page.run(f"void (document.getElementById('__navigation').checked = {opened})")
        time.sleep(1)  # the list slides in
        page.picture(ROOT / "docs" / f"site_{name}.png")


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the layout of the site.")
    parser.add_argument("site", type=Path, nargs="?", default=ROOT / "build" / "site")
    parser.add_argument("--pictures", action="store_true", help="write docs/site_*.png instead")
    given = parser.parse_args()
    site = given.site.resolve()
    files = sorted(site.rglob("*.html"))
    if not files:
        sys.exit(f"there is no page in {site}: run `make docs`")
    wrong = 0
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        browser(Path(folder), 1280, 844) as page,
    ):
        if given.pictures:
            pictures(page, site / "index.html")
            return 0
        for file in files:
            for each in faults(page, file):
                wrong += 1
                say(f"{file.relative_to(site)} {each}")
    say(f"{len(files)} pages at {' and '.join(map(str, WIDTHS))} pixels: {wrong} faults")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
