"""Compiled programs on the emulated driver: each kernel that is compiled gets a body for the processor, from its CUDA C
(`tests.device_emulation`)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from relaxpy.backend.cuda import kernel_image
from relaxpy.backend.cuda.compiler import Compiled, compile_source
from relaxpy.backend.cuda.source import PREAMBLE
from tests.device_emulation.runner import library_of, needs_compiler
from tests.runtime.devices.cuda.emulation import Emulation, emulated, folder, needs_emulation

TARGET = "cuda -arch=sm_80"
needs_cuda = [needs_emulation, needs_compiler]
_KERNEL = re.compile(r"__global__ void (?:__launch_bounds__\([\d, ]+\) )?(\w+)\(")


@contextmanager
def emulated_compiled() -> Iterator[Emulation]:
    """One device, which runs what is compiled inside. The cache of builds is one of this process: a kernel from that of
    the test run, which another process compiled, would have no body here and do nothing."""

    def compile_both(source: str, arch: str, name: str) -> Compiled:
        made = compile_source(source, arch, name)
        (kernel, *_) = _KERNEL.findall(source)
        library = library_of("cuda_shim.h", source.removeprefix(PREAMBLE), (kernel,))
        link = folder() / f"{hashlib.sha256(made.code).hexdigest()}.so"
        link.unlink(missing_ok=True)
        link.symlink_to(library)
        return made

    with pytest.MonkeyPatch.context() as patch, emulated() as driver:
        patch.setattr(kernel_image, "compile_source", compile_both)
        patch.setenv("RELAXPY_CACHE_DIR", str(folder() / "cache"))
        yield driver
