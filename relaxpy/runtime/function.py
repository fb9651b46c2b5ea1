"""Functions of a virtual machine as Python calls them: `vm["main"]`, and closures that programs return."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NoReturn

from relaxpy.errors import RuntimeCheckError, UsageError
from relaxpy.runtime.linked_function import LinkedFunction
from relaxpy.runtime.patterns import enter, leave


class Function:
    """A callable function of a program, with the captured values if it is a closure.

    Arguments are numpy arrays, anything with DLPack, `Tensor`s, numbers, tuples, shapes as tuples of ints, and
    functions, as the parameters' annotations say; positional or by name. The result is a `Tensor`, `Shape`,
    scalar, function or a tuple of such.

    Aliasing: a returned argument is the caller's object if that was a `Tensor`, and otherwise a `Tensor` over the
    caller's memory. A `memory.view` of an argument shares its memory; a reshape does not. A returned constant is a
    copy. A value that is returned twice is one object. All other results own their memory, and later calls do not
    change them.
    """

    __slots__ = ("arity", "captured", "direct", "gives_new", "is_plain", "linked")

    def __init__(self, linked: LinkedFunction, captured: tuple[Any, ...] = ()) -> None:
        self.linked = linked
        self.captured = captured
        self.arity = len(linked.code.params) - len(captured)
        """The number of parameters that are not captured."""
        self.direct = linked.direct
        """The class of arguments that need no conversion."""
        self.is_plain = not (captured or linked.generator)
        """Can its code be called with the arguments alone?"""
        self.gives_new = linked.translation.listing.gives_new
        """Are its results ready for the caller?"""

    @property
    def name(self) -> str:
        return self.linked.code.name

    @property
    def source(self) -> str:
        """The Python code of the function, one line per instruction, with bindings as comments."""
        return self.linked.source

    @property
    def signature(self) -> Signature:
        return Signature(self.linked, self.arity)

    @property
    def __signature__(self) -> inspect.Signature:
        return self.signature.inspect()

    def check_arity(self, given: int) -> None:
        """Raises: RuntimeCheckError (`arity`) for another number of arguments inside a program."""
        if given != self.arity:
            raise wrong_count(self.name, self.arity, given)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != self.arity:
            args = self._bind(args, kwargs)
        linked = self.linked
        if linked.layouts:
            args = linked.unpacked(args)
        direct = self.direct
        for arg in args:
            if arg.__class__ is not direct or not arg.shape:
                args = self._entered(args)
                break
        if not self.is_plain:
            return leave(linked(*args, *self.captured))
        result = linked.run(*args)  # what `linked` does, in less time
        return result if self.gives_new else leave(result)

    def _entered(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The runtime values of the arguments."""
        linked, direct = self.linked, self.direct
        queues, own = linked.queues, linked.program.own
        entered: list[Any] = []
        try:
            for arg, pattern in zip(args, linked.patterns, strict=False):
                is_direct = arg.__class__ is direct and arg.shape
                entered.append(arg if is_direct else enter(arg, pattern, queues, own))
        except RuntimeCheckError as error:
            param = linked.code.params[len(entered)]
            error.message = f"{self.name}: parameter {param.name}: {error.message}"
            error.notes = (*error.notes, f"{param.name} is annotated {param.annotation}")
            raise
        return tuple(entered)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments, in the order of the parameters.

        Raises: UsageError (`arguments`) for too many, missing, unknown or doubled ones.
        """
        names = [param.name for param in self.linked.code.params[: self.arity]]
        problems: list[str] = []
        if len(args) > len(names):
            problems.append(takes(len(names), len(args)))
        bound = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names:
                problems.append(f"has no parameter {name!r}")
            elif name in bound:
                problems.append(f"got {name!r} twice")
            bound[name] = value
        missing = [name for name in names if name not in bound]
        if missing:
            problems.append(f"lacks {', '.join(missing)}")
        if problems:
            help = f"the signature is {self.signature}"
            if 0 < len(missing) < len(names) and missing == names[-len(missing) :]:
                help += "; bind weights with relaxpy.build(mod, params=…), in an nn.Module after model.load(state)"
            raise UsageError("arguments", f"{self.name} {'; '.join(problems)}", help=help)
        return tuple(bound[name] for name in names)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"the function {self.name} belongs to this process, so it can be neither pickled nor copied: "
            "pickle the Executable that it came from"
        )

    def __repr__(self) -> str:
        captured = f", {len(self.captured)} values captured" if self.captured else ""
        return f"<relaxpy function {self.signature}{captured}>"


class Signature:
    """The parameters and the result of a function, as script. `inspect()` is the corresponding `inspect.Signature`."""

    def __init__(self, linked: LinkedFunction, arity: int) -> None:
        self.name = linked.code.name
        self.params = linked.code.params[:arity]
        self.ret = linked.code.ret

    @property
    def parameters(self) -> dict[str, str]:
        """Parameter → its annotation as script, in order."""
        return {param.name: param.annotation for param in self.params}

    def inspect(self) -> inspect.Signature:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        params = [
            inspect.Parameter(p.name, kind, annotation=p.annotation)
            for p in self.params
            if p.name.isidentifier()
        ]
        return inspect.Signature(params, return_annotation=self.ret or inspect.Signature.empty)

    def __str__(self) -> str:
        params = ", ".join(
            f"{p.name}: {p.annotation}" if p.annotation else p.name for p in self.params
        )
        return f"{self.name}({params})" + (f" -> {self.ret}" if self.ret else "")

    __repr__ = __str__


def takes(wanted: int, given: int) -> str:
    """The error text for a function that is called with too many arguments."""
    return f"takes {_arguments(wanted)}, got {given}"


def wrong_count(name: str, wanted: int, given: int) -> RuntimeCheckError:
    """The error for a function value that a program calls with the wrong number of arguments."""
    return RuntimeCheckError(
        "arity",
        f"{name} takes {_arguments(wanted)}, a function value of it was called with {given}",
    )


def _arguments(count: int) -> str:
    return f"{count} argument{'' if count == 1 else 's'}"
