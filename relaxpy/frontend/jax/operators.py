"""All files of operators: importing them fills the table."""

from __future__ import annotations

import importlib
from functools import cache

FILES = (
    "operators_control",
    "operators_elementwise",
    "operators_index",
    "operators_linear",
    "operators_random",
    "operators_reduce",
    "operators_shape",
    "operators_window",
)


@cache
def load_operators() -> None:
    """Fill the table."""
    for name in FILES:
        importlib.import_module(f"relaxpy.frontend.jax.{name}")
