"""Work in a process of its own: what went wrong is its last line, or why it was ended."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from relaxpy.runtime.child_process import problem_of


def said(code: str, watch: Any = lambda process: "") -> str:
    return problem_of([sys.executable, "-c", code], watch)


def test_what_went_wrong() -> None:
    assert said("pass") == ""
    assert said("import sys; print('first\\nlast\\n', file=sys.stderr)") == ""
    assert said("import sys; sys.exit('first\\nlast\\n')") == "last"
    assert said("raise SystemExit(3)") == "exit code 3"
    assert len(said("import sys; sys.exit('x' * 100000)")) == 1000


def test_it_is_ended() -> None:
    seen: list[subprocess.Popen[Any]] = []

    def watch(process: subprocess.Popen[Any]) -> str:
        seen.append(process)
        return "enough"

    assert said("import time; time.sleep(1000)", watch) == "enough"
    assert seen[0].returncode != 0
