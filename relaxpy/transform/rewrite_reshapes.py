"""RewriteReshapes: replace copies that only change the shape by views."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.live_ranges import Liveness, liveness
from relaxpy.ir.accessors import tensor_of
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    Expr,
    Function,
    GlobalVar,
    If,
    SeqExpr,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule, TensorProgram
from relaxpy.op.base import Op
from relaxpy.op.call import CallInplacePacked
from relaxpy.op.memory import AllocTensor, CallDPS, Intrinsic, View
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise.row_major import reshaped
from relaxpy.transform.base import Pass, PassContext


@dataclass(frozen=True)
class RewriteReshapes(Pass):
    """Replace a tensor program that copies a tensor in row-major order (`relaxpy.tir.recognise.row_major`) by a view of
    the tensor's memory (`RewriteDataflowReshape` in TVM). The result must not leave the call, and neither memory may be
    written after the copy. Most reshapes are fused into their users before this pass.

    Before:
        @I.ir_module
        class Module:
            @T.prim_func(private=True)
            def flatten(x: T.Buffer(("n", 4), "float32"), y: T.Buffer(("n * 4",), "float32")):
                n = T.int64()
                for i in range(n * 4):
                    with T.sblock("y"):
                        vi = T.axis.spatial(n * 4, i)
                        y[vi] = x[vi // 4, vi % 4]

            @R.function
            def main(x: R.Tensor(("n", 4), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                n = T.int64()
                cls = Module
                flat = R.memory.alloc_tensor(R.shape([n * 4]), dtype="float32")
                _ = R.vm.call_dps(cls.flatten, x, flat)
                top = R.memory.alloc_tensor(R.shape([n]), dtype="float32")
                _1 = R.vm.call_dps("mylib.top_quarter", flat, top)
                return top
    After:
        @I.ir_module
        class Module:
            @T.prim_func(private=True)
            def flatten(x: T.Buffer(("n", 4), "float32"), y: T.Buffer(("n * 4",), "float32")):
                n = T.int64()
                for i in range(n * 4):
                    with T.sblock("y"):
                        vi = T.axis.spatial(n * 4, i)
                        y[vi] = x[vi // 4, vi % 4]

            @R.function
            def main(x: R.Tensor(("n", 4), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                n = T.int64()
                cls = Module
                flat = R.memory.view(x, R.shape([n * 4]), dtype="float32")
                top = R.memory.alloc_tensor(R.shape([n]), dtype="float32")
                _1 = R.vm.call_dps("mylib.top_quarter", flat, top)
                return top
    """

    name: ClassVar[str] = "rewrite-reshapes"
    level: ClassVar[int] = 3
    prerequisites: ClassVar[tuple[str, ...]] = ("lower-call-tir",)

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        programs = (p for p in mod.prim_funcs.values() if isinstance(p, PrimFunc))
        if all(reshaped(program) is None for program in programs):
            return mod
        live = liveness(mod)
        return mod.map_graph_functions(lambda name, f: _Reshapes(mod, f, live[name]).function())


class _Reshapes:
    def __init__(self, mod: IRModule, function: Function, live: Liveness) -> None:
        self.mod = mod
        self.original = function
        self.live = live
        self.params = frozenset(function.params)
        self.writes: Counter[Var] = Counter()
        """The number of bindings that may write to the memory of an allocation. For a parameter, writes to any
        parameter count.
        """
        self.used: set[Var] = set()
        """Allocations used so far."""
        self.copies: dict[Binding, tuple[Var, Var]] = {}
        """Calls that only reshape: their input and output."""
        self.views: dict[Var, Binding] = {}
        """Tensors that become views, and the calls that the views replace."""

    def function(self) -> Function:
        self.search(self.original.body)
        for binding, (source, target) in self.copies.items():
            if self.may_be_view(source, target):
                self.views[target] = binding
        if not self.views:
            return self.original
        return dataclasses.replace(self.original, body=self.seq(self.original.body))

    # Reshapes and writers

    def search(self, seq: SeqExpr) -> None:
        for binding in seq.bindings:
            value = binding.value
            match value:
                case If(then=then, otherwise=otherwise):
                    self.search(then)
                    self.search(otherwise)
                case Call(op=CallDPS(), args=(callee, *args)):
                    self.call(binding, callee, args)
                case Call(op=AllocTensor() | View() | Op()):
                    self.used |= self.live.roots(value)
                case Call(op=op, args=args) if not isinstance(op, Intrinsic):
                    if isinstance(op, CallInplacePacked) or not self.original.pure:
                        self.write(args)  # the callee may do anything with them
                    self.used |= self.live.roots(value)
                case _:
                    self.used |= self.live.roots(value)

    def call(self, binding: Binding, callee: Expr, args: list[Expr]) -> None:
        program = self.mod.functions.get(callee.name) if isinstance(callee, GlobalVar) else None
        if isinstance(program, TensorProgram):
            self.write(args[i] for i in program.written)
            self.copy(binding, program, args)
        else:  # a library's outputs were allocated for it; the caller may allow writes to parameters
            new = (arg for arg in args if self.live.roots(arg).isdisjoint(self.used))
            self.write(args if not self.original.pure else new)
        for arg in args:
            self.used |= self.live.roots(arg)

    def copy(self, binding: Binding, program: TensorProgram, args: list[Expr]) -> None:
        places = reshaped(program) if isinstance(program, PrimFunc) else None
        if places is None:
            return
        source, target = (args[i] for i in places)
        if isinstance(source, Var) and isinstance(target, Var) and target not in self.used:
            self.copies[binding] = source, target

    def write(self, args: Iterable[Expr]) -> None:
        for root in frozenset[Var]().union(*map(self.live.roots, args)):
            self.writes[root] += 1
            if root in self.params:
                self.writes.update(
                    self.params - {root}
                )  # the caller may have passed one tensor twice

    def may_be_view(self, source: Var, target: Var) -> bool:
        """Is neither memory written afterwards, and does the view not leave the call?"""
        roots = self.live.roots(source)
        made = self.live.ranges.get(target)
        if made is None or made.escapes or not _is_plain(made.call) or len(roots) != 1:
            return False
        (root,) = roots
        origin = self.live.ranges.get(root)
        once = self.writes[target] == 1
        if origin is None:
            return once and root in self.params and not self.writes[root]
        return once and len(origin.call.args) == 1 and self.writes[root] == 1

    # Rewriting

    def seq(self, seq: SeqExpr) -> SeqExpr:
        bindings = tuple(new for old in seq.bindings for new in self.binding(old))
        same = len(bindings) == len(tuple(seq.bindings))
        if same and all(a is b for a, b in zip(bindings, seq.bindings, strict=True)):
            return seq
        return SeqExpr((BindingBlock(bindings),), seq.body, span=seq.span)

    def binding(self, binding: Binding) -> Iterable[Binding]:
        value = binding.value
        if isinstance(value, If):
            then, other = self.seq(value.then), self.seq(value.otherwise)
            if then is not value.then or other is not value.otherwise:
                changed = If(value.cond, then, other, span=value.span)
                binding = VarBinding(binding.var, changed, span=binding.span)
            return (binding,)
        if binding.var in self.views:
            return ()  # the allocation
        if binding in self.copies and self.views.get(self.copies[binding][1]) is binding:
            source, target = self.copies[binding]
            call = self.live.ranges[target].call
            made = tensor_of(target)
            view = View(dtype=str(made.dtype))(source, call.args[0])
            view = dataclasses.replace(view, span=value.span)
            return (VarBinding(target, view, span=binding.span),)
        return (binding,)


def _is_plain(call: Call) -> bool:
    """Is this an allocation outside of any memory plan?"""
    return isinstance(call.op, AllocTensor) and len(call.args) == 1
