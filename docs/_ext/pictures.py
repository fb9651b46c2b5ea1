"""Pictures of the pages, drawn from what they show: what relaxpy does (docs/index.md), and for docs/architecture.md the
path of a program with the phases of the default pipeline, and the packages with the table of decision 1.

    python -m docs._ext.pictures
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from docs._ext.navigation import DOCS
from relaxpy.build.pipeline import STANDARD

STYLE = """
.paper{fill:#fbfcfd;stroke:#d5dae0}.box{fill:#fff;stroke:#8a97a6}.ir{fill:#e8f1fb;stroke:#5b8cc4}
.run{fill:#e9f6ec;stroke:#5a9e6c}.kernel{fill:#fdf1e2;stroke:#c99a52}.area{fill:#f1f4f7;stroke:#d5dae0}
text{fill:#1d2530;font-family:system-ui,'Segoe UI',Helvetica,Arial,sans-serif;font-size:13px}
.name{font-weight:600;font-size:14px}.small{font-size:11.5px;fill:#526070}.tiny{font-size:10.5px;fill:#526070}
.code{font-family:ui-monospace,'DejaVu Sans Mono',Menlo,monospace;font-size:11.5px;fill:#526070}
.arrow{stroke:#6b7887;stroke-width:1.6;fill:none}.tip{fill:#6b7887}
@media (prefers-color-scheme:dark){
.paper{fill:#191d22;stroke:#343b44}.box{fill:#22272e;stroke:#6b7887}.ir{fill:#1c2c40;stroke:#5b8cc4}
.run{fill:#1b3022;stroke:#5a9e6c}.kernel{fill:#372a18;stroke:#c99a52}.area{fill:#1f242a;stroke:#343b44}
text{fill:#e3e7ec}.small,.tiny,.code{fill:#a3afbc}.arrow{stroke:#93a0ae}.tip{fill:#93a0ae}}
"""
"""Colours for light and dark pages. The picture has a background of its own, for pages whose theme is not that of the
system."""

ROW = re.compile(r"^\| `(?P<package>\w+)` \| (?P<holds>.*?) \|", re.MULTILINE)


@dataclass
class Picture:
    """An SVG picture under construction."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, kind: str = "box") -> None:
        self.parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7"/>'
        )

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        kind = f' class="{kind}"' if kind else ""
        self.parts.append(
            f'<text{kind} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def labelled(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        name: str,
        lines: Sequence[str],
        kind: str = "box",
    ) -> None:
        """A box with a name and lines of smaller text, in its middle."""
        self.box(x, y, width, height, kind)
        top = y + height / 2 - 8 * len(lines) + 5
        self.text(x + width / 2, top, name, "name", "middle")
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + 18 + 16 * number, line, "small", "middle")

    def arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """An arrow, straight down or first down, then across, then down."""
        middle = (y + to_y - 6) / 2
        bend = "" if x == to_x else f"V{middle:g}H{to_x:g}"
        self.parts.append(f'<path class="arrow" d="M{x:g} {y:g}{bend}V{to_y - 6:g}"/>')
        self.parts.append(f'<path class="tip" d="M{to_x - 5:g} {to_y - 8:g}h10l-5 8z"/>')

    def svg(self) -> str:
        """The text of the picture."""
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" role="img" aria-label="{escape(self.title)}">',
                f"<title>{escape(self.title)}</title>",
                f"<style>{STYLE}</style>",
                f'<rect class="paper" x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="10"/>',
                *self.parts,
                "</svg>",
                "",
            ]
        )


def overview() -> str:
    """From models to machines, for the front page. Its letters are large: a phone shows it at half its width."""
    p = Picture(700, 500, "What relaxpy does")
    p.parts.append(
        "<style>.large{font-size:19px;font-weight:600}.line{font-size:17px;fill:#526070}"
    )
    p.parts.append("@media (prefers-color-scheme:dark){.line{fill:#a3afbc}}</style>")

    def row(y: float, names: Sequence[str]) -> list[float]:
        """Boxes beside each other, as wide as their names; where their middles are."""
        letter = (660 - 8 * (len(names) - 1)) / sum(len(name) + 3 for name in names)
        x, middles = 20.0, list[float]()
        for name in names:
            width = letter * (len(name) + 3)
            p.box(x, y, width, 50)
            middles.append(round(x + width / 2))
            p.text(middles[-1], y + 32, name, "large", "middle")
            x += width + 8
        return middles

    def stage(y: float, name: str, line: str, kind: str) -> None:
        p.box(20, y, 660, 84, kind)
        p.text(350, y + 36, name, "large", "middle")
        p.text(350, y + 64, line, "line", "middle")

    for x in row(20, ["PyTorch", "JAX", "ONNX", "checkpoints", "Python"]):
        p.arrow(x, 70, x, 104)
    stage(
        104,
        "one program, whose sizes are symbols",
        "graphs and loops side by side: x is (n, 64), for any n",
        "ir",
    )
    p.arrow(350, 188, 350, 222)
    stage(
        222,
        "compiled once, ahead of time",
        "fused, scheduled for the machine, its memory planned",
        "kernel",
    )
    p.arrow(350, 306, 350, 340)
    p.box(20, 340, 660, 50, "run")
    p.text(350, 372, "one file, for every size", "large", "middle")
    for x in row(424, ["CPU", "CUDA", "Vulkan", "OpenCL", "browser"]):
        p.arrow(x, 390, x, 424)
    return p.svg()


def path_of_a_program() -> str:
    """From source to results, with the phases of the default pipeline."""
    p = Picture(960, 850, "The path of a program through relaxpy")
    for x, name, lines in (
        (60, "decorated Python, or text", ["@R.function, relaxpy.parse", "relaxpy.script"]),
        (350, "modules of layers", ["nn.Module, export", "relaxpy.nn"]),
        (640, "built in Python", ["BlockBuilder, operators", "relaxpy.op"]),
    ):
        p.labelled(x, 24, 260, 70, name, lines)
        p.arrow(x + 130, 94, 480, 132)
    p.labelled(
        190, 132, 580, 76, "IRModule: one module for all levels",
        [
            "graph functions, tensor programs and library calls, of the same symbolic n",
            "annotations are deduced and checked · relaxpy.ir, shape, analysis",
        ],
        "ir",
    )  # fmt: skip
    p.arrow(480, 208, 480, 240)
    p.box(30, 240, 900, 296, "area")
    p.text(48, 262, "Passes, module to module", "name")
    p.text(912, 262, "relaxpy.transform, in the order of relaxpy/build/pipeline.py", "small", "end")
    columns, left, top = 5, 48, 276
    width, height = (912 - left + 8) / columns, 124
    for number, phase in enumerate(STANDARD):
        x, y = left + number % columns * width, top + number // columns * height
        p.box(x, y, width - 8, height - 8, "ir")
        p.text(x + 10, y + 19, f"{number + 1} {phase.name}", "name")
        for line, name in enumerate(dict.fromkeys(step.name for step in phase.passes)):
            p.text(x + 10, y + 36 + 12.5 * line, name, "tiny")
    x, y = left + len(STANDARD) % columns * width, top + len(STANDARD) // columns * height
    p.text(x + 10, y + 52, "A target adds passes of", "small")
    p.text(x + 10, y + 68, "its own, such as the", "small")
    p.text(x + 10, y + 84, "packing of weights.", "small")
    p.arrow(265, 536, 265, 574)
    p.arrow(695, 536, 695, 574)
    p.labelled(
        60, 574, 410, 76, "tensor programs → kernels",
        ["schedules by analysis of the loops, LLVM or OpenCL", "once for each processor · relaxpy.backend, tir"],
        "kernel",
    )  # fmt: skip
    p.labelled(
        490, 574, 410, 76, "graph functions → bytecode",
        ["allocations and calls over registers,", "sizes as formulas over a heap · relaxpy.build"],
        "kernel",
    )  # fmt: skip
    p.arrow(265, 650, 480, 686)
    p.arrow(695, 650, 480, 686)
    p.labelled(
        250,
        686,
        460,
        54,
        "Executable: one file, every size",
        ["bytecode, constants, kernel images"],
    )
    p.arrow(480, 740, 480, 772)
    p.labelled(
        190, 772, 580, 58, "VirtualMachine: results for n = 1, 7, 1000, …",
        ["links once, called from any number of threads, without the compiler · relaxpy.runtime"], "run",
    )  # fmt: skip
    return p.svg()


def holds() -> dict[str, str]:
    """Package → what it holds, from the table of decision 1."""
    page = (DOCS / "decisions" / "0001-layers.md").read_text(encoding="utf-8")
    return {row["package"]: row["holds"].replace("`", "") for row in ROW.finditer(page)}


def layers() -> str:
    """The packages: a box stands on those that it imports."""
    facts = holds()
    rest = dict(facts)
    p = Picture(960, 782, "The packages of relaxpy in layers")

    def package(
        name: str, x: float, y: float, width: float, height: float, kind: str, letters: int
    ) -> None:
        p.labelled(x, y, width, height, name, _wrapped(rest.pop(name), letters), kind)

    p.labelled(24, 20, 440, 62, "cli", ["the command relaxpy"])
    package("server", 476, 20, 214, 62, "run", 30)
    package("web", 702, 20, 234, 62, "run", 38)
    package("llm", 24, 92, 226, 62, "run", 34)
    p.labelled(260, 92, 164, 62, "models", ["BERT, Llama, ViT"])
    package("serve", 434, 92, 216, 62, "run", 34)
    package("speech", 660, 92, 130, 62, "run", 20)
    package("vision", 800, 92, 136, 62, "run", 21)
    package("torch", 24, 164, 118, 92, "run", 17)
    package("jax", 152, 164, 118, 92, "run", 17)
    package("onnx", 280, 164, 118, 92, "run", 17)
    package("train", 408, 164, 94, 92, "run", 14)
    package("explain", 510, 164, 84, 92, "box", 12)
    package("testing", 602, 164, 90, 92, "box", 13)
    package("checkpoints", 702, 164, 234, 92, "run", 34)
    package("build", 24, 266, 440, 62, "kernel", 60)
    package("backend", 24, 338, 440, 62, "kernel", 66)
    package("transform", 24, 410, 440, 62, "ir", 60)
    package("script", 476, 266, 134, 206, "ir", 18)
    package("nn", 622, 266, 138, 97, "ir", 20)
    package("frontend", 622, 375, 138, 97, "ir", 20)
    package("analysis", 24, 482, 736, 46, "ir", 90)
    package("op", 24, 538, 736, 46, "ir", 90)
    package("shape", 24, 594, 736, 46, "ir", 90)
    package("tir", 24, 650, 736, 46, "ir", 100)
    package("ir", 24, 706, 736, 46, "ir", 90)
    package("runtime", 772, 266, 164, 486, "run", 22)
    p.text(24, 770, "errors, target, services: leaves that all may import", "small")
    p.text(936, 770, "no package imports one above it", "small", "end")
    assert not rest, f"packages without a place: {', '.join(rest)}"
    return p.svg()


def _wrapped(words: str, letters: int) -> list[str]:
    lines = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > letters:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


PICTURES = {"overview.svg": overview, "architecture.svg": path_of_a_program, "layers.svg": layers}
"""File in docs → the function that draws it."""

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (DOCS / name).write_text(draw(), encoding="utf-8")
