"""LegalizeOps: operators become calls of tensor programs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.errors import PassError
from relaxpy.ir.annotation import Annotation, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import Call, Expr, GlobalVar, PrimValue, ShapeExpr, Tuple, TupleGetItem
from relaxpy.ir.module import IRModule
from relaxpy.ir.names import FreshNames
from relaxpy.ir.visitor import free_sym_vars, map_annotation
from relaxpy.op.base import Op
from relaxpy.op.call import CallTIR
from relaxpy.op.deduce import deduce
from relaxpy.op.deduction import Deduction, Requirement
from relaxpy.op.memory import CheckDim
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class LegalizeOps(Pass):
    """Replace each operator call by `call_tir` of the tensor program that the operator's
    `legalize` makes (paper §4.7; `LegalizeOps` in TVM). Calls alike up to the names of their
    symbols share one program. What deduction could not decide (are n and m equal?) is checked
    before the call, at run time; before calls of the runtime's own functions, too.

    Before:
        @I.ir_module
        class Module:

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                gv = R.negative(x)
                return gv
    After:
        @I.ir_module
        class Module:

            @T.prim_func(private=True)
            def negative(x: T.Buffer(("n",), "float32"), out: T.Buffer(("n",), "float32")):
                T.func_attr({"tirx.noalias": True})
                n = T.int64()
                for i in range(n):
                    with T.sblock("out"):
                        vi = T.axis.spatial(n, i)
                        out[vi] = x[vi] * T.float32(-1)

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                n = T.int64()
                cls = Module
                gv = R.call_tir(cls.negative, (x,), out_ty=R.Tensor((n,), dtype="float32"))
                return gv
    """

    name: ClassVar[str] = "legalize-ops"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        legalizer = _Legalizer(mod)
        result = legalizer.run()
        return result.with_functions({**legalizer.programs, **result.functions})


class _Legalizer(Rebuilder):
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self.programs: dict[str, Any] = {}
        self.program_names = FreshNames(mod)
        self.called: dict[Hashable, tuple[str, tuple[Dim, ...] | None]] = {}
        """By operator and annotations: the program's name, and the scalars that it takes."""
        self.canonical: dict[Hashable, tuple[str, tuple[int, ...] | None]] = {}
        """By operator and annotations with canonical symbols: the program's name, and which symbols it takes."""

    def value(self, value: Expr) -> Expr:
        if not isinstance(value, Call) or not isinstance(value.op, Op):
            return value
        if value.op.legalize is None:
            if value.op.packed:
                self.require_sizes(value.op, value)
            return value
        deduction = Deduction(value.op, value, lambda e: deduce(e, self.mod), exact=True)
        out = deduction.run()
        if value.op.packed and isinstance(out, TensorType) and out.ndim < 0:
            return value  # the runtime's function takes any rank
        program = self.called_program(value.op, deduction.args, out)
        self.check(deduction.requirements)
        return self.call_program(value, deduction.args, out, *program)

    def require_sizes(self, op: Op, call: Call) -> None:
        """Check what a function of the runtime takes for granted, as far as sizes are known here."""
        deduction = Deduction(op, call, lambda e: deduce(e, self.mod))
        deduction.run()
        known = set(free_sym_vars([deduce(arg, self.mod) for arg in call.args]))
        self.check(r for r in deduction.requirements if known.issuperset(r.condition.vars))

    def check(self, requirements: Iterable[Requirement]) -> None:
        for requirement in requirements:
            check = CheckDim(message=requirement.message)(PrimValue(requirement.condition))
            self.emit(check, "_")

    def require_dims(self, op: Op, annotation: Annotation | None) -> None:
        match annotation:
            case TupleType(fields=fields):
                for item in fields:
                    self.require_dims(op, item)
            case TensorType() if annotation.dims is None or annotation.dtype is None:
                missing = (
                    "rank"
                    if annotation.ndim < 0
                    else "shape"
                    if annotation.dims is None
                    else "dtype"
                )
                raise PassError(
                    "unknown-rank" if missing == "rank" else f"unknown-{missing}",
                    f"{op.name}: the {missing} of an argument or of the result is unknown: {annotation}",
                    span=self.span,
                    help='say what it is: R.match_cast(x, R.Tensor((n, m), dtype="float32"))',
                )
            case _:
                pass

    def call_program(
        self,
        call: Call,
        args: Sequence[Annotation | None],
        out: Annotation,
        name: str,
        scalars: tuple[Dim, ...] | None,
    ) -> Expr:
        """The call of a program instead of an operator's."""
        tensors = [
            e for e, a in zip(call.args, args, strict=False) for e in _tensor_leaves(e, a, self)
        ]
        extra: tuple[Expr, ...] = () if scalars is None else (ShapeExpr(scalars),)
        outs = out.fields if isinstance(out, TupleType) else (out,)
        made = Call(
            CallTIR(), (GlobalVar(name), Tuple(tuple(tensors)), *extra), tuple(outs), span=call.span
        )
        if isinstance(out, TupleType) and len(outs) == 1:  # call_tir of one output gives a tensor
            return Tuple((self.emit(made),), span=call.span)
        return made

    def called_program(
        self, op: Op, args: Sequence[Annotation | None], out: Annotation
    ) -> tuple[str, tuple[Dim, ...] | None]:
        """The name of the tensor program for these arguments, and the scalars to call it with."""
        key = (op, tuple(args), out)
        found = self.called.get(key)
        if found is None:
            for annotation in (*args, out):
                self.require_dims(op, annotation)
            found = self.called[key] = self.program(op, args, out)
        return found

    def program(
        self, op: Op, args: Sequence[Annotation | None], out: Annotation
    ) -> tuple[str, tuple[Dim, ...] | None]:
        """The same, made if there is no program alike."""
        from relaxpy.tir.te_call import legal_program

        canonical = _Canonical()
        key_args = [None if a is None else canonical.annotation(a) for a in args]
        key_out = canonical.annotation(out)
        key = (op, tuple(key_args), key_out)
        found = self.canonical.get(key)
        if found is None:
            program, tir_vars = legal_program(op, key_args, key_out)
            name = self.program_names.fresh(op.name.rsplit(".", 1)[-1])
            self.programs[name] = program
            order = list(canonical.symbols.values())
            picked = (
                None if tir_vars is None else tuple(_index(order, dim) for dim in tir_vars.dims)
            )
            found = self.canonical[key] = (name, picked)
        name, picked = found
        symbols = list(canonical.symbols)
        return name, None if picked is None else tuple(symbols[i].dim for i in picked)


class _Canonical:
    """Symbols renamed in order of first use, so that calls alike but for names have one key."""

    def __init__(self) -> None:
        self.symbols: dict[SymVar, SymVar] = {}

    def annotation(self, annotation: Annotation) -> Annotation:
        for var in free_sym_vars([annotation]):
            if var not in self.symbols:
                self.symbols[var] = _canonical_var(len(self.symbols))
        return map_annotation(annotation, self.dim)

    def dim(self, dim: Dim) -> Dim:
        return dim.substitute(self.symbols)


_CANONICAL: list[SymVar] = []


def _canonical_var(index: int) -> SymVar:
    while len(_CANONICAL) <= index:
        _CANONICAL.append(
            SymVar("nmklijpqrs"[len(_CANONICAL)] if len(_CANONICAL) < 10 else f"n{len(_CANONICAL)}")
        )
    return _CANONICAL[index]


def _index(order: list[SymVar], dim: Dim) -> int:
    symbol = dim.symbol
    assert symbol is not None
    return order.index(symbol)


def _tensor_leaves(expr: Expr, annotation: Annotation | None, rebuilder: Rebuilder) -> list[Expr]:
    """The tensors among an argument: itself, or the fields of a tuple; nothing for shapes and
    scalars."""
    match annotation:
        case TensorType():
            return [expr]
        case TupleType(fields=fields):
            if isinstance(expr, Tuple):
                items: list[Expr] = list(expr.fields)
            else:
                items = [rebuilder.emit(TupleGetItem(expr, i)) for i in range(len(fields))]
            return [
                t
                for e, a in zip(items, fields, strict=True)
                for t in _tensor_leaves(e, a, rebuilder)
            ]
        case ShapeType() | None:
            return []
        case _:
            return []
