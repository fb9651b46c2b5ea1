"""The builds, breaks and fallbacks of `torch.compile(…, backend="relaxpy")`: `report`.

A graph that is not compiled, and a place where torch leaves the graph, is a warning, once for each reason; the report
has all of them, with what was built.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from threading import Lock

from relaxpy.errors import RelaxError


class GraphWarning(UserWarning):
    """A function given to torch.compile, or a part of it, runs in torch."""


@dataclass(frozen=True)
class Built:
    """A graph that was compiled."""

    name: str
    """The function that it is of, and the line."""
    nodes: int
    """How many operators it has."""
    kind: str
    """`inference`, or `training`: with the values that its backward needs, which torch runs."""
    sizes: tuple[str, ...]
    """The sizes that vary."""
    seconds: float
    """The time of import and build."""
    kernels: int
    reused: int
    """How many of the kernels were compiled already."""

    def __str__(self) -> str:
        vary = f", for every {', '.join(self.sizes)}" if self.sizes else ", for one size"
        kernels = f"{self.kernels} kernel{'' if self.kernels == 1 else 's'}"
        known = f" ({self.reused} of them known)" if self.reused else ""
        return f"{self.name}: {self.nodes} operators of {self.kind}{vary}; {kernels}{known}, {self.seconds:.2f} s"


@dataclass(frozen=True)
class InTorch:
    """The part that runs in torch, and the reason."""

    name: str
    """The function, and the line."""
    reason: str
    advice: str = ""
    """The setting that helps, or the text to write instead."""

    def __str__(self) -> str:
        advice = f"\n    {self.advice}" if self.advice else ""
        return f"{self.name}: {self.reason}{advice}"


@dataclass(frozen=True)
class Report:
    """Graphs that were compiled, graphs that were not, and places where torch left a graph. Prints as text."""

    built: tuple[Built, ...] = ()
    fallbacks: tuple[InTorch, ...] = ()
    """Graphs that run in torch as a whole."""
    breaks: tuple[InTorch, ...] = ()
    """Places where a graph ends, and what follows runs in torch, or in another graph."""

    def __str__(self) -> str:
        parts = [
            _section("compiled", self.built),
            _section("not compiled: run by torch", self.fallbacks),
            _section("graph breaks: run by torch", self.breaks),
        ]
        return "\n".join(part for part in parts if part) or "nothing was compiled"


def _section(title: str, lines: tuple[object, ...]) -> str:
    return "\n".join([f"{title}:", *(f"  {line}" for line in lines)]) if lines else ""


@dataclass
class _Log:
    """The record of this process."""

    lock: Lock = field(default_factory=Lock)
    built: list[Built] = field(default_factory=list[Built])
    fallbacks: dict[InTorch, None] = field(default_factory=dict[InTorch, None])
    breaks: dict[InTorch, None] = field(default_factory=dict[InTorch, None])


_log = _Log()


def add_built(built: Built) -> None:
    with _log.lock:
        _log.built.append(built)


def add_fallback(name: str, error: Exception) -> None:
    """A graph that cannot be compiled."""
    if isinstance(error, RelaxError):
        found = InTorch(name, error.message, error.help or "")
    else:
        kind = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        found = InTorch(name, kind, "an error of relaxpy: please report it")
    with _log.lock:
        new = found not in _log.fallbacks
        _log.fallbacks[found] = None
    if new:
        _warn(f"a graph runs in torch: {found}")


def add_break(name: str, text: str, warn: bool = True) -> None:
    """A place where torch leaves the graph, with torch's text of it."""
    found = InTorch(name, *_reason(text))
    with _log.lock:
        new = found not in _log.breaks
        _log.breaks[found] = None
    if new and warn:
        _warn(f"a graph ends here, and what follows runs in torch or in another graph: {found}")


def report() -> Report:
    """The builds, breaks and fallbacks of `torch.compile(…, backend="relaxpy")` in this process.

    Functions that torch did not trace at all, such as those that call an `nn.LSTM`, are among the breaks; torch keeps
    the last 64 of them, for all backends.
    """
    _add_skipped()
    with _log.lock:
        return Report(tuple(_log.built), tuple(_log.fallbacks), tuple(_log.breaks))


def _add_skipped() -> None:
    """Add the functions that torch gave up, so that no backend saw them."""
    from torch._dynamo.utils import get_compilation_metrics

    for each in get_compilation_metrics():
        if each.fail_reason and each.co_filename:
            place = place_of(each.co_name or "", each.co_filename, each.co_firstlineno or 1)
            add_break(place, each.fail_reason, warn=False)


def place_of(function: str, file: str, line: int) -> str:
    """A function, and a line of it."""
    return f"{function} ({file}:{line})"


_SETTING = re.compile(r"torch\._dynamo\.config\.\w+ ?= ?\w+")


def _reason(text: str) -> tuple[str, str]:
    """The reason and the advice in torch's text of a break."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    reason = lines[0] if lines else "torch says nothing"
    settings = _SETTING.findall(text)
    hints = [line.removeprefix("Hint: ") for line in lines if line.startswith("Hint: ")]
    if settings:
        return reason, f"set {settings[0]}"
    return reason, hints[0] if hints else ""


def _warn(text: str) -> None:
    warnings.warn(GraphWarning(f"{text} (relaxpy.torch.report() lists all)"), stacklevel=2)
