"""PlanMemory: tensors that live only inside a call share storage."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim, product
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    Function,
    If,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import UsedVars
from relaxpy.op.deduce import deduce
from relaxpy.op.memory import AllocStorage, AllocTensor, CallDPS, Kill
from relaxpy.transform.base import Pass, PassContext


@dataclass(frozen=True)
class PlanMemory(Pass):
    """Algorithm 3 of the paper with equality in normal form: a tensor that only kernels touch
    gets a storage; when its last reader has run, the next tensor of an equal size in bytes takes
    the storage over. What may leave the call (returned, in a tuple, captured, handed to another
    function) keeps memory of its own.

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
                d = R.memory.alloc_tensor(R.shape([n]), dtype="float32")
                _d = R.vm.call_dps(cls.exp, c, d)
                return d
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
                storage = R.memory.alloc_storage(R.prim_value(n * 4))
                a = R.memory.alloc_tensor(R.shape([n]), storage, dtype="float32")
                _a = R.vm.call_dps(cls.exp, x, a)
                storage1 = R.memory.alloc_storage(R.prim_value(n * 4))
                b = R.memory.alloc_tensor(R.shape([n]), storage1, dtype="float32")
                _b = R.vm.call_dps(cls.exp, a, b)
                c = R.memory.alloc_tensor(R.shape([n]), storage, dtype="float32")
                _c = R.vm.call_dps(cls.exp, b, c)
                d = R.memory.alloc_tensor(R.shape([n]), dtype="float32")
                _d = R.vm.call_dps(cls.exp, c, d)
                return d
    """

    name: ClassVar[str] = "plan-memory"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return mod.map_graph_functions(lambda _, f: _Planner(mod, f).function())


class _Planner:
    def __init__(self, mod: IRModule, function: Function) -> None:
        self.mod = mod
        self.original = function
        self.used_vars = UsedVars()
        self.root: dict[Var, Var] = {}
        """Which allocation a variable is (another name of)."""
        self.escaped: set[Var] = set()
        self.count = 0
        self.free: dict[Dim, list[Var]] = defaultdict(list)

    def function(self) -> Function:
        self.find_escapes(self.original.body, returns=True)
        body = self.seq(self.original.body)
        return (
            self.original
            if body is self.original.body
            else dataclasses.replace(self.original, body=body)
        )

    # Which allocations may leave the call

    def find_escapes(self, seq: SeqExpr, returns: bool) -> None:
        for binding in seq.bindings:
            value = binding.value
            match value:
                case Call(op=AllocTensor()):
                    self.root[binding.var] = binding.var
                case Call(op=CallDPS() | Kill()):
                    pass
                case Var() if value in self.root:
                    self.root[binding.var] = self.root[value]
                case If():
                    self.find_escapes(value.then, True)
                    self.find_escapes(value.otherwise, True)
                case _:
                    self.escape(self.used_vars(value))
        if returns:
            self.escape(self.used_vars(seq.body))

    def escape(self, variables: Iterable[Var]) -> None:
        for var in variables:
            if var in self.root:
                self.escaped.add(self.root[var])

    # Who takes which storage

    def seq(self, seq: SeqExpr) -> SeqExpr:
        bindings = list(seq.bindings)
        last_use: dict[Var, int] = {}
        for i, binding in enumerate(bindings):
            for var in self.used_vars(binding.value):
                if var in self.root:
                    last_use[self.root[var]] = i
        storage_of: dict[Var, tuple[Var, Dim]] = {}
        dies: dict[int, list[Var]] = defaultdict(list)
        out: list[Binding] = []
        for i, binding in enumerate(bindings):
            value = binding.value
            if (
                isinstance(value, Call)
                and isinstance(value.op, AllocTensor)
                and len(value.args) == 1
                and binding.var not in self.escaped
            ):
                shape, tensor = value.args[0], binding.var.annotation
                assert isinstance(shape, ShapeExpr)
                assert isinstance(tensor, TensorType)
                assert tensor.dtype is not None
                size = product(shape.dims) * tensor.dtype.itemsize
                storage = self.take(size, out, binding)
                storage_of[binding.var] = (storage, size)
                dies[last_use.get(binding.var, i)].append(binding.var)
                new = dataclasses.replace(value, args=(shape, storage))
                out.append(VarBinding(binding.var, new, span=binding.span))
            elif (
                isinstance(value, Call)
                and isinstance(value.op, AllocTensor)
                and len(value.args) == 2
                and binding.var in self.escaped
            ):
                # A program that came with a plan of its own, TVM's: what leaves the call is not planned storage.
                own = dataclasses.replace(value, args=value.args[:1])
                out.append(VarBinding(binding.var, own, span=binding.span))
            elif isinstance(value, If):
                then, other = self.arm(value.then), self.arm(value.otherwise)
                same = then is value.then and other is value.otherwise
                changed = value if same else If(value.cond, then, other, span=value.span)
                assert isinstance(binding, VarBinding)
                out.append(binding if same else VarBinding(binding.var, changed, span=binding.span))
            else:
                out.append(binding)
            for var in dies.pop(i, ()):
                storage, size = storage_of[var]
                self.free[size].append(storage)
        if len(out) == len(bindings) and all(a is b for a, b in zip(out, bindings, strict=True)):
            return seq
        return SeqExpr((BindingBlock(tuple(out)),), seq.body, span=seq.span)

    def arm(self, seq: SeqExpr) -> SeqExpr:
        """A branch: it may use what is free before it; storages that it adds are seen only inside
        it."""
        before = {size: list(storages) for size, storages in self.free.items()}
        result = self.seq(seq)
        self.free = defaultdict(list, before)
        return result

    def take(self, size: Dim, out: list[Binding], at: Binding) -> Var:
        if self.free[size]:
            return self.free[size].pop()
        call = AllocStorage()(PrimValue(size))
        name = "storage" if self.count == 0 else f"storage{self.count}"
        self.count += 1
        storage = Var(name, deduce(call, self.mod))
        out.append(VarBinding(storage, call, span=at.span))
        return storage
