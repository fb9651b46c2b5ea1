"""Written from the table of operators by `make stubs`; see relaxpy/testing/stubs.py."""

from collections.abc import Sequence

from relaxpy.ir.expr import Call
from relaxpy.op.function import DTypeLike, TensorLike

def adaptive_avg_pool1d(
    data: TensorLike,
    output_size: Sequence[int] | int | None = None,
    layout: str = "NCW",
    out_layout: str | None = None,
) -> Call:
    """The means of windows that divide one axis into `output_size` parts, overlapping where it is not divisible; NaN
    of nothing.

    output_size: Into how many parts each spatial axis is divided; None: the axes stay as they are.

    out_layout: Layout of the result; None: that of data.
    """

def adaptive_avg_pool2d(
    data: TensorLike,
    output_size: Sequence[int] | int | None = None,
    layout: str = "NCHW",
    out_layout: str | None = None,
) -> Call:
    """The means of windows that divide two axes into `output_size` parts, overlapping where one is not divisible; NaN
    of nothing.

    output_size: Into how many parts each spatial axis is divided; None: the axes stay as they are.

    out_layout: Layout of the result; None: that of data.
    """

def adaptive_avg_pool3d(
    data: TensorLike,
    output_size: Sequence[int] | int | None = None,
    layout: str = "NCDHW",
    out_layout: str | None = None,
) -> Call:
    """The means of windows that divide three axes into `output_size` parts, overlapping where one is not divisible;
    NaN of nothing.

    output_size: Into how many parts each spatial axis is divided; None: the axes stay as they are.

    out_layout: Layout of the result; None: that of data.
    """

def attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    bias: TensorLike | None = None,
    scale: float | None = None,
    causal_mask: str | None = None,
    window_size: int | None = None,
) -> Call:
    """softmax(query @ key^T * scale + bias) @ value by heads: query (batch, queries, heads, width), key and value
    (batch, keys, key heads, width), bias broadcast to (batch, heads, queries, keys). Key heads, which divide the
    heads, are shared by neighbours. A query that sees no key, or only scores of minus infinity, gives 0.

    scale: What scores are multiplied by; None: 1 / sqrt(width).

    causal_mask: "TopLeft": query i sees keys up to i; "BottomRight": keys up to i + |keys - queries|; None: all.

    window_size: How many keys up to the mask's diagonal are seen; None: all.
    """

def attention_bias(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    bias: TensorLike | None = None,
    scale: float | None = None,
    causal_mask: str | None = None,
    window_size: int | None = None,
) -> Call:
    """As `nn.attention`, under the name that TVM prints for calls with a bias.

    scale: What scores are multiplied by; None: 1 / sqrt(width).

    causal_mask: "TopLeft": query i sees keys up to i; "BottomRight": keys up to i + |keys - queries|; None: all.

    window_size: How many keys up to the mask's diagonal are seen; None: all.
    """

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
) -> Call:
    """Attention inside each of several sequences that follow one another in query (1, all queries, heads, width), key
    and value: sequence s has the queries from seqstart_q[s] to seqstart_q[s + 1], and the keys from seqstart_k[s]
    (None: as the queries) to seqstart_k[s + 1]. Starts do not decrease. A query of no sequence, or that sees no key
    or only scores of minus infinity, gives 0. The largest lengths, max_seqlen_q and max_seqlen_k, are not
    needed here.

    scale: What scores are multiplied by; None: 1 / sqrt(width).

    causal_mask: "TopLeft": query i of a sequence sees its keys up to i; "BottomRight": up to i + |keys - queries|; None: all.

    window_size: How many keys up to the mask's diagonal are seen; None: all.
    """

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
) -> Call:
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
) -> Call:
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
) -> Call:
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

def batch_flatten(data: TensorLike) -> Call:
    """All axes but the first as one, in row-major order."""

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
) -> Call:
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
) -> Call:
    """Sums over channels and windows of one axis of data * weight, with `padding` zeros around data; windows are
    `strides` apart, their places `dilation`.

    strides: How far apart the windows are; one number, or one for each spatial axis.

    padding: Zeros around data: one number, one for each spatial axis, or all before and then all after.

    dilation: How far apart the places of a window are; one number, or one for each spatial axis.

    groups: Into how many groups the channels are divided, which do not look at each other.

    out_layout: Layout of the result; None: that of data.

    out_dtype: Dtype of the result; None: that of data.
    """

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
) -> Call:
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
) -> Call:
    """Sums over channels and windows of two axes of data * weight, with `padding` zeros around data; windows are
    `strides` apart, their places `dilation`.

    strides: How far apart the windows are; one number, or one for each spatial axis.

    padding: Zeros around data: one number, one for each spatial axis, or all before and then all after.

    dilation: How far apart the places of a window are; one number, or one for each spatial axis.

    groups: Into how many groups the channels are divided, which do not look at each other.

    out_layout: Layout of the result; None: that of data.

    out_dtype: Dtype of the result; None: that of data.
    """

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
) -> Call:
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
) -> Call:
    """Sums over channels and windows of three axes of data * weight, with `padding` zeros around data; windows are
    `strides` apart, their places `dilation`.

    strides: How far apart the windows are; one number, or one for each spatial axis.

    padding: Zeros around data: one number, one for each spatial axis, or all before and then all after.

    dilation: How far apart the places of a window are; one number, or one for each spatial axis.

    groups: Into how many groups the channels are divided, which do not look at each other.

    out_layout: Layout of the result; None: that of data.

    out_dtype: Dtype of the result; None: that of data.
    """

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
) -> Call:
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

def cross_entropy_with_logits(predictions: TensorLike, labels: TensorLike) -> Call:
    """The sum of -predictions * labels, divided by the size of the first axis (the batch) where
    there are several axes; one number. NaN for a batch of nothing.
    """

def dropout(data: TensorLike, rate: float = 0.5) -> Call:
    """What dropout is when a model is used and not trained: data as it is, and a mask of ones of
    its shape and dtype. Nothing is dropped, whatever the rate.

    rate: Which part of the elements training would drop.
    """

def gelu(x: TensorLike) -> Call:
    """x / 2 * (1 + erf(x / sqrt(2))) (Hendrycks and Gimpel, 2016)."""

def gelu_tanh(x: TensorLike) -> Call:
    """The approximation of `gelu` by tanh, as GPT-2 has it."""

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
) -> Call:
    """(data - mean) / sqrt(variance + epsilon) over `axes` and the channels of a group, then
    * gamma + beta of the channel (Wu and He, 2018). The channels are divided evenly.

    num_groups: Into how many groups the channels are divided.

    channel_axis: Axis that is divided, and that gamma and beta belong to.

    axes: Axes of the statistics, without the channels'.

    epsilon: Added to the variance under the root.

    center: Whether beta is added; if not it is ignored.

    scale: Whether gamma is multiplied; if not it is ignored.
    """

def instance_norm(
    data: TensorLike,
    gamma: TensorLike,
    beta: TensorLike,
    channel_axis: int,
    axes: Sequence[int] | int,
    epsilon: float = 1e-05,
    center: bool = True,
    scale: bool = True,
) -> Call:
    """(data - mean) / sqrt(variance + epsilon) over `axes`, then * gamma + beta of the channel
    (Ulyanov, Vedaldi and Lempitsky, 2016).

    channel_axis: Axis that gamma and beta belong to.

    axes: Axes of the statistics, without the channels'.

    epsilon: Added to the variance under the root.

    center: Whether beta is added; if not it is ignored.

    scale: Whether gamma is multiplied; if not it is ignored.
    """

def layer_norm(
    data: TensorLike,
    gamma: TensorLike,
    beta: TensorLike,
    axes: Sequence[int] | int = (-1,),
    epsilon: float = 1e-05,
    center: bool = True,
    scale: bool = True,
) -> Call:
    """(data - mean) / sqrt(variance + epsilon) * gamma + beta, over `axes` (Ba, Kiros and Hinton,
    2016).

    axes: Axes of the statistics.

    epsilon: Added to the variance (mean square) under the root.

    center: Whether beta is added; if not it is ignored.

    scale: Whether gamma is multiplied; if not it is ignored.
    """

def leakyrelu(x: TensorLike, alpha: float = 0.01) -> Call:
    """x where it is positive, else `alpha` * x.

    alpha: Slope on the negative side.
    """

def log_softmax(data: TensorLike, axis: int = -1) -> Call:
    """x - max - log(sum(exp(x - max))) along `axis`: the logarithm of softmax, without its
    underflow.

    axis: Axis along which the powers add up to 1.
    """

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
) -> Call:
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
) -> Call:
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
) -> Call:
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

def nll_loss(
    predictions: TensorLike,
    targets: TensorLike,
    weights: TensorLike | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Call:
    """The negative log likelihood: -predictions[n, t, …] * weights[t] for each target t =
    targets[n, …], where predictions (n, classes, …) are logarithms of probabilities (one
    dimension: classes, and one target). Summed up ("sum"), divided by the sum of the weights in
    addition ("mean"; NaN of nothing), or as they are ("none"). A target that is `ignore_index`,
    or no class, has weight 0.

    reduction: "mean", "sum" or "none".
    """

def pad(
    data: TensorLike,
    pad_width: Sequence[int],
    pad_mode: str = "constant",
    pad_value: float = 0.0,
) -> Call:
    """data with a border: `pad_width` is how much before and after each axis, (before_0, after_0, before_1, …). Of
    pad_value (mode "constant"), of the elements mirrored at the edge, which is not repeated ("reflect": needs a size
    above the width), of the edge ("replicate": needs an element), or of the other end ("circular": needs a size as the
    width).

    pad_width: Also as pairs, one for each axis.
    """

def pixel_shuffle(data: TensorLike, upscale_factor: int) -> Call:
    """Channels as space: (…, C * r * r, H, W) as (…, C, H * r, W * r), where channel c * r * r + i * r + j holds the
    pixels at row i and column j of the squares of r * r (Shi et al., 2016).

    upscale_factor: R, the side of a square.
    """

def prelu(data: TensorLike, alpha: TensorLike, axis: int = 1) -> Call:
    """x where it is positive, else x * alpha, with an alpha for each place of `axis`, or one for
    all (He et al., 2015).

    axis: Axis of x that alpha belongs to.
    """

def relu(x: TensorLike) -> Call:
    """x where it is positive, else 0."""

def relu6(x: TensorLike) -> Call:
    """x, at least 0 and at most 6; NaN stays."""

def rms_norm(
    data: TensorLike,
    weight: TensorLike,
    axes: Sequence[int] | int = (-1,),
    epsilon: float = 1e-05,
) -> Call:
    """data / sqrt(mean square + epsilon) * weight, over `axes` (Zhang and Sennrich, 2019).

    axes: Axes of the statistics.

    epsilon: Added to the variance (mean square) under the root.
    """

def selu(x: TensorLike) -> Call:
    """scale * x where x is positive, else scale * alpha * (exp(x) - 1), with the constants of
    Klambauer et al., 2017.
    """

def silu(x: TensorLike) -> Call:
    """x * sigmoid(x)."""

def softmax(data: TensorLike, axis: int = -1) -> Call:
    """exp(x - max) / sum along `axis`.

    axis: Axis along which the powers add up to 1.
    """

def softplus(x: TensorLike, beta: float = 1.0, threshold: float = 20.0) -> Call:
    """log(1 + exp(beta * x)) / beta; x itself where beta * x is above `threshold`.

    beta: Steepness.

    threshold: Above it the function is taken to be linear.
    """
