"""A trampoline: recursive and deeply nested functions are generators that yield their calls, which run on an explicit
stack."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias

from relaxpy.errors import RelaxError, RuntimeCheckError
from relaxpy.runtime.bytecode import Call, FunctionCode, Invoke
from relaxpy.runtime.promises import Promise
from relaxpy.runtime.tail_calls import steps

Suspended: TypeAlias = Generator[Any, Any, Any]
Promises: TypeAlias = "dict[Promise, None] | None"
MAX_DEPTH = 100
"""Deeper chains of calls run on the trampoline, as recursion does."""
MAX_CALLS = 250_000
"""The most nested calls on the trampoline: about 1.2 GB, at 4.6 KB each. Only infinite recursion gets there."""


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


class TailCall:
    """What a generator returns for a call that takes its place."""

    __slots__ = ("called", "promise")

    def __init__(self, called: Suspended, promise: Promise | None = None) -> None:
        self.called = called
        self.promise = promise
        """What the generator promised of its result."""


def drive(running: Suspended) -> Any:
    """Runs a generator of a function, and those that it yields, on an explicit stack."""
    stack: list[tuple[Suspended, Promises]] = []
    promised: Promises = None
    """The promises of functions that the running one has taken the place of."""
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            called = running.send(value) if error is None else running.throw(error)
        except StopIteration as stop:
            value, error = stop.value, None
            if value.__class__ is TailCall:
                if value.promise is not None:
                    promised = {} if promised is None else promised
                    promised[value.promise] = None
                running, value = value.called, None
                continue
            if promised is not None:
                try:
                    for promise in reversed(promised):
                        promise.check(value)
                except RelaxError as broken:
                    value, error = None, broken
            if not stack:
                if error is not None:
                    raise error from None
                return value
            running, promised = stack.pop()
        except BaseException as raised:
            # Every function on the stack receives the exception, to locate it and to release its frame.
            if not stack:
                raise
            value, error = None, raised
            running, promised = stack.pop()
        else:
            if len(stack) >= MAX_CALLS:
                called.close()
                message = f"calls are nested more than {MAX_CALLS} deep"
                help = "does the recursion end for these arguments?"
                value, error = None, RuntimeCheckError("recursion", message, help=help)
                continue
            stack.append((running, promised))
            running, promised, value, error = called, None, None, None
