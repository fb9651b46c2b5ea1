"""Written from the table of operators by `make stubs`; see relaxpy/testing/stubs.py."""

from relaxpy.ir.expr import Call
from relaxpy.op.function import TensorLike

def stop_lift_params(x: TensorLike) -> Call:
    """x, and what is computed from it is not moved to where parameters are transformed."""
