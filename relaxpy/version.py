"""The version of relaxpy, which the package metadata also reads, and the time at which this process loaded it."""

from __future__ import annotations

import time

__version__ = "0.1.0"

LOADED_AT = time.time()
"""The time at which relaxpy was first imported, comparable with file times: a source file changed later may differ from
the running code."""
