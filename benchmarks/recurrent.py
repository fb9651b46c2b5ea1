"""Recurrent networks, whole sequences in one call: relaxpy, torch, ONNX Runtime, with the same weights and threads.

    python benchmarks/recurrent.py                  the table; writes benchmarks/results/recurrent.json
    python benchmarks/recurrent.py --only GRU       networks with this in their names; the others stay as they were
    python benchmarks/recurrent.py --quick          one short turn each; nothing is written
    python benchmarks/recurrent.py --processor      on one thread, the least processor time of a call: also on a machine
                                                    that is busy

An executable and a graph take sequences of any length and any batch. Weights are random. CharRNN is that of Karpathy's
char-rnn: two layers of 128 units over 96 characters, which learns from 50 sequences of 50 and writes one character at a
time. Each library lives in a process of its own and they take turns; a time is the median of all its calls. Results are
compared before anything is timed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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

SECTION = "Recurrent networks: ms"
"""The heading in docs/benchmarks.md under which the table is."""
PROCESSOR = "Recurrent networks: ms of processor time, one thread"
"""The same for `--processor`."""
TOLERANCE = 1e-4
CHARACTERS = 96


@dataclass(frozen=True)
class Network:
    """A layer of torch's and ours, and the sequences that it is given."""

    kind: str
    """LSTM, GRU or RNN; `Char` is an LSTM between an embedding and a linear layer."""
    size: int
    sequences: Sequence[tuple[int, int]]
    """Lengths and batches."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def of(self, nn: Any) -> Any:
        """The module of relaxpy's or torch's namespace: a sequence of layers."""
        if self.kind != "Char":
            return getattr(nn, self.kind)(self.size, self.size, **self.options)

        size = self.size

        class CharRNN(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embedding = nn.Embedding(CHARACTERS, size)
                self.rnn = nn.LSTM(size, size, 2)
                self.head = nn.Linear(size, CHARACTERS)

            def forward(self, x: Any) -> Any:
                return self.head(self.rnn(self.embedding(x))[0])

        return CharRNN()

    def input(self, length: int, batch: int) -> np.ndarray:
        rng = np.random.default_rng(length)
        if self.kind == "Char":
            return rng.integers(0, CHARACTERS, (length, batch))
        return rng.standard_normal((length, batch, self.size), "float32")


NETWORKS = {
    "LSTM 64": Network("LSTM", 64, ((1000, 1), (1000, 8))),
    "LSTM 512": Network("LSTM", 512, ((200, 1), (200, 8))),
    "LSTM 256, both ways, 2 layers": Network(
        "LSTM", 256, ((100, 1), (100, 16)), {"bidirectional": True, "num_layers": 2}
    ),
    "GRU 64": Network("GRU", 64, ((1000, 1), (1000, 8))),
    "GRU 512": Network("GRU", 512, ((200, 1), (200, 8))),
    "RNN 256": Network("RNN", 256, ((500, 1), (500, 8))),
    "CharRNN": Network("Char", 128, ((50, 50), (50, 1), (1, 1))),
}


def relaxpy_peer(name: str, weights: str, threads: int) -> Service:
    """For sequences of any length and number."""
    os.environ["RELAXPY_NUM_THREADS"] = str(threads)
    import relaxpy
    from relaxpy import nn

    network = NETWORKS[name]
    model = network.of(nn)
    model.load_state_dict(dict(np.load(weights)))
    is_char = network.kind == "Char"
    shape = ("length", "batch") if is_char else ("length", "batch", network.size)
    spec = nn.spec.Tensor(shape, "int64" if is_char else "float32")
    mod, params = model.export({"forward": {"x": spec}})
    run = relaxpy.VirtualMachine(relaxpy.build(mod, params=params))["forward"]
    return Service(timing(lambda x: partial(run, x)), portable)


def torch_peer(name: str, weights: str, threads: int) -> Service:
    """Eager."""
    import torch

    torch.set_num_threads(threads)
    model = their_model(name, weights)

    def prepare(x: np.ndarray) -> Any:
        given = torch.from_numpy(x)

        def call() -> Any:
            with torch.inference_mode():
                return model(given)

        return call

    return Service(timing(prepare), portable)


def onnx_peer(name: str, weights: str, threads: int) -> Service:
    """The model of torch, exported."""
    import onnxruntime
    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "network.onnx"))
        x = torch.from_numpy(NETWORKS[name].input(5, 2))
        torch.onnx.export(
            their_model(name, weights), (x,), path, dynamo=False, input_names=["x"],
            dynamic_axes={"x": {0: "length", 1: "batch"}},
        )  # fmt: skip
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(path, options)
    return Service(timing(lambda x: partial(session.run, None, {"x": x})), portable)


def timing(prepare: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """From a request to a call, as `prepare` does. A pair is a request and a time: the call then gives the least
    processor time of the calls in that time."""

    def prepared(request: Any) -> Any:
        if not isinstance(request, tuple):
            return prepare(request)
        given, seconds = request
        call = prepare(given)

        def least() -> float:
            found, end = [], time.perf_counter() + seconds
            while len(found) < 4 or time.perf_counter() < end:
                start = time.thread_time()
                call()
                found.append(time.thread_time() - start)
            return min(found)

        return least

    return prepared


def portable(result: Any) -> Any:
    """The outputs as an array, without the last states; a time as it is."""
    if isinstance(result, float):
        return result
    outputs = result[0] if isinstance(result, (tuple, list)) else result
    return outputs if isinstance(outputs, np.ndarray) else outputs.numpy()


def their_model(name: str, weights: str) -> Any:
    """The module of torch with these weights."""
    import torch

    model = NETWORKS[name].of(torch.nn)
    model.load_state_dict({n: torch.from_numpy(a) for n, a in dict(np.load(weights)).items()})
    return model.eval()


PEERS = {"relaxpy": relaxpy_peer, "torch": torch_peer, "ONNX Runtime": onnx_peer}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="networks with this in their names")
    parser.add_argument("--quick", action="store_true", help="one short turn; nothing is written")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--processor", action="store_true", help="least processor time, 1 thread")
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    threads = 1 if args.processor else args.threads
    measure = partial(
        processor_seconds if args.processor else seconds, rounds=1 if args.quick else 6
    )
    chosen = [name for name in NETWORKS if args.only in name]
    found = {name: measured(console, name, threads, measure) for name in chosen}
    console.print(table(found), highlight=False)
    if not args.quick:
        name, section = (
            ("recurrent_processor", PROCESSOR) if args.processor else ("recurrent", SECTION)
        )
        known = saved(name).get("seconds", {}) | found
        report = {each: known[each] for each in NETWORKS if each in known}
        save(name, {"threads": threads, "seconds": report})
        what = "the least processor time" if args.processor else "medians"
        text = (
            f"A call for the whole sequence, fp32, {threads} thread{'s' * (threads > 1)} of a processor of LLVM's type "
            f"`{CpuTarget.host().mcpu}`; {what}; each library in a process of its own, taking turns."
        )
        option = " --processor" if args.processor else ""
        command = f"`python benchmarks/recurrent.py{option}` writes this section."
        replace_section(section, f"{text}\n\n{table(report)}\n\n{command}")
    return 0


def table(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """In Markdown, of seconds by network, sequences and library."""
    rows = [
        [name, length, batch, *(milliseconds(times[peer]) if peer in times else "" for peer in PEERS)]
        for name, sequences in found.items() for sequence, times in sequences.items()
        for length, batch in [sequence.split(" x ")]
    ]  # fmt: skip
    header = ["network", "steps", "batch", *PEERS]
    return markdown_table(header, rows, "l" + "r" * (len(header) - 1))


def milliseconds(value: float) -> str:
    """Of seconds, with three digits or so."""
    return f"{value * 1e3:.{1 if value >= 0.01 else 2 if value >= 1e-4 else 3}f}"


Measure = Callable[[Mapping[str, Peer], np.ndarray], dict[str, float]]


def measured(
    console: Console, name: str, threads: int, measure: Measure
) -> dict[str, dict[str, float]]:
    """Seconds of each library by length and batch; RuntimeError where results differ."""
    import torch

    peers: dict[str, Peer] = {}
    network = NETWORKS[name]
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        weights = str(Path(folder, "weights.npz"))
        state = network.of(torch.nn).state_dict()
        np.savez(weights, **{key: value.numpy() for key, value in state.items()})
        try:
            for library, make in PEERS.items():
                peer = Peer.start(library, make, name, weights, threads)
                if isinstance(peer, Peer):
                    peers[library] = peer
                else:
                    console.print(f"{library} is left out: {peer}", highlight=False)
            return {
                f"{length} x {batch}": checked(peers, network.input(length, batch), measure)
                for length, batch in network.sequences
            }
        finally:
            for peer in peers.values():
                peer.stop()


def checked(peers: Mapping[str, Peer], x: np.ndarray, measure: Measure) -> dict[str, float]:
    """What is measured for these sequences, after a comparison of results."""
    results = {name: peer.result(x) for name, peer in peers.items()}
    for name, result in results.items():
        difference = float(np.abs(result - results["relaxpy"]).max())
        if difference > TOLERANCE * max(1.0, float(np.abs(result).max())):
            raise RuntimeError(f"{name} and relaxpy differ by {difference:.1e}, {x.shape[:2]}")
    return measure(peers, x)


def seconds(peers: Mapping[str, Peer], x: np.ndarray, rounds: int) -> dict[str, float]:
    """The median of each library's times for these sequences."""
    times = rotated_times(dict(peers), x, rounds, 5, 0.3)
    return {name: median(values) for name, values in times.items()}


def processor_seconds(peers: Mapping[str, Peer], x: np.ndarray, rounds: int) -> dict[str, float]:
    """The least processor time of each library."""
    turns = [{name: peer.result((x, 0.3)) for name, peer in peers.items()} for _ in range(rounds)]
    return {name: min(turn[name] for turn in turns) for name in peers}


if __name__ == "__main__":
    sys.exit(main())
