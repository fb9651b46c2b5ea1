"""How an engine runs a checkpoint, as its process is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from relaxpy.models.loaded import Scheme

CONTEXT = 4096
"""The most tokens of a text, if neither a user nor the model asks for fewer."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """A checkpoint, and the engine that runs it."""

    place: str
    """The folder of the checkpoint, or a GGUF file."""
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
    mmproj: str | None = None
    """The second file of a GGUF model that sees; None: the one beside it."""
    adapters: tuple[tuple[str, str], ...] = ()
    """Names and folders of LoRA adapters, as PEFT writes them."""

    def options(self) -> dict[str, Any]:
        """These settings as JSON has them."""
        own = asdict(self)
        return {field.name: own[field.name] for field in fields(EngineSettings)}

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """The settings of these options."""
        from relaxpy.models.loaded import Scheme

        own: dict[str, Any] = dict(given)
        if own.get("scheme") is not None:
            scheme: dict[str, Any] = {**own["scheme"]}
            scheme["adapters"] = tuple(scheme.get("adapters", ()))
            own["scheme"] = Scheme(**scheme)
        own["adapters"] = tuple(tuple(each) for each in own.get("adapters", ()))
        return cls(**own)
