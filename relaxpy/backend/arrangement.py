"""The result of a schedule rule for a program that it recognises.

A rule looks at a program first, which is cheap, and writes its loops when somebody wants them. What it says before that
is the memory that the loops will need: buffers between parts of the kernel that run one after the other, each on all
threads. The graph allocates them (`relaxpy.backend.schedule_tensor_programs`), so that they take part in the memory
plan. Memory of a task, which each thread has for itself, stays in the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from relaxpy.tir.tvm import tirx
from relaxpy.tir.writer.loops import Buffer


@dataclass(frozen=True)
class Arrangement:
    """How a program is to run."""

    write: Callable[[], tirx.PrimFunc]
    """Makes the function, its parallel loops marked, with allocations of all the memory that it needs."""
    workspaces: Sequence[Buffer] = ()
    """Of that memory the buffers that its parts hand on to each other: intermediates of the program that become memory,
    and buffers of the rule's own. Their shapes mention nothing but variables of the program's parameters. The same
    program with an intermediate as a parameter is arranged alike, without that workspace."""


@dataclass(frozen=True)
class Rule:
    """A way to arrange programs of some kind."""

    name: str
    arrange: Callable[[tirx.PrimFunc, Any], Arrangement | None]
    """Given a program and the target, of the backend that has the rule; None for a program of another kind."""
