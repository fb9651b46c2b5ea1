"""Relations between annotations: can a value of one be used as the other, and which annotation covers both.

Everything is three-valued, because annotations may be coarse and dimensions symbolic: `Verdict.YES` (always), `NO`
(never), `MAYBE` (known only at run time: the caller inserts a check). Dimensions are compared in normal form; a caller
that needs more proof passes `equal`, usually `relaxpy.shape.prove.equal`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum

from relaxpy.ir.annotation import (
    Annotation,
    CallableType,
    DataType,
    ObjectType,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
    TypeParam,
)
from relaxpy.ir.dim import Dim, DimLike, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Var
from relaxpy.ir.visitor import free_sym_vars, map_annotation, map_leaves
from relaxpy.shape.solve import solve_exact


class Verdict(IntEnum):
    """The certainty of a relation."""

    NO = 0
    MAYBE = 1
    YES = 2


def equal_dims(a: Dim, b: Dim) -> Verdict:
    """Equality by normal form: YES if identical, NO if they differ by a constant, else MAYBE."""
    if a == b:
        return Verdict.YES
    return Verdict.NO if (a - b).value is not None else Verdict.MAYBE


EqualDims = Callable[[Dim, Dim], Verdict]


def accepts(
    pattern: Annotation,
    actual: Annotation,
    bound: dict[SymVar, Dim] | None = None,
    equal: EqualDims = equal_dims,
) -> Verdict:
    """Can a value of annotation `actual` be used as `pattern`?

    With `bound`, the variables of `pattern` are those of another function (a callee's parameter). Each that is a whole
    dimension, or for which a dimension can be solved, is bound to the actual dimension in `bound`. Without `bound`,
    both sides share their variables.
    """
    return _Matcher(bound, equal).match(pattern, actual)


def rounds(bound: Mapping[SymVar, Dim]) -> Iterator[None]:
    """Iterations of matching parameters with arguments, until `bound` stops growing. A dimension like `n + m` can only
    be solved once another one has bound n, which may belong to a later parameter."""
    before = -1
    while len(bound) != before:
        before = len(bound)
        yield


class _Matcher:
    def __init__(self, bound: dict[SymVar, Dim] | None, equal: EqualDims) -> None:
        self.bound = bound
        self.equal = equal

    def match(self, pattern: Annotation, actual: Annotation) -> Verdict:
        if pattern is actual and self.bound is None:
            return Verdict.YES  # the common case of deducing a binding again
        match pattern, actual:
            case TypeParam(), _:
                return Verdict.YES if pattern == actual else Verdict.NO
            case _, TypeParam():
                return Verdict.YES if type(pattern) is ObjectType else Verdict.NO
            case DataType(), DataType():
                if pattern.name != actual.name or len(pattern.args) != len(actual.args):
                    return Verdict.NO
                pairs = zip(pattern.args, actual.args, strict=True)
                return min((self.match(p, a) for p, a in pairs), default=Verdict.YES)
            case DataType(), _:
                return Verdict.MAYBE if type(actual) is ObjectType else Verdict.NO
            case ObjectType(), _:
                return Verdict.YES
            case _, DataType():
                return Verdict.NO
            case _, ObjectType():
                return Verdict.MAYBE
            case PrimType(), PrimType():
                return min(
                    Verdict.YES if pattern.dtype == actual.dtype else Verdict.NO,
                    self.optional_dim(pattern.value, actual.value),
                )
            case ShapeType(), ShapeType():
                return min(
                    self.rank(pattern.ndim, actual.ndim), self.dims(pattern.dims, actual.dims)
                )
            case TensorType(), TensorType():
                return min(
                    self.rank(pattern.ndim, actual.ndim),
                    _known_equal(pattern.dtype, actual.dtype),
                    _known_equal(pattern.vdevice, actual.vdevice),
                    self.shape(pattern, actual),
                )
            case TupleType(), TupleType():
                if len(pattern.fields) != len(actual.fields):
                    return Verdict.NO
                pairs = zip(pattern.fields, actual.fields, strict=True)
                return min((self.match(p, a) for p, a in pairs), default=Verdict.YES)
            case CallableType(), CallableType():
                return self.function(pattern, actual)
            case _:
                return Verdict.NO

    def rank(self, pattern: int, actual: int) -> Verdict:
        if pattern < 0 or pattern == actual:
            return Verdict.YES
        return Verdict.MAYBE if actual < 0 else Verdict.NO

    def shape(self, pattern: TensorType, actual: TensorType) -> Verdict:
        if isinstance(pattern.shape, Var):
            return Verdict.YES if pattern.shape is actual.shape else Verdict.MAYBE
        return self.dims(pattern.shape, actual.dims)

    def dims(self, pattern: tuple[Dim, ...] | None, actual: tuple[Dim, ...] | None) -> Verdict:
        if pattern is None:
            return Verdict.YES
        if actual is None:
            return Verdict.MAYBE
        if len(pattern) != len(actual):
            return Verdict.NO
        return min(
            (self.dim(p, a) for p, a in zip(pattern, actual, strict=True)), default=Verdict.YES
        )

    def optional_dim(self, pattern: Dim | None, actual: Dim | None) -> Verdict:
        if pattern is None:
            return Verdict.YES
        return Verdict.MAYBE if actual is None else self.dim(pattern, actual)

    def dim(self, pattern: Dim, actual: Dim) -> Verdict:
        if self.bound is not None:
            symbol = pattern.symbol
            if symbol is not None and symbol not in self.bound:
                self.bound[symbol] = actual
                return Verdict.YES
            unknown = [var for var in pattern.vars if var not in self.bound]
            if unknown:
                value = None
                if len(unknown) == 1:
                    value = solve_exact(pattern.substitute(self.bound), actual, unknown[0])
                if value is None:
                    return Verdict.MAYBE
                self.bound[unknown[0]] = value
            pattern = pattern.substitute(self.bound)
        return self.equal(pattern, actual)

    def function(self, pattern: CallableType, actual: CallableType) -> Verdict:
        if pattern.pure and not actual.pure:
            return Verdict.NO
        if pattern.params is None:
            return Verdict.YES
        if actual.params is None:
            return Verdict.MAYBE
        if len(pattern.params) != len(actual.params):
            return Verdict.NO
        # Function types have a scope of their own: compare up to the binding of their parameters.
        bound: dict[SymVar, Dim] = {}
        inner = _Matcher(bound, self.equal)
        verdicts = [inner.match(a, p) for p, a in zip(pattern.params, actual.params, strict=True)]
        ret = substitute(actual.ret, bound)
        verdicts.append(_Matcher(None, self.equal).match(pattern.ret, ret))
        return min(verdicts)


def _known_equal(pattern: object, actual: object) -> Verdict:
    if pattern is None or pattern == actual:
        return Verdict.YES
    return Verdict.MAYBE if actual is None else Verdict.NO


def substitute(annotation: Annotation, values: Mapping[SymVar, DimLike]) -> Annotation:
    """The annotation with symbolic variables substituted."""
    if not values:
        return annotation
    return map_annotation(annotation, lambda dim: dim.substitute(values))


def erase(
    annotation: Annotation,
    keep: Callable[[SymVar], bool],
    keep_var: Callable[[Var], bool] = lambda _: True,
) -> Annotation:
    """The annotation without dimensions that mention variables out of scope: a shape with such a dimension keeps only
    its rank."""
    match annotation:
        case TensorType(shape=tuple() as dims, dtype=dtype, ndim=ndim, vdevice=vdevice):
            visible = all(keep(var) for dim in dims for var in dim.vars)
            return annotation if visible else TensorType(None, dtype, ndim, vdevice)
        case TensorType(shape=Var() as shape, dtype=dtype, ndim=ndim, vdevice=vdevice):
            return annotation if keep_var(shape) else TensorType(None, dtype, ndim, vdevice)
        case ShapeType(dims=tuple() as dims, ndim=ndim):
            visible = all(keep(var) for dim in dims for var in dim.vars)
            return annotation if visible else ShapeType(None, ndim)
        case PrimType(dtype=dtype, value=Dim() as value):
            return annotation if all(keep(var) for var in value.vars) else PrimType(dtype)
        case TupleType():
            return map_leaves(
                annotation, {leaf: erase(leaf, keep, keep_var) for leaf in annotation.leaf_types}
            )
        case CallableType(params=params, ret=ret, pure=pure):
            # a function type defines the variables of its parameters
            own = set(free_sym_vars(params or ()))

            def inner(var: SymVar) -> bool:
                return var in own or keep(var)

            return CallableType(params, erase(ret, inner, keep_var), pure)
        case DataType(name=name, args=args):
            return DataType(name, tuple(erase(each, keep, keep_var) for each in args))
        case _:
            return annotation


def join(a: Annotation, b: Annotation) -> Annotation:
    """The most precise annotation that accepts both: the knowledge after a branch."""
    match a, b:
        case _ if a == b:
            return a
        case PrimType(), PrimType() if a.dtype == b.dtype:
            return PrimType(a.dtype)
        case ShapeType(), ShapeType():
            return ShapeType(None, a.ndim if a.ndim == b.ndim else -1)
        case TensorType(), TensorType():
            same_rank = a.ndim == b.ndim
            return TensorType(
                a.shape if a.shape == b.shape else None,
                a.dtype if a.dtype == b.dtype else None,
                a.ndim if same_rank else -1,
                a.vdevice if a.vdevice == b.vdevice else None,
            )
        case TupleType(), TupleType() if len(a.fields) == len(b.fields):
            return TupleType(join(x, y) for x, y in zip(a.fields, b.fields, strict=True))
        case CallableType(), CallableType():
            ret = _renamed_ret(b, a)
            if ret is None:
                return CallableType(None, ObjectType(), a.pure and b.pure)
            return CallableType(a.params, join(a.ret, ret), a.pure and b.pure)
        case DataType(), DataType() if a.name == b.name and len(a.args) == len(b.args):
            return DataType(a.name, tuple(map(join, a.args, b.args)))
        case _:
            return ObjectType()


def _renamed_ret(function: CallableType, other: CallableType) -> Annotation | None:
    """The result of a function type, in the variables of another type with the same parameters up to renaming; None if
    the parameters differ."""
    params, wanted = function.params, other.params
    if params == wanted:
        return function.ret
    if params is None or wanted is None or len(params) != len(wanted):
        return None
    bound: dict[SymVar, Dim] = {}
    matcher = _Matcher(bound, equal_dims)
    for param, target in zip(params, wanted, strict=True):
        matcher.match(param, target)
    names = {dim.symbol for dim in bound.values()}
    if None in names or len(names) != len(bound):
        return None  # no renaming: two variables correspond to one, or one to an expression
    if tuple(substitute(param, bound) for param in params) != wanted:
        return None
    return substitute(function.ret, bound)


def common_dtype(dtypes: Iterable[DType | None]) -> DType | None:
    """The common dtype; None if one is unknown or two differ."""
    found = set(dtypes)
    return found.pop() if len(found) == 1 else None
