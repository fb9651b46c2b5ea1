"""What the bytecode and the kernels of an executable share: indices, sizes, slots of devices, patterns of values, and
the kernels themselves.

These are the words that a process needs to run functions which are translated already; the instructions
(`relaxpy.runtime.bytecode`, which has these names, too) are needed to translate them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from keyword import iskeyword
from typing import Annotated, ClassVar, TypeAlias

from relaxpy.runtime.dtype import INFO

# `relaxpy.runtime.codec` checks each field of a file against its type and the range in its `Annotated`.
Index: TypeAlias = Annotated[int, range(1 << 31)]
"""An index, from 0."""
OrNone: TypeAlias = Annotated[int, range(-1, 1 << 31)]
"""An index, or -1 for none."""
Int64: TypeAlias = Annotated[int, range(-(1 << 63), 1 << 63)]
Rank: TypeAlias = Annotated[int, range(-1, 65)]
"""The number of dimensions; -1: any."""
DTypeName: TypeAlias = Annotated[str, frozenset(INFO)]
AnyDType: TypeAlias = Annotated[str, frozenset({"", *INFO})]


class _Identifiers:
    """The names that Python's variables may have."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.isidentifier() and not iskeyword(name)


PrimDType: TypeAlias = Annotated[str, frozenset({"", "string", "str", *INFO})]


@dataclass(frozen=True, slots=True)
class Reg:
    """A register operand."""

    index: Index


@dataclass(frozen=True, slots=True)
class Heap:
    """An operand that is an integer of the heap."""

    index: Index


INT_OPS = (
    "add", "sub", "mul", "floordiv", "floormod", "min", "max",
    "eq", "ne", "lt", "le", "and", "or", "not", "select",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class IntOp:
    """An integer operation; `op` is one of INT_OPS. floordiv and floormod round towards minus infinity. Comparisons and
    logic give 0 or 1. select takes (condition, then, else)."""

    op: Annotated[str, INT_OPS]
    args: tuple[IntExpr, ...]


IntExpr: TypeAlias = "Int64 | Heap | IntOp"
Operand: TypeAlias = "Reg | Heap | Int64 | float | bool | str"


ACCESSES = ("read", "write", "read-write")
"""How a kernel accesses a buffer."""

HOST = 0
"""The slot of the processor that runs the machine."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A device of an executable: the tensors and kernels in this slot belong to it."""

    name: str
    """The name by which users choose its device."""
    kind: str
    """The kind of device, e.g. `cpu`."""
    index: Index = 0
    """The number of the device among those of its kind, unless the user chooses another."""


HOST_SLOT = Slot("host", "cpu")


# Patterns describe the values that a `Match` accepts. A dimension is None (any size), an int (this size), or Heap(i):
# the size is stored there.


@dataclass(frozen=True, slots=True)
class TensorPattern:
    """A tensor. `shape` None: any shape of `ndim` dimensions (-1: any rank). `dtype` "": any."""

    shape: tuple[None | Int64 | Heap, ...] | None
    ndim: Rank
    dtype: AnyDType
    slot: Index = HOST
    """The slot of its device."""


@dataclass(frozen=True, slots=True)
class ShapePattern:
    """A shape value."""

    dims: tuple[None | Int64 | Heap, ...] | None
    ndim: Rank


@dataclass(frozen=True, slots=True)
class PrimPattern:
    """A scalar of `dtype` ("" for any). Its integer value may be stored in the heap, or be a required number."""

    dtype: PrimDType
    value: None | Int64 | Heap = None


@dataclass(frozen=True, slots=True)
class TuplePattern:
    """A tuple with one pattern for each field."""

    fields: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class CallablePattern:
    """A function value of `arity` parameters (-1: any)."""

    arity: OrNone = -1


@dataclass(frozen=True, slots=True)
class ObjectPattern:
    """Any value."""


Name: TypeAlias = Annotated[str, _Identifiers()]
"""A name of the program that Python may have, too."""


@dataclass(frozen=True, slots=True)
class DataPattern:
    """A value of a data type of the executable, with these arguments."""

    name: Name
    args: tuple[Pattern, ...] = ()


@dataclass(frozen=True, slots=True)
class ParamPattern:
    """A parameter of a data type, in its fields."""

    index: Index


Pattern: TypeAlias = "TensorPattern | ShapePattern | PrimPattern | TuplePattern | CallablePattern | ObjectPattern | DataPattern | ParamPattern"  # fmt: skip  # noqa: E501


@dataclass(frozen=True, slots=True)
class DataCase:
    """A constructor of a data type."""

    name: Name
    fields: tuple[Name, ...]
    patterns: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class DataInfo:
    """A data type of an executable, with so many parameters."""

    name: Name
    params: Index
    cases: tuple[DataCase, ...]

    def key(self, case: DataCase) -> str:
        """The name of a constructor in calls, with those of its fields."""
        return f"{self.name}.{case.name}({', '.join(case.fields)})"


@dataclass(frozen=True, slots=True)
class WeightParam:
    """A parameter that is a weight, which a checkpoint has. Callers pass what its packer makes
    (`relaxpy.runtime.pack`)."""

    function: Index
    """Index into the executable's functions."""
    param: Index
    """Number of the parameter."""
    sources: tuple[str, ...]
    """The names of the tensors that it is made from, as the user declared them."""
    packer: OrNone = -1
    """The function from these tensors to the argument; -1: the argument is the only source itself."""
    layout: str = ""
    """A digest of the packer's code, and the field: arguments packed by an equal packer of another executable are
    accepted."""
    field: OrNone = -1
    """The field of the packer's result, a tuple; -1: the result is a tensor, the argument."""


@dataclass(frozen=True, slots=True)
class KernelMemory:
    """The most heap memory in bytes that a run of a kernel allocates, beside its arguments. `Heap(i)` in these formulas
    is not a heap slot but a size of an argument: `sizes[i]` is (argument, dimension), with dimension -1 for the
    argument itself."""

    shared: IntExpr
    """Allocated once."""
    each: IntExpr
    """Allocated by each thread that runs the kernel."""
    sizes: tuple[tuple[Index, OrNone], ...] = ()


@dataclass(frozen=True, slots=True)
class KernelParam:
    """A parameter of a kernel. `Heap(i)` in its shape is not a heap slot but size number i of the kernel. All arguments
    of a call must agree on it."""

    dtype: DTypeName
    shape: tuple[IntExpr, ...] | None
    """None: a scalar."""
    size: OrNone = -1
    """For a scalar: the number of the kernel's size that it holds; -1: none."""
    access: Annotated[str, ACCESSES] = "read"
    """How the kernel accesses its memory. `read`: it only reads. `write`: it overwrites without reading. `read-write`:
    it may read the old contents."""

    @property
    def written(self) -> bool:
        """Whether the kernel writes to it."""
        return self.access != "read"


@dataclass(frozen=True, slots=True)
class Requirement:
    """The hardware that a kernel image requires. Feature names are those of the device's kind; for processors,
    LLVM's."""

    name: str
    """The processor or device that the code was built for, for messages."""
    arch: str = ""
    """The device's architecture, e.g. `x86_64`; "": any."""
    features: tuple[str, ...] = ()
    """E.g. `avx2`."""


@dataclass(frozen=True, slots=True)
class KernelImage:
    """Compiled code of a kernel for one kind of hardware: the symbols of its variants, and their object."""

    symbol: str
    """The parallel variant: runs on all threads where that is faster."""
    serial_symbol: str
    """The serial variant: runs on the calling thread. The same as `symbol` if the program has no parallel loop, or if
    the launcher of that loop makes the difference (`launchers`)."""
    object: Index = 0
    """Index into the executable's objects."""
    launchers: OrNone = -1
    """Index of the object with the functions that launch the parallel loops of this one
    (`relaxpy.runtime.devices.cpu.launchers`); -1: the thread pool launches them."""
    memory: KernelMemory | None = None
    """None: unknown."""
    launch: tuple[IntExpr, ...] = ()
    """The launch configuration for devices that need one, e.g. the numbers of groups and of threads in each. `Heap(i)`
    is the kernel's size number i, as in its parameters' shapes."""
    needs: OrNone = -1
    """Index into the executable's requirements: the hardware that it needs; -1: any."""

    def moved(self, places: Sequence[int]) -> KernelImage:
        """This image with its objects renumbered: object i becomes `places[i]`."""
        launchers = -1 if self.launchers == -1 else places[self.launchers]
        return replace(self, object=places[self.object], launchers=launchers)


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """A compiled tensor program: its parameters, and one or more images for different hardware. All images take the
    same arguments and compute the same result."""

    name: str
    images: tuple[KernelImage, ...]
    """In order of preference: a device runs the first image whose requirement it meets."""
    params: tuple[KernelParam, ...] | None = None
    """Its parameters. The code does not check its arguments; its symbols end with a digest of the parameters
    (`relaxpy.runtime.kernel_params`). None: the code checks its arguments itself."""
    slot: Index = HOST
    """The slot where it runs and where its tensors are."""

    kind: ClassVar[str] = "kernel"

    @property
    def image(self) -> KernelImage:
        """The first image. After linking it is the only one: the image that runs (`relaxpy.runtime.images`)."""
        return self.images[0]
