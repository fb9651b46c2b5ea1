"""Elementary functions on float32: accuracy over the whole range and speed, beside TVM with libm, numpy and torch.

    python benchmarks/elementary.py                 every 1021st float32, 64 Ki elements a call (a few minutes)
    python benchmarks/elementary.py --step 1        every float32

Accuracy is the distance to the exact result in units in the last place of float32 (0.5 is the best there is); the exact
result is float64's. Two arguments: random bits, moderate numbers, and numbers near 1 with large exponents. Speed is
nanoseconds an element on one thread, the best of all rounds, which take turns. `tvm` is the same loop, scheduled and
compiled the same way, with what TVM makes of the call in place of our expression: it calls libm once an element, but
for tanh, where TVM has a formula, and sigmoid, where it is 1 / (1 + expf(-x)).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from relaxpy.backend.schedule import schedule_kernel
from relaxpy.ir.dim import SymVar
from relaxpy.target import Target
from relaxpy.testing.kernels import Kernels
from relaxpy.tir import te
from relaxpy.tir.numerics import scalar
from relaxpy.tir.numerics.floats import libm
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.tvm import tirx

SIZE = 1 << 16
"""Elements in a timed call: 256 KiB a tensor."""
CHUNK = 1 << 22

Array = np.ndarray
Call = Callable[..., Any]
"""From input arrays to the result."""


@dataclass(frozen=True)
class Function:
    """One function and its contenders."""

    name: str
    exact: Call
    ours: Callable[..., Any]
    tvm: Callable[..., Any]
    numpy: Call | None
    torch: str
    domain: tuple[tuple[float, float], ...]
    """Where it is timed, for each argument."""


def sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1.0 + small)


def numpy_sigmoid(x: Array) -> Array:
    return np.float32(1) / (np.float32(1) + np.exp(-x))


def tvm_sigmoid(x: Any) -> Any:
    return _ONE / (_ONE + _exp(-x))


def tvm_tanh(x: Any) -> Any:
    falling, rising = _exp(tirx.const(-2.0, "float32") * x), _exp(tirx.const(2.0, "float32") * x)
    above = (_ONE - falling) / (_ONE + falling)
    below = (rising - _ONE) / (rising + _ONE)
    return tirx.Select(x >= tirx.const(0.0, "float32"), above, below)


_ONE, _exp = tirx.const(1.0, "float32"), libm("exp")
_around = ((-5.0, 5.0),)
_angles = ((-10.0, 10.0),)
FUNCTIONS = (
    Function("exp", np.exp, scalar.exp, libm("exp"), np.exp, "exp", _around),
    Function("log", np.log, scalar.log, libm("log"), np.log, "log", ((0.01, 100.0),)),
    Function("erf", np.vectorize(math.erf, otypes=[np.float64]), scalar.erf, libm("erf"), None, "erf", _around),
    Function("tanh", np.tanh, scalar.tanh, tvm_tanh, np.tanh, "tanh", _around),
    Function("sigmoid", sigmoid, scalar.sigmoid, tvm_sigmoid, numpy_sigmoid, "sigmoid", _around),
    Function("pow", np.power, scalar.power, libm("pow"), np.power, "pow", ((0.1, 10.0), (-5.0, 5.0))),
    Function("sin", np.sin, scalar.sin, libm("sin"), np.sin, "sin", _angles),
    Function("cos", np.cos, scalar.cos, libm("cos"), np.cos, "cos", _angles),
)  # fmt: skip


def kernel(function: Callable[..., Any], arguments: int, target: Target) -> PrimFunc:
    """The function over vectors, scheduled, on one thread."""
    n = SymVar("n").dim
    xs = [te.placeholder((n,), "float32", f"x{i}") for i in range(arguments)]
    out = te.compute((n,), lambda i: function(*(scalar.element(x(i)) for x in xs)))
    return PrimFunc(schedule_kernel(PrimFunc.from_te(xs, [out]).func, target).serial)


def contenders() -> dict[str, dict[str, Call]]:
    """For each function, who computes it, by name."""
    import torch

    torch.set_num_threads(1)
    target = Target.host()
    programs = {
        f"{f.name}_{who}": kernel(getattr(f, who), len(f.domain), target)
        for f in FUNCTIONS
        for who in ("ours", "tvm")
    }
    kernels = Kernels(programs, target, schedule=False)

    def compiled(name: str) -> Call:
        def call(*xs: Array) -> Array:
            out = np.empty_like(xs[0])
            kernels.run(name, xs, [out])
            return out

        return call

    def of_torch(name: str) -> Call:
        function = getattr(torch, name)
        return lambda *xs: function(*map(torch.from_numpy, xs)).numpy()

    found: dict[str, dict[str, Call]] = {}
    for f in FUNCTIONS:
        found[f.name] = {
            "relaxpy": compiled(f"{f.name}_ours"),
            "tvm": compiled(f"{f.name}_tvm"),
            **({"numpy": f.numpy} if f.numpy else {}),
            "torch": of_torch(f.torch),
        }
    return found


def samples(arguments: int, step: int) -> Iterator[tuple[Array, ...]]:
    """Every `step`th float32 there is; as many pairs for two arguments."""
    if arguments == 1:
        for start in range(0, 1 << 32, CHUNK * step):
            stop = min(start + CHUNK * step, 1 << 32)
            yield (
                np.arange(start, stop, step, dtype=np.uint64).astype(np.uint32).view(np.float32),
            )
        return
    rng = np.random.default_rng(0)
    for _ in range(max(1, (1 << 32) // step // CHUNK // 3)):
        bits = rng.integers(0, 1 << 32, (2, CHUNK), dtype=np.uint64).astype(np.uint32)
        yield tuple(bits.view(np.float32))
        x, y = rng.uniform(-30, 30, (2, CHUNK)).astype(np.float32)
        yield np.abs(x), y
        yield rng.uniform(0.5, 2, CHUNK).astype(np.float32), 10 * y


def distance(got: Array, exact: Array) -> Array:
    """Units in the last place between results and exact ones; infinite where one is not finite and the other is
    another thing."""
    with np.errstate(all="ignore"):
        nearest = exact.astype(np.float32)
        unit = np.spacing(np.abs(nearest)).astype(np.float64)
        found = np.abs(got.astype(np.float64) - exact) / unit
    same = (got == nearest) | (np.isnan(got) & np.isnan(nearest))
    finite = np.isfinite(nearest) & np.isfinite(got)
    return np.where(finite, found, np.where(same, 0.0, np.inf))


def accuracy(f: Function, calls: dict[str, Call], step: int) -> dict[str, dict[str, Any]]:
    """Of each contender: the largest and the mean distance, and where the largest is."""
    worst: dict[str, tuple[float, list[float]]] = {name: (-1.0, []) for name in calls}
    total = dict.fromkeys(calls, 0.0)
    finite = dict.fromkeys(calls, 0)
    for xs in samples(len(f.domain), step):
        with np.errstate(all="ignore"):
            exact = f.exact(*(x.astype(np.float64) for x in xs))
            for name, call in calls.items():
                found = distance(call(*xs), exact)
                at = int(found.argmax())
                if found[at] > worst[name][0]:
                    worst[name] = float(found[at]), [float(x[at]) for x in xs]
                counted = np.isfinite(found)
                total[name] += float(found[counted].sum())
                finite[name] += int(counted.sum())
    return {
        name: {
            "max_ulp": worst[name][0],
            "at": worst[name][1],
            "mean_ulp": total[name] / finite[name],
        }
        for name in calls
    }


def speed(f: Function, calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """Nanoseconds an element of each contender, the best of all rounds."""
    rng = np.random.default_rng(0)
    xs = [rng.uniform(low, high, SIZE).astype(np.float32) for low, high in f.domain]
    best = dict.fromkeys(calls, math.inf)
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call(*xs)
            best[name] = min(best[name], time.perf_counter() - start)
    return {name: seconds / SIZE * 1e9 for name, seconds in best.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--step", type=int, default=1021, help="take one float32 of so many")
    parser.add_argument("--rounds", type=int, default=200, help="timed calls of each contender")
    parser.add_argument("--only", default="", help="names of functions, with commas")
    parser.add_argument("--json", type=Path, default=Path("build/bench/elementary.json"))
    options = parser.parse_args(arguments)

    chosen = [f for f in FUNCTIONS if not options.only or f.name in options.only.split(",")]
    console = Console(width=None if sys.stdout.isatty() else 120)
    rows: list[dict[str, Any]] = []
    by_name = contenders()
    for f in chosen:
        calls = by_name[f.name]
        with console.status(f.name):
            times = speed(f, calls, options.rounds)
            errors = accuracy(f, calls, options.step)
        rows += [
            {"function": f.name, "by": name, "ns_per_element": times[name], **errors[name]}
            for name in calls
        ]
    table = Table(title=f"Elementary functions on float32, every {options.step}th number")
    for column in ("", "by", "ns / element", "tvm / this", "max ulp", "at", "mean ulp"):
        table.add_column(column, justify="left" if column in ("", "by") else "right")
    base = {row["function"]: row["ns_per_element"] for row in rows if row["by"] == "tvm"}
    for row in rows:
        table.add_row(
            row["function"] if row["by"] == "relaxpy" else "",
            row["by"],
            f"{row['ns_per_element']:.2f}",
            f"{base[row['function']] / row['ns_per_element']:.1f}",
            f"{row['max_ulp']:.2f}",
            ", ".join(f"{x:.6g}" for x in row["at"]),
            f"{row['mean_ulp']:.3f}",
        )
    console.print(table)
    report = {
        "benchmark": "elementary",
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "step": options.step,
        "elements": SIZE,
        "results": rows,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1).replace("Infinity", '"inf"') + "\n")


if __name__ == "__main__":
    main()
