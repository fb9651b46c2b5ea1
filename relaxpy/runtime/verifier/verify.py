"""The bytecode verifier: proves that running a function accesses only its own memory.

The checksums of a file show that it is intact, not who wrote it. `verify` visits every function once, before anything
is linked. On every path, each register and heap slot is set before it is read; indices, lengths of branches, counts and
types are right; a kernel gets the arguments that it was compiled for, with consistent sizes; and a tensor is inside its
storage. Sizes are polynomials over the dimensions of the arguments (`relaxpy.runtime.sizes`), so most of this is proved
for all shapes. Conditions that are neither proved nor refuted are passed to the linker, which writes a check before the
instruction (`Unproved`). A refuted condition is an error that names the function and the instruction.

Machine code is trusted: a file may contain any. The symbols of its kernels determine their parameters
(`relaxpy.runtime.kernel_params`).
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from relaxpy.errors import ExecutableError
from relaxpy.runtime.bytecode import (
    HOST,
    Call,
    FunctionCode,
    Heap,
    KernelImage,
    KernelInfo,
    Match,
    Requirement,
)
from relaxpy.runtime.check_data import problem_of
from relaxpy.runtime.kernel_params import symbol_problem
from relaxpy.runtime.verifier.function import Function
from relaxpy.runtime.verifier.state import Refuted, formula, within

if TYPE_CHECKING:
    from relaxpy.runtime.executable import Executable

Unproved: TypeAlias = "frozenset[int]"
"""Instructions whose arguments are compared at run time: kernels, and instructions that use planned memory."""

_NAME = re.compile(r"[\w.+-]{1,64}", re.ASCII)
"""Valid names of architectures and features."""
MOST_CHARACTERS = 1024
"""The longest name of a processor or device."""


def verify(exe: Executable, file: str = "") -> tuple[Unproved, ...]:
    """For each function the instructions that are checked at run time. `file`: the name of the executable in errors.

    Raises: ExecutableError (`bytecode`).
    """
    where = f"{file or 'the executable'}: "
    names: set[str] = set()
    if not exe.slots or exe.slots[HOST].kind != "cpu":
        _fail(f"{where}its first slot is not the host's")
    for index, requirement in enumerate(exe.requirements):
        try:
            _requirement(requirement)
        except Refuted as error:
            _fail(f"{where}requirement {index}: {error}")
    for index, info in enumerate(exe.kernels):
        try:
            _kernel(exe, info)
        except Refuted as error:
            _fail(f"{where}kernel {index} ({info.name}): {error}")
    steps = (step for code in exe.functions for step in code.code)
    if problem := problem_of(exe.data_types, [i.pattern for i in steps if isinstance(i, Match)]):
        _fail(f"{where}{problem}")
    found: dict[int, Function] = {}
    for index in _callees_first(exe.functions):
        code = exe.functions[index]
        if code.name in names:
            _fail(f"{where}two functions are called {code.name}")
        names.add(code.name)
        function = found[index] = Function(exe, code, found)
        try:
            function.walk()
        except Refuted as error:
            at = function.at
            place = ""
            if 0 <= at < len(code.code):
                place = f", instruction {at} ({type(code.code[at]).__name__})"
            _fail(f"{where}function {code.name}{place}: {error}")
    return tuple(frozenset(found[index].unproved) for index in range(len(exe.functions)))


def _callees_first(functions: Sequence[FunctionCode]) -> list[int]:
    """All functions, each after those that it calls, except in cycles."""
    calls = [
        sorted({i.index for i in code.code if isinstance(i, Call) and i.index < len(functions)})
        for code in functions
    ]
    order: dict[int, None] = {}
    seen: set[int] = set()
    for first in range(len(functions)):
        todo = [first]
        while todo:
            index = todo[-1]
            if index in seen:
                order.setdefault(todo.pop())
                continue
            seen.add(index)
            todo += [callee for callee in calls[index] if callee not in seen]
    return list(order)


def _fail(message: str) -> NoReturn:
    raise ExecutableError(
        "bytecode",
        message,
        help="the file was not written by relaxpy, or was changed: build it again",
    )


def _requirement(requirement: Requirement) -> None:
    name, features = requirement.name, requirement.features
    if not name.isprintable() or len(name) > MOST_CHARACTERS:
        raise Refuted(f"{reprlib.repr(name)} is no name of a processor or device")
    for word in (requirement.arch or "any", *features):
        if _NAME.fullmatch(word) is None:
            raise Refuted(f"{reprlib.repr(word)} is no name of what a device has")
    if len(set(features)) < len(features):
        raise Refuted("it names a feature twice")


def _kernel(exe: Executable, info: KernelInfo) -> None:
    if not info.images:
        raise Refuted("it has no image")
    problem = symbol_problem(info)
    if problem:
        raise Refuted(problem)
    within(info.slot, exe.slots, "slot")
    params = info.params or ()
    for param in params:
        if param.shape is None and param.written:
            raise Refuted("it writes to a scalar")
        for dim in param.shape or ():
            formula(dim, lambda _: None)
    for image in info.images:
        _image(exe, info, image)


def _image(exe: Executable, info: KernelInfo, image: KernelImage) -> None:
    within(image.object, exe.objects, "object")
    within(image.needs, exe.requirements, "requirement") if image.needs != -1 else None
    on_host = exe.slots[info.slot].kind == exe.slots[HOST].kind
    if not on_host and (info.params is None or image.launchers != -1):
        raise Refuted(
            f"it is not a kernel of {exe.slots[info.slot].name}: its parameters are missing"
        )
    if image.launchers != -1:
        within(image.launchers, exe.objects, "object")
    params = info.params or ()
    known = {
        dim.index for param in params for dim in param.shape or () if isinstance(dim, Heap)
    } | {param.size for param in params}
    for expr in image.launch:
        formula(expr, lambda size: _require_known(size, known))
    memory = image.memory
    if memory is not None:
        for position, axis in memory.sizes:
            within(position, params, "parameter") if info.params is not None else None
            if info.params is not None and axis >= len(params[position].shape or ()):
                raise Refuted(f"parameter {position} has no dimension {axis}")
        for expr in (memory.shared, memory.each):
            formula(expr, lambda slot: within(slot, memory.sizes, "size"))


def _require_known(size: int, known: Collection[int]) -> None:
    if size not in known:
        raise Refuted(f"its launch depends on its size {size}, which no argument has")
