"""Cases of attention over a paged cache, for the tests of the rules of several targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import relaxpy
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import SymVar
from relaxpy.op import te
from relaxpy.op.paged_attention import PagedAttention
from relaxpy.tir.prim_func import PrimFunc

NUMPY = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "int8": np.int8,
}
NAMES: dict[Any, Any] = {name: SymVar(name) for name in "tnbwc"}
PAGES = 9
OPTIONAL = "sinks", "key_scales", "value_scales", "bias", "lasts"


PLAIN = PagedAttention()


@dataclass(frozen=True)
class Case:
    """Heads that share groups of keys; widths of keys and values; the tokens of a page."""

    heads: int = 4
    groups: int = 2
    width: int = 8
    column: int = 16
    size: int = 16
    op: PagedAttention = PLAIN
    dtype: str = "float32"
    pages: str = ""
    sinks: bool = False
    reach: int = 0
    """Columns of the bias; 0: there is none."""
    spans: bool = False
    """Do tokens attend to places after their own?"""

    def shapes(self) -> dict[str, tuple[Sequence[Any], str]]:
        """The inputs."""
        kind = self.pages or self.dtype
        found: dict[str, tuple[Sequence[Any], str]] = {
            "query": (("t", self.heads, self.width), self.dtype),
            "key_pages": (("n", self.groups, self.width, self.size), kind),
            "value_pages": (("n", self.groups, self.size, self.column), kind),
            "starts": (("c",), "int32"),
            "tables": (("b", "w"), "int32"),
            "lengths": (("b",), "int32"),
        }
        if self.sinks:
            found["sinks"] = ((self.heads,), "float32")
        if kind == "int8":
            scales = (("n", self.groups, self.size), "float32")
            found |= {"key_scales": scales, "value_scales": scales}
        if self.reach:
            found["bias"] = ((self.heads, self.reach), "float32")
        if self.spans:
            found["lasts"] = (("t",), "int32")
        return found

    def program(self) -> PrimFunc:
        """The operator legalised."""
        x = {
            name: te.placeholder([NAMES.get(d, d) for d in shape], dtype, name)
            for name, (shape, dtype) in self.shapes().items()
        }
        out: Any = TensorType((NAMES["t"], self.heads, self.column), self.dtype)
        given = {name: x.get(name) for name in OPTIONAL}
        made = self.op.legalize(out, *list(x.values())[:6], **given)
        return PrimFunc.from_te(list(x.values()), [made])

    def module(self) -> relaxpy.IRModule:
        """A module whose `main` calls the operator."""
        shapes, op = self.shapes(), self.op
        params = ", ".join(
            f"{name}: R.Tensor({tuple(shape)!r}, {dtype!r})"
            for name, (shape, dtype) in shapes.items()
        )
        last = max((n for n, name in enumerate(OPTIONAL, 1) if name in shapes), default=0)
        given = [*shapes][:6] + [name if name in shapes else "()" for name in OPTIONAL[:last]]
        options = {
            "scale": op.scale,
            "causal": op.causal,
            "window_size": op.window_size,
            "soft_cap": op.soft_cap,
        }
        given += [f"{name}={value!r}" for name, value in options.items() if value is not None]
        return relaxpy.parse(f"""
@R.function
def main({params}):
    y = R.nn.paged_attention({", ".join(given)})
    return y
""")

    def inputs(
        self, lengths: Sequence[int], new: Sequence[int], seed: int = 0, pages: int = PAGES
    ) -> dict[str, Any]:
        """Random pages, in which whatever no sequence has is NaN (or the largest integer)."""
        rng = np.random.default_rng(seed)
        width = max(-(-length // self.size) for length in lengths)
        sizes: dict[Any, Any] = {
            "t": sum(new),
            "n": pages,
            "b": len(new),
            "w": width,
            "c": len(new) + 1,
        }
        found: dict[str, Any] = {}
        for name, (shape, dtype) in self.shapes().items():
            at = tuple(sizes.get(d, d) for d in shape)
            spread = 40 if dtype == "int8" else 1
            found[name] = (
                (rng.standard_normal(at) * spread)
                .clip(-127, 127)
                .astype(NUMPY.get(dtype, np.float32))
            )
        found["starts"] = np.cumsum([0, *new], dtype=np.int32)
        found["lengths"] = np.array(lengths, np.int32)
        found["tables"] = np.full((len(new), width), pages - 1, np.int32)
        if self.spans:
            # Every third run of up to 5 places is a span; the last tokens' one is longer than the sequence.
            of_tokens = [
                (place // 5 * 5 + 4 if place // 5 % 3 == 1 or place + 3 > length else -1)
                for length, count in zip(lengths, new, strict=True)
                for place in range(length - count, length)
            ]
            found["lasts"] = np.array(of_tokens, np.int32)
        free = list(rng.permutation(pages - 1))
        used = np.zeros((pages, self.size), bool)
        for s, length in enumerate(lengths):
            for page in range(-(-length // self.size)):
                found["tables"][s, page] = free.pop()
                used[found["tables"][s, page], : length - page * self.size] = True
        if self.dtype == (self.pages or self.dtype):
            found["key_pages"][~np.broadcast_to(used[:, None, None], found["key_pages"].shape)] = (
                np.nan
            )
            found["value_pages"].transpose(0, 2, 1, 3)[~used] = np.nan
        return found

    def spoiled(
        self, lengths: Sequence[int], new: Sequence[int], pages: int = PAGES
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Inputs with one NaN that some tokens see, by what it is in: of the first sequence the first token's query, or
        one of its keys; of the first head a sink."""
        key = min(5, lengths[0] - 1)
        for name in self.shapes():
            x = self.inputs(lengths, new, pages=pages)
            at = x["tables"][0, key // self.size], 0
            places = {
                "query": (0, 0, 2),
                "key_pages": (*at, 1, key % self.size),
                "value_pages": (*at, key % self.size, 3),
                "key_scales": (*at, key % self.size),
                "value_scales": (*at, key % self.size),
                "sinks": (0,),
                "bias": (0, self.reach - 1),
            }
            if name in places and x[name].dtype != np.int8:
                x[name][places[name]] = np.nan
                yield name, x
