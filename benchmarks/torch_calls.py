"""The time that a call of a small module takes beside its kernels: a tiny MLP, a new size at every call, one thread.

    python benchmarks/torch_calls.py                    microseconds a call
    python benchmarks/torch_calls.py --turns 500 --json out.json

Eager torch, `torch.compile` with Inductor and with relaxpy (both `dynamic=True`) and `relaxpy.compile` run in one
process and take turns; a turn calls the module once for each of some numbers of rows, so that no two calls in a row
have the same sizes. The figure is the median over all turns of the time for a call. `kernels` is relaxpy's executable
called with its own tensors: what is above it is the exchange with torch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import relaxpy
from relaxpy.runtime.tensor import from_any

ROWS = (2, 5, 3, 8, 7, 4, 6, 9)
WIDTH, HIDDEN, CLASSES = 16, 32, 4

Call = Callable[[torch.Tensor], Any]


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, CLASSES)
    ).eval()


def calls(module: torch.nn.Module) -> dict[str, Call]:
    """The ways to call a module."""
    x = torch.ones(3, WIDTH)
    compiled = relaxpy.compile(module, x, dynamic_shapes={"input": {0: "rows"}})
    weights = compiled.vm.pack(compiled.weights)["main"] if compiled.weights else ()
    return {
        "eager": module,
        "Inductor": torch.compile(module, dynamic=True),
        "relaxpy, torch.compile": torch.compile(
            module, backend=relaxpy.torch.backend, dynamic=True
        ),
        "relaxpy.compile": compiled,
        "kernels": lambda x: compiled.vm["main"](x, *weights),
    }


def measure(found: dict[str, Call], inputs: Sequence[torch.Tensor], turns: int) -> dict[str, float]:
    """Microseconds a call: the medians of turns."""
    given = {name: [from_any(x) for x in inputs] if name == "kernels" else inputs for name in found}
    want = [found["eager"](x) for x in inputs]
    for name, call in found.items():
        for x, expected in zip(given[name], want, strict=True):
            got = call(x)
            got = got if isinstance(got, torch.Tensor) else torch.from_dlpack(got)
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    times: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(turns):
        for name, call in found.items():
            own_inputs = given[name]
            begin = time.perf_counter()
            for x in own_inputs:
                call(x)
            times[name].append((time.perf_counter() - begin) / len(own_inputs) * 1e6)
    return {name: median(each) for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--json", type=Path, help="write the figures to a file, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    inputs = [torch.randn(rows, WIDTH) for rows in ROWS]
    results: dict[str, dict[str, float]] = {}
    for kind, gradients in (("no_grad", False), ("with gradients", True)):
        with torch.set_grad_enabled(gradients):
            torch._dynamo.reset()
            results[kind] = measure(calls(network()), inputs, options.turns)
    table = Table(
        title=f"µs a call: {WIDTH} → {HIDDEN} → {CLASSES}, {min(ROWS)} to {max(ROWS)} rows"
    )
    table.add_column("")
    for kind in results:
        table.add_column(kind, justify="right")
    for name in results["no_grad"]:
        table.add_row(name, *(f"{each[name]:.1f}" for each in results.values()))
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
