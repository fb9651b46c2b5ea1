"""What `relaxpy doctor` tries, one target a process: a broken driver or library may end the process that touches it.

`python -m relaxpy.cli.probe TARGET` prints one JSON object, the fields of `Finding`. A probe says what it found and,
where something is missing, which part and how to get it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

import click
import numpy as np

import relaxpy
from relaxpy.errors import RelaxError

PROGRAM = """
@I.ir_module
class Probe:
    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        y = R.add(x, x)
        return y
"""
"""The smallest program with a symbolic shape: one kernel."""


@dataclass(frozen=True)
class Finding:
    """The outcome of a probe."""

    works: bool
    found: str
    """What is there: the processor, the driver, the devices."""
    advice: str = ""
    """Which part is missing and how to get it; empty if nothing is."""


def probe_llvm() -> Finding:
    """Compile `PROGRAM` for this CPU, run it at two sizes, and look at the numbers."""
    target = relaxpy.Target.parse("llvm")
    try:
        vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(PROGRAM), target=target))
        for n in (3, 1000):
            x = np.arange(n, dtype=np.float32)
            if not np.array_equal(vm["main"](x).numpy(), x + x):
                return Finding(
                    False, str(target), "a kernel ran and its numbers are wrong: please report this"
                )
    except RelaxError as error:
        return Finding(False, str(target), f"compiling or running a kernel failed: {error.message}")
    return Finding(True, f"{target.mcpu}, {relaxpy.num_threads()} threads")


def no_code_path(kind: str, found: str) -> Finding:
    """For targets that this version of relaxpy cannot compile for, whatever the machine has."""
    return Finding(False, found, f"this version of relaxpy does not compile for {kind} yet")


def load_first(*names: str) -> ctypes.CDLL | None:
    """The first of the shared libraries that loads."""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def probe_cuda() -> Finding:
    """Ask NVIDIA's driver for its devices."""
    driver = load_first("libcuda.so.1", "nvcuda.dll")
    if driver is None:
        return Finding(False, "no NVIDIA driver", "needs an NVIDIA GPU and its driver (libcuda)")
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return Finding(
            False,
            "driver, but no device",
            "the driver is installed and finds no GPU: see nvidia-smi",
        )
    return no_code_path("cuda", f"driver and {count.value} device(s)")


def probe_opencl() -> Finding:
    """Ask OpenCL's loader for its platforms."""
    loader = load_first(
        "libOpenCL.so.1", "OpenCL.dll", "/System/Library/Frameworks/OpenCL.framework/OpenCL"
    )
    if loader is None:
        return Finding(
            False,
            "no OpenCL loader",
            "install a driver (on a plain CPU, Debian: apt install pocl-opencl-icd)",
        )
    count = ctypes.c_uint32()
    if loader.clGetPlatformIDs(0, None, ctypes.byref(count)) != 0 or count.value == 0:
        return Finding(
            False,
            "loader, but no platform",
            "install a driver (Debian: apt install pocl-opencl-icd)",
        )
    found = f"{count.value} platform(s)"
    if importlib.util.find_spec("pyopencl") is None:
        return Finding(False, found, "pip install 'relaxpy[opencl]'")
    return no_code_path("opencl", found)


def probe_vulkan() -> Finding:
    """Look for Vulkan's loader and the package that launches on it."""
    if load_first("libvulkan.so.1", "vulkan-1.dll", "libvulkan.dylib") is None:
        return Finding(
            False,
            "no Vulkan loader",
            "install a driver (on a plain CPU, Debian: apt install mesa-vulkan-drivers)",
        )
    if importlib.util.find_spec("wgpu") is None:
        return Finding(False, "loader", "pip install 'relaxpy[wgpu]'")
    return no_code_path("vulkan", "loader and wgpu")


def probe_webgpu() -> Finding:
    """Look for a browser, or for wgpu to run natively."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    browser = next((name for name in names if shutil.which(name)), None)
    native = importlib.util.find_spec("wgpu") is not None
    if browser is None and not native:
        return Finding(
            False,
            "no browser, no wgpu",
            "install chromium, or natively: pip install 'relaxpy[wgpu]'",
        )
    return no_code_path("webgpu", browser or "wgpu")


def probe_metal() -> Finding:
    """Metal exists on macOS only."""
    if sys.platform != "darwin":
        return Finding(False, f"this is {sys.platform}", "needs a Mac")
    return no_code_path("metal", "macOS")


PROBES: dict[str, Callable[[], Finding]] = {
    "llvm": probe_llvm,
    "cuda": probe_cuda,
    "opencl": probe_opencl,
    "vulkan": probe_vulkan,
    "webgpu": probe_webgpu,
    "metal": probe_metal,
}

if __name__ == "__main__":
    click.echo(json.dumps(asdict(PROBES[sys.argv[1]]())))
