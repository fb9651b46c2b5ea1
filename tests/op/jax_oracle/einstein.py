"""Einstein summation in jax, narrow floats in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp


def _einsum(op: Any, operands: Any) -> Any:
    dtype = operands[0].dtype
    wide = [x.astype("float32") if dtype in ("float16", "bfloat16") else x for x in operands]
    return jnp.einsum(op.subscripts, *wide).astype(dtype)


JAX: dict[str, Callable[..., Any]] = {"einsum": _einsum}
