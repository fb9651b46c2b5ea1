"""Programs for the writer of ONNX files: text with loops, branches, functions, sizes that are computed, integers, and
quantised numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.ir import DType
from relaxpy.ir.dim import dim_op
from relaxpy.nn import op
from tests.onnx.written import (
    F,
    Program,
    floats,
    ids,
    ints,
    of_forward,
    of_module,
    of_script,
    program,
)

# Control


@program
def loop_over_a_size() -> Program:
    return of_script(
        """
@R.function
def main(x: R.Tensor(("n", 3), "float32")):
    n = T.int64()
    y = x
    for i in range(n):
        y = R.add(R.tanh(y), x)
    return y
""",
        [floats(4, 3)], [floats(7, 3)], [floats(0, 3)],
    )  # fmt: skip


@program
def until_it_converges() -> Program:
    """Newton's square roots: a loop of which the numbers say when it ends."""
    return of_script(
        """
@R.function
def main(x: R.Tensor(("n",), "float32")):
    n = T.int64()
    y = R.add(R.multiply(x, R.const(0.5, "float32")), R.const(0.5, "float32"))
    steps = R.const(0, "int64")
    while R.greater(R.max(R.abs(R.subtract(R.multiply(y, y), x))), R.const(0.001, "float32")):
        y = R.multiply(R.add(y, R.divide(x, y)), R.const(0.5, "float32"))
        steps = R.add(steps, R.const(1, "int64"))
    return y, steps
""",
        [np.array([1, 2, 9, 100], "float32")], [np.array([0.25], "float32")],
    )  # fmt: skip


@program
def loops_in_loops() -> Program:
    """A loop in a loop, which the counter of the outer one ends."""
    return of_script(
        """
@R.function
def main(free: R.Tensor(("n", "m"), "int64")):
    n, m = T.int64(), T.int64()
    row = R.zeros((m,), "int64")
    total = R.const(0, "int64")
    for i in range(n):
        row = R.cumsum(R.add(row, R.sum(free, axis=[0])), axis=0)
        for j in range(i + 1):
            total = R.add(total, R.max(row))
    return row, total
""",
        [ids(3, 4, below=2)], [ids(5, 2, below=3)],
    )  # fmt: skip


@program
def viterbi() -> Program:
    """The best path through scores of transitions: forward in a loop, with the places kept."""

    class Viterbi(nn.Module):
        def __init__(self) -> None:
            self.moves = nn.Parameter((4, 4), "float32")

        def forward(self, scores: Any) -> Any:
            length = scores.shape[0]

            def body(i: Any, best: Any, places: Any) -> Any:
                ways = op.expand_dims(best, (1,)) + self.moves
                row = op.squeeze(
                    op.strided_slice(scores, (0,), (i,), (i + 1,), assume_inbound=True), (0,)
                )
                places = op.concat([places, op.expand_dims(op.argmax(ways, axis=0), (0,))], axis=0)
                return i + 1, op.max(ways, axis=0) + row, places

            first = op.squeeze(
                op.strided_slice(scores, (0,), (0,), (1,), assume_inbound=True), (0,)
            )
            start = (1, first, op.zeros((1, 4), "int64"))
            _, best, places = op.while_loop(lambda i, *_: dim_op("lt", i, length), body, start)
            return best, places

    return of_module(Viterbi(), {"scores": F(("l", 4))}, [floats(5, 4)], [floats(1, 4)])


@program
def branches() -> Program:
    return of_script(
        """
@R.function
def main(x: R.Tensor(("n", 3), "float32")):
    n = T.int64()
    c = R.greater(R.sum(x), R.const(0.0, "float32"))
    if c:
        y = R.add(x, x)
    else:
        y = R.multiply(x, x)
    return y
""",
        [floats(4, 3)], [-np.abs(floats(7, 3))], [np.abs(floats(2, 3))],
    )  # fmt: skip


@program
def branches_in_branches() -> Program:
    """Conditions on numbers and on sizes, in one another, with several results."""
    return of_script(
        """
@R.function
def main(x: R.Tensor(("n",), "float32")):
    n = T.int64()
    s = R.sum(x)
    if R.less(s, R.const(0.0, "float32")):
        if R.less(s, R.const(-5.0, "float32")):
            y = R.negative(x), R.const(2, "int64")
        else:
            y = R.exp(x), R.const(1, "int64")
        z = R.tanh(y[0]), R.add(y[1], R.const(10, "int64"))
    else:
        z = R.sqrt(R.abs(x)), R.const(0, "int64")
    return z
""",
        [-np.abs(floats(9))], [np.array([-0.5, 0.25], "float32")], [np.abs(floats(3))],
    )  # fmt: skip


@program
def functions() -> Program:
    """Private functions, called with several sizes, and from one another."""
    return of_script(
        """
@I.ir_module
class M:
    @R.function(private=True)
    def norm(x: R.Tensor(("a", "b"), "float32")):
        a, b = T.int64(), T.int64()
        m = R.mean(x, axis=[1], keepdims=True)
        return R.subtract(x, m)

    @R.function(private=True)
    def twice(x: R.Tensor(("a", "b"), "float32")):
        a, b = T.int64(), T.int64()
        cls = M
        y = cls.norm(x)
        z = cls.norm(R.permute_dims(y))
        return R.permute_dims(z)

    @R.function
    def main(x: R.Tensor(("n", "m"), "float32")):
        n, m = T.int64(), T.int64()
        cls = M
        a = cls.twice(x)
        b = cls.norm(R.reshape(a, (1, n * m)))
        return a, b
""",
        [floats(4, 3)], [floats(2, 5)],
    )  # fmt: skip


@program
def one_of_several() -> Program:
    """A function that is no `main`, of a module of several."""
    return of_script(
        """
@I.ir_module
class M:
    @R.function
    def encode(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 2), "float32")):
        n = T.int64()
        return R.tanh(R.matmul(x, w))

    @R.function
    def decode(z: R.Tensor(("n", 2), "float32"), w: R.Tensor((4, 2), "float32")):
        n = T.int64()
        return R.matmul(z, R.permute_dims(w))
""",
        [floats(5, 2)], [floats(1, 2)], function="decode", weights={"w": floats(4, 2)},
    )  # fmt: skip


# Sizes


@program
def sizes() -> Program:
    return of_script(
        """
@I.ir_module
class M:
    @R.function(private=True)
    def g(x: R.Tensor(("n", "m"), "float32")):
        n, m = T.int64(), T.int64()
        return R.reshape(x, (m * n,))

    @R.function
    def main(x: R.Tensor(("n", 3), "float32")):
        n = T.int64()
        cls = M
        a = cls.g(x)
        b = R.concat([a, R.arange(0, n * 3, 1, "float32")], axis=0)
        return b, R.unique(b)
""",
        [floats(4, 3)], [floats(2, 3)],
    )  # fmt: skip


@program
def blocks_of_a_sequence() -> Program:
    """A sequence padded to a multiple of 4, and taken apart: sizes with quotients."""

    def blocks(x: Any) -> Any:
        n, width = x.shape
        more = (-n) % 4
        wide = op.concat([x, op.zeros((more, width), "float32")], axis=0)
        parts = op.reshape(op.match_cast(wide, ((n + 3) // 4 * 4, width)), ((n + 3) // 4, 4, width))
        return op.mean(parts, axis=1), op.max(parts, axis=0)

    return of_forward(blocks, {"x": F(("n", 3))}, [floats(5, 3)], [floats(8, 3)], [floats(1, 3)])


@program
def sizes_of_the_data() -> Program:
    """What is positive, how many that are, and their places."""
    return of_script(
        """
@R.function
def main(x: R.Tensor(("n",), "float32")):
    n, k, u = T.int64(), T.int64(), T.int64()
    at = R.match_cast(R.nonzero(R.greater(x, R.const(0.0, "float32"))), R.Tensor((1, k), "int64"))
    kept = R.take(x, R.reshape(at, (k,)), axis=0)
    mean = R.divide(R.sum(kept), R.astype(R.const(1, "int64"), "float32"))
    values = R.match_cast(R.unique(R.round(kept)), R.Tensor((u,), "float32"))
    table = R.matmul(R.reshape(kept, (k, 1)), R.reshape(values, (1, u)))
    return table, mean, R.shape_to_tensor(R.shape([n, k, u, n * k]))
""",
        [floats(9)], [floats(4)],
        unchecked="match_cast of at",
    )  # fmt: skip


@program
def shapes_as_arguments() -> Program:
    """Shapes and integers among the arguments."""
    return of_script(
        """
@R.function
def main(x: R.Tensor(("n", "m"), "float32"), s: R.Shape(["a", "b"])):
    n, m, a, b = T.int64(), T.int64(), T.int64(), T.int64()
    y = R.broadcast_to(R.reshape(x, (1, n, m, 1)), (a, n, m, b))
    z = R.full((a, b + 2), R.const(1.5, "float32"), "float32")
    return y, z, R.shape([a * b, n * m])
""",
        [floats(2, 3), (2, 3)], [floats(1, 4), (1, 5)],
    )  # fmt: skip


@program
def window_of_an_image() -> Program:
    """Numbers that say where: integers of the call."""

    def window(x: Any, top: Any, size: Any) -> Any:
        found = op.strided_slice(
            x, (1, 2), (top, top), (top + size, top + size), assume_inbound=True
        )
        return op.mean(found, axis=(1, 2)), found

    spec = {"x": F(("c", "h", "w")), "top": nn.spec.Int(), "size": nn.spec.Int()}
    return of_forward(window, spec, [floats(2, 7, 9), 1, 3], [floats(1, 5, 5), 0, 5])


# Data


@program
def ranking() -> Program:
    def ranked(x: Any) -> Any:
        best, at = op.topk(x, k=3, axis=1)
        order = op.argsort(x, axis=1, descending=True)
        return (
            best,
            at,
            op.sort(x, axis=1),
            op.gather_elements(x, order, axis=1),
            op.cumsum(op.nn.softmax(best), axis=1),
        )

    return of_forward(ranked, {"x": F(("b", "n"))}, [floats(2, 5)], [floats(3, 11)])


@program
def detection() -> Program:
    """Boxes of a network: decoded, the best kept, overlapping ones left out."""

    def detected(centers: Any, sizes: Any, scores: Any) -> Any:
        half = op.exp(sizes) * 0.5
        boxes = op.concat([centers - half, centers + half], axis=2)
        kept, count = op.vision.all_class_non_max_suppression(
            boxes,
            scores,
            np.array(3),
            np.array(0.5, "float32"),
            np.array(0.25, "float32"),
            output_format="onnx",
        )
        return boxes, kept, count

    spec = {"centers": F(("b", "n", 2)), "sizes": F(("b", "n", 2)), "scores": F(("b", 2, "n"))}
    calls = [
        [floats(b, n, 2, scale=2), floats(b, n, 2, scale=0.5), floats(b, 2, n)]
        for b, n in ((1, 6), (2, 9))
    ]
    return of_forward(detected, spec, *calls)


@program
def beams() -> Program:
    """A step of a search: the best continuations of several texts, wherever they come from."""

    def step(scores: Any, logits: Any, texts: Any) -> Any:
        batch, beams, words = logits.shape
        total = op.expand_dims(scores, (2,)) + op.nn.log_softmax(logits)
        best, at = op.topk(op.reshape(total, (batch, beams * words)), k=3, axis=1, dtype="int64")
        source = op.floor_divide(at, words)
        length = texts.shape[2]
        rows = op.broadcast_to(op.expand_dims(source, (2,)), (batch, 3, length))
        kept = op.gather_elements(texts, rows, axis=1)
        return best, op.concat([kept, op.expand_dims(op.floor_mod(at, words), (2,))], axis=2)

    spec = {"scores": F(("b", 3)), "logits": F(("b", 3, 7)), "texts": ints("b", 3, "l")}
    calls = [[floats(b, 3), floats(b, 3, 7), ids(b, 3, n, below=7)] for b, n in ((1, 2), (2, 5))]
    return of_forward(step, spec, *calls)


@program
def k_means() -> Program:
    """Centers after some steps; one without points stays where it is."""
    return of_script(
        """
@R.function
def main(x: R.Tensor(("n", 2), "float32"), c: R.Tensor((3, 2), "float32")):
    n = T.int64()
    y = c
    for i in range(5):
        apart = R.subtract(R.expand_dims(x, [1]), R.expand_dims(y, [0]))
        near = R.argmin(R.sum(R.multiply(apart, apart), axis=[2]), axis=1)
        own = R.one_hot(near, 1.0, 0.0, 3, -1)
        count = R.reshape(R.sum(own, axis=[0]), (3, 1))
        total = R.matmul(R.permute_dims(own), x)
        y = R.where(R.greater(count, R.const(0.0, "float32")), R.divide(total, R.maximum(count, R.const(1.0, "float32"))), y)
    return y
""",
        [floats(11, 2), floats(3, 2)], [floats(4, 2), floats(3, 2)],
    )  # fmt: skip


@program
def loss() -> Program:
    class Loss(nn.Module):
        def __init__(self) -> None:
            self.net = nn.Linear(5, 4)

        def forward(self, x: Any, labels: Any) -> Any:
            logits = self.net(x)
            found = op.nn.nll_loss(op.nn.log_softmax(logits), labels, reduction="mean")
            right = op.equal(op.argmax(logits, axis=1), labels)
            return found, op.mean(op.astype(right, "float32"))

    spec = {"x": F(("n", 5)), "labels": ints("n")}
    return of_module(Loss(), spec, [floats(6, 5), ids(6, below=4)], [floats(1, 5), ids(1, below=4)])


@program
def integers() -> Program:
    """Whole numbers of several widths, with remainders, bits, and quotients of negative ones."""
    return of_script(
        """
@R.function
def main(a: R.Tensor(("n",), "int64"), b: R.Tensor(("n",), "int64"), c: R.Tensor(("n",), "int32")):
    n = T.int64()
    q = R.floor_divide(a, b)
    r = R.floor_mod(a, b)
    t = R.divide(a, b)
    m = R.mod(a, b)
    bits = R.bitwise_xor(R.bitwise_and(c, R.const(29, "int32")), R.bitwise_not(c))
    small = R.astype(R.clip(a, -9, 9), "int8")
    total = R.sum(R.multiply(R.astype(small, "int64"), b))
    return q, r, t, m, bits, R.max(c), total
""",
        [np.array([7, -7, 7, -7, 5, -(2**63)]), np.array([2, 2, -2, -2, 0, -1]), np.arange(-3, 3, dtype="int32")],
        [np.array([2**62 + 1]), np.array([-3]), np.array([2**31 - 1], "int32")],
    )  # fmt: skip


@program
def truths() -> Program:
    return of_script(
        """
@R.function
def main(x: R.Tensor(("n", "m"), "float32"), seen: R.Tensor(("n", "m"), "bool")):
    n, m = T.int64(), T.int64()
    far = R.logical_or(R.greater(x, R.const(0.5, "float32")), R.less(x, R.const(-0.5, "float32")))
    both = R.logical_and(far, seen)
    odd = R.logical_xor(far, R.logical_not(seen))
    return both, R.any(odd, axis=[1]), R.all(seen), R.where(both, x, R.const(0.0, "float32"))
""",
        [floats(3, 4), ids(3, 4, below=2) > 0], [floats(1, 5), ids(1, 5, below=2) > 0],
    )  # fmt: skip


# Other numbers


@program
def float16() -> Program:
    net = nn.Sequential(
        nn.Linear(6, 9, dtype="float16"),
        nn.Tanh(),
        nn.LayerNorm(9, dtype="float16"),
        nn.Linear(9, 3, dtype="float16"),
    )
    return of_module(
        net, {"x": F(("n", 6), "float16")}, [floats(5, 6, dtype="float16")], [floats(1, 6, dtype="float16")], tolerance=2e-2
    )  # fmt: skip


@program
def bfloat16_weights() -> Program:
    """Weights of 16 bits, products of float32."""

    class Net(nn.Module):
        def __init__(self) -> None:
            self.first, self.second = (
                nn.Parameter((6, 9), "bfloat16"),
                nn.Parameter((9, 3), "bfloat16"),
            )

        def forward(self, x: Any) -> Any:
            y = op.nn.relu(op.matmul(x, op.astype(self.first, "float32")))
            return op.matmul(y, op.astype(self.second, "float32"))

    return of_module(Net(), {"x": F(("n", 6))}, [floats(5, 6)], [floats(1, 6)])


@program
def bfloat16() -> Program:
    """All in 16 bits, with functions that ONNX has for wider numbers only."""

    class Net(nn.Module):
        def __init__(self) -> None:
            self.first, self.second = (
                nn.Linear(6, 8, dtype="bfloat16"),
                nn.Linear(8, 3, dtype="bfloat16"),
            )

        def forward(self, x: Any) -> Any:
            y = op.sin(self.first(x)) + op.nn.softplus(self.first(x))
            return op.nn.softmax(self.second(op.sort(y, axis=1)))

    calls = [[floats(n, 6).astype(DType("bfloat16").numpy)] for n in (5, 1)]
    return of_module(Net(), {"x": F(("n", 6), "bfloat16")}, *calls, tolerance=0.1, kernels=False)


@program
def float64() -> Program:
    return of_script(
        """
@R.function
def main(x: R.Tensor(("n", "n"), "float64")):
    n = T.int64()
    y = R.matmul(x, R.permute_dims(x))
    return R.sqrt(R.sum(R.multiply(y, R.eye(n, dtype="float64"))))
""",
        [floats(5, 5, dtype="float64")], [floats(1, 1, dtype="float64")],
    )  # fmt: skip


@program
def quantized_mlp() -> Program:
    """Pairs of quantize and dequantize, weights of int8 with a scale for each row. They have 7 bits, since ONNX Runtime
    adds pairs of products in 16 bits, with saturation, on processors without dot products of bytes."""

    class Net(nn.Module):
        def __init__(self) -> None:
            self.first, self.second = nn.Parameter((9, 6), "int8"), nn.Parameter((3, 9), "int8")
            self.scale1, self.scale2 = nn.Parameter((9,), "float32"), nn.Parameter((3,), "float32")

        def forward(self, x: Any) -> Any:
            zero = np.array(0, "int8")
            for codes, scale in ((self.first, self.scale1), (self.second, self.scale2)):
                step, middle = np.array(0.05, "float32"), np.array(7, "int8")
                x = op.dequantize(op.quantize(x, step, middle, out_dtype="int8"), step, middle)
                w = op.dequantize(codes, op.abs(scale) + 0.01, zero, axis=0)
                x = op.tanh(op.matmul(x, op.permute_dims(w)))
            return x

    made = of_module(Net(), {"x": F(("n", 6))}, [floats(5, 6)], [floats(1, 6)])
    codes = {
        name: (ids(*array.shape, below=127) - 63).astype("int8")
        for name, array in made.weights.items()
        if array.dtype == np.int8
    }
    return Program(made.mod, {**made.weights, **codes}, made.calls, made.function)


@program
def quantized_convolution() -> Program:
    def net(x: Any, w: Any) -> Any:
        step, middle = np.array(0.04, "float32"), np.array(120, "uint8")
        codes = op.quantize(x, step, middle, out_dtype="uint8")
        own = op.dequantize(
            w, np.array([0.02, 0.03, 0.01, 0.05], "float32"), np.array(0, "int8"), axis=0
        )
        found = op.nn.relu(op.nn.conv2d(op.dequantize(codes, step, middle), own, padding=1))
        return op.quantize(found, step, np.array(0, "uint8"), out_dtype="uint8")

    spec = {"x": F(("n", 3, "h", "w")), "w": nn.spec.Tensor((4, 3, 3, 3), "int8")}
    w = (ids(4, 3, 3, 3, below=255) - 127).astype("int8")
    return of_forward(net, spec, [floats(1, 3, 5, 4), w], [floats(2, 3, 3, 7), w])


@program
def integer_products() -> Program:
    """Products of bytes, summed as int32, with scales of the rows that are computed."""

    def net(x: Any, w: Any) -> Any:
        scale = op.max(op.abs(x), axis=1, keepdims=True) / 127.0
        codes = op.astype(op.clip(op.round(x / scale), -127, 127), "int8")
        total = op.matmul(codes, w, out_dtype="int32")
        return op.astype(total, "float32") * scale

    spec = {"x": F(("n", 6)), "w": nn.spec.Tensor((6, 4), "int8")}
    w = (ids(6, 4, below=255) - 127).astype("int8")
    return of_forward(net, spec, [floats(5, 6), w], [floats(1, 6), w])


@program
def large_zero_points() -> Program:
    """Codes of int32 far from 0."""

    def net(x: Any) -> Any:
        found = op.dequantize(x, np.array(0.5, "float32"), np.array(-(2**31), "int32"))
        return found, op.astype(found, "int32")

    spec = {"x": nn.spec.Tensor(("n",), "int32")}
    edges = np.array([-(2**31), 2**31 - 1, 0, 5], "int32")
    return of_forward(net, spec, [edges], [edges[:1]])


# From elsewhere


@program
def read_and_written_again() -> Program:
    """An ONNX model, read, and written."""
    from onnx import parser

    model = parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]> g (float[b, t, 6] x, float[6, 4] w) => (float[b, t, 4] y, int64[2] k) {
        s = Shape<end = 2>(x)
        last = Constant<value_ints = [6]>()
        h = MatMul(x, w)
        y = Softmax<axis = 1>(h)
        k = Mul(s, last)
    }""")
    mod, weights = relaxpy.from_onnx(model)
    w = floats(6, 4)
    return Program(mod, weights, [[floats(2, 3, 6), w], [floats(1, 5, 6), w]])


@program
def from_torch() -> Program:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
            self.lstm = torch.nn.LSTM(4, 5, batch_first=True)

        def forward(self, x: Any) -> Any:
            rows = torch.relu(self.conv(x)).mean(dim=2)
            found, _ = self.lstm(rows.transpose(1, 2))
            return torch.nn.functional.adaptive_avg_pool1d(found.transpose(1, 2), 3)

    torch.manual_seed(0)
    width = torch.export.Dim("width", min=2)
    mod, weights = relaxpy.from_torch(
        Net().eval(),
        args=(torch.ones(2, 3, 5, 7),),
        dynamic_shapes=({0: torch.export.Dim("batch"), 3: width},),
    )
    return Program(mod, weights, [[floats(2, 3, 5, 7)], [floats(3, 3, 5, 4)]])


@program
def from_jax() -> Program:
    jax = pytest.importorskip("jax")

    def net(x: Any, state: Any) -> Any:
        def step(h: Any, row: Any) -> Any:
            h = jax.numpy.tanh(h + row)
            return h, h * 2

        last, rows = jax.lax.scan(step, state, x)
        return jax.lax.dynamic_update_slice(rows, last[None], (1, 0)), jax.numpy.arctan2(
            last, state
        )

    (batch,) = jax.export.symbolic_shape("batch")
    shapes = [jax.ShapeDtypeStruct(s, "float32") for s in ((5, batch), (batch,))]
    mod, weights = relaxpy.from_jax(net, *shapes)
    return Program(mod, weights, [[floats(5, 3), floats(3)], [floats(5, 1), floats(1)]])


@program
def cache_of_fixed_size() -> Program:
    """A step of attention whose cache has room for more: taken, and returned with the new keys and values."""

    def step(q: Any, k: Any, v: Any, keys: Any, values: Any, past: Any) -> Any:
        batch, new, _, _ = k.shape
        at = op.concat(
            [op.zeros((1,), "int64"), op.reshape(past, (1,)), op.zeros((2,), "int64")], axis=0
        )
        keys, values = (op.dynamic_update_slice(old, x, at) for old, x in ((keys, k), (values, v)))
        columns = op.arange(0, keys.shape[1], dtype="int64")
        rows = op.expand_dims(op.arange(0, new, dtype="int64") + past, (1,))
        bias = op.where(op.less_equal(columns, rows), 0.0, -1e9)
        wide = op.broadcast_to(bias, (batch, 2, new, keys.shape[1]))
        return op.nn.attention_bias(q, keys, values, wide), keys, values

    new, room = F(("b", "n", 2, 4)), F(("b", "m", 2, 4))
    spec = {
        "q": new,
        "k": new,
        "v": new,
        "keys": room,
        "values": room,
        "past": nn.spec.Tensor((), "int64"),
    }
    calls = [
        [
            *(floats(b, n, 2, 4, scale=s) for s in (1, 2, 3)),
            *(floats(b, m, 2, 4, scale=s) for s in (1, 2)),
            np.array(past),
        ]
        for b, n, m, past in ((1, 1, 7, 3), (2, 3, 5, 1))
    ]
    return of_forward(step, spec, *calls)


@program
def pooled_to_a_size() -> Program:
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.AdaptiveAvgPool2d((3, 2)), nn.Flatten(), nn.Linear(18, 2)
    )
    return of_module(net, {"x": F(("n", 2, "h", "w"))}, [floats(2, 2, 9, 6)], [floats(1, 2, 3, 8)])


@program
def loops_that_are_left() -> Program:
    """`break` and `continue`: a loop that ends at several places."""
    return of_script(
        """
@R.function
def main(x: R.Tensor(("n",), "float32"), most: R.Tensor((), "float32")):
    n = T.int64()
    y = x
    steps = R.const(0, "int64")
    for i in range(n):
        y = R.multiply(y, R.const(1.5, "float32"))
        if R.less(R.sum(y), R.const(-3.0, "float32")):
            continue
        steps = R.add(steps, R.const(1, "int64"))
        if R.greater(R.sum(y), most):
            break
        y = R.concat([y, R.full((1,), most, "float32")], axis=0)
    return y, steps
""",
        [floats(6), np.array(3, "float32")], [np.abs(floats(3)), np.array(1, "float32")],
        [-np.abs(floats(4)), np.array(2, "float32")],
    )  # fmt: skip


@program
def steps_of_a_function() -> Program:
    """A function that calls itself in the end, in three of four cases (the halves of Collatz), and gives several results."""
    return of_script(
        """
@I.ir_module
class M:
    @R.function(private=True)
    def go(k: R.Tensor((), "int64"), count: R.Tensor((), "int64"), x: R.Tensor(("n",), "float32")) -> R.Tuple(R.Tensor((), "int64"), R.Tensor(("n",), "float32")):
        n = T.int64()
        cls = M
        if R.less_equal(k, R.const(1, "int64")):
            r = count, x
        else:
            more = R.add(count, R.const(1, "int64"))
            if R.equal(R.floor_mod(k, R.const(2, "int64")), R.const(0, "int64")):
                r = cls.go(R.floor_divide(k, R.const(2, "int64")), more, R.add(x, R.const(1.0, "float32")))
            else:
                if R.greater(k, R.const(50, "int64")):
                    r = cls.go(R.const(1, "int64"), more, R.negative(x))
                else:
                    r = cls.go(R.add(R.multiply(k, R.const(3, "int64")), R.const(1, "int64")), more, R.multiply(x, R.const(0.5, "float32")))
        return r

    @R.function
    def main(k: R.Tensor((), "int64"), x: R.Tensor(("n",), "float32")):
        n = T.int64()
        cls = M
        return cls.go(k, R.const(0, "int64"), x)
""",
        [np.array(6), floats(3)], [np.array(1), floats(2)], [np.array(11), floats(5)], [np.array(51), floats(1)],
    )  # fmt: skip
