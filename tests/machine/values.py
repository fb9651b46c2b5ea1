"""Converts values of the machine to JSON and back.

A value is an object with one key, its kind: `{"int": 5}`, `{"tensor": [dtype, shape, items]}`. JavaScript reads numbers
as float64, so integers that float64 does not represent exactly are strings, and so are NaN and infinities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.codec import EXACT
from relaxpy.runtime.data import CLASSES, Data, fields_of
from relaxpy.runtime.function import Function
from relaxpy.runtime.tensor import Shape, Tensor


@dataclass(frozen=True)
class FunctionValue:
    """A function value: a function of the executable, with the values of its last parameters."""

    name: str
    captured: tuple[Any, ...] = ()


def integer(value: int) -> int | str:
    """An integer as JSON."""
    return value if -EXACT <= value <= EXACT else str(value)


def real(value: float) -> float | str:
    """A floating-point number as JSON."""
    return value if math.isfinite(value) else str(value)


def to_json(value: Any) -> dict[str, Any]:
    """A value as JSON. Arrays and the runtime's tensors become tensors."""
    match value:
        case np.ndarray() | Tensor():
            array = np.asarray(value.numpy() if isinstance(value, Tensor) else value)
            name = dtypes.from_numpy(array.dtype)
            flat = array.reshape(-1)
            if array.dtype.kind in "iu":
                items: list[Any] = [integer(item) for item in flat.tolist()]
            elif array.dtype.kind == "b":
                items = flat.tolist()
            else:
                items = [real(float(item)) for item in flat.astype(np.float64)]
            return {"tensor": [name, list(array.shape), items]}
        case Shape():
            return {"shape": [integer(size) for size in value]}
        case Data():
            return {"data": [value.key, [to_json(item) for item in fields_of(value)]]}
        case tuple():
            return {"tuple": [to_json(item) for item in value]}
        case bool():
            return {"bool": value}
        case int():
            return {"int": integer(value)}
        case float():
            return {"float": real(value)}
        case str():
            return {"str": value}
        case None:
            return {"none": True}
        case Function():
            captured = tuple(to_json(item) for item in value.captured)
            return {"function": [value.name, list(captured)]}
        case FunctionValue(name, captured):
            return {"function": [name, [to_json(item) for item in captured]]}
        case _:
            raise TypeError(f"{type(value).__name__} is no value of the machine")


def from_json(value: dict[str, Any], functions: Any = None) -> Any:
    """The inverse of `to_json`, with arrays for tensors. `functions` maps names to function values."""
    ((kind, content),) = value.items()
    match kind:
        case "tensor":
            name, shape, items = content
            dtype = dtypes.to_numpy(name)
            if dtype.kind in "iu":
                return np.array([int(item) for item in items], dtype).reshape(shape)
            if dtype.kind == "b":
                return np.array(items, dtype).reshape(shape)
            return (
                np.array([float(item) for item in items], np.float64).astype(dtype).reshape(shape)
            )
        case "shape":
            return Shape(int(size) for size in content)
        case "data":
            return CLASSES[content[0]](*(from_json(item, functions) for item in content[1]))
        case "tuple":
            return tuple(from_json(item, functions) for item in content)
        case "int":
            return int(content)
        case "float":
            return float(content)
        case "function":
            return functions[content[0]]
        case "none":
            return None
        case _:
            return content
