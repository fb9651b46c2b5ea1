"""Pictures of shapes, drawn by Pillow: for the training of tests/vision/shapes, and as tests of it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from PIL import Image, ImageDraw

SIDE = 48
"""Pixels of a side, as the model sees pictures."""
COLORS = {
    "red": (215, 35, 35), "green": (35, 165, 55), "blue": (40, 70, 215), "yellow": (235, 215, 45),
    "purple": (145, 45, 165), "white": (245, 245, 245),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "cross")
QUESTIONS = ("What is this?", "Which color?", "Which shape?")


def draw(rng: random.Random, color: str, shape: str, side: int = SIDE) -> Image.Image:
    """A picture of a shape."""
    scale = 4  # edges are smooth
    ground = [rng.randint(20, 110)] * 3
    ground = [max(0, each + rng.randint(-15, 15)) for each in ground]
    image = Image.new("RGB", (side * scale, side * scale), (ground[0], ground[1], ground[2]))
    pen = ImageDraw.Draw(image)
    radius = rng.uniform(0.25, 0.42) * side * scale
    x, y = (rng.uniform(radius, side * scale - radius) for _ in range(2))
    fill = tuple(min(255, max(0, each + rng.randint(-20, 20))) for each in COLORS[color])
    turned = math.radians(rng.uniform(-15, 15)) + math.pi * {"square": 0.25, "triangle": -0.5}.get(
        shape, 0
    )

    def polygon(points: Sequence[tuple[float, float]]) -> None:
        """Points are angles in whole turns, and shares of the radius."""
        pen.polygon(
            [
                (
                    x + r * radius * math.cos(turned + 2 * math.pi * at),
                    y + r * radius * math.sin(turned + 2 * math.pi * at),
                )
                for at, r in points
            ],
            fill=fill,
        )

    if shape == "circle":
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)
    elif shape == "cross":
        tip, corner, inner = (
            math.atan2(0.3, 1) / (2 * math.pi),
            math.hypot(1, 0.3),
            0.3 * math.sqrt(2),
        )
        corner, inner = corner / math.hypot(1, 0.3), inner / math.hypot(1, 0.3)
        arms = [
            [(k / 4 - tip, corner), (k / 4 + tip, corner), (k / 4 + 1 / 8, inner)] for k in range(4)
        ]
        polygon([point for arm in arms for point in arm])
    else:
        corners = 4 if shape == "square" else 3
        polygon([(k / corners, 1) for k in range(corners)])
    return image.resize((side, side), Image.Resampling.BILINEAR)


def answer_to(question: str, color: str, shape: str) -> str:
    return {QUESTIONS[0]: f"{color} {shape}", QUESTIONS[1]: color, QUESTIONS[2]: shape}[question]
