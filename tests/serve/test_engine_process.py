"""The process of an engine by itself: its end."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from relaxpy.serve.messages import frame


def test_ends_while_it_loads_if_nobody_is_there(tmp_path: Path) -> None:
    """A process whose parent is killed has an input that ends."""
    mark = tmp_path / "loads"
    start = {"factory": "tests.serve.fake_model:slow_engine", "options": {"mark": str(mark)}}
    command = [sys.executable, "-m", "relaxpy.serve.engine_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        try:
            process.stdin.write(frame(start))
            process.stdin.flush()
            patience = time.monotonic() + 60
            while not mark.exists():
                assert process.poll() is None
                assert time.monotonic() < patience
                time.sleep(0.05)
            process.stdin.close()
            assert process.wait(30) == 1
        finally:
            process.kill()
