"""Operators that an importer does not know: all of a program at once, with counts and the user's lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from relaxpy.errors import Span, UsageError


def refuse(
    found: Iterable[tuple[str, Span | None]], texts: Mapping[str, str], code: str, page: str
) -> None:
    """Raise UsageError (`code`) for these calls of operators that are not known, if there are any. `texts` say what
    to write: beginning of a name → text; `page` is the page of the docs with that table."""
    counts: Counter[str] = Counter()
    places: dict[str, Span | None] = {}
    for name, span in found:
        counts[name] += 1
        places.setdefault(name, span)
    if not counts:
        return
    shown = [
        f"{name} ({_times(count)}{_at(places[name])}){f': {text}' if (text := instead(name, texts)) else ''}"
        for name, count in counts.most_common()
    ]
    plural = "s" if len(shown) > 1 else ""
    raise UsageError(
        code,
        f"{len(shown)} operator{plural} of this program {'are' if plural else 'is'} not supported: "
        + "; ".join(shown),
        span=places[next(iter(counts))],
        help=f"write it with other operators ({page} lists what is not taken, and what to write)",
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _at(span: Span | None) -> str:
    return "" if span is None else f", first at {span.file}:{span.line}"


def instead(name: str, texts: Mapping[str, str]) -> str | None:
    """What to write in place of an operator; None: nothing is known."""
    return next((text for key, text in texts.items() if name.startswith(key)), None)
