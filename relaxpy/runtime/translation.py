"""The functions of an executable, translated to Python for the devices of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relaxpy.runtime.bytecode import Call, Const, FunctionCode, Invoke
from relaxpy.runtime.inspect.profile import ProfilingEmitter
from relaxpy.runtime.inspect.watch import WatchedEmitter
from relaxpy.runtime.link import Devices, translate
from relaxpy.runtime.links import Links, Translated
from relaxpy.runtime.nesting import compile_nested, nesting_checked
from relaxpy.runtime.parameters import parameter_patterns
from relaxpy.runtime.tail_calls import steps
from relaxpy.runtime.verifier.verify import Unproved

if TYPE_CHECKING:
    from relaxpy.runtime.program import Program

MAX_DEPTH = 100
"""Deeper chains of calls run on the trampoline, as recursion does."""


def links_of(program: Program) -> Links:
    """The functions of a program, translated, and the constants that they use."""
    exe = program.executable
    runtimes = program.runtimes
    devices = Devices(
        tuple(runtime.lines() for runtime in runtimes),
        program.chosen,
        frozenset(slot for slot, runtime in enumerate(runtimes) if runtime.has_graphs),
        exe.packed,
    )
    generators = trampolined(exe.functions)
    unproved = exe.unproved
    made = [
        translated(program, index, generators, unproved[index], devices)
        for index in range(len(exe.functions))
    ]
    used = {
        (instr.index, instr.slot)
        for code in exe.functions
        for instr in code.code
        if isinstance(instr, Const)
    }
    return Links(tuple(made), generators, tuple(sorted(used)))


def translated(
    program: Program,
    index: int,
    generators: frozenset[int],
    unproved: Unproved,
    devices: Devices,
) -> Translated:
    """A function of an executable, translated."""
    code = program.executable.functions[index]
    emitter = ProfilingEmitter if program.recorder is not None else None
    if program.check_memory:
        emitter = WatchedEmitter
    with nesting_checked(code.name):
        listing = translate(
            code, generators, index in generators, emitter, unproved, devices, index
        )
        compiled = compile_nested(listing.lines, listing.arms, "<relaxpy>")
    return Translated(listing, compiled, parameter_patterns(code), code.public)


def trampolined(functions: tuple[FunctionCode, ...]) -> frozenset[int]:
    """Functions that run on the trampoline: those in a cycle of calls, those that call function values or have deep
    chains of calls, and callers of such functions."""
    calls = [_calls(n, code) for n, code in enumerate(functions)]
    result = {
        n for n, code in enumerate(functions) if any(isinstance(i, Invoke) for i in code.code)
    }
    depth: dict[int, int] = {}
    # Compute depths from the leaves, level by level. Functions that remain after MAX_DEPTH levels are in a cycle, call
    # one, or are deep.
    for level in range(MAX_DEPTH):
        ready = [
            n for n in range(len(functions)) if n not in depth and all(c in depth for c in calls[n])
        ]
        if not ready:
            break
        depth |= dict.fromkeys(ready, level)
    result |= {n for n in range(len(functions)) if n not in depth}
    changed = True
    while changed:
        more = {
            n
            for n in range(len(functions))
            if n not in result and any(c in result for c in calls[n])
        }
        result |= more
        changed = bool(more)
    return frozenset(result)


def _calls(index: int, code: FunctionCode) -> list[int]:
    """The functions that function `index` calls, but for steps of a loop."""
    loop = steps(code, index)
    called = {i.index for at, i in enumerate(code.code) if isinstance(i, Call) and at not in loop}
    return sorted(called)
