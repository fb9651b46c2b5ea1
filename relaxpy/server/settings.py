"""Settings of a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from relaxpy.serve.engine_settings import EngineSettings

if TYPE_CHECKING:
    from relaxpy.serve.scale import Scale


@dataclass(frozen=True, kw_only=True)
class ModelSettings(EngineSettings):
    """A model of a server."""

    name: str
    """Its name in requests."""
    chat_template: str | None = None


@dataclass(frozen=True)
class ServerSettings:
    """How a server meets the world."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    """Keys, one of which a request must have; none: everybody may ask."""
    origins: tuple[str, ...] = ()
    """Web pages of these origins may ask (CORS)."""
    image_hosts: tuple[str, ...] = ()
    """Hosts from whose addresses pictures of requests are fetched (`relaxpy.server.fetch.Hosts`)."""
    certificate: str | None = None
    """Files of the certificate and the key for TLS."""
    private_key: str | None = None
    most_bytes: int = 4 << 20
    """The largest body of a request."""
    most_sound: int = 25 << 20
    """The largest body of a request with a recording."""
    sound_seconds: float = 7200.0
    """The longest recording."""
    body_seconds: float = 30.0
    """The most time that a body takes to arrive."""
    request_seconds: float = 600.0
    """The most time that an answer takes."""
    drain_seconds: float = 30.0
    """After SIGTERM, the most time for what runs."""
    connections: int = 1024
    """The most connections."""
    log: Literal["text", "json", "none"] = "text"
    """How each request is logged on stderr."""
    precision: str = "float32"
    """What models for vectors compute products with weights in (`relaxpy.models.sentence_embedding.PRECISIONS`)."""
    scale: Scale | None = None
    """Replicas of each engine, by Ray Serve; None: each is a process of this server."""
    most_stored: int = 1000
    """Answers that `previous_response_id` finds."""
