"""Tail calls in bytecode: calls after which a function only returns their result.

A machine may give the caller's frame up before such a call, so a loop that is written as recursion takes constant
space. It must not if an argument lies in planned storage of the frame; the compiler allocates the arguments of the
steps of a loop elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relaxpy.runtime.bytecode import (
    Assert,
    Call,
    FunctionCode,
    If,
    Invoke,
    Kill,
    Match,
    Move,
    Return,
)
from relaxpy.runtime.operands import Analysis, analyse


def tail_calls(code: FunctionCode) -> dict[int, tuple[int, ...]]:
    """The tail calls of a function, each with the instructions between it and the return: they give registers up, name
    the result anew, or compare it with what a function value promises."""
    jumps: dict[int, int] = {}
    """The end of the first arm of a branch, and where the code continues from there."""
    for at, instr in enumerate(code.code):
        if isinstance(instr, If):
            middle = at + 1 + instr.then_len
            jumps[middle] = max(jumps.get(middle, 0), middle + instr.else_len)
    found: dict[int, tuple[int, ...]] = {}
    for at, instr in enumerate(code.code):
        if isinstance(instr, (Call, Invoke)):
            rest = _rest(code, at + 1, instr.dst, jumps)
            if rest is not None:
                found[at] = rest
    return found


def _rest(
    code: FunctionCode, at: int, result: int, jumps: Mapping[int, int]
) -> tuple[int, ...] | None:
    """The instructions up to the return of what is in register `result`; None if they do more."""
    rest: list[int] = []
    names = {result}
    while at < len(code.code):
        if jumps.get(at, at) > at:
            at = jumps[at]
            continue
        match code.code[at]:
            case Move(dst=dst, src=src) if src in names:
                names.add(dst)
            case Kill(regs=regs):
                names.difference_update(regs)
            case Match(src=src) if src in names:
                pass
            case Assert():
                pass
            case Return(src=src):
                return tuple(rest) if src in names else None
            case _:
                return None
        rest.append(at)
        at += 1
    return None


def replacing(code: FunctionCode, analysis: Analysis | None = None) -> dict[int, tuple[int, ...]]:
    """The tail calls before which the frame may be given up, each with the instructions after it. What they compare
    with an annotation is promised (`relaxpy.runtime.promises`)."""
    found = tail_calls(code)
    if not found:
        return found
    analysis = analysis or analyse(code)
    return {
        at: rest
        for at, rest in found.items()
        if not any(value.planned for value in analysis.reads[at])
    }


def promised(code: FunctionCode, rest: Sequence[int]) -> tuple[int, ...]:
    """Those of the instructions behind a tail call that compare the result."""
    return tuple(at for at in rest if isinstance(code.code[at], (Match, Assert)))


def steps(code: FunctionCode, index: int, analysis: Analysis | None = None) -> frozenset[int]:
    """The calls of function `index` to itself that are steps of a loop."""
    if not any(isinstance(instr, Call) and instr.index == index for instr in code.code):
        return frozenset()
    return frozenset(
        at
        for at, rest in replacing(code, analysis).items()
        if isinstance(instr := code.code[at], Call) and instr.index == index
        if not promised(code, rest)
    )
