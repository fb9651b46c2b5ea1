"""Curves of a training as SVG pictures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, BOTTOM, MARGIN = 720, 360, 56, 44, 16
_LINES = 5
_STYLE = """
.paper{fill:#fbfcfd;stroke:#d5dae0}.grid{stroke:#d5dae0}.loss{stroke:#b4bec9}.mean{stroke:#2f6db3;stroke-width:2}
polyline{fill:none}text{fill:#1d2530;font-family:system-ui,'Segoe UI',Helvetica,Arial,sans-serif;font-size:12px}
@media (prefers-color-scheme:dark){.paper{fill:#191d22;stroke:#343b44}.grid{stroke:#343b44}.loss{stroke:#56616d}
.mean{stroke:#6aa3e0}text{fill:#e3e7ec}}
"""


@dataclass(frozen=True)
class Axes:
    """The frame of a picture: `last` is the number at its right edge, where 0 is the left one; `low` and `high` are the
    values at its bottom and top."""

    last: float
    low: float
    high: float

    def x(self, number: float) -> float:
        return LEFT + (WIDTH - LEFT - MARGIN) * number / self.last

    def y(self, value: float) -> float:
        return MARGIN + (HEIGHT - BOTTOM - MARGIN) * (self.high - value) / (self.high - self.low)

    def line(self, kind: str, points: Iterable[tuple[float, float]]) -> str:
        """A line through points, in the style of this class."""
        text = " ".join(f"{self.x(number):.1f},{self.y(value):.1f}" for number, value in points)
        return f'<polyline class="{kind}" points="{text}"/>'

    def across(self, kind: str, value: float) -> str:
        """A level line."""
        y = f"{self.y(value):.1f}"
        return f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - MARGIN}" y1="{y}" y2="{y}"/>'

    def level(self, value: float, name: str) -> list[str]:
        """A line of the grid, with what it is called."""
        return [self.across("grid", value), words(LEFT - 8, self.y(value) + 4, name, "end")]

    def below(self, number: float, name: str, is_last: bool) -> str:
        """What a place of the axis is called."""
        return words(self.x(number), HEIGHT - BOTTOM + 20, name, "end" if is_last else "middle")


def words(left: float, top: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}">{text}</text>'


def picture(title: str, axis: str, style: str, parts: Iterable[str]) -> str:
    """The picture of these parts; `axis` says what its axes are."""
    paper = f'<rect class="paper" x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="7"/>'
    said = words((LEFT + WIDTH) / 2, HEIGHT - 8, axis, "middle")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{title}</title>'
        f"<style>{style}</style>{paper}{''.join(parts)}{said}</svg>\n"
    )


def curve(losses: Sequence[float], first: int = 1) -> str:
    """The loss of each step, and a running mean over a twentieth of them; `first` is the number of the first step."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    count = max(1, len(losses) - 1)
    axes = Axes(count, low, high if high > low else low + 1.0)
    parts: list[str] = []
    for part in range(_LINES):
        loss = low + (axes.high - low) * part / (_LINES - 1)
        number = round(count * part / (_LINES - 1))
        parts += axes.level(loss, f"{loss:.4g}")
        parts.append(axes.below(number, str(first + number), part == _LINES - 1))
    for kind, values in (("loss", losses), ("mean", _means(losses))):
        parts.append(axes.line(kind, (at for at in enumerate(values) if math.isfinite(at[1]))))
    axis = "steps; loss upwards (blue: its running mean)"
    return picture("Loss by step", axis, _STYLE, parts)


def _means(losses: Sequence[float]) -> list[float]:
    width = max(1, len(losses) // 20)
    found: list[float] = []
    for end in range(1, len(losses) + 1):
        last = losses[max(0, end - width) : end]
        found.append(sum(last) / len(last))
    return found
