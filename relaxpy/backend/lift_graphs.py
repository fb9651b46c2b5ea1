"""LiftGraphs: mark runs of launches that a device can record once and replay."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from relaxpy.backend.slots import Slots, slots_of
from relaxpy.errors import Span
from relaxpy.ir.annotation import VOID, Annotation, TensorType
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    Constant,
    Expr,
    ExternFunc,
    Function,
    GlobalVar,
    If,
    MatchCast,
    PrimValue,
    SeqExpr,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import UsedVars
from relaxpy.op.call import CallPurePacked
from relaxpy.op.memory import (
    AllocStorage,
    AllocTensor,
    BeginGraph,
    CallDPS,
    CheckDim,
    CheckEqual,
    CopyTo,
    EndGraph,
    Intrinsic,
    MakeShape,
    Match,
    ReadScalar,
    Store,
    View,
)
from relaxpy.runtime.bytecode import HOST
from relaxpy.target import Target
from relaxpy.transform.base import Pass, PassContext


@dataclass(frozen=True)
class LiftGraphs(Pass):
    """Put runs of launches into graphs (paper §4.5, `RewriteCUDAGraph` in TVM). A device records the launches of a
    graph when it runs for the first time with its sizes and addresses, and replays them afterwards as one command
    (`relaxpy.runtime.graphs`). This is for targets whose devices do so (`Target.has_graphs`).

    A graph consists of launches on one device between which the host does nothing that depends on them: it reads no
    value, calls no function or library, and takes no branch. What it does besides is moved before the graph: sizes,
    checks, and the allocation of results. Tensors in planned storage that only the graph uses are allocated inside of
    it, which a replay skips.

    Before:
        @I.ir_module
        class Module:
            I.module_global_infos({"vdevice": [I.vdevice("cuda", 0)]})

            @T.prim_func(private=True)
            def exp(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
                n = T.int64()
                for i in range(n):
                    with T.sblock("exp"):
                        vi = T.axis.spatial(n, i)
                        y[vi] = T.exp(x[vi])

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32", vdevice="cuda:0")):
                n = T.int64()
                cls = Module
                storage = R.memory.alloc_storage(R.prim_value(n * 4), vdevice="cuda:0")
                a = R.memory.alloc_tensor(R.shape([n]), storage, vdevice="cuda:0")
                _a = R.vm.call_dps(cls.exp, x, a)
                b = R.memory.alloc_tensor(R.shape([n]), vdevice="cuda:0")
                _b = R.vm.call_dps(cls.exp, a, b)
                return b
    After:
        @I.ir_module
        class Module:
            I.module_global_infos({"vdevice": [I.vdevice("cuda", 0)]})

            @T.prim_func(private=True)
            def exp(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
                n = T.int64()
                for i in range(n):
                    with T.sblock("exp"):
                        vi = T.axis.spatial(n, i)
                        y[vi] = T.exp(x[vi])

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32", vdevice="cuda:0")):
                n = T.int64()
                cls = Module
                storage = R.memory.alloc_storage(R.prim_value(n * 4), vdevice="cuda:0")
                b = R.memory.alloc_tensor(R.shape([n]), vdevice="cuda:0")
                _graph = R.vm.begin_graph()
                a = R.memory.alloc_tensor(R.shape([n]), storage, vdevice="cuda:0")
                _a = R.vm.call_dps(cls.exp, x, a)
                _b = R.vm.call_dps(cls.exp, a, b)
                _graph1 = R.vm.end_graph()
                return b
    """

    name: ClassVar[str] = "lift-graphs"
    level: ClassVar[int] = 3
    prerequisites: ClassVar[tuple[str, ...]] = ("lower-shapes",)
    least: int = 2
    """The smallest number of launches in a graph."""

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        slots = slots_of(mod, ctx.target)
        if not any(target is not None and target.has_graphs for target in slots.targets):
            return mod
        return mod.map_graph_functions(
            lambda name, function: _Lifter(name, slots, self.least).function(function)
        )

    def decisions(self, mod: IRModule, target: Target | None) -> tuple[GraphDecision, ...]:
        """For each call of a module that the pass is given: the graph that it is put into, or the reason why not. Empty
        if all of it runs on the host."""
        slots = slots_of(mod, target)
        if len(slots.slots) == 1:
            return ()
        found: list[GraphDecision] = []
        for name, function in mod.graph_functions.items():
            lifter = _Lifter(name, slots, self.least)
            lifter.function(function)
            found += lifter.decisions
        return tuple(found)


@dataclass(frozen=True, slots=True)
class GraphDecision:
    """Whether a call is part of a graph."""

    function: str
    callee: str
    """The tensor program, library function or function that is called."""
    span: Span | None
    graph: int
    """The number of the graph in its function, from 0; -1: none."""
    reason: str = ""
    """Why it is in no graph."""


@dataclass(frozen=True, slots=True)
class _Launch:
    """A launch of a tensor program."""

    slot: int


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A binding that may be moved before the launches around it."""


@dataclass(frozen=True, slots=True)
class _Inside:
    """A tensor that needs no memory of its own. It may be made where it is, or before the launches around it."""

    slot: int


@dataclass(frozen=True, slots=True)
class _Barrier:
    """A binding that ends a graph."""

    what: str
    """The event, in words that follow "between"."""
    why: str = ""
    """Why it is in no graph itself, if it is a call."""


_Role: TypeAlias = _Launch | _Ahead | _Inside | _Barrier
_AHEAD = _Ahead()


@dataclass
class _Run:
    """Consecutive bindings without a barrier."""

    after: str
    """The event before it."""
    bindings: list[tuple[Binding, _Role]] = field(default_factory=list[tuple[Binding, _Role]])
    slot: int = HOST
    launches: int = 0

    def add(self, binding: Binding, role: _Role) -> None:
        self.bindings.append((binding, role))
        if isinstance(role, _Launch):
            self.slot = role.slot
            self.launches += 1

    def parts(
        self, last: Mapping[Var, int], end: int, used: UsedVars
    ) -> tuple[list[Binding], list[Binding]]:
        """The bindings before the graph and in it. `last` is the last use of each variable, `end` the position after
        the run."""
        ahead: set[Var] = set()
        for binding, role in reversed(self.bindings):
            inside = isinstance(role, _Inside) and role.slot == self.slot
            used_later = last.get(binding.var, -1) >= end or binding.var in ahead
            if isinstance(role, _Launch) or (inside and not used_later):
                continue
            ahead |= {binding.var, *used(binding.value)}  # a view needs its source
        every = [binding for binding, _ in self.bindings]
        return [b for b in every if b.var in ahead], [b for b in every if b.var not in ahead]


class _Lifter:
    """Puts the launches of a function into graphs."""

    def __init__(self, name: str, slots: Slots, least: int) -> None:
        self.name = name
        self.slots = slots
        self.least = least
        self.graphs = 0
        self.decisions: list[GraphDecision] = []
        self.used = UsedVars()

    def function(self, function: Function) -> Function:
        body = self.seq(function.body)
        return function if body is function.body else dataclasses.replace(function, body=body)

    def seq(self, seq: SeqExpr) -> SeqExpr:
        bindings = tuple(seq.bindings)
        last: dict[Var, int] = {}
        for position, binding in enumerate(bindings):
            last |= dict.fromkeys(self.used(binding.value), position)
        last |= dict.fromkeys(self.used(seq.body), len(bindings))
        out: list[Binding] = []
        run = _Run("the beginning")
        for position, binding in enumerate(bindings):
            role = self.role(binding)
            if isinstance(role, _Barrier):
                out += self.closed(run, last, position, role.what)
                self.decide(binding, -1, role.why)
                out.append(self.with_arms(binding))
                run = _Run(role.what)
                continue
            if isinstance(role, _Launch) and run.launches and role.slot != run.slot:
                here, there = (self.slots.slots[slot].name for slot in (run.slot, role.slot))
                out += self.closed(run, last, position, f"a launch on {there}")
                run = _Run(f"a launch on {here}")
            run.add(binding, role)
        out += self.closed(run, last, len(bindings), "the end")
        same = len(out) == len(bindings) and all(map(_is, out, bindings))
        return seq if same else SeqExpr((BindingBlock(tuple(out)),), seq.body, span=seq.span)

    def with_arms(self, binding: Binding) -> Binding:
        """The binding with graphs in the arms of a branch."""
        value = binding.value
        if isinstance(binding, MatchCast) or not isinstance(value, If):
            return binding
        then, otherwise = self.seq(value.then), self.seq(value.otherwise)
        if then is value.then and otherwise is value.otherwise:
            return binding
        branch = If(value.cond, then, otherwise, span=value.span)
        return VarBinding(binding.var, branch, span=binding.span)

    def closed(
        self, run: _Run, last: Mapping[Var, int], end: int, before: str
    ) -> Sequence[Binding]:
        """The bindings of a run, as a graph if it is long enough. `before` is what comes after it."""
        every = [binding for binding, _ in run.bindings]
        enough = run.launches >= self.least
        for binding in every:
            few = f"a graph has {self.least} launches or more; between {run.after} and {before} there is {run.launches}"
            self.decide(binding, self.graphs if enough else -1, "" if enough else few)
        if not enough:
            return every
        self.graphs += 1
        ahead, inside = run.parts(last, end, self.used)
        span = inside[0].span
        begin, finish = (
            VarBinding(Var("_graph", VOID, span=span), op(), span=span)
            for op in (BeginGraph(), EndGraph())
        )
        return [*ahead, begin, *inside, finish]

    def decide(self, binding: Binding, graph: int, reason: str) -> None:
        """Notes whether a call is part of a graph."""
        callee = _callee(binding.value)
        if callee:
            span = binding.value.span or binding.span
            self.decisions.append(GraphDecision(self.name, callee, span, graph, reason))

    # Roles

    def role(self, binding: Binding) -> _Role:
        if isinstance(binding, MatchCast):
            return _AHEAD
        match binding.value:
            case Call(op=Intrinsic() as op, args=args):
                return self.intrinsic(op, args, binding.var.annotation)
            case Call() as call:
                callee = _callee(call) or "a function value"
                return _Barrier(f"the call of {callee}", "it is no launch, but a call")
            case If():
                return _Barrier("a branch")
            case Constant() | PrimValue() | Var() | Tuple() | TupleGetItem():
                return _AHEAD
            case _:
                return _Barrier(f"the binding of {binding.var.name}")

    def intrinsic(self, op: Intrinsic, args: Sequence[Expr], annotation: Annotation) -> _Role:
        match op:
            case CallDPS():
                return self.launch(args)
            case AllocTensor() if len(args) > 1:
                return _Inside(self.slot(annotation))
            case View():
                return _Inside(self.slot(annotation))
            case (
                AllocTensor()
                | AllocStorage()
                | Match()
                | Store()
                | CheckDim()
                | CheckEqual()
                | MakeShape()
            ):
                return _AHEAD
            case CopyTo() if isinstance(args[0], Constant):
                return _AHEAD
            case CopyTo(vdevice=vdevice):
                return _Barrier(f"a copy to {vdevice}")
            case ReadScalar():
                return _Barrier("a read by the host")
            case _:
                return _Barrier(op.name)

    def launch(self, args: Sequence[Expr]) -> _Role:
        callee, *given = args
        if not isinstance(callee, GlobalVar):
            return _Barrier(f"the library call of {_name(callee)}", "it is a library function")
        places = (arg.annotation for arg in given if isinstance(arg, Var))
        slot = max(map(self.slot, places), default=HOST)
        target = self.slots.targets[slot]
        if slot == HOST:
            return _Barrier(f"the kernel {callee.name} of the host", "it runs on the host")
        if target is None or not target.has_graphs:
            kind = self.slots.slots[slot].kind
            why = f"{kind} devices do not replay launches"
            return _Barrier(f"the kernel {callee.name} on {kind}", why)
        return _Launch(slot)

    def slot(self, annotation: Annotation) -> int:
        return self.slots.number(annotation.vdevice if isinstance(annotation, TensorType) else None)


def _callee(value: Expr) -> str:
    """The tensor program or function that a binding calls, by name; "" for none."""
    match value:
        case Call(op=CallDPS() | CallPurePacked(), args=(callee, *_)):
            return _name(callee)
        case Call(op=GlobalVar(name=name) | ExternFunc(name=name)):
            return name
        case Call(op=Intrinsic()):
            return ""
        case Call(op=op):
            return str(getattr(op, "name", ""))
        case _:
            return ""


def _name(callee: Expr) -> str:
    return callee.name if isinstance(callee, (GlobalVar, ExternFunc)) else "a function value"


def _is(a: Binding, b: Binding) -> bool:
    return a is b
