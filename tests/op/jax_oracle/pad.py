"""Borders in jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.lax
import jax.numpy as jnp


def _pad(op: Any, x: Any) -> Any:
    widths = list(zip(op.pad_width[::2], op.pad_width[1::2], strict=True))
    if not widths:
        return x
    if min(op.pad_width) < 0:
        return jax.lax.pad(x, x.dtype.type(op.pad_value), [(*width, 0) for width in widths])
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    constant = {"constant_values": op.pad_value} if op.pad_mode == "constant" else {}
    return jnp.pad(x, widths, modes[op.pad_mode], **constant)


JAX: dict[str, Callable[..., Any]] = {"nn.pad": _pad}
