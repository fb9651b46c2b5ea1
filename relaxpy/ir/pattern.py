"""Patterns: what a value must be computed by, as a tree (or graph) of expressions with holes (TVM's `relax.dpl`).

    x, w = wildcard(), wildcard().has_shape(("k", "n"))
    layer = is_op("nn.relu")(is_op("add")(is_op("matmul")(x, w), wildcard(), any_order=True))

A pattern is a frozen value with identity: *the same object at two places is the same value of the program*. Here is
only what patterns are; `relaxpy.analysis.dataflow_match` finds them in programs.
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

PatternLike: TypeAlias = "Pattern | float"
"""A pattern, or a number: a constant all of whose items are it."""
PatternDim: TypeAlias = "Dim | SymVar | int | str | None"
"""A dimension of a pattern. A name, or a symbol, is a symbol of the pattern: the same dimension wherever it stands in
a match; None is any dimension."""
PatternDims: TypeAlias = tuple[Dim | EllipsisType | None, ...]


@dataclass(frozen=True, eq=False)
class Pattern:
    """Base of patterns of one value."""

    def __call__(self, *args: PatternLike | EllipsisType, any_order: bool = False) -> CallPattern:
        """A call of what this pattern matches with these arguments, no more and no fewer; `...` at the end is any
        further ones. With `any_order` the arguments may stand in any order (`add(a, b)` is `add(b, a)`)."""
        more = bool(args) and args[-1] is ...
        given = args[:-1] if more else args
        return CallPattern(self, tuple(map(as_pattern, given)), more, any_order)

    def __or__(self, other: PatternLike) -> Pattern:
        """Either; the left one is tried first."""
        return OrPattern(self, as_pattern(other))

    def __ror__(self, other: PatternLike) -> Pattern:
        return OrPattern(as_pattern(other), self)

    def __and__(self, other: PatternLike) -> Pattern:
        """Both, of the same value."""
        return AndPattern(self, as_pattern(other))

    def __invert__(self) -> Pattern:
        """Anything else. What stands in it is not part of the match."""
        return NotPattern(self)

    def has_shape(self, shape: Sequence[PatternDim | EllipsisType]) -> Pattern:
        """The value is a tensor of this shape: `("n", 4)`, `(..., "m", "k")`, `(n, n * 2)` for `n = SymVar("n")`. One
        `...` stands for any number of dimensions. Equality is proved, so `n * 2 // 2` is `n`; what is not known does
        not match.

        Raises: UsageError (`pattern-shape`) for what is no dimension, or a second `...`.
        """
        return ShapePattern(self, pattern_dims(shape))

    def has_dtype(self, dtype: str) -> Pattern:
        """The value is a tensor (or scalar) of this type."""
        return DTypePattern(self, DType(dtype))

    def has_type(self, annotation: Annotation) -> Pattern:
        """The value's annotation is this one, or more precise (`TensorType(None, "float32", ndim=2)`)."""
        return AnnotationPattern(self, annotation)

    def has_attr(self, attrs: Mapping[str, Any] | None = None, **more: Any) -> Pattern:
        """The value is the call of an operator with these attributes: values, or functions that say whether a value
        will do (`has_attr(axis=lambda axis: axis in (-1, 1))`)."""
        given = {**(attrs or {}), **more}
        return AttrPattern(self, MappingProxyType({k: _attr(v) for k, v in given.items()}))

    def used_by(self, user: Pattern, index: int | None = None) -> GraphPattern:
        """The value is an argument of what `user` matches: argument number `index` where that is given."""
        return GraphPattern((self, user), (Edge(self, user, index, only=False),))

    def only_used_by(self, user: Pattern, index: int | None = None) -> GraphPattern:
        """The same, and of nothing else; nor does it leave the block."""
        return GraphPattern((self, user), (Edge(self, user, index, only=True),))


@dataclass(frozen=True, eq=False)
class Wildcard(Pattern):
    """Any value."""


@dataclass(frozen=True, eq=False)
class ConstPattern(Pattern):
    """A tensor constant; all its items are `value` where that is given."""

    value: float | None = None


@dataclass(frozen=True, eq=False)
class VarPattern(Pattern):
    """A value that comes from outside the bindings searched, or from a `match_cast`: under this name if one is
    given."""

    name: str = ""


@dataclass(frozen=True, eq=False)
class OpPattern(Pattern):
    """A call of the operator of this name; called with patterns, one with such arguments."""

    name: str


@dataclass(frozen=True, eq=False)
class FunctionPattern(Pattern):
    """A function by its name (empty: any): of the module, or an external one."""

    name: str
    external: bool = False


@dataclass(frozen=True, eq=False)
class CallPattern(Pattern):
    """A call. `more`: of further arguments too."""

    callee: Pattern
    args: tuple[Pattern, ...]
    more: bool = False
    any_order: bool = False


@dataclass(frozen=True, eq=False)
class CallTIRPattern(Pattern):
    """A `call_tir` of a tensor program: of this name or with these loops, of one of these kinds (`PatternKind`), with
    these tensors; None: any."""

    program: str | TensorProgram | None = None
    args: tuple[Pattern, ...] | None = None
    kinds: frozenset[int] | None = None


@dataclass(frozen=True, eq=False)
class TuplePattern(Pattern):
    """A tuple of these; None: of any."""

    fields: tuple[Pattern, ...] | None = None


@dataclass(frozen=True, eq=False)
class TupleGetItemPattern(Pattern):
    """A field of a tuple; index None: any field."""

    tuple: Pattern
    index: int | None = None


@dataclass(frozen=True, eq=False)
class ShapeValuePattern(Pattern):
    """A shape as a value: the argument of `reshape`."""

    dims: PatternDims


@dataclass(frozen=True, eq=False)
class OrPattern(Pattern):
    """Either."""

    left: Pattern
    right: Pattern


@dataclass(frozen=True, eq=False)
class AndPattern(Pattern):
    """Both."""

    left: Pattern
    right: Pattern


@dataclass(frozen=True, eq=False)
class NotPattern(Pattern):
    """Anything else."""

    inner: Pattern


@dataclass(frozen=True, eq=False)
class ShapePattern(Pattern):
    """`inner`, a tensor of this shape."""

    inner: Pattern
    dims: PatternDims


@dataclass(frozen=True, eq=False)
class DTypePattern(Pattern):
    """`inner`, of this type."""

    inner: Pattern
    dtype: DType


@dataclass(frozen=True, eq=False)
class AnnotationPattern(Pattern):
    """`inner`, of this annotation or a finer one."""

    inner: Pattern
    annotation: Annotation


@dataclass(frozen=True, eq=False)
class AttrPattern(Pattern):
    """`inner`, a call of an operator with these attributes."""

    inner: Pattern
    attrs: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Edge:
    """`producer` is argument `index` (None: some argument) of `user`; `only`: and of nothing else."""

    producer: Pattern
    user: Pattern
    index: int | None
    only: bool


@dataclass(frozen=True, eq=False)
class GraphPattern:
    """Several values of one block, each its own binding, and who uses whom: `a.used_by(b) & a.used_by(c)`."""

    roots: tuple[Pattern, ...]
    edges: tuple[Edge, ...] = field(default=())

    def __and__(self, other: GraphPattern) -> GraphPattern:
        """All values and edges of both."""
        roots = dict.fromkeys((*self.roots, *other.roots))
        return GraphPattern(tuple(roots), (*self.edges, *other.edges))


AnyPattern: TypeAlias = Pattern | GraphPattern


def wildcard() -> Pattern:
    """Any value."""
    return Wildcard()


def is_const(value: float | None = None) -> Pattern:
    """A tensor constant; all its items are `value` where that is given."""
    return ConstPattern(value)


def is_var(name: str = "") -> Pattern:
    """A value from outside the bindings that are searched: a parameter, say."""
    return VarPattern(name)


def is_op(name: str) -> OpPattern:
    """A call of the operator `name` (`"nn.relu"`, or `"relax.nn.relu"` as in TVM) with any arguments; call it with
    patterns to say which: `is_op("add")(a, b)`."""
    return OpPattern(name.removeprefix("relax."))


def is_function(name: str = "") -> Pattern:
    """A function of the module, of this name if one is given, to be called with patterns (TVM's `GlobalVarPattern`)."""
    return FunctionPattern(name)


def is_tuple(fields: Sequence[PatternLike] | None = None) -> Pattern:
    """A tuple of these values; of any without."""
    return TuplePattern(None if fields is None else tuple(map(as_pattern, fields)))


def is_tuple_get_item(tuple_value: PatternLike, index: int | None = None) -> Pattern:
    """Field `index` (without: some field) of a tuple."""
    return TupleGetItemPattern(as_pattern(tuple_value), index)


def is_shape(dims: Sequence[PatternDim | EllipsisType]) -> Pattern:
    """A shape as a value, written as in `has_shape`."""
    return ShapeValuePattern(pattern_dims(dims))


def is_call_tir(
    program: str | TensorProgram | None = None,
    args: Sequence[PatternLike] | None = None,
    *,
    kind: int | Iterable[int] | None = None,
) -> Pattern:
    """A `call_tir`: of the tensor program of this name, or of any with the same loops as `program`; on these tensors;
    of this pattern kind, or of one of these (`relaxpy.tir.forms.pattern_kind.PatternKind`), as found by looking at
    it."""
    kinds = None if kind is None else frozenset([kind] if isinstance(kind, int) else kind)
    return CallTIRPattern(program, None if args is None else tuple(map(as_pattern, args)), kinds)


def is_call_dps_library(name: str = "", args: Sequence[PatternLike] | None = None) -> Pattern:
    """A `call_dps_library` (TVM: `is_call_dps_packed`) of this function, on these tensors; without: of any."""
    callee = FunctionPattern(name, external=True) if name else wildcard()
    return is_op("call_dps_library")(callee, is_tuple(args))


is_call_dps_packed = is_call_dps_library


def is_call_packed(name: str, args: Sequence[PatternLike] | None = None) -> Pattern:
    """A `call_pure_packed` of this function (dataflow blocks have no other)."""
    callee = FunctionPattern(name, external=True)
    return is_op("call_pure_packed")(callee, *([...] if args is None else args))


def joined(*patterns: Pattern) -> GraphPattern:
    """Several values of one block: three matrix products of one input, say."""
    return GraphPattern(patterns)


def children(pattern: AnyPattern) -> tuple[Pattern, ...]:
    """The patterns in a pattern, in the order of evaluation: a call's arguments before what is said of it."""
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
    """A pattern and all in it, each object once, outer before inner, left before right."""
    seen: dict[AnyPattern, None] = {}
    waiting: list[AnyPattern] = [pattern]
    while waiting:
        at = waiting.pop()
        if at not in seen:
            seen[at] = None
            waiting += reversed(children(at))
    return seen


def as_pattern(value: PatternLike | EllipsisType) -> Pattern:
    """A pattern from what may stand for one. Raises: UsageError (`pattern-type`)."""
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
        raise UsageError("pattern-shape", f"`...` stands twice in {shape!r}")
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
        f"a dimension of a pattern is an integer, a name, a Dim, None (any) or ... , got {dim!r}",
        help='for a compound one take symbols: n = relaxpy.ir.SymVar("n"); has_shape((n, n.dim * 2))',
    )


@cache
def named_symbol(name: str) -> SymVar:
    """The symbol that a name in a pattern's shape stands for."""
    return SymVar(name)


def _attr(value: Any) -> Any | Callable[[Any], bool]:
    return tuple(value) if isinstance(value, list) else value
