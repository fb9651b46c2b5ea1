"""Written from the table of operators by `make stubs`; see tests/stubs.py."""

from collections.abc import Sequence

from relaxpy.op import builtin as builtin
from relaxpy.op import grad as grad
from relaxpy.op import image as image
from relaxpy.op import inspect as inspect
from relaxpy.op import nn as nn
from relaxpy.op import vision as vision
from relaxpy.op.base import OPS as OPS
from relaxpy.op.base import Op as Op
from relaxpy.op.call import call_dps_library as call_dps_library
from relaxpy.op.call import call_packed as call_packed
from relaxpy.op.call import call_pure_packed as call_pure_packed
from relaxpy.op.call import call_tir as call_tir
from relaxpy.ir.expr import Call
from relaxpy.op.function import DTypeLike, ExprLike, Operand, ScalarLike, ShapeLike, TensorLike, TupleLike
from relaxpy.ir.index_map import IndexMap

def abs(x: TensorLike) -> Call:
    """The absolute value; the smallest integer gives itself."""

def acos(x: TensorLike) -> Call:
    """The arccosine, in [0, pi]; NaN if |x| > 1."""

def acosh(x: TensorLike) -> Call:
    """The inverse hyperbolic cosine, not negative; NaN below 1."""

def add(x1: Operand, x2: Operand) -> Call:
    """x1 + x2; integers modulo 2**bits."""

def all(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Call:
    """Are all elements not 0? True for no elements; a NaN is not 0.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: Whether the reduced axes are kept with size 1.
    """

def any(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Call:
    """Is any element not 0? False for no elements; a NaN is not 0.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: Whether the reduced axes are kept with size 1.
    """

def arange(
    start: ScalarLike,
    end: ScalarLike | None = None,
    step: ScalarLike | None = None,
    dtype: DTypeLike = "int64",
) -> Call:
    """The integers start, start + step, … up to `end`, which is excluded. For floats it is `float_arange`."""

def argmax(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Call:
    """The index of the greatest element along `axis`, int64: the first of equal elements, or the first NaN if there is
    one. An axis of size 0 is refused.

    axis: The axis; None: the flattened tensor, in row-major order.

    keepdims: Whether the reduced axes are kept with size 1.
    """

def argmin(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Call:
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
) -> Call:
    """The indices that sort x along `axis`: taking x at them gives `sort(x)`. The sort is stable in both orders.

    dtype: Dtype of the indices.
    """

def asin(x: TensorLike) -> Call:
    """The arcsine, in [-pi/2, pi/2]; NaN if |x| > 1."""

def asinh(x: TensorLike) -> Call:
    """The inverse hyperbolic sine."""

def assert_op(
    condition: ExprLike,
    /,
    *values: ExprLike,
    format: str = "the assertion does not hold",
) -> Call:
    """Raise an error at run time unless the condition, a 0-d bool tensor or a scalar, is true. The values replace the
    `{}` of `format`.
    """

def astype(x: TensorLike, dtype: DTypeLike) -> Call:
    """Convert to another dtype. Float to integer: truncates toward zero and saturates; NaN becomes 0. Integer to
    integer: modulo 2**bits. To bool: whether it is not 0.
    """

def atan(x: TensorLike) -> Call:
    """The arctangent, in [-pi/2, pi/2]."""

def atan2(x1: Operand, x2: Operand) -> Call:
    """The angle of the point (x2, x1), in [-pi, pi]. The signs of zeros and infinities count. Integer results are
    rounded toward 0.
    """

def atanh(x: TensorLike) -> Call:
    """The inverse hyperbolic tangent: infinite at 1 and -1, NaN beyond."""

def bessel_i0(x: TensorLike) -> Call:
    """The modified Bessel function of order 0."""

def bessel_i0e(x: TensorLike) -> Call:
    """The modified Bessel function of order 0 times exp(-|x|)."""

def bessel_i1(x: TensorLike) -> Call:
    """The modified Bessel function of order 1."""

def bessel_i1e(x: TensorLike) -> Call:
    """The modified Bessel function of order 1 times exp(-|x|)."""

def bitcast(x: TensorLike, dtype: DTypeLike) -> Call:
    """The bits of x as elements of another dtype. A wider element becomes several along a new last axis, the lowest
    bits first; narrower ones are joined along the last axis, whose size is then the ratio of the widths. The bits of a
    bool are those of a uint8 that is 0 or 1.
    """

def bitwise_and(x1: Operand, x2: Operand) -> Call:
    """Bitwise and; logical and for bools."""

def bitwise_not(x: TensorLike) -> Call:
    """Bitwise not; logical not for bools."""

def bitwise_or(x1: Operand, x2: Operand) -> Call:
    """Bitwise or; logical or for bools."""

def bitwise_xor(x1: Operand, x2: Operand) -> Call:
    """Bitwise exclusive or; logical exclusive or for bools."""

def broadcast_to(x: TensorLike, shape: ShapeLike) -> Call:
    """Broadcast to `shape`: repeat along axes of size 1."""

def bucketize(
    input_tensor: TensorLike,
    boundaries: TensorLike,
    out_int32: bool = False,
    right: bool = False,
) -> Call:
    """The bucket of each element, as `numpy.searchsorted`: the number of boundaries (a vector in ascending order) below
    it, or with `right` below or equal to it. NaN is above all. The result is int64, or int32 with `out_int32`. If the
    boundaries are not sorted, it is some number from 0 to their count.
    """

def ceil(x: TensorLike) -> Call:
    """The smallest whole number not below x; integers are unchanged."""

def clip(x: TensorLike, min: ScalarLike, max: ScalarLike) -> Call:
    """x clamped to [min, max]: `max` if min > max, NaN where x is NaN. For integers, bounds beyond the range of the
    dtype are its limits.
    """

def collapse_sum_like(data: TensorLike, collapse_target: TensorLike) -> Call:
    """`collapse_sum_to` with the shape of another tensor."""

def collapse_sum_to(data: TensorLike, shape: ShapeLike) -> Call:
    """Sum data to `shape` over the axes that broadcasting a tensor of that shape would repeat: the gradient of
    `broadcast_to`. Integers modulo 2**bits.
    """

def concat(tensors: TupleLike, axis: int | None = 0) -> Call:
    """Concatenate tensors along `axis`.

    axis: None: each tensor is flattened first, in row-major order.
    """

def cos(x: TensorLike) -> Call:
    """The cosine of x in radians, for x of any magnitude; NaN for infinities."""

def cosh(x: TensorLike) -> Call:
    """The hyperbolic cosine."""

def count_leading_zeros(x: TensorLike) -> Call:
    """The number of bits of x above the highest that is set: all of 0, none of a negative number."""

def cumlogsumexp(
    data: TensorLike,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    exclusive: bool = False,
) -> Call:
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
) -> Call:
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
) -> Call:
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
) -> Call:
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
) -> Call:
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
) -> Call:
    """Dequantise: scale * (data - zero_point) as `out_dtype`, computed in float32; float16 saturates at its largest
    number. One scale and zero point, or one for each index of `axis`.
    """

def digamma(x: TensorLike) -> Call:
    """The derivative of `lgamma`: -infinity at 0.0, infinity at -0.0, NaN at negative whole numbers."""

def divide(x1: Operand, x2: Operand) -> Call:
    """x1 / x2. Integers are rounded toward zero; x2 = 0 gives 0, and the smallest integer divided by -1 gives
    itself.
    """

def dynamic_strided_slice(
    x: TensorLike,
    begin: TensorLike,
    end: TensorLike,
    strides: TensorLike,
) -> Call:
    """`strided_slice` along all axes with indices known only at run time: begin, end and strides are integer vectors
    with an element for each axis. A stride of 0 is an error at run time.
    """

def dynamic_update_slice(data: TensorLike, update: TensorLike, starts: TensorLike) -> Call:
    """A copy of data with `update` in place of the slice that begins at `starts`, a vector with an index for each axis,
    as StableHLO and `jax.lax` have it. A slice that would begin before data or end after it is moved into data.
    """

def einsum(operands: TupleLike, subscripts: str) -> Call:
    """Einstein summation, as `numpy.einsum`: "ij,jk->ik" is the matrix product, "ii->i" a diagonal, "...ij->...ji" a
    transpose (the dimensions of "..." are broadcast). Without "->" the result has the letters that occur once, in
    alphabetical order. Axes of one letter must have equal sizes, or size 1, which is broadcast. Several operands are
    contracted from left to right.
    """

def equal(x1: Operand, x2: Operand) -> Call:
    """x1 == x2."""

def erf(x: TensorLike) -> Call:
    """The error function."""

def erfc(x: TensorLike) -> Call:
    """The complementary error function, 1 - erf(x), accurate where it is near 0."""

def erfcx(x: TensorLike) -> Call:
    """The scaled complementary error function, exp(x * x) * erfc(x): infinite for large negative x."""

def erfinv(x: TensorLike) -> Call:
    """The inverse of the error function: infinite at 1 and -1, NaN beyond."""

def ewise_fma(x1: Operand, x2: Operand, x3: Operand) -> Call:
    """Multiply and add: x1 * x2 + x3; integers modulo 2**bits."""

def exp(x: TensorLike) -> Call:
    """The exponential function e**x."""

def expand_dims(x: TensorLike, axis: Sequence[int] | int) -> Call:
    """Insert axes of size 1 at these positions of the result."""

def expm1(x: TensorLike) -> Call:
    """e**x - 1, accurate near 0."""

def eye(
    n: ScalarLike,
    m: ScalarLike | None = None,
    k: ScalarLike | None = None,
    dtype: DTypeLike = "float32",
) -> Call:
    """A matrix of n rows and `m` columns (default n) with ones on a diagonal and zeros elsewhere. The diagonal is `k`
    places to the right of the main one (to the left for a negative k).
    """

def eye_like(x: TensorLike, k: ScalarLike | None = None, dtype: DTypeLike | None = None) -> Call:
    """`eye` with the shape of the matrix x; the dtype is `dtype`, or that of x."""

def flatten(x: TensorLike) -> Call:
    """Flatten all elements into one axis."""

def flip(data: TensorLike, axis: int) -> Call:
    """Reverse the slices along `axis`, as `numpy.flip`."""

def float_arange(
    start: float,
    end: float,
    step: float = 1.0,
    dtype: DTypeLike = "float32",
) -> Call:
    """The numbers start + i * step before `end`, for i = 0, 1, …, computed in float64. `R.arange` becomes this operator
    if one of its numbers is a float.
    """

def floor(x: TensorLike) -> Call:
    """The greatest whole number not above x; integers are unchanged."""

def floor_divide(x1: Operand, x2: Operand) -> Call:
    """x1 / x2 rounded down. Integers: x2 = 0 gives 0, and the smallest integer divided by -1 gives itself. Floats: (x1
    - floor_mod(x1, x2)) / x2 rounded to the nearest whole number; x1 / x2 where x2 is 0.
    """

def floor_mod(x1: Operand, x2: Operand) -> Call:
    """The remainder of a division rounded down; it has the sign of x2, as Python's `%`. Where x2 is 0, integers give 0
    and floats NaN.
    """

def full(shape: ShapeLike, fill_value: Operand, dtype: DTypeLike | None = None) -> Call:
    """A tensor whose elements are all `fill_value`, a 0-d tensor. The dtype is `dtype`, or that of `fill_value`."""

def full_like(x: Operand, fill_value: Operand, dtype: DTypeLike | None = None) -> Call:
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
) -> Call:
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

def gather_elements(data: TensorLike, indices: TensorLike, axis: int = 0) -> Call:
    """Gather elements along `axis`, as `torch.gather`: element i of the result is the element of data at index i, with
    the index along `axis` replaced by indices[i]. The result has the shape of `indices`, which may be smaller than data
    along the other axes. A negative index counts from the end; an index still out of range is clamped, and an axis of
    size 0 gives 0.
    """

def gather_nd(data: TensorLike, indices: TensorLike, batch_dims: int = 0) -> Call:
    """Gather slices of data: each vector along the last axis of `indices` is an index into data that starts at axis
    `batch_dims`. The axes before `batch_dims` are batch axes of both tensors. A negative index counts from the end; an
    index still out of range is clamped, and an axis of size 0 gives 0.
    """

def greater(x1: Operand, x2: Operand) -> Call:
    """x1 > x2."""

def greater_equal(x1: Operand, x2: Operand) -> Call:
    """x1 >= x2."""

def hamming_window(
    window_size: ScalarLike,
    periodic: bool | int,
    alpha: float,
    beta: float,
    dtype: DTypeLike,
) -> Call:
    """The Hamming window: alpha - beta * cos(2 * pi * i / N) for i below `window_size`. N is `window_size` if
    `periodic`, else one less. A window of one element is 1.
    """

def hint_on_device(x: TensorLike, dst_device: str = "cpu:0", memory_scope: str = "global") -> Call:
    """x, with a hint that it is on a device: `R.hint_on_device(x, R.cpu(0))`.

    dst_device: The device, in the form of `R.cpu(0)` or `R.device("cuda", 1)`.
    """

def index_put(
    data: TensorLike,
    indices: TupleLike,
    values: TensorLike,
    accumulate: bool = False,
) -> Call:
    """A copy of data after `data[i, j, …] = values` (with `accumulate`: `+=`, once for each update). The index tensors
    are broadcast together; values are broadcast to them and to the axes of data that are not indexed. Updates are
    applied in row-major order: of several replacements the last wins. A negative index counts from the end; an index
    still out of range is skipped.
    """

def index_tensor(data: TensorLike, indices: TupleLike) -> Call:
    """Index with tensors, `data[i, j, …]` as in numpy: the index tensors are broadcast together and index the first
    axes of data; the other axes follow. A negative index counts from the end; an index still out of range is clamped,
    and an axis of size 0 gives 0.
    """

def isfinite(x: TensorLike) -> Call:
    """Is x neither infinite nor NaN? True for all integers."""

def isinf(x: TensorLike) -> Call:
    """Is x infinite, of either sign? False for all integers."""

def isnan(x: TensorLike) -> Call:
    """Is x NaN? False for all integers."""

def layout_transform(
    x: TensorLike,
    index_map: IndexMap,
    pad_value: float | None = None,
    axis_separators: Sequence[int] | None = None,
    input_axis_separators: Sequence[int] | None = None,
) -> Call:
    """Move each element of x to the index that `index_map` gives for its own, as in `T.index_map(lambda i, j: (j, i //
    4, i % 4))`. The result has the smallest shape that contains all indices (`i % 4` always needs 4). Elements of the
    result that none of x moves to are `pad_value`, or 0; if several move to one index, the last in row-major order
    wins. `axis_separators` are accepted and ignored: memory is flat.
    """

def left_shift(x1: Operand, x2: Operand) -> Call:
    """x1 * 2**x2 modulo 2**bits; 0 where x2 is negative or at least the number of bits."""

def less(x1: Operand, x2: Operand) -> Call:
    """x1 < x2."""

def less_equal(x1: Operand, x2: Operand) -> Call:
    """x1 <= x2."""

def lgamma(x: TensorLike) -> Call:
    """The logarithm of the size of the gamma function: infinite at 0, at negative whole numbers and for infinities."""

def linear(
    data: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    out_dtype: DTypeLike | None = None,
) -> Call:
    """`data @ weight.T + bias`, the linear layer of torch. The weight is (out, in), or (in,) for a single output.
    Accumulated as in `matmul`; the bias is broadcast and added before rounding. This is a single operator, so the
    weight is not transposed in memory.

    out_dtype: Dtype of the result; None: the dtype of the arguments.
    """

def log(x: TensorLike) -> Call:
    """The natural logarithm: -infinity at 0, NaN below."""

def log10(x: TensorLike) -> Call:
    """The logarithm to base 10: -infinity at 0, NaN below."""

def log1p(x: TensorLike) -> Call:
    """log(1 + x), accurate near 0: -infinity at -1, NaN below."""

def log2(x: TensorLike) -> Call:
    """The logarithm to base 2: -infinity at 0, NaN below."""

def log_add_exp(x1: Operand, x2: Operand) -> Call:
    """log(exp(x1) + exp(x2)) without overflow. Integer results are rounded toward 0."""

def log_ndtr(x: TensorLike) -> Call:
    """The logarithm of the share of the normal distribution below x."""

def logical_and(x1: Operand, x2: Operand) -> Call:
    """Logical and."""

def logical_not(x: TensorLike) -> Call:
    """Logical not."""

def logical_or(x1: Operand, x2: Operand) -> Call:
    """Logical or."""

def logical_xor(x1: Operand, x2: Operand) -> Call:
    """Logical exclusive or."""

def matmul(x1: TensorLike, x2: TensorLike, out_dtype: DTypeLike | None = None) -> Call:
    """The matrix product over the last two axes, as `numpy.matmul`. The axes before are broadcast; a vector is a row on
    the left and a column on the right. Accumulated in `out_dtype`; narrower floats in float32.

    out_dtype: Dtype of the result; None: the dtype of the arguments.
    """

def max(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Call:
    """The maximum; NaN if there is one. The maximum of no elements is -infinity, or the smallest integer.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: Whether the reduced axes are kept with size 1.
    """

def maximum(x1: Operand, x2: Operand) -> Call:
    """The elementwise maximum; NaN if either is NaN."""

def mean(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Call:
    """The mean. Integer means are rounded toward 0. The mean of no elements is NaN for floats, and 0 for integers.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: Whether the reduced axes are kept with size 1.
    """

def median(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Call:
    """The median along `axis`, as `torch.median`: the middle of the sorted elements, the lower of the two middle ones
    for an even number, or the first NaN if there is one. With one axis the result is a tuple of the median and its
    index (int64). The index is that of the median in a stable sort. An axis of size 0 is refused.

    axis: One or several axes; None: all.

    keepdims: Whether the axes are kept with size 1.
    """

def meshgrid(tensors: TupleLike, indexing: str = "ij") -> Call:
    """Coordinate grids, as `numpy.meshgrid`: a tuple in which grid k has the values of vector k along axis k and is
    constant along the others. With indexing "xy" the first two axes are swapped. A 0-d tensor is a vector of one
    element.
    """

def min(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Call:
    """The minimum; NaN if there is one. The minimum of no elements is infinity, or the greatest integer.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: Whether the reduced axes are kept with size 1.
    """

def minimum(x1: Operand, x2: Operand) -> Call:
    """The elementwise minimum; NaN if either is NaN."""

def mod(x1: Operand, x2: Operand) -> Call:
    """The remainder of a division rounded toward zero; it has the sign of x1, as C's `%` and `fmod`. Where x2 is 0,
    integers give 0 and floats NaN. Other float results are exact.
    """

def multinomial_from_uniform(
    prob: TensorLike,
    uniform_sample: TensorLike,
    sample_indices: TensorLike,
    dtype: DTypeLike = "int64",
) -> Call:
    """Sample from categorical distributions by inverse transform: for each number u of `uniform_sample` (n, 1), the
    first index at which the running sum of a row of `prob` (batch, size) exceeds u. For u uniform in [0, 1) the index
    has the probabilities of the row. `sample_indices` (n, 1) selects the row; a row out of range is clamped (0 if there
    is no row). If u is not below the sum of the row, the last index with a probability above 0 is returned.

    dtype: Dtype of the result.
    """

def multiply(x1: Operand, x2: Operand) -> Call:
    """x1 * x2; integers modulo 2**bits."""

def ndtri(x: TensorLike) -> Call:
    """The quantile of the normal distribution: the x below which a share of its values is. Infinite at 0 and 1, NaN
    outside.
    """

def negative(x: TensorLike) -> Call:
    """-x; integers modulo 2**bits."""

def nextafter(x1: Operand, x2: Operand) -> Call:
    """The next number of the dtype after x1 towards x2; x2 if they are equal."""

def nonzero(x: TensorLike) -> Call:
    """The indices of the elements that are not 0 (a NaN is not 0), as ONNX's NonZero: int64, with a column for each
    such element in row-major order, and a row for each axis. A 0-d tensor counts as a vector of one element.
    """

def not_equal(x1: Operand, x2: Operand) -> Call:
    """x1 != x2."""

def one_hot(
    indices: TensorLike,
    on_value: bool | int | float,
    off_value: bool | int | float,
    depth: int,
    axis: int = -1,
    dtype: DTypeLike | None = None,
) -> Call:
    """One-hot encoding: a new axis of size `depth` at `axis`, with `on_value` at the index and `off_value` elsewhere.
    An index out of range gives `off_value` everywhere.

    dtype: Dtype of the result; None: bool, int64 or float32, by the kind of the values.
    """

def ones(shape: ShapeLike, dtype: DTypeLike) -> Call:
    """A tensor of ones."""

def ones_like(x: TensorLike, dtype: DTypeLike | None = None) -> Call:
    """Ones of the shape of x; the dtype is `dtype`, or that of x."""

def outer(x1: TensorLike, x2: TensorLike) -> Call:
    """The outer product of two vectors: (n,) and (m,) give (n, m)."""

def permute_dims(x: TensorLike, axes: Sequence[int] | None = None) -> Call:
    """Permute the axes; without `axes`, reverse them."""

def population_count(x: TensorLike) -> Call:
    """The number of bits of x that are set, in the dtype of x."""

def power(x1: Operand, x2: Operand) -> Call:
    """x1 to the power x2. Integers: modulo 2**bits; a negative exponent gives the integer part, which is 0 unless x1 is
    1 or -1; 0 to the power 0 is 1. Floats: NaN where x1 is negative and x2 is not a whole number.
    """

def print(*values: ExprLike, format: str = "") -> Call:
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
) -> Call:
    """Logits (rows, vocab), float32 or narrower, as float32 after biases, penalties and masks, in this order, every row
    by its own options. `bias_tokens` and `biases` (rows, biases): what is added to which token. `histories` (rows,
    length) are the tokens so far, of which the first `prompts` (rows,) were given, not generated. A token in the
    history has its logit divided by the repetition penalty (multiplied if negative); one that was generated has the
    presence penalty subtracted, and the frequency penalty for each time. Bit t % 32 of word t // 32 of `masks` (rows,
    words), int32, is set if token t is allowed; the others get minus infinity. Tokens out of range in `bias_tokens` and
    `histories` are skipped, as padding is.
    """

def prod(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Call:
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
) -> Call:
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
) -> Call:
    """Random numbers, uniform in [0, 1): each is a function of its seed, stream and position alone (integers, int64 or
    narrower, all of one shape), by Philox4x32-10 with the seed as the key. Numbers of different seeds, streams or
    positions are independent of each other; equal ones give equal numbers, in any batch and on any device. float32
    numbers have 24 random bits, float64 ones 53; int64 ones are these, in units of 2^-53.

    dtype: Dtype of the result: float32, float64 or int64.
    """

def reduce_precision(x: TensorLike, exponent_bits: int, mantissa_bits: int) -> Call:
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
) -> Call:
    """Each window of x reduced to one element: its sum, product, maximum or minimum (of bools, whether any or all are
    true). `window` is the size of windows along each axis. `padding` is how far they extend beyond x, before and after
    each axis: (before_0, after_0, before_1, …), where a negative number leaves elements out. Padding and gaps take no
    part; a window of nothing gives 0, 1, or a limit of the dtype, infinite for floats.

    strides: Distance of windows: one number, or one for each axis.

    dilation: Distance of the elements of a window: one number, or one for each axis.

    base_dilation: Distance that the elements of x are set apart to: one number, or one for each axis.
    """

def repeat(data: TensorLike, repeats: int, axis: int | None = None) -> Call:
    """Repeat each slice along `axis` `repeats` times in a row, as `numpy.repeat`; without `axis`, each element of the
    flattened tensor.
    """

def reshape(x: TensorLike, shape: ShapeLike) -> Call:
    """Reshape, in row-major order, as `numpy.reshape`. One dimension may be -1, and is inferred from the others; 0 is a
    size of 0.
    """

def reverse_sequence(
    data: TensorLike,
    seq_lengths: TensorLike,
    seq_axis: int = 1,
    batch_axis: int = 0,
) -> Call:
    """Reverse the first `seq_lengths[b]` elements along `seq_axis` of each sequence b along `batch_axis`, and keep the
    others. Lengths are clamped to the size of the axis and to 0.
    """

def right_shift(x1: Operand, x2: Operand) -> Call:
    """x1 / 2**x2 rounded down (arithmetic shift). Where x2 is negative or at least the number of bits: -1 for a
    negative x1, else 0.
    """

def round(x: TensorLike) -> Call:
    """The nearest whole number, halves rounded to even; integers are unchanged."""

def rsqrt(x: TensorLike) -> Call:
    """The reciprocal square root 1 / sqrt(x): infinity at 0, NaN below."""

def sample_from_logits(
    logits: TensorLike,
    temperatures: TensorLike,
    top_ks: TensorLike,
    top_ps: TensorLike,
    min_ps: TensorLike,
    uniform_samples: TensorLike,
) -> Call:
    """Draw a token of each row of logits (rows, vocab), float32 or narrower, with options of its own: the first in
    descending order, of equal logits the first token, at which the running sum of the probabilities exceeds a number in
    [0, 1) (`uniform_samples`; of int64, in units of 2^-53) of all that is kept. The probabilities are the softmax of
    the logits divided by `temperatures`. `top_ks` keeps so many first tokens (0 or less: all), `top_ps` the first ones
    whose probabilities together reach it, `min_ps` those at least so probable, relative to the most probable token; the
    first token is always kept. A temperature of 0 takes the first token. Result: (rows,) int64; -1 for a row whose
    greatest logit is not finite. All options are (rows,). A row's token does not depend on the other rows. A
    probability below 2^-40 of the greatest counts as 0.
    """

def scalar_to_tensor(value: ScalarLike, dtype: DTypeLike) -> Call:
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
) -> Call:
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
) -> Call:
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
) -> Call:
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
) -> Call:
    """Add each element of `source` to 0 at the place where its window of data has its largest (or, with `select` "min",
    its smallest) element, as the gradient of `reduce_window` does: the first of equal elements in row-major order, and
    the element after a NaN, if there is one. `window` is the size of windows along each axis, `padding` how far they
    extend beyond data, before and after each axis; padding is not chosen.

    strides: Distance of windows: one number, or one for each axis.
    """

def shape_of(x: TensorLike) -> Call:
    """The shape of a tensor as a shape value."""

def shape_to_tensor(input: ShapeLike) -> Call:
    """Convert a shape to an int64 vector of its dimensions."""

def sigmoid(x: TensorLike) -> Call:
    """The logistic sigmoid 1 / (1 + exp(-x))."""

def sign(x: TensorLike) -> Call:
    """The sign of x: 1, 0 or -1; NaN for NaN."""

def sin(x: TensorLike) -> Call:
    """The sine of x in radians, for x of any magnitude; NaN for infinities."""

def sinh(x: TensorLike) -> Call:
    """The hyperbolic sine."""

def size(x: TensorLike) -> Call:
    """The number of elements of x, a 0-d int64 tensor."""

def slice_scatter(
    input_tensor: TensorLike,
    src: TensorLike,
    start: ScalarLike,
    end: ScalarLike,
    step: ScalarLike,
    axis: int = 0,
) -> Call:
    """A copy of input_tensor with src written to its slice start:end:step along `axis`. Indices have the rules of
    `strided_slice`; the step must be positive.
    """

def sort(x: TensorLike, axis: int = -1, descending: bool = False) -> Call:
    """Sort along `axis`. A NaN is the greatest value: last, or first if `descending`."""

def split(x: TensorLike, indices_or_sections: ExprLike, axis: int = 0) -> Call:
    """Split x along `axis` into a tuple of parts: a number of parts of equal size, the last of which may be smaller; or
    the parts between given indices, which may be symbolic. One part is returned as a tensor, not a tuple, as in TVM. A
    size that cannot be split in this way is refused, or is an error at run time.
    """

def sqrt(x: TensorLike) -> Call:
    """The square root: NaN below 0."""

def square(x: TensorLike) -> Call:
    """x * x; integers modulo 2**bits."""

def squeeze(x: TensorLike, axis: Sequence[int] | int | None = None) -> Call:
    """Remove axes of size 1; without `axis`, all of them. In that case the rank of the result is unknown if a dimension
    is symbolic, and determined at run time.
    """

def stack(tensors: TupleLike, axis: int = 0) -> Call:
    """Join tensors of one shape along a new axis, which is axis `axis` of the result."""

def std(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Call:
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
) -> Call:
    """x[begin:end:stride] along `axes`, with numpy's rules: a negative index counts from the end, indices are clamped
    to the axis, and a negative stride goes down from `begin` to just above `end`. With `assume_inbound`, begin and end
    are indices inside x, which is checked at run time, and the sizes of the result are simpler.
    """

def subtract(x1: Operand, x2: Operand) -> Call:
    """x1 - x2; integers modulo 2**bits."""

def sum(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Call:
    """The sum, in the argument's dtype; integers modulo 2**bits.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: Whether the reduced axes are kept with size 1.
    """

def take(x: Operand, indices: Operand, axis: int | None = None, mode: str = "fast") -> Call:
    """Slices of x at `indices` along `axis`, as `numpy.take`. An index out of range is clamped (modes "fast" and
    "clip", in which a negative index reads the first element), wraps around (mode "wrap"), or gives NaN (mode "nan",
    floats only). Slices of an axis of size 0 are 0, in mode "nan" NaN.

    axis: Axis of x that is indexed; None is allowed if x has one axis.
    """

def tan(x: TensorLike) -> Call:
    """The tangent of x in radians, for x of any magnitude; NaN for infinities."""

def tanh(x: TensorLike) -> Call:
    """The hyperbolic tangent."""

def tensor_to_scalar(x: TensorLike) -> Call:
    """Convert a 0-d tensor to a scalar."""

def tensor_to_shape(input: TensorLike) -> Call:
    """Convert an int64 vector to a shape with these dimensions."""

def threefry(x1: Operand, x2: Operand) -> Call:
    """The 64 random bits that Threefry-2x32 with 20 rounds (Salmon et al., 2011; the generator of JAX) makes of the key
    x1 and the count x2, each of two words of 32 bits, the first the high half.
    """

def tile(data: TensorLike, repeats: Sequence[int] | int) -> Call:
    """Repeat the whole tensor `repeats` times along each axis, as `numpy.tile`. Axes and repeats are aligned at the
    right; missing repeats are 1.
    """

def to_vdevice(x: TensorLike, dst_vdevice: str) -> Call:
    """x on a virtual device of the module: `R.to_vdevice(x, "llvm:0:global")`."""

def topk(
    data: TensorLike,
    k: int = 1,
    axis: int = -1,
    ret_type: str = "both",
    largest: bool = True,
    dtype: DTypeLike = "int32",
) -> Call:
    """The `k` greatest elements along `axis` in descending order, and their indices; with `largest=False` the smallest,
    in ascending order. Of equal elements the first come first. A NaN is the greatest value. `ret_type` selects the
    result: "both" (a tuple), "values" or "indices". A k below 1 means all elements; a k above the size is refused.

    dtype: Dtype of the indices.
    """

def tril(x: TensorLike, k: ScalarLike | None = None) -> Call:
    """The lower triangle of each matrix in x, up to the diagonal `k` places to the right of the main one; 0 above
    it.
    """

def triu(x: TensorLike, k: ScalarLike | None = None) -> Call:
    """The upper triangle of each matrix in x, from the diagonal `k` places to the right of the main one; 0 below it."""

def trunc(x: TensorLike) -> Call:
    """x truncated toward zero; integers are unchanged."""

def unique(
    x: TensorLike,
    sorted: bool = True,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
) -> Call:
    """The unique values of x (figure 3 of the paper), or unique slices along `axis`: in ascending order or, without
    `sorted`, in the order of first appearance. With return_index, return_inverse or return_counts the result is a tuple
    that also has int64 vectors: the index in x of each value's first appearance, the index of each element of x among
    the values, and the count of each value. Without `axis`, indices are those of the flattened x.
    """

def variance(
    x: TensorLike,
    axis: Sequence[int] | int | None = None,
    keepdims: bool = False,
) -> Call:
    """The population variance, as `numpy.var`: the mean of the squared deviations from the mean. NaN of no elements.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: Whether the reduced axes are kept with size 1.
    """

def where(condition: Operand, x1: Operand, x2: Operand) -> Call:
    """x1 where the condition is true, else x2; all three are broadcast together."""

def wrap_param(data: TensorLike, dtype: DTypeLike = "float32") -> Call:
    """Convert a model parameter to `dtype`, by the rules of `astype`."""

def zeros(shape: ShapeLike, dtype: DTypeLike) -> Call:
    """A tensor of zeros."""

def zeros_like(x: TensorLike, dtype: DTypeLike | None = None) -> Call:
    """Zeros of the shape of x; the dtype is `dtype`, or that of x."""
