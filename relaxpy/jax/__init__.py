"""Functions of JAX, compiled: `compile` and `load`.

    compiled = relaxpy.jax.compile(function, x)     # one build for all sizes
    y = compiled(x)                                 # arrays of JAX in and out, or of numpy
    compiled.save("function.rxe")
    compiled = relaxpy.jax.load("function.rxe")

`relaxpy.frontend.jax` makes the IR; this package builds and runs it. Loading and running need JAX for its trees and
arrays only: nothing is computed by it.
"""

from relaxpy.jax.compiled import CompiledFunction as CompiledFunction
from relaxpy.jax.compiled import compile as compile
from relaxpy.jax.compiled import load as load

__all__ = ["CompiledFunction", "compile", "load"]


def __dir__() -> list[str]:
    return sorted(__all__)
