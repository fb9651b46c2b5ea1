"""Modules of torch, compiled: `relaxpy.compile` and `load`.

    compiled = relaxpy.compile(model, x)     # one build for all sizes
    y = compiled(x)                          # torch tensors in, torch tensors out
    compiled.save("model.rxe")
    compiled = relaxpy.torch.load("model.rxe")

    fast = torch.compile(model, backend="relaxpy")

`relaxpy.frontend.torch` makes the IR; this package builds and runs it. Loading and running need torch for its tensors
only: no operator of torch is called.
"""

from typing import NoReturn

import relaxpy
from relaxpy.errors import did_you_mean
from relaxpy.torch.compiled import CompiledModule as CompiledModule
from relaxpy.torch.compiled import compile as compile
from relaxpy.torch.dynamo import backend as backend
from relaxpy.torch.kept_weights import refresh as refresh
from relaxpy.torch.report import report as report
from relaxpy.torch.saved import load as load

__all__ = ["CompiledModule", "backend", "compile", "load", "refresh", "report"]


def __getattr__(name: str) -> NoReturn:
    hint = ""
    if not name.startswith("_"):
        near = did_you_mean(name, __all__)
        hint = (
            f": did you mean relaxpy.{name}?"
            if name in relaxpy.__all__
            else f": {near}" * bool(near)
        )
    raise AttributeError(f"module 'relaxpy.torch' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted(__all__)
