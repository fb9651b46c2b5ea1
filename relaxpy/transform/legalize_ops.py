"""LegalizeOps: replace operators by calls of tensor programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.analysis.in_place import last_uses
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, PrimType, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import (
    Binding,
    Call,
    Constant,
    Expr,
    GlobalVar,
    PrimValue,
    ShapeExpr,
    Tuple,
    TupleGetItem,
    Var,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.names import FreshNames
from relaxpy.ir.storage import in_memory, is_packed, packed_array
from relaxpy.ir.visitor import free_sym_vars, map_annotation
from relaxpy.op.base import Op, number_array
from relaxpy.op.call import CallTIR, CallTIRInplace
from relaxpy.op.deduce import deduce
from relaxpy.op.deduction import Deduction
from relaxpy.op.intrinsic import ScalarToTensor, TensorToScalar
from relaxpy.op.memory import View
from relaxpy.op.sorting import sorting_in_parts
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.buffer_limit import buffer_limit
from relaxpy.transform.rebuild import Rebuilder

MOST_TENSORS = 32
"""The most tensors that one program concatenates. The choice among them is a nested conditional, and compile time grows
faster than linearly in its depth. Fewer if a launch on the target takes fewer buffers."""


@dataclass(frozen=True)
class LegalizeOps(Pass):
    """Replace each operator call by `call_tir` of the tensor program that the operator's `legalize` makes (paper §4.7;
    `LegalizeOps` in TVM). Calls that are equal up to the names of their symbols share one program. Requirements that
    deduction could not decide (are n and m equal?) are checked at run time before the call, also before calls of the
    runtime's own functions. An operator whose result is its argument but for a part (`slice_scatter`) updates the
    argument in place where nothing else seems to read it: `LowerCallTIR` decides.

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
    mandatory: ClassVar[bool] = True
    prerequisites: ClassVar[tuple[str, ...]] = ("bind-unknown-shapes", "decompose-ops")

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        limit = buffer_limit(mod, ctx.target)
        legalizer = _Legalizer(mod, MOST_TENSORS if limit is None else min(limit - 1, MOST_TENSORS))
        with sorting_in_parts(limit is not None):
            result = legalizer.run()
        return result.with_functions({**legalizer.programs, **result.functions})


class _Legalizer(Rebuilder):
    def __init__(self, mod: IRModule, most_tensors: int) -> None:
        super().__init__(mod)
        self.most_tensors = max(most_tensors, 2)
        """The most tensors that one program concatenates."""
        self.programs: dict[str, Any] = {}
        self.program_names = FreshNames(mod)
        self.called: dict[Hashable, tuple[str, tuple[Dim, ...] | None]] = {}
        """By operator and annotations: the program's name and its scalar arguments."""
        self.canonical: dict[Hashable, tuple[str, tuple[int, ...] | None]] = {}
        """By operator and annotations with canonical symbols: the program's name and the symbols that it takes."""
        self.last_uses = last_uses(mod)
        """Calls of operators that may update an argument in place."""
        self.packed: dict[int, tuple[Constant, Constant]] = {}
        """Constants whose elements share bytes, each with its bytes, by the identity of the array."""
        self.updates = False
        """Is the call that is replaced now one of them?"""

    def binding(self, binding: Binding) -> None:
        self.updates = binding.value in self.last_uses
        super().binding(binding)

    def value(self, value: Expr) -> Expr:
        if not isinstance(value, Call) or not isinstance(value.op, Op):
            return value
        op = value.op
        if op.legalize is None:
            if op.packed:
                self.require_sizes(op, value)
            return value
        groups = op.in_groups()
        if groups is not None and len(tensors := self.tensors(value.args[0])) > self.most_tensors:
            return self.in_groups(value, tensors, *groups)
        deduction = Deduction(op, value, lambda e: deduce(e, self.mod), exact=True)
        out = deduction.run()
        if op.packed and isinstance(out, TensorType) and out.ndim < 0:
            return value  # the runtime's function accepts any rank
        self.check(deduction.requirements)
        args = deduction.args
        if isinstance(out, PrimType):
            if out.value is not None:
                return PrimValue(out.value, out.dtype, span=value.span)
            value, args = self.with_tensors(op, value, args)
            out = TensorType((), out.dtype)
            program = self.called_program(op, args, out)
            made = self.emit(self.call_program(value, args, out, *program))
            return dataclasses.replace(TensorToScalar()(made), span=value.span)
        if op.scalar_args:
            value, args = self.with_tensors(op, value, args)
        if self.updates and op.may_update(out):
            return self.update(op, value, args, out)
        program = self.called_program(op, args, out)
        return self.call_program(value, args, out, *program)

    def update(
        self, op: Op, call: Call, args: Sequence[Annotation | None], out: Annotation
    ) -> Expr:
        """The call of a program that updates its last argument."""
        name, scalars = self.called_program(op, args, out, updates=True)
        index = [spec.name for spec in op.args].index(op.updates)
        tensors = [
            e
            for i, (e, a) in enumerate(zip(call.args, args, strict=False))
            for e in (_tensor_leaves(e, a, self) if i != index else ())
        ]
        extra: tuple[Expr, ...] = () if scalars is None else (ShapeExpr(scalars),)
        fields = (*tensors, call.args[index])
        kind = CallTIRInplace((len(tensors),))
        return Call(kind, (GlobalVar(name), Tuple(fields), *extra), (out,), span=call.span)

    def tensors(self, arg: Expr) -> list[Expr]:
        """The tensors in an argument."""
        return _tensor_leaves(arg, deduce(arg, self.mod), self)

    def in_groups(self, call: Call, tensors: Sequence[Expr], group: Op, join: Op) -> Expr:
        """Split a call with many tensors into calls of `group`, whose results `join` combines. Group sizes that are
        sums of many symbols become single symbols in the joining program."""
        parts = [
            self.emit(
                self.value(group(Tuple(tuple(tensors[i : i + self.most_tensors])), span=call.span))
            )
            for i in range(0, len(tensors), self.most_tensors)
        ]
        joined = join(Tuple(tuple(parts)), span=call.span)
        if len(parts) > self.most_tensors:
            return self.value(joined)
        deduction = Deduction(join, joined, lambda e: deduce(e, self.mod), exact=True)
        out = deduction.run()
        self.check(deduction.requirements)
        named: dict[Dim, SymVar] = {}

        def symbol(dim: Dim) -> Dim:
            if len(dim.vars) < 2:
                return dim
            return named.setdefault(dim, SymVar(f"size{len(named)}")).dim

        renamed = [Var("part", map_annotation(deduce(part, self.mod), symbol)) for part in parts]
        as_named = Deduction(join, join(Tuple(tuple(renamed))), lambda e: deduce(e, self.mod))
        kind = as_named.run()
        return self.call_program(
            joined, deduction.args, out, *self.called_program(join, as_named.args, kind)
        )

    def with_tensors(
        self, op: Op, call: Call, annotations: Sequence[Annotation | None]
    ) -> tuple[Call, Sequence[Annotation | None]]:
        """Convert the scalar arguments that are not dimensions to tensors. Returns the call and its arguments'
        annotations. Dimensions are passed to the program from the heap, like all sizes."""
        args, types = list(call.args), list(annotations)
        for i, (spec, arg) in enumerate(zip(op.args, call.args, strict=False)):
            scalar = annotations[i]
            if spec.kind is not TensorType or not isinstance(scalar, PrimType):
                continue
            if scalar.value is None or scalar.value.value is not None:
                args[i], types[i] = self.tensor(arg, scalar), TensorType((), scalar.dtype)
        return dataclasses.replace(call, args=tuple(args)), types

    def tensor(self, scalar: Expr, annotation: PrimType) -> Expr:
        """Convert a scalar to a 0-d tensor."""
        if isinstance(scalar, PrimValue):
            number = scalar.value.value if isinstance(scalar.value, Dim) else scalar.value
            return Constant(number_array(number, annotation.dtype), span=scalar.span)
        if annotation.value is not None:
            return Constant(
                number_array(annotation.value.value, annotation.dtype), span=scalar.span
            )
        return self.emit(ScalarToTensor(annotation.dtype)(scalar), "scalar")

    def require_sizes(self, op: Op, call: Call) -> None:
        """Check the sizes that a runtime function relies on, as far as they are known here."""
        deduction = Deduction(op, call, lambda e: deduce(e, self.mod))
        deduction.run()
        known = set(free_sym_vars([deduce(arg, self.mod) for arg in call.args]))
        self.check(r for r in deduction.requirements if known.issuperset(r.condition.vars))

    def call_program(
        self,
        call: Call,
        args: Sequence[Annotation | None],
        out: Annotation,
        name: str,
        scalars: tuple[Dim, ...] | None,
    ) -> Expr:
        """Return the call of a program that replaces an operator call."""
        tensors = [
            e for e, a in zip(call.args, args, strict=False) for e in _tensor_leaves(e, a, self)
        ]
        tensors = [self.in_memory(tensor) for tensor in tensors]
        extra: tuple[Expr, ...] = () if scalars is None else (ShapeExpr(scalars),)
        outs = out.fields if isinstance(out, TupleType) else (out,)
        types = tuple(map(in_memory, outs))
        made = Call(
            CallTIR(), (GlobalVar(name), Tuple(tuple(tensors)), *extra), types, span=call.span
        )
        if isinstance(out, TensorType) and is_packed(out):
            view = View(dtype=str(out.dtype))(self.emit(made), ShapeExpr(out.dims or ()))
            return dataclasses.replace(view, span=call.span)
        if (
            isinstance(out, TupleType) and len(outs) == 1
        ):  # call_tir with one output returns a tensor
            return Tuple((self.emit(made),), span=call.span)
        return made

    def in_memory(self, tensor: Expr) -> Expr:
        """A tensor whose elements share bytes as its bytes; others as they are."""
        if isinstance(tensor, Constant):
            if not DType(tensor.data.dtype).is_packed:
                return tensor
            found = self.packed.get(id(tensor.data))
            if found is None:
                found = tensor, Constant(packed_array(tensor.data), span=tensor.span)
                self.packed[id(tensor.data)] = found
            return found[1]
        given = deduce(tensor, self.mod)
        if not is_packed(given):
            return tensor
        made = expect(TensorType, in_memory(given))
        return self.emit(View(dtype="uint8")(tensor, ShapeExpr(made.dims or ())), "bytes")

    def called_program(
        self, op: Op, args: Sequence[Annotation | None], out: Annotation, *, updates: bool = False
    ) -> tuple[str, tuple[Dim, ...] | None]:
        """The name of the tensor program for these arguments, and its scalar arguments."""
        key = (op, tuple(args), out, updates)
        found = self.called.get(key)
        if found is None:
            for annotation in (*args, out):
                self.require_dims(op, annotation)
            found = self.called[key] = self.program(op, args, out, updates)
        return found

    def program(
        self, op: Op, args: Sequence[Annotation | None], out: Annotation, updates: bool
    ) -> tuple[str, tuple[Dim, ...] | None]:
        """The same; the program is built if no equal one exists."""
        from relaxpy.tir.programs.te_call import legal_program

        canonical = _Canonical()
        key_args = [None if a is None else canonical.annotation(a) for a in args]
        key_out = canonical.annotation(out)
        key = (op, tuple(key_args), key_out, updates)
        found = self.canonical.get(key)
        if found is None:
            program, tir_vars = legal_program(op, key_args, key_out, updates=updates)
            name = op.name.rsplit(".", 1)[-1]
            name = self.program_names.fresh(f"{name}_update" if updates else name)
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
    """Renames symbols in the order of first use, so that calls that differ only in names have one key."""

    def __init__(self) -> None:
        self.symbols: dict[SymVar, SymVar] = {}

    def annotation(self, annotation: Annotation) -> Annotation:
        for var in free_sym_vars([annotation]):
            if var not in self.symbols:
                self.symbols[var] = _canonical_var(len(self.symbols), var.signed)
        return map_annotation(annotation, self.dim)

    def dim(self, dim: Dim) -> Dim:
        return dim.substitute(self.symbols)


_CANONICAL: dict[tuple[int, bool], SymVar] = {}


def _canonical_var(index: int, signed: bool) -> SymVar:
    found = _CANONICAL.get((index, signed))
    if found is None:
        name = "nmklijpqrs"[index] if index < 10 else f"n{index}"
        found = _CANONICAL.setdefault((index, signed), SymVar(name, signed=signed))
    return found


def _index(order: list[SymVar], dim: Dim) -> int:
    symbol = dim.symbol
    assert symbol is not None
    return order.index(symbol)


def _tensor_leaves(expr: Expr, annotation: Annotation | None, rebuilder: Rebuilder) -> list[Expr]:
    """The tensors in an argument: the argument itself, or the fields of a tuple; none for shapes and scalars."""
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
