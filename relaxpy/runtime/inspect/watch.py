"""The checking mode of the virtual machine: proves while a program runs that nothing alive is overwritten.

`VirtualMachine(exe, check_memory=True)` runs functions with these checks between the instructions:

* memory that a tensor gets, and memory that it gives up, is filled with bytes that are NaN in every float type, so what
  reads it too early or too late computes nonsense;
* a tensor whose memory another one was given may not be read any more;
* all tensors in use, but for those that an instruction takes, have the same bytes behind it as before;
* every piece of memory, planned or not, lies between two guards whose bytes never change;
* a kernel of a device that is not the host is waited for, so that what failed there is told at its place. Memory of
  such a device is not looked at.

It is slow, and finds mistakes of the memory plan and of kernels, not of users.
"""

from __future__ import annotations

import ctypes
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

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
from relaxpy.runtime.link import ONLY_HOST, Devices, Emitter, Scope
from relaxpy.runtime.operands import Analysis
from relaxpy.runtime.tensor import Tensor, allocate, require_countable
from relaxpy.runtime.verifier.verify import Unproved

GUARD = 256
"""Bytes before and behind each piece of memory that are watched; a multiple of the alignment."""
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
        """Are the guards untouched?"""
        want = bytes([GUARDED]) * GUARD
        before = ctypes.string_at(self.pointer - GUARD, GUARD)
        behind = ctypes.string_at(self.pointer + self.nbytes, GUARD)
        return before == want and behind == want


def allocate_guarded(nbytes: int) -> tuple[GuardedMemory, int]:
    """As `relaxpy.runtime.tensor.allocate`, between guards."""
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
    """Who got its memory."""

    def checksum(self) -> int:
        return zlib.crc32(ctypes.string_at(self.pointer, self.nbytes))


@dataclass(slots=True)
class Watch:
    """What is known of the memory of one call. Methods raise RuntimeCheckError (`memory-plan`)."""

    buffers: Sequence[Any] = ()
    """The frame's storages."""
    live: dict[int, _Watched] = field(default_factory=dict[int, _Watched])
    """By the instruction that made them."""
    own: list[GuardedMemory] = field(default_factory=list[GuardedMemory])
    """Memory of tensors that may leave the call."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """A tensor in memory of its own."""
        require_countable(shape, dtype)
        memory, pointer = allocate_guarded(math.prod(shape) * dtypes.info(dtype).itemsize)
        self.own.append(memory)
        return Tensor(pointer, shape, dtype, memory.buffer)

    def begin(self, key: int, name: str, pointer: int, shape: tuple[int, ...], dtype: str) -> None:
        """A tensor gets its place in a storage."""
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
        """An instruction is going to take these."""
        for key in keys:
            tensor = self.live.get(key)
            if tensor is not None and tensor.overwritten:
                raise _wrong(
                    f"{tensor.name} is used after its memory was given to {tensor.overwritten}"
                )

    def done(self, *keys: int) -> None:
        """It has run: only they may have changed."""
        for key, tensor in self.live.items():
            if key in keys:
                tensor.written, tensor.sum = True, tensor.checksum()
            elif tensor.written and not tensor.overwritten and tensor.sum != tensor.checksum():
                raise _wrong(f"{tensor.name} was overwritten while it was in use")
        here = [each for each in (*self.buffers, *self.own) if isinstance(each, GuardedMemory)]
        if not all(memory.is_whole() for memory in here):
            raise _wrong("a byte before or behind a piece of memory was written")

    def end(self, *keys: int) -> None:
        """These are not used again."""
        for key in keys:
            tensor = self.live.pop(key, None)
            if tensor is not None and not tensor.overwritten:
                ctypes.memset(tensor.pointer, UNSET, tensor.nbytes)


def _wrong(what: str) -> RuntimeCheckError:
    return RuntimeCheckError("memory-plan", what)


class WatchedEmitter(Emitter):
    """Writes the lines with a check behind every instruction; kernels run one by one."""

    def __init__(
        self,
        code: FunctionCode,
        analysis: Analysis,
        generators: frozenset[int],
        generator: bool,
        unproved: Unproved,
        devices: Devices = ONLY_HOST,
    ) -> None:
        super().__init__(code, analysis, generators, generator, unproved, devices)
        lifetimes = Lifetimes(code, analysis)
        planned = {
            at
            for at, instr in enumerate(code.code)
            if isinstance(instr, Alloc) and instr.storage >= 0 and instr.slot in analysis.hosts
        }
        self.taken = [sorted(taken & planned) for taken in lifetimes.taken]
        """For each instruction the tensors in planned storage that it takes."""
        self.ended: dict[int, list[int]] = {}
        """Instruction → those of which it is the last use."""
        for root, at in lifetimes.last.items():
            if root in planned:
                self.ended.setdefault(at, []).append(root)

    def start(self, framed: bool) -> None:
        self.emit(f"w = Watch({'f.buffers' if framed else '()'})")

    def own_tensor(self, dims: str, dtype: str) -> str:
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
