"""The function that a caller of a linked function calls.

It completes the arguments, converts those that are no runtime values yet, runs the function, and copies constants among
the results. Its time is part of every call, so it is generated for each function:

    def call(r0=missing, r1=missing, /, *more, **named):
     if r1 is missing or more or named: (r0, r1,) = bind((r0, r1,), more, named)
     if r0.__class__ is not Tensor: r0 = enter(0, r0)
     if r1.__class__ is not Tensor: r1 = enter(1, r1)
     return run(r0, r1)

That of a closure has its captured values first: `def call(r1, r0=missing, /, *more, **named)`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.check_data import holds_data
from relaxpy.runtime.packed_tensor import PackedTensor
from relaxpy.runtime.patterns import describe, enter
from relaxpy.runtime.signature import Signature
from relaxpy.runtime.tensor import from_array
from relaxpy.runtime.terms import TensorPattern

if TYPE_CHECKING:
    from relaxpy.runtime.linked_function import LinkedFunction

MISSING = object()
"""The default of each parameter."""


def entry_source(
    tests: Sequence[str], own: int, packed: Collection[int], generator: bool, gives_new: bool
) -> str:
    """The code of `call`. `tests[i]` is a condition that is true if argument i has to be converted. The first `own`
    parameters are the caller's; the others are captured. `packed` are positions of packed weights. `gives_new`: the
    results contain no constants."""
    names = [f"r{i}" for i in range(len(tests))]
    free, captured = names[:own], names[own:]
    slash = ["/"] if names else []
    params = [*captured, *(f"{name}=missing" for name in free), *slash, "*more", "**named"]
    lines = [f"def call({', '.join(params)}):"]
    if free:
        given = f"({', '.join(free)},)"
        lines.append(
            f"if {free[-1]} is missing or more or named: {given} = bind({given}, more, named)"
        )
    else:
        lines.append("if more or named: bind((), more, named)")
    for position in sorted(packed):
        name = names[position]
        lines.append(
            f"if {name}.__class__ is not PackedTensor or {name}.layout != layouts[{position}]: "
            f"raise not_packed({position}, {name})"
        )
        lines.append(f"{name} = {name}.tensor")
    for position, name in enumerate(free):
        lines.append(f"if {tests[position]}: {name} = enter({position}, {name})")
    result = f"run({', '.join(names)})"
    if generator:
        result = f"drive({result})"
    lines.append(f"return {result if gives_new else f'leave({result})'}")
    return "\n ".join(lines) + "\n"


class Arguments:
    """Completes and converts the arguments of calls."""

    __slots__ = (
        "_arity",
        "_holds_data",
        "_linked",
        "_own",
        "_patterns",
        "_queues",
        "_takes_arrays",
    )

    def __init__(self, linked: LinkedFunction, arity: int) -> None:
        self._linked = linked
        self._arity = arity
        self._patterns = linked.patterns
        self._queues = linked.queues
        self._own = linked.program.own
        self._takes_arrays = tuple(
            isinstance(pattern, TensorPattern) and not self._queues for pattern in self._patterns
        )
        """For each parameter whether it is a tensor of the host; none are if one is on a device."""
        self._holds_data = tuple(map(holds_data, self._patterns))

    def bind(
        self, given: tuple[Any, ...], more: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Any, ...]:
        """All arguments in order, of those that were given by position, with defaults in place of the missing ones, and
        by name. Raises: UsageError (`arguments`)."""
        args = tuple(arg for arg in given if arg is not MISSING)
        return Signature(self._linked.code, self._arity).bind(args + more, named)

    def enter(self, position: int, value: Any) -> Any:
        """The runtime value of an argument. Raises: RuntimeCheckError."""
        try:
            if value.__class__ is np.ndarray and self._takes_arrays[position]:
                return from_array(value)  # as `enter` does, in less time
            entered = enter(value, self._patterns[position], self._queues, self._own)
            if self._holds_data[position]:
                check = self._linked.program.executable.data_check
                if reason := check.misfit(entered, self._patterns[position]):
                    raise RuntimeCheckError("check", reason)
            return entered
        except RuntimeCheckError as error:
            code = self._linked.code
            param = code.params[position]
            error.message = f"{code.name}: parameter {param.name}: {error.message}"
            error.notes = (*error.notes, f"{param.name} is annotated {param.annotation}")
            raise

    def not_packed(self, position: int, value: Any) -> RuntimeCheckError:
        """The error (`packed-weight`) for an argument that is not a packed weight of its parameter's layout."""
        code, exe = self._linked.code, self._linked.program.executable
        weight = next(
            w
            for w in exe.weight_params
            if exe.functions[w.function] is code and w.param == position
        )
        came = describe(value)
        if value.__class__ is PackedTensor:
            came += ", packed in another way"
        error = RuntimeCheckError(
            "packed-weight",
            f"{code.name}: parameter {code.params[position].name} is a packed weight, got {came}",
            notes=[
                f"it is made from {', '.join(weight.sources)} by {exe.functions[weight.packer].name}"
            ],
            help=f'pack the weights once: weights = vm.pack("model.safetensors"), or of arrays by name; then '
            f'vm["{code.name}"](…, *weights["{code.name}"])',
        )
        from relaxpy.runtime.bytecode import Match  # calls that succeed do not need it

        for instr in code.code:
            if isinstance(instr, Match) and instr.src == position:
                place = code.place(instr)
                return error.located(place.span) if place.file else error
        return error
