"""LiftTransformParams: move computations that depend only on weights into a separate function, run once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.called_functions import called_functions
from relaxpy.analysis.weights import NUM_INPUT, trailing_weights, weight_only
from relaxpy.ir.expr import Function, Var, VarBinding
from relaxpy.ir.module import BaseFunc, IRModule
from relaxpy.ir.names import FreshNames
from relaxpy.ir.visitor import UsedVars
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dataflow_vars import with_outputs
from relaxpy.transform.lifted_weights import WithoutBindings, still_needed, weight_function

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
            lifted = weight_only(mod, function, weights)
            if lifted:
                made = mod.fresh_name(f"{name}{SUFFIX}")
                functions[name], functions[made] = _split(mod, function, weights, lifted, made)
        return mod.with_functions(functions)

    def _weights(self, name: str, function: Function) -> tuple[Var, ...]:
        if NUM_INPUT in function.attrs:
            return trailing_weights(function)
        return tuple(
            p for p in function.params if p.name in self.params or f"{name}.{p.name}" in self.params
        )


def _split(
    mod: IRModule,
    function: Function,
    weights: Sequence[Var],
    lifted: Sequence[VarBinding],
    name: str,
) -> tuple[Function, Function]:
    """Return the function without the lifted bindings, and the function that computes them."""
    gone = {binding.var for binding in lifted}
    rest = WithoutBindings(gone)
    body = rest.rewrite_SeqExpr(function.body)
    used = set(UsedVars()(body))
    made = [binding.var for binding in lifted if binding.var in used]
    inputs = [param for param in function.params if param not in weights]
    kept = still_needed(weights, used, [*inputs, *made], function)
    names = FreshNames(param.name for param in (*inputs, *kept))
    new = [Var(names.fresh(var.name), var.annotation, span=var.span) for var in made]
    rest.vars.update(zip(made, new, strict=True))
    main = dataclasses.replace(function, params=(*inputs, *kept, *new), body=rest.rewrite(body))
    return with_outputs(main), weight_function(mod, weights, lifted, [*kept, *made], name)
