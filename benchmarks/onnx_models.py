"""ONNX files that people run: `onnxruntime.InferenceSession(path)` beside `relaxpy.onnx.InferenceSession(path)`.

    python benchmarks/onnx_models.py               the table; writes benchmarks/results/onnx_models.json
    python benchmarks/onnx_models.py --only text   models with this in their names; the others stay as they were
    python benchmarks/onnx_models.py --quick       one short turn each; nothing is written
    python benchmarks/onnx_models.py --processor   on one thread, the least processor time of a call: also on a machine
                                                   that is busy

The files come in the wheels of rapidocr-onnxruntime, silero-vad and magika (`make test-onnx-programs` installs them;
rows whose package is missing are left out), or are written by `torch.onnx.export`. Each library lives in a process of
its own and they take turns; a time is the median of all its calls. `cold` is what passes from the file to the first
result with an empty cache, `again` the same in the next process. Results are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.model_table import ModelTable, Times, mean_ratio, milliseconds, times_in_turns
from benchmarks.report import markdown_table
from benchmarks.turns import Peer, Service

TOLERANCE = 1e-3
SECONDS = 0.4
"""Of a turn."""
LIBRARIES = ("relaxpy", "ONNX Runtime")


@dataclass(frozen=True)
class Model:
    """A file and the inputs that it is called with."""

    package: str
    """Whose wheel has the file; "" for one that torch writes."""
    path: str
    """In the package; or the name of the network."""
    inputs: Callable[[], dict[str, np.ndarray]]


def _pictures(*shape: int) -> Callable[[], dict[str, np.ndarray]]:
    return lambda: {"x": _normal(*shape)}


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _network(name: str) -> Model:
    def inputs() -> dict[str, np.ndarray]:
        from benchmarks.torch_networks import NETWORKS

        return {"x": NETWORKS[name].input(NETWORKS[name].sizes[0])}

    return Model("", name, inputs)


_OCR = "rapidocr_onnxruntime", "models/"
_DETECTION, _RECOGNITION = "ch_PP-OCRv4_det_infer.onnx", "ch_PP-OCRv4_rec_infer.onnx"

MODELS = {
    "text detection, 736 x 736": Model(_OCR[0], _OCR[1] + _DETECTION, _pictures(1, 3, 736, 736)),
    "text recognition, 48 x 320": Model(_OCR[0], _OCR[1] + _RECOGNITION, _pictures(1, 3, 48, 320)),
    "text recognition, 6 of 48 x 320": Model(_OCR[0], _OCR[1] + _RECOGNITION, _pictures(6, 3, 48, 320)),
    "text direction, 48 x 192": Model(
        _OCR[0], _OCR[1] + "ch_ppocr_mobile_v2.0_cls_infer.onnx", _pictures(1, 3, 48, 192)
    ),
    "silero-vad, a frame": Model(
        "silero_vad", "data/silero_vad.onnx",
        lambda: {
            "input": _normal(1, 576) / 10, "state": np.zeros((2, 1, 128), np.float32), "sr": np.array(16000, np.int64),
        },
    ),
    "silero-vad, 200 frames": Model(
        "silero_vad", "data/silero_vad_16k_sequence.onnx",
        lambda: {
            "input": _normal(200, 576) / 10, "h": np.zeros((1, 1, 128), np.float32),
            "c": np.zeros((1, 1, 128), np.float32),
        },
    ),
    "magika": Model(
        "magika", "models/standard_v3_3/model.onnx",
        lambda: {"bytes": np.random.default_rng(0).integers(0, 256, (1, 2048)).astype(np.int32)},
    ),
    **{name: _network(name) for name in ("ResNet-18", "MobileNetV3 large", "BERT-base", "ViT-B/16")},
}  # fmt: skip


def model_file(name: str, folder: Path) -> Path | None:
    """The file; one that torch writes goes to the folder. None if its package is missing."""
    model = MODELS[name]
    if not model.package:
        return _written(model.path, folder / f"{model.path.replace('/', '-')}.onnx")
    spec = importlib.util.find_spec(model.package)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / model.path


def _written(name: str, path: Path) -> Path:
    import torch

    from benchmarks.torch_networks import NETWORKS, network_module

    network = NETWORKS[name]
    axes = {i: axis for i, axis in enumerate(network.axes) if axis}
    torch.onnx.export(
        network_module(name), (torch.from_numpy(network.example),), str(path), dynamo=False, input_names=["x"],
        dynamic_axes={"x": axes},
    )  # fmt: skip
    return path


def peer(library: str, path: str, threads: int, processor: bool, cache: str) -> Service:
    """Answers about a file: `first`, the seconds from the file to the first result for these inputs; its `result`;
    `times` of some calls."""
    if library == "relaxpy":
        os.environ["RELAXPY_NUM_THREADS"] = str(threads)
        os.environ["RELAXPY_CACHE_DIR"] = cache
        from relaxpy import onnx as package

        options = None
    else:
        import onnxruntime as package

        options = package.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
    clock = time.thread_time if processor else time.perf_counter
    sessions: list[Any] = []

    def answer(question: str, given: Mapping[str, np.ndarray]) -> Any:
        if question == "first":
            start = time.process_time() if processor else time.perf_counter()
            sessions.append(package.InferenceSession(path, options))
            sessions[0].run(None, given)
            return (time.process_time() if processor else time.perf_counter()) - start
        run = partial(sessions[0].run, None, given)
        if question == "result":
            return run()
        run()
        found, end = [], time.perf_counter() + SECONDS
        while len(found) < 3 or time.perf_counter() < end:
            start = clock()
            run()
            found.append(clock() - start)
        return found

    return Service(lambda request: partial(answer, *request))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    return ModelTable(
        "onnx_models", "ONNX models: ms", list(MODELS), measured, table,
        "`cold` is from the file to the first result with an empty cache, `again` the same in the next process.",
        lambda report: "The geometric mean of relaxpy's times is "
        f"{mean_ratio([times['call'] for times in report.values()], LIBRARIES[1])}.",
    ).run(parser)  # fmt: skip


def measured(
    name: str, args: argparse.Namespace, console: Console
) -> dict[str, dict[str, float]] | None:
    """What is measured of a model; None if its package is missing. RuntimeError where results differ, or a library does
    not run it."""
    inputs = MODELS[name].inputs()
    least = min if args.processor else median
    cold: dict[str, float] = {}
    again: dict[str, float] = {}
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = model_file(name, Path(folder))
        if path is None:
            console.print(
                f"{name} is left out: {MODELS[name].package} is not installed", highlight=False
            )
            return None
        given = str(path), args.threads, args.processor, str(Path(folder) / "cache")
        for found in (cold, again):  # in turn: neither finds the file in memory for the first time
            with ExitStack() as stack:
                peers: dict[str, Peer] = {}
                for library in LIBRARIES:
                    made = Peer.start(library, peer, library, *given)
                    if isinstance(made, str):
                        raise RuntimeError(f"{name}: {library}: {made}")
                    peers[library] = made
                    stack.callback(made.stop)
                    found[library] = made.result(("first", inputs))
                if found is cold:
                    results = {
                        library: made.result(("result", inputs)) for library, made in peers.items()
                    }
                    check(name, results)
                else:
                    times = times_in_turns(peers, inputs, args.quick)
    calls = {library: least(found) for library, found in times.items()}
    return {"call": calls, "cold": cold, "again": again}


def check(name: str, results: Mapping[str, list[np.ndarray]]) -> None:
    """RuntimeError where results differ."""
    for found, wanted in zip(*results.values(), strict=True):
        difference = float(np.abs(found - wanted).max())
        if not difference <= TOLERANCE * max(1.0, float(np.abs(wanted).max())):
            raise RuntimeError(f"{name}: the libraries differ by {difference:.1e}")


def table(found: Mapping[str, Times]) -> str:
    """In Markdown."""
    rows: list[list[str]] = []
    for name, times in found.items():
        row = [name]
        for kind in ("call", "cold", "again"):
            ours, theirs = (times[kind][library] for library in LIBRARIES)
            row += [milliseconds(ours), milliseconds(theirs), f"{ours / theirs:.2f}"]
        rows.append(row)
    header = ["model", *LIBRARIES, "ratio"]
    for kind in ("cold", "again"):
        header += [kind, LIBRARIES[1], "ratio"]
    return markdown_table(header, rows, "l" + "r" * (len(header) - 1))


if __name__ == "__main__":
    sys.exit(main())
