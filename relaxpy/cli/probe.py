"""The probes of `relaxpy doctor`. Each target is tested in its own process, since a broken driver or library may crash
it.

`python -m relaxpy.cli.probe TARGET` prints one JSON object, the fields of `Finding`. A probe reports the state of this
machine; it supports no more than `relaxpy.build` does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial

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


def probe_device(kind: str) -> Finding:
    """The first device of a kind, and the names of all devices."""
    try:
        runtime_of(kind, 0)
    except RelaxError as error:
        return Finding(False, error.message, error.help or "")
    finding = probe_backend(kind)
    return replace(finding, found="; ".join(runtime_class(kind).devices()))


PROBES: dict[str, Callable[[], Finding]] = {
    "llvm": probe_llvm,
    "cuda": partial(probe_device, "cuda"),
    "opencl": partial(probe_device, "opencl"),
    "vulkan": partial(probe_device, "vulkan"),
    "webgpu": partial(probe_device, "webgpu"),
    "metal": partial(probe_device, "metal"),
}

if __name__ == "__main__":
    name = sys.argv[1]
    installed = {each.kind for each in backends() if each.package}
    known = name in PROBES and name not in installed
    click.echo(json.dumps(asdict(PROBES[name]() if known else probe_backend(name))))
