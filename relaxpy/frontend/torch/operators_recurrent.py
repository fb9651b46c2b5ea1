"""Recurrent layers, as `relaxpy.frontend.torch.recurrent` keeps them whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relaxpy import op
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Expr, TupleGetItem


def _rule(function: Callable[..., Any], **attributes: Any) -> Callable[..., Any]:
    """The rule of layers; `last` says whether the batch is the first axis, or is the lengths of the sequences."""

    def rule(
        at: Site, x: Expr, state: Any, weights: Sequence[Expr], bias: bool, layers: int, dropout: float,
        train: bool, bidirectional: bool, last: Any,
    ) -> Any:  # fmt: skip
        if train and dropout:
            raise at.fail(
                "torch-operator",
                "a recurrent layer with dropout draws random numbers in training mode",
                "call module.eval() before the import",
            )
        batch_first = last is True
        states = list(state) if isinstance(state, list) else [state]
        batched = at.ndim(x) == 3
        if not batched:
            x = at.emit(op.expand_dims(x, 1))
            states = [at.emit(op.expand_dims(s, 1)) for s in states]
        elif batch_first:
            x = at.emit(op.permute_dims(x, [1, 0, 2]))
        each = len(weights) // (layers * (2 if bidirectional else 1))
        more = dict(attributes)
        if isinstance(last, Expr):
            more["lengths"] = last
        if function is op.nn.lstm:
            more["projection"] = each == (5 if bias else 3)
        found = at.emit(
            function(
                x, list(weights), *states, num_layers=layers, biases=2 if bias else 0,
                direction="bidirectional" if bidirectional else "forward", **more,
            )
        )  # fmt: skip
        parts = [at.emit(TupleGetItem(found, i)) for i in range(1 + len(states))]
        if not batched:
            return [op.squeeze(part, [1]) for part in parts]
        return [op.permute_dims(parts[0], [1, 0, 2]) if batch_first else parts[0], *parts[1:]]

    return rule


for _name, _layers in (
    ("lstm", _rule(op.nn.lstm)),
    ("gru", _rule(op.nn.gru)),
    ("rnn_tanh", _rule(op.nn.rnn, activations=("tanh",))),
    ("rnn_relu", _rule(op.nn.rnn, activations=("relu",))),
):
    operator(f"{_name}.default", f"packed_{_name}.default", namespace="relaxpy")(_layers)
