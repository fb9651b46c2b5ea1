"""ONNX models as IR: `from_onnx`.

`model` reads files, protobuf and text, `graph` makes plain data of it, `importer` walks the nodes with the table of
operators (`operators_*`), `branches` decides branches, `contents` knows which integer tensors are sizes, and
`functions` finds the bodies of operators that are functions. Only this package and `relaxpy.onnx` import onnx, inside
functions, when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relaxpy.frontend.onnx.importer import Imported as Imported
    from relaxpy.frontend.onnx.importer import from_onnx as from_onnx
    from relaxpy.frontend.onnx.importer import import_model as import_model

__all__ = ["Imported", "from_onnx", "import_model"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Load the importer when it is used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("relaxpy.frontend.onnx.importer"), name)
