"""Does a value of a data type fit its pattern, with all that it contains? Values may be a million levels deep, and
parts of them shared: each part is compared once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from sys import getrefcount
from typing import Any, TypeAlias

from relaxpy.runtime.data import CLASSES, Data, Types
from relaxpy.runtime.patterns import describe, explain, fits
from relaxpy.runtime.tensor import Tensor
from relaxpy.runtime.terms import (
    DataInfo,
    DataPattern,
    ParamPattern,
    Pattern,
    TensorPattern,
    TuplePattern,
)

item_of = tuple.__getitem__
UNSHARED = 3
"""The references to a value that only one other value contains: that one's, and those of the code that asks."""
CHECKED_BEFORE = ("parameter", "field")
"""What is matched without looking into data: arguments were compared when they came from Python, and fields with their
value."""


def types_of(table: Sequence[DataInfo]) -> Types:
    """The data types of a program for Python."""
    return Types({info.name: [info.key(case) for case in info.cases] for info in table})


def holds_data(pattern: Pattern) -> bool:
    """Does a pattern accept values of data types, by itself or in a tuple?"""
    match pattern:
        case TuplePattern(fields):
            return any(map(holds_data, fields))
        case _:
            return type(pattern) is DataPattern


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    pattern: Pattern
    deep: bool
    """Whether it may contain data."""
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    """Of a tensor of one shape and dtype, which most fields are: these. They are compared first."""


_Cases: TypeAlias = "dict[type[Data], tuple[_Field, ...]]"


class DataCheck:
    """Compares values with patterns over the data types of a program."""

    def __init__(self, table: Sequence[DataInfo]) -> None:
        self.table = {info.name: info for info in table}
        self.known: dict[Pattern, Pattern] = {}
        self.made: dict[int, _Cases] = {}
        """The constructors' fields for each pattern of data, by its address in `known`."""

    def misfit(self, value: Any, pattern: Pattern) -> str:
        """The reason why a value does not fit; empty if it does."""
        waiting: list[tuple[Any, Pattern, str]] = [(value, self.one(pattern), "")]
        seen: set[tuple[int, int]] = set()
        made = self.made
        while waiting:
            at, wanted, place = waiting.pop()
            if isinstance(wanted, TuplePattern):
                fields = wanted.fields
                if not isinstance(at, tuple) or isinstance(at, Data) or len(at) != len(fields):
                    return explain(at, wanted, place)
                for number, (item, inner) in enumerate(zip(at, fields, strict=True)):
                    waiting.append((item, self.one(inner), f" of field {number}{place}"))
                continue
            if not isinstance(wanted, DataPattern):
                if not fits(at, wanted):
                    return explain(at, wanted, place)
                continue
            if getrefcount(at) > UNSHARED:
                if (id(at), id(wanted)) in seen:
                    continue
                seen.add((id(at), id(wanted)))
            cases = made.get(id(wanted)) or self.cases(wanted)
            fields = cases.get(at.__class__)
            if fields is None:
                names = ", ".join(f"{each.type_name}.{each.case_name}" for each in cases)
                return f"expected a value of {wanted.name}{place} ({names}), got {describe(at)}"
            for number, field in enumerate(fields):
                item = item_of(at, number)
                if field.deep:
                    waiting.append((item, field.pattern, f" of field {field.name}"))
                    continue
                usual = item.__class__ is Tensor and item.shape == field.shape
                if not (usual and item.dtype == field.dtype) and not fits(item, field.pattern):
                    where = f" of field {field.name} of a {at.case_name}{place}"
                    return explain(item, field.pattern, where)
        return ""

    def one(self, pattern: Pattern) -> Pattern:
        """The one object for equal patterns."""
        return self.known.setdefault(pattern, pattern)

    def cases(self, pattern: DataPattern) -> _Cases:
        """The fields of each constructor."""
        info = self.table[pattern.name]
        found: _Cases = {}
        for case in info.cases:
            patterns = [self.one(given(each, pattern.args)) for each in case.patterns]
            fields = zip(case.fields, patterns, strict=True)
            found[CLASSES[info.key(case)]] = tuple(
                _Field(name, each, *_facts(each)) for name, each in fields
            )
        return self.made.setdefault(id(pattern), found)


def _facts(pattern: Pattern) -> tuple[Any, ...]:
    """The rest of a `_Field`."""
    match pattern:
        case DataPattern() | TuplePattern():
            return (True,)
        case TensorPattern(shape=tuple() as shape, dtype=dtype) if dtype and None not in shape:
            return False, dtype, shape
        case _:
            return (False,)


def given(pattern: Pattern, args: Sequence[Pattern]) -> Pattern:
    """A field's pattern with the arguments of its type in place of parameters."""
    match pattern:
        case ParamPattern(index):
            return args[index]
        case DataPattern(name, inner):
            return DataPattern(name, tuple(given(each, args) for each in inner))
        case TuplePattern(fields):
            return TuplePattern(tuple(given(each, args) for each in fields))
        case _:
            return pattern


def problem_of(table: Sequence[DataInfo], patterns: Sequence[Pattern]) -> str:
    """What is wrong with the data types of a file: names that are not there or there twice, wrong numbers of arguments.
    Empty if nothing is. `patterns` are those of its functions."""
    arity = {info.name: info.params for info in table}
    if len(arity) < len(table):
        return "two data types have one name"
    waiting: list[tuple[Pattern, int]] = [(pattern, 0) for pattern in patterns]
    for info in table:
        if len({case.name for case in info.cases}) < len(info.cases):
            return f"two constructors of {info.name} have one name"
        for case in info.cases:
            if len(case.patterns) != len(case.fields) or len({*case.fields}) < len(case.fields):
                return f"the fields of {info.name}.{case.name} do not fit their names"
            waiting += [(pattern, info.params) for pattern in case.patterns]
    while waiting:
        pattern, params = waiting.pop()
        match pattern:
            case ParamPattern(index) if index >= params:
                return f"a data type has no parameter {index}"
            case DataPattern(name, args):
                if arity.get(name) != len(args):
                    return f"there is no data type {name} with {len(args)} parameters"
                waiting += [(each, params) for each in args]
            case TuplePattern(fields):
                waiting += [(each, params) for each in fields]
            case _:
                pass
    return ""
