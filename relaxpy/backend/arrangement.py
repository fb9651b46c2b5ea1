"""The result of a schedule rule for a program that it recognises.

Matching a program is cheap; a rule writes the loops only on request. Before that it declares the memory that the loops
will need: buffers passed between parts of the kernel that run one after the other, each on all threads. The graph
allocates them (`relaxpy.backend.schedule_tensor_programs`), so that they are part of the memory plan. Per-thread memory
of a task stays in the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from relaxpy.tir.programs.loops import Buffer
from relaxpy.tir.tvm import tirx


@dataclass(frozen=True)
class Arrangement:
    """The schedule of a program."""

    write: Callable[[], tirx.PrimFunc]
    """Builds the function, with its parallel loops marked and with allocations of all the memory that it needs."""
    workspaces: Sequence[Buffer] = ()
    """The buffers in that memory that parts of the kernel pass to each other: intermediates of the program that are
    stored in memory, and buffers of the rule's own. Their shapes mention only variables of the program's parameters.
    The same program with an intermediate as a parameter gets the same schedule, without that workspace."""
    family: str = ""
    """What all programs have in common that one tuning record is for (`relaxpy.runtime.tuned`): dtypes, extents that
    are constants, the order of elements in memory, but no symbolic size. "" for none."""


@dataclass(frozen=True)
class Rule:
    """A schedule rule for programs of some kind."""

    name: str
    arrange: Callable[[tirx.PrimFunc, Any], Arrangement | None]
    """Matches a program for a target of the backend that owns the rule. Returns None for a program of another kind."""
