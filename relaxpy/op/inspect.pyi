"""Written from the table of operators by `make stubs`; see tests/stubs.py."""

from relaxpy.ir.expr import Call
from relaxpy.op.function import ScalarLike, TensorLike

def tensor_byte_offset(x: TensorLike) -> Call:
    """The offset of the first element in bytes."""

def tensor_dtype_bits(x: TensorLike) -> Call:
    """Bits per element."""

def tensor_dtype_code(x: TensorLike) -> Call:
    """The DLPack type code of the dtype: 0 for signed integers, 1 unsigned, 2 floats, 4 bfloat, 6 bool."""

def tensor_dtype_lanes(x: TensorLike) -> Call:
    """Lanes per element: always 1, since elements are scalars."""

def tensor_elem_offset(x: TensorLike) -> Call:
    """The offset of the first element in elements."""

def tensor_ndim(x: TensorLike) -> Call:
    """The number of dimensions."""

def tensor_shape_i(x: TensorLike, axis: ScalarLike) -> Call:
    """The size of an axis."""

def tensor_stride_i(x: TensorLike, axis: ScalarLike) -> Call:
    """The stride of an axis, in elements."""
