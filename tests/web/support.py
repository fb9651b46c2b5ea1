"""Serving folders to a browser, and running scripts in it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.server.chromium import chromium

JS = Path(__file__).parent / "js"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")
needs_chromium = pytest.mark.skipif(chromium() is None, reason="there is no Chromium here")


def run_node(script: str, given: str = "", *args: str) -> str:
    """The output of a script in js/."""
    assert NODE is not None
    command = [NODE, str(JS / script), *args]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


Answer = Callable[["Handler"], bool]
"""Answers a request by itself, and says whether it has."""


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder; `answers` come first. Every path is noted in `asked`."""

    protocol_version = "HTTP/1.0"

    def __init__(self, *args: Any, asked: list[str], answers: list[Answer], **options: Any) -> None:
        self.asked, self.answers = asked, answers
        super().__init__(*args, **options)

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if not any(answer(self) for answer in self.answers):
            super().do_GET()

    def end_headers(self) -> None:
        """Browsers do not keep what a test may change."""
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Site:
    """A folder that is served."""

    def __init__(self, folder: Path, url: str, asked: list[str], answers: list[Answer]) -> None:
        self.folder, self.url, self.asked, self.answers = folder, url, asked, answers


@contextmanager
def served(folder: Path) -> Iterator[Site]:
    """Serves a folder on a port that is free."""
    asked: list[str] = []
    answers: list[Answer] = []
    handler = partial(Handler, directory=str(folder), asked=asked, answers=answers)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Site(folder, f"http://127.0.0.1:{server.server_address[1]}/", asked, answers)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
