"""The command `relaxpy`: one file a command, `main.py` puts them together and turns failures into one message."""

from __future__ import annotations

import time

STARTED = time.perf_counter()
"""When the command began, by `time.perf_counter`: what is loaded afterwards is time that its user waits."""
