"""Optimisers. An optimiser is a value: its numbers, and how a weight and its state follow from a gradient, written with
operators. What torch's optimiser of the same name computes, in the same order of operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relaxpy.ir.expr import Expr
from relaxpy.op.rule import Rule


@dataclass(frozen=True)
class Optimizer:
    """Base of optimisers."""

    lr: float = 1e-3
    """The learning rate; a call of a step may give another."""

    @property
    def slots(self) -> int:
        """How many tensors of a weight's shape and dtype, zeros at first, are its state."""
        return 0

    def update(
        self, b: Rule, w: Expr, g: Expr, slots: Sequence[Expr], lr: Expr, count: Expr
    ) -> tuple[Expr, Sequence[Expr]]:
        """The new weight and state of a weight w with the gradient g. `lr` and `count` (the steps done, this one
        included) are 0-d tensors of w's dtype."""
        raise NotImplementedError


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent, with momentum (Polyak, or Nesterov's) and weight decay as part of the gradient."""

    lr: float = 1e-2
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    @property
    def slots(self) -> int:
        return 1 if self.momentum else 0

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

    betas: tuple[float, float] = (0.9, 0.999)
    """The rates at which the means of the gradient and of its square forget."""
    eps: float = 1e-8
    weight_decay: float = 0.0

    @property
    def slots(self) -> int:
        return 2

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
        if not self.weight_decay:
            return w, g
        return b.multiply(w, b.subtract(1.0, b.multiply(lr, self.weight_decay))), g
