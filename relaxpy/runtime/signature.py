"""The signature of a function of an executable, and the errors for calls with other arguments than it has."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from relaxpy.errors import RuntimeCheckError, UsageError

if TYPE_CHECKING:
    from relaxpy.runtime.bytecode import FunctionCode


class Signature:
    """The parameters and the result of a function, as script. `inspect()` is the corresponding `inspect.Signature`."""

    def __init__(self, code: FunctionCode, arity: int) -> None:
        """`arity` is the number of parameters that a caller sees; those behind them are captured."""
        self.name = code.name
        self.params = code.params[:arity]
        self.ret = code.ret

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

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """All arguments, in the order of the parameters.

        Raises: UsageError (`arguments`) for too many, missing, unknown or doubled ones.
        """
        names = [param.name for param in self.params]
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
            help = f"the signature is {self}"
            if 0 < len(missing) < len(names) and missing == names[-len(missing) :]:
                help += "; bind weights with relaxpy.build(mod, params=…), in an nn.Module after model.load(state)"
            raise UsageError("arguments", f"{self.name} {'; '.join(problems)}", help=help)
        return tuple(bound[name] for name in names)

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
