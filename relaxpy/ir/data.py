"""Algebraic data types that a module declares (Roesch et al., "Relay: a high-level compiler for deep learning", 2019,
§3.2.5): names of constructors, each with named fields.

    @R.type
    class List:
        A = R.type_param()

        def Nil(): ...
        def Cons(head: A, tail: "List[A]"): ...

Fields refer to types by name, so that types may be recursive, and mutually so. A symbol in a field (`R.Tensor(("n",))`)
that is no parameter belongs to each value: a pattern that reads the field defines it, as `match_cast` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from relaxpy.errors import Span
from relaxpy.ir.annotation import Annotation, CallableType, DataType, TupleType, TypeParam
from relaxpy.ir.visitor import free_sym_vars

TABLE = "type"
"""The entry of a module's `global_infos` with its types."""


@dataclass(frozen=True, slots=True)
class Constructor:
    """A constructor of a type, with the annotations of its fields by name."""

    name: str
    fields: tuple[str, ...]
    types: tuple[Annotation, ...]


@dataclass(frozen=True, slots=True)
class TypeDecl:
    """A declared type. `params` are the names of its parameters."""

    name: str
    params: tuple[str, ...]
    constructors: tuple[Constructor, ...]
    span: Span | None = field(default=None, compare=False, repr=False)

    def find(self, name: str) -> int:
        """The number of the constructor with this name, or -1."""
        return next((i for i, c in enumerate(self.constructors) if c.name == name), -1)

    def key(self, index: int) -> str:
        """The name of a constructor at run time, with those of its fields: `List.Cons(head, tail)`."""
        case = self.constructors[index]
        return f"{self.name}.{case.name}({', '.join(case.fields)})"

    def fields_of(self, index: int, args: Iterable[Annotation]) -> tuple[Annotation, ...]:
        """The annotations of a constructor's fields in a type with these arguments."""
        given = dict(zip(self.params, args, strict=True))
        return tuple(instantiate(each, given) for each in self.constructors[index].types)

    def has_own_symbols(self, index: int, number: int) -> bool:
        """Does a field have symbols that belong to the value?"""
        return bool(free_sym_vars([self.constructors[index].types[number]]))


def instantiate(annotation: Annotation, given: Mapping[str, Annotation]) -> Annotation:
    """The annotation with type parameters replaced."""
    if not given:
        return annotation
    match annotation:
        case TypeParam(name=name):
            return given.get(name, annotation)
        case DataType(name=name, args=args):
            return DataType(name, tuple(instantiate(each, given) for each in args))
        case TupleType(fields=fields):
            return TupleType(instantiate(each, given) for each in fields)
        case CallableType(params=params, ret=ret, pure=pure):
            known = None if params is None else [instantiate(each, given) for each in params]
            return CallableType(known, instantiate(ret, given), pure)
        case _:
            return annotation
