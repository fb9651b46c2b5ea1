"""The time of a call by kernel and by source line: `vm.profile("main", x, y)`.

    profile = vm.profile("main", x, repeat=20)
    print(profile)                        a table: kernels, and the time of the machine between them
    print(profile.by_line())              the same by line of the source
    profile.save_trace("trace.json")      for chrome://tracing or Perfetto

The functions are linked once more, with a clock read before and after every kernel, library call and call into Python
(0.1 µs each); the machine's own functions do not change. The bytes of a kernel are those of its tensors, each element
once, and no more than it reads: the minimum that it must move. Floating-point operations are additions, subtractions,
multiplications, divisions, minima, maxima and elementary functions, counted as one each, and multiply-adds as two. The
compiler counts both in the tensor program. The profile compares them with the measured limits of this machine
(`relaxpy.runtime.limits`). Data in caches moves faster than copied memory.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, ClassVar

import numpy as np

from relaxpy.files import write_text
from relaxpy.runtime.bytecode import Copy, FunctionCode, Instr, Kernel, Library, Packed, Read
from relaxpy.runtime.frame import record_bytes
from relaxpy.runtime.function_listing import printable
from relaxpy.runtime.limits import copy_bandwidth, peak_flops
from relaxpy.runtime.link import Emitter, Scope
from relaxpy.runtime.tensor import Tensor

MACHINE = "(the machine itself)"
"""Time outside of kernels: checks, shapes, allocation, calls."""
_BETWEEN = (Library, Packed, Copy, Read)
_SHORT = 10e-3
"""Times below this are shown in µs, in seconds."""
_WIDEST = 60
"""The most characters of a name."""


@dataclass(frozen=True, slots=True)
class Event:
    """A kernel, library call or call into Python that ran."""

    name: str
    kind: str
    """`kernel`, `library` or `python`."""
    function: str
    place: str
    """`file:line` of the source, or the binding if the line is unknown."""
    start: float
    """Seconds since the start of the call."""
    seconds: float
    nbytes: int
    """The minimum of bytes that it must move; 0 if unknown."""
    flops: int
    """Floating-point operations; 0 if unknown."""
    turn: int
    """The index of the repeated call, from 0."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a profile: medians over the repeated calls."""

    name: str
    calls: int
    """The number of runs in one call of the function."""
    seconds: float
    nbytes: int
    flops: int

    @property
    def gigabytes(self) -> float:
        """GB/s."""
        return self.nbytes / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gigaflops(self) -> float:
        """GFLOP/s."""
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True)
class Profile:
    """The measured calls of a function. `str` is the table by kernel."""

    function: str
    seconds: float
    """The median time of a call, including the clocks."""
    repeat: int
    events: tuple[Event, ...]

    def by_kernel(self) -> list[Row]:
        """Kernels, library functions and Python functions, longest first; the machine's own time is last."""
        rows = self.rows_by(lambda event: event.name)
        rest = max(0.0, self.seconds - sum(row.seconds for row in rows))
        return [*rows, Row(MACHINE, 0, rest, 0, 0)]

    def by_line(self) -> str:
        """The table by line of the source."""
        return self._table(self._lines(), "line")

    def _lines(self) -> list[Row]:
        return self.rows_by(lambda event: event.place)

    def __str__(self) -> str:
        return self._table(self.by_kernel(), "kernel")

    def as_json(self) -> dict[str, Any]:
        """Both tables and the machine's limits, for `json.dumps`. Seconds, bytes and operations are per call of the
        function. `peak_flops` is 0 if it is unknown."""

        def plain(rows: Sequence[Row]) -> list[dict[str, Any]]:
            return [
                {
                    "name": row.name,
                    "calls": row.calls,
                    "seconds": row.seconds,
                    "bytes": row.nbytes,
                    "flops": row.flops,
                }
                for row in rows
            ]

        return {
            "function": self.function,
            "seconds": self.seconds,
            "repeat": self.repeat,
            "limits": {"copy_bytes": copy_bandwidth(), "peak_flops": peak_flops()},
            "kernels": plain(self.by_kernel()),
            "lines": plain(self._lines()),
        }

    def chrome_trace(self) -> dict[str, Any]:
        """All calls as the JSON object that chrome://tracing and Perfetto read. Times in µs."""
        offset, events = 0.0, []
        for turn in range(self.repeat):
            mine = [event for event in self.events if event.turn == turn]
            end = max((event.start + event.seconds for event in mine), default=0.0)
            events.append(_trace_event(self.function, "call", offset, end, {}))
            for event in mine:
                facts = {"function": event.function, "place": event.place, "bytes": event.nbytes}
                facts["flops"] = event.flops
                start = offset + event.start
                events.append(_trace_event(event.name, event.kind, start, event.seconds, facts))
            offset += end * 1.02
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write `chrome_trace` to a file. Raises UsageError (`file-write`)."""
        write_text(path, json.dumps(self.chrome_trace()))

    def rows_by(self, key: Callable[[Event], str]) -> list[Row]:
        """The events grouped by a key, longest first; medians over the repeated calls."""
        turns: dict[str, list[list[Event]]] = defaultdict(lambda: [[] for _ in range(self.repeat)])
        for event in self.events:
            turns[key(event)][event.turn].append(event)
        rows = [
            Row(
                name,
                len(seen[-1]),
                float(np.median([sum(event.seconds for event in turn) for turn in seen])),
                sum(event.nbytes for event in seen[-1]),
                sum(event.flops for event in seen[-1]),
            )
            for name, seen in turns.items()
        ]
        return sorted(rows, key=lambda row: -row.seconds)

    def _table(self, rows: Sequence[Row], heading: str) -> str:
        copy, peak = copy_bandwidth(), peak_flops()
        limits = f"copying memory reaches {copy / 1e9:.0f} GB/s here"
        if peak:
            limits += f", float32 multiply-adds {peak / 1e9:.0f} GFLOP/s"
        unit, factor = ("µs", 1e6) if self.seconds < _SHORT else ("ms", 1e3)
        size, most = (
            ("KB", 1e3) if max((row.nbytes for row in rows), default=0) < 1e6 else ("MB", 1e6)
        )

        def of_copy(row: Row) -> str:
            share = row.gigabytes * 1e9 / copy
            return "" if not row.nbytes else "cache" if share > 1 else f"{share:.0%}"

        columns: list[tuple[str, Callable[[Row], str]]] = [
            (heading, lambda row: row.name),
            ("calls", lambda row: f"{row.calls:,}" if row.calls else ""),
            (unit, lambda row: f"{row.seconds * factor:,.2f}"),
            ("share", lambda row: f"{row.seconds / self.seconds:.1%}" if self.seconds else ""),
            (size, lambda row: f"{row.nbytes / most:,.2f}" if row.nbytes else ""),
            ("GB/s", lambda row: f"{row.gigabytes:.1f}" if row.nbytes else ""),
            ("of copy", of_copy),
        ]
        if any(row.flops for row in rows):
            columns.append(("GFLOP/s", lambda row: f"{row.gigaflops:.1f}" if row.flops else ""))
            if peak:
                shares = {id(row): f"{row.gigaflops * 1e9 / peak:.0%}" for row in rows if row.flops}
                columns.append(("of peak", lambda row: shares.get(id(row), "")))
        cells = [[text(row) for _, text in columns] for row in rows]
        title = f"{self.function}: {self.seconds * factor:,.2f} {unit} a call, median of {self.repeat}; {limits}"
        if any(of_copy(row) == "cache" for row in rows):
            title += "\ncache: faster than memory is copied, so these bytes come from the processor's cache"
        return "\n".join([title, *_aligned([[name for name, _ in columns], *cells])])


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column left-aligned and truncated if it is too long, the others right-aligned."""
    names = [[row[0] if len(row[0]) <= _WIDEST else row[0][: _WIDEST - 1] + "…"] for row in cells]
    rows = [[*name, *row[1:]] for name, row in zip(names, cells, strict=True)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
            ]
        ).rstrip()
        for row in rows
    ]


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


@dataclass
class Recorder:
    """Collects the measurements. The functions' source calls its `note`."""

    codes: Mapping[str, FunctionCode]
    kernels: Sequence[str]
    libraries: Sequence[str]
    packed: Sequence[str]
    events: list[Event] = field(default_factory=list[Event])
    began: float = 0.0
    turn: int = 0

    def begin(self, turn: int) -> None:
        """Starts a call."""
        self.turn, self.began = turn, perf_counter()

    def note(
        self,
        function: str,
        at: int,
        start: float,
        args: Iterable[Any],
        flops: int = 0,
        nbytes: int = -1,
    ) -> None:
        """Records that the instruction `at` ran from `start` until now. `flops`: its floating-point operations (-1:
        unknown). `nbytes`: the bytes it moved (-1: those of `args`)."""
        seconds = perf_counter() - start
        code = self.codes[function]
        instr = code.code[at]
        name, kind = self._called(instr)
        where = code.place(instr)
        place = f"{where.file}:{where.line}" if where.file else where.binding
        if nbytes < 0:
            nbytes = sum(map(_nbytes, args))
        self.events.append(
            Event(
                printable(name),
                kind,
                printable(function),
                printable(place or function),
                start - self.began,
                seconds,
                nbytes,
                max(0, flops),
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
            case Copy() | Read():
                return type(instr).__name__.lower(), "copy"
            case _:
                return type(instr).__name__, "python"


def _nbytes(value: Any) -> int:
    """The size of an argument: the bytes of a tensor, 0 for a number."""
    if isinstance(value, Tensor):
        return value.nbytes
    return 0 if isinstance(value, (int, float)) else record_bytes(value)


class ProfilingEmitter(Emitter):
    """Writes code with a clock around every computation. Kernels run one by one instead of as a row or graph."""

    records: ClassVar[bool] = False

    def may_precede(self, at: int, instr: Instr) -> bool:
        return False

    def launch(self, launches: Sequence[Any]) -> None:
        for launch in launches:
            self.at = launch.at
            self.emit("clock_began = clock()")
            super().launch([launch])
            tensors = ", ".join([*launch.tensors, ""])
            instr = self.code.code[launch.at]
            costs = ""
            if isinstance(instr, Kernel):
                costs = f", {self.expr(instr.flops)}, {self.expr(instr.nbytes)}"
                if self.slot_of(instr) not in self.info.hosts:
                    self.emit(f"launched({instr.index})")
            self.emit(
                f"note({self.constant(self.code.name)}, {launch.at}, clock_began, ({tensors}){costs})"
            )

    def instr(self, at: int, instr: Instr, scope: Scope) -> None:
        if not isinstance(instr, _BETWEEN):
            super().instr(at, instr, scope)
            return
        self.emit("clock_began = clock()")
        super().instr(at, instr, scope)
        self.emit(f"note({self.constant(self.code.name)}, {at}, clock_began, ())")
