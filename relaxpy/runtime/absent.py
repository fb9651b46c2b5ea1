"""Attributes that a class does not have, with messages that say where to look instead.

`__getattr__` would find every missing name, but with it Python 3.11 reads each attribute that is there in 40 ns instead
of 5: it cannot specialise the access. A call reads a dozen attributes of its tensors. So classes of the runtime list
the names that people try, and other names get Python's own message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn


class Absent:
    """A name of a class whose instances have no such attribute: `hasattr` is false for them, and for the class."""

    __slots__ = ("_message", "_name")

    def __init__(self, name: str, message: Callable[[str, Any], str]) -> None:
        self._name = name
        self._message = message

    def __get__(self, value: object, owner: type) -> NoReturn:
        if value is None:
            raise AttributeError(f"type object {owner.__name__!r} has no attribute {self._name!r}")
        raise AttributeError(self._message(self._name, value))


def declare_absent(owner: type, names: Iterable[str], message: Callable[[str, Any], str]) -> None:
    """Declares public names that a class does not define as absent. `message(name, value)` is the message for an
    object."""
    for name in names:
        if not (name.startswith("_") or hasattr(owner, name)):
            setattr(owner, name, Absent(name, message))


def present(self: object) -> list[str]:
    """The attributes that an object of such a class has, for its `__dir__`."""
    return [name for name in object.__dir__(self) if hasattr(type(self), name)]
