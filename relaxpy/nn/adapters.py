"""Low-rank adapters (LoRA, Hu et al., 2021) of many requests in one call: every token names its own.

    class Model(nn.Module):
        def step(self, x, ids, weights):
            adapters = nn.Adapters(ids, {"up": weights})
            return adapters.add("up", x, self.up(x))

    spec = {..., "ids": nn.spec.Tensor(("tokens",), "int32"), "weights": nn.Adapters.spec(64, 256)}

The adapters of a linear map are stacked: `down` (adapters, rank, in) and `up` (adapters, out, rank), of symbolic number
and rank; smaller ranks are padded with zeros, and their scales are in `up`. A token's result is a function of the token
and of its adapter alone, and a token without an adapter has the bits that it has without adapters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relaxpy.nn import op, spec
from relaxpy.nn.construction import mistake
from relaxpy.nn.tensor import Tensor, Value
from relaxpy.op import te

Pair = tuple[Value, Value]
"""`down` and `up` of a linear map."""


class Adapters:
    """The adapters of the tokens of a call: their numbers `ids` (tokens,), -1 for none, and the weights of each linear
    map by name. Numbers out of range are clamped; `checked` makes them errors of the call."""

    def __init__(self, ids: Value | None, weights: Mapping[str, Pair]) -> None:
        for name, (down, up) in weights.items():
            if len(down.shape) != 3 or len(up.shape) != 3:
                raise mistake(
                    "shape-mismatch",
                    f"the adapters of {name} must be (adapters, rank, in) and (adapters, out, rank), "
                    f"got {down.shape} and {up.shape}",
                    help="the spec of an argument: nn.Adapters.spec(in, out)",
                )
        self.ids, self.weights = ids, dict(weights)

    @staticmethod
    def checked(ids: Value, count: Any) -> Tensor:
        """`ids` after a check at run time: at least -1, and below `count`."""
        return op.check_range(ids, count, "adapters", lowest=-1)

    @staticmethod
    def spec(
        in_features: int,
        out_features: int,
        dtype: str = "float32",
        adapters: str = "adapters",
        rank: str = "rank",
    ) -> spec.Tuple:
        """The spec of the adapters of a linear map as an argument."""
        down = spec.Tensor((adapters, rank, in_features), dtype)
        return spec.Tuple((down, spec.Tensor((adapters, out_features, rank), dtype)))

    def add(self, name: str, x: Value, y: Tensor) -> Tensor:
        """`y`, the result (..., out) of the linear map on x (..., in), plus up @ (down @ x) of each token's adapter.
        The tokens are the rows of x in order. Maps without adapters have the result y."""
        if self.ids is None or name not in self.weights:
            return y
        down, up = self.weights[name]
        tokens = self.ids.shape[0]
        flat = op.reshape(x, (tokens, x.shape[-1]))
        out = op.reshape(y, (tokens, y.shape[-1]))
        low = op.call_te(_down, flat, down, self.ids, name="adapter_down")
        return op.reshape(op.call_te(_up, low, up, self.ids, out, name="adapter_up"), y.shape)


class SharedAdapters(Adapters):
    """Adapters that all tokens of a call have, written with operators that have gradients: those that are trained.
    `weights` are for each linear map `down` (rank, in) and the rows of `up` (out, rank) that are its own, in a dtype of
    their own; a result has `scale` times what they add."""

    def __init__(self, weights: Mapping[str, Pair], scale: float) -> None:
        self.ids, self.weights, self.scale = None, dict(weights), scale

    def add(self, name: str, x: Value, y: Tensor) -> Tensor:
        """`y`, the result (..., out) of the linear map on x (..., in), plus scale * up @ (down @ x)."""
        if name not in self.weights:
            return y
        down, up = self.weights[name]
        low = op.linear(op.astype(x, down.dtype), down) * self.scale
        return y + op.astype(op.linear(low, up), y.dtype)


def _place(ids: Any, i: Any, weights: Any) -> tuple[Any, Any]:
    """Whether token i has an adapter, and its number, clamped."""
    own = te.cast(ids(i), "int64")
    count = weights.shape[0]
    number = te.maximum(te.minimum(own, count - te.dim(1)), te.dim(0))
    return te.logical_and(te.greater_equal(own, te.dim(0)), te.greater(count, te.dim(0))), number


def _products(x: Any, weights: Any, ids: Any) -> Any:
    """X (tokens, in) times the weights (adapters, out, in) of each token's adapter, in float32; 0 without one."""
    depth = te.reduce_axis(te.dims(x)[1])

    def element(i: Any, j: Any) -> Any:
        has, number = _place(ids, i, weights)
        product = te.cast(x(i, depth), "float32") * te.cast(weights(number, j, depth), "float32")
        return te.sum(te.if_then_else(has, product, te.const(0.0, "float32")), depth)

    return te.compute((te.dims(x)[0], te.dims(weights)[1]), element, "adapted")


def _down(x: Any, down: Any, ids: Any) -> Any:
    return _products(x, down, ids)


def _up(low: Any, up: Any, ids: Any, y: Any) -> Any:
    added = _products(low, up, ids)

    def element(i: Any, j: Any) -> Any:
        has, _ = _place(ids, i, up)
        wide = te.cast(y(i, j), "float32") + te.element(added(i, j))
        return te.if_then_else(has, te.cast(wide, str(y.dtype)), y(i, j))

    return te.compute(te.dims(y), element, "with_adapters")
