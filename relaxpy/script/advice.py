"""Equivalents of Python's and other libraries' functions, for the help line of the parser's errors."""

from __future__ import annotations

import builtins
from contextlib import suppress

from relaxpy.errors import RelaxError
from relaxpy.ir.dtype import DType
from relaxpy.op.familiar import advice
from relaxpy.script import relax as namespace_r

LIBRARIES = frozenset(
    {"F", "cp", "cupy", "jax", "jnp", "math", "nn", "np", "numpy", "scipy", "tf", "torch"}
)
"""Names by which users refer to other libraries."""

_OTHERS = {
    "assert": "write R.assert_op(condition)",
    "device": "the target of the build chooses the device",
    "dtype": 'its annotation has the dtype: R.Tensor((n, 4), "float32")',
    "len": "its annotation has the sizes: n of R.Tensor((n, 4))",
    "max": "write R.max(x), or R.maximum(a, b)",
    "min": "write R.min(x), or R.minimum(a, b)",
    "ndim": "its annotation has the rank: R.Tensor((n, 4)) has 2 dimensions",
    "pow": "write a ** b",
    "print": 'write R.print(x, format="x = {}"), in a function with pure=False',
    "range": "write R.arange(n)",
    "shape": "use the symbolic variables of its annotation: (n, 4)",
    "size": "use the symbolic variables of its annotation: n * 4",
}
"""Python's functions, and attributes, that scripts have another way for."""


OF_SEVERAL_WORKERS = frozenset({"DTensor", "ccl", "device_mesh", "dist", "distributed"})
"""TVM's names after `R.` for programs that are spread over several workers."""


def instead_of(name: str) -> str:
    """The help line for a user who wrote `name`: a Python function, or a function or attribute of another library."""
    if name in _OTHERS:
        return _OTHERS[name]
    known = advice(name, "R.")
    if known is not None:
        return known
    same = like(name)
    if same is not None:
        return f"write R.{same}(…)"
    found = instead_of_a_word(name)
    if found is not None:
        return found
    if name in ("ndarray", "Array", "array", "Tensor", "tensor"):
        return 'annotate it R.Tensor(("n", 4), "float32"); a constant is R.const([1, 2], "float32")'
    return "use the operators of R, listed in docs/operators.md"


def like(name: str) -> str | None:
    """Our operator of this name in any namespace, or spelt with other capitals; None if there is none."""
    tails = {_plain(known.split(".")[-1]): known for known in reversed(namespace_r.known_names())}
    return tails.get(_plain(name))


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def instead_of_a_word(name: str) -> str | None:
    """The help line for a word of the language written without its quotes, or its namespace; else None."""
    with suppress(RelaxError):
        return f'write it in quotes: "{DType(name)}"'
    if name in namespace_r.__all__:
        return f"write R.{name}"
    return None


def instead_of_unknown(name: str) -> str | None:
    """The help line for an undefined name that is a Python function or another library's; else None."""
    if name in LIBRARIES or hasattr(builtins, name):
        return instead_of(name)
    return None
