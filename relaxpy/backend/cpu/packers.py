"""Packers: functions of the module that pack weights, each from a tensor as the user has it to the tensor that a
kernel reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

from relaxpy.analysis.weights import PACKERS
from relaxpy.backend.cpu.panels import Packing
from relaxpy.backend.cpu.row_tiles import RowTiles
from relaxpy.ir.accessors import expect, tensor_of
from relaxpy.ir.annotation import Annotation, TensorType, TupleType
from relaxpy.ir.expr import (
    Binding,
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
from relaxpy.ir.visitor import UsedVars
from relaxpy.op.call import CallTIR
from relaxpy.tir import te
from relaxpy.tir.fuse import Step, Value, can_be_fused, fuse_programs
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise.pattern_kind import PatternKind, pattern_kind
from relaxpy.transform.dataflow_vars import with_outputs

Layout = Packing | RowTiles


class Packers:
    """The packers that the packing of parameters adds to a module."""

    def __init__(self, mod: IRModule) -> None:
        self.mod = mod
        self.names = FreshNames(mod.functions)
        self.functions: dict[str, BaseFunc] = {}
        """The new functions and their tensor programs, by name."""
        self._made: dict[Hashable, str] = {}

    def add(
        self, name: str, weight: Var, before: Sequence[Any] | None, layout: Layout
    ) -> list[Any]:
        """Add the packer of a weight, under this name unless there is an equal one. `before` is the weight's entry in
        the attribute `packers`: the function that makes it, and the names of its sources. Returns its new entry."""
        sources = [weight.name] if before is None else before[1]
        key = (weight.annotation if before is None else before[0]), layout
        if key not in self._made:
            self._made[key] = self.names.fresh(name)
            if before is None:
                source = Var(weight.name, weight.annotation, span=weight.span)
                params, bindings, values = (source,), (), (source,)
            else:
                params, bindings, values = self._parts(before[0])
            self._write(self._made[key], params, bindings, [(*values, layout)])
        return [self._made[key], sources]

    def add_several(
        self, name: str, before: Sequence[Any], fields: Sequence[tuple[int, Layout | None]]
    ) -> list[list[Any]]:
        """Likewise for a function that returns a tuple: the new one returns these of its fields, each in a layout or as
        it is. Returns their entries."""
        key = before[0], tuple(fields)
        if key not in self._made:
            self._made[key] = self.names.fresh(name)
            params, bindings, values = self._parts(before[0])
            results = [(values[field], layout) for field, layout in fields]
            self._write(self._made[key], params, bindings, results)
        return [[self._made[key], before[1], number] for number in range(len(fields))]

    def _parts(self, name: str) -> tuple[Sequence[Var], Sequence[Binding], Sequence[Var]]:
        """The parameters, the bindings and the results of a packer of the module."""
        made = self.mod.graph_function(name)
        bindings, result = [*made.body.bindings], made.body.body
        for binding in reversed(bindings):
            if binding.var is result and isinstance(binding.value, (Tuple, Var)):
                result = binding.value
        results = result.fields if isinstance(result, Tuple) else (result,)
        return made.params, bindings, [value for value in results if isinstance(value, Var)]

    def _write(
        self,
        name: str,
        params: Sequence[Var],
        bindings: Sequence[Binding],
        results: Sequence[tuple[Var, Layout | None]],
    ) -> None:
        """Write the function that packs these results of the bindings. The steps of each that only move or map elements
        are one program."""
        made: list[Binding] = []
        outs: list[Var] = []
        for value, layout in results:
            if layout is None:
                outs.append(value)
                continue
            out = packed_type(value.annotation, layout)
            program = self.names.fresh("pack")
            self.functions[program] = pack_program(value.annotation, layout)
            call = Call(CallTIR(), (GlobalVar(program), Tuple((value,))), (out,))
            packed = Var("packed", out, span=value.span)
            last = VarBinding(packed, call, span=value.span)
            fused = self._fused([*_needed((value,), bindings), last])
            if fused is not None:
                del self.functions[program]
                last = fused
            made.append(last)
            outs.append(packed)
        body = _needed(outs, [*bindings, *made])
        seq = SeqExpr(
            (DataflowBlock(tuple(body)),), Tuple(tuple(outs)) if len(outs) > 1 else outs[0]
        )
        ret = (
            TupleType(tuple(out.annotation for out in outs))
            if len(outs) > 1
            else outs[0].annotation
        )
        attrs = {"global_symbol": name}
        self.functions[name] = with_outputs(Function(tuple(params), seq, ret, attrs=attrs))

    def _fused(self, bindings: Sequence[Binding]) -> VarBinding | None:
        """The last binding with those before it that can be fused into it: they call programs that only move or map
        elements. None if there are none, or only one that joins results
        of other programs."""
        values: dict[Expr, Value] = {}

        def value(var: Var) -> Value:
            return values.setdefault(var, Value(var.name, tensor_of(var)))

        *before, last = bindings
        steps: list[Step] = []
        inputs: dict[Var, None] = {}
        wanted = {last.var}
        for binding in (last, *reversed(before)):
            if binding.var not in wanted:
                continue
            step = self._step(binding)
            if step is None:
                if binding is last:
                    return None
                inputs[binding.var] = None
                continue
            program, fields = step
            steps.append(Step(program, [value(field) for field in fields], [value(binding.var)]))
            wanted.update(fields)
        joins = len(steps) == 2 and len(steps[1].inputs) > 1
        if len(steps) < 2 or (joins and len(inputs) == len(steps[1].inputs)):
            return None  # results of other programs are copied faster than they are read in pieces
        bound = {binding.var for binding in bindings}
        inputs |= dict.fromkeys(var for var in values if isinstance(var, Var) and var not in bound)
        arguments = [*inputs]
        steps.reverse()
        program = self.names.fresh("fused_pack")
        self.functions[program] = fuse_programs(
            steps, [value(argument) for argument in arguments], steps[-1].outputs
        )
        call = Call(
            CallTIR(), (GlobalVar(program), Tuple(tuple(arguments))), (last.var.annotation,)
        )
        return VarBinding(last.var, call, span=last.span)

    def _step(self, binding: Binding) -> tuple[PrimFunc, list[Var]] | None:
        """The tensor program that a binding calls and its arguments, if it can be fused; None otherwise."""
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
        arguments = [field for field in fields if isinstance(field, Var)]
        return (program, arguments) if len(arguments) == len(fields) else None


def _needed(values: Sequence[Var], bindings: Sequence[Binding]) -> list[Binding]:
    """The bindings that these values are computed by, in order."""
    needed, used = set(values), UsedVars()
    found: list[Binding] = []
    for binding in reversed(bindings):
        if binding.var in needed:
            needed.update(used(binding.value))
            found.append(binding)
    return found[::-1]


def packed_type(annotation: Annotation, layout: Layout) -> TensorType:
    """The type of a packed weight."""
    annotation = expect(TensorType, annotation)
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
    return {packer for table in entries for packer, *_ in table.values()}
