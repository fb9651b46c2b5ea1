"""Small models of the kinds that files have: products, convolutions, branches, loops, scans, cells, functions, computed
shapes, attention, quantisation. Weights are drawn; sizes of inputs are symbols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import numpy_helper, parser

HEAD = '<ir_version: 9, opset_import: ["" : 18, "mine" : 1], producer_name: "tests">'


def weight(name: str, *shape: int, dtype: Any = np.float32) -> Any:
    """A drawn weight: the same for the same name and shape."""
    rng = np.random.default_rng([*name.encode(), *shape])
    floats = np.dtype(dtype).kind == "f"
    values = rng.standard_normal(shape) * 0.5 if floats else rng.integers(0, 9, shape)
    return stored(name, values.astype(dtype))


def stored(name: str, value: Any) -> Any:
    """A weight of this value."""
    return numpy_helper.from_array(np.asarray(value), name)


def model(text: str, *weights: Any) -> Any:
    """The graph `text` as a model."""
    found = parser.parse_model(f"{HEAD}\n{text}")
    found.graph.initializer.extend(weights)
    return found


def models() -> Mapping[str, Any]:
    """The models by name."""
    return {name: model(text, *weights) for name, (text, *weights) in _TEXTS.items()}


_TEXTS: dict[str, Any] = {
    "perceptron": (
        """g (float[n, 7] x) => (float[n, 5] y) {
            h = Gemm<transB = 1, beta = 0.5>(x, w, b)
            r = Relu(h)
            p = MatMul(r, v)
            y = Softmax<axis = -1>(p)
        }""",
        weight("w", 11, 7), weight("b", 11), weight("v", 11, 5),
    ),
    "convolutions": (
        """g (float[n, 3, height, width] x) => (float[n, 5] y) {
            c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(x, w, b)
            s = BatchNormalization<epsilon = 0.01>(c, scale, bias, mean, variance)
            r = Clip(s, low, high)
            m = MaxPool<kernel_shape = [2, 2], ceil_mode = 1>(r)
            a = GlobalAveragePool(m)
            f = Flatten(a)
            y = Gemm(f, v)
        }""",
        weight("w", 8, 3, 3, 3), weight("b", 8), weight("scale", 8), weight("bias", 8), weight("mean", 8),
        stored("variance", np.full(8, 1.5, np.float32)), stored("low", np.float32(0)), stored("high", np.float32(6)),
        weight("v", 8, 5),
    ),
    "branches": (
        """g (float[n, m] x, bool flag) => (float[n, m] y) {
            y = If(flag)<
                then_branch = t () => (float[n, m] a) { a = Exp(x) },
                else_branch = e () => (float[n, m] b) { h = Mul(x, half)  b = Neg(h) }
            >
        }""",
        stored("half", np.float32(0.5)),
    ),
    "loops": (
        """g (float[n, 5] x, int64 most) => (float[n, 5] last, float[k, n, 5] all) {
            last, all = Loop(most, yes, x)<
                body = b (int64 i, bool going, float[n, 5] a) => (bool on, float[n, 5] c, float[n, 5] d) {
                    on = Identity(going)
                    p = MatMul(a, w)
                    c = Tanh(p)
                    d = Add(c, a)
                }
            >
        }""",
        weight("w", 5, 5), stored("yes", True),
    ),
    "scans": (
        """g (float[n, 3] start, float[t, n, 3] x) => (float[n, 3] last, float[t, n, 3] all) {
            last, all = Scan(start, x)<
                num_scan_inputs = 1,
                body = b (float[n, 3] a, float[n, 3] row) => (float[n, 3] c, float[n, 3] d) {
                    s = Add(a, row)
                    c = Sigmoid(s)
                    d = Identity(c)
                }
            >
        }""",
    ),
    "cells": (
        """g (float[t, n, 3] x) => (float[t, 1, n, 5] y, float[1, n, 5] h, float[1, n, 5] c) {
            y, h, c = LSTM<hidden_size = 5>(x, w, r, b)
        }""",
        weight("w", 1, 20, 3), weight("r", 1, 20, 5), weight("b", 1, 40),
    ),
    "functions": (
        """g (float[n, 6] x) => (float[n, 6] y) {
            a = mine.scaled<by = 3.0>(x)
            b = mine.scaled(a)
            y = HardSwish(b)
        }
        <domain: "mine", opset_import: ["" : 18]> scaled<by: float = 2.0>(x) => (y) {
            f = Constant<value_float: float = @by>()
            y = Mul(x, f)
        }""",
    ),
    "shapes": (
        """g (float[b, t, 12] x) => (float[q, r, s] y, float[b, t, 6] z)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] four = {4}, int64[1] left = {-1}, int64[1] two = {2},
         int64[1] half = {6}> {
            s = Shape(x)
            b = Gather(s, zero)
            t = Gather(s, one)
            bt = Mul(b, t)
            shape = Concat<axis = 0>(bt, four, left)
            y = Reshape(x, shape)
            part = Slice(x, zero, half, two)
            again = Unsqueeze(part, zero)
            z = Squeeze(again, zero)
        }""",
    ),
    "attention": (
        """g (float[b, t, 8] x, int64[b, t] ids) => (float[b, t, 8] y)
        <int64[4] apart = {0, 0, 2, 4}, int64[3] joined = {0, 0, 8}> {
            e = Gather(table, ids)
            a = Add(x, e)
            n = LayerNormalization(a, scale, bias)
            q = MatMul(n, w)
            qs = Reshape(q, apart)
            qt = Transpose<perm = [0, 2, 1, 3]>(qs)
            kt = Transpose<perm = [0, 2, 3, 1]>(qs)
            scores = MatMul(qt, kt)
            p = Softmax(scores)
            o = MatMul(p, qt)
            ot = Transpose<perm = [0, 2, 1, 3]>(o)
            y = Reshape(ot, joined)
        }""",
        weight("table", 13, 8), weight("scale", 8), weight("bias", 8), weight("w", 8, 8),
    ),
    "quantised": (
        """g (float[n, 7] x) => (float[n, 5] y) {
            q = QuantizeLinear(x, s, z)
            d = DequantizeLinear(q, s, z)
            w = DequantizeLinear<axis = 1>(wq, ws)
            p = MatMul(d, w)
            dq, ds, dz = DynamicQuantizeLinear(p)
            i = MatMulInteger(dq, v, dz)
            f = Cast<to = 1>(i)
            y = Mul(f, ds)
        }""",
        stored("s", np.float32(0.03)), stored("z", np.uint8(128)), weight("wq", 7, 11, dtype=np.int8),
        stored("ws", np.linspace(0.01, 0.1, 11, dtype=np.float32)), weight("v", 11, 5, dtype=np.int8),
    ),
}  # fmt: skip
