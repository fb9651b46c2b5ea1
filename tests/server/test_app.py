"""The page for chats, in a headless Chromium, from the scripted model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.chromium import Page, browser, chromium
from tests.server.running import scripted_server

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium here")
ANSWER = f"""\
# Tuples

A **tuple** is *like* a list, but `()` <b>never</b> changes:

1. it has an order
2. it can be a key

```python
point = (1, 2)
```

| type | changes |
|---|---|
| list | yes |

<script>document.title = "broken"</script> <img src=x onerror="document.title='broken'">

مرحبا بالعالم

```
{"a_long_name" * 20}
```

> {"word" * 60}

See [the tutorial](https://docs.python.org/3/tutorial/) or [this](javascript:alert(1)).
"""
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}<|im_start|>assistant\n"
LONG = "many words " * 300


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    # The page sends no seed: which script comes is by chance, and each test has a server of one script.
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


def opened(page: Page, url: str) -> None:
    """The page as a visitor of today finds it. The same port may have been another test's."""
    page.open(url)
    page.until("document.getElementById('model').value === 'm0'")
    page.run("localStorage.clear(); sessionStorage.clear(); show(null)")


def say(page: Page, text: str) -> None:
    page.run(
        f"document.getElementById('text').value = {text!r}; document.getElementById('form').requestSubmit()"
    )


def ended(page: Page, count: int) -> None:
    """Wait until there are so many messages, and no answer is on its way."""
    page.until(f"messages.length === {count} && !running")


def reload(page: Page) -> None:
    page.run("window.old = true")
    page.send("Page.reload")
    page.until(
        "!window.old && document.readyState === 'complete' && document.getElementById('model').value === 'm0'"
    )


def press(page: Page, label: str, within: str = "document") -> None:
    page.run(
        f"[...{within}.querySelectorAll('button')].find((b) => b.innerText === {label!r}).click()"
    )


def test_an_answer_is_shown_as_markdown(page: Page, tmp_path: Path) -> None:
    """And nothing in it is run."""
    with scripted_server({TEMPLATE: [ANSWER]}) as url:
        opened(page, url)
        page.run("document.getElementById('most').value = 2000")
        say(page, "What is a <b>tuple</b>?")
        ended(page, 2)
        query = "document.querySelector('.assistant {}').innerText"
        assert page.run("document.querySelector('.user').innerText") == "What is a <b>tuple</b>?"
        assert page.run(query.format("h3")) == "Tuples"
        assert page.run(query.format("strong")) == "tuple"
        assert page.run(query.format("pre code")) == "point = (1, 2)"
        assert page.run(query.format("ol li:last-child")) == "it can be a key"
        assert page.run(query.format("td")) == "list"
        assert "tokens/s" in page.run(query.format(".note"))
        assert page.run("document.title") == "relaxpy"
        assert (
            page.run(
                "document.querySelectorAll('.assistant script, .assistant img, .assistant b').length"
            )
            == 0
        )
        assert page.run("[...document.querySelectorAll('.assistant a')].map((a) => a.href)") == [
            "https://docs.python.org/3/tutorial/"
        ]
        page.picture(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 10_000
        # Text that runs from right to left does so, code does not.
        arabic = "[...document.querySelectorAll('.assistant p')].find((p) => p.innerText.startsWith('\u0645'))"
        assert page.run(f"getComputedStyle({arabic}).direction") == "rtl"
        assert page.run("getComputedStyle(document.querySelector('pre')).direction") == "ltr"
        # Retry writes the answer anew, with the same messages.
        press(page, "Retry")
        ended(page, 2)
        assert page.run("messages.map((m) => m.role).join()") == "user,assistant"
        page.run("document.getElementById('fresh').click()")
        assert page.run("document.querySelector('.message')") is None
        # What was kept is text, too.
        reload(page)
        press(page, "Chats")
        assert (
            page.run("document.querySelector('#list bdi').innerText") == "What is a <b>tuple</b>?"
        )
        page.run("document.querySelector('#list .open').click()")
        assert page.run(query.format("td")) == "list"
        assert (
            page.run("document.querySelectorAll('main b, main script, main img, #list b').length")
            == 0
        )
        assert page.mistakes() == []


def test_the_first_view(page: Page) -> None:
    """Says the model, and has three questions; one of them begins a conversation."""
    with scripted_server({TEMPLATE: ["Yes."]}) as url:
        opened(page, url)
        shown = page.run("document.getElementById('first').innerText")
        assert "Chat with m0" in shown
        assert "4096 tokens" in shown
        assert page.run("document.getElementById('mic').hidden")  # no model hears
        questions = page.run(
            "[...document.querySelectorAll('#first button')].map((b) => b.innerText)"
        )
        assert len(questions) == 3
        page.run("document.querySelector('#first li:nth-child(2) button').click()")
        ended(page, 2)
        assert page.run("document.querySelector('.user').innerText") == questions[1]
        assert page.run("document.getElementById('first')") is None
        assert page.run("document.getElementById('said').innerText") == "The answer is complete"


def test_an_answer_is_stopped(page: Page) -> None:
    """What had come of it is kept, also when the page is left."""
    with scripted_server({TEMPLATE: [LONG]}) as url:
        opened(page, url)
        say(page, "Go on.")
        page.until("document.querySelector('.assistant').innerText.includes('many words')")
        page.run("document.getElementById('stop').click()")
        page.until("document.querySelector('.note').innerText.includes('stopped')")
        assert 0 < page.run("messages[1].content.length") < len(LONG)
        assert page.run("document.getElementById('stop').disabled")
        page.run("document.getElementById('fresh').click()")
        say(page, "And on.")
        page.until("document.querySelector('.assistant').innerText.includes('many words')")
        reload(page)
        page.until("messages.length === 2")
        assert "many words" in page.run("document.querySelector('.assistant').innerText")
        assert "stopped" in page.run("document.querySelector('.note').innerText")
        assert len(page.run("names()")) == 2


def test_an_answer_is_cut(page: Page) -> None:
    """It says so, and goes on in its place."""
    with scripted_server({TEMPLATE: ["abc def"]}) as url:
        opened(page, url)
        page.run("document.getElementById('most').value = 3")
        say(page, "Well?")
        ended(page, 2)
        assert "cut at 3 tokens" in page.run("document.querySelector('.note').innerText")
        reload(page)
        page.until("messages.length === 2")
        assert "cut at 3 tokens" in page.run("document.querySelector('.note').innerText")
        page.run("document.getElementById('most').value = 100")
        press(page, "Go on")
        page.until("!running && messages[1].end === 'stop'")
        # The scripted model begins its script again with every request.
        assert page.run("messages[1].content") == "abc abc def"
        assert "cut" not in page.run("document.querySelector('.note').innerText")
        assert page.run("document.querySelectorAll('.assistant').length") == 1
        assert page.run("document.querySelectorAll('.again').length") == 1  # Retry


def test_conversations_are_kept(page: Page) -> None:
    """Several, after a reload too, until they are deleted: one, or all."""
    with scripted_server({TEMPLATE: ["Yes."]}) as url:
        opened(page, url)
        for n, question in enumerate(("First?", "Second?", "Third?")):
            if n:
                page.run("document.getElementById('fresh').click()")
            say(page, question)
            ended(page, 2)
        reload(page)
        page.until("messages.length === 2")
        assert "Third?" in page.run("document.getElementById('chat').innerText")
        press(page, "Chats")
        titles = (
            "[...document.querySelectorAll('#list bdi')].map((one) => one.innerText).sort().join()"
        )
        assert page.run(titles) == "First?,Second?,Third?"
        page.run(
            "[...document.querySelectorAll('#list .open')].find((b) => b.innerText.includes('First?')).click()"
        )
        assert not page.run("document.getElementById('chats').open")
        assert "First?" in page.run("document.getElementById('chat').innerText")
        say(page, "More?")
        ended(page, 4)
        press(page, "Chats")
        page.run("document.querySelector('[aria-label=\"Delete: Third?\"]').click()")
        assert page.run(titles) == "First?,Second?"
        assert "More?" in page.run("document.getElementById('chat').innerText")
        press(page, "Delete all")
        assert page.run(titles) == "First?,Second?"  # it asks first
        press(page, "Really delete all 2?")
        assert page.run("names().length") == 0
        assert "Chat with m0" in page.run("document.getElementById('chat').innerText")
        reload(page)
        assert page.run("messages.length") == 0


def test_a_conversation_that_is_deleted_while_it_is_answered(page: Page) -> None:
    with scripted_server({TEMPLATE: [LONG]}) as url:
        opened(page, url)
        say(page, "Go on.")
        page.until("document.querySelector('.assistant').innerText.includes('many words')")
        press(page, "Chats")
        press(page, "Delete", "document.getElementById('list')")
        page.run("document.getElementById('chats').close()")
        page.until("!running && !document.getElementById('send').disabled")
        assert page.run("names().length") == 0
        say(page, "Again.")
        page.until("messages.length === 2 && messages[1].content.includes('many')")
        page.run("document.getElementById('stop').click()")
        page.until("!running")
        assert page.run("names().length") == 1


def test_what_was_kept_is_damaged(page: Page) -> None:
    """By hand, or by another version: it is listed as damaged, it can be deleted, and the rest works."""
    damaged = [
        "{",
        "null",
        "[]",
        '{"messages": 3, "time": 1}',
        '{"messages": [{"role": "user", "content": [1]}], "time": 1}',
    ]
    with scripted_server({TEMPLATE: ["Yes."]}) as url:
        opened(page, url)
        for n, text in enumerate(damaged):
            page.run(f"localStorage.setItem('relaxpy.chat.{n}', {text!r})")
        page.run(
            "sessionStorage.setItem('relaxpy.current', 'relaxpy.chat.0'); localStorage.setItem('relaxpy.most', 'many')"
        )
        reload(page)
        assert "Chat with m0" in page.run("document.getElementById('chat').innerText")
        say(page, "Well?")
        ended(page, 2)
        press(page, "Chats")
        listed = page.run(
            "[...document.querySelectorAll('#list .open')].map((one) => one.innerText.split('\\n')[0])"
        )
        assert listed == ["Well?", *["Damaged: it cannot be read"] * len(damaged)]
        press(page, "Delete all")
        press(page, f"Really delete all {len(damaged) + 1}?")
        assert page.run("names().length") == 0
        assert page.mistakes() == []


def test_the_storage_is_full(page: Page) -> None:
    """And switched off: the conversation goes on, and the page says that it is not kept."""
    with scripted_server({TEMPLATE: ["Yes."]}) as url:
        opened(page, url)
        page.run(
            "for (let size = 1 << 22; size; size >>= 1) try { localStorage.setItem('full' + size, 'x'.repeat(size)); } catch {}"
        )
        say(page, "Well?")
        ended(page, 2)
        assert "Yes." in page.run("document.querySelector('.assistant').innerText")
        assert "storage is full" in page.run("document.getElementById('notice').innerText")
        page.run("localStorage.clear()")
        say(page, "And now?")
        ended(page, 4)
        assert page.run("document.getElementById('notice').hidden")
        assert page.run("names().length") == 1
        page.run(
            "void Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } })"
        )
        page.run("document.getElementById('fresh').click()")
        say(page, "Well?")
        ended(page, 2)
        assert "switched off" in page.run("document.getElementById('notice').innerText")
        assert page.mistakes() == []


def test_a_key_is_asked_for(page: Page) -> None:
    with scripted_server({TEMPLATE: ["Yes."]}, api_keys=("secret",)) as url:
        page.open(url)
        page.until("document.getElementById('dialog').open")
        assert page.run("document.activeElement.id") == "key"
        assert page.run("document.getElementById('refused').innerText")
        page.run(
            "document.getElementById('key').value = 'secret'; document.getElementById('dialog').close()"
        )
        page.until("document.getElementById('model').value === 'm0'")
        say(page, "Well?")
        page.until("document.querySelector('.assistant').innerText.includes('Yes.')")
        assert "secret" not in page.run("JSON.stringify({...localStorage})")
        fields = page.run(
            "[...document.querySelectorAll('#dialog textarea, #dialog input')].map((one) => one.id)"
        )
        assert fields == ["system", "most", "temperature", "key"]


def test_the_server_is_gone(page: Page) -> None:
    """The question stays, with a button to ask again."""
    with scripted_server({TEMPLATE: ["Yes."]}) as url:
        opened(page, url)
    page.events.clear()
    say(page, "Well?")
    page.until("!!document.querySelector('.assistant .error')")
    assert "does not answer" in page.run("document.querySelector('.assistant .error').innerText")
    page.run(
        'window.fetch = async () => new Response(\'{"error": {"message": "no <i>room</i>"}}\', {status: 503}); 0'
    )
    press(page, "Retry")
    page.until("!running && document.querySelector('.assistant .error').innerText.includes('room')")
    assert page.run("document.querySelector('.assistant .error').innerText") == "no <i>room</i>"
    assert page.run("document.querySelectorAll('.assistant').length") == 1
    assert page.run("messages.map((one) => one.role).join()") == "user"


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_cut_off(page: Page, width: int) -> None:
    """On a phone and on a desk: buttons are whole, each has a name, and the page does not scroll sideways."""
    with scripted_server({TEMPLATE: [ANSWER]}) as url:
        page.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=700,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        try:
            opened(page, url)
            assert page.run(CUT_OFF) == []
            say(page, "Long" * 100)
            ended(page, 2)
            assert page.run(CUT_OFF) == []
            for dialog in ("Chats", "Options"):
                press(page, dialog)
                assert page.run(CUT_OFF) == []
                assert page.run(
                    "[...document.querySelectorAll('dialog[open] *')].every((one) => one.scrollWidth <= one.clientWidth + 1 || getComputedStyle(one).display === 'inline')"
                )
                page.run("document.querySelector('dialog[open]').close()")
        finally:
            page.send("Emulation.clearDeviceMetricsOverride")


CUT_OFF = """
[...document.querySelectorAll("button, select, textarea, input, .message")].filter((one) => one.offsetParent).filter((one) => {
  const { left, right } = one.getBoundingClientRect();
  return left < 0 || right > innerWidth || (one.tagName === "BUTTON" && (one.scrollWidth > one.clientWidth || !one.innerText.trim()));
}).map((one) => one.outerHTML).concat(document.documentElement.scrollWidth > innerWidth ? ["the page"] : [])
"""


def test_the_keyboard_alone(page: Page) -> None:
    """Every control is reached with Tab, in order, and Enter sends."""

    def key(name: str, **more: object) -> None:
        codes = {"Tab": 9, "Enter": 13, "Escape": 27}
        text = {"text": "\r"} if name == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            page.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=name,
                windowsVirtualKeyCode=codes[name],
                **(text if kind == "keyDown" else {}),
                **more,
            )

    with scripted_server({TEMPLATE: ["Yes."]}) as url:
        opened(page, url)
        page.run("document.activeElement.blur()")
        reached: list[str] = []
        for _ in range(9):
            key("Tab")
            reached.append(
                page.run("document.activeElement.id || document.activeElement.innerText")
            )
        assert reached[:4] == ["model", "past", "options", "fresh"]
        assert "How do I import Path?" in reached
        assert reached[-2:] == ["text", "send"]
        page.run("document.getElementById('text').focus()")
        page.send("Input.insertText", text="Well?")
        key("Enter", modifiers=8)  # Shift
        page.send("Input.insertText", text="Now?")
        assert page.run("messages.length") == 0
        key("Enter")
        ended(page, 2)
        assert page.run("messages[0].content") == "Well?\nNow?"
        page.run("document.getElementById('past').focus()")
        key("Enter")
        page.until("document.getElementById('chats').open")
        key("Escape")
        page.until("!document.getElementById('chats').open")
        assert page.run("document.activeElement.id") == "past"
