"""The curve of a training run as an SVG picture: bits per byte over tokens, of the texts it reads and of those held
out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relaxpy.train.curve import LEFT, MARGIN, WIDTH, Axes, picture, words

TOP_BITS = 5.0
"""The highest bits per byte that are drawn."""

_STYLE = """
.paper{fill:#fbfcfd;stroke:#d5dae0}.grid{stroke:#d5dae0}.training{stroke:#b4bec9}.held{stroke:#2f6db3;stroke-width:2}
.xz{stroke:#c99a52;stroke-dasharray:6 4;stroke-width:1.5}polyline{fill:none}
text{fill:#1d2530;font-family:system-ui,'Segoe UI',Helvetica,Arial,sans-serif;font-size:12px}
@media (prefers-color-scheme:dark){.paper{fill:#191d22;stroke:#343b44}.grid{stroke:#343b44}.training{stroke:#56616d}
.held{stroke:#6aa3e0}text{fill:#e3e7ec}}
"""


def curve(log: Sequence[Mapping[str, Any]], xz: float) -> str:
    """The picture of a log's lines. The finish begins where its first line is."""
    most = max((line["tokens"] for line in log), default=1)
    axes = Axes(most, 0.0, TOP_BITS)

    def line(kind: str, key: str) -> str:
        points = ((each["tokens"], min(each[key], TOP_BITS)) for each in log if key in each)
        return axes.line(kind, points)

    parts = [part for bits in range(int(TOP_BITS) + 1) for part in axes.level(bits, str(bits))]
    for part in range(5):
        tokens = most * part / 4
        parts.append(axes.below(tokens, f"{tokens / 1e6:.1f} M", part == 4))
    finish = [each["tokens"] for each in log if each["phase"] == "finish"]
    if finish:
        x = axes.x(finish[0])
        parts += [
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{axes.y(TOP_BITS)}" y2="{axes.y(0)}"/>',
            words(x - 6, MARGIN + 14, "from here a falling rate, rows of 1024", "end"),
        ]
    parts += [line("training", "training"), line("held", "held_out"), axes.across("xz", xz)]
    parts.append(words(LEFT + 8, axes.y(xz) - 6, f"xz: {xz:.2f}"))
    last = [each["held_out"] for each in log if "held_out" in each]
    if last:
        said = f"a part of the held-out files: {last[-1]:.2f}"
        parts.append(words(WIDTH - MARGIN - 6, axes.y(min(last[-1], TOP_BITS)) - 10, said, "end"))
    axis = "tokens seen; bits per byte upwards (grey: training)"
    title = "Training of the embedded model: bits per byte over tokens"
    return picture(title, axis, _STYLE, parts)
