"""Errors for programs that TVM refuses to compile."""

from __future__ import annotations

from relaxpy.errors import BuildError
from relaxpy.target import Target
from relaxpy.tir.tvm import tirx


def refused(error: Exception, name: str, target: Target, func: tirx.PrimFunc) -> BuildError:
    """The error for a kernel that TVM refuses, which is shown under this name."""
    return BuildError(
        "kernel-compile",
        f'the kernel "{name}" does not compile for {target}: {reason_of(error)}',
        notes=(f"the tensor program:\n{func.script()}",),
    )


def reason_of(error: Exception) -> str:
    """The last informative line of a TVM error, which is preceded by a C++ trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
