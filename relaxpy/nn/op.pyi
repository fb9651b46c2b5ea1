"""Written from the table of operators by `make stubs`; see tests/stubs.py."""

from collections.abc import Sequence
from typing import Any
from relaxpy.ir.dim import DimLike
from relaxpy.nn.apply import index as index
from relaxpy.nn.calls import call_dps_library as call_dps_library
from relaxpy.nn.calls import call_inplace_packed as call_inplace_packed
from relaxpy.nn.calls import call_packed as call_packed
from relaxpy.nn.calls import call_pure_packed as call_pure_packed
from relaxpy.nn.calls import call_te as call_te
from relaxpy.nn.calls import call_tir as call_tir
from relaxpy.nn.calls import call_tir_inplace as call_tir_inplace
from relaxpy.nn.loops import while_loop as while_loop
from relaxpy.nn.tensor import Tensor
from relaxpy.nn.tensor import Value
from relaxpy.op import call as ir_call
from relaxpy.op.function import DTypeLike, ExprLike, Operand, ScalarLike, ShapeLike, TensorLike, TupleLike
from relaxpy.ir.index_map import IndexMap


def match_cast(x: Value, shape: Sequence[DimLike], dtype: str | None=None) -> Tensor:
    """`x` with a shape (and dtype, if it has none) that is checked at run time."""

def check_range(x: Value, count: DimLike, what: str='indices', lowest: int=0) -> Tensor:
    """`x`, an integer tensor, after a check at run time that its elements are at least `lowest` and below `count`.
    Without the check, `take` clamps an index out of range. `what` is the name of the elements in the error."""

def check_finite(x: Value, what: str) -> Tensor:
    """`x` after a check at run time that it has no NaN and no infinity. `what` is its name in the error."""

class Namespace:
    """The operators with a common prefix such as `nn.`."""

    def __init__(self, prefix: str) -> None:
        ...

    def __getattr__(self, name: str) -> Any:
        ...

    def __dir__(self) -> list[str]:
        ...

    def __repr__(self) -> str:
        ...

def abs(x: TensorLike) -> Tensor:
    """The absolute value; the smallest integer gives itself."""

def acos(x: TensorLike) -> Tensor:
    """The arccosine, in [0, pi]; NaN if |x| > 1."""

def acosh(x: TensorLike) -> Tensor:
    """The inverse hyperbolic cosine, not negative; NaN below 1."""

def add(x1: Operand, x2: Operand) -> Tensor:
    """x1 + x2; integers modulo 2**bits."""

def all(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Tensor:
    """Are all elements not 0? True for no elements; a NaN is not 0.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: Whether the reduced axes are kept with size 1.
    """

def any(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Tensor:
    """Is any element not 0? False for no elements; a NaN is not 0.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: Whether the reduced axes are kept with size 1.
    """

def arange(
    start: ScalarLike,
    end: ScalarLike | None = None,
    step: ScalarLike | None = None,
    dtype: DTypeLike = "int64",
) -> Tensor:
    """The integers start, start + step, … up to `end`, which is excluded. For floats it is `float_arange`."""

def argmax(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the greatest element along `axis`, int64: the first of equal elements, or the first NaN if there is
    one. An axis of size 0 is refused.

    axis: The axis; None: the flattened tensor, in row-major order.

    keepdims: Whether the reduced axes are kept with size 1.
    """

def argmin(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the smallest element along `axis`, int64: the first of equal elements, or the first NaN if there is
    one. An axis of size 0 is refused.

    axis: The axis; None: the flattened tensor, in row-major order.

    keepdims: Whether the reduced axes are kept with size 1.
    """

def argsort(
    data: TensorLike,
    axis: int = -1,
    descending: bool = False,
    dtype: DTypeLike = "int32",
) -> Tensor:
    """The indices that sort x along `axis`: taking x at them gives `sort(x)`. The sort is stable in both orders.

    dtype: Dtype of the indices.
    """

def asin(x: TensorLike) -> Tensor:
    """The arcsine, in [-pi/2, pi/2]; NaN if |x| > 1."""

def asinh(x: TensorLike) -> Tensor:
    """The inverse hyperbolic sine."""

def assert_op(
    condition: ExprLike,
    /,
    *values: ExprLike,
    format: str = "the assertion does not hold",
) -> tuple[Tensor, ...]:
    """Raise an error at run time unless the condition, a 0-d bool tensor or a scalar, is true. The values replace the
    `{}` of `format`.
    """

def astype(x: TensorLike, dtype: DTypeLike) -> Tensor:
    """Convert to another dtype. Float to integer: truncates toward zero and saturates; NaN becomes 0. Integer to
    integer: modulo 2**bits. To bool: whether it is not 0.
    """

def atan(x: TensorLike) -> Tensor:
    """The arctangent, in [-pi/2, pi/2]."""

def atan2(x1: Operand, x2: Operand) -> Tensor:
    """The angle of the point (x2, x1), in [-pi, pi]. The signs of zeros and infinities count. Integer results are
    rounded toward 0.
    """

def atanh(x: TensorLike) -> Tensor:
    """The inverse hyperbolic tangent: infinite at 1 and -1, NaN beyond."""

def bessel_i0(x: TensorLike) -> Tensor:
    """The modified Bessel function of order 0."""

def bessel_i0e(x: TensorLike) -> Tensor:
    """The modified Bessel function of order 0 times exp(-|x|)."""

def bessel_i1(x: TensorLike) -> Tensor:
    """The modified Bessel function of order 1."""

def bessel_i1e(x: TensorLike) -> Tensor:
    """The modified Bessel function of order 1 times exp(-|x|)."""

def bitcast(x: TensorLike, dtype: DTypeLike) -> Tensor:
    """The bits of x as elements of another dtype. A wider element becomes several along a new last axis, the lowest
    bits first; narrower ones are joined along the last axis, whose size is then the ratio of the widths. The bits of a
    bool are those of a uint8 that is 0 or 1.
    """

def bitwise_and(x1: Operand, x2: Operand) -> Tensor:
    """Bitwise and; logical and for bools."""

def bitwise_not(x: TensorLike) -> Tensor:
    """Bitwise not; logical not for bools."""

def bitwise_or(x1: Operand, x2: Operand) -> Tensor:
    """Bitwise or; logical or for bools."""

def bitwise_xor(x1: Operand, x2: Operand) -> Tensor:
    """Bitwise exclusive or; logical exclusive or for bools."""

def broadcast_to(x: TensorLike, shape: ShapeLike) -> Tensor:
    """Broadcast to `shape`: repeat along axes of size 1."""

def bucketize(
    input_tensor: TensorLike,
    boundaries: TensorLike,
    out_int32: bool = False,
    right: bool = False,
) -> Tensor:
    """The bucket of each element, as `numpy.searchsorted`: the number of boundaries (a vector in ascending order) below
    it, or with `right` below or equal to it. NaN is above all. The result is int64, or int32 with `out_int32`. If the
    boundaries are not sorted, it is some number from 0 to their count.
    """

def ceil(x: TensorLike) -> Tensor:
    """The smallest whole number not below x; integers are unchanged."""

def clip(x: TensorLike, min: ScalarLike, max: ScalarLike) -> Tensor:
    """x clamped to [min, max]: `max` if min > max, NaN where x is NaN. For integers, bounds beyond the range of the
    dtype are its limits.
    """

def collapse_sum_like(data: TensorLike, collapse_target: TensorLike) -> Tensor:
    """`collapse_sum_to` with the shape of another tensor."""

def collapse_sum_to(data: TensorLike, shape: ShapeLike) -> Tensor:
    """Sum data to `shape` over the axes that broadcasting a tensor of that shape would repeat: the gradient of
    `broadcast_to`. Integers modulo 2**bits.
    """

def concat(tensors: TupleLike, axis: int | None = 0) -> Tensor:
    """Concatenate tensors along `axis`.

    axis: None: each tensor is flattened first, in row-major order.
    """

def cos(x: TensorLike) -> Tensor:
    """The cosine of x in radians, for x of any magnitude; NaN for infinities."""

def cosh(x: TensorLike) -> Tensor:
    """The hyperbolic cosine."""

def count_leading_zeros(x: TensorLike) -> Tensor:
    """The number of bits of x above the highest that is set: all of 0, none of a negative number."""

def cumlogsumexp(
    data: TensorLike,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    exclusive: bool = False,
) -> Tensor:
    """Running logarithms of sums along `axis`: log(exp(x0) + exp(x1) + …), without overflow. Floats only; narrow ones
    are computed in float32, and each result is rounded.

    axis: The axis; None: the flattened tensor, in row-major order.

    dtype: Dtype that elements are converted to before the scan; None: the dtype of the argument.

    exclusive: Whether each result excludes its own element; the first result is then `start`.
    """

def cummax(
    data: TensorLike,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    exclusive: bool = False,
) -> Tensor:
    """Running maxima along `axis`; NaN from the first NaN on. A float converted to an integer `dtype` is truncated and
    saturated.

    axis: The axis; None: the flattened tensor, in row-major order.

    dtype: Dtype that elements are converted to before the scan; None: the dtype of the argument.

    exclusive: Whether each result excludes its own element; the first result is then `start`.
    """

def cummin(
    data: TensorLike,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    exclusive: bool = False,
) -> Tensor:
    """Running minima along `axis`; NaN from the first NaN on. A float converted to an integer `dtype` is truncated and
    saturated.

    axis: The axis; None: the flattened tensor, in row-major order.

    dtype: Dtype that elements are converted to before the scan; None: the dtype of the argument.

    exclusive: Whether each result excludes its own element; the first result is then `start`.
    """

def cumprod(
    data: TensorLike,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    exclusive: bool = False,
) -> Tensor:
    """Running products along `axis`; integers modulo 2**bits. Narrow floats are multiplied in float32, and each product
    is rounded. A float converted to an integer `dtype` is truncated and saturated.

    axis: The axis; None: the flattened tensor, in row-major order.

    dtype: Dtype that elements are converted to before the scan; None: the dtype of the argument.

    exclusive: Whether each result excludes its own element; the first result is then `start`.
    """

def cumsum(
    data: TensorLike,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    exclusive: bool = False,
) -> Tensor:
    """Running sums along `axis`; integers modulo 2**bits. Narrow floats are summed in float32, and each sum is rounded.
    A float converted to an integer `dtype` is truncated and saturated.

    axis: The axis; None: the flattened tensor, in row-major order.

    dtype: Dtype that elements are converted to before the scan; None: the dtype of the argument.

    exclusive: Whether each result excludes its own element; the first result is then `start`.
    """

def dequantize(
    data: TensorLike,
    scale: TensorLike,
    zero_point: TensorLike,
    axis: int = -1,
    out_dtype: DTypeLike = "float32",
) -> Tensor:
    """Dequantise: scale * (data - zero_point) as `out_dtype`, computed in float32; float16 saturates at its largest
    number. One scale and zero point, or one for each index of `axis`.
    """

def digamma(x: TensorLike) -> Tensor:
    """The derivative of `lgamma`: -infinity at 0.0, infinity at -0.0, NaN at negative whole numbers."""

def divide(x1: Operand, x2: Operand) -> Tensor:
    """x1 / x2. Integers are rounded toward zero; x2 = 0 gives 0, and the smallest integer divided by -1 gives
    itself.
    """

def dynamic_strided_slice(
    x: TensorLike,
    begin: TensorLike,
    end: TensorLike,
    strides: TensorLike,
) -> Tensor:
    """`strided_slice` along all axes with indices known only at run time: begin, end and strides are integer vectors
    with an element for each axis. A stride of 0 is an error at run time.
    """

def dynamic_update_slice(data: TensorLike, update: TensorLike, starts: TensorLike) -> Tensor:
    """A copy of data with `update` in place of the slice that begins at `starts`, a vector with an index for each axis,
    as StableHLO and `jax.lax` have it. A slice that would begin before data or end after it is moved into data.
    """

def einsum(operands: TupleLike, subscripts: str) -> Tensor:
    """Einstein summation, as `numpy.einsum`: "ij,jk->ik" is the matrix product, "ii->i" a diagonal, "...ij->...ji" a
    transpose (the dimensions of "..." are broadcast). Without "->" the result has the letters that occur once, in
    alphabetical order. Axes of one letter must have equal sizes, or size 1, which is broadcast. Several operands are
    contracted from left to right.
    """

def equal(x1: Operand, x2: Operand) -> Tensor:
    """x1 == x2."""

def erf(x: TensorLike) -> Tensor:
    """The error function."""

def erfc(x: TensorLike) -> Tensor:
    """The complementary error function, 1 - erf(x), accurate where it is near 0."""

def erfcx(x: TensorLike) -> Tensor:
    """The scaled complementary error function, exp(x * x) * erfc(x): infinite for large negative x."""

def erfinv(x: TensorLike) -> Tensor:
    """The inverse of the error function: infinite at 1 and -1, NaN beyond."""

def ewise_fma(x1: Operand, x2: Operand, x3: Operand) -> Tensor:
    """Multiply and add: x1 * x2 + x3; integers modulo 2**bits."""

def exp(x: TensorLike) -> Tensor:
    """The exponential function e**x."""

def expand_dims(x: TensorLike, axis: Sequence[int] | int) -> Tensor:
    """Insert axes of size 1 at these positions of the result."""

def expm1(x: TensorLike) -> Tensor:
    """e**x - 1, accurate near 0."""

def eye(
    n: ScalarLike,
    m: ScalarLike | None = None,
    k: ScalarLike | None = None,
    dtype: DTypeLike = "float32",
) -> Tensor:
    """A matrix of n rows and `m` columns (default n) with ones on a diagonal and zeros elsewhere. The diagonal is `k`
    places to the right of the main one (to the left for a negative k).
    """

def eye_like(x: TensorLike, k: ScalarLike | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """`eye` with the shape of the matrix x; the dtype is `dtype`, or that of x."""

def flatten(x: TensorLike) -> Tensor:
    """Flatten all elements into one axis."""

def flip(data: TensorLike, axis: int) -> Tensor:
    """Reverse the slices along `axis`, as `numpy.flip`."""

def float_arange(
    start: float,
    end: float,
    step: float = 1.0,
    dtype: DTypeLike = "float32",
) -> Tensor:
    """The numbers start + i * step before `end`, for i = 0, 1, …, computed in float64. `R.arange` becomes this operator
    if one of its numbers is a float.
    """

def floor(x: TensorLike) -> Tensor:
    """The greatest whole number not above x; integers are unchanged."""

def floor_divide(x1: Operand, x2: Operand) -> Tensor:
    """x1 / x2 rounded down. Integers: x2 = 0 gives 0, and the smallest integer divided by -1 gives itself. Floats: (x1
    - floor_mod(x1, x2)) / x2 rounded to the nearest whole number; x1 / x2 where x2 is 0.
    """

def floor_mod(x1: Operand, x2: Operand) -> Tensor:
    """The remainder of a division rounded down; it has the sign of x2, as Python's `%`. Where x2 is 0, integers give 0
    and floats NaN.
    """

def full(shape: ShapeLike, fill_value: Operand, dtype: DTypeLike | None = None) -> Tensor:
    """A tensor whose elements are all `fill_value`, a 0-d tensor. The dtype is `dtype`, or that of `fill_value`."""

def full_like(x: Operand, fill_value: Operand, dtype: DTypeLike | None = None) -> Tensor:
    """A tensor of the shape of x whose elements are all `fill_value`, a 0-d tensor; the dtype is `dtype`, or that of
    x.
    """

def gather(
    x: TensorLike,
    indices: TensorLike,
    slice_sizes: ShapeLike,
    offset_dims: Sequence[int] = (),
    collapsed_slice_dims: Sequence[int] = (),
    start_index_map: Sequence[int] = (),
    operand_batching_dims: Sequence[int] = (),
    start_indices_batching_dims: Sequence[int] = (),
    mode: str = "clip",
    fill_value: int | float | None = None,
) -> Tensor:
    """Slices of x at `indices`, as the gather of StableHLO and `jax.lax`. The vectors along the last axis of `indices`
    say where slices begin along the axes `start_index_map` of x; a slice has `slice_sizes` elements along each axis.
    The result has the axes of `indices` but the last and, at `offset_dims`, those of a slice, without the axes
    `collapsed_slice_dims` and `operand_batching_dims`, in which its size is 1. Along `operand_batching_dims` a slice is
    where its index along `start_indices_batching_dims` says. A slice that would begin before x or end after it is moved
    into x (mode "clip"), or is `fill_value` (mode "fill"; None: NaN, the smallest signed or the largest unsigned
    integer, True).

    offset_dims: Axes of the result that are those of a slice.

    collapsed_slice_dims: Axes of x that the result has not.

    start_index_map: The axis of x for each element of an index vector.

    operand_batching_dims: Axes of x that go together with axes of `indices`.

    start_indices_batching_dims: Those axes of `indices`.
    """

def gather_elements(data: TensorLike, indices: TensorLike, axis: int = 0) -> Tensor:
    """Gather elements along `axis`, as `torch.gather`: element i of the result is the element of data at index i, with
    the index along `axis` replaced by indices[i]. The result has the shape of `indices`, which may be smaller than data
    along the other axes. A negative index counts from the end; an index still out of range is clamped, and an axis of
    size 0 gives 0.
    """

def gather_nd(data: TensorLike, indices: TensorLike, batch_dims: int = 0) -> Tensor:
    """Gather slices of data: each vector along the last axis of `indices` is an index into data that starts at axis
    `batch_dims`. The axes before `batch_dims` are batch axes of both tensors. A negative index counts from the end; an
    index still out of range is clamped, and an axis of size 0 gives 0.
    """

def greater(x1: Operand, x2: Operand) -> Tensor:
    """x1 > x2."""

def greater_equal(x1: Operand, x2: Operand) -> Tensor:
    """x1 >= x2."""

def hamming_window(
    window_size: ScalarLike,
    periodic: bool | int,
    alpha: float,
    beta: float,
    dtype: DTypeLike,
) -> Tensor:
    """The Hamming window: alpha - beta * cos(2 * pi * i / N) for i below `window_size`. N is `window_size` if
    `periodic`, else one less. A window of one element is 1.
    """

def hint_on_device(
    x: TensorLike,
    dst_device: str = "cpu:0",
    memory_scope: str = "global",
) -> Tensor:
    """x, with a hint that it is on a device: `R.hint_on_device(x, R.cpu(0))`.

    dst_device: The device, in the form of `R.cpu(0)` or `R.device("cuda", 1)`.
    """

def index_put(
    data: TensorLike,
    indices: TupleLike,
    values: TensorLike,
    accumulate: bool = False,
) -> Tensor:
    """A copy of data after `data[i, j, …] = values` (with `accumulate`: `+=`, once for each update). The index tensors
    are broadcast together; values are broadcast to them and to the axes of data that are not indexed. Updates are
    applied in row-major order: of several replacements the last wins. A negative index counts from the end; an index
    still out of range is skipped.
    """

def index_tensor(data: TensorLike, indices: TupleLike) -> Tensor:
    """Index with tensors, `data[i, j, …]` as in numpy: the index tensors are broadcast together and index the first
    axes of data; the other axes follow. A negative index counts from the end; an index still out of range is clamped,
    and an axis of size 0 gives 0.
    """

def isfinite(x: TensorLike) -> Tensor:
    """Is x neither infinite nor NaN? True for all integers."""

def isinf(x: TensorLike) -> Tensor:
    """Is x infinite, of either sign? False for all integers."""

def isnan(x: TensorLike) -> Tensor:
    """Is x NaN? False for all integers."""

def layout_transform(
    x: TensorLike,
    index_map: IndexMap,
    pad_value: float | None = None,
    axis_separators: Sequence[int] | None = None,
    input_axis_separators: Sequence[int] | None = None,
) -> Tensor:
    """Move each element of x to the index that `index_map` gives for its own, as in `T.index_map(lambda i, j: (j, i //
    4, i % 4))`. The result has the smallest shape that contains all indices (`i % 4` always needs 4). Elements of the
    result that none of x moves to are `pad_value`, or 0; if several move to one index, the last in row-major order
    wins. `axis_separators` are accepted and ignored: memory is flat.
    """

def left_shift(x1: Operand, x2: Operand) -> Tensor:
    """x1 * 2**x2 modulo 2**bits; 0 where x2 is negative or at least the number of bits."""

def less(x1: Operand, x2: Operand) -> Tensor:
    """x1 < x2."""

def less_equal(x1: Operand, x2: Operand) -> Tensor:
    """x1 <= x2."""

def lgamma(x: TensorLike) -> Tensor:
    """The logarithm of the size of the gamma function: infinite at 0, at negative whole numbers and for infinities."""

def linear(
    data: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    out_dtype: DTypeLike | None = None,
) -> Tensor:
    """`data @ weight.T + bias`, the linear layer of torch. The weight is (out, in), or (in,) for a single output.
    Accumulated as in `matmul`; the bias is broadcast and added before rounding. This is a single operator, so the
    weight is not transposed in memory.

    out_dtype: Dtype of the result; None: the dtype of the arguments.
    """

def log(x: TensorLike) -> Tensor:
    """The natural logarithm: -infinity at 0, NaN below."""

def log10(x: TensorLike) -> Tensor:
    """The logarithm to base 10: -infinity at 0, NaN below."""

def log1p(x: TensorLike) -> Tensor:
    """log(1 + x), accurate near 0: -infinity at -1, NaN below."""

def log2(x: TensorLike) -> Tensor:
    """The logarithm to base 2: -infinity at 0, NaN below."""

def log_add_exp(x1: Operand, x2: Operand) -> Tensor:
    """log(exp(x1) + exp(x2)) without overflow. Integer results are rounded toward 0."""

def log_ndtr(x: TensorLike) -> Tensor:
    """The logarithm of the share of the normal distribution below x."""

def logical_and(x1: Operand, x2: Operand) -> Tensor:
    """Logical and."""

def logical_not(x: TensorLike) -> Tensor:
    """Logical not."""

def logical_or(x1: Operand, x2: Operand) -> Tensor:
    """Logical or."""

def logical_xor(x1: Operand, x2: Operand) -> Tensor:
    """Logical exclusive or."""

def matmul(x1: TensorLike, x2: TensorLike, out_dtype: DTypeLike | None = None) -> Tensor:
    """The matrix product over the last two axes, as `numpy.matmul`. The axes before are broadcast; a vector is a row on
    the left and a column on the right. Accumulated in `out_dtype`; narrower floats in float32.

    out_dtype: Dtype of the result; None: the dtype of the arguments.
    """

def max(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Tensor:
    """The maximum; NaN if there is one. The maximum of no elements is -infinity, or the smallest integer.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: Whether the reduced axes are kept with size 1.
    """

def maximum(x1: Operand, x2: Operand) -> Tensor:
    """The elementwise maximum; NaN if either is NaN."""

def mean(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Tensor:
    """The mean. Integer means are rounded toward 0. The mean of no elements is NaN for floats, and 0 for integers.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: Whether the reduced axes are kept with size 1.
    """

def median(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Any:
    """The median along `axis`, as `torch.median`: the middle of the sorted elements, the lower of the two middle ones
    for an even number, or the first NaN if there is one. With one axis the result is a tuple of the median and its
    index (int64). The index is that of the median in a stable sort. An axis of size 0 is refused.

    axis: One or several axes; None: all.

    keepdims: Whether the axes are kept with size 1.
    """

def meshgrid(tensors: TupleLike, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Coordinate grids, as `numpy.meshgrid`: a tuple in which grid k has the values of vector k along axis k and is
    constant along the others. With indexing "xy" the first two axes are swapped. A 0-d tensor is a vector of one
    element.
    """

def min(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Tensor:
    """The minimum; NaN if there is one. The minimum of no elements is infinity, or the greatest integer.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: Whether the reduced axes are kept with size 1.
    """

def minimum(x1: Operand, x2: Operand) -> Tensor:
    """The elementwise minimum; NaN if either is NaN."""

def mod(x1: Operand, x2: Operand) -> Tensor:
    """The remainder of a division rounded toward zero; it has the sign of x1, as C's `%` and `fmod`. Where x2 is 0,
    integers give 0 and floats NaN. Other float results are exact.
    """

def multinomial_from_uniform(
    prob: TensorLike,
    uniform_sample: TensorLike,
    sample_indices: TensorLike,
    dtype: DTypeLike = "int64",
) -> Tensor:
    """Sample from categorical distributions by inverse transform: for each number u of `uniform_sample` (n, 1), the
    first index at which the running sum of a row of `prob` (batch, size) exceeds u. For u uniform in [0, 1) the index
    has the probabilities of the row. `sample_indices` (n, 1) selects the row; a row out of range is clamped (0 if there
    is no row). If u is not below the sum of the row, the last index with a probability above 0 is returned.

    dtype: Dtype of the result.
    """

def multiply(x1: Operand, x2: Operand) -> Tensor:
    """x1 * x2; integers modulo 2**bits."""

def ndtri(x: TensorLike) -> Tensor:
    """The quantile of the normal distribution: the x below which a share of its values is. Infinite at 0 and 1, NaN
    outside.
    """

def negative(x: TensorLike) -> Tensor:
    """-x; integers modulo 2**bits."""

def nextafter(x1: Operand, x2: Operand) -> Tensor:
    """The next number of the dtype after x1 towards x2; x2 if they are equal."""

def nonzero(x: TensorLike) -> Tensor:
    """The indices of the elements that are not 0 (a NaN is not 0), as ONNX's NonZero: int64, with a column for each
    such element in row-major order, and a row for each axis. A 0-d tensor counts as a vector of one element.
    """

def not_equal(x1: Operand, x2: Operand) -> Tensor:
    """x1 != x2."""

def one_hot(
    indices: TensorLike,
    on_value: bool | int | float,
    off_value: bool | int | float,
    depth: int,
    axis: int = -1,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """One-hot encoding: a new axis of size `depth` at `axis`, with `on_value` at the index and `off_value` elsewhere.
    An index out of range gives `off_value` everywhere.

    dtype: Dtype of the result; None: bool, int64 or float32, by the kind of the values.
    """

def ones(shape: ShapeLike, dtype: DTypeLike) -> Tensor:
    """A tensor of ones."""

def ones_like(x: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """Ones of the shape of x; the dtype is `dtype`, or that of x."""

def outer(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The outer product of two vectors: (n,) and (m,) give (n, m)."""

def permute_dims(x: TensorLike, axes: Sequence[int] | None = None) -> Tensor:
    """Permute the axes; without `axes`, reverse them."""

def population_count(x: TensorLike) -> Tensor:
    """The number of bits of x that are set, in the dtype of x."""

def power(x1: Operand, x2: Operand) -> Tensor:
    """x1 to the power x2. Integers: modulo 2**bits; a negative exponent gives the integer part, which is 0 unless x1 is
    1 or -1; 0 to the power 0 is 1. Floats: NaN where x1 is negative and x2 is not a whole number.
    """

def print(*values: ExprLike, format: str = "") -> tuple[Tensor, ...]:
    """Print values at run time: one per line, or formatted into the `{}` of `format`."""

def process_logits(
    logits: TensorLike,
    bias_tokens: TensorLike,
    biases: TensorLike,
    histories: TensorLike,
    prompts: TensorLike,
    repetition_penalties: TensorLike,
    presence_penalties: TensorLike,
    frequency_penalties: TensorLike,
    masks: TensorLike,
) -> Tensor:
    """Logits (rows, vocab), float32 or narrower, as float32 after biases, penalties and masks, in this order, every row
    by its own options. `bias_tokens` and `biases` (rows, biases): what is added to which token. `histories` (rows,
    length) are the tokens so far, of which the first `prompts` (rows,) were given, not generated. A token in the
    history has its logit divided by the repetition penalty (multiplied if negative); one that was generated has the
    presence penalty subtracted, and the frequency penalty for each time. Bit t % 32 of word t // 32 of `masks` (rows,
    words), int32, is set if token t is allowed; the others get minus infinity. Tokens out of range in `bias_tokens` and
    `histories` are skipped, as padding is.
    """

def prod(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Tensor:
    """The product, in the argument's dtype; integers modulo 2**bits. The product of no elements is 1.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: Whether the reduced axes are kept with size 1.
    """

def quantize(
    data: TensorLike,
    scale: TensorLike,
    zero_point: TensorLike,
    axis: int = -1,
    out_dtype: DTypeLike = "int8",
    rounding: str = "half_to_even",
    seed: int = 0,
    narrow_range: bool = False,
) -> Tensor:
    """Quantise: round(data / scale) + zero_point as `out_dtype`, saturated to the range of the dtype; NaN gives 0. One
    scale and zero point, or one for each index of `axis`.

    `rounding` is half_to_even, half_away (from zero), floor, ceil, or stochastic: up with the chance that the fraction
    says, by the random bits that `threefry` makes of `seed` and the number of the element in row-major order, so that
    the same call gives the same codes on every machine. With `narrow_range` the lowest code is not used: int8 goes from
    -127 to 127, uint8 from 1.
    """

def random_uniform(
    seeds: TensorLike,
    streams: TensorLike,
    positions: TensorLike,
    dtype: DTypeLike = "float32",
) -> Tensor:
    """Random numbers, uniform in [0, 1): each is a function of its seed, stream and position alone (integers, int64 or
    narrower, all of one shape), by Philox4x32-10 with the seed as the key. Numbers of different seeds, streams or
    positions are independent of each other; equal ones give equal numbers, in any batch and on any device. float32
    numbers have 24 random bits, float64 ones 53; int64 ones are these, in units of 2^-53.

    dtype: Dtype of the result: float32, float64 or int64.
    """

def reduce_precision(x: TensorLike, exponent_bits: int, mantissa_bits: int) -> Tensor:
    """x rounded to a float with these numbers of bits, halves to even: infinite if it is too large for the exponent, 0
    if it is too small for a normal number, unchanged if it has as few bits.
    """

def reduce_window(
    x: TensorLike,
    window: ShapeLike,
    padding: ShapeLike | None = None,
    reduction: str = "sum",
    strides: Sequence[int] | int = 1,
    dilation: Sequence[int] | int = 1,
    base_dilation: Sequence[int] | int = 1,
) -> Tensor:
    """Each window of x reduced to one element: its sum, product, maximum or minimum (of bools, whether any or all are
    true). `window` is the size of windows along each axis. `padding` is how far they extend beyond x, before and after
    each axis: (before_0, after_0, before_1, …), where a negative number leaves elements out. Padding and gaps take no
    part; a window of nothing gives 0, 1, or a limit of the dtype, infinite for floats.

    strides: Distance of windows: one number, or one for each axis.

    dilation: Distance of the elements of a window: one number, or one for each axis.

    base_dilation: Distance that the elements of x are set apart to: one number, or one for each axis.
    """

def repeat(data: TensorLike, repeats: int, axis: int | None = None) -> Tensor:
    """Repeat each slice along `axis` `repeats` times in a row, as `numpy.repeat`; without `axis`, each element of the
    flattened tensor.
    """

def reshape(x: TensorLike, shape: ShapeLike) -> Tensor:
    """Reshape, in row-major order, as `numpy.reshape`. One dimension may be -1, and is inferred from the others; 0 is a
    size of 0.
    """

def reverse_sequence(
    data: TensorLike,
    seq_lengths: TensorLike,
    seq_axis: int = 1,
    batch_axis: int = 0,
) -> Tensor:
    """Reverse the first `seq_lengths[b]` elements along `seq_axis` of each sequence b along `batch_axis`, and keep the
    others. Lengths are clamped to the size of the axis and to 0.
    """

def right_shift(x1: Operand, x2: Operand) -> Tensor:
    """x1 / 2**x2 rounded down (arithmetic shift). Where x2 is negative or at least the number of bits: -1 for a
    negative x1, else 0.
    """

def round(x: TensorLike) -> Tensor:
    """The nearest whole number, halves rounded to even; integers are unchanged."""

def rsqrt(x: TensorLike) -> Tensor:
    """The reciprocal square root 1 / sqrt(x): infinity at 0, NaN below."""

def sample_from_logits(
    logits: TensorLike,
    temperatures: TensorLike,
    top_ks: TensorLike,
    top_ps: TensorLike,
    min_ps: TensorLike,
    uniform_samples: TensorLike,
) -> Tensor:
    """Draw a token of each row of logits (rows, vocab), float32 or narrower, with options of its own: the first in
    descending order, of equal logits the first token, at which the running sum of the probabilities exceeds a number in
    [0, 1) (`uniform_samples`; of int64, in units of 2^-53) of all that is kept. The probabilities are the softmax of
    the logits divided by `temperatures`. `top_ks` keeps so many first tokens (0 or less: all), `top_ps` the first ones
    whose probabilities together reach it, `min_ps` those at least so probable, relative to the most probable token; the
    first token is always kept. A temperature of 0 takes the first token. Result: (rows,) int64; -1 for a row whose
    greatest logit is not finite. All options are (rows,). A row's token does not depend on the other rows. A
    probability below 2^-40 of the greatest counts as 0.
    """

def scalar_to_tensor(value: ScalarLike, dtype: DTypeLike) -> Tensor:
    """Convert a scalar to a 0-d tensor. `dtype` is the scalar's own: at run time scalars carry no dtype."""

def scatter(
    data: TensorLike,
    indices: TensorLike,
    updates: TensorLike,
    update_window_dims: Sequence[int] = (),
    inserted_window_dims: Sequence[int] = (),
    scatter_dims_to_operand_dims: Sequence[int] = (),
    operand_batching_dims: Sequence[int] = (),
    scatter_indices_batching_dims: Sequence[int] = (),
    mode: str = "drop",
    reduction: str = "update",
) -> Tensor:
    """A copy of data with slices of it combined with updates, as the scatter of StableHLO and `jax.lax`. The vectors
    along the last axis of `indices` say where slices begin along the axes `scatter_dims_to_operand_dims` of data.
    `updates` has the axes of `indices` but the last and, at `update_window_dims`, those of a slice, without the axes
    `inserted_window_dims` and `operand_batching_dims`, in which its size is 1. Along `operand_batching_dims` a slice is
    where its index along `scatter_indices_batching_dims` says. A slice that would begin before data or end after it is
    skipped (mode "drop") or moved into data (mode "clip"). The reduction "update" replaces; "add", "mul", "min" and
    "max" combine. Updates are applied in row-major order: of several replacements the last wins.

    update_window_dims: Axes of updates that are those of a slice.

    inserted_window_dims: Axes of data that updates has not.

    scatter_dims_to_operand_dims: The axis of data for each element of an index vector.

    operand_batching_dims: Axes of data that go together with axes of `indices`.

    scatter_indices_batching_dims: Those axes of `indices`.
    """

def scatter_elements(
    data: TensorLike,
    indices: TensorLike,
    updates: TensorLike,
    axis: int = 0,
    reduction: str = "update",
) -> Tensor:
    """Scatter elements along `axis` (ONNX's ScatterElements). The result is a copy of data; each element of `updates`
    is combined with the element at its own index, with the index along `axis` replaced by `indices`. The reduction
    "update" replaces; "add", "mul", "min" and "max" combine; "mean" is the mean of the old element and its updates, for
    integers rounded down. Updates are applied in row-major order: of several replacements the last wins. A negative
    index counts from the end; an index still out of range is skipped.
    """

def scatter_nd(
    data: TensorLike,
    indices: TensorLike,
    updates: TensorLike,
    reduction: str = "update",
) -> Tensor:
    """Scatter slices (ONNX's ScatterND). The result is a copy of data; each vector along the last axis of `indices` is
    the index of a slice, which is combined with the corresponding slice of `updates`. The reduction "update" replaces;
    "add", "mul", "min" and "max" combine; "mean" is the mean of the old element and its updates, for integers rounded
    down. Updates are applied in row-major order: of several replacements the last wins. A negative index counts from
    the end; an index still out of range is skipped.
    """

def select_and_scatter_add(
    source: TensorLike,
    data: TensorLike,
    window: ShapeLike,
    padding: ShapeLike | None = None,
    select: str = "max",
    strides: Sequence[int] | int = 1,
) -> Tensor:
    """Add each element of `source` to 0 at the place where its window of data has its largest (or, with `select` "min",
    its smallest) element, as the gradient of `reduce_window` does: the first of equal elements in row-major order, and
    the element after a NaN, if there is one. `window` is the size of windows along each axis, `padding` how far they
    extend beyond data, before and after each axis; padding is not chosen.

    strides: Distance of windows: one number, or one for each axis.
    """

def shape_of(x: TensorLike) -> Tensor:
    """The shape of a tensor as a shape value."""

def shape_to_tensor(input: ShapeLike) -> Tensor:
    """Convert a shape to an int64 vector of its dimensions."""

def sigmoid(x: TensorLike) -> Tensor:
    """The logistic sigmoid 1 / (1 + exp(-x))."""

def sign(x: TensorLike) -> Tensor:
    """The sign of x: 1, 0 or -1; NaN for NaN."""

def sin(x: TensorLike) -> Tensor:
    """The sine of x in radians, for x of any magnitude; NaN for infinities."""

def sinh(x: TensorLike) -> Tensor:
    """The hyperbolic sine."""

def size(x: TensorLike) -> Tensor:
    """The number of elements of x, a 0-d int64 tensor."""

def slice_scatter(
    input_tensor: TensorLike,
    src: TensorLike,
    start: ScalarLike,
    end: ScalarLike,
    step: ScalarLike,
    axis: int = 0,
) -> Tensor:
    """A copy of input_tensor with src written to its slice start:end:step along `axis`. Indices have the rules of
    `strided_slice`; the step must be positive.
    """

def sort(x: TensorLike, axis: int = -1, descending: bool = False) -> Tensor:
    """Sort along `axis`. A NaN is the greatest value: last, or first if `descending`."""

def split(x: TensorLike, indices_or_sections: ExprLike, axis: int = 0) -> Any:
    """Split x along `axis` into a tuple of parts: a number of parts of equal size, the last of which may be smaller; or
    the parts between given indices, which may be symbolic. One part is returned as a tensor, not a tuple, as in TVM. A
    size that cannot be split in this way is refused, or is an error at run time.
    """

def sqrt(x: TensorLike) -> Tensor:
    """The square root: NaN below 0."""

def square(x: TensorLike) -> Tensor:
    """x * x; integers modulo 2**bits."""

def squeeze(x: TensorLike, axis: Sequence[int] | int | None = None) -> Tensor:
    """Remove axes of size 1; without `axis`, all of them. In that case the rank of the result is unknown if a dimension
    is symbolic, and determined at run time.
    """

def stack(tensors: TupleLike, axis: int = 0) -> Tensor:
    """Join tensors of one shape along a new axis, which is axis `axis` of the result."""

def std(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Tensor:
    """The standard deviation: the square root of `variance`; NaN of no elements.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: Whether the reduced axes are kept with size 1.
    """

def strided_slice(
    x: TensorLike,
    axes: ShapeLike,
    begin: ShapeLike,
    end: ShapeLike,
    strides: ShapeLike | None = None,
    assume_inbound: bool = False,
) -> Tensor:
    """x[begin:end:stride] along `axes`, with numpy's rules: a negative index counts from the end, indices are clamped
    to the axis, and a negative stride goes down from `begin` to just above `end`. With `assume_inbound`, begin and end
    are indices inside x, which is checked at run time, and the sizes of the result are simpler.
    """

def subtract(x1: Operand, x2: Operand) -> Tensor:
    """x1 - x2; integers modulo 2**bits."""

def sum(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Tensor:
    """The sum, in the argument's dtype; integers modulo 2**bits.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: Whether the reduced axes are kept with size 1.
    """

def take(x: Operand, indices: Operand, axis: int | None = None, mode: str = "fast") -> Tensor:
    """Slices of x at `indices` along `axis`, as `numpy.take`. An index out of range is clamped (modes "fast" and
    "clip", in which a negative index reads the first element), wraps around (mode "wrap"), or gives NaN (mode "nan",
    floats only). Slices of an axis of size 0 are 0, in mode "nan" NaN.

    axis: Axis of x that is indexed; None is allowed if x has one axis.
    """

def tan(x: TensorLike) -> Tensor:
    """The tangent of x in radians, for x of any magnitude; NaN for infinities."""

def tanh(x: TensorLike) -> Tensor:
    """The hyperbolic tangent."""

def tensor_to_scalar(x: TensorLike) -> Tensor:
    """Convert a 0-d tensor to a scalar."""

def tensor_to_shape(input: TensorLike) -> Tensor:
    """Convert an int64 vector to a shape with these dimensions."""

def threefry(x1: Operand, x2: Operand) -> Tensor:
    """The 64 random bits that Threefry-2x32 with 20 rounds (Salmon et al., 2011; the generator of JAX) makes of the key
    x1 and the count x2, each of two words of 32 bits, the first the high half.
    """

def tile(data: TensorLike, repeats: Sequence[int] | int) -> Tensor:
    """Repeat the whole tensor `repeats` times along each axis, as `numpy.tile`. Axes and repeats are aligned at the
    right; missing repeats are 1.
    """

def to_vdevice(x: TensorLike, dst_vdevice: str) -> Tensor:
    """x on a virtual device of the module: `R.to_vdevice(x, "llvm:0:global")`."""

def topk(
    data: TensorLike,
    k: int = 1,
    axis: int = -1,
    ret_type: str = "both",
    largest: bool = True,
    dtype: DTypeLike = "int32",
) -> Any:
    """The `k` greatest elements along `axis` in descending order, and their indices; with `largest=False` the smallest,
    in ascending order. Of equal elements the first come first. A NaN is the greatest value. `ret_type` selects the
    result: "both" (a tuple), "values" or "indices". A k below 1 means all elements; a k above the size is refused.

    dtype: Dtype of the indices.
    """

def tril(x: TensorLike, k: ScalarLike | None = None) -> Tensor:
    """The lower triangle of each matrix in x, up to the diagonal `k` places to the right of the main one; 0 above
    it.
    """

def triu(x: TensorLike, k: ScalarLike | None = None) -> Tensor:
    """The upper triangle of each matrix in x, from the diagonal `k` places to the right of the main one; 0 below it."""

def trunc(x: TensorLike) -> Tensor:
    """x truncated toward zero; integers are unchanged."""

def unique(
    x: TensorLike,
    sorted: bool = True,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
) -> Any:
    """The unique values of x (figure 3 of the paper), or unique slices along `axis`: in ascending order or, without
    `sorted`, in the order of first appearance. With return_index, return_inverse or return_counts the result is a tuple
    that also has int64 vectors: the index in x of each value's first appearance, the index of each element of x among
    the values, and the count of each value. Without `axis`, indices are those of the flattened x.
    """

def variance(
    x: TensorLike,
    axis: Sequence[int] | int | None = None,
    keepdims: bool = False,
) -> Tensor:
    """The population variance, as `numpy.var`: the mean of the squared deviations from the mean. NaN of no elements.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: Whether the reduced axes are kept with size 1.
    """

def where(condition: Operand, x1: Operand, x2: Operand) -> Tensor:
    """x1 where the condition is true, else x2; all three are broadcast together."""

def wrap_param(data: TensorLike, dtype: DTypeLike = "float32") -> Tensor:
    """Convert a model parameter to `dtype`, by the rules of `astype`."""

def zeros(shape: ShapeLike, dtype: DTypeLike) -> Tensor:
    """A tensor of zeros."""

def zeros_like(x: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """Zeros of the shape of x; the dtype is `dtype`, or that of x."""

class _builtin:
    @staticmethod
    def stop_lift_params(x: TensorLike) -> Tensor:
        """x, as a barrier: computations on it are not lifted into the function that transforms parameters."""

builtin: _builtin

class _grad:
    @staticmethod
    def avg_pool2d_backward(
        output_grad: TensorLike,
        data: TensorLike,
        pool_size: Sequence[int] | int = 1,
        strides: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        dilation: Sequence[int] | int = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
        layout: str = "NCHW",
        out_layout: str | None = None,
    ) -> Tensor:
        """The gradient of `nn.avg_pool2d` with respect to data, given the gradient `output_grad` of its result. Each
        window's gradient is divided equally among its elements, counted padding included.

        pool_size: Window size: one number, or one for each spatial axis.

        strides: Stride: one number, or one for each spatial axis.

        padding: How far windows may extend beyond data: one number, one for each spatial axis, or all before and then
        all after.

        dilation: Distance of the elements of a window: one number, or one for each spatial axis.

        ceil_mode: Whether the number of windows is rounded up: a last window may extend beyond the padding if it starts before
        it.

        count_include_pad: Whether an average counts padding, as zeros. No effect on a maximum.

        out_layout: Layout of the result; None: the layout of data.
        """
    @staticmethod
    def barrier(x: TensorLike, after: TensorLike) -> Tensor:
        """x, but not before the value `after` is there. What is computed from it is no other computation's equal: so what a
        backward pass recomputes is computed then, and not kept.
        """
    @staticmethod
    def end_checkpoint(x: TensorLike) -> Tensor:
        """x, as an output of a gradient checkpointing stage: values inside the stage are recomputed for the gradient
        instead of being kept.
        """
    @staticmethod
    def max_pool2d_backward(
        output_grad: TensorLike,
        data: TensorLike,
        pool_size: Sequence[int] | int = 1,
        strides: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        dilation: Sequence[int] | int = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
        layout: str = "NCHW",
        out_layout: str | None = None,
    ) -> Tensor:
        """The gradient of `nn.max_pool2d` with respect to data, given the gradient `output_grad` of its result. Each
        window's gradient goes to its largest element: a NaN first, else the first of equal elements in row-major order.

        pool_size: Window size: one number, or one for each spatial axis.

        strides: Stride: one number, or one for each spatial axis.

        padding: How far windows may extend beyond data: one number, one for each spatial axis, or all before and then
        all after.

        dilation: Distance of the elements of a window: one number, or one for each spatial axis.

        ceil_mode: Whether the number of windows is rounded up: a last window may extend beyond the padding if it starts before
        it.

        count_include_pad: Whether an average counts padding, as zeros. No effect on a maximum.

        out_layout: Layout of the result; None: the layout of data.
        """
    @staticmethod
    def nll_loss_backward(
        output_grad: TensorLike,
        predictions: TensorLike,
        targets: TensorLike,
        weights: TensorLike | None = None,
        reduction: str = "mean",
        ignore_index: int = -100,
    ) -> Tensor:
        """The gradient of `nn.nll_loss` with respect to predictions, given the gradient `output_grad` of its result. At the
        class t of each target it is -weights[t] * output_grad, divided by the sum of the weights for "mean". It is 0
        elsewhere, and for ignored targets.

        reduction: "mean", "sum" or "none": the reduction of the loss.
        """
    @staticmethod
    def no_grad(x: TensorLike) -> Tensor:
        """x, treated as a constant by differentiation."""
    @staticmethod
    def start_checkpoint(x: TensorLike) -> Tensor:
        """x, as an input of a gradient checkpointing stage: values inside the stage, which are those that depend on it and
        on no output of the stage, are recomputed for the gradient instead of being kept.
        """
    @staticmethod
    def take_backward(
        output_grad: TensorLike,
        x: TensorLike,
        indices: TensorLike,
        axis: int | None = None,
        mode: str = "fast",
    ) -> Tensor:
        """The gradient of `take` (mode "fast") with respect to x: each slice of `output_grad` is added to a tensor of zeros
        at its index, clamped if out of range.

        axis: Axis of x that was indexed; None is allowed if x has one axis.

        mode: The mode of `take`: "fast", "clip", or "" (TVM's spelling of no mode).
        """

grad: _grad

class _image:
    @staticmethod
    def affine_grid(data: TensorLike, size: ShapeLike, align_corners: bool = True) -> Tensor:
        """A sampling grid: the affine transforms data, (batch, 2, 3) or (batch, 3, 4), applied to the coordinates of an
        evenly spaced grid of `size`. The result is (batch, 2, H, W) or (batch, 3, D, H, W). An axis of size 1 has
        coordinate 0.

        align_corners: Whether -1 and 1 are the centres of the first and last elements; otherwise their outer edges.
        """
    @staticmethod
    def grid_sample(
        data: TensorLike,
        grid: TensorLike,
        method: str = "bilinear",
        layout: str = "NCHW",
        padding_mode: str = "zeros",
        align_corners: bool = False,
    ) -> Tensor:
        """Sample data at the coordinates `grid`, (batch, 2, H, W) or (batch, 3, D, H, W), with coordinates along axis 1, as
        from `image.affine_grid`. The nearest element of a position halfway between two is the even one. A NaN coordinate
        gives NaN; with method "nearest" it reads index 0.

        method: Interpolation: "nearest", "bilinear" (two elements along each axis) or "bicubic" (four).

        layout: Layout of data and of the result: the letters N, C, H, W, and D for three spatial axes; channels may be divided
        into blocks.

        padding_mode: Values outside of data: "zeros", "border" (the nearest element), or "reflection" (data mirrored).

        align_corners: Whether -1 and 1 are the centres of the first and last elements; otherwise their outer edges.
        """
    @staticmethod
    def resize2d(
        data: TensorLike,
        size: ShapeLike,
        roi: Sequence[float] | float | None = None,
        layout: str = "NCHW",
        method: str = "linear",
        coordinate_transformation_mode: str = "half_pixel",
        rounding_method: str = "round",
        cubic_alpha: float = -0.75,
        cubic_exclude: int = 0,
        extrapolation_value: float = 0.0,
        out_dtype: DTypeLike | None = None,
    ) -> Tensor:
        """Resize the two spatial axes of data to `size`. Each element is a weighted sum of the elements around its position
        in data. Beyond the ends of an axis the nearest element is read.

        roi: Mode tf_crop_and_resize: the region of interest, as (starts, ends) along the spatial axes; 0 is the first element
        of an axis and 1 the last.

        method: Interpolation: "nearest_neighbor", "linear" (two elements along each axis) or "cubic" (four).

        coordinate_transformation_mode: The mapping from an index of the result to a position in data, by ONNX's name.

        rounding_method: Rounding to the nearest element: "round" (halves to even), "round_prefer_floor", "round_prefer_ceil", "floor" or
        "ceil". "": round for align_corners, else floor.

        cubic_alpha: Coefficient of the cubic spline.

        cubic_exclude: 1: elements outside of data get no cubic weight, and the other weights are normalised. 0: the nearest element is
        read instead.

        extrapolation_value: Mode tf_crop_and_resize: the value outside of data.

        out_dtype: Dtype of the result; None: the dtype of data. Fractions are truncated toward 0 in integer results; a sum within
        `SLACK` of a whole number counts as that number.
        """
    @staticmethod
    def resize3d(
        data: TensorLike,
        size: ShapeLike,
        roi: Sequence[float] | float | None = None,
        layout: str = "NCDHW",
        method: str = "linear",
        coordinate_transformation_mode: str = "half_pixel",
        rounding_method: str = "",
        cubic_alpha: float = -0.75,
        cubic_exclude: int = 0,
        extrapolation_value: float = 0.0,
        out_dtype: DTypeLike | None = None,
    ) -> Tensor:
        """Resize the three spatial axes of data to `size`. Each element is a weighted sum of the elements around its
        position in data. Beyond the ends of an axis the nearest element is read.

        roi: Mode tf_crop_and_resize: the region of interest, as (starts, ends) along the spatial axes; 0 is the first element
        of an axis and 1 the last.

        method: Interpolation: "nearest_neighbor", "linear" (two elements along each axis) or "cubic" (four).

        coordinate_transformation_mode: The mapping from an index of the result to a position in data, by ONNX's name.

        rounding_method: Rounding to the nearest element: "round" (halves to even), "round_prefer_floor", "round_prefer_ceil", "floor" or
        "ceil". "": round for align_corners, else floor.

        cubic_alpha: Coefficient of the cubic spline.

        cubic_exclude: 1: elements outside of data get no cubic weight, and the other weights are normalised. 0: the nearest element is
        read instead.

        extrapolation_value: Mode tf_crop_and_resize: the value outside of data.

        out_dtype: Dtype of the result; None: the dtype of data. Fractions are truncated toward 0 in integer results; a sum within
        `SLACK` of a whole number counts as that number.
        """

image: _image

class _inspect:
    @staticmethod
    def tensor_byte_offset(x: TensorLike) -> Tensor:
        """The offset of the first element in bytes."""
    @staticmethod
    def tensor_dtype_bits(x: TensorLike) -> Tensor:
        """Bits per element."""
    @staticmethod
    def tensor_dtype_code(x: TensorLike) -> Tensor:
        """The DLPack type code of the dtype: 0 for signed integers, 1 unsigned, 2 floats, 4 bfloat, 6 bool."""
    @staticmethod
    def tensor_dtype_lanes(x: TensorLike) -> Tensor:
        """Lanes per element: always 1, since elements are scalars."""
    @staticmethod
    def tensor_elem_offset(x: TensorLike) -> Tensor:
        """The offset of the first element in elements."""
    @staticmethod
    def tensor_ndim(x: TensorLike) -> Tensor:
        """The number of dimensions."""
    @staticmethod
    def tensor_shape_i(x: TensorLike, axis: ScalarLike) -> Tensor:
        """The size of an axis."""
    @staticmethod
    def tensor_stride_i(x: TensorLike, axis: ScalarLike) -> Tensor:
        """The stride of an axis, in elements."""

inspect: _inspect

class _nn:
    @staticmethod
    def adaptive_avg_pool1d(
        data: TensorLike,
        output_size: Sequence[int] | int | None = None,
        layout: str = "NCW",
        out_layout: str | None = None,
    ) -> Tensor:
        """Adaptive average pooling over one axis: the mean of each of `output_size` windows. Windows overlap where the axis
        is not divisible by their number. An empty window gives NaN.

        output_size: Number of windows along each spatial axis; None: the size of the axis is kept.

        out_layout: Layout of the result; None: the layout of data.
        """
    @staticmethod
    def adaptive_avg_pool2d(
        data: TensorLike,
        output_size: Sequence[int] | int | None = None,
        layout: str = "NCHW",
        out_layout: str | None = None,
    ) -> Tensor:
        """Adaptive average pooling over two axes: the mean of each of `output_size` windows. Windows overlap where an axis
        is not divisible by their number. An empty window gives NaN.

        output_size: Number of windows along each spatial axis; None: the size of the axis is kept.

        out_layout: Layout of the result; None: the layout of data.
        """
    @staticmethod
    def adaptive_avg_pool3d(
        data: TensorLike,
        output_size: Sequence[int] | int | None = None,
        layout: str = "NCDHW",
        out_layout: str | None = None,
    ) -> Tensor:
        """Adaptive average pooling over three axes: the mean of each of `output_size` windows. Windows overlap where an
        axis is not divisible by their number. An empty window gives NaN.

        output_size: Number of windows along each spatial axis; None: the size of the axis is kept.

        out_layout: Layout of the result; None: the layout of data.
        """
    @staticmethod
    def attention(
        query: TensorLike,
        key: TensorLike,
        value: TensorLike,
        bias: TensorLike | None = None,
        scale: float | None = None,
        causal_mask: str | None = None,
        window_size: int | None = None,
    ) -> Tensor:
        """Multi-head attention: softmax(query @ key^T * scale + bias) @ value. `query` is (batch, queries, heads, width),
        `key` and `value` are (batch, keys, key heads, width), and `bias` is broadcast to (batch, heads, queries, keys).
        With grouped-query attention the number of key heads divides the number of heads, and neighbouring heads share a key
        head. A query whose keys are all masked, or whose scores are all minus infinity, gives 0.

        scale: Factor of the scores; None: 1 / sqrt(width).

        causal_mask: "TopLeft": query i attends to the keys up to i. "BottomRight": query i attends to the keys up to i + |keys -
        queries|. None: no mask.

        window_size: Sliding window: the number of keys, up to the diagonal of the mask, that a query attends to; None: all.
        """
    @staticmethod
    def attention_bias(
        query: TensorLike,
        key: TensorLike,
        value: TensorLike,
        bias: TensorLike | None = None,
        scale: float | None = None,
        causal_mask: str | None = None,
        window_size: int | None = None,
    ) -> Tensor:
        """`nn.attention` under the name that TVM prints for calls with a bias.

        scale: Factor of the scores; None: 1 / sqrt(width).

        causal_mask: "TopLeft": query i attends to the keys up to i. "BottomRight": query i attends to the keys up to i + |keys -
        queries|. None: no mask.

        window_size: Sliding window: the number of keys, up to the diagonal of the mask, that a query attends to; None: all.
        """
    @staticmethod
    def attention_var_len(
        queries: TensorLike,
        keys: TensorLike,
        values: TensorLike,
        seqstart_q: TensorLike,
        max_seqlen_q: TensorLike,
        seqstart_k: TensorLike | None = None,
        max_seqlen_k: TensorLike | None = None,
        scale: float | None = None,
        causal_mask: str | None = None,
        window_size: int | None = None,
    ) -> Tensor:
        """Attention within each of several sequences packed along axis 1 of query (1, total queries, heads, width), key and
        value. Sequence s has the queries from seqstart_q[s] up to seqstart_q[s + 1], and the keys from seqstart_k[s] (None:
        same as seqstart_q) up to seqstart_k[s + 1]. The offsets must not decrease. A query gives 0 if it is in no sequence,
        if all its keys are masked, or if all its scores are minus infinity. The maximum lengths max_seqlen_q and
        max_seqlen_k are accepted and not used.

        scale: Factor of the scores; None: 1 / sqrt(width).

        causal_mask: "TopLeft": query i of a sequence attends to its keys up to i. "BottomRight": up to i + |keys - queries|. None: no
        mask.

        window_size: Sliding window: the number of keys, up to the diagonal of the mask, that a query attends to; None: all.
        """
    @staticmethod
    def avg_pool1d(
        data: TensorLike,
        pool_size: Sequence[int] | int = 1,
        strides: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        dilation: Sequence[int] | int = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        layout: str = "NCW",
        out_layout: str | None = None,
    ) -> Tensor:
        """1-D average pooling: the mean of each window; 0 if nothing is counted. `strides` is the distance of windows.

        pool_size: Window size: one number, or one for each spatial axis.

        strides: Stride: one number, or one for each spatial axis.

        padding: How far windows may extend beyond data: one number, one for each spatial axis, or all before and then
        all after.

        dilation: Distance of the elements of a window: one number, or one for each spatial axis.

        ceil_mode: Whether the number of windows is rounded up: a last window may extend beyond the padding if it starts before
        it.

        count_include_pad: Whether an average counts padding, as zeros. No effect on a maximum.

        out_layout: Layout of the result; None: the layout of data.
        """
    @staticmethod
    def avg_pool2d(
        data: TensorLike,
        pool_size: Sequence[int] | int = 1,
        strides: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        dilation: Sequence[int] | int = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
        layout: str = "NCHW",
        out_layout: str | None = None,
    ) -> Tensor:
        """2-D average pooling: the mean of each window; 0 if nothing is counted. `strides` is the distance of windows.

        pool_size: Window size: one number, or one for each spatial axis.

        strides: Stride: one number, or one for each spatial axis.

        padding: How far windows may extend beyond data: one number, one for each spatial axis, or all before and then
        all after.

        dilation: Distance of the elements of a window: one number, or one for each spatial axis.

        ceil_mode: Whether the number of windows is rounded up: a last window may extend beyond the padding if it starts before
        it.

        count_include_pad: Whether an average counts padding, as zeros. No effect on a maximum.

        out_layout: Layout of the result; None: the layout of data.
        """
    @staticmethod
    def avg_pool3d(
        data: TensorLike,
        pool_size: Sequence[int] | int = 1,
        strides: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        dilation: Sequence[int] | int = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        layout: str = "NCDHW",
        out_layout: str | None = None,
    ) -> Tensor:
        """3-D average pooling: the mean of each window; 0 if nothing is counted. `strides` is the distance of windows.

        pool_size: Window size: one number, or one for each spatial axis.

        strides: Stride: one number, or one for each spatial axis.

        padding: How far windows may extend beyond data: one number, one for each spatial axis, or all before and then
        all after.

        dilation: Distance of the elements of a window: one number, or one for each spatial axis.

        ceil_mode: Whether the number of windows is rounded up: a last window may extend beyond the padding if it starts before
        it.

        count_include_pad: Whether an average counts padding, as zeros. No effect on a maximum.

        out_layout: Layout of the result; None: the layout of data.
        """
    @staticmethod
    def batch_flatten(data: TensorLike) -> Tensor:
        """Flatten all axes except the first, in row-major order."""
    @staticmethod
    def batch_norm(
        data: TensorLike,
        gamma: TensorLike,
        beta: TensorLike,
        moving_mean: TensorLike,
        moving_var: TensorLike,
        axis: int,
        epsilon: float = 1e-05,
        center: bool = True,
        scale: bool = True,
        momentum: float = 0.1,
        training: bool = True,
    ) -> tuple[Tensor, ...]:
        """Batch normalisation: (data - mean) / sqrt(variance + epsilon) * gamma + beta for each index of `axis` (Ioffe and
        Szegedy, 2015). The result is a tuple: the normalised data, moving_mean and moving_var. In training, mean and
        variance are those of the data, and the moving statistics are updated to (1 - momentum) * old + momentum * new.
        Otherwise the moving statistics are used, and returned unchanged.

        axis: The channel axis.

        epsilon: Added to the variance under the root.

        center: Whether beta is added; otherwise it is ignored.

        scale: Whether to multiply by gamma; otherwise it is ignored.

        momentum: Weight of the data's statistics in the update of the moving statistics.

        training: Whether to use the statistics of the data, not the moving ones.
        """
    @staticmethod
    def conv1d(
        data: TensorLike,
        weight: TensorLike,
        strides: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        dilation: Sequence[int] | int = 1,
        groups: int = 1,
        data_layout: str = "NCW",
        kernel_layout: str = "OIW",
        out_layout: str | None = None,
        out_dtype: DTypeLike | None = None,
    ) -> Tensor:
        """1-D convolution: the sum of data * weight over input channels and the kernel's window. `padding` zeros surround
        data, `strides` is the distance of windows, `dilation` that of the elements of a window.

        strides: Stride: one number, or one for each spatial axis.

        padding: Zero padding of data: one number, one for each spatial axis, or all before and then all after.

        dilation: Distance of the kernel's elements: one number, or one for each spatial axis.

        groups: Number of channel groups; a group's outputs depend only on the inputs of that group.

        out_layout: Layout of the result; None: the layout of data.

        out_dtype: Dtype of the result; None: the dtype of data.
        """
    @staticmethod
    def conv1d_transpose(
        data: TensorLike,
        weight: TensorLike,
        strides: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        output_padding: Sequence[int] | int = 0,
        dilation: Sequence[int] | int = 1,
        groups: int = 1,
        data_layout: str = "NCW",
        kernel_layout: str = "IOW",
        out_layout: str | None = None,
        out_dtype: DTypeLike | None = None,
    ) -> Tensor:
        """1-D transposed convolution: each element of data times the weight is added to a window of the result. `strides`
        is the distance of windows, `dilation` that of the elements of a window; `padding` elements are cropped at the
        ends.

        strides: Stride: one number, or one for each spatial axis.

        padding: Elements cropped at the ends: one number, one for each spatial axis, or all before and then all after.

        output_padding: Additional elements at the end of each axis of the result; less than the stride or the dilation.

        dilation: Distance of the kernel's elements: one number, or one for each spatial axis.

        groups: Number of channel groups; a group's outputs depend only on the inputs of that group.

        out_layout: Layout of the result; None: the layout of data.

        out_dtype: Dtype of the result; None: the dtype of data.
        """
    @staticmethod
    def conv2d(
        data: TensorLike,
        weight: TensorLike,
        strides: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        dilation: Sequence[int] | int = 1,
        groups: int = 1,
        data_layout: str = "NCHW",
        kernel_layout: str = "OIHW",
        out_layout: str | None = None,
        out_dtype: DTypeLike | None = None,
    ) -> Tensor:
        """2-D convolution: the sum of data * weight over input channels and the kernel's window. `padding` zeros surround
        data, `strides` is the distance of windows, `dilation` that of the elements of a window.

        strides: Stride: one number, or one for each spatial axis.

        padding: Zero padding of data: one number, one for each spatial axis, or all before and then all after.

        dilation: Distance of the kernel's elements: one number, or one for each spatial axis.

        groups: Number of channel groups; a group's outputs depend only on the inputs of that group.

        out_layout: Layout of the result; None: the layout of data.

        out_dtype: Dtype of the result; None: the dtype of data.
        """
    @staticmethod
    def conv2d_transpose(
        data: TensorLike,
        weight: TensorLike,
        strides: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        output_padding: Sequence[int] | int = 0,
        dilation: Sequence[int] | int = 1,
        groups: int = 1,
        data_layout: str = "NCHW",
        kernel_layout: str = "IOHW",
        out_layout: str | None = None,
        out_dtype: DTypeLike | None = None,
    ) -> Tensor:
        """2-D transposed convolution: each element of data times the weight is added to a window of the result. `strides`
        is the distance of windows, `dilation` that of the elements of a window; `padding` elements are cropped at the
        ends.

        strides: Stride: one number, or one for each spatial axis.

        padding: Elements cropped at the ends: one number, one for each spatial axis, or all before and then all after.

        output_padding: Additional elements at the end of each axis of the result; less than the stride or the dilation.

        dilation: Distance of the kernel's elements: one number, or one for each spatial axis.

        groups: Number of channel groups; a group's outputs depend only on the inputs of that group.

        out_layout: Layout of the result; None: the layout of data.

        out_dtype: Dtype of the result; None: the dtype of data.
        """
    @staticmethod
    def conv3d(
        data: TensorLike,
        weight: TensorLike,
        strides: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        dilation: Sequence[int] | int = 1,
        groups: int = 1,
        data_layout: str = "NCDHW",
        kernel_layout: str = "OIDHW",
        out_layout: str | None = None,
        out_dtype: DTypeLike | None = None,
    ) -> Tensor:
        """3-D convolution: the sum of data * weight over input channels and the kernel's window. `padding` zeros surround
        data, `strides` is the distance of windows, `dilation` that of the elements of a window.

        strides: Stride: one number, or one for each spatial axis.

        padding: Zero padding of data: one number, one for each spatial axis, or all before and then all after.

        dilation: Distance of the kernel's elements: one number, or one for each spatial axis.

        groups: Number of channel groups; a group's outputs depend only on the inputs of that group.

        out_layout: Layout of the result; None: the layout of data.

        out_dtype: Dtype of the result; None: the dtype of data.
        """
    @staticmethod
    def conv3d_transpose(
        data: TensorLike,
        weight: TensorLike,
        strides: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        output_padding: Sequence[int] | int = 0,
        dilation: Sequence[int] | int = 1,
        groups: int = 1,
        data_layout: str = "NCDHW",
        kernel_layout: str = "IODHW",
        out_layout: str | None = None,
        out_dtype: DTypeLike | None = None,
    ) -> Tensor:
        """3-D transposed convolution: each element of data times the weight is added to a window of the result. `strides`
        is the distance of windows, `dilation` that of the elements of a window; `padding` elements are cropped at the
        ends.

        strides: Stride: one number, or one for each spatial axis.

        padding: Elements cropped at the ends: one number, one for each spatial axis, or all before and then all after.

        output_padding: Additional elements at the end of each axis of the result; less than the stride or the dilation.

        dilation: Distance of the kernel's elements: one number, or one for each spatial axis.

        groups: Number of channel groups; a group's outputs depend only on the inputs of that group.

        out_layout: Layout of the result; None: the layout of data.

        out_dtype: Dtype of the result; None: the dtype of data.
        """
    @staticmethod
    def cross_entropy_with_logits(predictions: TensorLike, labels: TensorLike) -> Tensor:
        """The sum of -predictions * labels, a 0-d tensor. With several axes it is divided by the size of the first (the
        batch); an empty batch gives NaN. Integers are divided as by `divide`: rounded toward zero, 0 for an empty batch.
        """
    @staticmethod
    def dropout(data: TensorLike, rate: float = 0.5) -> tuple[Tensor, ...]:
        """Dropout at inference: data unchanged, and a mask of ones of its shape and dtype. Nothing is dropped, whatever the
        rate.

        rate: Fraction of elements that training would drop.
        """
    @staticmethod
    def expert_linear(
        data: TensorLike,
        weight: TensorLike,
        experts: TensorLike,
        bias: TensorLike | None = None,
    ) -> Tensor:
        """A linear map of each row by several of many weights: result[i, r] = weight[experts[i, r]] @ data[i] +
        bias[experts[i, r]]. `data` is (rows, in), `weight` (experts, out, in), `experts` (rows, choices), `bias` (experts,
        out); the result is (rows, choices, out). A number of an expert out of range is clamped. Accumulated as in `matmul`.
        The work is that of the chosen experts, and a row's result is the same to the bit whatever the other rows are.
        """
    @staticmethod
    def gelu(x: TensorLike) -> Tensor:
        """The Gaussian error linear unit (GELU): x / 2 * (1 + erf(x / sqrt(2))) (Hendrycks and Gimpel, 2016)."""
    @staticmethod
    def gelu_tanh(x: TensorLike) -> Tensor:
        """The tanh approximation of `gelu`, as used by GPT-2."""
    @staticmethod
    def group_norm(
        data: TensorLike,
        gamma: TensorLike,
        beta: TensorLike,
        num_groups: int,
        channel_axis: int,
        axes: Sequence[int] | int,
        epsilon: float = 1e-05,
        center: bool = True,
        scale: bool = True,
    ) -> Tensor:
        """Group normalisation: (data - mean) / sqrt(variance + epsilon) over `axes` and the channels of a group, then *
        gamma + beta of the channel (Wu and He, 2018). The channels are divided evenly into groups.

        num_groups: Number of groups that the channels are divided into.

        channel_axis: The channel axis, which is divided into groups; gamma and beta are vectors along it.

        axes: Axes over which the statistics are computed, without the channel axis.

        epsilon: Added to the variance under the root.

        center: Whether beta is added; otherwise it is ignored.

        scale: Whether to multiply by gamma; otherwise it is ignored.
        """
    @staticmethod
    def gru(
        x: TensorLike,
        weights: TupleLike,
        initial_h: TensorLike | None = None,
        lengths: TensorLike | None = None,
        num_layers: int = 1,
        direction: str = "forward",
        biases: int = 2,
        batch_first: bool = False,
        gates: str = "rzn",
        activations: Sequence[str] = (),
        clip: float | None = None,
        reset_after: bool = True,
    ) -> tuple[Tensor, ...]:
        """Layers of gated recurrent units (Cho et al., 2014), as `torch.nn.GRU` and ONNX's `GRU`. `x` is (length, batch,
        input). `weights` is a tuple: for each layer, for each of its D = 1 or 2 directions, the weight of the input (3 *
        hidden, input), that of the state (3 * hidden, hidden), and `biases` biases (3 * hidden,). The first state,
        `initial_h` (layers * D, batch, hidden), is zeros if left out. `lengths` (batch,) says how many steps each sequence
        has: outputs after them are 0, the last state is that after the last of them, and backward directions begin there.
        The result is a tuple: outputs (length, batch, D * hidden), and the last h.

        num_layers: Layers, each of which takes the outputs of the one before.

        direction: forward, reverse (from the end of each sequence to its start) or bidirectional (both, outputs side by side).

        biases: Biases of each direction: 2 (of the input and of the state, as torch has them), 1 (their sum) or 0.

        batch_first: Are `x` and the outputs (batch, length, …)? The states are (…, batch, …) either way.

        gates: The order of the gates in weights and biases: reset, update, new. ONNX's is `zrn`.

        activations: The activations of a direction, or of both one after the other: affine, elu, hard_sigmoid, leaky_relu, relu,
        scaled_tanh, sigmoid, softplus, softsign, tanh, thresholded_relu, perhaps with numbers: `leaky_relu(0.2)`.

        clip: Bound of the absolute values that the gates' activations take, but not that of the cell's state; None: none.

        reset_after: Is the reset gate multiplied with the product of state and weight, bias included (torch; ONNX's
        linear_before_reset=1), or with the state before the product?
        """
    @staticmethod
    def instance_norm(
        data: TensorLike,
        gamma: TensorLike,
        beta: TensorLike,
        channel_axis: int,
        axes: Sequence[int] | int,
        epsilon: float = 1e-05,
        center: bool = True,
        scale: bool = True,
    ) -> Tensor:
        """Instance normalisation: (data - mean) / sqrt(variance + epsilon) over `axes`, then * gamma + beta of the channel
        (Ulyanov, Vedaldi and Lempitsky, 2016).

        channel_axis: The channel axis: gamma and beta are vectors along it.

        axes: Axes over which the statistics are computed, without the channel axis.

        epsilon: Added to the variance under the root.

        center: Whether beta is added; otherwise it is ignored.

        scale: Whether to multiply by gamma; otherwise it is ignored.
        """
    @staticmethod
    def layer_norm(
        data: TensorLike,
        gamma: TensorLike,
        beta: TensorLike,
        axes: Sequence[int] | int = (-1,),
        epsilon: float = 1e-05,
        center: bool = True,
        scale: bool = True,
    ) -> Tensor:
        """Layer normalisation: (data - mean) / sqrt(variance + epsilon) * gamma + beta, over `axes` (Ba, Kiros and Hinton,
        2016).

        axes: Axes over which the statistics are computed.

        epsilon: Added to the variance (or mean square) under the root.

        center: Whether beta is added; otherwise it is ignored.

        scale: Whether to multiply by gamma; otherwise it is ignored.
        """
    @staticmethod
    def leakyrelu(x: TensorLike, alpha: float = 0.01) -> Tensor:
        """Leaky ReLU: x where it is positive, else `alpha` * x.

        alpha: Slope on the negative side.
        """
    @staticmethod
    def log_softmax(data: TensorLike, axis: int = -1) -> Tensor:
        """Log-softmax: x - max - log(sum(exp(x - max))) along `axis`. It does not underflow as the logarithm of softmax
        would.

        axis: Axis along which the probabilities sum to 1.
        """
    @staticmethod
    def lstm(
        x: TensorLike,
        weights: TupleLike,
        initial_h: TensorLike | None = None,
        initial_c: TensorLike | None = None,
        lengths: TensorLike | None = None,
        num_layers: int = 1,
        direction: str = "forward",
        biases: int = 2,
        batch_first: bool = False,
        gates: str = "ifgo",
        activations: Sequence[str] = (),
        clip: float | None = None,
        projection: bool = False,
        peepholes: bool = False,
        input_forget: bool = False,
    ) -> tuple[Tensor, ...]:
        """Layers of long short-term memory (Hochreiter and Schmidhuber, 1997), as `torch.nn.LSTM` and ONNX's `LSTM`. `x` is
        (length, batch, input). `weights` is a tuple: for each layer, for each of its D = 1 or 2 directions, the weight of
        the input (4 * hidden, input), that of the state (4 * hidden, state), `biases` biases (4 * hidden,), with
        `projection` the weight (state, hidden) that maps outputs to states, and with `peepholes` the factors (3 * hidden,)
        of the cell for all gates but g; without a projection `state` is `hidden`. The first states, `initial_h` (layers *
        D, batch, state) and `initial_c` (layers * D, batch, hidden), are zeros if left out. `lengths` (batch,) says how
        many steps each sequence has: outputs after them are 0, the last states are those after the last of them, and
        backward directions begin there. The result is a tuple: outputs (length, batch, D * state), the last h and the last
        c.

        num_layers: Layers, each of which takes the outputs of the one before.

        direction: forward, reverse (from the end of each sequence to its start) or bidirectional (both, outputs side by side).

        biases: Biases of each direction: 2 (of the input and of the state, as torch has them), 1 (their sum) or 0.

        batch_first: Are `x` and the outputs (batch, length, …)? The states are (…, batch, …) either way.

        gates: The order of the gates in weights and biases: input, forget, cell (g), output. ONNX's is `iofg`. That of
        peepholes is the same, without g.

        activations: The activations of a direction, or of both one after the other: affine, elu, hard_sigmoid, leaky_relu, relu,
        scaled_tanh, sigmoid, softplus, softsign, tanh, thresholded_relu, perhaps with numbers: `leaky_relu(0.2)`.

        clip: Bound of the absolute values that the gates' activations take, but not that of the cell's state; None: none.

        projection: Has each direction a weight that maps outputs to states?

        peepholes: Has each direction factors of the cell for the gates?

        input_forget: Is the forget gate 1 minus the input gate?
        """
    @staticmethod
    def max_pool1d(
        data: TensorLike,
        pool_size: Sequence[int] | int = 1,
        strides: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        dilation: Sequence[int] | int = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
        layout: str = "NCW",
        out_layout: str | None = None,
    ) -> Tensor:
        """1-D max pooling: the maximum of each window, NaN if it contains one. `strides` is the distance of windows. A
        window entirely outside of data gives minus infinity, or the smallest integer.

        pool_size: Window size: one number, or one for each spatial axis.

        strides: Stride: one number, or one for each spatial axis.

        padding: How far windows may extend beyond data: one number, one for each spatial axis, or all before and then
        all after.

        dilation: Distance of the elements of a window: one number, or one for each spatial axis.

        ceil_mode: Whether the number of windows is rounded up: a last window may extend beyond the padding if it starts before
        it.

        count_include_pad: Whether an average counts padding, as zeros. No effect on a maximum.

        out_layout: Layout of the result; None: the layout of data.
        """
    @staticmethod
    def max_pool1d_indices(
        data: TensorLike,
        pool_size: Sequence[int] | int = 1,
        strides: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        dilation: Sequence[int] | int = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
        layout: str = "NCW",
        out_layout: str | None = None,
    ) -> Tensor:
        """Where the maximum of each window of `nn.max_pool1d` is: the first of equal elements, or the first NaN, int64.

        pool_size: Window size: one number, or one for each spatial axis.

        strides: Stride: one number, or one for each spatial axis.

        padding: How far windows may extend beyond data: one number, one for each spatial axis, or all before and then
        all after.

        dilation: Distance of the elements of a window: one number, or one for each spatial axis.

        ceil_mode: Whether the number of windows is rounded up: a last window may extend beyond the padding if it starts before
        it.

        count_include_pad: Whether an average counts padding, as zeros. No effect on a maximum.

        out_layout: Layout of the result; None: the layout of data.
        """
    @staticmethod
    def max_pool2d(
        data: TensorLike,
        pool_size: Sequence[int] | int = 1,
        strides: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        dilation: Sequence[int] | int = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
        layout: str = "NCHW",
        out_layout: str | None = None,
    ) -> Tensor:
        """2-D max pooling: the maximum of each window, NaN if it contains one. `strides` is the distance of windows. A
        window entirely outside of data gives minus infinity, or the smallest integer.

        pool_size: Window size: one number, or one for each spatial axis.

        strides: Stride: one number, or one for each spatial axis.

        padding: How far windows may extend beyond data: one number, one for each spatial axis, or all before and then
        all after.

        dilation: Distance of the elements of a window: one number, or one for each spatial axis.

        ceil_mode: Whether the number of windows is rounded up: a last window may extend beyond the padding if it starts before
        it.

        count_include_pad: Whether an average counts padding, as zeros. No effect on a maximum.

        out_layout: Layout of the result; None: the layout of data.
        """
    @staticmethod
    def max_pool2d_indices(
        data: TensorLike,
        pool_size: Sequence[int] | int = 1,
        strides: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        dilation: Sequence[int] | int = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
        layout: str = "NCHW",
        out_layout: str | None = None,
    ) -> Tensor:
        """Where the maximum of each window of `nn.max_pool2d` is, in row-major order over its plane: the first of equal
        elements, or the first NaN, int64.

        pool_size: Window size: one number, or one for each spatial axis.

        strides: Stride: one number, or one for each spatial axis.

        padding: How far windows may extend beyond data: one number, one for each spatial axis, or all before and then
        all after.

        dilation: Distance of the elements of a window: one number, or one for each spatial axis.

        ceil_mode: Whether the number of windows is rounded up: a last window may extend beyond the padding if it starts before
        it.

        count_include_pad: Whether an average counts padding, as zeros. No effect on a maximum.

        out_layout: Layout of the result; None: the layout of data.
        """
    @staticmethod
    def max_pool3d(
        data: TensorLike,
        pool_size: Sequence[int] | int = 1,
        strides: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        dilation: Sequence[int] | int = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
        layout: str = "NCDHW",
        out_layout: str | None = None,
    ) -> Tensor:
        """3-D max pooling: the maximum of each window, NaN if it contains one. `strides` is the distance of windows. A
        window entirely outside of data gives minus infinity, or the smallest integer.

        pool_size: Window size: one number, or one for each spatial axis.

        strides: Stride: one number, or one for each spatial axis.

        padding: How far windows may extend beyond data: one number, one for each spatial axis, or all before and then
        all after.

        dilation: Distance of the elements of a window: one number, or one for each spatial axis.

        ceil_mode: Whether the number of windows is rounded up: a last window may extend beyond the padding if it starts before
        it.

        count_include_pad: Whether an average counts padding, as zeros. No effect on a maximum.

        out_layout: Layout of the result; None: the layout of data.
        """
    @staticmethod
    def max_pool3d_indices(
        data: TensorLike,
        pool_size: Sequence[int] | int = 1,
        strides: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        dilation: Sequence[int] | int = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
        layout: str = "NCDHW",
        out_layout: str | None = None,
    ) -> Tensor:
        """Where the maximum of each window of `nn.max_pool3d` is, in row-major order over its volume: the first of equal
        elements, or the first NaN, int64.

        pool_size: Window size: one number, or one for each spatial axis.

        strides: Stride: one number, or one for each spatial axis.

        padding: How far windows may extend beyond data: one number, one for each spatial axis, or all before and then
        all after.

        dilation: Distance of the elements of a window: one number, or one for each spatial axis.

        ceil_mode: Whether the number of windows is rounded up: a last window may extend beyond the padding if it starts before
        it.

        count_include_pad: Whether an average counts padding, as zeros. No effect on a maximum.

        out_layout: Layout of the result; None: the layout of data.
        """
    @staticmethod
    def nll_loss(
        predictions: TensorLike,
        targets: TensorLike,
        weights: TensorLike | None = None,
        reduction: str = "mean",
        ignore_index: int = -100,
    ) -> Tensor:
        """Negative log-likelihood: -predictions[n, t, …] * weights[t] for each target t = targets[n, …]. predictions (n,
        classes, …) are log-probabilities; a vector of classes has one target. The reduction "sum" adds them up, "mean" also
        divides by the sum of the weights (NaN if there are none), and "none" keeps them. A target that is `ignore_index` or
        no valid class has weight 0.

        reduction: "mean", "sum" or "none".
        """
    @staticmethod
    def pad(
        data: TensorLike,
        pad_width: Sequence[int],
        pad_mode: str = "constant",
        pad_value: float = 0.0,
    ) -> Tensor:
        """Pad data. `pad_width` is the width of the border before and after each axis: (before_0, after_0, before_1, …).
        The border is `pad_value` (mode "constant"), the elements mirrored at the edge without the edge itself ("reflect":
        needs a size above the width), the edge element ("replicate": needs at least one element), or the elements of the
        other end ("circular": needs a size of at least the width).

        pad_width: Flat, or as pairs, one for each axis.
        """
    @staticmethod
    def page_slots(
        positions: TensorLike,
        starts: TensorLike,
        tables: TensorLike,
        page_size: int,
    ) -> Tensor:
        """The place in a paged cache of each token: page number * page_size + slot in the page, int64; -1 for a token that
        is in no sequence, or whose position is beyond its table. `positions` (tokens,) are those within the sequences, and
        starts and tables are as in `nn.paged_attention`.
        """
    @staticmethod
    def paged_attention(
        query: TensorLike,
        key_pages: TensorLike,
        value_pages: TensorLike,
        starts: TensorLike,
        tables: TensorLike,
        lengths: TensorLike,
        sinks: TensorLike | None = None,
        key_scales: TensorLike | None = None,
        value_scales: TensorLike | None = None,
        bias: TensorLike | None = None,
        lasts: TensorLike | None = None,
        scale: float | None = None,
        causal: bool = True,
        window_size: int | None = None,
        soft_cap: float | None = None,
    ) -> Tensor:
        """Attention of each token to the keys of its own sequence, which are in pages. `query` is (tokens, heads, width):
        the tokens of sequence s are those from starts[s] up to starts[s + 1], and they are its last ones. `key_pages` is
        (pages, key heads, width, page size) and `value_pages` (pages, key heads, page size, value width); page p of
        sequence s is number tables[s, p]. lengths[s] counts the keys of sequence s, with those of its tokens, which must be
        in the pages already. Integer pages have `key_scales` and `value_scales` (pages, key heads, page size). `sinks`
        (heads,) is for each head a score more in the softmax, that of no key. `bias` (heads, reach) is added to causal
        scores by distance, as T5 has it (Raffel et al., 2019): its last column for a token's own key, each one before for
        the key before, the first one for all that are further. `lasts` (tokens,) is for each token the last place of its
        sequence that it attends to, if it is after its own, as those of a picture read each other: it does not fall from
        one token of a sequence to the next. The result is (tokens, heads, value width); a token in no sequence gives 0, and
        every sequence's result is the same to the bit whatever the others are.

        scale: Factor of the scores; None: 1 / sqrt(width).

        causal: Does a token attend to no later one?

        window_size: Sliding window: the number of keys, up to its own, that a token attends to; None: all.

        soft_cap: Scores are soft_cap * tanh(score / soft_cap); None: as they are.
        """
    @staticmethod
    def pixel_shuffle(data: TensorLike, upscale_factor: int) -> Tensor:
        """Pixel shuffle: rearrange (…, C * r * r, H, W) to (…, C, H * r, W * r). Channel c * r * r + i * r + j holds the
        pixels at row i and column j of each r × r square (Shi et al., 2016).

        upscale_factor: The factor r: the side of a square.
        """
    @staticmethod
    def prelu(data: TensorLike, alpha: TensorLike, axis: int = 1) -> Tensor:
        """x where it is positive, else x * alpha (He et al., 2015). `alpha` has one element for each index of `axis`, or
        one element in all.

        axis: The channel axis: alpha is a vector along it.
        """
    @staticmethod
    def recurrent_panels(weight: TensorLike, gates: int) -> Tensor:
        """A weight (D, gates * units, depth) in the order in which `nn.recurrent_steps` multiplies it: (D, panels, depth,
        gates, 16), where panel p has units 16 * p to 16 * p + 15 of each gate. Units beyond the last one are zeros.
        """
    @staticmethod
    def recurrent_steps(
        inputs: TensorLike,
        weight: TensorLike,
        initial_h: TensorLike,
        initial_c: TensorLike | None = None,
        bias: TensorLike | None = None,
        peepholes: TensorLike | None = None,
        projection: TensorLike | None = None,
        lengths: TensorLike | None = None,
        *,
        cell: str,
        direction: str = "forward",
        batch_first: bool = False,
        activations: Sequence[str] = (),
        clip: float | None = None,
        input_forget: bool = False,
        reset_after: bool = True,
    ) -> tuple[Tensor, ...]:
        """The steps of an LSTM, a GRU or a simple recurrent layer, in D = 1 or 2 directions. `inputs` is (length, batch, D
        * gates * hidden): the products of the inputs with their weights, biases included, in a dtype of the state's or
        float32 where that is narrower. `weight` is that of the state, (D, gates * hidden, state) packed by
        `nn.recurrent_panels`, and `initial_h` (D, batch, state) the state before the first step; an LSTM has `initial_c`
        (D, batch, hidden) too. The gates are in torch's order. `bias` (D, hidden) is added to the state's product for the
        new gate of a GRU with `reset_after`. `peepholes` (D, 3, hidden) are factors of an LSTM's cell state for the input,
        forget and output gate. `projection` (D, state, hidden), packed likewise, maps the output of an LSTM; without,
        `state` is `hidden`. `lengths` (batch,) says how many steps each sequence has, from 0 to the length: after them
        outputs are 0, the last state is that after the last one, and backward directions begin there. The result is a
        tuple: outputs (length, batch, D * state), the last h, and of an LSTM the last c. The state is rounded to its dtype
        after each step.

        cell: lstm, gru or rnn.

        direction: forward, reverse or bidirectional.

        batch_first: Are `inputs` and outputs (batch, length, …)?

        activations: Names of the activations, perhaps with numbers (`leaky_relu(0.2)`), of a direction or of both; (): the cell's
        own.

        clip: Bound of the absolute values that the gates' activations take, but not that of the cell's state; None: none.

        input_forget: Is the forget gate of an LSTM 1 minus the input gate?

        reset_after: Is the reset gate of a GRU multiplied with the state's product, not with the state before it?
        """
    @staticmethod
    def relu(x: TensorLike) -> Tensor:
        """The rectified linear unit (ReLU): x where it is positive, else 0."""
    @staticmethod
    def relu6(x: TensorLike) -> Tensor:
        """ReLU6: x clamped to [0, 6]; NaN stays NaN."""
    @staticmethod
    def rms_norm(
        data: TensorLike,
        weight: TensorLike,
        axes: Sequence[int] | int = (-1,),
        epsilon: float = 1e-05,
    ) -> Tensor:
        """RMS normalisation: data / sqrt(mean square + epsilon) * weight, over `axes` (Zhang and Sennrich, 2019).

        axes: Axes over which the statistics are computed.

        epsilon: Added to the variance (or mean square) under the root.
        """
    @staticmethod
    def rnn(
        x: TensorLike,
        weights: TupleLike,
        initial_h: TensorLike | None = None,
        lengths: TensorLike | None = None,
        num_layers: int = 1,
        direction: str = "forward",
        biases: int = 2,
        batch_first: bool = False,
        gates: str = "h",
        activations: Sequence[str] = (),
        clip: float | None = None,
    ) -> tuple[Tensor, ...]:
        """Layers of simple recurrent cells (Elman, 1990), as `torch.nn.RNN` and ONNX's `RNN`: h = tanh(W x + U h + b). `x`
        is (length, batch, input). `weights` is a tuple: for each layer, for each of its D = 1 or 2 directions, the weight
        of the input (hidden, input), that of the state (hidden, hidden), and `biases` biases (hidden,). The first state,
        `initial_h` (layers * D, batch, hidden), is zeros if left out. `lengths` (batch,) says how many steps each sequence
        has: outputs after them are 0, the last state is that after the last of them, and backward directions begin there.
        The result is a tuple: outputs (length, batch, D * hidden), and the last h.

        num_layers: Layers, each of which takes the outputs of the one before.

        direction: forward, reverse (from the end of each sequence to its start) or bidirectional (both, outputs side by side).

        biases: Biases of each direction: 2 (of the input and of the state, as torch has them), 1 (their sum) or 0.

        batch_first: Are `x` and the outputs (batch, length, …)? The states are (…, batch, …) either way.

        gates: The order of the gates: there is only one.

        activations: The activations of a direction, or of both one after the other: affine, elu, hard_sigmoid, leaky_relu, relu,
        scaled_tanh, sigmoid, softplus, softsign, tanh, thresholded_relu, perhaps with numbers: `leaky_relu(0.2)`.

        clip: Bound of the absolute values that the gates' activations take, but not that of the cell's state; None: none.
        """
    @staticmethod
    def selu(x: TensorLike) -> Tensor:
        """The scaled exponential linear unit (SELU): scale * x where x is positive, else scale * alpha * (exp(x) - 1), with
        the constants of Klambauer et al., 2017.
        """
    @staticmethod
    def silu(x: TensorLike) -> Tensor:
        """The sigmoid linear unit (SiLU, swish): x * sigmoid(x)."""
    @staticmethod
    def softmax(data: TensorLike, axis: int = -1) -> Tensor:
        """Softmax: exp(x - max) / sum(exp(x - max)) along `axis`.

        axis: Axis along which the probabilities sum to 1.
        """
    @staticmethod
    def softplus(x: TensorLike, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
        """Softplus, a smooth ReLU: log(1 + exp(beta * x)) / beta; x itself where beta * x is above `threshold`.

        beta: Steepness: the factor of x in the exponential.

        threshold: Where beta * x is above this, the result is x.
        """

nn: _nn

class _vision:
    @staticmethod
    def all_class_non_max_suppression(
        boxes: TensorLike,
        scores: TensorLike,
        max_output_boxes_per_class: TensorLike,
        iou_threshold: TensorLike,
        score_threshold: TensorLike,
        output_format: str = "onnx",
    ) -> tuple[Tensor, ...]:
        """Non-maximum suppression per class of boxes (B, N, 4) with scores (B, C, N). It selects at most
        `max_output_boxes_per_class` boxes of each class, with a score above `score_threshold` and an IoU below
        `iou_threshold` with every selected box of a higher score. With `output_format` "onnx" the result is a tuple of rows
        (batch, class, box), int64, in descending order of scores within a class, and their number, (1,). With "tensorflow"
        it is a tuple of rows (class, box), (B, C * N, 2), their scores, and their number in each batch; unused rows are
        zeros.
        """
    @staticmethod
    def get_valid_counts(
        data: TensorLike,
        score_threshold: float = 0.0,
        id_index: int = 0,
        score_index: int = 1,
    ) -> tuple[Tensor, ...]:
        """The valid boxes of each batch of boxes (B, N, E): those with a score above `score_threshold` and a class that is
        not negative. The result is a tuple: their number, int32; the boxes in their order, padded with rows of -1; and
        their indices, int32, padded with -1.

        id_index: Position of the class in a box; negative: none.

        score_index: Position of the score in a box.
        """
    @staticmethod
    def multibox_transform_loc(
        cls_pred: TensorLike,
        loc_pred: TensorLike,
        anchor: TensorLike,
        clip: bool = False,
        threshold: float = 0.0,
        variances: Sequence[float] = (1.0, 1.0, 1.0, 1.0),
        keep_background: bool = True,
        apply_softmax: bool = True,
    ) -> tuple[Tensor, ...]:
        """Decode anchor boxes. The result is a tuple: boxes (ymin, xmin, ymax, xmax), (B, N, 4), decoded from offsets (x,
        y, w, h) to anchors (left, top, right, bottom); and scores, (B, C, N), the softmax of the class predictions over the
        classes, 0 below `threshold`.

        clip: Whether boxes are clipped to [0, 1].

        variances: Factors of the offsets x, y, w, h.

        keep_background: Whether class 0 keeps its scores; otherwise they are 0.

        apply_softmax: Whether predictions are logits; otherwise they are scores already.
        """
    @staticmethod
    def non_max_suppression(
        data: TensorLike,
        valid_count: TensorLike,
        indices: TensorLike,
        max_output_size: int = -1,
        iou_threshold: float = 0.5,
        force_suppress: bool = False,
        top_k: int = -1,
        coord_start: int = 2,
        score_index: int = 1,
        id_index: int = 0,
        return_indices: bool = True,
        invalid_to_bottom: bool = False,
        soft_nms_sigma: float = 0.0,
        score_threshold: float = 0.0,
    ) -> Any:
        """Non-maximum suppression. It selects, of the first `valid_count` boxes of each batch, in descending order of
        scores, those whose IoU with every selected box of their class is below `iou_threshold`. The result is a tuple of
        their `indices` (B, N), padded with -1, and their number, (B, 1). Without `return_indices` it is the boxes, with
        rows of -1 for suppressed ones. With a positive `soft_nms_sigma` scores are lowered instead (soft NMS), and the
        tuple begins with the boxes.

        max_output_size: Maximum number of boxes selected in a batch; below 1: no limit.

        force_suppress: Whether boxes of different classes suppress each other.

        top_k: Number of boxes of a batch that are considered, best first; below 1: all.

        coord_start: Position of the first of the four coordinates in a box.

        score_index: Position of the score in a box.

        id_index: Position of the class in a box; negative: none.

        invalid_to_bottom: Without `return_indices`: whether the selected boxes come first.

        soft_nms_sigma: Sigma of the Gaussian by which overlapping boxes lose score; 0: they are dropped.

        score_threshold: With `soft_nms_sigma`: boxes whose score falls below this are dropped.
        """
    @staticmethod
    def roi_align(
        data: TensorLike,
        rois: TensorLike,
        pooled_size: Sequence[int] | int,
        spatial_scale: float,
        sample_ratio: int = -1,
        aligned: bool = False,
        layout: str = "NCHW",
        mode: str = "avg",
    ) -> Tensor:
        """Pool each region of `rois` (image, x1, y1, x2, y2) to `pooled_size`. Each bin is the mean, or the maximum, of
        data sampled at evenly spaced points in the bin by bilinear interpolation; points outside of data are 0.

        pooled_size: Rows and columns of the result; one number for both.

        spatial_scale: The ratio of data's size to that of the original image.

        sample_ratio: Sampling points per bin along an axis; below 1: the size of the bin in elements, rounded up (at most about four
        times the size of data).

        aligned: Whether a region may be smaller than one element; otherwise its sides are at least 1.

        mode: "avg" or "max".
        """
    @staticmethod
    def roi_pool(
        data: TensorLike,
        rois: TensorLike,
        pooled_size: Sequence[int] | int,
        spatial_scale: float,
        layout: str = "NCHW",
    ) -> Tensor:
        """Max-pool each region of `rois` (image, x1, y1, x2, y2) to `pooled_size`; an empty bin is 0. The corners of a
        region are rounded to integers and included.

        pooled_size: Rows and columns of the result; one number for both.

        spatial_scale: The ratio of data's size to that of the original image.
        """

vision: _vision
