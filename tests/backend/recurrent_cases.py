"""Recurrent layers, and what they are given, for the tests of their schedules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relaxpy.ir.cell import GATES
from relaxpy.ir.dtype import DType
from relaxpy.op.base import sample
from relaxpy.op.recurrent_steps import RecurrentPanels, RecurrentSteps
from relaxpy.testing.op_samples import program_of
from relaxpy.tir.prim_func import PrimFunc


@dataclass
class Case:
    """A layer, and what it is given."""

    cell: str = "lstm"
    hidden: int = 19
    state: int = 0
    """The size of h, of a projection; 0: without one."""
    direction: str = "forward"
    dtype: str = "float32"
    lengths: bool = False
    bias: bool = False
    peepholes: bool = False
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def op(self) -> RecurrentSteps:
        return RecurrentSteps(self.cell, self.direction, **self.options)

    def inputs(self, length: int, batch: int) -> list[Any]:
        rng = np.random.default_rng([length, batch])
        count, gates = len(self.op.steps.backward), len(GATES[self.cell])
        state = self.state or self.hidden

        def numbers(*shape: int, dtype: str | None = None) -> np.ndarray:
            made = rng.uniform(-1, 1, shape).astype(np.float32) / max(1, shape[-1]) ** 0.5
            return made.astype(DType(dtype or self.dtype).numpy)

        wide = "float64" if self.dtype == "float64" else "float32"
        is_first = self.options.get("batch_first")
        shape = (batch, length) if is_first else (length, batch)
        found: list[Any] = [
            numbers(*shape, count * gates * self.hidden, dtype=wide) * 8,
            RecurrentPanels(gates).reference(numbers(count, gates * self.hidden, state)),
            numbers(count, batch, state),
            numbers(count, batch, self.hidden) if self.cell == "lstm" else (),
            numbers(count, self.hidden) if self.bias else (),
            numbers(count, 3, self.hidden) if self.peepholes else (),
            RecurrentPanels(1).reference(numbers(count, state, self.hidden)) if self.state else (),
            rng.integers(-1, length + 2, batch) if self.lengths else (),
        ]
        while isinstance(found[-1], tuple):
            found.pop()
        return found

    def reference(self, inputs: list[Any]) -> tuple[np.ndarray, ...]:
        given: list[Any] = [None if isinstance(x, tuple) else x for x in inputs]
        return self.op.reference(*given)

    def program(self) -> PrimFunc:
        """The tensor program, for any length and batch."""
        inputs = self.inputs(2, 3)
        names = "b t" if self.options.get("batch_first") else "t b"
        texts = [f"{names} {inputs[0].shape[2]}"]
        for number, x in enumerate(inputs[1:], 1):
            if isinstance(x, tuple):
                continue
            dims = [str(size) for size in x.shape]
            if number in (2, 3):
                dims[1] = "b"
            if number == 7:
                dims = ["b"]
            texts.append(" ".join(dims))
        program, _, _ = program_of(sample(self.op, *inputs, dims=", ".join(texts)), True)
        return program
