"""The register bytecode of an executable. The compiler writes it and every runtime reads it.

A function has *registers* (values: tensors, tuples, shapes, scalars, closures, opaque objects)
and one int64 *heap* (the paper's integer host tensor, §4.7), where symbolic dimensions and all
shapes that are computed from them live. A shape is a contiguous range of the heap, so a tensor's
record can point into it: binding new sizes writes the heap and nothing else. The heap starts as
`heap_init`, which contains the constant dimensions.

Code is flat; `If` carries the lengths of its two arms, so that a reader can rebuild the nesting.
Every instruction names an entry of the function's `locations` (binding name and source line) for
errors and profiles. Instructions are plain data: `relaxpy.runtime.codec` writes them as JSON,
`relaxpy.runtime.link` turns a function into Python.

Fields declare by their annotation what they are: a register that the instruction sets (`Dst`) or reads (`Src`), an
index of one of the executable's tables (`KernelIndex`). Whoever walks over code asks for that
(`relaxpy.runtime.effects`), and needs no case for an instruction unless it runs it or knows more of it.

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

from relaxpy.errors import Span
from relaxpy.runtime.dtype import INFO

# `relaxpy.runtime.codec` checks each field of a file against its type and the range in its `Annotated`.
Index: TypeAlias = Annotated[int, range(1 << 31)]
"""An index, from 0."""
OrNone: TypeAlias = Annotated[int, range(-1, 1 << 31)]
"""An index, or -1 for none."""
Int64: TypeAlias = Annotated[int, range(-(1 << 63), 1 << 63)]
Rank: TypeAlias = Annotated[int, range(-1, 65)]
"""The number of dimensions; -1: any."""
Dims: TypeAlias = Annotated[int, range(65)]
"""The number of dimensions."""
DTypeName: TypeAlias = Annotated[str, frozenset(INFO)]
AnyDType: TypeAlias = Annotated[str, frozenset({"", *INFO})]
PrimDType: TypeAlias = Annotated[str, frozenset({"", "string", "str", *INFO})]


Dst: TypeAlias = Index
"""The register that an instruction sets."""
Src: TypeAlias = Index
"""A register that it reads."""
Srcs: TypeAlias = "tuple[Src, ...]"
Operands: TypeAlias = "tuple[Operand, ...]"
"""Registers and slots of the heap that it reads, and literals."""
Dead: TypeAlias = "tuple[Index, ...]"
"""Registers that nothing reads any more."""
HeapDst: TypeAlias = Index
"""The slot of the heap that it sets. (`IntExpr` are those that it reads, `Pattern` those that a match binds.)"""
HeapStart: TypeAlias = Index
"""The first of `ndim` slots that it reads, or whose place a tensor's record remembers: a shape."""
ConstantIndex: TypeAlias = Index
KernelIndex: TypeAlias = Index
LibraryIndex: TypeAlias = Index
PackedIndex: TypeAlias = Index
FunctionIndex: TypeAlias = Index
SlotIndex: TypeAlias = Index
CheckIndex: TypeAlias = Index
"""Index into the function's `checks`. The others are into the executable's tables."""
StorageOrNone: TypeAlias = OrNone
"""Index into the function's `storages`, or -1."""


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


Pattern: TypeAlias = (
    "TensorPattern | ShapePattern | PrimPattern | TuplePattern | CallablePattern | ObjectPattern"
)


@dataclass(frozen=True, slots=True)
class Check:
    """Describes a `Match` or an `Assert` for its error message."""

    what: str
    """"parameter", "return value", "match_cast", "result" (of a library or Python call) or
    "argument"."""
    name: str
    """The parameter's or variable's name."""
    annotation: str
    """The annotation as script, e.g. `R.Tensor((n, n * 4), dtype="float32")`."""
    detail: str = ""
    """For an `Assert`: the right-hand side of the equation as script, e.g. `n * 4`, and its place, e.g. `dimension
    1`."""
    symbols: tuple[tuple[str, Index], ...] = ()
    """The symbolic variables in the annotation and their heap slots. The error message shows their values."""


@dataclass(frozen=True, slots=True)
class Location:
    """The source location of an instruction."""

    binding: str
    """The name of the bound variable."""
    file: str = ""
    line: Index = 0
    column: Index = 0
    end_column: Index = 0
    """0: unknown, or on another line."""

    @property
    def span(self) -> Span:
        """The place in the user's source."""
        end_line = self.line if self.end_column else 0
        return Span(self.file, self.line, self.column, end_line, self.end_column)


@dataclass(frozen=True, slots=True)
class Instr:
    """Base class of all instructions."""

    loc: OrNone
    """Index into the function's `locations`."""

    TEXT: ClassVar[str] = ""
    """How it is printed: `{field}` is a field as its annotation says, `{on}` the device of its slot unless that is the
    host (`relaxpy.runtime.inspect.listing`)."""
    ALIASES: ClassVar[bool] = False
    """Whether its result is memory of what it reads, or contains it."""

    def text(self) -> str:
        """`TEXT` for this instruction."""
        return self.TEXT


@dataclass(frozen=True, slots=True)
class Const(Instr):
    """dst ← constants[index], in the memory of a slot."""

    TEXT: ClassVar[str] = "{dst} = {index}{on}"
    dst: Dst
    index: ConstantIndex
    slot: SlotIndex = HOST


@dataclass(frozen=True, slots=True)
class Match(Instr):
    """Check register src against a pattern and bind the pattern's heap slots."""

    TEXT: ClassVar[str] = "match {src}: {pattern} for {check}"
    src: Src
    pattern: Pattern
    check: CheckIndex


@dataclass(frozen=True, slots=True)
class Eval(Instr):
    """heap[dst] ← expr."""

    TEXT: ClassVar[str] = "{dst} = {expr}"
    dst: HeapDst
    expr: IntExpr


@dataclass(frozen=True, slots=True)
class Assert(Instr):
    """Fail unless lhs (the actual size) equals rhs (the size that the annotation requires)."""

    TEXT: ClassVar[str] = "assert {lhs} == {rhs} for {check}"
    lhs: IntExpr
    rhs: IntExpr
    check: CheckIndex


@dataclass(frozen=True, slots=True)
class Alloc(Instr):
    """dst ← an uninitialised tensor of shape heap[shape : shape + ndim]."""

    dst: Dst
    shape: HeapStart
    ndim: Dims
    dtype: DTypeName
    storage: StorageOrNone
    """Index of one of the function's `storages`: planned memory of the frame, and the tensor must not leave the call.
    -1: the tensor owns its memory and may leave the call."""
    offset: Annotated[int, range(1 << 63)] = 0
    """Bytes from the storage's start to the tensor's."""
    slot: SlotIndex = HOST
    """The slot of its device; the same as its storage's."""

    def text(self) -> str:
        place = " in {storage}" if self.storage >= 0 else "{on}"
        return "{dst} = alloc {dtype}{shape}" + place + (" at {offset}" if self.offset else "")


@dataclass(frozen=True, slots=True)
class View(Instr):
    """dst ← a view of the compact tensor src with shape heap[shape : shape + ndim] and `dtype`."""

    TEXT: ClassVar[str] = "{dst} = view {src} as {dtype}{shape}"
    ALIASES: ClassVar[bool] = True
    dst: Dst
    src: Src
    shape: HeapStart
    ndim: Dims
    dtype: DTypeName
    slot: SlotIndex = HOST
    """The slot of src."""


@dataclass(frozen=True, slots=True)
class Copy(Instr):
    """dst ← tensor src in the memory of a slot: src itself if it is there already, else a copy. May have to wait for
    src."""

    TEXT: ClassVar[str] = "{dst} = copy {src} to {slot}"
    dst: Dst
    src: Src
    slot: SlotIndex


@dataclass(frozen=True, slots=True)
class Read(Instr):
    """dst ← the only element of the 0-d tensor src, of any slot, as a scalar. May have to wait for src."""

    TEXT: ClassVar[str] = "{dst} = read {src}"
    dst: Dst
    src: Src


@dataclass(frozen=True, slots=True)
class Kernel(Instr):
    """kernels[index](*args): a compiled tensor program in destination-passing style, on tensors of its slot."""

    TEXT: ClassVar[str] = "{index}({args})  work {work}"
    index: KernelIndex
    args: Operands
    work: IntExpr
    """About the number of scalar operations of this call, or of bytes that it moves if those are more; -1: unknown.
    Selects the serial or the parallel kernel, and whether the GIL is released."""
    flops: IntExpr = -1
    """The number of floating-point operations of this call; -1: unknown. Evaluated by profiles only."""
    nbytes: IntExpr = -1
    """The minimum number of bytes that this call must move; -1: unknown. Evaluated by profiles only."""


@dataclass(frozen=True, slots=True)
class Library(Instr):
    """libraries[index](*args): a registered library function in destination-passing style
    (outputs last)."""

    TEXT: ClassVar[str] = "library {index}({args})"
    index: LibraryIndex
    args: Operands


@dataclass(frozen=True, slots=True)
class Packed(Instr):
    """dst ← packed[index](*args): a registered function or builtin (`vm.builtin.…`) that returns
    a value."""

    TEXT: ClassVar[str] = "{dst} = packed {index}({args})"
    dst: Dst
    index: PackedIndex
    args: Operands


@dataclass(frozen=True, slots=True)
class Call(Instr):
    """dst ← functions[index](*args)."""

    TEXT: ClassVar[str] = "{dst} = call {index}({args})"
    dst: Dst
    index: FunctionIndex
    args: Srcs


@dataclass(frozen=True, slots=True)
class Closure(Instr):
    """dst ← functions[index] with its last len(captured) parameters bound. Without captured values, it is the function
    itself."""

    TEXT: ClassVar[str] = "{dst} = closure {index} with ({captured})"
    dst: Dst
    index: FunctionIndex
    captured: Srcs


@dataclass(frozen=True, slots=True)
class Invoke(Instr):
    """dst ← the result of calling register `closure` with args. It is a closure or a Python callable."""

    TEXT: ClassVar[str] = "{dst} = invoke {closure}({args})"
    dst: Dst
    closure: Src
    args: Srcs


@dataclass(frozen=True, slots=True)
class MakeTuple(Instr):
    """dst ← (src…)."""

    TEXT: ClassVar[str] = "{dst} = tuple({fields})"
    ALIASES: ClassVar[bool] = True
    dst: Dst
    fields: Srcs


@dataclass(frozen=True, slots=True)
class Item(Instr):
    """dst ← src[index]."""

    TEXT: ClassVar[str] = "{dst} = {src}[{index}]"
    ALIASES: ClassVar[bool] = True
    dst: Dst
    src: Src
    index: Index


@dataclass(frozen=True, slots=True)
class MakeShape(Instr):
    """dst ← the shape value heap[shape : shape + ndim]."""

    TEXT: ClassVar[str] = "{dst} = shape{shape}"
    dst: Dst
    shape: HeapStart
    ndim: Dims


@dataclass(frozen=True, slots=True)
class MakePrim(Instr):
    """dst ← a scalar (or string) of `dtype`."""

    TEXT: ClassVar[str] = "{dst} = {dtype} {value}"
    dst: Dst
    value: Heap | Int64 | float | bool | str
    dtype: PrimDType


@dataclass(frozen=True, slots=True)
class Move(Instr):
    """dst ← src."""

    TEXT: ClassVar[str] = "{dst} = {src}"
    ALIASES: ClassVar[bool] = True
    dst: Dst
    src: Src


@dataclass(frozen=True, slots=True)
class If(Instr):
    """If register cond (a bool, or a 0-d bool tensor of the host) is true, run the next then_len instructions, else the
    else_len instructions after them. Then continue after both arms."""

    TEXT: ClassVar[str] = "if {cond}"
    cond: Src
    then_len: Index
    else_len: Index


@dataclass(frozen=True, slots=True)
class Graph(Instr):
    """The next `length` instructions launch kernels of one slot and can be recorded and replayed as a graph (paper
    §4.5); a machine may also just run them. They are `Kernel`, `Const`, and `Alloc` and `View` of tensors in planned
    storage or of tensors from before. Their registers are not set afterwards."""

    TEXT: ClassVar[str] = "graph{on}"
    length: Index
    slot: SlotIndex
    """The slot of all of them."""


@dataclass(frozen=True, slots=True)
class Kill(Instr):
    """These registers are dead: no later instruction reads them."""

    TEXT: ClassVar[str] = "kill {regs}"
    regs: Dead


@dataclass(frozen=True, slots=True)
class Return(Instr):
    """Return register src. The last instruction of a function, and used nowhere else."""

    TEXT: ClassVar[str] = "return {src}"
    src: Src


INSTRUCTIONS: tuple[type[Instr], ...] = (
    Const, Match, Eval, Assert, Alloc, View, Copy, Read, Kernel, Library, Packed, Call, Closure, Invoke,
    MakeTuple, Item, MakeShape, MakePrim, Move, If, Graph, Kill, Return,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter as declared by the user. Parameter i arrives in register i."""

    name: str
    annotation: str
    """The annotation as script."""
    updated: bool = False
    """The function updates it in place."""


@dataclass(frozen=True, slots=True)
class WeightParam:
    """A parameter that is a weight, which a checkpoint has. Callers pass what its packer makes
    (`relaxpy.runtime.weights`)."""

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
class FunctionCode:
    """One compiled function."""

    name: str
    params: tuple[Param, ...]
    ret: str
    """The return annotation as script."""
    num_regs: Index
    heap_init: tuple[Int64, ...]
    storages: tuple[IntExpr, ...]
    """Size in bytes of each storage of the frame, as a formula over the heap."""
    code: tuple[Instr, ...]
    checks: tuple[Check, ...]
    locations: tuple[Location, ...]
    public: bool = True
    """Whether Python may call it by name."""
    storage_slots: tuple[Index, ...] = ()
    """The slot of each storage; empty: all on the host."""

    def storage_slot(self, storage: int) -> int:
        """The slot of a storage."""
        return self.storage_slots[storage] if self.storage_slots else HOST

    def place(self, instr: Instr) -> Location:
        """The source location of an instruction; without a name if it is unknown."""
        known = 0 <= instr.loc < len(self.locations)
        return self.locations[instr.loc] if known else Location("")


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
