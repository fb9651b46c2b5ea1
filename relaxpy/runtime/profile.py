"""Where the time of a call goes: `vm.profile("main", x, y)`.

    profile = vm.profile("main", x, repeat=20)
    print(profile)                        a table: kernels, and what the machine does between them
    print(profile.by_line())              the same by line of the source
    profile.save_trace("trace.json")      for chrome://tracing or Perfetto

The functions are linked once more, with a clock read before and after every kernel, library call and call into Python
(0.1 µs each); the machine itself stays as it is. Bytes are those of the tensors that a kernel is given, each once: what
it must move at least. The limit beside them is what copying memory reaches here.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from time import perf_counter
from typing import Any

import numpy as np

from relaxpy.files import write_text
from relaxpy.runtime.bytecode import FunctionCode, Instr, Kernel, Library, Packed
from relaxpy.runtime.frame import record_bytes
from relaxpy.runtime.link import Emitter, Scope

MACHINE = "(the machine itself)"
"""What is in no kernel: checks, shapes, allocation, the calls."""
_BETWEEN = (Library, Packed)


@dataclass(frozen=True, slots=True)
class Event:
    """A kernel, library call or call into Python that ran."""

    name: str
    kind: str
    """`kernel`, `library` or `python`."""
    function: str
    place: str
    """`file:line` of the source, or the binding where that is not known."""
    start: float
    """Seconds since the call began."""
    seconds: float
    nbytes: int
    """Bytes of the tensors that it was given; 0 where that is not known."""
    turn: int
    """Which of the repeated calls, from 0."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a profile: medians over the repeated calls."""

    name: str
    calls: int
    """In one call of the function."""
    seconds: float
    nbytes: int

    @property
    def gigabytes(self) -> float:
        """GB/s."""
        return self.nbytes / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True)
class Profile:
    """What happened in some calls of a function. `str` is the table by kernel."""

    function: str
    seconds: float
    """Median of a call, with the clocks in it."""
    repeat: int
    events: tuple[Event, ...]

    def by_kernel(self) -> list[Row]:
        """Kernels, library functions and Python functions, longest first; at the end what the machine does itself."""
        rows = self._rows(lambda event: event.name)
        rest = max(0.0, self.seconds - sum(row.seconds for row in rows))
        return [*rows, Row(MACHINE, 0, rest, 0)]

    def by_line(self) -> str:
        """The table by line of the source."""
        return self._table(self._rows(lambda event: event.place), "line")

    def __str__(self) -> str:
        return self._table(self.by_kernel(), "kernel")

    def chrome_trace(self) -> dict[str, Any]:
        """All calls as the JSON object that chrome://tracing and Perfetto read. Times in µs."""
        offset, events = 0.0, []
        for turn in range(self.repeat):
            mine = [event for event in self.events if event.turn == turn]
            end = max((event.start + event.seconds for event in mine), default=0.0)
            events.append(_trace_event(self.function, "call", offset, end, {}))
            for event in mine:
                facts = {"function": event.function, "place": event.place, "bytes": event.nbytes}
                start = offset + event.start
                events.append(_trace_event(event.name, event.kind, start, event.seconds, facts))
            offset += end * 1.02
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write `chrome_trace` to a file. Raises UsageError (`file-write`)."""
        write_text(path, json.dumps(self.chrome_trace()))

    def _rows(self, key: Callable[[Event], str]) -> list[Row]:
        turns: dict[str, list[list[Event]]] = defaultdict(lambda: [[] for _ in range(self.repeat)])
        for event in self.events:
            turns[key(event)][event.turn].append(event)
        rows = [
            Row(
                name,
                len(seen[-1]),
                float(np.median([sum(event.seconds for event in turn) for turn in seen])),
                sum(event.nbytes for event in seen[-1]),
            )
            for name, seen in turns.items()
        ]
        return sorted(rows, key=lambda row: -row.seconds)

    def _table(self, rows: Sequence[Row], heading: str) -> str:
        limit = copy_bandwidth()
        width = min(60, max([len(heading), *(len(row.name) for row in rows)]))
        lines = [
            f"{self.function}: {self.seconds * 1e3:.3f} ms a call, median of {self.repeat}; copying memory reaches "
            f"{limit / 1e9:.0f} GB/s here",
            f"{heading:<{width}} {'calls':>6} {'ms':>9} {'share':>6} {'MB':>9} {'GB/s':>7} {'of copy':>8}",
        ]
        for row in rows:
            share = row.seconds / self.seconds if self.seconds else 0.0
            name = row.name if len(row.name) <= width else row.name[: width - 1] + "…"
            line = f"{name:<{width}} {row.calls or '':>6} {row.seconds * 1e3:>9.3f} {share:>6.1%}"
            if row.nbytes:
                line += f" {row.nbytes / 1e6:>9.2f} {row.gigabytes:>7.1f} {row.gigabytes * 1e9 / limit:>8.0%}"
            lines.append(line)
        return "\n".join(lines)


def _trace_event(
    name: str, kind: str, start: float, seconds: float, facts: dict[str, Any]
) -> dict[str, Any]:
    """A complete event ("X") of the trace format."""
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "ts": start * 1e6,
        "dur": seconds * 1e6,
        "pid": 1,
        "tid": 1,
        "args": facts,
    }


@cache
def copy_bandwidth() -> float:
    """Bytes a second that copying memory reads and writes, on all threads: 64 MB each, more than caches hold."""
    threads = max(
        1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    pairs = [(np.ones(1 << 24, np.float32), np.empty(1 << 24, np.float32)) for _ in range(threads)]
    from concurrent.futures import ThreadPoolExecutor  # it takes long to import

    times: list[float] = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(4):
            start = perf_counter()
            list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), pairs))
            times.append(perf_counter() - start)
    return 2 * sum(pair[0].nbytes for pair in pairs) / min(times)


@dataclass
class Recorder:
    """Collects what the clocks say: the `note` of the functions' source."""

    codes: Mapping[str, FunctionCode]
    kernels: Sequence[str]
    libraries: Sequence[str]
    packed: Sequence[str]
    events: list[Event] = field(default_factory=list[Event])
    began: float = 0.0
    turn: int = 0

    def begin(self, turn: int) -> None:
        """A call starts."""
        self.turn, self.began = turn, perf_counter()

    def note(self, function: str, at: int, start: float, args: Iterable[Any]) -> None:
        """The instruction `at` ran from `start` until now."""
        seconds = perf_counter() - start
        code = self.codes[function]
        instr = code.code[at]
        name, kind = self._called(instr)
        place = ""
        if 0 <= instr.loc < len(code.locations):
            where = code.locations[instr.loc]
            place = f"{where.file}:{where.line}" if where.file else where.binding
        nbytes = sum(map(_nbytes, args))
        self.events.append(
            Event(
                name,
                kind,
                function,
                place or function,
                start - self.began,
                seconds,
                nbytes,
                self.turn,
            )
        )

    def _called(self, instr: Instr) -> tuple[str, str]:
        match instr:
            case Kernel(index=index):
                return self.kernels[index], "kernel"
            case Library(index=index):
                return self.libraries[index], "library"
            case Packed(index=index):
                return self.packed[index], "python"
            case _:
                return type(instr).__name__, "python"


def _nbytes(value: Any) -> int:
    """Bytes of a tensor as kernels take it; 0 for a number."""
    return 0 if isinstance(value, (int, float)) else record_bytes(value)


class ProfilingEmitter(Emitter):
    """Writes the lines with a clock around everything that computes; kernels run one by one."""

    def may_precede(self, at: int, instr: Instr) -> bool:
        return False

    def launch(self, launches: Sequence[Any]) -> None:
        for launch in launches:
            self.at = launch.at
            self.emit("clock_began = clock()")
            super().launch([launch])
            tensors = ", ".join([*launch.args, ""])
            self.emit(f"note({self.code.name!r}, {launch.at}, clock_began, ({tensors}))")

    def instr(self, at: int, instr: Instr, scope: Scope) -> None:
        if not isinstance(instr, _BETWEEN):
            super().instr(at, instr, scope)
            return
        self.emit("clock_began = clock()")
        super().instr(at, instr, scope)
        self.emit(f"note({self.code.name!r}, {at}, clock_began, ())")
