"""Which arguments of `call_tir_inplace` may be updated in place?

By its semantics, the result of `call_tir_inplace` is a new value and its argument stays unchanged. So the argument's
memory may be overwritten only if it is not read afterwards. It must have been allocated in this function, or be a
parameter of an impure function (whose caller permits the update), or one of a private function whose callers all
allocated it and do not use it afterwards, as the state of a loop (`owned_parameters`). Neither it, nor an alias of it,
nor a tuple that contains it may be used later, or have been passed to a callee that may keep it. In all other cases a
copy is updated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TypeAlias
from weakref import WeakKeyDictionary

from relaxpy.analysis.called_operators import calls_in, calls_operator
from relaxpy.analysis.purity import is_pure
from relaxpy.ir.accessors import expect
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


def updatable(function: Function, owned: Collection[int] = ()) -> frozenset[tuple[Call, int]]:
    """The pairs (call, index of an argument) whose argument may be updated in place, in this function's body and its
    branches. Local functions are analysed separately. `owned` are the positions of a pure function's parameters whose
    memory is its own."""
    return frozenset(_Search(function, owned, CallTIRInplace).found)


@dataclass(frozen=True)
class Owned:
    """The parameters whose memory belongs to private functions."""

    parameters: Mapping[str, frozenset[int]]
    """The positions of parameters, by function, that are the function's own memory and updated there."""
    copied: frozenset[tuple[Call, int]]
    """The arguments of calls, from outside of a loop, that have to be copied for that."""


def owned_parameters(mod: IRModule) -> Owned:
    """The parameters that are a function's own memory: of private functions that are only called, and from within their
    recursion only with memory that the caller allocated, or owns itself, and nothing else has or reads later."""
    functions = {name: f for name, f in mod.graph_functions.items() if isinstance(f, Function)}
    if not any(calls_operator(f, CallTIRInplace) for f in functions.values()):
        return Owned({}, frozenset())
    direct = _DirectlyCalled()
    for function in functions.values():
        direct.visit(function)
    within = _reached(functions)
    owned = {
        name: frozenset(range(len(function.params)))
        for name, function in functions.items()
        if function.pure and "global_symbol" not in function.attrs and name not in direct.values
    }
    while True:
        kept = dict(owned)
        calls = {name: _Search(f, owned.get(name, ()), GlobalVar) for name, f in functions.items()}
        copied: set[tuple[Call, int]] = set()
        for name, search in calls.items():
            for call in search.seen:
                callee = _callee(call)
                given = {k for k in range(len(call.args)) if (call, k) in search.found}
                if callee in kept and name in within[callee]:
                    kept[callee] &= given
                elif callee in kept:
                    copied |= {(call, k) for k in range(len(call.args)) if k not in given}
        if kept == owned:
            break
        owned = kept
    updated = {
        (name, root)
        for name, function in functions.items()
        for root in _Search(function, owned.get(name, ()), CallTIRInplace).found.values()
    }
    wanted: dict[str, frozenset[int]] = {}
    while True:
        found = {
            name: frozenset(k for k in positions if (name, functions[name].params[k]) in updated)
            for name, positions in owned.items()
        }
        if found == wanted:
            break
        wanted = found
        for name, search in calls.items():
            for (call, k), root in search.found.items():
                if k in wanted.get(_callee(call), ()):
                    updated.add((name, root))
    copied = {(call, k) for call, k in copied if k in wanted[_callee(call)]}
    return Owned({n: positions for n, positions in wanted.items() if positions}, frozenset(copied))


def _callee(call: Call) -> str:
    return expect(GlobalVar, call.op).name


def _reached(functions: Mapping[str, Function]) -> dict[str, set[str]]:
    """Function → those that it calls, and that those call; itself only if it is among them."""
    calls = {
        name: {_callee(call) for call in _Search(f, (), GlobalVar).seen} & functions.keys()
        for name, f in functions.items()
    }
    reached: dict[str, set[str]] = {}
    for name in functions:
        found, waiting = set[str](), [name]
        while waiting:
            new = calls[waiting.pop()] - found
            found |= new
            waiting += new
        reached[name] = found
    return reached


def last_uses(mod: IRModule) -> frozenset[Call]:
    """The calls of operators that update an argument (`Op.updates`), where nothing in the same body reads it later.
    Whether the callers of a local or private function do is a guess; else a copy is updated."""
    found: set[Call] = set()
    for function in mod.graph_functions.values():
        ops = (call.op for call in calls_in(function))
        if not any(isinstance(op, Op) and op.updates for op in ops):
            continue
        bodies = _Bodies()
        bodies.visit(function)
        for i, body in enumerate(bodies.found):
            inner = i > 0 or "global_symbol" not in body.attrs
            owned = range(len(body.params)) if inner else ()
            if body.pure:
                found |= {call for call, _ in _Search(body, owned, Op).found}
    return frozenset(found)


class _Bodies(Visitor):
    """The functions in a function, itself first."""

    def __init__(self) -> None:
        self.found: list[Function] = []

    def visit_Function(self, node: Function) -> None:
        self.found.append(node)
        self.generic(node)


class _DirectlyCalled(Visitor):
    """Finds the functions that are values, or are called from local functions."""

    def __init__(self) -> None:
        self.values: set[str] = set()
        self.depth = 0

    def visit_Function(self, node: Function) -> None:
        self.depth += 1
        self.generic(node)
        self.depth -= 1

    def visit_Call(self, node: Call) -> None:
        if not isinstance(node.op, GlobalVar) or self.depth > 1:
            self.generic(node)
            return
        for arg in node.args:
            self.visit(arg)

    def visit_GlobalVar(self, node: GlobalVar) -> None:
        self.values.add(node.name)


def state(function: Function) -> frozenset[Var]:
    """The variables that alias memory of the caller which a call in this function's body may update: parameters of an
    impure function that `call_tir_inplace` takes, their aliases, and fields. Whether a call updates its argument
    depends on the argument's other uses. So a pass must neither add nor remove uses of these variables."""
    if function.pure:
        return frozenset()
    memory = _Memory(function.body, {var: (var, ()) for var in function.params}, UsedVars())
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


_Found: TypeAlias = tuple[list[Var], dict[Var, tuple[Var, ...]]]
_updates: WeakKeyDictionary[SeqExpr, _Found] = WeakKeyDictionary()
"""What was found in bodies, so that one inside of many others is looked at once."""


class _InPlaceArguments(Visitor):
    def __init__(self) -> None:
        self.known: WeakKeyDictionary[SeqExpr, _Found] = _updates
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

    def visit_SeqExpr(self, node: SeqExpr) -> None:
        found = self.known.get(node)
        if found is None:
            outer = self.taken, self.sources
            self.taken, self.sources = [], {}
            self.generic(node)
            found = self.known[node] = self.taken, self.sources
            self.taken, self.sources = outer
        self.taken += found[0]
        self.sources.update(found[1])

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
        self.known = WeakKeyDictionary()

    def given(self, call: Call) -> list[Expr]:
        if isinstance(call.op, CallInplacePacked):
            return super().given(call)
        indices = _outputs_given(call, self.mod) if isinstance(call.op, CallDPS) else ()
        return [call.args[i] for i in indices]


class _Search:
    """Looks for arguments of calls that nothing else has or reads later."""

    def __init__(
        self,
        function: Function,
        owned: Collection[int],
        kind: type[CallTIRInplace | GlobalVar | Op],
    ) -> None:
        self.found: dict[tuple[Call, int], Var] = {}
        """The calls and positions of such arguments, and whose memory they are."""
        self.seen: list[Call] = []
        self.kind = kind
        self.pure = function.pure
        self.used_vars = UsedVars()
        mine = [p for i, p in enumerate(function.params) if i in owned or not function.pure]
        with deep_recursion():
            self.search(function.body, lambda: {var: (var, ()) for var in mine})

    def unread(self, memory: Callable[[], _Memory], at: int) -> Mapping[Var, Place]:
        """The memory that branches in binding `at` may take for theirs."""
        return memory().unread_after(at) if self.pure else {}

    def search(self, seq: SeqExpr, owned: Callable[[], Mapping[Var, Place]]) -> None:
        memory = cache(lambda: _Memory(seq, owned(), self.used_vars))  # few bodies need it
        for i, binding in enumerate(seq.bindings):
            value = binding.value
            if isinstance(value, If):
                inner = cache(partial(self.unread, memory, i))
                self.search(value.then, inner)
                self.search(value.otherwise, inner)
            elif isinstance(value, Call) and isinstance(value.op, self.kind):
                self.seen.append(value)
                args, taken = value.args, range(len(value.args))
                if isinstance(value.op, CallTIRInplace):
                    args, taken = _fields(value), [k for k in value.op.inplace_indices if k >= 0]
                elif isinstance(value.op, Op):
                    updates = value.op.updates
                    taken = [
                        i for i, s in enumerate(value.op.args) if updates and s.name == updates
                    ]
                for k in taken:
                    if memory().unseen_after(i, k, args):
                        self.found[value, k] = memory().places[args[k]][0]  # type: ignore[index]


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
    owned: Mapping[Var, Place]
    used_vars: UsedVars
    places: dict[Var, Place] = field(default_factory=dict[Var, Place])
    uses: dict[Var, list[_Use]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.places.update(self.owned)
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

    def unread_after(self, at: int) -> dict[Var, Place]:
        """The memory that nothing but the branches in binding `at` has or reads later."""
        return {
            var: (root, path)
            for var, (root, path) in self.places.items()
            if not any(
                (use.at > at or (use.kept and use.at < at)) and _nested(use.path, path)
                for use in self.uses[root]
            )
        }

    def overlaps(self, var: Var, root: Var, path: tuple[int, ...]) -> bool:
        place = self.places.get(var)
        return place is not None and place[0] is root and _nested(place[1], path)


def _nested(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Is one of the two places a part of the other?"""
    count = min(len(a), len(b))
    return a[:count] == b[:count]
