"""Bytecode as JSON, and back.

A dataclass instance is an object with one key, its class: `{"Kernel": [loc, index, args, work, flops, nbytes]}`, with
the fields in order. A tuple is a list. Other values are themselves. The format is small enough for a runtime in any
language.

A file may say anything. So `decode` compares every field with its annotation: the type, the class, and the range or
the words that `Annotated` names. Each annotation becomes a reader once.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Container
from dataclasses import fields, is_dataclass
from functools import cache
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Any, ForwardRef, Union, get_args, get_origin, get_type_hints

from relaxpy.runtime import bytecode

_CLASSES: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        *bytecode.INSTRUCTIONS,
        bytecode.Reg, bytecode.Heap, bytecode.IntOp, bytecode.Slot,
        bytecode.TensorPattern, bytecode.ShapePattern, bytecode.PrimPattern, bytecode.TuplePattern,
        bytecode.CallablePattern, bytecode.ObjectPattern, bytecode.DataPattern, bytecode.ParamPattern,
        bytecode.DataCase, bytecode.DataInfo,
        bytecode.Check, bytecode.Location, bytecode.Param, bytecode.WeightParam, bytecode.FunctionCode,
        bytecode.KernelMemory,
        bytecode.KernelParam, bytecode.Requirement, bytecode.KernelImage, bytecode.KernelInfo,
    )
}  # fmt: skip
_FIELDS = {cls: tuple(field.name for field in fields(cls)) for cls in _CLASSES.values()}
_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a text", NoneType: "null"}  # fmt: skip
_INT64 = range(-(1 << 63), 1 << 63)

EXACT = (1 << 53) - 1
"""The largest integer up to which float64 represents all integers uniquely."""

Reader = Callable[[Any], Any]


class Malformed(ValueError):
    """A value in a file does not fit the annotation of its field."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: list[str] = []
        """The path to the field, innermost part first."""

    def __str__(self) -> str:
        where = "".join(reversed(self.path)).lstrip(".")
        return f"{where}: {self.problem}" if where else self.problem


def encode(value: Any) -> Any:
    """A bytecode value as data for `json.dumps`."""
    names = _FIELDS.get(type(value))
    if names is not None:
        return {type(value).__name__: [encode(getattr(value, name)) for name in names]}
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    assert not is_dataclass(value), f"{type(value).__name__} is not part of the bytecode"
    return value


def exact_json(code: Any) -> Any:
    """The output of `encode` for runtimes that read every number as float64, such as JavaScript's: `{"Int64": text}`
    for integers that it does not represent, `{"Float": text}` for floats that are whole or not finite.
    `from_exact_json` is the inverse."""
    if isinstance(code, dict):
        return {key: exact_json(item) for key, item in code.items()}
    if isinstance(code, list):
        return [exact_json(item) for item in code]
    if type(code) is int and not -EXACT <= code <= EXACT:
        return {"Int64": str(code)}
    if isinstance(code, float) and (not math.isfinite(code) or code.is_integer()):
        return {"Float": str(code)}
    return code


def from_exact_json(code: Any) -> Any:
    """The output of `encode` that `exact_json` was given."""
    if isinstance(code, dict):
        if "Int64" in code:
            return int(code["Int64"])
        if "Float" in code:
            return float(code["Float"])
        return {key: from_exact_json(item) for key, item in code.items()}
    if isinstance(code, list):
        return [from_exact_json(item) for item in code]
    return code


def decode(value: Any, annotation: Any) -> Any:
    """The inverse of `encode`: a value that fits `annotation`, a class of the bytecode or a type made of such classes.

    Raises: Malformed for any other value; RecursionError if it is nested too deeply for Python's stack.
    """
    return _reader(annotation)(value)


@cache
def _reader(annotation: Any) -> Reader:
    """The decoder for a type."""
    if isinstance(annotation, str):
        annotation = ForwardRef(annotation)
    if isinstance(annotation, ForwardRef):
        return _reader(_resolved(annotation.__forward_arg__))
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _within(args[0], args[1])
    if origin in (Union, UnionType):
        return _either(args)
    if origin is tuple:
        return _sequence(args[0]) if args[-1] is ... else _record(args)
    if origin is dict:
        return _mapping(args[1])
    if isinstance(annotation, type) and is_dataclass(annotation):
        return _either(tuple(cls for cls in _FIELDS if annotation in cls.__mro__))
    if annotation is int:
        return _within(int, _INT64)
    return _plain(annotation)


def _resolved(name: str) -> Any:
    """The type of a quoted annotation, with aliases resolved."""
    holder = type("holder", (), {"__annotations__": {"it": name}})
    return get_type_hints(holder, dict(vars(bytecode)), include_extras=True)["it"]


def _plain(kind: type[Any]) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise Malformed(f"expected {_NAMES[kind]}, got {_short(value)}")
        return value

    return read


def _within(kind: type[Any], allowed: Container[Any]) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise Malformed(f"expected {_NAMES[kind]}, got {_short(value)}")
        if value not in allowed:
            limits = f"{allowed[0]}…{allowed[-1]}" if isinstance(allowed, range) else "those known"
            raise Malformed(f"{_short(value)} is none of {limits}")
        return value

    return read


def _either(kinds: tuple[Any, ...]) -> Reader:
    """The decoder for a union: objects are distinguished by their class, other values by their JSON type."""
    objects: dict[str, Reader] = {}
    others: dict[type[Any], Reader] = {}
    expected: list[str] = []

    def add(kind: Any) -> None:
        if isinstance(kind, (str, ForwardRef)):
            kind = _resolved(kind if isinstance(kind, str) else kind.__forward_arg__)
        origin = get_origin(kind)
        if origin in (Union, UnionType):
            for each in get_args(kind):
                add(each)
        elif kind in _FIELDS:
            objects[kind.__name__] = _fields_of(kind)
            expected.append(kind.__name__)
        elif origin is tuple or isinstance(kind, GenericAlias):
            others[list] = _reader(kind)
            expected.append("a list")
        else:
            plain = get_args(kind)[0] if origin is Annotated else kind
            others[plain] = _reader(kind)
            expected.append(_NAMES[plain])

    for kind in kinds:
        add(kind)
    wanted = " or ".join(expected) if len(expected) < 8 else "an instruction"

    def read(value: Any) -> Any:
        if type(value) is dict and len(value) == 1:
            ((name, args),) = value.items()
            found = objects.get(name)
            if found is not None:
                return found(args)
        else:
            found = others.get(type(value))
            if found is not None:
                return found(value)
        raise Malformed(f"expected {wanted}, got {_short(value)}")

    return read


def _fields_of(cls: type[Any]) -> Reader:
    """The decoder for the fields of a class. The fields' types are resolved on first use, since classes may refer to
    each other."""
    plan: list[tuple[int, int, Reader]] = []
    """For each field: the range of integers to accept directly, for speed, and the decoder for all other values."""
    names = _FIELDS[cls]

    def read(args: Any) -> Any:
        if not plan:
            hints = get_type_hints(cls, include_extras=True)
            plan.extend((*_limits(hints[name]), _reader(hints[name])) for name in names)
        if type(args) is not list or len(args) != len(plan):
            raise Malformed(f"{cls.__name__} has {len(names)} fields, got {_short(args)}")
        values: list[Any] = []
        try:
            for (low, high, reader), arg in zip(plan, args, strict=True):
                values.append(arg if type(arg) is int and low <= arg < high else reader(arg))
        except Malformed as error:
            error.path.append(f".{cls.__name__}.{names[len(values)]}")
            raise
        return cls(*values)

    return read


def _limits(annotation: Any) -> tuple[int, int]:
    """The half-open range of integers that an annotation allows; empty for an annotation without one."""
    if get_origin(annotation) is Annotated:
        allowed = get_args(annotation)[1]
        if isinstance(allowed, range):
            return allowed.start, allowed.stop
    return 0, 0


def _sequence(kind: Any) -> Reader:
    reader = _reader(kind)
    low, high = _limits(kind)

    def read(value: Any) -> Any:
        if type(value) is not list:
            raise Malformed(f"expected a list, got {_short(value)}")
        values: list[Any] = []
        try:
            for item in value:
                values.append(item if type(item) is int and low <= item < high else reader(item))
        except Malformed as error:
            error.path.append(f"[{len(values)}]")
            raise
        return tuple(values)

    return read


def _record(kinds: tuple[Any, ...]) -> Reader:
    """The decoder for a tuple of fixed length."""
    readers = [_reader(kind) for kind in kinds]

    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers):
            raise Malformed(f"expected a list of {len(readers)}, got {_short(value)}")
        return tuple(reader(item) for reader, item in zip(readers, value, strict=True))

    return read


def _mapping(kind: Any) -> Reader:
    """The decoder for an object with string keys."""
    reader = _reader(kind)

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise Malformed(f"expected an object, got {_short(value)}")
        found: dict[str, Any] = {}
        for name, item in value.items():
            try:
                found[name] = reader(item)
            except Malformed as error:
                error.path.append(f".{_short(name)}")
                raise
        return found

    return read


def _short(value: Any) -> str:
    return reprlib.repr(value)
