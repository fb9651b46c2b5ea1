"""Values of the data types that a program declares.

A value is a tuple of its fields, of a class of its constructor: `List.Cons(head, tail)` of the type List makes a class
`Cons`, the same one for all programs that declare it with these names. Python reads fields by name and by its own
`match`. Values are immutable and compared by identity: they may be a million levels deep, so nothing here recurs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from relaxpy.errors import RuntimeCheckError, UsageError, did_you_mean
from relaxpy.runtime.tensor import Shape, Tensor, from_any

KEY = re.compile(r"(\w+)\.(\w+)\(((?:\w+(?:, \w+)*)?)\)")
"""The name of a constructor, with those of its fields: `List.Cons(head, tail)`."""
MOST_SHOWN = 24
"""The most values that are printed."""
_make = tuple.__new__
_item = tuple.__getitem__


class Data(tuple[Any, ...]):
    """Base class of values of data types."""

    __slots__ = ()
    key: ClassVar[str] = ""
    type_name: ClassVar[str] = ""
    case_name: ClassVar[str] = ""
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def __new__(cls, *args: Any, **named: Any) -> Data:
        """A value with these fields, by position or name. Arrays become tensors that share their memory."""
        names = cls.__match_args__
        if not named and len(args) == len(names):
            return _make(cls, map(entered, args))
        given = dict(zip(names, args, strict=False)) | named
        if len(args) > len(names) or len(given) < len(args) + len(named) or set(given) != {*names}:
            raise UsageError(
                "arguments",
                f"{cls.type_name}.{cls.case_name} takes {', '.join(names) or 'nothing'}; got {len(args)} values"
                + "".join(f", {name}" for name in named),
            )
        return _make(cls, [entered(given[name]) for name in names])

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError(f"read a field of a {self.case_name} by its name: {self.__match_args__}")

    def __iter__(self) -> NoReturn:
        raise TypeError(f"read a field of a {self.case_name} by its name: {self.__match_args__}")

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a value of a data type is not pickled: it may be a million levels deep")

    def __repr__(self) -> str:
        """The value and those in it, down to a few."""
        parts: list[str] = []
        waiting: list[Any] = [self]
        shown = 0
        while waiting:
            value = waiting.pop()
            match value:
                case str():
                    parts.append(value)
                    continue
                case Data() if shown < MOST_SHOWN:
                    parts.append(f"{value.type_name}.{value.case_name}(")
                    inner: list[Any] = [(field,) for field in fields_of(value)]
                    for i in range(len(inner) - 1, 0, -1):
                        inner.insert(i, ", ")
                    waiting += [")", *reversed(inner)]
                case (Data() as field,):
                    waiting.append(field)
                    continue
                case (field,) if shown < MOST_SHOWN:
                    parts.append(_shown(field))
                case _:
                    parts.append("…")
            shown += 1
        return "".join(parts)


def _shown(value: Any) -> str:
    if isinstance(value, Tensor) and value.size > MOST_SHOWN:
        return f"tensor{value.shape}"
    return repr(value)


def fields_of(value: Data) -> list[Any]:
    """The fields, in order."""
    return [_item(value, i) for i in range(len(value))]


def entered(value: Any) -> Any:
    """A field that Python gives: arrays become tensors."""
    match value:
        case Tensor() | Data() | bool() | int() | float() | str() | Shape():
            return value
        case tuple():
            return tuple(map(entered, value))
        case _:
            pass
    tensor = from_any(value)
    return value if tensor is None else tensor


def _field(index: int, name: str) -> property:
    def get(self: Data) -> Any:
        value = _item(self, index)
        if isinstance(value, Tensor) and value.constant:
            return value.copy()  # constants are the program's
        return value

    return property(get, doc=f"The field {name}.")


class _Classes(dict[str, type[Data]]):
    """The class of each constructor, made at its first use."""

    def __missing__(self, key: str) -> type[Data]:
        found = KEY.fullmatch(key)
        if found is None:
            raise RuntimeCheckError("check", f"{key!r} is no constructor")
        type_name, case_name, inner = found.groups()
        fields = tuple(inner.split(", ")) if inner else ()
        body: dict[str, Any] = {
            "__slots__": (), "__match_args__": fields, "key": key, "type_name": type_name,
            "case_name": case_name, "__module__": __name__, "__qualname__": f"{type_name}.{case_name}",
            **{name: _field(i, name) for i, name in enumerate(fields)},
        }  # fmt: skip
        return self.setdefault(key, type(case_name, (Data,), body))


CLASSES = _Classes()


def make(key: str, *fields: Any) -> Data:
    """A value of the constructor `key`."""
    return _make(CLASSES[key], fields)


def is_made_by(key: str, value: Any) -> bool:
    """Is this a value of the constructor `key`?"""
    return value.__class__ is CLASSES[key]


def field(key: str, value: Any, index: int) -> Any:
    """Field `index` of a value that the constructor `key` made. Raises: RuntimeCheckError (`check`) for another one."""
    if value.__class__ is not CLASSES[key]:
        came = (
            f"{value.type_name}.{value.case_name}"
            if isinstance(value, Data)
            else type(value).__name__
        )
        raise RuntimeCheckError("check", f"expected a value of {key}, got {came}")
    return _item(value, index)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "relaxpy.data.make": make,
    "relaxpy.data.is": is_made_by,
    "relaxpy.data.field": field,
}


class Types:
    """The data types of a program: `types.List.Cons(x, tail)` makes a value."""

    def __init__(self, keys: Mapping[str, Sequence[str]]) -> None:
        self._types = {name: TypeCases(name, cases) for name, cases in keys.items()}

    def __getattr__(self, name: str) -> TypeCases:
        found = vars(self).get("_types", {}).get(name)
        if found is None:
            known = vars(self).get("_types", {})
            hint = did_you_mean(name, known) or f"it has {', '.join(known) or 'none'}"
            raise AttributeError(f"the program declares no type {name}: {hint}")
        return found

    def __dir__(self) -> list[str]:
        return sorted(self._types)

    def __repr__(self) -> str:
        return f"<types {', '.join(self._types)}>"


class TypeCases:
    """The constructors of a data type, which are Python classes."""

    def __init__(self, name: str, keys: Sequence[str]) -> None:
        self._name = name
        for key in keys:
            made = CLASSES[key]
            vars(self)[made.case_name] = made

    def __getattr__(self, name: str) -> NoReturn:
        known = [each for each in vars(self) if not each.startswith("_")]
        hint = did_you_mean(name, known) or f"it has {', '.join(known)}"
        raise AttributeError(
            f"the type {vars(self).get('_name')} has no constructor {name}: {hint}"
        )

    def __repr__(self) -> str:
        return f"<type {self._name}>"


def replaced(value: Data, change: Callable[[Any], Any]) -> Data:
    """The value with every field that is no data changed by `change`; the same object where nothing changes."""
    done: dict[int, Data] = {}
    waiting = [value]
    while waiting:
        at = waiting[-1]
        if id(at) in done:
            waiting.pop()
            continue
        fields = fields_of(at)
        inner = [each for each in fields if isinstance(each, Data) and id(each) not in done]
        if inner:
            waiting += inner
            continue
        new = [done[id(each)] if isinstance(each, Data) else change(each) for each in fields]
        same = all(a is b for a, b in zip(new, fields, strict=True))
        done[id(at)] = at if same else _make(type(at), new)
        waiting.pop()
    return done[id(value)]
