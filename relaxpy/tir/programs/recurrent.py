"""The steps of a recurrent layer as a tensor program: a row for every direction and sequence, which takes its steps one
after the other.

The state is in the outputs for the last state, and is updated in place when all gates of a step are computed. The
block of the rows carries what a step computes as text (`CELL`), from which `relaxpy.tir.recognise.recurrent` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from relaxpy.ir.cell import ACTIVATIONS, PANEL, Activation, Cell
from relaxpy.ir.dim import Dim
from relaxpy.ir.dtype import DType
from relaxpy.tir import te
from relaxpy.tir.analyzer import VarTable
from relaxpy.tir.numerics import scalar
from relaxpy.tir.programs.loops import Buffer, Expr, constant, floordiv, floormod
from relaxpy.tir.programs.rows import known, scratch
from relaxpy.tir.programs.serial import Serial, serial

CELL = "relaxpy.cell"
"""Annotation of the block of the rows: what a step computes, and whether the batch is the first axis, as JSON."""


@dataclass(frozen=True)
class Operands:
    """The buffers (or tensors) of a recurrent layer, of D directions."""

    inputs: Any
    """(length, batch, D * gates * hidden), or (batch, length, …)."""
    weight: Any
    """(D, panels, state, gates, `PANEL`), as `nn.recurrent_panels` packs it."""
    initial_h: Any
    """(D, batch, state)."""
    initial_c: Any = None
    """(D, batch, hidden)."""
    bias: Any = None
    """(D, hidden)."""
    peepholes: Any = None
    """(D, 3, hidden)."""
    projection: Any = None
    """(D, panels, hidden, 1, `PANEL`), likewise."""
    lengths: Any = None
    """(batch,)."""

    @property
    def given(self) -> list[Any]:
        """Those that there are."""
        return [each for each in vars(self).values() if each is not None]

    def of(self, buffers: Sequence[Any]) -> Operands:
        """These buffers in the place of those that there are."""
        left = iter(buffers)
        return Operands(**{n: None if x is None else next(left) for n, x in vars(self).items()})


def recurrent(step: Cell, operands: Operands, batch_first: bool) -> list[Any]:
    """The outputs (length, batch, D * state), or (batch, length, …), the last h (D, batch, state), and of an LSTM the
    last c, as tensors."""
    table = VarTable(shared=True)
    inputs, weight = (list(map(table.to_dim, x.shape)) for x in (operands.inputs, operands.weight))
    batch = inputs[0 if batch_first else 1]
    dtype = str(operands.weight.dtype)
    directions = Dim.of(len(step.backward))
    shapes = [[*inputs[:2], directions * weight[2]], [directions, batch, weight[2]]]
    if operands.initial_c is not None:
        hidden = list(map(table.to_dim, operands.initial_c.shape))[2]
        shapes.append([directions, batch, hidden])

    def fill(p: Serial, *buffers: Buffer) -> None:
        outs, given = buffers[: len(shapes)], buffers[len(shapes) :]
        extents = [te.dim(directions), te.dim(batch)]
        with p.block("row", extents, apart=True, attrs={CELL: written(step, batch_first)}) as place:
            Row(p, step, operands.of(given), outs, batch_first, *place).write()

    return serial([(shape, dtype) for shape in shapes], operands.given, fill, "recurrent")


def written(step: Cell, batch_first: bool) -> str:
    """What a step computes, and whether the batch is the first axis, as text."""
    return json.dumps([asdict(step), batch_first])


def read(text: str) -> tuple[Cell, bool]:
    """What `written` wrote. Raises: ValueError, TypeError, KeyError for other texts."""
    made, batch_first = json.loads(text)
    return Cell(**{**made, "activations": tuple(made["activations"])}), bool(batch_first)


class Row:
    """Writes the steps of a direction and a sequence: one statement after the other. Schedules for several threads
    override what says which elements a thread computes, and when it waits for others."""

    def __init__(
        self, p: Serial, step: Cell, operands: Operands, outs: Sequence[Buffer], batch_first: bool,
        direction: Expr, row: Expr,
    ) -> None:  # fmt: skip
        self.p, self.step, self.x, self.batch_first = p, step, operands, batch_first
        self.y, self.h, *self.c = outs
        self.direction, self.row = direction, row
        dtype = DType(str(self.h.dtype))
        self.wide = str(DType("float32") if dtype.is_narrow else dtype)
        self.length = operands.inputs.shape[1 if batch_first else 0]
        self.state = operands.weight.shape[2]
        last = operands.initial_h if operands.initial_c is None else operands.initial_c
        self.hidden = last.shape[2]

    # What threads override

    def each(self, name: str, extent: Expr) -> AbstractContextManager[Expr]:
        """A loop over elements that are independent of each other."""
        return self.p.loop(name, extent)

    def meet(self) -> None:
        """From here on, threads see what others have written."""

    def memory(self, name: str, size: Dim) -> Buffer:
        """Memory of the row, in `wide` numbers."""
        return scratch(self.p, name, size, self.wide)

    def product(
        self, to: Buffer, weight: Buffer, gates: range, factor: Callable[[Expr], Expr]
    ) -> None:
        """Set sums to the product of the weight of some gates and a vector, whose elements `factor` gives."""
        p, count = self.p, constant(weight.shape[3]) or 1
        with p.loop("panel", weight.shape[1]) as panel:
            start = (panel * count + gates.start) * PANEL
            lanes = te.dim(len(gates) * PANEL)
            with p.loop("j", lanes) as j:
                p.write(to, start + j, value=te.const(0.0, self.wide))
            with p.loop("k", weight.shape[2], about=64) as k:
                number = known(p, "factor", factor(k))
                with p.loop("g", te.dim(len(gates))) as g, p.loop("lane", te.dim(PANEL)) as lane:
                    at = start + g * PANEL + lane
                    part = self.number(weight, self.direction, panel, k, gates.start + g, lane)
                    p.write(to, at, value=p.read(to, at) + part * number)

    # The steps

    def write(self) -> None:
        """Write the whole row."""
        p, d, b = self.p, self.direction, self.row
        for out, first in zip(
            [self.h, *self.c], [self.x.initial_h, self.x.initial_c], strict=False
        ):
            with self.each("j", out.shape[2]) as j:
                p.write(out, d, b, j, value=p.read(first, d, b, j))
        self.meet()
        count = self.length
        if self.x.lengths is not None:
            own = scalar.cast(p.read(self.x.lengths, b), "int64")
            clamped = scalar.maximum(scalar.minimum(own, count), te.dim(0))
            count = known(p, "count", clamped)
        table = VarTable(shared=True)
        hidden = table.to_dim(self.hidden)
        self.sums = self.memory("sums", _padded(hidden) * self.step.gates)
        self.new = self.memory("new", hidden)
        self.projected = self.new
        if self.x.projection is not None:
            state = table.to_dim(self.state)
            self.projected = self.memory("projected", _padded(state))
        with p.loop("t", count, about=64 if self.x.lengths is not None else None) as t:
            self._step(known(p, "at", self._place(t, count)))
        if self.x.lengths is not None:
            with p.loop("t", self.length - count, about=1) as t, self.each("j", self.state) as j:
                zero = te.const(0.0, str(self.y.dtype))
                self._write_output(count + t, j, zero)

    def _place(self, t: Expr, count: Expr) -> Expr:
        """The place of a step in the sequence."""
        back = count - 1 - t
        if self.step.direction == "bidirectional":
            return te.select(scalar.equal(self.direction, te.dim(0)), t, back)
        return back if self.step.direction == "reverse" else t

    def _step(self, at: Expr) -> None:
        p, d, b, x = self.p, self.direction, self.row, self.x
        hidden, gates = self.hidden, self.step.gates
        every = range(2 if self.has_two_products else gates)
        self.product(self.sums, x.weight, every, lambda k: self.number(self.h, d, b, k))
        self.meet()
        index = (b, at) if self.batch_first else (at, b)

        def inputs(gate: int, u: Expr) -> Expr:
            return self.number(x.inputs, *index, (d * gates + gate) * hidden + u)

        with self.each("u", hidden) as u:
            sums = [known(p, f"sum{gate}", self._sum(gate, u)) for gate in every]
            given = [known(p, f"x{gate}", inputs(gate, u)) for gate in every]
            self._unit(u, given, sums)
        self.meet()
        if self.has_two_products:
            self._new_gates(inputs)
        if x.projection is not None:
            self.product(self.projected, x.projection, range(1), lambda k: p.read(self.new, k))
            self.meet()
        self._write_state(at)
        self.meet()

    @property
    def has_two_products(self) -> bool:
        """Is it a GRU whose new gate needs the reset gates of all units?"""
        return self.step.kind == "gru" and not self.step.reset_after

    def _sum(self, gate: int, u: Expr) -> Expr:
        """The product of a unit: a panel's are side by side, gate after gate."""
        panel, lane = floordiv(u, PANEL), floormod(u, PANEL)
        return self.p.read(self.sums, (panel * self.step.gates + gate) * PANEL + lane)

    def _unit(self, u: Expr, x: Sequence[Expr], sums: Sequence[Expr]) -> None:
        """The new state of a unit; of a GRU that resets before, only the gates."""
        p, d, b = self.p, self.direction, self.row
        f = self._functions()
        if self.step.kind == "rnn":
            p.write(self.new, u, value=f[0](x[0] + sums[0]))
            return
        if self.step.kind == "gru":
            r = known(p, "r", f[0](x[0] + sums[0]))
            z = known(p, "z", f[0](x[1] + sums[1]))
            if not self.step.reset_after:
                p.write(self.new, u, value=r * self.number(self.h, d, b, u))
                return
            own = sums[2] if self.x.bias is None else sums[2] + self.number(self.x.bias, d, u)
            n = known(p, "n", f[1](x[2] + r * own))
            p.write(self.new, u, value=_mixed(z, n, self.number(self.h, d, b, u)))
            return
        before = known(p, "before", self.number(self.c[0], d, b, u))

        def peephole(number: int, state: Expr) -> Expr:
            return self.number(self.x.peepholes, d, te.dim(number), u) * state

        has_peepholes = self.x.peepholes is not None
        s = [a + b for a, b in zip(x, sums, strict=True)]
        i = known(p, "i", f[0](s[0] + peephole(0, before) if has_peepholes else s[0]))
        forget = te.const(1.0, self.wide) - i
        if not self.step.input_forget:
            forget = f[0](s[1] + peephole(1, before) if has_peepholes else s[1])
        forget = known(p, "f", forget)
        c = known(p, "c", forget * before + i * known(p, "g", f[1](s[2])))
        o = known(p, "o", f[0](s[3] + peephole(2, c) if has_peepholes else s[3]))
        p.write(self.c[0], d, b, u, value=scalar.cast(c, str(self.h.dtype)))
        p.write(self.new, u, value=o * f[2](c))

    def _new_gates(self, inputs: Callable[[int, Expr], Expr]) -> None:
        """The new state of a GRU that resets the state before its product."""
        p, d, b = self.p, self.direction, self.row
        f = self._functions()
        self.product(self.sums, self.x.weight, range(2, 3), lambda k: p.read(self.new, k))
        self.meet()
        with self.each("u", self.hidden) as u:
            z = known(p, "z", f[0](inputs(1, u) + self._sum(1, u)))
            n = known(p, "n", f[1](inputs(2, u) + self._sum(2, u)))
            p.write(self.new, u, value=_mixed(z, n, self.number(self.h, d, b, u)))
        self.meet()

    def _write_state(self, at: Expr) -> None:
        """Write h after a step, and the output."""
        p, d, b = self.p, self.direction, self.row
        with self.each("j", self.state) as j:
            value = scalar.cast(p.read(self.projected, j), str(self.h.dtype))
            value = known(p, "h", value)
            p.write(self.h, d, b, j, value=value)
            self._write_output(at, j, value)

    def _write_output(self, at: Expr, j: Expr, value: Expr) -> None:
        index = (self.row, at) if self.batch_first else (at, self.row)
        self.p.write(self.y, *index, self.direction * self.state + j, value=value)

    def number(self, buffer: Buffer, *index: Any) -> Expr:
        """A number in memory, as numbers are computed with."""
        return scalar.cast(self.p.read(buffer, *index), self.wide)

    def _functions(self) -> Sequence[Callable[[Expr], Expr]]:
        """The activations, of whichever direction the row has."""
        first = functions_of(self.step, 0)
        if self.step.direction != "bidirectional" or self.step.functions(0) == self.step.functions(
            1
        ):
            return first
        second = functions_of(self.step, 1)
        is_first = scalar.equal(self.direction, te.dim(0))

        def either(
            one: Callable[[Expr], Expr], other: Callable[[Expr], Expr]
        ) -> Callable[[Expr], Expr]:
            return lambda x: te.select(is_first, one(x), other(x))

        return [either(*pair) for pair in zip(first, second, strict=True)]


def functions_of(step: Cell, direction: int) -> list[Callable[[Expr], Expr]]:
    """The activations of a direction as functions of an element; those of gates clip it."""
    return [
        _function_of(each, step.clip if number < 2 else None)
        for number, each in enumerate(step.functions(direction))
    ]


def _function_of(activation: Activation, clip: float | None) -> Callable[[Expr], Expr]:
    made = _FUNCTIONS[activation.name]
    if clip is None:
        return lambda x: made(x, *activation.numbers)
    return lambda x: made(scalar.clip(x, -clip, clip), *activation.numbers)


def _padded(size: Dim) -> Dim:
    """The size, rounded up to whole panels."""
    return (size + (PANEL - 1)) // PANEL * PANEL


def _mixed(z: Expr, new: Expr, before: Expr) -> Expr:
    """The state of a GRU after a step."""
    return (_number(z, 1.0) - z) * new + z * before


def _number(x: Expr, value: float) -> Expr:
    return scalar.literal(value, x)


def _where_negative(x: Expr, below: Expr) -> Expr:
    return te.select(scalar.less(x, _number(x, 0.0)), below, x)


_FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "affine": lambda x, a, b: _number(x, a) * x + _number(x, b),
    "elu": lambda x, a: _where_negative(x, _number(x, a) * (scalar.exp(x) - _number(x, 1.0))),
    "hard_sigmoid": lambda x, a, b: scalar.clip(_number(x, a) * x + _number(x, b), 0.0, 1.0),
    "leaky_relu": lambda x, a: _where_negative(x, _number(x, a) * x),
    "relu": lambda x: _where_negative(x, _number(x, 0.0)),
    "scaled_tanh": lambda x, a, b: _number(x, a) * scalar.tanh(_number(x, b) * x),
    "sigmoid": lambda x: scalar.sigmoid(x),
    "softplus": lambda x: scalar.log_add_exp(x, _number(x, 0.0)),
    "softsign": lambda x: x / (_number(x, 1.0) + scalar.absolute(x)),
    "tanh": lambda x: scalar.tanh(x),
    "thresholded_relu": lambda x, a: te.select(scalar.less(x, _number(x, a)), _number(x, 0.0), x),
}
assert _FUNCTIONS.keys() == ACTIVATIONS.keys()
