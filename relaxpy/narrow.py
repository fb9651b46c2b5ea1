"""`isinstance` for values of unknown type, with items of type `Any`.

`isinstance(value, tuple)` narrows `Any` to a tuple of items of unknown type, which the type checker's strict mode
reports at each use.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    import numpy as np


def is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    return isinstance(value, tuple)


def is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def is_sequence(value: object) -> TypeGuard[tuple[Any, ...] | list[Any]]:
    """Is it a tuple or a list?"""
    return isinstance(value, (tuple, list))


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)


def arrays_in(value: object) -> list[np.ndarray]:
    """The arrays in a value that may be a tuple of others; nothing for what is no array."""
    if is_tuple(value):
        return [array for item in value for array in arrays_in(item)]
    return [value] if is_ndarray(value) else []


def is_ndarray(value: object) -> TypeGuard[np.ndarray]:
    """Is it an array? This module does not import numpy, for the command line's sake: while numpy is not imported,
    there are no arrays."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)
