"""The graph level: expressions, bindings, functions (paper §3.1, figure 2).

Nodes are frozen; expressions compare by identity, annotations by value. Programs are in A-normal form: the argument of
a call is a *leaf* (variable, constant, shape, scalar, or a tuple of leaves), and every other value is bound to a
variable first. Only variables carry an annotation; the annotation of any other expression follows from it
(`relaxpy.op.deduce`). `span` is the place in the user's source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from relaxpy import services
from relaxpy.errors import Span
from relaxpy.ir.annotation import Annotation, CallableType, PrimType
from relaxpy.ir.dim import Dim, DimLike
from relaxpy.ir.dtype import DType

if TYPE_CHECKING:
    from relaxpy.ir.op import Operator


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Node:
    """Base class of nodes with a source location."""

    span: Span | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Expr(Node):
    """Base class of expressions."""


@dataclass(frozen=True, slots=True, eq=False)
class Var(Expr):
    """A variable: bound once, compared by identity; its name is only for printing."""

    name: str
    annotation: Annotation

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DataflowVar(Var):
    """A variable visible only inside its dataflow block."""


@dataclass(frozen=True, slots=True, eq=False)
class GlobalVar(Expr):
    """A reference to a function of the module, by name. Two with the same name are equal. It stores no annotation,
    which would go stale."""

    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GlobalVar) and other.name == self.name

    def __hash__(self) -> int:
        return hash(("GlobalVar", self.name))


@dataclass(frozen=True, slots=True, eq=False)
class ExternFunc(Expr):
    """A function known by name at run time only: a library function or a registered one."""

    name: str


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Constant(Expr):
    """A tensor constant. `data` is a C-contiguous, read-only array; bfloat16 as
    `ml_dtypes.bfloat16`."""

    data: np.ndarray

    def __init__(self, data: Any, dtype: str | None = None, *, span: Span | None = None) -> None:
        array = np.array(
            data, dtype=None if dtype is None else DType(dtype).numpy, order="C", copy=True
        )
        DType(array.dtype)  # refuses unsupported dtypes
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        array.flags.writeable = False
        object.__setattr__(self, "data", array)
        object.__setattr__(self, "span", span)

    @staticmethod
    def shared(data: np.ndarray, span: Span | None = None) -> Constant:
        """A constant over `data` itself, not a copy: for weights, which are never written."""
        constant = object.__new__(Constant)
        view = np.ascontiguousarray(data).view()
        DType(view.dtype)
        view = view.astype(view.dtype.newbyteorder("="), copy=False).view()
        if view.shape != np.shape(data):  # ascontiguousarray makes 0-d arrays 1-d
            view = view.reshape(np.shape(data))
        view.flags.writeable = False
        object.__setattr__(constant, "data", view)
        object.__setattr__(constant, "span", span)
        return constant


@dataclass(frozen=True, slots=True, eq=False, init=False)
class ShapeExpr(Expr):
    """A shape value (`R.shape([n, 4])`)."""

    dims: tuple[Dim, ...]

    def __init__(self, dims: Iterable[DimLike], *, span: Span | None = None) -> None:
        object.__setattr__(self, "dims", tuple(map(Dim.of, dims)))
        object.__setattr__(self, "span", span)


class FloatOf(float):
    """A number with a dtype: `T.float64(0.5)`. Arithmetic on it gives a plain number."""

    dtype: DType

    def __new__(cls, value: Any, dtype: str) -> FloatOf:
        found = super().__new__(cls, value)
        found.dtype = DType(dtype)
        return found


@dataclass(frozen=True, slots=True, eq=False, init=False)
class PrimValue(Expr):
    """A scalar (`R.prim_value(n + 1)`). Integers are dimensions; floats and bools are Python's. A comparison of
    dimensions is a bool. A dimension with another dtype is its value converted."""

    value: Dim | float | bool
    dtype: DType

    def __init__(
        self, value: DimLike | float | bool, dtype: str | None = None, *, span: Span | None = None
    ) -> None:
        if isinstance(value, bool):
            default = "bool"
        elif isinstance(value, FloatOf):
            value, default = float(value), value.dtype
        elif isinstance(value, float):
            default = "float32"
        else:
            value = Dim.of(value)
            default = "bool" if value.is_truth else "int64"
            if dtype is not None and value.value is not None and DType(dtype).is_float:
                value = float(value.value)
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "dtype", DType(dtype or default))
        object.__setattr__(self, "span", span)


@dataclass(frozen=True, slots=True, eq=False)
class StringImm(Expr):
    """A string argument (`R.str("…")`)."""

    value: str


@dataclass(frozen=True, slots=True, eq=False)
class DataTypeImm(Expr):
    """A dtype argument (`R.dtype("float32")`)."""

    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Tuple(Expr):
    """A tuple of expressions."""

    fields: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TupleGetItem(Expr):
    """Field `index` of a tuple."""

    tuple: Expr
    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Call(Expr):
    """A call of an operator (an instance with its attributes), a function of the module, a function value, or an
    external function. `ty_args` are annotations given at the call: the outputs of `call_tir`, the result of
    `call_packed`."""

    op: Operator | Expr
    args: tuple[Expr, ...]
    ty_args: tuple[Annotation, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class If(Expr):
    """A branch on a scalar boolean."""

    cond: Expr
    then: SeqExpr
    otherwise: SeqExpr


@dataclass(frozen=True, slots=True, eq=False)
class VarBinding(Node):
    """`var = value`."""

    var: Var
    value: Expr


@dataclass(frozen=True, slots=True, eq=False)
class MatchCast(Node):
    """`var = R.match_cast(value, annotation)`: checks the value at run time, and defines new symbolic variables."""

    var: Var
    value: Expr
    annotation: Annotation

    @property
    def condition(self) -> Dim | None:
        """The condition on sizes that must hold: of `R.match_cast(R.prim_value(n <= m), R.Prim("bool", value=1))`."""
        value, annotation = self.value, self.annotation
        if not isinstance(value, PrimValue) or not isinstance(annotation, PrimType):
            return None
        asserted = value.dtype == annotation.dtype == "bool" and annotation.value == 1
        return value.value if asserted and isinstance(value.value, Dim) else None


Binding: TypeAlias = VarBinding | MatchCast
"""A statement of a block, which defines a variable."""


@dataclass(frozen=True, slots=True, eq=False)
class BindingBlock(Node):
    """A sequence of bindings."""

    bindings: tuple[Binding, ...]


@dataclass(frozen=True, slots=True, eq=False)
class DataflowBlock(BindingBlock):
    """Pure bindings without control flow. Its `Var`s are visible outside, its `DataflowVar`s are not."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class SeqExpr(Expr):
    """Blocks of bindings, followed by a leaf as the value."""

    blocks: tuple[BindingBlock, ...]
    body: Expr

    @property
    def bindings(self) -> Iterable[Binding]:
        """All bindings of all blocks, in order."""
        return (binding for block in self.blocks for binding in block.bindings)


def no_attrs() -> Mapping[str, Any]:
    """The default attributes: empty."""
    return _NO_ATTRS


_NO_ATTRS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class Function(Expr):
    """A graph-level function. `ret` is its declared or deduced return annotation. `attrs` holds `global_symbol` if the
    function is visible outside its module; without it the function is private, as in TVM."""

    params: tuple[Var, ...]
    body: SeqExpr
    ret: Annotation
    pure: bool = True
    attrs: Mapping[str, Any] = field(default_factory=no_attrs)

    def __reduce__(self) -> tuple[Any, ...]:
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        return partial(Function, **{**parts, "attrs": dict(self.attrs)}), ()

    def __repr__(self) -> str:
        """A short text with its parameters; `print(function)` prints its script."""
        symbol = self.attrs.get("global_symbol")
        params = ", ".join(param.name for param in self.params)
        return f"<relaxpy Function{f' {symbol}' if symbol else ''}({params})>"

    def __str__(self) -> str:
        """The script; large constants are abbreviated to a few values."""
        return services.print_function(self, abbreviated=True)

    @property
    def annotation(self) -> CallableType:
        """The function's type."""
        return CallableType([param.annotation for param in self.params], self.ret, self.pure)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it on arrays. It is compiled for this machine at the first call, and cached."""
        return services.call_function(self, args, kwargs)

    def script(self, name: str | None = None) -> str:
        """TVMScript that parses back; the name is its global symbol, unless given. The data of large constants follows
        the definition."""
        return services.print_function(self, name)

    def show(self) -> None:
        """Print the script, highlighted if stdout is a terminal; large constants are abbreviated to a few values."""
        services.show(services.print_function(self, abbreviated=True))


def is_leaf(expr: Expr) -> bool:
    """Can this be an argument in A-normal form?"""
    if isinstance(expr, Tuple):
        return all(is_leaf(item) for item in expr.fields)
    return isinstance(
        expr, (Var, Constant, ShapeExpr, PrimValue, StringImm, DataTypeImm, GlobalVar, ExternFunc)
    )


def leaves_of(exprs: Iterable[Expr]) -> Iterator[Expr]:
    """The expressions, with the fields of tuples, also nested ones, in place of those."""
    for expr in exprs:
        if isinstance(expr, Tuple):
            yield from leaves_of(expr.fields)
        else:
            yield expr


def seq(bindings: Sequence[Binding], body: Expr) -> SeqExpr:
    """A body with one plain block (none if there are no bindings)."""
    return SeqExpr((BindingBlock(tuple(bindings)),) if bindings else (), body)
