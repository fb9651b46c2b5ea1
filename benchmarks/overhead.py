"""The virtual machine's time for a kernel: a chain of tiny kernels, no fusion, a new shape at every call.

    python benchmarks/overhead.py                     200 kernels on vectors of 1 to 64 numbers
    python benchmarks/overhead.py --length 50 --json out.json

relaxpy, `tvm.relax`'s virtual machine in both of its modes and torch eager run in one process and take turns; a turn
calls the chain once for each of 64 sizes, so that no two calls in a row have the same shape. The figure is the median
over all turns of the time for a kernel, everything included: arguments, shape checks, memory, the kernel, the result.
`floor` is the compiled kernel called from a Python loop over tensors made beforehand: the foreign function call and
nothing else.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import relaxpy
from relaxpy.build.pipeline import default_pipeline

SIZES = 64
Call = Callable[[int], object]
"""Run the chain on the vector of this size."""


def script(length: int) -> str:
    """The chain as script that both relaxpy and TVM read."""
    lines = [f"            v{i + 1} = R.add(v{i}, R.const(1.0, 'float32'))" for i in range(length)]
    return "\n".join(
        [
            "@I.ir_module",
            "class Module:",
            "    @R.function",
            '    def main(v0: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):',
            "        with R.dataflow():",
            *lines,
            f"            R.output(v{length})",
            f"        return v{length}",
            "",
        ]
    )


def relaxpy_call(length: int, inputs: list[np.ndarray]) -> Call:
    exe = relaxpy.build(
        relaxpy.parse(script(length)), pipeline=default_pipeline(without=["fuse-ops"])
    )
    main = relaxpy.VirtualMachine(exe)["main"]
    return lambda size: main(inputs[size])


def relaxpy_floor(length: int) -> Call:
    """The same kernel on records that are bound already."""
    from relaxpy.runtime.devices.cpu.kernels import load_kernels
    from relaxpy.runtime.frame import record_of
    from relaxpy.runtime.tensor import empty

    exe = relaxpy.build(relaxpy.parse(script(1)))
    (kernel,) = load_kernels(exe.objects, exe.kernels)
    call = kernel.linked().serial
    tensors = [
        (empty((size,), "float32"), empty((size,), "float32")) for size in range(1, SIZES + 1)
    ]
    records = [(record_of(a), record_of(b)) for a, b in tensors]

    def run(size: int) -> object:
        a, b = records[size]
        for _ in range(length):
            call(a, b)
        return tensors

    return run


def tvm_call(length: int, inputs: list[np.ndarray], mode: str) -> Call:
    import tvm
    from tvm import relax

    mod = tvm.script.from_source(script(length))
    exe = relax.build(mod, "llvm", relax_pipeline="default_build", exec_mode=mode)
    machine: Any = relax.VirtualMachine(exe, tvm.cpu())
    main = machine["main"]
    tensors = [tvm.runtime.tensor(array) for array in inputs]
    return lambda size: main(tensors[size])


def torch_call(length: int, inputs: list[np.ndarray]) -> Call:
    import torch

    torch.set_num_threads(1)
    tensors = [torch.from_numpy(array) for array in inputs]

    def run(size: int) -> object:
        value = tensors[size]
        for _ in range(length):
            value = torch.neg(value)
        return value

    return run


def turn(call: Call, length: int) -> float:
    """Microseconds a kernel over one call for each size."""
    start = time.perf_counter()
    for size in range(SIZES):
        call(size)
    return (time.perf_counter() - start) / SIZES / length * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--length", type=int, default=200, help="kernels in the chain")
    parser.add_argument("--rounds", type=int, default=30, help="turns of each contender")
    parser.add_argument("--peers", default="relaxpy,floor,tvm-bytecode,tvm-compiled,torch")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()

    inputs = [np.linspace(0, 1, size, dtype=np.float32) for size in range(1, SIZES + 1)]
    makers: dict[str, Callable[[], Call]] = {
        "relaxpy": lambda: relaxpy_call(options.length, inputs),
        "floor": lambda: relaxpy_floor(options.length),
        "tvm-bytecode": lambda: tvm_call(options.length, inputs, "bytecode"),
        "tvm-compiled": lambda: tvm_call(options.length, inputs, "compiled"),
        "torch": lambda: torch_call(options.length, inputs),
    }
    calls = {name: makers[name]() for name in options.peers.split(",")}
    sign = 1 if options.length % 2 == 0 else -1
    for name, call in calls.items():
        if name != "floor":
            result = np.asarray(call(5)) if name == "relaxpy" else call(5).numpy()  # type: ignore[attr-defined]
            np.testing.assert_allclose(result, sign * inputs[5])
        turn(call, options.length)

    figures: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(options.rounds):
        order = list(calls)
        for name in order[number % len(order) :] + order[: number % len(order)]:
            figures[name].append(turn(calls[name], options.length))

    table = Table(title=f"{options.length} tiny kernels, a new shape at every call")
    for column in ("", "µs a kernel", "best turn", "relative to relaxpy"):
        table.add_column(column, justify="right" if column else "left")
    own = median(figures["relaxpy"]) if "relaxpy" in figures else None
    for name, values in figures.items():
        ratio = f"{median(values) / own:.2f}" if own else ""
        table.add_row(name, f"{median(values):.3f}", f"{min(values):.3f}", ratio)
    Console().print(table)
    if options.json:
        report = {
            "length": options.length,
            "sizes": SIZES,
            "machine": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "microseconds_per_kernel": {
                name: {"median": median(values), "min": min(values)}
                for name, values in figures.items()
            },
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
