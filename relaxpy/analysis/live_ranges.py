"""Liveness of the allocated tensors in a lowered function: where is each in use, and may it leave the call?

Positions number the bindings in program order. Those of a branch's second arm follow those of the first, so a tensor
that is used only in the first arm is dead in the second. Aliases are followed through views, tuples, branches and
casts. A tensor leaves the call if it is returned, captured by a closure, or passed to a callee that may keep it:
Python, a function value, or a function of the module that does one of these with its parameter. A tail call that is a
step of a loop takes the place of its caller, so its arguments leave the call, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from relaxpy.analysis.called_functions import cycles, mentioned_functions
from relaxpy.analysis.called_operators import calls_in
from relaxpy.analysis.donated import donated
from relaxpy.analysis.tail_calls import tail_calls
from relaxpy.ir.accessors import known_dims, known_dtype, tensor_of
from relaxpy.ir.annotation import Annotation, TupleType
from relaxpy.ir.dim import Dim, SymVar, product
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import (
    Call,
    Expr,
    Function,
    GlobalVar,
    If,
    MatchCast,
    SeqExpr,
    ShapeExpr,
    Tuple,
    TupleGetItem,
    Var,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import UsedVars, free_sym_vars
from relaxpy.op.call import InvokeClosure
from relaxpy.op.memory import AllocTensor, Intrinsic, Kill, MakeClosure, View

Path = tuple[int, ...]
"""The branch arms that contain a place, outermost first. An arm is encoded as twice the position of the branch, plus
one for the second arm.
"""
Leaks = Mapping[str, frozenset[int]]
"""Graph function → positions of the parameters whose tensors may outlive a call of it."""


@dataclass
class LiveRange:
    """The live range of a tensor that `memory.alloc_tensor` makes."""

    var: Var
    call: Call
    size: Dim
    """Size in bytes."""
    begin: int
    """Position of the allocation."""
    path: Path
    end: int
    """Position of the last use, under any alias."""
    first_use: int = -1
    """Position of the first use, which writes it."""
    escapes: bool = False
    """May it be seen after the call?"""


@dataclass
class Given:
    """The memory of a parameter that is donated, or of a tensor in one that is a tuple."""

    size: Dim
    """Size in bytes."""
    end: int = 0
    """Position of the last use, under any alias."""
    escapes: bool = False
    """May it be seen after the call?"""


_NONE: frozenset[Var] = frozenset()


class Liveness:
    """The liveness of a function's tensors."""

    def __init__(
        self, function: Function, leaks: Leaks, loop: Collection[str] = frozenset()
    ) -> None:
        """`loop` are the functions that this one calls and that call it."""
        self._function = function
        self.leaks = leaks
        tail = tail_calls(function) if loop else ()
        self._steps = {
            call for call in tail if isinstance(call.op, GlobalVar) and call.op.name in loop
        }
        self.calls: set[str] = set()
        """The functions of the module that it calls."""
        self.ranges: dict[Var, LiveRange] = {}
        self.given: dict[Var, Given] = {}
        """What is donated: by parameter, or by a variable that stands for a field of one."""
        self.leaked: set[Var] = set()
        """Parameters whose tensors may be seen after the call."""
        self.symbols: dict[SymVar, tuple[int, Path]] = {}
        """The position at which each symbolic variable is defined, without those of the parameters."""
        self._params = {param: frozenset({param}) for param in function.params}
        self._names: dict[Var, frozenset[Var]] = dict(self._params)
        self._fields: dict[Var, tuple[Expr, ...]] = {}
        self._sizes: dict[tuple[tuple[Dim, ...], DType], Dim] = {}
        self._used = UsedVars()
        self._at = 0
        self._path: Path = ()
        for position in donated(function):
            param = function.params[position]
            self._names[param] = self._donated(param, param.annotation) | {param}
        known = free_sym_vars([param.annotation for param in function.params])
        self._known = set(known)
        self._escape(self._seq(function.body))

    def leaked_parameters(self) -> frozenset[int]:
        """Positions of the parameters whose tensors may outlive a call."""
        params = self._function.params
        return frozenset(i for i, param in enumerate(params) if param in self.leaked)

    def roots(self, expr: Expr) -> frozenset[Var]:
        """The allocations and parameters whose memory a value aliases or contains."""
        if isinstance(expr, Var):
            return self._names.get(expr, _NONE)
        found: set[Var] = set()
        for var in self._used(expr):
            found |= self._names.get(var, _NONE)
        return frozenset(found)

    def _donated(self, var: Var, annotation: Annotation) -> frozenset[Var]:
        """Record the tensors of a parameter, or of a field of it. Returns the variables that stand for them."""
        if isinstance(annotation, TupleType):
            fields = [Var(f"{var.name}_{i}", each) for i, each in enumerate(annotation.fields)]
            self._fields[var] = tuple(fields)
            for field in fields:
                self._names[field] = self._donated(field, field.annotation)
            return frozenset(leaf for field in fields for leaf in self._names[field])
        dims, dtype = known_dims(annotation), known_dtype(annotation)
        self.given[var] = Given(self._bytes(dims, dtype))
        return frozenset({var})

    def _seq(self, seq: SeqExpr) -> frozenset[Var]:
        """Walk a body. Returns the roots of its result."""
        for binding in seq.bindings:
            self._at += 1
            if isinstance(binding, MatchCast):
                self._define(binding)
                self._use(binding.value)
                self._names[binding.var] = self.roots(binding.value)
            else:
                self._binding(binding.var, binding.value)
        self._at += 1
        self._use(seq.body)
        return self.roots(seq.body)

    def _define(self, cast: MatchCast) -> None:
        for symbol in free_sym_vars([cast.annotation]):
            if symbol not in self._known:
                self._known.add(symbol)
                self.symbols[symbol] = self._at, self._path

    def _binding(self, var: Var, value: Expr) -> None:
        match value:
            case Call(op=AllocTensor(), args=(ShapeExpr(dims=dims), *_)):
                self.ranges[var] = self._range(var, value, dims)
                self._names[var] = frozenset({var})
            case Call(op=Kill()):
                pass
            case Call(op=View(), args=(source, *_)):
                self._alias(var, source)
            case Call(op=MakeClosure()):
                self._escape(self.roots(value))
            case Call(op=Intrinsic()):
                self._use(value)
            case Call(op=GlobalVar(name=name), args=args) if name in self.leaks:
                self.calls.add(name)
                self._use(value)
                for i in self.leaks[name]:
                    self._escape(self.roots(args[i]))
                if value in self._steps:
                    self._escape(
                        root for arg in args for root in self.roots(arg) & self.ranges.keys()
                    )
            case Var():
                self._alias(var, value)
            case Tuple(fields=fields):
                self._fields[var] = fields
                self._alias(var, value)
            case TupleGetItem(tuple=Var() as whole, index=index) if whole in self._fields:
                self._alias(var, self._fields[whole][index])
            case TupleGetItem():
                self._alias(var, value)
            case If(cond=cond):
                self._use(cond)
                outer, at = self._path, self._at
                self._path = (*outer, 2 * at)
                then = self._seq(value.then)
                self._path = (*outer, 2 * at + 1)
                otherwise = self._seq(value.otherwise)
                self._path = outer
                self._at += 1
                self._names[var] = then | otherwise
                self._touch(then | otherwise)
            case _:
                self._use(value)
                self._escape(self.roots(value))

    def _range(self, var: Var, call: Call, dims: tuple[Dim, ...]) -> LiveRange:
        tensor = tensor_of(var)
        size = self._bytes(dims, tensor.dtype)
        return LiveRange(var, call, size, self._at, self._path, self._at)

    def _bytes(self, dims: tuple[Dim, ...], dtype: DType | None) -> Dim:
        """Bytes of a tensor."""
        assert dtype is not None
        size = self._sizes.get((dims, dtype))
        if size is None:
            size = self._sizes[dims, dtype] = dtype.nbytes(product(dims))
        return size

    def _alias(self, var: Var, source: Expr) -> None:
        self._use(source)
        self._names[var] = self.roots(source)
        if isinstance(source, Var) and source in self._fields:
            self._fields[var] = self._fields[source]

    def _use(self, expr: Expr) -> None:
        self._touch(self.roots(expr))

    def _touch(self, roots: Iterable[Var]) -> None:
        for root in roots:
            if root in self.ranges:
                found = self.ranges[root]
                found.end = self._at
                if found.first_use < 0:
                    found.first_use = self._at
            elif root in self.given:
                self.given[root].end = self._at

    def _escape(self, roots: Iterable[Var]) -> None:
        for root in roots:
            if root in self.ranges:
                self.ranges[root].escapes = True
            else:
                self.leaked.add(root)
            if root in self.given:
                self.given[root].escapes = True


def liveness(mod: IRModule) -> dict[str, Liveness]:
    """The liveness of the tensors of each graph function of a module. An argument leaks if the callee's parameter does.
    Computed as a fixed point: callers are visited again when more is known about a callee."""
    functions = mod.graph_functions
    leaks: dict[str, frozenset[int]] = dict.fromkeys(functions, frozenset())
    loops = _loops(mod)
    callers: defaultdict[str, dict[str, None]] = defaultdict(dict)
    found: dict[str, Liveness] = {}
    waiting = dict.fromkeys(functions)
    while waiting:
        name = next(iter(waiting))
        del waiting[name]
        live = found[name] = Liveness(functions[name], leaks, loops.get(name, ()))
        for callee in live.calls:
            callers[callee][name] = None
        leaked = live.leaked_parameters()
        if leaked != leaks[name]:
            leaks[name] = leaked
            waiting.update(callers[name])
    return found


def _loops(mod: IRModule) -> dict[str, frozenset[str]]:
    """For each recursive function, those on a call cycle with it. A function value may be any function that is one."""
    together: defaultdict[int, set[str]] = defaultdict(set)
    callees = {name: tuple(mentioned_functions(f)) for name, f in mod.graph_functions.items()}
    values, callers = _value_calls(mod)
    for name in callers:
        callees[name] += tuple(values)
    cycle_of = cycles(callees)
    for name, cycle in cycle_of.items():
        together[cycle].add(name)
    return {name: frozenset(together[cycle]) for name, cycle in cycle_of.items()}


def _value_calls(mod: IRModule) -> tuple[dict[str, None], dict[str, None]]:
    """The functions that are values, and those that call function values."""
    functions, callers = dict[str, None](), dict[str, None]()
    for name, function in mod.graph_functions.items():
        for call in calls_in(function):
            match call:
                case Call(op=MakeClosure(), args=(GlobalVar(name=value), *_)):
                    functions[value] = None
                case Call(op=Var() | InvokeClosure()):
                    callers[name] = None
                case _:
                    pass
    return functions, callers
