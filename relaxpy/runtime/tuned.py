"""Tuning records of families: the fastest measured schedules of kernels on a device, for every program that has such a
kernel.

    {"version": 1, "families": [
     {"target": "cuda -arch=sm_90", "choices": {"narrow_tile": "32x32x64x2"},
      "family": "matmul float16 float16 float32 rows=any depth=4096 columns=4096 along=depth",
      "kernel": "linear", "device": "…", "driver": "…",
      "measured": [{"sizes": {"n": 16}, "microseconds": [2.5, 2.0], "share": 0.5, "teraflops": 1.0}]}]}

A *family* says what kernels have in common that the same schedule suits: types and constant extents, no symbolic size
(`relaxpy.backend.arrangement.Arrangement.family`). `relaxpy tune --measure` makes records beside a GPU, without the
compiler; `--adopt` puts them into the file that comes with a backend (`Backend.tuned`), or into one of the user's
(`relaxpy.build.tuning`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from relaxpy.errors import UsageError
from relaxpy.files import locked, read_regular, write_text

VERSION = 1
_ABOUT = "measured on hardware; `relaxpy tune --adopt` writes this file (docs/tuning.md)"
_MOST_BYTES = 64 << 20
"""No file of records has more bytes."""
_MOST = 1e15
"""Numbers are below this: it is 30 years in microseconds."""
_LONGEST = 4096
"""The most characters of a text in a record."""
Families: TypeAlias = "Mapping[tuple[str, str], FamilyRecord]"
"""Records by `FamilyRecord.key`."""


@dataclass(frozen=True)
class Measurement:
    """The time of a kernel at one size."""

    sizes: Mapping[str, int]
    """The values of the program's symbols."""
    before: float
    """Microseconds of a launch with the schedule that was the compiler's."""
    after: float
    """Microseconds with the record's choices."""
    share: float | None = None
    """The bytes that the kernel must move in the time `after`, as a share of what a copy moves on that device."""
    teraflops: float | None = None
    """Floating-point operations in the time `after`: 10¹² a second."""


@dataclass(frozen=True)
class FamilyRecord:
    """The fastest measured schedule of a family for a target."""

    target: str
    """The text of a target without alternatives."""
    family: str
    choices: Mapping[str, int | str]
    """Values of knobs (`relaxpy.backend.knobs`); empty where the rule's own are the fastest."""
    kernel: str
    """The name of the kernel that was measured."""
    device: str
    """The device's name."""
    driver: str
    """The version of the device's driver."""
    measured: tuple[Measurement, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """The record's key."""
        return self.target, self.family

    @property
    def title(self) -> str:
        """The record in words."""
        return f"{self.family}, measured on {self.device}: {settings(self.choices)}"

    @property
    def ratio(self) -> float:
        """The time after divided by that before, as the geometric mean over the sizes."""
        return mean_ratio((each.before, each.after) for each in self.measured)


def settings(choices: Mapping[str, int | str]) -> str:
    """Values of knobs in words."""
    return ", ".join(f"{name}={value}" for name, value in choices.items()) or "the rule's own"


def mean_ratio(times: Iterable[tuple[float, float]]) -> float:
    """The geometric mean of the second of each pair divided by the first; 1 without any. All are greater than 0."""
    logs = [math.log(after / before) for before, after in times]
    return math.exp(math.fsum(logs) / len(logs)) if logs else 1.0


def record_file(path: str | os.PathLike[str]) -> Any:
    """The data of a file of tuning records, of which only the version is checked. Raises: FileNotFoundError; UsageError
    (`tuning-file`)."""
    try:
        data = json.loads(read_regular(path, _MOST_BYTES))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise refused(path, error) from None
    if not isinstance(data, dict) or cast("dict[str, Any]", data).get("version") != VERSION:
        raise refused(path, f'an object with "version": {VERSION} is expected')
    return cast("dict[str, Any]", data)


def refused(path: str | os.PathLike[str], why: object) -> UsageError:
    """The error for a file that has no tuning records."""
    return UsageError(
        "tuning-file",
        f"{path} is not a file of tuning records: {why}",
        help="delete it, or use another file; `relaxpy tune` creates a new one",
    )


def read_families(path: str | os.PathLike[str]) -> dict[tuple[str, str], FamilyRecord]:
    """The records of families in a file; empty if the file does not exist. Raises: UsageError (`tuning-file`)."""
    try:
        return families_of(record_file(path))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise refused(path, error) from None


def write_families(path: str | os.PathLike[str], records: Families) -> None:
    """Add records to a file, or replace those with the same keys. Raises: UsageError (`tuning-file` for what is there,
    `file-write`)."""
    path = Path(path)
    with locked(path.parent):
        merged = {**read_families(path), **records}
        write_text(path, file_text({"about": _ABOUT, "families": as_json(merged)}))


def file_text(parts: Mapping[str, Any]) -> str:
    """The text of a file of tuning records."""
    return json.dumps({"version": VERSION, **parts}, indent=1, ensure_ascii=False) + "\n"


def as_json(records: Families) -> list[dict[str, Any]]:
    """Records as JSON, in the order of their keys."""
    return [
        {
            "target": record.target,
            "family": record.family,
            "choices": dict(record.choices),
            "kernel": record.kernel,
            "device": record.device,
            "driver": record.driver,
            "measured": [
                {
                    "sizes": dict(each.sizes),
                    "microseconds": [each.before, each.after],
                    "share": each.share,
                    "teraflops": each.teraflops,
                }
                for each in record.measured
            ],
        }
        for _, record in sorted(records.items())
    ]


def families_of(data: Mapping[str, Any]) -> dict[tuple[str, str], FamilyRecord]:
    """The records in the data of a file. Raises: ValueError, which says where the data is wrong."""
    found: dict[tuple[str, str], FamilyRecord] = {}
    for number, item in enumerate(_list(data.get("families", []), "families")):
        place = f"families[{number}]"
        record = _record(_object(item, place), place)
        if record.key in found:
            raise ValueError(f"{place} has the target and family of an earlier record")
        found[record.key] = record
    return found


def _record(item: Mapping[str, Any], at: str) -> FamilyRecord:
    choices = _object(item.get("choices"), f"{at}.choices")
    for name, value in choices.items():
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise ValueError(f"{at}.choices.{name}: a number or a text is expected, got {value!r}")
    texts = {name: _text(item, name, at) for name in ("target", "family", "kernel", "device", "driver")}  # fmt: skip
    measured = _list(item.get("measured"), f"{at}.measured")
    return FamilyRecord(
        **texts,
        choices=dict(choices),
        measured=tuple(_measurement(each, f"{at}.measured[{i}]") for i, each in enumerate(measured)),
    )  # fmt: skip


def _measurement(data: object, at: str) -> Measurement:
    item = _object(data, at)
    sizes = _object(item.get("sizes"), f"{at}.sizes")
    for name, size in sizes.items():
        if type(size) is not int or size < 0:
            raise ValueError(f"{at}.sizes.{name}: a size is expected, got {size!r}")
    times = _list(item.get("microseconds"), f"{at}.microseconds")
    if len(times) != 2 or not all(map(_is_positive, times)):
        raise ValueError(f"{at}.microseconds: two numbers above 0 are expected, got {times!r}")
    rates = {name: item.get(name) for name in ("share", "teraflops")}
    for name, rate in rates.items():
        if rate is not None and not _is_positive(rate):
            raise ValueError(f"{at}.{name}: a number above 0 or null is expected, got {rate!r}")
    return Measurement(dict(sizes), times[0], times[1], **rates)


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and value is not True and 0 < value < _MOST


def _text(item: Mapping[str, Any], name: str, at: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not value or len(value) > _LONGEST or not value.isprintable():
        raise ValueError(f"{at}.{name}: a line of text is expected, got {_short(value)}")
    return value


def _object(value: object, at: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{at}: an object is expected, got {_short(value)}")
    return cast("dict[str, Any]", value)


def _list(value: object, at: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{at}: a list is expected, got {_short(value)}")
    return cast("list[Any]", value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
