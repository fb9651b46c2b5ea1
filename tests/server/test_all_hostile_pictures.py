"""Two hundred hostile pictures, sent to the server: answers of 4xx that say which, in bounded time and memory, and nothing
is fetched. Some of them, unless in a full sweep."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("PIL.Image")
pytest.importorskip("transformers")
pytest.importorskip("fastapi")

from tests.models.picture_checkpoints import write
from tests.server.hostile_bodies import Process
from tests.server.hostile_pictures import LISTED, cases, uri
from tests.server.running import Running, server_process
from tests.sweeps import FULL
from tests.vision.test_picture import saved

MOST_SECONDS = 0.5
"""Of the processor, for a request."""
MOST_BYTES = 200 << 20
"""That the server may grow by, for a request."""
SLOW = ("PNG of 16.8 million pixels", "JPEG that says 4096", "a large ")
"""Right pictures of as many pixels as there may be: they take the time of their pixels."""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder: Path = tmp_path_factory.mktemp("clip")
    write("clip", folder)
    hosts = [each for name in LISTED for each in ("--image-host", name)]
    with server_process(folder, "--embeddings", f"clip={folder}", *hosts) as found:
        yield found


@pytest.mark.sweep(1)
def test_hostile_pictures(seeing: Running) -> None:
    assert seeing.process is not None
    process, wrong, names = Process(seeing.process.pid), list[str](), set[str]()
    with (
        socket.create_server(("127.0.0.1", 0)) as listens,
        httpx.Client(base_url=seeing.url, timeout=60) as http,
    ):
        listens.settimeout(0.05)
        port = listens.getsockname()[1]

        def post(given: object) -> httpx.Response:
            return http.post("/v1/embeddings", json={"model": "clip", "input": given})

        assert post([{"image": uri(saved("PNG"))}]).status_code == 200
        for number, (name, given) in enumerate(cases(port)):
            assert name not in names
            names.add(name)
            if not FULL and number % 23:
                continue
            process.begin()
            answer = post(given)
            spent, grown = process.seconds(), process.bytes()
            if answer.status_code == 200 and not name.endswith("may be read"):
                wrong.append(f"{name}: it was read")
            elif answer.status_code != 200 and (
                answer.status_code // 100 != 4
                or (answer.status_code != 413 and "input" not in answer.json()["error"]["message"])
            ):
                wrong.append(f"{name}: {answer.status_code} {answer.text[:300]}")
            if (
                spent > MOST_SECONDS and not any(each in name for each in SLOW)
            ) or grown > MOST_BYTES:
                wrong.append(f"{name}: {spent:.2f} s, {grown >> 20} MiB")
        assert not wrong, "\n".join(wrong)
        assert len(names) >= 200
        with pytest.raises(TimeoutError):
            listens.accept()
        assert http.get("/health").status_code == 200
