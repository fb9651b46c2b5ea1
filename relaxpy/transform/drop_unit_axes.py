"""DropUnitAxes: compute without axes of size 1 that a reshape adds and a later one removes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.scope import scope_of
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim
from relaxpy.ir.expr import (
    Binding,
    Call,
    DataflowBlock,
    DataflowVar,
    Expr,
    ShapeExpr,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import UsedVars
from relaxpy.op.base import Op
from relaxpy.op.datatype import Astype
from relaxpy.op.deduce import deduce
from relaxpy.op.elementwise import Elementwise
from relaxpy.op.manipulate import BroadcastTo, ExpandDims, PermuteDims
from relaxpy.op.reduce import Reduction
from relaxpy.op.row_major import Reshape
from relaxpy.op.search import Where
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dataflow_blocks import change_blocks

MOST = 4
"""Reshapes to more axes than this are looked at: attention, and other patterns, are of no more."""


@dataclass(frozen=True)
class DropUnitAxes(Pass):
    """Compute without the axes of size 1 that a reshape adds to make more than four, as functions mapped over groups of
    one do (attention in JAX, with a group of query heads for each key head). Elementwise operators, reductions, moved
    and broadcast axes are computed without them; for everything else they are put back.

    Before:
        @R.function
        def main(x: R.Tensor(("n", "m", 2, 3), "float32")) -> R.Tensor(("m", "n", 2), "float32"):
            n, m = T.int64(), T.int64()
            with R.dataflow():
                wide = R.reshape(x, R.shape([n, 1, m, 2, 3]))
                moved = R.permute_dims(wide, (2, 1, 0, 3, 4))
                powers = R.exp(moved)
                total = R.sum(powers, axis=[4])
                y = R.reshape(total, R.shape([m, n, 2]))
                R.output(y)
            return y
    After:
        @R.function
        def main(x: R.Tensor(("n", "m", 2, 3), "float32")) -> R.Tensor(("m", "n", 2), "float32"):
            n, m = T.int64(), T.int64()
            with R.dataflow():
                moved = R.permute_dims(x, axes=[1, 0, 2, 3])
                powers = R.exp(moved)
                total = R.sum(powers, axis=[3])
                y = total
                R.output(y)
            return y
    """

    name: ClassVar[str] = "drop-unit-axes"
    level: ClassVar[int] = 3
    prerequisites: ClassVar[tuple[str, ...]] = ("convert-to-dataflow",)

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        def changed(block: DataflowBlock) -> DataflowBlock:
            return _Dropper(block, mod).run()

        return mod.map_graph_functions(lambda _, function: change_blocks(function, changed))


@dataclass(frozen=True)
class _Core:
    """A value without some axes of size 1."""

    value: Expr
    gone: tuple[int, ...]
    """The axes that the value had, in order."""

    def without(self, items: Sequence[Dim]) -> list[Dim]:
        return [item for i, item in enumerate(items) if i not in self.gone]

    def place(self, axis: int) -> int:
        """Where an axis that is still there is."""
        return axis - sum(gone < axis for gone in self.gone)


class _Dropper:
    """Rewrites one block."""

    def __init__(self, block: DataflowBlock, mod: IRModule) -> None:
        self.block, self.mod = block, mod
        self.new: list[Binding] = []
        self.cores: dict[Var, _Core] = {}
        self.whole: set[Var] = set()
        """Values whose axes were put back."""
        self.used = UsedVars()

    def run(self) -> DataflowBlock:
        if not any(self.starts(binding) for binding in self.block.bindings):
            return self.block
        escapes = scope_of(self.block, self.mod).escapes
        for i, binding in enumerate(self.block.bindings):
            core = self.core(binding) if isinstance(binding, VarBinding) else None
            if core is None:
                for var in self.used(binding.value):
                    self.put_back(var)
                self.new.append(binding)
            elif not core.gone:
                self.new.append(VarBinding(binding.var, core.value, span=binding.span))
            else:
                self.cores[binding.var] = core
                if escapes[i]:
                    self.put_back(binding.var)
        return dataclasses.replace(self.block, bindings=tuple(self.new))

    def starts(self, binding: Binding) -> bool:
        match binding:
            case VarBinding(value=Call(op=Reshape(), args=(Var() as x, *_))):
                return self.added(x, _dims(binding.var)) is not None
            case _:
                return False

    def added(self, x: Var, dims: Sequence[Dim] | None) -> tuple[int, ...] | None:
        """The axes of size 1 that a reshape of x to `dims` adds, if it does nothing else."""
        old = _dims(x)
        if old is None or dims is None or len(dims) <= max(MOST, len(old)):
            return None
        gone: list[int] = []
        kept = list(old)
        for axis, size in enumerate(dims):
            if kept and size == kept[0]:
                kept.pop(0)
            elif size == 1:
                gone.append(axis)
            else:
                return None
        return None if kept else tuple(gone)

    def core(self, binding: VarBinding) -> _Core | None:
        """The value of a binding without axes; None if it stays as it is."""
        call, dims = binding.value, _dims(binding.var)
        if not isinstance(call, Call) or dims is None:
            return None
        args = [self.cores.get(arg) if isinstance(arg, Var) else None for arg in call.args]
        if isinstance(call.op, Reshape):
            return self.reshaped(call, dims, args[0])
        if not any(args):
            return None
        first = args[0]
        match call.op:
            case PermuteDims() as op if first is not None:
                order = op.order(len(dims))
                gone = tuple(i for i, axis in enumerate(order) if axis in first.gone)
                moved = [first.place(axis) for axis in order if axis not in first.gone]
                if moved == sorted(moved):
                    return _Core(first.value, gone)
                return _Core(self.bind(binding, PermuteDims(tuple(moved))(first.value)), gone)
            case Reduction() as op if first is not None:
                count = len(first.gone) + len(_dims(first.value) or ())
                axes = op.axes_of(count)
                if set(axes) & set(first.gone):
                    return None
                op = dataclasses.replace(op, axis=tuple(map(first.place, axes)))
                lost = () if op.keepdims else axes
                gone = tuple(g - sum(axis < g for axis in lost) for g in first.gone)
                return _Core(self.bind(binding, op(first.value)), gone)
            case ExpandDims() as op if first is not None:
                new = op.places(len(dims))
                old = [axis for axis in range(len(dims)) if axis not in new]
                found = _Core(first.value, tuple(old[g] for g in first.gone))
                places = tuple(found.place(axis) for axis in new)
                return _Core(self.bind(binding, ExpandDims(places)(first.value)), found.gone)
            case BroadcastTo() if first is not None:
                more = len(dims) - len(first.gone) - len(_dims(first.value) or ())
                found = _Core(first.value, tuple(g + more for g in first.gone))
                if any(dims[g] != 1 for g in found.gone):
                    return None
                shape = ShapeExpr(tuple(found.without(dims)))
                return _Core(self.bind(binding, BroadcastTo()(first.value, shape)), found.gone)
            case Elementwise() | Where() | Astype() as op:
                return self.elementwise(binding, op, call, args, dims)
            case _:
                return None

    def reshaped(self, call: Call, dims: Sequence[Dim], core: _Core | None) -> _Core | None:
        x = call.args[0]
        if core is None:
            gone = self.added(x, dims) if isinstance(x, Var) else None
            return None if gone is None else _Core(x, gone)
        return _Core(core.value, ()) if list(_dims(core.value) or ()) == list(dims) else None

    def elementwise(
        self,
        binding: VarBinding,
        op: Op,
        call: Call,
        args: Sequence[_Core | None],
        dims: Sequence[Dim],
    ) -> _Core | None:
        """The operator on values without the axes that all of those have lost that have lost some."""
        lost = set[tuple[int, ...]]()
        for core in args:
            if core is not None:
                ndim = len(core.gone) + len(_dims(core.value) or ())
                lost.add(tuple(g + len(dims) - ndim for g in core.gone))
        (gone, *others) = lost
        if others or any(dims[g] != 1 for g in gone):
            return None
        given: list[Expr] = []
        for arg, core in zip(call.args, args, strict=True):
            own = deduce(arg, self.mod)
            if core is None and isinstance(own, TensorType):
                if own.dims is None:
                    return None
                more = len(dims) - own.ndim
                kept = [size for a, size in enumerate(own.dims) if a + more not in gone]
                if len(kept) < own.ndim:
                    arg = self.bind(binding, Reshape()(arg, ShapeExpr(tuple(kept))))
            given.append(arg if core is None else core.value)
        return _Core(self.bind(binding, op(*given)), gone)

    def bind(self, binding: VarBinding, value: Call) -> Var:
        var = DataflowVar(binding.var.name, deduce(value, self.mod), span=binding.span)
        value = dataclasses.replace(value, span=binding.value.span)
        self.new.append(VarBinding(var, value, span=binding.span))
        return var

    def put_back(self, var: Var) -> None:
        """Bind a value with all its axes, as it was, once."""
        core = self.cores.get(var)
        if core is not None and var not in self.whole:
            self.whole.add(var)
            value = Reshape()(core.value, ShapeExpr(tuple(_dims(var) or ())))
            self.new.append(VarBinding(var, value, span=var.span))


def _dims(x: Expr) -> tuple[Dim, ...] | None:
    found = x.annotation if isinstance(x, Var) else None
    return found.dims if isinstance(found, TensorType) else None
