"""One step of training as one executable: the loss, its gradients and the optimiser, fused and planned together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from relaxpy.analysis.donated import DONATED
from relaxpy.build.build import build
from relaxpy.build.first_call import ModuleFunction
from relaxpy.errors import UsageError, wrong_weights
from relaxpy.files import replacing
from relaxpy.ir.accessors import known_dtype
from relaxpy.ir.annotation import TensorType, TupleType
from relaxpy.ir.expr import Call, Expr, Function, GlobalVar, Tuple, Var
from relaxpy.ir.module import IRModule
from relaxpy.narrow import is_tuple
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.op.rule import Rule
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.safetensors import map_tensors
from relaxpy.runtime.tensor import Tensor
from relaxpy.runtime.vm import VirtualMachine
from relaxpy.target import Target
from relaxpy.train.optimizers import Optimizer
from relaxpy.train.torch_state import from_torch, to_torch
from relaxpy.transform.fresh_symbols import FreshSymbols
from relaxpy.transform.gradient import Gradient

GRADIENT = "value_and_grad"
STEP, ADD = "step", "add"
"""The functions of a step's executable."""


class Step:
    """A step of training a function: `step(weights, state, *batch)` gives the loss, the new weights and the new state.

    `loss` is a function (decorated, or `Module.main`) whose result is a float scalar; with `has_aux` a tuple of it and
    other values, and the step gives this tuple. `params` are the numbers of the parameters that are trained: tensors of
    known sizes. All others are the batch, but for those named in `packed`: weights that stay as they are, which
    `VirtualMachine.pack` makes for an executable of `build`, and a call takes as `packed`. The step is built when it is
    first called, unless `use` gave it a machine. `optimizer` is one
    for all of them, or one for each, in their order. `schedule` tells the factor of their learning rates for the number
    of steps done (`relaxpy.train.cosine`). With `clip_norm` gradients are scaled down so that all of them together are
    no longer than that (`torch.nn.utils.clip_grad_norm_`).

    With `accumulate` gradients of parts of a batch can be summed before a step (`add`), so that a batch need not fit
    into memory.

    With `check_numbers` a step ends with an error that names the first operator that makes a NaN or an infinity of
    finite numbers, with its line (`relaxpy.build`); it takes longer.

    With `donate` the new weights and state take over the memory of those before: what a step returned is overwritten by
    the next one that it is passed to (`w.copy()` keeps it). Arrays of the caller are copied once, and never changed.
    """

    def __init__(
        self,
        loss: Function | ModuleFunction,
        optimizer: Optimizer | Sequence[Optimizer],
        params: Sequence[int],
        *,
        has_aux: bool = False,
        donate: bool = True,
        schedule: Callable[[int], float] | None = None,
        clip_norm: float | None = None,
        packed: Sequence[str] = (),
        check_numbers: bool = False,
        accumulate: bool = False,
    ) -> None:
        self.accumulate = accumulate
        self.packed, self.has_aux, self.check_numbers = tuple(packed), has_aux, check_numbers
        self.donate, self.schedule, self.clip_norm = donate, schedule, clip_norm
        if isinstance(loss, Function):
            name = str(loss.attrs.get("global_symbol", "main"))
            mod = IRModule({name: loss})
        else:
            name, mod = loss.name, loss.module
        function = mod.graph_function(name)
        count = len(function.params)
        self.params = tuple(number % count for number in params)
        self.types = [_weight(function.params[number]) for number in self.params]
        self.names = [function.params[number].name for number in self.params]
        same = isinstance(optimizer, Optimizer)
        self.optimizers = [optimizer] * len(self.params) if same else list(optimizer)
        if len(self.optimizers) != len(self.params):
            raise UsageError(
                "arguments",
                f"the step trains {len(self.params)} parameters, got {len(self.optimizers)} optimisers",
                help="pass one for all, or one for each",
            )
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
        given, inputs, frozen = self._given(derived, fresh)
        slots = TupleType(
            TupleType([t] * len(o.slots)) for t, o in zip(self.types, self.optimizers, strict=True)
        )
        state = Var("state", TupleType([TensorType((), "int64"), slots]))
        every = list(dict.fromkeys(self.optimizers))
        lr = Var("lr", TupleType([TensorType((), "float32")] * len(every)))
        sums = Var("sums", self._sums_type())
        own = [sums] if self.accumulate else []
        with bb.function("step", [*inputs, state, lr, *own, *frozen]):
            b = Rule(bb.emit)
            value, gradients = b.fields(bb.emit(Call(GlobalVar(called), tuple(given))))
            if self.accumulate:
                before, parts = b.fields(sums)
                pairs = zip(b.fields(before), b.fields(gradients), strict=True)
                means = [
                    b.divide(b.add(s, g), b.astype(b.add(parts, 1.0), b.dtype(g))) for s, g in pairs
                ]
                gradients = bb.emit(Tuple(tuple(means)))
            done, old = b.fields(state)
            count = b.add(done, 1)
            rates = dict(zip(every, b.fields(lr), strict=True))
            weights: list[Expr] = []
            states: list[Expr] = []
            for number, g, own, optimizer in zip(
                self.params, self._clipped(b, b.fields(gradients)), b.fields(old), self.optimizers,
                strict=True,
            ):  # fmt: skip
                rate, steps = (b.astype(each, b.dtype(g)) for each in (rates[optimizer], count))
                w, new = optimizer.update(b, given[number], g, b.fields(own), rate, steps)
                weights.append(w)
                states.append(Tuple(tuple(new)))
            result = Tuple((value, Tuple(tuple(weights)), Tuple((count, Tuple(tuple(states))))))
            bb.emit_func_output(bb.emit(result))
        given_up = {"step": [*(given[number].name for number in self.params), state.name]}
        if self.accumulate:
            self._add_parts(bb, called, derived)
            given_up[ADD] = [sums.name]
        made = bb.get()
        if not self.donate:
            return made
        for name_of, names in given_up.items():
            function = made.graph_functions[name_of]
            attrs = {**function.attrs, DONATED: names}
            made = made.with_function(name_of, dataclasses.replace(function, attrs=attrs))
        return made

    def _given(
        self, derived: Function, fresh: FreshSymbols
    ) -> tuple[list[Var], list[Var], list[Var]]:
        """New parameters as those of the derivative: all of them, and of these the inputs and what is packed."""
        given = [
            Var(p.name, fresh.rewrite_annotation(p.annotation), span=p.span) for p in derived.params
        ]
        frozen = [var for var in given if var.name in self.packed]
        return given, [var for var in given if var not in frozen], frozen

    def _sums_type(self) -> TupleType:
        """Sums of gradients, and of how many parts."""
        return TupleType([TupleType(self.types), TensorType((), "float32")])

    def _add_parts(self, bb: BlockBuilder, called: str, derived: Function) -> None:
        """The function that sums the gradients of parts of a batch."""
        given, inputs, frozen = self._given(derived, FreshSymbols())
        sums = Var("sums", self._sums_type())
        with bb.function(ADD, [*inputs, sums, *frozen]):
            b = Rule(bb.emit)
            value, gradients = b.fields(bb.emit(Call(GlobalVar(called), tuple(given))))
            before, parts = b.fields(sums)
            pairs = zip(b.fields(before), b.fields(gradients), strict=True)
            new = Tuple(tuple(b.add(s, g) for s, g in pairs))
            result = Tuple((value, Tuple((new, b.add(parts, 1.0)))))
            bb.emit_func_output(bb.emit(result))

    def _clipped(self, b: Rule, gradients: Sequence[Expr]) -> Sequence[Expr]:
        """The gradients, of bounded length."""
        if self.clip_norm is None:
            return gradients
        squares = [b.sum(b.square(b.astype(g, "float32"))) for g in gradients]
        length = b.sqrt(reduce(b.add, squares))
        factor = b.minimum(b.divide(self.clip_norm, b.add(length, 1e-6)), 1.0)
        return [b.multiply(g, b.astype(factor, b.dtype(g))) for g in gradients]

    def build(self, target: Target | str = "llvm", **options: Any) -> Executable:
        """The executable, whose function is `step`: of the parameters of the loss, the state, a tuple of learning
        rates, one for each optimiser, and what is packed. `options` are those of `relaxpy.build`."""
        return build(
            self.mod, target, pack=self.packed or False, check_numbers=self.check_numbers, **options
        )

    def use(self, vm: VirtualMachine) -> None:
        """Make the steps on this machine, of an executable of `build`."""
        self._vm = vm

    def start(self, weights: Sequence[Any]) -> Any:
        """The state before the first step."""
        del weights  # the state has their types
        zeros = tuple(
            tuple(np.zeros(*_shape(t)) for _ in optimizer.slots)
            for t, optimizer in zip(self.types, self.optimizers, strict=True)
        )
        return np.asarray(0, np.int64), zeros

    def __call__(
        self,
        weights: Sequence[Any],
        state: Any,
        *batch: Any,
        lr: float | None = None,
        packed: Sequence[Any] = (),
        sums: Any = None,
    ) -> tuple[Any, Any, Any]:
        """Make a step: (loss, new weights, new state). `lr` is the learning rate of all weights, if it is not their
        optimisers'. `packed` is `vm.pack(…)["step"]`. `sums` are those of `add` for the other parts of the batch: the
        gradient is the mean of all parts'."""
        vm = self._machine()
        if self.donate:
            weights, state = (_own(each, vm) for each in (tuple(weights), state))
        args = self._arguments(weights, batch)
        factor = 1.0 if self.schedule is None else self.schedule(int(np.asarray(state[0])))
        every = dict.fromkeys(self.optimizers)
        rates = tuple(np.asarray((o.lr if lr is None else lr) * factor, np.float32) for o in every)
        own = [_own(self._no_sums() if sums is None else sums, vm)] if self.accumulate else []
        value, new, after = vm["step"](*args, state, rates, *own, *packed)
        return value, new, after

    def add(
        self, weights: Sequence[Any], sums: Any, *batch: Any, packed: Sequence[Any] = ()
    ) -> tuple[Any, Any]:
        """The loss of a part of a batch, and the sums of gradients with its own; `sums` is None for the first part.
        `packed` is `vm.pack(…)["add"]`. Raises: UsageError without `accumulate`."""
        if not self.accumulate:
            raise UsageError(
                "arguments",
                "the step sums no gradients",
                help="make it with Step(…, accumulate=True)",
            )
        vm = self._machine()
        given = _own(self._no_sums() if sums is None else sums, vm)
        value, new = vm[ADD](*self._arguments(weights, batch), given, *packed)
        return value, new

    def _no_sums(self) -> Any:
        return tuple(np.zeros(*_shape(t)) for t in self.types), np.zeros((), np.float32)

    def _machine(self) -> VirtualMachine:
        if self._vm is None:
            self._vm = VirtualMachine(self.build())
        return self._vm

    def _arguments(self, weights: Sequence[Any], batch: Sequence[Any]) -> list[Any]:
        """The parameters of the loss, but for what is packed."""
        if len(weights) != len(self.params):
            raise UsageError(
                "arguments",
                f"the step trains {len(self.params)} parameters, got {len(weights)} weights",
                help="pass them as one sequence, before the state and the batch",
            )
        trained, rest = dict(zip(self.params, weights, strict=True)), iter(batch)
        count = len(weights) + len(batch)
        return [trained[i] if i in trained else next(rest) for i in range(count)]

    def save(self, path: str | Path, weights: Sequence[Any], state: Any) -> None:
        """Write weights and state to a safetensors file, from which training goes on to the bit: weights by their
        parameters' names, the state as NAME.SLOT. Raises: UsageError without the package safetensors."""
        safetensors = _safetensors()
        tensors = {"step": np.asarray(state[0])}
        for name, weight, own, optimizer in zip(
            self.names, weights, state[1], self.optimizers, strict=True
        ):
            slots = {f"{name}.{s}": each for s, each in zip(optimizer.slots, own, strict=True)}
            tensors |= {key: np.asarray(each) for key, each in {name: weight, **slots}.items()}
        with replacing(Path(path)) as beside:
            safetensors.save_file(tensors, beside)

    def load(self, path: str | Path) -> tuple[list[Any], Any]:
        """Weights and state of a file that `save` wrote. Raises: UsageError (`bad-checkpoint`; `bad-weights` with all
        tensors that are missing, not expected, or of another shape or dtype)."""
        found = map_tensors([Path(path)])
        wanted: dict[str, tuple[tuple[int, ...], Any]] = {"step": ((), np.dtype(np.int64))}
        for name, t, optimizer in zip(self.names, self.types, self.optimizers, strict=True):
            wanted |= {key: _shape(t) for key in (name, *(f"{name}.{s}" for s in optimizer.slots))}
        problems = [f"missing: {name}" for name in wanted if name not in found]
        problems += [f"unexpected: {name}" for name in found if name not in wanted]
        problems += [
            f"{name} is {each.shape} {each.dtype}, and the step has {wanted[name][0]} {wanted[name][1]}"
            for name, each in found.items()
            if name in wanted and (each.shape, each.dtype) != wanted[name]
        ]
        if problems:
            raise wrong_weights("step", problems, f"check that {path} was saved by this step")
        slots = tuple(
            tuple(found[f"{name}.{s}"] for s in optimizer.slots)
            for name, optimizer in zip(self.names, self.optimizers, strict=True)
        )
        return [found[name] for name in self.names], (found["step"], slots)

    def state_dict(self, state: Any) -> dict[str, Any]:
        """The state as torch's optimiser of the same name has it (`torch.optim.Optimizer.load_state_dict` takes it).
        Needs torch. Raises: UsageError for an optimiser that torch has not."""
        return to_torch(self.optimizers, state)

    def load_state_dict(self, found: Mapping[str, Any]) -> Any:
        """The state of torch's optimiser (`torch.optim.Optimizer.state_dict`), whose weights are in the order of
        `params`. Raises: UsageError (`bad-weights`)."""
        return from_torch(self.optimizers, [_shape(t) for t in self.types], found)


def _shape(t: TensorType) -> tuple[tuple[int, ...], Any]:
    """The shape and dtype of a weight's array."""
    return tuple(d.value or 0 for d in t.dims or ()), np.dtype(known_dtype(t).numpy)


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise UsageError(
            "extra-missing", "saving needs the package safetensors", help="pip install safetensors"
        ) from None
    return safetensors.numpy


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
