"""Which bindings may be removed if nothing uses them?

Those without an effect, where an error is an effect, too: a program that stops because n is not m must do so after
every pass. So the following stay: a call whose relation of dimensions is checked at run time, a `match_cast` that is
not proved, and a call of a function that may contain either, or may not terminate. A call of a tensor program whose
arguments may not fit stays until `CheckCalls` has inserted the check, and so does a call of a program that checks its
indices.
"""

from __future__ import annotations

from collections.abc import Iterable

from relaxpy.analysis.prim_func_call import needed_types
from relaxpy.errors import DeduceError
from relaxpy.ir.annotation import (
    Annotation,
    CallableType,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
)
from relaxpy.ir.dim import Dim, SymVar, dim_op
from relaxpy.ir.expr import (
    Binding,
    Call,
    Expr,
    Function,
    GlobalVar,
    If,
    MatchCast,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    Tuple,
    TupleGetItem,
)
from relaxpy.ir.module import CHECK_INDICES, IRModule, TensorProgram
from relaxpy.op.base import Op
from relaxpy.op.call import CallDPSLibrary, CallPurePacked, CallTIR, CallTIRInplace
from relaxpy.op.data import Construct, IsMadeBy
from relaxpy.op.deduce import deduce
from relaxpy.op.deduction import Deduction
from relaxpy.op.intrinsic import ShapeOf, ShapeToTensor
from relaxpy.op.memory import (
    AllocStorage,
    AllocTensor,
    CopyTo,
    MakeClosure,
    MakeShape,
    ReadScalar,
    View,
)
from relaxpy.shape.bounds import bounds_of
from relaxpy.shape.lattice import Verdict, accepts
from relaxpy.shape.prove import equal, prove

_NEVER_FAIL = (ShapeOf, ShapeToTensor)
"""Operators computed by runtime functions that accept any arguments that fit their annotations."""
_MADE = (AllocStorage, AllocTensor, CopyTo, MakeClosure, MakeShape, ReadScalar, View)
"""Instructions that are executed for their value; the others are executed for their effect."""


class Removable:
    """Cached answers for the bindings of one module."""

    def __init__(self, mod: IRModule) -> None:
        self.mod = mod
        self._total: dict[str, bool] = {}

    def __call__(self, binding: Binding) -> bool:
        """Does the program behave the same without this binding, if nothing uses its variable?"""
        try:
            if isinstance(binding, MatchCast):
                return proved(binding, self.mod)
            return self._value(binding.value)
        except DeduceError:
            return False

    def _value(self, value: Expr) -> bool:
        match value:
            case Call():
                return self._call(value)
            case If(cond=cond, then=then, otherwise=otherwise):
                known = isinstance(deduce(cond, self.mod), (TensorType, PrimType))
                return known and self._body(then) and self._body(otherwise)
            case TupleGetItem(tuple=whole):
                return isinstance(deduce(whole, self.mod), TupleType)
            case Function():
                return True
            case _:
                return self._leaves((value,))

    def _leaves(self, leaves: Iterable[Expr]) -> bool:
        """Can these be evaluated for all values of the symbols?"""
        return all(self._leaf(leaf) for leaf in leaves)

    def _leaf(self, leaf: Expr) -> bool:
        match leaf:
            case Tuple(fields=fields):
                return self._leaves(fields)
            case ShapeExpr(dims=dims):
                return all(map(is_size, dims))
            case PrimValue(value=Dim() as value):
                return _has_value(value)
            case _:
                return True

    def _body(self, body: SeqExpr) -> bool:
        return all(map(self, body.bindings)) and self._leaves((body.body,))

    def _call(self, call: Call) -> bool:
        match call.op:
            case Op() as op:
                return self._operator(op, call)
            case CallTIR() | CallTIRInplace():
                fits = self._leaves(call.args) and all(map(_fits_always, call.ty_args))
                return fits and needed_types(call, self.mod) is None and not self._checks(call)
            case CallDPSLibrary():
                return self._leaves(call.args[1:]) and all(map(_fits_always, call.ty_args))
            case op if type(op) is CallPurePacked or isinstance(op, Construct | IsMadeBy):
                return self._leaves(call.args[1:])
            case op if isinstance(op, _MADE):
                return self._leaves(call.args)
            case GlobalVar(name=name):
                return self._leaves(call.args) and self.total(name, call.args)
            case _:
                return False

    def _checks(self, call: Call) -> bool:
        """Does a call run a tensor program that checks its indices?"""
        callee = call.args[0]
        program = self.mod.functions.get(callee.name) if isinstance(callee, GlobalVar) else None
        return isinstance(program, TensorProgram) and CHECK_INDICES in program.attrs

    def _operator(self, op: Op, call: Call) -> bool:
        if not op.pure or not (op.legalize is not None or isinstance(op, _NEVER_FAIL)):
            return False
        deduction = Deduction(op, call, lambda e: deduce(e, self.mod), exact=True)
        result = deduction.run()
        return not deduction.requirements and self._leaves(call.args) and _fits_always(result)

    def total(self, name: str, args: Iterable[Expr]) -> bool:
        """Does a call of a function always terminate without an error?"""
        function = self.mod.functions.get(name)
        if not isinstance(function, Function) or not function.pure:
            return False
        bound: dict[SymVar, Dim] = {}
        for param, arg in zip(function.params, args, strict=True):
            verdict = accepts(param.annotation, deduce(arg, self.mod), bound, equal)
            if verdict is not Verdict.YES:
                return False
        if name not in self._total:
            self._total[name] = False  # a recursion may not terminate
            result = deduce(function.body.body, self.mod)
            kept = accepts(function.ret, result, None, equal) is Verdict.YES
            self._total[name] = kept and not bounds_of(function) and self._body(function.body)
        return self._total[name]


def proved(cast: MatchCast, mod: IRModule | None = None) -> bool:
    """Does a `match_cast` that defines no symbol always succeed?"""
    return accepts(cast.annotation, deduce(cast.value, mod), None, equal) is Verdict.YES


def _fits_always(annotation: Annotation) -> bool:
    """Is the annotation of known rank, without dimensions that may be negative, or sizes that may not exist?"""
    match annotation:
        case TensorType(ndim=ndim) | ShapeType(ndim=ndim) if ndim < 0:
            return False
        case TensorType(shape=tuple() as dims) | ShapeType(dims=tuple() as dims):
            return all(map(is_size, dims))
        case PrimType(value=Dim() as value):
            return _has_value(value)
        case PrimType(dtype=dtype):
            # Arithmetic of such numbers is that of sizes, which ends beyond 64 bits, as soon as they have names.
            return dtype != "int64"
        case TupleType(fields=fields):
            return all(map(_fits_always, fields))
        case CallableType():
            return False
        case _:
            return True


def is_size(dim: Dim) -> bool:
    """Is a dimension at least 0 for all values of its symbols?"""
    if (dim.symbol is not None and not dim.symbol.signed) or (dim.value or 0) > 0:
        return True
    return _has_value(dim) and prove(dim_op("le", 0, dim))


def _has_value(dim: Dim) -> bool:
    """Does the dimension contain neither a division by a possible 0 nor arithmetic on a scalar that may overflow 64
    bits?
    """
    if dim.symbol is None and any(var.signed for var in dim.vars):
        return False
    for monomial, _ in dim.terms:
        for atom, _power in monomial:
            if isinstance(atom, SymVar):
                continue
            if not all(map(_has_value, atom.args)):
                return False
            if atom.op in ("floordiv", "floormod") and not prove(dim_op("ne", atom.args[1], 0)):
                return False
    return True
