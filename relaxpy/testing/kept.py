"""Stores calls of programs as files: a script, with the arguments in a comment.

    # Found by seed 17. kernel: the kernel divide of [(2,)]: 1 of 2 elements differ …
    # call: main [{"tensor": "float32", "shape": [2], "data": [0.5, NaN]}, {"shape": [2, 3]}, 4]
    from relaxpy.script import ir as I, relax as R, tir as T
    …

Such a file is an ordinary program (`relaxpy show` prints it). `call_of` returns the call, to be checked with
`relaxpy.testing.differential.check`.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.ir.dtype import DType
from relaxpy.runtime.tensor import Shape
from relaxpy.script.parser import parse
from relaxpy.testing.differential import Call
from relaxpy.testing.values import Value

MARK = "# call: "


def text_of(call: Call, reason: str) -> str:
    """The text of a file with a call; `reason` describes why it is kept."""
    comment = "\n".join(f"# {line}".rstrip() for line in reason.splitlines()[:12])
    args = json.dumps([_encoded(arg) for arg in call.args])
    return f"{comment}\n{MARK}{call.name} {args}\n{call.mod.script()}\n"


def call_of(text: str, name: str) -> Call:
    """The call in such a text; `name` is for messages. Raises UsageError (`kept-file`) for other text, and ScriptError
    for a program that does not parse."""
    line = next((line for line in text.splitlines() if line.startswith(MARK)), None)
    if line is None:
        raise UsageError(
            "kept-file",
            f"{name} has no line with its call",
            help=f"add a line {MARK}main [arguments]",
        )
    function, _, args = line.removeprefix(MARK).partition(" ")
    return Call(parse(text), function, [_decoded(arg) for arg in json.loads(args)], name)


def _encoded(value: Value) -> Any:
    if isinstance(value, np.ndarray):
        exact = value.astype(np.float64) if value.dtype.kind not in "biuf" else value
        data = exact.reshape(-1).tolist()
        return {"tensor": str(value.dtype), "shape": list(value.shape), "data": data}
    if isinstance(value, Shape):
        return {"shape": list(value)}
    if isinstance(value, tuple):
        return {"tuple": [_encoded(item) for item in value]}
    return value


def _decoded(value: Any) -> Value:
    match value:
        case {"tensor": dtype, "shape": shape, "data": data}:
            numbers = np.array(data, None if data else np.float64)
            return numbers.astype(DType(dtype).numpy).reshape(shape)
        case {"shape": shape}:
            return Shape(shape)
        case {"tuple": items}:
            return tuple(map(_decoded, items))
        case _:
            return value
