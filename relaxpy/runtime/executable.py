"""An executable, the output of the compiler and the input of the virtual machine: functions, constants, kernels and
requirements.

An `Executable` is immutable, and any number of virtual machines and threads may share one. `save` and `load` store it
in a file of relaxpy's own format (`relaxpy.runtime.container`); the same executable gives the same bytes.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from relaxpy.errors import ExecutableError, RuntimeCheckError, UsageError
from relaxpy.files import given_path
from relaxpy.half_bytes import as_bytes
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.check_data import DataCheck, types_of
from relaxpy.runtime.container import (
    ALIGNMENT,
    Container,
    MemoryContainer,
    open_container,
    write_container,
)
from relaxpy.runtime.data import Types
from relaxpy.runtime.host.features import missing_here
from relaxpy.runtime.images import choose_images
from relaxpy.runtime.tensor import Array
from relaxpy.runtime.terms import (
    HOST_SLOT,
    DataInfo,
    Index,
    KernelInfo,
    Requirement,
    Slot,
    WeightParam,
)

# The bytecode, and what reads it, is imported where it is decoded: an executable that brings its functions linked along
# needs none of it.
if TYPE_CHECKING:
    from relaxpy.runtime.bytecode import FunctionCode
    from relaxpy.runtime.inspect.build_report import BuildReport
    from relaxpy.runtime.inspect.memory_plan import MemoryPlan
    from relaxpy.runtime.links import Links
    from relaxpy.runtime.verifier.verify import Unproved

_MACHINES = {62: ("x86_64", "amd64"), 183: ("aarch64", "arm64")}
"""ELF's machine number → Python's names for the architecture."""


@dataclass(frozen=True, eq=False, repr=False)
class Executable:
    """A compiled module. Do not change its fields. Its constants are read-only once it has been saved and loaded."""

    functions: tuple[FunctionCode, ...]
    constants: tuple[Array, ...] = ()
    """Arrays of numpy, with a type of `ml_dtypes` if numpy has no such type."""
    kernels: tuple[KernelInfo, ...] = ()
    libraries: tuple[str, ...] = ()
    """Names that `Library` instructions index."""
    packed: tuple[str, ...] = ()
    """Names that `Packed` instructions index."""
    objects: tuple[bytes, ...] = ()
    """The code of the kernels: relocatable object files, one for each image, with its variants. For other devices, the
    format of their backend (`KernelImage.object`)."""
    target: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The target of the build: `kind`, `text`, `mcpu`."""
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    """Kernel → its script, for `as_text`."""
    slots: tuple[Slot, ...] = (HOST_SLOT,)
    """The devices that it needs. The first is the CPU that runs the virtual machine."""
    requirements: tuple[Requirement, ...] = ()
    """The hardware requirements that kernel images refer to (`KernelImage.needs`)."""
    weight_params: tuple[WeightParam, ...] = ()
    """The parameters that are weights to be packed (`VirtualMachine.pack`), by function and position."""
    data_types: tuple[DataInfo, ...] = ()
    """The data types that the program declares."""
    build_report: BuildReport | None = None
    """The time of each step of the build; not stored in files."""
    links: Links | None = field(default=None, init=False)
    """Its functions as linked before (`from_links`); a changed copy has none."""

    def __repr__(self) -> str:
        names = ", ".join(code.name for code in self.functions if code.public)
        kernels = f"{len(self.kernels)} kernel{'' if len(self.kernels) == 1 else 's'}"
        return (
            f"<relaxpy Executable for {self.target.get('kind', 'any target')}: {names}; {kernels}>"
        )

    def __getattr__(self, name: str) -> Any:
        late = vars(self).get("_late", {})
        if name in late:  # of `from_links`
            vars(self)[name] = found = _late(name, json.loads(bytes(late[name])))
            return found
        hint = {
            "export_library": ": exe.save(path) writes it to a file",
            "run": ': relaxpy.VirtualMachine(exe)["main"](…) runs it',
        }.get(name, "")
        raise AttributeError(f"an Executable has no attribute {name!r}{hint}")

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise _not_running()

    def __getitem__(self, name: str) -> NoReturn:
        raise _not_running()

    @cached_property
    def types(self) -> Types:
        """The data types of the program, to make values of: `exe.types.List.Cons(x, tail)`."""
        return types_of(self.data_types)

    @cached_property
    def data_check(self) -> DataCheck:
        """Compares values with patterns over these types."""
        return DataCheck(self.data_types)

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
        """The parameters and the result of the function `name`, as script."""
        from relaxpy.runtime.inspect.listing import signature

        return signature(self.function(name))

    def memory_plan(self, sizes: Mapping[str, int] | None = None, /, **named: int) -> MemoryPlan:
        """The memory that calls need with these values of symbolic variables: `memory_plan(n=2048)` or
        `memory_plan({"main.n": 2048})`. Variables without a value are taken at their upper bound
        (`relaxpy.runtime.inspect.memory_plan`).

        Raises: UsageError (`plan-sizes`) for a name that no function has, and for a variable with neither.
        """
        from relaxpy.runtime.inspect.memory_plan import plan_of

        weights = sum(array.nbytes for array in self.constants)
        kernels = self.kernels
        with suppress(ExecutableError):  # then it is planned for another machine
            kernels = self.images_here()
        return plan_of(self.functions, weights, {**(sizes or {}), **named}, kernels)

    def as_text(self, kernels: bool = False) -> str:
        """A readable listing of the functions, one line per instruction; with `kernels` also the tensor programs."""
        from relaxpy.runtime.inspect.listing import listing

        return listing(self, kernels)

    @cached_property
    def unproved(self) -> tuple[Unproved, ...]:
        """For each function the instructions that are checked at run time, because the verifier could not prove them
        safe (`relaxpy.runtime.verifier.verify`).

        Raises: ExecutableError (`bytecode`) for bytecode that does not hold together.
        """
        from relaxpy.runtime.verifier.verify import verify

        return verify(self)

    def verify(self, file: str) -> None:
        """Verify the bytecode now; errors name `file`."""
        from relaxpy.runtime.verifier.verify import verify

        vars(self)["unproved"] = verify(self, file)

    def images_here(self, file: str = "", without: Collection[str] = ()) -> tuple[KernelInfo, ...]:
        """The kernels; those for CPUs only with the image that runs on this machine. Features in `without` count as
        missing. Errors name `file`.

        Raises: ExecutableError (`cpu-features`) where there is none.
        """
        hosts = {n: missing_here for n, slot in enumerate(self.slots) if slot.kind == "cpu"}
        return choose_images(self.kernels, self.requirements, self.slots, hosts, without, file)

    def require_host(self, file: str = "") -> None:
        """Raises: ExecutableError (`cpu-features`) if the kernels cannot run on this machine."""
        where = f"{file}: " if file else ""
        own = [info for info in self.images_here(file) if self.slots[info.slot].kind == "cpu"]
        built = _machine(self.objects[own[0].image.object]) if own else ()
        if built and platform.machine().lower() not in built:
            raise ExecutableError(
                "cpu-features",
                f"{where}the kernels are for {built[0]}, this machine is a {platform.machine()}",
            )

    def save(
        self, path: str | os.PathLike[str], weights: Literal["inside", "beside"] = "inside"
    ) -> None:
        """Writes the executable to a file; with `weights="beside"` the constants go to `<path>.weights`.

        Raises: ExecutableError (`file-write`), UsageError (`weights`).
        """
        if weights not in ("inside", "beside"):
            raise UsageError("weights", f"weights must be 'inside' or 'beside', got {weights!r}")
        file = Path(path)
        sections = self.sections()
        if weights == "beside":
            beside = _weights_path(file)
            digests = write_container(beside, {"weights": sections.pop("weights")})
            facts = {"file": beside.name, "sha256": digests["weights"]}
            sections["meta"] = _json({**json.loads(sections["meta"]), "weights": facts})
        write_container(file, sections)

    def sections(self) -> dict[str, Any]:
        """The sections of the container that stores the executable, without copying the weights. `from_sections` is the
        inverse."""
        from relaxpy.runtime.codec import encode

        table, pieces = self.constant_layout()
        meta: dict[str, Any] = {
            "functions": encode(self.functions),
            "kernels": encode(self.kernels),
            "slots": encode(self.slots),
            "requirements": encode(self.requirements),
            "weight_params": encode(self.weight_params),
            "data_types": encode(self.data_types),
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

    def head(self) -> dict[str, Any]:
        """The fields that `from_links` takes, without the functions and what is stored as it is."""
        from relaxpy.runtime.codec import decode

        table, _ = self.constant_layout()
        names = (
            "kernels",
            "slots",
            "requirements",
            "weight_params",
            "data_types",
            "libraries",
            "packed",
            "target",
        )
        return {
            **{name: getattr(self, name) for name in names},
            "constants": decode(table, _meta()["constants"]),
            "objects": tuple(map(len, self.objects)),
        }

    @staticmethod
    def from_links(container: Container, head: Mapping[str, Any], links: Links) -> Executable:
        """The executable of a container whose functions are linked: they are decoded when they are looked at.

        Raises: ValueError for a head of other sections.
        """
        fields: dict[str, Any] = {
            **head,
            "constants": tuple(_constants(container, head["constants"])),
            "objects": _cut(container.read("object"), head["objects"]),
        }
        exe = Executable((), **fields)
        late = {"functions": container.map("meta"), "sources": container.map("sources")}
        for name in late:
            del vars(exe)[name]
        vars(exe).update(links=links, _late=late)
        return exe

    def constant_layout(self) -> tuple[list[dict[str, Any]], list[bytes | Array]]:
        """The dtype, shape and first byte of each constant in the section of weights, and this section in pieces, with
        each constant aligned. Nothing is copied."""
        return _lay_out(self.constants)

    @staticmethod
    def from_sections(
        container: Container | MemoryContainer,
        weights: Container | None = None,
        meta: Any = None,
    ) -> Executable:
        """The executable with these `sections`, without copying the weights, which may be in a container of their own.
        `meta` is the decoded section `meta`, if the caller has read it already.

        Raises: ValueError, RecursionError for other sections.
        """
        from relaxpy.runtime.codec import decode

        meta = decode_meta(json.loads(container.read("meta")) if meta is None else meta)
        target: dict[str, Any] = {**meta["target"]}
        return Executable(
            functions=meta["functions"],
            constants=tuple(_constants(weights or container, meta["constants"])),
            kernels=meta["kernels"],
            slots=meta["slots"],
            requirements=meta["requirements"],
            weight_params=meta["weight_params"],
            data_types=meta["data_types"],
            libraries=meta["libraries"],
            packed=meta["packed"],
            objects=_cut(container.read("object"), meta["objects"]),
            target=target,
            sources=decode(json.loads(container.read("sources")), dict[str, str]),
        )


def load(path: str | os.PathLike[str], *, any_cpu: bool = False) -> Executable:
    """Reads an executable that `Executable.save` wrote. All checksums are verified first. Weights are mapped into
    memory, not read.

    `any_cpu`: read it also where its kernels cannot run, to look at it.

    Raises: ExecutableError: `file-read`, `file-format` (not ours), `file-version`, `file-truncated`, `file-damaged`,
    `weights-missing`, `weights-place`, `weights-mismatch`, `bytecode`, `cpu-features`.
    """
    file = given_path(path, "an executable", ExecutableError, "file-read")
    container = open_container(file)
    try:
        meta = json.loads(container.read("meta"))
        beside = _beside(meta)
        weights = _open_weights(beside, file) if beside is not None else None
        exe = Executable.from_sections(container, weights, meta)
    except (ValueError, RecursionError) as error:
        # The checksums are right, so another program wrote this file.
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ExecutableError("file-damaged", f"{file} is damaged: {reason}") from error
    except RuntimeCheckError as error:  # an element type that this machine has no tensors of
        raise ExecutableError("file-damaged", f"{file}: {error.message}") from error
    exe.verify(str(file))
    if not any_cpu:
        exe.require_host(str(file))
    return exe


@cache
def _meta() -> dict[str, Any]:
    """The type of each entry of the section `meta`."""
    from relaxpy.runtime.bytecode import FunctionCode

    return {
        "functions": tuple[FunctionCode, ...],
        "kernels": tuple[KernelInfo, ...],
        "slots": tuple[Slot, ...],
        "requirements": tuple[Requirement, ...],
        "weight_params": tuple[WeightParam, ...],
        "data_types": tuple[DataInfo, ...],
        "libraries": tuple[str, ...],
        "packed": tuple[str, ...],
        "target": dict[str, str | int | bool | None | tuple[str, ...]],
        "constants": tuple[dict[str, str | int | tuple[Index, ...]], ...],
        "objects": tuple[Index, ...],
    }


def _late(name: str, section: Any) -> Any:
    """A field from its section, where it is decoded when it is looked at."""
    from relaxpy.runtime.codec import decode

    if name == "functions":
        return decode(section["functions"], _meta()["functions"])
    return decode(section, dict[str, str])


def decode_meta(meta: Any) -> dict[str, Any]:
    """The entries of the section `meta`, each checked against its type. Raises: ValueError."""
    from relaxpy.runtime.codec import Malformed, decode

    if not isinstance(meta, dict):
        raise ValueError("the section 'meta' is not an object")
    found: dict[str, Any] = {}
    for name, annotation in _meta().items():
        if name not in meta:
            raise ValueError(f"the section 'meta' has no {name!r}")
        try:
            found[name] = decode(meta[name], annotation)
        except Malformed as error:
            error.path.append(name)
            raise
    texts = [found["target"].get(name, "") for name in ("kind", "mcpu", "text")]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("target: its kind, processor and text must be strings")
    for number, weight in enumerate(found["weight_params"]):
        if not _is_weight(weight, found["functions"]):
            raise ValueError(f"weight_params[{number}]: it does not fit its function or its packer")
    return found


def _is_weight(weight: WeightParam, functions: Sequence[FunctionCode]) -> bool:
    """Does an entry name a parameter of a public function, and a public packer of as many tensors as it has sources?"""
    known = range(len(functions))
    if weight.function not in known or not functions[weight.function].public:
        return False
    if weight.param >= len(functions[weight.function].params):
        return False
    if weight.packer < 0:
        return len(weight.sources) == 1 and weight.field < 0
    if weight.packer not in known or not functions[weight.packer].public:
        return False
    return 0 < len(weight.sources) == len(functions[weight.packer].params)


def _beside(meta: Any) -> dict[str, str] | None:
    """The entry about the weights file, if the weights are not in the executable. Raises: ValueError."""
    from relaxpy.runtime.codec import decode

    wanted = meta.get("weights") if isinstance(meta, dict) else None
    if wanted is None:
        return None
    found: dict[str, str] = decode(wanted, dict[str, str])
    if not {"file", "sha256"} <= found.keys():
        raise ValueError("weights: a file and its checksum are expected")
    return found


def _cut(data: bytes, lengths: Sequence[int]) -> tuple[bytes, ...]:
    """Splits `data` into consecutive pieces of these lengths, which must cover all of it. Raises: ValueError."""
    ends = list(accumulate(lengths, initial=0))
    if ends[-1] != len(data):
        raise ValueError(f"the objects have {ends[-1]} bytes, their section {len(data)}")
    return tuple(data[begin:end] for begin, end in pairwise(ends))


def _open_weights(wanted: dict[str, str], file: Path) -> Container:
    name = wanted["file"]
    if Path(name).name != name or not name or "\0" in name:
        raise _elsewhere(file, name)
    path = file.parent / name
    renamed = _weights_path(file)
    if name != renamed.name and os.path.lexists(renamed):  # the pair may have been renamed
        path = renamed
    if not os.path.lexists(path):
        raise ExecutableError(
            "weights-missing",
            f"{file} needs the weights in {path.name}, which does not exist",
            help=f"put {path.name} into {file.parent}, or save with weights='inside'",
        )
    try:
        if path.resolve().parent not in (file.parent.resolve(), file.resolve().parent):
            raise _elsewhere(file, name)
    except (OSError, RuntimeError) as error:  # a link that leads to itself
        raise ExecutableError("file-read", f"cannot read {path}: {error}") from error
    container = open_container(path, "a weights file")
    section = container.sections.get("weights")
    if section is None or section.digest.hex() != wanted["sha256"]:
        raise ExecutableError(
            "weights-mismatch", f"{path} has the weights of another build than {file}"
        )
    return container


def _elsewhere(file: Path, name: str) -> ExecutableError:
    return ExecutableError(
        "weights-place",
        f"{file} refers to weights in {name!r}, which is not a file in its folder",
        help="put the file itself, not a link to it, into the folder of the executable",
    )


def _weights_path(file: Path) -> Path:
    return file.with_name(file.name + ".weights")


def _constants(
    container: Container | MemoryContainer, table: Sequence[dict[str, Any]]
) -> list[Array]:
    """Arrays over the mapped weights section. Raises: ValueError, RuntimeCheckError for a table that does not fit
    it."""
    memory = container.map("weights")
    arrays: list[Array] = []
    for number, entry in enumerate(table):
        name, begin, shape = entry.get("dtype"), entry.get("offset"), entry.get("shape")
        if not isinstance(name, str) or not isinstance(shape, tuple) or type(begin) is not int:
            raise ValueError(f"constants[{number}]: a dtype, a shape and an offset are expected")
        end = begin + dtypes.nbytes(name, shape)
        if not 0 <= begin <= end <= len(memory) or begin % ALIGNMENT:
            raise ValueError(f"constants[{number}]: bytes {begin} to {end} of {len(memory)}")
        arrays.append(dtypes.from_bytes(np.asarray(memory[begin:end]), name, shape))
    return arrays


def _lay_out(constants: tuple[Array, ...]) -> tuple[list[dict[str, Any]], list[bytes | Array]]:
    """The table of positions in the weights section, and the section in pieces, with each constant aligned."""
    table: list[dict[str, Any]] = []
    pieces: list[bytes | Array] = []
    offset = 0
    for array in constants:
        compact = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
        table.append(
            {"dtype": dtypes.from_numpy(array.dtype), "shape": list(array.shape), "offset": offset}
        )
        raw = as_bytes(compact)
        pieces.append(raw)
        padding = -raw.nbytes % ALIGNMENT
        if padding:
            pieces.append(bytes(padding))
        offset += raw.nbytes + padding
    return table, pieces


def _plain(target: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in sorted(target.items())
    }


def _json(value: Any) -> bytes:
    # In ASCII, since the name of a file may contain characters that UTF-8 cannot encode.
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _machine(object_code: bytes) -> tuple[str, ...]:
    """Python's names for the machine of an ELF object; empty for another format."""
    if object_code[:4] != b"\x7fELF":
        return ()
    return _MACHINES.get(int.from_bytes(object_code[18:20], "little"), ())


def _not_running() -> UsageError:
    return UsageError(
        "executable",
        "an Executable cannot be called: a virtual machine runs it",
        help='write vm = relaxpy.VirtualMachine(exe); vm["main"](…); for the bytecode write exe.function("main")',
    )
