"""The language: µs a binding to parse, print, verify, deduce, build; proofs a second; `import relaxpy` on its own.

    python benchmarks/language.py [--sizes 1000 10000] [--json benchmarks/results/language.json]

The program is one dataflow block of element-wise operators and products of matrices over a symbolic dimension, without
annotations, as a user would write it; "parse printed" reads what `script` printed of it, annotations and all. The peer
is `tvm.relax`, which reads and prints the same printed text (the smallest only: it takes long). Medians.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from math import isnan, nan
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import relaxpy
from relaxpy.analysis.well_formed import well_formed
from relaxpy.ir.dim import SymVar, dim_op
from relaxpy.ir.expr import Function
from relaxpy.ir.structural import structural_equal
from relaxpy.op.deduce import deduce
from relaxpy.shape.prove import prove

ROOT = Path(__file__).resolve().parent.parent
VALUES = ("R.exp({0})", "R.add({0}, x)", "R.matmul({0}, w)", "R.multiply({0}, {0})")


def program(size: int) -> str:
    """A function of `size` bindings."""
    lines = [
        "@I.ir_module",
        "class Module:",
        "    @R.function",
        '    def main(x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 64), "float32")):',
        "        with R.dataflow():",
    ]
    last = "x"
    for i in range(size):
        lines.append(f"            v{i} = {VALUES[i % len(VALUES)].format(last)}")
        last = f"v{i}"
    return "\n".join([*lines, f"            R.output({last})", f"        return {last}", ""])


def seconds(work: Callable[[], Any], repeat: int) -> float:
    """Median processor time of a call (all is one thread), the garbage of others collected before each."""
    times: list[float] = []
    for _ in range(repeat):
        gc.collect()
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return median(times)


def language(size: int, repeat: int, peer: bool) -> dict[str, float]:
    """Stage → seconds for a program of this size."""
    text = program(size)
    mod = relaxpy.parse(text)
    printed = mod.script()
    again = relaxpy.parse(printed)
    main = mod["main"]
    assert isinstance(main, Function)
    bindings = list(main.body.bindings)
    fresh = iter(range(10**9))
    # a comment makes each text a new one, so that no syntax tree is found again
    found = {
        "parse": seconds(lambda: relaxpy.parse(f"{text}# {next(fresh)}\n"), repeat),
        "parse printed": seconds(lambda: relaxpy.parse(f"{printed}# {next(fresh)}\n"), repeat),
        "print": seconds(mod.script, repeat),
        "verify": seconds(lambda: well_formed(mod), repeat),
        "deduce": seconds(lambda: [deduce(b.value, mod) for b in bindings], repeat),
        "compare": seconds(lambda: structural_equal(mod, again), repeat),
        "build": seconds(lambda: relaxpy.build(mod), max(1, repeat // 3)),
    }
    if peer:
        found |= tvm_language(printed.split("\n", 1)[1], max(1, repeat // 3))
    return found


def tvm_language(text: str, repeat: int) -> dict[str, float]:
    """The same text, without the line of imports (which it refuses), through `tvm.relax`."""
    import tvm
    import tvm.script

    mod = tvm.script.from_source(text)
    return {
        "parse printed (tvm.relax)": seconds(lambda: tvm.script.from_source(text), repeat),
        "print (tvm.relax)": seconds(lambda: mod.script(), repeat),
        "verify (tvm.relax)": seconds(lambda: tvm.relax.analysis.well_formed(mod), repeat),
    }


def proofs(count: int = 2000) -> dict[str, float]:
    """Kind of proof → proofs a second of processor time."""
    n, m = SymVar("n").dim, SymVar("m").dim
    normal = [(n + i) * (m + i) for i in range(count)]
    swapped = [(m + i) * (n + i) for i in range(count)]
    rounded = [dim_op("le", n + i, (n + i + 15) // 16 * 16) for i in range(count)]
    found: dict[str, float] = {}
    start = time.process_time()
    assert all(a == b for a, b in zip(normal, swapped, strict=True))
    found["normal form"] = count / (time.process_time() - start)
    for name in ("analyser", "cached"):
        start = time.process_time()
        assert all(prove(each) for each in rounded)
        found[name] = count / (time.process_time() - start)
    return found


def import_milliseconds(module: str, processes: int) -> float:
    """Median processor time of an import in a fresh process."""
    code = f"import time; s = time.process_time(); import {module}; print(time.process_time() - s)"
    times = [
        float(
            subprocess.run(
                [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout
        )
        for _ in range(processes)
    ]
    return median(times) * 1e3


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--no-peer", action="store_true", help="leave tvm.relax out")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/language.json")
    options = parser.parse_args()
    smallest = None if options.no_peer else min(options.sizes)
    stages = {n: language(n, options.repeat, n == smallest) for n in options.sizes}
    table = Table(title="µs a binding, medians")
    table.add_column("stage")
    for size in options.sizes:
        table.add_column(f"{size} bindings", justify="right")
    for stage in stages[min(options.sizes)]:
        took = [stages[n].get(stage, nan) / n * 1e6 for n in options.sizes]
        table.add_row(stage, *("–" if isnan(each) else f"{each:.1f}" for each in took))
    console = Console()
    console.print(table)
    rates = proofs()
    for name, rate in rates.items():
        console.print(f"proofs a second, {name}: {rate:,.0f}")
    imports = {
        name: import_milliseconds(name, 9)
        for name in ("relaxpy", "relaxpy.script.parser", "relaxpy.runtime")
    }
    for name, milliseconds in imports.items():
        console.print(f"import {name}: {milliseconds:.1f} ms")
    options.json.parent.mkdir(exist_ok=True)
    figures = {"seconds": stages, "proofs_a_second": rates, "import_milliseconds": imports}
    options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
