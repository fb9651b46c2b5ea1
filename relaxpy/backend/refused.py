"""Errors for programs that TVM refuses to compile."""

from __future__ import annotations

from relaxpy.errors import BuildError
from relaxpy.target import Target
from relaxpy.tir.message import informative
from relaxpy.tir.tvm import tirx


def refused(error: Exception, name: str, target: Target, func: tirx.PrimFunc) -> BuildError:
    """The error for a kernel that TVM refuses, which is shown under this name."""
    return BuildError(
        "kernel-compile",
        f'the kernel "{name}" does not compile for {target}: {informative(error)}',
        notes=(f"the tensor program:\n{func.script()}",),
    )
