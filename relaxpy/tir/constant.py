"""Run tensor programs at compile time, on constants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.to_python import to_python


def run_on_constants(
    program: PrimFunc,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[tuple[Sequence[int], np.dtype]],
) -> list[np.ndarray]:
    """Run a program without scalar parameters on these inputs. Returns its outputs, of the given shapes and dtypes."""
    made = [np.zeros(tuple(shape), dtype) for shape, dtype in outputs]
    with np.errstate(all="ignore"):
        to_python(program.func)(*(np.array(x, order="C") for x in inputs), *made)
    return made
