"""Recurrent networks: LSTM, GRU and RNN, a node for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaxpy.ir import Dim
from relaxpy.ir.cell import GATES, Activation
from relaxpy.onnx.write_table import writes
from relaxpy.onnx.write_values import Tensor
from relaxpy.onnx.writer import Place
from relaxpy.op import recurrent

_ORDER = {"lstm": "iofg", "gru": "zrn", "rnn": "h"}
"""Cell → the order of its gates in ONNX."""
_KINDS = {"lstm": "LSTM", "gru": "GRU", "rnn": "RNN"}
_NAMES = {
    "affine": "Affine", "elu": "Elu", "hard_sigmoid": "HardSigmoid", "leaky_relu": "LeakyRelu", "relu": "Relu",
    "scaled_tanh": "ScaledTanh", "sigmoid": "Sigmoid", "softplus": "Softplus", "softsign": "Softsign",
    "tanh": "Tanh", "thresholded_relu": "ThresholdedRelu",
}  # fmt: skip


@writes(recurrent.Lstm)
def lstm(
    at: Place, op: recurrent.Lstm, x: Tensor, weights: Sequence[Tensor], h: Any = None, c: Any = None,
    lengths: Any = None,
) -> Any:  # fmt: skip
    if op.projection:
        raise at.fail("with a projection, which ONNX's LSTM does not have")
    return _layers(at, op, x, weights, [h, c], lengths)


@writes(recurrent.Gru, recurrent.Rnn)
def gru(
    at: Place, op: Any, x: Tensor, weights: Sequence[Tensor], h: Any = None, lengths: Any = None
) -> Any:
    return _layers(at, op, x, weights, [h], lengths)


def _layers(
    at: Place, op: recurrent.Recurrent, x: Tensor, weights: Sequence[Tensor], first: Sequence[Any], lengths: Any
) -> list[str]:  # fmt: skip
    count, kind = op.directions, _KINDS[op.cell]
    hidden = at.dims(weights[1])[1]
    if hidden.value is None:
        raise at.fail("with a number of hidden units that is known only when it runs")
    attrs: dict[str, Any] = {
        "hidden_size": hidden.value,
        "direction": op.direction,
        "clip": op.clip,
    }
    attrs |= _activations(op)
    if op.has("input_forget"):
        attrs["input_forget"] = 1
    if op.cell == "gru":
        attrs["linear_before_reset"] = int(op.steps.reset_after)
    steps = at.cast(lengths, "int32") if lengths is not None else None
    data: Any = at.transpose(x, [1, 0, 2]) if op.batch_first else x
    dims = at.dims(x)
    outer = [dims[1], dims[0]] if op.batch_first else [dims[0], dims[1]]
    ends: list[list[str]] = [[] for _ in first]
    for number, own in enumerate(op.of_layers(weights)):
        states = [
            None
            if s is None
            else s
            if op.num_layers == 1
            else at.slice(s, 0, number * count, (number + 1) * count)
            for s in first
        ]
        peepholes = None
        if own[0].peepholes is not None:
            order = (op.gates or "ifgo").replace("g", "")
            peepholes = _joined(at, [_ordered(at, op, d.peepholes, "iof", order) for d in own])
        given = [
            data,
            _joined(at, [_ordered(at, op, d.input, _ORDER[op.cell]) for d in own]),
            _joined(at, [_ordered(at, op, d.state, _ORDER[op.cell]) for d in own]),
            _biases(at, op, own), steps, *states,
        ]  # fmt: skip
        if op.cell == "lstm":
            given.append(peepholes)
        found, *last = at.nodes(kind, 1 + len(first), *given, **attrs)
        for kept, each in zip(ends, last, strict=True):
            kept.append(each)
        # (length, directions, batch, hidden) → (length, batch, directions * hidden)
        data = at.reshape(at.transpose(found, [0, 2, 1, 3]), [*outer, hidden * count])
    result = at.transpose(data, [1, 0, 2]) if op.batch_first else data
    joined = [kept[0] if len(kept) == 1 else at.node("Concat", *kept, axis=0) for kept in ends]
    return [result, *joined]


def _ordered(at: Place, op: recurrent.Recurrent, weight: Any, wanted: str, gates: str = "") -> Any:
    """A weight with its gates in ONNX's order."""
    own = gates or op.gates or GATES[op.cell]
    if own == wanted:
        return weight
    size = at.dims(weight)[0]
    part = Dim.of((size.value or 0) // len(own))
    parts = [at.slice(weight, 0, part * own.index(g), part * (own.index(g) + 1)) for g in wanted]
    return at.node("Concat", *parts, axis=0)


def _joined(at: Place, parts: Sequence[Any]) -> str:
    """The weights of the directions along a first axis."""
    rows = [at.unsqueeze(part, [0]) for part in parts]
    return rows[0] if len(rows) == 1 else at.node("Concat", *rows, axis=0)


def _biases(at: Place, op: recurrent.Recurrent, own: Sequence[Any]) -> Any:
    if not op.biases:
        return None
    rows: list[Any] = []
    for direction in own:
        pair = [_ordered(at, op, bias, _ORDER[op.cell]) for bias in direction.biases]
        if len(pair) == 1:
            pair.append(at.node("Mul", pair[0], at.number(0, direction.biases[0].dtype)))
        rows.append(at.node("Concat", *pair, axis=0))
    return _joined(at, rows)


def _activations(op: recurrent.Recurrent) -> dict[str, Any]:
    if not op.activations:
        return {}
    names: list[str] = []
    alphas: list[float] = []
    betas: list[float] = []
    for direction in range(op.directions):
        functions: Sequence[Activation] = op.steps.steps.functions(direction)
        for each in functions:
            names.append(_NAMES[each.name])
            alphas += each.numbers[:1]
            betas += each.numbers[1:]
    attrs: dict[str, Any] = {"activations": names}
    if alphas:
        attrs["activation_alpha"] = alphas
    if betas:
        attrs["activation_beta"] = betas
    return attrs
