"""Writes docs/server.png, the page for chats with the model that ships with relaxpy: `python -m tests.server.picture`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.server.chromium import browser
from tests.server.running import server_process

QUESTIONS = ("What is a tuple?", "How do I read a file line by line?")


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        server_process(Path(folder)) as running,
        browser(Path(folder) / "chromium", 860, 560) as page,
    ):
        page.open(running.url)
        page.until("document.getElementById('model').value === 'relaxpy'")
        for number, question in enumerate(QUESTIONS, 1):
            page.run(f"document.getElementById('text').value = {question!r}")
            page.run("document.getElementById('form').requestSubmit()")
            page.until(
                f"messages.length === {2 * number} && !document.getElementById('send').disabled"
            )
        page.picture(Path("docs/server.png"))


if __name__ == "__main__":
    main()
