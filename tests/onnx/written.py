"""Whole programs for the writer of ONNX files: a function for each, that gives the program, its weights, and calls of
several sizes. `PROGRAMS` has them by name."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import relaxpy
from relaxpy import nn
from relaxpy.ir import IRModule, TensorType
from relaxpy.nn import op


@dataclass(frozen=True)
class Program:
    """A program with its weights by name, and the arguments of several calls, without the weights."""

    mod: IRModule
    weights: Mapping[str, np.ndarray]
    calls: Sequence[Sequence[Any]]
    function: str = "main"
    tolerance: float = 1e-4
    kernels: bool = True
    """Whether ONNX Runtime has kernels for its dtypes."""
    unchecked: str = ""
    """What the program checks, and the file does not, in the warning."""


PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    PROGRAMS[make.__name__.strip("_")] = make
    return make


F = nn.spec.Tensor


def ints(*shape: str | int) -> Any:
    return nn.spec.Tensor(shape, "int64")


def floats(*shape: int, dtype: str = "float32", scale: float = 1.0) -> np.ndarray:
    seed = zlib.crc32(repr((shape, scale)).encode())
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def ids(*shape: int, below: int) -> np.ndarray:
    seed = zlib.crc32(repr((shape, below)).encode())
    return np.random.default_rng(seed).integers(0, below, shape)


def weight(name: str, shape: Sequence[int], dtype: str) -> np.ndarray:
    """A random weight: that of a variance is positive, that of a norm around 1."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    found = rng.standard_normal(shape) * 0.25
    if "running_var" in name:
        found = np.abs(found) + 0.5
    elif "norm" in name and name.endswith("weight"):
        found += 1
    return found.astype(relaxpy.ir.DType(dtype).numpy)


def of_module(
    module: nn.Module, spec: Mapping[str, Any], *calls: Sequence[Any], method: str = "forward", **rest: Any
) -> Program:  # fmt: skip
    """A program of a method of a module, with random weights."""
    mod, _ = module.export({method: dict(spec)})
    weights: dict[str, np.ndarray] = {}
    for param in mod.graph_functions[method].params:
        kind = param.annotation
        if param.name not in spec and isinstance(kind, TensorType):
            shape = [int(dim.value or 0) for dim in kind.dims or ()]
            weights[param.name] = weight(param.name, shape, str(kind.dtype))
    return Program(mod, weights, calls, method, **rest)


def of_script(
    text: str, *calls: Sequence[Any], weights: Mapping[str, Any] | None = None, **rest: Any
) -> Program:
    """A program of text."""
    return Program(relaxpy.parse(text), weights or {}, calls, **rest)


def of_forward(
    forward: Callable[..., Any], spec: Mapping[str, Any], *calls: Sequence[Any], **rest: Any
) -> Program:
    """A program without weights of a function."""

    class Made(nn.Module):
        pass

    Made.forward = staticmethod(forward)  # type: ignore[attr-defined]

    return of_module(Made(), spec, *calls, **rest)


# Networks of linear maps


@program
def mlp() -> Program:
    net = nn.Sequential(nn.Linear(4, 7), nn.GELU(), nn.LayerNorm(7), nn.Dropout(), nn.Linear(7, 3))
    return of_module(net, {"x": F(("n", 4))}, [floats(5, 4)], [floats(1, 4)], [floats(0, 4)])


@program
def activations() -> Program:
    layers = [
        nn.ELU(0.7), nn.SELU(), nn.LeakyReLU(0.2), nn.Mish(), nn.Softsign(), nn.Hardswish(), nn.Hardsigmoid(), nn.PReLU(7),
        nn.LogSigmoid(), nn.Softplus(), nn.SiLU(), nn.ReLU6(), nn.Hardtanh(), nn.GELU("tanh"), nn.Sigmoid(), nn.Tanh(),
    ]  # fmt: skip

    class Net(nn.Module):
        def __init__(self) -> None:
            self.layers = nn.ModuleList(layers)
            self.gate = nn.GLU()

        def forward(self, x: Any) -> Any:
            found = [layer(x) for layer in self.layers]
            return op.concat([*found, self.gate(op.concat([x, found[0]], axis=1))], axis=1)

    return of_module(Net(), {"x": F(("n", 7))}, [floats(3, 7, scale=3)], [floats(13, 7)])


@program
def autoencoder() -> Program:
    net = nn.Sequential(
        nn.Linear(11, 5),
        nn.Tanh(),
        nn.Linear(5, 2),
        nn.Tanh(),
        nn.Linear(2, 5),
        nn.Tanh(),
        nn.Linear(5, 11),
    )
    return of_module(net, {"x": F(("b", "n", 11))}, [floats(2, 3, 11)], [floats(1, 7, 11)])


@program
def variational_autoencoder() -> Program:
    class Vae(nn.Module):
        def __init__(self) -> None:
            self.encode, self.decode = nn.Linear(7, 6), nn.Linear(3, 7)

        def forward(self, x: Any, noise: Any) -> Any:
            mean, spread = op.split(self.encode(x), 2, axis=1)
            z = mean + op.exp(spread * 0.5) * noise
            loss = op.sum(op.exp(spread) + mean * mean - 1.0 - spread) * 0.5
            return op.sigmoid(self.decode(z)), loss

    spec = {"x": F(("n", 7)), "noise": F(("n", 3))}
    return of_module(Vae(), spec, [floats(5, 7), floats(5, 3)], [floats(2, 7), floats(2, 3)])


@program
def mlp_mixer() -> Program:
    class Mixer(nn.Module):
        def __init__(self) -> None:
            self.tokens = nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 6))
            self.channels = nn.Sequential(nn.Linear(8, 13), nn.GELU(), nn.Linear(13, 8))
            self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)

        def forward(self, x: Any) -> Any:
            mixed = self.tokens(op.permute_dims(self.norm1(x), (0, 2, 1)))
            x = x + op.permute_dims(mixed, (0, 2, 1))
            return x + self.channels(self.norm2(x))

    return of_module(Mixer(), {"x": F(("b", 6, 8))}, [floats(3, 6, 8)], [floats(1, 6, 8)])


@program
def gated_mlp() -> Program:
    return of_module(nn.GatedMLP(7, 11), {"x": F(("n", 7))}, [floats(5, 7)], [floats(1, 7)])


@program
def mixture_of_experts() -> Program:
    net = nn.MixtureOfExperts(7, 5, 4, 2)
    return of_module(net, {"x": F(("b", "s", 7))}, [floats(2, 3, 7)], [floats(1, 11, 7)])


@program
def siamese() -> Program:
    class Siamese(nn.Module):
        def __init__(self) -> None:
            self.net = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4))

        def forward(self, a: Any, b: Any) -> Any:
            a, b = self.net(a), self.net(b)
            norms = [op.sqrt(op.sum(x * x, axis=-1, keepdims=True)) for x in (a, b)]
            return op.matmul(a / norms[0], op.permute_dims(b / norms[1], (1, 0)))

    spec = {"a": F(("n", 6)), "b": F(("m", 6))}
    return of_module(Siamese(), spec, [floats(5, 6), floats(3, 6)], [floats(1, 6), floats(2, 6)])


@program
def deep_sets() -> Program:
    class Sets(nn.Module):
        def __init__(self) -> None:
            self.each, self.all = nn.Linear(3, 8), nn.Linear(16, 2)

        def forward(self, x: Any, mask: Any) -> Any:
            rows = op.nn.relu(self.each(x))
            kept = op.expand_dims(mask, (2,))
            total = op.sum(op.where(kept, rows, 0.0), axis=1)
            count = op.maximum(op.sum(op.astype(kept, "float32"), axis=1), 1.0)
            return self.all(
                op.concat([total / count, op.max(op.where(kept, rows, -1e9), axis=1)], axis=1)
            )

    spec = {"x": F(("b", "n", 3)), "mask": F(("b", "n"), "bool")}
    return of_module(
        Sets(), spec, [floats(2, 5, 3), ids(2, 5, below=2) > 0], [floats(3, 2, 3), ids(3, 2, below=3) > 0]
    )  # fmt: skip


@program
def graph_convolution() -> Program:
    class Gcn(nn.Module):
        def __init__(self) -> None:
            self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x: Any, adjacency: Any) -> Any:
            n = x.shape[0]
            linked = adjacency + op.eye(n, dtype="float32")
            scale = op.rsqrt(op.sum(linked, axis=1, keepdims=True))
            near = linked * scale * op.permute_dims(scale, (1, 0))
            x = op.nn.relu(op.matmul(near, self.first(x)))
            return op.nn.log_softmax(op.matmul(near, self.second(x)), axis=-1)

    def links(n: int) -> np.ndarray:
        found = ids(n, n, below=2)
        return np.maximum(found, found.T).astype("float32")

    spec = {"x": F(("n", 4)), "adjacency": F(("n", "n"))}
    return of_module(Gcn(), spec, [floats(5, 4), links(5)], [floats(3, 4), links(3)])


@program
def message_passing() -> Program:
    class Messages(nn.Module):
        def __init__(self) -> None:
            self.edge = nn.Linear(10, 5)

        def forward(self, x: Any, source: Any, target: Any) -> Any:
            pairs = op.concat([op.take(x, source, axis=0), op.take(x, target, axis=0)], axis=1)
            told = op.tanh(self.edge(pairs))
            found = op.index_put(op.zeros_like(x), (target,), told, accumulate=True)
            return x + found

    spec = {"x": F(("n", 5)), "source": ints("e"), "target": ints("e")}
    calls = [[floats(n, 5), ids(e, below=n), ids(e + 1, below=n)[1:]] for n, e in ((4, 7), (9, 3))]
    return of_module(Messages(), spec, *calls)


@program
def text_classifier() -> Program:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            self.words, self.norm, self.head = nn.Embedding(31, 8), nn.RMSNorm(8), nn.Linear(8, 4)

        def forward(self, tokens: Any) -> Any:
            mean = op.mean(self.words(tokens), axis=1)
            logits = self.head(self.norm(mean))
            return op.nn.softmax(logits), op.argmax(logits, axis=-1)

    return of_module(
        Classifier(), {"tokens": ints("b", "s")}, [ids(2, 5, below=31)], [np.array([[-3, 31, 99]])]
    )  # fmt: skip


# Convolutions


@program
def cnn() -> Program:
    net = nn.Sequential(
        nn.Conv2d(3, 5, 3, padding=1, stride=2), nn.BatchNorm2d(5), nn.ReLU(), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 2),
    )  # fmt: skip
    return of_module(
        net, {"x": F(("n", 3, "h", "w"))}, [floats(2, 3, 9, 11)], [floats(1, 3, 16, 13)]
    )


@program
def cnn_of_sequences() -> Program:
    net = nn.Sequential(
        nn.Conv1d(4, 6, 3, padding=2, dilation=2), nn.BatchNorm1d(6), nn.ELU(), nn.AvgPool1d(3, 2, 1),
        nn.Conv1d(6, 4, 5, groups=2), nn.InstanceNorm1d(4, affine=True),
    )  # fmt: skip
    return of_module(net, {"x": F(("n", 4, "l"))}, [floats(2, 4, 17)], [floats(1, 4, 31)])


@program
def cnn_of_volumes() -> Program:
    net = nn.Sequential(
        nn.Conv3d(1, 3, 3, padding=1),
        nn.BatchNorm3d(3),
        nn.SiLU(),
        nn.MaxPool3d(2),
        nn.Conv3d(3, 2, 1),
    )
    return of_module(
        net, {"x": F(("n", 1, "d", "h", "w"))}, [floats(1, 1, 4, 5, 6)], [floats(2, 1, 3, 7, 2)]
    )


class UNet(nn.Module):
    """Two scales, joined along the channels."""

    def __init__(self, resized: bool) -> None:
        self.down1 = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU())
        self.down2 = nn.Sequential(
            nn.Conv2d(4, 6, 3, padding=1, stride=2), nn.InstanceNorm2d(6, affine=True), nn.ReLU()
        )
        self.up = (
            nn.Upsample(scale_factor=2, mode="bilinear")
            if resized
            else nn.ConvTranspose2d(6, 6, 2, stride=2)
        )
        self.last = nn.Conv2d(10, 1, 3, padding=1)

    def forward(self, x: Any) -> Any:
        first = self.down1(x)
        return op.sigmoid(self.last(op.concat([self.up(self.down2(first)), first], axis=1)))


@program
def unet() -> Program:
    return of_module(
        UNet(False), {"x": F(("n", 2, 8, 12))}, [floats(2, 2, 8, 12)], [floats(1, 2, 8, 12)]
    )


@program
def unet_resized() -> Program:
    return of_module(
        UNet(True), {"x": F(("n", 2, 6, 10))}, [floats(3, 2, 6, 10)], [floats(1, 2, 6, 10)]
    )


@program
def convolutional_autoencoder() -> Program:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.LeakyReLU(), nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.LeakyReLU(),
        nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1), nn.LeakyReLU(),
        nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1), nn.Sigmoid(),
    )  # fmt: skip
    return of_module(
        net, {"x": F(("n", 3, "h", "w"))}, [floats(1, 3, 8, 12)], [floats(2, 3, 16, 4)]
    )


@program
def depthwise() -> Program:
    net = nn.Sequential(
        nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False), nn.Conv2d(6, 8, 1), nn.BatchNorm2d(8), nn.Hardswish(),
        nn.ReflectionPad2d(1), nn.Conv2d(8, 4, 3, groups=2),
    )  # fmt: skip
    return of_module(net, {"x": F(("n", 6, "h", "w"))}, [floats(1, 6, 5, 7)], [floats(3, 6, 4, 3)])


@program
def super_resolution() -> Program:
    net = nn.Sequential(
        nn.Conv2d(1, 8, 5, padding=2), nn.Tanh(), nn.Conv2d(8, 9, 3, padding=1), nn.PixelShuffle(3)
    )
    return of_module(net, {"x": F(("n", 1, "h", "w"))}, [floats(1, 1, 7, 5)], [floats(2, 1, 3, 4)])


@program
def squeeze_and_excite() -> Program:
    class Block(nn.Module):
        def __init__(self) -> None:
            self.conv, self.down, self.up = (
                nn.Conv2d(4, 4, 3, padding=1),
                nn.Conv2d(4, 2, 1),
                nn.Conv2d(2, 4, 1),
            )

        def forward(self, x: Any) -> Any:
            y = self.conv(x)
            mean = op.mean(y, axis=(2, 3), keepdims=True)
            return x + y * op.sigmoid(self.up(op.nn.relu(self.down(mean))))

    return of_module(
        Block(), {"x": F(("n", 4, "h", "w"))}, [floats(2, 4, 5, 3)], [floats(1, 4, 8, 8)]
    )


@program
def dense_block() -> Program:
    class Dense(nn.Module):
        def __init__(self) -> None:
            self.layers = nn.ModuleList(
                nn.Sequential(
                    nn.BatchNorm2d(3 + 2 * i), nn.ReLU(), nn.Conv2d(3 + 2 * i, 2, 3, padding=1)
                )
                for i in range(3)
            )

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = op.concat([x, layer(x)], axis=1)
            return x

    return of_module(
        Dense(), {"x": F(("n", 3, "h", "w"))}, [floats(2, 3, 5, 4)], [floats(1, 3, 2, 9)]
    )


@program
def wavenet() -> Program:
    class Wave(nn.Module):
        def __init__(self) -> None:
            self.layers = nn.ModuleList(nn.Conv1d(4, 8, 2, dilation=2**i) for i in range(3))
            self.mix = nn.ModuleList(nn.Conv1d(4, 4, 1) for _ in range(3))

        def forward(self, x: Any) -> Any:
            total = x * 0.0
            for i, (layer, mix) in enumerate(zip(self.layers, self.mix, strict=True)):
                wide = op.nn.pad(x, (0, 0, 0, 0, 2**i, 0))
                left, right = op.split(layer(wide), 2, axis=1)
                found = mix(op.tanh(left) * op.sigmoid(right))
                total, x = total + found, x + found
            return total

    return of_module(Wave(), {"x": F(("n", 4, "l"))}, [floats(1, 4, 9)], [floats(2, 4, 23)])


@program
def spatial_transformer() -> Program:
    class Spatial(nn.Module):
        def __init__(self) -> None:
            self.where = nn.Linear(3, 6)

        def forward(self, x: Any) -> Any:
            n, _, h, w = x.shape
            theta = op.reshape(self.where(op.mean(x, axis=(2, 3))), (n, 2, 3))
            points = op.image.affine_grid(theta, (h, w), align_corners=False)
            return op.image.grid_sample(x, points, align_corners=False)

    return of_module(
        Spatial(), {"x": F(("n", 3, "h", "w"))}, [floats(2, 3, 7, 5)], [floats(1, 3, 4, 6)]
    )


@program
def image_preparation() -> Program:
    def prepared(image: Any) -> Any:
        _, h, w, _ = image.shape
        x = op.permute_dims(op.astype(image, "float32") / 255.0, (0, 3, 1, 2))
        x = op.image.resize2d(
            x,
            (h * 2, w * 2),
            layout="NCHW",
            method="linear",
            coordinate_transformation_mode="half_pixel",
        )
        crop = op.strided_slice(x, (2, 3), (1, 1), (h * 2 - 1, w * 2 - 1))
        return (crop - 0.45) / 0.22

    spec = {"image": F(("n", "h", "w", 3), "uint8")}
    calls = [[ids(n, h, w, 3, below=256).astype("uint8")] for n, h, w in ((1, 5, 7), (2, 3, 4))]
    return of_forward(prepared, spec, *calls)


@program
def spectrogram() -> Program:
    class Spectrum(nn.Module):
        def forward(self, x: Any) -> Any:
            window = 16
            length = x.shape[1]
            count = (length - window) // 5 + 1
            rows = op.arange(0, count, dtype="int64") * 5
            at = op.expand_dims(rows, (1,)) + op.arange(0, window, dtype="int64")
            frames = op.take(x, at, axis=1) * np.hanning(window).astype("float32")
            angles = np.outer(np.arange(window), np.arange(9)) * (2 * math.pi / window)
            parts = [op.matmul(frames, f(angles).astype("float32")) for f in (np.cos, np.sin)]
            return op.log(parts[0] * parts[0] + parts[1] * parts[1] + 1e-6)

    return of_module(
        Spectrum(), {"x": F(("b", "l"))}, [floats(1, 40)], [floats(3, 21)], tolerance=1e-3
    )
