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

from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias

from relaxpy.errors import Span
from relaxpy.runtime.terms import ACCESSES as ACCESSES
from relaxpy.runtime.terms import HOST as HOST
from relaxpy.runtime.terms import HOST_SLOT as HOST_SLOT
from relaxpy.runtime.terms import INT_OPS as INT_OPS
from relaxpy.runtime.terms import AnyDType as AnyDType
from relaxpy.runtime.terms import CallablePattern as CallablePattern
from relaxpy.runtime.terms import DataCase as DataCase
from relaxpy.runtime.terms import DataInfo as DataInfo
from relaxpy.runtime.terms import DataPattern as DataPattern
from relaxpy.runtime.terms import DTypeName as DTypeName
from relaxpy.runtime.terms import Heap as Heap
from relaxpy.runtime.terms import Index as Index
from relaxpy.runtime.terms import Int64 as Int64
from relaxpy.runtime.terms import IntExpr as IntExpr
from relaxpy.runtime.terms import IntOp as IntOp
from relaxpy.runtime.terms import KernelImage as KernelImage
from relaxpy.runtime.terms import KernelInfo as KernelInfo
from relaxpy.runtime.terms import KernelMemory as KernelMemory
from relaxpy.runtime.terms import KernelParam as KernelParam
from relaxpy.runtime.terms import Name as Name
from relaxpy.runtime.terms import ObjectPattern as ObjectPattern
from relaxpy.runtime.terms import Operand as Operand
from relaxpy.runtime.terms import OrNone as OrNone
from relaxpy.runtime.terms import ParamPattern as ParamPattern
from relaxpy.runtime.terms import Pattern as Pattern
from relaxpy.runtime.terms import PrimDType as PrimDType
from relaxpy.runtime.terms import PrimPattern as PrimPattern
from relaxpy.runtime.terms import Rank as Rank
from relaxpy.runtime.terms import Reg as Reg
from relaxpy.runtime.terms import Requirement as Requirement
from relaxpy.runtime.terms import ShapePattern as ShapePattern
from relaxpy.runtime.terms import Slot as Slot
from relaxpy.runtime.terms import TensorPattern as TensorPattern
from relaxpy.runtime.terms import TuplePattern as TuplePattern
from relaxpy.runtime.terms import WeightParam as WeightParam

Dims: TypeAlias = Annotated[int, range(65)]
"""The number of dimensions."""
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
