"""NVIDIA's run-time compiler, NVRTC, by the package cuda-bindings: CUDA C to machine code or PTX. No GPU and no driver
is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relaxpy.errors import BuildError

_PTX_VERSIONS = {9: "8.0"}
"""The version of PTX for devices up to this major number of compute capability; `_LATER` for others. NVRTC names its
own, which only drivers know that are as new as it is. These are of CUDA 12.0 and 13.0, and have all that kernels
use."""
_LATER = "9.0"
INSTALL = "pip install 'relaxpy[cuda]'"
_OPTIONS = (
    "--std=c++17",
    "-default-device",
    # As on processors: a product and its sum are rounded once.
    "--fmad=true",
    "--ptxas-options=-v",
)
_VERSION = re.compile(rb"^\.version (\d+\.\d+)", re.MULTILINE)
_USED = {
    "registers": re.compile(r"Used (\d+) registers"),
    "stack": re.compile(r"(\d+) bytes stack frame"),
    "spills": re.compile(r"(\d+) bytes spill stores"),
    "shared": re.compile(r"(\d+) bytes smem"),
}


@dataclass(frozen=True)
class Compiled:
    """A kernel as NVRTC compiled it."""

    code: bytes
    format: str
    """`cubin` or `ptx` (`relaxpy.runtime.devices.image.FORMATS`)."""
    resources: Mapping[str, int]
    """The kernel's use of a multiprocessor: `registers` of a thread, bytes of `stack` and of `spills` of a thread, and
    bytes of `shared` memory of a block. Empty for PTX, which the driver compiles further."""


def compile_source(source: str, arch: str, name: str) -> Compiled:
    """Compile the source of one kernel for an architecture, `sm_XY` (machine code) or `compute_XY` (PTX). Errors call
    the kernel `name`.

    Raises: BuildError: `kernel-compile`; `cuda-compiler` without NVRTC, or for an architecture that it does not know.
    """
    nvrtc = _nvrtc()
    program = _checked(nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    try:
        options = [option.encode() for option in (f"--gpu-architecture={arch}", *_OPTIONS)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _text(nvrtc, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        if status == nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION and "arch" in log:
            version = ".".join(map(str, _checked_all(nvrtc, nvrtc.nvrtcVersion())))
            raise BuildError(
                "cuda-compiler",
                f"NVRTC {version} does not compile for {arch}",
                help='name another architecture: target="cuda -arch=sm_90"; or upgrade nvidia-cuda-nvrtc',
            )
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BuildError(
                "kernel-compile",
                f'NVRTC does not compile the kernel "{name}" for {arch}: {_first_error(log)}',
                notes=(f"the source:\n{source}",),
            )
        if arch.startswith("compute"):
            code = _bytes(nvrtc, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
            return Compiled(_for_older_drivers(code.rstrip(b"\0"), arch), "ptx", {})
        code = _bytes(nvrtc, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        return Compiled(code, "cubin", _resources(log))
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _for_older_drivers(code: bytes, arch: str) -> bytes:
    """PTX under the version that its devices need, unless NVRTC is older."""
    digits = re.findall(r"\d+", arch)[0]
    wanted = next((v for most, v in _PTX_VERSIONS.items() if int(digits) // 10 <= most), _LATER)
    found = _VERSION.search(code)
    if found is None or _numbers(found[1].decode()) <= _numbers(wanted):
        return code
    return code[: found.start(1)] + wanted.encode() + code[found.end(1) :]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _resources(log: str) -> dict[str, int]:
    """The kernel's resources, from the log of ptxas."""
    found = {name: pattern.search(log) for name, pattern in _USED.items()}
    return {name: int(match[1]) if match else 0 for name, match in found.items()}


def _nvrtc() -> Any:
    """The bindings of NVRTC. Raises: BuildError (`cuda-compiler`) where they or NVRTC are not installed."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()  # finds the library
    # The bindings raise errors of several kinds for a library that is missing.
    except Exception as error:
        raise BuildError(
            "cuda-compiler",
            f"kernels for CUDA are compiled by NVRTC, which cannot be used: {error}",
            help=INSTALL,
        ) from error
    return nvrtc


def _checked(nvrtc: Any, result: tuple[Any, ...]) -> Any:
    """The one value of a call."""
    (value,) = _checked_all(nvrtc, result)
    return value


def _checked_all(nvrtc: Any, result: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values of a call. Raises: BuildError (`cuda-compiler`) if it failed."""
    status, *values = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        _, reason = nvrtc.nvrtcGetErrorString(status)
        raise BuildError("cuda-compiler", f"NVRTC fails: {bytes(reason).decode()}", help=INSTALL)
    return tuple(values)


def _bytes(nvrtc: Any, size_of: Any, read: Any, program: Any) -> bytes:
    found = b"\0" * _checked(nvrtc, size_of(program))
    _checked_all(nvrtc, read(program, found))  # writes into the bytes
    return found


def _text(nvrtc: Any, size_of: Any, read: Any, program: Any) -> str:
    return _bytes(nvrtc, size_of, read, program).rstrip(b"\0").decode(errors="replace").strip()


def _first_error(log: str) -> str:
    """The first line of a log that names an error."""
    lines = log.splitlines() or ["it gives no reason"]
    return next((line for line in lines if "error" in line), lines[0])
