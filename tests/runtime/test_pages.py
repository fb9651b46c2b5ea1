"""What a step over a paged cache is told is checked before anything is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.pages import check_pages
from relaxpy.runtime.tensor import from_numpy

GOOD: dict[str, Any] = {
    "tables": [[[3, 1, -1], [2, 0, 4]], [[-1, 1, 7], [-1, 5, 6]]],
    "positions": [6, 8, 9, 10],
    "starts": [0, 1, 4],
    "lengths": [7, 11],
    "rows": [0, 3, 3],
}
"""Two groups (the second with a window of 3), pages of 4 tokens, 8 pages."""


def check(**given: Any) -> None:
    found = {**GOOD, **given}
    tables, positions, starts, lengths, rows = (
        from_numpy(np.array(x, np.int32)) for x in found.values()
    )
    check_pages(tables, positions, starts, lengths, rows, 8, 4, (0, 3))


def test_what_fits_is_accepted() -> None:
    check()
    check(rows=[])
    check(tables=np.zeros((2, 0, 3)), positions=[], starts=[0], lengths=[], rows=[])


def damaged(name: str, place: tuple[int, ...], value: int) -> Any:
    array = np.array(GOOD[name])
    array[place] = value
    return pytest.param(name, array, f"{value} at {list(place)}", id=f"{name}{place}={value}")


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        *(damaged("tables", at, value) for value in (-1, 8, 1 << 30, -(1 << 31))
          for at in ((0, 0, 0), (0, 0, 1), (0, 1, 2), (1, 0, 1), (1, 1, 1))),
        *(damaged("positions", (at,), value) for value in (-1, 7, 1 << 30) for at in (0, 1, 3)),
        *(damaged("lengths", (at,), value) for value in (-1, 0, 13, 1 << 30) for at in (0, 1)
          if (at, value) != (1, 13)),
        *(damaged("starts", (0,), value) for value in (-1, 1)),
        *(damaged("starts", (1,), value) for value in (-1, 5, 1 << 30)),
        *(damaged("starts", (2,), value) for value in (0, 3, 5)),
        *(damaged("rows", (at,), value) for value in (-1, 4, 1 << 30) for at in (0, 2)),
        pytest.param("tables", [[[3, 2, -1], [2, 0, 2]], GOOD["tables"][1]], "same place"),
    ],
)  # fmt: skip
def test_damage_is_named(name: str, value: Any, match: str) -> None:
    with pytest.raises(RuntimeCheckError) as caught:
        check(**{name: value})
    assert caught.value.code == "index-range"
    assert name in caught.value.message or "tokens" in caught.value.message
    assert match in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [("starts", []), ("starts", [0, 4]), ("lengths", [7]), ("tables", GOOD["tables"][:1])],
)
def test_numbers_that_differ(name: str, value: Any) -> None:
    with pytest.raises(RuntimeCheckError, match="2 groups and a start more") as caught:
        check(**{name: value})
    assert caught.value.code == "shape-mismatch"
