"""UpdateInPlace: let an element-wise program write its result over an input that is not used afterwards."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.live_ranges import Liveness, LiveRange, liveness
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import TensorType
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
from relaxpy.ir.module import BufferParam, IRModule
from relaxpy.op.memory import CallDPS, View
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise.overwrite import overwritable, with_shared_memory
from relaxpy.transform.base import Pass, PassContext


@dataclass(frozen=True)
class UpdateInPlace(Pass):
    """Replace the output of a tensor program by a view of an input's memory. The program must read each element of the
    input just before it writes the same element of the output (`relaxpy.tir.recognise.overwrite`). The call must be the
    last use of the input, and both must have the same size. The input must be a tensor that this function allocated and
    nothing kept, and then the output must not leave the call, since such memory is not planned; or one that the caller
    donated (`relaxpy.analysis.donated`), whatever becomes of the output.

    Before:
        @I.ir_module
        class Module:
            @T.prim_func(private=True)
            def exp(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
                n = T.int64()
                for i in range(n):
                    with T.sblock("exp"):
                        vi = T.axis.spatial(n, i)
                        y[vi] = T.exp(x[vi])

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                n = T.int64()
                cls = Module
                a = R.memory.alloc_tensor(R.shape([n]), dtype="float32")
                _a = R.vm.call_dps(cls.exp, x, a)
                b = R.memory.alloc_tensor(R.shape([n]), dtype="float32")
                _b = R.vm.call_dps(cls.exp, a, b)
                c = R.memory.alloc_tensor(R.shape([n]), dtype="float32")
                _c = R.vm.call_dps(cls.exp, b, c)
                return c
    After:
        @I.ir_module
        class Module:
            @T.prim_func(private=True)
            def exp(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
                n = T.int64()
                for i in range(n):
                    with T.sblock("exp"):
                        vi = T.axis.spatial(n, i)
                        y[vi] = T.exp(x[vi])

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                n = T.int64()
                cls = Module
                a = R.memory.alloc_tensor(R.shape([n]), dtype="float32")
                _a = R.vm.call_dps(cls.exp, x, a)
                b = R.memory.view(a, R.shape([n]), dtype="float32")
                _b = R.vm.call_dps(cls.exp, a, b)
                c = R.memory.alloc_tensor(R.shape([n]), dtype="float32")
                _c = R.vm.call_dps(cls.exp, b, c)
                return c
    """

    name: ClassVar[str] = "update-in-place"
    level: ClassVar[int] = 3
    prerequisites: ClassVar[tuple[str, ...]] = ("lower-call-tir",)

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        live = liveness(mod)
        shared: dict[str, PrimFunc] = {}
        new = mod.map_graph_functions(
            lambda name, f: _Updater(mod, f, live[name], shared).function()
        )
        return new.with_functions({**new.functions, **shared})


class _Updater:
    def __init__(
        self, mod: IRModule, function: Function, live: Liveness, shared: dict[str, PrimFunc]
    ) -> None:
        self.mod = mod
        self.original = function
        self.live = live
        self.shared = shared
        """Programs with a call that shares memory between an input and an output."""
        self.views: dict[Var, Var] = {}
        """Outputs, and the inputs that they overwrite."""

    def function(self) -> Function:
        self.search(self.original.body)
        if not self.views:
            return self.original
        return dataclasses.replace(self.original, body=self.seq(self.original.body))

    # Candidates

    def search(self, seq: SeqExpr) -> None:
        """Find the calls in a body and its branches that may overwrite an input."""
        for binding in seq.bindings:
            match binding.value:
                case Call(op=CallDPS(), args=(GlobalVar(name=name), *args)):
                    program = self.mod.functions.get(name)
                    if isinstance(program, PrimFunc):
                        self.call(name, program, args)
                case If(then=then, otherwise=otherwise):
                    self.search(then)
                    self.search(otherwise)
                case _:
                    pass

    def call(self, name: str, program: PrimFunc, args: list[Expr]) -> None:
        tensors = [i for i, p in enumerate(program.params) if isinstance(p, BufferParam)]
        given = dict(zip(tensors, args, strict=False))  # scalars follow the tensors
        pairs = overwritable(program)
        for i, o in sorted(pairs):
            source, target = given.get(i), given.get(o)
            if not isinstance(source, Var) or not isinstance(target, Var):
                continue
            again = {k for k, arg in given.items() if arg is source and (k, o) in pairs}
            others = [arg for k, arg in given.items() if k != o and k not in again]
            if target not in self.views and self.may_overwrite(source, target, others):
                self.views[target] = source
                self.shared[name] = with_shared_memory(program)

    def may_overwrite(self, source: Var, target: Var, others: list[Expr]) -> bool:
        """May the call that writes `target` write over `source`?"""
        new, root = self.range(target), self.root(source)
        if new is None or root is None or new.var is not target:
            return False
        if any(root in self.live.roots(other) for other in others):
            return False
        given, old = self.live.given.get(root), self.range(source)
        if given is not None:
            if _device(new) is not None:
                return False
        elif old is None or new.escapes or _device(old) != _device(new):
            return False
        found = old if given is None else given
        assert found is not None
        return found.size == new.size and not found.escapes and found.end == new.first_use

    def root(self, var: Var) -> Var | None:
        """The variable that stands for the memory of a tensor, if it is one."""
        roots = self.live.roots(var)
        return (
            next(iter(roots))
            if len(roots) == 1 and isinstance(var.annotation, TensorType)
            else None
        )

    def range(self, var: Var) -> LiveRange | None:
        """The tensor that a variable names, if its allocation is not planned yet."""
        root = self.root(var)
        found = None if root is None else self.live.ranges.get(root)
        return found if found is not None and len(found.call.args) == 1 else None

    # Rewriting

    def seq(self, seq: SeqExpr) -> SeqExpr:
        bindings = tuple(map(self.binding, seq.bindings))
        if all(a is b for a, b in zip(bindings, seq.bindings, strict=True)):
            return seq
        return SeqExpr((BindingBlock(self.in_order(bindings)),), seq.body, span=seq.span)

    def in_order(self, bindings: tuple[Binding, ...]) -> tuple[Binding, ...]:
        """Sort the bindings so that each view follows the tensor that it views; an output may have been allocated
        earlier.
        """
        later = {binding.var for binding in bindings}
        waiting: dict[Var, list[Binding]] = {}
        placed: list[Binding] = []

        def place(binding: Binding) -> None:
            placed.append(binding)
            later.discard(binding.var)
            for view in waiting.pop(binding.var, ()):
                place(view)

        for binding in bindings:
            source = self.views.get(binding.var)
            if source in later:
                waiting.setdefault(source, []).append(binding)
            else:
                place(binding)
        return tuple(placed)

    def binding(self, binding: Binding) -> Binding:
        value = binding.value
        if isinstance(value, If):
            then, other = self.seq(value.then), self.seq(value.otherwise)
            if then is value.then and other is value.otherwise:
                return binding
            return VarBinding(
                binding.var, If(value.cond, then, other, span=value.span), span=binding.span
            )
        source = self.views.get(binding.var)
        if source is None:
            return binding
        value = expect(Call, value)
        dtype = getattr(value.op, "dtype", "float32")
        view = View(dtype=dtype)(source, value.args[0])
        return VarBinding(
            binding.var, dataclasses.replace(view, span=value.span), span=binding.span
        )


def _device(tensor: LiveRange) -> str | None:
    """The virtual device of a tensor."""
    device: str | None = getattr(tensor.call.op, "vdevice", None)
    return device
