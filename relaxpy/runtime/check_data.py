"""Does a value of a data type fit its pattern, with all that it contains? Values may be a million levels deep, and parts
of them shared: each part is compared once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaxpy.runtime.data import CLASSES, Data, Types, fields_of
from relaxpy.runtime.patterns import describe, explain, fits
from relaxpy.runtime.terms import DataInfo, DataPattern, ParamPattern, Pattern, TuplePattern

CHECKED_BEFORE = ("parameter", "field")
"""What is matched without looking into data: arguments were compared when they came from Python, and fields with their
value."""


def types_of(table: Sequence[DataInfo]) -> Types:
    """The data types of a program for Python."""
    return Types({info.name: [info.key(case) for case in info.cases] for info in table})


def holds_data(pattern: Pattern) -> bool:
    """Does a pattern accept values of data types, by itself or in a tuple?"""
    if isinstance(pattern, TuplePattern):
        return any(map(holds_data, pattern.fields))
    return isinstance(pattern, DataPattern)


class DataCheck:
    """Compares values with patterns over the data types of a program."""

    def __init__(self, table: Sequence[DataInfo]) -> None:
        self.table = {info.name: info for info in table}
        self.fields: dict[DataPattern, dict[type[Data], tuple[tuple[str, Pattern], ...]]] = {}
        """By pattern and constructor: the names and patterns of the fields. Equal patterns are one object here."""
        self.known: dict[Pattern, Pattern] = {}

    def misfit(self, value: Any, pattern: Pattern) -> str:
        """The reason why a value does not fit; empty if it does."""
        waiting: list[tuple[Any, Pattern, str]] = [(value, self.one(pattern), "")]
        seen: set[tuple[int, int]] = set()
        while waiting:
            at, wanted, place = waiting.pop()
            if isinstance(wanted, DataPattern):
                if (id(at), id(wanted)) in seen:
                    continue
                seen.add((id(at), id(wanted)))
                cases = self.cases(wanted)
                fields = cases.get(type(at))
                if fields is None:
                    names = ", ".join(f"{each.type_name}.{each.case_name}" for each in cases)
                    return f"expected a value of {wanted.name}{place} ({names}), got {describe(at)}"
                for (name, inner), item in zip(fields, fields_of(at), strict=True):
                    if isinstance(inner, DataPattern | TuplePattern):
                        waiting.append((item, inner, f" of field {name}"))
                    elif not fits(item, inner):
                        return explain(item, inner, f" of field {name} of a {type(at).case_name}{place}")
            elif isinstance(wanted, TuplePattern) and isinstance(at, tuple) and len(at) == len(wanted.fields):
                if isinstance(at, Data):
                    return explain(at, wanted, place)
                for number, (item, inner) in enumerate(zip(at, wanted.fields, strict=True)):
                    waiting.append((item, self.one(inner), f" of field {number}{place}"))
            elif not fits(at, wanted):
                return explain(at, wanted, place)
        return ""

    def one(self, pattern: Pattern) -> Pattern:
        """The one object for equal patterns."""
        return self.known.setdefault(pattern, pattern)

    def cases(self, pattern: DataPattern) -> dict[type[Data], tuple[tuple[str, Pattern], ...]]:
        """The fields of each constructor."""
        found = self.fields.get(pattern)
        if found is None:
            info = self.table[pattern.name]
            found = self.fields[pattern] = {
                CLASSES[info.key(case)]: tuple(
                    (name, self.one(given(each, pattern.args)))
                    for name, each in zip(case.fields, case.patterns, strict=True)
                )
                for case in info.cases
            }
        return found


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
