"""Reads a program from a file or stdin into a checked module."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import relaxpy
from relaxpy.analysis import check_well_formed
from relaxpy.errors import UsageError
from relaxpy.ir import IRModule
from relaxpy.runtime.container import MAGIC

EXECUTABLE_HELP = "`relaxpy show` prints an executable as text, `relaxpy run` runs it"


def is_executable(path: str) -> bool:
    """Whether `path` is a binary file and not a script, which a zero byte at its start shows. A `.py` file always
    counts as a script."""
    if path == "-" or path.endswith(".py"):
        return False
    with open(path, "rb") as file:
        return b"\0" in file.read(4096)


def read_text(path: str) -> str:
    """The text of `path`; "-" is stdin. Raises UsageError if it is not text."""
    if path == "-":
        return sys.stdin.read()
    data = Path(path).read_bytes()
    if data.startswith(MAGIC):
        raise UsageError(
            "not-a-script",
            f"{path} is an executable: this command needs the source of a program",
            help=EXECUTABLE_HELP,
        )
    try:
        text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8").read()  # ends lines as files do
    except UnicodeDecodeError as error:
        raise UsageError(
            "not-a-script",
            f"{path} is not a text file in UTF-8 (byte {error.start}: {error.reason})",
        ) from None
    if "\0" in text:
        raise UsageError("not-a-script", f"{path} is not a text file: it contains NUL bytes")
    return text


def read_module(path: str) -> IRModule:
    """Parses and checks the program in `path`. All errors are reported together."""
    mod = relaxpy.parse(read_text(path), filename="<stdin>" if path == "-" else path)
    check_well_formed(mod)
    return mod
