"""Options of sampling that depend on the text so far, beside the logits processors of transformers."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import torch
from transformers.generation import logits_process as theirs

from relaxpy.serve import Draw, Sampling, sampling_arguments
from relaxpy.serve.token_rules import forbidden_tokens, token_biases
from tests.sweeps import FULL

VOCAB = 37
"""Odd: the last word of a mask is not full."""
INF = float("inf")


def random_sequence(pick: random.Random, most: int = 4) -> tuple[int, ...]:
    return tuple(pick.randrange(VOCAB) % 5 for _ in range(pick.randint(1, most)))


def random_draw(pick: random.Random) -> Draw:
    """Few kinds of tokens, so that sequences come again."""
    text = [pick.randrange(5) for _ in range(pick.choice([1, 2, 3, 7, 31]))]
    pairs = {
        random_sequence(pick): pick.choice([1.5, -2.0, -INF]) for _ in range(pick.randrange(4))
    }
    options = Sampling(
        min_tokens=pick.choice([0, 1, 5]),
        suppress_tokens=tuple(pick.sample(range(VOCAB + 3), pick.randrange(4))),
        begin_suppress_tokens=tuple(pick.sample(range(VOCAB), pick.randrange(4))),
        bad_words_ids=tuple({random_sequence(pick) for _ in range(pick.randrange(5))}),
        no_repeat_ngram_size=pick.choice([0, 1, 2, 3, 5, 40]),
        sequence_bias=tuple(pairs.items()),
    )
    ends = frozenset(pick.sample(range(VOCAB), pick.randint(1, 2)))
    return Draw(options, text, pick.randint(0, len(text)), ends=ends)


def processed(logits: np.ndarray, draw: Draw) -> np.ndarray:
    """The logits of a draw by transformers, in the order of its `generate`."""
    options, text = draw.sampling, torch.tensor([draw.tokens])
    chain = theirs.LogitsProcessorList()
    ends = torch.tensor(sorted(draw.ends))
    if options.sequence_bias:
        chain.append(theirs.SequenceBiasLogitsProcessor(dict(options.sequence_bias)))
    if options.no_repeat_ngram_size:
        chain.append(theirs.NoRepeatNGramLogitsProcessor(options.no_repeat_ngram_size))
    if options.bad_words_ids:
        words = [[*each] for each in options.bad_words_ids]
        if any(each != [end] for each in words for end in draw.ends):
            chain.append(theirs.NoBadWordsLogitsProcessor(words, ends))
    if options.min_tokens:
        chain.append(
            theirs.MinNewTokensLengthLogitsProcessor(draw.prompt, options.min_tokens, ends, "cpu")
        )
    chain.append(theirs.SuppressTokensLogitsProcessor([*options.suppress_tokens]))
    chain.append(
        theirs.SuppressTokensAtBeginLogitsProcessor([*options.begin_suppress_tokens], draw.prompt)
    )
    return chain(text, torch.tensor(logits)[None]).numpy()[0]


def test_beside_transformers() -> None:
    for seed in range(3000 if FULL else 300):
        draw = random_draw(random.Random(seed))
        logits = np.random.default_rng(seed).standard_normal(VOCAB).astype(np.float32)
        arguments = sampling_arguments([draw], VOCAB)
        (tokens,), (biases,), (masks,) = arguments[7:10]
        ours = logits.copy()
        ours[tokens] += biases
        bits = (masks[np.arange(VOCAB) // 32] >> (np.arange(VOCAB) % 32)) & 1
        ours[bits == 0] = -np.inf
        np.testing.assert_array_equal(ours, processed(logits, draw), err_msg=f"seed {seed}")


def test_rules_one_by_one() -> None:
    """Each rule alone: the right tokens, at the right length."""
    text, ends = [7, 1, 2, 3, 1, 2], frozenset({9})
    draw = Draw(Sampling(), text, 4, ends=ends)

    def forbidden(prompt: int = 4, **options: object) -> set[int]:
        return forbidden_tokens(replace(draw, prompt=prompt, sampling=Sampling(**options)))

    assert forbidden() == set()
    assert forbidden(min_tokens=2) == set()
    assert forbidden(min_tokens=3) == {9}
    assert forbidden(suppress_tokens=(5,)) == {5}
    assert forbidden(begin_suppress_tokens=(5,)) == set()
    assert forbidden(prompt=6, begin_suppress_tokens=(5,)) == {5}
    assert forbidden(bad_words_ids=((1, 2, 8), (2, 2, 6), (9,), (4,), (2, 9))) == {8, 4, 9}
    assert forbidden(bad_words_ids=((9,),)) == set()
    assert forbidden(no_repeat_ngram_size=3) == {3}
    assert forbidden(no_repeat_ngram_size=1) == {7, 1, 2, 3}
    assert forbidden(no_repeat_ngram_size=7) == set()
    biased = Sampling(bias={8: 1.0}, sequence_bias=(((1, 2, 8), 2.0), ((8,), 0.5), ((3, 8), 9.0)))
    assert token_biases(replace(draw, sampling=biased)) == {8: 3.5}


def test_a_mask_of_a_grammar_stays() -> None:
    """What a grammar rules out is ruled out, too, and its own words are not changed."""
    mask = np.array([0b1111, 0], np.int32)
    draw = Draw(Sampling(suppress_tokens=(1, 31, 36)), [5], 1, mask=mask)
    masks = sampling_arguments([draw, Draw()], VOCAB)[9]
    assert masks.tolist() == [[0b1101, 0], [-1, -1]]
    assert mask.tolist() == [0b1111, 0]
