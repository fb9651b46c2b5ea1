"""What was measured to be the best schedule of a tensor program: records that builds read.

    {"version": 1, "kernels": {"9f2c…": {"kernel": "fused_matmul_add", "choices": {"depth_block": 256},
                                          "microseconds": [41.2, 36.9], "sizes": [{"n": 128}]}}}

A record is found by a SHA-256 over the program's complete text and the target: it holds for that program on that
processor, whatever module it is in, and whether it allocates its workspaces or is given them. A setting that a rule no
longer has changes nothing (`relaxpy.backend.knobs`), so old records do no harm. `relaxpy tune` makes records
(`relaxpy.build.tune`).
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
from relaxpy.files import cache_folder, write_text
from relaxpy.target import Target
from relaxpy.tir.lowering.workspace import source
from relaxpy.tir.prim_func import PrimFunc

VERSION = 1


@dataclass(frozen=True)
class Record:
    """The best schedule of a tensor program, as measured."""

    kernel: str
    """What the program was called when it was measured."""
    choices: Choices
    """Settings of knobs; none where the rule's own choice was the best."""
    microseconds: tuple[float, float] = (0.0, 0.0)
    """A call with the rule's own choice, and with these: sums over `sizes`."""
    sizes: tuple[Mapping[str, int], ...] = ()
    """The symbols' values that it was measured at."""

    def to_json(self) -> dict[str, Any]:
        """As in the file."""
        return {
            "kernel": self.kernel,
            "choices": dict(self.choices),
            "microseconds": list(self.microseconds),
            "sizes": [dict(size) for size in self.sizes],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """As it was written. Raises KeyError, TypeError or ValueError for what is no record."""
        before, after = map(float, data["microseconds"])
        choices = {str(k): v for k, v in dict(data["choices"]).items() if isinstance(v, (int, str))}
        return cls(str(data["kernel"]), choices, (before, after), tuple(map(dict, data["sizes"])))


@dataclass(frozen=True)
class TuningRecords:
    """Records by key: immutable, `with_record` gives more."""

    records: Mapping[str, Record] = field(default_factory=dict)

    @staticmethod
    def default_path() -> Path | None:
        """The user's records: `RELAXPY_TUNING` (none if that is empty), else `tuning.json` beside the cache of kernels;
        None where the user has no home."""
        named = os.environ.get("RELAXPY_TUNING")
        if named is not None:
            return Path(named) if named else None
        folder = cache_folder()
        return Path(folder) / "tuning.json" if folder else None

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, strict: bool = True) -> TuningRecords:
        """The records in a file; none where it is not there. A damaged one is UsageError (`tuning-file`), or a warning
        and no records if not `strict`."""
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
                f"{path} does not hold tuning records: {type(error).__name__}: {error}",
                help="delete it, or name another file; `relaxpy tune` writes it anew",
            )
            if strict:
                raise problem from None
            warnings.warn(problem.message, stacklevel=2)
            return cls()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a file, with what another process has added to it meanwhile. Raises UsageError (`file-write`) or
        OSError."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        there = TuningRecords.read(path, strict=False).records
        merged = {**there, **self.records}
        data = {"version": VERSION, "kernels": {k: merged[k].to_json() for k in sorted(merged)}}
        write_text(path, json.dumps(data, indent=1) + "\n")

    def with_record(self, key: str, record: Record) -> TuningRecords:
        """These, and one more."""
        return TuningRecords({**self.records, key: record})

    def choices(self, program: PrimFunc, target: Target) -> Choices:
        """How to set the knobs for a program: {} where nothing was measured."""
        if not self.records:
            return {}
        record = self.records.get(record_key(program, target))
        return {} if record is None else record.choices


def record_key(program: PrimFunc, target: Target) -> str:
    """What a program's record is found by."""
    text = f"{target}\n{source(program).full_text()}"
    return hashlib.sha256(text.encode()).hexdigest()
