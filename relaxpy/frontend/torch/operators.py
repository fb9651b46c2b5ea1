"""All files of operators: importing them fills the table."""

from __future__ import annotations

import importlib
from functools import cache

FILES = (
    "operators_attention",
    "operators_compile",
    "operators_control",
    "operators_elementwise",
    "operators_index",
    "operators_linalg",
    "operators_linear",
    "operators_norm",
    "operators_pool",
    "operators_random",
    "operators_recurrent",
    "operators_reduce",
    "operators_resample",
    "operators_shape",
    "operators_sizes",
)


@cache
def load_operators() -> None:
    """Fill the table."""
    for name in FILES:
        importlib.import_module(f"relaxpy.frontend.torch.{name}")
