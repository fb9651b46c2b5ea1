"""The page of a server that hears: a recording that is dropped, and a microphone, in a headless Chromium."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("av")

from tests.server.chromium import Page, browser, chromium
from tests.server.running import Running, server_process
from tests.speech.recordings import encoded

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium here")
SPEECH = Path(__file__).parents[1] / "speech"
PAUSES = SPEECH / "recorded/pauses.flac"


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with server_process(tmp_path_factory.mktemp("hearing"), f"digits={SPEECH / 'digits'}") as found:
        yield found


def spoken(folder: Path) -> Path:
    """The recording as what Chromium takes for a microphone: it begins again at its end."""
    from relaxpy.speech import Sound

    sound = Sound(PAUSES)
    samples = np.repeat(sound.samples(0, sound.length), 3)
    path = folder / "microphone.wav"
    path.write_bytes(encoded(samples, 48_000, "wav"))
    return path


@pytest.fixture(scope="module")
def page(hearing: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("chromium")
    with browser(folder / "own", microphone=spoken(folder)) as found:
        found.open(hearing.url)
        found.until("!!document.getElementById('drop')")
        yield found


def allow(page: Page, setting: str) -> None:
    page.send("Browser.setPermission", permission={"name": "microphone"}, setting=setting)


def test_a_page_for_recordings(page: Page) -> None:
    """There is no chat that cannot work, and a file that is dropped becomes text."""
    shown = page.run("document.body.innerText")
    assert "Speech to text by digits" in shown
    assert "Send" not in shown
    assert "No model" not in shown
    data = base64.b64encode(PAUSES.read_bytes()).decode()
    page.run(
        f"(() => {{ const bytes = Uint8Array.from(atob('{data}'), (one) => one.charCodeAt(0)), given = new DataTransfer();"
        "given.items.add(new File([bytes], 'pauses.flac'));"
        "document.getElementById('drop').dispatchEvent(new DragEvent('drop', { dataTransfer: given, cancelable: true })); })()"
    )
    page.until("document.body.innerText.includes('four nine zero seven')", 60)
    page.until("document.body.innerText.includes('pauses.flac, ')")
    assert page.mistakes() == []


def test_what_is_no_recording(page: Page) -> None:
    page.run(
        "(() => { const given = new DataTransfer(); given.items.add(new File(['text'], 'notes.txt'));"
        "document.getElementById('drop').dispatchEvent(new DragEvent('drop', { dataTransfer: given, cancelable: true })); })()"
    )
    page.until("document.getElementById('notice').innerText.includes('notes.txt is no sound')")


def test_a_microphone(page: Page) -> None:
    allow(page, "granted")
    before = page.run("document.querySelectorAll('article').length")
    page.run("document.getElementById('record').click()")
    page.until("document.getElementById('record').innerText === 'Stop'")
    page.run("new Promise((done) => setTimeout(done, 4000))")
    page.run("document.getElementById('record').click()")
    page.until(
        f"document.querySelectorAll('article').length === {before + 1} && document.getElementById('record').innerText === 'Record'",
        60,
    )
    text = page.run("document.querySelector('article:last-child div').innerText")
    assert len({*text.split()} & {"four", "nine", "zero", "seven"}) >= 2, text


def test_the_microphone_is_refused(page: Page) -> None:
    allow(page, "denied")
    page.run("document.getElementById('record').click()")
    page.until("document.getElementById('notice').innerText.includes('microphone was refused')")
    assert page.run("document.getElementById('record').disabled") is False


def test_a_microphone_beside_a_chat(page: Page) -> None:
    """Where a model writes, too, what is spoken goes into the message. (The list of models gets one more here.)"""
    allow(page, "granted")
    page.run(
        "(() => { const own = fetch; window.fetch = async (url, ...rest) => { const answer = await own(url, ...rest);"
        "if (url !== 'v1/models') return answer; const found = await answer.json();"
        "found.data.push({ id: 'm0', max_model_len: 64 }); return Response.json(found); }; })()"
    )
    page.run("load()")
    page.until("document.body.innerText.includes('Chat with m0')")
    page.run(
        "document.getElementById('text').value = 'Hello, '; document.getElementById('mic').click()"
    )
    page.until("document.getElementById('mic').innerText === 'Stop'")
    page.run("new Promise((done) => setTimeout(done, 3500))")
    page.run("document.getElementById('mic').click()")
    page.until("document.getElementById('mic').innerText === 'Speak'", 60)
    text = page.run("document.getElementById('text').value")
    assert text.startswith("Hello, ")
    assert {*text.split()} & {"four", "nine", "zero", "seven"}
