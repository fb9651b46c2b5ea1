"""The inputs and outputs of an imported program, as plain data.

A `Signature` says how the nested arguments of a call become the parameters of `main`, and how its results become the
nested results. The structure of arguments and results is text (JSON), torch's own for its programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from relaxpy.errors import UsageError


@dataclass(frozen=True)
class Input:
    """A leaf of the arguments, the seed of random numbers, or a buffer that a call changes. A `key` of random numbers
    is passed as its words."""

    kind: Literal["tensor", "int", "constant", "seed", "buffer", "key"]
    name: str
    """The parameter of `main`; for a constant, what it is in the arguments."""
    value: Any = None
    """The value of a constant, which must be given at every call; the path of a buffer."""


@dataclass(frozen=True)
class Output:
    """A leaf of the results, or the new value of an input. A float is computed as a tensor, a bool as a number."""

    kind: Literal["tensor", "number", "float", "bool", "constant", "input", "update", "key"]
    index: int = -1
    """Which result of `main`; for an argument that is returned itself, which input."""
    value: Any = None
    """The value of a constant; the name of the input that is updated."""


@dataclass(frozen=True)
class Signature:
    """How arguments become parameters of `main`, and results of `main` those of the call."""

    inputs: tuple[Input, ...]
    """Leaves of the arguments in order, a seed if random numbers are drawn, then the buffers that a call changes."""
    outputs: tuple[Output, ...]
    """Leaves of the results in order, and the updates."""
    arguments: str
    """The structure of `(args, kwargs)`."""
    results: str
    names: tuple[str, ...] = ()
    """The names of the positional parameters."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Signature:
        return Signature(
            tuple(Input(**each) for each in data["inputs"]),
            tuple(Output(**each) for each in data["outputs"]),
            data["arguments"],
            data["results"],
            tuple(data["names"]),
        )


def check_constant(given: Any, wanted: Input) -> None:
    """Refuse another value of an argument that is part of the program."""
    same = given == wanted.value or given is wanted.value
    if type(given) is not type(wanted.value) or same is not True:
        raise UsageError(
            "arguments",
            f"{wanted.name} is {given!r}, and the program was traced for {wanted.name}={wanted.value!r}",
            help="numbers and texts are part of the program: import it again with the other value",
        )


def arranged(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    names: Sequence[str],
    count: int,
    keys: Sequence[str],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call as the program was traced: `count` by position, of the parameters `names`, and `keys` by
    name. Arguments that are others stay as they are."""
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if len(args) > len(names) or set(given) != {*names[:count], *keys}:
        return tuple(args), dict(kwargs)
    return tuple(given[name] for name in names[:count]), {key: given[key] for key in keys}
