"""Targets of GPUs: `KIND [-threads=N] [-max-buffers=N] [-batch-invariant=1]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from relaxpy.target import Target, fail, options_of
from relaxpy.tir.tvm import tvm

_MOST = 256
"""The largest group size that nearly every device supports."""
_FEWEST_BUFFERS = 4


@dataclass(frozen=True)
class WarpFunctions:
    """Functions of a device's language for tiles of 16-bit numbers in shared memory and in the registers of a warp, 32
    threads that run in lockstep."""

    copy: str
    """(to, from, exists): copy 16 bytes from memory to shared memory, later; zeros if they do not exist."""
    copied: str
    """(): wait for all copies of the thread."""
    commit: str
    """(): make a group of the copies that the thread has begun since its last group."""
    copied_but: Mapping[int, str]
    """(): wait for all groups of copies of the thread but so many, the latest."""
    squares: str
    """(words, row): read four squares of 8 × 8 numbers from shared memory, of which each thread gives a row of 16
    bytes: 8 threads for each square. Thread t gets the neighbours 2 (t % 4) and 2 (t % 4) + 1 of row t // 4 of each, in
    a word."""
    turned: str
    """(words, row): the same of transposed squares."""
    largest: str
    """(number): the largest number of four neighbouring threads."""
    total: str
    """(number): the sum of the numbers of four neighbouring threads."""
    pair: Mapping[str, str]
    """(first, second): two float32 numbers, rounded to a type, in a word. By the type."""


@dataclass(frozen=True)
class GpuTarget(Target):
    """Any device of a kind."""

    common: ClassVar[tuple[str, ...]] = ("threads", "max-buffers", "batch-invariant")
    """The options of all kinds."""
    default_threads: ClassVar[int] = 64
    """A multiple of the number of threads that devices run in lockstep."""
    default_buffers: ClassVar[int]
    """The number of buffers that every device of the kind accepts."""
    barriers_in_branches: ClassVar[bool] = True
    """Can a barrier be in a branch that all threads of a group take?"""
    vector_bytes: ClassVar[int] = 0
    """The size of a load of several neighbours; 0: each element has a load of its own."""
    tensor_cores: ClassVar[Mapping[str, str]] = {}
    """The functions that multiply 16 × 8 words by 8 × 8 words by all threads of a warp
    (`relaxpy.backend.gpu.schedule.tensor_cores`), by the type of the factors."""
    warp_functions: ClassVar[WarpFunctions | None] = None
    """Of devices that have `tensor_cores` for 16-bit numbers."""

    kind: str
    threads: int
    """Threads per group."""
    max_buffers: int
    """The most buffers per launch."""
    batch_invariant: bool = False
    """Are the numbers of a row to the bit those that it has alone, however many rows a program computes? Otherwise a
    product may sum few rows in another order than many."""

    @classmethod
    def options(cls, text: str, threads: int, buffers: int) -> dict[str, Any]:
        """The options of a target's text, with these defaults, for kinds that have no others. Raises: BuildError
        (`target-option`)."""
        return cls.values(options_of(text, cls.common, "-threads=64"), threads, buffers)

    @staticmethod
    def values(options: Mapping[str, str], threads: int, buffers: int) -> dict[str, Any]:
        """The options that all kinds have, with these defaults. Raises: BuildError (`target-option`)."""
        given = options.get("threads", str(threads))
        if not given.isdecimal() or not 1 <= int(given) <= _MOST:
            fail("target-option", f"-threads must be a number from 1 to {_MOST}, got {given}")
        most = options.get("max-buffers", str(buffers))
        if not most.isdecimal() or int(most) < _FEWEST_BUFFERS:
            fail("target-option", f"-max-buffers must be at least {_FEWEST_BUFFERS}, got {most}")
        invariant = options.get("batch-invariant", "0")
        if invariant not in ("0", "1"):
            fail("target-option", f"-batch-invariant must be 0 or 1, got {invariant}")
        numbers = {"threads": int(given), "max_buffers": int(most)}
        return {**numbers, "batch_invariant": invariant == "1"}

    def __str__(self) -> str:
        threads = "" if self.threads == self.default_threads else f" -threads={self.threads}"
        is_default = self.max_buffers == self.default_buffers
        buffers = "" if is_default else f" -max-buffers={self.max_buffers}"
        return self.kind + threads + buffers + " -batch-invariant=1" * self.batch_invariant

    @property
    def group_size(self) -> int:
        """Threads per group of schedules whose threads work together: a power of two."""
        return 1 << (self.threads.bit_length() - 1)

    @property
    def max_buffers_per_launch(self) -> int:
        return self.max_buffers

    @property
    def is_host_loadable(self) -> bool:
        """Source text can be loaded anywhere; whether a device exists is known when a machine is created."""
        return True

    def to_tvm(self) -> tvm.target.Target:
        """The TVM target that lowering is done for."""
        return tvm_target(self.lowered_for)

    @property
    def lowered_for(self) -> str:
        """The kind of TVM's target."""
        return self.kind


@cache
def tvm_target(kind: str, **facts: Any) -> Any:
    """TVM's target of a kind."""
    return tvm.target.Target({"kind": kind, "max_num_threads": _MOST, **facts})
