"""Operators, one by one: relaxpy, torch (oneDNN) and OpenBLAS, on what transformers and convolutional networks do.

    python benchmarks/ops.py                          every case
    python benchmarks/ops.py --only 'matmul|softmax'  those whose group or name match
    python benchmarks/ops.py --quick                  one short turn each; nothing is written
    python benchmarks/ops.py --drawn 7                24 other cases, drawn with this seed; nothing is written

Results go to benchmarks/results/ops.json and into the table in docs/benchmarks.md, those of cases that were left out
staying as they were.

The cases are in `op_cases.py`, and 24 more in `drawn_cases.py`, to which nothing was tuned. Each library lives in a
process of its own and they take turns; a time is the median of all its calls, the library's own work around a kernel
included (torch runs eagerly, each operator allocating its result; a chain of operators is one kernel in relaxpy).
Results are compared with torch's before anything is timed.

Beside each time stands how near it is to what the machine can do (`limits.py`): products to the peak of their
arithmetic, all else to the speed at which a plain loop reads and writes the same number of bytes. Limits are medians as
times are, and the peak is measured in turns with the libraries, since neighbours of a virtual machine change its rate.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.drawn_cases import SEED, drawn_cases
from benchmarks.op_cases import Case, Input, cases, key_of
from benchmarks.report import markdown_table, replace_section, save, saved
from benchmarks.turns import Peer, Service, rotated_times

if TYPE_CHECKING:
    from relaxpy.ir.module import IRModule

SECTION = "Operators: ms"
"""The heading in docs/benchmarks.md under which the table is."""
WORST = 5
LIMIT_SECONDS = 0.02
"""For which the loop of a peak is repeated in each turn."""
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}
"""Largest difference to torch, of the largest result; integers must be equal."""


@dataclass
class Row:
    """One case."""

    group: str
    name: str
    dtype: str
    ms: dict[str, float]
    """Median of each library that has it."""
    bound: str
    """ "compute" or "memory": what limits it."""
    rate: float
    """Of relaxpy: GFLOP/s where computing is the limit, GB/s where memory is."""
    share: float
    """Of relaxpy: the least possible time over its time."""

    @property
    def key(self) -> str:
        """That of its case."""
        return key_of(self.group, self.name, self.dtype)

    @property
    def ratio(self) -> float:
        """Relaxpy's time over that of the fastest other library."""
        return self.ms["relaxpy"] / min(ms for name, ms in self.ms.items() if name != "relaxpy")


@dataclass(frozen=True)
class Wanted:
    """A case that a process is asked for."""

    key: str
    seed: int
    """Of the cases that are drawn."""

    @property
    def case(self) -> Case:
        """In this process."""
        return named_cases(self.seed)[self.key]


def case_module(case: Case, arrays: Sequence[np.ndarray]) -> tuple[IRModule, dict[str, np.ndarray]]:
    """The program of a case, its function `run`, and its weights."""
    from relaxpy import nn

    class Program(nn.Module):
        """Weights are parameters; the rest is what `run` takes."""

        def __init__(self) -> None:
            for i, (given, array) in enumerate(zip(case.inputs, arrays, strict=True)):
                if not given.dims:
                    weight = nn.Parameter(array.shape, array.dtype.name)
                    weight.data = array
                    setattr(self, f"x{i}", weight)

        def run(self, **inputs: nn.Tensor) -> Any:
            names = [f"x{i}" for i in range(len(case.inputs))]
            values = [inputs[name] if name in inputs else getattr(self, name) for name in names]
            return case.relaxpy(nn.op, *values)

    spec = {
        f"x{i}": nn.spec.Tensor(named_dims(given.dims), given.dtype)
        for i, given in enumerate(case.inputs)
        if given.dims
    }
    return Program().export({"run": spec})


def relaxpy_peer(threads: int) -> Service:
    """Requests: a case, compiled when it is first asked for; a dtype, for the peak of its products; or bytes read and
    written, for the least time that takes."""
    os.environ["RELAXPY_NUM_THREADS"] = str(threads)
    import relaxpy
    from benchmarks.limits import Limits
    from relaxpy.runtime.tensor import empty

    limits = Limits(threads)

    def aligned(array: np.ndarray) -> relaxpy.Tensor:
        """In memory of the runtime, as intermediate results are."""
        tensor = empty(array.shape, array.dtype.name)
        tensor.numpy()[...] = array
        return tensor

    @lru_cache(maxsize=1)
    def program(wanted: Wanted) -> Callable[[], Any]:
        case = wanted.case
        arrays = case.arrays()
        mod, params = case_module(case, arrays)
        run = relaxpy.VirtualMachine(relaxpy.build(mod, params=params))["run"]
        given = zip(case.inputs, arrays, strict=True)
        tensors = [aligned(array) for each, array in given if each.dims]
        return lambda: run(*tensors)

    def prepare(request: Any) -> Callable[[], Any]:
        if isinstance(request, Wanted):
            return program(request)
        if isinstance(request, str):
            return partial(limits.sustained, request, LIMIT_SECONDS)
        return partial(limits.memory_seconds, *request)

    def portable(result: Any) -> Any:
        if isinstance(result, relaxpy.Tensor):
            return widened(result.numpy()), result.nbytes
        return result

    return Service(prepare, portable)


def torch_peer(threads: int) -> Service:
    """Requests: a case."""
    import torch

    torch.set_num_threads(threads)

    def tensor(array: np.ndarray, given: Input) -> torch.Tensor:
        found = torch.from_numpy(widened(array)).to(getattr(torch, given.dtype))
        return found.t().contiguous() if given.out_first else found.clone()  # in torch's own memory

    @lru_cache(maxsize=1)
    def program(wanted: Wanted) -> Callable[[], Any]:
        case = wanted.case
        tensors = [tensor(a, given) for a, given in zip(case.arrays(), case.inputs, strict=True)]
        return torch.inference_mode()(partial(case.torch, torch, *tensors))

    def portable(result: torch.Tensor) -> np.ndarray:
        return (result.float() if result.dtype == torch.bfloat16 else result).numpy()

    return Service(program, portable)


def numpy_peer(threads: int) -> Service:
    """Requests: a case that has a program for numpy."""
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[variable] = str(threads)

    @lru_cache(maxsize=1)
    def program(wanted: Wanted) -> Callable[[], Any]:
        case = wanted.case
        assert case.numpy is not None
        return partial(case.numpy, np, *case.arrays())

    return Service(program)


PEERS: dict[str, Callable[[int], Service]] = {
    "relaxpy": relaxpy_peer,
    "torch": torch_peer,
    "OpenBLAS": numpy_peer,
}


@cache
def named_cases(seed: int) -> dict[str, Case]:
    """The fixed cases, and those that are drawn with this seed, by their keys."""
    return {case.key: case for case in (*cases(), *drawn_cases(seed))}


def named_dims(dims: str) -> tuple[int | str, ...]:
    """`"n 384"` as a specification has it."""
    return tuple(int(dim) if dim.isdigit() else dim for dim in dims.split())


def widened(array: np.ndarray) -> np.ndarray:
    """The array, bfloat16 as float32: torch and pipes do not know numpy's."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def measure(peers: Mapping[str, Peer], wanted: Wanted, rounds: int, seconds: float) -> Row:
    """Check a case, and time it in turns. AssertionError where relaxpy and torch differ."""
    key, case = wanted.key, wanted.case
    (found, written), expected = peers["relaxpy"].result(wanted), peers["torch"].result(wanted)
    assert found.shape == expected.shape, f"{key}: {found.shape}, torch {expected.shape}"
    difference = np.abs(found - expected).max(initial=0) / np.abs(expected).max(initial=1)
    allowed = TOLERANCE[case.dtype] if expected.dtype.kind == "f" else 0
    assert difference <= allowed, f"{key}: differs from torch by {difference:.1e} of the largest"
    taking_part = {n: p for n, p in peers.items() if n != "OpenBLAS" or case.numpy is not None}
    times: dict[str, list[float]] = {name: [] for name in taking_part}
    peaks: list[float] = []
    for turn in range(rounds):
        peaks += [peak(peers["relaxpy"], case.dtype)] if case.flops else []
        for name, each in rotated_times(taking_part, wanted, 1, 3, seconds, first=turn).items():
            times[name] += each
    ms = {name: median(each) * 1e3 for name, each in times.items()}
    read = sum(given.nbytes for given in case.inputs)
    least, bound = peers["relaxpy"].result((read, written)), "memory"
    if peaks and (compute := case.flops / median(peaks) / 1e9) > least:
        least, bound = compute, "compute"
    ours = ms["relaxpy"] / 1e3
    rate = (case.flops if bound == "compute" else read + written) / ours / 1e9
    return Row(case.group, case.name, case.dtype, ms, bound, rate, least / ours)


def summary(rows: Sequence[Row]) -> str:
    """Geometric means by set, library and group, and the worst cases, in Markdown."""
    fixed = {case.key for case in cases()}
    sets = {
        "fixed": [row for row in rows if row.key in fixed],
        "drawn": [row for row in rows if row.key not in fixed],
    }
    lines = [f"**The {name} cases.** {_means(own)}" for name, own in sets.items() if own]
    worst = sorted(rows, key=lambda row: -row.ratio)[:WORST]
    named = "; ".join(f"{row.group}, {row.name}, {row.dtype} ({row.ratio:.2f})" for row in worst)
    lines.append(f"The worst {len(worst)}, over the fastest other: {named}.")
    far = sorted(rows, key=lambda row: row.share)[:WORST]
    named = "; ".join(f"{row.group}, {row.name}, {row.dtype} ({row.share:.0%})" for row in far)
    lines.append(f"The farthest from the limit: {named}.")
    return "\n\n".join(lines)


def _means(rows: Sequence[Row]) -> str:
    parts: list[str] = []
    for library in ("torch", "OpenBLAS"):
        ratios = [row.ms["relaxpy"] / row.ms[library] for row in rows if library in row.ms]
        if ratios:
            slower = sum(ratio > 1 for ratio in ratios)
            parts.append(
                f"Time over that of {library}, geometric mean of {len(ratios)}: "
                f"**{geometric_mean(ratios):.2f}** (slower in {slower})."
            )
    groups = dict.fromkeys(row.group for row in rows)
    shares = (
        f"{group} {geometric_mean([row.share for row in rows if row.group == group]):.0%}"
        for group in groups
    )
    parts.append(f"Share of the limit, geometric means: {', '.join(shares)}.")
    return " ".join(parts)


def cells(row: Row) -> list[str]:
    """A row of the table: case, dtype, times, ratio, rate, share of the limit."""
    unit = "GFLOP/s" if row.bound == "compute" else "GB/s"
    times = [f"{row.ms[name]:.4g}" if name in row.ms else "" for name in PEERS]
    last = [f"{row.ratio:.2f}", f"{row.rate:.0f} {unit}", f"{row.share:.0%}"]
    return [row.group, row.name, row.dtype, *times, *last]


COLUMNS = ("group", "case", "dtype", *PEERS, "ratio to the best", "relaxpy", "of the limit")


def table(rows: Sequence[Row]) -> Table:
    """For the terminal."""
    view = Table(title="operators: median ms")
    for i, name in enumerate(COLUMNS):
        view.add_column(name, justify="right" if i > 2 else "left")
    for row in rows:
        view.add_row(*cells(row), style="red" if row.ratio > 1 else "")
    return view


def section(rows: Sequence[Row], threads: int, limits: Mapping[str, float]) -> str:
    """For docs/benchmarks.md."""
    peaks = ", ".join(f"{value:.0f} in {dtype}" for dtype, value in limits.items())
    from relaxpy.backend.cpu.target import CpuTarget  # the libraries' processes do without TVM

    intro = (
        f"`make bench-ops`, {threads} threads of a processor of LLVM's type `{CpuTarget.host().mcpu}`, medians; torch "
        "runs eagerly. Limits are medians, too: peaks in turns with the libraries (at the end of the run, GFLOP/s: "
        f"{peaks}), of memory the rate of a plain loop that moves as many bytes. The first {len(cases())} cases are "
        f"fixed; the last {len(drawn_cases())} were drawn, and nothing "
        "was tuned to them (`benchmarks/drawn_cases.py` says how; `--drawn SEED` draws others)."
    )
    body = markdown_table(COLUMNS, [cells(row) for row in rows], "lll" + "r" * 6)
    return f"{intro}\n\n{summary(rows)}\n\n{body}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="cases that this regular expression finds")
    parser.add_argument("--quick", action="store_true", help="short turns; nothing is written")
    parser.add_argument(
        "--drawn",
        type=int,
        metavar="SEED",
        help="only cases drawn with this seed; nothing is written",
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 150)
    seed = SEED if args.drawn is None else args.drawn
    known = [*named_cases(seed)] if args.drawn is None else [case.key for case in drawn_cases(seed)]
    chosen = [Wanted(key, seed) for key in known if re.search(args.only, key)]
    if not chosen:
        console.print(f"no case matches {args.only!r} among:", *known, sep="\n  ")
        return 2
    rounds, seconds = (1, 0.02) if args.quick else (4, 0.04)
    peers = started(console, args.threads)
    rows: list[Row] = []
    failed: list[str] = []
    for wanted in chosen:
        with console.status(wanted.key):
            try:
                rows.append(measure(peers, wanted, rounds, seconds))
            except (AssertionError, RuntimeError) as error:
                failed.append(str(error))
    peaks = {dtype: peak(peers["relaxpy"], dtype) for dtype in ("float32", "bfloat16", "int8")}
    for peer in peers.values():
        peer.stop()
    console.print(table(rows))
    console.print(summary(rows), highlight=False)
    for problem in failed:
        console.print(f"[red]failed:[/] {problem}", highlight=False)
    if not args.quick and args.drawn is None:
        publish(rows, args.threads, peaks)
    return 1 if failed else 0


def started(console: Console, threads: int) -> dict[str, Peer]:
    """All peers. SystemExit with the reason where one cannot run."""
    peers: dict[str, Peer] = {}
    for name, make in PEERS.items():
        with console.status(f"loading {name}"):
            peer = Peer.start(name, make, threads)
        if isinstance(peer, str):
            raise SystemExit(f"{name} cannot run here: {peer}")
        peers[name] = peer
    return peers


def peak(peer: Peer, dtype: str) -> float:
    """GFLOP/s of products of this dtype on registers, now."""
    return peer.result(dtype) / 1e9


def publish(rows: Sequence[Row], threads: int, peaks: Mapping[str, float]) -> None:
    """Put the rows into the results and the documentation, in the place of older ones of the same cases."""
    known = named_cases(SEED)
    new = {row.key: row for row in rows}
    old = {row.key: row for row in (Row(**each) for each in saved("ops").get("rows", ()))}
    merged = [each for key in known if (each := new.get(key) or old.get(key)) is not None]
    report = {"threads": threads, "peaks": peaks, "rows": [asdict(row) for row in merged]}
    save("ops", report)
    replace_section(SECTION, section(merged, threads, peaks))


if __name__ == "__main__":
    sys.exit(main())
