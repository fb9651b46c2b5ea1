"""Conversion between dimensions and TVM's integer expressions, and TVM's arithmetic analyser on dimensions.

One `SymVar` corresponds to one TVM variable for as long as it lives, so that programs made from the same annotations
share variables. Conversions are memoised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from relaxpy.errors import PassError
from relaxpy.ir.dim import Dim, DimOp, SymVar, bitwise, dim_op, dim_sum
from relaxpy.tir.nodes import dtype_of
from relaxpy.tir.tvm import tirx, tvm

PrimExpr = Any

_vars: WeakKeyDictionary[SymVar, PrimExpr] = WeakKeyDictionary()
_exprs: WeakKeyDictionary[Dim, PrimExpr] = WeakKeyDictionary()
_symbols: WeakValueDictionary[PrimExpr, SymVar] = WeakValueDictionary()


def int64(value: PrimExpr | int) -> PrimExpr:
    """Convert the value to a 64-bit index expression. All indices of a program have this type (TVM refuses a mix of
    int32 and int64)."""
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise PassError(
                "bad-value", f"{value} is no size or index: it does not fit into 64 bits"
            )
        return tirx.IntImm("int64", value)
    return value if dtype_of(value) == "int64" else value.astype("int64")


def to_tvm_var(var: SymVar) -> PrimExpr:
    """The TVM variable for `var`."""
    found = _vars.get(var)
    if found is None:
        found = _vars.setdefault(var, tirx.Var(var.name, var.dtype))
        _symbols[found] = var
    return found


def _unless_by_zero(division: Callable[..., PrimExpr]) -> Callable[..., PrimExpr]:
    """A division; 0 by a literal 0, which TVM refuses. Whoever computes such a size at run time gets an error."""

    def divided(a: PrimExpr, b: PrimExpr) -> PrimExpr:
        return b if isinstance(b, tirx.IntImm) and int(b.value) == 0 else division(a, b)

    return divided


_BUILD: dict[str, Callable[..., PrimExpr]] = {
    "floordiv": _unless_by_zero(tirx.floordiv),
    "floormod": _unless_by_zero(tirx.floormod),
    "min": tirx.min,
    "max": tirx.max,
}
_CONDITIONS: dict[str, Callable[..., PrimExpr]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}
_CONNECTIVES: dict[str, Callable[..., PrimExpr]] = {
    "and": tirx.all,
    "or": tirx.any,
    "not": tirx.Not,
}


def _atom(atom: DimOp) -> PrimExpr:
    """Convert an atom to an int64 expression."""
    if atom.op == "select":
        condition, then, otherwise = atom.args
        return tirx.Select(to_condition(condition), to_tvm(then), to_tvm(otherwise))
    if atom.op in _BUILD:
        return _BUILD[atom.op](*map(to_tvm, atom.args))
    return _condition_atom(atom).astype("int64")


def to_condition(dim: Dim) -> PrimExpr:
    """Convert a 0/1 dimension to a TVM condition, without casts if it is a comparison or consists of comparisons."""
    atom = dim.terms[0][0][0][0] if _is_one_atom(dim) else None
    if isinstance(atom, DimOp) and (atom.op in _CONDITIONS or atom.op in _CONNECTIVES):
        return _condition_atom(atom)
    return to_tvm(dim) != int64(0)


def _condition_atom(atom: DimOp) -> PrimExpr:
    if atom.op in _CONDITIONS:
        return _CONDITIONS[atom.op](*map(to_tvm, atom.args))
    return _CONNECTIVES[atom.op](*map(to_condition, atom.args))


def _is_one_atom(dim: Dim) -> bool:
    """Is the dimension a single atom?"""
    return (
        len(dim.terms) == 1
        and dim.terms[0][1] == 1
        and len(dim.terms[0][0]) == 1
        and dim.terms[0][0][0][1] == 1
    )


def to_tvm(dim: Dim) -> PrimExpr:
    """Convert the dimension to a TVM expression of int64."""
    found = _exprs.get(dim)
    if found is not None:
        return found
    total: PrimExpr = None
    for monomial, coefficient in dim.terms:
        factors: list[PrimExpr] = []
        for atom, power in monomial:
            if isinstance(atom, SymVar):
                factor = to_tvm_var(atom)
            else:
                factor = _atom(atom)
            factors += [factor] * power
        if coefficient != 1 or not factors:
            factors.append(int64(coefficient))
        term = reduce(lambda a, b: a * b, factors)
        total = term if total is None else total + term
    result = int64(0) if total is None else total
    _exprs[dim] = result
    return result


_READ = {
    "FloorDiv": "floordiv", "FloorMod": "floormod", "Min": "min", "Max": "max", "EQ": "eq", "NE": "ne",
    "LT": "lt", "LE": "le", "And": "and", "Or": "or",
}  # fmt: skip

_BITWISE = {
    "LShift": "<<", "RShift": ">>", "BitwiseAnd": "&", "BitwiseOr": "|", "BitwiseXor": "^",
}  # fmt: skip


class VarTable:
    """The TVM variables of one program and their `SymVar`s. These are new, or with `shared` those for which
    `to_tvm_var` created the variables."""

    def __init__(self, shared: bool = False) -> None:
        self.shared = shared
        self.symbols: dict[PrimExpr, SymVar] = {}

    def symbol(self, var: PrimExpr) -> SymVar:
        found = self.symbols.get(var)
        if found is None and self.shared:
            found = _symbols.get(var)
        if found is None:
            found = self.symbols[var] = SymVar(str(var.name), str(var.ty.dtype))
        return found

    def to_dim(self, expr: PrimExpr) -> Dim:
        """Convert a TVM integer expression to a dimension. Raises `PassError` for an expression that is not one."""
        kind = type(expr).__name__
        match kind:
            case "IntImm":
                return Dim.of(int(expr.value))
            case "Var":
                return self.symbol(expr).dim
            case "Add" | "Sub":
                return dim_sum(self._summands(expr))
            case "Mul":
                return self.to_dim(expr.a) * self.to_dim(expr.b)
            case "Cast":
                return self.to_dim(expr.value)
            case "Not":
                return dim_op("not", self.to_dim(expr.a))
            case "GT" | "GE":
                return dim_op(
                    "lt" if kind == "GT" else "le", self.to_dim(expr.b), self.to_dim(expr.a)
                )
            case "Select":
                parts = (expr.condition, expr.true_value, expr.false_value)
                return dim_op("select", *map(self.to_dim, parts))
            case "Call" if expr.op.name == "prim.if_then_else":
                return dim_op("select", *map(self.to_dim, expr.args))
            case _ if kind in _READ:
                return dim_op(_READ[kind], self.to_dim(expr.a), self.to_dim(expr.b))
            case "BitwiseNot":
                return ~self.to_dim(expr.a)
            case _ if kind in _BITWISE:
                found = bitwise(_BITWISE[kind], self.to_dim(expr.a), self.to_dim(expr.b))
                if found is not None:
                    return found
        raise PassError("dimension", f"{expr} is not an integer expression that a dimension can be")

    def _summands(self, expr: PrimExpr) -> Iterator[Dim]:
        """The dimensions that a sum consists of, which may be thousands."""
        waiting = [(expr, False)]
        while waiting:
            part, negated = waiting.pop()
            kind = type(part).__name__
            if kind in ("Add", "Sub"):
                waiting += [(part.b, negated != (kind == "Sub")), (part.a, negated)]
            else:
                dim = self.to_dim(part)
                yield -dim if negated else dim


@contextmanager
def unproved_beyond_64_bits() -> Iterator[None]:
    """Leave the block where TVM's analyser, which multiplies out, meets a number of more than 64 bits."""
    try:
        yield
    except ValueError as error:
        if "exceeds range" not in str(error):
            raise


def equal(a: PrimExpr, b: PrimExpr) -> bool:
    """Are two index expressions equal for all values of their variables?"""
    with unproved_beyond_64_bits():
        if tvm.sym.Analyzer().can_prove_equal(a, b):
            return True
    table = VarTable()  # TVM keeps the factors of a product in the order in which they are written
    try:
        return table.to_dim(a) == table.to_dim(b)
    except PassError:
        return False


def can_prove(
    condition: Dim,
    bounds: tuple[tuple[SymVar, int | None, int | None], ...],
    given: tuple[Dim, ...] = (),
) -> bool:
    """Does TVM's analyser prove `condition` (0/1) to be true, given closed ranges of its variables and other
    conditions?"""
    analyzer = tvm.sym.Analyzer()
    for var, low, high in bounds:
        if low is not None and high is not None:
            extent = tvm.ir.Range(int64(low), int64(high + 1))
            analyzer.bind(to_tvm_var(var), extent)
        elif low is not None:
            analyzer.update(
                to_tvm_var(var),
                tvm.sym.ConstIntBound(low, tvm.sym.ConstIntBound.POS_INF),
                override=True,
            )
    with ExitStack() as stack:
        for other in given:
            stack.enter_context(analyzer.constraint_scope(to_condition(other)))
        with unproved_beyond_64_bits():
            return bool(analyzer.can_prove(to_condition(condition)))
    return False
