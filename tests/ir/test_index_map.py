"""Index maps as values."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.errors import DeduceError, ScriptError
from relaxpy.ir.index_map import IndexMap, axis


def test_maps_that_say_the_same_are_equal() -> None:
    """Whatever their variables are called."""
    made = IndexMap.of(lambda i, j: (j, i // 4, i % 4))
    assert made == IndexMap.of(lambda row, column: [column, row // 4, row % 4])
    assert hash(made) == hash(IndexMap.of(made))
    assert made != IndexMap.of(lambda i, j: (i, j))
    assert repr(made) == "T.index_map(lambda i0, i1: (i1, i0 // 4, i0 % 4))"
    assert made.at({axis(0): 6, axis(1): 5}) == (5, 1, 2)


@pytest.mark.parametrize(
    "function", [lambda i: i, lambda i: ("i",), lambda *i: i, 3, lambda i: (i, True)]
)
def test_what_is_no_index_map_is_refused(function: object) -> None:
    """With what to write."""
    with pytest.raises(DeduceError) as caught:
        IndexMap.of(function)  # type: ignore[arg-type]
    assert caught.value.code == "op-arguments"
    assert "T.index_map(lambda" in (caught.value.help or "")


TEXT = """
@R.function
def main(x: R.Tensor(("n", 6), "float32")):
    y = R.layout_transform(x, index_map={map}, pad_value=1.0)
    return y
"""


def test_both_spellings_are_read() -> None:
    """A lambda with and without T.index_map; its names are nobody's outside of it."""
    plain = relaxpy.parse(TEXT.format(map="lambda i, j: (j // 4, i, j % 4)"))
    named = relaxpy.parse(TEXT.format(map="T.index_map(lambda x, y: [y // 4, x, y % 4])"))
    assert relaxpy.structural_equal(plain, named)
    assert 'R.Tensor((2, n, 4), dtype="float32")' in plain.script()


def test_another_lambda_is_not_part_of_the_language() -> None:
    """As before there were index maps."""
    for wrong in ("lambda i, j: i", "lambda *i: (i, i)", "lambda i, j=1: (i, j)"):
        with pytest.raises(ScriptError) as caught:
            relaxpy.parse(TEXT.format(map=wrong))
        assert caught.value.code == "unsupported-syntax"
