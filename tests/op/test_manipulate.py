"""What the samples of `manipulate.py` do not reach: results whose rank is found when the program runs."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RuntimeCheckError


def squeezed(annotation: str, axis: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that `squeeze` gives a tensor of `shape` which the program knows as `annotation`."""
    mod = relaxpy.parse(f"""
@R.function
def main(x: {annotation}):
    y = R.squeeze(x{axis})
    return y
""")
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, target="llvm"))
    return tuple(vm["main"](np.ones(shape, np.float32)).shape)


@pytest.mark.parametrize("annotation", ['R.Tensor(("n", "m", 1), "float32")', "R.Tensor()"])
def test_squeeze_finds_the_axes_of_size_1_at_run_time(annotation: str) -> None:
    """Where the rank of the result is not known."""
    assert squeezed(annotation, "", (1, 3, 1)) == (3,)
    assert squeezed(annotation, "", (2, 3, 1)) == (2, 3)


def test_squeeze_of_an_unknown_rank() -> None:
    """The axes are checked when the program runs."""
    assert squeezed("R.Tensor()", ", axis=[0, -1]", (1, 3, 1)) == (3,)
    for shape in ((2, 3), ()):
        with pytest.raises(RuntimeCheckError) as caught:
            squeezed("R.Tensor()", ", axis=0", shape)
        assert caught.value.code == "shape-value"
