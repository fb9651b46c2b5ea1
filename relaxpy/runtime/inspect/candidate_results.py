"""The measured times of schedules, line by line, and the records that follow from them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from relaxpy.errors import UsageError
from relaxpy.runtime.inspect.candidates import Archive, Site
from relaxpy.runtime.tuned import FamilyRecord, Measurement, mean_ratio

RESULTS = "results.jsonl"
WORTH = 0.98
"""A schedule is recorded if its time is at most this fraction of the present one's."""
TURNS = -1
"""In place of a schedule's number: the best and the present one in turns."""
Item: TypeAlias = tuple[int, int]
"""The numbers of a kernel and of a schedule."""


def items_of(archive: Archive) -> list[Item]:
    """Everything that is to be measured, in order."""
    return [
        (number, candidate)
        for number, kernel in enumerate(archive.kernels)
        for candidate in (*range(len(kernel.choices)), TURNS)
    ]


@dataclass
class Results:
    """The lines of `results.jsonl`."""

    device: Mapping[str, Any] = field(default_factory=dict[str, Any])
    done: dict[Item, Mapping[str, Any]] = field(default_factory=dict[Item, Mapping[str, Any]])  # fmt: skip
    begun: Item | None = None
    """The last item, if it has no result."""
    begins: int = 0
    """How often an item was begun."""

    @classmethod
    def read(cls, archive: Archive) -> Results:
        """The results so far. A line that was not finished counts as none. Raises: UsageError (`tuning-measure`) for
        results of another archive, and for a file that is none."""
        path = archive.folder / RESULTS
        found = cls()
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        items = {*items_of(archive)} if lines else set()
        for number, line in enumerate(lines, 1):
            try:
                event: dict[str, Any] = json.loads(line)
                if "archive" in event:
                    if event["archive"] != archive.digest:
                        raise ValueError("it is of another archive")
                    found.device = event
                    continue
                first, second = event["begin"] if "begin" in event else event["item"]
                item = (first, second)
                if item not in items or ("item" in event and not _is_result(archive, event)):
                    raise ValueError("it is no result of this archive")
            except (ValueError, TypeError, AttributeError, KeyError) as error:
                raise UsageError(
                    "tuning-measure",
                    f"{path}, line {number}: {error}",
                    help="delete the file to measure everything again",
                ) from None
            found.begun = item if "begin" in event else None
            found.begins += "begin" in event
            if "item" in event:
                found.done[item] = event
        return found

    def times(self, kernel: int, candidate: int) -> Sequence[float]:
        """Microseconds of a schedule at each size; empty if it has none."""
        return self.done.get((kernel, candidate), {}).get("microseconds", ())

    def best(self, kernel: int, count: int) -> int:
        """The schedule of a kernel with the lowest times, by the geometric mean over the sizes."""
        present = self.times(kernel, 0)
        ratios = {
            each: mean_ratio(zip(present, times, strict=True))
            for each in range(count)
            if (times := self.times(kernel, each))
        }
        return min(ratios, key=lambda each: ratios[each], default=0)


def _is_result(archive: Archive, event: Mapping[str, Any]) -> bool:
    """Has a result the times of all sizes, or a reason why it has none?"""
    if "error" in event:
        return isinstance(event["error"], str)
    count = len(archive.kernels[event["item"][0]].sites)
    lists = [event["microseconds"], *([event["before"]] if "before" in event else [])]
    return all(len(times) == count and all(0 < each < math.inf for each in times) for times in lists)  # fmt: skip


def records(archive: Archive, results: Results) -> list[FamilyRecord]:
    """The records of all kernels whose best schedule was compared with the present one."""
    found: list[FamilyRecord] = []
    for number, kernel in enumerate(archive.kernels):
        turns = results.done.get((number, TURNS), {})
        if "microseconds" not in turns:
            continue
        before, after = turns["before"], turns["microseconds"]
        best = results.best(number, len(kernel.choices))
        if mean_ratio(zip(before, after, strict=True)) > WORTH:
            best, after = 0, before
        rate = results.device.get("bytes_per_second")
        measured = [
            Measurement(
                site.sizes, one, other, *_rates(site, other, rate)
            )
            for site, one, other in zip(kernel.sites, before, after, strict=True)
        ]  # fmt: skip
        found.append(
            FamilyRecord(
                archive.target, kernel.family, kernel.choices[best], kernel.kernel,
                results.device["name"], results.device["driver"], tuple(measured),
            )
        )  # fmt: skip
    return found


def _rates(site: Site, microseconds: float, rate: float | None) -> tuple[float | None, float | None]:  # fmt: skip
    share = site.nbytes / (microseconds * 1e-6) / rate if rate and site.nbytes else None
    teraflops = site.flops / microseconds * 1e-6 if site.flops else None
    return share and float(f"{share:.4g}"), teraflops and float(f"{teraflops:.4g}")


def end_last_line(archive: Archive) -> None:
    """Remove a line that a process did not finish."""
    path = archive.folder / RESULTS
    if path.exists():
        with path.open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)


def append(archive: Archive, event: Mapping[str, Any]) -> None:
    """Write a line, which stays if the process ends."""
    with (archive.folder / RESULTS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")
        file.flush()
        os.fsync(file.fileno())
