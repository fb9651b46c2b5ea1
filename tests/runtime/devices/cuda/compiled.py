"""Compiled programs on the emulated driver: each kernel that is compiled gets a body for the processor, from its CUDA C
(`tests.device_emulation`)."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from relaxpy.backend.cuda import compiler, kernel_image
from relaxpy.backend.cuda.compiler import Compiled, compile_source
from relaxpy.backend.cuda.source import PREAMBLE
from tests.device_emulation.runner import library_of, needs_compiler
from tests.runtime.devices.cuda.emulation import Emulation, emulated, folder, needs_emulation
from tests.runtime.devices.cuda.kernels import ptx
from tests.sweeps import FULL

ARCH = "sm_80"
TARGET = f"cuda -arch={ARCH}"
needs_cuda = [needs_emulation, needs_compiler]
_SIGNATURE = re.compile(
    r"__global__ void (?:__launch_bounds__\((\d+)(?:, \d+)?\) )?(\w+)\(([^()]*)\)"
)
_PTX = {
    **dict.fromkeys(("ushort*", "nv_bfloat16*", "int*", "uint*", "float*", "int64_t*"), ".u64 .ptr"),
    "int64_t": ".u64", "int": ".u32", "float": ".f32",
}  # fmt: skip
"""Types of parameters in CUDA C → in PTX."""


@contextmanager
def emulated_compiled() -> Iterator[Emulation]:
    """One device, which runs what is compiled inside. The cache of builds is one of this process: a kernel from that of
    the test run, which another process compiled, would have no body here and do nothing."""

    def compile_both(source: str, arch: str, name: str) -> Compiled:
        made = _read(source) if arch == ARCH and not FULL else None
        made = made or compile_source(source, arch, name)
        (_, kernel, _) = _SIGNATURE.findall(source)[0]
        library = library_of("cuda_shim.h", source.removeprefix(PREAMBLE), (kernel,))
        link = folder() / f"{hashlib.sha256(made.code).hexdigest()}.so"
        link.unlink(missing_ok=True)
        link.symlink_to(library)
        return made

    with pytest.MonkeyPatch.context() as patch, emulated() as driver:
        patch.setattr(kernel_image, "compile_source", compile_both)
        patch.setenv("RELAXPY_CACHE_DIR", str(folder() / "cache"))
        yield driver


@pytest.fixture
def assembled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled for the emulated device is machine code, as users': its registers can be read. It is not run."""
    monkeypatch.setattr(kernel_image, "compile_source", compile_source)
    monkeypatch.setenv("RELAXPY_CACHE_DIR", os.environ["RELAXPY_TESTS_CACHE"])


def _read(source: str) -> Compiled | None:
    """A kernel that NVRTC takes, as PTX without a body: machine code, which is most of NVRTC's work, would not be run.
    None for a kernel that it refuses, and for parameters that have no type in PTX here."""
    nvrtc = compiler._nvrtc()
    program = compiler._checked(
        nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    )
    given = (f"--gpu-architecture={ARCH}", *compiler._OPTIONS, "-dlto")
    options = [option.encode() for option in given]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    nvrtc.nvrtcDestroyProgram(program)
    (threads, name, params, *_) = _SIGNATURE.findall(source)[0]
    types = [_PTX.get(param.rpartition(" ")[0]) for param in params.split(", ") if param]
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS or None in types:
        return None
    code = ptx(name, [each for each in types if each], int(threads or 1024))
    return Compiled(code + b"// " + hashlib.sha256(source.encode()).hexdigest().encode(), "ptx", {})
