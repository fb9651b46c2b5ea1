"""A trampoline: recursive and deeply nested functions are generators that yield their calls, which run on an explicit
stack."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeAlias

from relaxpy.errors import RelaxError, RuntimeCheckError

if TYPE_CHECKING:
    from relaxpy.runtime.promises import Promise

Suspended: TypeAlias = Generator[Any, Any, Any]
Promises: TypeAlias = "dict[Promise, None] | None"
MAX_CALLS = 250_000
"""The most nested calls on the trampoline: about 1.2 GB, at 4.6 KB each. Only infinite recursion gets there."""


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
