"""The namespace I: the module.

    from relaxpy.script import ir as I

It has the decorator of modules, and declares their attributes, global information and external functions.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from relaxpy.errors import ScriptError
from relaxpy.ir.expr import ExternFunc
from relaxpy.ir.module import IRModule
from relaxpy.ir.vdevice import VDevice
from relaxpy.script.dialects.older_words import I_NAMES


def ir_module(cls: Any = None, **options: Any) -> Any:
    """Decorator that makes a module of a class of functions: `@I.ir_module`, above `class Module: …`."""
    del options  # parsed from the source
    if cls is None:
        return ir_module
    from relaxpy.script.parser import parse_decorated_class

    module: IRModule = parse_decorated_class(cls, sys._getframe(1))
    return module


def module_attrs(attrs: dict[str, Any], allow_overwrite: bool = False) -> None:
    """Attributes of the module: `I.module_attrs({"key": 1})`. Parsed from the source; a call by Python does nothing."""


def module_global_infos(infos: dict[str, list[Any]]) -> None:
    """Global information, e.g. virtual devices: `I.module_global_infos({"vdevice": [I.vdevice("llvm", 0)]})`."""


def metadata(data: dict[str, str] | str) -> dict[str, str] | str:
    """The data of a text's large constants by name, or the `.npz` file beside it with the data: the target of
    `R.const_ref(…)`. `script` writes `metadata = I.metadata({…})` after the program."""
    return data


def vdevice(target: Any = "llvm", device: int = 0, memory_scope: str = "global") -> VDevice:
    """A virtual device: `I.vdevice("llvm", 0)`. The target is a text, or a dict of its options."""
    target, device, scope = map(_plain, (target, device, memory_scope))
    text = _target_text(target) if isinstance(target, dict) else target
    if not isinstance(text, str) or not text.strip():
        raise ScriptError(
            "device-name",
            f"the target of a virtual device is a text or a dict, got {target!r}",
            help='write I.vdevice("llvm", 0)',
        ).about("target")
    if not isinstance(device, int) or isinstance(device, bool) or device < 0:
        raise ScriptError("device-name", f"a device has a number from 0 up, got {device!r}").about(
            "device"
        )
    if not isinstance(scope, str) or not re.fullmatch(r"[^:\s]+", scope):
        raise ScriptError(
            "device-name", f'a memory scope is a word such as "global", got {scope!r}'
        ).about("memory_scope")
    return VDevice(text, device, scope)


def _plain(value: Any) -> Any:
    """The Python value of a literal."""
    value = getattr(value, "value", value)
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


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
    """Name a value at parse time, without a binding: `y = I.meta_var(x)`."""
    return value


def extern(symbol: str, name: str | None = None) -> ExternFunc:
    """A library function as a function of the module: `f = I.extern("library.f")`. `name` is its global name, if that
    is no Python name."""
    del name  # parsed from the source
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
