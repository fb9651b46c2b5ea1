"""Operators on values of declared data types (`relaxpy.ir.data`): making one, asking which constructor made it, reading
a field.

They are calls of runtime functions without side effects, and so passes see them: what is stored in a value leaves the
function's memory, and nothing read from one is the function's own. Python's `match` in script is written with them
(`relaxpy.script.parser_match`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.errors import DeduceError, did_you_mean
from relaxpy.ir.annotation import (
    Annotation,
    DataType,
    ObjectType,
    PrimType,
)
from relaxpy.ir.data import TypeDecl, instantiate
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import Call, Expr, ExternFunc, PrimValue, StringImm
from relaxpy.ir.visitor import free_sym_vars
from relaxpy.op.call import CallPurePacked
from relaxpy.shape.lattice import Verdict, accepts, erase, substitute
from relaxpy.shape.polymorphic import solve_types
from relaxpy.shape.prove import equal


@dataclass(frozen=True)
class DataCall(CallPurePacked):
    """A call about constructor `index` of a type."""

    decl: TypeDecl
    index: int

    @property
    def case(self) -> str:
        """The constructor as script writes it."""
        return f"{self.decl.name}.{self.decl.constructors[self.index].name}"

    def written(self, call: Call, value: Callable[[Any], str]) -> str:
        """The call as script; `value` prints expressions and annotations."""
        return f"R.{self.name}({value(call.args[2])}, {self.case})"


@dataclass(frozen=True)
class Construct(DataCall):
    """`List[R.Tensor((4,), "float32")].Cons(x, tail)`: a value of a data type. args = (ExternFunc, name, field…)."""

    name: ClassVar[str] = "data.make"

    def deduce_call(self, call: Call, annotation_of: Callable[[Expr], Annotation]) -> Annotation:
        fields = [annotation_of(each) for each in call.args[2:]]
        (result,) = call.ty_args
        assert isinstance(result, DataType)
        check_fields(self, fields, result.args)
        return result

    def written(self, call: Call, value: Callable[[Any], str]) -> str:
        case = self.decl.constructors[self.index].name
        return f"{value(call.ty_args[0])}.{case}({', '.join(map(value, call.args[2:]))})"


@dataclass(frozen=True)
class IsMadeBy(DataCall):
    """`R.data.made_by(xs, List.Cons)`: did this constructor make the value? args = (ExternFunc, name, value)."""

    name: ClassVar[str] = "data.made_by"

    def deduce_call(self, call: Call, annotation_of: Callable[[Expr], Annotation]) -> Annotation:
        type_of(self, annotation_of(call.args[2]))
        return PrimType("bool")


@dataclass(frozen=True)
class DataField(DataCall):
    """`R.data.field(xs, List.Cons, 0)`: a field of a value that this constructor made. Sizes that are the value's own
    are unknown in its annotation: a `match_cast` names them. args = (ExternFunc, name, value, number of the field)."""

    name: ClassVar[str] = "data.field"

    def deduce_call(self, call: Call, annotation_of: Callable[[Expr], Annotation]) -> Annotation:
        number = _field_number(call)
        types = self.decl.constructors[self.index].types
        if not 0 <= number < len(types):
            raise DeduceError(
                "data-type",
                f"{self.case} has {len(types)} fields, not a field {number}",
                span=call.span,
            )
        args = type_of(self, annotation_of(call.args[2])).args
        own = set(free_sym_vars(types))
        return erase(
            self.decl.fields_of(self.index, args)[number], lambda symbol: symbol not in own
        )

    def written(self, call: Call, value: Callable[[Any], str]) -> str:
        return f"{super().written(call, value)[:-1]}, {_field_number(call)})"


def _field_number(call: Call) -> int:
    """The number of the field that a `DataField` reads."""
    value = call.args[3]
    assert isinstance(value, PrimValue)
    assert isinstance(value.value, Dim)
    return value.value.value or 0


def type_of(op: DataCall, annotation: Annotation) -> DataType:
    """The type of a value that should be of the operator's type. Raises: DeduceError."""
    if isinstance(annotation, DataType) and annotation.name == op.decl.name:
        return annotation
    if type(annotation) is ObjectType:
        return DataType(op.decl.name, (ObjectType(),) * len(op.decl.params))
    raise DeduceError(
        "data-type", f"{op.case} is of the type {op.decl.name}, the value is {annotation}"
    )


def check_fields(op: Construct, fields: Sequence[Annotation], args: Sequence[Annotation]) -> None:
    """Raises DeduceError for fields that never fit the constructor with these type arguments."""
    case = op.decl.constructors[op.index]
    if len(fields) != len(case.fields):
        names = ", ".join(case.fields)
        raise DeduceError(
            "data-type", f"{op.case} takes {len(case.fields)} fields ({names}), got {len(fields)}"
        )
    bound: dict[SymVar, Dim] = {symbol: symbol.dim for symbol in free_sym_vars(args)}
    types, _ = own_types(op.decl, op.index, args)
    for i, (wanted, actual) in enumerate(zip(types, fields, strict=True)):
        if accepts(wanted, actual, bound, equal) is Verdict.NO:
            shown = substitute(wanted, bound)
            raise DeduceError(
                "data-type", f"field {case.fields[i]} of {op.case} must be {shown}, got {actual}"
            ).about(str(i))


def type_arguments(op: Construct, fields: Sequence[Annotation]) -> tuple[Annotation, ...]:
    """The type arguments that follow from the fields of a constructor. Raises: DeduceError where they do not."""
    found = solve_types(op.decl.constructors[op.index].types, fields)
    missing = [name for name in op.decl.params if name not in found]
    if missing:
        given = ", ".join(["R.Tensor(…)"] * len(op.decl.params))
        case = op.decl.constructors[op.index].name
        raise DeduceError(
            "data-type",
            f"the parameter {missing[0]} of {op.decl.name} does not follow from the fields of {op.case}",
            help=f"write {op.decl.name}[{given}].{case}(…)",
        )
    return tuple(found[name] for name in op.decl.params)


def construct(
    decl: TypeDecl,
    index: int,
    fields: Sequence[Expr],
    annotations: Sequence[Annotation],
    args: Sequence[Annotation] | None = None,
) -> Call:
    """A value of constructor `index`, of fields with these annotations. Without type arguments, they follow from these.
    Raises: DeduceError."""
    op = Construct(decl, index)
    if args is None:
        if len(fields) != len(decl.constructors[index].fields):
            check_fields(op, annotations, [ObjectType()] * len(decl.params))
        args = type_arguments(op, annotations)
    check_fields(op, annotations, args)
    name = StringImm(decl.key(index))
    return Call(
        op, (ExternFunc("relaxpy.data.make"), name, *fields), (DataType(decl.name, tuple(args)),)
    )


def made_by(decl: TypeDecl, index: int, value: Expr) -> Call:
    """Did constructor `index` make this value?"""
    function = ExternFunc("relaxpy.data.is")
    return Call(
        IsMadeBy(decl, index), (function, StringImm(decl.key(index)), value), (PrimType("bool"),)
    )


def data_field(
    decl: TypeDecl, index: int, value: Expr, annotation: Annotation, number: int
) -> Call:
    """Field `number` of a value, with this annotation, that constructor `index` made."""
    args = (ExternFunc("relaxpy.data.field"), StringImm(decl.key(index)), value, PrimValue(number))
    call = Call(DataField(decl, index), args)
    return Call(call.op, args, (call.op.deduce_call(call, lambda _: annotation),))  # type: ignore[union-attr]


def find_constructor(decl: TypeDecl, name: str) -> int:
    """The number of a constructor. Raises: DeduceError if there is none of this name."""
    index = decl.find(name)
    if index < 0:
        known = [case.name for case in decl.constructors]
        raise DeduceError(
            "data-type",
            f"the type {decl.name} has no constructor {name}",
            help=did_you_mean(name, known, str) or f"it has {', '.join(known)}",
        )
    return index


def own_types(
    decl: TypeDecl,
    index: int,
    args: Sequence[Annotation],
    make: Callable[[str], SymVar] = SymVar,
) -> tuple[tuple[Annotation, ...], dict[str, SymVar]]:
    """The annotations of a constructor's fields for one value, whose own symbols `make` makes; and those by name."""
    types = decl.constructors[index].types
    new = {symbol: make(symbol.name) for symbol in free_sym_vars(types)}
    given = dict(zip(decl.params, args, strict=True))
    made = tuple(instantiate(substitute(each, new), given) for each in types)
    return made, {old.name: symbol for old, symbol in new.items()}
