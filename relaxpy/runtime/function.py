"""Functions of a virtual machine as Python calls them: `vm["main"]`, and closures that programs return."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any, NoReturn

from relaxpy.runtime.linked_function import LinkedFunction
from relaxpy.runtime.signature import Signature, wrong_count


class Function(partial[Any]):
    """A callable function of a program, with the captured values if it is a closure.

    Arguments are numpy arrays, anything with DLPack, `Tensor`s, numbers, tuples, shapes as tuples of ints, and
    functions, as the parameters' annotations say; positional or by name. The result is a `Tensor`, `Shape`,
    scalar, function or a tuple of such.

    Aliasing: a returned argument is the caller's object if that was a `Tensor`, and otherwise a `Tensor` over the
    caller's memory. A `memory.view` of an argument shares its memory; a reshape does not. A returned constant is a
    copy. A value that is returned twice is one object. All other results own their memory, and later calls do not
    change them.
    """

    # It is a `partial` of the generated function that takes a caller's arguments (`relaxpy.runtime.entry`), for Python
    # calls a `partial` in half the time of a `__call__`.

    __slots__ = ("arity", "captured", "linked")

    linked: LinkedFunction
    captured: tuple[Any, ...]
    arity: int
    """The number of parameters that are not captured."""

    def __new__(cls, linked: LinkedFunction, captured: tuple[Any, ...] = ()) -> Function:
        self = super().__new__(cls, linked.entry(len(captured)), *captured)
        self.linked = linked
        self.captured = captured
        self.arity = len(linked.patterns) - len(captured)
        return self

    @property
    def name(self) -> str:
        return self.linked.translation.name

    @property
    def source(self) -> str:
        """The Python code of the function, one line per instruction, with bindings as comments."""
        return self.linked.source

    @property
    def signature(self) -> Signature:
        return Signature(self.linked.code, self.arity)

    @property
    def __signature__(self) -> inspect.Signature:
        return self.signature.inspect()

    def check_arity(self, given: int) -> None:
        """Raises: RuntimeCheckError (`arity`) for another number of arguments inside a program."""
        if given != self.arity:
            raise wrong_count(self.name, self.arity, given)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"the function {self.name} belongs to this process, so it can be neither pickled nor copied: "
            "pickle the Executable that it came from"
        )

    def __repr__(self) -> str:
        captured = f", {len(self.captured)} values captured" if self.captured else ""
        return f"<relaxpy function {self.signature}{captured}>"
