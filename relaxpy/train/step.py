"""One step of training as one executable: the loss, its gradients and the optimiser, fused and planned together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from relaxpy.analysis.donated import DONATED
from relaxpy.build.build import build
from relaxpy.build.first_call import ModuleFunction
from relaxpy.errors import UsageError
from relaxpy.ir.annotation import TensorType, TupleType
from relaxpy.ir.expr import Call, Expr, Function, GlobalVar, Tuple, Var
from relaxpy.ir.module import IRModule
from relaxpy.narrow import is_tuple
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.op.rule import Rule
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.tensor import Tensor
from relaxpy.runtime.vm import VirtualMachine
from relaxpy.target import Target
from relaxpy.train.optimizers import Optimizer
from relaxpy.transform.fresh_symbols import FreshSymbols
from relaxpy.transform.gradient import Gradient

GRADIENT = "value_and_grad"


class Step:
    """A step of training a function: `step(weights, state, *batch)` gives the loss, the new weights and the new state.

    `loss` is a function (decorated, or `Module.main`) whose result is a float scalar; with `has_aux` a tuple of it and
    other values, and the step gives this tuple. `params` are the numbers of the parameters that are trained: tensors of
    known sizes. All others are the batch. The step is built when it is first called, or by `build`.

    With `donate` the new weights and state take over the memory of those before: what a step returned is overwritten by
    the next one that it is passed to (`w.copy()` keeps it). Arrays of the caller are copied once, and never changed.
    """

    def __init__(
        self,
        loss: Function | ModuleFunction,
        optimizer: Optimizer,
        params: Sequence[int],
        *,
        has_aux: bool = False,
        donate: bool = True,
    ) -> None:
        self.optimizer, self.donate = optimizer, donate
        if isinstance(loss, Function):
            name = str(loss.attrs.get("global_symbol", "main"))
            mod = IRModule({name: loss})
        else:
            name, mod = loss.name, loss.module
        function = mod.graph_function(name)
        count = len(function.params)
        self.params = tuple(number % count for number in params)
        self.types = [_weight(function.params[number]) for number in self.params]
        self.mod = self._module(mod, name, has_aux)
        self._vm: VirtualMachine | None = None

    def _module(self, mod: IRModule, name: str, has_aux: bool) -> IRModule:
        """The module of the step."""
        called = mod.fresh_name(f"{name}_{GRADIENT}")
        mod = Gradient(name, GRADIENT, self.params, has_aux, called)(mod)
        derived = mod.graph_functions[called]
        inner = {n: dataclasses.replace(f, attrs={}) for n, f in mod.graph_functions.items()}
        private = mod.with_functions({**mod.functions, **inner})
        bb = BlockBuilder(private)
        fresh = FreshSymbols()
        given = [
            Var(p.name, fresh.rewrite_annotation(p.annotation), span=p.span) for p in derived.params
        ]
        slots = TupleType(TupleType([t] * self.optimizer.slots) for t in self.types)
        state = Var("state", TupleType([TensorType((), "int64"), slots]))
        lr = Var("lr", TensorType((), "float32"))
        with bb.function("step", [*given, state, lr]):
            b = Rule(bb.emit)
            value, gradients = b.fields(bb.emit(Call(GlobalVar(called), tuple(given))))
            done, old = b.fields(state)
            count = b.add(done, 1)
            weights: list[Expr] = []
            states: list[Expr] = []
            for number, g, own in zip(self.params, b.fields(gradients), b.fields(old), strict=True):
                rate, steps = (b.astype(each, b.dtype(g)) for each in (lr, count))
                w, new = self.optimizer.update(b, given[number], g, b.fields(own), rate, steps)
                weights.append(w)
                states.append(Tuple(tuple(new)))
            result = Tuple((value, Tuple(tuple(weights)), Tuple((count, Tuple(tuple(states))))))
            bb.emit_func_output(bb.emit(result))
        made = bb.get()
        if not self.donate:
            return made
        step = made.graph_functions["step"]
        names = [*(given[number].name for number in self.params), state.name]
        attrs = {**step.attrs, DONATED: names}
        return made.with_functions(
            {**made.functions, "step": dataclasses.replace(step, attrs=attrs)}
        )

    def build(self, target: Target | str | None = None) -> Executable:
        """The executable, whose function is `step`: of the parameters of the loss, the state and the learning rate."""
        return build(self.mod, target=target) if target is not None else build(self.mod)

    def start(self, weights: Sequence[Any]) -> Any:
        """The state before the first step."""
        del weights  # the state has their types
        shapes = [tuple(d.value or 0 for d in t.dims or ()) for t in self.types]
        zeros = tuple(
            tuple(np.zeros(shape, t.dtype.numpy) for _ in range(self.optimizer.slots))  # type: ignore[union-attr]
            for shape, t in zip(shapes, self.types, strict=True)
        )
        return np.asarray(0, np.int64), zeros

    def __call__(
        self, weights: Sequence[Any], state: Any, *batch: Any, lr: float | None = None
    ) -> tuple[Any, Any, Any]:
        """Make a step: (loss, new weights, new state). `lr` is the learning rate, if it is not the optimiser's."""
        if len(weights) != len(self.params):
            raise UsageError(
                "arguments",
                f"the step trains {len(self.params)} parameters, got {len(weights)} weights",
                help="pass them as one sequence, before the state and the batch",
            )
        if self._vm is None:
            self._vm = VirtualMachine(self.build())
        if self.donate:
            weights, state = (_own(each, self._vm) for each in (tuple(weights), state))
        trained = dict(zip(self.params, weights, strict=True))
        rest = iter(batch)
        count = len(weights) + len(batch)
        args = [trained[i] if i in trained else next(rest) for i in range(count)]
        rate = np.asarray(self.optimizer.lr if lr is None else lr, np.float32)
        value, new, after = self._vm["step"](*args, state, rate)
        return value, new, after


def _own(value: Any, vm: VirtualMachine) -> Any:
    """A weight or state, with copies of what is not the machine's."""
    if is_tuple(value):
        return tuple(_own(each, vm) for each in value)
    return value if isinstance(value, Tensor) and value.writable else vm.upload(value)


def _weight(param: Var) -> TensorType:
    """The type of a parameter that is trained."""
    t = param.annotation
    if (
        isinstance(t, TensorType)
        and t.dims is not None
        and all(d.value is not None for d in t.dims)
    ):
        return t
    raise UsageError(
        "arguments",
        f"{param.name} is trained, and is {t}: a weight is a tensor of known sizes",
        span=param.span,
        help="leave it out of params, or give it sizes",
    )
