"""Half-precision on numpy: float16 and bfloat16 are computed as float32 and rounded once, as the
tensor programs do."""

from __future__ import annotations

from typing import Any

import numpy as np

from relaxpy.ir.dtype import DType


def sum_dtype(dtype: DType) -> DType:
    """The accumulation dtype of a mean of `dtype`: float32 for narrower floats, 64 bits for integers."""
    if dtype.is_int:
        return DType("uint64" if dtype == "uint64" else "int64")
    return DType("float32") if dtype.is_narrow else dtype


def quotient(total: Any, count: Any) -> Any:
    """`total / count`; integers are rounded toward 0. Counts are positive."""
    if total.dtype.kind not in "iu":
        return total / count.astype(total.dtype)
    count = count.astype(total.dtype)
    down, rest = total // count, total % count
    return down + ((total < 0) & (rest != 0)).astype(total.dtype)


def widened(x: np.ndarray) -> np.ndarray:
    """`x` converted to float32 if its dtype is narrower."""
    return x.astype(np.float32) if DType(x.dtype).is_narrow else x


def narrowed(value: Any, like: np.ndarray) -> np.ndarray:
    """`value` as an array of the dtype of `like`."""
    return np.asarray(value).astype(like.dtype)


def converted(x: np.ndarray, dtype: str) -> np.ndarray:
    """`x` as `dtype`. Float to integer truncates toward zero and saturates, and NaN becomes 0; numpy leaves these cases
    undefined."""
    source, target = DType(x.dtype), DType(dtype)
    if source.is_packed:
        x = x.astype(source.unpacked.numpy)
    if not (source.is_float and target.is_int):
        return x.astype(target.numpy)
    wide, (least, most) = widened(x), target.limits
    high, low = wide >= wide.dtype.type(most), wide <= wide.dtype.type(least)
    inside = np.where(high | low | np.isnan(wide), 0, wide).astype(target.numpy)
    return np.where(high, most, np.where(low, least, inside)).astype(target.numpy)
