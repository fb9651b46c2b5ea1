"""Compile kernels for the processor, and call them."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
COMPILER = shutil.which("g++") or shutil.which("clang++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no compiler for C++ is here")
_FLAGS = ("-std=gnu++14", "-O0", "-ffp-contract=off", "-w", "-fPIC")
"""Sums and products are rounded by themselves. Warnings are about attributes that only devices have. To compile a kernel
takes longer than its launches, so it is not optimised; C++17's <cmath>, with its special functions, would take half of
the time. GNU's C++14 has what is used of C++17: floats in hexadecimal digits, and folded expressions."""
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
    text = f"{source}\n{entries}\n"
    name = hashlib.sha256(f"{shim}\n{text}".encode()).hexdigest()[:32]

    def compile_library(path: Path) -> None:
        # What it needs of the system's libraries it finds by that of all kernels; to look for it takes the linker long.
        _compile(shim, text, "-shared", "-nostdlib", "-o", str(path), str(_shared_library()))

    return _made_once(_folder() / f"{name}.so", compile_library)


def check_syntax(shim: str, source: str) -> None:
    """Raises: AssertionError with the compiler's first errors."""
    _compile(shim, f"{source}\n", "-fsyntax-only")


def _compile(shim: str, source: str, *options: str) -> None:
    text = f'#include "{shim}"\n#line 1 "kernels"\n{source}'
    headers = f"-I{_compiled_header(shim).parent}"
    _run_compiler(headers, "-x", "c++", "-", "-x", "none", *options, text=text)


@cache
def _compiled_header(shim: str) -> Path:
    """A header, compiled once: g++ finds it in the place of the text, which takes half of the time of a small kernel.
    Other compilers, and other versions of it, take the text."""

    def compile_header(path: Path) -> None:
        _run_compiler("-x", "c++-header", str(HERE / shim), "-o", str(path))

    return _made_once(_folder() / f"{shim}.gch", compile_header)


@cache
def _shared_library() -> Path:
    """What kernels have in common, fibers with their memory among it."""

    def compile_shared(path: Path) -> None:
        _run_compiler("-O2", "-shared", "-o", str(path), *map(str, HERE.glob("*.cpp")))

    return _made_once(_folder() / "shared.so", compile_shared)


@cache
def _folder() -> Path:
    """What is compiled of the sources as they are, for all processes of a test run."""
    sources = sorted([*HERE.glob("*.h"), *HERE.glob("*.cpp"), HERE / "metal_stdlib"])
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:32]
    shared = os.environ.get("RELAXPY_TESTS_CACHE", tempfile.gettempdir())
    folder = Path(shared) / "device_emulation" / digest
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _made_once(path: Path, make: Callable[[Path], None]) -> Path:
    """A file that `make` writes. Other processes see it whole or not at all."""
    if not path.exists():
        beside = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        make(beside)
        beside.rename(path)
    return path


def _run_compiler(*options: str, text: str = "") -> None:
    assert COMPILER is not None
    # The folder of compiled headers is among the options, and so before that of the texts.
    command = [COMPILER, *_FLAGS, *options, f"-I{HERE}"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    assert not done.returncode, "\n".join(errors[:5] or [done.stderr[:1000]])
