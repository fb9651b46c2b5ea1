"""all-MiniLM-L6-v2 in relaxpy, ONNX Runtime, OpenVINO and torch: the same weights, threads and token ids, in one run.

    python benchmarks/embed.py                        every peer, every shape
    python benchmarks/embed.py --peers relaxpy,torch --shapes 1x16,8x64 --json out.json

Each peer lives in a process of its own, so that no thread pool spins beside another; the parent has them take turns
(`--rounds` times a shape, in an order that rotates), each turn being one call to warm up and a few timed ones. What is
reported is the median over all timed calls. All compute fp32; OpenVINO, whose default on a CPU with bf16 instructions
is bf16, is told so (`openvino-bf16` is that default, listed for information and never the "best peer"). Every peer's
embeddings are compared with torch's. Then relaxpy runs again with a clock around each kernel: where the time goes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from models.checkpoint import read_config
from models.sentence_embedding import default_checkpoint

Run = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(input_ids, attention_mask), both (batch, seq) int64 → embeddings (batch, hidden) float32."""

Config = dict[str, Any]
"""The fields of `config.json`."""

SHAPES = ((1, 16), (1, 128), (8, 64), (32, 128), (1, 512))


@dataclass(frozen=True)
class Source:
    """Where the one set of weights is: as a checkpoint, and exported from torch."""

    checkpoint: Path
    onnx: Path


def torch_model(checkpoint: Path) -> Any:
    """The sentence encoder as a torch module: transformers' BERT, mean over unmasked tokens, unit length."""
    import torch
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()

    class SentenceEncoder(torch.nn.Module):
        def __init__(self, bert: torch.nn.Module) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            kept = attention_mask.unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * kept).sum(1) / kept.sum(1).clamp(min=1e-9)
            return torch.nn.functional.normalize(mean, dim=1)

    return SentenceEncoder(AutoModel.from_pretrained(checkpoint)).eval()


def export_onnx(source: Source) -> None:
    """Write the torch model as ONNX with dynamic batch and sequence axes."""
    import torch

    axes = {0: "batch", 1: "seq"}
    ids = torch.ones(2, 16, dtype=torch.int64)
    torch.onnx.export(
        torch_model(source.checkpoint),
        (ids, ids),
        str(source.onnx),
        input_names=["input_ids", "attention_mask"],
        output_names=["embeddings"],
        dynamic_axes={"input_ids": axes, "attention_mask": axes, "embeddings": {0: "batch"}},
        dynamo=False,
        opset_version=17,
    )


def run_torch(source: Source, threads: int) -> Run:
    import torch

    torch.set_num_threads(threads)
    model = torch_model(source.checkpoint)

    def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()

    return run


def run_onnxruntime(source: Source, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(source.onnx), options, providers=["CPUExecutionProvider"]
    )

    def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return np.asarray(session.run(None, {"input_ids": ids, "attention_mask": mask})[0])

    return run


def run_openvino(source: Source, threads: int, precision: str = "f32") -> Run:
    import openvino

    options = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
    }
    model = openvino.Core().compile_model(str(source.onnx), "CPU", options)
    request = model.create_infer_request()
    return lambda ids, mask: request.infer({"input_ids": ids, "attention_mask": mask})[0].copy()


def run_openvino_bf16(source: Source, threads: int) -> Run:
    return run_openvino(source, threads, "bf16")


def run_relaxpy(source: Source, threads: int) -> Run:
    os.environ["RELAXPY_NUM_THREADS"] = str(threads)
    from models.sentence_embedding import SentenceEmbedder

    return SentenceEmbedder.from_checkpoint(source.checkpoint).embed_tokens


PEERS: dict[str, Callable[[Source, int], Run]] = {
    "relaxpy": run_relaxpy,
    "onnxruntime": run_onnxruntime,
    "openvino": run_openvino,
    "torch": run_torch,
    "openvino-bf16": run_openvino_bf16,
}


def worker(name: str, source: Source, threads: int, pipe: Connection) -> None:
    """Serve (ids, mask, calls) → (seconds of each call, embeddings) until the pipe closes."""
    started = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = PEERS[name](source, threads)
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
        return
    pipe.send(time.perf_counter() - started)
    while True:
        try:
            ids, mask, calls = pipe.recv()
        except EOFError:
            return
        out = run(ids, mask)
        seconds = []
        for _ in range(calls):
            start = time.perf_counter()
            run(ids, mask)
            seconds.append(time.perf_counter() - start)
        pipe.send((seconds, out))


@dataclass
class Peer:
    """A running worker."""

    name: str
    pipe: Connection
    process: BaseProcess
    load_seconds: float

    @classmethod
    def start(cls, name: str, source: Source, threads: int) -> Peer | str:
        """The peer, or why it cannot run here."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=worker, args=(name, source, threads, theirs), daemon=True)
        process.start()
        theirs.close()
        try:
            answer = ours.recv()
        except EOFError:
            answer = f"its process ended with {process.exitcode}"
        if isinstance(answer, str):
            return answer
        return cls(name, ours, process, answer)

    def measure(
        self, ids: np.ndarray, mask: np.ndarray, calls: int
    ) -> tuple[list[float], np.ndarray]:
        self.pipe.send((ids, mask, calls))
        return self.pipe.recv()

    def stop(self) -> None:
        self.pipe.close()
        self.process.join(5)


def flops(config: Config, batch: int, seq: int) -> float:
    """Floating-point operations of the matrix products of one call."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    token = 2 * (4 * hidden * hidden + 2 * hidden * inner) + 2 * 2 * seq * hidden
    return float(batch * seq * token * config["num_hidden_layers"])


def timed(name: str) -> bool:
    """Whether a peer computes what we do (fp32), and so counts as a peer to beat."""
    return name not in ("relaxpy", "openvino-bf16")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)}")
    parser.add_argument("--shapes", default=",".join(f"{b}x{s}" for b, s in SHAPES))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each peer at each shape")
    parser.add_argument(
        "--checkpoint", type=Path, help="a directory with config.json, model.safetensors"
    )
    parser.add_argument("--json", type=Path, default=Path("build/bench/embed.json"))
    args = parser.parse_args()

    console = Console(width=None if sys.stdout.isatty() else 120)
    checkpoint = args.checkpoint or default_checkpoint()
    config = read_config(checkpoint, "bert")
    shapes = [tuple(map(int, shape.split("x"))) for shape in args.shapes.split(",")]
    peers: list[Peer] = []
    absent: dict[str, str] = {}
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        source = Source(checkpoint, Path(scratch) / "model.onnx")
        with console.status("exporting ONNX"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            export_onnx(source)
        for name in args.peers.split(","):
            with console.status(f"loading {name}"):
                peer = Peer.start(name, source, args.threads)
            if isinstance(peer, str):
                absent[name] = peer
                console.print(f"[yellow]{name} is left out:[/] {peer}", highlight=False)
            else:
                peers.append(peer)
        for batch, seq in shapes:
            results.append(run_shape(console, config, peers, batch, seq, args.rounds))
    for peer in peers:
        peer.stop()

    profiles: list[dict[str, Any]] = []
    if any(peer.name == "relaxpy" for peer in peers):
        profiles = profile(checkpoint, config, shapes, args.threads)
    report = {
        "benchmark": "embed",
        "model": "all-MiniLM-L6-v2" if args.checkpoint is None else str(args.checkpoint),
        "machine": {"cpu": platform.processor() or platform.machine(), "threads": args.threads},
        "load_seconds": {peer.name: round(peer.load_seconds, 3) for peer in peers},
        "absent": absent,
        "results": results,
        "kernels": profiles,
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(report, indent=1) + "\n")
    console.print(table(peers, results, args.threads))
    for row in profiles:
        console.print(profile_table(row))
    console.print(f"written to {args.json}", style="dim")
    return 0


def run_shape(
    console: Console, config: Config, peers: list[Peer], batch: int, seq: int, rounds: int
) -> dict[str, Any]:
    """Milliseconds, GFLOP/s and difference to torch of every peer at one shape."""
    rng = np.random.default_rng(batch * 1000 + seq)
    ids = rng.integers(0, config["vocab_size"], (batch, seq), dtype=np.int64)
    mask = np.ones_like(ids)
    work = flops(config, batch, seq)
    calls = max(1, min(20, int(4e9 / work)))
    seconds: dict[str, list[float]] = {peer.name: [] for peer in peers}
    outputs: dict[str, np.ndarray] = {}
    with console.status(f"{batch} × {seq}"):
        for turn in range(rounds):
            for i in range(len(peers)):
                peer = peers[(i + turn) % len(peers)]
                times, outputs[peer.name] = peer.measure(ids, mask, calls)
                seconds[peer.name] += times
    reference = outputs.get("torch")
    best = min((median(seconds[p.name]) for p in peers if timed(p.name)), default=None)
    row: dict[str, Any] = {"batch": batch, "seq": seq, "calls": calls * rounds, "peers": {}}
    for peer in peers:
        middle = median(seconds[peer.name])
        row["peers"][peer.name] = {
            "ms": round(middle * 1e3, 3),
            "min_ms": round(min(seconds[peer.name]) * 1e3, 3),
            "gflops": round(work / middle / 1e9, 1),
            "ratio_to_best_peer": None if best is None else round(middle / best, 3),
            "max_difference_to_torch": (
                None if reference is None else float(np.abs(outputs[peer.name] - reference).max())
            ),
        }
    return row


def table(peers: list[Peer], results: list[dict[str, Any]], threads: int) -> Table:
    """Rows are shapes; a cell says median milliseconds and the ratio to the best fp32 peer."""
    view = Table(
        title=f"all-MiniLM-L6-v2, {threads} threads: median ms (ratio to the best fp32 peer)"
    )
    view.add_column("batch × tokens", justify="right")
    for peer in peers:
        view.add_column(peer.name, justify="right")
    if any(peer.name == "relaxpy" for peer in peers):
        view.add_column("relaxpy GFLOP/s", justify="right")
        view.add_column("max diff to torch", justify="right")
    for row in results:
        cells = [f"{row['batch']} × {row['seq']}"]
        for peer in peers:
            cell = row["peers"][peer.name]
            ratio = cell["ratio_to_best_peer"]
            cells.append(f"{cell['ms']:.2f}" + ("" if ratio is None else f" ({ratio:.2f})"))
        if "relaxpy" in row["peers"]:
            ours = row["peers"]["relaxpy"]
            difference = ours["max_difference_to_torch"]
            cells += [f"{ours['gflops']:.0f}", "" if difference is None else f"{difference:.1e}"]
        view.add_row(*cells)
    return view


def profile(
    checkpoint: Path, config: Config, shapes: list[tuple[int, ...]], threads: int
) -> list[dict[str, Any]]:
    """For each shape: milliseconds of a call, and of each kernel in it (means over some calls)."""
    os.environ["RELAXPY_NUM_THREADS"] = str(threads)
    from benchmarks.kernel_times import recording
    from models.sentence_embedding import SentenceEmbedder

    with recording() as times:
        embedder = SentenceEmbedder.from_checkpoint(checkpoint)
    rows: list[dict[str, Any]] = []
    for batch, seq in shapes:
        ids = np.random.default_rng(0).integers(0, config["vocab_size"], (batch, seq))
        mask = np.ones_like(ids)
        embedder.embed_tokens(ids, mask)
        calls = max(2, min(20, int(4e9 / flops(config, batch, seq))))
        times.reset()
        start = time.perf_counter()
        for _ in range(calls):
            embedder.embed_tokens(ids, mask)
        total = (time.perf_counter() - start) / calls * 1e3
        kernels = [
            {"kernel": k.name, "calls": k.calls // calls, "ms": round(k.seconds / calls * 1e3, 4)}
            for k in times.by_time()
        ]
        rows.append({"batch": batch, "seq": seq, "ms": round(total, 3), "kernels": kernels})
    return rows


def profile_table(row: dict[str, Any]) -> Table:
    """One shape's kernels, longest first; the machine's own time last."""
    view = Table(title=f"relaxpy at {row['batch']} × {row['seq']}: where {row['ms']:.2f} ms go")
    for name in ("kernel", "calls", "ms", "share"):
        view.add_column(name, justify="left" if name == "kernel" else "right")
    shown = row["kernels"][:16]
    rest = row["kernels"][16:]
    for kernel in shown:
        view.add_row(
            kernel["kernel"],
            str(kernel["calls"]),
            f"{kernel['ms']:.3f}",
            f"{kernel['ms'] / row['ms']:.0%}",
        )
    if rest:
        ms = sum(kernel["ms"] for kernel in rest)
        calls = sum(kernel["calls"] for kernel in rest)
        view.add_row(f"{len(rest)} others", str(calls), f"{ms:.3f}", f"{ms / row['ms']:.0%}")
    own = row["ms"] - sum(kernel["ms"] for kernel in row["kernels"])
    view.add_row("outside of kernels", "", f"{own:.3f}", f"{own / row['ms']:.0%}", style="dim")
    return view


if __name__ == "__main__":
    sys.exit(main())
