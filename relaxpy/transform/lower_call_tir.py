"""LowerCallTIR: make allocation explicit, with calls in destination-passing style."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.donated import donated
from relaxpy.analysis.in_place import (
    owned_parameters,
    updatable,
    updated_arguments,
    updated_parameters,
)
from relaxpy.analysis.prim_func_call import in_order
from relaxpy.ir.accessors import expect, known_dims, tensor_of
from relaxpy.ir.annotation import Annotation, ObjectType, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import product
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    DataflowVar,
    Expr,
    ExternFunc,
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
from relaxpy.ir.module import IRModule, TensorProgram
from relaxpy.ir.recursion import deep_recursion
from relaxpy.ir.visitor import Visitor
from relaxpy.op.call import (
    CallPurePacked,
    CallTIRInplace,
    CrossLevelCall,
    InvokeClosure,
    call_pure_packed,
)
from relaxpy.op.deduce import deduce
from relaxpy.op.memory import AllocStorage, AllocTensor, CallDPS
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.check_calls import checked
from relaxpy.transform.rebuild import Rebuilder

UPDATED_ATTR = "vm.updated"
"""Function attribute: the positions of the parameters that the function updates in place."""


@dataclass(frozen=True)
class LowerCallTIR(Pass):
    """Replace `call_tir(f, args, out, symbols)` by an allocation of each output and a call of f with inputs, outputs
    and symbols (figure 5 of the paper; `CallTIRRewrite` in TVM). Calls of library functions are lowered in the same
    way. `call_tir_inplace` writes into its argument if that is not read afterwards, else into a copy; what the steps of
    a loop update is copied once, before the loop. A function that may update its argument gets a copy of a constant.
    Dataflow blocks become plain ones (`ToNonDataflow`), since calls now write to memory.

    Before:
        @I.ir_module
        class Module:
            @T.prim_func(private=True)
            def exp(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
                n = T.int64()
                for i in range(n):
                    with T.sblock("exp"):
                        vi = T.axis.spatial(n, i)
                        y[vi] = T.exp(x[vi])

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                n = T.int64()
                cls = Module
                with R.dataflow():
                    gv = R.call_tir(cls.exp, (x,), out_ty=R.Tensor((n,), dtype="float32"))
                    R.output(gv)
                return gv
    After:
        @I.ir_module
        class Module:
            @T.prim_func(private=True)
            def exp(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
                n = T.int64()
                for i in range(n):
                    with T.sblock("exp"):
                        vi = T.axis.spatial(n, i)
                        y[vi] = T.exp(x[vi])

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                n = T.int64()
                cls = Module
                gv = R.memory.alloc_tensor(R.shape([n]), dtype="float32")
                _gv = R.vm.call_dps(cls.exp, x, gv)
                return gv
    """

    name: ClassVar[str] = "lower-call-tir"
    mandatory: ClassVar[bool] = True
    prerequisites: ClassVar[tuple[str, ...]] = ("legalize-ops", "lambda-lift")

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        mod = checked(mod)  # from here on, nothing checks the arguments of a kernel
        lowered = _Lowerer(mod).run()
        return lowered.map_graph_functions(lambda name, f: _told(f, mod.graph_functions[name], mod))


def _told(lowered: Function, function: Function, mod: IRModule) -> Function:
    """Record in an attribute which parameters a function updates. Once lowered, they look like inputs."""
    indices = sorted({*updated_parameters(function, mod), *donated(function)})
    if not indices:
        return lowered
    return dataclasses.replace(lowered, attrs={**lowered.attrs, UPDATED_ATTR: tuple(indices)})


class _Lowerer(Rebuilder):
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self.updatable: frozenset[tuple[Call, int]] = frozenset()
        owned = owned_parameters(mod)
        self.copied = owned.copied
        self.owned: dict[object, frozenset[int]] = {
            mod.functions[name]: positions for name, positions in owned.parameters.items()
        }
        """By function, the parameters that are its own memory."""
        self.allocated: set[Expr] = set()
        """Variables that name freshly allocated memory, never constants."""
        self.foreign: set[Expr] = set()
        """Results of function calls, whose memory may belong to anyone."""
        self.whole: set[Var] = set()
        """Variables with a use other than taking a field."""
        self.parts: dict[Var, list[Expr]] = {}
        """Tuples of outputs that are not built because only their fields are used. The memory plan would have to keep
        every tensor in a tuple."""

    def seq(self, seq: SeqExpr, function: Function | None = None) -> SeqExpr:
        if function is not None:
            self.updatable = updatable(function, self.owned.get(function, ()))
            self.whole = _whole_uses(function)
        return super().seq(seq, function)

    def is_dataflow(self, block: BindingBlock) -> bool:
        return False

    def block(self, old: BindingBlock, bindings: tuple[Binding, ...]) -> BindingBlock:
        return BindingBlock(bindings, span=old.span)

    def define(self, var: Var, annotation: Annotation, value: Expr) -> Var:
        if isinstance(var, DataflowVar):
            fresh = Var(var.name, annotation, span=var.span)
            self.vars[var] = fresh
            return fresh
        return super().define(var, annotation, value)

    def binding(self, binding: Binding) -> None:
        value = binding.value
        if isinstance(binding, MatchCast):
            source = self.use(value)
            var = self.define(binding.var, binding.var.annotation, source)
            self.bindings.append(MatchCast(var, source, binding.annotation, span=binding.span))
            return
        if isinstance(value, Call) and isinstance(value.op, (AllocTensor, AllocStorage)):
            binding = VarBinding(binding.var, self.with_known_shape(value), span=binding.span)
        if isinstance(value, TupleGetItem) and isinstance(value.tuple, Var):
            parts = self.parts.get(value.tuple)
            if parts is not None:
                binding = VarBinding(binding.var, parts[value.index], span=binding.span)
        if not (isinstance(value, Call) and isinstance(value.op, CrossLevelCall)):
            self.note_foreign(binding)
            if isinstance(value, Call) and (may_update := updated_arguments(value, self.mod)):
                if isinstance(value.op, CallDPS):
                    may_update = [i for i in may_update if value.args[i] in self.foreign]
                value = self.without_constants(value, may_update)
                binding = VarBinding(binding.var, value, span=binding.span)
            if isinstance(value, Call) and isinstance(value.op, GlobalVar):
                value = self.with_copies(value, binding.value)
                binding = VarBinding(binding.var, value, span=binding.span)
            super().binding(binding)
            return
        self.allocated.add(binding.var)
        call = expect(Call, self.use(value))
        callee, args = call.args[0], expect(Tuple, call.args[1])
        inputs = list(args.fields)
        outputs, allocated = self.outputs(binding, value, call, inputs)
        symbols: list[Expr] = []
        if len(call.args) > 2 and isinstance(call.args[2], ShapeExpr):
            symbols = [PrimValue(dim) for dim in call.args[2].dims]
        values: Sequence[Expr] = (*inputs, *allocated, *symbols)
        program = self.mod.functions.get(callee.name) if isinstance(callee, GlobalVar) else None
        if isinstance(program, TensorProgram):
            values = in_order(program, values, self.mod)
        self.emit(CallDPS()(callee, *values), f"_{binding.var.name}")
        if outputs == [self.vars.get(binding.var, binding.var)]:
            return
        if len(outputs) > 1 and binding.var not in self.whole:
            self.parts[binding.var] = outputs
            return
        result = outputs[0] if len(outputs) == 1 else Tuple(tuple(outputs), span=value.span)
        var = self.define(binding.var, binding.var.annotation, result)
        self.bindings.append(VarBinding(var, result, span=binding.span))

    def outputs(
        self, binding: Binding, original: Call, call: Call, inputs: list[Expr]
    ) -> tuple[list[Expr], list[Expr]]:
        """Return all outputs of a call, and those among them that are allocated here. An argument that must not be
        modified is replaced by a copy in `inputs`."""
        indices = (
            call.op.inplace_indices
            if isinstance(call.op, CallTIRInplace)
            else (-1,) * len(call.ty_args)
        )
        outputs: list[Expr] = []
        allocated: list[Expr] = []
        for i, (index, out) in enumerate(zip(indices, call.ty_args, strict=True)):
            if index >= 0:
                if (original, index) not in self.updatable:
                    copy = call_pure_packed("vm.builtin.copy", inputs[index], ty_args=out)
                    inputs[index] = self.emit(copy, "copy", out)
                outputs.append(inputs[index])
                continue
            var = (
                self.define(binding.var, out, call)
                if len(call.ty_args) == 1
                else self.new_var(f"{binding.var.name}_{i}", out)
            )
            self.bindings.append(self.alloc(var, binding))
            outputs.append(var)
            allocated.append(var)
        return outputs, allocated

    def note_foreign(self, binding: Binding) -> None:
        value = binding.value
        source = value.tuple if isinstance(value, TupleGetItem) else value
        if source in self.foreign or (
            isinstance(value, Call)
            and isinstance(value.op, (ExternFunc, GlobalVar, Var, CallPurePacked, InvokeClosure))
        ):
            self.foreign.add(binding.var)

    def without_constants(self, call: Call, indices: Sequence[int]) -> Call:
        """Replace arguments that may be constants of the executable by copies where the callee would modify them.
        Whether a value is a constant may be known only at run time."""
        args = list(call.args)
        for i in indices:
            if args[i] in self.allocated:
                continue
            old = args[i]
            arg = self.use(old)
            annotation = deduce(arg, self.mod)
            if isinstance(annotation, (TensorType, TupleType, ObjectType)):
                own = call_pure_packed("vm.builtin.writable", arg, ty_args=annotation)
                args[i] = var = self.emit(own, "own", annotation)
                if isinstance(call.op, CallDPS) and isinstance(old, Var):
                    self.vars[old] = var  # the output is read under its old name
        return dataclasses.replace(call, args=tuple(args))

    def with_copies(self, call: Call, original: Expr) -> Call:
        """Copy the arguments of a loop that its steps update, where they are not the loop's own."""
        args = list(call.args)
        for i, arg in enumerate(args):
            if (original, i) in self.copied:
                value = self.use(arg)
                annotation = deduce(value, self.mod)
                copy = call_pure_packed("vm.builtin.copy", value, ty_args=annotation)
                args[i] = self.emit(copy, "copy", annotation)
        return call if args == list(call.args) else dataclasses.replace(call, args=tuple(args))

    def with_known_shape(self, call: Call) -> Call:
        """Replace an allocation's shape variable (as in TVM's lowered programs) by its known dimensions."""
        shape, *rest = call.args
        shape = self.use(shape)
        annotation = shape.annotation if isinstance(shape, Var) else None
        if not isinstance(annotation, ShapeType) or annotation.dims is None:
            return call
        known: Expr = ShapeExpr(annotation.dims, span=shape.span)
        if isinstance(call.op, AllocStorage):
            known = PrimValue(product(annotation.dims), span=shape.span)
        return dataclasses.replace(call, args=(known, *rest))

    def alloc(self, out: Var, binding: Binding) -> VarBinding:
        annotation = tensor_of(out)
        call = AllocTensor(dtype=str(annotation.dtype), vdevice=annotation.vdevice)(
            ShapeExpr(known_dims(annotation))
        )
        return VarBinding(out, call, span=binding.span)


def _whole_uses(function: Function) -> set[Var]:
    visitor = _WholeUses()
    with deep_recursion():
        visitor.visit(function.body)
    return visitor.found


class _WholeUses(Visitor):
    def __init__(self) -> None:
        self.found: set[Var] = set()

    def visit_VarBinding(self, node: VarBinding) -> None:
        self.visit(node.value)

    def visit_MatchCast(self, node: MatchCast) -> None:
        self.visit(node.value)
        self.visit_annotation(node.annotation)

    def visit_TupleGetItem(self, node: TupleGetItem) -> None:
        if not isinstance(node.tuple, Var):
            self.visit(node.tuple)

    def visit_Var(self, node: Var) -> None:
        self.found.add(node)

    visit_DataflowVar = visit_Var
