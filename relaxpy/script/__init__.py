"""The script language: parsing decorated Python to IR (`parser*.py`), and printing IR as TVMScript (`printer.py`).

    from relaxpy.script import ir as I, relax as R, tir as T

`I`, `R` and `T` are ordinary modules; importing them imports neither the parser nor the compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relaxpy.script.parser import parse as parse

__all__ = ["parse"]


def __getattr__(name: str) -> Any:
    if name == "parse":
        from relaxpy.script.parser import parse

        return parse
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
