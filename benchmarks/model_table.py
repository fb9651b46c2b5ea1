"""The frame of the benchmarks of models: a row for each, measured one after the other, and the section of
docs/benchmarks.md that they make. With `--processor` it is another one, of processor time on one thread.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean
from typing import Any

from rich.console import Console

from benchmarks.report import replace_section, save, saved
from benchmarks.turns import Peer
from relaxpy.backend.cpu.target import CpuTarget

Times = Mapping[str, Mapping[str, float]]
"""What is measured of a model → library → seconds."""


@dataclass(frozen=True)
class ModelTable:
    """A section of the page, and how it is made."""

    file: str
    """The benchmark, and its results: benchmarks/FILE.py and benchmarks/results/FILE.json."""
    section: str
    """The heading of its section."""
    names: Sequence[str]
    """The models, in the order of the rows."""
    measure: Callable[[str, argparse.Namespace, Console], Times | None]
    """What is measured of a model; None for one that is left out. RuntimeError where results differ."""
    table: Callable[[Mapping[str, Times]], str]
    """In Markdown."""
    meaning: str
    """What its columns mean."""
    summary: Callable[[Mapping[str, Times]], str]
    precision: str = "fp32"
    """What products are computed in."""

    def run(self, parser: argparse.ArgumentParser) -> int:
        """Measure what the arguments say, print it, and write the section."""
        parser.add_argument("--only", default="", help="those with this in their names")
        parser.add_argument(
            "--quick", action="store_true", help="one short turn; no file is written"
        )
        parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
        parser.add_argument(
            "--processor", action="store_true", help="least processor time, 1 thread"
        )
        args = parser.parse_args()
        console = Console(width=None if sys.stdout.isatty() else 160)
        file, section = self.file, self.section
        if args.processor:
            args.threads = 1
            file, section = f"{file}_processor", f"{section} of processor time, one thread"
        for name in (name for name in self.names if args.only in name):
            times = self.measure(name, args, console)
            if times is None:
                continue
            console.print(self.table({name: times}), highlight=False)
            if args.quick:
                continue
            known = saved(file).get("models", {}) | {name: times}
            report = {each: known[each] for each in self.names if each in known}
            save(file, {"threads": args.threads, "models": report})
            replace_section(section, self.text(report, args))
        return 0

    def text(self, report: Mapping[str, Times], args: argparse.Namespace) -> str:
        """The section of the page."""
        busy = "the least processor time, on a machine that others keep busy: they share its caches and its cores"
        threads = f"{args.threads} thread{'s' * (args.threads > 1)}"
        option = " --processor" if args.processor else ""
        return (
            f"A call, {self.precision}, {threads} of a processor of LLVM's type `{CpuTarget.host().mcpu}`; "
            f"{busy if args.processor else 'medians'}; each library in a process of its own, taking turns. "
            f"{self.meaning}\n\n"
            f"{self.table(report)}\n\n{self.summary(report)}\n\n"
            f"`python benchmarks/{self.file}.py{option}` writes this section."
        )


def times_in_turns(peers: Mapping[str, Peer], given: Any, quick: bool) -> dict[str, list[float]]:
    """The times of each library's calls, of which each has some in turn: five turns, or one."""
    times: dict[str, list[float]] = {library: [] for library in peers}
    names = list(peers)
    for turn in range(1 if quick else 5):
        for i in range(len(names)):
            library = names[(i + turn) % len(names)]
            times[library] += peers[library].result(("times", given))
    return times


def mean_ratio(calls: Sequence[Mapping[str, float]], library: str) -> str:
    """The times of relaxpy over a library's: the geometric mean, and the largest."""
    ratios = [each["relaxpy"] / each[library] for each in calls]
    return f"{exp(fmean(map(log, ratios))):.2f} of {library}'s (at most {max(ratios):.2f})"


def milliseconds(value: float) -> str:
    """Of seconds, with three digits or so."""
    return f"{value * 1e3:.{1 if value >= 0.01 else 2 if value >= 1e-4 else 3}f}"
