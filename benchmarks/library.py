"""Kernels or a library: the same programs built by the default pipeline, and with matrix products lowered to OpenBLAS.

    python benchmarks/library.py                      the table
    python benchmarks/library.py --threads 1 --json out.json

A layer (product, bias, relu) with bound weights is compiled once for any number of rows, attention scores once for any
batch and length. Both executables run in one process with the same number of threads and take turns; reported is the
best of `--rounds` bursts of whole calls, so what a call costs besides the product is in it. `wins` says where the
library is more than 5 % faster.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

ROWS = (1, 4, 16, 128, 512)
WEIGHTS = ((384, 384), (384, 1536), (1536, 384), (2048, 2048))
LENGTHS = ((1, 16), (8, 64), (1, 512))
HEADS, WIDTH = 12, 32

LAYER = """
@I.ir_module
class Module:
    @R.function
    def main(
        x: R.Tensor(("n", {k}), "float32"), w: R.Tensor(({k}, {n}), "float32"), b: R.Tensor(({n},), "float32")
    ) -> R.Tensor(("n", {n}), "float32"):
        with R.dataflow():
            y = R.nn.relu(R.add(R.matmul(x, w), b))
            R.output(y)
        return y
"""
SCORES = """
@I.ir_module
class Module:
    @R.function
    def main(
        q: R.Tensor(("b", {h}, "s", {d}), "float32"), k: R.Tensor(("b", {h}, "s", {d}), "float32")
    ) -> R.Tensor(("b", {h}, "s", "s"), "float32"):
        with R.dataflow():
            y = R.matmul(q, R.permute_dims(k, axes=[0, 1, 3, 2]))
            R.output(y)
        return y
"""


@dataclass
class Result:
    """One shape: microseconds of a call."""

    name: str
    kernels_us: float
    library_us: float
    gflops: float
    """Of the faster one."""


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args()
    os.environ["RELAXPY_NUM_THREADS"] = str(options.threads)
    print(
        f"{options.threads} threads\n{'':28}{'kernels':>12}{'library':>12}{'library/kernels':>17}"
    )
    results = [*layers(options.rounds), *scores(options.rounds)]
    if options.json is not None:
        data = {"threads": options.threads, "results": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(data, indent=1) + "\n")


def layers(rounds: int) -> list[Result]:
    """Rows by the weights of a layer."""
    import numpy as np

    random = np.random.default_rng(0)
    results: list[Result] = []
    for k, n in WEIGHTS:
        params = {
            "w": random.standard_normal((k, n), dtype="float32"),
            "b": random.standard_normal(n, dtype="float32"),
        }
        runs = both(LAYER.format(k=k, n=n), params)
        for rows in ROWS:
            x = random.standard_normal((rows, k), dtype="float32")
            results.append(measure(f"{rows} x {k} x {n}", runs, (x,), 2 * rows * k * n, rounds))
    return results


def scores(rounds: int) -> list[Result]:
    """Queries by transposed keys, of all heads."""
    import numpy as np

    random = np.random.default_rng(0)
    runs = both(SCORES.format(h=HEADS, d=WIDTH), {})
    results: list[Result] = []
    for batch, length in LENGTHS:
        q, k = (
            random.standard_normal((batch, HEADS, length, WIDTH), dtype="float32") for _ in "qk"
        )
        flops = 2 * batch * HEADS * length * length * WIDTH
        name = f"q k^T {batch}*{HEADS} of {length}"
        results.append(measure(name, runs, (q, k), flops, rounds))
    return results


def both(text: str, params: dict[str, Any]) -> list[Callable[..., Any]]:
    """The function built with kernels only, and with the library."""
    import relaxpy
    from relaxpy.build.blas import BLAS
    from relaxpy.build.pipeline import default_pipeline
    from relaxpy.transform.lower_to_library import LowerToLibrary

    mod = relaxpy.parse(text)
    with_library = default_pipeline().before("match", LowerToLibrary(BLAS))
    kernels = relaxpy.build(mod, params=params)
    library = relaxpy.build(mod, params=params, pipeline=with_library)
    assert len(library.libraries) == 1
    return [relaxpy.VirtualMachine(exe)["main"] for exe in (kernels, library)]


def measure(
    name: str, runs: list[Callable[..., Any]], args: tuple[Any, ...], flops: int, rounds: int
) -> Result:
    """The best time of a call of each, after comparing what they give."""
    import numpy as np

    from relaxpy.runtime.tensor import from_numpy

    given = [from_numpy(array) for array in args]
    first, second = (run(*given).numpy() for run in runs)
    np.testing.assert_allclose(first, second, rtol=1e-3, atol=1e-2)
    calls = max(1, min(200, int(1e8 / flops)))
    best = [float("inf")] * 2
    for _ in range(rounds):
        for i, run in enumerate(runs):
            # Workers of the one before wait actively for a while, on the core that this one's need.
            time.sleep(0.03)
            run(*given)
            start = time.perf_counter()
            for _ in range(calls):
                run(*given)
            best[i] = min(best[i], (time.perf_counter() - start) / calls)
    kernels, library = (1e6 * seconds for seconds in best)
    result = Result(name, kernels, library, flops / min(best) / 1e9)
    mark = "  wins" if library < 0.95 * kernels else ""
    ratio = library / kernels
    print(f"{name:28}{kernels:9.1f} us{library:9.1f} us{ratio:17.2f}{mark}", flush=True)
    return result


if __name__ == "__main__":
    main()
