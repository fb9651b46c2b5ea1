"""LiftTransformParams: move computations that depend only on weights into a separate function, run once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.called_functions import called_functions
from relaxpy.analysis.escape import escaping
from relaxpy.analysis.in_place import state, updated
from relaxpy.analysis.removable import Removable
from relaxpy.ir.annotation import Annotation, TensorType, TupleType
from relaxpy.ir.dim import Dim, dim_op, product
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    DataflowBlock,
    DataflowVar,
    Function,
    SeqExpr,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
)
from relaxpy.ir.module import BaseFunc, IRModule
from relaxpy.ir.names import FreshNames
from relaxpy.ir.visitor import Rewriter, UsedVars, free_sym_vars, used_symbols
from relaxpy.op.base import Op
from relaxpy.op.call import CallTIR
from relaxpy.op.deduce import deduce
from relaxpy.shape.bounds import assuming, bounds_of
from relaxpy.shape.defined import defined_symbols
from relaxpy.shape.lattice import erase
from relaxpy.shape.prove import prove
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dataflow_vars import with_outputs
from relaxpy.transform.fresh_symbols import FreshSymbols

SUFFIX = "_transform_params"


@dataclass(frozen=True)
class LiftTransformParams(Pass):
    """Move the bindings that depend only on weights into a second function, `NAME_transform_params`, which returns the
    transformed weights: transposed, cast, concatenated (`LiftTransformParams` in TVM). It is called once, when the
    program is loaded, with the original weights in their order:

        weights = vm["main_transform_params"](*weights)
        vm["main"](x, *weights)

    Weights are the parameters after the first `num_input` (an attribute of the function, which `nn` sets), or those
    named in `params`. A binding stays if its result takes more memory than its inputs (decompression belongs into the
    kernel that reads it), if it may fail, or if it is returned. Weights bound at build time (`relaxpy.build(…,
    params=…)`) are constants, which `FoldConstant` and `PackWeights` transform.

    Before:
        @R.function
        def main(
            x: R.Tensor(("n", 4), dtype="float32"), w: R.Tensor((8, 4), dtype="float32")
        ) -> R.Tensor(("n", 8), dtype="float32"):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                wt = R.permute_dims(w)
                y = R.matmul(x, wt)
                R.output(y)
            return y
    After:
        @I.ir_module
        class Module:
            @R.function
            def main(
                x: R.Tensor(("n", 4), dtype="float32"), wt: R.Tensor((4, 8), dtype="float32")
            ) -> R.Tensor(("n", 8), dtype="float32"):
                R.func_attr({"num_input": 1})
                with R.dataflow():
                    y = R.matmul(x, wt)
                    R.output(y)
                return y

            @R.function
            def main_transform_params(
                w: R.Tensor((8, 4), dtype="float32")
            ) -> R.Tuple(R.Tensor((4, 8), dtype="float32")):
                with R.dataflow():
                    wt = R.permute_dims(w)
                    R.output(wt)
                return (wt,)
    """

    name: ClassVar[str] = "lift-transform-params"
    params: tuple[str, ...] = ()
    """Names of weights, `"w"` or `"main.w"`, for functions without the attribute."""

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        called = called_functions(mod)
        functions: dict[str, BaseFunc] = {}
        for name, function in mod.functions.items():
            functions[name] = function
            if not isinstance(function, Function) or "global_symbol" not in function.attrs:
                continue
            weights = () if name in called else self._weights(name, function)
            with assuming(bounds_of(function)):
                lifted = _lifted(mod, function, weights)
            if lifted:
                made = mod.fresh_name(f"{name}{SUFFIX}")
                functions[name], functions[made] = _split(mod, function, weights, lifted, made)
        return mod.with_functions(functions)

    def _weights(self, name: str, function: Function) -> tuple[Var, ...]:
        count = function.attrs.get("num_input")
        if isinstance(count, int):
            return function.params[count:]
        return tuple(
            p for p in function.params if p.name in self.params or f"{name}.{p.name}" in self.params
        )


def _lifted(mod: IRModule, function: Function, weights: Sequence[Var]) -> Sequence[VarBinding]:
    """The bindings of a function that depend only on weights and may be moved."""
    removable, used = Removable(mod), UsedVars()
    symbols = defined_symbols(weight.annotation for weight in weights)
    own = set(weights) - state(function)
    kept = escaping(function) | updated(function.body)
    found: list[VarBinding] = []
    for binding in function.body.bindings:
        uses = used(binding.value)
        if (
            isinstance(binding, VarBinding)
            and binding.var not in kept
            and uses
            and own.issuperset(uses)
            and symbols.issuperset(used_symbols(binding))
            and _is_no_larger(binding, mod)
            and removable(binding)
        ):
            own.add(binding.var)
            found.append(binding)
    needed: set[Var] = set()
    lifted = {binding.var for binding in found}
    for binding in function.body.bindings:
        if binding.var not in lifted:
            needed.update(used(binding.value))
    for binding in reversed(found):  # a value used only by bindings that stay is used there
        if binding.var in needed:
            needed.update(used(binding.value))
    return [binding for binding in found if binding.var in needed]


def _is_no_larger(binding: VarBinding, mod: IRModule) -> bool:
    """Is a value computed by operators or tensor programs, and no larger in bytes than its inputs?"""
    match binding.value:
        case TupleGetItem():
            return True
        case Call(op=op, args=args) if isinstance(op, Op) or type(op) is CallTIR:
            given = _bytes(deduce(arg, mod) for arg in args[isinstance(op, CallTIR) :])
            made = _bytes([binding.var.annotation])
            return given is not None and made is not None and prove(dim_op("le", made, given))
        case _:
            return False


def _bytes(annotations: Iterable[Annotation]) -> Dim | None:
    """The size in bytes of tensors of these annotations; None if it is not known."""
    total = Dim.of(0)
    for annotation in annotations:
        match annotation:
            case TensorType(dtype=dtype) if annotation.dims is not None and dtype is not None:
                size: Dim | None = product(annotation.dims) * dtype.itemsize
            case TupleType(fields=fields):
                size = _bytes(fields)
            case TensorType():
                size = None
            case _:
                size = Dim.of(0)
        if size is None:
            return None
        total = total + size
    return total


def _split(
    mod: IRModule,
    function: Function,
    weights: Sequence[Var],
    lifted: Sequence[VarBinding],
    name: str,
) -> tuple[Function, Function]:
    """Return the function without the lifted bindings, and the function that computes them."""
    gone = {binding.var for binding in lifted}
    rest = _Rest(gone)
    body = rest.rewrite_SeqExpr(function.body)
    used = set(UsedVars()(body))
    made = [binding.var for binding in lifted if binding.var in used]
    inputs = [param for param in function.params if param not in weights]
    kept = _needed(weights, used, [*inputs, *made], function)
    names = FreshNames(param.name for param in (*inputs, *kept))
    new = [Var(names.fresh(var.name), var.annotation, span=var.span) for var in made]
    rest.vars.update(zip(made, new, strict=True))
    main = dataclasses.replace(function, params=(*inputs, *kept, *new), body=rest.rewrite(body))
    return with_outputs(main), _transform(mod, weights, lifted, [*kept, *made], name)


def _needed(
    weights: Sequence[Var], used: set[Var], others: Sequence[Var], function: Function
) -> list[Var]:
    """The weights that a function still needs: those that it uses, and those that define a symbol which no other
    parameter defines."""
    kept = [weight for weight in weights if weight in used]
    for weight in weights:
        annotations = [var.annotation for var in (*others, *kept)]
        needed = {*used_symbols(function.body), *free_sym_vars([function.ret, *annotations])}
        lacking = needed - defined_symbols(annotations)
        if weight not in kept and not lacking.isdisjoint(free_sym_vars([weight.annotation])):
            kept.append(weight)
    return [weight for weight in weights if weight in kept]


class _Rest(Rewriter):
    """Removes bindings."""

    def __init__(self, gone: set[Var]) -> None:
        super().__init__()
        self.gone = gone

    def rewrite_SeqExpr(self, node: SeqExpr) -> SeqExpr:
        node = self.generic(node)
        blocks: list[BindingBlock] = []
        for block in node.blocks:
            kept = tuple(b for b in block.bindings if b.var not in self.gone)
            if len(kept) == len(block.bindings):
                blocks.append(block)
            elif kept:
                blocks.append(dataclasses.replace(block, bindings=kept))
        return dataclasses.replace(node, blocks=tuple(blocks))


def _transform(
    mod: IRModule,
    weights: Sequence[Var],
    lifted: Sequence[VarBinding],
    results: Sequence[Var],
    name: str,
) -> Function:
    """The function from the original weights to the transformed ones."""
    copy = FreshSymbols()
    params: list[Var] = []
    known = defined_symbols(weight.annotation for weight in weights)
    for weight in weights:
        # it depends on a size that only an input defines
        annotation = erase(weight.annotation, lambda symbol: symbol in known)
        param = Var(weight.name, copy.rewrite_annotation(annotation), span=weight.span)
        copy.vars[weight] = param
        params.append(param)
    bindings: list[Binding] = []
    for binding in lifted:
        value = copy.rewrite(binding.value)
        annotation = copy.rewrite_annotation(binding.var.annotation)
        var = DataflowVar(binding.var.name, annotation, span=binding.var.span)
        copy.vars[binding.var] = var
        bindings.append(VarBinding(var, value, span=binding.span))
    result = Tuple(tuple(copy.vars[var] for var in results))
    body = SeqExpr((DataflowBlock(tuple(bindings)),), result)
    made = Function(tuple(params), body, deduce(result, mod), attrs={"global_symbol": name})
    return with_outputs(made)
