"""Matrix products, fp32: relaxpy's kernels, numpy's OpenBLAS and torch in one run, with the same threads.

    python benchmarks/matmul.py                       the table
    python benchmarks/matmul.py --threads 1 --json out.json

The weights of a layer are one kernel for every number of rows (compiled once), attention one for every batch and
length. Libraries take turns, `--rounds` times a shape; reported is the best round, as GFLOP/s and as a share of this
machine's peak: what a loop of fused multiply-adds on registers reaches here, on the same number of threads, measured
in the same run. The last column is the CPU time that compiling took (parallel and serial variant, to an object).
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

ROWS = (1, 4, 16, 128, 512, 4096)
WEIGHTS = ((384, 384), (384, 1536), (1536, 384), (2048, 2048))
LENGTHS = ((8, 16), (8, 64), (1, 128), (8, 128), (1, 512))
HEADS, WIDTH = 12, 32

Run = Callable[[], object]


@dataclass
class Result:
    """One shape: GFLOP/s of each library."""

    name: str
    gflops: dict[str, float]
    peak_share: float
    """Of relaxpy, of the best peak up to then."""
    compile_seconds: float


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args()
    # Before any of the libraries is loaded: each reads its own variable once.
    for variable in ("RELAXPY_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[variable] = str(options.threads)
    report(Bench(options.threads, options.rounds), options.json)


class Bench:
    """What all shapes share: the target, the libraries, the peak."""

    def __init__(self, threads: int, rounds: int) -> None:
        from relaxpy.tir.target import Target

        self.threads, self.rounds = threads, rounds
        self.target = Target.host()
        self.torch = import_torch(threads)
        self.peak_flops, self.peak_run = self._peak_loop()
        self.peak = 0.0
        """The best so far: measured again beside every shape, as every shape is, so that neighbours disturb both."""

    def layers(self) -> list[Result]:
        """Rows by the weights of a layer."""
        from relaxpy.ir.dim import SymVar

        results: list[Result] = []
        for k, n in WEIGHTS:
            kernel, seconds = self.compile((SymVar("m"), k), (k, n))
            for m in ROWS:
                results.append(self.measure(kernel, seconds, (m, k), (k, n), f"{m} x {k} x {n}"))
        return results

    def attention(self) -> list[Result]:
        """Queries by transposed keys, and weights by values, of all heads."""
        from relaxpy.ir.dim import SymVar

        b, s = SymVar("b"), SymVar("s")
        results: list[Result] = []
        scores, first = self.compile((b, HEADS, s, WIDTH), (b, HEADS, s, WIDTH), transposed=True)
        values, second = self.compile((b, HEADS, s, s), (b, HEADS, s, WIDTH))
        for batch, length in LENGTHS:
            heads = (batch, HEADS)
            rows = (*heads, length, WIDTH)
            name = f"{batch}*{HEADS} heads, {length} tokens"
            results.append(
                self.measure(scores, first, rows, rows, f"q k^T, {name}", transposed=True)
            )
            results.append(
                self.measure(values, second, (*heads, length, length), rows, f"p v, {name}")
            )
        return results

    def compile(
        self, a: tuple[Any, ...], b: tuple[Any, ...], *, transposed: bool = False
    ) -> tuple[Any, float]:
        """The kernel of `a @ b` and the CPU seconds that it took."""
        from relaxpy.tir import te
        from relaxpy.tir.prim_func import PrimFunc

        left, right = te.placeholder(a, "float32", "A"), te.placeholder(b, "float32", "B")
        k = te.reduce_axis(a[-1])

        def element(*index: Any) -> Any:
            *outer, i, j = index
            at = outer[: len(b) - 2]
            return te.sum(
                left(*outer, i, k) * (right(*at, j, k) if transposed else right(*at, k, j)), k
            )

        columns = b[-2] if transposed else b[-1]
        func = PrimFunc.from_te([left, right], [te.compute((*a[:-1], columns), element, "C")]).func
        return self._load(func)

    def measure(
        self,
        kernel: Any,
        seconds: float,
        a_shape: tuple[int, ...],
        b_shape: tuple[int, ...],
        name: str,
        *,
        transposed: bool = False,
    ) -> Result:
        """All libraries on one shape, checked against numpy."""
        import numpy as np
        import tvm_ffi

        random = np.random.default_rng(0)
        a = random.standard_normal(a_shape, dtype="float32")
        b = random.standard_normal(b_shape, dtype="float32")
        right = b.swapaxes(-1, -2) if transposed else b
        out = np.empty((*a_shape[:-1], right.shape[-1]), "float32")
        args = [tvm_ffi.from_dlpack(x, require_alignment=4) for x in (a, b, out)]
        flops = 2 * out.size * a_shape[-1]
        work = flops // 2
        runs: dict[str, Run] = {
            "relaxpy": lambda: kernel.run(work, *args),
            "numpy": lambda: np.matmul(a, right),
        }
        if self.torch is not None:
            ours = [self.torch.from_numpy(x) for x in (a, right)]
            runs["torch"] = lambda: self.torch.matmul(*ours)
        peak = self._best({"peak": self.peak_run}, self.peak_flops)["peak"]
        self.peak = max(self.peak, self.peak_flops / peak / 1e9)
        runs["relaxpy"]()
        assert np.allclose(out, a @ right, rtol=1e-3, atol=1e-2), name
        best = self._best(runs, flops)
        gflops = {library: flops / time / 1e9 for library, time in best.items()}
        return Result(name, gflops, gflops["relaxpy"] / self.peak, seconds)

    def _best(self, runs: dict[str, Run], flops: int) -> dict[str, float]:
        """Seconds of one call of each, the best of all rounds."""
        # Short bursts, so that some round falls where nothing else runs.
        calls = max(1, min(200, int(2e8 / max(flops, 1))))
        best = dict.fromkeys(runs, float("inf"))
        for _ in range(self.rounds):
            for library, run in runs.items():
                # Workers of the library before spin for a while, on the core that this one's need.
                time.sleep(0.03)
                run()
                start = time.perf_counter()
                for _ in range(calls):
                    run()
                best[library] = min(best[library], (time.perf_counter() - start) / calls)
        return best

    def _load(self, func: Any) -> tuple[Any, float]:
        from relaxpy.runtime.bytecode import KernelInfo
        from relaxpy.runtime.kernels import load_kernels
        from relaxpy.schedule import schedule_kernel
        from relaxpy.tir.compile import compile_object

        start = time.process_time()
        kernel = schedule_kernel(func, self.target)
        code = compile_object({"p": kernel.parallel, "s": kernel.serial}, self.target)
        seconds = time.process_time() - start
        return load_kernels([code], [KernelInfo("matmul", "p", "s")])[0], seconds

    def _peak_loop(self) -> tuple[int, Run]:
        """A loop of multiply-adds on registers, on all threads, and how many operations it is."""
        import numpy as np
        import tvm_ffi

        from relaxpy.tir import loops, te
        from relaxpy.tir.prim_func import PrimFunc

        lanes, chains, steps = self.target.lanes(), 12, 1 << 14
        tasks = self.threads * 4
        x = te.placeholder((tasks, lanes), "float32", "X")
        func = PrimFunc.from_te([x], [te.compute((tasks, lanes), lambda i, j: x(i, j), "Y")]).func
        p: Any = loops.Program()
        source, target = (p.flat_view(buffer) for buffer in func.params)
        with p.loop("task", tasks, parallel=True) as task:
            value = p.let("value", loops.load(source, task * lanes, lanes))
            sums = [p.allocate(f"sum{n}", lanes, "float32") for n in range(chains)]
            for chain in sums:
                p.store(chain, 0, value, lanes)
            with p.loop("step", steps):
                for chain in sums:
                    before: Any = loops.load(chain, 0, lanes)
                    p.store(chain, 0, before * value + value, lanes)
            for chain in sums:
                before = loops.load(target, task * lanes, lanes)
                p.store(target, task * lanes, before + loops.load(chain, 0, lanes), lanes)
        kernel, _ = self._load(loops.finished(func, p.body()))
        arrays = [np.full((tasks, lanes), 0.5, "float32") for _ in range(2)]
        args = [tvm_ffi.from_dlpack(array, require_alignment=4) for array in arrays]
        flops = 2 * tasks * lanes * chains * steps
        return flops, lambda: kernel.run(flops, *args)


def import_torch(threads: int) -> Any:
    """The module, or None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(threads)
    return torch


def report(bench: Bench, path: Path | None) -> None:
    """Print the table, and write it where that is asked for."""
    libraries = ("relaxpy", "numpy", *(("torch",) if bench.torch is not None else ()))
    print(f"{bench.target}")
    head = "".join(f"{library:>9}" for library in libraries)
    print(f"{'rows x depth x columns, GFLOP/s':36}{head}  of peak  compile")
    results: list[Result] = []
    for result in (*bench.layers(), *bench.attention()):
        results.append(result)
        cells = "".join(f"{result.gflops[library]:9.1f}" for library in libraries)
        last = f"{result.peak_share:9.0%}{result.compile_seconds:8.2f}s"
        print(f"{result.name:36}{cells}{last}", flush=True)
    print(f"{bench.threads} threads; peak of fp32 multiply-adds: {bench.peak:.0f} GFLOP/s")
    if path is not None:
        data = {
            "target": str(bench.target),
            "threads": bench.threads,
            "peak_gflops": bench.peak,
            "results": [asdict(result) for result in results],
        }
        path.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
