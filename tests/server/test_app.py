"""The page for chats, in a headless Chromium, from the scripted model: markdown, stop, retry, keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.chromium import Page, browser, chromium
from tests.server.running import scripted_server

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium here")
ANSWER = """\
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
See [the tutorial](https://docs.python.org/3/tutorial/) or [this](javascript:alert(1)).
"""
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}<|im_start|>assistant\n"
LONG = "many words " * 300


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    # The page sends no seed: which script comes is by chance, and each test has a server of one script.
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


def say(page: Page, text: str) -> None:
    page.run(
        f"document.getElementById('text').value = {text!r}; document.getElementById('form').requestSubmit()"
    )


def test_an_answer_is_shown_as_markdown(page: Page, tmp_path: Path) -> None:
    """And nothing in it is run."""
    with scripted_server({TEMPLATE: [ANSWER]}) as url:
        page.open(url)
        page.until("document.getElementById('model').value === 'm0'")
        say(page, "What is a <b>tuple</b>?")
        page.until(
            "!document.getElementById('stop').disabled || document.querySelector('.note button')"
        )
        page.until("[...document.querySelectorAll('.note button')].length === 2")
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
        # Retry writes the answer anew, with the same messages.
        page.run(
            "[...document.querySelectorAll('.note button')].find((b) => b.textContent === 'Retry').click()"
        )
        page.until("document.querySelectorAll('.assistant .note button').length === 2")
        assert page.run("messages.map((m) => m.role).join()") == "user,assistant"
        page.run("document.getElementById('fresh').click()")
        assert page.run("document.getElementById('chat').innerText") == ""
        assert page.mistakes() == []


def test_an_answer_is_stopped(page: Page) -> None:
    with scripted_server({TEMPLATE: [LONG]}) as url:
        page.open(url)
        page.until("document.getElementById('model').value === 'm0'")
        say(page, "Go on.")
        page.until("document.querySelector('.assistant').innerText.includes('many words')")
        page.run("document.getElementById('stop').click()")
        page.until("document.querySelector('.note').innerText.includes('stopped')")
        assert 0 < page.run("messages[1].content.length") < len(LONG)
        assert page.run("document.getElementById('stop').disabled")


def test_a_key_is_asked_for(page: Page) -> None:
    with scripted_server({TEMPLATE: ["Yes."]}, api_keys=("secret",)) as url:
        page.open(url)
        page.until("document.getElementById('dialog').open")
        page.run(
            "document.getElementById('key').value = 'secret'; document.getElementById('dialog').close()"
        )
        page.until("document.getElementById('model').value === 'm0'")
        say(page, "Well?")
        page.until("document.querySelector('.assistant').innerText.includes('Yes.')")
