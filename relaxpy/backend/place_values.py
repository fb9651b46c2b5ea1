"""PlaceValues: assign a device to every tensor, and insert the copies between devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.backend.places import HOST, Place, Places, Tree, leaves_of, packed_name, tree_of
from relaxpy.backend.slots import named_devices, on_host, slots_of
from relaxpy.errors import BuildError
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, CallableType, TensorType, TupleType
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    MatchCast,
    SeqExpr,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.names import FreshNames
from relaxpy.ir.vdevice import TABLE, VDevice, vdevice_of
from relaxpy.op.call import CallDPSLibrary, CrossLevelCall, InvokeClosure
from relaxpy.op.device import HintOnDevice, Mark, ToVDevice
from relaxpy.op.memory import AllocTensor, CallDPS, CopyTo, MakeClosure, ReadScalar
from relaxpy.runtime.library import runs_anywhere
from relaxpy.target import Target
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class PlaceValues(Pass):
    """Assign devices (`RealizeVDevice` in TVM, for whole programs). A tensor lives where its annotation says
    (`vdevice`), or on the device of the values that it is computed from or used with: a tensor program's inputs and
    outputs are on one device. Results of host functions do not pull their users to the host. A tensor without any
    constraint lives on the device that the module is built for. Runtime functions take host tensors unless they declare
    that they work anywhere, and so do libraries; conditions are read by the host. Where a tensor is needed on another
    device, `R.memory.copy_to` copies it.

    A tensor program that is called on several devices becomes one program per device.

    Function values, and functions that become one, take and return tensors on the device that the module is built for,
    unless their annotations say otherwise.

    Before:
        @I.ir_module
        class Module:
            I.module_global_infos({"vdevice": [I.vdevice("opencl", 0)]})

            @T.prim_func(private=True)
            def exp(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
                n = T.int64()
                for i in range(n):
                    with T.sblock("exp"):
                        vi = T.axis.spatial(n, i)
                        y[vi] = T.exp(x[vi])

            @R.function
            def main(
                x: R.Tensor(("n",), dtype="float32", vdevice="opencl:0")
            ) -> R.Tensor(("n",), dtype="float32"):
                n = T.int64()
                cls = Module
                y = R.call_tir(cls.exp, (x,), out_ty=R.Tensor((n,), dtype="float32"))
                z = R.to_vdevice(y, "llvm:0")
                w = R.call_tir(cls.exp, (z,), out_ty=R.Tensor((n,), dtype="float32"))
                return w
    After:
        @I.ir_module
        class Module:
            I.module_global_infos({"vdevice": [I.vdevice("opencl", 0), I.vdevice("llvm", 0)]})

            @T.prim_func(private=True)
            def exp(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
                n = T.int64()
                for i in range(n):
                    with T.sblock("exp"):
                        vi = T.axis.spatial(n, i)
                        y[vi] = T.exp(x[vi])

            @R.function
            def main(
                x: R.Tensor(("n",), dtype="float32", vdevice="opencl:0")
            ) -> R.Tensor(("n",), dtype="float32", vdevice="llvm:0"):
                n = T.int64()
                cls = Module
                y = R.call_tir(
                    cls.exp, (x,), out_ty=R.Tensor((n,), dtype="float32", vdevice="opencl:0")
                )
                z = R.memory.copy_to(y, vdevice="llvm:0")
                w = R.call_tir(
                    cls.exp_host, (z,), out_ty=R.Tensor((n,), dtype="float32", vdevice="llvm:0")
                )
                return w

            @T.prim_func(private=True)
            def exp_host(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
                n = T.int64()
                for i in range(n):
                    with T.sblock("exp"):
                        vi = T.axis.spatial(n, i)
                        y[vi] = T.exp(x[vi])
    """

    name: ClassVar[str] = "place-values"
    mandatory: ClassVar[bool] = True
    prerequisites: ClassVar[tuple[str, ...]] = ("lambda-lift",)

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        target = ctx.target or Target.host()
        default = HOST if on_host(target) else str(VDevice(target.kind))
        declared = _declared(mod, default)
        slots = slots_of(declared, target)
        if len(slots.slots) == 1:
            return mod
        return _Placer(declared, Places(declared, slots, default)).run()


def _declared(mod: IRModule, default: str) -> IRModule:
    """Return the module with these devices in its table: the one that it is built for, the host, and those that
    annotations name."""
    table = list(mod.global_infos.get(TABLE, ()))
    known = {(v.target, v.device) for v in mod.vdevices}
    for name in (default, *(name for name, _ in named_devices(mod)), HOST):
        found = vdevice_of(name)
        if (found.target, found.device) not in known:
            known.add((found.target, found.device))
            table.append(found)
    return dataclasses.replace(mod, global_infos={**mod.global_infos, TABLE: tuple(table)})


class _Placer(Rebuilder):
    """Writes the devices into annotations, and inserts the copies."""

    def __init__(self, mod: IRModule, places: Places) -> None:
        super().__init__(mod)
        self.places = places
        self.owners: dict[str, int] = {}
        """The slot for which a tensor program keeps its name."""
        self.clones: dict[tuple[str, int], str] = {}
        """Copies of programs for other slots."""
        self.result: Tree = None
        """The device of the current function's result."""

    def run(self) -> IRModule:
        new = self.mod.map_graph_functions(self.placed)
        added = {name: self.mod.functions[old] for (old, _), name in self.clones.items()}
        return new.with_functions({**new.functions, **added})

    def placed(self, name: str, function: Function) -> Function:
        """Return a function with its devices."""
        self.result = self.places.results[name]
        params: list[Var] = []
        for param in function.params:
            annotation = self.on(param.annotation, self.places.vars[param])
            fresh = Var(param.name, annotation, span=param.span)
            self.vars[param] = fresh
            params.append(fresh)
        body = self.function(function).body
        ret = self.on(function.ret, self.result)
        return dataclasses.replace(function, params=tuple(params), ret=ret, body=body)

    def finish(self, function: Function, body: Expr) -> Expr:
        return self.brought(function.body.body, self.result)

    def on(self, annotation: Annotation, tree: Tree) -> Annotation:
        """Return an annotation with the device of its value."""
        match annotation:
            case TensorType() if isinstance(tree, Place):
                device = self.places.device(tree)
                return self.annotation(
                    TensorType(annotation.shape, annotation.dtype, annotation.ndim, device)
                )
            case TupleType(fields=fields) if isinstance(tree, tuple):
                return TupleType(tuple(map(self.on, fields, tree)))
            case CallableType(params=params, ret=ret, pure=pure):
                known = None if params is None else [self.on(p, tree_of(p)) for p in params]
                return CallableType(known, self.on(ret, tree_of(ret)), pure)
            case _:
                return self.annotation(annotation)

    # Values on the device that needs them

    def brought(self, expr: Expr, wanted: Tree | str) -> Expr:
        """A leaf of the original program on the wanted device: itself, or a copy."""
        new, have = self.use(expr), self.places.of(expr)
        return self.moved(new, have, wanted)

    def moved(self, expr: Expr, have: Tree, wanted: Tree | str) -> Expr:
        if isinstance(expr, Constant):
            device = self.wanted(wanted)
            on_host = device is None or self.places.slots.number(device) == 0
            return expr if on_host else self.emit(CopyTo(vdevice=device)(expr), "const")
        if isinstance(expr, Tuple):
            trees = have if isinstance(have, tuple) else (None,) * len(expr.fields)
            fields = tuple(
                self.moved(field, tree, self.field(wanted, i))
                for i, (field, tree) in enumerate(zip(expr.fields, trees, strict=True))
            )
            same = all(a is b for a, b in zip(fields, expr.fields, strict=True))
            return expr if same else Tuple(fields, span=expr.span)
        if isinstance(have, tuple):
            if not self.differs(have, wanted):
                return expr
            items = [self.emit(TupleGetItem(expr, i), "item") for i in range(len(have))]
            return Tuple(
                tuple(
                    self.moved(item, tree, self.field(wanted, i))
                    for i, (item, tree) in enumerate(zip(items, have, strict=True))
                )
            )
        if isinstance(have, Place) and self.differs(have, wanted):
            device = self.wanted(wanted)
            assert device is not None
            source = expr if isinstance(expr, Var) else self.emit(expr, "item")
            return self.emit(CopyTo(vdevice=device)(source), source.name)
        return expr

    def wanted(self, wanted: Tree | str) -> str | None:
        """The device on which a tensor is wanted; None for any."""
        if isinstance(wanted, str):
            return wanted
        return self.places.device(wanted) if isinstance(wanted, Place) else None

    def field(self, wanted: Tree | str, index: int) -> Tree | str:
        return wanted[index] if isinstance(wanted, tuple) else wanted

    def differs(self, have: Tree, wanted: Tree | str) -> bool:
        """Does a tensor in a value live on another device than the wanted one?"""
        if isinstance(have, tuple):
            return any(self.differs(each, self.field(wanted, i)) for i, each in enumerate(have))
        device = self.wanted(wanted)
        if not isinstance(have, Place) or device is None:
            return False
        return self.places.number(have) != self.places.slots.number(device)

    # Bindings

    def binding(self, binding: Binding) -> None:
        tree = self.places.vars[binding.var]
        annotation = self.on(binding.var.annotation, tree)
        if isinstance(binding, MatchCast):
            value = self.brought(binding.value, tree)
            cast = self.on(binding.annotation, tree)
            var = self.fresh(binding.var, annotation)
            self.bindings.append(MatchCast(var, value, cast, span=binding.span))
            return
        value = self.placed_value(binding.value, tree)
        var = self.fresh(binding.var, annotation)
        self.bindings.append(VarBinding(var, value, span=binding.span))

    def fresh(self, var: Var, annotation: Annotation) -> Var:
        new = type(var)(var.name, annotation, span=var.span)
        self.vars[var] = new
        return new

    def placed_value(self, value: Expr, tree: Tree) -> Expr:
        match value:
            case If(cond=cond):
                return If(
                    self.condition(cond),
                    self.arm(value.then, tree),
                    self.arm(value.otherwise, tree),
                    span=value.span,
                )
            case Call():
                return self.call(value, tree)
            case _:
                return self.brought(value, tree)

    def condition(self, cond: Expr) -> Expr:
        if self.differs(self.places.of(cond), HOST):
            return self.emit(ReadScalar()(self.use(cond)), "cond")
        return self.use(cond)

    def arm(self, seq: SeqExpr, wanted: Tree) -> SeqExpr:
        new = self.seq(seq)
        outer, self.bindings = self.bindings, []
        body = self.brought(seq.body, wanted)
        added, self.bindings = tuple(self.bindings), outer
        blocks = (*new.blocks, *((BindingBlock(added),) if added else ()))
        return SeqExpr(blocks, body, span=seq.span)

    def call(self, call: Call, tree: Tree) -> Expr:
        op, args = call.op, call.args
        match op:
            case CallDPSLibrary():
                return self.rebuilt(call, [args[0], self.brought(args[1], HOST), *args[2:]], HOST)
            case CrossLevelCall():
                device = self.places.device(next(leaves_of(tree)))
                callee = self.callee(args[0], device)
                return self.rebuilt(
                    call, [callee, self.brought(args[1], device), *args[2:]], device
                )
            case CallDPS():
                return self.call_dps(call)
            case AllocTensor() if isinstance(tree, Place):
                device = self.places.device(tree)
                on_host = self.places.number(tree) == 0
                new = dataclasses.replace(op, vdevice=device, offset=op.offset if on_host else 0)
                # A memory plan that the program came with is for the host's memory.
                kept = args if on_host else args[:1]
                return dataclasses.replace(call, op=new, args=self.uses(kept))
            case ToVDevice() | CopyTo() | HintOnDevice() if isinstance(tree, Place):
                there = isinstance(args[0], Constant) and self.places.number(tree) == 0
                if there or (
                    isinstance(args[0], Var) and not self.differs(self.places.of(args[0]), tree)
                ):
                    return self.use(args[0])
                source = self.use(args[0])
                if isinstance(source, TupleGetItem):
                    source = self.emit(source, "item")
                return CopyTo(vdevice=self.places.device(tree))(source)
            case GlobalVar(name=name) if name in self.places.results:
                params = self.mod.graph_function(name).params
                return self.given(call, [self.places.vars[param] for param in params])
            case MakeClosure():
                captured = self.places.captured(call)
                return self.given(call, [None, *(self.places.vars[param] for param in captured)])
            case Var():
                return self.given(call, self.places.signature(call)[0])
            case InvokeClosure():
                return self.given(call, [None, *self.places.signature(call)[0]])
            case Mark():  # its value is its argument
                return self.given(call, [tree])
            case _ if (name := packed_name(call)) is not None and not runs_anywhere(name):
                return self.given(call, [HOST] * len(args))
            case _:
                new = self.given(call, [None] * len(args))
                count = len(call.ty_args)
                places = tree if isinstance(tree, tuple) and count != 1 else (tree,) * count
                return dataclasses.replace(new, ty_args=tuple(map(self.on, call.ty_args, places)))

    def call_dps(self, call: Call) -> Expr:
        """A program on given tensors: it runs where those are that it writes, and what it only reads is copied there.

        Raises: BuildError (`call-devices`) where it writes on two devices, or a library is given tensors of a device.
        """
        callee, args = call.args[0], call.args[1:]
        written = self.places.written(call)
        leaves = [leaf for arg in (*written, *args) for leaf in leaves_of(self.places.of(arg))]
        if not leaves:
            return self.use(call)
        is_library = not isinstance(callee, GlobalVar)
        device = HOST if is_library else self.places.device(leaves[0])
        for arg in args if is_library else written:
            if self.differs(self.places.of(arg), device):
                where = self.places.device(next(leaves_of(self.places.of(arg))))
                raise BuildError(
                    "call-devices",
                    f"a library runs on the host, and may write to its argument on {where}"
                    if is_library
                    else f"the call writes on two devices: {device} and {where}",
                    span=call.span,
                    help="a copy would not be what it writes to: allocate its outputs on one device",
                )
        moved = [self.brought(arg, device) for arg in args]
        new = self.use(callee) if is_library else self.callee(callee, device)
        return self.rebuilt(call, [new, *moved], device)

    def given(self, call: Call, wanted: Sequence[Tree | str]) -> Call:
        """Return a call with its arguments on the wanted devices."""
        moved = [self.brought(arg, tree) for arg, tree in zip(call.args, wanted, strict=True)]
        new = self.rebuilt(call, moved, None)
        op = self.use(call.op) if isinstance(call.op, Expr) else call.op
        return dataclasses.replace(new, op=op)

    def rebuilt(self, call: Call, args: Sequence[Expr], device: str | None) -> Call:
        """Return a call with other arguments; its outputs live on the device, if one is given."""
        types = self.annotations(call.ty_args)
        if device is not None:
            types = tuple(
                TensorType(t.shape, t.dtype, t.ndim, device) if isinstance(t, TensorType) else t
                for t in types
            )
        return dataclasses.replace(call, args=tuple(args), ty_args=types)

    def callee(self, callee: Expr, device: str) -> Expr:
        """The tensor program for calls on a device."""
        callee = expect(GlobalVar, callee)
        name, slot = callee.name, self.places.slots.number(device)
        if self.owners.setdefault(name, slot) == slot:
            return callee
        if (name, slot) not in self.clones:
            taken = FreshNames((*self.mod.functions, *self.clones.values()))
            self.clones[name, slot] = taken.fresh(f"{name}_{self.places.slots.slots[slot].name}")
        return GlobalVar(self.clones[name, slot])
