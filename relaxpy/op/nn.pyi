"""Written from the table of operators by `make stubs`; see tests/stubs.py."""

from collections.abc import Sequence

from relaxpy.ir.expr import Call
from relaxpy.op.function import DTypeLike, TensorLike, TupleLike

def adaptive_avg_pool1d(
    data: TensorLike,
    output_size: Sequence[int] | int | None = None,
    layout: str = "NCW",
    out_layout: str | None = None,
) -> Call:
    """Adaptive average pooling over one axis: the mean of each of `output_size` windows. Windows overlap where the axis
    is not divisible by their number. An empty window gives NaN.

    output_size: Number of windows along each spatial axis; None: the size of the axis is kept.

    out_layout: Layout of the result; None: the layout of data.
    """

def adaptive_avg_pool2d(
    data: TensorLike,
    output_size: Sequence[int] | int | None = None,
    layout: str = "NCHW",
    out_layout: str | None = None,
) -> Call:
    """Adaptive average pooling over two axes: the mean of each of `output_size` windows. Windows overlap where an axis
    is not divisible by their number. An empty window gives NaN.

    output_size: Number of windows along each spatial axis; None: the size of the axis is kept.

    out_layout: Layout of the result; None: the layout of data.
    """

def adaptive_avg_pool3d(
    data: TensorLike,
    output_size: Sequence[int] | int | None = None,
    layout: str = "NCDHW",
    out_layout: str | None = None,
) -> Call:
    """Adaptive average pooling over three axes: the mean of each of `output_size` windows. Windows overlap where an
    axis is not divisible by their number. An empty window gives NaN.

    output_size: Number of windows along each spatial axis; None: the size of the axis is kept.

    out_layout: Layout of the result; None: the layout of data.
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
    """Multi-head attention: softmax(query @ key^T * scale + bias) @ value. `query` is (batch, queries, heads, width),
    `key` and `value` are (batch, keys, key heads, width), and `bias` is broadcast to (batch, heads, queries, keys).
    With grouped-query attention the number of key heads divides the number of heads, and neighbouring heads share a key
    head. A query whose keys are all masked, or whose scores are all minus infinity, gives 0.

    scale: Factor of the scores; None: 1 / sqrt(width).

    causal_mask: "TopLeft": query i attends to the keys up to i. "BottomRight": query i attends to the keys up to i + |keys -
    queries|. None: no mask.

    window_size: Sliding window: the number of keys, up to the diagonal of the mask, that a query attends to; None: all.
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
    """`nn.attention` under the name that TVM prints for calls with a bias.

    scale: Factor of the scores; None: 1 / sqrt(width).

    causal_mask: "TopLeft": query i attends to the keys up to i. "BottomRight": query i attends to the keys up to i + |keys -
    queries|. None: no mask.

    window_size: Sliding window: the number of keys, up to the diagonal of the mask, that a query attends to; None: all.
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

def batch_flatten(data: TensorLike) -> Call:
    """Flatten all axes except the first, in row-major order."""

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
    """1-D convolution: the sum of data * weight over input channels and the kernel's window. `padding` zeros surround
    data, `strides` is the distance of windows, `dilation` that of the elements of a window.

    strides: Stride: one number, or one for each spatial axis.

    padding: Zero padding of data: one number, one for each spatial axis, or all before and then all after.

    dilation: Distance of the kernel's elements: one number, or one for each spatial axis.

    groups: Number of channel groups; a group's outputs depend only on the inputs of that group.

    out_layout: Layout of the result; None: the layout of data.

    out_dtype: Dtype of the result; None: the dtype of data.
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
    """2-D convolution: the sum of data * weight over input channels and the kernel's window. `padding` zeros surround
    data, `strides` is the distance of windows, `dilation` that of the elements of a window.

    strides: Stride: one number, or one for each spatial axis.

    padding: Zero padding of data: one number, one for each spatial axis, or all before and then all after.

    dilation: Distance of the kernel's elements: one number, or one for each spatial axis.

    groups: Number of channel groups; a group's outputs depend only on the inputs of that group.

    out_layout: Layout of the result; None: the layout of data.

    out_dtype: Dtype of the result; None: the dtype of data.
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
    """3-D convolution: the sum of data * weight over input channels and the kernel's window. `padding` zeros surround
    data, `strides` is the distance of windows, `dilation` that of the elements of a window.

    strides: Stride: one number, or one for each spatial axis.

    padding: Zero padding of data: one number, one for each spatial axis, or all before and then all after.

    dilation: Distance of the kernel's elements: one number, or one for each spatial axis.

    groups: Number of channel groups; a group's outputs depend only on the inputs of that group.

    out_layout: Layout of the result; None: the layout of data.

    out_dtype: Dtype of the result; None: the dtype of data.
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

def cross_entropy_with_logits(predictions: TensorLike, labels: TensorLike) -> Call:
    """The sum of -predictions * labels, a 0-d tensor. With several axes it is divided by the size of the first (the
    batch); an empty batch gives NaN. Integers are divided as by `divide`: rounded toward zero, 0 for an empty batch.
    """

def dropout(data: TensorLike, rate: float = 0.5) -> Call:
    """Dropout at inference: data unchanged, and a mask of ones of its shape and dtype. Nothing is dropped, whatever the
    rate.

    rate: Fraction of elements that training would drop.
    """

def expert_linear(
    data: TensorLike,
    weight: TensorLike,
    experts: TensorLike,
    bias: TensorLike | None = None,
) -> Call:
    """A linear map of each row by several of many weights: result[i, r] = weight[experts[i, r]] @ data[i] +
    bias[experts[i, r]]. `data` is (rows, in), `weight` (experts, out, in), `experts` (rows, choices), `bias` (experts,
    out); the result is (rows, choices, out). A number of an expert out of range is clamped. Accumulated as in `matmul`.
    The work is that of the chosen experts, and a row's result is the same to the bit whatever the other rows are.
    """

def gelu(x: TensorLike) -> Call:
    """The Gaussian error linear unit (GELU): x / 2 * (1 + erf(x / sqrt(2))) (Hendrycks and Gimpel, 2016)."""

def gelu_tanh(x: TensorLike) -> Call:
    """The tanh approximation of `gelu`, as used by GPT-2."""

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
    """Group normalisation: (data - mean) / sqrt(variance + epsilon) over `axes` and the channels of a group, then *
    gamma + beta of the channel (Wu and He, 2018). The channels are divided evenly into groups.

    num_groups: Number of groups that the channels are divided into.

    channel_axis: The channel axis, which is divided into groups; gamma and beta are vectors along it.

    axes: Axes over which the statistics are computed, without the channel axis.

    epsilon: Added to the variance under the root.

    center: Whether beta is added; otherwise it is ignored.

    scale: Whether to multiply by gamma; otherwise it is ignored.
    """

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
) -> Call:
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
    """Instance normalisation: (data - mean) / sqrt(variance + epsilon) over `axes`, then * gamma + beta of the channel
    (Ulyanov, Vedaldi and Lempitsky, 2016).

    channel_axis: The channel axis: gamma and beta are vectors along it.

    axes: Axes over which the statistics are computed, without the channel axis.

    epsilon: Added to the variance under the root.

    center: Whether beta is added; otherwise it is ignored.

    scale: Whether to multiply by gamma; otherwise it is ignored.
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
    """Layer normalisation: (data - mean) / sqrt(variance + epsilon) * gamma + beta, over `axes` (Ba, Kiros and Hinton,
    2016).

    axes: Axes over which the statistics are computed.

    epsilon: Added to the variance (or mean square) under the root.

    center: Whether beta is added; otherwise it is ignored.

    scale: Whether to multiply by gamma; otherwise it is ignored.
    """

def leakyrelu(x: TensorLike, alpha: float = 0.01) -> Call:
    """Leaky ReLU: x where it is positive, else `alpha` * x.

    alpha: Slope on the negative side.
    """

def log_softmax(data: TensorLike, axis: int = -1) -> Call:
    """Log-softmax: x - max - log(sum(exp(x - max))) along `axis`. It does not underflow as the logarithm of softmax
    would.

    axis: Axis along which the probabilities sum to 1.
    """

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
) -> Call:
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
) -> Call:
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
) -> Call:
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
) -> Call:
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

def nll_loss(
    predictions: TensorLike,
    targets: TensorLike,
    weights: TensorLike | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Call:
    """Negative log-likelihood: -predictions[n, t, …] * weights[t] for each target t = targets[n, …]. predictions (n,
    classes, …) are log-probabilities; a vector of classes has one target. The reduction "sum" adds them up, "mean" also
    divides by the sum of the weights (NaN if there are none), and "none" keeps them. A target that is `ignore_index` or
    no valid class has weight 0.

    reduction: "mean", "sum" or "none".
    """

def pad(
    data: TensorLike,
    pad_width: Sequence[int],
    pad_mode: str = "constant",
    pad_value: float = 0.0,
) -> Call:
    """Pad data. `pad_width` is the width of the border before and after each axis: (before_0, after_0, before_1, …).
    The border is `pad_value` (mode "constant"), the elements mirrored at the edge without the edge itself ("reflect":
    needs a size above the width), the edge element ("replicate": needs at least one element), or the elements of the
    other end ("circular": needs a size of at least the width).

    pad_width: Flat, or as pairs, one for each axis.
    """

def page_slots(
    positions: TensorLike,
    starts: TensorLike,
    tables: TensorLike,
    page_size: int,
) -> Call:
    """The place in a paged cache of each token: page number * page_size + slot in the page, int64; -1 for a token that
    is in no sequence, or whose position is beyond its table. `positions` (tokens,) are those within the sequences, and
    starts and tables are as in `nn.paged_attention`.
    """

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
) -> Call:
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

def pixel_shuffle(data: TensorLike, upscale_factor: int) -> Call:
    """Pixel shuffle: rearrange (…, C * r * r, H, W) to (…, C, H * r, W * r). Channel c * r * r + i * r + j holds the
    pixels at row i and column j of each r × r square (Shi et al., 2016).

    upscale_factor: The factor r: the side of a square.
    """

def prelu(data: TensorLike, alpha: TensorLike, axis: int = 1) -> Call:
    """x where it is positive, else x * alpha (He et al., 2015). `alpha` has one element for each index of `axis`, or
    one element in all.

    axis: The channel axis: alpha is a vector along it.
    """

def recurrent_panels(weight: TensorLike, gates: int) -> Call:
    """A weight (D, gates * units, depth) in the order in which `nn.recurrent_steps` multiplies it: (D, panels, depth,
    gates, 16), where panel p has units 16 * p to 16 * p + 15 of each gate. Units beyond the last one are zeros.
    """

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
) -> Call:
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

def relu(x: TensorLike) -> Call:
    """The rectified linear unit (ReLU): x where it is positive, else 0."""

def relu6(x: TensorLike) -> Call:
    """ReLU6: x clamped to [0, 6]; NaN stays NaN."""

def rms_norm(
    data: TensorLike,
    weight: TensorLike,
    axes: Sequence[int] | int = (-1,),
    epsilon: float = 1e-05,
) -> Call:
    """RMS normalisation: data / sqrt(mean square + epsilon) * weight, over `axes` (Zhang and Sennrich, 2019).

    axes: Axes over which the statistics are computed.

    epsilon: Added to the variance (or mean square) under the root.
    """

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
) -> Call:
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

def selu(x: TensorLike) -> Call:
    """The scaled exponential linear unit (SELU): scale * x where x is positive, else scale * alpha * (exp(x) - 1), with
    the constants of Klambauer et al., 2017.
    """

def silu(x: TensorLike) -> Call:
    """The sigmoid linear unit (SiLU, swish): x * sigmoid(x)."""

def softmax(data: TensorLike, axis: int = -1) -> Call:
    """Softmax: exp(x - max) / sum(exp(x - max)) along `axis`.

    axis: Axis along which the probabilities sum to 1.
    """

def softplus(x: TensorLike, beta: float = 1.0, threshold: float = 20.0) -> Call:
    """Softplus, a smooth ReLU: log(1 + exp(beta * x)) / beta; x itself where beta * x is above `threshold`.

    beta: Steepness: the factor of x in the exponential.

    threshold: Where beta * x is above this, the result is x.
    """
