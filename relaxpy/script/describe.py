"""Python values in messages: a description without memory addresses."""

from __future__ import annotations

import types
from typing import Any

LONGEST = 60
"""Maximum number of characters of a value in a message."""
_NAMESPACES = {"relaxpy.script.ir": "I", "relaxpy.script.relax": "R", "relaxpy.script.tir": "T"}


def describe(value: Any) -> str:
    """A short description of a value, for a message."""
    if isinstance(value, types.ModuleType):
        return _NAMESPACES.get(value.__name__, f"the module {value.__name__}")
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)):
        name = getattr(value, "__name__", type(value).__name__)
        ours = (getattr(value, "__module__", None) or "").startswith("relaxpy.")
        return f"the function {name} of the script" if ours else f"{name} (of Python)"
    if isinstance(value, (tuple, list)):
        text = ", ".join(map(describe, value))
        text = f"[{text}]" if isinstance(value, list) else f"({text}{',' * (len(value) == 1)})"
    elif isinstance(value, int) and value.bit_length() > LONGEST:
        text = f"an integer of {value.bit_length()} bits"  # Python refuses to print very long ones
    else:
        text = repr(value)
    return text if len(text) < LONGEST and " at 0x" not in text else f"a {type(value).__name__}"
