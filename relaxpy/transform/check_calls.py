"""CheckCalls: what is not known to fit a tensor program is checked before it runs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.prim_func_call import (
    NeededTypes,
    check_prim_func_call,
    in_order,
    is_program_call,
    needed_types,
)
from relaxpy.errors import PassError
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
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule, TensorProgram
from relaxpy.op.deduce import deduce
from relaxpy.op.memory import AllocStorage, AllocTensor, CallDPS, CheckDim, View
from relaxpy.shape.prove import prove
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.bind_unknown_shapes import with_dims
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class CheckCalls(Pass):
    """Nothing in a tensor program looks at its arguments: it takes `x[0:n]` for granted where a buffer is `("n",)`. So
    where a call's arguments and outputs only may fit, they are cast to what does (`match_cast`), and every call behind
    this pass is one that is proved; the same for tensors in a storage, and for views, which must lie inside. Where all
    is proved, nothing is inserted.

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

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return checked(mod)


def checked(mod: IRModule) -> IRModule:
    """The module with everything that a tensor program or an address takes for granted proved or checked."""
    return _Checker(mod).run()


class _Checker(Rebuilder):
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self.sizes: dict[Var, Dim] = {}
        """Bytes of each storage."""
        self.holds: frozenset[Dim] = frozenset()
        """Conditions that are checked before the binding at hand."""

    def function(self, function: Function) -> Function:
        outer, self.sizes = self.sizes, {}
        rebuilt = super().function(function)
        self.sizes = outer
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
                # Its size may be negative: then no tensor lies in it, or a dimension of one is negative.
                self.sizes[binding.var] = Dim.of(call.args[0].value)  # type: ignore[arg-type]
            if isinstance(call.op, CheckDim) and isinstance(call.args[0], PrimValue):
                self.holds |= {Dim.of(call.args[0].value)}  # type: ignore[arg-type]
            value = call
        elif isinstance(value, Var) and value in self.sizes:
            self.sizes[binding.var] = self.sizes[value]
        same = value is binding.value
        self.bindings.append(binding if same else dataclasses.replace(binding, value=value))

    def fitting(self, call: Call) -> Call:
        """The call with arguments and outputs that are known to fit."""
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

    def in_order(self, call: Call) -> Call:
        """A lowered call with its scalars where the program has them."""
        callee, *args = call.args
        assert isinstance(callee, GlobalVar)
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
        callee = call.args[0]
        assert isinstance(callee, GlobalVar)
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
        """Bind the outputs that the program has, and of them what the call says."""
        made = self.emit(call, binding.var.name)
        declared = original.ty_args
        annotation = declared[0] if len(declared) == 1 else TupleType(declared)
        self.bindings.append(MatchCast(binding.var, made, annotation, span=binding.span))

    # Places in memory

    def with_sizes(self, call: Call) -> Call:
        """A storage, or a tensor in one, whose size is a value that is known at run time only: this is cast to symbols,
        as TVM's lowered programs have it."""
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
                    help=f"say what it is: R.match_cast({size.name}, R.Shape([n]))",
                )
        return dataclasses.replace(call, args=(sized, *call.args[1:]))

    def check_place(self, call: Call, op: AllocTensor) -> None:
        """A tensor in a storage must lie inside."""
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
        self.require_room(need + op.offset, size, "a tensor does not lie in its storage")

    def check_view(self, call: Call, op: View) -> None:
        """A view must lie inside of what it is of."""
        tensor = call.args[0]
        known = deduce(tensor, self.mod)
        if not isinstance(known, TensorType) or known.dims is None or known.dtype is None:
            raise PassError(
                "unknown-shape",
                f"memory.view: the shape and the dtype of the tensor must be known, got {known}",
                span=self.span,
                help='say what it is: R.match_cast(x, R.Tensor((n, m), dtype="float32"))',
            )
        made = deduce(call, self.mod)
        need = _nbytes(made)
        self.require_aligned(op.offset, made)
        self.require_room(
            need + op.offset, _nbytes(known), "a view is larger than the tensor that it is of"
        )

    def require_aligned(self, offset: int, made: Annotation) -> None:
        """An offset must be one of the items of a tensor, none of which lies before the start."""
        assert isinstance(made, TensorType)
        assert made.dtype is not None
        if offset < 0 or offset % made.dtype.itemsize:
            raise PassError(
                "op-arguments",
                f"an offset must be a number of whole items of {made.dtype} from 0 up, got {offset}",
                span=self.span,
                help=f"count in bytes: {made.dtype.itemsize} for each item",
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
    assert isinstance(annotation, TensorType)
    if annotation.dims is None:
        raise PassError(
            "unknown-shape",
            f"the shape of a tensor must be known to find it a place in memory, got {annotation}",
        )
    assert annotation.dtype is not None
    return product(annotation.dims) * annotation.dtype.itemsize
