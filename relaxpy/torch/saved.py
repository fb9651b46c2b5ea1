"""Compiled modules in files: an executable with the signature as plain data, the buffers that calls change, and the
weights that are packed after loading."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from relaxpy.frontend.signature import Signature
from relaxpy.frontend.torch.arrays import array_of, tensor_of
from relaxpy.runtime import companion

if TYPE_CHECKING:
    from relaxpy.torch.compiled import CompiledModule

SECTION, WHAT = "torch", "a compiled module of torch"


def save(compiled: CompiledModule, path: str | os.PathLike[str]) -> None:
    """The implementation of `CompiledModule.save`."""
    state = {name: array_of(tensor) for name, tensor in compiled.state.items()}
    data = {"signature": compiled.signature.to_json()}
    arrays = {"state": state, "weights": compiled.weights}
    companion.save(path, compiled.executable, SECTION, data, arrays, WHAT)


def load(path: str | os.PathLike[str], devices: Any = None) -> CompiledModule:
    """The compiled module that `CompiledModule.save` wrote. Weights are mapped into memory, not read; nothing in the
    file is executed but its kernels.

    Raises: ExecutableError as `relaxpy.load` does, and (`file-format`) for an executable that is no compiled module.
    """
    from relaxpy.torch.compiled import CompiledModule

    executable, data, found = companion.load(path, SECTION, WHAT)
    state = {name: tensor_of(array.copy()) for name, array in found["state"].items()}
    signature = Signature.from_json(data["signature"])
    return CompiledModule(executable, signature, state, found["weights"], devices)
