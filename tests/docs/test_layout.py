"""What tests.docs.layout finds on a page, and what it lets pass. The site itself: `make docs-layout`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.layout import faults
from tests.server.chromium import browser, chromium

needs_chromium = pytest.mark.skipif(chromium() is None, reason="Chromium is not installed")

LONG = "x" * 400
GOOD = f"""<article><p>Text that breaks between its words, as long as it is: {"word " * 100}</p>
<div style="overflow-x: auto"><table><tr><td>{LONG}</td></tr></table></div>
<pre style="overflow-x: auto"><span>{LONG}</span></pre><p style="display: none">{LONG}</p></article>"""
BAD = f"""<article><p>{LONG}</p><div style="overflow: hidden; width: 200px"><i>{"cut" * 50}</i></div>
<p style="width: 500px">fixed</p><img src="gone.svg" alt="gone"></article>"""


@needs_chromium
def test_what_is_found(tmp_path: Path) -> None:
    """Nothing where wide parts scroll inside of themselves. Else what is too wide, what is cut off, and at which width."""
    for name, body in (("good", GOOD), ("bad", BAD)):
        (tmp_path / f"{name}.html").write_text(f"<!DOCTYPE html><title>{name}</title>{body}")
    with browser(tmp_path / "profile", 1280, 844) as page:
        assert not [*faults(page, tmp_path / "good.html")]
        found = [*faults(page, tmp_path / "bad.html")]
    assert any(each.startswith("1280: the page is ") for each in found)
    assert any("cut off, div" in each for each in found)
    assert any("a picture that is not there, file:" in each for each in found)
    fixed = [each for each in found if each.endswith("p: fixed")]
    assert fixed == ["390: outside of the page, p: fixed"]
