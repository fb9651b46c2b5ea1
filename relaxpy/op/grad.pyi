"""Written from the table of operators by `make stubs`; see relaxpy/testing/stubs.py."""

from collections.abc import Sequence

from relaxpy.ir.expr import Call
from relaxpy.op.function import TensorLike

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
) -> Call:
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

def end_checkpoint(x: TensorLike) -> Call:
    """x, where a stage ends whose values are computed again for the gradient instead of kept."""

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
) -> Call:
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

def nll_loss_backward(
    output_grad: TensorLike,
    predictions: TensorLike,
    targets: TensorLike,
    weights: TensorLike | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Call:
    """The gradient of `nn.nll_loss` with respect to predictions, where `output_grad` is that with
    respect to its result: -weights[t] * output_grad at the class t of each target (divided by the
    sum of the weights for "mean"), 0 elsewhere and where a target does not count.

    reduction: "mean", "sum" or "none", as for the loss.
    """

def no_grad(x: TensorLike) -> Call:
    """x, of which no gradient is taken."""

def start_checkpoint(x: TensorLike) -> Call:
    """x, where a stage begins whose values are computed again for the gradient instead of kept."""

def take_backward(
    output_grad: TensorLike,
    x: TensorLike,
    indices: TensorLike,
    axis: int | None = None,
    mode: str = "fast",
) -> Call:
    """The gradient of `take` (mode "fast") with respect to x: in a tensor of zeros each slice of `output_grad`
    is added to the slice at its index (clamped if out of range).

    axis: Axis of x that was indexed; None where x has only one.

    mode: That of `take`: "fast", "clip", or "" (TVM's word for none).
    """
