"""Optimisers. An optimiser is a value: its numbers, and how a weight and its state follow from a gradient, written with
operators. What torch's optimiser of the same name computes, in the same order of operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from relaxpy.errors import UsageError
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Expr
from relaxpy.op.rule import Rule

F32 = DType("float32")


@dataclass(frozen=True)
class Slot:
    """A tensor of a weight's state, of its shape."""

    name: str
    dtype: DType
    of_weight: bool = False
    """Is it a copy of the weight at first? Else it is zeros."""


class Optimizer:
    """Base of optimisers."""

    lr: float
    """The learning rate; a call of a step may give another."""

    @property
    def slots(self) -> tuple[str, ...]:
        """The state of a weight by torch's names: zeros at first, of the dtype in which it is computed."""
        return ()

    @property
    def plain(self) -> Optimizer:
        """The optimiser without those around it, as torch has it. Its slots are the first of the state."""
        return self

    def computed_in(self, dtype: DType) -> DType:
        """The dtype in which a weight of a dtype is computed."""
        return dtype

    def state(self, dtype: DType) -> tuple[Slot, ...]:
        """The state of a weight of a dtype."""
        return tuple(Slot(name, self.computed_in(dtype)) for name in self.slots)

    def update(
        self, b: Rule, w: Expr, g: Expr, slots: Sequence[Expr], lr: Expr, count: Expr
    ) -> tuple[Expr, Sequence[Expr]]:
        """The new weight and state of a weight w with the gradient g. `lr` and `count` (the steps done, this one
        included) are 0-d tensors. These and g are of the dtype that `computed_in` tells."""
        raise NotImplementedError


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent, with momentum (Polyak, or Nesterov's) and weight decay as part of the gradient."""

    lr: float = 1e-2
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    @property
    def slots(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.momentum else ()

    def update(
        self, b: Rule, w: Expr, g: Expr, slots: Sequence[Expr], lr: Expr, count: Expr
    ) -> tuple[Expr, Sequence[Expr]]:
        if self.weight_decay:
            g = b.add(g, b.multiply(w, self.weight_decay))
        if not self.momentum:
            return b.subtract(w, b.multiply(g, lr)), []
        speed = b.add(b.multiply(slots[0], self.momentum), g)
        move = b.add(g, b.multiply(speed, self.momentum)) if self.nesterov else speed
        return b.subtract(w, b.multiply(move, lr)), [speed]


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), with weight decay as part of the gradient."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    """The rates at which the means of the gradient and of its square forget."""
    eps: float = 1e-8
    weight_decay: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def decayed(self, b: Rule, w: Expr, g: Expr, lr: Expr) -> tuple[Expr, Expr]:
        """The weight and the gradient, with weight decay."""
        return w, b.add(g, b.multiply(w, self.weight_decay)) if self.weight_decay else g

    def update(
        self, b: Rule, w: Expr, g: Expr, slots: Sequence[Expr], lr: Expr, count: Expr
    ) -> tuple[Expr, Sequence[Expr]]:
        w, g = self.decayed(b, w, g, lr)
        first, second = self.betas
        mean = b.add(b.multiply(slots[0], first), b.multiply(g, 1 - first))
        square = b.add(b.multiply(slots[1], second), b.multiply(b.square(g), 1 - second))
        # both means are of zeros at first, which is corrected
        of_mean, of_square = (b.subtract(1.0, b.power(beta, count)) for beta in self.betas)
        root = b.add(b.divide(b.sqrt(square), b.sqrt(of_square)), self.eps)
        move = b.multiply(b.divide(mean, root), b.divide(lr, of_mean))
        return b.subtract(w, move), [mean, square]


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with weight decay beside the gradient (Loshchilov and Hutter, 2019)."""

    weight_decay: float = 1e-2

    def decayed(self, b: Rule, w: Expr, g: Expr, lr: Expr) -> tuple[Expr, Expr]:
        return _decayed(b, w, lr, self.weight_decay), g


@dataclass(frozen=True)
class Lion(Optimizer):
    """Lion (Chen et al., 2023): the sign of a mean of gradients, with weight decay beside the gradient."""

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    """The weight of the old mean in the direction of the step, and in the new mean."""
    weight_decay: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        return ("exp_avg",)

    def update(
        self, b: Rule, w: Expr, g: Expr, slots: Sequence[Expr], lr: Expr, count: Expr
    ) -> tuple[Expr, Sequence[Expr]]:
        (mean,) = slots
        step, kept = (b.add(b.multiply(mean, beta), b.multiply(g, 1 - beta)) for beta in self.betas)
        w = _decayed(b, w, lr, self.weight_decay)
        return b.subtract(w, b.multiply(b.sign(step), lr)), [kept]


@dataclass(frozen=True)
class Muon(Optimizer):
    """Muon (Jordan et al., 2024), for matrices: the mean of gradients with all its singular values near 1, by steps of
    Newton and Schulz. They are computed in the weight's dtype, torch's in bfloat16."""

    lr: float = 1e-3
    momentum: float = 0.95
    nesterov: bool = True
    weight_decay: float = 0.1
    ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315)
    ns_steps: int = 5
    eps: float = 1e-7
    adjust_lr_fn: str = "original"
    """How the rate depends on the shape: original, or match_rms_adamw (Liu et al., 2025), whose steps are as long as
    AdamW's."""

    def __post_init__(self) -> None:
        if self.adjust_lr_fn not in _ADJUSTED:
            raise UsageError(
                "arguments",
                f"adjust_lr_fn is one of {', '.join(_ADJUSTED)}, got {self.adjust_lr_fn!r}",
            )

    @property
    def slots(self) -> tuple[str, ...]:
        return ("momentum_buffer",)

    def update(
        self, b: Rule, w: Expr, g: Expr, slots: Sequence[Expr], lr: Expr, count: Expr
    ) -> tuple[Expr, Sequence[Expr]]:
        dims = [dim.value for dim in b.dims(w)]
        if len(dims) != 2:
            raise UsageError(
                "arguments",
                f"Muon is for matrices, and a weight has the shape {tuple(dims)}",
                help="give each weight an optimiser of its own: Step(loss, [Muon(), AdamW(), …], params)",
            )
        rows, columns = (float(dim or 0) for dim in dims)
        speed = b.add(b.multiply(slots[0], self.momentum), b.multiply(g, 1 - self.momentum))
        move = speed
        if self.nesterov:
            move = b.add(b.multiply(g, 1 - self.momentum), b.multiply(speed, self.momentum))
        rate = b.multiply(lr, _ADJUSTED[self.adjust_lr_fn](rows, columns))
        w = _decayed(b, w, lr, self.weight_decay)
        return b.subtract(w, b.multiply(self._orthogonal(b, move, rows > columns), rate)), [speed]

    def _orthogonal(self, b: Rule, x: Expr, tall: bool) -> Expr:
        """The matrix with its singular values near 1."""
        first, second, third = self.ns_coefficients
        x = b.permute_dims(x) if tall else x
        length = b.sqrt(b.sum(b.square(x)))
        x = b.divide(x, b.maximum(length, self.eps))
        for _ in range(self.ns_steps):
            gram = b.matmul(x, b.permute_dims(x))
            both = b.add(b.multiply(gram, second), b.multiply(b.matmul(gram, gram), third))
            x = b.add(b.multiply(x, first), b.matmul(both, x))
        return b.permute_dims(x) if tall else x


_ADJUSTED: dict[str, Callable[[float, float], float]] = {
    "original": lambda rows, columns: max(1.0, rows / columns) ** 0.5,
    "match_rms_adamw": lambda rows, columns: 0.2 * max(rows, columns) ** 0.5,
}
"""The factor of Muon's rate for a shape."""


def _decayed(b: Rule, w: Expr, lr: Expr, decay: float) -> Expr:
    """A weight after its decay, which does not go through the gradient."""
    return b.multiply(w, b.subtract(1.0, b.multiply(lr, decay))) if decay else w


@dataclass(frozen=True)
class _Around(Optimizer):
    """Base of what adds to another optimiser, whose slots come first."""

    of: Optimizer
    lr: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr", self.of.lr)

    @property
    def slots(self) -> tuple[str, ...]:
        return self.of.slots

    @property
    def plain(self) -> Optimizer:
        return self.of.plain

    def computed_in(self, dtype: DType) -> DType:
        return self.of.computed_in(dtype)


@dataclass(frozen=True)
class MasterWeights(_Around):
    """An optimiser of weights in bfloat16 or float16 that computes in float32, and keeps the weights so, too
    (Micikevicius et al., 2018): steps that are too small for the weight's dtype add up. Weights in float32 and float64
    are the optimiser's alone."""

    def computed_in(self, dtype: DType) -> DType:
        return F32 if _is_short(dtype) else super().computed_in(dtype)

    def state(self, dtype: DType) -> tuple[Slot, ...]:
        if not _is_short(dtype):
            return self.of.state(dtype)
        return *self.of.state(F32), Slot("master", F32, of_weight=True)

    def update(
        self, b: Rule, w: Expr, g: Expr, slots: Sequence[Expr], lr: Expr, count: Expr
    ) -> tuple[Expr, Sequence[Expr]]:
        dtype = b.dtype(w)
        if not _is_short(dtype):
            return self.of.update(b, w, g, slots, lr, count)
        *own, master = slots
        master, new = self.of.update(b, master, g, own, lr, count)
        return b.astype(master, dtype), [*new, master]


@dataclass(frozen=True)
class EMA(_Around):
    """An optimiser that keeps a running average of each weight, too, in float32 or the weight's wider dtype: after a
    step `average × decay + weight × (1 − decay)`, from the weight at the start. `Step.slot(state, "average")` has them;
    inside of `MasterWeights` they are averages of the master weights."""

    decay: float = 0.999

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.decay < 1:
            raise UsageError("arguments", f"decay is at least 0 and below 1, got {self.decay}")

    def state(self, dtype: DType) -> tuple[Slot, ...]:
        wide = F32 if _is_short(dtype) else dtype
        return *self.of.state(dtype), Slot("average", wide, of_weight=True)

    def update(
        self, b: Rule, w: Expr, g: Expr, slots: Sequence[Expr], lr: Expr, count: Expr
    ) -> tuple[Expr, Sequence[Expr]]:
        *own, average = slots
        w, new = self.of.update(b, w, g, own, lr, count)
        wide = b.astype(w, b.dtype(average))
        kept = b.add(b.multiply(average, self.decay), b.multiply(wide, 1 - self.decay))
        return w, [*new, kept]


def _is_short(dtype: DType) -> bool:
    return dtype.itemsize < F32.itemsize
