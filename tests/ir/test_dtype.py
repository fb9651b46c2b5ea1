"""Data types: names with questions."""

from __future__ import annotations

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.ir.dtype import DType


def test_names() -> None:
    assert DType("f32") == "float32" == DType(np.float32) == DType(np.dtype("float32"))
    assert DType("bf16") == DType(ml_dtypes.bfloat16) == "bfloat16"
    assert DType("f32") is DType("float32")


@pytest.mark.parametrize(
    "name",
    [
        "bool",
        "int8",
        "uint16",
        "int64",
        "float16",
        "bfloat16",
        "float64",
        "float8_e4m3fn",
        "float8_e5m2",
    ],
)
def test_size_agrees_with_numpy(name: str) -> None:
    assert DType(name).itemsize == DType(name).numpy.itemsize
    assert DType(DType(name).numpy) is DType(name)


def test_kinds() -> None:
    kinds = {
        name: (DType(name).is_float, DType(name).is_int, DType(name).is_signed)
        for name in ("float16", "uint8", "int8", "bool")
    }
    assert kinds == {
        "float16": (True, False, True),
        "uint8": (False, True, False),
        "int8": (False, True, True),
        "bool": (False, False, False),
    }


def test_unknown() -> None:
    with pytest.raises(UsageError) as caught:
        DType("complex64")
    assert caught.value.code == "unknown-dtype"


def test_copies() -> None:
    assert pickle.loads(pickle.dumps(DType("int8"))) == "int8"
    assert copy.copy(DType("int8")) == "int8"


@pytest.mark.parametrize("name", ["float7", "fp4", "int3", "uint3", "int2", "float4_e2m1fn", "nf4"])
def test_narrow_types_are_no_slips_of_the_pen(name: str) -> None:
    with pytest.raises(UsageError, match="unknown dtype") as caught:
        DType(name)
    assert "did you mean" not in str(caught.value)
    assert "float32" in str(caught.value.help)


@pytest.mark.parametrize("name", ["float8_e4m3", "float8_e4m3fnuz", "float8", "fp8", "e5m2"])
def test_the_dtypes_of_8_bits_are_named(name: str) -> None:
    with pytest.raises(UsageError, match="unknown dtype") as caught:
        DType(name)
    assert "float8_e4m3fn, float8_e5m2" in str(caught.value.help)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("flaot32", "float32"),
        ("float", "float"),
        ("Float32", "float32"),
        ("int23", "int"),
        ("bfloat", "bfloat16"),
    ],
)
def test_slips_of_the_pen(name: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        DType(name)
    assert meant in str(caught.value.help)
