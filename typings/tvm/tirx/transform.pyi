"""Each name is a function that makes a pass."""

from typing import Any

def __getattr__(name: str) -> Any: ...
