"""Cache keys of builds: two builds with the same key give the same bytes.

The key is a SHA-256 over the module, the pipeline, the target, the values of the parameters, and the other options of
`build`. The text of a module includes names and source locations, since both are stored in the executable. Variables
and symbols are numbered in order of occurrence, so that a program has the same key in any process. Objects that are not
determined by their fields (a user-defined pass or operator, a function in an attribute) have no key, and such a build
is not cached.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

from relaxpy.errors import Span
from relaxpy.ir.annotation import Annotation
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Constant, DataflowVar, Var
from relaxpy.ir.recursion import deep_recursion
from relaxpy.tir.prim_func import PrimFunc

_PACKAGE = __name__.partition(".")[0]


def build_key(*parts: Any, most_bytes: int, package: str = _PACKAGE) -> bytes | None:
    """A digest of modules, passes, parameters and options. None if it contains an object that its fields do not
    determine, or arrays with more than `most_bytes` bytes. Passes may also be defined in `package` if its sources are
    part of the key."""
    spelling = _Spelling(most_bytes, frozenset((_PACKAGE, package)))
    try:
        with deep_recursion():
            text = spelling.complete(parts)
    except _Unknown:
        return None
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
    with ThreadPoolExecutor(2) as pool:  # hashlib works without the interpreter's lock
        for part in pool.map(_array_digest, spelling.arrays):
            digest.update(part)
    return digest.digest()


class _Unknown(Exception):
    """Raised for a value that has no key."""


class _Spelling:
    """Serialises values to text. Objects with an identity are numbered, and a table after the text describes them."""

    def __init__(self, most_bytes: int, packages: frozenset[str]) -> None:
        self.most_bytes = most_bytes
        self.packages = packages
        """Packages whose classes are determined by their fields."""
        self.arrays: list[np.ndarray[Any, Any]] = []
        """The arrays, in order of occurrence."""
        self._places: dict[int, int] = {}
        """Array identity → its number."""
        self._bytes = 0
        self._numbers: dict[Var | SymVar, str] = {}
        self._texts: dict[int, str] = {}
        """Cached texts of shared values, by identity. All of them stay alive during serialisation."""

    def complete(self, value: Any) -> str:
        """The text of a value, followed by its table."""
        lines = [self.text(value)]
        told = 0
        while told < len(self._numbers):  # an annotation may mention more
            for item in list(self._numbers)[told:]:
                lines.append(self._entry(item))
                told += 1
        return "\n".join(lines)

    @property
    def has_numbered(self) -> bool:
        """Were there variables or symbols, whose numbers depend on what came before?"""
        return bool(self._numbers)

    def text(self, value: object) -> str:
        """The text of a value."""
        kind = type(value)
        spell = _SPELLINGS.get(kind)
        if spell is not None:
            return spell(self, value)
        if isinstance(value, (Annotation, Dim)):
            return self._shared(value)
        return self._object(value)

    def _object(self, value: object) -> str:
        if isinstance(value, np.generic):
            # It may be of any class of scalars.
            return f"{value.dtype}:{value.tobytes().hex()}"  # pyright: ignore[reportUnknownMemberType]
        fields = _fields(type(value), self.packages)
        if fields is None:
            raise _Unknown(type(value).__qualname__)
        name, names, defaults = fields
        parts: list[str] = []
        for each in names:
            item = getattr(value, each)
            default = defaults.get(each)
            if default is not None and item is default[0]:
                parts.append(default[1])
            else:
                parts.append(self.text(item))
        return f"{name}({','.join(parts)})"

    def _shared(self, value: Annotation | Dim) -> str:
        found = self._texts.get(id(value))
        if found is None:
            made = value.format(self._number) if isinstance(value, Dim) else self._object(value)
            found = self._texts[id(value)] = made
        return found

    def _number(self, item: Var | SymVar) -> str:
        found = self._numbers.get(item)
        if found is None:
            found = self._numbers[item] = f"%{len(self._numbers)}"
        return found

    def _entry(self, item: Var | SymVar) -> str:
        if isinstance(item, SymVar):
            return f"{self._numbers[item]}={item.name!r}:{item.dtype}"
        kind = type(item).__name__
        parts = f"{item.name!r},{self.text(item.annotation)},{self.text(item.span)}"
        return f"{self._numbers[item]}={kind}({parts})"

    def _sequence(self, value: tuple[Any, ...] | list[Any]) -> str:
        return f"({','.join([self.text(each) for each in value])})"

    def _mapping(self, value: Mapping[Any, Any]) -> str:
        return f"{{{','.join([f'{self.text(k)}:{self.text(v)}' for k, v in value.items()])}}}"

    def _set(self, value: frozenset[Any]) -> str:
        return f"set({','.join(sorted(self.text(each) for each in value))})"

    def _array(self, value: np.ndarray[Any, Any]) -> str:
        if value.dtype.hasobject:
            raise _Unknown("an array of Python objects")
        place = self._places.setdefault(id(value), len(self.arrays))
        if place == len(self.arrays):
            self.arrays.append(value)
            self._bytes += value.nbytes
            if self._bytes > self.most_bytes:
                raise _Unknown("large arrays")
        return f"array:{value.dtype}:{value.shape}:{place}"

    def _constant(self, value: Constant) -> str:
        return f"Constant({self._array(value.data)},{self.text(value.span)})"

    def _span(self, value: Span) -> str:
        found = self._texts.get(id(value))
        if found is None:
            where = f"{value.line}:{value.column}:{value.end_line}:{value.end_column}"
            found = self._texts[id(value)] = f"@{value.file!r}:{where}"
        return found

    def _program(self, value: PrimFunc) -> str:
        symbol = value.attrs.get("global_symbol")  # all other attributes are in the text
        return f"PrimFunc({str(symbol)!r},{value.full_text()!r},{self.text(value.span)})"


def _repr(_: _Spelling, value: Any) -> str:
    return repr(value)


_SPELLINGS: dict[type[Any], Callable[[_Spelling, Any], str]] = {
    **dict.fromkeys((type(None), bool, int, str, bytes), _repr),
    DType: lambda _, value: str(value),
    float: lambda _, value: value.hex(),
    tuple: _Spelling._sequence,
    list: _Spelling._sequence,
    dict: _Spelling._mapping,
    MappingProxyType: _Spelling._mapping,
    frozenset: _Spelling._set,
    np.ndarray: _Spelling._array,
    np.memmap: _Spelling._array,
    Var: _Spelling._number,
    DataflowVar: _Spelling._number,
    SymVar: _Spelling._number,
    Constant: _Spelling._constant,
    Span: _Spelling._span,
    PrimFunc: _Spelling._program,
}


@cache
def _fields(
    kind: type[Any], packages: frozenset[str]
) -> tuple[str, tuple[str, ...], dict[str, tuple[object, str]]] | None:
    """The name of a dataclass, the names of its fields, and of those whose default is a tuple, the default with its
    text: tables of rules, as `SimplifyExpr` has, are spelled once a process. None for classes that are not defined in
    one of these packages: their fields do not determine what they do."""
    own = kind.__module__.partition(".")[0] in packages
    if not own or not dataclasses.is_dataclass(kind):
        return None
    fields = dataclasses.fields(kind)
    defaults: dict[str, tuple[object, str]] = {}
    for field in fields:
        default: object = field.default
        text = _constant_text(default) if isinstance(field.default, tuple) else None
        if text is not None:
            defaults[field.name] = default, text
    return f"{kind.__module__}.{kind.__qualname__}", tuple(f.name for f in fields), defaults


def _constant_text(value: object) -> str | None:
    """The text of a value of plain ones; None if it has objects, whose text depends on what came before."""
    spelling = _Spelling(0, frozenset())
    try:
        text = spelling.text(value)
    except _Unknown:
        return None
    return None if spelling.arrays or spelling.has_numbered else text


def _array_digest(array: np.ndarray[Any, Any]) -> bytes:
    whole = np.ascontiguousarray(array).reshape(-1)
    return hashlib.sha256(whole.view(np.uint8).data).digest()
