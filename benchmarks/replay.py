"""A refactor of kernels leaves what they compile to as it was, or names what it changes.

    python benchmarks/replay.py REF                       this tree beside a commit: kernels that differ
    python benchmarks/replay.py REF --quick               programs and schedules only
    python benchmarks/replay.py REF --target haswell --only attention
    python benchmarks/replay.py REF --time [--all]        and, of this processor, how long those take, in turns

`replay_table.py` makes the table of a tree: for each kernel of each case and target a digest of its program, of its
schedule and of its code, which see no names. The commit is checked out into a folder of its own, and gets the cases of
this tree.

Times are of single kernels, called with the arguments that a call of their case gave them, copied to the same alignment
for each: the version before, the one after, and a second copy of the one before, which is the control. They take turns;
a ratio is the median over the turns. Calls of less than 20 µs are left out. A kernel is slower where its ratio is above
1.03 and above all of the control in three runs. Exits with 1 where a kernel differs (with `--time`: where one is
slower).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.kernel_times import recording  # noqa: E402
from benchmarks.replay_cases import Case, Sizes, kernels  # noqa: E402
from benchmarks.replay_table import REFUSED, SYMBOL, TARGETS, Line, digest  # noqa: E402
from benchmarks.versions import checked_out  # noqa: E402

SHORTEST = 20e-6
"""Seconds of a call that is timed."""
SLOWER = 1.03
RUNS = 3
TURNS = 15
TURN_SECONDS = 0.005
PAGE = 4096
PARTS = ("replay_cases.py", "replay_table.py")
"""Files that a commit is given, so that both trees have the same cases."""


# Tables


def table_of(tree: Path, options: Sequence[str]) -> dict[tuple[str, str, str], Line]:
    """The kernels of a tree. RuntimeError with the last line of what went wrong."""
    for name in PARTS:
        if tree != ROOT:
            shutil.copy(ROOT / "benchmarks" / name, tree / "benchmarks" / name)
    done = subprocess.run(
        [sys.executable, str(tree / "benchmarks/replay_table.py"), *options],
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = [Line(**json.loads(text)) for text in done.stdout.splitlines()]
    return {line.key: line for line in lines}


def differences(
    before: Mapping[tuple[str, str, str], Line], after: Mapping[tuple[str, str, str], Line]
) -> Iterator[tuple[Line, str]]:
    """The kernels that are not the same, and what of them is other. One whose code is the same is the same, whatever
    wrote it."""
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if old is None or new is None:
            line = old or new
            assert line is not None
            yield line, "is gone" if new is None else "is new"
        elif old.code != new.code or (not new.code and old != new):
            parts = ("rule", "program", "schedule", "code")
            yield new, ", ".join(p for p in parts if getattr(old, p) != getattr(new, p))


# Times


@dataclass(frozen=True)
class Timed:
    """A kernel with arguments of one size: the ratio to the version before in each run, and the same of the control."""

    case: str
    sizes: Sizes
    kernel: str
    micros: float
    ratios: tuple[float, ...]
    controls: tuple[float, ...]
    same_bits: bool

    @property
    def slower(self) -> bool:
        return min(self.ratios) > max(SLOWER, *self.controls)


class Arguments:
    """Arguments of a kernel, copied to the beginning of pages."""

    def __init__(self, given: Sequence[Any]) -> None:
        from relaxpy.testing.kernels import record_of

        self.arrays: list[np.ndarray] = []
        self.passed: list[Any] = []
        self._alive: list[Any] = []
        for each in given:
            if isinstance(each, int | float):
                self.passed.append(each)
                continue
            array = at_a_page(each)
            record, alive = record_of(array)
            self.arrays.append(array)
            self._alive.append((record, alive))
            self.passed.append(ctypes.c_void_p(ctypes.addressof(record)))


def at_a_page(given: np.ndarray) -> np.ndarray:
    """A copy whose first byte is the first of a page."""
    raw = np.empty(given.nbytes + PAGE, np.uint8)
    start = -raw.ctypes.data % PAGE
    copy = raw[start : start + given.nbytes].view(given.dtype).reshape(given.shape)
    copy[...] = given
    return copy


def calls_of(case: Case, sizes: Sizes, target: str) -> Iterator[tuple[str, list[Any]]]:
    """The kernels that a call of the case's `main` runs, each with the arguments of its first call."""
    import relaxpy
    from relaxpy.runtime import dtype as dtypes

    with recording() as times:
        vm = relaxpy.VirtualMachine(relaxpy.build(case.mod, target))
    given: dict[str, list[Any]] = {}

    def keep(name: str, args: Sequence[Any]) -> None:
        given.setdefault(name, [_copied(each, dtypes.to_numpy) for each in args])

    times.watching = keep
    vm["main"](*case.arguments(sizes))
    yield from given.items()


def _copied(value: Any, to_numpy: Callable[[str], Any]) -> Any:
    if isinstance(value, int | float):
        return value
    dtype = np.dtype(to_numpy(str(value.dtype)))
    shape = tuple(map(int, value.shape))
    data = ctypes.string_at(value.data_ptr(), int(np.prod(shape)) * dtype.itemsize)
    return np.frombuffer(data, dtype).reshape(shape)


def loaded(folder: Path, case: str, kernel: str) -> Callable[..., Any]:
    """A kernel that `replay_table.py` wrote; it uses the threads."""
    from relaxpy.runtime.bytecode import HOST_SLOT, KernelImage, KernelInfo
    from relaxpy.runtime.codec import decode
    from relaxpy.runtime.devices.registry import runtime_of

    stem = folder / digest(f"{case} {kernel}".encode())
    image = decode(json.loads(stem.with_suffix(".json").read_text()), KernelImage)
    objects = [path.read_bytes() for path in sorted(folder.glob(f"{stem.name}.*.o"))]
    (handle,) = runtime_of(HOST_SLOT.kind, 0).load(objects, [KernelInfo(SYMBOL, (image,))])
    return handle.run_parallel


def timed(
    case: Case, sizes: Sizes, before: Path, after: Path, kernel: str, given: list[Any]
) -> Timed:
    """A kernel in turns with itself before, and that with a copy of itself."""
    folders = {"before": before, "after": after, "control": before}
    handles = {name: loaded(folder, case.name, kernel) for name, folder in folders.items()}
    arguments = {name: Arguments(given) for name in handles}
    for name, handle in handles.items():
        handle(*arguments[name].passed)
    outputs = [[array.tobytes() for array in each.arrays] for each in arguments.values()]
    once = _seconds(handles["before"], arguments["before"].passed, 3)
    often = max(1, round(TURN_SECONDS / once))
    ratios: list[float] = []
    controls: list[float] = []
    for _ in range(RUNS if once >= SHORTEST else 0):
        turns: list[dict[str, float]] = []
        for turn in range(TURNS):
            names = [*handles][turn % 3 :] + [*handles][: turn % 3]
            turns.append({n: _seconds(handles[n], arguments[n].passed, often) for n in names})
        ratios.append(median(each["after"] / each["before"] for each in turns))
        controls.append(median(each["control"] / each["before"] for each in turns))
    same = outputs[0] == outputs[1]
    return Timed(case.name, sizes, kernel, once * 1e6, tuple(ratios), tuple(controls), same)


def _seconds(handle: Callable[..., Any], args: Sequence[Any], often: int) -> float:
    start = time.perf_counter()
    for _ in range(often):
        handle(*args)
    return (time.perf_counter() - start) / often


def times(names: set[str], target: str, before: Path, after: Path) -> Iterator[Timed]:
    """The kernels of the cases with these names, at the sizes that those have."""
    for case in kernels():
        for sizes in case.sizes if case.name in names else ():
            for kernel, given in calls_of(case, sizes, target):
                found = timed(case, sizes, before, after, kernel, given)
                if found.ratios:
                    yield found


# What is shown


def shown_differences(console: Console, changed: Sequence[tuple[Line, str]], total: int) -> None:
    shown = Table("target", "case", "kernel", "rule", "other", box=None)
    for line, what in sorted(changed, key=lambda each: each[0].key):
        shown.add_row(line.target.split("-mcpu=")[-1], line.case, line.kernel, line.rule, what)
    if changed:
        console.print(shown)
    by_target = Counter(line.target.split("-mcpu=")[-1] for line, _ in changed)
    listed = ", ".join(f"{name} {count}" for name, count in by_target.items())
    console.print(f"{total} kernels, {len(changed)} differ{': ' + listed if changed else ''}")


def shown_times(console: Console, found: Sequence[Timed]) -> None:
    shown = Table("case", "sizes", "µs", "after / before", "control", "bits", box=None)
    for each in found:
        sizes = " ".join(f"{name}={value}" for name, value in each.sizes.items())
        ratio = f"{median(each.ratios):.3f}{' slower' * each.slower}"
        control = f"{min(each.controls):.3f} to {max(each.controls):.3f}"
        bits = "equal" if each.same_bits else "differ"
        shown.add_row(each.case, sizes, f"{each.micros:.0f}", ratio, control, bits)
    console.print(shown)
    if found:
        mean = geometric_mean(median(each.ratios) for each in found)
        control = geometric_mean(median(each.controls) for each in found)
        console.print(f"geometric mean {mean:.3f} (control {control:.3f}) of {len(found)} cases")


def main() -> int:
    """Compare, and print what differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ref", help="a commit")
    parser.add_argument("--target", default="", help="targets with this in their text")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument(
        "--quick", action="store_true", help="programs and schedules, not their code"
    )
    parser.add_argument(
        "--time", action="store_true", help="time kernels of this processor whose code differs"
    )
    parser.add_argument("--all", action="store_true", help="time those whose code is the same, too")
    parser.add_argument("--threads", default="1")
    given = parser.parse_args()
    if given.time and given.quick:
        parser.error("--time needs the code: leave --quick out")
    if given.target and not given.time and not any(given.target in each for each in TARGETS):
        parser.error(f"no target has {given.target!r} in its text; there are {', '.join(TARGETS)}")
    os.environ["RELAXPY_NUM_THREADS"] = given.threads
    console = Console()
    target = ""
    if given.time:
        from relaxpy.target import Target

        target = str(Target.host())
    options = ["--target", target or given.target, "--only", given.only, *["--quick"] * given.quick]
    with checked_out({"before": given.ref}) as trees, tempfile.TemporaryDirectory() as folder:
        tables: dict[str, dict[tuple[str, str, str], Line]] = {}
        for name, tree in {**trees, "after": ROOT}.items():
            own = Path(folder, name)
            own.mkdir()
            kept = ["--objects", str(own)] if given.time else []
            tables[name] = table_of(tree, [*options, *kept])
        refused = sum(line.rule == REFUSED for line in tables["after"].values())
        changed = list(differences(tables["before"], tables["after"]))
        total = len(tables["after"]) - refused
        if not total:
            parser.error(f"no case has {given.only!r} in its name")
        shown_differences(console, changed, total)
        if not given.time:
            return bool(changed)
        names = {line.case for line, what in changed if "code" in what}
        if given.all:
            names = {line.case for line in tables["after"].values()}
        found = list(times(names, target, Path(folder, "before"), Path(folder, "after")))
        shown_times(console, found)
        return any(each.slower for each in found)


if __name__ == "__main__":
    sys.exit(main())
