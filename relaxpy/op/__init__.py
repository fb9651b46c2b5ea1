"""The operators: one class each (`relaxpy.op.base` describes such a class), grouped by subject into the files of this
package.

`relaxpy.op.matmul(x, w)` and `relaxpy.op.nn.softmax(x)` each make a call of an operator. They take its arguments, then
its attributes, as `R.matmul` does in script. `OPS` maps names to operators. `call_tir` and the other cross-level calls
are in `relaxpy.op.call`; memory and VM instructions are in `relaxpy.op.memory`.

Nothing is listed here: importing this package imports its files, and names are looked up in `OPS`. `make stubs` writes
`__init__.pyi` and the stubs beside it, for editors and type checkers, from the same table.
"""

from __future__ import annotations

import importlib
import pkgutil
import types
from typing import Any

from relaxpy.op.base import OPS, Op
from relaxpy.op.call import call_dps_library, call_packed, call_pure_packed, call_tir
from relaxpy.op.function import functions, member, names_below

_LATER = ("block_builder", "indexing")
"""Files that define no operator and are imported by those who need them."""

for _file in pkgutil.iter_modules(__path__):
    if _file.name not in _LATER:
        importlib.import_module(f"{__name__}.{_file.name}")


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = member(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *names_below("", functions())})


__all__ = ["OPS", "Op", "call_dps_library", "call_packed", "call_pure_packed", "call_tir"]
__all__ += names_below("", functions())  # pyright: ignore[reportUnsupportedDunderAll]  # from the table

for _name in {name.rpartition(".")[2] for name in functions() if "." in name}:
    if isinstance(globals().get(_name), types.ModuleType):
        del globals()[_name]  # the file softmax.py: the operator is `nn.softmax`

for _name in names_below("", functions()):
    if _name not in OPS or isinstance(globals().get(_name), types.ModuleType):
        __getattr__(_name)  # a namespace, or an operator that has the name of its file
