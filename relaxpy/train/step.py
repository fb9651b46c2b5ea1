"""One step of training as one executable: the loss, its gradients and the optimiser, fused and planned together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relaxpy.build.build import build
from relaxpy.build.first_call import ModuleFunction
from relaxpy.errors import UsageError, wrong_weights
from relaxpy.files import replacing
from relaxpy.ir.accessors import known_dtype
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Function, Var
from relaxpy.ir.module import IRModule
from relaxpy.narrow import is_tuple
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.safetensors import map_tensors
from relaxpy.runtime.tensor import Tensor
from relaxpy.runtime.vm import VirtualMachine
from relaxpy.target import Target
from relaxpy.train.optimizers import Optimizer
from relaxpy.train.program import ADD, STEP, LossScale, StepProgram
from relaxpy.train.torch_state import from_torch, to_torch

_SCALING = "loss_scale.scale", "loss_scale.growth_tracker"
"""Names of the scale's state in a file."""


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

    With `loss_scale` the loss is scaled for its derivative, and a step whose gradients are not finite is left out
    (`relaxpy.train.LossScale`).

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
        loss_scale: LossScale | None = None,
    ) -> None:
        self.schedule, self.check_numbers = schedule, check_numbers
        if isinstance(loss, Function):
            name = str(loss.attrs.get("global_symbol", "main"))
            mod = IRModule({name: loss})
        else:
            name, mod = loss.name, loss.module
        function = mod.graph_function(name)
        numbers = tuple(number % len(function.params) for number in params)
        types = tuple(_weight(function.params[number]) for number in numbers)
        self.names = [function.params[number].name for number in numbers]
        same = isinstance(optimizer, Optimizer)
        optimizers = (optimizer,) * len(numbers) if same else tuple(optimizer)
        if len(optimizers) != len(numbers):
            raise UsageError(
                "arguments",
                f"the step trains {len(numbers)} parameters, got {len(optimizers)} optimisers",
                help="pass one for all, or one for each",
            )
        self.program = StepProgram(
            numbers, types, optimizers, has_aux, donate, clip_norm, tuple(packed), accumulate,
            loss_scale,
        )  # fmt: skip
        self.mod = self.program.module(mod, name)
        self._vm: VirtualMachine | None = None

    def build(self, target: Target | str = "llvm", **options: Any) -> Executable:
        """The executable, whose function is `step`: of the parameters of the loss, the state, a tuple of learning
        rates, one for each optimiser, and what is packed. `options` are those of `relaxpy.build`."""
        pack = self.program.packed or False
        return build(self.mod, target, pack=pack, check_numbers=self.check_numbers, **options)

    def use(self, vm: VirtualMachine) -> None:
        """Make the steps on this machine, of an executable of `build`."""
        self._vm = vm

    def start(self, weights: Sequence[Any]) -> Any:
        """The state before the first step."""
        program, starts = self.program, any(s.of_weight for own in self.program.slots for s in own)
        if starts:
            self._check_count(weights)
        given = weights if starts else [None] * len(program.types)
        slots = tuple(
            tuple(_first(t, slot.dtype, w if slot.of_weight else None) for slot in own)
            for t, own, w in zip(program.types, program.slots, given, strict=True)
        )
        scale = program.loss_scale
        scaling = (np.float32(scale.init_scale), np.int64(0)) if scale else ()
        return (
            np.asarray(0, np.int64),
            slots,
            *([tuple(map(np.asarray, scaling))] if scaling else []),
        )

    def slot(self, state: Any, name: str) -> list[Any]:
        """A slot of each weight's state: `exp_avg`, `master`, `average`. Tensors of a donated state are overwritten by
        the next step. Raises: UsageError if a weight has none."""
        found: list[Any] = []
        for weight, slots, own in zip(self.names, self.program.slots, state[1], strict=True):
            names = [slot.name for slot in slots]
            if name not in names:
                raise UsageError(
                    "arguments",
                    f"the state of {weight} has no {name}",
                    help=f"it has {', '.join(names) or 'nothing'}",
                )
            found.append(own[names.index(name)])
        return found

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
        if self.program.donate:
            weights, state = (_own(each, vm) for each in (tuple(weights), state))
        args = self._arguments(weights, batch)
        factor = 1.0 if self.schedule is None else self.schedule(int(np.asarray(state[0])))
        every = dict.fromkeys(self.program.optimizers)
        rates = tuple(np.asarray((o.lr if lr is None else lr) * factor, np.float32) for o in every)
        own = (
            [_own(self._no_sums() if sums is None else sums, vm)] if self.program.accumulate else []
        )
        value, new, after = vm[STEP](*args, state, rates, *own, *packed)
        return value, new, after

    def add(
        self,
        weights: Sequence[Any],
        sums: Any,
        *batch: Any,
        packed: Sequence[Any] = (),
        state: Any = None,
    ) -> tuple[Any, Any]:
        """The loss of a part of a batch, and the sums of gradients with its own; `sums` is None for the first part.
        `packed` is `vm.pack(…)["add"]`. With `loss_scale` it needs the state, too. Raises: UsageError without
        `accumulate`."""
        if not self.program.accumulate:
            raise UsageError(
                "arguments",
                "the step sums no gradients",
                help="make it with Step(…, accumulate=True)",
            )
        if self.program.loss_scale and state is None:
            raise UsageError(
                "arguments", "the state has the scale of the loss", help="pass add(…, state=state)"
            )
        vm = self._machine()
        given = _own(self._no_sums() if sums is None else sums, vm)
        scale = [state[2][0]] if self.program.loss_scale else []
        value, new = vm[ADD](*self._arguments(weights, batch), given, *scale, *packed)
        return value, new

    def _no_sums(self) -> Any:
        zeros = (_first(t, known_dtype(t)) for t in self.program.sums)
        return tuple(zeros), np.zeros((), np.float32)

    def _machine(self) -> VirtualMachine:
        if self._vm is None:
            self._vm = VirtualMachine(self.build())
        return self._vm

    def _arguments(self, weights: Sequence[Any], batch: Sequence[Any]) -> list[Any]:
        """The parameters of the loss, but for what is packed."""
        self._check_count(weights)
        trained, rest = dict(zip(self.program.params, weights, strict=True)), iter(batch)
        count = len(weights) + len(batch)
        return [trained[i] if i in trained else next(rest) for i in range(count)]

    def _check_count(self, weights: Sequence[Any]) -> None:
        if len(weights) != len(self.names):
            raise UsageError(
                "arguments",
                f"the step trains {len(self.names)} parameters, got {len(weights)} weights",
                help="pass them as one sequence, before the state and the batch",
            )

    def _kept(self) -> Iterable[tuple[str, tuple[int, ...], Any]]:
        """Name, shape and dtype of what a file has: weights, the number of steps, the slots of each weight, and the
        scale's state."""
        program = self.program
        both = list(zip(self.names, program.types, strict=True))
        yield from ((name, _shape(t), known_dtype(t).numpy) for name, t in both)
        yield "step", (), np.int64
        for (name, t), own in zip(both, program.slots, strict=True):
            yield from ((f"{name}.{slot.name}", _shape(t), slot.dtype.numpy) for slot in own)
        if program.loss_scale:
            yield from zip(_SCALING, ((), ()), (np.float32, np.int64), strict=True)

    def save(self, path: str | Path, weights: Sequence[Any], state: Any) -> None:
        """Write weights and state to a safetensors file, from which training goes on to the bit: weights by their
        parameters' names, the state as NAME.SLOT. Raises: UsageError without the package safetensors."""
        safetensors = _safetensors()
        count, slots, *scaling = state
        values = [*weights, count, *(each for own in (*slots, *scaling) for each in own)]
        names = (name for name, _, _ in self._kept())
        tensors = {name: np.asarray(each) for name, each in zip(names, values, strict=True)}
        with replacing(Path(path)) as beside:
            safetensors.save_file(tensors, beside)

    def load(self, path: str | Path) -> tuple[list[Any], Any]:
        """Weights and state of a file that `save` wrote. Raises: UsageError (`bad-checkpoint`; `bad-weights` with all
        tensors that are missing, not expected, or of another shape or dtype)."""
        found = map_tensors([Path(path)])
        wanted = {name: (shape, np.dtype(dtype)) for name, shape, dtype in self._kept()}
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
            tuple(found[f"{name}.{slot.name}"] for slot in own)
            for name, own in zip(self.names, self.program.slots, strict=True)
        )
        scaling = [tuple(found[name] for name in _SCALING)] if self.program.loss_scale else []
        return [found[name] for name in self.names], (found["step"], slots, *scaling)

    def state_dict(self, state: Any) -> dict[str, Any]:
        """The state as torch's optimiser of the same name has it (`torch.optim.Optimizer.load_state_dict` takes it),
        without master weights, averages and the scale of the loss. Needs torch. Raises: UsageError for an optimiser
        that torch has not."""
        return to_torch(self.program.optimizers, state)

    def load_state_dict(self, found: Mapping[str, Any], weights: Sequence[Any] = ()) -> Any:
        """The state of torch's optimiser (`torch.optim.Optimizer.state_dict`), whose weights are in the order of
        `params`. Master weights and averages begin as `weights`. Raises: UsageError (`bad-weights`)."""
        _, own, *scaling = self.start(weights)
        plain = [optimizer.plain for optimizer in self.program.optimizers]
        shapes = [(_shape(t), known_dtype(t).numpy) for t in self.program.sums]
        count, theirs = from_torch(plain, shapes, found)
        slots = tuple((*new, *old[len(new) :]) for new, old in zip(theirs, own, strict=True))
        return count, slots, *scaling


def _shape(t: TensorType) -> tuple[int, ...]:
    """The shape of a weight."""
    return tuple(d.value or 0 for d in t.dims or ())


def _first(t: TensorType, dtype: DType, weight: Any = None) -> np.ndarray:
    """A new tensor of a weight's shape: a copy of the weight, or zeros."""
    if weight is None:
        return np.zeros(_shape(t), dtype.numpy)
    return np.array(np.asarray(weight), dtype.numpy)


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
