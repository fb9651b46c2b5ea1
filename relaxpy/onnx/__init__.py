"""ONNX models in place of ONNX Runtime: `InferenceSession` and what programs use beside it.

    session = relaxpy.onnx.InferenceSession("model.onnx")      # one build for all sizes
    (y,) = session.run(None, {"x": x})

`relaxpy.frontend.onnx` makes the IR; this package builds and runs it. `patch()` stands in for the package onnxruntime
in programs that import it. `export` writes a program as an ONNX file.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from relaxpy.onnx.errors import Fail as Fail
from relaxpy.onnx.errors import InvalidArgument as InvalidArgument
from relaxpy.onnx.errors import InvalidGraph as InvalidGraph
from relaxpy.onnx.errors import InvalidProtobuf as InvalidProtobuf
from relaxpy.onnx.errors import NoSuchFile as NoSuchFile
from relaxpy.onnx.errors import NotImplemented as NotImplemented
from relaxpy.onnx.options import ExecutionMode as ExecutionMode
from relaxpy.onnx.options import ExecutionOrder as ExecutionOrder
from relaxpy.onnx.options import GraphOptimizationLevel as GraphOptimizationLevel
from relaxpy.onnx.options import RunOptions as RunOptions
from relaxpy.onnx.options import SessionOptions as SessionOptions
from relaxpy.onnx.options import __version__ as __version__
from relaxpy.onnx.options import disable_telemetry_events as disable_telemetry_events
from relaxpy.onnx.options import enable_telemetry_events as enable_telemetry_events
from relaxpy.onnx.options import get_all_providers as get_all_providers
from relaxpy.onnx.options import get_available_providers as get_available_providers
from relaxpy.onnx.options import get_device as get_device
from relaxpy.onnx.options import set_default_logger_severity as set_default_logger_severity
from relaxpy.onnx.options import set_default_logger_verbosity as set_default_logger_verbosity
from relaxpy.onnx.options import set_seed as set_seed
from relaxpy.onnx.patching import patch as patch
from relaxpy.onnx.session import InferenceSession as InferenceSession
from relaxpy.onnx.session import ModelMetadata as ModelMetadata
from relaxpy.onnx.session import NodeArg as NodeArg
from relaxpy.onnx.values import IOBinding as IOBinding
from relaxpy.onnx.values import OrtValue as OrtValue

if TYPE_CHECKING:
    from relaxpy.onnx.exporter import export as export

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "Fail",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelMetadata",
    "NoSuchFile",
    "NodeArg",
    "NotImplemented",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "export",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "patch",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]


def __getattr__(name: str) -> Any:
    if name != "export":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("relaxpy.onnx.exporter").export  # a session needs no operators


def __dir__() -> list[str]:
    return sorted(__all__)
