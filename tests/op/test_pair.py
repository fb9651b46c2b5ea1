"""Pairs that no quantize makes are refused."""

from __future__ import annotations

from typing import Any

import pytest

from relaxpy.errors import UsageError
from relaxpy.op.pair import ROW, Pair


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "int2"}, "codes are of int8, uint8"),
        ({"rounding": "up"}, "half_to_even, half_away"),
        ({"axis": "rows"}, "axis is a number, 'row' or None"),
        ({"dtype": "uint8", "symmetric": True}, "unsigned codes are not symmetric"),
        ({"axis": ROW, "static": True}, "rows have no constant scales"),
        ({"bits": 9}, "codes of int8 have 2 to 8 bits"),
        ({"dtype": "uint16", "bits": 1}, "codes of uint16 have 2 to 16 bits"),
    ],
)
def test_mistakes(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Pair(**fields)
    assert caught.value.code == "quantization"


@pytest.mark.parametrize(
    ("pair", "limits"),
    [
        (Pair(), (-127, 127)),
        (Pair("uint8"), (0, 255)),
        (Pair(symmetric=False), (-128, 127)),
        (Pair("int16"), (-32767, 32767)),
        (Pair(bits=4), (-7, 7)),
        (Pair(symmetric=False, bits=4), (-8, 7)),
        (Pair("uint8", bits=3), (0, 7)),
    ],
)
def test_limits(pair: Pair, limits: tuple[int, int]) -> None:
    assert pair.limits == limits
