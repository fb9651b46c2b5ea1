"""What transformers and convolutional networks are made of: about 40 (operator, shape, dtype) cases, each written for
relaxpy, torch and, for plain products in fp32, numpy (OpenBLAS).

The shapes are those of MiniLM and BERT-base (fp32), of a TinyLlama-like decoder (bf16: 2048 wide, 5632 inner, 32 heads
of 64 with 4 for keys) and of ResNet-18 and MobileNet at 224 × 224. Dimensions that models leave open (batch, length)
are symbolic: named in `Input.dims`; weights are bound when the program is built, as in a deployed model.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Build = Callable[..., Any]
"""(library, *inputs) → the result, where the library is `relaxpy.nn.op`, torch or numpy."""


@dataclass(frozen=True)
class Input:
    """An argument of a case."""

    shape: tuple[int, ...]
    dims: str = ""
    """Its dimensions in relaxpy, `"n 384"`: names are symbolic. Empty: a weight, bound when the program is built."""
    dtype: str = "float32"
    scale: float = 1.0
    """Standard deviation; of integers, one more than the largest."""
    out_first: bool = False
    """Whether torch keeps this matrix as (out, in), and is given it so."""
    touched: int | None = None
    """Bytes that are read of it, where that is not all."""

    @property
    def nbytes(self) -> int:
        """Bytes that are read of it."""
        if self.touched is not None:
            return self.touched
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def array(self, rng: np.random.Generator) -> np.ndarray:
        """Random numbers of its shape and dtype."""
        if np.dtype(self.dtype).kind in "iu":
            low = 0 if self.dtype == "int64" else 1 - int(self.scale)
            return rng.integers(low, int(self.scale), self.shape).astype(self.dtype)
        return (rng.standard_normal(self.shape, np.float32) * self.scale).astype(self.dtype)


@dataclass(frozen=True)
class Case:
    """A program in several libraries."""

    group: str
    name: str
    inputs: tuple[Input, ...]
    relaxpy: Build
    torch: Build
    numpy: Build | None = None
    flops: int = 0
    """Operations of products and sums of products; 0: it is bound by memory."""

    @property
    def dtype(self) -> str:
        """Of what it computes on: that of the first input that is no index."""
        return next(i.dtype for i in self.inputs if i.dtype != "int64")

    @property
    def key(self) -> str:
        """Group, name and dtype: which case it is."""
        return key_of(self.group, self.name, self.dtype)

    def arrays(self) -> list[np.ndarray]:
        """The same numbers in every process."""
        rng = np.random.default_rng(zlib.crc32(f"{self.group} {self.name}".encode()))
        return [given.array(rng) for given in self.inputs]


def key_of(group: str, name: str, dtype: str) -> str:
    """Which case it is, of a case and of what was measured of it."""
    return f"{group}: {name}, {dtype}"


def cases() -> list[Case]:
    """All of them, in the order of the report."""
    return [*products(), *attentions(), *rows(), *chains(), *moves(), *convolutions()]


def linear(m: int, k: int, n: int, dtype: str = "float32", finish: str = "") -> Case:
    """A layer on m rows, weight (k, n): with `finish` "bias", "gelu" (bias and gelu) or "residual" (bias and sum)."""
    inputs = [Input((m, k), f"m {k}", dtype), Input((k, n), "", dtype, 1 / math.sqrt(k), True)]
    if finish:
        inputs.append(Input((n,), "", dtype))
    if finish == "residual":
        inputs.append(Input((m, n), f"m {n}", dtype))

    def ours(op: Any, x: Any, w: Any, *rest: Any) -> Any:
        y = op.matmul(x, w)
        for value in rest:
            y = op.add(y, value)
        return op.nn.gelu(y) if finish == "gelu" else y

    def torch(torch: Any, x: Any, w: Any, *rest: Any) -> Any:
        y = torch.nn.functional.linear(x, w, rest[0]) if rest else torch.nn.functional.linear(x, w)
        if finish == "residual":
            y = y + rest[1]
        return torch.nn.functional.gelu(y) if finish == "gelu" else y

    def plain(np: Any, x: Any, w: Any) -> Any:
        return np.matmul(x, w)

    name = f"linear{' + ' + finish if finish else ''} {m} x {k} x {n}"
    blas = plain if dtype == "float32" and not finish else None
    return Case("matmul", name, tuple(inputs), ours, torch, blas, 2 * m * k * n)


def integer_linear(m: int, k: int, n: int) -> Case:
    """Signed bytes by signed bytes, summed in int32."""
    inputs = (Input((m, k), f"m {k}", "int8", 128), Input((k, n), "", "int8", 128))
    return Case(
        "matmul",
        f"linear {m} x {k} x {n}",
        inputs,
        lambda op, x, w: op.matmul(x, w, out_dtype="int32"),
        lambda torch, x, w: torch._int_mm(x, w),
        flops=2 * m * k * n,
    )


def unknown_product(m: int, k: int, n: int) -> Case:
    """Of matrices whose extents are all unknown."""
    return Case(
        "matmul",
        f"both unknown {m} x {k} x {n}",
        (Input((m, k), "m k"), Input((k, n), "k n", scale=1 / math.sqrt(k))),
        lambda op, x, y: op.matmul(x, y),
        lambda torch, x, y: torch.matmul(x, y),
        lambda np, x, y: np.matmul(x, y),
        flops=2 * m * k * n,
    )


def scores(batch: int, heads: int, length: int, width: int) -> Case:
    """Queries by keys, before there was attention as one operator."""
    shape = (batch, heads, length, width)
    return Case(
        "matmul",
        f"batched {batch * heads} x {length} x {width} x {length}, transposed",
        (Input(shape, f"b {heads} s {width}"), Input(shape, f"b {heads} t {width}")),
        lambda op, q, k: op.matmul(q, op.permute_dims(k, (0, 1, 3, 2))),
        lambda torch, q, k: torch.matmul(q, k.transpose(2, 3)),
        lambda np, q, k: np.matmul(q, k.swapaxes(2, 3)),
        flops=2 * batch * heads * length**2 * width,
    )


def products() -> Iterator[Case]:
    yield linear(1, 2048, 2048)
    yield linear(16, 384, 1536, finish="gelu")
    yield linear(128, 384, 1536, finish="gelu")
    yield linear(128, 1536, 384, finish="residual")
    yield linear(128, 768, 3072, finish="gelu")
    yield linear(192, 2048, 2048)
    yield linear(512, 768, 768, finish="bias")
    yield linear(1, 2048, 5632, "bfloat16")
    yield linear(4, 2048, 5632, "bfloat16")
    yield linear(16, 2048, 5632, "bfloat16")
    yield linear(192, 2048, 2048, "bfloat16")
    yield linear(128, 5632, 2048, "bfloat16")
    yield integer_linear(1, 2048, 2048)
    yield integer_linear(192, 2048, 2048)
    yield unknown_product(384, 384, 384)
    yield scores(8, 12, 64, 32)


def attention(
    name: str, batch: int, queries: int, keys: int, heads: int, shared: int, width: int,
    dtype: str, causal: bool, masked: bool = False,
) -> Case:  # fmt: skip
    """Attention in the layout of a model: (batch, length, heads, width)."""
    t = "s" if queries == keys else "t"
    inputs = [
        Input((batch, queries, heads, width), f"b {1 if queries == 1 else 's'} {heads} {width}", dtype),
        Input((batch, keys, shared, width), f"b {t} {shared} {width}", dtype),
        Input((batch, keys, shared, width), f"b {t} {shared} {width}", dtype),
    ]  # fmt: skip
    if masked:
        inputs.append(Input((batch, 1, 1, keys), f"b 1 1 {t}", dtype))

    def ours(op: Any, q: Any, k: Any, v: Any, *mask: Any) -> Any:
        return op.nn.attention(q, k, v, *mask, causal_mask="BottomRight" if causal else None)

    def torch(torch: Any, q: Any, k: Any, v: Any, *mask: Any) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        found = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, *mask, is_causal=causal and queries > 1, enable_gqa=heads != shared
        )
        return found.transpose(1, 2).contiguous()

    pairs = queries * (queries + 1) // 2 if causal and queries > 1 else queries * keys
    return Case(
        "attention", name, tuple(inputs), ours, torch, flops=4 * batch * heads * pairs * width
    )


def attentions() -> Iterator[Case]:
    yield attention("8 x 64, 12 heads of 32, mask", 8, 64, 64, 12, 12, 32, "float32", False, True)
    yield attention("1 x 512, 12 heads of 64", 1, 512, 512, 12, 12, 64, "float32", False)
    yield attention("causal 1 x 128, 32/4 heads of 64", 1, 128, 128, 32, 4, 64, "bfloat16", True)
    yield attention("causal 1 x 1024, 32/4 heads of 64", 1, 1024, 1024, 32, 4, 64, "bfloat16", True)
    yield attention("decode 1 of 1024, 32/4 heads of 64", 1, 1, 1024, 32, 4, 64, "bfloat16", True)
    yield attention("decode 4 of 512, 32/8 heads of 128", 4, 1, 512, 32, 8, 128, "bfloat16", True)


def softmax(shape: tuple[int, ...], dims: str, dtype: str = "float32") -> Case:
    """Along the last axis."""
    return Case(
        "rows",
        f"softmax {' x '.join(map(str, shape))}",
        (Input(shape, dims, dtype),),
        lambda op, x: op.nn.softmax(x, axis=-1),
        lambda torch, x: torch.softmax(x, -1),
    )


def layer_norm(m: int, n: int) -> Case:
    """Of a sum, as behind each half of a transformer's layer."""
    wide = Input((m, n), f"m {n}")
    return Case(
        "rows",
        f"layer norm of sum {m} x {n}",
        (wide, wide, Input((n,)), Input((n,))),
        lambda op, x, y, g, b: op.nn.layer_norm(x + y, g, b, axes=(-1,), epsilon=1e-5),
        lambda torch, x, y, g, b: torch.nn.functional.layer_norm(x + y, (n,), g, b, 1e-5),
    )


def rms_norm(m: int, n: int, dtype: str = "bfloat16") -> Case:
    """As before each half of a decoder's layer."""
    return Case(
        "rows",
        f"rms norm {m} x {n}",
        (Input((m, n), f"m {n}", dtype), Input((n,), "", dtype)),
        lambda op, x, g: op.nn.rms_norm(x, g, axes=(-1,), epsilon=1e-5),
        lambda torch, x, g: torch.nn.functional.rms_norm(x, (n,), g, 1e-5),
    )


def matrix_sum(m: int, n: int, axis: int) -> Case:
    """Along one axis of a matrix of unknown extents."""
    return Case(
        "rows",
        f"sum of {'rows' if axis else 'columns'} {m} x {n}",
        (Input((m, n), "n m"),),
        lambda op, x: op.sum(x, axis=axis),
        lambda torch, x: torch.sum(x, axis),
    )


def token_mean(batch: int, length: int, n: int) -> Case:
    """Of the tokens that a mask lets through, as of sentences."""
    return Case(
        "rows",
        f"mean of tokens {batch} x {length} x {n}",
        (Input((batch, length, n), f"b s {n}"), Input((batch, length, 1), "b s 1")),
        lambda op, x, m: op.sum(x * m, axis=1) / op.sum(m * m, axis=1),
        lambda torch, x, m: torch.sum(x * m, 1) / torch.sum(m * m, 1),
    )


def argmax(m: int, n: int) -> Case:
    """Of logits."""
    return Case(
        "rows",
        f"argmax {m} x {n}",
        (Input((m, n), f"b {n}"),),
        lambda op, x: op.argmax(x, axis=-1),
        lambda torch, x: torch.argmax(x, -1),
    )


def rows() -> Iterator[Case]:
    """Softmax and normalisations."""
    yield softmax((8, 12, 128, 128), "b 12 s s")
    yield softmax((1, 12, 512, 512), "b 12 s s")
    yield softmax((4, 32000), "b 32000")
    yield layer_norm(128, 384)
    yield layer_norm(4096, 768)
    yield rms_norm(512, 2048)
    yield matrix_sum(4096, 4096, 1)
    yield matrix_sum(4096, 4096, 0)
    yield token_mean(32, 128, 384)
    yield argmax(16, 32000)


def gelu_of_sum(m: int, n: int) -> Case:
    """A bias and GELU by themselves."""
    return Case(
        "elements",
        f"bias + gelu {m} x {n}",
        (Input((m, n), f"m {n}"), Input((n,))),
        lambda op, x, b: op.nn.gelu(x + b),
        lambda torch, x, b: torch.nn.functional.gelu(x + b),
    )


def gated(m: int, n: int, dtype: str = "bfloat16") -> Case:
    """The inside of a decoder's feed-forward network."""
    inner = Input((m, n), f"m {n}", dtype)
    return Case(
        "elements",
        f"silu(gate) x up {m} x {n}",
        (inner, inner),
        lambda op, g, u: op.nn.silu(g) * u,
        lambda torch, g, u: torch.nn.functional.silu(g) * u,
    )


def tanh_of_scaled(m: int, n: int) -> Case:
    """Of columns that are scaled and shifted."""
    return Case(
        "elements",
        f"scale, shift, tanh {m} x {n}",
        (Input((m, n), "n m"), Input((n,), "m"), Input((n,), "m")),
        lambda op, x, g, b: op.tanh(x * g + b),
        lambda torch, x, g, b: torch.tanh(x * g + b),
    )


def addition(m: int, n: int) -> Case:
    """Of matrices of unknown extents."""
    return Case(
        "elements",
        f"add {m} x {n}",
        (Input((m, n), "n m"), Input((m, n), "n m")),
        lambda op, x, y: op.add(x, y),
        lambda torch, x, y: torch.add(x, y),
    )


def cast(m: int, n: int) -> Case:
    """float32 to bfloat16."""
    return Case(
        "elements",
        f"cast to bf16 {m} x {n}",
        (Input((m, n), "n m"),),
        lambda op, x: op.astype(x, "bfloat16"),
        lambda torch, x: x.to(torch.bfloat16),
    )


def rotary(batch: int, length: int, heads: int, width: int) -> Case:
    """Of a decoder's queries."""
    half = Input((length, 1, width // 2), f"s 1 {width // 2}")
    return Case(
        "elements",
        f"rotary embedding {batch} x {length} x {heads} x {width}",
        (
            Input((batch, length, heads, width), f"b s {heads} {width}", "bfloat16"),
            half,
            half,
        ),
        ours_rotate,
        torch_rotate,
    )


def chains() -> Iterator[Case]:
    """Element by element."""
    yield gelu_of_sum(4096, 1536)
    yield gated(512, 5632)
    yield tanh_of_scaled(1024, 1024)
    yield addition(2048, 2048)
    yield cast(2048, 2048)
    yield rotary(1, 512, 32, 64)


def ours_rotate(_op: Any, x: Any, cosines: Any, sines: Any) -> Any:
    """The decoder's own."""
    from relaxpy.nn.rotary import rotate  # the libraries' processes need not import the compiler

    return rotate(x, cosines, sines)


def torch_rotate(torch: Any, x: Any, cosines: Any, sines: Any) -> Any:
    """As transformers do it, in float32."""
    first, second = x.float().chunk(2, -1)
    turned = (first * cosines - second * sines, second * cosines + first * sines)
    return torch.cat(turned, -1).to(x.dtype)


def embedding(batch: int, length: int, vocabulary: int, n: int) -> Case:
    """Rows of a table."""
    return Case(
        "moves",
        f"embedding {batch} x {length} of {vocabulary} x {n}",
        (
            Input((vocabulary, n), touched=batch * length * n * 4),
            Input((batch, length), "b s", "int64", vocabulary),
        ),
        lambda op, table, i: op.take(table, i, axis=0),
        lambda torch, table, i: torch.nn.functional.embedding(i, table),
    )


def heads_to_front(batch: int, length: int, heads: int, width: int) -> Case:
    """As eager attention wants them."""
    return Case(
        "moves",
        f"heads to the front {batch} x {length} x {heads} x {width}",
        (Input((batch, length, heads, width), f"b s {heads} {width}"),),
        lambda op, x: op.permute_dims(x, (0, 2, 1, 3)),
        lambda torch, x: torch.permute(x, (0, 2, 1, 3)).contiguous(),
    )


def transpose(m: int, n: int, dtype: str = "float32") -> Case:
    """Of a matrix of unknown extents."""
    return Case(
        "moves",
        f"transpose {m} x {n}",
        (Input((m, n), "n m", dtype),),
        lambda op, x: op.permute_dims(x, (1, 0)),
        lambda torch, x: torch.t(x).contiguous(),
    )


def concat(m: int, one: int, other: int) -> Case:
    """Of columns."""
    return Case(
        "moves",
        f"concat of columns {m} x ({one} + {other})",
        (Input((m, one), f"n {one}"), Input((m, other), f"n {other}")),
        lambda op, x, y: op.concat((x, y), axis=1),
        lambda torch, x, y: torch.cat((x, y), 1),
    )


def append(batch: int, length: int, heads: int, width: int) -> Case:
    """Of a token's keys to a cache that is copied."""
    return Case(
        "moves",
        f"append to a cache {batch} x {length} x {heads} x {width}",
        (
            Input((batch, length, heads, width), f"b p {heads} {width}", "bfloat16"),
            Input((batch, 1, heads, width), f"b 1 {heads} {width}", "bfloat16"),
        ),
        lambda op, cache, new: op.concat((cache, new), axis=1),
        lambda torch, cache, new: torch.cat((cache, new), 1),
    )


def moves() -> Iterator[Case]:
    """What computes nothing."""
    yield embedding(8, 128, 30522, 384)
    yield heads_to_front(8, 128, 12, 32)
    yield transpose(2048, 2048)
    yield transpose(1536, 1536, "bfloat16")
    yield concat(4096, 384, 384)
    yield append(4, 1023, 4, 64)


def convolution(
    channels: int, size: int, filters: int, kernel: int, stride: int = 1, groups: int = 1,
    residual: bool = False,
) -> Case:  # fmt: skip
    """A layer with bias (of a folded batch norm) and relu, one image."""
    out = -(-size // stride)
    fan = channels // groups * kernel * kernel
    inputs = [
        Input((1, channels, size, size), f"n {channels} {size} {size}"),
        Input((filters, channels // groups, kernel, kernel), scale=1 / math.sqrt(fan)),
        Input((filters,)),
    ]
    if residual:
        inputs.append(Input((1, filters, out, out), f"n {filters} {out} {out}"))
    pad = (kernel - 1) // 2

    def ours(op: Any, x: Any, w: Any, b: Any, *rest: Any) -> Any:
        y = op.nn.conv2d(x, w, strides=stride, padding=pad, groups=groups)
        y = y + op.reshape(b, (1, filters, 1, 1))
        return op.nn.relu(y + rest[0] if rest else y)

    def torch(torch: Any, x: Any, w: Any, b: Any, *rest: Any) -> Any:
        y = torch.nn.functional.conv2d(x, w, b, stride, pad, 1, groups)
        return torch.relu(y + rest[0] if rest else y)

    kind = "depthwise " if groups == channels else ""
    name = f"{kind}{kernel} x {kernel}{f' / {stride}' if stride > 1 else ''}, {channels} to {filters} at {size}"
    return Case(
        "conv",
        name + (", residual" if residual else ""),
        tuple(inputs),
        ours,
        torch,
        flops=2 * filters * out * out * fan,
    )


def max_pool(channels: int, size: int) -> Case:
    """Behind the first convolution of a network."""
    return Case(
        "conv",
        f"max pool 3 x 3 / 2, {channels} at {size}",
        (Input((1, channels, size, size), f"n {channels} {size} {size}"),),
        lambda op, x: op.nn.max_pool2d(x, pool_size=(3, 3), strides=(2, 2), padding=(1, 1)),
        lambda torch, x: torch.nn.functional.max_pool2d(x, 3, 2, 1),
    )


def image_mean(batch: int, channels: int, size: int) -> Case:
    """Behind the last convolution of a network."""
    return Case(
        "conv",
        f"mean of an image, {channels} at {size}, batch {batch}",
        (Input((batch, channels, size, size), f"n {channels} {size} {size}"),),
        lambda op, x: op.mean(x, axis=(2, 3)),
        lambda torch, x: torch.mean(x, (2, 3)),
    )


def batch_norm(batch: int, channels: int, size: int) -> Case:
    """With relu, where no convolution takes it in."""
    each = Input((channels,))
    return Case(
        "conv",
        f"batch norm + relu, {channels} at {size}, batch {batch}",
        (
            Input((batch, channels, size, size), f"n {channels} {size} {size}"),
            *(each, each, each, Input((channels,), scale=0)),
        ),
        lambda op, x, g, b, m, v: op.nn.relu(
            op.nn.batch_norm(x, g, b, m, v + 1.0, axis=1, training=False)[0]
        ),
        lambda torch, x, g, b, m, v: torch.relu(
            torch.nn.functional.batch_norm(x, m, v + 1.0, g, b)
        ),
    )


def convolutions() -> Iterator[Case]:
    yield convolution(3, 224, 64, 7, 2)
    yield convolution(64, 56, 64, 3)
    yield convolution(64, 56, 64, 3, residual=True)
    yield convolution(64, 56, 128, 3, 2)
    yield convolution(64, 56, 128, 1, 2)
    yield convolution(256, 14, 256, 3)
    yield convolution(512, 7, 512, 3)
    yield convolution(32, 112, 32, 3, groups=32)
    yield convolution(32, 112, 64, 1)
    yield max_pool(64, 112)
    yield image_mean(8, 512, 7)
    yield batch_norm(4, 64, 56)


assert ml_dtypes.bfloat16  # numpy knows the name from here on
