"""Weight-only quantisation: round trips, error bounds, and the tensor program beside numpy."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.ir.dtype import DType
from relaxpy.op.weight_scheme import WeightScheme
from relaxpy.testing.interpret import run_program
from tests.sweeps import sweep

SCHEMES = [
    WeightScheme(bits, group, zero, dtype)
    for bits, zero, (group, dtype) in itertools.product(
        (3, 4, 8),
        ("symmetric", "zero_point", "minimum"),
        ((32, "float16"), (128, "float32"), (40, "float16"), (None, "float32")),
    )
]


def weight(rows: int, depth: int, shift: float = 0.0) -> np.ndarray:
    random = np.random.default_rng(depth)
    return random.standard_normal((rows, depth), dtype="float32") + np.float32(shift)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_errors_are_bounded(scheme: WeightScheme) -> None:
    """At most half a step, and what the rounded scale and minimum add; for groups that do not divide the depth too."""
    for w in (weight(5, 100), weight(3, 64, 2.5), weight(2, 7), weight(2, 130, -1.0)):
        parts = scheme.quantize(w, 1)
        kinds = scheme.types(w.shape, 1)
        assert {n: (p.shape, str(p.dtype)) for n, p in parts.items()} == {
            n: (tuple(d.value for d in k.dims or ()), str(k.dtype)) for n, k in kinds.items()
        }
        own = np.arange(w.shape[1]) // scheme.group_size(w.shape[1])
        half = parts["scale"].astype(np.float32)[:, own] / 2
        rounding = (1 + 2**scheme.bits) * 2.0**-11 if scheme.scale_dtype == "float16" else 1e-5
        error = np.abs(scheme.dequantize(parts, 1, w.shape[1]) - w)
        assert (
            error <= half * (1 + 1e-5) + rounding * 2 * half + np.abs(w).max() * rounding / 8
        ).all()


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_what_is_quantised_stays(scheme: WeightScheme) -> None:
    """Quantising the floats of codes gives these floats again, where scales are exact; along either axis the same."""
    w = weight(6, 70)
    parts = scheme.quantize(w, 1)
    floats = scheme.dequantize(parts, 1, 70)
    again = scheme.dequantize(scheme.quantize(floats, 1), 1, 70)
    np.testing.assert_allclose(again, floats, rtol=0, atol=np.abs(w).max() * 2e-3)
    turned = scheme.quantize(np.ascontiguousarray(w.T), 0)
    for name, part in parts.items():
        np.testing.assert_array_equal(turned[name], part.T)


@pytest.mark.parametrize("scheme", SCHEMES[::5], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_the_program_computes_what_numpy_does(scheme: WeightScheme, axis: int) -> None:
    """To the last bit, for sizes that fill neither words nor groups."""
    w = weight(5, 43) if axis else weight(5, 43).T.copy()
    parts = scheme.quantize(w, axis)
    found = np.zeros_like(w)
    run_program(scheme.program(w.shape, axis), [*parts.values(), found])
    np.testing.assert_array_equal(found, scheme.dequantize(parts, axis, 43))


def test_zero_is_exact() -> None:
    """Zeros stay zeros where a code means 0, also beside large weights, and groups of zeros have no NaN."""
    w = np.zeros((2, 64), np.float32)
    w[0, :5] = 3.0
    for zero in ("symmetric", "zero_point", "minimum"):
        scheme = WeightScheme(4, 32, zero)  # type: ignore[arg-type]
        found = scheme.dequantize(scheme.quantize(w, 1), 1, 64)
        np.testing.assert_array_equal(found[:, 5:], 0)
        np.testing.assert_allclose(found[0, :5], 3, rtol=1e-3)


def test_empty_matrices() -> None:
    for shape in ((0, 8), (8, 0)):
        parts = WeightScheme().quantize(np.zeros(shape, np.float32), 1)
        assert WeightScheme().dequantize(parts, 1, shape[1]).shape == shape


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"bits": 5}, "3, 4 or 8"),
        ({"group": 0}, "at least one"),
        ({"group": 1.5}, "at least one"),
        ({"zero": "none"}, "symmetric"),
        ({"scale_dtype": "int8"}, "float16"),
    ],
)
def test_schemes_that_do_not_exist(options: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        WeightScheme(**options)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e9])
def test_weights_without_a_scale(value: float) -> None:
    w = weight(2, 64)
    w[1, 40] = value
    with pytest.raises(UsageError, match="finite"):
        WeightScheme().quantize(w, 1)


def quantized(scheme: WeightScheme, given: np.ndarray, axis: int) -> dict[str, np.ndarray]:
    """The parts by the tensor program."""
    parts = {
        name: np.zeros([dim.value for dim in kind.dims or ()], DType(kind.dtype).numpy)
        for name, kind in scheme.types(given.shape, axis).items()
    }
    run_program(scheme.quantizer(given.shape, axis, str(given.dtype)), [given, *parts.values()])
    return parts


@sweep(3)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_the_quantizer_gives_the_numbers_of_numpy(scheme: WeightScheme, axis: int) -> None:
    """To the bit, for groups and words that do not divide the depth, a group of zeros, tiny and shifted weights."""
    for depth, dtype in ((64, np.float32), (75, ml_dtypes.bfloat16), (7, np.float16)):
        w = weight(3, depth, 0.25)
        w[0], w[1] = 0, w[1] * 1e-6
        given = np.ascontiguousarray(w if axis else w.T).astype(dtype)
        found = quantized(scheme, given, axis)
        for name, part in scheme.quantize(given, axis).items():
            np.testing.assert_array_equal(found[name], part, err_msg=name)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38])
@pytest.mark.parametrize("zero", ["symmetric", "zero_point", "minimum"])
def test_the_quantizer_shows_what_is_not_finite(zero: Any, value: float) -> None:
    """In the scale or the minimum of that group, and of no other."""
    scheme, w = WeightScheme(4, 8, zero), weight(2, 32)
    w[1, 10] = value
    parts = quantized(scheme, w, 1).values()
    finite = np.logical_and.reduce([np.isfinite(p) for p in parts if p.dtype == np.float16])
    assert finite.sum() == 7
    assert not finite[1, 1]
