"""Dataflow patterns: trees (or graphs) of expressions with wildcards, to be matched with the computation of a value
(TVM's `relax.dpl`).

    x, w = wildcard(), wildcard().has_shape(("k", "n"))
    layer = is_op("nn.relu")(is_op("add")(is_op("matmul")(x, w), wildcard(), any_order=True))

A pattern is a frozen value with identity: *the same object at two places matches the same value of the program*. This
file only defines patterns; `relaxpy.analysis.dataflow_match` finds them in programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import EllipsisType, MappingProxyType
from typing import Any, TypeAlias

from relaxpy.errors import UsageError
from relaxpy.ir.annotation import Annotation
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.module import TensorProgram
from relaxpy.narrow import is_list

PatternLike: TypeAlias = "Pattern | float"
"""A pattern, or a number: a constant whose elements all equal it."""
PatternDim: TypeAlias = "Dim | SymVar | int | str | None"
"""A dimension of a pattern. A name or a symbol is a symbol of the pattern: it matches the same dimension throughout a
match. None matches any dimension."""
PatternDims: TypeAlias = tuple[Dim | EllipsisType | None, ...]


@dataclass(frozen=True, eq=False)
class Pattern:
    """Base class of patterns that match one value."""

    def __call__(self, *args: PatternLike | EllipsisType, any_order: bool = False) -> CallPattern:
        """A call of a value that matches this pattern, with exactly these arguments; `...` at the end allows further
        ones. With `any_order` the arguments match in any order (`add(a, b)` matches `add(b, a)`)."""
        more = bool(args) and args[-1] is ...
        given = args[:-1] if more else args
        return CallPattern(self, tuple(map(as_pattern, given)), more, any_order)

    def __or__(self, other: PatternLike) -> Pattern:
        """A value that matches either pattern; the left one is tried first."""
        return OrPattern(self, as_pattern(other))

    def __ror__(self, other: PatternLike) -> Pattern:
        return OrPattern(as_pattern(other), self)

    def __and__(self, other: PatternLike) -> Pattern:
        """A value that matches both patterns."""
        return AndPattern(self, as_pattern(other))

    def __invert__(self) -> Pattern:
        """A value that does not match this pattern. Nothing inside it becomes part of the match."""
        return NotPattern(self)

    def has_shape(self, shape: Sequence[PatternDim | EllipsisType]) -> Pattern:
        """The value is a tensor of this shape: `("n", 4)`, `(..., "m", "k")`, `(n, n * 2)` for `n = SymVar("n")`. One
        `...` matches any number of dimensions. Equality is proved, so `n * 2 // 2` matches `n`; an unknown dimension
        does not match.

        Raises: UsageError (`pattern-shape`) for an invalid dimension, or a second `...`.
        """
        return ShapePattern(self, pattern_dims(shape))

    def has_dtype(self, dtype: str) -> Pattern:
        """The value is a tensor (or scalar) of this dtype."""
        return DTypePattern(self, DType(dtype))

    def has_type(self, annotation: Annotation) -> Pattern:
        """The value has this annotation, or a more precise one (`TensorType(None, "float32", ndim=2)`)."""
        return AnnotationPattern(self, annotation)

    def has_attr(self, attrs: Mapping[str, Any] | None = None, **more: Any) -> Pattern:
        """The value is an operator call with these attributes. Each is a value, or a predicate on the value
        (`has_attr(axis=lambda axis: axis in (-1, 1))`)."""
        given = {**(attrs or {}), **more}
        return AttrPattern(self, MappingProxyType({k: _attr(v) for k, v in given.items()}))

    def used_by(self, user: Pattern, index: int | None = None) -> GraphPattern:
        """The value is an argument of a match of `user`: argument number `index`, if given."""
        return GraphPattern((self, user), (Edge(self, user, index, only=False),))

    def only_used_by(self, user: Pattern, index: int | None = None) -> GraphPattern:
        """Like `used_by`; in addition nothing else uses the value, and it is not an output of the block."""
        return GraphPattern((self, user), (Edge(self, user, index, only=True),))


@dataclass(frozen=True, eq=False)
class Wildcard(Pattern):
    """Matches any value."""


@dataclass(frozen=True, eq=False)
class ConstPattern(Pattern):
    """Matches a tensor constant; if `value` is given, all its elements equal it."""

    value: float | None = None


@dataclass(frozen=True, eq=False)
class VarPattern(Pattern):
    """Matches a value defined outside the searched bindings, or by a `match_cast`; with this name, if given."""

    name: str = ""


@dataclass(frozen=True, eq=False)
class OpPattern(Pattern):
    """Matches a call of the operator with this name. Call it with patterns to match the arguments."""

    name: str


@dataclass(frozen=True, eq=False)
class FunctionPattern(Pattern):
    """Matches a function by its name (empty: any): one of the module, or an external one."""

    name: str
    external: bool = False


@dataclass(frozen=True, eq=False)
class CallPattern(Pattern):
    """Matches a call; `more` allows further arguments."""

    callee: Pattern
    args: tuple[Pattern, ...]
    more: bool = False
    any_order: bool = False


@dataclass(frozen=True, eq=False)
class CallTIRPattern(Pattern):
    """Matches a `call_tir` of a tensor program: with this name or these loops, one of these pattern kinds
    (`PatternKind`), and these tensors. None: any."""

    program: str | TensorProgram | None = None
    args: tuple[Pattern, ...] | None = None
    kinds: frozenset[int] | None = None


@dataclass(frozen=True, eq=False)
class TuplePattern(Pattern):
    """Matches a tuple of these fields; None: any fields."""

    fields: tuple[Pattern, ...] | None = None


@dataclass(frozen=True, eq=False)
class TupleGetItemPattern(Pattern):
    """Matches a field of a tuple; index None: any field."""

    tuple: Pattern
    index: int | None = None


@dataclass(frozen=True, eq=False)
class ShapeValuePattern(Pattern):
    """Matches a shape value: the argument of `reshape`."""

    dims: PatternDims


@dataclass(frozen=True, eq=False)
class OrPattern(Pattern):
    """Matches a value that matches either pattern."""

    left: Pattern
    right: Pattern


@dataclass(frozen=True, eq=False)
class AndPattern(Pattern):
    """Matches a value that matches both patterns."""

    left: Pattern
    right: Pattern


@dataclass(frozen=True, eq=False)
class NotPattern(Pattern):
    """Matches a value that does not match `inner`."""

    inner: Pattern


@dataclass(frozen=True, eq=False)
class ShapePattern(Pattern):
    """Matches `inner`, if it is a tensor of this shape."""

    inner: Pattern
    dims: PatternDims


@dataclass(frozen=True, eq=False)
class DTypePattern(Pattern):
    """Matches `inner`, if it has this dtype."""

    inner: Pattern
    dtype: DType


@dataclass(frozen=True, eq=False)
class AnnotationPattern(Pattern):
    """Matches `inner`, if it has this annotation or a finer one."""

    inner: Pattern
    annotation: Annotation


@dataclass(frozen=True, eq=False)
class AttrPattern(Pattern):
    """Matches `inner`, if it is an operator call with these attributes."""

    inner: Pattern
    attrs: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Edge:
    """A use: `producer` is argument `index` (None: any argument) of `user`; with `only`, of nothing else."""

    producer: Pattern
    user: Pattern
    index: int | None
    only: bool


@dataclass(frozen=True, eq=False)
class GraphPattern:
    """Several values of one block, each bound separately, and the uses between them: `a.used_by(b) & a.used_by(c)`."""

    roots: tuple[Pattern, ...]
    edges: tuple[Edge, ...] = field(default=())

    def __and__(self, other: GraphPattern) -> GraphPattern:
        """The union of the values and edges of both."""
        roots = dict.fromkeys((*self.roots, *other.roots))
        return GraphPattern(tuple(roots), (*self.edges, *other.edges))


AnyPattern: TypeAlias = Pattern | GraphPattern


def wildcard() -> Pattern:
    """A pattern that matches any value."""
    return Wildcard()


def is_const(value: float | None = None) -> Pattern:
    """A pattern that matches a tensor constant; if `value` is given, all its elements equal it."""
    return ConstPattern(value)


def is_var(name: str = "") -> Pattern:
    """A pattern that matches a value defined outside the searched bindings, such as a parameter."""
    return VarPattern(name)


def is_op(name: str) -> OpPattern:
    """A pattern that matches a call of the operator `name` (`"nn.relu"`, or `"relax.nn.relu"` as in TVM) with any
    arguments. Call it with patterns for the arguments: `is_op("add")(a, b)`."""
    return OpPattern(name.removeprefix("relax."))


def is_function(name: str = "") -> Pattern:
    """A pattern that matches a function of the module (TVM's `GlobalVarPattern`), with this name if given. Call it with
    patterns for the arguments."""
    return FunctionPattern(name)


def is_tuple(fields: Sequence[PatternLike] | None = None) -> Pattern:
    """A pattern that matches a tuple of these fields; without `fields`, any tuple."""
    return TuplePattern(None if fields is None else tuple(map(as_pattern, fields)))


def is_tuple_get_item(tuple_value: PatternLike, index: int | None = None) -> Pattern:
    """A pattern that matches field `index` of a tuple; without `index`, any field."""
    return TupleGetItemPattern(as_pattern(tuple_value), index)


def is_shape(dims: Sequence[PatternDim | EllipsisType]) -> Pattern:
    """A pattern that matches a shape value, written as in `has_shape`."""
    return ShapeValuePattern(pattern_dims(dims))


def is_call_tir(
    program: str | TensorProgram | None = None,
    args: Sequence[PatternLike] | None = None,
    *,
    kind: int | Iterable[int] | None = None,
) -> Pattern:
    """A pattern that matches a `call_tir`. `program` is a name, or a tensor program with the same loops. `args` are
    patterns of the tensors. `kind` is one or several pattern kinds (`relaxpy.tir.recognise.pattern_kind.PatternKind`),
    determined by analysing the program."""
    kinds = None if kind is None else frozenset([kind] if isinstance(kind, int) else kind)
    return CallTIRPattern(program, None if args is None else tuple(map(as_pattern, args)), kinds)


def is_call_dps_library(name: str = "", args: Sequence[PatternLike] | None = None) -> Pattern:
    """A pattern that matches a `call_dps_library` (TVM: `is_call_dps_packed`) of this function with these tensors; by
    default of any function."""
    callee = FunctionPattern(name, external=True) if name else wildcard()
    return is_op("call_dps_library")(callee, is_tuple(args))


is_call_dps_packed = is_call_dps_library


def is_call_packed(name: str, args: Sequence[PatternLike] | None = None) -> Pattern:
    """A pattern that matches a `call_pure_packed` of this function (dataflow blocks contain no other packed calls)."""
    callee = FunctionPattern(name, external=True)
    return is_op("call_pure_packed")(callee, *([...] if args is None else args))


def joined(*patterns: Pattern) -> GraphPattern:
    """A pattern of several values of one block, such as three matrix products of one input."""
    return GraphPattern(patterns)


def children(pattern: AnyPattern) -> tuple[Pattern, ...]:
    """The direct sub-patterns in the order of evaluation: callee and arguments of a call, or the inner pattern of a
    constraint."""
    match pattern:
        case CallPattern(callee=callee, args=args):
            return (callee, *args)
        case CallTIRPattern(args=fields) | TuplePattern(fields=fields):
            return fields or ()
        case TupleGetItemPattern(tuple=inner) | NotPattern(inner=inner):
            return (inner,)
        case OrPattern(left=left, right=right) | AndPattern(left=left, right=right):
            return (left, right)
        case (
            ShapePattern(inner=inner)
            | DTypePattern(inner=inner)
            | AnnotationPattern(inner=inner)
            | AttrPattern(inner=inner)
        ):
            return (inner,)
        case GraphPattern(roots=roots):
            return roots
        case _:
            return ()


def walk(pattern: AnyPattern) -> Iterable[AnyPattern]:
    """A pattern and all its sub-patterns, each object once, in pre-order."""
    seen: dict[AnyPattern, None] = {}
    waiting: list[AnyPattern] = [pattern]
    while waiting:
        at = waiting.pop()
        if at not in seen:
            seen[at] = None
            waiting += reversed(children(at))
    return seen


def as_pattern(value: PatternLike | EllipsisType) -> Pattern:
    """Convert a value to a pattern. Raises: UsageError (`pattern-type`)."""
    if isinstance(value, Pattern):
        return value
    if isinstance(value, (int, float)):
        return ConstPattern(value)
    raise UsageError(
        "pattern-type",
        f"a pattern or a number is expected, got {value!r}",
        help="`wildcard()` matches any value; `...` may only be the last argument of a call",
    )


def pattern_dims(shape: Sequence[PatternDim | EllipsisType]) -> PatternDims:
    """Dimensions of a pattern in the form that is matched. Raises: UsageError (`pattern-shape`)."""
    if not isinstance(shape, (tuple, list)):
        raise UsageError("pattern-shape", f"a shape is a tuple of dimensions, got {shape!r}")
    dims = tuple(map(_pattern_dim, shape))
    if dims.count(...) > 1:
        raise UsageError("pattern-shape", f"a shape has at most one `...`, got {shape!r}")
    return dims


def _pattern_dim(dim: PatternDim | EllipsisType) -> Dim | EllipsisType | None:
    if dim is None or dim is ...:
        return dim
    if isinstance(dim, str) and dim.isidentifier():
        return named_symbol(dim).dim
    if isinstance(dim, (Dim, SymVar, int)):
        return Dim.of(dim)
    raise UsageError(
        "pattern-shape",
        f"a dimension of a pattern must be an integer, a name, a Dim, None (any) or ..., got {dim!r}",
        help='write an expression with symbols: n = relaxpy.ir.SymVar("n"); has_shape((n, n.dim * 2))',
    )


@cache
def named_symbol(name: str) -> SymVar:
    """The symbol of a name in pattern shapes."""
    return SymVar(name)


def _attr(value: Any) -> Any | Callable[[Any], bool]:
    return tuple(value) if is_list(value) else value
