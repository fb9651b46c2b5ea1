"""The call sites of kernels, library functions and Python functions in an executable, with their cost at given sizes.

    for launch in launches(exe.functions, exe.kernels, exe.libraries, exe.packed, {"n": 128}):
        print(launch.name, launch.place.binding, launch.cost)

Costs come from the formulas that the compiler stored beside each call. Nothing runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from relaxpy.runtime.bytecode import (
    Alloc,
    Call,
    Closure,
    FunctionCode,
    Kernel,
    KernelInfo,
    Library,
    Location,
    Move,
    Operand,
    Packed,
    Reg,
    View,
)
from relaxpy.runtime.effects import sets
from relaxpy.runtime.inspect.heap_values import heap_at, known_sizes, value_of

BALANCE = 8
"""Floating-point operations that count as much as one byte in an estimate: the balance of a core that computes 80
GFLOP/s from memory of 10 GB/s. It does not depend on the machine, so estimates of two machines compare."""

_MOST = 1 << 900
"""Figures beyond this, which sizes of many dimensions may give, count as this: a float holds it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A call site of a kernel, library function or Python function."""

    function: str
    at: int
    """The index of its instruction."""
    kind: str
    """`kernel`, `library` or `python`."""
    name: str
    place: Location
    flops: int | None
    """Floating-point operations; None if unknown."""
    nbytes: int | None
    """The minimum of bytes that it must move; None if unknown."""
    writes: tuple[int, ...] = ()
    """The tensors that it writes, as indices of their `Alloc` instructions."""

    @property
    def cost(self) -> float:
        """The estimated cost in bytes (`estimate`)."""
        return estimate(self.flops, self.nbytes)


def estimate(flops: int | None, nbytes: int | None) -> float:
    """The cost of a computation by the roofline model: the bytes that it moves, or its floating-point operations
    divided by `BALANCE`, whichever is more. Unknown figures count as 0."""
    moved, computed = (min(each or 0, _MOST) for each in (nbytes, flops))
    return max(float(moved), computed / BALANCE)


def launches(
    functions: Sequence[FunctionCode],
    kernels: Sequence[KernelInfo],
    libraries: Sequence[str],
    packed: Sequence[str],
    sizes: Mapping[str, int],
) -> Iterator[Launch]:
    """The call sites of all functions, in order. `sizes` are values of symbolic variables as in a memory plan; costs
    that need others are unknown."""
    for code in functions:
        heap = heap_at(code, known_sizes(code, sizes))
        tensor_of: dict[int, int] = {}
        """Register → the `Alloc` of its tensor."""

        def written(args: Sequence[Operand], positions: Sequence[int]) -> tuple[int, ...]:
            regs = [arg.index for n in positions if isinstance(arg := args[n], Reg)]
            return tuple(tensor_of[reg] for reg in regs if reg in tensor_of)  # noqa: B023

        for at, instr in enumerate(code.code):
            place = code.place(instr)
            match instr:
                case Alloc(dst=dst):
                    tensor_of[dst] = at
                case View(dst=dst, src=src) | Move(dst=dst, src=src) if src in tensor_of:
                    tensor_of[dst] = tensor_of[src]
                case Kernel(index=index, args=args):
                    info = kernels[index]
                    flops, nbytes = value_of(instr.flops, heap), value_of(instr.nbytes, heap)
                    params = info.params or ()
                    outputs = [n for n, param in enumerate(params) if param.written]
                    yield Launch(
                        code.name, at, "kernel", info.name, place, _known(flops), _known(nbytes),
                        written(args, [n for n in outputs if n < len(args)]),
                    )  # fmt: skip
                case Library(index=index, args=args):
                    last = written(args, [len(args) - 1] if args else [])
                    name = libraries[index]
                    yield Launch(code.name, at, "library", name, place, None, None, last)
                case Packed(index=index):
                    yield Launch(code.name, at, "python", packed[index], place, None, None)
                    tensor_of.pop(instr.dst, None)
                case _:
                    tensor_of.pop(sets(instr), None)


def runs(functions: Sequence[FunctionCode], root: str) -> dict[str, int]:
    """How often each function runs in one call of `root`, counted over call sites: both arms of a branch, and each
    closure once. A recursive call counts as none."""
    by_name = {code.name: code for code in functions}
    calls = {name: _callees(code, functions) for name, code in by_name.items()}
    order: list[str] = []
    """Callees before their callers."""
    seen = {root}
    stack = [(root, iter(calls[root]))]
    while stack:
        name, rest = stack[-1]
        following = next((each for each in rest if each not in seen), None)
        if following is None:
            order.append(name)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(calls[following])))
    position = {name: n for n, name in enumerate(order)}
    found = dict.fromkeys(reversed(order), 0)
    found[root] = 1
    for name in reversed(order):
        for callee, times in calls[name].items():
            if position[callee] < position[name]:  # else it is recursive
                found[callee] += times * found[name]
    return found


def _callees(code: FunctionCode, functions: Sequence[FunctionCode]) -> dict[str, int]:
    """The functions that a function calls, and the number of call sites."""
    found: dict[str, int] = {}
    for instr in code.code:
        if isinstance(instr, (Call, Closure)):
            name = functions[instr.index].name
            found[name] = found.get(name, 0) + 1
    return found


def _known(value: int | None) -> int | None:
    """A cost, where the compiler wrote -1 for an unknown one."""
    return None if value is None or value < 0 else value
