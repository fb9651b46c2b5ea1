"""A simulated accelerator: a matrix core that multiplies 16 × 16 blocks of int8 (Relay's §4.6 and §5.4 have VTA).

It has three small memories, copies blocks to and from the host's, and knows no floats and no scales: what it can do
with a sum is to add a bias, take a maximum with 0, and shift to the right.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

BLOCK = 16


class Core:
    """The core with its memories. Each method is an instruction; `counts` says how many were executed."""

    def __init__(self) -> None:
        self.inputs = np.zeros((BLOCK, BLOCK), np.int8)
        self.weights = np.zeros((BLOCK, BLOCK), np.int8)
        self.sums = np.zeros((BLOCK, BLOCK), np.int32)
        self.counts: Counter[str] = Counter()

    def load_inputs(self, memory: np.ndarray, row: int, column: int) -> None:
        """Copy a block of a matrix; zeros where the matrix ends."""
        self.counts["load_inputs"] += 1
        block = memory[row : row + BLOCK, column : column + BLOCK]
        self.inputs[:] = 0
        self.inputs[: block.shape[0], : block.shape[1]] = block

    def load_weights(self, block: np.ndarray) -> None:
        """Copy a block that lies in one piece."""
        self.counts["load_weights"] += 1
        self.weights[:] = block

    def start(self, bias: np.ndarray) -> None:
        """Set the sums of each column to its bias."""
        self.counts["start"] += 1
        self.sums[:] = bias

    def multiply(self) -> None:
        """Add the products of the inputs' rows with the weights' rows."""
        self.counts["multiply"] += 1
        self.sums += self.inputs.astype(np.int32) @ self.weights.astype(np.int32).T

    def finish(self, shift: int, relu: bool) -> None:
        """Take the maximum with 0, if asked; shift to the right, rounding halves to even; saturate to int8."""
        self.counts["finish"] += 1
        if relu:
            np.maximum(self.sums, 0, out=self.sums)
        below = self.sums & ((1 << shift) - 1)
        self.sums >>= shift
        half = (1 << shift) >> 1
        self.sums += (below > half) | ((below == half) & (self.sums & 1 == 1) & (half > 0))
        np.clip(self.sums, -128, 127, out=self.sums)

    def store(self, memory: np.ndarray, row: int, column: int) -> None:
        """Copy the sums to a block of a matrix, as far as it goes."""
        self.counts["store"] += 1
        block = memory[row : row + BLOCK, column : column + BLOCK]
        block[:] = self.sums[: block.shape[0], : block.shape[1]]


def layer(
    core: Core,
    x: np.ndarray,
    weights: np.ndarray,
    bias: np.ndarray,
    out: np.ndarray,
    finish: tuple[int, bool] | None,
) -> None:
    """The driver: a layer for any number of rows. `weights` are in blocks, (outputs / 16, inputs / 16, 16, 16), and the
    bias in int32 to 16. Without `finish` the sums are the result."""
    for row in range(0, len(x), BLOCK):
        for j, blocks in enumerate(weights):
            core.start(bias[j])
            for k, block in enumerate(blocks):
                core.load_inputs(x, row, k * BLOCK)
                core.load_weights(block)
                core.multiply()
            if finish is not None:
                core.finish(*finish)
            core.store(out, row, j * BLOCK)
