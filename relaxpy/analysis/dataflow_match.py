"""Pattern matching on programs: `match` for one value, `find_matches` for all values in a block.

A variable is matched by the value that it is bound to, so a pattern of nested calls follows the bindings of a block.
Matching stops at a `match_cast`, which is checked at run time: its result is treated like a parameter. Alternatives are
tried in order, with backtracking. A match maps every pattern in it to the value that it matched.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import EllipsisType
from typing import Any

import numpy as np

from relaxpy.analysis.scope import Bindings, Scope, Value, scope_of
from relaxpy.errors import UsageError, did_you_mean
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, PrimType, ShapeType, TensorType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import (
    Binding,
    Call,
    Constant,
    Expr,
    ExternFunc,
    GlobalVar,
    Tuple,
    TupleGetItem,
    Var,
)
from relaxpy.ir.module import IRModule, TensorProgram
from relaxpy.ir.op import Operator
from relaxpy.ir.pattern import (
    AndPattern,
    AnnotationPattern,
    AnyPattern,
    AttrPattern,
    CallPattern,
    CallTIRPattern,
    ConstPattern,
    DTypePattern,
    Edge,
    FunctionPattern,
    GraphPattern,
    NotPattern,
    OpPattern,
    OrPattern,
    Pattern,
    PatternDims,
    ShapePattern,
    ShapeValuePattern,
    TupleGetItemPattern,
    TuplePattern,
    VarPattern,
    Wildcard,
    named_symbol,
    walk,
)
from relaxpy.op.call import CallTIR
from relaxpy.op.deduce import deduce
from relaxpy.shape.lattice import Verdict, accepts
from relaxpy.shape.prove import equal


@dataclass(frozen=True)
class Match:
    """The result of a successful match. `match[pattern]` is the value that a subpattern matched: a variable, or a
    leaf."""

    values: Mapping[Pattern, Value]
    symbols: Mapping[SymVar, Dim]
    """The dimensions that the symbols of `has_shape` matched."""
    roots: tuple[Expr, ...]
    """The value that the pattern matched (for a graph pattern, the value of each of its roots)."""
    bindings: tuple[Binding, ...]
    """The bindings that the pattern covers, in the order of the program, without those of wildcards."""
    mod: IRModule | None = None

    def __getitem__(self, pattern: Pattern) -> Expr:
        """The value that `pattern` matched. Raises: KeyError if the alternative that contains it was not taken."""
        return expect(Expr, self.values[pattern])

    def __contains__(self, pattern: object) -> bool:
        return pattern in self.values

    def get(self, pattern: Pattern) -> Expr | None:
        """The value that `pattern` matched; None if the alternative that contains it was not taken."""
        return self[pattern] if pattern in self.values else None

    def annotation(self, pattern: Pattern) -> Annotation:
        """The annotation of the value that `pattern` matched."""
        return deduce(self[pattern], self.mod)

    def dim(self, symbol: str | SymVar | Dim) -> Dim:
        """The dimension that a symbol of `has_shape` matched. Raises: KeyError if it matched none."""
        if isinstance(symbol, Dim):
            assert symbol.symbol is not None, "a compound dimension"
            symbol = symbol.symbol
        return self.symbols[named_symbol(symbol) if isinstance(symbol, str) else symbol]


def match(
    pattern: Pattern, expr: Expr, bindings: Bindings = (), mod: IRModule | None = None
) -> Match | None:
    """The first match of the pattern with `expr`; None if there is none.

    `bindings` (a block, a function, or bindings) define the values of variables, and `mod` the tensor programs behind
    global names.

    Raises: UsageError (`pattern-op`, `pattern-shape`, `pattern-module`) for a pattern that cannot match anything.
    """
    return next(find_matches_of(pattern, expr, bindings, mod), None)


def find_matches_of(
    pattern: Pattern, expr: Expr, bindings: Bindings = (), mod: IRModule | None = None
) -> Iterator[Match]:
    """All matches of the pattern with `expr`."""
    check_pattern(pattern)
    matcher = _Matcher(scope_of(bindings, mod))
    for state in matcher.match(pattern, expr, _State()):
        if matcher.settled(state):
            yield matcher.found(state, (pattern,))


def find_matches(
    pattern: AnyPattern,
    bindings: Bindings,
    mod: IRModule | None = None,
    *,
    backwards: bool = False,
) -> Iterator[Match]:
    """All matches in a block, in the order of the bindings that the pattern's root matches (`backwards`: from the end).
    All alternatives of a match are included. Raises the same errors as `match`."""
    check_pattern(pattern)
    matcher = _Matcher(scope_of(bindings, mod), backwards)
    roots = pattern.roots if isinstance(pattern, GraphPattern) else (pattern,)
    edges = pattern.edges if isinstance(pattern, GraphPattern) else ()
    for state in matcher.match_roots(roots, edges, _State()):
        if matcher.settled(state):
            yield matcher.found(state, roots)


def check_pattern(pattern: AnyPattern) -> None:
    """Refuse a pattern that can never match: it names an unknown operator, or a symbol that no shape defines.

    Raises: UsageError (`pattern-op`, `pattern-shape`).
    """
    defined: set[SymVar] = set()
    used: dict[SymVar, PatternDims] = {}
    parts = list(walk(pattern))
    names = _operator_names() if any(isinstance(part, OpPattern) for part in parts) else []
    for part in parts:
        if isinstance(part, OpPattern) and part.name not in names:
            hint = did_you_mean(part.name, names) or "docs/operators.md lists them"
            raise UsageError("pattern-op", f"there is no operator {part.name!r}", help=hint)
        if isinstance(part, (ShapePattern, ShapeValuePattern)):
            for dim in part.dims:
                if isinstance(dim, Dim):
                    defined.update([dim.symbol] if dim.symbol is not None else [])
                    used.update(dict.fromkeys(dim.vars, part.dims))
    for symbol, dims in used.items():
        if symbol not in defined:
            raise UsageError(
                "pattern-shape",
                f"the symbol {symbol} of {_shown(dims)} is not defined: no dimension of the pattern is {symbol} itself",
                help=f'define it in a shape of the pattern: has_shape(("{symbol}", …))',
            )


def _operator_names() -> list[str]:
    """The names of all operators, user-defined ones included."""
    kinds, found = [Operator], dict[str, None]()
    for kind in kinds:
        kinds += kind.__subclasses__()
        found.update(dict.fromkeys([kind.name] if "name" in vars(kind) else []))
    return list(found)


def _shown(dims: PatternDims) -> str:
    return "(" + ", ".join("..." if dim is ... else str(dim) for dim in dims) + ")"


@dataclass(frozen=True, slots=True)
class _State:
    """The state of a partial match. Immutable, since alternatives share a common prefix."""

    values: dict[Pattern, Value] = field(default_factory=dict[Pattern, Value])
    symbols: dict[SymVar, Dim] = field(default_factory=dict[SymVar, Dim])
    covered: frozenset[Var] = frozenset()
    waiting: tuple[tuple[Dim, Dim], ...] = ()
    """Compound dimensions with symbols that are not known yet, and the dimensions that they must equal."""

    def bind(self, pattern: Pattern, value: Value) -> _State:
        return replace(self, values={**self.values, pattern: value})

    def cover(self, way: Iterable[Var]) -> _State:
        return replace(self, covered=self.covered.union(way))


class _Matcher:
    def __init__(self, scope: Scope, backwards: bool = False) -> None:
        self.scope = scope
        self.mod = scope.mod
        variables = [binding.var for binding in scope.bindings]
        self.variables = variables[::-1] if backwards else variables

    def found(self, state: _State, roots: Sequence[Pattern]) -> Match:
        places = sorted(self.scope.position[var] for var in state.covered)
        values = [state.values[root] for root in roots]
        return Match(
            state.values,
            state.symbols,
            tuple(v for v in values if isinstance(v, Expr)),
            tuple(self.scope.bindings[i] for i in places),
            self.mod,
        )

    def match(self, pattern: Pattern, value: Value, state: _State) -> Iterator[_State]:
        """All ways to match `value` with the pattern, given the match so far."""
        before = state.values.get(pattern)
        if before is not None:
            if self.scope.same(before, value):
                yield state
            return
        for after in self._ways(pattern, value, state):
            yield after.bind(pattern, value)

    def match_all(
        self, patterns: Sequence[Pattern], values: Sequence[Value], state: _State
    ) -> Iterator[_State]:
        """All ways to match values with patterns, pairwise."""
        if not patterns:
            yield state
            return
        for after in self.match(patterns[0], values[0], state):
            yield from self.match_all(patterns[1:], values[1:], after)

    def _ways(self, pattern: Pattern, value: Value, state: _State) -> Iterator[_State]:
        match pattern:
            case Wildcard():
                yield state
            case OrPattern(left=left, right=right):
                yield from self.match(left, value, state)
                yield from self.match(right, value, state)
            case AndPattern(left=left, right=right):
                for after in self.match(left, value, state):
                    yield from self.match(right, value, after)
            case NotPattern(inner=inner):
                if next(self.match(inner, value, state), None) is None:
                    yield state
            case OpPattern(name=name) if isinstance(value, Operator):
                if value.name == name:
                    yield state
            case AttrPattern(inner=inner, attrs=attrs):
                for after in self.match(inner, value, state):
                    if _has_attrs(self._operator(value), attrs):
                        yield after
            case _ if isinstance(value, Expr):
                yield from self._expr_ways(pattern, value, state)
            case _:
                pass

    def _expr_ways(self, pattern: Pattern, expr: Expr, state: _State) -> Iterator[_State]:
        if isinstance(pattern, (ShapePattern, DTypePattern, AnnotationPattern)):
            for after in self.match(pattern.inner, expr, state):
                yield from self._constrained(pattern, deduce(expr, self.mod), after)
            return
        value, way = self.scope.value(expr)
        match pattern, value:
            case TuplePattern(fields=None), Tuple():
                yield state.cover(way)
            case TuplePattern(fields=tuple() as fields), Tuple(fields=items):
                if len(fields) == len(items):
                    yield from self.match_all(fields, items, state.cover(way))
            case TupleGetItemPattern(tuple=inner, index=index), TupleGetItem():
                if index in (None, value.index):
                    yield from self.match(inner, value.tuple, state.cover(way))
            case OpPattern(name=name), Call(op=Operator() as op):
                if op.name == name:
                    yield state.cover(way)
            case CallPattern(), Call():
                yield from self._call(pattern, value, state, way)
            case CallTIRPattern(), Call(op=CallTIR()):
                yield from self._call_tir(pattern, value, state.cover(way))
            case _ if self._is_leaf(pattern, value):
                yield state
            case ShapeValuePattern(dims=dims), _:
                annotation = deduce(expr, self.mod)
                if isinstance(annotation, ShapeType) and annotation.dims is not None:
                    yield from self._dims(dims, annotation.dims, state)
            case _:
                pass

    def _is_leaf(self, pattern: Pattern, value: Expr) -> bool:
        """Does a pattern without subpatterns match this value, which is not computed by a binding?"""
        match pattern, value:
            case ConstPattern(value=None), Constant():
                return True
            case ConstPattern(value=number), Constant(data=data):
                return bool(np.all(data == np.asarray(number).astype(data.dtype)))
            case VarPattern(name=name), Var():
                return name in ("", value.name)
            case FunctionPattern(name=name, external=external), GlobalVar() | ExternFunc():
                return name in ("", value.name) and external == isinstance(value, ExternFunc)
            case _:
                return False

    def _call(
        self, pattern: CallPattern, call: Call, state: _State, way: Iterable[Var]
    ) -> Iterator[_State]:
        count = len(pattern.args)
        if count > len(call.args) or (count < len(call.args) and not pattern.more):
            return
        args = call.args[:count]
        for after in self.match(pattern.callee, call.op, state):
            for order in itertools.permutations(args) if pattern.any_order else [args]:
                yield from self.match_all(pattern.args, order, after.cover(way))

    def _call_tir(self, pattern: CallTIRPattern, call: Call, state: _State) -> Iterator[_State]:
        callee, args = expect(GlobalVar, call.args[0]), expect(Tuple, call.args[1])
        if isinstance(pattern.program, str) and pattern.program != callee.name:
            return
        if pattern.kinds is not None or not isinstance(pattern.program, (str, type(None))):
            program = self._program(callee)
            if pattern.kinds is not None and _kind(program) not in pattern.kinds:
                return
            wanted = None if isinstance(pattern.program, str) else pattern.program
            if wanted is not None and not program.structural_equal(wanted):
                return
        if pattern.args is None:
            yield state
        elif len(pattern.args) == len(args.fields):
            yield from self.match_all(pattern.args, args.fields, state)

    def _program(self, callee: GlobalVar) -> TensorProgram:
        program = None if self.mod is None else self.mod.functions.get(callee.name)
        if not isinstance(program, TensorProgram):
            raise UsageError(
                "pattern-module",
                f"the tensor program {callee.name} is unknown without its module",
                span=callee.span,
                help="pass the module: match(pattern, expr, bindings, mod)",
            )
        return program

    def _operator(self, value: Value) -> Operator | None:
        if isinstance(value, Operator):
            return value
        found = self.scope.value(value)[0]
        return found.op if isinstance(found, Call) and isinstance(found.op, Operator) else None

    # Annotations

    def _constrained(
        self, pattern: Pattern, annotation: Annotation, state: _State
    ) -> Iterator[_State]:
        match pattern, annotation:
            case ShapePattern(dims=wanted), TensorType(shape=tuple() as dims):
                yield from self._dims(wanted, dims, state)
            case DTypePattern(dtype=dtype), TensorType() | PrimType():
                if annotation.dtype == dtype:
                    yield state
            case AnnotationPattern(annotation=wanted), _:
                if accepts(wanted, annotation, None, equal) is Verdict.YES:
                    yield state
            case _:
                pass

    def _dims(
        self, wanted: PatternDims, actual: tuple[Dim, ...], state: _State
    ) -> Iterator[_State]:
        spread = _spread(wanted, len(actual))
        if spread is None:
            return
        symbols, waiting = dict(state.symbols), list(state.waiting)
        for want, dim in zip(spread, actual, strict=True):
            if want is None:
                continue
            if want.symbol is not None and want.symbol not in symbols:
                symbols[want.symbol] = dim
            elif not all(symbol in symbols for symbol in want.vars):
                waiting.append((want, dim))
            elif equal(want.substitute(symbols), dim) is not Verdict.YES:
                return
        yield replace(state, symbols=symbols, waiting=tuple(waiting))

    def settled(self, state: _State) -> bool:
        """Are the postponed dimensions equal, now that their symbols are known?"""
        return all(
            all(symbol in state.symbols for symbol in want.vars)
            and equal(want.substitute(state.symbols), dim) is Verdict.YES
            for want, dim in state.waiting
        )

    # Graphs

    def match_roots(
        self,
        roots: Sequence[Pattern],
        edges: Sequence[Edge],
        state: _State,
        taken: frozenset[Var] = frozenset(),
    ) -> Iterator[_State]:
        """All ways to match all roots so that the edges hold. Each root matches a different binding, none of them in
        `taken`."""
        if not roots:
            if all(self._holds(edge, state) for edge in edges):
                yield state
            return
        first, *rest = roots
        if first in state.values:  # matched inside another root
            yield from self.match_roots(rest, edges, state, taken)
            return
        for var in self._candidates(first, edges, state):
            if var not in taken:
                for after in self.match(first, var, state):
                    yield from self.match_roots(rest, edges, after, taken | {var})

    def _candidates(self, root: Pattern, edges: Sequence[Edge], state: _State) -> Iterable[Var]:
        """The variables that a root may match: the users of a known producer, else all."""
        for edge in edges:
            producer = state.values.get(edge.producer)
            if edge.user is root and isinstance(producer, Var):
                at = self.scope.position.get(producer)
                if at is not None:
                    return [self.scope.bindings[i].var for i in dict.fromkeys(self.scope.users[at])]
        return self.variables

    def _holds(self, edge: Edge, state: _State) -> bool:
        producer, user = state.values.get(edge.producer), state.values.get(edge.user)
        if not isinstance(producer, Var) or not isinstance(user, Var):
            return False
        value = self.scope.values.get(user)
        if value is None:
            return False
        args = _arguments(value)
        among = args if edge.index is None else args[edge.index : edge.index + 1]
        if not any(self.scope.same(producer, arg) for arg in among):
            return False
        if not edge.only:
            return True
        at = self.scope.position.get(producer)
        return (
            at is not None
            and not self.scope.escapes[at]
            and set(self.scope.users[at]) == {self.scope.position[user]}
        )


def _arguments(value: Expr) -> Sequence[Expr]:
    """The operands of a value, in order: the tensors of a cross-level call, the arguments of another call."""
    match value:
        case Call(args=(GlobalVar() | ExternFunc(), Tuple(fields=fields), *_)):
            return fields
        case Call(args=args):
            return args
        case Tuple(fields=fields):
            return fields
        case TupleGetItem(tuple=inner):
            return (inner,)
        case _:
            return ()


def _has_attrs(op: Operator | None, attrs: Mapping[str, Any | Callable[[Any], bool]]) -> bool:
    missing = object()
    for name, wanted in attrs.items():
        actual = getattr(op, name, missing)
        if actual is missing or not (wanted(actual) if callable(wanted) else actual == wanted):
            return False
    return op is not None


def _spread(wanted: PatternDims, rank: int) -> Sequence[Dim | None] | None:
    """The dimensions of a shape pattern for a tensor of this rank, with None for any dimension; None if the rank does
    not match.
    """
    if ... not in wanted:
        return list(map(_no_spread, wanted)) if len(wanted) == rank else None
    at = wanted.index(...)
    free = rank - (len(wanted) - 1)
    if free < 0:
        return None
    return list(map(_no_spread, (*wanted[:at], *[None] * free, *wanted[at + 1 :])))


def _no_spread(dim: Dim | EllipsisType | None) -> Dim | None:
    assert dim is not ...
    return dim


def _kind(program: TensorProgram) -> int:
    """The pattern kind of a program."""
    # Imported here: it needs the compiler, which the parser (a user of this file) does not.
    from relaxpy.tir.prim_func import PrimFunc
    from relaxpy.tir.recognise.pattern_kind import pattern_kind

    return pattern_kind(expect(PrimFunc, program))
