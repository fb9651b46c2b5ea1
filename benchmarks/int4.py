"""Products with 4-bit weights beside the physical limits of the same minutes.

    python benchmarks/int4.py [--threads 2] [--shapes 2048x5632,…] [--rows 1,4,16,128] [--json out.json]

Weights are int4 in groups of 32 with float16 scales, packed by the executable's packers: as many as exceed the caches,
used in turn. `w4a32` multiplies floats; `w4a8` quantises its activations to int8 (that kernel's time is included). The
limit of a row is the longer of two times: reading the weights at the speed of a loop that reads 256 MB, and computing
at the speed of a loop of the kernel's instructions on registers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

GROUP = 32
COLD_BYTES = 256 << 20
"""Bytes of weights that are used in turn, and of the loop that reads."""
SHAPES = "2048x5632,5632x2048,2048x32000"
ROWS = "1,4,16,128"


@dataclass
class Result:
    """One product: times in microseconds, rates, and the limits of the same minute."""

    scheme: str
    shape: str
    rows: int
    micros: float
    gigabytes: float
    """Of weights and scales, a second."""
    read_probe: float
    """GB/s of a loop that reads."""
    gigaops: float
    peak: float
    """GOP/s of a loop of the kernel's multiply-adds on registers."""
    share: float
    """The limit's time over the time."""
    bound: str
    """The resource that sets the limit: memory or compute."""


def program(depth: int, columns: int) -> str:
    return f"""
@R.function
def main(x: R.Tensor(("n", {depth}), "float32"), w: R.Tensor(({columns}, {depth}), "float32")):
    R.func_attr({{"num_input": 1}})
    with R.dataflow():
        y = R.linear(x, w)
        R.output(y)
    return y
"""


def weights(vm: Any, depth: int, columns: int) -> list[Any]:
    """Packed weights, more than the caches hold."""
    import numpy as np

    random = np.random.default_rng(0)
    scale = random.random((columns, depth // GROUP), np.float32) * 0.02 + 0.01
    size = columns * depth // 2 + 2 * scale.size
    found = []
    for _ in range(max(2, -(-COLD_BYTES // size))):
        codes = random.integers(0, 2**32, (columns, depth // 8), np.uint32)
        parts = {"w_codes": codes, "w_scale": scale.astype(np.float16)}
        found.append(vm.pack(parts, keep=False)["main"])
    return found


def best(run: Callable[[], object], seconds: float) -> float:
    """The least time of a call."""
    run()
    least, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        least = min(least, time.perf_counter() - start)
    return least


def measure(options: argparse.Namespace) -> list[Result]:
    """All products of all schemes."""
    import numpy as np

    import relaxpy
    from benchmarks.limits import Limits
    from relaxpy.transform import QuantizeWeights

    limits = Limits(options.threads)
    found: list[Result] = []
    steps = {"w4a32": QuantizeWeights(), "w4a8": QuantizeWeights(activations=GROUP)}
    for text in options.shapes.split(","):
        depth, columns = map(int, text.split("x"))
        mod = relaxpy.parse(program(depth, columns))
        packed: list[Any] = []
        for name, step in steps.items():
            vm = relaxpy.VirtualMachine(relaxpy.build(step(mod), pack=True))
            # Both kernels read the same layout.
            packed = packed or weights(vm, depth, columns)
            nbytes = depth * columns / 2 + 2 * depth * columns / GROUP
            for rows in map(int, options.rows.split(",")):
                x = np.random.default_rng(1).standard_normal((rows, depth), dtype=np.float32)
                turns = itertools.cycle(packed)
                seconds = best(lambda: vm["main"](x, *next(turns)), options.seconds)  # noqa: B023
                read = limits.bandwidth(COLD_BYTES)
                peak = limits.peak("codes" if name == "w4a8" else "float32")
                flops = 2 * rows * depth * columns
                memory, compute = nbytes / read, flops / peak if peak else 0.0
                found.append(
                    Result(
                        name, text, rows, seconds * 1e6, nbytes / seconds / 1e9, read / 1e9,
                        flops / seconds / 1e9, peak / 1e9, max(memory, compute) / seconds,
                        "memory" if memory > compute else "compute",
                    )
                )  # fmt: skip
    return found


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--seconds", type=float, default=1.0, help="a figure")
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args()
    os.environ["RELAXPY_NUM_THREADS"] = str(options.threads)
    results = measure(options)
    table = Table(
        "scheme", "K x N", "M", "µs", "GB/s", "probe", "GOP/s", "peak", "of the limit", "bound by"
    )
    for each in results:
        rates = (each.micros, each.gigabytes, each.read_probe, each.gigaops, each.peak)
        shown = [f"{number:.1f}" for number in rates]
        table.add_row(
            each.scheme, each.shape, str(each.rows), *shown, f"{each.share:.0%}", each.bound
        )
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in results], indent=1))


if __name__ == "__main__":
    main()
