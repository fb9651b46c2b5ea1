"""Bytecode as JSON, and back.

A dataclass is an object with one key, its class: `{"Kernel": [loc, index, args, work, flops, nbytes]}`, fields in
order; a tuple is a list. Everything else is itself. Small enough to be read by a runtime in any language.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from relaxpy.runtime import bytecode

_CLASSES: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        *bytecode.INSTRUCTIONS,
        bytecode.Reg, bytecode.Heap, bytecode.IntOp,
        bytecode.TensorPattern, bytecode.ShapePattern, bytecode.PrimPattern, bytecode.TuplePattern,
        bytecode.CallablePattern, bytecode.ObjectPattern,
        bytecode.Check, bytecode.Location, bytecode.Param, bytecode.FunctionCode, bytecode.Alone, bytecode.KernelMemory,
        bytecode.KernelInfo,
    )
}  # fmt: skip
_FIELDS = {cls: tuple(field.name for field in fields(cls)) for cls in _CLASSES.values()}


def encode(value: Any) -> Any:
    """A value of the bytecode as what `json.dumps` takes."""
    names = _FIELDS.get(type(value))
    if names is not None:
        return {type(value).__name__: [encode(getattr(value, name)) for name in names]}
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    assert not is_dataclass(value), f"{type(value).__name__} is not part of the bytecode"
    return value


def decode(value: Any) -> Any:
    """The value that `encode` was given.

    Raises: KeyError, TypeError, ValueError for what `encode` does not make.
    """
    if isinstance(value, list):
        return tuple(_items(value))
    if isinstance(value, dict):
        ((name, args),) = value.items()
        return _CLASSES[name](*_items(args))
    return value


def _items(values: list[Any]) -> list[Any]:
    """Most items are numbers and names, which take no call."""
    return [decode(item) if isinstance(item, (list, dict)) else item for item in values]
