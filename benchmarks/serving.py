"""Many clients at once: continuous batching of a Llama of the TinyLlama-1.1B shape, random weights, int4, beside
OpenVINO GenAI's ContinuousBatchingPipeline and llama.cpp.

    python benchmarks/serving.py                              everything: half an hour
    python benchmarks/serving.py --quick                      2 layers, two turns: minutes
    python benchmarks/serving.py --clients 16 --peers "relaxpy,OpenVINO GenAI" --docs
    python benchmarks/serving.py --clients 16 --turns 2 --more --docs
    python benchmarks/serving.py --streams --docs

Each client asks for one text of 64 tokens after a prompt of 128, all at the same time. Libraries live in processes of
their own, and take turns (`turns.py`), so that a change of the machine meets all of them. `--prefix` measures prompts
whose beginning is in the cache. `--streams` measures a step of the engine alone, and behind `relaxpy serve` with as
many streaming clients. With `--docs` the figures are kept in benchmarks/results and shown in docs/benchmarks.md; a run
of some cells or peers replaces these among the ones that are kept; with `--more` it adds its turns to them. A library
that is not installed is reported as absent (`pip install 'relaxpy[llm-bench]'`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from benchmarks import serving_peers
from benchmarks.llm_peers import Shape
from benchmarks.report import markdown_table, print_tables, remarks, replace_section, save, saved
from benchmarks.serving_peers import Clients
from benchmarks.turns import Peer

SECTION = "Many clients of a Llama of 1.1B parameters"
OURS = "relaxpy"
PEERS = {
    OURS: (serving_peers.relaxpy, "int4 (W4A8), pages of 32 tokens in float32, chunks for a step of 1 s"),
    "OpenVINO GenAI": (
        serving_peers.openvino,
        "int4 in groups of 32, INFERENCE_PRECISION_HINT=f32, max_num_batched_tokens=512, dynamic_split_fuse, "
        "enable_prefix_caching",
    ),
    "llama.cpp": (serving_peers.llama_cpp, "q4_0, n_ubatch=512, unified cache in float16"),
}  # fmt: skip
COUNTS = "1,4,16"
MOST = 16
CACHE = 8192
"""Tokens whose keys and values all libraries have room for."""
GOAL, STREAMS_GOAL = 1.1, 1.1
SHARED = 448
FIELDS = ("rate", "first", "between", "seconds", "step", "host", "cached")


def read_counts(text: str) -> list[int]:
    """The numbers of clients of `1,4,16`. Raises: SystemExit."""
    found = [int(part) if part.strip().isdigit() else 0 for part in text.split(",") if part]
    if any(not 1 <= count <= MOST for count in found):
        raise SystemExit(f"--clients takes numbers from 1 to {MOST} with commas, got {text!r}")
    return found


def measure(options: argparse.Namespace, shape: Shape) -> dict[str, Any]:
    """All cells of all peers, in turns."""
    console = Console(stderr=True)
    absent: dict[str, str] = {}
    peers: dict[str, Peer] = {}
    for name in options.peers:
        make, _ = PEERS[name]
        peer = Peer.start(name, make, shape, options.threads, MOST, CACHE)
        if isinstance(peer, str):
            absent[name] = peer.splitlines()[0][:200]
        else:
            peers[name] = peer
            console.print(f"{name}: loaded in {peer.load_seconds:.0f} s")
    cells = [Clients(count) for count in options.clients]
    if options.prefix:
        cells += [Clients(4, 512, 16), Clients(4, 512, 16, SHARED)]
    results: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in cells:
        for turn in range(options.turns + 1):
            seed = options.seed + turn
            # A short turn warms up: caches of beginnings, and what a library sets up for this many clients.
            written = cell.written if turn else 4
            own = Clients(cell.count, cell.prompt, written, cell.shared, seed)
            names = (
                list(peers)[turn % max(len(peers), 1) :] + list(peers)[: turn % max(len(peers), 1)]
            )
            for name in names:
                try:
                    found = peers[name].result(own)
                except RuntimeError as error:
                    absent[f"{name}, {cell.name}"] = str(error)[:200]
                    continue
                if turn:
                    results.setdefault((name, cell.name), []).append(found)
                    console.print(f"{name}: {cell.name}: {found['rate']:.1f} tokens/s")
    for peer in peers.values():
        peer.stop()
    report: dict[str, Any] = {
        "shape": asdict(shape),
        "threads": options.threads,
        "results": [
            {"library": name, "cell": cell, "turns": turns}
            for (name, cell), turns in results.items()
        ],
        "absent": absent,
        "streams": streams(options, shape) if options.streams else {},
    }
    return report


def streams(options: argparse.Namespace, shape: Shape) -> dict[str, Any]:
    """Milliseconds of a step of the engine alone, and of the same engine behind a server with 16 streaming clients, in
    turns."""
    from tests.server.running import server_process

    place, load = serving_peers.checkpoint(shape), Clients(MOST, seed=1)
    alone: list[float] = []
    served: list[float] = []
    peer = Peer.start(OURS, serving_peers.relaxpy, shape, options.threads, MOST, CACHE)
    if isinstance(peer, str):
        raise SystemExit(peer)
    flags = [f"m={place}", "--threads", str(options.threads), "--log", "none", "--no-drafts"]
    flags += ["--cache-tokens", str(CACHE), "--context", "2048", "--target-ms", "1000"]
    with (
        tempfile.TemporaryDirectory() as folder,
        server_process(Path(folder), *flags, seconds=1200) as running,
    ):
        for turn in range(options.turns + 1):
            own = Clients(load.count, load.prompt, load.written, seed=turn + 100)
            first, second = (
                peer.result(own)["step"],
                asyncio.run(_streamed(running.url, own, shape)),
            )
            if turn:
                alone.append(first * 1e3)
                served.append(second * 1e3)
    peer.stop()
    return {"alone": alone, "served": served}


async def _streamed(url: str, load: Clients, shape: Shape) -> float:
    """Mean seconds of a step while a server streams to all clients."""
    import httpx

    async def numbers(http: Any) -> list[float]:
        text = (await http.get("/metrics")).text
        names = ("relaxpy_seconds_total", "relaxpy_steps_total")
        found = [re.search(rf"^{name}\{{.*\}} (\S+)$", text, re.MULTILINE) for name in names]
        return [float(each[1]) for each in found if each]

    async def ask(http: Any, prompt: Sequence[int]) -> None:
        body = {"prompt": prompt, "max_tokens": load.written, "temperature": 0, "stream": True}
        async with http.stream(
            "POST", "/v1/completions", json={**body, "ignore_eos": True}
        ) as lines:
            last = ""
            async for line in lines.aiter_lines():
                last = line or last
            if last != "data: [DONE]":
                raise SystemExit(f"a stream ended with {last!r}")

    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        seconds, steps = await numbers(http)
        await asyncio.gather(*(ask(http, each) for each in load.prompts(shape.vocab)))
        more, others = await numbers(http)
    return (more - seconds) / (others - steps)


def with_kept(report: dict[str, Any], kept: dict[str, Any], more: bool = False) -> dict[str, Any]:
    """A report with what an earlier one of the same model has beyond it; `more`: with its turns of the same cells."""
    if any(kept.get(name) != report[name] for name in ("shape", "threads")):
        return report
    if more:
        before = {(each["library"], each["cell"]): each["turns"] for each in kept["results"]}
        for each in report["results"]:
            each["turns"] = [*before.get((each["library"], each["cell"]), ()), *each["turns"]]
    new = {(each["library"], each["cell"]) for each in report["results"]}
    old = [each for each in kept["results"] if (each["library"], each["cell"]) not in new]
    have = {(each["library"], each["cell"]) for each in (*old, *report["results"])}
    names = {name for name, _ in have}
    absent = {**kept["absent"], **report["absent"]}
    return {
        **report,
        "results": [*old, *report["results"]],
        "streams": report["streams"] or kept["streams"],
        "absent": {
            name: why
            for name, why in absent.items()
            if name not in names and tuple(name.split(", ", 1)) not in have
        },
    }


def tables(report: dict[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
    """Rates and latencies by cell and library, the ratios to the peers, and what the host takes."""

    def order(each: dict[str, Any]) -> tuple[Any, ...]:
        numbers = [int(n) for n in re.findall(r"\d+", each["cell"])]
        return numbers[1] > Clients(1).prompt, numbers, list(PEERS).index(each["library"])

    results = sorted(report["results"], key=order)
    by = {
        (each["library"], each["cell"]): {
            name: median(turn[name] for turn in each["turns"])
            for name in FIELDS
            if all(name in turn for turn in each["turns"])
        }
        for each in results
    }
    cells = list(dict.fromkeys(each["cell"] for each in results))
    rates: list[list[str]] = []
    for each in results:
        found = by[each["library"], each["cell"]]
        turns = [turn["rate"] for turn in each["turns"]]
        rates.append([
            each["cell"], each["library"], f"{found['rate']:.1f}",
            f"{min(turns):.1f} to {max(turns):.1f}", f"{found['first'] * 1e3:.0f}",
            f"{found['between'] * 1e3:.1f}",
        ])  # fmt: skip
    verdicts: list[list[str]] = []
    for cell in cells:
        if (OURS, cell) not in by:
            continue
        for name in PEERS:
            if name != OURS and (name, cell) in by:
                ratio = by[OURS, cell]["rate"] / by[name, cell]["rate"]
                won = "reached" if ratio >= GOAL else "lost"
                verdicts.append([cell, f"{GOAL} times {name}", f"{ratio:.2f}", won])
    if report["streams"]:
        alone, served = (median(report["streams"][name]) for name in ("alone", "served"))
        won = "reached" if served / alone <= STREAMS_GOAL else "lost"
        text = f"{served / alone:.2f} ({served:.1f} ms, alone {alone:.1f} ms)"
        goal = f"a step at most {STREAMS_GOAL} times that of the engine alone"
        verdicts.append([f"{MOST} streaming clients", goal, text, won])
    host = [
        [cell, f"{found['step'] * 1e3:.1f}", f"{found['host']:.1%}", f"{found['cached']:.0f}"]
        for (name, cell), found in by.items()
        if name == OURS
    ]
    return [
        (["clients × (prompt + text)", "library", "tokens/s", "turns", "ms to the first token",
          "ms between tokens"], rates),
        (["clients × (prompt + text)", "goal", "reached", ""], verdicts),
        (["clients × (prompt + text)", "ms a step", "of it on the host", "tokens from the cache"], host),
    ]  # fmt: skip


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="2 layers, two turns")
    parser.add_argument("--layers", type=int, help="default 22, with --quick 2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clients", help=f"numbers of clients, with commas; default {COUNTS}")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)}")
    parser.add_argument("--turns", type=int, help="of each library at a cell; default 5")
    parser.add_argument("--more", action="store_true", help="add turns to those that are kept")
    parser.add_argument("--prefix", action="store_true", help="the effect of the prefix cache")
    parser.add_argument("--streams", action="store_true", help="a step behind a server")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--docs", action="store_true", help="write docs/benchmarks.md")
    options = parser.parse_args()
    if options.clients is None:
        whole = not (options.prefix or options.streams)
        options.clients = COUNTS if whole else ""
        options.prefix, options.streams = options.prefix or whole, options.streams or whole
    options.clients = read_counts(options.clients)
    options.peers = [name.strip() for name in options.peers.split(",")]
    if unknown := [name for name in options.peers if name not in PEERS]:
        raise SystemExit(f"unknown {unknown[0]!r}: one of {', '.join(PEERS)}")
    options.turns = options.turns or (2 if options.quick else 5)
    options.seed = time.time_ns() % (1 << 32)  # no cache has the prompts of an earlier run
    shape = Shape(layers=options.layers or (2 if options.quick else Shape.layers))
    os.environ["RELAXPY_NUM_THREADS"] = str(options.threads)
    begun = time.perf_counter()
    report = measure(options, shape)
    if options.docs:
        report = with_kept(report, saved("serving"), options.more)
    console = Console()
    print_tables(tables(report))
    for name, (_, flags) in PEERS.items():
        console.print(f"{name}: {flags}", markup=False)
    for name, reason in report["absent"].items():
        console.print(f"absent: {name}: {reason}", markup=False)
    console.print(f"{time.perf_counter() - begun:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.docs:
        save("serving", report)
        replace_section(SECTION, section(report))


def _turns(report: dict[str, Any]) -> str:
    counts = sorted({len(each["turns"]) for each in report["results"]})
    return " or ".join(map(str, counts))


def section(report: dict[str, Any]) -> str:
    """The section of docs/benchmarks.md."""
    intro = (
        f"`python benchmarks/serving.py`: {report['shape']['layers']} layers of the TinyLlama-1.1B shape, random "
        f"weights, {report['threads']} threads; medians of {_turns(report)} turns. All clients ask at the same time, "
        "for one text each; prompts of a turn are new, but for what is shared."
    )
    flags = "\n".join(f"- {name}: {flags}" for name, (_, flags) in PEERS.items())
    absent = "".join(f"\n- absent: {name}: {why}" for name, why in report["absent"].items())
    parts = [markdown_table(columns, rows, "  rrrr") for columns, rows in tables(report) if rows]
    return "\n\n".join([intro, remarks("serving"), flags + absent, *parts]) + "\n"


if __name__ == "__main__":
    main()
