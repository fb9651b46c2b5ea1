"""The program of a training step: a derivative, sums over parts of a batch, and what follows for each weight."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from relaxpy.analysis.donated import DONATED
from relaxpy.ir.accessors import known_dtype
from relaxpy.ir.annotation import TensorType, TupleType
from relaxpy.ir.expr import Call, Expr, Function, GlobalVar, Tuple, Var
from relaxpy.ir.module import IRModule
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.op.rule import Rule
from relaxpy.train.optimizers import F32, Optimizer, Slot
from relaxpy.transform.fresh_symbols import FreshSymbols
from relaxpy.transform.gradient import Gradient

GRADIENT = "value_and_grad"
STEP, ADD = "step", "add"
"""The functions of a step's executable."""


@dataclass(frozen=True)
class LossScale:
    """The loss is multiplied by a scale before its derivative is taken, and gradients are divided by it, so that those
    of float16 are not too small for it (Micikevicius et al., 2018). A step whose gradients are not all finite changes
    neither weights nor their state, and makes the scale smaller; many steps without one make it larger
    (`torch.amp.GradScaler`, by its names)."""

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000


@dataclass(frozen=True, eq=False)
class StepProgram:
    """What a step computes."""

    params: tuple[int, ...]
    types: tuple[TensorType, ...]
    """Of each weight."""
    optimizers: tuple[Optimizer, ...]
    has_aux: bool
    donate: bool
    clip_norm: float | None
    packed: tuple[str, ...]
    accumulate: bool
    loss_scale: LossScale | None

    @property
    def slots(self) -> list[tuple[Slot, ...]]:
        """The state of each weight."""
        pairs = zip(self.types, self.optimizers, strict=True)
        return [optimizer.state(known_dtype(t)) for t, optimizer in pairs]

    @property
    def sums(self) -> list[TensorType]:
        """The sum of gradients of each weight."""
        return [
            dataclasses.replace(t, dtype=optimizer.computed_in(known_dtype(t)))
            for t, optimizer in zip(self.types, self.optimizers, strict=True)
        ]

    def module(self, mod: IRModule, name: str) -> IRModule:
        """The module of the step of a function, the loss."""
        called = mod.fresh_name(f"{name}_{GRADIENT}")
        kind = "vjp" if self.loss_scale else GRADIENT
        mod = Gradient(name, kind, self.params, self.has_aux, called)(mod)
        derived = mod.graph_functions[called]
        inner = {n: dataclasses.replace(f, attrs={}) for n, f in mod.graph_functions.items()}
        bb = BlockBuilder(mod.with_functions({**mod.functions, **inner}))
        given_up = {STEP: self._step(bb, called, derived)}
        if self.accumulate:
            given_up[ADD] = self._add(bb, called, derived)
        made = bb.get()
        if not self.donate:
            return made
        for name_of, names in given_up.items():
            function = made.graph_functions[name_of]
            attrs = {**function.attrs, DONATED: names}
            made = made.with_function(name_of, dataclasses.replace(function, attrs=attrs))
        return made

    def _step(self, bb: BlockBuilder, called: str, derived: Function) -> list[str]:
        """Add the function of a step: the names of the parameters that it may overwrite."""
        given, inputs, frozen = self._given(derived)
        every = list(dict.fromkeys(self.optimizers))
        lr = Var("lr", TupleType([_scalar("float32")] * len(every)))
        state, sums = Var("state", self._state_type()), Var("sums", self._sums_type())
        own = [sums] if self.accumulate else []
        with bb.function(STEP, [*inputs, state, lr, *own, *frozen]):
            b = Rule(bb.emit)
            done, slots, *scaling = b.fields(state)
            scale, good = b.fields(scaling[0]) if scaling else (None, None)
            value, gradients = self._derivative(b, called, derived, given, scale)
            if self.accumulate:
                before, parts = b.fields(sums)
                gradients = [
                    b.divide(b.add(s, g), b.astype(b.add(parts, 1.0), b.dtype(g)))
                    for s, g in zip(b.fields(before), gradients, strict=True)
                ]
            if scale is not None:
                gradients = [b.divide(g, b.astype(scale, b.dtype(g))) for g in gradients]
            finite = [b.all(b.isfinite(g)) for g in gradients] if self.loss_scale else []
            taken = reduce(b.logical_and, finite) if finite else None
            count = b.add(done, 1)
            rates = dict(zip(every, b.fields(lr), strict=True))
            weights: list[Expr] = []
            states: list[Expr] = []
            for number, g, old, optimizer in zip(
                self.params, self._clipped(b, gradients), b.fields(slots), self.optimizers,
                strict=True,
            ):  # fmt: skip
                before = [given[number], *b.fields(old)]
                rate, steps = (b.astype(each, b.dtype(g)) for each in (rates[optimizer], count))
                w, new = optimizer.update(b, before[0], g, before[1:], rate, steps)
                after = _chosen(b, taken, [w, *new], before)
                weights.append(after[0])
                states.append(Tuple(tuple(after[1:])))
            (count,) = _chosen(b, taken, [count], [done])
            new = [count, Tuple(tuple(states))]
            if taken is not None and self.loss_scale is not None:
                new.append(Tuple(_next_scale(b, self.loss_scale, taken, scale, good)))
            bb.emit_func_output(bb.emit(Tuple((value, Tuple(tuple(weights)), Tuple(tuple(new))))))
        more = [sums.name] if self.accumulate else []
        return [*(given[number].name for number in self.params), state.name, *more]

    def _add(self, bb: BlockBuilder, called: str, derived: Function) -> list[str]:
        """Add the function that sums the gradients of parts of a batch."""
        given, inputs, frozen = self._given(derived)
        sums, scale = Var("sums", self._sums_type()), Var("scale", _scalar("float32"))
        own = [scale] if self.loss_scale else []
        with bb.function(ADD, [*inputs, sums, *own, *frozen]):
            b = Rule(bb.emit)
            value, gradients = self._derivative(b, called, derived, given, *own)
            before, parts = b.fields(sums)
            pairs = zip(b.fields(before), gradients, strict=True)
            new = Tuple(tuple(b.add(s, g) for s, g in pairs))
            bb.emit_func_output(bb.emit(Tuple((value, Tuple((new, b.add(parts, 1.0)))))))
        return [sums.name]

    def _derivative(
        self,
        b: Rule,
        called: str,
        derived: Function,
        given: Sequence[Var],
        scale: Expr | None = None,
    ) -> tuple[Expr, list[Expr]]:
        """The loss and the gradients, in the dtypes of their sums."""
        ct = [] if scale is None else [b.astype(scale, known_dtype(derived.params[-1].annotation))]
        value, gradients = b.fields(b.emit(Call(GlobalVar(called), (*given, *ct))))
        pairs = zip(b.fields(gradients), self.sums, strict=True)
        return value, [b.astype(g, known_dtype(t)) for g, t in pairs]

    def _given(self, derived: Function) -> tuple[list[Var], list[Var], list[Var]]:
        """New parameters as those of the derivative: all of them, and of these the inputs and what is packed."""
        fresh = FreshSymbols()
        params = derived.params[:-1] if self.loss_scale else derived.params
        given = [Var(p.name, fresh.rewrite_annotation(p.annotation), span=p.span) for p in params]
        frozen = [var for var in given if var.name in self.packed]
        return given, [var for var in given if var not in frozen], frozen

    def _state_type(self) -> TupleType:
        """Steps done, the state of each weight, and that of the scale."""
        slots = TupleType(
            TupleType([dataclasses.replace(t, dtype=slot.dtype) for slot in own])
            for t, own in zip(self.types, self.slots, strict=True)
        )
        scaling = [TupleType([_scalar("float32"), _scalar("int64")])] if self.loss_scale else []
        return TupleType([_scalar("int64"), slots, *scaling])

    def _sums_type(self) -> TupleType:
        """Sums of gradients, and of how many parts."""
        return TupleType([TupleType(self.sums), _scalar("float32")])

    def _clipped(self, b: Rule, gradients: Sequence[Expr]) -> Sequence[Expr]:
        """The gradients, of bounded length."""
        if self.clip_norm is None:
            return gradients
        squares = [b.sum(b.square(b.astype(g, F32))) for g in gradients]
        length = b.sqrt(reduce(b.add, squares))
        factor = b.minimum(b.divide(self.clip_norm, b.add(length, 1e-6)), 1.0)
        return [b.multiply(g, b.astype(factor, b.dtype(g))) for g in gradients]


def _scalar(dtype: str) -> TensorType:
    return TensorType((), dtype)


def _chosen(
    b: Rule, taken: Expr | None, new: Sequence[Expr], old: Sequence[Expr]
) -> Sequence[Expr]:
    """What is so after a step that may not be taken."""
    if taken is None:
        return new
    return [b.where(taken, each, before) for each, before in zip(new, old, strict=True)]


def _next_scale(
    b: Rule, rule: LossScale, taken: Expr, scale: Expr | None, good: Expr | None
) -> tuple[Expr, Expr]:
    """The scale, and the steps since it has changed. It does not grow beyond what is finite."""
    good = b.add(good, 1)
    grown = b.multiply(scale, rule.growth_factor)
    grows = b.greater_equal(good, rule.growth_interval)
    larger = b.where(b.logical_and(grows, b.isfinite(grown)), grown, scale)
    none = b.multiply(good, 0)
    return (
        b.where(taken, larger, b.multiply(scale, rule.backoff_factor)),
        b.where(b.logical_and(taken, b.logical_not(grows)), good, none),
    )
