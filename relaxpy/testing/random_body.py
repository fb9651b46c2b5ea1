"""A function body under random construction: its available values, and operations to extend it.

The rules (`random_operators`, `random_shapes`, `random_control`, `random_levels`) are functions of a `Body`: each tries
to emit one or a few bindings, and returns whether it succeeded. An expression whose annotation cannot be deduced is not
part of a program: `DeduceError` means that the rule failed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from relaxpy.errors import DeduceError
from relaxpy.ir.accessors import tensor_of
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
"""A typical value of symbols, to estimate the size of a tensor."""
LARGEST = 2000
"""The most elements of a tensor at the typical size."""
RANK = 5
"""The most dimensions of a tensor."""
CONDITIONAL = 0.03
"""The probability of taking a call that may raise an error at some sizes."""
UNDECIDED = 0.15
"""The probability of calling a tensor program with arguments that may not fit, or with a size that may be negative."""

Rule: TypeAlias = Callable[["Body"], bool]


@dataclass
class Body:
    """A body under construction."""

    rng: random.Random
    builder: BlockBuilder
    name: str
    rules: Mapping[Rule, int]
    symbols: list[SymVar] = field(default_factory=list[SymVar])
    places: list[SymVar] = field(default_factory=list[SymVar])
    """Scalar parameters with any integer value: indices along an axis, not sizes."""
    params: list[Var] = field(default_factory=list[Var])
    """Parameters of the module's function. Calls add more as needed."""
    pool: list[Var] = field(default_factory=list[Var])
    """The values available here."""
    ranges: dict[Var, tuple[float, float]] = field(default_factory=dict[Var, tuple[float, float]])
    """The value ranges of parameters, if they are not the default."""
    globals: dict[str, CallableType] = field(default_factory=dict[str, CallableType])
    """The module's functions that may be called."""
    programs: dict[str, Rule] = field(default_factory=dict[str, Rule])
    """The module's tensor programs, with the rule that calls each."""
    dataflow: bool = False
    pure: bool = True
    depth: int = 0
    """The number of enclosing functions and branches."""
    may_add_params: bool = True
    outer: Body | None = None
    counter: list[int] = field(default_factory=lambda: [0])
    """A counter that makes the names of new symbols unique."""

    # For rules

    def steps(self, length: int) -> None:
        """Emits about `length` bindings by random rules."""
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
        """Binds a value that never fails at run time, or very rarely. Raises DeduceError if its annotation cannot be
        deduced, or if it may fail or is too large."""
        self.check(value)
        return self.add(self.builder.emit(value))

    def check(self, value: Expr) -> None:
        """Raises DeduceError for a call that should be avoided."""
        if isinstance(value, Call) and isinstance(value.op, Op):
            # With exact deduction, as legalisation uses it: some calls deduce although no program can be written for
            # them.
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
        """Makes a variable available, and the fields of a tuple."""
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
        """Makes new parameters available, here and in the enclosing bodies."""
        self.params += params
        body: Body | None = self
        while body is not None:
            body.pool += params
            body = body.outer

    def fresh_symbol(self) -> SymVar:
        """A symbol with a unique name."""
        self.counter[0] += 1
        return SymVar(f"u{self.counter[0]}")

    @contextmanager
    def arm(self, params: Sequence[Var] = ()) -> Iterator[tuple[Body, SeqBuilder]]:
        """A branch, or the body of a nested function with these parameters. All values available here are available
        there."""
        with self.builder.seq(params) as seq:
            inner = replace(
                self, pool=list(self.pool), depth=self.depth + 1, outer=self, dataflow=False
            )
            yield inner, seq

    # Random choices

    def pick(self, fits: Callable[[Annotation], bool]) -> Var:
        """A random available value, with a preference for recent ones. Raises DeduceError if none fits."""
        found = [v for v in self.pool if fits(v.annotation)]
        if not found:
            raise DeduceError("op-arguments", "nothing fits")
        return self.rng.choice(found[-4:] if self.rng.random() < 0.6 else found)

    def tensor(self, dtype: str = "", ndim: int = -1, least: int = 0) -> Var:
        """A tensor of this dtype ("int": any integer), of this rank, or of at least this rank."""

        def fits(a: Annotation) -> bool:
            return (
                isinstance(a, TensorType)
                and a.dtype is not None
                and (dtype in ("", str(a.dtype)) or (dtype == "int" and a.dtype.is_int))
                and (a.ndim == ndim if ndim >= 0 else a.ndim >= least)
            )

        return self.pick(fits)

    def tensor_or_param(self, dtype: str, rank: int) -> Var:
        """A tensor of this dtype and rank; a new parameter if there is none."""
        try:
            return self.tensor(dtype, rank)
        except DeduceError:
            if not self.may_add_params:
                raise
            return self.param(TensorType([self.dimension() for _ in range(rank)], dtype))

    def dims(self, x: Var) -> tuple[Dim, ...]:
        """The dimensions of a tensor. Raises DeduceError if they are unknown."""
        dims = x.annotation.dims if isinstance(x.annotation, TensorType) else None
        if dims is None:
            raise DeduceError("op-arguments", "the shape is not known")
        return dims

    def dimension(self) -> Dim:
        """A dimension: a symbol, a small number, or an expression."""
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
        kind = tensor_of(total)
        limit = Constant(self.rng.choice((0, 1, 3)), kind.dtype)
        return self.emit(self.rng.choice((op.less, op.greater_equal, op.equal))(total, limit))

    def as_number(self, x: Var) -> Var:
        """A numeric tensor: the tensor itself, or a bool tensor cast to numbers."""
        from relaxpy import op

        kind = tensor_of(x)
        return self.emit(op.astype(x, dtype="int64")) if kind.dtype == "bool" else x

    def coarser(self, annotation: Annotation) -> Annotation:
        """A less precise annotation."""
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
        """The same value with a less precise annotation."""
        return self.builder.match_cast(x, self.coarser(x.annotation))

    # Properties of values

    def too_large(self, annotation: Annotation) -> bool:
        """Whether a tensor has too many elements or dimensions."""
        match annotation:
            case TupleType(fields=fields):
                return any(map(self.too_large, fields))
            case TensorType(ndim=ndim):
                return ndim > RANK or size_of(annotation.dims or ()) > LARGEST
            case _:
                return False

    def comparable(self, var: Var) -> bool:
        """Whether it may be a result: functions and values of unknown type cannot be compared."""
        return _comparable(var.annotation)


def size_of(dims: Sequence[Dim]) -> int:
    """The number of elements at the typical size."""
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
