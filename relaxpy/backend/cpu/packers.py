"""Packers: functions of the module that pack weights, each from a tensor as the user has it to the tensor that a
kernel reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from relaxpy.analysis.weights import PACKERS
from relaxpy.backend.cpu.panels import Packing
from relaxpy.backend.cpu.row_tiles import RowTiles
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.expr import (
    Call,
    DataflowBlock,
    Expr,
    Function,
    GlobalVar,
    SeqExpr,
    Tuple,
    Var,
    VarBinding,
)
from relaxpy.ir.module import BaseFunc, IRModule
from relaxpy.ir.names import FreshNames
from relaxpy.op.call import CallTIR
from relaxpy.tir import te
from relaxpy.tir.forms.pattern_kind import PatternKind, pattern_kind
from relaxpy.tir.fuse import Step, Value, can_be_fused, fuse_programs
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform.dataflow_vars import with_outputs

Layout = Packing | RowTiles


class Packers:
    """The packers that the packing of parameters adds to a module."""

    def __init__(self, mod: IRModule) -> None:
        self.mod = mod
        self.names = FreshNames(mod.functions)
        self.functions: dict[str, BaseFunc] = {}
        """The new functions and their tensor programs, by name."""
        self._made: dict[tuple[Annotation | str, Layout], str] = {}

    def add(
        self, name: str, weight: Var, before: Sequence[Any] | None, layout: Layout
    ) -> list[Any]:
        """Add the packer of a weight, under this name unless there is an equal one. `before` is the weight's entry in
        the attribute `packers`: the function that makes it, and the names of its sources. Returns its new entry."""
        sources = [weight.name] if before is None else before[1]
        key = (weight.annotation if before is None else before[0]), layout
        if key not in self._made:
            self._made[key] = self.names.fresh(name)
            self._write(self._made[key], weight, before, layout)
        return [self._made[key], sources]

    def _write(self, name: str, weight: Var, before: Sequence[Any] | None, layout: Layout) -> None:
        assert isinstance(weight.annotation, TensorType)
        if before is None:
            source = Var(weight.name, weight.annotation, span=weight.span)
            params, bindings, value = (source,), (), source
        else:
            made = self.mod.graph_function(before[0])
            params, bindings, value = made.params, made.body.bindings, made.body.body
        out = packed_type(weight.annotation, layout)
        program = self.names.fresh("pack")
        self.functions[program] = pack_program(weight.annotation, layout)
        call = Call(CallTIR(), (GlobalVar(program), Tuple((value,))), (out,))
        result = Var("packed", out, span=weight.span)
        body = (*bindings, VarBinding(result, call, span=weight.span))
        fused = self._fused(params, body)
        if fused is not None:
            del self.functions[program]
            program = self.names.fresh("fused_pack")
            self.functions[program] = fused
            call = Call(CallTIR(), (GlobalVar(program), Tuple(params)), (out,))
            body = (VarBinding(result, call, span=weight.span),)
        seq = SeqExpr((DataflowBlock(tuple(body)),), result)
        attrs = {"global_symbol": name}
        self.functions[name] = with_outputs(Function(params, seq, out, attrs=attrs))

    def _fused(self, params: Sequence[Var], bindings: Sequence[Any]) -> PrimFunc | None:
        """One program for all bindings, if each of them calls a program that only moves or maps elements."""
        values: dict[Expr, Value] = {}

        def value(var: Var) -> Value:
            assert isinstance(var.annotation, TensorType)
            return values.setdefault(var, Value(var.name, var.annotation))

        steps: list[Step] = []
        for binding in bindings:
            match binding.value:
                case Call(op=op, args=(GlobalVar(name=name), Tuple(fields=fields))) as call if (
                    type(op) is CallTIR and len(call.ty_args) == 1
                ):
                    program = self.functions.get(name) or self.mod.functions.get(name)
                case _:
                    return None
            if not isinstance(program, PrimFunc) or not can_be_fused(program):
                return None
            if pattern_kind(program) > PatternKind.INJECTIVE:
                return None
            if not all(isinstance(field, Var) for field in fields):
                return None
            inputs = [value(field) for field in fields if isinstance(field, Var)]
            steps.append(Step(program, inputs, [value(binding.var)]))
        if len(steps) < 2:
            return None
        return fuse_programs(steps, [value(param) for param in params], steps[-1].outputs)


def packed_type(annotation: Annotation, layout: Layout) -> TensorType:
    """The type of a packed weight."""
    assert isinstance(annotation, TensorType)
    return dataclasses.replace(annotation, shape=layout.packed_shape(known_shape(annotation)))


def known_shape(annotation: Annotation) -> tuple[int, ...]:
    """The sizes of a tensor; empty if one is not known."""
    dims = annotation.dims if isinstance(annotation, TensorType) else None
    sizes = [dim.value for dim in dims or ()]
    return tuple(size for size in sizes if size is not None) if None not in sizes else ()


def pack_program(weight: TensorType, layout: Layout) -> PrimFunc:
    """The tensor program that packs a weight of this type."""
    shape = known_shape(weight)
    source = te.placeholder(shape, str(weight.dtype), "weight")

    def element(*at: Any) -> Any:
        places, inside = layout.source(shape, at)
        read = source(*places)
        for condition in inside:
            read = te.if_then_else(condition, read, te.const(0, str(weight.dtype)))
        return read

    packed = te.compute(layout.packed_shape(shape), element, "packed")
    return PrimFunc.from_te([source], [packed])


def without_unused_packers(mod: IRModule, before: IRModule) -> IRModule:
    """The module without the packers that `before` uses and it does not."""
    gone = _used_packers(before) - _used_packers(mod)
    return mod.with_functions({name: f for name, f in mod.functions.items() if name not in gone})


def _used_packers(mod: IRModule) -> set[str]:
    entries = (function.attrs.get(PACKERS, {}) for function in mod.graph_functions.values())
    return {packer for table in entries for packer, _ in table.values()}
