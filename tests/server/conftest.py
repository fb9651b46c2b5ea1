"""One process of `relaxpy serve` for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from relaxpy.models.sentence_embedding import PACKAGE
from tests.server.running import (
    KEY,
    SCRIPT,
    TEMPLATE,
    Running,
    scripted_server,
    server_process,
)


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The embedded model under the name `relaxpy`, with a key."""
    folder: Path = tmp_path_factory.mktemp("server")
    vectors = ["--embeddings", "minilm"] if find_spec(PACKAGE) else []
    with server_process(
        folder, *vectors, "--api-key", KEY, "--running", "4", "--waiting", "4", "--max-body", "1"
    ) as found:
        yield found


@pytest.fixture(scope="session")
def client(running: Running) -> Iterator[Any]:
    openai: Any = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key=KEY, max_retries=0) as found:
        yield found


@pytest.fixture(scope="session")
def scripted() -> Iterator[str]:
    """The address of a model that thinks, says something, and calls two tools."""
    with scripted_server({TEMPLATE: [SCRIPT]}) as url:
        yield url
