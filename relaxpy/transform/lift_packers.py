"""LiftPackers: move computations that depend only on packed weights into functions that run once, a tensor each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.called_functions import called_functions
from relaxpy.analysis.weights import PACKED, PACKERS, packed_params, weight_only
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.expr import Call, Function, Var, VarBinding
from relaxpy.ir.module import BaseFunc, IRModule
from relaxpy.ir.names import FreshNames
from relaxpy.ir.structural import structural_equal, structural_hash
from relaxpy.ir.visitor import UsedVars
from relaxpy.op.call import CallTIR
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dataflow_vars import with_outputs
from relaxpy.transform.lifted_weights import WithoutBindings, still_needed, weight_function

LONGEST = 48
"""The longest name of a parameter that is made of the names of its sources."""


@dataclass(frozen=True)
class LiftPackers(Pass):
    """Move the bindings that depend only on packed weights (`packed_params`, an attribute of the function) into
    functions of their own, the *packers*: transpositions, casts, joins. Each makes one tensor, so that weights can be
    packed one after the other; `LiftTransformParams` makes a single function of all of them. The function takes the
    results instead of the weights, and its attribute `packers` says which packer makes which parameter from which
    weights. Equal packers are one function. Results that share a tensor program with several outputs, as the codes and
    scales of a weight that is quantised at load, come from one packer, which returns a tuple; `packers` then also says
    which of its fields a parameter is.

    Before:
        @R.function
        def main(
            x: R.Tensor(("n", 4), dtype="float32"), w: R.Tensor((8, 4), dtype="float32")
        ) -> R.Tensor(("n", 8), dtype="float32"):
            R.func_attr({"num_input": 1, "packed_params": ["w"]})
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
                x: R.Tensor(("n", 4), dtype="float32"), w: R.Tensor((4, 8), dtype="float32")
            ) -> R.Tensor(("n", 8), dtype="float32"):
                R.func_attr({"num_input": 1, "packed_params": ["w"], "packers": {"w": ["main_pack_w", ["w"]]}})
                with R.dataflow():
                    y = R.matmul(x, w)
                    R.output(y)
                return y

            @R.function
            def main_pack_w(w: R.Tensor((8, 4), dtype="float32")) -> R.Tensor((4, 8), dtype="float32"):
                with R.dataflow():
                    wt = R.permute_dims(w)
                    R.output(wt)
                return wt
    """

    name: ClassVar[str] = "lift-packers"
    mandatory: ClassVar[bool] = True

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        called = called_functions(mod)
        packers = Packers(mod)
        functions: dict[str, BaseFunc] = {}
        for name, function in mod.functions.items():
            weights = packed_params(function) if isinstance(function, Function) else ()
            if weights and name not in called:
                function = expect(Function, function)
                lifted = _lifted(mod, function, weights)
                if lifted:
                    function = _split(packers, name, function, weights, lifted)
            functions[name] = function
        return mod.with_functions({**functions, **packers.functions}) if packers.functions else mod


class Packers:
    """The packers of a module. Equal ones are one function."""

    def __init__(self, mod: IRModule) -> None:
        self.mod = mod
        self.functions: dict[str, Function] = {}
        """The new ones, by name."""
        self._names = FreshNames(mod.functions)
        self._known: dict[int, list[str]] = {}

    def name(self, owner: str, weight: str) -> str:
        """An unused name for the packer of a function's weight."""
        return self._names.fresh(f"{owner}_pack_{weight}")

    def add(self, name: str, function: Function) -> str:
        """Add a function under this name, unless there is an equal one. Returns its name."""
        plain = dataclasses.replace(function, attrs={})
        same = self._known.setdefault(structural_hash(plain), [])
        for other in same:
            if structural_equal(dataclasses.replace(self.functions[other], attrs={}), plain):
                return other
        same.append(name)
        self.functions[name] = function
        return name


def _lifted(mod: IRModule, function: Function, weights: Sequence[Var]) -> list[VarBinding]:
    """The bindings to move: those that depend only on weights, as long as all values that the rest uses are tensors."""
    found = weight_only(mod, function, weights)
    used = UsedVars()
    while True:
        lifted = {binding.var for binding in found}
        stays: set[Var] = set()
        for binding in function.body.bindings:
            if binding.var not in lifted:
                stays.update(used(binding.value))
        kept = [b for b in found if b.var not in stays or isinstance(b.var.annotation, TensorType)]
        if len(kept) == len(found):
            return found
        found = kept


def _split(
    packers: Packers,
    name: str,
    function: Function,
    weights: Sequence[Var],
    lifted: Sequence[VarBinding],
) -> Function:
    """Return the function without the lifted bindings, and add their packers."""
    rest = WithoutBindings({binding.var for binding in lifted})
    body = rest.rewrite_SeqExpr(function.body)
    used = set(UsedVars()(body))
    made = [binding.var for binding in lifted if binding.var in used]
    inputs = [param for param in function.params if param not in weights]
    kept = still_needed(weights, used, [*inputs, *made], function)
    names = FreshNames(param.name for param in (*inputs, *kept))
    table = {**function.attrs.get(PACKERS, {})}
    new: list[Var] = []
    for group in _groups(made, lifted):
        bindings, sources = _closure(group, weights, lifted)
        label = "_".join(source.name for source in sources)
        if len(label) > LONGEST:
            label = f"{sources[0].name}_and_{len(sources) - 1}_more"
        several = len(group) > 1
        packer = packers.name(name, label)
        result = group if several else group[0]
        packer = packers.add(
            packer, weight_function(packers.mod, sources, bindings, result, packer)
        )
        origins = [source.name for source in sources]
        for number, var in enumerate(group):
            own = names.fresh(var.name if several else label)
            param = Var(own, var.annotation, span=sources[0].span)
            table[own] = [packer, origins, number] if several else [packer, origins]
            rest.vars[var] = param
            new.append(param)
    attrs = {**function.attrs, PACKED: [v.name for v in (*kept, *new)], PACKERS: table}
    params = (*inputs, *kept, *new)
    return with_outputs(
        dataclasses.replace(function, params=params, body=rest.rewrite(body), attrs=attrs)
    )


def _groups(made: Sequence[Var], lifted: Sequence[VarBinding]) -> list[list[Var]]:
    """The values that one packer makes: those that need a call with several outputs are together."""
    values = {binding.var: binding.value for binding in lifted}
    used, calls = UsedVars(), dict[Var, frozenset[Var]]()
    for var, value in values.items():  # in order, so that what a value uses is known
        found = frozenset[Var]().union(*(calls.get(each, ()) for each in used(value)))
        several = isinstance(value, Call) and type(value.op) is CallTIR and len(value.ty_args) > 1
        calls[var] = found | {var} if several else found
    groups: list[tuple[list[Var], frozenset[Var]]] = []
    for var in made:
        together, shared = [var], calls[var]
        others: list[tuple[list[Var], frozenset[Var]]] = []
        for group in groups:
            if shared.isdisjoint(group[1]):
                others.append(group)
            else:
                together, shared = [*group[0], *together], shared | group[1]
        groups = [*others, (together, shared)]
    return [sorted(group, key=made.index) for group, _ in groups]


def _closure(
    made: Sequence[Var], weights: Sequence[Var], lifted: Sequence[VarBinding]
) -> tuple[list[VarBinding], list[Var]]:
    """The bindings that values are computed by, in order, and the weights that they use."""
    needed, used = set(made), UsedVars()
    found: list[VarBinding] = []
    for binding in reversed(lifted):
        if binding.var in needed:
            needed.update(used(binding.value))
            found.append(binding)
    return found[::-1], [weight for weight in weights if weight in needed]
