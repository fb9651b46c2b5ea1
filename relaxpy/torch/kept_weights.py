"""Weights of torch as kernels read them: packed once, and found again by memory and version.

A graph gets its weights at every call. They are packed when they are first seen and when they have changed: when a
weight is other memory, or torch's counter of changes (`_version`) says so. Graphs of the same weights share them, and
they are freed with the weights. Changes by `p.data` escape the counter: `refresh(model)` forgets what was packed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from threading import RLock
from typing import Any
from weakref import WeakSet, WeakValueDictionary, ref

import torch

from relaxpy.frontend.torch.arrays import array_of
from relaxpy.runtime import VirtualMachine
from relaxpy.runtime.pack import pack_one
from relaxpy.runtime.packed_tensor import PackedTensor
from relaxpy.torch.tensors import entered

_version = attrgetter("_version")
_pointer = torch.Tensor.data_ptr
_lock = RLock()

_shared: WeakValueDictionary[Any, PackedTensor] = WeakValueDictionary()
"""Layout, memory and version of the sources → the packed weight. Whoever uses it keeps it."""
_graphs: WeakSet[KeptWeights] = WeakSet()


class _Set:
    """The arguments made of some tensors."""

    def __init__(
        self, state: list[int], arguments: Sequence[Any], tensors: Sequence[torch.Tensor]
    ) -> None:
        self.state = state
        """Versions and addresses of the tensors."""
        self.arguments = tuple(arguments)
        self.memory = storages(tensors)
        """The addresses of their storages."""
        self.watched: list[Any] = []
        """Weak references, which forget the set when a tensor dies."""


class KeptWeights:
    """The weights of one executable."""

    def __init__(
        self, vm: VirtualMachine, weights: Sequence[tuple[str, str, Sequence[int] | None]]
    ) -> None:
        """`weights` are the name, the dtype and the order of axes of each tensor that is given."""
        self.vm = vm
        self.weights = tuple(weights)
        self.places = {name: i for i, (name, _, _) in enumerate(weights)}
        self.params = sorted(vm.executable.weight_params, key=lambda weight: weight.param)
        self.sets: dict[tuple[int, ...], _Set] = {}
        _graphs.add(self)

    def arguments(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """The arguments of `main` after its inputs."""
        key = tuple(map(id, tensors))
        found = self.sets.get(key)
        try:
            state = [*map(_version, tensors), *map(_pointer, tensors)]
        except RuntimeError:  # made in torch.inference_mode: nothing counts their changes
            return tuple(self._made(tensors, [object()] * len(tensors), []))
        if found is None or found.state != state:
            with _lock:
                old = self.sets.pop(key, None)
                made = self._made(tensors, state, [] if old is None else list(old.arguments))
                found = self.sets[key] = _Set(state, made, tensors)
                forget = _Forget(ref(self), key)
                found.watched = [ref(tensor, forget) for tensor in tensors]
        return found.arguments

    def _made(
        self, tensors: Sequence[torch.Tensor], state: Sequence[Any], made: list[Any]
    ) -> list[Any]:
        """The arguments of tensors that are new, or have changed. `made` are those of before: each is freed before it
        is made again."""
        ordered = [
            tensor.detach() if order is None else tensor.detach().permute(*order)
            for tensor, (_, _, order) in zip(tensors, self.weights, strict=True)
        ]
        facts = [
            (each.data_ptr(), version, tuple(each.shape), each.stride(), each.dtype)
            for each, version in zip(ordered, state, strict=False)
        ]
        made = made or [None] * len(self.params)
        for i, weight in enumerate(self.params):
            own = [self.places[name] for name in weight.sources]
            if weight.packer < 0:
                made[i] = entered(ordered[own[0]], self.weights[own[0]][1])
                continue
            key = (weight.layout, weight.field, *(facts[j] for j in own))
            found = _shared.get(key)
            if found is None:
                made[i] = None
                arrays = [array_of(ordered[j]) for j in own]
                found = _shared[key] = pack_one(self.vm, weight, arrays)
            made[i] = found
        return made

    def forget(self, memory: set[int]) -> None:
        """Forget what was made of tensors in these storages."""
        with _lock:
            for key in [key for key, each in list(self.sets.items()) if each.memory & memory]:
                self.sets.pop(key, None)


class _Forget:
    """Called when a tensor of a set dies: its id may be another tensor's."""

    def __init__(self, owner: ref[KeptWeights], key: tuple[int, ...]) -> None:
        self.owner = owner
        self.key = key

    def __call__(self, _: object) -> None:
        owner = self.owner()
        if owner is not None:
            owner.sets.pop(self.key, None)


def refresh(model: torch.nn.Module | Iterable[torch.Tensor]) -> None:
    """Pack the weights of a model again at their next use: after changes by `p.data`, which torch does not count.

        p.data.add_(1)
        relaxpy.torch.refresh(model)

    `model` is a module, or some tensors. Changes by optimisers, `load_state_dict`, and operators under
    `torch.no_grad()` are seen by themselves.
    """
    is_module = isinstance(model, torch.nn.Module)
    memory = storages([*model.parameters(), *model.buffers()] if is_module else model)
    for graph in list(_graphs):
        graph.forget(memory)


def storages(tensors: Iterable[torch.Tensor]) -> set[int]:
    """The addresses of the storages of tensors."""
    return {each.untyped_storage().data_ptr() for each in tensors}
