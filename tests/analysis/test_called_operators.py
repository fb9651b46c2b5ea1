"""Calls of operators are found wherever they stand."""

from __future__ import annotations

import relaxpy
from relaxpy.analysis.called_operators import calls_operator
from relaxpy.op.memory import Kill
from relaxpy.op.unary import Exp, Sqrt, Tanh

TEXT = """
@R.function
def main(c: R.Tensor((), "bool"), x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
    if c:
        y = R.exp(x)
    else:
        y = x

    @R.function
    def inner(z: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        w = R.tanh(z)
        return w

    out = inner(y)
    return out
"""


def test_in_branches_and_local_functions() -> None:
    """And no others: of one kind, or of any of several."""
    (function,) = relaxpy.parse(TEXT).graph_functions.values()
    assert calls_operator(function, Exp)
    assert calls_operator(function, Tanh)
    assert calls_operator(function, Sqrt, Exp)
    assert not calls_operator(function, Sqrt, Kill)
