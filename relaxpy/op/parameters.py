"""The signatures of operators' functions: arguments, then attributes, with their types.

Types are texts, as shown in signatures. Their names are those of `relaxpy.op.function`.
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
    """The parameter of an argument. `scalar` accepts numbers in place of a tensor."""
    text = "Operand" if scalar and kind is TensorType else _ARGUMENTS[kind]
    if optional:
        return Parameter(
            name, Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=f"{text} | None"
        )
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=text)


def attributes(cls: Any, after: Sequence[Parameter]) -> list[Parameter]:
    """The parameters of an operator's attributes, which come after other parameters. Python allows no parameter without
    a default after one with a default, so from there on they are keyword-only."""
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
    """The names of a module, which its annotations refer to; empty for code that belongs to no module."""
    return vars(sys.modules[module]) if module in sys.modules else {}


def accepted(hint: Any) -> str:
    """The type accepted for an attribute of this type: any sequence for a tuple, a name for a dtype."""
    if get_origin(hint) in (types.UnionType, Union):
        return " | ".join(dict.fromkeys(map(accepted, get_args(hint))))
    if get_origin(hint) is tuple:
        return f"Sequence[{accepted(get_args(hint)[0])}]"
    if hint is DType:
        return "DTypeLike"
    return "None" if hint is types.NoneType else hint.__name__
