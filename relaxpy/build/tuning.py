"""Tuning records: the fastest measured schedules of tensor programs, which builds read.

    {"version": 1, "kernels": {"9f2c…": {"kernel": "fused_matmul_add", "choices": {"depth_block": 256},
                                          "microseconds": [41.2, 36.9], "sizes": [{"n": 128}]}}}

The key of a record is a SHA-256 over the program's complete text and the target. So it applies to that program on that
CPU in any module, whether the program allocates its workspaces or receives them. A setting that a rule no longer has is
ignored (`relaxpy.backend.knobs`), so old records do no harm. `relaxpy tune` creates records (`relaxpy.build.tune`).
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relaxpy.backend.knobs import Choices
from relaxpy.errors import UsageError
from relaxpy.files import tuning_path, write_text
from relaxpy.target import Target
from relaxpy.tir.lowering.workspace import source
from relaxpy.tir.prim_func import PrimFunc

VERSION = 1


@dataclass(frozen=True)
class Record:
    """The fastest measured schedule of a tensor program."""

    kernel: str
    """The name of the program when it was measured."""
    choices: Choices
    """Values of knobs; empty if the rule's default was the fastest."""
    microseconds: tuple[float, float] = (0.0, 0.0)
    """The time of a call with the default and with `choices`, each summed over `sizes`."""
    sizes: tuple[Mapping[str, int], ...] = ()
    """The values of the symbols in the measurement."""

    def to_json(self) -> dict[str, Any]:
        """The record as JSON."""
        return {
            "kernel": self.kernel,
            "choices": dict(self.choices),
            "microseconds": list(self.microseconds),
            "sizes": [dict(size) for size in self.sizes],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Reads a record from JSON. Raises KeyError, TypeError or ValueError for invalid data."""
        before, after = map(float, data["microseconds"])
        choices = {str(k): v for k, v in dict(data["choices"]).items() if isinstance(v, (int, str))}
        return cls(str(data["kernel"]), choices, (before, after), tuple(map(dict, data["sizes"])))


@dataclass(frozen=True)
class TuningRecords:
    """Records by key. Immutable: `with_record` returns a new object."""

    records: Mapping[str, Record] = field(default_factory=dict[str, Record])

    @staticmethod
    def default_path() -> Path | None:
        """The file of the user's records, if there may be one."""
        return tuning_path()

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, strict: bool = True) -> TuningRecords:
        """The records in a file; empty if the file does not exist. A damaged file raises UsageError (`tuning-file`), or
        gives a warning and no records if not `strict`."""
        try:
            data = json.loads(Path(path).read_bytes())
            if data["version"] != VERSION:
                raise ValueError(f"version {data['version']}, not {VERSION}")
            return cls({k: Record.from_json(record) for k, record in data["kernels"].items()})
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problem = UsageError(
                "tuning-file",
                f"{path} is not a file of tuning records: {type(error).__name__}: {error}",
                help="delete it, or use another file; `relaxpy tune` creates a new one",
            )
            if strict:
                raise problem from None
            warnings.warn(problem.message, stacklevel=2)
            return cls()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes a file, including records that another process has added to it meanwhile. Raises UsageError
        (`file-write`) or OSError."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        there = TuningRecords.read(path, strict=False).records
        merged = {**there, **self.records}
        data = {"version": VERSION, "kernels": {k: merged[k].to_json() for k in sorted(merged)}}
        write_text(path, json.dumps(data, indent=1) + "\n")

    def with_record(self, key: str, record: Record) -> TuningRecords:
        """These records and one more."""
        return TuningRecords({**self.records, key: record})

    def choices(self, program: PrimFunc, target: Target) -> Choices:
        """The knob values of a program; {} if it was not measured."""
        if not self.records:
            return {}
        record = self.records.get(record_key(program, target))
        return {} if record is None else record.choices


def record_key(program: PrimFunc, target: Target) -> str:
    """The key of a program's record."""
    text = f"{target}\n{source(program).full_text()}"
    return hashlib.sha256(text.encode()).hexdigest()
