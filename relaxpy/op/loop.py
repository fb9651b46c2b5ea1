"""Loops as recursion: `while_loop` builds a local function that calls itself in the end, and calls it.

    n = SymVar("n")
    i, x = while_loop(
        bb, lambda i, x: i.value < n.dim, lambda i, x: (i.value + 1, op.add(x, one)), [0, x], names=["i", "x"]
    )

What changes from step to step are the function's parameters; all else it captures. The annotations of the parameters
are those of the first values, widened until those of the next step fit: a dimension that changes becomes a symbol of
its own. Tail calls run in constant space, so this is how a loop is written, and no pass has to know another form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from relaxpy.errors import DeduceError, Span
from relaxpy.ir.annotation import (
    Annotation,
    CallableType,
    DataType,
    ObjectType,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
)
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import (
    Call,
    Constant,
    DataflowVar,
    Expr,
    Function,
    If,
    PrimValue,
    SeqExpr,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
    is_leaf,
)
from relaxpy.ir.visitor import free_sym_vars
from relaxpy.op.base import as_expr
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.op.deduce import deduce
from relaxpy.shape.lattice import Verdict, accepts, erase, join, substitute
from relaxpy.shape.prove import equal

Fresh = Callable[[str], str]
"""An unused name for a symbol, given a hint."""


class Loop:
    """A loop whose body is being written."""

    def __init__(
        self,
        bb: BlockBuilder,
        name: str,
        annotations: Sequence[Annotation],
        names: Sequence[str],
        first: Sequence[Expr],
        counters: int,
        own: set[SymVar],
        fresh: Fresh,
        pure: bool,
        ret: Annotation | None,
        span: Span | None,
    ) -> None:
        self._bb = bb
        self._names = names
        self._first = first
        self._counters = counters
        self._own = own
        """The symbols that the parameters define."""
        self._fresh = fresh
        self.params = tuple(
            Var(bb.fresh_name(param), annotation, span=span)
            for param, annotation in zip(names, annotations, strict=True)
        )
        """The variables of a step."""
        results = [erase(each, lambda symbol: symbol not in own) for each in annotations[counters:]]
        self.ret = ret or (results[0] if len(results) == 1 else TupleType(results))
        """The annotation of the result: the last value of the only variable, or a tuple."""
        shell = Function(self.params, SeqExpr((), Tuple(())), self.ret, pure)
        kind = DataflowVar if bb.in_dataflow else Var
        self.var = kind(name, shell.annotation, span=span)
        """The function."""

    def again(self, values: Iterable[Any], name: str = "gv", span: Span | None = None) -> Expr:
        """Write the next step, with these values; returns the body's result."""
        call = Call(self.var, self._fitting(values, span), span=span)
        return self._bb.emit(call, name, span=span)

    def done(self, values: Iterable[Any] = (), span: Span | None = None) -> Expr:
        """Write the end, with these values (none: those of the step); returns the body's result."""
        found = self._fitting(values or self.params, span)[self._counters :]
        return found[0] if len(found) == 1 else Tuple(found)

    def _fitting(self, values: Iterable[Any], span: Span | None) -> tuple[Expr, ...]:
        """The values as leaves. Raises _Widened unless they fit the parameters."""
        bb = self._bb
        leaves: list[Expr] = []
        wider: list[Annotation] = []
        steps = zip(self._names, self.params, self._first, values, strict=True)
        for name, param, first, value in steps:
            expr = like(value, param.annotation)
            leaf = expr if is_leaf(expr) else bb.emit(expr)
            known = deduce(leaf, bb.get())
            found = self._widened(param.annotation, known, name)
            if found is None:
                raise self._changed(name, param, first, known, leaf.span or span)
            leaves.append(leaf)
            wider.append(found)
        if any(new != param.annotation for new, param in zip(wider, self.params, strict=True)):
            raise _Widened(wider)
        return tuple(leaves)

    def _changed(
        self, name: str, param: Var, first: Expr, new: Annotation, span: Span | None
    ) -> DeduceError:
        """The error for a variable whose type is another one in the next step."""
        old = erase(param.annotation, lambda symbol: symbol not in self._own)
        help = "it keeps its type and its number of dimensions: bind another name in the loop"
        if isinstance(old, PrimType) and isinstance(new, TensorType) and new.ndim == 0:
            number = first.value if isinstance(first, PrimValue) else 0
            help = (
                f'begin with a tensor, not with a scalar: {name} = R.const({number}, "{new.dtype}")'
            )
        return DeduceError(
            "loop-variable",
            f"{name} is {old} in one step of the loop, and {new} in the next",
            span=span,
            help=help,
        ).show(f"{name} is bound here before the loop", first.span)

    def _widened(self, old: Annotation, new: Annotation, name: str) -> Annotation | None:
        """The annotation of a variable that is `old` in one step, and `new` in the next; None if there is none."""
        match old, new:
            case DataType(), _:
                wider = join(old, new)
                return wider if isinstance(wider, DataType) else None
            case ObjectType(), _:
                return old
            case PrimType(), PrimType() if old.dtype == new.dtype:
                if old.value is None or self._is_own(old.value):
                    return old
                if new.value is not None and equal(old.value, new.value) is Verdict.YES:
                    return old
                return PrimType(old.dtype, self._symbol(name, signed=True))
            case TensorType(), TensorType() if (
                old.dtype in (None, new.dtype)
                and old.vdevice == new.vdevice
                and old.ndim in (-1, new.ndim)
            ):
                if old.dims is None:
                    return old
                dims = self._dims(old.dims, new.dims, name)
                return old if dims == old.dims else TensorType(dims, old.dtype, vdevice=old.vdevice)
            case ShapeType(), ShapeType() if old.ndim in (-1, new.ndim):
                if old.dims is None:
                    return old
                dims = self._dims(old.dims, new.dims, name)
                return old if dims == old.dims else ShapeType(dims)
            case TupleType(), TupleType() if len(old.fields) == len(new.fields):
                pairs = zip(old.fields, new.fields, strict=True)
                fields = [self._widened(a, b, name) for a, b in pairs]
                found = [field for field in fields if field is not None]
                return TupleType(found) if len(found) == len(fields) else None
            case CallableType(), _ if accepts(old, new, None, equal) is Verdict.YES:
                return old
            case _:
                return None

    def _dims(
        self, old: tuple[Dim, ...], new: tuple[Dim, ...] | None, name: str
    ) -> tuple[Dim, ...]:
        found: list[Dim] = []
        for axis, dim in enumerate(old):
            same = new is not None and equal(dim, new[axis]) is Verdict.YES
            found.append(dim if same or self._is_own(dim) else self._symbol(f"{name}_{axis}"))
        return tuple(found)

    def _is_own(self, dim: Dim) -> bool:
        return dim.symbol in self._own

    def _symbol(self, hint: str, signed: bool = False) -> Dim:
        symbol = SymVar(self._fresh(hint), signed=signed)
        self._own.add(symbol)
        return symbol.dim


class _Widened(Exception):
    """Raised where the values of the next step need wider annotations of the parameters."""

    def __init__(self, annotations: Sequence[Annotation]) -> None:
        super().__init__()
        self.annotations = annotations


def build_loop(
    bb: BlockBuilder,
    init: Sequence[Any],
    names: Sequence[str],
    write: Callable[[Loop], Expr],
    *,
    counters: int = 0,
    name: str = "loop",
    fresh: Fresh | None = None,
    pure: bool = True,
    span: Span | None = None,
) -> list[Expr]:
    """Emit a loop, and return the last values of its variables, without the first `counters`. `init` are their first
    values. `write(loop)` writes one step and returns its result: what `loop.again` or `loop.done` return, or the value
    of a branch between them. It may be called several times. `fresh` gives names of symbols.

    Raises: DeduceError (`loop-variable`) for a variable whose type changes.
    """
    fresh = fresh or bb.fresh_name
    first = [_first(value) for value in init]
    own: set[SymVar] = set()
    annotations = [
        _counted(deduce(e, bb.get()), n, own, fresh) for e, n in zip(first, names, strict=True)
    ]
    reserved = bb.names()
    ret: Annotation | None = None
    while True:
        bb.set_names(reserved)
        loop = Loop(
            bb,
            bb.fresh_name(name),
            annotations,
            names,
            first,
            counters,
            own,
            fresh,
            pure,
            ret,
            span,
        )
        try:
            with bb.seq([*loop.params, loop.var]) as building:
                building.result(write(loop))
        except _Widened as wider:
            annotations = list(wider.annotations)
            continue
        known = deduce(building.seq, bb.get())
        if accepts(loop.ret, known, None, equal) is Verdict.YES:
            break
        ret = known  # less exact: a cast in the function would be done after its last call
    bb.emit_binding(
        VarBinding(
            loop.var, Function(loop.params, building.seq, loop.ret, pure, {}, span=span), span=span
        )
    )
    result = bb.emit(Call(loop.var, tuple(first), span=span), "gv", span=span)
    names = names[counters:]
    if len(names) == 1:
        found: list[Expr] = [result]
    else:
        items = (TupleGetItem(result, i, span=span) for i in range(len(names)))
        found = [bb.emit(item, each, span=span) for item, each in zip(items, names, strict=True)]
    return [
        _sized(bb, value, param.annotation, each, own, fresh, span)
        for value, param, each in zip(found, loop.params[counters:], names, strict=True)
    ]


def while_loop(
    bb: BlockBuilder,
    cond: Callable[..., Any],
    body: Callable[..., Any],
    init: Sequence[Any],
    names: Sequence[str] | None = None,
    *,
    pure: bool = True,
    span: Span | None = None,
) -> list[Expr]:
    """Emit a loop that replaces its variables by `body(*variables)` while `cond(*variables)` is true, and return their
    last values. `init` are the first: expressions, numbers, dimensions. An integer is a scalar of the program, and as
    an argument of `cond` and `body` a dimension, with which sizes can be computed. Raises like `build_loop`."""

    def write(loop: Loop) -> Expr:
        values = [as_dim(param) for param in loop.params]
        test = as_expr(cond(*values))
        test = test if is_leaf(test) else bb.emit(test)
        with bb.seq() as then:
            found = body(*values)
            then.result(
                loop.again(found if isinstance(found, (tuple, list)) else (found,), span=span)
            )
        with bb.seq() as otherwise:
            otherwise.result(loop.done())
        return bb.emit(If(test, then.seq, otherwise.seq), span=span)

    names = names or [f"v{i}" for i in range(len(init))]
    return [as_dim(value) for value in build_loop(bb, init, names, write, pure=pure, span=span)]


def as_dim(value: Expr) -> Any:
    """An integer scalar of known symbol as the symbol; any other value unchanged."""
    annotation = value.annotation if isinstance(value, Var) else None
    if isinstance(annotation, PrimType) and annotation.value is not None:
        return annotation.value
    return value


def like(value: Any, annotation: Annotation) -> Expr:
    """A value as an expression; a number where a tensor without dimensions is expected as that tensor."""
    is_number = isinstance(value, (bool, int, float, PrimValue))
    if is_number and isinstance(annotation, TensorType) and annotation.ndim == 0:
        number = value.value if isinstance(value, PrimValue) else value
        if isinstance(number, Dim):
            number = number.value
        if number is not None:
            return Constant(number, str(annotation.dtype or "float32"))
    return as_expr(value)


def _first(value: Any) -> Expr:
    """A first value as a leaf: integers are scalars of the program, other numbers tensors."""
    if isinstance(value, bool):
        return Constant(value, "bool")
    if isinstance(value, float):
        return Constant(value, "float32")
    return as_expr(value)


def _counted(annotation: Annotation, name: str, own: set[SymVar], fresh: Fresh) -> Annotation:
    """The annotation of a variable by its first value. An integer scalar is one that changes."""
    if not isinstance(annotation, PrimType) or annotation.dtype != "int64":
        return annotation
    symbol = SymVar(fresh(name), signed=True)
    own.add(symbol)
    return PrimType("int64", symbol.dim)


def _sized(
    bb: BlockBuilder,
    value: Expr,
    annotation: Annotation,
    name: str,
    own: set[SymVar],
    fresh: Fresh,
    span: Span | None,
) -> Expr:
    """The last value of a variable, with what is known of its annotation, and names for the sizes that changed."""
    changed = [symbol for symbol in free_sym_vars([annotation]) if symbol in own]
    named = {symbol: symbol.renamed(fresh(symbol.name)).dim for symbol in changed}
    known = substitute(annotation, named)
    if accepts(known, deduce(value, bb.get()), None, equal) is Verdict.YES:
        return value
    return bb.match_cast(value, known, name, span=span)
