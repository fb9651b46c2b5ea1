"""Options that several commands have, as data: their names, types and texts, each written once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import click

from relaxpy.cli.outputs import OutputFile

F = TypeVar("F", bound=Callable[..., Any])
_Shared: TypeAlias = tuple[tuple[str, ...], dict[str, Any]]


def _shared(*names: str, **given: Any) -> _Shared:
    return names, given


SHARED: Mapping[str, _Shared] = {
    "--bound": _shared(
        "bounds",
        multiple=True,
        metavar="NAME=INT",
        help="An upper bound of a symbolic variable, n=2048 or main.n=2048.",
    ),
    "--input": _shared(
        "-i",
        "inputs",
        multiple=True,
        metavar="NAME=VALUE|FILE.npz",
        help="An argument, as for `relaxpy run`.",
    ),
    "--no-cache": _shared(is_flag=True, help="Do not use the cache."),
    "--output": _shared("-o", type=OutputFile()),
    "--params": _shared(
        type=click.Path(exists=True, dir_okay=False),
        help="An .npz or .safetensors file; its arrays are bound to the parameters of the same names.",
    ),
    "--repeat": _shared(
        default=20, show_default=True, type=click.IntRange(min=1), help="The number of calls."
    ),
    "--seed": _shared(
        default=0,
        show_default=True,
        type=click.IntRange(min=0),
        help="The seed of generated arrays.",
    ),
    "--size": _shared(
        "sizes", multiple=True, metavar="NAME=INT", help="The value of a symbolic variable."
    ),
    "--target": _shared("-t", default="llvm", show_default=True, help="The target."),
    "--without": _shared(multiple=True, metavar="PASS", help="Remove a pass."),
}
"""Option → its other names, and what `click.option` is told of it."""


def option(name: str, **own: Any) -> Callable[[F], F]:
    """A shared option. `own` is what a command says otherwise, such as `help`."""
    names, given = SHARED[name]
    return click.option(name, *names, **{**given, **own})


file_argument = click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
"""FILE of a command: a program, - is stdin."""
function_argument = click.argument("function", required=False)
