"""Written from the table of operators by `make stubs`; see relaxpy/testing/stubs.py."""

from relaxpy.ir.expr import Call
from relaxpy.op.function import ScalarLike, TensorLike

def tensor_byte_offset(x: TensorLike) -> Call:
    """Bytes before the first element."""

def tensor_dtype_bits(x: TensorLike) -> Call:
    """Bits of an element."""

def tensor_dtype_code(x: TensorLike) -> Call:
    """The dtype's DLPack code: 0 for integers, 1 unsigned, 2 floats, 4 bfloat, 6 bool."""

def tensor_dtype_lanes(x: TensorLike) -> Call:
    """Lanes of an element: 1, since tensors have scalar elements."""

def tensor_elem_offset(x: TensorLike) -> Call:
    """Elements before the first."""

def tensor_ndim(x: TensorLike) -> Call:
    """Number of dimensions."""

def tensor_shape_i(x: TensorLike, axis: ScalarLike) -> Call:
    """Size along an axis."""

def tensor_stride_i(x: TensorLike, axis: ScalarLike) -> Call:
    """Elements from one index of an axis to the next."""
