"""The version of relaxpy, read by the package metadata too, and when this process loaded it."""

from __future__ import annotations

import time

__version__ = "0.1.0"

LOADED_AT = time.time()
"""When relaxpy was first imported, as files' times are told: a source changed after that may not be what runs."""
