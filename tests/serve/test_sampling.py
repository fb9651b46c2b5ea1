"""The options of requests as arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.serve import Draw, Sampling, sampling_arguments

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "temperature": (-0.1, NAN, INF), "top_k": (-1, 1 << 31), "top_p": (0.0, 1.5, NAN),
        "min_p": (-0.1, 1.1, NAN), "repetition_penalty": (0.0, -1.0, NAN, INF),
        "presence_penalty": (NAN, INF), "frequency_penalty": (NAN, -INF), "seed": (1 << 63,),
        "bias": ({-1: 1.0}, {1 << 31: 1.0}, {3: NAN}, {3: INF}),
        "min_tokens": (-1, 1.5, True), "no_repeat_ngram_size": (-1, "2"),
        "suppress_tokens": ((-1,), 3, ("a",)), "begin_suppress_tokens": ((1.0,), "ab"),
        "bad_words_ids": ((3,), ((),), ((-1,),)),
        "sequence_bias": (((3, 1.0),), (((), 1.0),), (((3,), INF),), {3: 1.0}),
    }.items(),
)  # fmt: skip
def test_options_that_are_refused(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(UsageError, match=name) as caught:
            Sampling(**{name: value})
        assert caught.value.code == "sampling"


def test_biases_of_tokens_that_do_not_exist() -> None:
    """They would change nothing, and nobody would know."""
    for options in ({"bias": {40: 1.0}}, {"sequence_bias": (((3, 40), 1.0),)}):
        own = Sampling(**options)
        own.check_vocabulary(41)
        with pytest.raises(UsageError, match="names token 40, and the model has tokens 0 to 39"):
            own.check_vocabulary(40)


def test_arguments() -> None:
    """Histories only where penalties need them; a mask of any integers of 32 bits."""
    mask = np.array([1, 1 << 31], np.uint32)
    draws = [
        Draw(Sampling(bias={3: 1.5, 2: -1.0}), [1, 2, 3], 2, 7),
        Draw(Sampling(presence_penalty=0.5, seed=-4), [4, 5], mask=mask),
    ]
    *numbers, tokens, biases, masks, histories, prompts, seeds, requests, places = (
        sampling_arguments(draws, 40)
    )
    assert [x.dtype.name for x in numbers] == ["float32", "int64", *["float32"] * 5]
    assert tokens.tolist() == [[3, 2], [-1, -1]]
    assert biases.tolist() == [[1.5, -1], [0, 0]]
    assert masks.tolist() == [[-1, -1], [1, -(1 << 31)]]
    assert histories.tolist() == [[-1, -1], [4, 5]]
    assert [x.tolist() for x in (prompts, seeds, requests, places)] == [
        [2, 0],
        [0, -4],
        [7, 0],
        [3, 2],
    ]
    assert sampling_arguments([], 40)[0].shape == (0,)
    with pytest.raises(UsageError, match="has 2 words of 32 bits"):
        sampling_arguments([Draw(mask=mask[:1])], 40)
