"""BindUnknownShapes: every tensor of known rank gets dimensions."""

from __future__ import annotations

import relaxpy
from relaxpy.analysis.well_formed import well_formed
from relaxpy.ir import Function, IRModule, MatchCast, TensorType
from relaxpy.testing.before_after import check_example
from relaxpy.transform import BindUnknownShapes


def run(text: str) -> Function:
    mod: IRModule = BindUnknownShapes()(relaxpy.parse(text))
    function = mod["main"]
    assert isinstance(function, Function)
    return function


def test_example() -> None:
    check_example(BindUnknownShapes())


def test_parameter_of_known_rank() -> None:
    function = run("""
@R.function
def main(x: R.Tensor(dtype="float32", ndim=2)) -> R.Tensor(dtype="float32", ndim=2):
    y = R.exp(x)
    return y
""")
    first, second = function.body.bindings
    assert isinstance(first, MatchCast)
    assert isinstance(second.var.annotation, TensorType)
    assert second.var.annotation.dims is not None


def test_a_broadcast_by_cases() -> None:
    function = run("""
@R.function
def main(x: R.Tensor(("n",), dtype="float32"), y: R.Tensor(("m",), dtype="float32")) -> R.Tensor(dtype="float32", ndim=1):
    z = R.add(x, y)
    return z
""")
    _, cast = function.body.bindings
    assert isinstance(cast, MatchCast)
    assert isinstance(cast.annotation, TensorType)
    assert cast.annotation.dims is not None


def test_an_output_of_a_dataflow_block_stays_one() -> None:
    mod = BindUnknownShapes()(
        relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(dtype="float32", ndim=1):
    with R.dataflow():
        y = R.unique(x)
        R.output(y)
    return y
""")
    )
    assert well_formed(mod) == []
