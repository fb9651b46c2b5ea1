"""relaxpy: Relax in readable Python.

The names below are the public interface. They are loaded at first use: `import relaxpy` takes milliseconds, and imports
neither the compiler (tvm) nor the runtime's foreign function library (tvm_ffi). A process that only runs an executable
never loads the compiler.

    import relaxpy

    exe = relaxpy.build(relaxpy.parse(text), target="llvm")
    vm = relaxpy.VirtualMachine(exe)
    vm["main"](x)
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from relaxpy import services
from relaxpy.errors import RelaxError, did_you_mean
from relaxpy.version import __version__

if TYPE_CHECKING:
    from relaxpy.build import build as build
    from relaxpy.build.derivatives import grad as grad
    from relaxpy.build.derivatives import jvp as jvp
    from relaxpy.build.derivatives import value_and_grad as value_and_grad
    from relaxpy.build.derivatives import vjp as vjp
    from relaxpy.frontend.jax import from_jax as from_jax
    from relaxpy.frontend.onnx import from_onnx as from_onnx
    from relaxpy.frontend.torch import from_torch as from_torch
    from relaxpy.ir import IRModule as IRModule
    from relaxpy.ir.structural import assert_structural_equal as assert_structural_equal
    from relaxpy.ir.structural import structural_equal as structural_equal
    from relaxpy.ir.structural import structural_hash as structural_hash
    from relaxpy.op.block_builder import BlockBuilder as BlockBuilder
    from relaxpy.runtime import Device as Device
    from relaxpy.runtime import Executable as Executable
    from relaxpy.runtime import Shape as Shape
    from relaxpy.runtime import Tensor as Tensor
    from relaxpy.runtime import VirtualMachine as VirtualMachine
    from relaxpy.runtime import cpu as cpu
    from relaxpy.runtime import load as load
    from relaxpy.runtime import num_threads as num_threads
    from relaxpy.runtime import register_function as register_function
    from relaxpy.runtime import register_library as register_library
    from relaxpy.runtime import set_num_threads as set_num_threads
    from relaxpy.script import parse as parse
    from relaxpy.target import Target as Target
    from relaxpy.torch import compile as compile

_PUBLIC = {
    "BlockBuilder": "relaxpy.op.block_builder",
    "Device": "relaxpy.runtime",
    "Executable": "relaxpy.runtime",
    "IRModule": "relaxpy.ir",
    "Shape": "relaxpy.runtime",
    "Target": "relaxpy.target",
    "Tensor": "relaxpy.runtime",
    "VirtualMachine": "relaxpy.runtime",
    "assert_structural_equal": "relaxpy.ir.structural",
    "build": "relaxpy.build",
    "checkpoint": "relaxpy.build.derivatives",
    "compile": "relaxpy.torch",
    "cpu": "relaxpy.runtime",
    "from_jax": "relaxpy.frontend.jax",
    "from_onnx": "relaxpy.frontend.onnx",
    "from_torch": "relaxpy.frontend.torch",
    "grad": "relaxpy.build.derivatives",
    "jvp": "relaxpy.build.derivatives",
    "load": "relaxpy.runtime",
    "num_threads": "relaxpy.runtime",
    "parse": "relaxpy.script",
    "register_function": "relaxpy.runtime",
    "register_library": "relaxpy.runtime",
    "set_num_threads": "relaxpy.runtime",
    "structural_equal": "relaxpy.ir.structural",
    "structural_hash": "relaxpy.ir.structural",
    "value_and_grad": "relaxpy.build.derivatives",
    "vjp": "relaxpy.build.derivatives",
}
"""Public name → module that defines it."""

_PROVIDERS = {
    "bytes_moved": "relaxpy.tir.recognise.cost",
    "call_function": "relaxpy.build.first_call",
    "call_module": "relaxpy.build.first_call",
    "flops": "relaxpy.tir.recognise.cost",
    "gradient": "relaxpy.build.derivatives",
    "function_of_module": "relaxpy.build.first_call",
    "html": "relaxpy.script.highlight",
    "load_transcriber": "relaxpy.speech.load",
    "print_annotation": "relaxpy.script.printer",
    "print_function": "relaxpy.script.printer",
    "print_module": "relaxpy.script.printer",
    "prove": "relaxpy.shape.prove",
    "read_target": "relaxpy.backend.registry",
    "show": "relaxpy.script.highlight",
    "read_before_written": "relaxpy.tir.recognise.unset",
    "types_of_module": "relaxpy.build.data_types",
    "unset_outputs": "relaxpy.tir.recognise.unset",
    "work": "relaxpy.tir.recognise.cost",
}
"""Service of the IR's nodes → module that implements it."""

for _name, _module in _PROVIDERS.items():
    services.SERVICES[_name].provided_by(_module)

_PACKAGES = (
    "analysis", "backend", "ir", "jax", "llm", "nn", "onnx", "op", "runtime", "script", "serve", "shape", "speech",
    "testing", "tir", "torch", "train", "transform", "vision",
)  # fmt: skip
"""Packages available as attributes (`relaxpy.op.add`) without an explicit import."""

__all__ = ["RelaxError", "__version__", *_PUBLIC]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
        globals()[name] = value
        return value
    if name in _PACKAGES:
        return importlib.import_module(f"relaxpy.{name}")
    if name.startswith("__"):  # asked for by tools, which do not read hints
        raise AttributeError(f"module 'relaxpy' has no attribute {name!r}")
    hint = _INSTEAD.get(name, "")
    if not hint and (near := did_you_mean(name, [*_PUBLIC, *_PACKAGES])):
        hint = f": {near}"
    raise AttributeError(f"module 'relaxpy' has no attribute {name!r}{hint}")


_INSTEAD = {
    "run": ': relaxpy.VirtualMachine(relaxpy.build(module))["main"](…), or module.main(…)',
    "function": ": from relaxpy.script import relax as R; @R.function",
    "ir_module": ": from relaxpy.script import ir as I; @I.ir_module",
    **dict.fromkeys(
        ("from_exported_program", "frontend", "export", "jit", "trace"),
        ": write the model with relaxpy.nn, and load its weights: model.load_state_dict(theirs.state_dict()); "
        "docs/from_pytorch.md has both side by side",
    ),
    **dict.fromkeys(("tensor", "array", "from_numpy", "asarray"), ": pass numpy arrays directly"),
    **dict.fromkeys(("R", "I", "T"), ": from relaxpy.script import ir as I, relax as R, tir as T"),
}
"""Names in other frameworks → hint with the equivalent here."""


def __dir__() -> list[str]:
    """The public names and packages."""
    return sorted({*__all__, *_PACKAGES, *(name for name in globals() if name.startswith("__"))})


class _Package(ModuleType):
    """Keeps `relaxpy.build` a function: importing the package of that name would replace it."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _PUBLIC and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
