"""Each version of each operator that is called otherwise than the one before it: beside ONNX Runtime where that runs it,
else beside numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from relaxpy.errors import RelaxError
from relaxpy.frontend.onnx import from_onnx
from tests.frontend.onnx.onnxruntime_oracle import of_onnxruntime, runner
from tests.frontend.onnx.version_cases import (
    CASES,
    IMAGE,
    LEFT,
    NORM,
    PER_ELEMENT,
    Called,
    X,
    floats,
    groups,
    normalized,
    softmax,
)
from tests.sweeps import sweep

CALLS = [
    (op, version, CASES[op][versions[0]])
    for op in CASES
    for versions in groups()[op]
    for version in versions
]


def test_no_version_is_left_out() -> None:
    changed = {op: [each[0] for each in found] for op, found in groups().items() if len(found) > 1}
    assert {op: list(calls) for op, calls in CASES.items()} == {
        op: versions for op, versions in changed.items() if op not in LEFT
    }


def oracle(op: str, version: int, call: Called) -> Any:
    """What is right: of ONNX Runtime, of this version or of a newer one that is called alike, or of numpy."""
    alike = next(each for each in groups()[op] if version in each)
    for each in (version, *alike[::-1]):
        try:
            return of_onnxruntime(call.model(op, each), call.given())
        except Exception as error:  # it has classes of its own
            problem = error
        if call.wanted is not None:
            found = call.wanted(*call.given())
            return list(found) if isinstance(found, (list, tuple)) else [found]
    raise problem


@sweep(2)
@pytest.mark.parametrize(("op", "version", "call"), CALLS, ids=[f"{o}-{v}" for o, v, _ in CALLS])
def test_versions(op: str, version: int, call: Called) -> None:
    pytest.importorskip("onnxruntime")
    found = runner(call.model(op, version))(*call.given())
    wanted = oracle(op, version, call)
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-4, atol=1e-5)


EXTRA = {
    "of one element": ("Add", 6, Called([X, X[:1, 0, 0].copy()], {"broadcast": 1}, lambda a, b: a + b)),
    "suffix": ("Sub", 6, Called([X, X[0, 0].copy()], {"broadcast": 1}, lambda a, b: a - b)),
    "suffix of two": ("Mul", 6, Called([X, X[0].copy()], {"broadcast": 1}, lambda a, b: a * b)),
    "first axes": ("Div", 6, Called([X, X[:, :, 0].copy()], {"broadcast": 1, "axis": 0}, lambda a, b: a / b[..., None])),
    "slope of each channel": ("PRelu", 6, Called([X, floats(0.1, 0.2, 0.3)], {}, lambda x, s: np.where(x < 0, x * s[None, :, None], x))),
    "all is one axis": ("Softmax", 1, Called([X], {"axis": 0}, lambda x: softmax(x.reshape(1, -1)).reshape(x.shape))),
    "axis is one": ("LogSoftmax", 11, Called([X])),
    "mask of numbers": ("Dropout", 7, Called([X], outputs=1)),
    "width only": ("Upsample", 1, Called([IMAGE], {"height_scale": 1.0, "width_scale": 2.0}, lambda x: x.repeat(2, 3))),
    "half of all": ("Split", 1, Called([X[:, :2]], {"axis": 1}, lambda x: np.split(x, 2, 1), 2)),
    "ends beyond": ("Slice", 1, Called([X], {"starts": [-1], "ends": [1 << 40]}, lambda x: x[-1:])),
    "all axes": ("ReduceMean", 1, Called([X], {}, lambda x: x.mean(keepdims=True))),
    "all of size one": ("Squeeze", 1, Called([X[:1, :, :1]], {}, lambda x: x[0, :, 0])),
    "same padding": ("MaxPool", 1, Called([IMAGE], {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER"},
                                          lambda x: np.lib.stride_tricks.sliding_window_view(
                                              np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-9), (3, 3), (2, 3)
                                          ).max((-2, -1)))),
    "to a name": ("Cast", 1, Called([X], {"to": "DOUBLE"}, lambda x: x.astype(np.float64))),
    "negative crops": ("Pad", 2, Called([X], {"pads": [0, -1, 0, 0, 0, 2]}, lambda x: np.pad(x[:, 1:], ((0, 0), (0, 0), (0, 2))))),
}  # fmt: skip
"""What is easily mistaken of old versions."""


@pytest.mark.parametrize("title", EXTRA)
def test_old_versions(title: str) -> None:
    pytest.importorskip("onnxruntime")
    test_versions(*EXTRA[title])


def test_normalization_of_each_element() -> None:
    """`spatial = 0` of old versions: a mean for each element, not for each channel."""
    call = Called(PER_ELEMENT, {"epsilon": 0.25, "spatial": 0})
    found = runner(call.model("BatchNormalization", 7))(*call.given())
    x, scale, bias, mean, variance = PER_ELEMENT
    wanted = (x - mean) / np.sqrt(variance + 0.25) * scale + bias
    np.testing.assert_allclose(found[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "version", "call", "message"),
    [
        ("BatchNormalization", 1, Called(NORM, {"consumed_inputs": [0] * 5}), "is_test"),
        ("BatchNormalization", 6, Called(NORM), "is_test"),
        ("Dropout", 6, Called([X]), "is_test"),
        ("Add", 6, Called([X, X[0, :, 0].copy()], {"axis": 1}), "cannot be broadcast"),
        ("AveragePool", 6, Called([IMAGE], {"kernel_shape": [2, 2], "ceil_mode": 1}), "ceil_mode"),
    ],
)
def test_calls_of_old_versions_that_are_refused(
    op: str, version: int, call: Called, message: str
) -> None:
    with pytest.raises(RelaxError, match=message):
        from_onnx(call.model(op, version))


def test_numpy_is_as_onnxruntime_is() -> None:
    """What cases want of versions that ONNX Runtime does not run, checked where the newer version is called alike."""
    pytest.importorskip("onnxruntime")
    call = CASES["BatchNormalization"][9]
    found = of_onnxruntime(call.model("BatchNormalization", 9), call.given())[0]
    np.testing.assert_allclose(found, normalized(*call.given()), rtol=1e-4, atol=1e-4)
    assert onnx.defs.onnx_opset_version() >= 25
