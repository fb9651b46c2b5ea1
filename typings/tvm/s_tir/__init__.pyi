"""Blocks of loop programs, and the schedules that transform them."""

from collections.abc import Mapping, Sequence
from typing import Any

from tvm_ffi import Array

from tvm.ir import Expr, IRModule, Span, TensorRegion, Var
from tvm.runtime import Object
from tvm.s_tir import analysis as analysis
from tvm.s_tir import transform as transform
from tvm.tirx import IterVar, PrimFunc, Stmt

class MatchBufferRegion(Object):
    buffer: Var
    source: TensorRegion
    def __init__(self, buffer: Var, source: TensorRegion) -> None: ...

class SBlock(Stmt):
    iter_vars: Array[IterVar]
    reads: Array[TensorRegion]
    writes: Array[TensorRegion]
    name_hint: str
    body: Stmt
    init: Stmt | None
    alloc_buffers: Array[Var]
    match_buffers: Array[MatchBufferRegion]
    annotations: Mapping[str, Any]
    def __init__(
        self,
        iter_vars: Sequence[IterVar],
        reads: Sequence[TensorRegion],
        writes: Sequence[TensorRegion],
        name_hint: str,
        body: Stmt,
        init: Stmt | None = ...,
        alloc_buffers: Sequence[Var] | None = ...,
        match_buffers: Sequence[MatchBufferRegion] | None = ...,
        annotations: Mapping[str, Any] | None = ...,
        span: Span | None = ...,
    ) -> None: ...

class SBlockRealize(Stmt):
    iter_values: Array[Expr]
    predicate: Expr
    block: SBlock
    def __init__(
        self,
        iter_values: Sequence[Expr],
        predicate: Expr | bool,
        block: SBlock,
        span: Span | None = ...,
    ) -> None: ...

class ScheduleError(Exception): ...

class Schedule(Object):
    """Its methods take and return handles of loops and blocks."""
    mod: IRModule
    def __init__(self, mod: PrimFunc | IRModule, *, debug_mask: str | int = ..., **options: Any) -> None: ...

def renew_defs(func: PrimFunc) -> PrimFunc: ...
