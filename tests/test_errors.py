"""Near names in messages (`relaxpy.errors`). What errors look like is in tests/errors."""

from __future__ import annotations

import pytest

from relaxpy.errors import did_you_mean, nearest, wrong_weights


@pytest.mark.parametrize(
    ("name", "known", "question"),
    [
        ("sofmax", ["softmax", "matmul"], "did you mean 'softmax'?"),
        ("xyz", ["softmax"], None),
        ("", ["softmax"], None),
        ("softmax", [], None),
        (3, ["3", "4"], "did you mean '3'?"),
    ],
)
def test_the_nearest_name_is_asked_for(
    name: object, known: list[str], question: str | None
) -> None:
    assert did_you_mean(name, known) == question


def test_several_near_names() -> None:
    known = ["maximum", "maxim", "sum"]
    assert did_you_mean("maximun", known, str, 3) == "did you mean maximum or maxim?"
    assert did_you_mean("maximun", known, "R.{}".format) == "did you mean R.maximum?"
    assert nearest("maximun", known, 3) == ["maximum", "maxim"]
    assert nearest("maximun", iter(known), 3, cutoff=0.85) == ["maximum"]


def test_how_many_problems() -> None:
    assert wrong_weights("model", ["missing: a"], "").message.endswith("the model: 1 problem")
    assert wrong_weights("model", ["missing: a", "b"], "").message.endswith("the model: 2 problems")
