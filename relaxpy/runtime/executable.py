"""What the compiler makes and the virtual machine runs: functions, constants, kernels, and what they need.

An `Executable` is immutable and shared: any number of virtual machines and threads use one. `save` and `load` keep it
in a file of relaxpy's own format (`relaxpy.runtime.container`); same executable, same bytes.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from relaxpy.errors import ExecutableError, UsageError
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.build_report import BuildReport
from relaxpy.runtime.bytecode import FunctionCode, KernelInfo
from relaxpy.runtime.codec import decode, encode
from relaxpy.runtime.container import (
    ALIGNMENT,
    Container,
    MemoryContainer,
    open_container,
    write_container,
)
from relaxpy.runtime.cpu import missing_features
from relaxpy.runtime.listing import listing, signature
from relaxpy.runtime.memory_plan import MemoryPlan, plan_of
from relaxpy.runtime.tensor import Array

_MACHINES = {62: ("x86_64", "amd64"), 183: ("aarch64", "arm64")}
"""ELF's machine number → names that Python has for it."""


@dataclass(frozen=True, eq=False, repr=False)
class Executable:
    """A compiled module. Fields are not to be changed; constants are read-only once it has been saved and loaded."""

    functions: tuple[FunctionCode, ...]
    constants: tuple[Array, ...] = ()
    """numpy arrays, of `ml_dtypes` where numpy has no such type."""
    kernels: tuple[KernelInfo, ...] = ()
    libraries: tuple[str, ...] = ()
    """Names that `Library` instructions index."""
    packed: tuple[str, ...] = ()
    """Names that `Packed` instructions index."""
    objects: tuple[bytes, ...] = ()
    """Relocatable object files with all kernels: one a kernel, with its variants."""
    target: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What it was built for: `kind`, `mcpu`, `features` (LLVM names that the code needs)."""
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    """Kernel → its script, for `as_text`."""
    build_report: BuildReport | None = None
    """Where the time of the build went; not kept in files."""

    def __repr__(self) -> str:
        names = ", ".join(code.name for code in self.functions if code.public)
        kernels = f"{len(self.kernels)} kernel{'' if len(self.kernels) == 1 else 's'}"
        return (
            f"<relaxpy Executable for {self.target.get('kind', 'any target')}: {names}; {kernels}>"
        )

    def function(self, name: str) -> FunctionCode:
        """The function `name`. Raises: UsageError (`function-name`)."""
        for code in self.functions:
            if code.name == name:
                return code
        names = ", ".join(code.name for code in self.functions)
        raise UsageError(
            "function-name",
            f"the executable has no function {name!r}",
            help=f"there are: {names or 'none'}",
        )

    def signature(self, name: str) -> str:
        """What the function `name` takes and gives, as script."""
        return signature(self.function(name))

    def memory_plan(self, sizes: Mapping[str, int] | None = None, /, **named: int) -> MemoryPlan:
        """How much memory calls take with these values of symbolic variables, `memory_plan(n=2048)` or
        `memory_plan({"main.n": 2048})`; what is not given is at its upper bound (`relaxpy.runtime.memory_plan`).

        Raises: UsageError (`plan-sizes`) for a name that no function has, and for a variable with neither.
        """
        weights = sum(array.nbytes for array in self.constants)
        return plan_of(self.functions, weights, {**(sizes or {}), **named}, self.kernels)

    def as_text(self, kernels: bool = False) -> str:
        """A listing to read: functions instruction by instruction; with `kernels` the tensor programs as well."""
        return listing(self, kernels)

    def missing_features(self) -> tuple[str, ...]:
        """Features that the code needs and this CPU lacks, in LLVM's spelling."""
        return missing_features(self.target.get("features", ()))

    def require_host(self) -> None:
        """Raises: ExecutableError (`cpu-features`) if the kernels cannot run on this machine."""
        if not self.objects:
            return
        built = _machine(self.objects[0])
        if built and platform.machine().lower() not in built:
            raise ExecutableError(
                "cpu-features",
                f"the kernels are for {built[0]}, this machine is a {platform.machine()}",
            )
        missing = self.missing_features()
        if missing:
            raise ExecutableError(
                "cpu-features",
                f"the kernels need CPU features that this machine lacks: {', '.join(missing)}",
                help="build for this machine, or for what all machines have: target='llvm -mcpu=x86-64-v3'",
            )

    def save(
        self, path: str | os.PathLike[str], weights: Literal["inside", "beside"] = "inside"
    ) -> None:
        """Write the executable to a file; with `weights="beside"` the constants to `<path>.weights`.

        Raises: ExecutableError (`file-write`), UsageError (`weights`).
        """
        if weights not in ("inside", "beside"):
            raise UsageError("weights", f"weights are 'inside' or 'beside', not {weights!r}")
        file = Path(path)
        sections = self.sections()
        if weights == "beside":
            beside = _weights_path(file)
            digests = write_container(beside, {"weights": sections.pop("weights")})
            facts = {"file": beside.name, "sha256": digests["weights"]}
            sections["meta"] = _json({**json.loads(sections["meta"]), "weights": facts})
        write_container(file, sections)

    def sections(self) -> dict[str, Any]:
        """What a container holds of the executable, weights not copied; `from_sections` reads them."""
        table, pieces = _lay_out(self.constants)
        meta: dict[str, Any] = {
            "functions": encode(self.functions),
            "kernels": encode(self.kernels),
            "libraries": list(self.libraries),
            "packed": list(self.packed),
            "target": _plain(self.target),
            "constants": table,
            "objects": [len(each) for each in self.objects],
        }
        return {
            "meta": _json(meta),
            "object": self.objects,
            "sources": _json(dict(self.sources)),
            "weights": pieces,
        }

    @staticmethod
    def from_sections(
        container: Container | MemoryContainer, weights: Container | None = None
    ) -> Executable:
        """The executable whose `sections` these are, weights (in another container, if it is given) not copied.

        Raises: KeyError, TypeError, ValueError, AssertionError for other sections.
        """
        meta = json.loads(container.read("meta"))
        target: dict[str, Any] = {
            key: tuple(v) if isinstance(v, list) else v for key, v in meta["target"].items()
        }
        return Executable(
            functions=decode(meta["functions"]),
            constants=tuple(_constants(weights or container, meta["constants"])),
            kernels=decode(meta["kernels"]),
            libraries=tuple(meta["libraries"]),
            packed=tuple(meta["packed"]),
            objects=_cut(container.read("object"), meta["objects"]),
            target=target,
            sources=json.loads(container.read("sources")),
        )


def load(path: str | os.PathLike[str], *, any_cpu: bool = False) -> Executable:
    """Read an executable that `Executable.save` wrote. Every checksum is compared first; weights are mapped, not read.

    `any_cpu`: read it also where its kernels cannot run, to look at it.

    Raises: ExecutableError: `file-read`, `file-format` (not ours), `file-version`, `file-truncated`, `file-damaged`,
    `weights-missing`, `weights-mismatch`, `cpu-features`.
    """
    file = Path(path)
    container = open_container(file)
    try:
        beside = json.loads(container.read("meta")).get("weights")
        weights = _open_weights(beside, file) if beside is not None else None
        exe = Executable.from_sections(container, weights)
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        # Checksums are right, so some other program wrote this.
        raise ExecutableError("file-damaged", f"{file} cannot be understood: {error!r}") from error
    if not any_cpu:
        exe.require_host()
    return exe


def _cut(data: bytes, lengths: Sequence[int]) -> tuple[bytes, ...]:
    """Consecutive pieces of `data`."""
    ends = list(accumulate(lengths, initial=0))
    return tuple(data[begin:end] for begin, end in pairwise(ends))


def _open_weights(wanted: dict[str, str], file: Path) -> Container:
    path = file.parent / wanted["file"]
    if wanted["file"] != _weights_path(file).name:
        path = (
            _weights_path(file) if _weights_path(file).exists() else path
        )  # the pair may have been renamed
    if not path.exists():
        raise ExecutableError(
            "weights-missing",
            f"{file} keeps its weights beside it, and {path.name} is not there",
            help=f"put {path.name} into {file.parent}, or save with weights='inside'",
        )
    container = open_container(path, "a weights file")
    section = container.sections.get("weights")
    if section is None or section.digest.hex() != wanted["sha256"]:
        raise ExecutableError(
            "weights-mismatch", f"{path} holds the weights of another build than {file}"
        )
    return container


def _weights_path(file: Path) -> Path:
    return file.with_name(file.name + ".weights")


def _constants(container: Container | MemoryContainer, table: list[dict[str, Any]]) -> list[Array]:
    """Arrays over the mapped section."""
    memory = container.map("weights")
    arrays: list[Array] = []
    for entry in table:
        dtype = dtypes.to_numpy(entry["dtype"])
        begin, shape = entry["offset"], tuple(entry["shape"])
        end = begin + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        arrays.append(np.asarray(memory[begin:end]).view(dtype).reshape(shape))
    return arrays


def _lay_out(constants: tuple[Array, ...]) -> tuple[list[dict[str, Any]], list[bytes | Array]]:
    """Where each constant goes in the weights section, and the section in pieces, each constant aligned."""
    table: list[dict[str, Any]] = []
    pieces: list[bytes | Array] = []
    offset = 0
    for array in constants:
        compact = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
        table.append(
            {"dtype": dtypes.from_numpy(array.dtype), "shape": list(array.shape), "offset": offset}
        )
        pieces.append(compact.reshape(-1).view(np.uint8))
        padding = -compact.nbytes % ALIGNMENT
        if padding:
            pieces.append(bytes(padding))
        offset += compact.nbytes + padding
    return table, pieces


def _plain(target: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in sorted(target.items())
    }


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()


def _machine(object_code: bytes) -> tuple[str, ...]:
    """The machine names that an ELF object is for; empty for another format."""
    if object_code[:4] != b"\x7fELF":
        return ()
    return _MACHINES.get(int.from_bytes(object_code[18:20], "little"), ())
