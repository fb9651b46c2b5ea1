"""The pages: loading that is cancelled, stalls or fails, checksums, a reload without a network, narrow screens."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.web.export import Page as Files
from relaxpy.web.export import export
from tests.server.chromium import Page, browser
from tests.web.support import Handler, Site, needs_chromium, served

PAGES = Path(relaxpy.__file__).parent / "web/pages"
TEXT = """
@R.function
def a_function_with_a_name_that_is_much_longer_than_a_narrow_screen(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 4), "float32")):
    y = R.matmul(x, w)
    return y
"""
FACTS = Files(("functions.html",), {"page.json": {"a": 1}})
READY = "document.body.dataset.state === 'ready'"
FAILED = "document.body.dataset.state === 'failed'"


def text(page: Page, place: str) -> str:
    return page.run(f"document.getElementById('{place}').textContent")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    export(
        relaxpy.build(relaxpy.parse(TEXT), "wasm", {"w": np.eye(4, dtype=np.float32)}),
        folder,
        page=FACTS,
    )
    with served(folder) as found:
        yield found


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with browser(tmp_path / "profile", width=390, height=700) as found:
        yield found


@needs_chromium
def test_a_download_that_is_cancelled(page: Page, site: Site) -> None:
    """The bar goes, the page says so, and tries again when it is asked to."""
    gate = threading.Event()

    def wait(handler: Handler) -> bool:
        return handler.path.endswith(".bin") and not gate.wait(20)

    site.answers.append(wait)
    try:
        page.open(site.url)
        page.until("!document.getElementById('cancel').hidden")
        assert page.run("document.getElementById('bar').hidden") is False
        page.run("document.getElementById('cancel').click()")
        page.until(FAILED)
    finally:
        site.answers.clear()
        gate.set()
    assert text(page, "status").startswith("cancelled")
    assert "was cancelled" in text(page, "error")
    assert page.run("document.getElementById('bar').hidden") is True
    assert text(page, "cancel") == "Try again"
    page.run("document.getElementById('cancel').click()")
    page.until(READY)
    assert page.run("document.getElementById('error').hidden") is True
    assert page.run("document.getElementById('cancel').hidden") is True


@needs_chromium
def test_a_download_that_stalls(page: Page, site: Site) -> None:
    """It says so once nothing has come for as long as was asked for, and goes on when bytes come."""
    gate = threading.Event()

    def wait(handler: Handler) -> bool:
        return handler.path.endswith(".bin") and not gate.wait(20)

    page.open(site.url)
    page.until(READY)
    site.answers.append(wait)
    try:
        page.run(
            """(async () => {
              const relaxpy = await import('./relaxpy.js');
              globalThis.seen = [];
              globalThis.done = relaxpy.load('./model/', {keep: false, stalled: 0.2, progress: ({stalled}) => seen.push(stalled)});
            })()"""
        )
        page.until("seen.includes(true)")
    finally:
        site.answers.clear()
        gate.set()
    assert page.run("done.then((vm) => vm.target)") == "wasm"
    assert page.run("seen[seen.length - 1]") is False


@needs_chromium
def test_without_a_network(tmp_path: Path, site: Site) -> None:
    """A reload shows the page, and the model runs."""
    with browser(tmp_path / "profile") as page:
        with served(site.folder) as own:
            page.open(own.url)
            page.until(READY)
            page.run("navigator.serviceWorker.ready.then(() => true)")
            page.until("navigator.serviceWorker.controller !== null")
        page.run("globalThis.isOld = true")
        page.send("Page.reload")
        page.until(f"globalThis.isOld === undefined && document.body && {READY}")
        assert "from the browser's storage" in text(page, "status")
        assert page.run("vm[vm.functions[0]]([[1, 2, 3, 4]]).then((y) => y.list())") == [
            [1, 2, 3, 4]
        ]


def other(file: str) -> Any:
    """Sends other bytes of the same file."""

    def answer(handler: Handler) -> bool:
        if not handler.path.endswith(file):
            return False
        handler.send_response(200)
        kind = "text/javascript" if file.endswith(".js") else "application/json"
        handler.send_header("Content-Type", kind)
        handler.end_headers()
        handler.wfile.write(
            b'{"a":2}' if file.endswith(".json") else b"export const FILES = {};\n// changed"
        )
        return True

    return answer


@needs_chromium
@pytest.mark.parametrize("file", ["page.json", "model.json", "files.js"])
def test_files_that_were_changed(file: str, page: Page, site: Site) -> None:
    """The page's own files have checksums, and so has the manifest. Scripts are compared by the browser."""
    site.answers.append(other(file))
    try:
        page.open(site.url)
        if file == "files.js":
            page.run("new Promise((done) => setTimeout(done, 300))")
            assert any("integrity" in each for each in page.mistakes())
            assert page.run("document.body.dataset.state ?? ''") == ""
            return
        page.until(FAILED)
        assert f"{file} is damaged: its checksum is" in text(page, "error")
    finally:
        site.answers.clear()


@needs_chromium
def test_a_narrow_screen(page: Page, site: Site) -> None:
    """Nothing is wider than 390 pixels."""
    page.open(site.url)
    page.until(READY)
    assert page.run("document.documentElement.scrollWidth") <= page.run("innerWidth")


@pytest.mark.parametrize("file", sorted(each.name for each in PAGES.glob("*.html")))
def test_labels(file: str) -> None:
    """Fields have labels, and the bar a name."""
    found = (PAGES / file).read_text(encoding="utf-8")
    fields = re.findall(r"<(?:textarea|input|select)\b[^>]*\bid=\"(\w+)\"", found)
    assert len(fields) == len(re.findall(r"<(?:textarea|input|select)\b", found))
    assert all(f'<label for="{each}">' in found for each in fields)
    assert re.search(r"<progress [^>]*aria-label=", found)
