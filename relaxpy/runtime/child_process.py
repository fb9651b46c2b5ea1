"""Work in a process of its own, so that what ends it does not end the rest."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

_LONGEST = 1000
"""The most characters of a reason."""


def problem_of(
    command: Sequence[str], watch: Callable[[subprocess.Popen[Any]], str], **options: Any
) -> str:
    """Run a command, and return what went wrong; "" if it ended well. `watch` waits for the process, or returns why it
    is to be ended. Otherwise the last line that it wrote to stderr says what was wrong. `options` are those of
    `subprocess.Popen`."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stderr=errors, **options)
        try:
            if reason := watch(process):
                return reason
            code = process.wait()
        finally:
            process.kill()
            process.wait()
        if code == 0:
            return ""
        errors.seek(0)
        said = [line for line in errors.read().splitlines() if line.strip()]
        return said[-1][:_LONGEST] if said else f"exit code {code}"
