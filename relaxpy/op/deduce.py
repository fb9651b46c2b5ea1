"""Forward deduction: the annotation of any expression from those of its variables (paper §4.1).

A call of a function with a signature is deduced across the function boundary: the symbolic variables of the callee's
parameters are bound to the arguments' dimensions and substituted in its return annotation. Dimensions that cannot be
bound are erased, which leaves a coarser annotation. The callee's body is never inspected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from relaxpy.errors import DeduceError
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import (
    Annotation,
    CallableType,
    ObjectType,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
)
from relaxpy.ir.data import instantiate
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import (
    Call,
    Constant,
    Expr,
    ExternFunc,
    Function,
    GlobalVar,
    If,
    MatchCast,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    Tuple,
    TupleGetItem,
    Var,
)
from relaxpy.ir.known import KnownTensor, as_known
from relaxpy.ir.module import IRModule
from relaxpy.ir.op import Operator
from relaxpy.ir.visitor import free_sym_vars, free_vars
from relaxpy.op.call import packed_result
from relaxpy.op.deduction import show_argument
from relaxpy.shape.defined import defined_symbols, matched_dims
from relaxpy.shape.lattice import Verdict, accepts, erase, join, rounds, substitute
from relaxpy.shape.polymorphic import solve_types, type_params
from relaxpy.shape.prove import equal


def deduce(expr: Expr, mod: IRModule | None = None) -> Annotation:
    """The annotation of `expr`; `mod` resolves global names. Raises `DeduceError` for a call that can never be
    valid."""
    match expr:
        case Var(annotation=annotation):
            return annotation
        case Constant(data=data):
            return TensorType(np.shape(data), DType(data.dtype))
        case ShapeExpr(dims=dims):
            return ShapeType(dims)
        case PrimValue(value=value, dtype=dtype):
            return PrimType(dtype, value if isinstance(value, Dim) and not dtype.is_float else None)
        case Tuple(fields=fields):
            return TupleType([deduce(item, mod) for item in fields])
        case TupleGetItem():
            return _item(expr, deduce(expr.tuple, mod))
        case Call():
            return deduce_call(expr, mod)
        case Function():
            return expr.annotation
        case If():
            return join(deduce(expr.then, mod), deduce(expr.otherwise, mod))
        case SeqExpr():
            return deduce_seq(expr, mod)
        case GlobalVar(name=name):
            found = mod.annotation_of(name) if mod is not None else None
            if found is None:
                return CallableType()
            # As a value, a function with type parameters takes any values.
            return instantiate(found, dict.fromkeys(type_params([found]), ObjectType()))
        case ExternFunc():
            return CallableType(pure=False)
        case _:
            return ObjectType()


def known_tensor(expr: Expr) -> KnownTensor:
    """The annotation of a tensor whose shape and dtype are known."""
    return expect(KnownTensor, as_known(deduce(expr)))


def deduce_seq(expr: SeqExpr, mod: IRModule | None = None) -> Annotation:
    """The annotation of a body as visible from outside: without its own variables and the symbols that it defines."""
    inner_vars = {binding.var for binding in expr.bindings}
    result = deduce(expr.body, mod)
    casts = free_sym_vars(b.annotation for b in expr.bindings if isinstance(b, MatchCast))
    inner_syms = set(casts).intersection(free_sym_vars([result]))
    if inner_syms:  # rare: the traversal of the body takes time
        inner_syms -= set(free_sym_vars(var.annotation for var in free_vars(expr)))
    return erase(result, lambda sym: sym not in inner_syms, lambda var: var not in inner_vars)


def _item(expr: TupleGetItem, annotation: Annotation) -> Annotation:
    if isinstance(annotation, TupleType):
        if not 0 <= expr.index < len(annotation.fields):
            raise DeduceError(
                "tuple-index",
                f"index {expr.index} is out of range for a tuple of {len(annotation.fields)}",
                span=expr.span,
            )
        return annotation.fields[expr.index]
    if type(annotation) is ObjectType:
        return ObjectType()
    raise DeduceError("tuple-index", f"{annotation} is not a tuple", span=expr.span)


def deduce_call(call: Call, mod: IRModule | None = None) -> Annotation:
    """The annotation of a call's result."""
    if isinstance(call.op, Operator):
        return call.op.deduce_call(call, lambda e: deduce(e, mod))
    if isinstance(call.op, ExternFunc):
        return packed_result(call)
    if isinstance(call.op, GlobalVar) and mod is not None and call.op.name in mod:
        callee = mod.annotation_of(call.op.name)
        if isinstance(mod[call.op.name], ExternFunc):
            return packed_result(call)
        if callee is None:
            raise DeduceError(
                "call-prim-func",
                f"{call.op.name} is a tensor program and cannot be called like a graph function",
                span=call.span,
                help=f"write R.call_tir(cls.{call.op.name}, (args,), out_ty=R.Tensor(…))",
            )
        given = type_arguments(call, mod)
        outer = free_sym_vars(given.values())
        again = set(outer).intersection(free_sym_vars([callee]))  # the function calls itself
        callee = substitute(callee, {symbol: symbol.renamed(symbol.name).dim for symbol in again})
        callee = instantiate(callee, given)
        if outer and isinstance(callee, CallableType):
            return deduce_result(call, callee, mod, {symbol: symbol.dim for symbol in outer})
    else:
        callee = deduce(call.op, mod)
    if type(callee) is ObjectType:
        return ObjectType()
    if not isinstance(callee, CallableType):
        raise DeduceError("call-callee", f"{callee} cannot be called", span=call.span)
    return deduce_result(call, callee, mod)


def type_arguments(call: Call, mod: IRModule) -> dict[str, Annotation]:
    """The types of the type parameters of a function of the module at a call: those that it gives
    (`cls.f[R.Tensor((4,), "float32")](x)`), or those of the arguments. Raises `DeduceError` where they do not say."""
    assert isinstance(call.op, GlobalVar)
    callee = mod.annotation_of(call.op.name)
    assert isinstance(callee, CallableType)
    names = type_params([callee])
    if call.ty_args:
        if len(call.ty_args) != len(names):
            wanted = f"{len(names)} type argument{'s' * (len(names) != 1)}"
            shown = f" ({', '.join(names)})" if names else ""
            raise DeduceError(
                "data-type",
                f"{call.op.name} takes {wanted}{shown}, got {len(call.ty_args)}",
                span=call.span,
            )
        return dict(zip(names, call.ty_args, strict=True))
    if not names:
        return {}
    found = solve_types(callee.params or (), [deduce(arg, mod) for arg in call.args])
    missing = [name for name in names if name not in found]
    if missing and len(call.args) == len(callee.params or ()):
        given = ", ".join(["R.Tensor(…)"] * len(names))
        raise DeduceError(
            "data-type",
            f"the type parameter {missing[0]} of {call.op.name} does not follow from the arguments",
            span=call.span,
            help=f"write {call.op.name}[{given}](…): {', '.join(names)}",
        )
    return found


def deduce_result(
    call: Call,
    callee: CallableType,
    mod: IRModule | None,
    outer: Mapping[SymVar, Dim] | None = None,
) -> Annotation:
    """The annotation of the result of calling a function of this type (figure 7). `outer`: symbols of the caller in it,
    which its type arguments mention. Raises `DeduceError` if an argument can never fit."""
    if callee.params is None:
        return callee.ret
    name = getattr(call.op, "name", "the function")
    known = _definition(call.op, mod)
    if len(call.args) != len(callee.params):
        wanted = f"{len(callee.params)} argument{'s' * (len(callee.params) != 1)}"
        error = DeduceError(
            "call-arity", f"{name} takes {wanted}, got {len(call.args)}", span=call.span
        )
        if known is not None and known.span is not None:
            raise error.show(f"{name} is defined here", known.span)
        raise error.show(f"{name} is {callee}", call.op.span if isinstance(call.op, Var) else None)
    bound: dict[SymVar, Dim] = dict(outer or {})
    actuals = [deduce(arg, mod) for arg in call.args]
    for _ in rounds(bound):
        for i, (param, actual) in enumerate(zip(callee.params, actuals, strict=True)):
            if accepts(param, actual, bound, equal) is Verdict.NO:
                wanted = substitute(param, bound)
                error = DeduceError(
                    "call-argument",
                    f"argument {i + 1} of {name} must be {wanted}, got {actual}",
                    span=call.span,
                ).about(str(i))
                var = known.params[i] if known is not None else None
                if var is None:
                    error.show(
                        f"{name} is {callee}", call.op.span if isinstance(call.op, Var) else None
                    )
                else:
                    error.show(f"parameter {var.name} of {name} is {param}", var.span)
                show_argument(error, call, call.args[i], f"argument {i + 1}", actual)
                if isinstance(wanted, CallableType) and isinstance(actual, CallableType):
                    error.help = _purity_help(wanted, actual)
                raise error
    ret = substitute(callee.ret, bound)
    unbound = set(free_sym_vars([*callee.params, callee.ret])) - set(bound)
    if unbound:
        unbound -= _captured(callee.params, actuals, unbound)
    return erase(ret, lambda var: var not in unbound)


def _captured(
    params: Sequence[Annotation], actuals: Sequence[Annotation], unbound: set[SymVar]
) -> set[SymVar]:
    """Those of these symbols that a local function has from the function around it. No parameter defines them, and an
    argument has the same dimension: `m * n` for `m * n`."""
    outer = unbound - defined_symbols(params)
    found: set[SymVar] = set()
    for param, actual in zip(params, actuals, strict=True) if outer else ():
        wanted, dims = matched_dims(param), matched_dims(actual)
        if len(wanted) == len(dims):
            same = (dim for dim, given in zip(wanted, dims, strict=True) if dim == given)
            found.update(symbol for dim in same for symbol in dim.vars)
    return outer & found


def _purity_help(wanted: CallableType, actual: CallableType) -> str | None:
    """The advice if the two types differ only in purity."""
    if wanted.pure and not actual.pure:
        return (
            "the function has side effects: annotate the parameter with R.Callable(…, purity=False)"
        )
    return None


def _definition(callee: Operator | Expr, mod: IRModule | None) -> Function | None:
    """The graph function that a global name refers to; None if it is unknown."""
    found = mod.functions.get(callee.name) if mod and isinstance(callee, GlobalVar) else None
    return found if isinstance(found, Function) else None
