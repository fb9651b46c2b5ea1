"""Compares values of the virtual machine with those of the interpreter, including errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from relaxpy.errors import RelaxError
from relaxpy.op import OPS


def disagreement(
    got: Any,
    wanted: Any,
    atol: float = 1e-6,
    rtol: float = 1e-4,
    others: Callable[[], Sequence[Any]] = tuple,
    private: Collection[str] = (),
    made: Collection[str] = (),
    failures: Callable[[], Sequence[RelaxError]] = tuple,
) -> str:
    """Describes how `got` differs from `wanted`; "" if they agree. Tensors may be any objects with `.numpy()`.

    Integers, shapes, dtypes and the number of fields must be equal. Floats may differ by `atol + rtol * |wanted|`
    (half-precision floats by their own precision), but NaN and infinities must agree. An error agrees with an error of
    the same class, code and message, up to the names of unknown sizes. A formula that overflows (`shape-arithmetic`)
    agrees with any error, and any error with one of `failures()`: those that the program has if its bindings are
    evaluated in another order, since a pass may move what does not depend on one another. Functions are not compared.
    An error in a function of `private`, or in one defined inside it, may be raised in the function that it was inlined
    into, with the names of sizes there; one that was raised in any function may be raised in a function of `made`,
    those that a pass made of parts of others.

    `others` returns the results of perturbed runs (`perturbation`); it is called only if there is a difference. An
    element may differ from `wanted` by the spread of those results, times `MAGNIFIED`. An integer that is not the same
    in all runs may have any value, and so may a result whose shape differs in some run or that is an error there.
    """
    if isinstance(wanted, Exception) or isinstance(got, Exception):
        moved = _same_elsewhere(got, wanted, private) or _same_elsewhere(wanted, got, made)
        if moved or _error(got) == _error(wanted):
            return ""
        if overflows(got) and isinstance(wanted, RelaxError):
            return ""  # it may come before the check that rejects a size
        both = isinstance(got, RelaxError) and isinstance(wanted, RelaxError)
        if both and _error(got) in map(_error, failures()):
            return ""
        stable = all(_error(other) == _error(wanted) for other in others())
        return f"{_short(got)} where {_short(wanted)} was expected" if stable else ""
    if isinstance(wanted, tuple):
        if not isinstance(got, tuple) or len(got) != len(wanted):
            return _unless_unstable(
                f"{_short(got)} where a tuple of {len(wanted)} was expected", wanted, others
            )
        for i, (g, w) in enumerate(zip(got, wanted, strict=True)):
            part = disagreement(g, w, atol, rtol, lambda i=i: [_field(o, i) for o in others()])
            if part:
                return f"field {i}: {part}"
        return ""
    if callable(wanted) and callable(got):
        return ""
    a, b = _array(got), _array(wanted)
    if a.shape != b.shape or a.dtype != b.dtype:
        text = f"{a.dtype}{list(a.shape)} where {b.dtype}{list(b.shape)} was expected"
        return _unless_unstable(text, wanted, others)
    wrong = _wrong(a, b, atol, rtol)
    if not wrong.any():
        return ""
    runs = [_array(other) for other in others()]
    if any(run.shape != b.shape for run in runs):
        return ""
    if runs:
        wrong &= ~_within(a, b, runs)
    if not wrong.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{int(wrong.sum())} of {wrong.size} elements differ, first {place}: {a[place]} and {b[place]}"


def allowance(
    wanted: Any, others: Sequence[Any], atol: float = 1e-6, rtol: float = 1e-4
) -> np.ndarray:
    """How far each element of a result may be from `wanted` by the rules of `disagreement`, for comparisons in another
    process: infinity for any value. `others` are the results of perturbed runs."""
    b = _array(wanted)
    if any(_kind(other) != _kind(wanted) for other in others):
        return np.full(b.shape, np.inf)
    runs = [_array(other) for other in others]
    if b.dtype.kind in "biu":
        return np.where(
            np.any([np.zeros_like(b, bool), *(run != b for run in runs)], axis=0), np.inf, 0.0
        )
    exact = b.astype(np.float64)
    with np.errstate(all="ignore"):
        finite = np.where(np.isfinite(exact), np.abs(exact), 0)
    allowed = atol + max(rtol, _least(b.dtype)) * finite
    if not runs:
        return allowed
    spread, unstable = _spread(exact, runs)
    return np.where(unstable, np.inf, np.maximum(allowed, np.nan_to_num(MAGNIFIED * spread)))


MAGNIFIED = 16.0
"""The allowed distance of a correct result from the expected one, as a multiple of the spread of perturbed runs."""
NOISE = {
    "float64": 1e-13,
    "float32": 2e-6,
    "float16": 4e-3,
    "bfloat16": 3e-2,
    "float8_e4m3fn": 0.25,
    "float8_e5m2": 0.5,
}
"""The relative error of one operator in a correct result, by dtype."""


def perturbation(seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function that changes each float of an array by about the error of one operator: an argument `perturb`
    of `relaxpy.testing.interpret`."""
    rng = np.random.default_rng(seed)

    def perturb(array: np.ndarray) -> np.ndarray:
        level = NOISE.get(str(array.dtype))
        if level is None or not array.size:
            return array
        with np.errstate(all="ignore"):
            exact = array.astype(np.float64)
            size = np.abs(exact)
            finite = np.where(np.isfinite(size), size, 0)
            scale = finite + min(float(finite.mean()), 1.0)
            moved = exact + rng.uniform(-level, level, array.shape) * scale
            return np.asarray(moved, array.dtype)  # numpy makes a number of an array without axes

    return perturb


def perturb_value(value: Any, perturb: Callable[[np.ndarray], np.ndarray]) -> Any:
    """An argument with its floats perturbed."""
    if isinstance(value, np.ndarray):
        return perturb(value)
    if type(value) is tuple:
        return tuple(perturb_value(item, perturb) for item in value)
    return value


def _wrong(a: np.ndarray, b: np.ndarray, atol: float, rtol: float) -> np.ndarray:
    if b.dtype.kind in "biu":
        return a != b
    rtol = max(rtol, _least(b.dtype))
    a, b = a.astype(np.float64), b.astype(np.float64)
    return ~np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)


def _least(dtype: np.dtype[Any]) -> float:
    """The relative difference that the precision of a dtype allows."""
    return NOISE.get(str(dtype), 0.0) if dtype.itemsize == 2 else 0.0


def _within(a: np.ndarray, b: np.ndarray, runs: Sequence[np.ndarray]) -> np.ndarray:
    """Which elements differ no more than those of perturbed runs."""
    if b.dtype.kind in "biu":
        return np.any([run != b for run in runs], axis=0)
    a, b = a.astype(np.float64), b.astype(np.float64)
    spread, unstable = _spread(b, runs)
    with np.errstate(all="ignore"):
        return unstable | (np.abs(a - b) <= MAGNIFIED * spread)


def _spread(b: np.ndarray, runs: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """How far perturbed runs are from the expected floats at most, and where any value is accepted: where some run is
    NaN or infinite and the reference is not, or the reverse."""
    floats = [run.astype(np.float64) for run in runs]
    with np.errstate(all="ignore"):
        spread = np.max([np.abs(run - b) for run in floats], axis=0)
    return spread, np.any([np.isfinite(run) != np.isfinite(b) for run in floats], axis=0)


def _unless_unstable(text: str, wanted: Any, others: Callable[[], Sequence[Any]]) -> str:
    """Returns `text`, unless a perturbed run gave another kind of value."""
    return text if all(_kind(other) == _kind(wanted) for other in others()) else ""


def _kind(value: Any) -> Any:
    if isinstance(value, Exception):
        return "error"
    if isinstance(value, tuple):
        return tuple(map(_kind, value))
    array = _array(value)
    return array.dtype, array.shape


def _field(value: Any, index: int) -> Any:
    return value[index] if isinstance(value, tuple) and index < len(value) else value


_UNKNOWN_SIZE = re.compile(r"\b\w+?(_\d+)\b")
"""A symbol for a size without a name in annotations: `x_0`, named after the first variable with the tensor, which may
also be `y_0`."""


_DIMENSION = re.compile(r"\b(dimension \d+) \(.*\) must be")


def _error(value: Any) -> Any:
    """The parts of an error that must agree; None for a value."""
    if isinstance(value, RelaxError):
        return type(value), value.code, _UNKNOWN_SIZE.sub(r"\1", _without_relation(value))
    return (type(value),) if isinstance(value, Exception) else None


def _same_elsewhere(one: Any, other: Any, functions: Collection[str]) -> bool:
    """Whether two errors are the same except for the function that raised them. The second one is in a function of
    `functions`."""
    if not isinstance(one, RelaxError) or not isinstance(other, RelaxError):
        return False
    place = other.message.partition(": ")[0]
    if not any(place == name or place.startswith(f"{name}_") for name in functions):
        return False
    return (type(one), one.code, _demands(one)) == (type(other), other.code, _demands(other))


def overflows(error: object) -> bool:
    """Whether a formula overflowed 64 bits. Its value is then unknown, so a violated condition may be reported in this
    way too."""
    return (
        isinstance(error, RelaxError)
        and error.code == "shape-arithmetic"
        and "64 bits" in error.message
    )


def _demands(error: RelaxError) -> str | None:
    """The operator whose condition on dimensions is violated; None for another kind of error."""
    _, *rest = error.message.split(": ", 2)
    return rest[0] if error.code == "check" and len(rest) == 2 and rest[0] in OPS else None


def _without_relation(error: RelaxError) -> str:
    """The message without the violated relation: for an operator's condition only the operator, for a dimension only
    its values. Both contain symbols, and passes may replace a symbol by an equal one."""
    operator = _demands(error)
    if operator is not None:
        return f"{error.message.partition(': ')[0]}: {operator}"
    return _DIMENSION.sub(r"\1 must be", error.message)


def _array(value: Any) -> np.ndarray:
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def _short(value: Any) -> str:
    text = f"{type(value).__name__}: {value}" if isinstance(value, Exception) else repr(value)
    return text if len(text) < 500 else text[:500] + "…"
