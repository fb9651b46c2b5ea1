"""Which arguments of `call_tir_inplace` may be updated in place?

By its semantics, the result of `call_tir_inplace` is a new value and its argument stays unchanged. So the argument's
memory may be overwritten only if it is not read afterwards. It must have been allocated in this function, or be a
parameter of an impure function (whose caller permits the update). Neither it, nor an alias of it, nor a tuple that
contains it may be used later, or have been passed to a callee that may keep it. In all other cases a copy is updated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from relaxpy.analysis.purity import is_pure
from relaxpy.ir.expr import (
    Call,
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
from relaxpy.ir.module import IRModule, TensorProgram
from relaxpy.ir.recursion import deep_recursion
from relaxpy.ir.visitor import UsedVars, Visitor, used_vars
from relaxpy.op.base import Op
from relaxpy.op.call import (
    CallDPSLibrary,
    CallInplacePacked,
    CallTIR,
    CallTIRInplace,
    InvokeClosure,
)
from relaxpy.op.memory import CallDPS, View

Place = tuple[Var, tuple[int, ...]]
"""The memory of a value: the variable that it was allocated for, and the path of fields that leads to it."""


def updatable(function: Function) -> frozenset[tuple[Call, int]]:
    """The pairs (call, index of an argument) whose argument may be updated in place, in this function's body and its
    branches. Local functions are analysed separately."""
    found: set[tuple[Call, int]] = set()
    owned = [] if function.pure else list(function.params)
    _search(function.body, owned, found, UsedVars())
    return frozenset(found)


def state(function: Function) -> frozenset[Var]:
    """The variables that alias memory of the caller which a call in this function's body may update: parameters of an
    impure function that `call_tir_inplace` takes, their aliases, and fields. Whether a call updates its argument
    depends on the argument's other uses. So a pass must neither add nor remove uses of these variables."""
    if function.pure:
        return frozenset()
    memory = _Memory(function.body, list(function.params), UsedVars())
    taken: set[Var] = set()
    for binding in function.body.bindings:
        value = binding.value
        if isinstance(value, Call) and isinstance(value.op, CallTIRInplace):
            args = _fields(value)
            given = [args[k] for k in value.op.inplace_indices if k >= 0]
            taken |= {
                memory.places[a][0] for a in given if isinstance(a, Var) and a in memory.places
            }
    roots = taken.intersection(function.params)
    return frozenset(var for var, (root, _) in memory.places.items() if root in roots)


def updated_arguments(call: Call, mod: IRModule) -> Sequence[int]:
    """The arguments that a call of a function, or of a function value, may update in place."""
    match call.op:
        case GlobalVar(name=name):
            function = mod.graph_functions.get(name)
            if function is None or function.pure:
                return ()
            own = state(function)
            return [i for i, param in enumerate(function.params) if param in own]
        case CallInplacePacked(inplace_indices=indices):
            return [k + 1 for k in indices if k >= 0]
        case CallDPS():
            return _outputs_given(call, mod)
        case Var() | InvokeClosure() if not is_pure(call, mod):
            return range(0 if isinstance(call.op, Var) else 1, len(call.args))
        case _:
            return ()


def _outputs_given(call: Call, mod: IRModule) -> Sequence[int]:
    """The arguments of a `call_dps` that its tensor program writes."""
    program = mod.functions.get(call.args[0].name) if isinstance(call.args[0], GlobalVar) else None
    if not isinstance(program, TensorProgram):
        return ()
    return [k + 1 for k in sorted(program.written) if k < len(call.args) - 1]


def updated(body: SeqExpr) -> frozenset[Var]:
    """The variables in a body, its branches and local functions that in-place calls may update: their arguments, and
    the variables that these alias."""
    return _InPlaceArguments().all_names(body)


def updated_parameters(function: Function, mod: IRModule) -> list[int]:
    """The positions of parameters that calls in the body write to: by an in-place call on memory in `state`, by a
    registered function that modifies its arguments, or as the output of a tensor program."""
    found = state(function) | _WrittenArguments(mod).all_names(function.body)
    return [i for i, param in enumerate(function.params) if param in found]


class _InPlaceArguments(Visitor):
    def __init__(self) -> None:
        self.taken: list[Var] = []
        self.sources: dict[Var, tuple[Var, ...]] = {}
        """For each variable, the variables that it aliases or is a field of."""

    def all_names(self, body: SeqExpr) -> frozenset[Var]:
        """The variables that calls in the body take, with the variables that they alias."""
        with deep_recursion():
            self.visit(body)
        found: set[Var] = set()
        waiting = list(self.taken)
        while waiting:
            var = waiting.pop()
            if var not in found:
                found.add(var)
                waiting += self.sources.get(var, ())
        return frozenset(found)

    def visit_VarBinding(self, node: VarBinding) -> None:
        if isinstance(node.value, (Var, Tuple, TupleGetItem)) or (
            isinstance(node.value, Call) and isinstance(node.value.op, View)
        ):
            self.sources[node.var] = used_vars(node.value)
        self.visit(node.value)

    def visit_MatchCast(self, node: MatchCast) -> None:
        self.sources[node.var] = used_vars(node.value)

    def visit_Call(self, node: Call) -> None:
        self.taken += [var for arg in self.given(node) for var in used_vars(arg)]

    def given(self, call: Call) -> list[Expr]:
        """The arguments that a call updates."""
        if not isinstance(call.op, (CallTIRInplace, CallInplacePacked)):
            return []
        args = _fields(call) if isinstance(call.op, CallTIRInplace) else call.args[1:]
        return [args[k] for k in call.op.inplace_indices if k >= 0]


class _WrittenArguments(_InPlaceArguments):
    """Finds the arguments whose memory is certainly written."""

    def __init__(self, mod: IRModule) -> None:
        super().__init__()
        self.mod = mod

    def given(self, call: Call) -> list[Expr]:
        if isinstance(call.op, CallInplacePacked):
            return super().given(call)
        indices = _outputs_given(call, self.mod) if isinstance(call.op, CallDPS) else ()
        return [call.args[i] for i in indices]


def _search(
    seq: SeqExpr, owned: list[Var], found: set[tuple[Call, int]], used_vars: UsedVars
) -> None:
    memory = _Memory(seq, owned, used_vars)
    for i, binding in enumerate(seq.bindings):
        value = binding.value
        if isinstance(value, If):
            _search(value.then, [], found, used_vars)
            _search(value.otherwise, [], found, used_vars)
        elif isinstance(value, Call) and isinstance(value.op, CallTIRInplace):
            args = _fields(value)
            taken = [k for k in value.op.inplace_indices if k >= 0]
            found |= {(value, k) for k in taken if memory.unseen_after(i, k, args)}


def _fields(call: Call) -> tuple[Expr, ...]:
    args = call.args[1]
    return args.fields if isinstance(args, Tuple) else ()


@dataclass
class _Use:
    """Binding `at` reads this memory. `kept`: the reader may keep a reference."""

    at: int
    path: tuple[int, ...]
    kept: bool


@dataclass
class _Memory:
    """The uses of each memory in one body."""

    seq: SeqExpr
    owned: list[Var]
    used_vars: UsedVars
    places: dict[Var, Place] = field(default_factory=dict[Var, Place])
    uses: dict[Var, list[_Use]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.places.update({var: (var, ()) for var in self.owned})
        count = 0
        for i, binding in enumerate(self.seq.bindings):
            count = i + 1
            value = binding.value
            if isinstance(binding, MatchCast) or isinstance(value, Var):
                self.same(binding.var, value, (), i)
                continue
            match value:
                case TupleGetItem(tuple=whole, index=index):
                    self.same(binding.var, whole, (index,), i)
                case Call(op=View(), args=(source, *_)):
                    self.same(binding.var, source, (), i)
                case Call(op=CallTIR() | CallDPSLibrary() | CallTIRInplace()):
                    for arg in _fields(value):
                        self.use(arg, i, kept=False)
                    self.places[binding.var] = (binding.var, ())
                case Call(op=Op(legalize=rule), args=args) if rule is not None:
                    for arg in args:  # becomes a tensor program, whose result is new
                        self.use(arg, i, kept=False)
                    self.places[binding.var] = (binding.var, ())
                case _:
                    self.use(value, i, kept=True)
        self.use(self.seq.body, count, kept=True)

    def same(self, var: Var, source: Expr, path: tuple[int, ...], at: int) -> None:
        """Record that `var` aliases (a field of) `source`."""
        if isinstance(source, Var) and source in self.places:
            root, inner = self.places[source]
            self.places[var] = (root, (*inner, *path))
        else:
            self.use(source, at, kept=True)

    def use(self, expr: Expr, at: int, *, kept: bool) -> None:
        for var in self.used_vars(expr):
            if var in self.places:
                root, path = self.places[var]
                self.uses[root].append(_Use(at, path, kept))

    def unseen_after(self, at: int, index: int, args: tuple[Expr, ...]) -> bool:
        """Is argument `index` of the call in binding `at` used by nothing but this call?"""
        arg = args[index]
        if not isinstance(arg, Var) or arg not in self.places:
            return False
        root, path = self.places[arg]
        others = [a for i, a in enumerate(args) if i != index]
        if any(self.overlaps(var, root, path) for other in others for var in self.used_vars(other)):
            return False
        return not any(
            (use.at > at or (use.kept and use.at < at)) and _nested(use.path, path)
            for use in self.uses[root]
        )

    def overlaps(self, var: Var, root: Var, path: tuple[int, ...]) -> bool:
        place = self.places.get(var)
        return place is not None and place[0] is root and _nested(place[1], path)


def _nested(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Is one of the two places a part of the other?"""
    count = min(len(a), len(b))
    return a[:count] == b[:count]
