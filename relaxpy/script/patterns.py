"""Patterns of `match`: which values a row of clauses misses, and which clauses nothing reaches (Maranget, "Warnings for
pattern matching", 2007)."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from relaxpy.ir.data import TypeDecl


@dataclass(frozen=True)
class Anything:
    """Any value; it may get a name."""

    name: str | None = None


@dataclass(frozen=True)
class Case:
    """A value that a constructor made."""

    decl: TypeDecl
    index: int
    parts: tuple[Pattern, ...]
    node: ast.pattern
    name: str | None = None


@dataclass(frozen=True)
class Parts:
    """A tuple."""

    parts: tuple[Pattern, ...]
    node: ast.pattern
    name: str | None = None


@dataclass(frozen=True)
class Literal:
    """A number or truth value."""

    value: Any
    node: ast.expr
    name: str | None = None


Pattern: TypeAlias = Anything | Case | Parts | Literal
ANY = Anything()


def refutable(pattern: Pattern) -> bool:
    """Are there values of its type that it does not match?"""
    match pattern:
        case Anything():
            return False
        case Literal():
            return True
        case Case(decl=decl, parts=parts):
            return len(decl.constructors) > 1 or any(map(refutable, parts))
        case Parts(parts=parts):
            return any(map(refutable, parts))


def names_of(pattern: Pattern) -> Iterator[str]:
    """The names that it binds."""
    if pattern.name is not None:
        yield pattern.name
    for part in getattr(pattern, "parts", ()):
        yield from names_of(part)


def example(rows: Sequence[Sequence[Pattern]], wanted: Sequence[Pattern]) -> list[str] | None:
    """Values, as patterns, that `wanted` matches and no row does; None if there are none."""
    if not wanted:
        return None if rows else []
    first, rest = wanted[0], wanted[1:]
    if type(first) is not Anything:
        return _with(first, rows, [*_parts(first), *rest])
    heads = [row[0] for row in rows if type(row[0]) is not Anything]
    for head in _all_like(heads):
        found = _with(head, rows, [*[ANY] * len(_parts(head)), *rest])
        if found is not None:
            return found
    if _complete(heads):
        return None
    found = example([row[1:] for row in rows if type(row[0]) is Anything], rest)
    return None if found is None else [_another(heads), *found]


def _with(
    head: Pattern, rows: Sequence[Sequence[Pattern]], wanted: Sequence[Pattern]
) -> list[str] | None:
    """The same among values of which the first is made as `head` is. `wanted` begins with the patterns of its parts."""
    count = len(_parts(head))
    inner: list[Sequence[Pattern]] = []
    for row in rows:
        if type(row[0]) is Anything:
            inner.append([*[ANY] * count, *row[1:]])
        elif _key(row[0]) == _key(head):
            inner.append([*_parts(row[0]), *row[1:]])
    found = example(inner, wanted)
    return None if found is None else [_shown(head, found[:count]), *found[count:]]


def _parts(pattern: Pattern) -> tuple[Pattern, ...]:
    return getattr(pattern, "parts", ())


def _key(pattern: Pattern) -> Any:
    match pattern:
        case Case(index=index):
            return index
        case Literal(value=value):
            return type(value).__name__, value
        case _:
            return ()


def _all_like(heads: Sequence[Pattern]) -> list[Pattern]:
    """Of each kind of value in a complete row, one; of others, those that are there."""
    return list({_key(head): head for head in heads}.values())


def _complete(heads: Sequence[Pattern]) -> bool:
    """Is every value of the type made as one of these?"""
    keys = {_key(head) for head in heads}
    match heads:
        case [Case(decl=decl), *_]:
            return len(keys) == len(decl.constructors)
        case [Literal(value=bool()), *_]:
            return len(keys) == 2
        case [Parts(), *_]:
            return True
        case _:
            return False


def _another(heads: Sequence[Pattern]) -> str:
    """A value that is made as none of these."""
    match heads:
        case [Case(decl=decl), *_]:
            keys = {_key(head) for head in heads}
            index = next(i for i in range(len(decl.constructors)) if i not in keys)
            return f"{decl.constructors[index].name}({', '.join('_' * len(decl.constructors[index].fields))})"
        case [Literal(value=bool() as value), *_]:
            return str(not value)
        case _:
            return "_"


def _shown(head: Pattern, parts: Sequence[str]) -> str:
    match head:
        case Case(decl=decl, index=index):
            return f"{decl.constructors[index].name}({', '.join(parts)})"
        case Literal(value=value):
            return repr(value)
        case _:
            return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
