"""relaxpy in place of onnxruntime, in programs that import that."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

from relaxpy.errors import UsageError


def patch() -> None:
    """From now on, `import onnxruntime` gives `relaxpy.onnx`. What it does not have is an error, never the other one.

    Raises: UsageError (`onnx-session`) if onnxruntime is imported already.
    """
    ours = importlib.import_module("relaxpy.onnx")
    if sys.modules.get("onnxruntime", ours) is not ours:
        raise UsageError(
            "onnx-session",
            "onnxruntime is imported already, so programs may hold its sessions",
            help="call relaxpy.onnx.patch() before anything imports onnxruntime",
        )
    capi: Any = types.ModuleType("onnxruntime.capi")
    capi.__path__ = []
    capi.onnxruntime_pybind11_state = importlib.import_module("relaxpy.onnx.errors")
    setattr(ours, "capi", capi)  # noqa: B010  # programs read onnxruntime.capi
    sys.modules["onnxruntime"] = ours
    sys.modules["onnxruntime.capi"] = capi
    sys.modules["onnxruntime.capi.onnxruntime_pybind11_state"] = capi.onnxruntime_pybind11_state
