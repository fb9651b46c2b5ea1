"""The probes of `relaxpy doctor`. Each target is tested in its own process, since a broken driver or library may crash
it.

`python -m relaxpy.cli.probe TARGET` prints one JSON object, the fields of `Finding`. A probe reports the state of this
machine; it supports no more than `relaxpy.build` does.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import click
import numpy as np

import relaxpy
from relaxpy.backend.registry import backends
from relaxpy.errors import RelaxError
from relaxpy.runtime.devices.registry import runtime_class, runtime_of

PROGRAM = """
@I.ir_module
class Probe:
    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        y = R.add(x, x)
        return y
"""
"""A minimal program with a symbolic shape: one kernel."""


@dataclass(frozen=True)
class Finding:
    """The outcome of a probe."""

    works: bool
    found: str
    """The processor, driver and devices that were found."""
    advice: str = ""
    """The missing part and how to get it; empty if nothing is missing."""


def probe_backend(kind: str) -> Finding:
    """Compiles `PROGRAM` for targets of a kind, runs it at two sizes, and checks the results."""
    found = kind
    try:
        target = relaxpy.Target.parse(kind)
        found = str(target)
        exe = relaxpy.build(relaxpy.parse(PROGRAM), target=target)
        if not target.is_host_loadable:
            return Finding(False, found, "it is compiled for, but does not run here")
        vm = relaxpy.VirtualMachine(exe)
        for n in (3, 1000):
            x = np.arange(n, dtype=np.float32)
            if not np.array_equal(vm["main"](x).numpy(), x + x):
                return Finding(
                    False, found, "a kernel ran and its numbers are wrong: please report this"
                )
    except RelaxError as error:
        return Finding(False, found, f"compiling or running a kernel failed: {error.message}")
    return Finding(True, found)


def probe_llvm() -> Finding:
    """The CPU of this machine."""
    finding = probe_backend("llvm")
    if not finding.works:
        return finding
    name = relaxpy.Target.host().facts()["mcpu"]
    return replace(finding, found=f"{name}, {relaxpy.num_threads()} threads")


def no_code_path(kind: str, found: str) -> Finding:
    """The finding for targets that this version of relaxpy cannot compile for, on any machine."""
    return Finding(False, found, f"this version of relaxpy does not compile for {kind}")


def load_first(*names: str) -> ctypes.CDLL | None:
    """The first of the shared libraries that can be loaded."""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def probe_cuda() -> Finding:
    """Asks NVIDIA's driver for its devices."""
    driver = load_first("libcuda.so.1", "nvcuda.dll")
    if driver is None:
        return no_code_path("cuda", "no NVIDIA driver")
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return no_code_path("cuda", "driver, but no device")
    return no_code_path("cuda", f"driver and {count.value} device(s)")


def probe_opencl() -> Finding:
    """The first OpenCL device, and the names of all devices."""
    try:
        runtime_of("opencl", 0)
    except RelaxError as error:
        return Finding(False, error.message, error.help or "")
    finding = probe_backend("opencl")
    return replace(finding, found="; ".join(runtime_class("opencl").devices()))


def probe_vulkan() -> Finding:
    """Looks for Vulkan's loader."""
    found = load_first("libvulkan.so.1", "vulkan-1.dll", "libvulkan.dylib")
    return no_code_path("vulkan", "no Vulkan loader" if found is None else "loader")


def probe_webgpu() -> Finding:
    """Looks for a browser."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    browser = next((name for name in names if shutil.which(name)), None)
    return no_code_path("webgpu", browser or "no browser")


def probe_metal() -> Finding:
    """Metal exists on macOS only."""
    return no_code_path("metal", "macOS" if sys.platform == "darwin" else f"this is {sys.platform}")


PROBES: dict[str, Callable[[], Finding]] = {
    "llvm": probe_llvm,
    "cuda": probe_cuda,
    "opencl": probe_opencl,
    "vulkan": probe_vulkan,
    "webgpu": probe_webgpu,
    "metal": probe_metal,
}

if __name__ == "__main__":
    name = sys.argv[1]
    installed = {each.kind for each in backends() if each.package}
    known = name in PROBES and name not in installed
    click.echo(json.dumps(asdict(PROBES[name]() if known else probe_backend(name))))
