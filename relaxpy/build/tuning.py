"""Tuning records: the fastest measured schedules of tensor programs, which builds read.

    {"version": 1, "kernels": {"9f2c…": {"kernel": "fused_matmul_add", "choices": {"depth_block": 256},
                                          "microseconds": [41.2, 36.9], "sizes": [{"n": 128}]}}}

The key of a record is a SHA-256 over the program's complete text and the target. So it applies to that program on that
CPU in any module, whether the program allocates its workspaces or receives them. A setting that a rule no longer has is
ignored (`relaxpy.backend.knobs`), so old records do no harm. `relaxpy tune` creates records (`relaxpy.build.tune`).

A file may have records of families, too (`relaxpy.runtime.tuned`), which apply to programs without a record of their
own. Those that come with a backend are in every set of records of its targets.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from relaxpy.backend.knobs import Choices
from relaxpy.backend.registry import backend_of
from relaxpy.errors import UsageError
from relaxpy.files import locked, tuning_path, write_text
from relaxpy.runtime.tuned import (
    FamilyRecord,
    as_json,
    families_of,
    file_text,
    read_families,
    record_file,
    refused,
    settings,
)
from relaxpy.target import Target
from relaxpy.tir.lowering.workspace import source
from relaxpy.tir.prim_func import PrimFunc


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

    @property
    def title(self) -> str:
        """The record in words."""
        return f"its own: {settings(self.choices)}"

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
    families: Mapping[tuple[str, str], FamilyRecord] = field(
        default_factory=dict[tuple[str, str], FamilyRecord]
    )

    @staticmethod
    def default_path() -> Path | None:
        """The file of the user's records, if there may be one."""
        return tuning_path()

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, strict: bool = True) -> TuningRecords:
        """The records in a file; empty if the file does not exist. A damaged file raises UsageError (`tuning-file`), or
        gives a warning and no records if not `strict`."""
        try:
            data = record_file(path)
            families = families_of(data)
            kernels = data.get("kernels", {}) if families else data["kernels"]
            return cls({k: Record.from_json(record) for k, record in kernels.items()}, families)
        except FileNotFoundError:
            return cls()
        except (UsageError, ValueError, KeyError, TypeError, AttributeError) as error:
            problem = error if isinstance(error, UsageError) else refused(path, _reason(error))
            if strict:
                raise problem from None
            warnings.warn(problem.message, stacklevel=2)
            return cls()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes a file, including records that another process has added to it meanwhile. Raises UsageError
        (`file-write`) or OSError."""
        path = Path(path)
        with locked(path.parent):
            there = TuningRecords.read(path, strict=False)
            merged = {**there.records, **self.records}
            parts: dict[str, Any] = {"kernels": {k: merged[k].to_json() for k in sorted(merged)}}
            if families := {**there.families, **self.families}:
                parts["families"] = as_json(families)
            write_text(path, file_text(parts))

    def with_record(self, key: str, record: Record) -> TuningRecords:
        """These records and one more."""
        return replace(self, records={**self.records, key: record})

    def with_shipped(self, target: Target) -> TuningRecords:
        """These records, and for other families those that come with the target's backend. Raises: UsageError
        (`tuning-file`)."""
        path = backend_of(target).tuned
        shipped = {} if path is None else read_families(path)
        return replace(self, families={**shipped, **self.families}) if shipped else self

    def record(self, program: PrimFunc, target: Target) -> Record | FamilyRecord | None:
        """The record that applies to a program: its own, or else that of its family; None if there is none. The target
        has no alternatives."""
        if self.records and (own := self.records.get(record_key(program, target))) is not None:
            return own
        text = str(target)
        if not any(text == each for each, _ in self.families):
            return None
        return self.families.get((text, backend_of(target).family(program.func, target)))


def _reason(error: Exception) -> str:
    return str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"


def record_key(program: PrimFunc, target: Target) -> str:
    """The key of a program's record."""
    text = f"{target}\n{source(program).full_text()}"
    return hashlib.sha256(text.encode()).hexdigest()
