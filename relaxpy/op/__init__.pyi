"""Written from the table of operators by `make stubs`; see relaxpy/testing/stubs.py."""

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
    """The magnitude; the smallest integer stays itself."""

def acos(x: TensorLike) -> Call:
    """The angle in [0, pi] whose cosine is x; NaN beyond 1."""

def acosh(x: TensorLike) -> Call:
    """The number, not negative, whose hyperbolic cosine is x; NaN below 1."""

def add(x1: Operand, x2: Operand) -> Call:
    """x1 + x2; integers modulo 2**bits."""

def all(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Call:
    """Are all elements not 0? True of nothing; a NaN is not 0.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: The reduced axes stay, with size 1.
    """

def any(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Call:
    """Is any element not 0? False of nothing; a NaN is not 0.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: The reduced axes stay, with size 1.
    """

def arange(
    start: ScalarLike,
    end: ScalarLike | None = None,
    step: ScalarLike | None = None,
    dtype: DTypeLike = "int64",
) -> Call:
    """start, start + step, … up to `end`, which is left out; integers (for floats it is `float_arange`)."""

def argmax(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Call:
    """Where along `axis` the greatest element is, int64: the first of equals, the first NaN if
    there is one. Refused for an axis of size 0.

    axis: The axis; None: all elements in order, as one axis.

    keepdims: The reduced axes stay, with size 1.
    """

def argmin(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Call:
    """Where along `axis` the smallest element is, int64: the first of equals, the first NaN if
    there is one. Refused for an axis of size 0.

    axis: The axis; None: all elements in order, as one axis.

    keepdims: The reduced axes stay, with size 1.
    """

def argsort(
    data: TensorLike,
    axis: int = -1,
    descending: bool = False,
    dtype: DTypeLike = "int32",
) -> Call:
    """Where each element of the sorted row was: `x[argsort(x)]` is `sort(x)`. Equal elements keep
    their order, ascending and `descending`.

    dtype: Dtype of the places.
    """

def asin(x: TensorLike) -> Call:
    """The angle in [-pi/2, pi/2] whose sine is x; NaN beyond 1."""

def asinh(x: TensorLike) -> Call:
    """The number whose hyperbolic sine is x."""

def assert_op(
    condition: ExprLike,
    /,
    *values: ExprLike,
    format: str = "the assertion does not hold",
) -> Call:
    """Stop with an error unless the condition, a 0-d bool tensor or a scalar, is true; values
    fill the `{}` of `format`.
    """

def astype(x: TensorLike, dtype: DTypeLike) -> Call:
    """The values as another dtype. From float to integer: towards zero, what is out of range
    becomes the nearest integer there is, NaN becomes 0. Between integers: modulo 2**bits. To
    bool: is it not 0.
    """

def atan(x: TensorLike) -> Call:
    """The angle in [-pi/2, pi/2] whose tangent is x."""

def atan2(x1: Operand, x2: Operand) -> Call:
    """The angle in [-pi, pi] of the point (x2, x1), zeros and infinities with their signs; of integers rounded towards
    0.
    """

def atanh(x: TensorLike) -> Call:
    """The number whose hyperbolic tangent is x: infinite at 1 and -1, NaN beyond."""

def bitwise_and(x1: Operand, x2: Operand) -> Call:
    """The bits that both have; of bools, both are true."""

def bitwise_not(x: TensorLike) -> Call:
    """Every bit turned; of a bool, its negation."""

def bitwise_or(x1: Operand, x2: Operand) -> Call:
    """The bits that one of them has; of bools, one is true."""

def bitwise_xor(x1: Operand, x2: Operand) -> Call:
    """The bits that differ; of bools, they differ."""

def broadcast_to(x: TensorLike, shape: ShapeLike) -> Call:
    """Repeated along axes of size 1 until it has `shape`."""

def bucketize(
    input_tensor: TensorLike,
    boundaries: TensorLike,
    out_int32: bool = False,
    right: bool = False,
) -> Call:
    """In which bucket each element lies: how many of the boundaries, a vector in ascending order,
    are below it (with `right`: or equal to it), as `numpy.searchsorted`; NaN is above all. int64,
    or int32 with `out_int32`. Of boundaries out of order: some number up to theirs.
    """

def ceil(x: TensorLike) -> Call:
    """The smallest whole number that is not below x; integers as they are."""

def clip(x: TensorLike, min: ScalarLike, max: ScalarLike) -> Call:
    """x, not below `min` and not above `max`: `max` where they cross, NaN where x is a NaN. Of integers, bounds beyond
    the range of the dtype are its ends.
    """

def collapse_sum_like(data: TensorLike, collapse_target: TensorLike) -> Call:
    """`collapse_sum_to` the shape of another tensor."""

def collapse_sum_to(data: TensorLike, shape: ShapeLike) -> Call:
    """The sum of data over the axes along which a tensor of `shape` is repeated by broadcasting:
    the gradient of `broadcast_to`. Integers modulo 2**bits.
    """

def concat(tensors: TupleLike, axis: int | None = 0) -> Call:
    """The tensors one after the other along `axis`.

    axis: None: each is read as a vector, in row-major order.
    """

def cos(x: TensorLike) -> Call:
    """The cosine of x radians, for x of any size; NaN of the infinities."""

def cosh(x: TensorLike) -> Call:
    """The hyperbolic cosine."""

def cumprod(
    data: TensorLike,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    exclusive: bool = False,
) -> Call:
    """Running products along `axis`; integers modulo 2**bits. Narrow floats are multiplied in
    float32, and each product is rounded. Converting a float to an integer `dtype` truncates and
    saturates.

    axis: The axis; None: all elements in order, as one axis.

    dtype: Elements are converted to it before they are joined; None: the argument's.

    exclusive: At each place only what lies before it, so that the first result is that of nothing.
    """

def cumsum(
    data: TensorLike,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    exclusive: bool = False,
) -> Call:
    """Running sums along `axis`; integers modulo 2**bits. Narrow floats are added in float32, and
    each sum is rounded. Converting a float to an integer `dtype` truncates and saturates.

    axis: The axis; None: all elements in order, as one axis.

    dtype: Elements are converted to it before they are joined; None: the argument's.

    exclusive: At each place only what lies before it, so that the first result is that of nothing.
    """

def dequantize(
    data: TensorLike,
    scale: TensorLike,
    zero_point: TensorLike,
    axis: int = -1,
    out_dtype: DTypeLike = "float32",
) -> Call:
    """scale * (data - zero_point) as `out_dtype`, computed in float32; what float16 cannot hold becomes its largest
    number. One scale and zero point, or one for each place along `axis`.
    """

def divide(x1: Operand, x2: Operand) -> Call:
    """x1 / x2. Integers: rounded towards zero, 0 where x2 is 0, and the smallest integer over -1 is itself."""

def dynamic_strided_slice(
    x: TensorLike,
    begin: TensorLike,
    end: TensorLike,
    strides: TensorLike,
) -> Call:
    """`strided_slice` along all axes with places that the program computes: begin, end and
    strides are integer vectors with an element for each axis. A stride of 0 stops the program.
    """

def einsum(operands: TupleLike, subscripts: str) -> Call:
    """Einstein summation, as `numpy.einsum`: "ij,jk->ik" is the matrix product, "ii->i" a diagonal,
    "...ij->...ji" a transposition (dimensions of "..." are broadcast); without "->" the result has the letters
    that occur once, in alphabetical order. Sizes of one letter must be equal, or 1, which is broadcast. Several
    operands are contracted from left to right.
    """

def equal(x1: Operand, x2: Operand) -> Call:
    """x1 == x2."""

def erf(x: TensorLike) -> Call:
    """The error function."""

def ewise_fma(x1: Operand, x2: Operand, x3: Operand) -> Call:
    """x1 * x2 + x3; integers modulo 2**bits."""

def exp(x: TensorLike) -> Call:
    """E to the power x."""

def expand_dims(x: TensorLike, axis: Sequence[int] | int) -> Call:
    """New axes of size 1, at the places that they have in the result."""

def eye(
    n: ScalarLike,
    m: ScalarLike | None = None,
    k: ScalarLike | None = None,
    dtype: DTypeLike = "float32",
) -> Call:
    """n rows and `m` columns (n, where it is left out), 1 on the diagonal that is `k` places right of the main one (to
    the left for a negative k), else 0.
    """

def eye_like(x: TensorLike, k: ScalarLike | None = None, dtype: DTypeLike | None = None) -> Call:
    """As `eye`, of the shape of the matrix x, and of its dtype unless `dtype` says another."""

def flatten(x: TensorLike) -> Call:
    """All elements as one axis."""

def flip(data: TensorLike, axis: int) -> Call:
    """The slices along `axis` in reverse order, as `numpy.flip`."""

def float_arange(
    start: float,
    end: float,
    step: float = 1.0,
    dtype: DTypeLike = "float32",
) -> Call:
    """start + i * step for every whole i from 0 on that stays before `end`; computed in float64. What `R.arange` is
    where one of its numbers is a float.
    """

def floor(x: TensorLike) -> Call:
    """The greatest whole number that is not above x; integers as they are."""

def floor_divide(x1: Operand, x2: Operand) -> Call:
    """The quotient rounded down. Integers: 0 where x2 is 0, and the smallest integer over -1 is itself. Floats: (x1 -
    floor_mod(x1, x2)) / x2 to the nearest whole number, x1 / x2 where x2 is 0.
    """

def floor_mod(x1: Operand, x2: Operand) -> Call:
    """What is left by a division rounded down, of the sign of x2, as Python's `%`. Integers: 0 where x2 is 0. Floats:
    NaN there.
    """

def full(shape: ShapeLike, fill_value: Operand, dtype: DTypeLike | None = None) -> Call:
    """A tensor with every element `fill_value`, a 0-d tensor; of its dtype unless `dtype` says
    another.
    """

def full_like(x: Operand, fill_value: Operand, dtype: DTypeLike | None = None) -> Call:
    """A tensor of the shape of x with every element `fill_value`, a 0-d tensor; of the dtype of x unless `dtype` says
    another.
    """

def gather_elements(data: TensorLike, indices: TensorLike, axis: int = 0) -> Call:
    """The element of data at the same place but for `axis`, where `indices` says it: of the shape
    of indices, which may be smaller than data along the other axes (`torch.gather`). A negative
    index counts from the end; one that is out of range even so reads the nearest place, and 0 of
    an empty axis.
    """

def gather_nd(data: TensorLike, indices: TensorLike, batch_dims: int = 0) -> Call:
    """The slices of data that the vectors along the last axis of `indices` name: each starts at
    axis `batch_dims`, before which the two shapes are the same. A negative index counts from the
    end; one that is out of range even so reads the nearest place, and 0 of an empty axis.
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
    """alpha - beta * cos(2 * pi * i / N) for i below `window_size`, N being that if `periodic`, else one less; a window
    of one place is 1.
    """

def hint_on_device(x: TensorLike, dst_device: str = "cpu:0", memory_scope: str = "global") -> Call:
    """x, which is expected on a device: `R.hint_on_device(x, R.cpu(0))`.

    dst_device: The device, as `R.cpu(0)` or `R.device("cuda", 1)` name it.
    """

def index_put(
    data: TensorLike,
    indices: TupleLike,
    values: TensorLike,
    accumulate: bool = False,
) -> Call:
    """A copy of data after `data[i, j, …] = values` (with `accumulate`: `+=`, once for each update): the index tensors
    are broadcast together, values to them and the axes of data that are not indexed. Updates are made in row-major
    order: of several replacements the last one stays. A negative index counts from the end; an update out of range
    even so is left out.
    """

def index_tensor(data: TensorLike, indices: TupleLike) -> Call:
    """`data[i, j, …]` as in numpy: the index tensors are broadcast together, and name places along
    the first axes of data; the other axes follow. A negative index counts from the end; one that
    is out of range even so reads the nearest place, and 0 of an empty axis.
    """

def isfinite(x: TensorLike) -> Call:
    """Is x neither infinite nor a NaN? True of all integers."""

def isinf(x: TensorLike) -> Call:
    """Is x infinite, of either sign? False of all integers."""

def isnan(x: TensorLike) -> Call:
    """Is x a NaN? False of all integers."""

def layout_transform(
    x: TensorLike,
    index_map: IndexMap,
    pad_value: float | None = None,
    axis_separators: Sequence[int] | None = None,
    input_axis_separators: Sequence[int] | None = None,
) -> Call:
    """Each element of x at the place that `index_map` says for its own, as in
    `T.index_map(lambda i, j: (j, i // 4, i % 4))`, in the smallest shape that holds all places (`i % 4`
    has always 4). Places that no element goes to are `pad_value`, or 0; where several go, the last in row-major order
    stays. The separators are read and mean nothing here: memory is flat.
    """

def left_shift(x1: Operand, x2: Operand) -> Call:
    """x1 * 2**x2 modulo 2**bits: 0 where x2 is negative, or not below the width."""

def less(x1: Operand, x2: Operand) -> Call:
    """x1 < x2."""

def less_equal(x1: Operand, x2: Operand) -> Call:
    """x1 <= x2."""

def linear(
    data: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    out_dtype: DTypeLike | None = None,
) -> Call:
    """`data @ weight.T + bias`, as a layer of torch stores its weight: (out, in), or (in,) for one
    result. Accumulated as `matmul`; the bias, broadcast, is added before rounding. (One operator
    here: nothing is transposed in memory.)

    out_dtype: Dtype of the result; None: that of the arguments.
    """

def log(x: TensorLike) -> Call:
    """The natural logarithm: -infinity of 0, NaN below."""

def log_add_exp(x1: Operand, x2: Operand) -> Call:
    """log(exp(x1) + exp(x2)), without overflow; of integers rounded towards 0."""

def logical_and(x1: Operand, x2: Operand) -> Call:
    """Both are true."""

def logical_not(x: TensorLike) -> Call:
    """True where x is false."""

def logical_or(x1: Operand, x2: Operand) -> Call:
    """One of them is true, or both."""

def logical_xor(x1: Operand, x2: Operand) -> Call:
    """One of them is true, not both."""

def matmul(x1: TensorLike, x2: TensorLike, out_dtype: DTypeLike | None = None) -> Call:
    """The matrix product over the last two axes, as `numpy.matmul`: the axes before are
    broadcast, a vector is a row on the left and a column on the right. Accumulated in
    `out_dtype`, in float32 for narrower floats.

    out_dtype: Dtype of the result; None: that of the arguments.
    """

def max(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Call:
    """The greatest element; -infinity, or the smallest integer, of nothing.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: The reduced axes stay, with size 1.
    """

def maximum(x1: Operand, x2: Operand) -> Call:
    """The greater one; NaN if either is NaN."""

def mean(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Call:
    """The mean. Means of integers are rounded towards 0. The mean of no elements is NaN for floats, and 0 for
    integers.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: The reduced axes stay, with size 1.
    """

def median(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Call:
    """The element in the middle of the sorted axis, the lower one of two, as `torch.median`; the
    first NaN if there is one. With an axis a tuple: the element and where it is (int64; of equals
    the first that is as far in the stable order). Refused for an axis of size 0.

    axis: The axis, one; None: all elements in order, as one axis.

    keepdims: The axis stays, with size 1.
    """

def meshgrid(tensors: TupleLike, indexing: str = "ij") -> Call:
    """A tuple of grids: grid k has the values of vector k along axis k and is constant along the
    others, as `numpy.meshgrid`; with indexing "xy" the first two axes change places. A 0-d tensor
    is a vector of one.
    """

def min(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Call:
    """The smallest element; infinity, or the greatest integer, of nothing.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: The reduced axes stay, with size 1.
    """

def minimum(x1: Operand, x2: Operand) -> Call:
    """The smaller one; NaN if either is NaN."""

def mod(x1: Operand, x2: Operand) -> Call:
    """What is left by a division rounded towards zero, of the sign of x1, as C's `%` and `fmod`. Integers: 0 where x2
    is 0. Floats: NaN there, and exact elsewhere.
    """

def multinomial_from_uniform(
    prob: TensorLike,
    uniform_sample: TensorLike,
    sample_indices: TensorLike,
    dtype: DTypeLike = "int64",
) -> Call:
    """For each number u of `uniform_sample` (n, 1) the place at which the running sum of a row of
    `prob` (batch, size) first exceeds u: an item drawn with these probabilities, if u is uniform
    in [0, 1). `sample_indices` (n, 1) says which row. For a u beyond the sum of the row it is the
    last item with a probability above 0; a row out of range is the nearest one (0 if there is
    no row).

    dtype: Dtype of the result.
    """

def multiply(x1: Operand, x2: Operand) -> Call:
    """x1 * x2; integers modulo 2**bits."""

def negative(x: TensorLike) -> Call:
    """-x; integers modulo 2**bits."""

def nonzero(x: TensorLike) -> Call:
    """Where x is not 0 (NaN is not): int64, a column for each such element in row-major order, a
    row for each axis (ONNX's NonZero). A 0-d tensor counts as a vector of one.
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
    """A new dimension of size `depth` at `axis`, `on_value` at the place that the index names and `off_value`
    elsewhere, also everywhere for an index out of range.

    dtype: Dtype of the result; None: bool, int64 or float32, as the values are.
    """

def ones(shape: ShapeLike, dtype: DTypeLike) -> Call:
    """A tensor of ones."""

def ones_like(x: TensorLike, dtype: DTypeLike | None = None) -> Call:
    """Ones of the shape of x, and of its dtype unless `dtype` says another."""

def outer(x1: TensorLike, x2: TensorLike) -> Call:
    """The products of each element of x1 with each of x2, both of one dimension: (n,) and (m,)
    give (n, m).
    """

def permute_dims(x: TensorLike, axes: Sequence[int] | None = None) -> Call:
    """The axes in another order; reversed without `axes`."""

def power(x1: Operand, x2: Operand) -> Call:
    """x1 to the power x2. Integers: modulo 2**bits, and the whole part of a negative power: 0, but for 1 and -1; 0 to
    the power 0 is 1. Floats: NaN of a negative x1 where x2 is not whole.
    """

def print(*values: ExprLike, format: str = "") -> Call:
    """Print values at run time: each on a line of its own, or in the places `{}` of `format`."""

def prod(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Call:
    """The product, 1 of nothing; integers modulo 2**bits, in the argument's dtype.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: The reduced axes stay, with size 1.
    """

def quantize(
    data: TensorLike,
    scale: TensorLike,
    zero_point: TensorLike,
    axis: int = -1,
    out_dtype: DTypeLike = "int8",
) -> Call:
    """round(data / scale) + zero_point as `out_dtype`, with halves to the even number, and what is beyond the range at
    its ends; NaN gives 0. One scale and zero point, or one for each place along `axis`.
    """

def repeat(data: TensorLike, repeats: int, axis: int | None = None) -> Call:
    """Each slice along `axis` `repeats` times in a row, as `numpy.repeat`; without `axis`, each
    element of the flattened tensor.
    """

def reshape(x: TensorLike, shape: ShapeLike) -> Call:
    """The elements in row-major order under another shape, as `numpy.reshape`. One dimension may be
    -1: it is what the others leave; 0 is a size of 0.
    """

def reverse_sequence(
    data: TensorLike,
    seq_lengths: TensorLike,
    seq_axis: int = 1,
    batch_axis: int = 0,
) -> Call:
    """Sequence b along `batch_axis` with its first `seq_lengths[b]` places along `seq_axis` in
    reverse order, the others as they are. A length above the axis is that of the axis, one below
    0 is 0.
    """

def right_shift(x1: Operand, x2: Operand) -> Call:
    """x1 / 2**x2 rounded down. Where x2 is negative, or not below the width: 0, or -1 of a negative x1."""

def round(x: TensorLike) -> Call:
    """The nearest whole number, halves to the even one; integers as they are."""

def rsqrt(x: TensorLike) -> Call:
    """1 / sqrt(x): infinity of 0, NaN below."""

def scalar_to_tensor(value: ScalarLike, dtype: DTypeLike) -> Call:
    """A scalar as a 0-d tensor. `dtype` is the scalar's own: at run time scalars carry no dtype."""

def scatter_elements(
    data: TensorLike,
    indices: TensorLike,
    updates: TensorLike,
    axis: int = 0,
    reduction: str = "update",
) -> Call:
    """A copy of data in which each element of `updates` meets the element at its own place but for `axis`, where
    `indices` says it (ONNX's ScatterElements): it replaces it (reduction "update"), or is added, multiplied, or the
    smaller or greater one stays; "mean" is the mean of the old element and its updates, of integers rounded down.
    Updates are made in row-major order: of several replacements the last one stays. A negative index counts from the
    end; an update out of range even so is left out.
    """

def scatter_nd(
    data: TensorLike,
    indices: TensorLike,
    updates: TensorLike,
    reduction: str = "update",
) -> Call:
    """A copy of data in which the slices of `updates` meet the slices that the vectors along the last axis of
    `indices` name (ONNX's ScatterND), as the reduction says: "update" replaces, "add", "mul", "min", "max" and "mean"
    (of the old element and its updates, of integers rounded down) combine. Updates are made in row-major order: of
    several replacements the last one stays. A negative index counts from the end; an update out of range even so is
    left out.
    """

def shape_of(x: TensorLike) -> Call:
    """The shape of a tensor as a value."""

def shape_to_tensor(input: ShapeLike) -> Call:
    """The dimensions of a shape as an int64 tensor."""

def sigmoid(x: TensorLike) -> Call:
    """1 / (1 + exp(-x))."""

def sign(x: TensorLike) -> Call:
    """1, 0 or -1; NaN of a NaN."""

def sin(x: TensorLike) -> Call:
    """The sine of x radians, for x of any size; NaN of the infinities."""

def sinh(x: TensorLike) -> Call:
    """The hyperbolic sine."""

def size(x: TensorLike) -> Call:
    """How many elements x has: a 0-d int64 tensor."""

def slice_scatter(
    input_tensor: TensorLike,
    src: TensorLike,
    start: ScalarLike,
    end: ScalarLike,
    step: ScalarLike,
    axis: int = 0,
) -> Call:
    """A copy of input_tensor with src in place of its slice start:end:step along `axis`. Places
    are counted as in `strided_slice`; the step goes up.
    """

def sort(x: TensorLike, axis: int = -1, descending: bool = False) -> Call:
    """The elements in order along `axis`. A NaN is the greatest of all: last, or first where
    `descending`.
    """

def split(x: TensorLike, indices_or_sections: ExprLike, axis: int = 0) -> Call:
    """A tuple of the parts of x along `axis`: a given number of parts of equal size, of which the last may be
    smaller; or the parts between given positions, which may be symbolic. One part is a tensor, not a tuple, as
    in TVM. Sizes that cannot be split in this way are refused, or are an error at run time.
    """

def sqrt(x: TensorLike) -> Call:
    """The square root: NaN below 0."""

def square(x: TensorLike) -> Call:
    """x * x; integers modulo 2**bits."""

def squeeze(x: TensorLike, axis: Sequence[int] | int | None = None) -> Call:
    """Without some axes of size 1; without `axis`, all that are (the rank of the result is
    unknown where a dimension is, and found when the program runs).
    """

def stack(tensors: TupleLike, axis: int = 0) -> Call:
    """The tensors, all of one shape, one after the other along a new axis, which stands at `axis`
    of the result.
    """

def std(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Call:
    """The standard deviation: the square root of `variance`; NaN of nothing.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: The reduced axes stay, with size 1.
    """

def strided_slice(
    x: TensorLike,
    axes: ShapeLike,
    begin: ShapeLike,
    end: ShapeLike,
    strides: ShapeLike | None = None,
    assume_inbound: bool = False,
) -> Call:
    """x[begin:end:stride] along `axes`, as numpy slices: negative places count from the end,
    places beyond the ends mean the ends, a negative stride goes down (from `begin` to above
    `end`). With `assume_inbound` begin and end are places as they are, inside of x (checked when
    the program runs), and the sizes of the result are simpler.
    """

def subtract(x1: Operand, x2: Operand) -> Call:
    """x1 - x2; integers modulo 2**bits."""

def sum(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Call:
    """The sum; integers modulo 2**bits, in the argument's dtype.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: The reduced axes stay, with size 1.
    """

def take(x: Operand, indices: Operand, axis: int | None = None, mode: str = "fast") -> Call:
    """Slices of x at `indices` along `axis`, as `numpy.take`. An index out of range reads the
    nearest place (modes "fast" and "clip": negative ones the first), counts around (mode "wrap"),
    or gives NaN (mode "nan", for floats); a slice of an empty axis is 0, in mode "nan" NaN.

    axis: Axis of x that is indexed; None where x has only one.
    """

def tan(x: TensorLike) -> Call:
    """The tangent of x radians, for x of any size; NaN of the infinities."""

def tanh(x: TensorLike) -> Call:
    """The hyperbolic tangent."""

def tensor_to_scalar(x: TensorLike) -> Call:
    """The element of a 0-d tensor as a scalar."""

def tensor_to_shape(input: TensorLike) -> Call:
    """The elements of an int64 vector as a shape."""

def tile(data: TensorLike, repeats: Sequence[int] | int) -> Call:
    """The whole tensor side by side with itself, `repeats` times along each axis, as
    `numpy.tile`; axes and repeats are matched from the right, and what is missing is 1.
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
    """The `k` greatest elements along `axis` in descending order (with `largest=False`: the least,
    in ascending order) and where they are; of equals the first. A NaN is the greatest of all.
    `ret_type` says what is given: "both" (a tuple), "values" or "indices". All elements for a k
    below 1; a k above the size is refused.

    dtype: Dtype of the indices.
    """

def tril(x: TensorLike, k: ScalarLike | None = None) -> Call:
    """The lower triangle of each matrix in x, up to the diagonal `k` places right of the main one; 0 above."""

def triu(x: TensorLike, k: ScalarLike | None = None) -> Call:
    """The upper triangle of each matrix in x, from the diagonal `k` places right of the main one on; 0 below."""

def trunc(x: TensorLike) -> Call:
    """x without its fraction; integers as they are."""

def unique(
    x: TensorLike,
    sorted: bool = True,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
) -> Call:
    """The different values of x (figure 3 of the paper), or slices along `axis`: in ascending
    order, or, without `sorted`, in that of their first appearance. With return_index, return_inverse
    and return_counts a tuple: also (int64 vectors) where each value first appears in x, where each
    element of x is among the values, and how often each value appears; without `axis` places are
    counted in the flattened x.
    """

def variance(
    x: TensorLike,
    axis: Sequence[int] | int | None = None,
    keepdims: bool = False,
) -> Call:
    """The mean square of the distance from the mean (divided by the number of elements, as
    `numpy.var`); NaN of nothing.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: The reduced axes stay, with size 1.
    """

def where(condition: Operand, x1: Operand, x2: Operand) -> Call:
    """x1 where the condition is true, else x2; all three are broadcast."""

def wrap_param(data: TensorLike, dtype: DTypeLike = "float32") -> Call:
    """A parameter of a model as `dtype`, by the rules of `astype`."""

def zeros(shape: ShapeLike, dtype: DTypeLike) -> Call:
    """A tensor of zeros."""

def zeros_like(x: TensorLike, dtype: DTypeLike | None = None) -> Call:
    """Zeros of the shape of x, and of its dtype unless `dtype` says another."""
