"""Files of quantisers, ONNX Runtime's and NNCF's: what a session computes of integers, and its time beside ONNX
Runtime's on the same file.

    python benchmarks/quantisers.py --processor   the table; writes benchmarks/results/quantisers_processor.json
    python benchmarks/quantisers.py --only BERT --quick

The files are those of `benchmarks/integers.py`: `quantize_dynamic` of encoders, `quantize_static` (QDQ) of networks of
convolutions. NNCF writes QDQ for both (`pip install nncf`; without it its rows are left out).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.integers import (
    MODELS,
    Model,
    Run,
    error,
    exported,
    quantised_file,
    run_floats,
    service,
)
from benchmarks.model_table import ModelTable, Times, milliseconds, times_in_turns
from benchmarks.report import markdown_table
from benchmarks.turns import Peer, Service

RUNTIME = "ONNX Runtime"
SIZES = {
    "MiniLM": (1, 128), "BERT-base": (1, 128), "CLIP B/32": (1, 3, 224, 224), "ResNet-18": (1, 3, 224, 224),
    "MobileNetV3 large": (1, 3, 224, 224),
}  # fmt: skip
ROWS = {f"{name}, {by}": (name, by) for by in (RUNTIME, "NNCF") for name in SIZES}


def by_nncf(model: Model, path: str, target: str) -> None:
    """Write a file by NNCF."""
    import nncf
    import onnx

    nncf.set_log_level(logging.ERROR)
    data = nncf.Dataset([{"x": x} for x in model.samples()])
    kind = None if model.static else nncf.ModelType.TRANSFORMER
    onnx.save(nncf.quantize(onnx.load(path), data, model_type=kind), target)


def written(name: str, by: str, path: str) -> Service:
    """Writes the file, and says what a session makes of it: products of integers, and by reason, how many calls that
    read integers stay floats."""
    import onnx

    import relaxpy
    from relaxpy.analysis.called_operators import calls_in
    from relaxpy.ir.annotation import TensorType
    from relaxpy.op.deduce import deduce
    from relaxpy.transform import Realize

    target = path.replace("model.onnx", "quantised.onnx")
    (quantised_file if by == RUNTIME else by_nncf)(MODELS[name], path, target)
    mod, places = Realize().realized(relaxpy.from_onnx(target)[0])
    kinds = Counter(node.op_type for node in onnx.load(target, load_external_data=False).graph.node)
    sums = Counter[str]()
    for call in calls_in(mod.graph_function("main")):
        made = deduce(call, mod)
        if getattr(call.op, "name", "") in ("matmul", "linear", "nn.conv2d"):
            sums[str(made.dtype) if isinstance(made, TensorType) else ""] += 1
    stays = Counter(f"{place.operator}: {place.reason}" for place in places if place.reason)
    pairs = kinds["QuantizeLinear"] + kinds["DynamicQuantizeLinear"]
    found = {"path": target, "pairs": pairs, "integers": sums["int32"], "floats": sums["float32"]}
    return Service(lambda _: lambda: {**found, "stays": dict(stays)})


def run_session(_: str, path: str, threads: int) -> Run:
    """A session of relaxpy."""
    os.environ["RELAXPY_NUM_THREADS"] = str(threads)
    import relaxpy.onnx

    session: Any = relaxpy.onnx.InferenceSession(path)
    return lambda x: np.asarray(session.run(None, {"x": x})[0])


def measure(row: str, args: argparse.Namespace, console: Console) -> Times | None:
    name, by = ROWS[row]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        path = ""
        told: dict[str, Any] = {}
        for step, given in ((exported, (name, folder)), (written, (name, by))):
            peer = Peer.start("file", step, *given, *([path] if path else []))
            if isinstance(peer, str):
                console.print(f"{row} is left out: {peer}", highlight=False)
                return None
            answer = peer.result("path")
            peer.stop()
            path, told = (answer, told) if isinstance(answer, str) else (answer["path"], answer)
        peers: dict[str, Peer] = {}
        for library, make in (("relaxpy", run_session), (RUNTIME, run_floats)):
            started = Peer.start(library, service, make, name, path, args.threads, args.processor)
            if isinstance(started, str):
                console.print(f"{row}: {library} does not take it: {started}", highlight=False)
                return None
            stack.callback(started.stop)
            peers[library] = started
        x = MODELS[name].input(SIZES[name])
        results = [peers[library].result(("result", x)) for library in ("relaxpy", RUNTIME)]
        times = times_in_turns(peers, x, args.quick)
        return {
            "call": {library: min(each) for library, each in times.items()},
            "error": {"relaxpy": error(*results)},
            "pairs": {key: told[key] for key in ("pairs", "integers", "floats")},
            "stays": told["stays"],
        }


def table(found: Mapping[str, Times]) -> str:
    rows: list[list[str]] = []
    for name, times in found.items():
        call, pairs = times["call"], times["pairs"]
        stays = "; ".join(f"{count} × {reason}" for reason, count in times["stays"].items())
        rows.append([
            name, *(f"{pairs[key]:.0f}" for key in ("pairs", "integers", "floats")), stays,
            milliseconds(call["relaxpy"]), milliseconds(call[RUNTIME]), f"{call['relaxpy'] / call[RUNTIME]:.2f}",
            f"{times['error']['relaxpy']:.1e}",
        ])  # fmt: skip
    header = [
        "file",
        "quantisations",
        "products of integers",
        "of floats",
        "codes read as floats, and why",
    ]
    return markdown_table(
        [*header, "relaxpy", RUNTIME, "ratio", "error"], rows, "lrrr" + "l" + "rrrr"
    )


def summary(report: Mapping[str, Times]) -> str:
    calls = [times["call"] for times in report.values()]
    ratios = [call["relaxpy"] / call[RUNTIME] for call in calls]
    mean = exp(fmean(map(log, ratios)))
    return f"The geometric mean of relaxpy's times is {mean:.2f} of ONNX Runtime's (at most {max(ratios):.2f})."


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    return ModelTable(
        "quantisers", "Files of quantisers: ms", list(ROWS), measure, table,
        "The sizes are 1 × 128 tokens, 1 × 3 × 224 × 224 pictures. The error is one minus the cosine to ONNX Runtime's "
        "result of the same file.",
        summary, "of the same file",
    ).run(parser)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
