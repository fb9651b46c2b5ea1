"""Runs a server until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from relaxpy.checkpoints.config_file import config_of
from relaxpy.errors import UsageError
from relaxpy.llm.language_model import SPEECH
from relaxpy.serve.client import EngineClient
from relaxpy.server.app import create_app
from relaxpy.server.connections import (
    ACCEPTED,
    IDLE_SECONDS,
    QUEUE,
    Listener,
    Protocol,
    bound,
    most_connections,
    note_failure,
)
from relaxpy.server.context import Server
from relaxpy.server.embeddings import EmbeddingModel
from relaxpy.server.gate import start_log
from relaxpy.server.served_model import ServedModel
from relaxpy.server.settings import ModelSettings, ServerSettings
from relaxpy.server.speech_model import SpeechModel

if TYPE_CHECKING:
    from relaxpy.serve.replicas import Cluster
    from relaxpy.serve.scale import Scale

logger = logging.getLogger("relaxpy.server")


async def serve(
    settings: ServerSettings,
    models: Sequence[ModelSettings],
    embedders: Mapping[str, str | None] | None = None,
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Load models and answer requests, until SIGTERM or SIGINT; then finish what runs, within `drain_seconds`.
    `embedders` are places of models for vectors by name (None: that of the package). `ready` is told the address.

    Raises: UsageError: like `relaxpy.llm.load`; `bad-arguments` for an address or a certificate that cannot be used.
    """
    start_log(settings.log)
    _check_certificate(settings)
    listener = bound(settings.host, settings.port)
    running: list[ServedModel] = []
    hearing: list[SpeechModel] = []
    cluster: Cluster | None = None
    try:
        texts, speech = divided(models)
        if settings.scale is not None:
            if speech:
                raise UsageError(
                    "bad-arguments",
                    f"{speech[0].name} is a model of speech, which has no --replicas",
                )
            cluster = await _cluster(settings.scale, len(models), settings.drain_seconds)
        for each in speech:
            hearing.append(await SpeechModel.start(each))
        for each in texts:
            start = EngineClient.start if cluster is None else partial(cluster.start, each.name)
            running.append(await ServedModel.start(each, start))
            _note_limits(each, running[-1])
        vectors = {
            name: await EmbeddingModel.start(name, place, precision=settings.precision)
            for name, place in (embedders or {}).items()
        }
        server = Server(
            settings,
            {model.name: model for model in running},
            vectors,
            {model.name: model for model in hearing},
        )
        await run(server, listener, ready)
    finally:
        listener.close()
        for model in (*running, *hearing):
            await model.close()
        if cluster is not None:
            await cluster.close()


def divided(models: Sequence[ModelSettings]) -> tuple[list[ModelSettings], list[ModelSettings]]:
    """Models that write texts, and those that hear."""
    found: tuple[list[ModelSettings], list[ModelSettings]] = [], []
    for each in models:
        config = config_of(Path(each.place)) or {}
        found[config.get("model_type") in SPEECH].append(each)
    return found


def _note_limits(asked: ModelSettings, model: ServedModel) -> None:
    """Say what is other than was asked."""
    if asked.context is not None and model.context < asked.context:
        logger.warning(
            "%s: texts have at most %d tokens, not %d: the model has no more positions",
            asked.name, model.context, asked.context,
        )  # fmt: skip
    have = model.client.facts.get("cache_tokens", 0)
    if asked.cache_tokens < model.context <= have:
        logger.warning(
            "%s: the cache has room for %d tokens, not %d: for one text of the greatest length",
            asked.name, have, asked.cache_tokens,
        )  # fmt: skip


async def _cluster(scale: Scale, engines: int, drain_seconds: float) -> Cluster:
    try:
        from relaxpy.serve.replicas import Cluster
    except ImportError as error:
        raise UsageError(
            "extra-missing",
            f"replicas need Ray Serve ({error})",
            help="pip install 'relaxpy[replicas]'",
        ) from None
    return await Cluster.connect(scale, engines, drain_seconds)


async def run(server: Server, listener: Listener, ready: Callable[[str], None]) -> None:
    """Answer requests to a server whose models run."""
    settings = server.settings
    listener.most = most_connections(settings.connections)
    asyncio.get_running_loop().set_exception_handler(note_failure)
    config = uvicorn.Config(
        create_app(server),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        http=partial(Protocol, listener),  # pyright: ignore[reportArgumentType]
        server_header=False,
        backlog=ACCEPTED,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=max(round(settings.drain_seconds), 1),
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.private_key,
    )
    own = _Uvicorn(config, server, ready)
    server.stop = lambda: own.handle_exit(signal.SIGTERM, None)
    await own.serve([listener])


def _check_certificate(settings: ServerSettings) -> None:
    if settings.certificate is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.certificate, settings.private_key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            "bad-arguments",
            f"the certificate {settings.certificate} or its key cannot be used: {error}",
        ) from None


class _Uvicorn(uvicorn.Server):
    """Ends by a signal without an error, and says where it listens."""

    def __init__(
        self, config: uvicorn.Config, server: Server, ready: Callable[[str], None]
    ) -> None:
        super().__init__(config)
        self._server, self._ready = server, ready

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """As uvicorn does, but signals are not raised again at the end: the engines are closed then."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop, signals = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Finish what runs; a second Ctrl-C ends at once."""
        self._server.is_draining = True
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and tell."""
        await super().startup(sockets)
        (listener,) = sockets or []
        listener.listen(QUEUE)  # asyncio accepts as many at once as it is told that wait
        host, port = listener.getsockname()[:2]
        scheme = "https" if self.config.is_ssl else "http"
        self._ready(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")
