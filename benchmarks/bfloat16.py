"""Mixed precision: relaxpy in bfloat16, in float32 and in what `precision="auto"` takes, beside torch's and OpenVINO's
bfloat16, for the models of `integers.py`.

    python benchmarks/bfloat16.py --processor   the table; writes benchmarks/results/bfloat16_processor.json
    python benchmarks/bfloat16.py --quick       one short turn each; nothing is written

The options are those of `integers.py`. The error is one minus the cosine of all results to those of float32.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.integers import (
    FLOATS,
    MODELS,
    ROWS,
    Make,
    Run,
    Running,
    measured,
    run_floats,
)
from benchmarks.model_table import ModelTable, Times, mean_ratio, milliseconds
from benchmarks.report import markdown_table


def run_relaxpy(precision: str | None, _: str, path: str, threads: int) -> Run:
    """`relaxpy.build(…, precision=…)`."""
    os.environ["RELAXPY_NUM_THREADS"] = str(threads)
    import relaxpy

    mod, params = relaxpy.from_onnx(path)
    built = relaxpy.build(mod, params=params, precision=precision)
    call = relaxpy.VirtualMachine(built)["main"]
    return lambda x: call(x).numpy()


def run_torch(name: str, _: str, threads: int) -> Run:
    """The module in bfloat16."""
    import torch

    torch.set_num_threads(threads)
    model = MODELS[name].make().to(torch.bfloat16)

    def run(x: np.ndarray) -> Any:
        given = torch.from_numpy(x)
        with torch.inference_mode():
            found = model(given.to(torch.bfloat16) if given.is_floating_point() else given)
        return found.float().numpy()

    return run


def run_openvino(_: str, path: str, threads: int) -> Run:
    """The file in OpenVINO's bfloat16."""
    import openvino

    options = {
        "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "bf16",
    }  # fmt: skip
    request = openvino.Core().compile_model(path, "CPU", options).create_infer_request()
    return lambda x: request.infer({"x": x})[0].copy()


PEERS: dict[str, Make] = {
    "relaxpy": partial(run_relaxpy, "bfloat16"),
    "relaxpy auto": partial(run_relaxpy, "auto"),
    "relaxpy fp32": partial(run_relaxpy, None),
    "torch": run_torch,
    "OpenVINO": run_openvino,
    FLOATS: run_floats,
}
RIVALS = ("relaxpy fp32", "torch", "OpenVINO")


def table(found: Mapping[str, Times]) -> str:
    """In Markdown."""
    rows: list[list[str]] = []
    for name, times in found.items():
        call, errors = times["call"], times["error"]
        row = [name, *(milliseconds(call[each]) if each in call else "" for each in PEERS)]
        own = min(call["relaxpy"], call["relaxpy fp32"])
        row += [f"{call['relaxpy'] / call[each]:.2f}" if each in call else "" for each in RIVALS]
        row.append(f"{call['relaxpy auto'] / own:.2f}")
        row += [f"{errors[each]:.1e}" if each in errors else "" for each in ("relaxpy", "torch")]
        rows.append(row)
    header = ["model", *PEERS, *(f"of {each}" for each in RIVALS), "auto of the better"]
    return markdown_table([*header, "error", "torch"], rows, "l" + "r" * (len(header) + 1))


def summary(report: Mapping[str, Times]) -> str:
    """Ratios to each."""
    parts = [
        mean_ratio([t["call"] for t in report.values() if each in t["call"]], each)
        for each in RIVALS
        if any(each in t["call"] for t in report.values())
    ]
    return f"The geometric means of relaxpy's times in bfloat16: {', '.join(parts)}."


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--libraries", default=",".join(PEERS), help="which ones run")
    running = Running(PEERS)

    def measure(row: str, args: argparse.Namespace, console: Console) -> Times:
        return measured(row, args, console, running)

    try:
        return ModelTable(
            "bfloat16", "Bfloat16: ms", list(ROWS), measure, table,
            "The error is one minus the cosine of all results to those of float32.", summary, "bfloat16",
        ).run(parser)  # fmt: skip
    finally:
        running.stack.close()


if __name__ == "__main__":
    sys.exit(main())
