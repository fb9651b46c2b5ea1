"""Recurrent layers: LSTM, GRU, RNN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relaxpy import op
from relaxpy.frontend.onnx.importer import Site
from relaxpy.frontend.onnx.operators_shape import cut
from relaxpy.frontend.onnx.table import operator
from relaxpy.ir import Dim, Expr, TupleGetItem

_NAMES = {
    "affine": ("affine", 2), "elu": ("elu", 1), "hardsigmoid": ("hard_sigmoid", 2), "leakyrelu": ("leaky_relu", 1),
    "relu": ("relu", 0), "scaledtanh": ("scaled_tanh", 2), "sigmoid": ("sigmoid", 0), "softplus": ("softplus", 0),
    "softsign": ("softsign", 0), "tanh": ("tanh", 0), "thresholdedrelu": ("thresholded_relu", 1),
}  # fmt: skip
"""ONNX's name of an activation, in small letters → ours, and how many numbers it takes."""


def activations_of(
    at: Site, names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]
) -> list[str]:
    """Activations with their numbers, which ONNX lists for those only that take some."""
    alpha, beta = iter(alphas), iter(betas)
    found: list[Any] = []
    for name in names:
        if name.lower() not in _NAMES:
            raise at.fail("onnx-operator", f"the activation {name!r} is not known")
        own, count = _NAMES[name.lower()]
        numbers: list[float] = []
        if count and (a := next(alpha, None)) is not None:
            numbers.append(a)
            if count > 1 and (b := next(beta, None)) is not None:
                numbers.append(b)
        found.append(f"{own}({', '.join(map(repr, numbers))})" if numbers else own)
    return found


def layer(
    at: Site, function: Callable[..., Any], gates: int, x: Expr, w: Expr, r: Expr, bias: Any, lengths: Any,
    states: Sequence[Any], peepholes: Any, hidden: int, direction: str, layout: int, attrs: dict[str, Any],
) -> list[Any]:  # fmt: skip
    """A layer of recurrent cells: the results of all steps, and the last states."""
    direction = {"foward": "forward"}.get(direction, direction)  # so GRU's first version has it
    count = sides(direction)
    if layout:
        states = [None if s is None else at.emit(op.permute_dims(s, [1, 0, 2])) for s in states]

    def each(value: Any, parts: Sequence[int]) -> list[list[Any]]:
        """The parts of a weight along its second axis, for each direction."""
        rows = [at.emit(op.squeeze(row, [0])) for row in cut(at, value, 0, [1] * count)]
        return [cut(at, row, 0, parts) if len(parts) > 1 else [row] for row in rows]

    weights: list[Any] = []
    width = gates * hidden
    own = each(w, [width]), each(r, [width])
    biases = None if bias is None else each(bias, [width, width])
    peeps = None if peepholes is None else each(peepholes, [3 * hidden])
    for k in range(count):
        weights += [
            own[0][k][0],
            own[1][k][0],
            *(biases[k] if biases else []),
            *(peeps[k] if peeps else []),
        ]
    found = at.emit(
        function(
            x, weights, *states, None if lengths is None else at.cast(lengths, "int64"), direction=direction,
            biases=2 if biases else 0, batch_first=bool(layout), **attrs,
        )
    )  # fmt: skip
    whole, *last = (at.emit(TupleGetItem(found, i)) for i in range(1 + len(states)))
    first, second, _ = at.shape_of(whole)
    apart = at.emit(op.reshape(whole, [first, second, Dim.of(count), Dim.of(hidden)]))
    if layout:
        return [apart, *(op.permute_dims(s, [1, 0, 2]) for s in last)]
    return [op.permute_dims(apart, [0, 2, 1, 3]), *last]


def sides(direction: str) -> int:
    return 2 if direction == "bidirectional" else 1


def _cells(
    at: Site, function: Callable[..., Any], gates: int, activated: int, weights: Sequence[Any], states: Sequence[Any],
    own: dict[str, Any], peepholes: Any = None, hidden_size: int | None = None, direction: str = "forward",
    layout: int = 0, clip: float | None = None, activations: Any = None, activation_alpha: Any = None,
    activation_beta: Any = None, **_: Any,
) -> list[Any]:  # fmt: skip
    """A layer of cells with the attributes that all kinds have, and `own` ones. A direction has so many `activated`
    values; more activations are ignored: those of RNN's default are for two directions. `weights` are the input, the
    weights of input and state, the bias, and the lengths."""
    x, w, r, bias, lengths = weights
    hidden = hidden_size or at.shape_of(r)[2].value
    if hidden is None:
        raise at.fail("onnx-operator", "the number of hidden units is known only when it runs")
    attrs = {**own, "clip": clip}
    if activations:
        names = activations[: activated * sides(direction)]
        attrs["activations"] = activations_of(
            at, names, activation_alpha or [], activation_beta or []
        )
    return layer(
        at, function, gates, x, w, r, bias, lengths, states, peepholes, hidden, direction, layout, attrs
    )  # fmt: skip


@operator("LSTM")
def lstm(
    at: Site, x: Expr, w: Expr, r: Expr, bias: Any = None, lengths: Any = None, h: Any = None, c: Any = None,
    peepholes: Any = None, input_forget: int = 0, **attrs: Any,
) -> Any:  # fmt: skip
    has_peepholes, coupled = peepholes is not None, bool(input_forget)
    own = {"gates": "iofg", "peepholes": has_peepholes, "input_forget": coupled}
    return _cells(
        at, op.nn.lstm, 4, 3, (x, w, r, bias, lengths), (h, c), own, peepholes, **attrs
    )  # fmt: skip


@operator("GRU")
def gru(
    at: Site, x: Expr, w: Expr, r: Expr, bias: Any = None, lengths: Any = None, h: Any = None,
    linear_before_reset: int = 0, **attrs: Any,
) -> Any:  # fmt: skip
    own = {"gates": "zrn", "reset_after": bool(linear_before_reset)}
    return _cells(at, op.nn.gru, 3, 2, (x, w, r, bias, lengths), (h,), own, **attrs)


@operator("RNN")
def rnn(
    at: Site, x: Expr, w: Expr, r: Expr, bias: Any = None, lengths: Any = None, h: Any = None, **attrs: Any
) -> Any:  # fmt: skip
    return _cells(at, op.nn.rnn, 1, 1, (x, w, r, bias, lengths), (h,), {}, **attrs)
