"""`relaxpy.compile`: a module of torch, built once for all sizes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from relaxpy.frontend.signature import Signature
from relaxpy.runtime import Executable, VirtualMachine
from relaxpy.runtime.tensor import Tensor
from relaxpy.torch.calls import Calls
from relaxpy.torch.tensors import argument, left_apart

if TYPE_CHECKING:
    import numpy as np
    import torch


class CompiledModule:
    """A compiled module: called as the module is, with torch tensors, which are not copied if they are contiguous.

    Results need no gradient. Sizes that the program was not traced for are refused (`check`), never computed wrongly.
    `state` has the module's buffers that calls change; they are the module's own tensors, so both see the changes.
    """

    def __init__(
        self,
        executable: Executable,
        signature: Signature,
        state: Mapping[str, torch.Tensor],
        weights: Mapping[str, np.ndarray],
        devices: Mapping[Any, Any] | None = None,
    ) -> None:
        """`weights` are those that are packed now, not by the build."""
        self.executable = executable
        self.signature = signature
        self.state = dict(state)
        self.vm = (
            VirtualMachine(executable, devices=devices) if devices else VirtualMachine(executable)
        )
        self.weights = weights
        self._packed = self.vm.pack(weights)["main"] if weights else ()
        self._calls = Calls(signature)
        self._main = self.vm["main"]
        self._on_cpu = all(device.kind == "cpu" for device in self.vm.devices)

    def __repr__(self) -> str:
        return f"<compiled module: main{self.executable.signature('main').removeprefix('main')}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's results.

        Raises: UsageError (`arguments`) for arguments of another structure than the example's; RuntimeCheckError
        (`check`) for sizes and dtypes that the program was not traced for.
        """
        calls = self._calls
        leaves = [*calls.flatten(args, kwargs), *self.state.values()]
        given = list(map(argument, leaves)) if self._on_cpu else leaves
        found = self._main(*given, *self._packed)
        others = [each for each in given if each.__class__ is not Tensor]
        results = left_apart([found] if calls.values == 1 else found, others)
        if calls.updates:
            named = dict(zip(self._parameters, leaves, strict=False)) | self.state
            for update in calls.updates:
                _update(named[update.value], results[update.index])
        return calls.unflatten(results)

    @property
    def _parameters(self) -> list[str]:
        return [i.name for i in self.signature.inputs if i.kind in ("tensor", "int")]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the executable, the weights, and the structure of arguments and results to one file, which
        `relaxpy.torch.load` reads, and `relaxpy.load` as an executable.

        Raises: ExecutableError (`file-write`).
        """
        from relaxpy.torch.saved import save

        save(self, path)


def compile(
    module: Any,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = "auto",
    devices: Mapping[Any, Any] | None = None,
    **options: Any,
) -> CompiledModule:
    """Compile a torch module, a function of tensors, or an `ExportedProgram`, once for all sizes.

    `args` and `kwargs` are an example call, whose sizes should be larger than 1. `dynamic_shapes` says which sizes may
    vary, by names or as `torch.export` takes it; by default all that can. `options` are those of `relaxpy.build`:
    `target`, `bounds`, `cache` and others.

    Raises: UsageError (`torch-export`, `torch-operator`, `torch-size`, `torch-dtype`), and the errors of a build.
    """
    import torch

    from relaxpy.build import build
    from relaxpy.frontend.torch import import_program
    from relaxpy.torch.streamed import streamed_weights

    if isinstance(module, torch.export.ExportedProgram) and not args and kwargs is None:
        found = import_program(module)
    else:
        found = import_program(module, args, kwargs, dynamic_shapes)
    streamed = streamed_weights(found)
    bound = {name: array for name, array in found.params.items() if name not in streamed}
    executable = build(found.mod, params=bound, pack=list(streamed), **options)
    return CompiledModule(executable, found.signature, found.state, streamed, devices)


def _update(tensor: torch.Tensor, value: torch.Tensor) -> None:
    import torch

    with torch.no_grad():
        tensor.copy_(value)
