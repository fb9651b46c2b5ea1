"""The state of torch's optimisers, as `torch.optim.Optimizer.state_dict` has it: training goes on in the other
library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from relaxpy.errors import UsageError, wrong_weights
from relaxpy.train.optimizers import SGD, Adam, AdamW, Lion, Optimizer

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

_FIXED: dict[type[Optimizer], dict[str, Any]] = {
    SGD: {"dampening": 0},
    Adam: {"amsgrad": False, "decoupled_weight_decay": False},
    AdamW: {"amsgrad": False, "decoupled_weight_decay": True},
}
"""Settings of torch's optimisers that are constants here."""


def to_torch(optimizers: Sequence[Optimizer], state: Any) -> dict[str, Any]:
    """The state dict of torch's optimiser: weights are numbered in the order of the step's, and consecutive ones of
    the same settings are a group. It has no master weights and averages. Tensors are copies. Raises: UsageError for
    an optimiser that torch has not."""
    import torch

    plain = [each.plain for each in optimizers]
    if any(isinstance(each, Lion) for each in plain):
        raise UsageError("arguments", "torch has no optimiser Lion: Step.save keeps its state")
    count = np.asarray(state[0])
    states: dict[int, dict[str, Any]] = {}
    groups: list[dict[str, Any]] = []
    for number, (optimizer, own) in enumerate(zip(plain, state[1], strict=True)):
        slots = {
            name: _tensor(np.asarray(each))
            for name, each in zip(optimizer.slots, own, strict=False)  # theirs are the first
        }
        if isinstance(optimizer, Adam):
            slots["step"] = torch.tensor(float(count))
        if slots and count:
            states[number] = slots
        if number and optimizer == plain[number - 1]:
            groups[-1]["params"].append(number)
        else:
            groups.append(
                {**vars(optimizer), **_FIXED.get(type(optimizer), {}), "params": [number]}
            )
    return {"state": states, "param_groups": groups}


def from_torch(
    optimizers: Sequence[Optimizer], shapes: Sequence[tuple[Any, Any]], found: Mapping[str, Any]
) -> Any:
    """The state for a state dict of torch's optimiser, whose weights are in the order of the step's. Its settings are
    those of the step's optimisers, and torch's are not read. `shapes` are shape and dtype of each weight's
    slots. Raises: UsageError (`bad-weights`) for the state of other weights."""
    order = [number for group in found["param_groups"] for number in group["params"]]
    problems: list[str] = []
    if len(order) != len(optimizers):
        problems.append(f"{len(order)} weights, and the step trains {len(optimizers)}")
    counts: set[int] = set()
    slots: list[tuple[np.ndarray, ...]] = []
    for number, optimizer, (shape, dtype) in zip(order, optimizers, shapes, strict=False):
        own = found["state"].get(number, {})
        problems += _problems(number, own, optimizer, shape)
        if "step" in own:
            counts.add(int(own["step"]))
        taken = (own.get(name) for name in optimizer.slots)
        slots.append(tuple(_array(each, shape, dtype) for each in taken))
    if len(counts) > 1:
        problems.append(f"weights have done {', '.join(map(str, sorted(counts)))} steps")
    if problems:
        raise wrong_weights(
            "step", problems, "pass the state of torch's optimiser of the same name", what="states"
        )
    return np.asarray(max(counts, default=0), np.int64), tuple(slots)


def _array(value: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """A copy of a tensor of torch, or zeros for None."""
    if value is None:
        return np.zeros(shape, dtype)
    short = str(value.dtype) == "torch.bfloat16"  # which numpy has not
    return np.array((value.float() if short else value).cpu().numpy(), dtype)


def _tensor(value: np.ndarray) -> Any:
    """A copy as a tensor of torch."""
    import torch

    if value.dtype == _BFLOAT16:
        return torch.tensor(value.astype(np.float32)).bfloat16()
    return torch.tensor(value)


def _problems(
    number: int, own: Mapping[str, Any], optimizer: Optimizer, shape: tuple[int, ...]
) -> Iterator[str]:
    """How the state of a weight differs from an optimiser's."""
    known = {*optimizer.slots, "step"}
    yield from (
        f"weight {number}: {name} is no state of {type(optimizer).__name__}"
        for name in own
        if name not in known and own[name] is not None
    )
    if own:
        yield from (
            f"weight {number}: {name} is missing" for name in optimizer.slots if name not in own
        )
    yield from (
        f"weight {number}: {name} is {tuple(own[name].shape)}, and the weight {shape}"
        for name in optimizer.slots
        if name in own and tuple(own[name].shape) != shape
    )
