"""The vocabulary of `legalize`: tensor expressions (`relaxpy.tir.te`), functions of one element
(`relaxpy.tir.numerics.scalar`), statements for every row (`relaxpy.tir.programs.rows`), and access to the arguments'
dimensions. Loaded at first use, so that importing the operators does not import TVM."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from relaxpy.errors import did_you_mean
from relaxpy.ir.annotation import PrimType
from relaxpy.ir.dim import Dim
from relaxpy.ir.known import KnownShape

if TYPE_CHECKING:
    from relaxpy.tir.numerics.scalar import *  # noqa: F403
    from relaxpy.tir.programs.rows import cell as cell
    from relaxpy.tir.programs.rows import known as known
    from relaxpy.tir.programs.rows import rows as rows
    from relaxpy.tir.programs.rows import scratch as scratch
    from relaxpy.tir.programs.serial import serial as serial
    from relaxpy.tir.te import *  # noqa: F403


def _modules() -> tuple[ModuleType, ...]:
    from relaxpy.tir import te
    from relaxpy.tir.numerics import scalar
    from relaxpy.tir.programs import rows, serial

    return scalar, te, rows, serial


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    for module in _modules():
        if hasattr(module, name):
            return getattr(module, name)
    hint = did_you_mean(name, __dir__(), "te.{}".format) or "dir(te) lists what there is"
    raise AttributeError(f"te has no {name!r}: {hint}")


def __dir__() -> list[str]:
    """The functions for `legalize`, those of this file included."""
    own = (dims, scalar_dim, broadcast)
    found = {f.__name__ for f in own}
    for module in _modules():
        made_here = (n for n, v in vars(module).items() if _defines(module, v))
        found.update(n for n in made_here if not n.startswith("_"))
    return sorted(found)


def _defines(module: ModuleType, value: Any) -> bool:
    return getattr(value, "__module__", "") == module.__name__


def dims(value: Any) -> tuple[Dim, ...]:
    """The dimensions of a tensor, in the symbols of its annotation; or those of a shape argument."""
    if isinstance(value, KnownShape):
        return value.dims
    if isinstance(value, (tuple, list)):
        return tuple(map(Dim.of, value))
    from relaxpy.tir.analyzer import VarTable

    table = VarTable(shared=True)
    return tuple(map(table.to_dim, value.shape))


def scalar_dim(value: Any) -> Any:
    """An integer scalar argument as an index expression."""
    from relaxpy.tir import te

    return te.dim(value.value if isinstance(value, PrimType) else value)


def broadcast(x: Any, out: Sequence[Dim], index: Sequence[Any]) -> Any:
    """The element of `x` for element `index` of a result of shape `out`, by numpy's broadcasting."""
    from relaxpy.tir import te

    return x(*te.broadcast_index(dims(x), out, index))
