"""A model that says what it is told: the answer of a request is the script of its seed's number."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from relaxpy.serve import Batch, Draw, Engine, Limits
from relaxpy.serve.pictures import Picture
from relaxpy.serve.request import Features


class Scripted:
    """Implements `relaxpy.serve.engine.Model`."""

    page_size = 16
    windows: Sequence[int] = (0,)
    adapters = 0
    source = None
    pictures = None

    def __init__(self, scripts: Sequence[Sequence[int]], end: int, vocab: int) -> None:
        self.scripts, self.end, self.vocab_size = scripts, end, vocab

    def encode(self, features: Sequence[Features], tables: np.ndarray) -> None:
        raise AssertionError("it has no encoder")

    def encode_picture(self, picture: Picture) -> np.ndarray:
        raise AssertionError("it sees no pictures")

    def step(self, batch: Batch, rows: np.ndarray) -> Any:
        time.sleep(0.0005)
        return len(rows)

    def sample(self, logits: Any, draws: Sequence[Draw]) -> tuple[np.ndarray, np.ndarray]:
        tokens: list[int] = []
        for draw in draws:
            script = self.scripts[draw.sampling.seed % len(self.scripts)]
            written = len(draw.tokens) - draw.prompt
            tokens.append(script[written] if written < len(script) else self.end)
        return np.array(tokens), np.full(len(tokens), -0.5, np.float32)

    def logits(self, logits: Any) -> np.ndarray:
        return np.zeros((logits, self.vocab_size), np.float32)


def scripted_engine(
    scripts: Sequence[Sequence[int]], end: int, vocab: int
) -> tuple[Engine, dict[str, Any]]:
    """For `relaxpy.serve.engine_process`."""
    model = Scripted(scripts, end, vocab)
    engine = Engine(model, pages=512, limits=Limits(16, 64), drafts=False)
    return engine, {"context": 4096, "vocab_size": vocab}
