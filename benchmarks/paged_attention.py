"""Decode attention over a paged cache, beside what memory gives.

    python benchmarks/paged_attention.py [--json FILE]

Every case rotates through the pages of 22 layers, as a model does, in random pages, so that the cache of the processor
keeps none of them where they are large. The share is the bytes of the keys and values that a call reads, a second,
of those that a loop over as many bytes reads in the same minute.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from rich.console import Console
from rich.table import Table

import relaxpy
from benchmarks.limits import Limits
from benchmarks.turns import timed
from relaxpy.runtime.devices.cpu.threads import num_threads
from relaxpy.runtime.tensor import from_numpy

LAYERS, PAGE = 22, 32
SHAPES = ((32, 4, 64), (32, 8, 128), (32, 32, 96), (4, 1, 256))
"""Heads, key heads, width."""
WORK = ((1, 1024), (16, 1024), (1, 8192))
"""Sequences, and keys of each."""
KINDS: dict[str, Any] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "int8": np.int8}


@dataclass(frozen=True)
class Row:
    """A case, measured."""

    shape: tuple[int, int, int]
    pages: str
    sequences: int
    keys: int
    microseconds: float
    gigabytes_a_second: float
    share: float


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


def measure(shape: tuple[int, int, int], pages: str, sequences: int, keys: int) -> Row:
    """The least time of a call."""
    heads, groups, width = shape
    rng, wide = np.random.default_rng(0), keys // PAGE
    count = sequences * wide
    kind = KINDS[pages]
    dtype = KINDS["bfloat16" if pages == "bfloat16" else "float32"]
    each = count * groups * width * PAGE * np.dtype(kind).itemsize * 2
    layers = min(LAYERS, max(2, (1 << 30) // each))

    def array(*size: int, of: Any = kind) -> np.ndarray:
        if of is np.int8:
            return rng.integers(-127, 128, size, np.int8)
        return rng.standard_normal(size, np.float32).astype(of)

    query = array(sequences, heads, width, of=dtype)
    starts = np.arange(sequences + 1, dtype=np.int32)
    lengths = np.full(sequences, keys, np.int32)
    calls: list[list[Any]] = []
    for _ in range(layers):
        table = rng.permutation(count).astype(np.int32).reshape(sequences, wide)
        of_layer = [array(count, groups, width, PAGE), array(count, groups, PAGE, width)]
        scales = [array(count, groups, PAGE, of=np.float32) for _ in range(2)]
        rest = scales if pages == "int8" else []
        arrays = [query, *of_layer, starts, table, lengths, *rest]
        calls.append([from_numpy(value) for value in arrays])
    run = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(program(*shape, pages))))["main"]
    turn = cycle(calls)
    seconds = min(timed(lambda: run(*next(turn)), 3, 0.3))
    limits = Limits(num_threads())
    speed = each / seconds
    share = speed / limits.bandwidth(each * layers)
    return Row(shape, pages, sequences, keys, seconds * 1e6, speed / 1e9, share)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="the first shape only")
    args = parser.parse_args()
    table = Table("heads", "pages", "sequences", "keys", "µs", "GB/s", "of the probe")
    rows: list[Row] = []
    for shape in SHAPES[: 1 if args.quick else None]:
        for pages in KINDS:
            for work in WORK:
                rows.append(row := measure(shape, pages, *work))
                text = "{}/{}×{}".format(*shape), pages, *map(str, work)
                numbers = row.microseconds, row.gigabytes_a_second, 100 * row.share
                table.add_row(*text, *map("{:.1f}".format, numbers))
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
