"""Device inference: the device on which each tensor of a module lives, from annotations and data flow.

Tensors that must live together, a tensor program's inputs and outputs for example, are joined into one place
(union-find). Its device is the one that an annotation of one of them names. Places on two different devices are not
joined: `PlaceValues` inserts a copy there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from relaxpy.backend.slots import HOST_KINDS, Slots, bindings
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, CallableType, TensorType, TupleType
from relaxpy.ir.expr import (
    Call,
    Expr,
    ExternFunc,
    GlobalVar,
    If,
    MatchCast,
    SeqExpr,
    Tuple,
    TupleGetItem,
    Var,
)
from relaxpy.ir.module import IRModule, TensorProgram
from relaxpy.ir.vdevice import VDevice, vdevice_of
from relaxpy.op.base import Op
from relaxpy.op.call import CallDPSLibrary, CallPurePacked, CrossLevelCall, InvokeClosure
from relaxpy.op.device import HintOnDevice, ToVDevice
from relaxpy.op.memory import AllocTensor, CallDPS, CopyTo, MakeClosure, View
from relaxpy.runtime.library import runs_anywhere

HOST = str(VDevice("llvm"))
"""The name of the host's memory in the annotations of a module that has other devices."""


class Place:
    """A set of tensors that live together; the device is None until one is known."""

    __slots__ = ("device", "joined", "pinned")

    def __init__(self, device: str | None = None, pinned: bool = False) -> None:
        self.device = device
        self.pinned = pinned
        """Values computed from it need not live on the same device."""
        self.joined: Place | None = None

    def root(self) -> Place:
        """The root of the place, with path compression."""
        found = self
        while found.joined is not None:
            found = found.joined
        place = self
        while place.joined is not None:
            place.joined, place = found, place.joined
        return found


Tree: TypeAlias = "Place | tuple[Tree, ...] | None"
"""The place of a tensor; for a tuple, those of its fields; None for all other values."""


def tree_of(annotation: Annotation, pinned: str | None = None, default: str | None = None) -> Tree:
    """The places of a value, all `pinned` to a device if one is given. `default` is the device of tensors whose
    annotation names none."""
    match annotation:
        case TensorType(vdevice=vdevice):
            return Place(pinned or vdevice or default, pinned is not None)
        case TupleType(fields=fields):
            return tuple(tree_of(field, pinned, default) for field in fields)
        case _:
            return None


def leaves_of(tree: Tree) -> Iterator[Place]:
    if isinstance(tree, Place):
        yield tree
    for each in tree if isinstance(tree, tuple) else ():
        yield from leaves_of(each)


class Places:
    """The place of every variable of a module."""

    def __init__(self, mod: IRModule, slots: Slots, default: str) -> None:
        self.mod = mod
        self.slots = slots
        self.default = default
        self.vars: dict[Var, Tree] = {}
        self.results: dict[str, Tree] = {}
        """The places of functions' results."""
        for name, function in mod.graph_functions.items():
            for param in function.params:
                self.vars[param] = tree_of(param.annotation)
            self.results[name] = tree_of(function.ret)
        for function in mod.graph_functions.values():
            for binding in bindings(function.body):
                value = binding.value
                if isinstance(value, Call) and isinstance(value.op, MakeClosure):
                    self.closure(value)
        for name, function in mod.graph_functions.items():
            self.join(self.results[name], self.seq(function.body))

    def device(self, place: Place) -> str:
        """The device of a place."""
        return place.root().device or self.default

    def number(self, place: Place) -> int:
        """The slot of a place's device."""
        return self.slots.number(self.device(place))

    def join(self, a: Tree, b: Tree) -> None:
        """Join the places of two values if their devices allow it. Otherwise one value is copied."""
        if isinstance(a, Place) and isinstance(b, Place):
            one, other = a.root(), b.root()
            if one is other or one.pinned or other.pinned:
                return
            if None in (one.device, other.device) or self.number(one) == self.number(other):
                other.joined = one
                one.device = one.device or other.device
        elif isinstance(a, tuple) and isinstance(b, tuple):
            for left, right in zip(a, b, strict=False):
                self.join(left, right)

    def fix(self, tree: Tree, device: str) -> None:
        """Place a value on a device, if its place allows it."""
        for leaf in leaves_of(tree):
            self.join(leaf, Place(device))

    def of(self, expr: Expr) -> Tree:
        """The place of a leaf's value."""
        match expr:
            case Var():
                return self.vars.get(expr)
            case Tuple(fields=fields):
                return tuple(map(self.of, fields))
            case TupleGetItem(tuple=whole, index=index):
                tree = self.of(whole)
                return tree[index] if isinstance(tree, tuple) and index < len(tree) else None
            case _:
                return None

    def seq(self, seq: SeqExpr) -> Tree:
        for binding in seq.bindings:
            pinned = HOST if _of_host(binding.value) else None
            tree = self.vars[binding.var] = tree_of(binding.var.annotation, pinned)
            if isinstance(binding, MatchCast):
                self.join(tree, self.of(binding.value))
            else:
                self.value(tree, binding.value)
        return self.of(seq.body)

    def value(self, tree: Tree, value: Expr) -> None:
        match value:
            case If():
                for arm in (value.then, value.otherwise):
                    self.join(tree, self.seq(arm))
            case Call():
                self.call(tree, value)
            case _:
                self.join(tree, self.of(value))

    def call(self, tree: Tree, call: Call) -> None:
        args = list(map(self.of, call.args))
        match call.op:
            case CallDPSLibrary():
                pass  # pinned
            case CallDPS():
                self.call_dps(call)
            case CrossLevelCall():
                leaves = [*leaves_of(tree), *(leaf for arg in args for leaf in leaves_of(arg))]
                for leaf in leaves[1:]:
                    self.join(leaves[0], leaf)
            case AllocTensor(vdevice=vdevice):
                if vdevice is not None:
                    self.fix(tree, vdevice)
            case View():
                self.join(tree, args[0])
            case ToVDevice(dst_vdevice=device) | CopyTo(vdevice=device):
                self.fix(tree, device)
            case HintOnDevice(dst_device=name):
                device = self.hinted(name)
                if device is not None:
                    self.fix(tree, device)
                self.join(tree, args[0])
            case GlobalVar(name=name) if name in self.results:
                for param, arg in zip(self.mod.graph_function(name).params, args, strict=True):
                    self.join(self.vars[param], arg)
                self.join(tree, self.results[name])
            case MakeClosure():
                for param, arg in zip(self.captured(call), args[1:], strict=True):
                    self.join(self.vars[param], arg)
            case Var() | InvokeClosure():
                self.join(tree, self.signature(call)[1])
            case _ if (name := packed_name(call)) is not None and runs_anywhere(name):
                for arg in args:
                    self.join(tree, arg)
            case _:
                pass

    def hinted(self, name: str) -> str | None:
        """The virtual device of the module that a hint such as `cuda:0` means; None if the module lists none."""
        hint = vdevice_of(name)
        kinds = HOST_KINDS if hint.target == "cpu" else (hint.target,)
        listed = (v for v in self.mod.vdevices if v.kind in kinds and v.device == hint.device)
        return next(map(str, listed), None)

    def call_dps(self, call: Call) -> None:
        """Handle a program that runs on given tensors: it runs where those are that it writes. A library runs on the
        host."""
        written = self.written(call)
        first = next((leaf for arg in written for leaf in leaves_of(self.of(arg))), Place(HOST))
        for arg in call.args[1:]:
            for leaf in leaves_of(self.of(arg)):
                self.join(first, leaf)

    def written(self, call: Call) -> list[Expr]:
        """The arguments of `R.vm.call_dps` that the tensor program writes; none for a library."""
        callee = call.args[0]
        if not isinstance(callee, GlobalVar):
            return []
        program = self.mod.functions.get(callee.name)
        positions = sorted(program.written) if isinstance(program, TensorProgram) else []
        return [call.args[1 + i] for i in positions if 1 + i < len(call.args)]

    def closure(self, call: Call) -> None:
        """Handle a function that becomes a value: its callers do not know where it was made."""
        callee = expect(GlobalVar, call.args[0])
        params = self.mod.graph_function(callee.name).params
        for param in params[: len(params) - len(call.args) + 1]:
            self.fix(self.vars[param], self.default)
        self.fix(self.results[callee.name], self.default)

    def signature(self, call: Call) -> tuple[list[Tree], Tree]:
        """The devices of a function value's arguments and result: those in its annotation, else the device that the
        module is built for."""
        callee, args = call.op, call.args
        if not isinstance(callee, Var):
            callee, args = args[0], args[1:]
        known = callee.annotation if isinstance(callee, Var) else None
        params: Sequence[Annotation] = [TensorType()] * len(args)
        ret = call.ty_args[0] if call.ty_args else TensorType()
        if isinstance(known, CallableType):
            named = known.params or ()
            params = named if len(named) == len(args) else params
            ret = known.ret
        return [tree_of(each, None, self.default) for each in params], tree_of(
            ret, None, self.default
        )

    def captured(self, call: Call) -> Sequence[Var]:
        """The parameters that a closure captures."""
        callee = expect(GlobalVar, call.args[0])
        params = self.mod.graph_function(callee.name).params
        return params[len(params) - len(call.args) + 1 :]


def _of_host(value: Expr) -> bool:
    """Is it the result of a host function or library?"""
    if not isinstance(value, Call):
        return False
    name = packed_name(value)
    return isinstance(value.op, CallDPSLibrary) or (name is not None and not runs_anywhere(name))


def packed_name(call: Call) -> str | None:
    """The name of the runtime function that a call calls; None for other calls."""
    match call.op:
        case ExternFunc(name=name):
            return name
        case CallPurePacked():
            callee = expect(ExternFunc, call.args[0])
            return callee.name
        case Op() as op if op.packed:
            return op.packed
        case _:
            return None
