"""Matrix products: relaxpy's kernels, numpy's OpenBLAS and torch (oneDNN) in one run, with the same threads.

    python benchmarks/matmul.py                       the table
    python benchmarks/matmul.py --threads 1 --json out.json
    python benchmarks/matmul.py --only weights        packed weights of float32, bfloat16 and int8

The weights of a layer are one kernel for every number of rows (compiled once), attention one for every batch and
length. Packed weights are as many as do not fit a cache, used in turn, as a model uses its layers'. Libraries take
turns, `--rounds` times a shape; reported is the best round, as GFLOP/s and as a share of this machine's limit: what a
loop of multiply-adds of the type on registers reaches here, or what reading the packed weights takes if that is more,
on the same number of threads, measured in the same run (`limits.py`). The last column is the CPU time that compiling
took (parallel and serial variant, to an object).
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

ROWS = (1, 4, 16, 128, 512, 4096)
WEIGHTS = ((384, 384), (384, 1536), (1536, 384), (2048, 2048))
LENGTHS = ((8, 16), (8, 64), (1, 128), (8, 128), (1, 512))
HEADS, WIDTH = 12, 32
SIDE = 2048
"""Rows and columns of packed weights."""
COLD_BYTES = 128 << 20
"""Weights that are used in turn: more than the caches hold."""
TYPES = (("float32", "float32"), ("bfloat16", "bfloat16"), ("int8", "int32"))
"""Factors and result of products with packed weights."""
PACKED_ROWS = (1, 4, 16, 64, 192)

Run = Callable[[], object]


@dataclass
class Result:
    """One shape: GFLOP/s of each library."""

    name: str
    gflops: dict[str, float]
    limit_share: float
    """Of relaxpy: the least time that arithmetic and memory allow, over its time."""
    compile_seconds: float


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--only", choices=("layers", "attention", "weights"))
    options = parser.parse_args()
    # Before any of the libraries is loaded: each reads its own variable once.
    for variable in ("RELAXPY_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[variable] = str(options.threads)
    report(Bench(options.threads, options.rounds), options.only, options.json)


class Bench:
    """Shared by all shapes: the target, the libraries, the peak."""

    def __init__(self, threads: int, rounds: int) -> None:
        from benchmarks.limits import Limits
        from relaxpy.target import Target

        self.threads, self.rounds = threads, rounds
        self.target = Target.host()
        self.torch = import_torch(threads)
        self.limits = Limits(threads, self.target)
        self.memory = 0.0
        """Bytes a second out of the caches, the best so far: neighbours disturb that measurement too."""

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
        runs["relaxpy"]()
        assert np.allclose(out, a @ right, rtol=1e-3, atol=1e-2), name
        best = self._best(runs, flops)
        gflops = {library: flops / time / 1e9 for library, time in best.items()}
        share = gflops["relaxpy"] * 1e9 / self.limits.peak("float32")
        return Result(name, gflops, share, seconds)

    def weights(self) -> list[Result]:
        """Rows by packed weights of every type."""
        results: list[Result] = []
        for dtype, out in TYPES:
            program, packing = packed_product(dtype, out, self.target)
            kernel, seconds = self._load(program.func)
            for rows in PACKED_ROWS:
                results.append(self._measure_packed(kernel, seconds, packing, rows, dtype, out))
        return results

    def _measure_packed(
        self, kernel: Any, seconds: float, packing: Any, rows: int, dtype: str, out: str
    ) -> Result:
        """One number of rows, the weights out of the caches."""
        import ml_dtypes
        import numpy as np
        import tvm

        kind = np.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
        random = np.random.default_rng(0)
        scale = 50 if dtype == "int8" else 1
        a, b = ((random.standard_normal((n, SIDE)) * scale).astype(kind) for n in (rows, SIDE))
        copies = max(2, COLD_BYTES // b.nbytes)
        panels = packing.pack(b)

        def tensor(array: np.ndarray) -> Any:
            made = tvm.runtime.empty(array.shape, str(array.dtype))
            return made.copyfrom(array)

        left, result = tensor(a), tensor(np.zeros((rows, SIDE), kind if out == dtype else out))
        rights = itertools.cycle([tensor(panels) for _ in range(copies)])
        work = rows * SIDE * SIDE
        runs: dict[str, Run] = {"relaxpy": lambda: kernel.run(work, left, next(rights), result)}
        runs["relaxpy"]()
        wide = a.astype("float64") @ b.astype("float64")
        scale = np.abs(wide).max()
        assert np.abs(result.numpy().astype("float64") - wide).max() <= 1e-2 * scale, dtype
        if dtype == "float32":
            others = itertools.cycle([b.copy() for _ in range(copies)])
            runs["numpy"] = lambda: np.matmul(a, next(others))
        if self.torch is not None:
            runs |= self._torch_runs(a, b, copies, dtype)
        flops = 2 * work
        best = self._best(runs, flops)
        compute = flops / self.limits.peak(dtype)
        self.memory = max(self.memory, self.limits.bandwidth(COLD_BYTES))
        limit = max(compute, b.nbytes / self.memory)
        gflops = {library: flops / time / 1e9 for library, time in best.items()}
        name = f"{dtype}, {rows} x {SIDE} x {SIDE}, packed"
        return Result(name, gflops, limit / best["relaxpy"], seconds)

    def _torch_runs(self, a: Any, b: Any, copies: int, dtype: str) -> dict[str, Run]:
        """Torch's product, where it has one of these types and sizes."""
        torch = self.torch

        def tensor(array: Any) -> Any:
            kind = getattr(torch, dtype)
            return torch.from_numpy(array.astype("float32")).to(kind)

        left, rights = tensor(a), itertools.cycle([tensor(b) for _ in range(copies)])
        product = torch._int_mm if dtype == "int8" else torch.matmul
        try:
            product(left, next(rights))
        except RuntimeError:  # it takes more than 16 rows of bytes only
            return {}
        return {"torch": lambda: product(left, next(rights))}

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
        from relaxpy.backend.cpu.compile import compile_object
        from relaxpy.backend.schedule import schedule_kernel
        from relaxpy.runtime.bytecode import KernelImage, KernelInfo
        from relaxpy.runtime.devices.cpu.kernels import load_kernels

        start = time.process_time()
        kernel = schedule_kernel(func, self.target)
        code = compile_object({"p": kernel.parallel, "s": kernel.serial}, self.target)
        seconds = time.process_time() - start
        return load_kernels([code], [KernelInfo("matmul", (KernelImage("p", "s"),))])[0], seconds


def packed_product(dtype: str, out: str, target: Any) -> tuple[Any, Any]:
    """The program of a product with packed weights, and how they are packed."""
    from relaxpy.backend.cpu.panels import wanted_packing, with_packed
    from relaxpy.ir.dim import SymVar
    from relaxpy.tir import te
    from relaxpy.tir.prim_func import PrimFunc

    rows, total = SymVar("m"), "int32" if out == "int32" else "float32"
    a, b = (te.placeholder((n, SIDE), dtype, name) for n, name in ((rows, "A"), (SIDE, "B")))
    k = te.reduce_axis(SIDE)

    def wide(value: Any) -> Any:
        return value if dtype == total else value.astype(total)

    result = te.compute((rows, SIDE), lambda i, j: te.sum(wide(a(i, k)) * wide(b(k, j)), k), "C")
    if out != total:
        summed = result
        result = te.compute((rows, SIDE), lambda i, j: summed(i, j).astype(out), "D")
    program = PrimFunc.from_te([a, b], [result])
    packing = wanted_packing(program, target)
    assert packing is not None, "a product with weights of known extents"
    return with_packed(program, packing), packing


def import_torch(threads: int) -> Any:
    """The module, or None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(threads)
    return torch


def report(bench: Bench, only: str | None, path: Path | None) -> None:
    """Print the table, and write it where that is asked for."""
    libraries = ("relaxpy", "numpy", *(("torch",) if bench.torch is not None else ()))
    print(f"{bench.target}")
    head = "".join(f"{library:>9}" for library in libraries)
    print(f"{'rows x depth x columns, GFLOP/s':36}{head} of limit  compile")
    results: list[Result] = []
    parts = {"layers": bench.layers, "attention": bench.attention, "weights": bench.weights}
    for result in itertools.chain.from_iterable(
        part() for name, part in parts.items() if only in (None, name)
    ):
        results.append(result)
        found = (result.gflops.get(library) for library in libraries)
        cells = "".join(" " * 9 if value is None else f"{value:9.1f}" for value in found)
        last = f"{result.limit_share:9.0%}{result.compile_seconds:8.2f}s"
        print(f"{result.name:36}{cells}{last}", flush=True)
    peaks = {dtype: bench.limits.peak(dtype) / 1e9 for dtype, _ in TYPES}
    memory = max(bench.memory, bench.limits.bandwidth(COLD_BYTES)) / 1e9
    listed = ", ".join(f"{dtype} {peak:.0f}" for dtype, peak in peaks.items())
    print(f"{bench.threads} threads; peaks: {listed} GFLOP/s; memory: {memory:.1f} GB/s")
    if path is not None:
        data = {
            "target": str(bench.target),
            "threads": bench.threads,
            "peak_gflops": peaks,
            "memory_gbytes": memory,
            "results": [asdict(result) for result in results],
        }
        path.write_text(json.dumps(data, indent=1) + "\n")
        if only == "weights":
            write_section(data)


def write_section(data: dict[str, Any]) -> None:
    """The table of packed weights in docs/benchmarks.md, from what is written as JSON."""
    from benchmarks.report import markdown_table, replace_section

    libraries = ("relaxpy", "numpy", "torch")
    rows: list[list[str]] = []
    for result in data["results"]:
        found = (result["gflops"].get(library) for library in libraries)
        cells = ("" if value is None else f"{value:.0f}" for value in found)
        rows.append([result["name"], *cells, f"{result['limit_share']:.0%}"])
    peaks = ", ".join(f"{dtype} {peak:.0f}" for dtype, peak in data["peak_gflops"].items())
    table = markdown_table(["rows x depth x columns", *libraries, "of the limit"], rows, " rrrr")
    replace_section(
        "Products with packed weights, out of the caches, GFLOP/s",
        f"`python benchmarks/matmul.py --only weights --json benchmarks/results/matmul_packed.json`, "
        f"{data['threads']} threads. Limits: {peaks} GFLOP/s, {data['memory_gbytes']:.1f} GB/s.\n\n{table}",
    )


if __name__ == "__main__":
    main()
