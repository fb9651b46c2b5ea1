"""Whether there is an OpenCL device for tests."""

from __future__ import annotations

import os

import pytest

# The driver's compiled kernels are kept where it likes; pyopencl's own cache of the same is not needed.
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")


def no_device() -> str:
    """Why tests on a device are skipped, or ""."""
    try:
        import pyopencl  # noqa: F401
    except ImportError:
        return "pyopencl is not installed: pip install 'relaxpy[opencl]'"
    from relaxpy.runtime.devices.opencl.device import OpenCLRuntime

    return "" if OpenCLRuntime.devices() else "there is no OpenCL device"


needs_opencl = pytest.mark.skipif(bool(no_device()), reason=no_device())
