"""The losses of a training as an SVG picture."""

from __future__ import annotations

import math
from collections.abc import Sequence

WIDTH, HEIGHT, LEFT, BOTTOM, MARGIN = 720, 360, 56, 44, 16
_LINES = 5
_STYLE = """
.paper{fill:#fbfcfd;stroke:#d5dae0}.grid{stroke:#d5dae0}.loss{stroke:#b4bec9}.mean{stroke:#2f6db3;stroke-width:2}
polyline{fill:none}text{fill:#1d2530;font-family:system-ui,'Segoe UI',Helvetica,Arial,sans-serif;font-size:12px}
@media (prefers-color-scheme:dark){.paper{fill:#191d22;stroke:#343b44}.grid{stroke:#343b44}.loss{stroke:#56616d}
.mean{stroke:#6aa3e0}text{fill:#e3e7ec}}
"""


def curve(losses: Sequence[float], first: int = 1) -> str:
    """The loss of each step, and a running mean over a twentieth of them; `first` is the number of the first step."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    high = high if high > low else low + 1.0
    count = max(1, len(losses) - 1)

    def x(number: float) -> float:
        return LEFT + (WIDTH - LEFT - MARGIN) * number / count

    def y(loss: float) -> float:
        return MARGIN + (HEIGHT - BOTTOM - MARGIN) * (high - loss) / (high - low)

    def line(kind: str, values: Sequence[float]) -> str:
        points = " ".join(
            f"{x(n):.1f},{y(each):.1f}" for n, each in enumerate(values) if math.isfinite(each)
        )
        return f'<polyline class="{kind}" points="{points}"/>'

    def text(left: float, top: float, words: str, anchor: str) -> str:
        return f'<text x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}">{words}</text>'

    parts = [
        f'<rect class="paper" x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="7"/>'
    ]
    for part in range(_LINES):
        loss = low + (high - low) * part / (_LINES - 1)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - MARGIN}" y1="{y(loss):.1f}" y2="{y(loss):.1f}"/>'
        )
        parts.append(text(LEFT - 8, y(loss) + 4, f"{loss:.4g}", "end"))
        step = first + round(count * part / (_LINES - 1))
        anchor = "end" if part == _LINES - 1 else "middle"
        parts.append(text(x(step - first), HEIGHT - BOTTOM + 20, str(step), anchor))
    parts += [line("loss", losses), line("mean", _means(losses))]
    parts.append(
        text(
            (LEFT + WIDTH) / 2, HEIGHT - 8, "steps; loss upwards (blue: its running mean)", "middle"
        )
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>Loss by step</title>'
        f"<style>{_STYLE}</style>{''.join(parts)}</svg>\n"
    )


def _means(losses: Sequence[float]) -> list[float]:
    width = max(1, len(losses) // 20)
    found: list[float] = []
    for end in range(1, len(losses) + 1):
        last = losses[max(0, end - width) : end]
        found.append(sum(last) / len(last))
    return found
