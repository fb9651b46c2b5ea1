"""Programs of JAX as IR: `from_jax`.

`tracing` makes a jaxpr of a function, `sizes` reads its symbolic dimensions, `weights` finds the names of arrays that
the function holds, and `importer` walks the jaxpr with the table of primitives (`operators_*`). Only this package and
`relaxpy.jax` import jax, inside functions, when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relaxpy.frontend.jax.importer import Imported as Imported
    from relaxpy.frontend.jax.importer import from_jax as from_jax
    from relaxpy.frontend.jax.importer import import_function as import_function

__all__ = ["Imported", "from_jax", "import_function"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Load the importer when it is used: a process that runs a compiled function reads its signature only."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("relaxpy.frontend.jax.importer"), name)
