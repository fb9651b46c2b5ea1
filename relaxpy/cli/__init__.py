"""The command `relaxpy`. Each command is in a file of its own; `main.py` is the entry point and reports failures."""

from __future__ import annotations

import time

STARTED = time.perf_counter()
"""The time when the command started, by `time.perf_counter`. Imports after it count as waiting time of the user."""
