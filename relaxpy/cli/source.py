"""Reads a program from a file or stdin into a checked module: a script, or a model of ONNX or torch."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import relaxpy
from relaxpy.analysis import check_well_formed
from relaxpy.cli.inputs import read_arrays
from relaxpy.errors import UsageError
from relaxpy.ir import IRModule
from relaxpy.runtime.container import MAGIC

ONNX_SUFFIXES = (".onnx", ".onnxtxt")
"""Endings of the names of ONNX models: protobuf, or ONNX's own text."""
FILES_HELP = "a program is a script (.py), an ONNX model (.onnx) or one of torch.export.save (.pt2)"

EXECUTABLE_HELP = "`relaxpy show` prints an executable as text, `relaxpy run` runs it"


def is_onnx(path: str) -> bool:
    """Whether `path` is the name of an ONNX model."""
    return path.endswith(ONNX_SUFFIXES)


def is_executable(path: str) -> bool:
    """Whether `path` is a binary file and no program, which a zero byte at its start shows. A `.py` file always
    counts as a script, an `.onnx` file as a model."""
    if path == "-" or path.endswith(".py") or is_onnx(path) or is_torch(path):
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
            help=FILES_HELP,
        ) from None
    if "\0" in text:
        raise UsageError(
            "not-a-script", f"{path} is not a text file: it contains NUL bytes", help=FILES_HELP
        )
    return text


def read_program(
    path: str, given: Mapping[str, Any] | str | None = None
) -> tuple[IRModule, dict[str, Any]]:
    """The program in `path`, and its weights by name: those of an ONNX model or of one of torch, and those that are
    given beside it, as arrays or a file of them, which win."""
    arrays = read_arrays(given) if isinstance(given, str) else given or {}
    if is_torch(path):
        mod, weights = _read_torch(path)
    elif is_onnx(path):
        mod, weights = relaxpy.from_onnx(path)
    else:
        return read_module(path), dict(arrays)
    return mod, {**weights, **arrays}


def is_torch(path: str) -> bool:
    """Is it a file of `torch.export.save`?"""
    return path.endswith(".pt2")


def _read_torch(path: str) -> tuple[IRModule, dict[str, Any]]:
    """The program in a file of `torch.export.save`, and its weights. Raises: UsageError (`extra-missing`,
    `torch-export`)."""
    try:
        import torch
    except ImportError:
        raise UsageError(
            "extra-missing", f"{path} is of torch, which is not installed", help="pip install torch"
        ) from None
    try:
        program = torch.export.load(path)
    except Exception as error:  # of a file, of its archive, of torch
        raise UsageError("torch-export", f"{path} is no program of torch.export: {error}") from None
    return relaxpy.from_torch(program)


def read_module(path: str) -> IRModule:
    """Parses and checks the program in `path`. All errors are reported together. The weights of a model of ONNX or
    torch are parameters."""
    if is_torch(path):
        return _read_torch(path)[0]
    if is_onnx(path):
        return relaxpy.from_onnx(path)[0]
    mod = relaxpy.parse(read_text(path), filename="<stdin>" if path == "-" else path)
    check_well_formed(mod)
    return mod
