"""Sources nested deeper than Python's tokenizer takes."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from relaxpy.errors import ExecutableError
from relaxpy.runtime.bytecode import If
from relaxpy.runtime.link import translate
from relaxpy.runtime.nesting import MAX_LEVELS, Arm, compile_nested, nesting_checked
from tests.runtime.support import f32, function


def nested(depth: int) -> tuple[list[str], list[Arm]]:
    """`find(x)`: how many levels down the first bit of x that is 0 is; the innermost level divides by zero."""
    lines, ends, arms = ["def find(x):"], [], []
    for level in range(1, depth + 1):
        indent = " " * level
        lines += [f"{indent}if x >> {level - 1} & 1:", f"{indent} pass"]
        ends.append((level + 1, len(lines) - 1))
    lines.append(" " * (depth + 1) + "return 1 // 0")
    for level, start in reversed(ends):
        if level % MAX_LEVELS == 0:
            arms.append((start, len(lines)))
        lines += [" " * (level - 1) + "else:", " " * level + f"return {level - 2}"]
    return lines, arms


@pytest.mark.parametrize("depth", [1, 78, 79, 80, 81, 160, 161, 400])
def test_deep_branches(depth: int) -> None:
    lines, arms = nested(depth)
    scope: dict[str, Any] = {}
    exec(compile_nested(lines, arms, "<deep>"), scope)
    find = scope["find"]
    assert [find((1 << level) - 1) for level in range(depth)] == list(range(depth))
    with pytest.raises(ZeroDivisionError) as raised:
        find((1 << depth) - 1)
    frame = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert frame.lineno == lines.index(" " * (depth + 1) + "return 1 // 0") + 1


def test_deeper_than_the_stack_is_an_error_of_ours() -> None:
    levels = 5000
    branches = tuple(If(0, 0, 0, levels - level - 1) for level in range(levels))
    code = function("main", [("flag", f32())], branches)
    with pytest.raises(ExecutableError) as caught, nesting_checked("main"):
        translate(code, frozenset(), False)
    assert caught.value.code == "nesting"
