"""The steps of a recurrent layer as calls of other operators, whose rules of differentiation they have.

Tensors of one direction keep an axis of size 1 in front: a state is (1, batch, units), the products of a step's inputs
(gates, batch, hidden), the state's weight (gates, state, hidden)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaxpy.ir.cell import GATES, Activation, Cell
from relaxpy.ir.dim import Dim
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Expr, PrimValue, Tuple
from relaxpy.op.rule import Rule


def steps_as_calls(
    b: Rule, cell: Cell, batch_first: bool, inputs: Expr, weight: Expr, initial_h: Expr,
    initial_c: Expr | None = None, bias: Expr | None = None, peepholes: Expr | None = None,
    projection: Expr | None = None, lengths: Expr | None = None,
) -> Expr:  # fmt: skip
    """The result of `nn.recurrent_steps`, whose arguments these are."""
    kind = b.dtype(weight)
    wide = DType("float32") if kind.is_narrow else kind
    x = b.astype(b.permute_dims(inputs, (1, 0, 2)) if batch_first else inputs, wide)
    length, batch = b.dims(x)[:2]
    state = b.dims(initial_h)[2]
    hidden = state if initial_c is None else b.dims(initial_c)[2]
    count = len(cell.backward)
    x = b.permute_dims(b.reshape(x, (length, batch, count, cell.gates, hidden)), (2, 0, 3, 1, 4))
    matrices = _of_directions(b, unpacked(b, b.astype(weight, wide), hidden), count)
    outputs, last = list[Expr](), list[list[Expr]]()
    rows = [b.reshape(each, b.dims(each)[1:]) for each in _of_directions(b, x, count)]
    first = [_of_directions(b, initial_h, count), _of_directions(b, initial_c, count)]
    biases = _of_directions(b, bias, count)
    peeps = _of_directions(b, peepholes, count)
    ends = None if projection is None else unpacked(b, b.astype(projection, wide), state)
    ends = _of_directions(b, ends, count)
    for d, is_backward in enumerate(cell.backward):
        step = _Step(cell, d, kind, wide)
        shared = {"weight": b.reshape(matrices[d], (cell.gates, state, hidden))}
        if bias is not None:
            shared["bias"] = b.astype(biases[d], wide)
        if peepholes is not None:
            whole = b.reshape(b.astype(peeps[d], wide), (3, 1, hidden))
            shared |= dict(zip("ifo", b.fields(b.split(whole, 3, axis=0)), strict=True))
        if projection is not None:
            shared["projection"] = b.reshape(ends[d], (1, hidden, state))
        given = {"x": rows[d]}
        if lengths is not None:
            number = b.reshape(b.arange(PrimValue(length)), (length, 1, 1, 1))
            counts = b.reshape(b.astype(lengths, "int64"), (1, 1, batch, 1))
            given["there"] = b.less(number, counts)
        if is_backward:
            given = {name: b.flip(each, 0) for name, each in given.items()}
        begin = [each[d] for each in first if each]
        done = b.scan(step, begin, given, shared)
        *states, y = b.fields(done)
        outputs.append(b.flip(y, 0) if is_backward else y)
        last.append(states)
    found = outputs[0] if count == 1 else b.concat(tuple(outputs), axis=1)
    found = b.permute_dims(found, (2, 0, 1, 3) if batch_first else (0, 2, 1, 3))
    found = b.reshape(found, (*b.dims(found)[:2], state * count))
    ends_of = [own[0] if count == 1 else b.concat(own, axis=0) for own in zip(*last, strict=True)]
    return Tuple((found, *ends_of))


def unpacked(b: Rule, weight: Expr, units: Dim) -> Expr:
    """The weight (D, gates, depth, units) that `nn.recurrent_panels` packed."""
    directions, count, depth, gates, lanes = b.dims(weight)
    rows = b.permute_dims(weight, (0, 3, 2, 1, 4))
    rows = b.reshape(rows, (directions, gates, depth, count * lanes))
    return b.strided_slice(rows, (3,), (Dim.of(0),), (units,))


def _of_directions(b: Rule, x: Expr | None, count: int) -> list[Expr]:
    """The parts of a tensor along its first axis."""
    if x is None:
        return []
    return [x] if count == 1 else b.fields(b.split(x, count, axis=0))


class _Step:
    """A step in direction `d`: the states after it, and the output."""

    def __init__(self, cell: Cell, d: int, kind: DType, wide: DType) -> None:
        self.cell, self.kind, self.wide = cell, kind, wide
        self.functions = cell.functions(d)

    def __call__(
        self, b: Rule, states: Sequence[Expr], row: dict[str, Any], shared: dict[str, Any]
    ) -> tuple[list[Expr], Expr]:
        before = [b.astype(each, self.wide) for each in states]
        made = getattr(self, self.cell.kind)(b, before, row["x"], shared)
        made = [b.astype(each, self.kind) for each in made]
        there = row.get("there")
        if there is None:
            return made, made[0]
        kept = [b.where(there, *each) for each in zip(made, states, strict=True)]
        return kept, b.where(there, made[0], 0.0)

    def gates(self, b: Rule, x: Expr) -> list[Expr]:
        """What belongs to each gate."""
        count = len(GATES[self.cell.kind])
        return [x] if count == 1 else b.fields(b.split(x, count, axis=0))

    def of(self, b: Rule, number: int, x: Expr, is_clipped: bool = True) -> Any:
        """An activation."""
        clip = self.cell.clip
        if clip is not None and is_clipped:
            x = b.clip(x, min=-clip, max=clip)
        return activated(b, self.functions[number], x)

    def rnn(self, b: Rule, states: Sequence[Expr], x: Expr, shared: dict[str, Any]) -> list[Expr]:
        return [self.of(b, 0, b.add(x, b.matmul(states[0], shared["weight"])))]

    def gru(self, b: Rule, states: Sequence[Expr], x: Expr, shared: dict[str, Any]) -> list[Expr]:
        (h,), inputs = states, self.gates(b, x)
        weights = self.gates(b, shared["weight"])
        r, z = (self.of(b, 0, b.add(inputs[i], b.matmul(h, weights[i]))) for i in (0, 1))
        if self.cell.reset_after:
            new = b.matmul(h, weights[2])
            new = b.multiply(r, b.add(new, shared["bias"]) if "bias" in shared else new)
        else:
            new = b.matmul(b.multiply(r, h), weights[2])
        n = self.of(b, 1, b.add(inputs[2], new))
        return [b.add(n, b.multiply(z, b.subtract(h, n)))]

    def lstm(self, b: Rule, states: Sequence[Expr], x: Expr, shared: dict[str, Any]) -> list[Expr]:
        h, c = states
        parts = dict(
            zip("ifgo", self.gates(b, b.add(x, b.matmul(h, shared["weight"]))), strict=True)
        )

        def gate(name: str, cell: Expr) -> Any:
            whole = parts[name]
            if name in shared:
                whole = b.add(whole, b.multiply(shared[name], cell))
            return self.of(b, 0, whole)

        i = gate("i", c)
        forget = b.subtract(1.0, i) if self.cell.input_forget else gate("f", c)
        c = b.add(b.multiply(forget, c), b.multiply(i, self.of(b, 1, parts["g"])))
        h = b.multiply(gate("o", c), self.of(b, 2, c, is_clipped=False))
        return [b.matmul(h, shared["projection"]) if "projection" in shared else h, c]


def activated(b: Rule, activation: Activation, x: Expr) -> Any:
    """A function of an element, as `relaxpy.ir.cell.ACTIVATIONS` has it, as calls of operators."""
    low, high = (*activation.numbers, 0.0, 0.0)[:2]
    match activation.name:
        case "affine":
            return b.add(b.multiply(x, low), high)
        case "elu":
            below = b.multiply(b.subtract(b.exp(b.minimum(x, 0.0)), 1.0), low)
            return b.where(b.less(x, 0.0), below, x)
        case "hard_sigmoid":
            return b.clip(b.add(b.multiply(x, low), high), min=0.0, max=1.0)
        case "leaky_relu":
            return b.where(b.less(x, 0.0), b.multiply(x, low), x)
        case "relu":
            return b.nn.relu(x)
        case "scaled_tanh":
            return b.multiply(b.tanh(b.multiply(x, high)), low)
        case "sigmoid":
            return b.sigmoid(x)
        case "softplus":
            return b.nn.softplus(x)
        case "softsign":
            return b.divide(x, b.add(b.abs(x), 1.0))
        case "tanh":
            return b.tanh(x)
        case name:
            assert name == "thresholded_relu"
            return b.where(b.less(x, low), 0.0, x)
