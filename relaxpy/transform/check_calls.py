"""CheckCalls: insert run-time checks before calls of tensor programs whose arguments are not proved to fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.prim_func_call import (
    NeededTypes,
    check_prim_func_call,
    in_order,
    is_program_call,
    needed_types,
    places_of,
)
from relaxpy.errors import PassError
from relaxpy.ir.accessors import expect, known_dims, known_dtype
from relaxpy.ir.annotation import Annotation, PrimType, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import Dim, dim_op, product
from relaxpy.ir.expr import (
    Binding,
    Call,
    Expr,
    Function,
    GlobalVar,
    MatchCast,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
)
from relaxpy.ir.module import BufferParam, IRModule, TensorProgram
from relaxpy.op.call import CallTIR, CallTIRInplace, call_pure_packed
from relaxpy.op.create import Zeros
from relaxpy.op.deduce import deduce
from relaxpy.op.memory import AllocStorage, AllocTensor, CallDPS, CheckDim, View
from relaxpy.shape.prove import prove
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.bind_unknown_shapes import with_dims
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class CheckCalls(Pass):
    """Insert the checks that tensor programs rely on. A tensor program does not check its arguments: where a buffer is
    `("n",)`, it reads `x[0:n]`. Arguments and outputs that are not proved to fit are cast to the required types
    (`match_cast`). After this pass every call is proved. Tensors in a storage and views are checked to lie inside their
    memory in the same way. Proved calls get no checks.

    Before:
        @I.ir_module
        class Module:
            @T.prim_func(private=True)
            def add(
                x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32"), z: T.Buffer(("n",), "float32")
            ):
                n = T.int64()
                for i in range(n):
                    with T.sblock("add"):
                        vi = T.axis.spatial(n, i)
                        z[vi] = x[vi] + y[vi]

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32"), y: R.Tensor(("m",), dtype="float32")):
                n = T.int64()
                cls = Module
                z = R.call_tir(cls.add, (x, y), out_ty=R.Tensor((n,), dtype="float32"))
                return z
    After:
        @I.ir_module
        class Module:
            @T.prim_func(private=True)
            def add(
                x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32"), z: T.Buffer(("n",), "float32")
            ):
                n = T.int64()
                for i in range(n):
                    with T.sblock("add"):
                        vi = T.axis.spatial(n, i)
                        z[vi] = x[vi] + y[vi]

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32"), y: R.Tensor(("m",), dtype="float32")):
                n = T.int64()
                cls = Module
                y_for_add = R.match_cast(y, R.Tensor((n,), dtype="float32"))
                z = R.call_tir(cls.add, (x, y_for_add), out_ty=R.Tensor((n,), dtype="float32"))
                return z
    """

    name: ClassVar[str] = "check-calls"
    mandatory: ClassVar[bool] = True
    prerequisites: ClassVar[tuple[str, ...]] = ("normalize",)

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return checked(mod, with_zeros=True)


def checked(mod: IRModule, *, with_zeros: bool = False) -> IRModule:
    """Return the module with everything that a tensor program or an address computation relies on proved or checked;
    `with_zeros` also outputs that a program may leave unset, which those of operators never do."""
    return _Checker(mod, with_zeros).run()


class _Checker(Rebuilder):
    def __init__(self, mod: IRModule, with_zeros: bool) -> None:
        super().__init__(mod)
        self.with_zeros = with_zeros
        self.pure = True
        self.sizes: dict[Var, Dim] = {}
        """Size of each storage in bytes."""
        self.holds: frozenset[Dim] = frozenset()
        """Conditions already checked before the current binding."""

    def function(self, function: Function) -> Function:
        outer = self.sizes, self.pure
        self.sizes, self.pure = {}, function.pure
        rebuilt = super().function(function)
        self.sizes, self.pure = outer
        return rebuilt

    def seq(self, seq: SeqExpr, function: Function | None = None) -> SeqExpr:
        before = self.holds
        rebuilt = super().seq(seq, function)
        self.holds = before
        return rebuilt

    def binding(self, binding: Binding) -> None:
        value = self.use(binding.value)
        if isinstance(binding, VarBinding) and isinstance(value, Call):
            call = self.fitting(self.with_sizes(value))
            if call.ty_args != value.ty_args:
                self.cast_result(binding, call, value)
                return
            if isinstance(call.op, AllocStorage) and isinstance(call.args[0], PrimValue):
                # Its size may be negative. Then no tensor fits into it, or a tensor has a negative dimension.
                self.sizes[binding.var] = Dim.of(call.args[0].value)  # type: ignore[arg-type]
            if isinstance(call.op, CheckDim) and isinstance(call.args[0], PrimValue):
                self.holds |= {Dim.of(call.args[0].value)}  # type: ignore[arg-type]
            value = self.isolated(call, binding.var.name)
        elif isinstance(value, Var) and value in self.sizes:
            self.sizes[binding.var] = self.sizes[value]
        same = value is binding.value
        self.bindings.append(binding if same else dataclasses.replace(binding, value=value))

    def fitting(self, call: Call) -> Call:
        """Return the call with arguments and outputs that are proved to fit."""
        if is_program_call(call):
            if problems := check_prim_func_call(call, self.mod):
                raise problems[0].located(self.span)
            while (needed := needed_types(call, self.mod)) is not None:
                call = self.cast_arguments(call, needed)
            call = self.in_order(call)
        elif isinstance(call.op, AllocTensor) and len(call.args) > 1:
            self.check_place(call, call.op)
        elif isinstance(call.op, View):
            self.check_view(call, call.op)
        return call

    def isolated(self, call: Call, name: str) -> Expr:
        """Return the value of a call for which a tensor program writes only its outputs, and all of them: inputs that
        it writes are updated in place, as values, and outputs that it may leave unset begin with zeros."""
        if not isinstance(call.op, (CallTIR, CallTIRInplace)):
            return call
        callee, args = call.args[:2]
        args = expect(Tuple, args)
        callee = expect(GlobalVar, callee)
        program = self.mod.functions[callee.name]
        if not isinstance(program, TensorProgram) or program.opaque:
            return call
        places = list(places_of(call))
        spoilt, unset = self._breaches(program, args, places)
        if not spoilt and not unset:
            return call
        given, outputs = list(args.fields), list(call.ty_args)
        for i in spoilt:
            own = deduce(given[i], self.mod)
            if not self.pure:  # the caller's memory is updated only where the program says so
                given[i] = self.emit(
                    call_pure_packed("vm.builtin.copy", given[i], ty_args=own), "copy"
                )
            outputs.append(own)
            places.append(i)
        if unset:
            for k, at in enumerate(call.ty_args):
                if places[k] < 0:
                    places[k] = len(given)
                    given.append(self._zeros(at))
        made = Call(
            CallTIRInplace(tuple(places)),
            (callee, Tuple(tuple(given), span=args.span), *call.args[2:]),
            tuple(outputs),
            span=call.span,
        )
        if not spoilt:
            return made
        whole = self.emit(made, name)
        wanted = [TupleGetItem(whole, k) for k in range(len(call.ty_args))]
        return (
            wanted[0]
            if len(wanted) == 1
            else Tuple(tuple(self.emit(each, name) for each in wanted))
        )

    def _breaches(
        self, program: TensorProgram, args: Tuple, places: Sequence[int]
    ) -> tuple[list[int], bool]:
        """The arguments that a program writes and that are no outputs; and whether it may leave new memory unset."""
        tensors = [
            i
            for i, arg in enumerate(args.fields)
            if not isinstance(deduce(arg, self.mod), PrimType)
        ]
        buffers = [i for i, param in enumerate(program.params) if isinstance(param, BufferParam)]
        spoilt = [
            i
            for i, at in zip(tensors, buffers, strict=False)
            if at in program.written and i not in places
        ]
        fresh = buffers[len(tensors) :]
        return spoilt, self.with_zeros and not program.unset.isdisjoint(fresh)

    def _zeros(self, out: Annotation) -> Expr:
        return self.emit(Zeros(known_dtype(out))(ShapeExpr(known_dims(out))), "zeros")

    def in_order(self, call: Call) -> Call:
        """Return a lowered call with its scalars in the order of the program's parameters."""
        callee, *args = call.args
        callee = expect(GlobalVar, callee)
        program = self.mod.functions[callee.name]
        if not isinstance(call.op, CallDPS) or not isinstance(program, TensorProgram):
            return call
        ordered = in_order(program, args, self.mod)
        if all(a is b for a, b in zip(ordered, args, strict=True)):
            return call
        return dataclasses.replace(call, args=(callee, *ordered))

    def cast_arguments(self, call: Call, needed: NeededTypes) -> Call:
        lowered = not call.ty_args
        first = call.args[1]
        old = call.args[1:] if lowered else first.fields if isinstance(first, Tuple) else ()
        callee = expect(GlobalVar, call.args[0])
        new = tuple(
            arg if wanted is None else self.cast(arg, wanted, f"_for_{callee.name}")
            for arg, wanted in zip(old, needed.args, strict=True)
        )
        rest = new if lowered else (Tuple(new, span=first.span), *call.args[2:])
        return dataclasses.replace(call, args=(call.args[0], *rest), ty_args=needed.outputs)

    def cast(self, arg: Expr, wanted: Annotation, purpose: str) -> Expr:
        name = arg.name.removesuffix(purpose) if isinstance(arg, Var) else "arg"
        return self.emit_match_cast(arg, wanted, name + purpose)

    def cast_result(self, binding: VarBinding, call: Call, original: Call) -> None:
        """Bind the program's outputs, then cast them to the types that the call declares."""
        made = self.emit(self.isolated(call, binding.var.name), binding.var.name)
        declared = original.ty_args
        annotation = declared[0] if len(declared) == 1 else TupleType(declared)
        self.bindings.append(MatchCast(binding.var, made, annotation, span=binding.span))

    # Places in memory

    def with_sizes(self, call: Call) -> Call:
        """Resolve the size of a storage, or the shape of a tensor in one, that is a variable known only at run time (as
        in TVM's lowered programs): it is cast to symbols."""
        size = call.args[0] if call.args else None
        placed = isinstance(call.op, AllocTensor) and len(call.args) > 1
        if not isinstance(size, Var) or not (placed or isinstance(call.op, AllocStorage)):
            return call
        known = with_dims(deduce(size, self.mod), size.name)
        if known != size.annotation:
            size = self.emit_match_cast(size, known, size.name)
        match known:
            case ShapeType(dims=dims) if dims is not None:
                sized = ShapeExpr(dims) if placed else PrimValue(product(dims))
            case PrimType(value=Dim() as value) if not placed:
                sized = PrimValue(value)
            case _:
                raise PassError(
                    "op-arguments",
                    f"the size of {'a tensor in a storage' if placed else 'a storage'} must be known, got {known}",
                    span=self.span,
                    help=f"declare it: R.match_cast({size.name}, R.Shape([n]))",
                )
        return dataclasses.replace(call, args=(sized, *call.args[1:]))

    def check_place(self, call: Call, op: AllocTensor) -> None:
        """Check that a tensor lies inside its storage."""
        storage = call.args[1]
        size = self.sizes.get(storage) if isinstance(storage, Var) else None
        if size is None:
            raise PassError(
                "op-arguments",
                "the storage of a tensor must be allocated in the function that uses it",
                span=self.span,
                help="write s = R.memory.alloc_storage(R.prim_value(bytes)) before it",
            )
        made = deduce(call, self.mod)
        need = _nbytes(made)
        self.require_aligned(op.offset, made)
        self.require_room(need + op.offset, size, "a tensor exceeds its storage")

    def check_view(self, call: Call, op: View) -> None:
        """Check that a view lies inside the tensor that it views."""
        tensor = call.args[0]
        known = deduce(tensor, self.mod)
        if not isinstance(known, TensorType) or known.dims is None or known.dtype is None:
            raise PassError(
                "unknown-shape",
                f"memory.view: the shape and the dtype of the tensor must be known, got {known}",
                span=self.span,
                help='declare it: R.match_cast(x, R.Tensor((n, m), dtype="float32"))',
            )
        made = deduce(call, self.mod)
        need = _nbytes(made)
        self.require_aligned(op.offset, made)
        self.require_room(need + op.offset, _nbytes(known), "a view is larger than its tensor")

    def require_aligned(self, offset: int, made: Annotation) -> None:
        """Check that an offset is not negative and is a multiple of the item size."""
        dtype = known_dtype(made)
        if offset < 0 or offset % dtype.itemsize:
            raise PassError(
                "op-arguments",
                f"an offset must be a non-negative multiple of the size of {dtype}, got {offset}",
                span=self.span,
                help=f"the offset is in bytes, {dtype.itemsize} for each element",
            )

    def require_room(self, need: Dim, size: Dim, problem: str) -> None:
        self.require(dim_op("le", need, size), f"{problem}: {need} of {size} bytes")

    def require(self, fits: Dim, message: str) -> None:
        if fits.value == 0:
            raise PassError("shape-mismatch", message, span=self.span)
        if fits not in self.holds and not prove(fits):
            self.holds |= {fits}
            check = CheckDim(message=message)(PrimValue(fits))
            self.emit(dataclasses.replace(check, span=self.span), "_")


def _nbytes(annotation: Annotation) -> Dim:
    annotation = expect(TensorType, annotation)
    if annotation.dims is None:
        raise PassError(
            "unknown-shape",
            f"the shape of a tensor must be known to allocate it, got {annotation}",
        )
    assert annotation.dtype is not None
    return annotation.dtype.nbytes(product(annotation.dims))
