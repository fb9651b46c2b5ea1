"""Settings of a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from relaxpy.models.loaded import Scheme
    from relaxpy.serve.scale import Scale

CONTEXT = 4096


@dataclass(frozen=True)
class ModelSettings:
    """A model of a server."""

    name: str
    """Its name in requests."""
    place: str
    """The folder of its checkpoint, or a GGUF file."""
    scheme: Scheme | None = None
    context: int | None = None
    """The most tokens of a text, prompt included; None: the model's, at most `CONTEXT`."""
    cache_tokens: int = 16_384
    """The keys and values of so many tokens are kept, together."""
    target: str = "llvm"
    keep: bool = True
    """Whether the compiled model is kept."""
    threads: int | None = None
    running: int = 16
    """The most texts in a step."""
    waiting: int = 256
    """The most requests that wait."""
    target_seconds: float = 0.1
    """The time between tokens that prompts leave to others."""
    drafts: bool = True
    """Whether drafts are looked up in the text."""
    adapters: tuple[tuple[str, str], ...] = ()
    """Names and folders of LoRA adapters."""
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
    certificate: str | None = None
    """Files of the certificate and the key for TLS."""
    private_key: str | None = None
    most_bytes: int = 4 << 20
    """The largest body of a request."""
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
