"""Fuse tensor programs: their bodies run one after the other in one program, with local buffers in between (TVM's
`FuseTIR`)."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relaxpy.errors import PassError
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.known import as_known
from relaxpy.ir.module import CHECK_INDICES, BufferParam, ScalarParam
from relaxpy.tir.analyzer import int64, to_tvm, to_tvm_var
from relaxpy.tir.extents import with_parsed_extents
from relaxpy.tir.prim_func import PrimFunc, read_symbols
from relaxpy.tir.tvm import s_tir, tirx, tvm
from relaxpy.tir.walk import rewritten, walk


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the fused program; compared by identity."""

    name: str
    type: TensorType


@dataclass(frozen=True)
class Step:
    """One run of a program: the tensors that it reads and writes, and its scalar arguments."""

    program: PrimFunc
    inputs: Sequence[Value]
    outputs: Sequence[Value]
    scalars: Sequence[Dim] = ()


def fuse_programs(
    steps: Sequence[Step],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    scalars: Sequence[SymVar] = (),
) -> PrimFunc:
    """Build the program that runs `steps` in order, with parameters `inputs`, `outputs` and the integers `scalars`. All
    other tensors become local buffers. Raises `PassError` for a program without a root block."""
    buffers = {id(v): _buffer(v) for v in (*inputs, *outputs)}
    local: list[Any] = []
    bodies: list[Any] = []
    for step in steps:
        for value in step.outputs:
            if id(value) not in buffers:
                buffers[id(value)] = _buffer(value)
                local.append(buffers[id(value)])
        body, allocated = _placed(step, [buffers[id(v)] for v in (*step.inputs, *step.outputs)])
        bodies += body
        local += allocated
    params = [buffers[id(v)] for v in (*inputs, *outputs)] + [to_tvm_var(s) for s in scalars]
    whole = tirx.SeqStmt(bodies) if len(bodies) > 1 else bodies[0]
    root = s_tir.SBlock([], [], [], "root", whole, alloc_buffers=local)
    realize = s_tir.SBlockRealize([], tirx.const(True, "bool"), root)
    known: dict[str, Any] = {"s_tir": True, "tirx.noalias": True}
    for step in steps:
        if CHECK_INDICES in step.program.attrs:
            known.setdefault(CHECK_INDICES, step.program.attrs[CHECK_INDICES])
    attrs = tvm.ir.make_node("ir.DictAttrs", **known)
    func = tirx.PrimFunc(params, realize, attrs=attrs)
    return PrimFunc(with_parsed_extents(_distinct_blocks(s_tir.renew_defs(func))))


def can_be_fused(program: PrimFunc) -> bool:
    """Is the program a tree of blocks below a root block?"""
    body = program.func.body
    return isinstance(body, s_tir.SBlockRealize) and len(body.block.iter_vars) == 0


def _buffer(value: Value) -> Any:
    known = as_known(value.type)
    shape = [to_tvm(dim) for dim in known.dims]
    return tirx.decl_buffer(shape, str(known.dtype), value.name, layout=None)


def _placed(step: Step, buffers: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The statements of a program on these buffers, and the buffers that its root block allocates."""
    if not can_be_fused(step.program):
        raise PassError("fuse-no-root", "a tensor program without a root block cannot be fused")
    func = s_tir.renew_defs(step.program.func)  # a program may be used twice
    realize = func.body
    table = _symbols(step, func)
    params = [p for p in func.params if isinstance(p.ty, tirx.BufferType)]
    table.update(zip(params, buffers, strict=True))
    block = realize.block
    for buffer in _buffers_inside(realize, params):
        table[buffer] = _substituted(buffer, table)
    known = (tvm.ir.Var, lambda var: table.get(var, var))
    body = rewritten(block.body, known, (tuple(_FOLDS), _folded))
    stmts = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    return stmts, [table[b] for b in block.alloc_buffers]


_FOLDS: dict[Any, Any] = {
    tirx.Add: operator.add,
    tirx.Sub: operator.sub,
    tirx.Mul: operator.mul,
    tirx.FloorDiv: tirx.floordiv,
    tirx.FloorMod: tirx.floormod,
    tirx.Min: tirx.min,
    tirx.Max: tirx.max,
}


def _folded(node: Any) -> Any:
    """Fold arithmetic of sizes and indices whose values are known: `n * 2` with n = 1 is 2, as the parser of the
    printed program has it. A division by 0, in a loop that does not run, gives 0 (`relaxpy.tir.lowering.traps`): TVM
    refuses to print or simplify a division by a constant 0."""
    a, b = node.a, node.b
    is_known = isinstance(b, tirx.IntImm)
    if not is_known and not isinstance(a, tirx.IntImm) and not a.same_as(b):
        return node  # nothing in it is known
    if node.ty.dtype != "int64":
        return node
    if is_known and b.value == 0 and isinstance(node, (tirx.FloorDiv, tirx.FloorMod)):
        return int64(0)
    return _FOLDS[type(node)](a, b)


def _symbols(step: Step, func: Any) -> dict[Any, Any]:
    """The values of the program's variables in this step, as TVM expressions."""
    values = [v.type.dims or () for v in (*step.inputs, *step.outputs)]
    bound: dict[SymVar, Dim] = {}
    params = PrimFunc(func).params
    shapes = [p.shape for p in params if isinstance(p, BufferParam)]
    for shape, dims in zip(shapes, values, strict=True):
        for size, dim in zip(shape, dims, strict=True):
            if size.symbol is not None:
                bound.setdefault(size.symbol, dim)
    scalars = [p.var for p in params if isinstance(p, ScalarParam)]
    bound.update(zip(scalars, step.scalars, strict=True))
    symbols = read_symbols(func).symbols
    return {var: to_tvm(bound[symbol]) for var, symbol in symbols.items() if symbol in bound}


def _buffers_inside(body: Any, params: Sequence[Any]) -> list[Any]:
    """The buffers of a program that are not its parameters."""
    found: dict[Any, None] = {}

    def visit(var: Any) -> None:
        if isinstance(var.ty, tirx.BufferType) and not any(var.same_as(p) for p in params):
            found.setdefault(var)

    walk(body, (tvm.ir.Var, visit))
    return list(found)


def _substituted(buffer: Any, table: dict[Any, Any]) -> Any:
    """Return the buffer with the values of the program's variables in its shape."""
    shape = [
        rewritten(size, (tvm.ir.Var, lambda var: table.get(var, var))) for size in buffer.shape
    ]
    scope = str(buffer.scope())
    return tirx.decl_buffer(shape, str(buffer.dtype), str(buffer.name), scope=scope, layout=None)


def _distinct_blocks(func: Any) -> Any:
    """Return the function with a unique name for every block."""
    taken: dict[str, int] = {}

    def rename(block: Any) -> Any:
        name = str(block.name_hint)
        count = taken[name] = taken.get(name, 0) + 1
        if count == 1:
            return block
        return s_tir.SBlock(
            block.iter_vars, block.reads, block.writes, f"{name}_{count - 1}", block.body,
            block.init, block.alloc_buffers, block.match_buffers, block.annotations,
        )  # fmt: skip

    return func.with_body(rewritten(func.body, (s_tir.SBlock, rename)))
