"""Names of virtual devices in a script: each means a device of the module that is being parsed (`relaxpy.ir.vdevice`).

The IR has complete names only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from relaxpy.errors import ScriptError, UsageError
from relaxpy.ir.expr import Call, StringImm
from relaxpy.ir.vdevice import TABLE, VDevice, find
from relaxpy.op.device import ToVDevice
from relaxpy.op.memory import AllocStorage, AllocTensor, CopyTo
from relaxpy.script.describe import describe

_table: ContextVar[tuple[VDevice, ...]] = ContextVar("_table", default=())
"""The virtual devices of the module that is being parsed."""


@contextmanager
def virtual_devices(table: Sequence[VDevice]) -> Iterator[None]:
    """Parse with these virtual devices."""
    token = _table.set(tuple(table))
    try:
        yield
    finally:
        _table.reset(token)


def device_name(value: Any, arg: str = "vdevice") -> str:
    """The complete name of the virtual device that a script names.

    Raises: ScriptError (`device-name`, `bad-annotation`), about the argument `arg`.
    """
    value = value.value if isinstance(value, StringImm) else value
    if isinstance(value, VDevice):
        return str(value)
    if not isinstance(value, str):
        raise ScriptError(
            "bad-annotation",
            f"{arg} names a virtual device of the module, got {describe(value)}",
            help=f'write {arg}="llvm:0"',
        ).about(arg)
    try:
        return str(find(value, _table.get()))
    except UsageError as error:
        raise ScriptError(error.code, error.message, help=error.help).about(arg) from None


def numbered_device(number: int) -> str | None:
    """The complete name of entry `number` of the module's table; -1 is the host, as in TVM. None for 0 in a module
    without a table: the device that it is built for. Raises: ScriptError (`device-name`)."""
    if number == -1:
        return str(VDevice("llvm"))
    return device_name(f"{TABLE}:{number}") if number or _table.get() else None


def named(value: Any) -> Any:
    """The name of a virtual device; other values as they are."""
    return str(value) if isinstance(value, VDevice) else value


_FIELDS: dict[type[Any], str] = {
    ToVDevice: "dst_vdevice",
    CopyTo: "vdevice",
    AllocTensor: "vdevice",
    AllocStorage: "vdevice",
}
"""Operator → the attribute that names a virtual device."""


def with_device(value: Any) -> Any:
    """The value of a call in a script, with the complete name of the device that it names. Raises: ScriptError."""
    if not isinstance(value, Call):
        return value
    operator: Any = value.op
    field = _FIELDS.get(type(operator))
    given = None if field is None else getattr(operator, field)
    if field is None or given is None:
        return value
    name = device_name(given, field)
    return value if name == given else replace(value, op=replace(operator, **{field: name}))
