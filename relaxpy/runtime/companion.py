"""Plain data and arrays by name, beside an executable in its file.

Two sections more, which `load` does not read: JSON under the name of what wrote it, and the arrays one after the other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relaxpy.errors import ExecutableError
from relaxpy.files import given_path
from relaxpy.half_bytes import as_bytes
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.container import ALIGNMENT, open_container, write_container
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.executable import load as load_executable

Arrays = Mapping[str, NDArray[Any]]


def save(
    path: str | os.PathLike[str],
    executable: Executable,
    name: str,
    data: Mapping[str, Any],
    arrays: Mapping[str, Arrays],
    what: str,
) -> None:
    """Write an executable with data and groups of arrays. `what` it is, in messages.

    Raises: ExecutableError (`file-write`).
    """
    groups = {group: _described(each) for group, each in arrays.items()}
    pieces: list[Any] = []
    for array in (array for each in arrays.values() for array in each.values()):
        raw = as_bytes(array)
        pieces += [raw, np.zeros(-raw.nbytes % ALIGNMENT, np.uint8)]
    file = given_path(path, what, ExecutableError, "file-write")
    sections = {
        **executable.sections(),
        name: json.dumps({**data, "arrays": groups}).encode(),
        f"{name}.tensors": pieces,
    }
    write_container(file, sections)


def load(
    path: str | os.PathLike[str], name: str, what: str
) -> tuple[Executable, dict[str, Any], dict[str, dict[str, NDArray[Any]]]]:
    """The executable, data and arrays that `save` wrote. Arrays are mapped into memory, not read.

    Raises: ExecutableError as `relaxpy.load` does, and (`file-format`) for an executable that is not `what`.
    """
    file: Path = given_path(path, what, ExecutableError, "file-read")
    executable = load_executable(file)
    container = open_container(file)
    if name not in container.sections:
        raise ExecutableError(
            "file-format",
            f"{file} is an executable, but not {what}",
            help="load it with relaxpy.load(path)",
        )
    data = json.loads(container.read(name))
    memory = container.map(f"{name}.tensors")
    found: dict[str, dict[str, NDArray[Any]]] = {}
    for group, entries in data.pop("arrays").items():
        found[group] = {}
        for entry in entries:
            dtype, shape = entry["dtype"], tuple(entry["shape"])
            size = dtypes.nbytes(dtype, shape)
            found[group][entry["name"]] = dtypes.from_bytes(memory[:size], dtype, shape)
            memory = memory[-(-size // ALIGNMENT) * ALIGNMENT :]
    return executable, data, found


def _described(arrays: Arrays) -> Sequence[Mapping[str, Any]]:
    return [
        {"name": name, "dtype": dtypes.from_numpy(array.dtype), "shape": list(array.shape)}
        for name, array in arrays.items()
    ]
