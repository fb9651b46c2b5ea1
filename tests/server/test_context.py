"""Many clients at once: each answer is that of the same request alone."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.running import Running, server_process
from tests.sweeps import FULL

httpx: Any = pytest.importorskip("httpx")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder: Path = tmp_path_factory.mktemp("load")
    with server_process(folder, "--log", "none", "--waiting", "16") as found:
        yield found


def test_answers_under_load_are_those_alone(own: Running) -> None:
    """64 clients, some of which go away or send what is no body."""
    from tests.server.load import Load, distinct, memory

    assert own.process is not None
    load = Load(own.url, distinct(200 if FULL else 60, 24))
    asyncio.run(load.run(64, 2000 if FULL else 500))
    # A client that leaves while it connects leaves its socket to the collector, whose warning would be another test's.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    assert not load.wrong, load.wrong[0]
    assert load.outcomes["streamed"] > 100
    assert load.outcomes["whole"] > 100
    assert load.outcomes["left"] > 5
    assert memory(own.process.pid)["server"] < 400
    health = httpx.get(f"{own.url}/health")
    assert health.json() == {"status": "ok"}


def test_a_finished_text_that_is_not_of_its_form_is_an_error_and_counted() -> None:
    from types import SimpleNamespace

    from relaxpy.serve.grammar import Grammar
    from relaxpy.server.context import Server
    from relaxpy.server.errors import ApiError
    from relaxpy.server.settings import ServerSettings

    server = Server(ServerSettings(), {})
    model: Any = SimpleNamespace(name="m")
    form = Grammar("", {"type": "object", "minProperties": 2})
    asyncio.run(server.check_text("start: /a/", "b", model))
    asyncio.run(server.check_text(form, '{"a": 1, "b": 2}', model))
    with pytest.raises(ApiError) as caught:
        asyncio.run(server.check_text(form, '{"a": 1, "a": 2}', model))
    assert (caught.value.status, caught.value.code) == (500, "schema_mismatch")
    assert 'relaxpy_schema_mismatches_total{model="m"} 1.0' in server.metrics.text().decode()
