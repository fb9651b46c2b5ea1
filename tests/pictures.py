"""Writes the pictures of the pages for people into docs, on a desk (1280) and on a phone (390): the page for chats, with
the model that ships with relaxpy (server*.png), that of a server that hears (speech.png) or sees (vision.png), and the page of `relaxpy explain` (explain*.png); and the pages of
`relaxpy web`, on WebAssembly (browser*.png).

    python -m tests.pictures                      all of them
    python -m tests.pictures browsers             those of one function

Chromium takes them. Pillow, which no extra brings, makes them small where it is.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import relaxpy
from relaxpy.explain import explain, page
from relaxpy.models.bert import SPEC, BertConfig, BertEncoder
from tests.server.chromium import Page, browser
from tests.server.running import server_process
from tests.server.test_all_page_of_speech import spoken
from tests.web.support import served

DOCS = Path("docs")
DESK, PHONE = 1280, 390
BOUNDS = {"batch": 8, "seq": 128}


@contextmanager
def sized(folder: Path, width: int, height: int) -> Iterator[Page]:
    """A browser with a page of this size."""
    with browser(folder / f"chromium{width}x{height}", width, height) as found:
        found.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, mobile=width == PHONE, deviceScaleFactor=1,
        )  # fmt: skip
        yield found


def taken(shown: Page, name: str) -> None:
    path = DOCS / name
    shown.picture(path)
    if importlib.util.find_spec("PIL"):
        from PIL import Image

        Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)


def chats(folder: Path) -> None:
    """A conversation on a desk; on a phone the first view, and an answer that was cut."""
    with server_process(folder) as running:
        for width, height in ((DESK, 640), (PHONE, 640)):
            with sized(folder, width, height) as shown:
                shown.open(running.url)
                shown.until("!!document.getElementById('first')")
                if width == PHONE:
                    taken(shown, "server_phone.png")
                    shown.run("document.getElementById('most').value = 6")
                for number in (1, 2) if width == DESK else (1,):
                    shown.run(f"ask(QUESTIONS[{number - 1}])")
                    shown.until(f"messages.length === {2 * number} && !running", 120)
                taken(shown, "server.png" if width == DESK else "server_phone_cut.png")


def speech(folder: Path) -> None:
    """A recording that was dropped, and one that was spoken."""
    tests = Path(__file__).parent
    wav = spoken(folder)
    with (
        server_process(folder, f"digits={tests / 'speech/digits'}") as running,
        browser(folder / "chromium", 900, 560, microphone=wav) as shown,
    ):
        shown.send("Browser.setPermission", permission={"name": "microphone"}, setting="granted")
        shown.open(running.url)
        shown.until("!!document.getElementById('record')")
        for seconds in (4, 2):
            shown.run("document.getElementById('record').click()")
            shown.until("document.getElementById('record').innerText === 'Stop'")
            shown.run(f"new Promise((done) => setTimeout(done, {1000 * seconds}))")
            if seconds == 4:
                shown.run("document.getElementById('record').click()")
                shown.until("document.getElementById('record').innerText === 'Record'", 60)
        taken(shown, "speech.png")


def vision(folder: Path) -> None:
    """A question about a picture with its answer, and a picture that is held for the next."""
    from tests.vision.drawn import QUESTIONS, draw
    from tests.vision.test_all_shapes import PASTE, file_of, given

    shapes = Path(__file__).parent / "vision/shapes"
    with (
        server_process(folder, f"shapes={shapes}", "--bits", "none") as running,
        browser(folder / "chromium", 900, 700) as shown,
    ):
        shown.open(running.url)
        shown.until("!!document.getElementById('first')")
        shown.run("document.getElementById('temperature').value = 0")
        drawn = random.Random(7)
        for color, shape in (("green", "triangle"), ("purple", "cross")):
            given(shown, file_of(draw(drawn, color, shape, 180)), PASTE)
            shown.until("held.length === 1")
            if color == "green":
                shown.run(f"ask('{QUESTIONS[0]}')")
                shown.until("messages.length === 2 && !running", 60)
        shown.run(f"document.getElementById('text').value = '{QUESTIONS[2]}'")
        shown.until("[...document.images].every((one) => one.naturalWidth)")
        taken(shown, "vision.png")


def explained() -> str:
    """The page of all-MiniLM-L6-v2's shape with random weights, with the measured time of a call."""
    config = BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, vocab_size=1000
    )  # fmt: skip
    model, drawn = BertEncoder(config), np.random.default_rng(0)
    model.load(
        {n: 0.02 * drawn.standard_normal(p.shape, np.float32) for n, p in model.named_parameters()}
    )
    mod, params = model.export({"embed": SPEC["embed"]})
    found = explain(mod, params=params, bounds=BOUNDS, title="all-MiniLM-L6-v2")
    assert found.executable is not None
    tokens = np.ones((8, 128), np.int64)
    found.profile = relaxpy.VirtualMachine(found.executable).profile(
        "embed", input_ids=tokens, attention_mask=tokens
    )
    return page(found)


def explanations(folder: Path) -> None:
    """The flow on a desk and on a phone, and there the time of a call, too."""
    path = folder / "page.html"
    path.write_text(explained(), encoding="utf-8")
    for name, width, height, section in (
        ("explain.png", DESK, 900, ""),
        ("explain_phone.png", PHONE, 640, "flow"),
        ("explain_phone_time.png", PHONE, 640, "time"),
    ):
        with sized(folder, width, height) as shown:
            shown.open(path.as_uri() + f"#{section}" * bool(section))
            if section == "flow":  # the largest kernel
                shown.run(
                    "[...document.querySelectorAll('.steps > li')].sort((a, b) => parseFloat(b.querySelector('i').style.getPropertyValue('--lin'))"
                    " - parseFloat(a.querySelector('i').style.getPropertyValue('--lin')))[0].scrollIntoView({block: 'center'})"
                )
            taken(shown, name)


def browsers(folder: Path) -> None:
    """Sentences that are compared, and a text that is continued."""
    for model, name in (("minilm", "browser_embed.png"), ("embedded", "browser_complete.png")):
        site = folder / model
        command = [sys.executable, "-m", "relaxpy", "web", model, str(site), "--target", "wasm"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with served(site) as found, sized(folder / name, 900, 560) as shown:
            shown.open(found.url)
            shown.until("document.body.dataset.state === 'ready'", 120)
            shown.run("document.getElementById('go').click()")
            shown.until("document.body.dataset.state === 'done'", 120)
            taken(shown, name)


def main() -> None:
    parts = {each.__name__: each for each in (chats, speech, vision, explanations, browsers)}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", nargs="*", choices=[*parts, []])
    for name in parser.parse_args().part or parts:
        with tempfile.TemporaryDirectory() as folder:
            parts[name](Path(folder))


if __name__ == "__main__":
    main()
