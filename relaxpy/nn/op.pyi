"""Written from the table of operators by `make stubs`; see relaxpy/testing/stubs.py."""

from collections.abc import Sequence
from typing import Any
from relaxpy.ir.dim import DimLike
from relaxpy.nn.apply import index as index
from relaxpy.nn.tensor import Tensor
from relaxpy.nn.tensor import Value
from relaxpy.op.function import DTypeLike, ExprLike, Operand, ScalarLike, ShapeLike, TensorLike, TupleLike
from relaxpy.ir.index_map import IndexMap


def match_cast(x: Value, shape: Sequence[DimLike], dtype: str | None=None) -> Tensor:
    """`x` under a shape (and dtype, if it has none) that is checked at run time."""

def check_range(x: Value, count: DimLike, what: str='indices') -> Tensor:
    """`x` itself, an integer tensor, whose elements are checked at run time to be at least 0 and below `count`. Without
    it, an index that is out of range means the first or the last place (`take`). `what` names them in the error."""

class Namespace:
    """The operators whose names begin with a prefix such as `nn.`."""

    def __init__(self, prefix: str) -> None:
        ...

    def __getattr__(self, name: str) -> Any:
        ...

    def __dir__(self) -> list[str]:
        ...

    def __repr__(self) -> str:
        ...

def abs(x: TensorLike) -> Tensor:
    """The magnitude; the smallest integer stays itself."""

def acos(x: TensorLike) -> Tensor:
    """The angle in [0, pi] whose cosine is x; NaN beyond 1."""

def acosh(x: TensorLike) -> Tensor:
    """The number, not negative, whose hyperbolic cosine is x; NaN below 1."""

def add(x1: Operand, x2: Operand) -> Tensor:
    """x1 + x2; integers modulo 2**bits."""

def all(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Tensor:
    """Are all elements not 0? True of nothing; a NaN is not 0.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: The reduced axes stay, with size 1.
    """

def any(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Tensor:
    """Is any element not 0? False of nothing; a NaN is not 0.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: The reduced axes stay, with size 1.
    """

def arange(
    start: ScalarLike,
    end: ScalarLike | None = None,
    step: ScalarLike | None = None,
    dtype: DTypeLike = "int64",
) -> Tensor:
    """start, start + step, … up to `end`, which is left out; integers (for floats it is `float_arange`)."""

def argmax(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Where along `axis` the greatest element is, int64: the first of equals, the first NaN if
    there is one. Refused for an axis of size 0.

    axis: The axis; None: all elements in order, as one axis.

    keepdims: The reduced axes stay, with size 1.
    """

def argmin(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
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
) -> Tensor:
    """Where each element of the sorted row was: `x[argsort(x)]` is `sort(x)`. Equal elements keep
    their order, ascending and `descending`.

    dtype: Dtype of the places.
    """

def asin(x: TensorLike) -> Tensor:
    """The angle in [-pi/2, pi/2] whose sine is x; NaN beyond 1."""

def asinh(x: TensorLike) -> Tensor:
    """The number whose hyperbolic sine is x."""

def assert_op(
    condition: ExprLike,
    /,
    *values: ExprLike,
    format: str = "the assertion does not hold",
) -> tuple[Tensor, ...]:
    """Stop with an error unless the condition, a 0-d bool tensor or a scalar, is true; values
    fill the `{}` of `format`.
    """

def astype(x: TensorLike, dtype: DTypeLike) -> Tensor:
    """The values as another dtype. From float to integer: towards zero, what is out of range
    becomes the nearest integer there is, NaN becomes 0. Between integers: modulo 2**bits. To
    bool: is it not 0.
    """

def atan(x: TensorLike) -> Tensor:
    """The angle in [-pi/2, pi/2] whose tangent is x."""

def atan2(x1: Operand, x2: Operand) -> Tensor:
    """The angle in [-pi, pi] of the point (x2, x1), zeros and infinities with their signs; of integers rounded towards
    0.
    """

def atanh(x: TensorLike) -> Tensor:
    """The number whose hyperbolic tangent is x: infinite at 1 and -1, NaN beyond."""

def bitwise_and(x1: Operand, x2: Operand) -> Tensor:
    """The bits that both have; of bools, both are true."""

def bitwise_not(x: TensorLike) -> Tensor:
    """Every bit turned; of a bool, its negation."""

def bitwise_or(x1: Operand, x2: Operand) -> Tensor:
    """The bits that one of them has; of bools, one is true."""

def bitwise_xor(x1: Operand, x2: Operand) -> Tensor:
    """The bits that differ; of bools, they differ."""

def broadcast_to(x: TensorLike, shape: ShapeLike) -> Tensor:
    """Repeated along axes of size 1 until it has `shape`."""

def bucketize(
    input_tensor: TensorLike,
    boundaries: TensorLike,
    out_int32: bool = False,
    right: bool = False,
) -> Tensor:
    """In which bucket each element lies: how many of the boundaries, a vector in ascending order,
    are below it (with `right`: or equal to it), as `numpy.searchsorted`; NaN is above all. int64,
    or int32 with `out_int32`. Of boundaries out of order: some number up to theirs.
    """

def ceil(x: TensorLike) -> Tensor:
    """The smallest whole number that is not below x; integers as they are."""

def clip(x: TensorLike, min: ScalarLike, max: ScalarLike) -> Tensor:
    """x, not below `min` and not above `max`: `max` where they cross, NaN where x is a NaN. Of integers, bounds beyond
    the range of the dtype are its ends.
    """

def collapse_sum_like(data: TensorLike, collapse_target: TensorLike) -> Tensor:
    """`collapse_sum_to` the shape of another tensor."""

def collapse_sum_to(data: TensorLike, shape: ShapeLike) -> Tensor:
    """The sum of data over the axes along which a tensor of `shape` is repeated by broadcasting:
    the gradient of `broadcast_to`. Integers modulo 2**bits.
    """

def concat(tensors: TupleLike, axis: int | None = 0) -> Tensor:
    """The tensors one after the other along `axis`.

    axis: None: each is read as a vector, in row-major order.
    """

def cos(x: TensorLike) -> Tensor:
    """The cosine of x radians, for x of any size; NaN of the infinities."""

def cosh(x: TensorLike) -> Tensor:
    """The hyperbolic cosine."""

def cumprod(
    data: TensorLike,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    exclusive: bool = False,
) -> Tensor:
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
) -> Tensor:
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
) -> Tensor:
    """scale * (data - zero_point) as `out_dtype`, computed in float32; what float16 cannot hold becomes its largest
    number. One scale and zero point, or one for each place along `axis`.
    """

def divide(x1: Operand, x2: Operand) -> Tensor:
    """x1 / x2. Integers: rounded towards zero, 0 where x2 is 0, and the smallest integer over -1 is itself."""

def dynamic_strided_slice(
    x: TensorLike,
    begin: TensorLike,
    end: TensorLike,
    strides: TensorLike,
) -> Tensor:
    """`strided_slice` along all axes with places that the program computes: begin, end and
    strides are integer vectors with an element for each axis. A stride of 0 stops the program.
    """

def einsum(operands: TupleLike, subscripts: str) -> Tensor:
    """Einstein summation, as `numpy.einsum`: "ij,jk->ik" is the matrix product, "ii->i" a diagonal,
    "...ij->...ji" a transposition (dimensions of "..." are broadcast); without "->" the result has the letters
    that occur once, in alphabetical order. Sizes of one letter must be equal, or 1, which is broadcast. Several
    operands are contracted from left to right.
    """

def equal(x1: Operand, x2: Operand) -> Tensor:
    """x1 == x2."""

def erf(x: TensorLike) -> Tensor:
    """The error function."""

def ewise_fma(x1: Operand, x2: Operand, x3: Operand) -> Tensor:
    """x1 * x2 + x3; integers modulo 2**bits."""

def exp(x: TensorLike) -> Tensor:
    """E to the power x."""

def expand_dims(x: TensorLike, axis: Sequence[int] | int) -> Tensor:
    """New axes of size 1, at the places that they have in the result."""

def eye(
    n: ScalarLike,
    m: ScalarLike | None = None,
    k: ScalarLike | None = None,
    dtype: DTypeLike = "float32",
) -> Tensor:
    """n rows and `m` columns (n, where it is left out), 1 on the diagonal that is `k` places right of the main one (to
    the left for a negative k), else 0.
    """

def eye_like(x: TensorLike, k: ScalarLike | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """As `eye`, of the shape of the matrix x, and of its dtype unless `dtype` says another."""

def flatten(x: TensorLike) -> Tensor:
    """All elements as one axis."""

def flip(data: TensorLike, axis: int) -> Tensor:
    """The slices along `axis` in reverse order, as `numpy.flip`."""

def float_arange(
    start: float,
    end: float,
    step: float = 1.0,
    dtype: DTypeLike = "float32",
) -> Tensor:
    """start + i * step for every whole i from 0 on that stays before `end`; computed in float64. What `R.arange` is
    where one of its numbers is a float.
    """

def floor(x: TensorLike) -> Tensor:
    """The greatest whole number that is not above x; integers as they are."""

def floor_divide(x1: Operand, x2: Operand) -> Tensor:
    """The quotient rounded down. Integers: 0 where x2 is 0, and the smallest integer over -1 is itself. Floats: (x1 -
    floor_mod(x1, x2)) / x2 to the nearest whole number, x1 / x2 where x2 is 0.
    """

def floor_mod(x1: Operand, x2: Operand) -> Tensor:
    """What is left by a division rounded down, of the sign of x2, as Python's `%`. Integers: 0 where x2 is 0. Floats:
    NaN there.
    """

def full(shape: ShapeLike, fill_value: Operand, dtype: DTypeLike | None = None) -> Tensor:
    """A tensor with every element `fill_value`, a 0-d tensor; of its dtype unless `dtype` says
    another.
    """

def full_like(x: Operand, fill_value: Operand, dtype: DTypeLike | None = None) -> Tensor:
    """A tensor of the shape of x with every element `fill_value`, a 0-d tensor; of the dtype of x unless `dtype` says
    another.
    """

def gather_elements(data: TensorLike, indices: TensorLike, axis: int = 0) -> Tensor:
    """The element of data at the same place but for `axis`, where `indices` says it: of the shape
    of indices, which may be smaller than data along the other axes (`torch.gather`). A negative
    index counts from the end; one that is out of range even so reads the nearest place, and 0 of
    an empty axis.
    """

def gather_nd(data: TensorLike, indices: TensorLike, batch_dims: int = 0) -> Tensor:
    """The slices of data that the vectors along the last axis of `indices` name: each starts at
    axis `batch_dims`, before which the two shapes are the same. A negative index counts from the
    end; one that is out of range even so reads the nearest place, and 0 of an empty axis.
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
    """alpha - beta * cos(2 * pi * i / N) for i below `window_size`, N being that if `periodic`, else one less; a window
    of one place is 1.
    """

def hint_on_device(
    x: TensorLike,
    dst_device: str = "cpu:0",
    memory_scope: str = "global",
) -> Tensor:
    """x, which is expected on a device: `R.hint_on_device(x, R.cpu(0))`.

    dst_device: The device, as `R.cpu(0)` or `R.device("cuda", 1)` name it.
    """

def index_put(
    data: TensorLike,
    indices: TupleLike,
    values: TensorLike,
    accumulate: bool = False,
) -> Tensor:
    """A copy of data after `data[i, j, …] = values` (with `accumulate`: `+=`, once for each update): the index tensors
    are broadcast together, values to them and the axes of data that are not indexed. Updates are made in row-major
    order: of several replacements the last one stays. A negative index counts from the end; an update out of range
    even so is left out.
    """

def index_tensor(data: TensorLike, indices: TupleLike) -> Tensor:
    """`data[i, j, …]` as in numpy: the index tensors are broadcast together, and name places along
    the first axes of data; the other axes follow. A negative index counts from the end; one that
    is out of range even so reads the nearest place, and 0 of an empty axis.
    """

def isfinite(x: TensorLike) -> Tensor:
    """Is x neither infinite nor a NaN? True of all integers."""

def isinf(x: TensorLike) -> Tensor:
    """Is x infinite, of either sign? False of all integers."""

def isnan(x: TensorLike) -> Tensor:
    """Is x a NaN? False of all integers."""

def layout_transform(
    x: TensorLike,
    index_map: IndexMap,
    pad_value: float | None = None,
    axis_separators: Sequence[int] | None = None,
    input_axis_separators: Sequence[int] | None = None,
) -> Tensor:
    """Each element of x at the place that `index_map` says for its own, as in
    `T.index_map(lambda i, j: (j, i // 4, i % 4))`, in the smallest shape that holds all places (`i % 4`
    has always 4). Places that no element goes to are `pad_value`, or 0; where several go, the last in row-major order
    stays. The separators are read and mean nothing here: memory is flat.
    """

def left_shift(x1: Operand, x2: Operand) -> Tensor:
    """x1 * 2**x2 modulo 2**bits: 0 where x2 is negative, or not below the width."""

def less(x1: Operand, x2: Operand) -> Tensor:
    """x1 < x2."""

def less_equal(x1: Operand, x2: Operand) -> Tensor:
    """x1 <= x2."""

def linear(
    data: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    out_dtype: DTypeLike | None = None,
) -> Tensor:
    """`data @ weight.T + bias`, as a layer of torch stores its weight: (out, in), or (in,) for one
    result. Accumulated as `matmul`; the bias, broadcast, is added before rounding. (One operator
    here: nothing is transposed in memory.)

    out_dtype: Dtype of the result; None: that of the arguments.
    """

def log(x: TensorLike) -> Tensor:
    """The natural logarithm: -infinity of 0, NaN below."""

def log_add_exp(x1: Operand, x2: Operand) -> Tensor:
    """log(exp(x1) + exp(x2)), without overflow; of integers rounded towards 0."""

def logical_and(x1: Operand, x2: Operand) -> Tensor:
    """Both are true."""

def logical_not(x: TensorLike) -> Tensor:
    """True where x is false."""

def logical_or(x1: Operand, x2: Operand) -> Tensor:
    """One of them is true, or both."""

def logical_xor(x1: Operand, x2: Operand) -> Tensor:
    """One of them is true, not both."""

def matmul(x1: TensorLike, x2: TensorLike, out_dtype: DTypeLike | None = None) -> Tensor:
    """The matrix product over the last two axes, as `numpy.matmul`: the axes before are
    broadcast, a vector is a row on the left and a column on the right. Accumulated in
    `out_dtype`, in float32 for narrower floats.

    out_dtype: Dtype of the result; None: that of the arguments.
    """

def max(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Tensor:
    """The greatest element; -infinity, or the smallest integer, of nothing.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: The reduced axes stay, with size 1.
    """

def maximum(x1: Operand, x2: Operand) -> Tensor:
    """The greater one; NaN if either is NaN."""

def mean(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Tensor:
    """The mean. Means of integers are rounded towards 0. The mean of no elements is NaN for floats, and 0 for
    integers.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: The reduced axes stay, with size 1.
    """

def median(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Any:
    """The element in the middle of the sorted axis, the lower one of two, as `torch.median`; the
    first NaN if there is one. With an axis a tuple: the element and where it is (int64; of equals
    the first that is as far in the stable order). Refused for an axis of size 0.

    axis: The axis, one; None: all elements in order, as one axis.

    keepdims: The axis stays, with size 1.
    """

def meshgrid(tensors: TupleLike, indexing: str = "ij") -> tuple[Tensor, ...]:
    """A tuple of grids: grid k has the values of vector k along axis k and is constant along the
    others, as `numpy.meshgrid`; with indexing "xy" the first two axes change places. A 0-d tensor
    is a vector of one.
    """

def min(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Tensor:
    """The smallest element; infinity, or the greatest integer, of nothing.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: The reduced axes stay, with size 1.
    """

def minimum(x1: Operand, x2: Operand) -> Tensor:
    """The smaller one; NaN if either is NaN."""

def mod(x1: Operand, x2: Operand) -> Tensor:
    """What is left by a division rounded towards zero, of the sign of x1, as C's `%` and `fmod`. Integers: 0 where x2
    is 0. Floats: NaN there, and exact elsewhere.
    """

def multinomial_from_uniform(
    prob: TensorLike,
    uniform_sample: TensorLike,
    sample_indices: TensorLike,
    dtype: DTypeLike = "int64",
) -> Tensor:
    """For each number u of `uniform_sample` (n, 1) the place at which the running sum of a row of
    `prob` (batch, size) first exceeds u: an item drawn with these probabilities, if u is uniform
    in [0, 1). `sample_indices` (n, 1) says which row. For a u beyond the sum of the row it is the
    last item with a probability above 0; a row out of range is the nearest one (0 if there is
    no row).

    dtype: Dtype of the result.
    """

def multiply(x1: Operand, x2: Operand) -> Tensor:
    """x1 * x2; integers modulo 2**bits."""

def negative(x: TensorLike) -> Tensor:
    """-x; integers modulo 2**bits."""

def nonzero(x: TensorLike) -> Tensor:
    """Where x is not 0 (NaN is not): int64, a column for each such element in row-major order, a
    row for each axis (ONNX's NonZero). A 0-d tensor counts as a vector of one.
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
    """A new dimension of size `depth` at `axis`, `on_value` at the place that the index names and `off_value`
    elsewhere, also everywhere for an index out of range.

    dtype: Dtype of the result; None: bool, int64 or float32, as the values are.
    """

def ones(shape: ShapeLike, dtype: DTypeLike) -> Tensor:
    """A tensor of ones."""

def ones_like(x: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """Ones of the shape of x, and of its dtype unless `dtype` says another."""

def outer(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The products of each element of x1 with each of x2, both of one dimension: (n,) and (m,)
    give (n, m).
    """

def permute_dims(x: TensorLike, axes: Sequence[int] | None = None) -> Tensor:
    """The axes in another order; reversed without `axes`."""

def power(x1: Operand, x2: Operand) -> Tensor:
    """x1 to the power x2. Integers: modulo 2**bits, and the whole part of a negative power: 0, but for 1 and -1; 0 to
    the power 0 is 1. Floats: NaN of a negative x1 where x2 is not whole.
    """

def print(*values: ExprLike, format: str = "") -> tuple[Tensor, ...]:
    """Print values at run time: each on a line of its own, or in the places `{}` of `format`."""

def prod(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Tensor:
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
) -> Tensor:
    """round(data / scale) + zero_point as `out_dtype`, with halves to the even number, and what is beyond the range at
    its ends; NaN gives 0. One scale and zero point, or one for each place along `axis`.
    """

def repeat(data: TensorLike, repeats: int, axis: int | None = None) -> Tensor:
    """Each slice along `axis` `repeats` times in a row, as `numpy.repeat`; without `axis`, each
    element of the flattened tensor.
    """

def reshape(x: TensorLike, shape: ShapeLike) -> Tensor:
    """The elements in row-major order under another shape, as `numpy.reshape`. One dimension may be
    -1: it is what the others leave; 0 is a size of 0.
    """

def reverse_sequence(
    data: TensorLike,
    seq_lengths: TensorLike,
    seq_axis: int = 1,
    batch_axis: int = 0,
) -> Tensor:
    """Sequence b along `batch_axis` with its first `seq_lengths[b]` places along `seq_axis` in
    reverse order, the others as they are. A length above the axis is that of the axis, one below
    0 is 0.
    """

def right_shift(x1: Operand, x2: Operand) -> Tensor:
    """x1 / 2**x2 rounded down. Where x2 is negative, or not below the width: 0, or -1 of a negative x1."""

def round(x: TensorLike) -> Tensor:
    """The nearest whole number, halves to the even one; integers as they are."""

def rsqrt(x: TensorLike) -> Tensor:
    """1 / sqrt(x): infinity of 0, NaN below."""

def scalar_to_tensor(value: ScalarLike, dtype: DTypeLike) -> Tensor:
    """A scalar as a 0-d tensor. `dtype` is the scalar's own: at run time scalars carry no dtype."""

def scatter_elements(
    data: TensorLike,
    indices: TensorLike,
    updates: TensorLike,
    axis: int = 0,
    reduction: str = "update",
) -> Tensor:
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
) -> Tensor:
    """A copy of data in which the slices of `updates` meet the slices that the vectors along the last axis of
    `indices` name (ONNX's ScatterND), as the reduction says: "update" replaces, "add", "mul", "min", "max" and "mean"
    (of the old element and its updates, of integers rounded down) combine. Updates are made in row-major order: of
    several replacements the last one stays. A negative index counts from the end; an update out of range even so is
    left out.
    """

def shape_of(x: TensorLike) -> Tensor:
    """The shape of a tensor as a value."""

def shape_to_tensor(input: ShapeLike) -> Tensor:
    """The dimensions of a shape as an int64 tensor."""

def sigmoid(x: TensorLike) -> Tensor:
    """1 / (1 + exp(-x))."""

def sign(x: TensorLike) -> Tensor:
    """1, 0 or -1; NaN of a NaN."""

def sin(x: TensorLike) -> Tensor:
    """The sine of x radians, for x of any size; NaN of the infinities."""

def sinh(x: TensorLike) -> Tensor:
    """The hyperbolic sine."""

def size(x: TensorLike) -> Tensor:
    """How many elements x has: a 0-d int64 tensor."""

def slice_scatter(
    input_tensor: TensorLike,
    src: TensorLike,
    start: ScalarLike,
    end: ScalarLike,
    step: ScalarLike,
    axis: int = 0,
) -> Tensor:
    """A copy of input_tensor with src in place of its slice start:end:step along `axis`. Places
    are counted as in `strided_slice`; the step goes up.
    """

def sort(x: TensorLike, axis: int = -1, descending: bool = False) -> Tensor:
    """The elements in order along `axis`. A NaN is the greatest of all: last, or first where
    `descending`.
    """

def split(x: TensorLike, indices_or_sections: ExprLike, axis: int = 0) -> Any:
    """A tuple of the parts of x along `axis`: a given number of parts of equal size, of which the last may be
    smaller; or the parts between given positions, which may be symbolic. One part is a tensor, not a tuple, as
    in TVM. Sizes that cannot be split in this way are refused, or are an error at run time.
    """

def sqrt(x: TensorLike) -> Tensor:
    """The square root: NaN below 0."""

def square(x: TensorLike) -> Tensor:
    """x * x; integers modulo 2**bits."""

def squeeze(x: TensorLike, axis: Sequence[int] | int | None = None) -> Tensor:
    """Without some axes of size 1; without `axis`, all that are (the rank of the result is
    unknown where a dimension is, and found when the program runs).
    """

def stack(tensors: TupleLike, axis: int = 0) -> Tensor:
    """The tensors, all of one shape, one after the other along a new axis, which stands at `axis`
    of the result.
    """

def std(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Tensor:
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
) -> Tensor:
    """x[begin:end:stride] along `axes`, as numpy slices: negative places count from the end,
    places beyond the ends mean the ends, a negative stride goes down (from `begin` to above
    `end`). With `assume_inbound` begin and end are places as they are, inside of x (checked when
    the program runs), and the sizes of the result are simpler.
    """

def subtract(x1: Operand, x2: Operand) -> Tensor:
    """x1 - x2; integers modulo 2**bits."""

def sum(x: TensorLike, axis: Sequence[int] | int | None = None, keepdims: bool = False) -> Tensor:
    """The sum; integers modulo 2**bits, in the argument's dtype.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: The reduced axes stay, with size 1.
    """

def take(x: Operand, indices: Operand, axis: int | None = None, mode: str = "fast") -> Tensor:
    """Slices of x at `indices` along `axis`, as `numpy.take`. An index out of range reads the
    nearest place (modes "fast" and "clip": negative ones the first), counts around (mode "wrap"),
    or gives NaN (mode "nan", for floats); a slice of an empty axis is 0, in mode "nan" NaN.

    axis: Axis of x that is indexed; None where x has only one.
    """

def tan(x: TensorLike) -> Tensor:
    """The tangent of x radians, for x of any size; NaN of the infinities."""

def tanh(x: TensorLike) -> Tensor:
    """The hyperbolic tangent."""

def tensor_to_scalar(x: TensorLike) -> Tensor:
    """The element of a 0-d tensor as a scalar."""

def tensor_to_shape(input: TensorLike) -> Tensor:
    """The elements of an int64 vector as a shape."""

def tile(data: TensorLike, repeats: Sequence[int] | int) -> Tensor:
    """The whole tensor side by side with itself, `repeats` times along each axis, as
    `numpy.tile`; axes and repeats are matched from the right, and what is missing is 1.
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
    """The `k` greatest elements along `axis` in descending order (with `largest=False`: the least,
    in ascending order) and where they are; of equals the first. A NaN is the greatest of all.
    `ret_type` says what is given: "both" (a tuple), "values" or "indices". All elements for a k
    below 1; a k above the size is refused.

    dtype: Dtype of the indices.
    """

def tril(x: TensorLike, k: ScalarLike | None = None) -> Tensor:
    """The lower triangle of each matrix in x, up to the diagonal `k` places right of the main one; 0 above."""

def triu(x: TensorLike, k: ScalarLike | None = None) -> Tensor:
    """The upper triangle of each matrix in x, from the diagonal `k` places right of the main one on; 0 below."""

def trunc(x: TensorLike) -> Tensor:
    """x without its fraction; integers as they are."""

def unique(
    x: TensorLike,
    sorted: bool = True,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
) -> Any:
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
) -> Tensor:
    """The mean square of the distance from the mean (divided by the number of elements, as
    `numpy.var`); NaN of nothing.

    axis: Axes to reduce, counted from the end where negative; None: all.

    keepdims: The reduced axes stay, with size 1.
    """

def where(condition: Operand, x1: Operand, x2: Operand) -> Tensor:
    """x1 where the condition is true, else x2; all three are broadcast."""

def wrap_param(data: TensorLike, dtype: DTypeLike = "float32") -> Tensor:
    """A parameter of a model as `dtype`, by the rules of `astype`."""

def zeros(shape: ShapeLike, dtype: DTypeLike) -> Tensor:
    """A tensor of zeros."""

def zeros_like(x: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """Zeros of the shape of x, and of its dtype unless `dtype` says another."""

class _builtin:
    @staticmethod
    def stop_lift_params(x: TensorLike) -> Tensor:
        """x, and what is computed from it is not moved to where parameters are transformed."""

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
        """The gradient of `nn.avg_pool2d` with respect to data, where `output_grad` is that with respect to its result:
        each window hands it in equal parts to its elements (and to the padding, where that was counted).

        pool_size: Places of a window; one number, or one for each spatial axis.

        strides: How far apart the windows are; one number, or one for each spatial axis.

        padding: By how much windows may begin before and end after data: one number, one for each spatial axis, or all before
        and then all after.

        dilation: How far apart the places of a window are; one number, or one for each spatial axis.

        ceil_mode: Whether there is a last window that ends beyond the padding, if it begins before.

        count_include_pad: Whether an average counts the places of the padding, which are 0; a maximum does not care.

        out_layout: Layout of the result; None: that of data.
        """
    @staticmethod
    def end_checkpoint(x: TensorLike) -> Tensor:
        """x, where a stage ends whose values are computed again for the gradient instead of kept."""
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
        """The gradient of `nn.max_pool2d` with respect to data, where `output_grad` is that with respect to its result:
        each window hands it to its largest element, of several to the first (in row-major order), to a NaN before all.

        pool_size: Places of a window; one number, or one for each spatial axis.

        strides: How far apart the windows are; one number, or one for each spatial axis.

        padding: By how much windows may begin before and end after data: one number, one for each spatial axis, or all before
        and then all after.

        dilation: How far apart the places of a window are; one number, or one for each spatial axis.

        ceil_mode: Whether there is a last window that ends beyond the padding, if it begins before.

        count_include_pad: Whether an average counts the places of the padding, which are 0; a maximum does not care.

        out_layout: Layout of the result; None: that of data.
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
        """The gradient of `nn.nll_loss` with respect to predictions, where `output_grad` is that with
        respect to its result: -weights[t] * output_grad at the class t of each target (divided by the
        sum of the weights for "mean"), 0 elsewhere and where a target does not count.

        reduction: "mean", "sum" or "none", as for the loss.
        """
    @staticmethod
    def no_grad(x: TensorLike) -> Tensor:
        """x, of which no gradient is taken."""
    @staticmethod
    def start_checkpoint(x: TensorLike) -> Tensor:
        """x, where a stage begins whose values are computed again for the gradient instead of kept."""
    @staticmethod
    def take_backward(
        output_grad: TensorLike,
        x: TensorLike,
        indices: TensorLike,
        axis: int | None = None,
        mode: str = "fast",
    ) -> Tensor:
        """The gradient of `take` (mode "fast") with respect to x: in a tensor of zeros each slice of `output_grad`
        is added to the slice at its index (clamped if out of range).

        axis: Axis of x that was indexed; None where x has only one.

        mode: That of `take`: "fast", "clip", or "" (TVM's word for none).
        """

grad: _grad

class _image:
    @staticmethod
    def affine_grid(data: TensorLike, size: ShapeLike, align_corners: bool = True) -> Tensor:
        """The coordinates (batch, 2, H, W), or (batch, 3, D, H, W), that the matrices data (batch, 2, 3), or (batch, 3,
        4), map those of an evenly spaced grid of `size` to. An axis of one place has coordinate 0.

        align_corners: Whether -1 and 1 are the centres of the first and last places, or else their outer edges.
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
        """data at the coordinates `grid` (batch, 2, H, W), or (batch, 3, D, H, W), which counts them along the second axis,
        as `image.affine_grid` makes them. The nearest place is that to even. A coordinate that is NaN gives NaN; with
        method "nearest", what is at place 0.

        method: Which elements are summed along each axis: "nearest", "bilinear" (the two around), "bicubic" (the four).

        layout: Layout of data and of the result: of letters N, C, H, W, and D for three axes.

        padding_mode: What is outside of data: "zeros", "border" (the nearest place), "reflection" (data again, mirrored).

        align_corners: Whether -1 and 1 are the centres of the first and last places, or else their outer edges.
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
        """data with its two spatial axes resized to `size`: each element a weighted sum of those around the position that
        it comes from. Beyond the ends of an axis the nearest place is read.

        roi: Mode tf_crop_and_resize: the part of data that is resized, as (starts, ends) along the spatial axes, where 0 is
        the first place of an axis and 1 the last.

        method: Which elements are summed: "nearest_neighbor", "linear" (the two around), "cubic" (the four around).

        coordinate_transformation_mode: Where an element of the result comes from, as ONNX names it.

        rounding_method: Which place is nearest: "round" (to even), "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"; "": round
        for align_corners, else floor.

        cubic_alpha: Coefficient of the cubic spline.

        cubic_exclude: 1: places outside of data have no cubic weight, and the others make up for it; 0: they read the nearest.

        extrapolation_value: Mode tf_crop_and_resize: what comes from outside of data.

        out_dtype: Dtype of the result; None: that of data. Fractions become integers towards 0 (a whole number that rounding
        errors moved by less than `SLACK` is whole).
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
        """data with its three spatial axes resized to `size`: each element a weighted sum of those around the position
        that it comes from. Beyond the ends of an axis the nearest place is read.

        roi: Mode tf_crop_and_resize: the part of data that is resized, as (starts, ends) along the spatial axes, where 0 is
        the first place of an axis and 1 the last.

        method: Which elements are summed: "nearest_neighbor", "linear" (the two around), "cubic" (the four around).

        coordinate_transformation_mode: Where an element of the result comes from, as ONNX names it.

        rounding_method: Which place is nearest: "round" (to even), "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"; "": round
        for align_corners, else floor.

        cubic_alpha: Coefficient of the cubic spline.

        cubic_exclude: 1: places outside of data have no cubic weight, and the others make up for it; 0: they read the nearest.

        extrapolation_value: Mode tf_crop_and_resize: what comes from outside of data.

        out_dtype: Dtype of the result; None: that of data. Fractions become integers towards 0 (a whole number that rounding
        errors moved by less than `SLACK` is whole).
        """

image: _image

class _inspect:
    @staticmethod
    def tensor_byte_offset(x: TensorLike) -> Tensor:
        """Bytes before the first element."""
    @staticmethod
    def tensor_dtype_bits(x: TensorLike) -> Tensor:
        """Bits of an element."""
    @staticmethod
    def tensor_dtype_code(x: TensorLike) -> Tensor:
        """The dtype's DLPack code: 0 for integers, 1 unsigned, 2 floats, 4 bfloat, 6 bool."""
    @staticmethod
    def tensor_dtype_lanes(x: TensorLike) -> Tensor:
        """Lanes of an element: 1, since tensors have scalar elements."""
    @staticmethod
    def tensor_elem_offset(x: TensorLike) -> Tensor:
        """Elements before the first."""
    @staticmethod
    def tensor_ndim(x: TensorLike) -> Tensor:
        """Number of dimensions."""
    @staticmethod
    def tensor_shape_i(x: TensorLike, axis: ScalarLike) -> Tensor:
        """Size along an axis."""
    @staticmethod
    def tensor_stride_i(x: TensorLike, axis: ScalarLike) -> Tensor:
        """Elements from one index of an axis to the next."""

inspect: _inspect

class _nn:
    @staticmethod
    def adaptive_avg_pool1d(
        data: TensorLike,
        output_size: Sequence[int] | int | None = None,
        layout: str = "NCW",
        out_layout: str | None = None,
    ) -> Tensor:
        """The means of windows that divide one axis into `output_size` parts, overlapping where it is not divisible; NaN
        of nothing.

        output_size: Into how many parts each spatial axis is divided; None: the axes stay as they are.

        out_layout: Layout of the result; None: that of data.
        """
    @staticmethod
    def adaptive_avg_pool2d(
        data: TensorLike,
        output_size: Sequence[int] | int | None = None,
        layout: str = "NCHW",
        out_layout: str | None = None,
    ) -> Tensor:
        """The means of windows that divide two axes into `output_size` parts, overlapping where one is not divisible; NaN
        of nothing.

        output_size: Into how many parts each spatial axis is divided; None: the axes stay as they are.

        out_layout: Layout of the result; None: that of data.
        """
    @staticmethod
    def adaptive_avg_pool3d(
        data: TensorLike,
        output_size: Sequence[int] | int | None = None,
        layout: str = "NCDHW",
        out_layout: str | None = None,
    ) -> Tensor:
        """The means of windows that divide three axes into `output_size` parts, overlapping where one is not divisible;
        NaN of nothing.

        output_size: Into how many parts each spatial axis is divided; None: the axes stay as they are.

        out_layout: Layout of the result; None: that of data.
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
        """softmax(query @ key^T * scale + bias) @ value by heads: query (batch, queries, heads, width), key and value
        (batch, keys, key heads, width), bias broadcast to (batch, heads, queries, keys). Key heads, which divide the
        heads, are shared by neighbours. A query that sees no key, or only scores of minus infinity, gives 0.

        scale: What scores are multiplied by; None: 1 / sqrt(width).

        causal_mask: "TopLeft": query i sees keys up to i; "BottomRight": keys up to i + |keys - queries|; None: all.

        window_size: How many keys up to the mask's diagonal are seen; None: all.
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
        """As `nn.attention`, under the name that TVM prints for calls with a bias.

        scale: What scores are multiplied by; None: 1 / sqrt(width).

        causal_mask: "TopLeft": query i sees keys up to i; "BottomRight": keys up to i + |keys - queries|; None: all.

        window_size: How many keys up to the mask's diagonal are seen; None: all.
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
        """Attention inside each of several sequences that follow one another in query (1, all queries, heads, width), key
        and value: sequence s has the queries from seqstart_q[s] to seqstart_q[s + 1], and the keys from seqstart_k[s]
        (None: as the queries) to seqstart_k[s + 1]. Starts do not decrease. A query of no sequence, or that sees no key
        or only scores of minus infinity, gives 0. The largest lengths, max_seqlen_q and max_seqlen_k, are not
        needed here.

        scale: What scores are multiplied by; None: 1 / sqrt(width).

        causal_mask: "TopLeft": query i of a sequence sees its keys up to i; "BottomRight": up to i + |keys - queries|; None: all.

        window_size: How many keys up to the mask's diagonal are seen; None: all.
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
        """The mean of each window of one axis, `strides` apart; 0 of a window that has nothing to count.

        pool_size: Places of a window; one number, or one for each spatial axis.

        strides: How far apart the windows are; one number, or one for each spatial axis.

        padding: By how much windows may begin before and end after data: one number, one for each spatial axis, or all before
        and then all after.

        dilation: How far apart the places of a window are; one number, or one for each spatial axis.

        ceil_mode: Whether there is a last window that ends beyond the padding, if it begins before.

        count_include_pad: Whether an average counts the places of the padding, which are 0; a maximum does not care.

        out_layout: Layout of the result; None: that of data.
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
        """The mean of each window of two axes, `strides` apart; 0 of a window that has nothing to count.

        pool_size: Places of a window; one number, or one for each spatial axis.

        strides: How far apart the windows are; one number, or one for each spatial axis.

        padding: By how much windows may begin before and end after data: one number, one for each spatial axis, or all before
        and then all after.

        dilation: How far apart the places of a window are; one number, or one for each spatial axis.

        ceil_mode: Whether there is a last window that ends beyond the padding, if it begins before.

        count_include_pad: Whether an average counts the places of the padding, which are 0; a maximum does not care.

        out_layout: Layout of the result; None: that of data.
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
        """The mean of each window of three axes, `strides` apart; 0 of a window that has nothing to count.

        pool_size: Places of a window; one number, or one for each spatial axis.

        strides: How far apart the windows are; one number, or one for each spatial axis.

        padding: By how much windows may begin before and end after data: one number, one for each spatial axis, or all before
        and then all after.

        dilation: How far apart the places of a window are; one number, or one for each spatial axis.

        ceil_mode: Whether there is a last window that ends beyond the padding, if it begins before.

        count_include_pad: Whether an average counts the places of the padding, which are 0; a maximum does not care.

        out_layout: Layout of the result; None: that of data.
        """
    @staticmethod
    def batch_flatten(data: TensorLike) -> Tensor:
        """All axes but the first as one, in row-major order."""
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
        """(data - mean) / sqrt(variance + epsilon) * gamma + beta of each place of `axis` (Ioffe and
        Szegedy, 2015); a tuple of that, moving_mean and moving_var. In training mean and variance are
        those of the data, and the moving ones come out as (1 - momentum) * old + momentum * new; else
        they are the moving ones, which come out as they went in.

        axis: Axis of the channels.

        epsilon: Added to the variance under the root.

        center: Whether beta is added; if not it is ignored.

        scale: Whether gamma is multiplied; if not it is ignored.

        momentum: How much of the data's statistics goes into the moving ones.

        training: Whether the statistics are the data's.
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
        """Sums over channels and windows of one axis of data * weight, with `padding` zeros around data; windows are
        `strides` apart, their places `dilation`.

        strides: How far apart the windows are; one number, or one for each spatial axis.

        padding: Zeros around data: one number, one for each spatial axis, or all before and then all after.

        dilation: How far apart the places of a window are; one number, or one for each spatial axis.

        groups: Into how many groups the channels are divided, which do not look at each other.

        out_layout: Layout of the result; None: that of data.

        out_dtype: Dtype of the result; None: that of data.
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
        """Each element of data adds itself times the weight to a window of the result; windows are `strides` apart, their
        places `dilation`, and `padding` places are cut off at the ends.

        strides: How far apart the windows are; one number, or one for each spatial axis.

        padding: What is cut off at the ends: one number, one for each spatial axis, or all before and then all after.

        output_padding: Places that the result has more at the end; fewer than the stride or the dilation.

        dilation: How far apart the places of a window are; one number, or one for each spatial axis.

        groups: Into how many groups the channels are divided, which do not look at each other.

        out_layout: Layout of the result; None: that of data.

        out_dtype: Dtype of the result; None: that of data.
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
        """Sums over channels and windows of two axes of data * weight, with `padding` zeros around data; windows are
        `strides` apart, their places `dilation`.

        strides: How far apart the windows are; one number, or one for each spatial axis.

        padding: Zeros around data: one number, one for each spatial axis, or all before and then all after.

        dilation: How far apart the places of a window are; one number, or one for each spatial axis.

        groups: Into how many groups the channels are divided, which do not look at each other.

        out_layout: Layout of the result; None: that of data.

        out_dtype: Dtype of the result; None: that of data.
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
        """Each element of data adds itself times the weight to a window of the result; windows are `strides` apart, their
        places `dilation`, and `padding` places are cut off at the ends.

        strides: How far apart the windows are; one number, or one for each spatial axis.

        padding: What is cut off at the ends: one number, one for each spatial axis, or all before and then all after.

        output_padding: Places that the result has more at the end; fewer than the stride or the dilation.

        dilation: How far apart the places of a window are; one number, or one for each spatial axis.

        groups: Into how many groups the channels are divided, which do not look at each other.

        out_layout: Layout of the result; None: that of data.

        out_dtype: Dtype of the result; None: that of data.
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
        """Sums over channels and windows of three axes of data * weight, with `padding` zeros around data; windows are
        `strides` apart, their places `dilation`.

        strides: How far apart the windows are; one number, or one for each spatial axis.

        padding: Zeros around data: one number, one for each spatial axis, or all before and then all after.

        dilation: How far apart the places of a window are; one number, or one for each spatial axis.

        groups: Into how many groups the channels are divided, which do not look at each other.

        out_layout: Layout of the result; None: that of data.

        out_dtype: Dtype of the result; None: that of data.
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
        """Each element of data adds itself times the weight to a window of the result; windows are `strides` apart, their
        places `dilation`, and `padding` places are cut off at the ends.

        strides: How far apart the windows are; one number, or one for each spatial axis.

        padding: What is cut off at the ends: one number, one for each spatial axis, or all before and then all after.

        output_padding: Places that the result has more at the end; fewer than the stride or the dilation.

        dilation: How far apart the places of a window are; one number, or one for each spatial axis.

        groups: Into how many groups the channels are divided, which do not look at each other.

        out_layout: Layout of the result; None: that of data.

        out_dtype: Dtype of the result; None: that of data.
        """
    @staticmethod
    def cross_entropy_with_logits(predictions: TensorLike, labels: TensorLike) -> Tensor:
        """The sum of -predictions * labels, divided by the size of the first axis (the batch) where
        there are several axes; one number. NaN for a batch of nothing.
        """
    @staticmethod
    def dropout(data: TensorLike, rate: float = 0.5) -> tuple[Tensor, ...]:
        """What dropout is when a model is used and not trained: data as it is, and a mask of ones of
        its shape and dtype. Nothing is dropped, whatever the rate.

        rate: Which part of the elements training would drop.
        """
    @staticmethod
    def gelu(x: TensorLike) -> Tensor:
        """x / 2 * (1 + erf(x / sqrt(2))) (Hendrycks and Gimpel, 2016)."""
    @staticmethod
    def gelu_tanh(x: TensorLike) -> Tensor:
        """The approximation of `gelu` by tanh, as GPT-2 has it."""
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
        """(data - mean) / sqrt(variance + epsilon) over `axes` and the channels of a group, then
        * gamma + beta of the channel (Wu and He, 2018). The channels are divided evenly.

        num_groups: Into how many groups the channels are divided.

        channel_axis: Axis that is divided, and that gamma and beta belong to.

        axes: Axes of the statistics, without the channels'.

        epsilon: Added to the variance under the root.

        center: Whether beta is added; if not it is ignored.

        scale: Whether gamma is multiplied; if not it is ignored.
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
        """(data - mean) / sqrt(variance + epsilon) over `axes`, then * gamma + beta of the channel
        (Ulyanov, Vedaldi and Lempitsky, 2016).

        channel_axis: Axis that gamma and beta belong to.

        axes: Axes of the statistics, without the channels'.

        epsilon: Added to the variance under the root.

        center: Whether beta is added; if not it is ignored.

        scale: Whether gamma is multiplied; if not it is ignored.
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
        """(data - mean) / sqrt(variance + epsilon) * gamma + beta, over `axes` (Ba, Kiros and Hinton,
        2016).

        axes: Axes of the statistics.

        epsilon: Added to the variance (mean square) under the root.

        center: Whether beta is added; if not it is ignored.

        scale: Whether gamma is multiplied; if not it is ignored.
        """
    @staticmethod
    def leakyrelu(x: TensorLike, alpha: float = 0.01) -> Tensor:
        """x where it is positive, else `alpha` * x.

        alpha: Slope on the negative side.
        """
    @staticmethod
    def log_softmax(data: TensorLike, axis: int = -1) -> Tensor:
        """x - max - log(sum(exp(x - max))) along `axis`: the logarithm of softmax, without its
        underflow.

        axis: Axis along which the powers add up to 1.
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
        """The largest of each window of one axis, `strides` apart: NaN if there is one; minus infinity, or the smallest
        integer, of a window that is outside of data altogether.

        pool_size: Places of a window; one number, or one for each spatial axis.

        strides: How far apart the windows are; one number, or one for each spatial axis.

        padding: By how much windows may begin before and end after data: one number, one for each spatial axis, or all before
        and then all after.

        dilation: How far apart the places of a window are; one number, or one for each spatial axis.

        ceil_mode: Whether there is a last window that ends beyond the padding, if it begins before.

        count_include_pad: Whether an average counts the places of the padding, which are 0; a maximum does not care.

        out_layout: Layout of the result; None: that of data.
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
        """The largest of each window of two axes, `strides` apart: NaN if there is one; minus infinity, or the smallest
        integer, of a window that is outside of data altogether.

        pool_size: Places of a window; one number, or one for each spatial axis.

        strides: How far apart the windows are; one number, or one for each spatial axis.

        padding: By how much windows may begin before and end after data: one number, one for each spatial axis, or all before
        and then all after.

        dilation: How far apart the places of a window are; one number, or one for each spatial axis.

        ceil_mode: Whether there is a last window that ends beyond the padding, if it begins before.

        count_include_pad: Whether an average counts the places of the padding, which are 0; a maximum does not care.

        out_layout: Layout of the result; None: that of data.
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
        """The largest of each window of three axes, `strides` apart: NaN if there is one; minus infinity, or the smallest
        integer, of a window that is outside of data altogether.

        pool_size: Places of a window; one number, or one for each spatial axis.

        strides: How far apart the windows are; one number, or one for each spatial axis.

        padding: By how much windows may begin before and end after data: one number, one for each spatial axis, or all before
        and then all after.

        dilation: How far apart the places of a window are; one number, or one for each spatial axis.

        ceil_mode: Whether there is a last window that ends beyond the padding, if it begins before.

        count_include_pad: Whether an average counts the places of the padding, which are 0; a maximum does not care.

        out_layout: Layout of the result; None: that of data.
        """
    @staticmethod
    def nll_loss(
        predictions: TensorLike,
        targets: TensorLike,
        weights: TensorLike | None = None,
        reduction: str = "mean",
        ignore_index: int = -100,
    ) -> Tensor:
        """The negative log likelihood: -predictions[n, t, …] * weights[t] for each target t =
        targets[n, …], where predictions (n, classes, …) are logarithms of probabilities (one
        dimension: classes, and one target). Summed up ("sum"), divided by the sum of the weights in
        addition ("mean"; NaN of nothing), or as they are ("none"). A target that is `ignore_index`,
        or no class, has weight 0.

        reduction: "mean", "sum" or "none".
        """
    @staticmethod
    def pad(
        data: TensorLike,
        pad_width: Sequence[int],
        pad_mode: str = "constant",
        pad_value: float = 0.0,
    ) -> Tensor:
        """data with a border: `pad_width` is how much before and after each axis, (before_0, after_0, before_1, …). Of
        pad_value (mode "constant"), of the elements mirrored at the edge, which is not repeated ("reflect": needs a size
        above the width), of the edge ("replicate": needs an element), or of the other end ("circular": needs a size as the
        width).

        pad_width: Also as pairs, one for each axis.
        """
    @staticmethod
    def pixel_shuffle(data: TensorLike, upscale_factor: int) -> Tensor:
        """Channels as space: (…, C * r * r, H, W) as (…, C, H * r, W * r), where channel c * r * r + i * r + j holds the
        pixels at row i and column j of the squares of r * r (Shi et al., 2016).

        upscale_factor: R, the side of a square.
        """
    @staticmethod
    def prelu(data: TensorLike, alpha: TensorLike, axis: int = 1) -> Tensor:
        """x where it is positive, else x * alpha, with an alpha for each place of `axis`, or one for
        all (He et al., 2015).

        axis: Axis of x that alpha belongs to.
        """
    @staticmethod
    def relu(x: TensorLike) -> Tensor:
        """x where it is positive, else 0."""
    @staticmethod
    def relu6(x: TensorLike) -> Tensor:
        """x, at least 0 and at most 6; NaN stays."""
    @staticmethod
    def rms_norm(
        data: TensorLike,
        weight: TensorLike,
        axes: Sequence[int] | int = (-1,),
        epsilon: float = 1e-05,
    ) -> Tensor:
        """data / sqrt(mean square + epsilon) * weight, over `axes` (Zhang and Sennrich, 2019).

        axes: Axes of the statistics.

        epsilon: Added to the variance (mean square) under the root.
        """
    @staticmethod
    def selu(x: TensorLike) -> Tensor:
        """scale * x where x is positive, else scale * alpha * (exp(x) - 1), with the constants of
        Klambauer et al., 2017.
        """
    @staticmethod
    def silu(x: TensorLike) -> Tensor:
        """x * sigmoid(x)."""
    @staticmethod
    def softmax(data: TensorLike, axis: int = -1) -> Tensor:
        """exp(x - max) / sum along `axis`.

        axis: Axis along which the powers add up to 1.
        """
    @staticmethod
    def softplus(x: TensorLike, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
        """log(1 + exp(beta * x)) / beta; x itself where beta * x is above `threshold`.

        beta: Steepness.

        threshold: Above it the function is taken to be linear.
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
        """Non-maximum suppression per class of boxes (B, N, 4) with scores (B, C, N): at most
        `max_output_boxes_per_class` boxes of each class are selected, with a score above `score_threshold`, and an
        IoU below `iou_threshold` with every selected box of a higher score. With `output_format` "onnx" the result
        is a tuple of rows (batch, class, box), int64, in descending order of scores within a class, and their
        number, (1,). With "tensorflow" it is a tuple of rows (class, box), (B, C * N, 2), their scores, and their
        number in each batch; the rest is zeros.
        """
    @staticmethod
    def get_valid_counts(
        data: TensorLike,
        score_threshold: float = 0.0,
        id_index: int = 0,
        score_index: int = 1,
    ) -> tuple[Tensor, ...]:
        """For each batch of boxes (B, N, E) a tuple: the number of valid boxes (with a score above
        `score_threshold`, and a class that is not negative), int32; the valid boxes in their order, padded with
        rows of -1; and their indices, padded with -1, int32.

        id_index: Which number of a box is its class; negative: none.

        score_index: Which number of a box is its score.
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
        """A tuple: boxes (ymin, xmin, ymax, xmax), (B, N, 4), decoded from offsets (x, y, w, h) to anchors (left,
        top, right, bottom); and scores, (B, C, N), the softmax of the class predictions over the classes, 0 below
        `threshold`.

        clip: Whether boxes are held between 0 and 1.

        variances: By what offsets are multiplied, for x, y, w, h.

        keep_background: Whether class 0 has scores; else they are 0.

        apply_softmax: Whether predictions are logits; else they are scores already.
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
        """Non-maximum suppression: of the first `valid_count` boxes of each batch, in descending order of scores,
        those whose IoU with every selected box of their class is below `iou_threshold`. The result is a tuple of
        their `indices` (B, N), padded with -1, and their number, (B, 1); without `return_indices` it is the boxes,
        with rows of -1 for suppressed ones. With a positive `soft_nms_sigma` scores are lowered instead (soft NMS),
        and the tuple begins with the boxes.

        max_output_size: How many boxes of a batch stay at most; below 1: any number.

        force_suppress: Whether boxes of other classes are suppressed, too.

        top_k: How many boxes of a batch are looked at, best first; below 1: all.

        coord_start: Which number of a box is the first of its four coordinates.

        score_index: Which number of a box is its score.

        id_index: Which number of a box is its class; negative: none.

        invalid_to_bottom: Without `return_indices`: whether the boxes that stay come first.

        soft_nms_sigma: Width of the bell curve by which overlapping boxes lose score; 0: they are dropped.

        score_threshold: With `soft_nms_sigma`: below which score a box is dropped.
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
        """Each region of `rois` (image, x1, y1, x2, y2), pooled to `pooled_size`: each bin is the mean, or the
        maximum, of data at evenly spaced points of the bin, interpolated bilinearly; points outside of data are
        0.

        pooled_size: Rows and columns of the result; one number for both.

        spatial_scale: Size of data by that of the original.

        sample_ratio: Places a part along an axis; below 1: as many as it has elements, rounded up (at most four times as many as data
        has there).

        aligned: Whether a region may be smaller than one place, as it is written.

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
        """Each region of `rois` (image, x1, y1, x2, y2), max-pooled to `pooled_size`; an empty bin is 0. The
        corners of a region are rounded to integers, and belong to it.

        pooled_size: Rows and columns of the result; one number for both.

        spatial_scale: Size of data by that of the original.
        """

vision: _vision
