"""Written from the table of operators by `make stubs`; see tests/stubs.py."""

from relaxpy.ir.expr import Call
from relaxpy.op.function import TensorLike

def stop_lift_params(x: TensorLike) -> Call:
    """x, as a barrier: computations on it are not lifted into the function that transforms parameters."""
