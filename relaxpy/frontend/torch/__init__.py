"""Programs of torch as IR: `from_torch`.

`export` traces a module, `decomposition` keeps the operators that are known as a whole, `signature` says what goes in
and out, `sizes` and `guards` what is known of the sizes, and `importer` walks the graph with the table of operators
(`operators_*`). Only this package and `relaxpy.torch` import torch, inside functions, when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relaxpy.frontend.torch.importer import Imported as Imported
    from relaxpy.frontend.torch.importer import from_torch as from_torch
    from relaxpy.frontend.torch.importer import import_program as import_program

__all__ = ["Imported", "from_torch", "import_program"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Load the importer when it is used: a process that runs a compiled module reads its signature only."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("relaxpy.frontend.torch.importer"), name)
