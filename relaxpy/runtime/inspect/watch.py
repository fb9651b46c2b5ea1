"""The checking mode of the virtual machine: verifies at run time that no live tensor is overwritten.

`VirtualMachine(exe, check_memory=True)` runs functions with these checks between the instructions:

* memory is filled with bytes that are NaN in every float type when a tensor gets it and when it gives it up, so that a
  read too early or too late gives NaN;
* a tensor whose memory was given to another tensor may not be read any more;
* all live tensors, except the arguments of an instruction, have the same bytes after the instruction as before;
* every piece of memory, planned or not, lies between two guards whose bytes never change;
* the machine waits for each kernel of a device other than the host, so that a failure is reported at its place. The
  memory of such a device is not checked.

This mode is slow. It finds bugs in the memory plan and in kernels, not in user programs.
"""

from __future__ import annotations

import ctypes
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.bytecode import (
    Alloc,
    FunctionCode,
    Instr,
    Kernel,
    Kill,
    Return,
    View,
)
from relaxpy.runtime.lifetimes import Lifetimes
from relaxpy.runtime.link import Devices, Emitter, Scope
from relaxpy.runtime.operands import Analysis
from relaxpy.runtime.tensor import Tensor, allocate, require_countable, tensor_at
from relaxpy.runtime.verifier.verify import Unproved

GUARD = 256
"""The size in bytes of each guard; a multiple of the alignment."""
GUARDED, UNSET = 0xA5, 0xFF

Allocate: TypeAlias = Callable[[int], tuple[Any, int]]


class GuardedMemory:
    """Memory between two guards."""

    __slots__ = ("buffer", "nbytes", "pointer")

    def __init__(self, nbytes: int) -> None:
        try:
            self.buffer, start = allocate(nbytes + 2 * GUARD if nbytes >= 0 else nbytes)
        except RuntimeCheckError as error:
            error.message = f"cannot allocate {nbytes} bytes"  # those of the program
            raise
        self.pointer, self.nbytes = start + GUARD, nbytes
        ctypes.memset(start, GUARDED, nbytes + 2 * GUARD)
        ctypes.memset(self.pointer, UNSET, nbytes)

    def is_whole(self) -> bool:
        """Whether the guards are unchanged."""
        want = bytes([GUARDED]) * GUARD
        before = ctypes.string_at(self.pointer - GUARD, GUARD)
        behind = ctypes.string_at(self.pointer + self.nbytes, GUARD)
        return before == want and behind == want


def allocate_guarded(nbytes: int) -> tuple[GuardedMemory, int]:
    """Like `relaxpy.runtime.tensor.allocate`, with guards around the memory."""
    memory = GuardedMemory(nbytes)
    return memory, memory.pointer


@dataclass(slots=True)
class _Watched:
    """A tensor in planned storage."""

    name: str
    pointer: int
    nbytes: int
    written: bool = False
    sum: int = 0
    overwritten: str = ""
    """The tensor that its memory was given to."""

    def checksum(self) -> int:
        return zlib.crc32(ctypes.string_at(self.pointer, self.nbytes))


@dataclass(slots=True)
class Watch:
    """The state of the memory of one call. Methods raise RuntimeCheckError (`memory-plan`)."""

    buffers: Sequence[Any] = ()
    """The owners of the frame's storages."""
    live: dict[int, _Watched] = field(default_factory=dict[int, _Watched])
    """Live tensors by the instruction that created them."""
    own: list[GuardedMemory] = field(default_factory=list[GuardedMemory])
    """The memory of tensors that may leave the call."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """An uninitialised tensor that owns its memory."""
        require_countable(shape, dtype)
        memory, pointer = allocate_guarded(math.prod(shape) * dtypes.info(dtype).itemsize)
        self.own.append(memory)
        return tensor_at(pointer, shape, dtype, memory.buffer)

    def begin(self, key: int, name: str, pointer: int, shape: tuple[int, ...], dtype: str) -> None:
        """Called when a tensor gets its place in a storage."""
        nbytes = math.prod(shape) * dtypes.info(dtype).itemsize
        self.live.pop(key, None)
        for other in self.live.values():
            if pointer < other.pointer + other.nbytes and other.pointer < pointer + nbytes:
                other.overwritten = other.overwritten or name
        if not any(self._contains(buffer, pointer, nbytes) for buffer in self.buffers):
            raise _wrong(f"{name} does not lie in its storage")
        ctypes.memset(pointer, UNSET, nbytes)
        self.live[key] = _Watched(name, pointer, nbytes)

    @staticmethod
    def _contains(memory: Any, pointer: int, nbytes: int) -> bool:
        if not isinstance(memory, GuardedMemory):
            return False
        return memory.pointer <= pointer and pointer + nbytes <= memory.pointer + memory.nbytes

    def use(self, *keys: int) -> None:
        """Called before an instruction with these arguments."""
        for key in keys:
            tensor = self.live.get(key)
            if tensor is not None and tensor.overwritten:
                raise _wrong(
                    f"{tensor.name} is used after its memory was given to {tensor.overwritten}"
                )

    def done(self, *keys: int) -> None:
        """Called after the instruction: only its arguments may have changed."""
        for key, tensor in self.live.items():
            if key in keys:
                tensor.written, tensor.sum = True, tensor.checksum()
            elif tensor.written and not tensor.overwritten and tensor.sum != tensor.checksum():
                raise _wrong(f"{tensor.name} was overwritten while it was in use")
        here = [each for each in (*self.buffers, *self.own) if isinstance(each, GuardedMemory)]
        if not all(memory.is_whole() for memory in here):
            raise _wrong("a byte before or behind a piece of memory was written")

    def end(self, *keys: int) -> None:
        """Called when these tensors are dead."""
        for key in keys:
            tensor = self.live.pop(key, None)
            if tensor is not None and not tensor.overwritten:
                ctypes.memset(tensor.pointer, UNSET, tensor.nbytes)


def _wrong(what: str) -> RuntimeCheckError:
    return RuntimeCheckError("memory-plan", what)


class WatchedEmitter(Emitter):
    """Writes code with a check after every instruction. Kernels run one by one instead of as a row or graph."""

    records: ClassVar[bool] = False
    takes_turns: ClassVar[bool] = False

    def __init__(
        self,
        code: FunctionCode,
        analysis: Analysis,
        generators: frozenset[int],
        generator: bool,
        unproved: Unproved,
        devices: Devices,
    ) -> None:
        super().__init__(code, analysis, generators, generator, unproved, devices)
        lifetimes = Lifetimes(code, analysis)
        planned = {
            at
            for at, instr in enumerate(code.code)
            if isinstance(instr, Alloc) and instr.storage >= 0 and instr.slot in analysis.hosts
        }
        self.watch = ""
        """The line that begins a call."""
        self.taken = [sorted(taken & planned) for taken in lifetimes.taken]
        """For each instruction, its arguments in planned storage."""
        self.ended: dict[int, list[int]] = {}
        """Instruction → the planned tensors that it uses last."""
        for root, at in lifetimes.last.items():
            if root in planned:
                self.ended.setdefault(at, []).append(root)

    def start(self, framed: bool) -> None:
        self.watch = f"w = Watch({'f.buffers' if framed else '()'})"
        self.emit(self.watch)

    def next_step(self) -> None:
        self.emit("w.done()")
        self.emit(self.watch)

    def own_tensor(self, dims: str, dtype: str, nbytes: str) -> str:
        return f"w.empty({dims}, {dtype!r})"

    def instr(self, at: int, instr: Instr, scope: Scope) -> None:
        keys = ", ".join(map(str, self.taken[at]))
        if keys:
            self.emit(f"w.use({keys})")
        if isinstance(instr, Return):
            self.emit("w.done()")
        super().instr(at, instr, scope)
        self.flush()
        if isinstance(instr, Kernel) and self.slot_of(instr) not in self.info.hosts:
            self.emit(f"launched({instr.index})")
        if isinstance(instr, Alloc) and instr.storage >= 0 and instr.slot in self.info.hosts:
            place = self.code.place(instr).binding
            dims = self.dims(instr.shape, instr.ndim)
            begin = f"f.pointers[{instr.storage}] + {instr.offset}"
            self.emit(
                f"w.begin({at}, {self.constant(place or f'r{instr.dst}')}, {begin}, {dims}, "
                f"{instr.dtype!r})"
            )
        elif not isinstance(instr, (Alloc, View, Kill, Return)):
            self.emit(f"w.done({keys})")
            ended = ", ".join(map(str, sorted(self.ended.get(at, ()))))
            if ended:
                self.emit(f"w.end({ended})")
