"""Calls of functions with the results that they are to have, as files. Reading them needs numpy, and `ml_dtypes` only
for a call with numbers of its types.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ExpectedCall:
    """A call, and what it must give."""

    label: str
    function: str
    args: tuple[Any, ...]
    """Arrays, numbers, and tuples of these."""
    expected: Any
    allowed: Any
    """Like `expected`, for each array the largest difference of each element."""

    def wrong(self, function: Callable[..., Any]) -> str:
        """How the results of a function differ; "" if they do not."""
        return _difference(function(*self.args), self.expected, self.allowed)


def save_calls(path: Path, calls: Sequence[ExpectedCall]) -> None:
    """Write the calls of a program."""
    stored = [_stored((c.label, c.function, c.args, c.expected, c.allowed)) for c in calls]
    path.write_bytes(zlib.compress(pickle.dumps(stored)))


def load_calls(path: Path) -> list[ExpectedCall | str]:
    """The calls of a file that `save_calls` wrote; in place of one that cannot be made here the reason. Load only files
    of your own: they are pickled."""
    found: list[ExpectedCall | str] = []
    for stored in pickle.loads(zlib.decompress(path.read_bytes())):
        try:
            found.append(ExpectedCall(*_restored(stored)))
        except ImportError as error:
            found.append(f"{stored[1][0]}: {error}")
    return found


def _stored(value: Any) -> Any:
    """Arrays as bytes with a dtype's name."""
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, tuple):
        return "tuple", tuple(map(_stored, value))
    return "value", value


def _restored(stored: Any) -> Any:
    from relaxpy.runtime.dtype import to_numpy

    kind, value, *rest = stored
    if kind == "array":
        shape, data = rest
        return np.frombuffer(data, to_numpy(value)).reshape(shape).copy()
    return tuple(map(_restored, value)) if kind == "tuple" else value


def _difference(got: Any, expected: Any, allowed: Any) -> str:
    if isinstance(expected, tuple):
        if not isinstance(got, tuple) or len(got) != len(expected):
            return f"{type(got).__name__} where a tuple of {len(expected)} was expected"
        parts = map(_difference, got, expected, allowed)
        return next((f"field {i}: {part}" for i, part in enumerate(parts) if part), "")
    a = np.asarray(got.numpy() if hasattr(got, "numpy") else got)
    b = np.asarray(expected)
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return f"{a.dtype}{[*a.shape]} where {b.dtype}{[*b.shape]} was expected"
    if b.dtype.kind in "biu":
        wrong = (a != b) & (allowed == 0)
    else:
        one, other = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(all="ignore"):
            near = np.abs(one - other) <= allowed
        equal = (one == other) | (np.isnan(one) & np.isnan(other))
        wrong = ~(near | equal | np.isinf(allowed))
    if not wrong.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    count = int(wrong.sum())
    return f"{count} of {wrong.size} elements differ, first {place}: {a[place]} and {b[place]}"
