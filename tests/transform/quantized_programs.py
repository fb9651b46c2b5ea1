"""Random programs of pairs around products, of odd sizes and a number of rows that is known in the call only."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy import op
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import SymVar
from relaxpy.ir.expr import Constant, Expr, Var
from relaxpy.ir.module import IRModule
from relaxpy.op.block_builder import BlockBuilder

WIDTHS = (1, 2, 3, 5, 7, 13, 16, 17, 31, 33)


@dataclass(frozen=True)
class Quantized:
    """A program whose arguments and result are quantised, with arguments for it."""

    mod: IRModule
    arguments: list[Any]
    text: str
    """What it is, for a failure."""


def quantized_program(seed: int) -> Quantized:
    """The program of this number: a matrix product or a convolution of dequantised tensors, with a bias or without,
    and what follows; its result is quantised."""
    g, numbers = random.Random(seed), np.random.default_rng(seed)
    kind = g.choice(("linear", "linear", "matmul", "batched", "conv", "depthwise"))
    left, right = (g.choice(("int8", "uint8")) for _ in range(2))
    rows = g.choice(WIDTHS)
    n = SymVar("n")
    depth, width = g.choice(WIDTHS), g.choice(WIDTHS)
    lead = (g.choice((1, 2, 3)),) if kind in ("linear", "batched") and g.random() < 0.5 else ()
    if kind == "conv":
        shape, dims = (rows, depth, 5, 6), (n, depth, 5, 6)
        weight = (width, depth, g.choice((1, 3)), g.choice((1, 2)))
    elif kind == "depthwise":
        shape, dims = (rows, depth, 5, 6), (n, depth, 5, 6)
        weight = (depth * g.choice((1, 1, 2)), 1, g.choice((1, 3)), g.choice((1, 2)))
    else:
        shape, dims = (*lead, rows, depth), (*lead, n, depth)
        weight = (width, depth) if kind == "linear" else (depth, width)
        weight = (*lead, *weight) if kind == "batched" else weight
    x = Var("x", TensorType(dims, left))
    bb = BlockBuilder()

    def vector(size: int) -> np.ndarray:
        return numbers.uniform(0.01, 0.1, size).astype("float32")

    def dequantized(codes: Expr, dtype: str, axis: int | None, size: int) -> Expr:
        """Dequantised codes, with numbers for each index of the axis, if there is one."""
        size = size if axis is not None else 1
        scale: Any = vector(size) if axis is not None else vector(1)[0]
        info = np.iinfo(dtype)
        zero = numbers.integers(info.min, info.max + 1, size if axis is not None else ())
        zero = np.zeros_like(zero) if g.random() < 0.5 else zero
        parts = (Constant(np.asarray(scale)), Constant(np.asarray(zero).astype(dtype)))
        return bb.emit(op.dequantize(codes, *parts, axis=-1 if axis is None else axis))

    def codes(shape: tuple[int, ...], dtype: str) -> np.ndarray:
        info = np.iinfo(dtype)
        return numbers.integers(info.min, info.max + 1, shape).astype(dtype)

    text = f"seed {seed}: {kind} {shape} {left} by {weight} {right}"
    with bb.function("main", [x]):
        with bb.dataflow():
            column = len(weight) - 1 if kind in ("matmul", "batched") else 0
            one = g.random() < 0.4
            apart = (
                kind == "depthwise" and g.random() < 0.7
            )  # channels of data have scales of their own
            a = dequantized(x, left, 1 if apart else None, depth)
            b = dequantized(
                Constant(codes(weight, right)), right, None if one else column, weight[column]
            )
            if kind in ("conv", "depthwise"):
                padding = g.choice((0, 1)) if min(weight[2:]) > 1 or g.random() < 0.5 else 0
                groups = depth if kind == "depthwise" else 1
                y = bb.emit(
                    op.nn.conv2d(a, b, padding=padding, strides=g.choice((1, 2)), groups=groups)
                )
            elif kind == "linear":
                bias = Constant(vector(width)) if g.random() < 0.5 else None
                y = bb.emit(op.linear(a, b, bias))
            else:
                y = bb.emit(op.matmul(a, b))
            if g.random() < 0.5:
                y = bb.emit(g.choice((op.nn.relu, op.nn.gelu))(y))
            sums = int(np.prod(weight[1:])) if kind in ("conv", "depthwise") else depth
            step = Constant(np.asarray(sums**0.5 * numbers.uniform(0.5, 2), "float32"))
            shift = Constant(np.asarray(g.randrange(-9, 9), "int8"))
            y = bb.emit(op.quantize(y, step, shift))
            if g.random() < 0.3:  # a pair and a move before the same quantisation: gone
                y = bb.emit(op.permute_dims(bb.emit(op.dequantize(y, step, shift))))
                y = bb.emit(op.quantize(y, step, shift))
            out = bb.emit_output(y)
        bb.emit_func_output(out)
    return Quantized(bb.get(), [codes(shape, left)], text)
