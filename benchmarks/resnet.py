"""ResNet-18 on images of 224 x 224, end to end: relaxpy, torch, ONNX Runtime, with the same weights and threads.

    python benchmarks/resnet.py                     the table; writes benchmarks/results/resnet.json
    python benchmarks/resnet.py --quick             one short turn each; nothing is written

relaxpy's executable takes any number of images of any size; ONNX Runtime's graph any number of this size. Weights are
random. Each library lives in a process of its own and they take turns; a time is the median of all its calls. Results
are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.report import markdown_table, replace_section, save
from benchmarks.turns import Peer, Service, rotated_times

SECTION = "ResNet-18: ms"
"""The heading in docs/benchmarks.md under which the table is."""
BATCHES = (1, 8)
SIZE = 224
GFLOP = 3.63
"""Of the convolutions and the classifier, for one image."""
TOLERANCE = 1e-4


def relaxpy_peer(weights: str, threads: int) -> Service:
    """The model of `models/resnet.py`, for images of any size."""
    os.environ["RELAXPY_NUM_THREADS"] = str(threads)
    import relaxpy
    from relaxpy.models.resnet import RESNET18, ResNet, load_weights, spec

    model = ResNet(RESNET18)
    load_weights(model, dict(np.load(weights)))
    mod, params = model.export(spec(RESNET18))
    classify = relaxpy.VirtualMachine(relaxpy.build(mod, params=params))["classify"]
    return Service(lambda x: partial(classify, x), lambda y: y.numpy())


def torch_peer(weights: str, threads: int) -> Service:
    """The model of transformers, eager."""
    import torch

    torch.set_num_threads(threads)
    model = their_model(weights)

    def prepare(x: np.ndarray) -> Any:
        images = torch.from_numpy(x)

        def call() -> Any:
            with torch.inference_mode():
                return model(images)

        return call

    return Service(prepare, lambda y: y.numpy())


def onnx_peer(weights: str, threads: int) -> Service:
    """The model of transformers, exported."""
    import onnxruntime
    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "resnet.onnx"))
        images = torch.zeros(1, 3, SIZE, SIZE)
        torch.onnx.export(
            their_model(weights), (images,), path, dynamo=False, input_names=["x"],
            dynamic_axes={"x": {0: "batch"}},
        )  # fmt: skip
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, options)
    return Service(lambda x: partial(session.run, None, {"x": x}), lambda y: y[0])


def their_model(weights: str | None = None) -> Any:
    """ResNet-18 of transformers as a module from images to scores, with these weights, or random ones."""
    import dataclasses

    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    from relaxpy.models.resnet import RESNET18

    given = dataclasses.asdict(RESNET18)
    fields: dict[str, Any] = {n: list(v) if isinstance(v, tuple) else v for n, v in given.items()}
    torch.manual_seed(0)
    model = ResNetForImageClassification(ResNetConfig(**fields))
    if weights is not None:
        arrays = dict(np.load(weights))
        model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})

    class Scores(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.model(images).logits

    return Scores().eval()


PEERS = {"relaxpy": relaxpy_peer, "torch": torch_peer, "ONNX Runtime": onnx_peer}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short turn; nothing is written")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    with tempfile.TemporaryDirectory() as folder:
        weights = str(Path(folder, "weights.npz"))
        state = their_model().model.state_dict()
        np.savez(weights, **{name: value.numpy() for name, value in state.items()})
        peers: dict[str, Peer] = {}
        for name, make in PEERS.items():
            peer = Peer.start(name, make, weights, args.threads)
            if isinstance(peer, Peer):
                peers[name] = peer
            else:
                console.print(f"{name} is left out: {peer}", highlight=False)
        try:
            found = measured(peers, 1 if args.quick else 4)
        finally:
            for peer in peers.values():
                peer.stop()
    rows = [
        [f"{batch}", *(f"{times[name] * 1e3:.1f}" for name in peers),
         f"{batch * GFLOP / times['relaxpy']:.0f}"]
        for batch, times in found.items()
    ]  # fmt: skip
    table = markdown_table(["images", *peers, "relaxpy, GFLOP/s"], rows, "r" * (len(peers) + 2))
    console.print(table, highlight=False)
    if not args.quick:
        save("resnet", {"threads": args.threads, "seconds": found})
        text = f"224 x 224, fp32, {args.threads} threads; each library in a process of its own, taking turns."
        replace_section(
            SECTION, f"{text}\n\n{table}\n\n`python benchmarks/resnet.py` writes this section."
        )
    return 0


def measured(peers: dict[str, Peer], rounds: int) -> dict[int, dict[str, float]]:
    """Seconds of each library by the number of images; RuntimeError where results differ."""
    found: dict[int, dict[str, float]] = {}
    for batch in BATCHES:
        x = np.random.default_rng(batch).standard_normal((batch, 3, SIZE, SIZE), "float32")
        results = {name: peer.result(x) for name, peer in peers.items()}
        for name, result in results.items():
            difference = float(np.abs(result - results["relaxpy"]).max())
            if difference > TOLERANCE * float(np.abs(result).max()):
                raise RuntimeError(f"{name} and relaxpy differ by {difference:.1e}, batch {batch}")
        times = rotated_times(peers, x, rounds, 3, 0.3)
        found[batch] = {name: median(values) for name, values in times.items()}
    return found


if __name__ == "__main__":
    sys.exit(main())
