"""What attention keeps to for every width of heads, on every target, beside `tests/e2e/products.py`: the operator's
numbers for lengths beside every piece, and the bits of a sequence, whatever others are beside it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import relaxpy
from relaxpy.op.attention import Attention
from relaxpy.op.paged_attention import PagedAttention
from relaxpy.target import Target
from tests.backend import paged_cases
from tests.backend.paged_cases import NUMPY

WIDTHS = (*range(1, 81), 88, 95, 96, 97, 112, 120, 127, 128, 129, 144, 160, 192, 256)
LENGTHS = ((1, 1), (1, 7), (1, 33), (1, 130), (3, 3), (16, 17), (17, 40), (65, 66))
"""Queries and keys."""
BATCHES = (([7], [7]), ([33], [1]), ([40, 1, 17, 16], [3, 1, 17, 1]), ([65, 31, 2], [1, 1, 1]))
"""The lengths of sequences, and how many of their tokens are new."""
WITHIN = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


@dataclass(frozen=True)
class Attending:
    """A kind of attention."""

    heads: int = 4
    groups: int = 2
    dtype: str = "float32"
    causal: bool = False
    page: int = 0
    """The tokens of a page; 0 where keys are in one piece."""
    pages: str = ""
    """The dtype of pages, if it is another."""


ATTENTIONS = {
    "attention": Attending(3, 3),
    "attention, shared keys": Attending(6, 2, causal=True),
    "attention, bfloat16": Attending(10, 2, "bfloat16", causal=True),
    "attention, float16": Attending(7, 1, "float16"),
    "paged attention": Attending(4, 2, page=16),
    "paged attention, one key head": Attending(7, 1, page=5),
    "paged attention, bfloat16": Attending(9, 3, "bfloat16", page=16),
    "paged attention, float16": Attending(3, 3, "float16", page=16),
    "paged attention, int8 pages": Attending(8, 2, page=16, pages="int8"),
    "paged attention, bfloat16, int8 pages": Attending(4, 1, "bfloat16", page=16, pages="int8"),
}


@dataclass(frozen=True)
class Headed:
    """Attention of heads of a width."""

    kind: Attending
    width: int

    @property
    def column(self) -> int:
        """The width of values: of some, another."""
        return self.width if self.width % 3 else max(1, self.width * 2 // 3)

    @property
    def name(self) -> str:
        return f"f{self.width}"

    @property
    def paged(self) -> paged_cases.Case:
        own = self.kind
        return paged_cases.Case(
            own.heads, own.groups, self.width, self.column, own.page, PagedAttention(), own.dtype, own.pages
        )  # fmt: skip

    @property
    def op(self) -> Attention:
        return Attention(causal_mask="BottomRight" if self.kind.causal else None)

    def function(self) -> str:
        own = self.kind
        if own.page:
            shapes = {name: (tuple(s), dtype) for name, (s, dtype) in self.paged.shapes().items()}
            given = [*shapes]
            if own.pages == "int8":
                given.insert(6, "()")
            call = f"R.nn.paged_attention({', '.join(given)})"
        else:
            shapes = {
                "q": (("b", "s", own.heads, self.width), own.dtype),
                "k": (("b", "t", own.groups, self.width), own.dtype),
                "v": (("b", "t", own.groups, self.column), own.dtype),
            }
            mask = f", causal_mask={self.op.causal_mask!r}" if own.causal else ""
            call = f"R.nn.attention(q, k, v{mask})"
        params = ", ".join(f"{n}: R.Tensor({s!r}, {dtype!r})" for n, (s, dtype) in shapes.items())
        return f"""
@R.function
def {self.name}({params}):
    y = {call}
    return y
"""

    def problems(self, call: Any) -> Iterator[str]:
        """What is wrong with the results."""
        check = self._of_pages if self.kind.page else self._of_lengths
        for what in check(call):
            yield f"heads of {self.width} and {self.column}, {what}"

    def _of_lengths(self, call: Any) -> Iterator[str]:
        own, random = self.kind, np.random.default_rng(self.width)
        for queries, keys in LENGTHS:
            shapes = ((queries, own.heads, self.width), (keys, own.groups, self.width), (keys, own.groups, self.column))  # fmt: skip
            given = [
                random.standard_normal((2, *shape)).astype(NUMPY[own.dtype]) for shape in shapes
            ]
            wanted = self.op.reference(*(each.astype(np.float64) for each in given))
            found = call(*given)
            yield from self._far(found, wanted, f"{queries} queries, {keys} keys")
            for at in range(2):
                alone = call(*(each[at : at + 1] for each in given))
                if alone.tobytes() != found[at : at + 1].tobytes():
                    yield f"{queries} queries, {keys} keys: others change bits"

    def _of_pages(self, call: Any) -> Iterator[str]:
        case = self.paged
        for lengths, new in BATCHES:
            pages = sum(-(-length // case.size) for length in lengths) + 2
            x = case.inputs(lengths, new, self.width, pages)
            at = f"sequences of {lengths}, {new} new"
            wanted = case.op.reference(
                **{n: v.astype(np.float32) if v.dtype.kind not in "iu" else v for n, v in x.items()}
            )
            found = call(*x.values())
            yield from self._far(found, wanted, at)
            for number, (start, count) in enumerate(zip(x["starts"], new, strict=False)):
                alone = {
                    **x,
                    "query": x["query"][start : start + count],
                    "starts": np.array([0, count], np.int32),
                    "tables": x["tables"][number : number + 1],
                    "lengths": x["lengths"][number : number + 1],
                }
                if call(*alone.values()).tobytes() != found[start : start + count].tobytes():
                    yield f"{at}: others change bits of number {number}"

    def _far(self, found: np.ndarray, wanted: np.ndarray, at: str) -> Iterator[str]:
        if found.shape != wanted.shape:
            yield f"{at}: of shape {found.shape}"
            return
        most = WITHIN[self.kind.dtype] * max(np.abs(wanted).max(initial=0), 1)
        error = np.abs(found.astype(np.float64) - wanted)
        if not (error <= most).all():
            yield f"{at}: {(~(error <= most)).sum()} of {error.size} numbers are wrong"


def problems(
    kind: Attending,
    widths: Sequence[int],
    target: Target | str,
    without: Sequence[Sequence[str]] = ((),),
) -> list[str]:
    """What is wrong with attention of heads of these widths, which are built together."""
    made = [Headed(kind, width) for width in widths]
    text = "".join(each.function() for each in made)
    exe = relaxpy.build(
        relaxpy.parse(f"@I.ir_module\nclass Heads:{textwrap.indent(text, '    ')}"),
        target,
        cache=False,
    )
    found: list[str] = []
    for missing in without:
        vm = relaxpy.VirtualMachine(exe, without_features=missing)
        for each in made:

            def call(*inputs: np.ndarray, of: Any = vm[each.name]) -> np.ndarray:
                return of(*inputs).numpy()

            found += each.problems(call)
    return found
