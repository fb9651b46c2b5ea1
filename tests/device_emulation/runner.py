"""Compile kernels for the processor, and call them."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
COMPILER = shutil.which("g++") or shutil.which("clang++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no compiler for C++ is here")
_FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", "-w", f"-I{HERE}")
"""Sums and products are rounded by themselves. Warnings are about attributes that only devices have."""
_RUNNING = threading.Lock()
"""A launch keeps its state in variables of its library."""


class KernelFailure(Exception):
    """A launch did what devices leave undefined."""


@dataclass(frozen=True)
class Kernels:
    """Compiled kernels."""

    library: Any = field(repr=False)

    def __contains__(self, name: str) -> bool:
        return hasattr(self.library, f"{name}__launch")

    def launch(
        self,
        name: str,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        shared_bytes: int = 0,
        backwards: bool = False,
    ) -> None:
        """Run a kernel for `grid` groups of `block` threads, each three numbers. `args` are ctypes values, one for each
        of its parameters: `c_void_p` for memory. `backwards` runs groups and threads in descending order.

        Raises: KernelFailure.
        """
        places = [ctypes.addressof(arg) for arg in args]
        given = (ctypes.c_void_p * max(len(places), 1))(*places)
        sizes = [(ctypes.c_uint32 * 3)(*size) for size in (grid, block)]
        with _RUNNING:
            self.library.emulation_backwards(ctypes.c_bool(backwards))
            self.library[f"{name}__launch"](*sizes, ctypes.c_uint32(shared_bytes), given)
            failure = bytes(self.library.emulation_failure())
        if failure:
            raise KernelFailure(f"{name}: {failure.decode()}")


@cache
def compiled(shim: str, source: str, kernels: tuple[str, ...]) -> Kernels:
    """The kernels of a source in the language of a header here, compiled once for each text.

    Raises: AssertionError with the compiler's first errors.
    """
    loaded: Any = ctypes.CDLL(str(library_of(shim, source, kernels)))
    loaded.emulation_failure.restype = ctypes.c_char_p
    return Kernels(loaded)


def library_of(shim: str, source: str, kernels: Sequence[str]) -> Path:
    """The shared library of the kernels of a source, compiled once for each text.

    Raises: AssertionError with the compiler's first errors.
    """
    entries = "\n".join(f"EMULATION_ENTRY({name})" for name in kernels)
    text = f'#include "{shim}"\n#line 1 "kernels"\n{source}\n{entries}\n'
    headers = [path.read_bytes() for path in sorted([*HERE.glob("*.h"), HERE / "metal_stdlib"])]
    digest = hashlib.sha256(b"\0".join([text.encode(), *headers])).hexdigest()[:32]
    folder = Path(os.environ.get("RELAXPY_TESTS_CACHE", tempfile.gettempdir())) / "device_emulation"
    library = folder / f"{digest}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = library.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        _compile(text, "-shared", "-fPIC", "-o", str(made))
        made.rename(library)
    return library


def check_syntax(shim: str, source: str) -> None:
    """Raises: AssertionError with the compiler's first errors."""
    _compile(f'#include "{shim}"\n#line 1 "kernels"\n{source}\n', "-fsyntax-only")


def _compile(text: str, *options: str) -> None:
    assert COMPILER is not None
    command = [COMPILER, *_FLAGS, *options, "-x", "c++", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    assert not done.returncode, "\n".join(errors[:5] or [done.stderr[:1000]])
