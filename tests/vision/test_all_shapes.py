"""The LLaVA of tests/vision/shapes, which learned to say what a picture shows: right words in chats of Python, and over
HTTP by the client of OpenAI, many at once, and on the page in a headless Chromium."""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("PIL.Image")
pytest.importorskip("fastapi")
from relaxpy.llm import LanguageModel, load
from relaxpy.models.loaded import Scheme
from tests.server.chromium import Page, browser, chromium
from tests.server.running import Running, server_process
from tests.sweeps import FULL, quick_target
from tests.vision.drawn import COLORS, QUESTIONS, SHAPES, answer_to, draw

openai: Any = pytest.importorskip("openai")
FOLDER = Path(__file__).parent / "shapes"
RIGHT = 0.75
"""The least share of right answers: of 400 pictures it was more."""
TARGET = str(quick_target())


def drawn(seed: int) -> tuple[Any, str, str]:
    """A picture that was not trained on, its color and its shape."""
    rng = random.Random(1000 + seed)
    color, shape = [*COLORS][seed % 6], SHAPES[seed // 6 % 4]
    return draw(rng, color, shape, rng.randint(48, 96)), color, shape


def png(picture: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def asked(picture: Any, question: str) -> list[dict[str, Any]]:
    parts = [{"type": "image", "image": picture}, {"type": "text", "text": question}]
    return [{"role": "user", "content": parts}]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return load(FOLDER, scheme=Scheme(bits=None), target=TARGET)


def said(model: LanguageModel, picture: Any, question: str) -> str:
    return "".join(model.chat(asked(picture, question), temperature=0, max_tokens=8)).strip()


def test_right_words(model: LanguageModel) -> None:
    count = 96 if FULL else 24
    right = sum(
        said(model, picture, QUESTIONS[0]) == answer_to(QUESTIONS[0], color, shape)
        for picture, color, shape in map(drawn, range(count))
    )
    assert right >= RIGHT * count


def test_answers_are_those_of_transformers(model: LanguageModel) -> None:
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    from tests.vision.train_shapes import TOKENS, processor

    theirs = transformers.LlavaForConditionalGeneration.from_pretrained(FOLDER, dtype=torch.float32)
    make = processor()
    for seed in range(3):
        picture, _, _ = drawn(seed)
        for question in QUESTIONS:
            text = f"USER: <image> {question}\nASSISTANT:"
            given = make(images=picture, text=text, return_tensors="pt", add_special_tokens=False)
            found = theirs.generate(**given, max_new_tokens=8, do_sample=False)
            words = TOKENS.decode(found[0, given["input_ids"].shape[1] :].tolist())
            assert said(model, picture, question) == words.strip()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("seeing")
    options = ("--bits", "none", "--target", TARGET, "--running", "8")
    with server_process(folder, f"shapes={FOLDER}", *options) as found:
        yield found


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="-", max_retries=0) as found:
        yield found


def test_many_clients(client: Any, model: LanguageModel) -> None:
    """Pictures and texts alone, at once, some pictures again: each answer is that of the question alone."""
    rng = random.Random(3)
    cases = [
        (drawn(rng.randrange(8))[0] if rng.random() < 0.8 else None, rng.choice(QUESTIONS))
        for _ in range(256 if FULL else 32)
    ]

    def ask(case: tuple[Any, str]) -> str:
        picture, question = case
        parts: list[dict[str, Any]] = [{"type": "text", "text": question}]
        if picture is not None:
            url = f"data:image/png;base64,{base64.b64encode(png(picture)).decode()}"
            parts.insert(0, {"type": "image_url", "image_url": {"url": url}})
        answer = client.chat.completions.create(
            model="shapes",
            messages=[{"role": "user", "content": parts}],
            temperature=0,
            max_tokens=8,
        )
        assert answer.usage.prompt_tokens > (36 if picture is not None else 0)
        return answer.choices[0].message.content.strip()

    with ThreadPoolExecutor(64 if FULL else 16) as pool:
        found = list(pool.map(ask, cases))
    for (picture, question), answer in zip(cases, found, strict=True):
        if picture is None:
            messages = [{"role": "user", "content": question}]
            alone = "".join(model.chat(messages, temperature=0, max_tokens=8)).strip()
        else:
            alone = said(model, picture, question)
        assert answer == alone


@pytest.fixture(scope="module")
def page(running: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if chromium() is None:
        pytest.skip("there is no Chromium here")
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        found.open(running.url)
        found.until("document.body.innerText.includes('Chat with shapes')")
        found.run("document.getElementById('temperature').value = 0")
        yield found


def file_of(picture: Any) -> str:
    """A picture as a file, in JavaScript."""
    data = base64.b64encode(png(picture)).decode()
    return f"new File([Uint8Array.from(atob('{data}'), (one) => one.charCodeAt(0))], 'drawn.png', {{ type: 'image/png' }})"


def given(page: Page, file: str, event: str) -> None:
    page.run(
        f"(() => {{ const given = new DataTransfer(); given.items.add({file}); const more = {{ bubbles: true, cancelable: true }};"
        f"document.getElementById('text').dispatchEvent({event}); }})()"
    )


PASTE = "new ClipboardEvent('paste', { clipboardData: given, ...more })"
DROP = "new DragEvent('drop', { dataTransfer: given, ...more })"


@pytest.mark.parametrize("event", [PASTE, DROP], ids=["pasted", "dropped"])
def test_a_picture_on_the_page(page: Page, model: LanguageModel, event: str) -> None:
    """One that is pasted or dropped is talked about, and is there when the page is opened again."""
    page.run("show(null)")
    assert "sees pictures" in page.run("document.body.innerText")
    picture, *_ = drawn(5)
    given(page, file_of(picture), event)
    size = f"{picture.width} × {picture.height}"
    page.until(f"document.getElementById('held').innerText.includes('{size}')")
    page.run(f"document.getElementById('text').value = '{QUESTIONS[0]}'")
    page.run("document.getElementById('form').requestSubmit()")
    page.until("messages.length === 2 && !running")
    assert page.run("document.getElementById('held').hidden")
    assert page.run("messages[1].content.trim()") == said(model, picture, QUESTIONS[0])
    page.run("window.old = true")
    page.send("Page.reload")
    page.until("!window.old && document.readyState === 'complete' && messages.length === 2")
    page.until("document.querySelector('.user img').naturalWidth === " + str(picture.width))
    assert page.run("document.querySelector('.user').innerText.trim()") == QUESTIONS[0]
    assert page.mistakes() == []


def test_large_pictures_are_made_smaller(page: Page, tmp_path: Path) -> None:
    """The size is shown, and a picture may be taken out again; what is no picture is named."""
    page.run("show(null)")
    given(page, file_of(drawn(2)[0].resize((2003, 1001))), PASTE)
    page.until("document.getElementById('held').innerText.includes('1536 × 768 of 2003 × 1001')")
    page.picture(tmp_path / "page.png")
    page.run("document.querySelector('#held button').click()")
    assert page.run("document.getElementById('held').hidden && !held.length")
    given(page, "new File(['text'], 'notes.txt')", DROP)
    page.until("document.getElementById('notice').innerText.includes('notes.txt is no picture')")
    assert page.mistakes() == []


def test_a_model_that_reads_texts_alone(page: Page) -> None:
    page.run("delete document.getElementById('model').selectedOptions[0].dataset.sees; show(null)")
    assert page.run("document.getElementById('look').hidden")
    given(page, file_of(drawn(2)[0]), DROP)
    page.until("document.getElementById('notice').innerText.includes('shapes sees no pictures')")
    assert page.run("!held.length")
