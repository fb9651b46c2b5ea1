"""The curve of a training run as an SVG picture: bits per byte over tokens, of the texts it reads and of those held
out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WIDTH, HEIGHT, LEFT, BOTTOM, MARGIN = 720, 360, 56, 44, 16
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

    def x(tokens: float) -> float:
        return LEFT + (WIDTH - LEFT - MARGIN) * tokens / most

    def y(bits: float) -> float:
        return MARGIN + (HEIGHT - BOTTOM - MARGIN) * (1 - min(bits, TOP_BITS) / TOP_BITS)

    def line(kind: str, key: str) -> str:
        points = " ".join(
            f"{x(each['tokens']):.1f},{y(each[key]):.1f}" for each in log if key in each
        )
        return f'<polyline class="{kind}" points="{points}"/>'

    def across(kind: str, bits: float) -> str:
        return f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - MARGIN}" y1="{y(bits):.1f}" y2="{y(bits):.1f}"/>'

    def text(left: float, top: float, words: str, anchor: str = "start") -> str:
        return f'<text x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}">{words}</text>'

    parts = [
        f'<rect class="paper" x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="7"/>'
    ]
    for bits in range(int(TOP_BITS) + 1):
        parts += [across("grid", bits), text(LEFT - 8, y(bits) + 4, str(bits), "end")]
    for part in range(5):
        tokens = most * part / 4
        parts.append(
            text(
                x(tokens),
                HEIGHT - BOTTOM + 20,
                f"{tokens / 1e6:.1f} M",
                "middle" if part < 4 else "end",
            )
        )
    finish = [each["tokens"] for each in log if each["phase"] == "finish"]
    if finish:
        parts.append(
            f'<line class="grid" x1="{x(finish[0]):.1f}" x2="{x(finish[0]):.1f}" y1="{y(TOP_BITS)}" y2="{y(0)}"/>'
        )
        parts.append(
            text(x(finish[0]) - 6, MARGIN + 14, "from here a falling rate, rows of 1024", "end")
        )
    parts += [line("training", "training"), line("held", "held_out"), across("xz", xz)]
    parts.append(text(LEFT + 8, y(xz) - 6, f"xz: {xz:.2f}"))
    last = [each["held_out"] for each in log if "held_out" in each]
    if last:
        parts.append(
            text(
                WIDTH - MARGIN - 6,
                y(last[-1]) - 10,
                f"a part of the held-out files: {last[-1]:.2f}",
                "end",
            )
        )
    parts.append(
        text(
            (LEFT + WIDTH) / 2,
            HEIGHT - 8,
            "tokens seen; bits per byte upwards (grey: training)",
            "middle",
        )
    )
    title = "Training of the embedded model: bits per byte over tokens"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{title}</title>'
        f"<style>{_STYLE}</style>{''.join(parts)}</svg>\n"
    )
