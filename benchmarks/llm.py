"""A Llama of the TinyLlama-1.1B shape with random weights: prompts and decoding steps, beside the machine's limits and
other libraries.

    python benchmarks/llm.py                         everything; long
    python benchmarks/llm.py --quick                 4 layers, few cells, one call each: minutes
    python benchmarks/llm.py --starts                from a checkpoint to the first token: a minute
    python benchmarks/llm.py --schemes "int4 (W4A8)" --peers "llama.cpp q4_0" --cells prefill-128,decode-1x64

With `--docs` the figures are kept in benchmarks/results and shown in docs/benchmarks.md; a run of some cells, schemes
or peers replaces these among the ones that are kept.

Each library lives in a process of its own, with the model in memory; for each cell they take turns (`turns.py`). After
a turn the limits are measured: a loop that reads 256 MB, and a loop of the scheme's multiply-adds on registers. The
least time of a cell is the longer of two: reading its weights and its cache at the one, its products at the other.
`of the limit` is that over the time; both are medians over the turns.

relaxpy builds one executable for all cells of a scheme. Head and layers have equal precision in all libraries; the
embedding is read by rows. A library that is not installed is reported as absent, and nothing else changes
(`pip install 'relaxpy[llm-bench]'`).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import llm_peers, llm_starts
from benchmarks.llm_peers import MEMORY, SCHEMES, Cell, Kernels, Scheme, Shape, work
from benchmarks.report import markdown_table, print_tables, remarks, replace_section, save, saved
from benchmarks.turns import Peer

SECTION = "A Llama of 1.1B parameters"
READ_BYTES = 256 << 20
PEAK_SECONDS = 0.3
"""Of multiply-adds, for the median rate of a loop."""
PEERS = {
    "llama.cpp q4_0": (llm_peers.llama_cpp, "q4_0"),
    "llama.cpp q8_0": (llm_peers.llama_cpp, "q8_0"),
    "OpenVINO int4": (llm_peers.openvino, "f32"),
    "OpenVINO int4, bf16": (llm_peers.openvino, "bf16"),
    "torch bf16": (llm_peers.transformers, "bfloat16"),
    "torch fp32": (llm_peers.transformers, "float32"),
}
CELLS = (
    "prefill-32,prefill-128,prefill-512,prefill-4096,"
    "decode-1x64,decode-4x64,decode-16x64,decode-1x1024,decode-4x1024,decode-16x1024,"
    "decode-1x8192,decode-4x8192,decode-16x8192"
)
QUICK_CELLS = "prefill-32,prefill-128,decode-1x64,decode-4x64,decode-16x64,decode-1x1024"
DEFAULT_SCHEMES = ("int4 (W4A8)", "int4 (W4A32)", "int8 (W8A32)", "bf16")
QUICK_SCHEMES = ("int4 (W4A8)", "int4 (W4A32)")
DEFAULT_PEERS = ("llama.cpp q4_0", "llama.cpp q8_0", "OpenVINO int4", "torch bf16")
TURNS, QUICK_TURNS = 3, 1
GOALS = {
    ("int4 (W4A8)", "decode 1 × 64"): 0.82,
    ("int4 (W4A8)", "prefill 128"): 0.60,
    ("int4 (W4A8)", "prefill 512"): 0.60,
    ("bf16", "prefill 128"): 0.75,
    ("bf16", "decode 1 × 64"): 0.85,
}
"""Shares of the limit."""
BATCH_GOALS = {"decode 4 × 64": 3.0, "decode 16 × 64": 4.5}
"""Tokens a second over those of one sequence."""
MOST_PROFILED = 1024
"""Tokens of a prompt whose kernels are shown for every scheme; of longer ones, for `MAIN`."""
LONGEST_SECONDS = 150.0
"""Of a prompt, by the rate of the last one. Longer ones are not computed, unless the user says so."""
MAIN = "int4 (W4A8)"
"""The scheme that is to be ahead of every peer."""


@dataclass
class Turn:
    """One turn of a library at a cell."""

    seconds: float
    """Median of its calls."""
    read_probe: float = 0.0
    """Bytes a second of the loop that reads, right after it."""
    peak: float = 0.0
    """Operations a second of the scheme's arithmetic, right after it."""
    limit: float = 0.0
    """The least time by the two."""
    bound: str = ""
    """The resource that sets it: memory or compute."""


@dataclass
class Result:
    """A cell of a library."""

    library: str
    cell: str
    tokens: int
    """Tokens that a call computes."""
    turns: list[Turn]

    def median(self, field: str) -> float:
        """Over the turns."""
        return median(getattr(turn, field) for turn in self.turns)

    @property
    def seconds(self) -> float:
        return self.median("seconds")

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds

    @property
    def limit(self) -> float:
        return self.median("limit")

    @property
    def share(self) -> float:
        """Of the limit that is reached."""
        return median(turn.limit / turn.seconds for turn in self.turns)

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "seconds": self.seconds, "rate": self.rate, "share": self.share}


def read_cell(text: str) -> Cell:
    """The cell of `prefill-128` or `decode-4x64`."""
    kind, _, size = text.partition("-")
    if kind == "prefill" and size.isdigit():
        return Cell(tokens=int(size))
    batch, _, context = size.partition("x")
    if kind == "decode" and batch.isdigit() and context.isdigit():
        return Cell(batch=int(batch), context=int(context))
    raise SystemExit(f"a cell is prefill-TOKENS or decode-BATCHxCONTEXT, got {text!r}")


def limits_now(turn: Turn, shape: Shape, scheme: Scheme, cell: Cell, threads: int) -> None:
    """Measure what limits a cell, at this moment."""
    from benchmarks.limits import Limits

    limits = Limits(threads)
    nbytes, operations = work(shape, scheme, cell)
    turn.read_probe = limits.bandwidth(READ_BYTES)
    turn.peak = limits.sustained(scheme.arithmetic, PEAK_SECONDS)
    memory, compute = nbytes / turn.read_probe, operations / turn.peak
    turn.limit, turn.bound = max((memory, "memory"), (compute, "compute"))


def start(name: str, shape: Shape, options: argparse.Namespace) -> Peer | str:
    """The process of a library, or the reason why it is absent."""
    if name in SCHEMES:
        args: Sequence[Any] = (shape, SCHEMES[name], options.threads, options.cache)
        return Peer.start(name, llm_peers.relaxpy, *args)
    make, kind = PEERS[name]
    return Peer.start(name, make, shape, kind, options.threads)


def measure(options: argparse.Namespace, shape: Shape, cells: list[Cell]) -> dict[str, Any]:
    """All cells of all libraries, which are in memory together and take turns."""
    names = [*options.schemes, *options.peers]
    absent: dict[str, str] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(names) * (len(cells) * options.turns + 1))
        peers: dict[str, Peer] = {}
        for name in names:
            progress.update(bar, description=f"{name}: load")
            peer = start(name, shape, options)
            progress.advance(bar)
            if isinstance(peer, str):
                absent[name] = peer.splitlines()[0][:200]
            else:
                peers[name] = peer
        results: list[Result] = []
        kernels: list[list[Any]] = []
        rates: dict[str, float] = {}
        """Tokens of a prompt a second."""
        for cell in cells:
            own = {name: Result(name, cell.name, cell.computed, []) for name in peers}
            for turn in range(options.turns):
                order = list(peers)[turn % len(peers) :] + list(peers)[: turn % len(peers)]
                for name in order:
                    progress.update(bar, description=f"{name}: {cell.name}")
                    progress.advance(bar)
                    if f"{name}, {cell.name}" in absent:
                        continue
                    expected = cell.tokens / rates.get(name, float("inf"))
                    if expected > options.longest:
                        why = f"would take {expected:.0f} s (--longest {options.longest:.0f})"
                        absent[f"{name}, {cell.name}"] = why
                        continue
                    try:
                        times = peers[name].times(cell, options.calls, options.seconds)
                    except RuntimeError as error:
                        absent[f"{name}, {cell.name}"] = str(error)[:200]
                        continue
                    own[name].turns.append(one := Turn(median(times)))
                    if cell.tokens:
                        rates[name] = cell.tokens / one.seconds
                    if name in SCHEMES:
                        limits_now(one, shape, SCHEMES[name], cell, options.threads)
            for name, peer in peers.items():
                with suppress(RuntimeError):  # it has ended
                    peer.forget()
                profiled = name in SCHEMES and (cell.tokens <= MOST_PROFILED or name == MAIN)
                if profiled and own[name].turns:
                    found = peer.result(Kernels(cell))
                    kernels += [[name, cell.name, *kernel] for kernel in found]
            results += [each for each in own.values() if each.turns]
        memory: dict[str, int] = {}
        for name, peer in peers.items():
            with suppress(RuntimeError):  # it has ended
                memory[name] = peer.result(MEMORY)
            peer.stop()
    return {
        "shape": asdict(shape),
        "threads": options.threads,
        "cells": [cell.name for cell in cells],
        "results": [each.record() for each in results],
        "load_seconds": {name: peer.load_seconds for name, peer in peers.items()},
        "peak_bytes": memory,
        "absent": absent,
        "kernels": kernels,
        "executables": {name: 1 for name in peers if name in SCHEMES},
    }


def results_of(report: dict[str, Any]) -> list[Result]:
    """The results of a report."""
    return [
        Result(each["library"], each["cell"], each["tokens"], [Turn(**t) for t in each["turns"]])
        for each in report["results"]
    ]


def verdicts(report: dict[str, Any]) -> list[list[str]]:
    """Each goal, what was reached, and for a lost one the kernel that takes longest."""
    by = {(each.library, each.cell): each for each in results_of(report)}
    slowest: dict[tuple[str, str], str] = {}
    for scheme, cell, name, _, ms, share, nbytes, operations in report["kernels"]:
        if not name.startswith("("):
            slowest.setdefault(
                (scheme, cell),
                f"{name}: {ms:.1f} ms, {share:.0%}; {nbytes:.1f} GB/s, {operations:.0f} GOP/s",
            )
    rows: list[list[str]] = []

    def add(goal: str, key: tuple[str, str], reached: str, won: bool) -> None:
        why = "" if won else slowest.get(key, "")
        rows.append([key[0], key[1], goal, reached, "reached" if won else "lost", why])

    for key, goal in GOALS.items():
        if key in by:
            share = by[key].share
            add(f"{goal:.0%} of the limit", key, f"{share:.0%}", share >= goal)
    one = by.get((MAIN, "decode 1 × 64"))
    for cell, goal in BATCH_GOALS.items():
        if one is not None and (MAIN, cell) in by:
            ratio = by[MAIN, cell].rate / one.rate
            add(f"{goal:.1f} times one sequence", (MAIN, cell), f"{ratio:.2f}", ratio >= goal)
    for cell in report["cells"]:
        beside = {n: r.rate for (n, c), r in by.items() if c == cell and n not in SCHEMES}
        if beside and (MAIN, cell) in by:
            best = max(beside, key=lambda name: beside[name])
            ratio = by[MAIN, cell].rate / beside[best]
            add("ahead of every peer", (MAIN, cell), f"{ratio:.2f} times {best}", ratio > 1)
    return rows


def tables(report: dict[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
    """Rates by cell and library, the limits of relaxpy's, and its kernels that take longest."""
    results = results_of(report)
    libraries = list(dict.fromkeys(each.library for each in results))
    by = {(each.library, each.cell): each for each in results}
    rates = [
        [cell, *(f"{by[name, cell].rate:.1f}" if (name, cell) in by else "—" for name in libraries)]
        for cell in report["cells"]
    ]
    shown = {name: f"{count / 2**20:.0f}" for name, count in report["peak_bytes"].items()}
    loads = {name: f"{seconds:.1f}" for name, seconds in report["load_seconds"].items()}
    rates.append(["MiB of memory, at most", *(shown.get(name, "—") for name in libraries)])
    rates.append(["s to load", *(loads.get(name, "—") for name in libraries)])
    built = {name: str(count) for name, count in report["executables"].items()}
    rates.append(["executables for all cells", *(built.get(name, "—") for name in libraries)])
    limits = []
    for each in results:
        if not each.limit:
            continue
        goal = GOALS.get((each.library, each.cell))
        limits.append([
            each.library, each.cell, f"{each.seconds * 1e3:.1f}", f"{each.limit * 1e3:.1f}",
            each.turns[0].bound,
            f"{each.median('read_probe') / 1e9:.1f}", f"{each.median('peak') / 1e9:.0f}",
            f"{each.share:.0%}",
            "" if goal is None else f"{goal:.0%}",
        ])  # fmt: skip
    kernels = [
        [
            scheme,
            cell,
            name,
            str(calls),
            f"{ms:.1f}",
            f"{share:.0%}",
            f"{nbytes:.1f}",
            f"{operations:.0f}",
        ]
        for scheme, cell, name, calls, ms, share, nbytes, operations in report.get("kernels", ())
    ]
    return [
        (["tokens a second", *libraries], rates),
        (
            ["scheme", "cell", "ms", "limit, ms", "bound by", "probe, GB/s", "peak, GOP/s",
             "of the limit", "goal"],
            limits,
        ),
        (["library", "cell", "goal", "reached", "", "kernel that takes longest"], verdicts(report)),
        (["scheme", "cell", "kernel", "calls", "ms", "of the time", "GB/s", "GOP/s"], kernels),
    ]  # fmt: skip


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="4 layers, few cells and calls")
    parser.add_argument("--starts", action="store_true", help="measure starts alone")
    parser.add_argument("--layers", type=int, help="default 22, with --quick 4")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--schemes", help=f"of relaxpy, with commas: {', '.join(SCHEMES)}")
    parser.add_argument("--peers", help=f"with commas: {', '.join(PEERS)}")
    parser.add_argument("--cells", help=f"with commas; default {CELLS}")
    parser.add_argument("--turns", type=int, help=f"of each library at a cell; default {TURNS}")
    parser.add_argument("--calls", type=int, help="timed calls of a cell, at least")
    parser.add_argument("--seconds", type=float, help="and for at least so long")
    longest = f"of a prompt that is computed, in seconds; default {LONGEST_SECONDS:.0f}"
    parser.add_argument("--longest", type=float, default=LONGEST_SECONDS, help=longest)
    parser.add_argument("--cache", default="", help="dtype of the paged cache, if not the model's")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--docs", action="store_true", help="write docs/benchmarks.md")
    options = parser.parse_args()
    quick = options.quick
    partial = bool(options.cells or options.schemes or options.peers or quick)
    options.schemes = _names(options.schemes, QUICK_SCHEMES if quick else DEFAULT_SCHEMES, SCHEMES)
    options.peers = _names(options.peers, DEFAULT_PEERS, PEERS)
    options.calls = options.calls or 1
    options.turns = options.turns or (QUICK_TURNS if quick else TURNS)
    options.seconds = (0.3 if quick else 1.0) if options.seconds is None else options.seconds
    os.environ["RELAXPY_NUM_THREADS"] = str(options.threads)
    cells = [
        read_cell(text) for text in (options.cells or (QUICK_CELLS if quick else CELLS)).split(",")
    ]
    shape = Shape(layers=options.layers or (4 if quick else Shape.layers))
    if options.starts:
        _measure_starts(shape, options)
        return
    begun = time.perf_counter()
    report = measure(options, shape, cells)
    found = tables(report)
    console = Console()
    print_tables(found)
    for name, reason in report["absent"].items():
        console.print(f"absent: {name}: {reason}", markup=False)
    console.print(f"{time.perf_counter() - begun:.0f} s")
    if options.json:
        import json

        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.docs:
        report = with_kept(report, saved("llm"))
        save("llm", report)
        found = tables(report)
        parts = [markdown_table(columns, rows, " rrrrrrrr") for columns, rows in found if rows]
        absent = "".join(f"\n- absent: {name}: {why}" for name, why in report["absent"].items())
        intro = (
            f"`python benchmarks/llm.py`: {shape.layers} layers of the TinyLlama-1.1B shape, random weights, "
            f"{options.threads} threads. One executable a scheme."
        )
        replace_section(SECTION, "\n\n".join([intro, remarks("llm"), *parts]) + f"\n{absent}\n")
    if not partial:
        _measure_starts(shape, options)


def with_kept(report: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """A report with what an earlier one of the same model has beyond it."""
    if any(kept.get(name) != report[name] for name in ("shape", "threads")):
        return report
    new = {(each["library"], each["cell"]) for each in report["results"]}
    profiled = {(scheme, cell) for scheme, cell, *_ in report["kernels"]}
    wanted = [cell.name for cell in map(read_cell, CELLS.split(","))]
    cells = {*kept["cells"], *report["cells"]}
    order = [*DEFAULT_SCHEMES, *DEFAULT_PEERS]

    def place(name: str) -> int:
        return order.index(name) if name in order else len(order)

    results = [
        *(each for each in kept["results"] if (each["library"], each["cell"]) not in new),
        *report["results"],
    ]
    absent = {
        name: why
        for name, why in {**kept["absent"], **report["absent"]}.items()
        if tuple(name.split(", ")) not in new
    }
    return {
        **report,
        "cells": sorted(cells, key=lambda c: wanted.index(c) if c in wanted else len(wanted)),
        "results": sorted(results, key=lambda each: place(each["library"])),
        "kernels": [
            *(each for each in kept["kernels"] if (each[0], each[1]) not in profiled),
            *report["kernels"],
        ],
        "absent": absent,
        "load_seconds": {**kept["load_seconds"], **report["load_seconds"]},
        "peak_bytes": {
            name: max(kept["peak_bytes"].get(name, 0), report["peak_bytes"].get(name, 0))
            for name in {**kept["peak_bytes"], **report["peak_bytes"]}
        },
        "executables": {**kept["executables"], **report["executables"]},
    }


def _measure_starts(shape: Shape, options: argparse.Namespace) -> None:
    """Starts (`llm_starts.py`), printed and written where the options say."""
    report = llm_starts.measure(shape, options.threads)
    table = Table(*llm_starts.COLUMNS)
    for row in llm_starts.rows(report):
        table.add_row(*row)
    Console().print(table)
    if options.docs:
        save("llm_starts", report)
        found = markdown_table(llm_starts.COLUMNS, llm_starts.rows(report), " rrrrrrrr")
        replace_section("Starts of a Llama", f"{llm_starts.introduction(report)}\n\n{found}\n")


def _names(text: str | None, default: Sequence[str], known: Any) -> list[str]:
    names = list(default) if text is None else [name.strip() for name in text.split(",") if name]
    for name in names:
        if name not in known:
            raise SystemExit(f"unknown {name!r}: one of {', '.join(known)}")
    return names


if __name__ == "__main__":
    main()
