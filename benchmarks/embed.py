"""all-MiniLM-L6-v2 in relaxpy, ONNX Runtime, OpenVINO and torch: the same weights, threads and token ids, in one run.

    python benchmarks/embed.py                        every peer, every shape
    python benchmarks/embed.py --only 1x16,8x64       these shapes
    python benchmarks/embed.py --kernels              relaxpy alone: where its time goes

Each peer lives in a process of its own, and they take turns (`turns.py`); what is reported is the median over all timed
calls. All compute fp32; OpenVINO, whose default on a CPU with bf16 instructions is bf16, is told so (`openvino-bf16` is
that default, listed for information and never the "best peer"). Every peer's embeddings are compared with torch's.

Then relaxpy runs again with a clock around each kernel: its share of the time, its rate, and how near that is to what
the machine can do (`limits.py`). Results go to benchmarks/results/embed.json and into the tables of docs/benchmarks.md,
those of shapes that were left out staying as they were.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.report import markdown_table, replace_section, save, saved
from benchmarks.turns import Peer, Service, rotated_times
from relaxpy.models.checkpoint import read_config
from relaxpy.models.sentence_embedding import default_checkpoint

Run = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(input_ids, attention_mask), both (batch, seq) int64 → embeddings (batch, hidden) float32."""

Config = dict[str, Any]
"""The fields of `config.json`."""

SECTION = "Embeddings: median ms, and the ratio to the best fp32 peer"
KERNEL_SECTION = "Embeddings: kernel by kernel"
"""Headings in docs/benchmarks.md."""
INTRO = (
    "`make bench-embed`. One executable for all shapes. OpenVINO computes in bf16 on this CPU unless told not to: its "
    "own default is the column `openvino-bf16`, and no fp32 peer. Where relaxpy needs more than 0.75 of the best "
    "peer's time, the last column names the kernel that loses most to its limit, and the ratio that there would be if "
    "every kernel were at its own."
)
KERNEL_INTRO = (
    "Rates of kernels that products bound are GFLOP/s, of the others GB/s; limits are measured beside them: "
    "multiply-adds in registers, and a plain loop that moves as many bytes (`benchmarks/limits.py`). Elementary "
    "functions count as nothing in them."
)
GOAL = 0.75
LONGEST = 12
OUTSIDE = "outside of kernels"
TOLERANCE = 2e-5
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
    from relaxpy.models.sentence_embedding import SentenceEmbedder

    return SentenceEmbedder.from_checkpoint(source.checkpoint).embed_tokens


PEERS: dict[str, Callable[[Source, int], Run]] = {
    "relaxpy": run_relaxpy,
    "onnxruntime": run_onnxruntime,
    "openvino": run_openvino,
    "torch": run_torch,
    "openvino-bf16": run_openvino_bf16,
}


def served(name: str, source: Source, threads: int) -> Service:
    """A peer; requests are (ids, mask)."""
    run = PEERS[name](source, threads)
    return Service(lambda request: partial(run, *request))


@dataclass
class Shape:
    """The peers at one batch and length."""

    batch: int
    seq: int
    ms: dict[str, float]
    """Median of each peer."""
    gflops: float
    """Of relaxpy: products of matrices only, all of the time."""
    differences: dict[str, float]
    """Largest difference to torch's embeddings."""

    @property
    def best(self) -> str:
        """The fastest peer that computes what we do, in fp32."""
        return min(
            (n for n in self.ms if n not in ("relaxpy", "openvino-bf16")), key=self.ms.__getitem__
        )


@dataclass
class Kernel:
    """A kernel at one shape, all of its calls in a call of the model together."""

    batch: int
    seq: int
    name: str
    calls: int
    ms: float
    of_call: float
    """Its share of the call's time."""
    bound: str
    """ "compute" or "memory"."""
    rate: float
    """GFLOP/s where computing is the limit, GB/s where memory is."""
    of_limit: float
    """The least possible time over its time."""


def flops(config: Config, batch: int, seq: int) -> float:
    """Floating-point operations of the matrix products of one call."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    token = 2 * (4 * hidden * hidden + 2 * hidden * inner) + 2 * 2 * seq * hidden
    return float(batch * seq * token * config["num_hidden_layers"])


def tokens(config: Config, batch: int, seq: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask: the same in every run."""
    rng = np.random.default_rng(batch * 1000 + seq)
    ids = rng.integers(0, config["vocab_size"], (batch, seq), dtype=np.int64)
    return ids, np.ones_like(ids)


def compare(peers: Mapping[str, Peer], config: Config, batch: int, seq: int, rounds: int) -> Shape:
    """All peers at one shape. AssertionError where relaxpy's embeddings are not torch's."""
    request, work = tokens(config, batch, seq), flops(config, batch, seq)
    results = {name: peer.result(request) for name, peer in peers.items()}
    differences = {
        name: float(np.abs(result - results["torch"]).max()) for name, result in results.items()
    }
    assert differences["relaxpy"] < TOLERANCE, (
        f"{batch} x {seq}: differs by {differences['relaxpy']}"
    )
    calls = max(1, min(20, int(4e9 / work)))
    times = rotated_times(peers, request, rounds, calls)
    ms = {name: median(each) * 1e3 for name, each in times.items()}
    return Shape(batch, seq, ms, work / ms["relaxpy"] / 1e6, differences)


def kernels_served(checkpoint: Path, threads: int) -> Service:
    """Relaxpy with clocks around its kernels; requests are (batch, seq), results `Kernel`s: the longest first, and what
    is outside of kernels."""
    os.environ["RELAXPY_NUM_THREADS"] = str(threads)
    import relaxpy
    from benchmarks.kernel_times import Costs, recording
    from benchmarks.limits import Limits
    from relaxpy.models import bert
    from relaxpy.models.checkpoint import read_weights

    config = read_config(checkpoint, "bert")
    model = bert.BertEncoder(bert.BertConfig.from_checkpoint(checkpoint))
    bert.load_weights(model, read_weights(checkpoint))
    mod, params = model.export({"embed": bert.SPEC["embed"]})
    costs, limits = Costs(), Limits(threads)
    executable = relaxpy.build(mod, params=params, instruments=[costs])
    with recording() as times:
        run = relaxpy.VirtualMachine(executable)["embed"]

    def kernels(batch: int, seq: int) -> list[Kernel]:
        request, work = tokens(config, batch, seq), flops(config, batch, seq)
        with times.observed():
            run(*request)
        calls = max(2, min(40, int(1e10 / work)))
        times.reset()
        start = time.perf_counter()
        for _ in range(calls):
            run(*request)
        total = (time.perf_counter() - start) / calls
        rows: list[Kernel] = []
        for kernel in times.by_time():
            seconds, count = kernel.seconds / calls, kernel.calls // calls
            done, read, written = costs.of(kernel)
            # The limit is of one call: kernels of a name are called with the same sizes.
            least, bound = limits.seconds(done / count, "float32", read / count, written / count)
            rate = (done if bound == "compute" else read + written) / seconds / 1e9
            share, near = seconds / total, least * count / seconds
            rows.append(
                Kernel(batch, seq, kernel.name, count, seconds * 1e3, share, bound, rate, near)
            )
        outside = total - sum(row.ms for row in rows) / 1e3
        rows.append(Kernel(batch, seq, OUTSIDE, 0, outside * 1e3, outside / total, "", 0.0, 0.0))
        return rows

    return Service(lambda request: partial(kernels, *request))


def kernels_of(checkpoint: Path, shapes: Sequence[tuple[int, int]], threads: int) -> list[Kernel]:
    """The kernels at each shape."""
    peer = Peer.start("relaxpy", kernels_served, checkpoint, threads)
    if isinstance(peer, str):
        raise SystemExit(f"relaxpy cannot run here: {peer}")
    found = [kernel for shape in shapes for kernel in peer.result(shape)]
    peer.stop()
    return found


def verdict(shape: Shape, kernels: Sequence[Kernel]) -> str:
    """Whether relaxpy needs at most `GOAL` of the best peer's time, or which kernel stands between: the one that loses
    most to its limit."""
    ratio = shape.ms["relaxpy"] / shape.ms[shape.best]
    if ratio <= GOAL:
        return "reached"
    own = [k for k in kernels if (k.batch, k.seq) == (shape.batch, shape.seq) and k.calls]
    if not own:
        return ""
    worst = max(own, key=lambda k: k.of_call * (1 - min(k.of_limit, 1)))
    ideal = 1 - sum(k.of_call * (1 - min(k.of_limit, 1)) for k in own)
    return (
        f"`{worst.name}`: {worst.of_call:.0%} of the time, {worst.of_limit:.0%} of its limit "
        f"(all at theirs: {ratio * ideal:.2f})"
    )


def publish(threads: int, shapes: Sequence[Shape], kernels: Sequence[Kernel]) -> None:
    """Put what was measured into the results and the documentation, in the place of the same shapes'."""
    before = saved("embed")
    new, seen = {(s.batch, s.seq) for s in shapes}, {(k.batch, k.seq) for k in kernels}
    known = before.get("shapes", ()), before.get("kernels", ())
    old = [s for s in (Shape(**each) for each in known[0]) if (s.batch, s.seq) not in new]
    rest = [k for k in (Kernel(**each) for each in known[1]) if (k.batch, k.seq) not in seen]
    all_shapes = sorted([*old, *shapes], key=lambda s: (s.batch * s.seq, s.batch))
    all_kernels = sorted([*rest, *kernels], key=lambda k: (k.batch * k.seq, k.batch, -k.ms))
    save(
        "embed",
        {
            "model": "all-MiniLM-L6-v2",
            "threads": threads,
            "shapes": [asdict(shape) for shape in all_shapes],
            "kernels": [asdict(kernel) for kernel in all_kernels],
        },
    )
    columns, lines = comparison(all_shapes, all_kernels)
    replace_section(SECTION, f"{INTRO}\n\n{markdown_table(columns, lines, 'r' * 7)}")
    parts = [KERNEL_INTRO]
    for place in dict.fromkeys((k.batch, k.seq) for k in all_kernels):
        own = [k for k in all_kernels if (k.batch, k.seq) == place]
        columns, lines = kernel_cells(own)
        parts.append(f"{place[0]} × {place[1]}:\n\n" + markdown_table(columns, lines, "lrrrrr"))
    replace_section(KERNEL_SECTION, "\n\n".join(parts))


def comparison(
    shapes: Sequence[Shape], kernels: Sequence[Kernel]
) -> tuple[list[str], list[list[str]]]:
    """A row a shape: median milliseconds and the ratio to the best fp32 peer, by peer."""
    names = list(dict.fromkeys(name for shape in shapes for name in shape.ms))
    columns = ["batch × tokens", *names, "GFLOP/s", f"{GOAL} of the best peer"]
    lines: list[list[str]] = []
    for shape in shapes:
        best = shape.ms[shape.best]
        cells = [f"{ms:.2f} ({ms / best:.2f})" for ms in map(shape.ms.get, names) if ms is not None]
        lines.append(
            [f"{shape.batch} × {shape.seq}", *cells, f"{shape.gflops:.0f}", verdict(shape, kernels)]
        )
    return columns, lines


def kernel_cells(kernels: Sequence[Kernel]) -> tuple[list[str], list[list[str]]]:
    """One shape's: the longest, the others together, and what is outside of kernels."""
    columns = ["kernel", "calls", "ms", "of the time", "rate", "of its limit"]
    ran = [k for k in kernels if k.calls]
    lines = [
        [
            f"`{k.name}`",
            str(k.calls),
            f"{k.ms:.3f}",
            f"{k.of_call:.0%}",
            f"{k.rate:.0f} {'GFLOP/s' if k.bound == 'compute' else 'GB/s'}",
            f"{k.of_limit:.0%}",
        ]
        for k in ran[:LONGEST]
    ]
    groups = (
        (f"{len(ran) - LONGEST} others", ran[LONGEST:]),
        (OUTSIDE, [k for k in kernels if not k.calls]),
    )
    for name, group in groups:
        if group:
            ms, share = sum(k.ms for k in group), sum(k.of_call for k in group)
            calls = sum(k.calls for k in group)
            lines.append([name, str(calls) if calls else "", f"{ms:.3f}", f"{share:.0%}", "", ""])
    return columns, lines


def view(title: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    """For the terminal."""
    table = Table(title=title)
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left")
    for line in lines:
        table.add_row(*line)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(f"{b}x{s}" for b, s in SHAPES), help="shapes")
    parser.add_argument("--kernels", action="store_true", help="relaxpy alone, kernel by kernel")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each peer at each shape")
    parser.add_argument("--quick", action="store_true", help="one turn; nothing is written")
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 150)
    checkpoint = default_checkpoint()
    config = read_config(checkpoint, "bert")
    places = [(int(b), int(s)) for b, s in (shape.split("x") for shape in args.only.split(","))]
    rounds = 1 if args.quick else args.rounds
    shapes: list[Shape] = []
    if not args.kernels:
        with tempfile.TemporaryDirectory() as scratch:
            source = Source(checkpoint, Path(scratch) / "model.onnx")
            with console.status("exporting ONNX"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                export_onnx(source)
            peers = started(console, source, args.threads)
            for place in places:
                with console.status(f"{place[0]} × {place[1]}"):
                    shapes.append(compare(peers, config, *place, rounds))
        for peer in peers.values():
            peer.stop()
    with console.status("kernel by kernel"):
        kernels = kernels_of(checkpoint, places, args.threads)
    if shapes:
        console.print(view("median ms (of the best fp32 peer)", *comparison(shapes, kernels)))
    for place in places:
        own = [k for k in kernels if (k.batch, k.seq) == place]
        console.print(view(f"relaxpy at {place[0]} × {place[1]}", *kernel_cells(own)))
    if not args.quick:
        publish(args.threads, shapes, kernels)
    return 0


def started(console: Console, source: Source, threads: int) -> dict[str, Peer]:
    """The peers that can run here; those that we compare with torch and ourselves must."""
    found: dict[str, Peer] = {}
    for name in PEERS:
        with console.status(f"loading {name}"):
            peer = Peer.start(name, served, name, source, threads)
        if isinstance(peer, Peer):
            found[name] = peer
        elif name in ("relaxpy", "torch"):
            raise SystemExit(f"{name} cannot run here: {peer}")
        else:
            console.print(f"[yellow]{name} is left out:[/] {peer}", highlight=False)
    return found


if __name__ == "__main__":
    sys.exit(main())
