"""The function that a command runs, and its arguments."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import click

import relaxpy
from relaxpy.errors import UsageError


def imported(name: str) -> ModuleType:
    """A Python module, found in the current folder, too. Raises UsageError (`bad-pipeline`) if that fails."""
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except SyntaxError as error:
        where = f"{error.filename}:{error.lineno}: {error.msg}"
        raise UsageError("bad-pipeline", f"cannot import {name}: {where}") from None
    except Exception as error:  # the module is the user's: it may do anything
        reason = f"{type(error).__name__}: {error}"
        raise UsageError("bad-pipeline", f"cannot import {name}: {reason}") from error
    finally:
        sys.path.remove("")


def _import_all(context: click.Context, parameter: click.Parameter, names: Sequence[str]) -> None:
    del context, parameter
    for name in names:
        imported(name)


import_option = click.option(
    "--import",
    multiple=True,
    metavar="MODULE",
    callback=_import_all,
    expose_value=False,
    help="Import a Python module first: one that registers library functions.",
)


def chosen_function(given: str | None, known: Sequence[str]) -> str:
    """FUNCTION of a command: `main`, or the only one of the program, if it is not given."""
    return given or (known[0] if len(known) == 1 else "main")


def called(
    vm: relaxpy.VirtualMachine, given: str | None, values: Mapping[str, Any]
) -> tuple[str, Any]:
    """The function that a command calls with these arguments: its name, and the function. Raises UsageError
    (`arguments`) if arguments are missing, with the options that would give them."""
    function = chosen_function(given, [*vm])
    if function not in vm and "=" in function:
        raise UsageError(
            "bad-input",
            f"{function!r} is not a function",
            help=f"write --input {shlex.quote(function)}",
        )
    call = vm[function]
    missing = [name for name in call.signature.parameters if name not in values]
    if missing and values.keys() <= call.signature.parameters.keys():
        options = " ".join(f"--input {name}=…" for name in missing)
        raise UsageError(
            "arguments",
            f"{function} lacks {', '.join(missing)}",
            notes=[f"the signature is {call.signature}"],
            help=f"write {options}, with a file or a random array: --input 'x=f32[4,64]'",
        )
    return function, call
