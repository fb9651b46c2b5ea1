"""The cache of keys and values of attention, in memory of the caller that is updated in place.

    class Attention(nn.Module):
        def step(self, x, cache, past):
            query, key, value = ...
            keys, values = nn.KVCache(*cache, past).append(key, value)
            return op.nn.attention(query, keys, values, causal_mask="BottomRight")

    spec = {"x": ..., "cache": nn.KVCache.spec("batch", "capacity", 4, 64), "past": nn.spec.Int()}

The caller keeps the arrays, counts the tokens, and passes both.
"""

from __future__ import annotations

from typing import Any

from relaxpy.ir import Dim
from relaxpy.ir.dim import DimLike
from relaxpy.nn import op, spec
from relaxpy.nn.construction import mistake
from relaxpy.nn.tensor import Tensor, Value
from relaxpy.nn.update import update_slice


class KVCache:
    """Keys and values (batch, capacity, heads, width), of which the first `length` tokens are filled. All sequences of
    the batch have the same length."""

    def __init__(self, keys: Value, values: Value, length: DimLike) -> None:
        for name, each in (("keys", keys), ("values", values)):
            if not isinstance(each, Value) or len(each.shape) != 4:
                raise mistake(
                    "shape-mismatch",
                    f"the {name} of a cache must be a tensor (batch, capacity, heads, width)",
                    help='the spec of an argument: nn.KVCache.spec("batch", "capacity", heads, width)',
                )
        self.keys, self.values, self.length = keys, values, Dim.of(length)

    @staticmethod
    def spec(
        batch: int | str, capacity: int | str, heads: int, width: int, dtype: str = "float32"
    ) -> spec.Tuple:
        """The spec of keys and values as an argument."""
        each = spec.Tensor((batch, capacity, heads, width), dtype)
        return spec.Tuple((each, each))

    def append(self, keys: Value, values: Value) -> tuple[Tensor, Tensor]:
        """Write the keys and values (batch, count, heads, width) of new tokens. Returns those of all tokens, (batch,
        length + count, heads, width). Tokens beyond the capacity are an error of the call."""
        self.keys = update_slice(self.keys, keys, self.length, axis=1)
        self.values = update_slice(self.values, values, self.length, axis=1)
        self.length = self.length + keys.shape[1]
        return self._filled(self.keys), self._filled(self.values)

    def _filled(self, x: Any) -> Tensor:
        return op.strided_slice(x, (1,), (0,), (self.length,), assume_inbound=True)
