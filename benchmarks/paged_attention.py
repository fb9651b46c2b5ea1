"""Attention over a paged cache, beside what memory and arithmetic allow.

    python benchmarks/paged_attention.py [--docs] [--only TEXT …]

Decoding: sequences with one new token each. Every case rotates through the pages of 22 layers, as a model does, in
random pages, so that the cache of the processor keeps none of them where they are large. Prefill: new tokens of one
sequence, causal.

The limit of a case is the larger of two times: that in which a loop over as many bytes as the rotation has reads the
keys and values of a call, and that in which a loop of float32 multiply-adds on registers does its products (4
operations for each pair of a query and a key that it sees, and number of the width; exponentials are not counted). The
share is the limit's time by the measured time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import relaxpy
from benchmarks.limits import Limits
from benchmarks.report import markdown_table, replace_section, save, saved
from benchmarks.turns import timed
from relaxpy.runtime.host.threads import num_threads
from relaxpy.runtime.tensor import from_numpy

LAYERS, PAGE = 22, 32
SHAPES = ((32, 4, 64), (32, 8, 128), (32, 32, 96), (4, 1, 256))
"""Heads, key heads, width."""
KINDS: dict[str, Any] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "int8": np.int8}
SECTION, NAME = "Attention over a paged cache", "paged_attention"


@dataclass(frozen=True)
class Work:
    """The sequences of a call, all alike."""

    sequences: int
    keys: int
    new: int = 1
    """Tokens of this call, of each sequence."""

    def __str__(self) -> str:
        return f"prefill {self.new}" if self.new > 1 else f"{self.sequences} × {self.keys}"

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that it sees."""
        before = self.keys - self.new
        return self.sequences * (before * self.new + self.new * (self.new + 1) // 2)


WORK = (
    Work(1, 1024), Work(16, 1024), Work(1, 8192), Work(16, 8192), Work(1, 128, 128), Work(1, 512, 512),
    Work(1, 4096, 4096),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A case, measured."""

    shape: str
    pages: str
    work: str
    microseconds: float
    gigabytes_a_second: float
    gigaflops: float
    limit: str
    """"memory" or "arithmetic"."""
    share: float

    @property
    def text(self) -> tuple[str, ...]:
        numbers = self.microseconds, self.gigabytes_a_second, self.gigaflops
        written = (f"{number:.1f}" for number in numbers)
        return self.shape, self.pages, self.work, *written, self.limit, f"{100 * self.share:.0f} %"


COLUMNS = ("heads", "pages", "sequences × keys", "µs", "GB/s", "GFLOP/s", "limit", "of it")


def program(heads: int, groups: int, width: int, pages: str) -> str:
    """The operator on queries in float32 (bfloat16 where the pages are)."""
    dtype = "bfloat16" if pages == "bfloat16" else "float32"
    given = {
        "query": f'("t", {heads}, {width}), "{dtype}"',
        "keys": f'("n", {groups}, {width}, {PAGE}), "{pages}"',
        "values": f'("n", {groups}, {PAGE}, {width}), "{pages}"',
        "starts": '("c",), "int32"',
        "tables": '("b", "w"), "int32"',
        "lengths": '("b",), "int32"',
    }
    scales = ""
    if pages == "int8":
        given |= {name: f'("n", {groups}, {PAGE}), "float32"' for name in ("ks", "vs")}
        scales = ", key_scales=ks, value_scales=vs"
    params = ", ".join(f"{name}: R.Tensor({of})" for name, of in given.items())
    return f"""
@R.function
def main({params}) -> R.Tensor(("t", {heads}, {width}), "{dtype}"):
    y = R.nn.paged_attention(query, keys, values, starts, tables, lengths{scales})
    return y
"""


def measure(run: Any, shape: tuple[int, int, int], pages: str, work: Work, limits: Limits) -> Row:
    """The least time of a call."""
    heads, groups, width = shape
    rng, wide = np.random.default_rng(0), work.keys // PAGE
    count = work.sequences * wide
    kind = KINDS[pages]
    dtype = KINDS["bfloat16" if pages == "bfloat16" else "float32"]
    each = count * groups * width * PAGE * np.dtype(kind).itemsize * 2
    layers = min(LAYERS, max(1, (1 << 30) // each))
    numbers = rng.standard_normal(1 << 20, np.float32)

    def array(*size: int, of: Any = kind) -> np.ndarray:
        if of is np.int8:
            return np.resize(np.clip(numbers * 40, -127, 127).astype(of), size)
        return np.resize(numbers.astype(of), size)

    query = array(work.sequences * work.new, heads, width, of=dtype)
    starts = np.arange(work.sequences + 1, dtype=np.int32) * np.int32(work.new)
    lengths = np.full(work.sequences, work.keys, np.int32)
    calls: list[list[Any]] = []
    for _ in range(layers):
        table = rng.permutation(count).astype(np.int32).reshape(work.sequences, wide)
        of_layer = [array(count, groups, width, PAGE), array(count, groups, PAGE, width)]
        scales = [array(count, groups, PAGE, of=np.float32) / 40 for _ in range(2)]
        rest = scales if pages == "int8" else []
        arrays = [query, *of_layer, starts, table, lengths, *rest]
        calls.append([from_numpy(value) for value in arrays])
    turn = cycle(calls)
    run(*next(turn))
    seconds = min(timed(lambda: run(*next(turn)), 3, 0.3))
    flops = 4 * heads * width * work.pairs
    reading, computing = each / limits.bandwidth(each * layers), flops / limits.peak("float32")
    limit = "memory" if reading > computing else "arithmetic"
    share = max(reading, computing) / seconds
    text = "{}/{}×{}".format(*shape)
    return Row(
        text, pages, str(work), seconds * 1e6, each / seconds / 1e9, flops / seconds / 1e9, limit, share
    )  # fmt: skip


def rows_of(only: list[str]) -> Iterator[Row]:
    """All cases whose text has one of these parts; without any, all."""
    limits = Limits(num_threads())
    for shape in SHAPES:
        for pages in KINDS:
            wanted = [
                work
                for work in WORK
                if not only or any(part in f"{shape} {pages} {work}" for part in only)
            ]
            if not wanted:
                continue
            run = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(program(*shape, pages))))
            for work in wanted:
                yield measure(run["main"], shape, pages, work, limits)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--docs",
        action="store_true",
        help="keep the figures in benchmarks/results, write the section of docs/benchmarks.md",
    )
    parser.add_argument("--only", nargs="*", default=[], help="cases with one of these texts")
    args = parser.parse_args()
    table = Table(*COLUMNS)
    found: dict[str, Any] = saved(NAME) if args.docs else {}
    for row in rows_of(args.only):
        table.add_row(*row.text)
        found[" ".join(row.text[:3])] = asdict(row)
    Console().print(table)
    if args.docs:
        save(NAME, found)
        of_shape = {"{}/{}×{}".format(*shape): number for number, shape in enumerate(SHAPES)}
        order = [str(work) for work in WORK]
        rows = sorted(
            (Row(**row) for row in found.values()),
            key=lambda row: (
                of_shape[row.shape],
                list(KINDS).index(row.pages),
                order.index(row.work),
            ),
        )
        intro = " ".join((__doc__ or "").split("\n\n", 2)[2].split())
        text = markdown_table(COLUMNS, [row.text for row in rows], "lllrrrlr")
        replace_section(SECTION, f"{intro}\n\n{text}\n")


if __name__ == "__main__":
    main()
