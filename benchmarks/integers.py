"""Encoders and networks for images in int8: relaxpy, ONNX Runtime's quantiser and NNCF with OpenVINO, of the same file.

    python benchmarks/integers.py               the table; writes benchmarks/results/integers.json
    python benchmarks/integers.py --only CLIP   models with this in their names; the others stay as they were
    python benchmarks/integers.py --quick       one short turn each; nothing is written
    python benchmarks/integers.py --processor   on one thread, the least processor time of a call: also on a machine
                                                that is busy

Each is a torch module that is exported to ONNX. Products of encoders are quantised dynamically
(`relaxpy.build.quantize`, `quantize_dynamic`), convolutions by data (by ONNX Runtime those of ResNet and MobileNet:
`quantize_static`, QDQ, a scale a channel); NNCF takes data for both. Peers that are not installed (`pip install
openvino nncf`) are left out. Each library lives in a process of its own and they take turns. The error is one minus
the cosine of all results to those of float32.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.model_table import ModelTable, Times, milliseconds, times_in_turns
from benchmarks.report import markdown_table
from benchmarks.turns import Peer, Service

SECONDS = 0.3
"""Of a turn."""
SAMPLES = 4
"""Inputs that scales are learnt from."""

Run = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Model:
    """A module of torch of one input, and the sizes that it is called with."""

    make: Callable[[], Any]
    sizes: tuple[tuple[int, ...], ...]
    axes: tuple[str, ...]
    """Names of the axes of the input that vary; "" is one that does not."""
    static: bool = False
    """Does ONNX Runtime quantise it by data?"""

    def input(self, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
        """Pictures, or ids of tokens."""
        rng = np.random.default_rng((*shape, seed))
        if len(shape) == 2:
            return rng.integers(1000, 30000, shape)
        return rng.standard_normal(shape).astype(np.float32)

    def samples(self) -> list[np.ndarray]:
        """Inputs that scales are learnt from: none of those that are timed."""
        shape = (2, *self.sizes[-1][1:])
        return [self.input(shape, 1 + n) for n in range(SAMPLES)]


def _minilm() -> Any:
    """all-MiniLM-L6-v2: ids to vectors, without a mask."""
    import torch

    from benchmarks.embed import torch_model
    from relaxpy.models.sentence_embedding import default_checkpoint

    model = torch_model(default_checkpoint())

    class OfIds(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x, torch.ones_like(x))

    return OfIds().eval()


def _network(name: str) -> Any:
    from benchmarks.torch_networks import network_module

    return network_module(name)


def _clip() -> Any:
    """The tower for pictures of CLIP ViT-B/32."""
    import torch
    from transformers import CLIPVisionConfig, CLIPVisionModel

    from benchmarks.torch_networks import Encoder

    torch.manual_seed(0)
    return Encoder(CLIPVisionModel(CLIPVisionConfig())).eval()


_TEXT, _PICTURE = ("batch", "length"), ("batch", "", "", "")
_PICTURES = ((1, 3, 224, 224), (8, 3, 224, 224))
MODELS = {
    "MiniLM": Model(_minilm, ((1, 16), (1, 128), (8, 64), (3, 37), (1, 512)), _TEXT),
    "BERT-base": Model(partial(_network, "BERT-base"), ((1, 128),), _TEXT),
    "ViT-B/16": Model(partial(_network, "ViT-B/16"), ((1, 3, 224, 224),), _PICTURE),
    "CLIP B/32": Model(_clip, _PICTURES, _PICTURE),
    "ResNet-18": Model(partial(_network, "ResNet-18"), _PICTURES, _PICTURE, static=True),
    "MobileNetV3 large": Model(
        partial(_network, "MobileNetV3 large"), _PICTURES, _PICTURE, static=True
    ),
}
ROWS = {
    f"{name}, {shape[0]}" + (f" × {shape[1]}" if len(shape) == 2 else ""): (name, shape)
    for name, model in MODELS.items()
    for shape in model.sizes
}


def exported(name: str, folder: str) -> Service:
    """Writes the file of a model, in a process without anything else."""
    import torch

    model = MODELS[name]
    shape = tuple(2 if axis else n for n, axis in zip(model.sizes[0], model.axes, strict=True))
    shape = (2, 16) if len(shape) == 2 else shape
    path = f"{folder}/model.onnx"
    torch.onnx.export(
        model.make(), (torch.from_numpy(model.input(shape)),), path, dynamo=False, opset_version=17,
        input_names=["x"], output_names=["y"],
        dynamic_axes={"x": {i: axis for i, axis in enumerate(model.axes) if axis}, "y": {0: "batch"}},
    )  # fmt: skip
    return Service(lambda _: lambda: path)


def run_floats(_: str, path: str, threads: int) -> Run:
    """ONNX Runtime in float32: what errors are measured against."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda x: np.asarray(session.run(None, {"x": x})[0])


def run_relaxpy(name: str, path: str, threads: int, integers: bool = True) -> Run:
    """`relaxpy quantize`, as a call."""
    os.environ["RELAXPY_NUM_THREADS"] = str(threads)
    import relaxpy
    from relaxpy.build.quantize import calibrate, quantize

    model = MODELS[name]
    mod, params = relaxpy.from_onnx(path)
    if integers:
        data = [[x] for x in model.samples()]
        seen = calibrate(mod, params, data) if len(model.sizes[0]) == 4 else None
        mod, _ = quantize(mod, params, calibration=seen)
    call = relaxpy.VirtualMachine(relaxpy.build(mod, params=params))["main"]
    return lambda x: call(x).numpy()


def run_relaxpy_floats(name: str, path: str, threads: int) -> Run:
    """The same without integers."""
    return run_relaxpy(name, path, threads, integers=False)


def run_onnxruntime(name: str, path: str, threads: int) -> Run:
    """What ONNX Runtime's quantiser writes."""
    model, target = MODELS[name], path.replace("model.onnx", "quantised.onnx")
    if not Path(target).exists():
        quantised_file(model, path, target)
    return run_floats(name, target, threads)


def quantised_file(model: Model, path: str, target: str) -> None:
    """Write a file by ONNX Runtime's quantiser: dynamic, or pairs with a scale a channel."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    logging.disable(logging.WARNING)
    ready = f"{target}.ready"
    quant_pre_process(path, ready, skip_symbolic_shape=True)
    if not model.static:
        quantize_dynamic(ready, target, per_channel=True)
        return
    left = model.samples()

    class Reader(CalibrationDataReader):
        def get_next(self) -> Any:
            return {"x": left.pop()} if left else None

    # Bytes without a sign are faster: 0.5 of the time on Zen 5.
    kind = QuantType.QUInt8
    quantize_static(ready, target, Reader(), per_channel=True, activation_type=kind)


def run_openvino(name: str, path: str, threads: int) -> Run:
    """What NNCF makes for OpenVINO."""
    import nncf
    import openvino

    nncf.set_log_level(logging.ERROR)
    model, core = MODELS[name], openvino.Core()
    kind = None if model.static else nncf.ModelType.TRANSFORMER
    data = nncf.Dataset([{"x": x} for x in model.samples()])
    integers = nncf.quantize(core.read_model(path), data, model_type=kind)
    options = {
        "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32",
    }  # fmt: skip
    request = core.compile_model(integers, "CPU", options).create_infer_request()
    return lambda x: request.infer({"x": x})[0].copy()


FLOATS = "ONNX Runtime fp32"
Make = Callable[[str, str, int], Run]
"""From the name of a model, its file and threads."""
PEERS: dict[str, Make] = {
    "relaxpy": run_relaxpy,
    "ONNX Runtime": run_onnxruntime,
    "OpenVINO": run_openvino,
    "relaxpy fp32": run_relaxpy_floats,
    FLOATS: run_floats,
}
RIVALS = ("ONNX Runtime", "OpenVINO")


def service(make: Make, name: str, path: str, threads: int, processor: bool) -> Service:
    """Answers about an input: its `result`, or `times` of some calls."""
    run = make(name, path, threads)
    clock = time.process_time if processor else time.perf_counter

    def answer(question: str, x: np.ndarray) -> Any:
        if question == "result":
            return run(x)
        run(x)
        found, end = [], time.perf_counter() + SECONDS
        while len(found) < 3 or time.perf_counter() < end:
            start = clock()
            run(x)
            found.append(clock() - start)
        return found

    return Service(lambda request: partial(answer, *request))


class Running:
    """The peers of the model that is measured: they are started once for all of its sizes."""

    def __init__(self, makes: Mapping[str, Make]) -> None:
        self.makes = makes
        self.name = ""
        self.peers: dict[str, Peer] = {}
        self.stack = ExitStack()

    def of(self, name: str, args: argparse.Namespace, console: Console) -> Mapping[str, Peer]:
        """Those of this model."""
        if name == self.name:
            return self.peers
        self.stack.close()
        self.name, self.peers = name, {}
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        writer = Peer.start("export", exported, name, folder)
        if isinstance(writer, str):
            raise RuntimeError(f"{name} is not exported: {writer}")
        path = writer.result("path")
        writer.stop()
        for library in args.libraries.split(","):
            given = name, path, args.threads, args.processor
            found = Peer.start(library, service, self.makes[library], *given)
            if isinstance(found, str):
                if library == "relaxpy":
                    raise RuntimeError(f"{name}: {found}")
                console.print(f"{name}: {library} is left out: {found}", highlight=False)
                continue
            self.peers[library] = found
            self.stack.callback(found.stop)
        return self.peers


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    """One minus the cosine."""
    a, b = found.astype(float).ravel(), wanted.astype(float).ravel()
    return 1 - float(a @ b) / float(np.sqrt((a @ a) * (b @ b)))


def measured(
    row: str, args: argparse.Namespace, console: Console, running: Running
) -> dict[str, dict[str, float]]:
    """What is measured of a model and a size."""
    name, shape = ROWS[row]
    peers = running.of(name, args, console)
    x = MODELS[name].input(shape)
    results = {library: peer.result(("result", x)) for library, peer in peers.items()}
    times = times_in_turns(peers, x, args.quick)
    least = min if args.processor else median
    call = {library: least(each) for library, each in times.items()}
    floats = next((result for library, result in results.items() if library == FLOATS), None)
    errors = {
        library: error(result, floats)
        for library, result in results.items()
        if floats is not None and not library.endswith("fp32")
    }
    return {"call": call, "error": errors}


def table(found: Mapping[str, Times]) -> str:
    """In Markdown."""
    rows: list[list[str]] = []
    for name, times in found.items():
        call, errors = times["call"], times["error"]
        row = [name, *(milliseconds(call[each]) if each in call else "" for each in PEERS)]
        row.append(f"{call['relaxpy'] / best(call):.2f}" if best(call) else "")
        row += [f"{errors[each]:.1e}" if each in errors else "" for each in ("relaxpy", *RIVALS)]
        rows.append(row)
    header = ["model", *PEERS, "of the best int8", "error", *RIVALS]
    return markdown_table(header, rows, "l" + "r" * (len(header) - 1))


def best(call: Mapping[str, float]) -> float:
    """The time of the fastest rival in int8; 0 without one."""
    return min((call[each] for each in RIVALS if each in call), default=0.0)


def summary(report: Mapping[str, Times]) -> str:
    """Ratios to the best rival."""
    calls = [times["call"] for times in report.values() if best(times["call"])]
    ratios = [call["relaxpy"] / best(call) for call in calls]
    if not ratios:
        return ""
    mean = exp(fmean(map(log, ratios)))
    return f"The geometric mean of relaxpy's times is {mean:.2f} of the best rival's (at most {max(ratios):.2f})."


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--libraries", default=",".join(PEERS), help="which ones run")
    running = Running(PEERS)

    def measure(row: str, args: argparse.Namespace, console: Console) -> Times:
        return measured(row, args, console, running)

    try:
        return ModelTable(
            "integers", "Int8: ms", list(ROWS), measure, table,
            "Products of encoders are quantised dynamically, convolutions by data; OpenVINO's models are NNCF's. "
            "The error is one minus the cosine of all results to those of float32.",
            summary, "int8",
        ).run(parser)  # fmt: skip
    finally:
        running.stack.close()


if __name__ == "__main__":
    sys.exit(main())
