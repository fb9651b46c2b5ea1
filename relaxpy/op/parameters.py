"""The parameters of the functions that make calls of operators: arguments, then attributes, with their types.

Types are texts, as signatures show them. Their names are those of `relaxpy.op.function`.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Sequence
from functools import cache
from inspect import Parameter, get_annotations
from typing import Any, Union, get_args, get_origin

from relaxpy.ir.annotation import Annotation, PrimType, ShapeType, TensorType, TupleType
from relaxpy.ir.dtype import DType

_ARGUMENTS: dict[type[Annotation], str] = {
    TensorType: "TensorLike",
    ShapeType: "ShapeLike",
    PrimType: "ScalarLike",
    TupleType: "TupleLike",
    Annotation: "ExprLike",
}
"""Kind of an argument → its type in a signature."""


def argument(name: str, kind: type[Annotation], optional: bool, scalar: bool) -> Parameter:
    """An argument. `scalar` allows numbers in the place of a tensor."""
    text = "Operand" if scalar and kind is TensorType else _ARGUMENTS[kind]
    if optional:
        return Parameter(
            name, Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=f"{text} | None"
        )
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=text)


def attributes(cls: Any, after: Sequence[Parameter]) -> list[Parameter]:
    """The attributes of an operator, behind other parameters. Python has no parameter without a default behind one
    that has some: from there on they are shown as given by keyword."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    defaults = False
    for each in after:
        defaults |= each.default is not Parameter.empty
        if each.kind is Parameter.VAR_POSITIONAL:
            kind = Parameter.KEYWORD_ONLY
    found = []
    for field in dataclasses.fields(cls):
        required = field.default is dataclasses.MISSING
        if required and defaults:
            kind = Parameter.KEYWORD_ONLY
        defaults |= not required
        default = Parameter.empty if required else field.default
        declared: Any = field.type
        if isinstance(declared, str):
            text = _accepted_text(declared, _module_of(cls, field.name))
        else:
            text = accepted(declared)
        found.append(Parameter(field.name, kind, default=default, annotation=text))
    return found


def _module_of(cls: type, name: str) -> str:
    """The module of the class that declares an attribute."""
    return next(base.__module__ for base in cls.__mro__ if name in get_annotations(base))


@cache
def _accepted_text(text: str, module: str) -> str:
    try:
        return accepted(eval(text, names_of(module)))
    except NameError:
        return text  # a type that is local to a function


def names_of(module: str) -> dict[str, Any]:
    """The names of a module, in which its annotations are read; none for code that belongs to no module."""
    return vars(sys.modules[module]) if module in sys.modules else {}


def accepted(hint: Any) -> str:
    """What is accepted for an attribute of this type: any sequence for a tuple, a dtype's name for a dtype."""
    if get_origin(hint) in (types.UnionType, Union):
        return " | ".join(dict.fromkeys(map(accepted, get_args(hint))))
    if get_origin(hint) is tuple:
        return f"Sequence[{accepted(get_args(hint)[0])}]"
    if hint is DType:
        return "DTypeLike"
    return "None" if hint is types.NoneType else hint.__name__
