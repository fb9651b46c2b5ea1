"""Older spellings of tensor programs: what the tree is after them."""

from __future__ import annotations

import ast

import pytest

from relaxpy.tir.tree.older import modernize

SPELLINGS = {
    "block": (
        "with T.block('b'):\n    T.block_attr({'k': 1})",
        "with T.sblock('b'):\n    T.sblock_attr({'k': 1})",
    ),
    "buffer of a block": (
        "with T.block('root'):\n    y = T.alloc_buffer((4,))",
        "with T.sblock('root'):\n    y = T.sblock_alloc_buffer((4,))",
    ),
    "buffer of a block in a loop": (
        "for i in range(4):\n    with T.sblock('b'):\n        y = T.alloc_buffer((4,))",
        "for i in range(4):\n    with T.sblock('b'):\n        y = T.sblock_alloc_buffer((4,))",
    ),
    "buffer of a loop stays one": (
        "with T.sblock('b'):\n    for i in range(4):\n        y = T.alloc_buffer((4,))",
        "with T.sblock('b'):\n    for i in range(4):\n        y = T.alloc_buffer((4,))",
    ),
    "buffer without blocks stays one": ("y = T.alloc_buffer((4,))", "y = T.alloc_buffer((4,))"),
    "subscripted buffer": ("T.Buffer[(4, n), 'int8']", "T.Buffer((4, n), 'int8')"),
    "global symbol": (
        "T.func_attr({'global_symbol': 'f', 'tir.noalias': True})",
        "T.func_attr({'tir.noalias': True})",
    ),
    "let of an index": ("a: T.let[T.int32] = i", "a: T.let = i"),
    "let of a value stays one": ("a: T.let[T.float32] = x[i]", "a: T.let[T.float32] = x[i]"),
}


def definition(params: str, body: str) -> ast.FunctionDef:
    """The tree of a program."""
    indented = "\n".join("    " + line for line in body.splitlines())
    (node,) = ast.parse(f"def f({params}):\n{indented}\n").body
    assert isinstance(node, ast.FunctionDef)
    return node


@pytest.mark.parametrize("name", SPELLINGS)
def test_becomes_todays(name: str) -> None:
    """The older spelling, and beside it today's."""
    older, today = SPELLINGS[name]
    node = definition("", older)
    modernize(node)
    assert ast.unparse(node) == ast.unparse(definition("", today))


def test_handles_become_buffers() -> None:
    """Of the parameters; what is matched with a buffer of the program stays."""
    body = "X = T.match_buffer(x, (4,), 'int8')\nY = T.match_buffer(X[0:2], (2,), 'int8')"
    node = definition("x: T.handle, n: T.int64", body)
    modernize(node)
    today = definition(
        "X: T.Buffer((4,), 'int8'), n: T.int64", "Y = T.match_buffer(X[0:2], (2,), 'int8')"
    )
    assert ast.unparse(node) == ast.unparse(today)
