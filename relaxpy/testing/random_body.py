"""A function body under random construction: what there is to use, and what may come next.

The rules (`random_operators`, `random_shapes`, `random_control`, `random_levels`) are functions of
a `Body`: each tries to emit a binding or a few, and says whether it did. What does not deduce is
not a program: `DeduceError` means that the rule found nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from relaxpy.errors import DeduceError
from relaxpy.ir.annotation import (
    Annotation,
    CallableType,
    ObjectType,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
)
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import Call, Constant, Expr, TupleGetItem, Var
from relaxpy.op.base import Op
from relaxpy.op.block_builder import BlockBuilder, SeqBuilder
from relaxpy.op.deduce import deduce
from relaxpy.op.deduction import Deduction

TYPICAL = 5
"""A size that symbols may have, to tell how large a tensor can get."""
LARGEST = 2000
"""No tensor has more elements at this size."""
RANK = 5
"""No tensor has more dimensions."""
CONDITIONAL = 0.03
"""How often a call is taken that may stop with an error at some sizes."""
UNDECIDED = 0.15
"""How often a tensor program is called with what may not fit it, or a size may be negative."""

Rule: TypeAlias = Callable[["Body"], bool]


@dataclass
class Body:
    """A body under construction."""

    rng: random.Random
    builder: BlockBuilder
    name: str
    rules: Mapping[Rule, int]
    symbols: list[SymVar] = field(default_factory=list)
    places: list[SymVar] = field(default_factory=list)
    """Scalar parameters that may be any integer: places along an axis, and no sizes."""
    params: list[Var] = field(default_factory=list)
    """Those of the function of the module; it gets more as calls need them."""
    pool: list[Var] = field(default_factory=list)
    """What can be used here."""
    ranges: dict[Var, tuple[float, float]] = field(default_factory=dict)
    """Least and greatest values of parameters, where those are not the usual ones."""
    globals: dict[str, CallableType] = field(default_factory=dict)
    """Functions of the module that may be called."""
    programs: dict[str, Rule] = field(default_factory=dict)
    """Tensor programs of the module, and how each is called."""
    dataflow: bool = False
    pure: bool = True
    depth: int = 0
    """How many functions and branches this stands in."""
    may_add_params: bool = True
    outer: Body | None = None
    counter: list[int] = field(default_factory=lambda: [0])
    """Makes the names of new symbols different."""

    # What rules use

    def steps(self, length: int) -> None:
        """About `length` bindings by random rules."""
        rules, weights = list(self.rules), list(self.rules.values())
        done = tries = 0
        while done < length and tries < 12 * length:
            tries += 1
            rule = self.rng.choices(rules, weights)[0]
            try:
                done += rule(self)
            except DeduceError:
                continue

    def emit(self, value: Expr) -> Var:
        """Bind a value that is sure to run, or nearly always. Raises DeduceError for one that
        does not deduce, may stop, or is too large."""
        self.check(value)
        return self.add(self.builder.emit(value))

    def check(self, value: Expr) -> None:
        """Raise DeduceError for a call that is better not taken."""
        if isinstance(value, Call) and isinstance(value.op, Op):
            # exact, as legalisation asks: some calls deduce whose program cannot be written
            exact = value.op.legalize is not None
            mod = self.builder.get()
            deduction = Deduction(value.op, value, lambda e: deduce(e, mod), exact)
            found = deduction.run()
            if deduction.requirements and self.rng.random() >= CONDITIONAL:
                raise DeduceError("op-arguments", "this may not hold")
            if isinstance(found, TensorType) and found.ndim < 0 and value.op.legalize is not None:
                raise DeduceError("op-arguments", "no tensor program has an unknown rank")
            if self.too_large(found):
                raise DeduceError("op-arguments", "this is too large")

    def add(self, var: Var) -> Var:
        """Take a variable, and the fields of a tuple, into use."""
        self.pool.append(var)
        if isinstance(var.annotation, TupleType) and self.rng.random() < 0.7:
            for i in range(len(var.annotation.fields)):
                self.add(self.builder.emit(TupleGetItem(var, i)))
        return var

    def param(self, annotation: Annotation) -> Var:
        """A new parameter."""
        var = Var(f"x{len(self.params)}", annotation)
        self.adopt([var])
        return var

    def adopt(self, params: Sequence[Var]) -> None:
        """Take new parameters into use, here and in all that is around."""
        self.params += params
        body: Body | None = self
        while body is not None:
            body.pool += params
            body = body.outer

    def fresh_symbol(self) -> SymVar:
        """A symbol of another name than all others."""
        self.counter[0] += 1
        return SymVar(f"u{self.counter[0]}")

    @contextmanager
    def arm(self, params: Sequence[Var] = ()) -> Iterator[tuple[Body, SeqBuilder]]:
        """A branch, or the body of a nested function of these parameters: it sees what there is here."""
        with self.builder.seq(params) as seq:
            inner = replace(
                self, pool=list(self.pool), depth=self.depth + 1, outer=self, dataflow=False
            )
            yield inner, seq

    # Choosing

    def pick(self, fits: Callable[[Annotation], bool]) -> Var:
        """Something of the pool, rather a late one. Raises DeduceError if nothing fits."""
        found = [v for v in self.pool if fits(v.annotation)]
        if not found:
            raise DeduceError("op-arguments", "nothing fits")
        return self.rng.choice(found[-4:] if self.rng.random() < 0.6 else found)

    def tensor(self, dtype: str = "", ndim: int = -1, least: int = 0) -> Var:
        """A tensor of this dtype ("int": any integer), rank, or least rank."""

        def fits(a: Annotation) -> bool:
            return (
                isinstance(a, TensorType)
                and a.dtype is not None
                and (dtype in ("", str(a.dtype)) or (dtype == "int" and a.dtype.is_int))
                and (a.ndim == ndim if ndim >= 0 else a.ndim >= least)
            )

        return self.pick(fits)

    def dims(self, x: Var) -> tuple[Dim, ...]:
        """The dimensions of a tensor. Raises DeduceError where they are not known."""
        dims = x.annotation.dims if isinstance(x.annotation, TensorType) else None
        if dims is None:
            raise DeduceError("op-arguments", "the shape is not known")
        return dims

    def dimension(self) -> Dim:
        """A symbol, a small number, or an expression."""
        n, m = (Dim.of(self.rng.choice(self.symbols)) for _ in range(2))
        choices = [n, n, n, n, Dim.of(self.rng.choice((0, 1, 1, 2, 4, 6))), n * 2, n + 1, n + m]
        return self.rng.choice([*choices, n // 2, n * m])

    def condition(self) -> Expr:
        """A scalar boolean."""
        if self.rng.random() < 0.3:
            return self.pick(
                lambda a: (
                    a == TensorType((), "bool") or (isinstance(a, PrimType) and a.dtype == "bool")
                )
            )
        from relaxpy import op

        x = self.tensor("int" if self.rng.random() < 0.7 else "")
        total = x if self.dims(x) == () else self.emit(op.OPS["sum"].make(self.as_number(x)))
        kind = total.annotation
        assert isinstance(kind, TensorType)
        limit = Constant(self.rng.choice((0, 1, 3)), kind.dtype)
        return self.emit(self.rng.choice((op.less, op.greater_equal, op.equal))(total, limit))

    def as_number(self, x: Var) -> Var:
        """A tensor of numbers: itself, or a bool one cast."""
        from relaxpy import op

        kind = x.annotation
        assert isinstance(kind, TensorType)
        return self.emit(op.astype(x, dtype="int64")) if kind.dtype == "bool" else x

    def coarser(self, annotation: Annotation) -> Annotation:
        """An annotation that says less."""
        match annotation:
            case TensorType(ndim=ndim, dtype=dtype):
                return self.rng.choice(
                    [TensorType(None, dtype, ndim), TensorType(None, dtype), TensorType()]
                )
            case ShapeType(ndim=ndim):
                return self.rng.choice([ShapeType(None, ndim), ShapeType()])
            case TupleType(fields=fields):
                return TupleType(self.coarser(f) if self.rng.random() < 0.5 else f for f in fields)
            case _:
                return ObjectType()

    def forgotten(self, x: Var) -> Var:
        """The same value, of which less is known."""
        return self.builder.match_cast(x, self.coarser(x.annotation))

    # What values are like

    def too_large(self, annotation: Annotation) -> bool:
        """Has a tensor too many elements or dimensions?"""
        match annotation:
            case TupleType(fields=fields):
                return any(map(self.too_large, fields))
            case TensorType(ndim=ndim):
                return ndim > RANK or size_of(annotation.dims or ()) > LARGEST
            case _:
                return False

    def comparable(self, var: Var) -> bool:
        """May this be a result? Functions cannot be compared, nor values of unknown kind."""
        return _comparable(var.annotation)


def size_of(dims: Sequence[Dim]) -> int:
    """How many elements these dimensions make at a typical size."""
    total = 1
    for dim in dims:
        try:
            total *= max(1, dim.evaluate(dict.fromkeys(dim.vars, TYPICAL)))
        except ArithmeticError:
            continue
    return total


def _comparable(annotation: Annotation) -> bool:
    match annotation:
        case TupleType(fields=fields):
            return bool(fields) and all(map(_comparable, fields))
        case _:
            return isinstance(annotation, (TensorType, ShapeType, PrimType))
