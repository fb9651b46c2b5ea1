"""Declarations of data types as script."""

from __future__ import annotations

import json
from collections.abc import Callable

from relaxpy.ir.annotation import Annotation, CallableType, DataType, TupleType
from relaxpy.ir.data import TypeDecl

INDENT = "    "


def written_type(decl: TypeDecl, annotation: Callable[[Annotation], str]) -> str:
    """The declaration of a data type; `annotation` prints that of a field. Names of types are in quotes, since Python
    does not know all of them yet."""
    lines = ["@R.type", f"class {decl.name}:"]
    lines += [f"{INDENT}{name} = R.type_param()" for name in decl.params]
    lines += [""] * bool(decl.params)
    for case in decl.constructors:
        fields: list[str] = []
        for name, kind in zip(case.fields, case.types, strict=True):
            text = annotation(kind)
            fields.append(f"{name}: {json.dumps(text) if _names_types(kind) else text}")
        lines.append(f"{INDENT}def {case.name}({', '.join(fields)}): ...")
    return "\n".join(lines)


def _names_types(annotation: Annotation) -> bool:
    match annotation:
        case DataType():
            return True
        case TupleType(fields=fields):
            return any(map(_names_types, fields))
        case CallableType(params=params, ret=ret):
            return any(map(_names_types, (*(params or ()), ret)))
        case _:
            return False
