"""All files of operators: importing them fills the table."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache


@cache
def load_operators() -> None:
    """Fill the table."""
    import relaxpy.frontend.onnx as package

    for file in pkgutil.iter_modules(package.__path__):
        if file.name.startswith("operators_"):
            importlib.import_module(f"relaxpy.frontend.onnx.{file.name}")
