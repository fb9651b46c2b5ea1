"""The register bytecode of an executable: what the compiler writes and every runtime reads.

A function has *registers* (values: tensors, tuples, shapes, scalars, closures, opaque objects)
and one int64 *heap* (the paper's integer host tensor, §4.7), where symbolic dimensions and all
shapes that are computed from them live. A shape is a contiguous range of the heap, so a tensor's
record can point into it: binding new sizes writes the heap and nothing else. The heap starts as
`heap_init` (constant dimensions stand there already).

Code is flat; `If` carries the lengths of its two arms, so that a reader can rebuild the nesting.
Every instruction names an entry of the function's `locations` (binding name and source line) for
errors and profiles. Instructions are plain data: `relaxpy.runtime.codec` writes them as JSON,
`relaxpy.runtime.link` turns a function into Python.

Operands of calls: `Reg(i)` a register, `Heap(i)` an integer of the heap, or a Python int, float,
bool or str.

Tensors and kernels belong to *slots*, devices that an executable names (`Executable.slots`) and a virtual machine
chooses. Slot 0 is the processor that runs the machine. Heap, shapes and scalars are always its own; tensors get from
one slot to another by `Copy`, and `Read` makes a scalar of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, TypeAlias

from relaxpy.runtime.dtype import INFO

# What a field may hold, beside its type: `relaxpy.runtime.codec` compares with it what a file says.
Index: TypeAlias = Annotated[int, range(1 << 31)]
"""A number that counts from 0."""
OrNone: TypeAlias = Annotated[int, range(-1, 1 << 31)]
"""Such a number, or -1: none."""
Int64: TypeAlias = Annotated[int, range(-(1 << 63), 1 << 63)]
Rank: TypeAlias = Annotated[int, range(-1, 65)]
"""How many dimensions; -1: any."""
Dims: TypeAlias = Annotated[int, range(65)]
"""How many dimensions."""
DTypeName: TypeAlias = Annotated[str, frozenset(INFO)]
AnyDType: TypeAlias = Annotated[str, frozenset({"", *INFO})]
PrimDType: TypeAlias = Annotated[str, frozenset({"", "string", "str", *INFO})]


@dataclass(frozen=True, slots=True)
class Reg:
    """A register operand."""

    index: Index


@dataclass(frozen=True, slots=True)
class Heap:
    """An integer of the heap, as operand."""

    index: Index


INT_OPS = (
    "add", "sub", "mul", "floordiv", "floormod", "min", "max",
    "eq", "ne", "lt", "le", "and", "or", "not", "select",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class IntOp:
    """An integer operation; `op` is one of INT_OPS. floordiv and floormod round to minus
    infinity; comparisons and logic give 0 or 1; select takes (condition, then, else)."""

    op: Annotated[str, INT_OPS]
    args: tuple[IntExpr, ...]


IntExpr: TypeAlias = "Int64 | Heap | IntOp"
Operand: TypeAlias = "Reg | Heap | Int64 | float | bool | str"


ACCESSES = ("read", "write", "read-write")
"""What a kernel does to a buffer."""

HOST = 0
"""The slot of the processor that runs the machine."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A device that an executable's tensors and kernels belong to."""

    name: str
    """By which users choose its device."""
    kind: str
    """Of device, e.g. `cpu`."""
    index: Index = 0
    """Which one of that kind, where the user does not choose."""


HOST_SLOT = Slot("host", "cpu")


# Patterns: what a value must look like. A dimension is None (anything), an int, or Heap(i): store it there.


@dataclass(frozen=True, slots=True)
class TensorPattern:
    """A tensor. `shape` None: any shape of `ndim` dimensions (-1: any rank). `dtype` "": any."""

    shape: tuple[None | Int64 | Heap, ...] | None
    ndim: Rank
    dtype: AnyDType
    slot: Index = HOST
    """Where it lives."""


@dataclass(frozen=True, slots=True)
class ShapePattern:
    """A shape value."""

    dims: tuple[None | Int64 | Heap, ...] | None
    ndim: Rank


@dataclass(frozen=True, slots=True)
class PrimPattern:
    """A scalar of `dtype` ("" for any); its integer value may be bound or fixed."""

    dtype: PrimDType
    value: None | Int64 | Heap = None


@dataclass(frozen=True, slots=True)
class TuplePattern:
    """A tuple of as many fields."""

    fields: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class CallablePattern:
    """A function value of `arity` parameters (-1: any)."""

    arity: OrNone = -1


@dataclass(frozen=True, slots=True)
class ObjectPattern:
    """Anything."""


Pattern: TypeAlias = (
    "TensorPattern | ShapePattern | PrimPattern | TuplePattern | CallablePattern | ObjectPattern"
)


@dataclass(frozen=True, slots=True)
class Check:
    """What a `Match` or an `Assert` is about, for its error message."""

    what: str
    """"parameter", "return value", "match_cast", "result" (of a library or Python call) or
    "argument"."""
    name: str
    """The parameter's or variable's name."""
    annotation: str
    """The annotation as script, e.g. `R.Tensor((n, n * 4), dtype="float32")`."""
    detail: str = ""
    """For an `Assert`: the relation as script, e.g. `n * 4`, and where: `dimension 1`."""
    symbols: tuple[tuple[str, Index], ...] = ()
    """Symbolic variables that the annotation mentions and their heap slots: the bound values to
    show."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where an instruction comes from."""

    binding: str
    """Name of the variable that is bound."""
    file: str = ""
    line: Index = 0
    column: Index = 0
    end_column: Index = 0
    """0: not known, or on another line."""


@dataclass(frozen=True, slots=True)
class Instr:
    """Base of all instructions."""

    loc: OrNone
    """Index into the function's `locations`."""


@dataclass(frozen=True, slots=True)
class Const(Instr):
    """dst ← constants[index], in the memory of a slot."""

    dst: Index
    index: Index
    slot: Index = HOST


@dataclass(frozen=True, slots=True)
class Match(Instr):
    """Check register src against a pattern and bind the pattern's heap slots."""

    src: Index
    pattern: Pattern
    check: Index
    """Index into the function's `checks`."""


@dataclass(frozen=True, slots=True)
class Eval(Instr):
    """heap[dst] ← expr."""

    dst: Index
    expr: IntExpr


@dataclass(frozen=True, slots=True)
class Assert(Instr):
    """Fail unless lhs (what came) = rhs (what the annotation says)."""

    lhs: IntExpr
    rhs: IntExpr
    check: Index


@dataclass(frozen=True, slots=True)
class Alloc(Instr):
    """dst ← an uninitialised tensor of shape heap[shape : shape + ndim]."""

    dst: Index
    shape: Index
    ndim: Dims
    dtype: DTypeName
    storage: OrNone
    """Index of one of the function's `storages` (memory of the frame; the tensor never leaves the
    call), or -1: memory of its own, which may leave the call."""
    offset: Annotated[int, range(1 << 63)] = 0
    """Bytes from the storage's start to the tensor's."""
    slot: Index = HOST
    """Where it lives; as its storage."""


@dataclass(frozen=True, slots=True)
class View(Instr):
    """dst ← the memory of tensor src (compact), seen with shape heap[shape : shape + ndim] and
    `dtype`."""

    dst: Index
    src: Index
    shape: Index
    ndim: Dims
    dtype: DTypeName
    slot: Index = HOST
    """Where src lives."""


@dataclass(frozen=True, slots=True)
class Copy(Instr):
    """dst ← tensor src in the memory of a slot: src itself where it lives there, else a new tensor with its numbers. A
    machine may have to wait for it."""

    dst: Index
    src: Index
    slot: Index


@dataclass(frozen=True, slots=True)
class Read(Instr):
    """dst ← the only item of the 0-d tensor src, of any slot, as a scalar. A machine may have to wait for it."""

    dst: Index
    src: Index


@dataclass(frozen=True, slots=True)
class Kernel(Instr):
    """kernels[index](*args): a compiled tensor program in destination-passing style, on tensors of its slot."""

    index: Index
    args: tuple[Operand, ...]
    work: IntExpr
    """About how many scalar operations this call does; -1: unknown. Picks serial or parallel, GIL
    kept or not."""
    flops: IntExpr = -1
    """Floating-point operations of this call; -1: unknown. For profiles, which alone evaluate it."""
    nbytes: IntExpr = -1
    """Bytes that this call must move at least; likewise."""


@dataclass(frozen=True, slots=True)
class Library(Instr):
    """libraries[index](*args): a registered library function in destination-passing style
    (outputs last)."""

    index: Index
    args: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Packed(Instr):
    """dst ← packed[index](*args): a registered function or builtin (`vm.builtin.…`) that returns
    a value."""

    dst: Index
    index: Index
    args: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Call(Instr):
    """dst ← functions[index](*args)."""

    dst: Index
    index: Index
    args: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Closure(Instr):
    """dst ← functions[index] with the last len(captured) parameters filled in (none: a plain
    function value)."""

    dst: Index
    index: Index
    captured: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Invoke(Instr):
    """dst ← register `closure` called with args; it may be a closure or a Python callable."""

    dst: Index
    closure: Index
    args: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class MakeTuple(Instr):
    """dst ← (src…)."""

    dst: Index
    fields: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Item(Instr):
    """dst ← src[index]."""

    dst: Index
    src: Index
    index: Index


@dataclass(frozen=True, slots=True)
class MakeShape(Instr):
    """dst ← the shape value heap[shape : shape + ndim]."""

    dst: Index
    shape: Index
    ndim: Dims


@dataclass(frozen=True, slots=True)
class MakePrim(Instr):
    """dst ← a scalar (or string) of `dtype`."""

    dst: Index
    value: Heap | Int64 | float | bool | str
    dtype: PrimDType


@dataclass(frozen=True, slots=True)
class Move(Instr):
    """dst ← src."""

    dst: Index
    src: Index


@dataclass(frozen=True, slots=True)
class If(Instr):
    """Run the next then_len instructions if register cond (a bool, or a 0-d bool tensor of the host) holds,
    else the else_len after them; then go on behind both."""

    cond: Index
    then_len: Index
    else_len: Index


@dataclass(frozen=True, slots=True)
class Kill(Instr):
    """These registers are not read again."""

    regs: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Return(Instr):
    """Leave the function with register src. The last instruction of a function; nowhere else."""

    src: Index


INSTRUCTIONS: tuple[type[Instr], ...] = (
    Const, Match, Eval, Assert, Alloc, View, Copy, Read, Kernel, Library, Packed, Call, Closure, Invoke,
    MakeTuple, Item, MakeShape, MakePrim, Move, If, Kill, Return,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter as the user sees it. Parameter i arrives in register i."""

    name: str
    annotation: str
    """As script."""
    updated: bool = False
    """The function writes to it."""


@dataclass(frozen=True, slots=True)
class FunctionCode:
    """One compiled function."""

    name: str
    params: tuple[Param, ...]
    ret: str
    """Return annotation as script."""
    num_regs: Index
    heap_init: tuple[Int64, ...]
    storages: tuple[IntExpr, ...]
    """Size in bytes of each piece of frame memory, over the heap."""
    code: tuple[Instr, ...]
    checks: tuple[Check, ...]
    locations: tuple[Location, ...]
    public: bool = True
    """May be called from Python by name."""
    storage_slots: tuple[Index, ...] = ()
    """The slot of each storage; none at all: the host's."""

    def storage_slot(self, storage: int) -> int:
        """The slot that a storage belongs to."""
        return self.storage_slots[storage] if self.storage_slots else HOST

    def place(self, instr: Instr) -> Location:
        """Where an instruction comes from; without a name where that is not known."""
        known = 0 <= instr.loc < len(self.locations)
        return self.locations[instr.loc] if known else Location("")


@dataclass(frozen=True, slots=True)
class Alone:
    """How a second library of a kernel's object comes to run on the calling thread: `switch` is called with what
    `runner` gives."""

    switch: str
    """A function of the kernel's object."""
    runner: str
    """A function of another object, without parameters."""
    object: Index
    """Index of that object."""


@dataclass(frozen=True, slots=True)
class KernelMemory:
    """Bytes that a run of a kernel takes from the heap at most, beside its arguments. `Heap(i)` in them is no slot but
    a size of an argument: `sizes[i]` says which argument, and which of its dimensions (-1: the argument itself)."""

    shared: IntExpr
    """Taken once."""
    each: IntExpr
    """Taken by each thread that runs it."""
    sizes: tuple[tuple[Index, OrNone], ...] = ()


@dataclass(frozen=True, slots=True)
class KernelParam:
    """A parameter of a kernel. `Heap(i)` in its shape is no slot but the kernel's own size number i: what calls it must
    give the same everywhere."""

    dtype: DTypeName
    shape: tuple[IntExpr, ...] | None
    """None: a scalar."""
    size: OrNone = -1
    """Of a scalar: the size that it is; -1: none."""
    access: Annotated[str, ACCESSES] = "read"
    """What the kernel does to its memory: it only reads it, it writes to it whatever was there before, or it writes and
    may look at what was there before."""

    @property
    def written(self) -> bool:
        """The kernel stores to it."""
        return self.access != "read"


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a device must have to run code of a kernel. Names are those of the device's kind: for processors LLVM's."""

    name: str
    """For people: what the code was built for."""
    arch: str = ""
    """The device's architecture, e.g. `x86_64`; "": any."""
    features: tuple[str, ...] = ()
    """E.g. `avx2`."""


@dataclass(frozen=True, slots=True)
class KernelImage:
    """Code of a kernel: the symbols of its variants, and the object that holds them."""

    symbol: str
    """Runs on all threads where that helps."""
    serial_symbol: str
    """Runs on the calling thread; the same as `symbol` where the program is serial anyway, or where `alone` is set."""
    object: Index = 0
    """Index into the executable's objects."""
    alone: Alone | None = None
    """Set where the serial kernel is the parallel one in a library of its own."""
    memory: KernelMemory | None = None
    """None: not known."""
    launch: tuple[IntExpr, ...] = ()
    """How it is launched, for a device that asks: the numbers that the device's runtime expects, e.g. of groups and of
    threads in each. `Heap(i)` in them is the kernel's own size number i, as in its parameters' shapes."""
    needs: OrNone = -1
    """Index into the executable's requirements: what a device must have to run it; -1: nothing."""

    def moved(self, places: Sequence[int]) -> KernelImage:
        """The image where object number i is at `places[i]`."""
        alone = self.alone and replace(self.alone, object=places[self.alone.object])
        return replace(self, object=places[self.object], alone=alone)


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """A compiled tensor program: what it takes, and its code, perhaps several times, for devices that have more and for
    devices that have less. All images take the same arguments and do the same."""

    name: str
    images: tuple[KernelImage, ...]
    """A device runs the first whose requirement it meets."""
    params: tuple[KernelParam, ...] | None = None
    """Its parameters. Its code does not check its arguments, and the symbols end with the digest of these
    (`relaxpy.runtime.kernel_params`). None: its code checks them itself."""
    slot: Index = HOST
    """Where it runs, and where its tensors live."""

    kind: ClassVar[str] = "kernel"

    @property
    def image(self) -> KernelImage:
        """The first of its images: the one that runs, once a machine has chosen (`relaxpy.runtime.images`)."""
        return self.images[0]
