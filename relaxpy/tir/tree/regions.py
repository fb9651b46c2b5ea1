"""Declare what blocks read and write where TVM does not find out.

TVM finds the regions of a block that declares none by putting the values of bound variables into the indices, and again
into these: the time doubles with every variable that is used twice in the value of another. Of some variables it does
not know the value: of those that are assigned, and in a block around the indices. The analyser that it asks takes twice
as long with every division in another one. Such blocks are declared to read and write whole buffers. A region as long
as that would tell nobody anything.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import TypeGuard

from relaxpy.tir.name_length import DEEPEST, LONGEST
from relaxpy.tir.tree.namespace import call_attribute

REGIONS = "__relaxpy_regions"
"""Name, in the tree for TVM's parser, of the function that returns the regions of those arguments that are buffers."""
MOST_READS = 100
"""The most reads in a block whose regions TVM unites: the time grows with their square."""
_BLOCKS = frozenset({"sblock", "block"})


def declare_regions(
    function: ast.FunctionDef, others: AbstractSet[str], every: bool = False
) -> None:
    """Declare the regions of blocks that lack them and have an index of a variable whose value TVM does not know; of
    `every` block if asked, or if a value with its names written out is long. `others` are names that denote no
    buffers."""
    every = every or _is_long(function) or _is_deep(function)
    for part in ast.walk(function):
        if _is_block(part) and (every or _is_unknown_in(part) or _reads_often(part)):
            _declare(part, others)


def _is_block(part: ast.AST) -> TypeGuard[ast.With]:
    return isinstance(part, ast.With) and any(
        call_attribute(item.context_expr) in _BLOCKS for item in part.items
    )


def _reads_often(block: ast.With) -> bool:
    """Are there so many reads that TVM would take long to unite their regions?"""
    return sum(isinstance(part, ast.Subscript) for part in ast.walk(block)) > MOST_READS


def _is_unknown_in(block: ast.With) -> bool:
    """Is a variable used in an index that is assigned in the block, or bound in it and used in a block inside?"""
    inner = [part for part in ast.walk(block) if part is not block and _is_block(part)]
    inside = {part for each in inner for part in ast.walk(each)}
    assigned: set[str] = set()
    bound: set[str] = set()
    for part in ast.walk(block):
        match part:
            case ast.Assign([ast.Name(id=name)], ast.BinOp() | ast.Subscript() | ast.UnaryOp()):
                assigned.add(name)
            case ast.AnnAssign(ast.Name(id=name)) if part not in inside:
                bound.add(name)
            case _:
                pass
    return bool(
        (assigned and assigned & _in_indices(block))
        or (inner and bound and any(bound & _in_indices(each) for each in inner))
    )


def _in_indices(block: ast.With) -> set[str]:
    return {
        part.id
        for index in ast.walk(block)
        if isinstance(index, ast.Subscript)
        for part in ast.walk(index.slice)
        if isinstance(part, ast.Name)
    }


def _is_long(function: ast.FunctionDef) -> bool:
    lengths: dict[str, int] = {}
    for part in _in_order(function):
        match part:
            case ast.Assign([ast.Name(id=name)], value) | ast.AnnAssign(
                ast.Name(id=name), _, ast.expr() as value
            ):
                used = [n.id for n in ast.walk(value) if isinstance(n, ast.Name)]
                lengths[name] = max(lengths.get(name, 1), sum(lengths.get(n, 1) for n in used))
                if lengths[name] > LONGEST:
                    return True
    return False


def _is_deep(function: ast.FunctionDef) -> bool:
    """Are more divisions nested in one expression than TVM's analyser should see?"""
    divisions = [part for part in ast.walk(function) if _is_division(part)]
    if len(divisions) <= DEEPEST:
        return False
    depths: dict[ast.AST, int] = {}
    for part in reversed(divisions):  # ast.walk goes from the outside to the inside
        inner = (depths.get(each, 0) for each in ast.walk(part) if each is not part)
        depths[part] = 1 + max(inner)
        if depths[part] > DEEPEST:
            return True
    return False


def _is_division(part: ast.AST) -> bool:
    return isinstance(part, ast.BinOp) and isinstance(part.op, (ast.FloorDiv, ast.Mod))


def _in_order(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements inside of a node, as they are written."""
    waiting: list[ast.AST] = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.stmt):
            yield part
            waiting += [
                each
                for each in reversed([*ast.iter_child_nodes(part)])
                if isinstance(each, ast.stmt)
            ]


def _declare(block: ast.With, others: AbstractSet[str]) -> None:
    read: dict[str, None] = {}
    written: dict[str, None] = {}
    own = {"T", *others}
    indexed: set[int] = set()
    for part in ast.walk(block):
        match part:
            case ast.Subscript(ast.Name(id=name) as base, ctx=ast.Store()):
                written[name] = None
                indexed.add(id(base))
            case ast.AugAssign(ast.Subscript(ast.Name(id=name))):
                read[name] = None
            case ast.Subscript(ast.Name(id=name) as base):
                read[name] = None
                indexed.add(id(base))
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                own.add(name)
            case _:
                pass
    for part in ast.walk(block):
        if (
            isinstance(part, ast.Name)
            and isinstance(part.ctx, ast.Load)
            and id(part) not in indexed
        ):
            read[part.id] = written[part.id] = None  # its address is passed to somebody
    said = {call_attribute(each.value) for each in block.body if isinstance(each, ast.Expr)}
    for name, used in (("reads", read), ("writes", written)):
        if name not in said:
            given = ", ".join(each for each in used if each not in own)
            (statement,) = ast.parse(f"T.{name}({REGIONS}({given}))").body
            for part in ast.walk(statement):
                ast.copy_location(part, block)
            block.body.append(statement)
