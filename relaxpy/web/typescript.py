"""The functions of a model as TypeScript declares them: `functions.d.ts`, which `js/relaxpy.d.ts` imports.

export interface Functions {
  /** main(x: R.Tensor((n, 4), dtype="float32")) -> R.Tensor((n, 2), dtype="float32") */
  main(x: TensorLike<"float32">): Promise<Tensor<"float32">>;
  main(given: { x: TensorLike<"float32"> }): Promise<Tensor<"float32">>;
}
"""

from __future__ import annotations

import ast
import json
import re

from relaxpy.runtime.executable import Executable
from relaxpy.runtime.signature import Signature

_HEAD = """/** The functions of the model, as `relaxpy web` has written them. */

import type { Argument, Callback, FunctionValue, Integer, Shape, Tensor, TensorLike, Value } from "./relaxpy.js";

export interface Functions {
"""
_RESERVED = frozenset(
    "arguments await break case catch class const continue debugger default delete do else enum eval export extends "
    "false finally for function if implements import in instanceof interface let new null package private protected "
    "public return static super switch this throw true try typeof var void while with yield".split()
)
"""Words that are no names of parameters."""


def declarations(exe: Executable, taken: frozenset[str]) -> str:
    """The text of `functions.d.ts`. Functions whose names are `taken` by the machine's own methods are left out: they
    are called by `vm.call`."""
    lines: list[str] = []
    for code in exe.functions:
        if not code.public or code.name in taken:
            continue
        signature = Signature(code, len(code.params))
        name = (
            code.name if code.name.isidentifier() and code.name.isascii() else json.dumps(code.name)
        )
        result = _type(signature.ret or "R.Object", False)
        lines.append(f"  /** {_plain(str(signature))} */")
        lines.append(f"  {name}({_positional(signature)}): Promise<{result}>;")
        if signature.params:
            fields = "; ".join(
                f"{json.dumps(param)}: {_type(annotation, True)}"
                for param, annotation in signature.parameters.items()
            )
            lines.append(f"  {name}(given: {{ {fields} }}): Promise<{result}>;")
    return _HEAD + "\n".join(lines) + "\n}\n"


def _plain(text: str) -> str:
    """A signature in a comment: without devices, of which a browser has one."""
    return re.sub(r', vdevice="[^"]*"', "", text).replace("*/", "* /")


def _positional(signature: Signature) -> str:
    found: list[str] = []
    for number, (name, annotation) in enumerate(signature.parameters.items()):
        is_name = name.isidentifier() and name.isascii()
        shown = f"{name}_" if name in _RESERVED else name if is_name else f"argument{number}"
        found.append(f"{shown}: {_type(annotation, True)}")
    return ", ".join(found)


def _type(annotation: str, is_argument: bool) -> str:
    """The type of what a caller gives for an annotation, or gets."""
    try:
        node = ast.parse(annotation or "R.Object", mode="eval").body
    except SyntaxError:
        node = ast.Name("Object")
    return _of(node, is_argument)


def _of(node: ast.expr, is_argument: bool) -> str:
    name = node.func if isinstance(node, ast.Call) else node
    kind = name.attr if isinstance(name, ast.Attribute) else ""
    args = node.args if isinstance(node, ast.Call) else []
    texts = [each.value for each in args if isinstance(each, ast.Constant)]
    given = {each.arg: each.value for each in getattr(node, "keywords", ())}
    if kind == "Tensor":
        dtype = given.get("dtype")
        own = [json.dumps(dtype.value)] if isinstance(dtype, ast.Constant) else []
        own = own or [json.dumps(text) for text in texts if isinstance(text, str)]
        of = f"<{own[0]}>" if own and own[0] != '""' else ""
        is_scalar = bool(args) and isinstance(args[0], ast.Tuple) and not args[0].elts
        if is_argument:
            return f"TensorLike{of}" + (" | Integer | boolean" if is_scalar else "")
        return f"Tensor{of}"
    if kind == "Shape":
        return "Shape | readonly Integer[]" if is_argument else "Shape"
    if kind == "Prim":
        dtype = str(texts[0]) if texts else "int64"
        if dtype.startswith(("float", "bfloat")):
            return "number"
        return {"bool": "boolean", "string": "string", "str": "string"}.get(dtype, "Integer")
    if kind == "Tuple" and isinstance(node, ast.Call):
        fields = ", ".join(_of(each, is_argument) for each in args)
        return f"readonly [{fields}]" if is_argument else f"[{fields}]"
    if kind == "Callable":
        return "Callback | FunctionValue" if is_argument else "FunctionValue"
    return "Argument" if is_argument else "Value"
