"""Quantised operators of ONNX and of com.microsoft beside ONNX Runtime: odd sizes, several batches from one import."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from relaxpy.errors import UsageError
from relaxpy.frontend.onnx import from_onnx
from tests.frontend.onnx.onnxruntime_oracle import Case, check, compare, of_onnxruntime, runner
from tests.sweeps import full, sweep

RNG = np.random.default_rng(0)
B = 3
BATCHES = (B, 1, 7)
FIRST = {"named": {B: "b"}}
KINDS = (np.uint8, np.int8)


def f(*shape: int, low: float = -2.0, high: float = 3.0) -> np.ndarray:
    return RNG.uniform(low, high, shape).astype(np.float32)


def q(dtype: Any, *shape: int) -> np.ndarray:
    low, high = (0, 256) if dtype == np.uint8 else (-128, 128)
    return RNG.integers(low, high, shape).astype(dtype)


def factor(dtype: Any, *shape: int) -> np.ndarray:
    """Weights of a product: signed ones have 7 bits. On processors without dot products of bytes ONNX Runtime adds
    pairs of products in 16 bits, with saturation."""
    return RNG.integers(-64, 64, shape).astype(dtype) if dtype == np.int8 else q(dtype, *shape)


def scale(*shape: int, low: float = 0.01, high: float = 0.1) -> np.ndarray:
    return f(*shape, low=low, high=high)


def zero(dtype: Any, *shape: int) -> np.ndarray:
    return (RNG.integers(-20, 20, shape) + (130 if dtype == np.uint8 else 0)).astype(dtype)


def weights(*numbers: int) -> dict[str, Any]:
    return {"weights": frozenset(numbers), **FIRST}


def standard() -> Iterator[Case]:
    own: dict[str, Any] = {"domain": "", "apart": 1}
    for x in KINDS:
        kind = x.__name__
        for w in KINDS:
            title = f"{kind} {w.__name__}"
            yield Case(
                "MatMulInteger",
                [q(x, B, 5, 11), factor(w, 11, 13)],
                title=f"{title} plain",
                **own,
                **weights(1),
            )
            yield Case(
                "MatMulInteger", [q(x, B, 5, 11), factor(w, 11, 13), zero(x), zero(w)], title=title, **own,
                **weights(1, 2, 3),
            )  # fmt: skip
            yield Case(
                "MatMulInteger", [q(x, B, 11), factor(w, 11, 13), zero(x), zero(w, 13)], title=f"{title} columns", **own,
                **weights(1, 2, 3),
            )  # fmt: skip
            for each, name in ((), "tensor"), ((13,), "columns"):
                if x == np.int8 and w == np.uint8:
                    continue  # not in ONNX Runtime
                yield Case(
                    "QLinearMatMul",
                    [q(x, B, 5, 11), scale(), zero(x), factor(w, 11, 13), scale(*each), zero(w, *each), scale(low=0.5, high=1.0), zero(x)],
                    title=f"{title} {name}", **own, **weights(1, 2, 3, 4, 5, 6, 7),
                )  # fmt: skip
            if x == np.int8 and w == np.uint8:
                continue  # not in ONNX Runtime
            for each, name in ((), "tensor"), ((4,), "channels"):
                point = zero(w, *each) if w == np.uint8 else np.zeros(each, w)
                if name == "channels" and w == np.uint8:
                    point[...] = point[0]  # ONNX Runtime wants one
                conv = [
                    q(x, B, 6, 9, 7),
                    scale(),
                    zero(x),
                    factor(w, 4, 3, 3, 3),
                    scale(*each),
                    point,
                    scale(low=3.0, high=5.0),
                    zero(x),
                ]
                more = {"group": 2, "pads": [1, 0, 1, 2], "strides": [2, 1]}
                yield Case(
                    "QLinearConv",
                    conv,
                    more,
                    title=f"{title} {name}",
                    **own,
                    **weights(*range(1, 8)),
                )
                bias = RNG.integers(-3000, 3000, 4).astype(np.int32)
                yield Case(
                    "QLinearConv", [*conv, bias], {"group": 2, "auto_pad": "SAME_UPPER"},
                    title=f"{title} {name} bias", **own, **weights(*range(1, 9)),
                )  # fmt: skip
        conv = [q(x, B, 6, 9, 7), q(np.uint8, 4, 3, 3, 3), zero(x), zero(np.uint8)]
        if x == np.uint8:
            yield Case(
                "ConvInteger",
                conv,
                {"group": 2, "pads": [1, 0, 1, 2]},
                title=kind,
                **own,
                **weights(1, 2, 3),
            )
            yield Case(
                "ConvInteger",
                conv[:2],
                {"group": 2, "strides": [2, 1]},
                title=f"{kind} plain",
                **own,
                **weights(1),
            )
        for each, name in ((), "tensor"), ((5,), "channels"):
            given = [f(B, 5, 7), scale(*each), zero(x, *each)]
            yield Case("QuantizeLinear", given, title=f"{kind} {name}", **own, **weights(1, 2))
            given = [q(x, B, 5, 7), scale(*each), zero(x, *each)]
            yield Case(
                "DequantizeLinear",
                given,
                {"axis": -2},
                title=f"{kind} {name}",
                **own,
                **weights(1, 2),
            )
        given = [f(11, B * 2, 7), scale(3, B * 2, 7), zero(x, 3, B * 2, 7)]
        blocks = {"axis": 0, "block_size": 4}
        yield Case("QuantizeLinear", given, blocks, title=f"{kind} blocks", **own)
        given = [q(x, 11, B * 2, 7), scale(3, B * 2, 7), zero(x, 3, B * 2, 7)]
        yield Case("DequantizeLinear", given, blocks, title=f"{kind} blocks", **own)
        # Halves are rounded to even before the zero point is added.
        halves = [
            np.array(0.5, np.float32),
            np.array(7, x),
            *(np.array(v, np.float32) for v in (1.0, 4.0)),
        ]
        given = [
            q(x, B, 1),
            halves[0],
            halves[1],
            q(x, 1, 13) // 64,
            halves[2],
            np.array(0, x),
            halves[3],
            halves[1],
        ]
        yield Case(
            "QLinearMatMul",
            given,
            title=f"{kind} halves",
            domain="",
            **weights(1, 2, 3, 4, 5, 6, 7),
        )
        halves = [f(B, 5, 211, low=-90, high=90), scale(5), zero(x, 5)]
        halves = [*(each.astype(np.float16) for each in halves[:2]), halves[2]]
        yield Case("QuantizeLinear", halves, title=f"{kind} of float16", domain="", **weights(1, 2))
        codes = [q(x, B, 5, 7), *halves[1:]]
        yield Case(
            "DequantizeLinear", codes, title=f"{kind} of float16", domain="", **weights(1, 2)
        )
    for low, high in ((-2.0, 3.0), (1.0, 3.0), (-3.0, -1.0), (0.0, 0.0)):
        given = [f(B, 5, 7, low=low, high=high)]
        yield Case("DynamicQuantizeLinear", given, {}, 3, title=f"{low} to {high}", **own, **FIRST)
    for kind in "float8_e4m3fn", "float8_e5m2":
        numbers = f(11, 5, 7).astype(getattr(ml_dtypes, kind))
        for each in (), (5,):
            given = [numbers, scale(*each)]
            yield Case(
                "DequantizeLinear",
                given,
                title=f"{kind} {len(each)}",
                weights=frozenset({0, 1}),
                domain="",
            )


def packed() -> Iterator[Case]:
    """Integers of 4 and 2 bits."""
    own: dict[str, Any] = {"domain": "", "opset": 25}
    for name, low, high in (("int4", -8, 8), ("uint4", 0, 16), ("int2", -2, 2), ("uint2", 0, 4)):
        dtype = np.dtype(getattr(ml_dtypes, name))

        def numbers(
            *shape: int, low: int = low, high: int = high, dtype: Any = dtype
        ) -> np.ndarray:
            return RNG.integers(low, high, shape).astype(dtype)

        for axis, shape in ((0, (3, 5, 7)), (1, (11, 2, 7)), (-1, (11, 5, 2))):
            parts = [numbers(11, 5, 7), scale(*shape), numbers(*shape)]
            attrs = {"axis": axis, "block_size": 4}
            yield Case(
                "DequantizeLinear",
                parts,
                attrs,
                title=f"{name} blocks of {axis}",
                **own,
                weights=frozenset(range(3)),
            )
        for shape in (), (5,):
            parts = [numbers(11, 5, 7), scale(*shape), numbers(*shape)]
            yield Case(
                "DequantizeLinear",
                parts,
                title=f"{name} {len(shape)}",
                **own,
                weights=frozenset(range(3)),
            )


def contrib() -> Iterator[Case]:
    own: dict[str, Any] = {"apart": 1}
    for x in KINDS:
        kind = x.__name__
        parts = [q(x, B, 5, 11), scale(), zero(x)]
        others = {
            "same": [q(x, B, 5, 11), scale(), zero(x)],
            "row": [q(x, 11), scale(), zero(x)],
            "number": [q(x, 1), scale(), zero(x)],
        }
        for name, more in others.items():
            given = [*parts, *more]
            yield Case(
                "QLinearAdd",
                [*given, scale(low=0.05, high=0.1), zero(x)],
                title=f"{kind} {name}",
                **own,
                **weights(1, 2, 4, 5, 6, 7),
            )
            yield Case(
                "QLinearMul",
                [*given, scale(low=0.05, high=0.1), zero(x)],
                title=f"{kind} {name}",
                **own,
                **weights(1, 2, 4, 5, 6, 7),
            )
        # The scales of these are such that ONNX Runtime's tables and float32 round alike.
        sigmoid = [*parts, np.array(1 / 256, np.float32), np.array(0 if x == np.uint8 else -128, x)]
        yield Case("QLinearSigmoid", sigmoid, title=kind, **own, **weights(1, 2, 3, 4))
        yield Case(
            "QLinearLeakyRelu",
            [*parts, scale(), zero(x)],
            {"alpha": 0.2},
            title=kind,
            **own,
            **weights(1, 2, 3, 4),
        )
        yield Case(
            "QLinearLeakyRelu",
            [*parts, scale(), None],
            title=f"{kind} plain",
            **own,
            **weights(1, 2, 3),
        )
        for opset in 11, 13:
            for axis in 1, 2:
                attrs = {"opset": opset, "axis": axis}
                yield Case(
                    "QLinearSoftmax",
                    sigmoid,
                    attrs,
                    title=f"{kind} {opset} {axis}",
                    **own,
                    **weights(1, 2, 3, 4),
                )
        given = [scale(), zero(x)]
        for size in 5, 1, 2:
            given += [q(x, B, size, 7), scale(), zero(x)]
        stored = weights(0, 1, 3, 4, 6, 7, 9, 10)
        yield Case("QLinearConcat", given, {"axis": 1}, title=kind, **own, **stored)
        given = [RNG.random((B, 5, 1)) < 0.5, *parts, q(x, 11), scale(), zero(x), scale(), zero(x)]
        yield Case("QLinearWhere", given, title=kind, **own, **weights(2, 3, 5, 6, 7, 8))
        for last, shape in (0, (B, 5, 9, 7)), (1, (B, 9, 7, 5)):
            image = [q(x, *shape), scale(), zero(x), scale(), zero(x)]
            attrs = {"channels_last": last}
            title = f"{kind} {'last' if last else 'first'}"
            yield Case(
                "QLinearGlobalAveragePool", image, attrs, title=title, **own, **weights(1, 2, 3, 4)
            )
            attrs = attrs | {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
            for include in 0, 1:
                attrs = attrs | {"count_include_pad": include}
                yield Case(
                    "QLinearAveragePool",
                    image,
                    attrs,
                    title=f"{title} {include}",
                    **own,
                    **weights(1, 2, 3, 4),
                )
        for w in KINDS:
            title = f"{kind} {w.__name__}"
            for each, name in ((), "tensor"), ((13,), "columns"):
                right = [factor(w, 11, 13), scale(*each), zero(w, *each)]
                if x == np.uint8 or w == np.int8:
                    bias = RNG.integers(-3000, 3000, 13).astype(np.int32)
                    gemm = [
                        q(x, B, 11),
                        scale(),
                        zero(x),
                        *right,
                        bias,
                        scale(low=0.5, high=1.0),
                        zero(x),
                    ]
                    stored = weights(*range(1, 9))
                    yield Case("QGemm", gemm, title=f"{title} {name}", **own, **stored)
                    yield Case(
                        "QGemm",
                        gemm[:7],
                        {"alpha": 0.5},
                        title=f"{title} {name} floats",
                        **own,
                        **stored,
                    )
                    turned = [
                        *gemm[:3],
                        np.ascontiguousarray(gemm[3].T),
                        *gemm[4:6],
                        None,
                        *gemm[7:],
                    ]
                    yield Case(
                        "QGemm",
                        turned,
                        {"transB": 1},
                        title=f"{title} {name} turned",
                        **own,
                        **stored,
                    )
                given = [q(x, B, 5, 11), right[0], scale(1), right[1], zero(x, 1), right[2], f(13)]
                if x == np.uint8 or w == np.int8:
                    yield Case(
                        "MatMulIntegerToFloat",
                        given,
                        title=f"{title} {name}",
                        atol=1e-3,
                        **weights(*range(1, 7)),
                    )
                if x == np.uint8:
                    given = [f(B, 5, 11), *right, f(13)]
                    yield Case(
                        "DynamicQuantizeMatMul",
                        given,
                        title=f"{title} {name}",
                        atol=1e-3,
                        **weights(*range(1, 5)),
                    )
    for x in np.uint8, np.int8, np.uint16, np.int16:
        for each in (), (5,):
            title = f"{x.__name__} {len(each)}"
            given = [f(B, 5, 7), scale(*each), np.zeros(each, x)]
            yield Case("QuantizeLinear", given, {"axis": 1}, title=title, **own, **weights(1, 2))
            numbers = RNG.integers(0, 100, (B, 5, 7)).astype(x)
            yield Case(
                "DequantizeLinear",
                [numbers, scale(*each), np.zeros(each, x)],
                {"axis": 1},
                title=title,
                **own,
                **weights(1, 2),
            )


def attention() -> Iterator[Case]:
    b, t, h, d, p = B, 5, 2, 4, 7
    for w in KINDS:
        for each in (), (3 * h * d,):
            given = [
                q(np.uint8, b, t, 6),
                factor(w, 6, 3 * h * d),
                f(3 * h * d),
                scale(),
                scale(*each, low=0.001, high=0.01),
            ]
            rest = [zero(np.uint8), zero(w, *each)]
            stored = {**weights(1, 2, 3, 4, 6, 7), "atol": 1e-4}
            title = f"{w.__name__} {len(each)}"
            yield Case("QAttention", [*given, None, *rest], {"num_heads": h}, title=title, **stored)
            past = {"named": {b: "b", p: "p"}}
            causal = {"num_heads": h, "unidirectional": 1}
            before = f(2, b, h, p, d)
            yield Case(
                "QAttention",
                [*given, None, *rest, before],
                causal,
                2,
                title=f"{title} past",
                **(stored | past),
            )


def embedding() -> Iterator[Case]:
    t, h = 5, 8
    for x, is_plain in product(KINDS, (False, True)):
        words = RNG.integers(0, 11, (B, t)).astype(np.int32)
        rows: list[Any] = [
            q(x, 11, h),
            q(x, 9, h),
            None if is_plain else q(x, 2, h),
            q(x, h),
            q(x, h),
        ]
        segments = None if is_plain else RNG.integers(0, 2, (B, t)).astype(np.int32)
        mask = None if is_plain else (np.arange(t) < np.array([[2], [5], [4]])).astype(np.int32)
        scales = [None if each is None else scale() for each in rows]
        points = [None if each is None else zero(x) for each in rows]
        yield Case(
            "QEmbedLayerNormalization", [words, segments, *rows, mask, *scales, *points], {"epsilon": 0.01}, 2,
            title=f"{x.__name__}{' plain' * is_plain}", atol=1e-4,
            weights=frozenset({*range(2, 7), *range(8, 18)}), named={B: "b", t: "t"}, free=True,
        )  # fmt: skip


def lstm() -> Iterator[Case]:
    t, b, n, h = 5, B, 7, 6
    lengths = np.array([3, 5, 1], np.int32)
    for w in KINDS:
        for direction in "forward", "reverse", "bidirectional":
            d = 2 if direction == "bidirectional" else 1
            for each in (), (4 * h,):
                more = [
                    factor(w, d, n, 4 * h),
                    factor(w, d, h, 4 * h),
                    f(d, 8 * h),
                    lengths,
                    f(d, b, h),
                    f(d, b, h),
                    f(d, 3 * h),
                ]
                points = [zero(w, d, *each), zero(w, d, *each)]
                if each:
                    points = [np.zeros_like(x) for x in points]
                sizes = {"low": 0.002, "high": 0.01}
                scales = [scale(d, *each, **sizes), points[0], scale(d, *each, **sizes), points[1]]
                attrs = {"hidden_size": h, "direction": direction}
                own = {
                    "atol": 1e-2,
                    "named": {t: "t", b: "b"},
                    "weights": frozenset({1, 2, 3, 7, 8, 9, 10, 11}),
                }
                title = f"{w.__name__} {direction} {len(each)}"
                x = f(t, b, n)
                yield Case(
                    "DynamicQuantizeLSTM",
                    [x, *more[:3], None, None, None, None, *scales],
                    attrs,
                    3,
                    title=title,
                    **own,
                )
                given = [x, *more[:3], None, *more[4:], *scales]
                yield Case(
                    "DynamicQuantizeLSTM",
                    given,
                    attrs | {"clip": 1.5},
                    3,
                    title=f"{title} states",
                    **own,
                )
                given = [x, *more[:3], lengths, *more[4:6], None, *scales]
                yield Case("DynamicQuantizeLSTM", given, attrs, 3, title=f"{title} lengths", **own)


def few_bits() -> Iterator[Case]:
    n, block = 7, 16
    for bits in 2, 4, 8:
        for k in 32, 43:
            count = -(-k // block)
            codes = q(np.uint8, n, count, block * bits // 8)
            zeros = q(np.uint8, n, -(-count * bits // 8))
            attrs = {"K": k, "N": n, "bits": bits, "block_size": block}
            stored = {**weights(1, 2, 3, 4, 5), "atol": 1e-3}
            title = f"{bits} bits {k}"
            x, steps = f(B, 5, k), scale(n, count)
            yield Case("MatMulNBits", [x, codes, steps], attrs, title=title, **stored)
            yield Case(
                "MatMulNBits",
                [x, codes, steps, zeros, None, f(n)],
                attrs,
                title=f"{title} zeros",
                **stored,
            )
            middle = f(n, count, low=0, high=float(1 << bits))
            if bits < 8:  # not in ONNX Runtime
                yield Case(
                    "MatMulNBits",
                    [x, codes, steps, middle],
                    attrs,
                    title=f"{title} floats",
                    **stored,
                )
            order = np.arange(count * block, dtype=np.int32) // block
            given = [x, codes, steps, None, order]
            if bits == 4:  # of others ONNX Runtime takes none
                yield Case("MatMulNBits", given, attrs, title=f"{bits} bits {k} order", **stored)
            half = [x.astype(np.float16), codes, steps.astype(np.float16), zeros]
            yield Case(
                "MatMulNBits",
                half,
                attrs,
                title=f"{bits} bits {k} halves",
                **(stored | {"atol": 0.02}),
            )
        codes, steps = q(np.uint8, 11, 32 * bits // 8), scale(11, 2)
        attrs = {"bits": bits, "block_size": block}
        zeros = q(np.uint8, 11, -(-2 * bits // 8))
        stored = weights(0, 2, 3)
        spots = RNG.integers(-11, 11, (B, 5))
        yield Case(
            "GatherBlockQuantized",
            [codes, spots, steps],
            attrs,
            title=f"{bits} bits",
            free=True,
            **stored,
        )
        yield Case(
            "GatherBlockQuantized",
            [codes, spots, steps, zeros],
            attrs,
            title=f"{bits} bits zeros",
            free=True,
            **stored,
        )
    for name, low, high in (("int4", -8, 8), ("uint4", 0, 16)):
        dtype = np.dtype(getattr(ml_dtypes, name))
        codes = RNG.integers(low, high, (11, 5, 32)).astype(dtype)
        spots, stored = RNG.integers(-5, 5, (B, 2)), weights(0, 2, 3)
        zeros = RNG.integers(low, high, (11, 5, 2)).astype(dtype)
        attrs = {"block_size": 16, "gather_axis": 1, "quantize_axis": -1}
        given = [codes, spots, scale(11, 5, 2)]
        yield Case("GatherBlockQuantized", given, attrs, title=name, free=True, **stored)
        yield Case(
            "GatherBlockQuantized",
            [*given, zeros],
            attrs,
            title=f"{name} zeros",
            free=True,
            **stored,
        )


CASES = [*standard(), *packed(), *contrib(), *attention(), *embedding(), *lstm(), *few_bits()]


def nbits(**attributes: Any) -> Case:
    """A product with weights of 4 bits."""
    given = [
        f(B, 32),
        q(np.uint8, 5, 2, 8),
        scale(5, 2),
        None,
        np.arange(32, dtype=np.int32)[::-1] // 16,
    ]
    attrs = {"K": 32, "N": 5, "block_size": 16} | attributes
    return Case("MatMulNBits", given if not attributes else given[:3], attrs, **weights(1, 2, 4))


def test_activations_stay_floats_whatever_the_level() -> None:
    """ONNX Runtime takes the level as a permission to quantise them to 8 bits."""
    pytest.importorskip("onnxruntime")
    exact, coarse = nbits(accuracy_level=1), nbits(accuracy_level=4)
    coarse = replace(coarse, inputs=exact.inputs)
    x = exact.given()
    (wanted,), (found,) = of_onnxruntime(exact.model(), x), runner(coarse.model())(*x)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    (rough,) = of_onnxruntime(coarse.model(), x)
    np.testing.assert_allclose(found, rough, atol=0.05)


@pytest.mark.parametrize(
    ("case", "match"),
    [
        (nbits(), "a g_idx of another order"),
        (nbits(bits=3), "of 3 bits"),
        (nbits(weight_prepacked=1), "weight_prepacked"),
        (
            Case(
                "GatherBlockQuantized", [q(np.uint8, 11, 16), np.array([1, 2]), scale(11, 1)],
                {"block_size": 16, "gather_axis": 1, "quantize_axis": 1, "bits": 8}, **weights(0, 2),
            ),
            "gather_axis 1 and quantize_axis 1",
        ),
        (
            Case(
                "DynamicQuantizeLSTM",
                [f(5, B, 7), q(np.int8, 1, 7, 8), q(np.int8, 1, 2, 8), *[None] * 5, scale(1), zero(np.int8, 1), scale(1), zero(np.int8, 1)],
                {"hidden_size": 2, "input_forget": 1}, 3, **weights(1, 2, 8, 9, 10, 11),
            ),
            "input_forget",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_what_changes_the_result_is_refused(case: Case, match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        from_onnx(case.model())
    assert caught.value.code == "onnx-operator"


@sweep(8)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_operators_are_onnxruntimes(case: Case) -> None:
    pytest.importorskip("onnxruntime")
    check(case, batches=BATCHES)


@full
@pytest.mark.parametrize("case", CASES[::5], ids=str)
def test_operators_built_are_onnxruntimes(case: Case) -> None:
    pytest.importorskip("onnxruntime")
    check(case, build=True, batches=BATCHES)


@pytest.mark.parametrize("x", KINDS)
@pytest.mark.parametrize("w", KINDS)
def test_products_of_all_codes_are_exact(x: Any, w: Any) -> None:
    """Also where ONNX Runtime saturates: its extremes, beside each other."""
    given: list[Any] = [q(x, 3, 37), q(w, 37, 7), zero(x), zero(w)]
    for codes, dtype in zip(given, (x, w), strict=False):
        codes[:, ::2], codes[1, :] = np.iinfo(dtype).max, np.iinfo(dtype).min
    model = Case("MatMulInteger", given, domain="", weights=frozenset((1, 2, 3))).model()
    a, b, a_zero, b_zero = (codes.astype(np.int64) for codes in given)
    expected = ((a - a_zero) @ (b - b_zero)).astype(np.int32)
    for build in (False, True):
        compare(runner(model, build)(given[0]), [expected])


def test_rows_of_a_product_have_zero_points() -> None:
    a, b = q(np.uint8, 3, 5), q(np.uint8, 5, 7)
    given: list[Any] = [
        a, scale(3), zero(np.uint8, 3), b, scale(7), zero(np.uint8, 7), scale(3, low=0.5, high=1.0), zero(np.uint8, 3),
    ]  # fmt: skip
    model = Case(
        "QLinearMatMul", given, domain="", weights=frozenset(range(1, 8)), named={3: "m"}
    ).model()
    _, a_scale, a_zero, _, b_scale, b_zero, y_scale, y_zero = (x.astype(np.float64) for x in given)
    product = ((a - a_zero[:, None]) * a_scale[:, None]) @ ((b - b_zero) * b_scale)
    expected = np.clip(np.rint(product / y_scale[:, None]) + y_zero[:, None], 0, 255).astype(
        np.uint8
    )
    compare(runner(model)(a), [expected])


def test_integers_of_four_bits_are_rounded_and_kept() -> None:
    """A zero point of int4 means results of int4, which QuantizeLinear saturates to; they can be moved and read."""
    text = """<ir_version: 11, opset_import: ["" : 23]> g (float[n, 3] x) => (float[m, 2] y) <float s = {0.5}, int4 z = {1}> {
        q = QuantizeLinear(x, s, z)
        t = Transpose<perm = [1, 0]>(q)
        y = DequantizeLinear(t, s, z)
    }"""
    x = np.array([[100, -100, 0.25], [0.75, 3, -3]], np.float32)
    (found,) = runner(onnx.parser.parse_model(text))(x)
    codes = np.clip(np.rint(x / 0.5) + 1, -8, 7)
    np.testing.assert_array_equal(found, (codes.T - 1) * 0.5)


INT4 = np.array([1, 2, 3, -4, 5], ml_dtypes.int4)


@pytest.mark.parametrize("build", [False, True])
@pytest.mark.parametrize("name", ["int4", "uint4"])
def test_inputs_and_outputs_of_four_bits(name: str, build: bool) -> None:
    """Read, moved, made of floats, and returned."""
    text = f"""<ir_version: 11, opset_import: ["" : 23]>
        g ({name}[n, 3] x, float[n, 3] f) => ({name}[m, k] t, float[n, 3] y, {name}[n, 3] q, {name}[n, 3] c)
        <float s = {{0.5}}, {name} z = {{1}}> {{
        t = Transpose<perm = [1, 0]>(x)
        y = DequantizeLinear(x, s, z)
        q = QuantizeLinear(f, s, z)
        c = Cast<to = {22 if name == "int4" else 21}>(f)
    }}"""
    dtype = np.dtype(getattr(ml_dtypes, name))
    low, high = (-8, 8) if name == "int4" else (0, 16)
    rng = np.random.default_rng(0)
    for rows in (5, 1):
        x = rng.integers(low, high, (rows, 3)).astype(dtype)
        f = rng.integers(low, high, (rows, 3)).astype(np.float32)
        t, y, q, c = runner(onnx.parser.parse_model(text), build)(x, f)
        assert {t.dtype, q.dtype, c.dtype} == {dtype}
        np.testing.assert_array_equal(t.astype(int), x.astype(int).T)
        np.testing.assert_array_equal(y, (x.astype(np.float32) - 1) * 0.5)
        np.testing.assert_array_equal(q.astype(int), np.clip(f * 2 + 1, low, high - 1).astype(int))
        np.testing.assert_array_equal(c.astype(int), f.astype(int))


@pytest.mark.parametrize(
    ("case", "match"),
    [
        (
            Case("Gather", [INT4, np.array([3, 1])], domain="", weights=frozenset({0})),
            "Gather of int4",
        ),
        (
            Case(
                "Identity", [np.array([1, -2], ml_dtypes.int2)], domain="", weights=frozenset({0})
            ),
            "'y0' is of int2",
        ),
        (
            Case(
                "DequantizeLinear",
                [f(3).astype(ml_dtypes.float8_e4m3fnuz), scale()],
                domain="",
                weights=frozenset({0, 1}),
            ),
            "float8_e4m3fnuz is not supported",
        ),
        (Case("CastLike", [f(3), INT4], domain="", weights=frozenset({1})), "CastLike of int4"),
    ],
    ids=str,
)
def test_dtypes_that_are_missing_are_refused(case: Case, match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        from_onnx(case.model())
    assert caught.value.code == "onnx-dtype"


@pytest.mark.parametrize("dims", [[-3], [1 << 40], [3, 5]])
def test_damaged_integers_of_four_bits_are_refused(dims: list[int]) -> None:
    model = Case("DequantizeLinear", [INT4, scale()], domain="", weights=frozenset({0, 1})).model()
    model.graph.initializer[0].dims[:] = dims
    with pytest.raises(UsageError, match="'x0' has") as caught:
        from_onnx(model)
    assert caught.value.code == "onnx-file"


def test_lists_of_integers_of_four_bits() -> None:
    """Two of them are in each number of a list."""
    given = [INT4, np.array(0.5, np.float32)]
    model = Case("DequantizeLinear", given, domain="", weights=frozenset({0, 1})).model()
    stored = model.graph.initializer[0]
    packed = list(stored.raw_data)
    stored.ClearField("raw_data")
    stored.int32_data.extend(packed)
    np.testing.assert_array_equal(runner(model)()[0], INT4.astype(np.float32) * 0.5)
