"""Test tools, also for users who write operators and passes: `check_op`, `check_grads`, `check_pass`, the reference
interpreter, single kernels, random programs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relaxpy.testing.grad_check import check_grads as check_grads
    from relaxpy.testing.op_check import check_op as check_op
    from relaxpy.testing.pass_check import check_pass as check_pass

_PUBLIC = {"check_grads": "grad_check", "check_op": "op_check", "check_pass": "pass_check"}
"""Public name → file that defines it; loaded at first use."""

__all__ = list(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
