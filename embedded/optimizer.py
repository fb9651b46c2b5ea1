"""Muon (Jordan et al., 2024) for the matrices of the layers, AdamW for the embeddings and norms.

Muon replaces the momentum of a matrix by the nearest semi-orthogonal one, which five Newton-Schulz steps approximate,
so that all directions of a weight learn at one rate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_COEFFICIENTS = 3.4445, -4.7750, 2.0315
_STEPS = 5


def orthogonalised(matrices: Tensor) -> Tensor:
    """Approximately the nearest semi-orthogonal matrices; (count, rows, columns). Singular values come out between 0.7
    and 1.2."""
    a, b, c = _COEFFICIENTS
    wide = matrices.shape[1] <= matrices.shape[2]
    x = matrices if wide else matrices.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = a * x + torch.baddbmm(b * gram, gram, gram, alpha=c) @ x
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """For matrices; `lr` is the size of an update's singular values, for a matrix with more rows than columns larger by
    the root of their ratio."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            alike: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                alike[min(parameter.shape), max(parameter.shape)].append(parameter)
            for parameters in alike.values():
                self._update(parameters, group)

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Update matrices of one shape, or of its transpose, by one batched product."""
        updates: list[Tensor] = []
        for parameter in parameters:
            state, gradient = self.state[parameter], parameter.grad
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(parameter)
            state["momentum"].lerp_(gradient, 1 - group["momentum"])
            update = gradient.lerp(state["momentum"], group["momentum"])
            updates.append(update if update.shape[0] <= update.shape[1] else update.mT)
        for parameter, update in zip(parameters, orthogonalised(torch.stack(updates)), strict=True):
            rows, columns = parameter.shape
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            turned = update if rows <= columns else update.mT
            parameter.add_(turned, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def optimizers(
    model: nn.Module, matrix_rate: float, other_rate: float, weight_decay: float
) -> tuple[torch.optim.Optimizer, ...]:
    """Muon for the matrices of the layers, AdamW for all else. The decay is for the matrices only."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return (
        Muon(matrices, matrix_rate, weight_decay=weight_decay),
        torch.optim.AdamW(others, other_rate, betas=(0.9, 0.95), weight_decay=0.0),
    )
