"""How programs come to the accelerator: `Quantise` makes codes with scales that are powers of two, and two rules say
which patterns are its, how it wants their weights, and the library function that drives it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

import relaxpy
from relaxpy.analysis.dataflow_match import Match
from relaxpy.build.pipeline import default_pipeline
from relaxpy.ir import Call, Constant, Expr, IRModule, Var
from relaxpy.ir.pattern import is_const, is_op, wildcard
from relaxpy.op.linear_algebra import Linear
from relaxpy.op.quantization import Dequantize, Quantize
from relaxpy.transform import LibraryPattern, LowerToLibrary, Pass, PassContext, Realize
from relaxpy.transform.phases import Pipeline
from relaxpy.transform.rebuild import Rebuilder
from tests.accelerator.device import BLOCK, Core, layer

CORE = Core()
ZERO = Constant(np.int8(0))


# Quantisation: scales are powers of two, which are shifts


def power(largest: float) -> float:
    """The least power of two by which codes from -127 to 127 reach this number."""
    return 2.0 ** math.ceil(math.log2(max(largest, 1e-30) / 127))


@dataclass(frozen=True)
class Quantise(Pass):
    """Put pairs of quantize and dequantize in front of linear layers with constant weights."""

    name: ClassVar[str] = "quantise"
    largest: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    """The largest magnitude of what a layer reads, by the variable's name; others stay floats."""

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return Realize().run(_Quantiser(mod, self.largest).run(), ctx)


class _Quantiser(Rebuilder):
    def __init__(self, mod: IRModule, largest: Mapping[str, float]) -> None:
        super().__init__(mod)
        self.largest = largest

    def value(self, value: Expr) -> Expr:
        match value:
            case Call(op=Linear(), args=(Var(name=name) as x, Constant(data=w), *bias)) if (
                name in self.largest
            ):
                pass
            case _:
                return value
        data, weight = power(self.largest[name]), power(float(np.abs(w).max(initial=0)))
        codes = Constant(np.rint(w / weight).astype(np.int8))
        known = [
            Constant(
                np.rint(b.data / (data * weight)).astype(np.float32) * np.float32(data * weight)
            )
            for b in bias
            if isinstance(b, Constant)
        ]
        step = Constant(np.float32(data))
        x = self.emit(Dequantize()(self.emit(Quantize()(x, step, ZERO)), step, ZERO))
        weights = self.emit(Dequantize()(codes, Constant(np.float32(weight)), ZERO))
        return Linear()(x, weights, *known)


# The rules


def number(match: Match, pattern: object) -> float | None:
    """The one number of a constant that is a power of two; None for others."""
    data = _data(match, pattern)
    return (
        float(data.flat[0]) if data.size == 1 and abs(math.frexp(data.flat[0])[0]) == 0.5 else None
    )


def _data(match: Match, pattern: object) -> np.ndarray:
    found = match.get(pattern)  # type: ignore[arg-type]
    return found.data if isinstance(found, Constant) else np.zeros(())


codes, weight = wildcard().has_dtype("int8"), is_const().has_dtype("int8").has_shape((None, None))
product = is_op("linear").has_attr(out_dtype="int32")(codes, weight)
scale, bias, step = is_const(), is_const(), is_const()
scaled = is_op("multiply")(is_op("astype")(product), scale, any_order=True)
total = is_op("add")(scaled, bias, any_order=True) | scaled
relu = is_op("nn.relu")(total)
whole = is_op("quantize").has_attr(out_dtype="int8", rounding="half_to_even", narrow_range=False)(
    relu | total, step, 0
)


def is_exact(match: Match) -> bool:
    """Are there only shifts, and sums that a float32 holds, so that integers give the same bits as the program?"""
    by, to = number(match, scale), number(match, step)
    if by is None or to is None or not 0 <= math.log2(to / by) < 24:
        return False
    added = _data(match, bias) / by
    most = 2.0**14 * _data(match, weight).shape[1] + float(np.abs(added).max(initial=0))
    return bool((added == np.rint(added)).all()) and added.ndim <= 1 and most < 2**24


def blocks(match: Match) -> list[Constant]:
    """The weight in blocks of 16 × 16 that lie in one piece each, and the bias in int32; zeros at the ends."""
    w = _data(match, weight)
    rows, depth = (-(-size // BLOCK) for size in w.shape)
    packed = np.zeros((rows * BLOCK, depth * BLOCK), np.int8)
    packed[: w.shape[0], : w.shape[1]] = w
    tiles = packed.reshape(rows, BLOCK, depth, BLOCK).transpose(0, 2, 1, 3)
    sums = np.zeros((rows, BLOCK), np.int32)
    if bias in match:
        sums.flat[: len(w)] = _data(match, bias) / (number(match, scale) or 1)
    return [Constant(tiles), Constant(sums)]


def of_layer(match: Match) -> Sequence[Expr]:
    """The arguments of a whole layer."""
    shift = round(math.log2((number(match, step) or 1) / (number(match, scale) or 1)))
    return [match[codes], *blocks(match), Constant(np.array([shift, relu in match], np.int32))]


def of_product(match: Match) -> Sequence[Expr]:
    """Those of a product alone, whose sums go back."""
    return [match[codes], *blocks(match)]


@relaxpy.register_library("accelerator.layer")
def run_layer(
    x: relaxpy.Tensor,
    weights: relaxpy.Tensor,
    sums: relaxpy.Tensor,
    finish: relaxpy.Tensor,
    out: relaxpy.Tensor,
) -> None:
    shift, is_relu = (int(n) for n in finish.numpy())
    _run(x, weights, sums, out, (shift, bool(is_relu)))


@relaxpy.register_library("accelerator.product")
def run_product(
    x: relaxpy.Tensor, weights: relaxpy.Tensor, sums: relaxpy.Tensor, out: relaxpy.Tensor
) -> None:
    _run(x, weights, sums, out, None)


def _run(
    x: relaxpy.Tensor,
    weights: relaxpy.Tensor,
    sums: relaxpy.Tensor,
    out: relaxpy.Tensor,
    finish: tuple[int, bool] | None,
) -> None:
    rows, results = (each.numpy().reshape(-1, each.shape[-1]) for each in (x, out))
    layer(CORE, rows, weights.numpy(), sums.numpy(), results, finish)


RULES = (
    LibraryPattern("layer", whole, "accelerator.layer", of_layer, is_exact, expected=False),
    LibraryPattern("product", product, "accelerator.product", of_product, expected=False),
)


def pipeline() -> Pipeline:
    """The pipeline of a processor that has the accelerator beside it."""
    return default_pipeline().before("match", LowerToLibrary(RULES))
