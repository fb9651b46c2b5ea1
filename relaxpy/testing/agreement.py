"""Do two ways to compute agree? Values of the virtual machine beside those of the interpreter,
errors included."""

from __future__ import annotations

from typing import Any

import numpy as np


def disagreement(got: Any, wanted: Any, atol: float = 1e-6, rtol: float = 1e-4) -> str:
    """How `got` differs from `wanted`, in words; "" if it does not. Tensors may be anything with
    `.numpy()`.

    Integers, shapes, dtypes and the number of fields must be the same; floats may differ by `atol
    + rtol * |wanted|`, NaN and infinities not at all; an error agrees with an error of the same
    class.
    """
    if isinstance(wanted, Exception) or isinstance(got, Exception):
        same = type(wanted) is type(got)
        return "" if same else f"{_short(got)} where {_short(wanted)} was wanted"
    if isinstance(wanted, tuple):
        if not isinstance(got, tuple) or len(got) != len(wanted):
            return f"{_short(got)} where a tuple of {len(wanted)} was wanted"
        parts = (disagreement(g, w, atol, rtol) for g, w in zip(got, wanted, strict=True))
        return next((f"field {i}: {part}" for i, part in enumerate(parts) if part), "")
    a, b = _array(got), _array(wanted)
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype}{list(a.shape)} where {b.dtype}{list(b.shape)} was wanted"
    if b.dtype.kind in "biu":
        wrong = a != b
    else:
        a, b = a.astype(np.float64), b.astype(np.float64)
        wrong = ~np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    if not wrong.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{int(wrong.sum())} of {wrong.size} elements differ, first {place}: {a[place]} and {b[place]}"


def _array(value: Any) -> np.ndarray:
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def _short(value: Any) -> str:
    text = f"{type(value).__name__}: {value}" if isinstance(value, Exception) else repr(value)
    return text if len(text) < 500 else text[:500] + "…"
