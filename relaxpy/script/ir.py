"""The namespace I: the module.

from relaxpy.script import ir as I
"""

from __future__ import annotations

import json
import sys
from typing import Any

from relaxpy.ir.expr import ExternFunc
from relaxpy.ir.module import IRModule, VDevice
from relaxpy.script.dialects.older_words import I_NAMES


def ir_module(cls: Any = None, **options: Any) -> Any:
    """Make a module of a class of functions: `@I.ir_module`, above `class Module: …`."""
    del options  # read from the source
    if cls is None:
        return ir_module
    from relaxpy.script.parser import parse_decorated_class

    module: IRModule = parse_decorated_class(cls, sys._getframe(1))
    return module


def module_attrs(attrs: dict[str, Any], allow_overwrite: bool = False) -> None:
    """Attributes of the module: `I.module_attrs({"key": 1})`. Read from the source; run by Python it does
    nothing."""


def module_global_infos(infos: dict[str, list[Any]]) -> None:
    """Global information, e.g. virtual devices: `I.module_global_infos({"vdevice": ["cpu:0"]})`."""


def metadata(data: dict[str, str] | str) -> dict[str, str] | str:
    """The data of a text's large constants, by name, or the `.npz` file beside it that has them: what
    `R.const_ref(…)` refers to. `metadata = I.metadata({…})` stands after the program, where `script` writes it."""
    return data


def vdevice(target: Any = "llvm", device: int = 0, memory_scope: str = "global") -> VDevice:
    """A virtual device: `I.vdevice("llvm", 0)`; the target is a text, or a dict of its options."""
    text = _target_text(target) if isinstance(target, dict) else str(target)
    return VDevice(text, int(device), str(memory_scope))


def _target_text(target: dict[str, Any]) -> str:
    """A target's options as a text: `{"kind": "llvm", "mcpu": "znver4"}` is `llvm -mcpu=znver4`."""
    options = {name: value for name, value in target.items() if name != "kind"}
    plain = all(
        isinstance(value, (str, int)) and " " not in str(value) for value in options.values()
    )
    if "kind" not in target or not plain:
        return json.dumps(target, sort_keys=True)
    return " ".join([str(target["kind"]), *(f"-{name}={value}" for name, value in options.items())])


def meta_var(value: Any) -> Any:
    """A name for a value while the script is read, without a binding: `y = I.meta_var(x)`."""
    return value


def extern(symbol: str, name: str | None = None) -> ExternFunc:
    """A function of the module that a library brings: `f = I.extern("library.f")`. `name` is its global name where that
    is no Python name."""
    del name  # read from the source
    return ExternFunc(str(symbol))


def __getattr__(name: str) -> Any:
    if name in I_NAMES:
        return I_NAMES[name]
    raise AttributeError(f"I has no {name!r}")


__all__ = [
    "extern",
    "ir_module",
    "meta_var",
    "metadata",
    "module_attrs",
    "module_global_infos",
    "vdevice",
]
