"""The rules of timestamps beside transformers' own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.serve.sampling import Draw, Sampling, allowed_by, ruled_logprob, sampling_arguments
from relaxpy.serve.timestamp_rules import TimestampRules

END, NO_TIMES, FIRST, VOCAB = 20, 24, 25, 45
TEXTS: list[list[int]] = [
    [], [FIRST], [FIRST, 3], [FIRST, 3, FIRST + 4], [FIRST, 3, FIRST + 4, FIRST + 4], [3], [3, FIRST + 9],
    [FIRST + 2, FIRST + 3], [FIRST, 3, FIRST + 19], [FIRST, 3, FIRST + 19, FIRST + 19, 7], [FIRST + 19],
]  # fmt: skip


@pytest.mark.parametrize("most", [None, 0, 5, 90])
def test_beside_transformers(most: int | None) -> None:
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    config = SimpleNamespace(
        no_timestamps_token_id=NO_TIMES,
        eos_token_id=END,
        bos_token_id=END,
        max_initial_timestamp_index=most,
    )
    theirs = transformers.WhisperTimeStampLogitsProcessor(config, begin_index=2)
    rules = TimestampRules(FIRST, NO_TIMES, END, most)
    rng, chosen = np.random.default_rng(0), set()
    for text in TEXTS:
        for spread in (0.1, 1.0, 6.0):
            for _ in range(6):
                logits = (rng.standard_normal(VOCAB) * spread).astype(np.float32)
                hidden = rng.random(VOCAB) < 0.3
                hidden[[END, FIRST, FIRST + 7]] = False
                given = torch.from_numpy(np.where(hidden, -np.inf, logits)[None])
                wanted = theirs(torch.tensor([[1, 2, *text]]), given)[0].numpy() > -np.inf
                allowed = ~hidden
                rules.restrict(allowed, text, logits)
                np.testing.assert_array_equal(allowed, wanted, err_msg=str(text))
                chosen.add(bool(wanted[:FIRST].any()))
    assert chosen == {True, False}  # times were forced, and not


def test_in_a_draw() -> None:
    """Rules are applied to what other options leave, and the log-probability is among what is left."""
    rules = TimestampRules(FIRST, NO_TIMES, END)
    logits = np.linspace(-1, 1, VOCAB, dtype=np.float32)[None].repeat(2, 0)
    options = Sampling(timestamps=rules, begin_suppress_tokens=(FIRST + 1,))
    draws = [Draw(options, [1, 2], 2, ruled=True), Draw(options, [1, 2, FIRST], 2)]
    masks = sampling_arguments(draws, VOCAB, lambda: logits)[9]
    first, second = (allowed_by(mask, VOCAB) for mask in masks)
    assert np.flatnonzero(first).tolist() == [FIRST, *range(FIRST + 2, VOCAB)]
    assert np.flatnonzero(second).tolist() == [n for n in range(FIRST) if n != NO_TIMES]
    power = np.exp(logits[0].astype(np.float64))
    wanted = np.log(power[FIRST + 3] / power[first].sum())
    assert ruled_logprob(lambda: logits[0], masks[0], FIRST + 3, 0.0) == pytest.approx(wanted)


def test_mistakes() -> None:
    with pytest.raises(UsageError, match="rules of timestamps"):
        TimestampRules(-1, 2, 3)
    with pytest.raises(UsageError, match="rules of timestamps"):
        Sampling(timestamps=3)  # type: ignore[arg-type]


def test_a_mask_that_allows_all_changes_no_probability() -> None:
    def never() -> np.ndarray:
        raise AssertionError("the logits are not looked at")

    assert ruled_logprob(never, np.full(3, -1, np.int32), 5, -1.25) == -1.25
