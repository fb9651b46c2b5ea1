"""What functions, methods and attributes of numpy and torch are here: data for the hints of errors.

`PAIRS` are expressions with equal values. The tests compute both sides of each and compare the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache

PAIRS = """
x.abs() = op.abs(x)
x.absolute() = op.abs(x)
x.neg() = -x
x.negative() = -x
x.positive() = x
x.sign() = op.sign(x)
x.sgn() = op.sign(x)
x.square() = op.square(x)
x.sqrt() = op.sqrt(x)
x.rsqrt() = op.rsqrt(x)
x.reciprocal() = 1 / x
x.exp() = op.exp(x)
x.exp2() = 2.0 ** x
x.expm1() = op.expm1(x)
x.log() = op.log(x)
x.log2() = op.log2(x)
x.log10() = op.log10(x)
x.log1p() = op.log1p(x)
x.sin() = op.sin(x)
x.cos() = op.cos(x)
x.tan() = op.tan(x)
x.sinh() = op.sinh(x)
x.cosh() = op.cosh(x)
x.tanh() = op.tanh(x)
x.asinh() = op.asinh(x)
x.arcsinh() = op.asinh(x)
x.acosh() = op.acosh(x)
x.arccosh() = op.acosh(x)
x.asin() = op.asin(x)
x.arcsin() = op.asin(x)
x.acos() = op.acos(x)
x.arccos() = op.acos(x)
x.atan() = op.atan(x)
x.arctan() = op.atan(x)
x.atanh() = op.atanh(x)
x.arctanh() = op.atanh(x)
x.atan2(y) = op.atan2(x, y)
x.arctan2(y) = op.atan2(x, y)
x.erf() = op.erf(x)
x.erfc() = op.erfc(x)
x.erfinv() = op.erfinv(x)
x.lgamma() = op.lgamma(x)
x.digamma() = op.digamma(x)
x.nextafter(y) = op.nextafter(x, y)
x.sigmoid() = op.sigmoid(x)
x.logit() = op.log(x / (1 - x))
x.relu() = op.nn.relu(x)
x.softmax(1) = op.nn.softmax(x, axis=1)
x.log_softmax(1) = op.nn.log_softmax(x, axis=1)
x.prelu(v) = op.nn.prelu(x, v)
x.ceil() = op.ceil(x)
x.floor() = op.floor(x)
x.trunc() = op.trunc(x)
x.fix() = op.trunc(x)
x.frac() = x - op.trunc(x)
x.round() = op.round(x)
np.rint(x) = op.round(x)
np.around(x) = op.round(x)
x.isnan() = op.isnan(x)
x.isinf() = op.isinf(x)
x.isfinite() = op.isfinite(x)
x.nan_to_num(0.0) = op.where(op.isnan(x), 0.0, x)
x.deg2rad() = x * 0.017453292
x.rad2deg() = x * 57.29578
x.clamp(0.1, 0.5) = op.clip(x, 0.1, 0.5)
x.clip(0.1, 0.5) = op.clip(x, 0.1, 0.5)
x.clamp_min(0.5) = op.maximum(x, 0.5)
x.clamp_max(0.5) = op.minimum(x, 0.5)
x.add(y) = x + y
x.sub(y) = x - y
x.subtract(y) = x - y
x.mul(y) = x * y
x.multiply(y) = x * y
x.div(y) = x / y
x.divide(y) = x / y
x.true_divide(y) = x / y
x.floor_divide(y) = x // y
x.remainder(y) = x % y
x.fmod(y) = op.mod(x, y)
x.pow(2) = x ** 2
x.float_power(2.0) = x ** 2
np.mod(x, y) = x % y
np.power(x, y) = op.power(x, y)
x.maximum(y) = op.maximum(x, y)
x.minimum(y) = op.minimum(x, y)
x.hypot(y) = op.sqrt(x * x + y * y)
x.logaddexp(y) = op.log_add_exp(x, y)
x.lerp(y, 0.25) = x + 0.25 * (y - x)
x.addcmul(x, y) = x + x * y
x.addcdiv(x, y) = x + x / y
x.eq(y) = x == y
x.ne(y) = x != y
x.not_equal(y) = x != y
x.lt(y) = x < y
x.less(y) = x < y
x.le(y) = x <= y
x.less_equal(y) = x <= y
x.gt(y) = x > y
x.greater(y) = x > y
x.ge(y) = x >= y
x.greater_equal(y) = x >= y
torch.equal(x, y) = op.all(x == y)
np.equal(x, y) = x == y
x.isclose(y) = op.abs(x - y) <= 1e-8 + 1e-5 * op.abs(y)
x.allclose(y) = op.all(op.abs(x - y) <= 1e-8 + 1e-5 * op.abs(y))
c.logical_and(c) = op.logical_and(c, c)
c.logical_or(c) = op.logical_or(c, c)
c.logical_xor(c) = op.logical_xor(c, c)
c.logical_not() = op.logical_not(c)
i.bitwise_and(i) = i & i
i.bitwise_or(i) = i | i
i.bitwise_xor(i) = i ^ i
i.bitwise_not() = ~i
i.bitwise_left_shift(i) = i << i
i.bitwise_right_shift(i) = i >> i
np.invert(i) = ~i
np.left_shift(i, i) = i << i
np.right_shift(i, i) = i >> i
x.where(c, y) = op.where(c, x, y)
torch.where(c, x, y) = op.where(c, x, y)
x.masked_fill(c, 0.0) = op.where(c, 0.0, x)
x.heaviside(y) = op.where(x == 0, y, op.astype(x > 0, "float32"))
x.signbit() = x < 0
x.copysign(y) = op.where(y < 0, -op.abs(x), op.abs(x))
# of types
x.type(torch.float64) = op.astype(x, "float64")
x.to(torch.float64) = op.astype(x, "float64")
np: x.astype("float64") = op.astype(x, "float64")
i.type_as(x) = op.astype(i, x.dtype)
i.float() = op.astype(i, "float32")
x.double() = op.astype(x, "float64")
x.half() = op.astype(x, "float16")
x.bfloat16() = op.astype(x, "bfloat16")
x.int() = op.astype(x, "int32")
x.long() = op.astype(x, "int64")
x.short() = op.astype(x, "int16")
x.char() = op.astype(x, "int8")
x.byte() = op.astype(x, "uint8")
x.bool() = op.astype(x, "bool")
# reductions
x.sum(dim=1, keepdim=True) = op.sum(x, axis=1, keepdims=True)
x.sum(1) = op.sum(x, axis=1)
x.mean(1) = op.mean(x, axis=1)
x.prod(1) = op.prod(x, axis=1)
x.amax(1) = op.max(x, axis=1)
x.amin(1) = op.min(x, axis=1)
x.max() = op.max(x)
x.max(1) = (op.max(x, axis=1), op.argmax(x, axis=1))
np: x.max(1) = op.max(x, axis=1)
x.min() = op.min(x)
x.min(1) = (op.min(x, axis=1), op.argmin(x, axis=1))
np: x.min(1) = op.min(x, axis=1)
x.aminmax() = (op.min(x), op.max(x))
x.argmax(1) = op.argmax(x, axis=1)
x.argmin(1) = op.argmin(x, axis=1)
c.all(1) = op.all(c, axis=1)
c.any(1) = op.any(c, axis=1)
x.count_nonzero(1) = op.sum(op.astype(x != 0, "int64"), axis=1)
x.median(1) = op.median(x, axis=1)
x.std(1, correction=0) = op.std(x, axis=1)
np: x.std(1) = op.std(x, axis=1)
x.var(1, correction=0) = op.variance(x, axis=1)
np: x.var(1) = op.variance(x, axis=1)
x.norm() = op.sqrt(op.sum(x * x))
x.norm(dim=1) = op.sqrt(op.sum(x * x, axis=1))
x.logsumexp(1) = op.log(op.sum(op.exp(x - op.max(x, axis=1, keepdims=True)), axis=1)) + op.max(x, axis=1)
x.nansum(1) = op.sum(op.where(op.isnan(x), 0.0, x), axis=1)
s.trace() = op.einsum((s,), "ii->")
x.cumsum(1) = op.cumsum(x, axis=1)
x.cumprod(1) = op.cumprod(x, axis=1)
x.cummax(1)[0] = op.cummax(x, axis=1)
x.cummin(1)[0] = op.cummin(x, axis=1)
np: np.ptp(x, axis=1) = op.max(x, axis=1) - op.min(x, axis=1)
# products
x.matmul(w) = x @ w
x.mm(w) = x @ w
x.mv(v) = x @ v
b.bmm(b.mT) = b @ op.permute_dims(b, (0, 2, 1))
v.dot(v) = v @ v
v.inner(v) = v @ v
v.vdot(v) = v @ v
v.outer(v) = op.outer(v, v)
v.ger(v) = op.outer(v, v)
p.addmm(x, w) = p + x @ w
torch.einsum("ij,jk->ik", x, w) = op.einsum((x, w), "ij,jk->ik")
np.einsum("ij,jk->ik", x, w) = op.einsum((x, w), "ij,jk->ik")
# shapes
x.reshape(2, -1) = op.reshape(x, (2, -1))
x.view(2, -1) = op.reshape(x, (2, -1))
b.reshape_as(b) = op.reshape(b, b.shape)
b.view_as(b) = op.reshape(b, b.shape)
x.ravel() = op.flatten(x)
b.flatten() = op.flatten(b)
b.flatten(1) = op.reshape(b, (b.shape[0], -1))
x.unflatten(1, (2, 2)) = op.reshape(x, (x.shape[0], 2, 2))
x.size(0) = x.shape[0]
x.numel() = x.shape[0] * x.shape[1]
x.nelement() = x.shape[0] * x.shape[1]
np: x.size = x.shape[0] * x.shape[1]
x.dim() = x.ndim
x.ndimension() = x.ndim
x.T = op.permute_dims(x)
x.H = op.permute_dims(x)
x.t() = op.permute_dims(x)
b.mT = op.permute_dims(b, (0, 2, 1))
b.mH = op.permute_dims(b, (0, 2, 1))
x.adjoint() = op.permute_dims(x)
b.permute(2, 0, 1) = op.permute_dims(b, (2, 0, 1))
b.transpose(1, 2) = op.permute_dims(b, (0, 2, 1))
np: b.transpose(2, 0, 1) = op.permute_dims(b, (2, 0, 1))
b.swapaxes(1, 2) = op.permute_dims(b, (0, 2, 1))
b.swapdims(1, 2) = op.permute_dims(b, (0, 2, 1))
b.movedim(0, 2) = op.permute_dims(b, (1, 2, 0))
b.moveaxis(0, 2) = op.permute_dims(b, (1, 2, 0))
x.unsqueeze(1) = op.expand_dims(x, axis=1)
np.expand_dims(x, 1) = op.expand_dims(x, axis=1)
o.squeeze(1) = op.squeeze(o, axis=1)
o.expand(3, 5) = op.broadcast_to(o, (o.shape[0], 5))
o.expand_as(x) = op.broadcast_to(o, x.shape)
o.broadcast_to((3, 5)) = op.broadcast_to(o, (o.shape[0], 5))
x.repeat(1, 2) = op.tile(x, (1, 2))
np: x.repeat(2, axis=1) = op.repeat(x, 2, axis=1)
x.repeat_interleave(2, 1) = op.repeat(x, 2, axis=1)
x.tile(1, 2) = op.tile(x, (1, 2))
x.flip(1) = op.flip(x, axis=1)
x.fliplr() = op.flip(x, axis=1)
x.flipud() = op.flip(x, axis=0)
x.roll(1, 1) = op.concat([x[:, -1:], x[:, :-1]], axis=1)
x.tril() = op.tril(x)
x.triu() = op.triu(x)
s.diagonal() = op.einsum((s,), "ii->i")
torch.cat([x, y], 1) = op.concat([x, y], axis=1)
torch.concat([x, y], 1) = op.concat([x, y], axis=1)
torch.concatenate([x, y], 1) = op.concat([x, y], axis=1)
np.concatenate([x, y], 1) = op.concat([x, y], axis=1)
torch.stack([x, y], 1) = op.stack([x, y], axis=1)
np.stack([x, y], 1) = op.stack([x, y], axis=1)
torch.hstack([x, y]) = op.concat([x, y], axis=1)
torch.vstack([x, y]) = op.concat([x, y], axis=0)
x.split(2, 1) = op.split(x, [2], axis=1)
np: np.split(x, 2, 1) = op.split(x, 2, axis=1)
x.chunk(2, 1) = op.split(x, 2, axis=1)
x.tensor_split(2, 1) = op.split(x, 2, axis=1)
x.split_with_sizes([1, 3], 1) = op.split(x, [1], axis=1)
x.hsplit(2) = op.split(x, 2, axis=1)
x.unbind(1) = (x[:, 0], x[:, 1], x[:, 2], x[:, 3])
torch.meshgrid(v, v, indexing="ij") = op.meshgrid((v, v))
np.pad(x, ((0, 0), (1, 2))) = op.nn.pad(x, (0, 0, 1, 2))
# elements
x.narrow(1, 0, 2) = x[:, 0:2]
x.select(1, 0) = x[:, 0]
x.index_select(1, k) = op.take(x, k, axis=1)
x.take(k) = op.take(op.flatten(x), k, axis=0)
np: x.take(k, axis=1) = op.take(x, k, axis=1)
x.gather(1, i) = op.gather_elements(x, i, axis=1)
x.take_along_dim(i, 1) = op.gather_elements(x, i, axis=1)
np.take_along_axis(x, i, 1) = op.gather_elements(x, i, axis=1)
x.scatter(1, r, y) = op.scatter_elements(x, r, y, axis=1)
x.scatter_add(1, i, y) = op.scatter_elements(x, i, y, axis=1, reduction="add")
x.index_put((k, k), v[:2]) = op.index_put(x, (k, k), v[:2])
x.nonzero() = op.permute_dims(op.nonzero(x))
x.argwhere() = op.permute_dims(op.nonzero(x))
x.masked_select(c) = op.take(op.flatten(x), op.nonzero(op.flatten(c))[0], axis=0)
x.sort(1) = (op.sort(x, axis=1), op.argsort(x, axis=1))
x.msort() = op.sort(x, axis=0)
np.sort(x, 1) = op.sort(x, axis=1)
x.argsort(1) = op.argsort(x, axis=1)
x.topk(2, 1) = op.topk(x, k=2, axis=1)
v.unique() = op.unique(v)
torch.bucketize(x, v) = op.bucketize(x, v)
torch.one_hot(i, 5) = op.one_hot(i, 1, 0, 5)
# tensors
torch.zeros_like(x) = op.zeros_like(x)
torch.ones_like(x) = op.ones_like(x)
torch.full_like(x, 0.5) = op.full_like(x, op.full((), 0.5, "float32"))
x.zero_() = op.zeros_like(x)
x.fill_(0.5) = op.full_like(x, op.full((), 0.5, "float32"))
x.copy_(o) = op.broadcast_to(o, x.shape)
x.new_zeros((3, 2)) = op.zeros((x.shape[0], 2), x.dtype)
x.new_ones((3, 2)) = op.ones((x.shape[0], 2), x.dtype)
x.new_full((3, 2), 0.5) = op.full((x.shape[0], 2), 0.5, x.dtype)
torch.zeros(3, 2) = op.zeros((3, 2), "float32")
torch.ones(3, 2) = op.ones((3, 2), "float32")
torch.full((3, 2), 0.5) = op.full((3, 2), 0.5, "float32")
torch.eye(3) = op.eye(3)
torch.arange(1, 7, 2) = op.arange(1, 7, 2)
# the same tensor: nothing is copied, and there is one device
x.clone() = x
np: x.copy() = x
x.contiguous() = x
x.detach() = x
x.cpu() = x
x.data = x
# networks
F.embedding(k, w) = op.take(w, k, axis=0)
F.linear(v, x) = op.linear(v, x)
F.gelu(x) = op.nn.gelu(x)
F.silu(x) = op.nn.silu(x)
F.relu6(x) = op.nn.relu6(x)
F.selu(x) = op.nn.selu(x)
F.softplus(x) = op.nn.softplus(x)
F.leaky_relu(x) = op.nn.leakyrelu(x)
F.dropout(x, 0.5, False) = x
F.layer_norm(x, (4,), v, v) = op.nn.layer_norm(x, v, v, axes=-1)
F.rms_norm(x, (4,), v, 1e-6) = op.nn.rms_norm(x, v, axes=-1, epsilon=1e-6)
F.pad(x, (1, 2)) = op.nn.pad(x, (0, 0, 1, 2))
F.gelu(x, approximate="tanh") = op.nn.gelu_tanh(x)
F.batch_norm(x, v, a, v, v) = op.nn.batch_norm(x, v, v, v, a, axis=1, training=False)[0]
F.group_norm(m, 2, g, g) = op.nn.group_norm(m, g, g, num_groups=2, channel_axis=1, axes=(2, 3))
F.instance_norm(m, weight=g, bias=g) = op.nn.instance_norm(m, g, g, channel_axis=1, axes=(2, 3))
F.nll_loss(x, d) = op.nn.nll_loss(x, d)
F.cross_entropy(x, d) = op.nn.nll_loss(op.nn.log_softmax(x, axis=1), d)
F.mse_loss(x, y) = op.mean(op.square(x - y))
F.l1_loss(x, y) = op.mean(op.abs(x - y))
F.max_pool1d(l, 2) = op.nn.max_pool1d(l, pool_size=2, strides=2)
F.avg_pool1d(l, 2) = op.nn.avg_pool1d(l, pool_size=2, strides=2)
F.adaptive_avg_pool1d(l, 2) = op.nn.adaptive_avg_pool1d(l, 2)
F.conv1d(l, u, padding=1) = op.nn.conv1d(l, u, padding=1)
F.max_pool3d(z, 2) = op.nn.max_pool3d(z, pool_size=2, strides=2)
F.avg_pool3d(z, 2) = op.nn.avg_pool3d(z, pool_size=2, strides=2)
F.adaptive_avg_pool3d(z, 2) = op.nn.adaptive_avg_pool3d(z, 2)
F.conv3d(z, t, padding=1) = op.nn.conv3d(z, t, padding=1)
F.scaled_dot_product_attention(h, h, h) = op.permute_dims(op.nn.attention(*[op.permute_dims(h, (0, 2, 1, 3))] * 3), (0, 2, 1, 3))
F.max_pool2d(m, 2) = op.nn.max_pool2d(m, pool_size=2, strides=2)
F.avg_pool2d(m, 2) = op.nn.avg_pool2d(m, pool_size=2, strides=2)
F.adaptive_avg_pool2d(m, 2) = op.nn.adaptive_avg_pool2d(m, 2)
F.conv2d(m, q, padding=1) = op.nn.conv2d(m, q, padding=1)
F.pixel_shuffle(m, 2) = op.nn.pixel_shuffle(m, 2)
F.interpolate(m, (8, 8)) = op.image.resize2d(m, (8, 8), method="nearest_neighbor", coordinate_transformation_mode="asymmetric", rounding_method="floor")
"""
"""A line for each: their expression, and ours. `np:` marks a method that is numpy's; torch's may be another. A name may
have several lines. The variables are those of `VARIABLES`."""

VARIABLES = {
    "x": "n 4", "y": "n 4", "w": "4 5", "v": "4", "a": "4", "s": "4 4", "o": "n 1", "p": "n 5", "b": "n 2 4", "l": "n 8 6",
    "u": "5 8 3", "m": "n 8 6 6", "q": "5 8 3 3", "g": "8", "z": "n 2 4 4 4", "t": "5 2 3 3 3", "h": "n 2 6 4", "i": "n 4",
    "r": "n 4", "k": "2", "d": "n", "c": "n 4",
}  # fmt: skip
"""The variables of `PAIRS` with their dimensions. i, r, k and d are integers, c is of bools, the others are floats."""

KEYWORDS = {
    "dim": ("axis", "axes"), "keepdim": ("keepdims",), "stride": ("strides",), "kernel_size": ("pool_size",),
    "eps": ("epsilon",), "dims": ("axes", "axis"), "negative_slope": ("alpha",), "pad": ("pad_width",),
}  # fmt: skip
"""torch's keywords → the keywords with the same meaning here."""

NOT_HERE = {
    **dict.fromkeys(
        ("item", "numpy", "tolist", "tobytes", "dump", "dumps", "tofile", "data_ptr", "storage", "untyped_storage"),
        "tensors have no numbers before the program runs: compute with the tensor itself, or return it and use the result of the call",
    ),
    **dict.fromkeys(
        ("cuda", "xpu", "ipu", "mtia", "device", "is_cuda", "is_cpu", "get_device", "to_device", "pin_memory"),
        "the target of the build chooses the device: relaxpy.build(mod, target=…)",
    ),
    **dict.fromkeys(
        ("backward", "grad", "grad_fn", "requires_grad", "retain_grad", "register_hook", "is_leaf"),
        "a gradient is a function of its own: relaxpy.grad(mod.forward), or relaxpy.train.Step for training (docs/gradients.md)",
    ),
    **dict.fromkeys(
        ("stride", "strides", "storage_offset", "is_contiguous", "element_size", "itemsize", "nbytes", "flags"),
        "tensors are compact, in row-major order; x.shape and x.dtype are all that is known of one",
    ),
}  # fmt: skip
"""Names of methods and attributes that have no counterpart → why, or what to do instead."""

_BESIDE = {"to": "the target of the build chooses the device: relaxpy.build(mod, target=…)"}
"""What else is to be said of a name in `PAIRS`, which has another meaning that is not here."""


@dataclass(frozen=True)
class Familiar:
    """An expression of another library, and the same here."""

    theirs: str
    ours: str
    """With `op.` before the names of operators."""
    library: str
    """"torch" or "numpy": whose expression it is."""

    @property
    def name(self) -> str:
        """The function, method or attribute."""
        return re.match(r"\w+\.(\w+)", self.theirs)[1]  # type: ignore[index]

    @property
    def is_plain(self) -> bool:
        """Is ours the same call, or the same method as a function?"""
        of, _, call = self.theirs.partition(".")
        name, _, arguments = call.partition("(")
        given = (
            arguments if of in ("np", "torch", "F") else f"{of}, {arguments}".replace(", )", ")")
        )
        return re.sub(r"^op\.(\w+\.)*", "", self.ours) == f"{name}({given}"


@cache
def familiar() -> dict[str, tuple[Familiar, ...]]:
    """The pairs by the name of their expression."""
    found: dict[str, tuple[Familiar, ...]] = {}
    for line in PAIRS.strip().splitlines():
        if line.startswith("#"):
            continue
        theirs, ours = line.split(" = ", 1)
        is_numpy = theirs.startswith(("np:", "np."))
        pair = Familiar(theirs.removeprefix("np: "), ours, "numpy" if is_numpy else "torch")
        found[pair.name] = (*found.get(pair.name, ()), pair)
    return found


def advice(name: str, prefix: str) -> str | None:
    """What to write instead of a function, method or attribute of numpy or torch; names of operators begin with
    `prefix`: "nn.op." in `forward`, "R." in a script, where sizes are those of annotations. None for a name that is not
    known. A name that ends in `_` is a method that changes its tensor: as the one without it, if it has no own pair."""
    if name in NOT_HERE:
        return NOT_HERE[name]
    shown = _shown(familiar().get(name, ()), lambda ours: written(ours, prefix))
    if shown and name in _BESIDE:
        shown = f"{shown}; {_BESIDE[name]}"
    if name.endswith("_") and not name.startswith("_"):
        found = shown or advice(name[:-1], prefix)
        return found and f"values are immutable, so use a new one: {found}"
    return shown


def otherwise(operator: str, key: str = "") -> str | None:
    """What to write for calls of numpy's or torch's function of an operator's name that are other calls here; with
    `key`, only for those with that keyword. Operators are written `R.…`, and shapes as in `forward`: what shows the error
    changes one of them."""
    name = operator.rpartition(".")[2]
    pairs = [p for p in familiar().get(name, ()) if key in p.theirs and not p.is_plain]
    return _shown(pairs, lambda ours: re.sub(r"\bop\.", "R.", ours))


def _shown(pairs: Sequence[Familiar], write: Callable[[str], str]) -> str | None:
    first: dict[str, Familiar] = {}
    for pair in pairs:
        first.setdefault(write(pair.ours), pair)
    several = len({pair.library for pair in first.values()}) > 1
    shown = [
        f"{text} for " + f"{pair.library}'s " * several + pair.theirs
        for text, pair in first.items()
    ]
    return f"write {', '.join(shown)}" if shown else None


def written(ours: str, prefix: str) -> str:
    """Our side of a pair with this prefix."""
    text = re.sub(r"\bop\.", prefix, ours)
    return as_in_script(text) if prefix == "R." else text


def as_in_script(text: str) -> str:
    """A text with the sizes of annotations for the shapes of `VARIABLES`, which scripts do not ask for."""
    dims = {name: text.split() for name, text in VARIABLES.items()}
    text = re.sub(r"\b([a-z])\.shape\[(\d)\]", lambda m: dims[m[1]][int(m[2])], text)
    text = re.sub(r"\b([a-z])\.shape\b", lambda m: f"({', '.join(dims[m[1]])})", text)
    text = re.sub(r"\b([a-z])\.ndim\b", lambda m: str(len(dims[m[1]])), text)
    return re.sub(r"\b[a-z]\.dtype\b", '"float32"', text)


def keyword(name: str, known: Collection[str]) -> str | None:
    """Our keyword of an operator for torch's."""
    return next((ours for ours in KEYWORDS.get(name, ()) if ours in known), None)
