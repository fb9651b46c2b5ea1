"""Written from the table of operators by `make stubs`; see tests/stubs.py."""

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

def barrier(x: TensorLike, after: TensorLike) -> Call:
    """x, but not before the value `after` is there. What is computed from it is no other computation's equal: so what a
    backward pass recomputes is computed then, and not kept.
    """

def end_checkpoint(x: TensorLike) -> Call:
    """x, as an output of a gradient checkpointing stage: values inside the stage are recomputed for the gradient
    instead of being kept.
    """

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

def nll_loss_backward(
    output_grad: TensorLike,
    predictions: TensorLike,
    targets: TensorLike,
    weights: TensorLike | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Call:
    """The gradient of `nn.nll_loss` with respect to predictions, given the gradient `output_grad` of its result. At the
    class t of each target it is -weights[t] * output_grad, divided by the sum of the weights for "mean". It is 0
    elsewhere, and for ignored targets.

    reduction: "mean", "sum" or "none": the reduction of the loss.
    """

def no_grad(x: TensorLike) -> Call:
    """x, treated as a constant by differentiation."""

def start_checkpoint(x: TensorLike) -> Call:
    """x, as an input of a gradient checkpointing stage: values inside the stage, which are those that depend on it and
    on no output of the stage, are recomputed for the gradient instead of being kept.
    """

def take_backward(
    output_grad: TensorLike,
    x: TensorLike,
    indices: TensorLike,
    axis: int | None = None,
    mode: str = "fast",
) -> Call:
    """The gradient of `take` (mode "fast") with respect to x: each slice of `output_grad` is added to a tensor of zeros
    at its index, clamped if out of range.

    axis: Axis of x that was indexed; None is allowed if x has one axis.

    mode: The mode of `take`: "fast", "clip", or "" (TVM's spelling of no mode).
    """
