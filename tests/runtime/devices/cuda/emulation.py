"""The emulated driver (`driver.c`), compiled and loaded into this process, and kernels for it."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from relaxpy.runtime.devices import registry
from relaxpy.runtime.devices.cuda import cublas, cudnn
from relaxpy.runtime.devices.cuda.driver import bindings

HERE = Path(__file__).parent
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
NAME = "libcuda.so.1"
KERNELS = "RELAXPY_CUDA_KERNELS"
"""The variable with the folder of kernels for the host."""
OFF = 0, 80, 1 << 30, 1, 13000


def obstacle() -> str:
    """Why the emulation cannot be used, or ""."""
    if COMPILER is None:
        return "there is no C compiler"
    found = importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings")
    return "" if found else "cuda-bindings is not installed: pip install 'relaxpy[cuda]'"


needs_emulation = pytest.mark.skipif(bool(obstacle()), reason=obstacle())


@cache
def folder() -> Path:
    """The folder with the emulated `libcuda.so.1`, for LD_LIBRARY_PATH; kernels are put there, too."""
    made = Path(mkdtemp(prefix="relaxpy-cuda-"))
    compile_c(HERE / "driver.c", made / NAME, f"-Wl,-soname,{NAME}", "-ldl", "-lpthread")
    return made


def compile_c(source: Path, output: Path, *options: str) -> None:
    """Compiles a shared library."""
    command = [COMPILER or "cc", "-O2", "-shared", "-fPIC", "-o", str(output), str(source)]
    subprocess.run([*command, *options], check=True)


def add_kernel(code: bytes, source: str) -> None:
    """Gives the emulation a body for the kernels of an image's code: C source with `<kernel>__launch`."""
    digest = hashlib.sha256(code).hexdigest()
    path = folder() / f"{digest}.c"
    path.write_text(source)
    compile_c(path, path.with_suffix(".so"))


LIBRARIES = {"cublas": ("cublaslt.c", cublas), "cudnn": ("cudnn.c", cudnn)}
"""Extra of relaxpy → the emulation of its library, and the module that loads it."""


@cache
def _library(extra: str) -> Path:
    source, _ = LIBRARIES[extra]
    path = folder() / f"{extra}.so"
    compile_c(HERE / source, path, f"-Wl,-soname,{path.name}", "-ldl", "-lm")
    return path


@contextmanager
def emulated_library(extra: str) -> Iterator[ctypes.CDLL]:
    """A library on the emulated driver, in the place of NVIDIA's. Its functions of control are the tests'."""
    path = _library(extra)
    _, module = LIBRARIES[extra]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_paths", lambda: iter([str(path)]))
        module.library.cache_clear()
        try:
            yield ctypes.CDLL(str(path))
        finally:
            module.library.cache_clear()


class Emulation:
    """The control of the emulated driver of this process."""

    def __init__(self) -> None:
        # The driver of the process is the first library of this name.
        self._library = ctypes.CDLL(str(folder() / NAME))
        self._library.emulation_memory.restype = ctypes.c_size_t

    def configure(
        self,
        devices: int = 1,
        capability: int = 80,
        memory: int = 1 << 30,
        pools: bool = True,
        version: int = 13000,
    ) -> None:
        """Other devices, as in a new process: nothing is initialised."""
        registry.forget()
        bindings.cache_clear()
        size = ctypes.c_size_t(memory)
        self._library.emulation_configure(devices, capability, size, int(pools), version)

    def fail(self, code: int) -> None:
        """The next work that runs fails with this `CUresult`."""
        self._library.emulation_fail(code)

    def skip_launches(self, skip: bool) -> None:
        """Launches return at once, for measurements."""
        self._library.emulation_skip_launches(int(skip))

    def memory(self, pinned: bool = False) -> int:
        """Live bytes of the devices, or pinned ones."""
        return int(self._library.emulation_memory(int(pinned)))

    def streams(self) -> int:
        """How many streams are open."""
        return int(self._library.emulation_streams())


@contextmanager
def emulated() -> Iterator[Emulation]:
    """The driver with one device. Afterwards there is none."""
    os.environ[KERNELS] = str(folder())
    made = Emulation()
    made.configure()
    try:
        yield made
    finally:
        made.configure(devices=0)
        del os.environ[KERNELS]
