"""Cases that nobody tuned to: four of each group of `op_cases.py`, drawn by a random number generator.

Kinds of operators come in a random order, none twice before each came once. Widths are those of a model or a layer that
is drawn from `WIDTHS` and `STAGES`, of which the fixed cases have none. Batches, lengths and extents of no model's are
any integers. The seed `SEED` was written down before the kernels of this version were changed. Another one draws other
cases: `python benchmarks/ops.py --drawn 7`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks import op_cases as c
from benchmarks.op_cases import Case

SEED = 20
"""The number of the issue that asked for them."""
EACH = 4
"""Cases of a group."""

WIDTHS = {
    "GPT-2 small": (768, 3072, 12, 12, 64, 50257),
    "BERT large": (1024, 4096, 16, 16, 64, 30522),
    "RoBERTa base": (768, 3072, 12, 12, 64, 50265),
    "Whisper small": (768, 3072, 12, 12, 64, 51865),
    "ViT large": (1024, 4096, 16, 16, 64, 21843),
    "Qwen2.5 0.5B": (896, 4864, 14, 2, 64, 151936),
    "Qwen2.5 1.5B": (1536, 8960, 12, 2, 128, 151936),
    "Llama 3.2 1B": (2048, 8192, 32, 8, 64, 128256),
    "Gemma 2B": (2048, 16384, 8, 1, 256, 256000),
    "Phi-3 mini": (3072, 8192, 32, 32, 96, 32064),
    "SmolLM 360M": (960, 2560, 15, 5, 64, 49152),
}
"""Width, inner width, heads, heads of keys, width of a head, vocabulary."""

STAGES = (
    # ResNet-50, EfficientNet-B0, MobileNetV2, VGG-16, ConvNeXt and YOLO-like networks: channels, filters, size, window,
    # stride, groups.
    (64, 256, 56, 1, 1, 1), (128, 128, 28, 3, 1, 1), (256, 256, 28, 3, 2, 1), (512, 2048, 7, 1, 1, 1),
    (1024, 256, 14, 1, 1, 1), (96, 96, 56, 3, 2, 96), (144, 144, 56, 5, 2, 144), (240, 240, 28, 3, 1, 240),
    (384, 64, 14, 1, 1, 1), (16, 96, 112, 1, 1, 1), (3, 32, 224, 3, 2, 1), (3, 64, 224, 3, 1, 1),
    (128, 256, 56, 3, 1, 1), (96, 96, 56, 7, 1, 96), (32, 64, 160, 3, 2, 1), (48, 48, 80, 3, 1, 1),
)  # fmt: skip


def drawn_cases(seed: int = SEED) -> list[Case]:
    """24 different cases; the same for the same seed."""
    rng = np.random.default_rng(seed)
    found: list[Case] = []
    for kinds in (_products, _attentions, _rows, _elements, _moves, _convolutions):
        own = list(kinds(rng))
        # Each kind comes once before any comes twice.
        order = [int(number) for _ in range(EACH) for number in rng.permutation(len(own))]
        for number in order[:EACH]:
            case = own[number]()
            while case.key in {other.key for other in found}:
                case = own[number]()
            found.append(case)
    return found


Kind = Callable[[], Case]


class _Drawn:
    """Random models and sizes."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def model(self) -> tuple[int, int, int, int, int, int]:
        return list(WIDTHS.values())[self.rng.integers(len(WIDTHS))]

    def size(self, low: int, high: int) -> int:
        """Small ones are as likely as large ones: evenly distributed on a logarithmic scale."""
        return round(math.exp(self.rng.uniform(math.log(low), math.log(high))))

    def dtype(self) -> str:
        return str(self.rng.choice(["float32", "bfloat16"]))


def _products(rng: np.random.Generator) -> Iterator[Kind]:
    d = _Drawn(rng)

    def linear() -> Case:
        width, inner, *_ = d.model()
        pair = (width, inner) if rng.integers(2) else (inner, width)
        finish = str(rng.choice(["", "bias", "gelu", "residual"]))
        return c.linear(d.size(1, 512), *pair, d.dtype(), finish)

    def scores() -> Case:
        _, _, heads, _, head, _ = d.model()
        return c.scores(d.size(1, 8), heads, d.size(16, 300), head)

    yield linear
    yield linear
    yield lambda: c.integer_linear(d.size(17, 512), *d.model()[:2])
    yield lambda: c.unknown_product(d.size(1, 512), d.size(64, 1024), d.size(64, 1024))
    yield scores


def _attentions(rng: np.random.Generator) -> Iterator[Kind]:
    d = _Drawn(rng)

    def encoder() -> Case:
        _, _, heads, _, head, _ = d.model()
        batch, length = d.size(1, 8), d.size(16, 512)
        name = f"{batch} x {length}, {heads} heads of {head}, mask"
        return c.attention(name, batch, length, length, heads, heads, head, "float32", False, True)

    def prompt() -> Case:
        _, _, heads, shared, head, _ = d.model()
        length, dtype = d.size(64, 1024), d.dtype()
        name = f"causal 1 x {length}, {heads}/{shared} heads of {head}"
        return c.attention(name, 1, length, length, heads, shared, head, dtype, True)

    def decode() -> Case:
        _, _, heads, shared, head, _ = d.model()
        batch, length, dtype = d.size(1, 8), d.size(128, 2048), d.dtype()
        name = f"decode {batch} of {length}, {heads}/{shared} heads of {head}"
        return c.attention(name, batch, 1, length, heads, shared, head, dtype, True)

    yield encoder
    yield prompt
    yield decode


def _rows(rng: np.random.Generator) -> Iterator[Kind]:
    d = _Drawn(rng)

    def softmax() -> Case:
        heads, length = d.model()[2], d.size(16, 512)
        return c.softmax((d.size(1, 8), heads, length, length), f"b {heads} s s", d.dtype())

    def vocabulary() -> Case:
        size = d.model()[5]
        return c.softmax((d.size(1, 16), size), f"b {size}")

    yield softmax
    yield vocabulary
    yield lambda: c.layer_norm(d.size(1, 4096), d.model()[0])
    yield lambda: c.rms_norm(d.size(1, 2048), d.model()[0], d.dtype())
    yield lambda: c.matrix_sum(d.size(64, 4096), d.size(64, 4096), int(rng.integers(2)))
    yield lambda: c.token_mean(d.size(1, 32), d.size(16, 512), d.model()[0])
    yield lambda: c.argmax(d.size(1, 32), d.model()[5])


def _elements(rng: np.random.Generator) -> Iterator[Kind]:
    d = _Drawn(rng)

    def rotary() -> Case:
        _, _, heads, _, head, _ = d.model()
        return c.rotary(d.size(1, 4), d.size(16, 1024), heads, head)

    yield lambda: c.gelu_of_sum(d.size(16, 2048), d.model()[1])
    yield lambda: c.gated(d.size(1, 1024), d.model()[1], d.dtype())
    yield lambda: c.tanh_of_scaled(d.size(64, 2048), d.size(64, 2048))
    yield lambda: c.addition(d.size(64, 4096), d.size(64, 4096))
    yield lambda: c.cast(d.size(64, 4096), d.size(64, 4096))
    yield rotary


def _moves(rng: np.random.Generator) -> Iterator[Kind]:
    d = _Drawn(rng)

    def embedding() -> Case:
        width, *_, vocabulary = d.model()
        return c.embedding(d.size(1, 16), d.size(16, 512), vocabulary, width)

    def heads() -> Case:
        _, _, heads, _, head, _ = d.model()
        return c.heads_to_front(d.size(1, 8), d.size(16, 512), heads, head)

    def append() -> Case:
        _, _, _, shared, head, _ = d.model()
        return c.append(d.size(1, 8), d.size(64, 2048), shared, head)

    yield embedding
    yield heads
    yield lambda: c.transpose(d.size(64, 4096), d.size(64, 4096), d.dtype())
    yield lambda: c.concat(d.size(16, 4096), d.model()[0], d.model()[0])
    yield append


def _convolutions(rng: np.random.Generator) -> Iterator[Kind]:
    d = _Drawn(rng)

    def layer() -> Case:
        channels, filters, size, window, stride, groups = STAGES[rng.integers(len(STAGES))]
        residual = stride == 1 and channels == filters and bool(rng.integers(2))
        return c.convolution(channels, size, filters, window, stride, groups, residual)

    yield layer
    yield layer
    yield layer
    yield lambda: c.max_pool(d.size(16, 256), d.size(14, 112))
    yield lambda: c.image_mean(d.size(1, 16), d.size(64, 1024), d.size(4, 28))
    yield lambda: c.batch_norm(d.size(1, 8), d.size(16, 512), d.size(7, 112))
