"""Calls of `R` that are no operators: constants."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.errors import RelaxError


def returned(expression: str) -> str:
    """What a function that returns an expression prints in its last line."""
    text = relaxpy.parse(f"@R.function\ndef main():\n    return {expression}\n").script()
    return text.splitlines()[-1].split("return ")[1]


@pytest.mark.parametrize(
    ("constant", "value"),
    [
        ('300, "uint8"', "300"),
        ('-1, "uint8"', "-1"),
        ('1.5, "int32"', "1.5"),
        ("3000000000", "3000000000"),
        ('[1, 2, -129], "int8"', r"\[1, 2, -129\]"),
        ('float("nan"), "int64"', "nan"),
    ],
)
def test_a_constant_that_an_integer_dtype_does_not_hold(constant: str, value: str) -> None:
    """Nothing is wrapped around or cut off silently."""
    with pytest.raises(RelaxError, match=f"R.const: {value} does not fit u?int"):
        returned(f"R.const({constant})")


@pytest.mark.parametrize(
    ("constant", "printed"),
    [
        ('2.0, "int32"', 'R.const(2, "int32")'),
        ('2**64 - 1, "uint64"', 'R.const(18446744073709551615, "uint64")'),
        (
            '[2**64 - 1, 7, 2**63], "uint64"',
            'R.const([18446744073709551615, 7, 9223372036854775808], "uint64")',
        ),
        ("[2**63, 7]", 'R.const([9223372036854775808, 7], "uint64")'),
        ('-2**63, "int64"', 'R.const(-9223372036854775808, "int64")'),
        ('True, "int8"', 'R.const(1, "int8")'),
        ('0.1, "float16"', 'R.const(0.1, "float16")'),
    ],
)
def test_a_constant_that_fits(constant: str, printed: str) -> None:
    assert returned(f"R.const({constant})") == printed


def test_a_constant_that_no_dtype_holds() -> None:
    with pytest.raises(RelaxError, match=f"R.const: {2**64} is out of range of all integer dtypes"):
        returned("R.const([2**64, 1])")


@pytest.mark.parametrize(
    ("scalar", "printed"),
    [
        ("T.float64(0.5)", 'R.prim_value(0.5, "float64")'),
        ("T.float16(0.5)", 'R.prim_value(0.5, "float16")'),
        ("T.float32(0.5)", "R.prim_value(0.5)"),
        ('T.float64("inf")', 'R.prim_value(float("inf"), "float64")'),
        ("0.5", "R.prim_value(0.5)"),
    ],
)
def test_a_scalar_keeps_the_dtype_it_says(scalar: str, printed: str) -> None:
    assert returned(f"R.prim_value({scalar})") == printed
