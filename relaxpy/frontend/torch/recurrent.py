"""Recurrent layers while torch traces: torch unrolls them for the example's length; here each is one operator, of any
length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_RESULTS = {"lstm": 3, "gru": 2, "rnn_tanh": 2, "rnn_relu": 2}


@cache
def _operators() -> dict[str, Any]:
    """Our operators in torch, by the names of torch's functions."""
    import torch

    library = torch.library.Library("relaxpy", "FRAGMENT")
    found: dict[str, Any] = {"": library}  # which lives as long as its operators
    for name, count in _RESULTS.items():
        state = "Tensor[] state" if name == "lstm" else "Tensor state"
        results = ", ".join(["Tensor"] * count)
        library.define(
            f"{name}(Tensor x, {state}, Tensor[] weights, bool bias, int layers, float dropout, bool train, "
            f"bool bidirectional, bool batch_first) -> ({results})"
        )
        library.impl(name, getattr(torch._VF, name), "CompositeExplicitAutograd")
        torch.library.register_fake(f"relaxpy::{name}", _shapes(name), lib=library)
        found[name] = getattr(torch.ops.relaxpy, name)
    return found


def _shapes(name: str) -> Callable[..., Any]:
    def shapes(x: Any, state: Any, *rest: Any) -> Any:
        bidirectional = rest[5]
        states = list(state) if name == "lstm" else [state]
        width = states[0].shape[-1] * (2 if bidirectional else 1)
        return x.new_empty([*x.shape[:-1], width]), *(s.new_empty(s.shape) for s in states)

    return shapes


@contextmanager
def whole_layers() -> Iterator[None]:
    """Let torch's recurrent modules call our operators while the block runs."""
    from torch.nn.modules import rnn

    own = rnn._VF
    operators = _operators()

    class Functions:
        def __getattr__(self, name: str) -> Any:
            function = getattr(own, name)
            whole = operators.get(name)

            def call(*args: Any) -> Any:
                # A packed sequence has its batch sizes, a tensor, in place of the state.
                is_packed = len(args) == 9 and not isinstance(args[3], bool)
                return function(*args) if whole is None or is_packed else whole(*args)

            return call

    rnn._VF = Functions()
    try:
        yield
    finally:
        rnn._VF = own
