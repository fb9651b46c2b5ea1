"""Networks for images, end to end: relaxpy, torch, ONNX Runtime, with the same weights and threads. relaxpy is also
measured with Winograd's convolutions, whose results have larger errors.

    python benchmarks/images.py                     the table; writes benchmarks/results/images.json
    python benchmarks/images.py --only Mobile       networks with this in their names; the others stay as they were
    python benchmarks/images.py --quick             one short turn each; nothing is written

relaxpy's executable takes any number of images of any size; ONNX Runtime's graph any number of 224 x 224. Weights are
random. Each library lives in a process of its own and they take turns; a time is the median of all its calls. Results
are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.report import markdown_table, replace_section, save, saved
from benchmarks.turns import Peer, Service, rotated_times
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.transform import Winograd
from relaxpy.transform.base import Pass

SECTION = "Networks for images: ms"
"""The heading in docs/benchmarks.md under which the table is."""
BATCHES = (1, 8)
SIZE = 224
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Network:
    """A network in relaxpy and in torch."""

    gflop: float
    """Of the products, for one image."""
    ours: Callable[[Mapping[str, np.ndarray]], tuple[Any, Any]]
    """From weights to a module with `classify`, and the specification of its arguments."""
    theirs: Callable[[], Any]
    """A module of torch with random weights, from images to scores."""


def our_resnet(weights: Mapping[str, np.ndarray]) -> tuple[Any, Any]:
    """ResNet-18 of `models/resnet.py`."""
    from relaxpy.models.resnet import RESNET18, ResNet, load_weights, spec

    model = ResNet(RESNET18)
    load_weights(model, {name.removeprefix("model."): array for name, array in weights.items()})
    return model, spec(RESNET18)


def their_resnet() -> Any:
    """ResNet-18 of transformers."""
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    from relaxpy.models.resnet import RESNET18

    given = dataclasses.asdict(RESNET18)
    fields: dict[str, Any] = {n: list(v) if isinstance(v, tuple) else v for n, v in given.items()}
    torch.manual_seed(0)
    model = ResNetForImageClassification(ResNetConfig(**fields))

    class Scores(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.model(images).logits

    return Scores().eval()


def our_mobilenet(size: str, weights: Mapping[str, np.ndarray]) -> tuple[Any, Any]:
    """MobileNetV3 of `models/mobilenet.py`, "LARGE" or "SMALL"."""
    from relaxpy.models import mobilenet

    model = mobilenet.MobileNet(getattr(mobilenet, size))
    mobilenet.load_weights(model, weights)
    return model, mobilenet.spec()


def their_mobilenet(size: str) -> Any:
    """The same in torch."""
    from benchmarks.torch_mobilenet import random_network
    from relaxpy.models import mobilenet

    return random_network(getattr(mobilenet, size))


NETWORKS = {
    "ResNet-18": Network(3.63, our_resnet, their_resnet),
    "MobileNetV3 large": Network(
        0.43, partial(our_mobilenet, "LARGE"), partial(their_mobilenet, "LARGE")
    ),
    "MobileNetV3 small": Network(
        0.11, partial(our_mobilenet, "SMALL"), partial(their_mobilenet, "SMALL")
    ),
}


def relaxpy_peer(name: str, weights: str, threads: int, passes: Sequence[Pass] = ()) -> Service:
    """For images of any number and size; with passes after the layout is chosen."""
    os.environ["RELAXPY_NUM_THREADS"] = str(threads)
    import relaxpy
    from relaxpy.build.pipeline import default_pipeline

    model, spec = NETWORKS[name].ours(dict(np.load(weights)))
    mod, params = model.export(spec)
    pipeline = default_pipeline().after("convert-layout", *passes)
    built = relaxpy.build(mod, params=params, pipeline=pipeline)
    classify = relaxpy.VirtualMachine(built)["classify"]
    return Service(lambda x: partial(classify, x), lambda y: y.numpy())


def winograd_peer(name: str, weights: str, threads: int) -> Service:
    """The same with the pass `Winograd`."""
    return relaxpy_peer(name, weights, threads, (Winograd(),))


def torch_peer(name: str, weights: str, threads: int) -> Service:
    """Eager."""
    import torch

    torch.set_num_threads(threads)
    model = their_model(name, weights)

    def prepare(x: np.ndarray) -> Any:
        images = torch.from_numpy(x)

        def call() -> Any:
            with torch.inference_mode():
                return model(images)

        return call

    return Service(prepare, lambda y: y.numpy())


def onnx_peer(name: str, weights: str, threads: int) -> Service:
    """The model of torch, exported."""
    import onnxruntime
    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "network.onnx"))
        images = torch.zeros(1, 3, SIZE, SIZE)
        torch.onnx.export(
            their_model(name, weights), (images,), path, dynamo=False, input_names=["x"],
            dynamic_axes={"x": {0: "batch"}},
        )  # fmt: skip
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, options)
    return Service(lambda x: partial(session.run, None, {"x": x}), lambda y: y[0])


def their_model(name: str, weights: str) -> Any:
    """The module of torch with these weights."""
    import torch

    model = NETWORKS[name].theirs()
    model.load_state_dict({n: torch.from_numpy(a) for n, a in dict(np.load(weights)).items()})
    return model


PEERS = {
    "relaxpy": relaxpy_peer,
    "relaxpy, Winograd": winograd_peer,
    "torch": torch_peer,
    "ONNX Runtime": onnx_peer,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="networks with this in their names")
    parser.add_argument("--quick", action="store_true", help="one short turn; nothing is written")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    chosen = [name for name in NETWORKS if args.only in name]
    rounds = 1 if args.quick else 4
    found = {name: measured(console, name, args.threads, rounds) for name in chosen}
    console.print(table(found), highlight=False)
    if not args.quick:
        known = saved("images").get("seconds", {}) | found
        report = {name: known[name] for name in NETWORKS if name in known}
        save("images", {"threads": args.threads, "seconds": report})
        text = (
            f"{SIZE} x {SIZE}, fp32, {args.threads} threads of a processor of LLVM's type "
            f"`{CpuTarget.host().mcpu}`; each library in a process of its own, taking turns."
        )
        command = "`python benchmarks/images.py` writes this section."
        replace_section(SECTION, f"{text}\n\n{table(report)}\n\n{command}")
    return 0


def table(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """In Markdown, of seconds by network, number of images and library."""
    rows = [
        [name, batch, *(milliseconds(times[peer]) if peer in times else "" for peer in PEERS),
         f"{int(batch) * NETWORKS[name].gflop / times['relaxpy']:.0f}"]
        for name, batches in found.items() for batch, times in batches.items()
    ]  # fmt: skip
    header = ["network", "images", *PEERS, "relaxpy, GFLOP/s"]
    return markdown_table(header, rows, "l" + "r" * (len(header) - 1))


def milliseconds(value: float) -> str:
    """Of seconds, with three digits or so."""
    return f"{value * 1e3:.{1 if value >= 0.01 else 2}f}"


def measured(console: Console, name: str, threads: int, rounds: int) -> dict[str, dict[str, float]]:
    """Seconds of each library by the number of images; RuntimeError where results differ."""
    peers: dict[str, Peer] = {}
    with tempfile.TemporaryDirectory() as folder:
        weights = str(Path(folder, "weights.npz"))
        state = NETWORKS[name].theirs().state_dict()
        np.savez(weights, **{key: value.numpy() for key, value in state.items()})
        try:
            for library, make in PEERS.items():
                peer = Peer.start(library, make, name, weights, threads)
                if isinstance(peer, Peer):
                    peers[library] = peer
                else:
                    console.print(f"{library} is left out: {peer}", highlight=False)
            return {str(batch): seconds(peers, batch, rounds) for batch in BATCHES}
        finally:
            for peer in peers.values():
                peer.stop()


def seconds(peers: Mapping[str, Peer], batch: int, rounds: int) -> dict[str, float]:
    """The median of each library's times for so many images."""
    x = np.random.default_rng(batch).standard_normal((batch, 3, SIZE, SIZE), "float32")
    results = {name: peer.result(x) for name, peer in peers.items()}
    for name, result in results.items():
        difference = float(np.abs(result - results["relaxpy"]).max())
        if difference > TOLERANCE * float(np.abs(result).max()):
            raise RuntimeError(f"{name} and relaxpy differ by {difference:.1e}, batch {batch}")
    times = rotated_times(dict(peers), x, rounds, 3, 0.3)
    return {name: median(values) for name, values in times.items()}


if __name__ == "__main__":
    sys.exit(main())
