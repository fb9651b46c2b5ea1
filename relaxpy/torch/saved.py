"""Compiled modules in files: the container of an executable, with the signature as plain data, the
buffers that calls change, and the weights that are packed after loading."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from relaxpy.errors import ExecutableError
from relaxpy.files import given_path
from relaxpy.frontend.signature import Signature
from relaxpy.frontend.torch.arrays import array_of, tensor_of
from relaxpy.ir import DType
from relaxpy.runtime import Executable
from relaxpy.runtime.container import ALIGNMENT, open_container, write_container

if TYPE_CHECKING:
    from relaxpy.torch.compiled import CompiledModule

SECTION, TENSORS = "torch", "torch.tensors"
"""The sections of the signature, and of the buffers and weights one after the other."""


def save(compiled: CompiledModule, path: str | os.PathLike[str]) -> None:
    """The implementation of `CompiledModule.save`."""
    state = {name: array_of(tensor) for name, tensor in compiled.state.items()}
    arrays = [*state.values(), *compiled.weights.values()]
    meta = {
        "signature": compiled.signature.to_json(),
        "state": _described(state),
        "weights": _described(compiled.weights),
    }
    pieces: list[Any] = []
    for array in arrays:
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        pieces += [raw, np.zeros(-raw.nbytes % ALIGNMENT, np.uint8)]
    file = given_path(path, "a compiled module", ExecutableError, "file-write")
    sections = {
        **compiled.executable.sections(),
        SECTION: json.dumps(meta).encode(),
        TENSORS: pieces,
    }
    write_container(file, sections)


def load(path: str | os.PathLike[str], devices: Any = None) -> CompiledModule:
    """The compiled module that `CompiledModule.save` wrote. Weights are mapped into memory, not read; nothing in the
    file is executed but its kernels.

    Raises: ExecutableError as `relaxpy.load` does, and (`file-format`) for an executable that is no compiled module.
    """
    from relaxpy.runtime import load as load_executable
    from relaxpy.torch.compiled import CompiledModule

    file = given_path(path, "a compiled module", ExecutableError, "file-read")
    executable: Executable = load_executable(file)
    container = open_container(file)
    if SECTION not in container.sections:
        raise ExecutableError(
            "file-format",
            f"{file} is an executable, but no compiled module of torch",
            help="load it with relaxpy.load(path)",
        )
    meta = json.loads(container.read(SECTION))
    data = container.map(TENSORS)
    found: dict[str, dict[str, np.ndarray]] = {}
    for kind in ("state", "weights"):
        found[kind] = {}
        for entry in meta[kind]:
            dtype, shape = DType(entry["dtype"]).numpy, tuple(entry["shape"])
            size = dtype.itemsize * math.prod(shape)
            found[kind][entry["name"]] = data[:size].view(dtype).reshape(shape)
            data = data[-(-size // ALIGNMENT) * ALIGNMENT :]
    signature = Signature.from_json(meta["signature"])
    state = {name: tensor_of(array.copy()) for name, array in found["state"].items()}
    return CompiledModule(executable, signature, state, found["weights"], devices)


def _described(arrays: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    return [
        {"name": name, "dtype": str(DType(a.dtype)), "shape": list(a.shape)}
        for name, a in arrays.items()
    ]
