"""A Whisper that writes: the texts of transformers, batches, threads, choices, times and alignment."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.llm.seq2seq import Seq2SeqModel, Written, load_seq2seq
from relaxpy.serve import Request, Sampling
from relaxpy.serve.beams import Beams
from relaxpy.serve.request import Features
from relaxpy.serve.timestamp_rules import TimestampRules
from tests.models.whisper_checkpoints import FRAMES, greedy, logits, sound, whisper
from tests.sweeps import quick_target

END = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whisper")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return whisper(folder)


@pytest.fixture(scope="module")
def model(folder: Path, reference: Any) -> Seq2SeqModel:
    return load_seq2seq(folder, target=str(quick_target()), batch=4, keep=False)


RNG = np.random.default_rng(0)
SOUNDS = [Features(sound(RNG, frames)) for frames in (FRAMES, FRAMES, FRAMES, 99, 2, 1, FRAMES)]
PROMPTS: list[tuple[int, ...]] = [(3,), (3, 5, 7), (3,) * 20, (3, 9), (3,), (3, 4), (3, 8, 9, 10)]
RULES: dict[str, Any] = {"suppress_tokens": (11,), "begin_suppress_tokens": (12, 90)}


def request(number: int, count: int = 12, temperature: float = 0.0, **more: Any) -> Request:
    sampling = Sampling(temperature=temperature, seed=number, **more.pop("rules", RULES))
    return Request(
        0, PROMPTS[number], count, sampling, frozenset([END]), features=SOUNDS[number], **more
    )


def test_texts_are_those_of_transformers(model: Seq2SeqModel, reference: Any) -> None:
    found = model.write_all([request(number) for number in range(7)])
    for number in (0, 1, 2, 6):
        wanted = greedy(reference, SOUNDS[number].values, PROMPTS[number], 12, (11,), (12, 90))
        assert found[number].tokens == wanted
        text = [*PROMPTS[number], *wanted]
        rows = logits(reference, SOUNDS[number].values, text)[len(PROMPTS[number]) - 1 : -1].astype(
            np.float64
        )
        rows[:, 11] = -np.inf
        rows[0, [12, 90]] = -np.inf
        probable = [
            row[token] - np.log(np.exp(row).sum()) for row, token in zip(rows, wanted, strict=True)
        ]
        np.testing.assert_allclose(found[number].logprobs, probable, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_a_ragged_batch(model: Seq2SeqModel, temperature: float) -> None:
    """Seven texts of five inputs, in fewer pages than they need at once, are those that each has alone, to the bit; in
    threads, too."""
    together = model.write_all([request(number, 19, temperature) for number in range(7)])
    alone = [model.write(request(number, 19, temperature)) for number in range(7)]
    assert together == alone
    found: dict[int, Written] = {}

    def write(number: int) -> None:
        found[number] = model.write(request(number, 19, temperature))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(7)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [found[number] for number in range(7)] == alone


def test_choices_share_an_input(model: Seq2SeqModel) -> None:
    before = model.engine.counters.encoded_inputs
    fresh = dataclasses.replace(request(1, 9, 1.0), n=3, features=Features(sound(RNG)))
    texts = model.write_all([fresh, dataclasses.replace(fresh, n=1, prompt=(3, 6))])
    assert len(texts) == 4
    assert len({each.tokens for each in texts[:3]}) > 1
    assert model.engine.counters.encoded_inputs == before + 1


def test_times(model: Seq2SeqModel) -> None:
    """Of a text under the rules of timestamps, beside the same rules on transformers' logits (in test_timestamp_rules)."""
    rules = TimestampRules(100, 99, END, 10)
    for temperature in (0.0, 1.0):
        text = model.write(request(2, 19, temperature, rules={"timestamps": rules})).tokens
        assert 100 <= text[0] <= 110
        times = [token for token in text if token >= 100]
        assert times == sorted(times)
        assert 99 not in text


def beam_texts(model: Any, number: int, end: int, width: int, options: dict[str, Any]) -> list[Any]:
    """The texts and scores of transformers' search, without what Whisper's own `generate` adds to it."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    prompt = PROMPTS[number]
    config = transformers.GenerationConfig(
        max_new_tokens=14, num_beams=width, num_return_sequences=width, eos_token_id=end, pad_token_id=0, bos_token_id=1,
        decoder_start_token_id=3, return_dict_in_generate=True, output_scores=True, suppress_tokens=[11],
        do_sample=False, **options,
    )  # fmt: skip
    found = transformers.GenerationMixin.generate(
        model,
        torch.from_numpy(SOUNDS[number].values[None]),
        config,
        decoder_input_ids=torch.tensor([prompt]),
    )
    scores = [None] if width == 1 else found.sequences_scores.tolist()
    texts = [row[len(prompt) :] for row in found.sequences.tolist()]
    cut = [text[: text.index(end) + 1] if end in text else text for text in texts]
    return [(tuple(text), score) for text, score in zip(cut, scores, strict=True)]


BEAMS: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
    (1, {}, {}),
    (2, {"early_stopping": True}, {}),
    (3, {"length_penalty": -1.5}, {"no_repeat_ngram_size": 2}),
    (4, {"length_penalty": 2.0, "early_stopping": "never"}, {}),
    (5, {"length_penalty": 0.0}, {"repetition_penalty": 1.4}),
]


@pytest.mark.parametrize("number", range(len(BEAMS)))
def test_beams_are_those_of_transformers(model: Seq2SeqModel, reference: Any, number: int) -> None:
    """All texts of the search, their scores, and the same with other requests and searches in the steps. The end is also a
    token from the middle of a greedy text: then beams end at different lengths."""
    width, options, rules = BEAMS[number]
    middle = greedy(reference, SOUNDS[1].values, PROMPTS[1], 9)[4]
    for of, end in ((1, END), (1, middle), (6, 77)):
        found = beam_texts(reference, of, end, width, {**options, **rules})
        beams = Beams(width, num_return_sequences=width, **options)
        sampling = Sampling(temperature=0.0, suppress_tokens=(11,), **rules)
        asked = Request(
            0, PROMPTS[of], 14, sampling, frozenset([end]), features=SOUNDS[of], beams=beams
        )
        together = model.write_all([request(0, 9), asked, request(2, 9, 1.0), asked])
        assert together[1 : 1 + width] == together[2 + width :]
        assert model.write_all([asked]) == together[1 : 1 + width]
        for own, (tokens, score) in zip(together[1 : 1 + width], found, strict=True):
            assert own.tokens == tokens
            assert score is None or own.score == pytest.approx(score, abs=2e-4, rel=1e-6)
            assert own.finish == ("stop" if tokens[-1] == end else "length")
            assert len(own.logprobs) == len(tokens)


def test_a_piece_at_a_time(model: Seq2SeqModel) -> None:
    pieces = model.pieces(request(0, 9))
    first = next(pieces)
    assert first.tokens == model.write(request(0, 9)).tokens[:1]
    pieces.close()
    assert not model.engine.is_busy
    assert not model._inboxes


def test_probabilities_and_alignment(model: Seq2SeqModel, reference: Any) -> None:
    torch: Any = pytest.importorskip("torch")
    wanted = torch.log_softmax(
        torch.from_numpy(logits(reference, SOUNDS[6].values, PROMPTS[6])), -1
    ).numpy()
    np.testing.assert_allclose(
        model.log_probabilities(SOUNDS[6], PROMPTS[6]), wanted[-1], atol=1e-4
    )
    probed = model.write(request(6, 3, probes=((0, 5), (3, 7), (0, 9)))).probes
    np.testing.assert_allclose(probed, wanted[[0, 3, 0], [5, 7, 9]], atol=1e-4)
    before = model.engine.counters.encoded_inputs, model.engine.sources.encoded  # type: ignore[union-attr]
    aligned = model.align(SOUNDS[6], PROMPTS[6])
    found = aligned.weights
    np.testing.assert_allclose(aligned.logprobs, wanted[[0, 1, 2], PROMPTS[6][1:]], atol=1e-4)
    among = np.exp(wanted[:3, :20].astype(np.float64))
    below = np.log(among[[0, 1, 2], PROMPTS[6][1:]] / among.sum(1))
    found20 = model.align(SOUNDS[6], PROMPTS[6], 20)
    np.testing.assert_allclose(found20.logprobs, below, atol=1e-4)
    assert found.shape == (4, 4, FRAMES // 2)
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)
    fresh = Features(sound(RNG))
    assert not np.allclose(model.alignment(fresh, PROMPTS[6]), found)
    np.testing.assert_array_equal(model.alignment(SOUNDS[6], PROMPTS[6]), found)
    assert model.engine.sources.encoded == before[1] + 1  # type: ignore[union-attr]
    for tokens, code in (((), "bad-length"), ((1,) * 41, "bad-length"), ((131,), "bad-prompt")):
        with pytest.raises(UsageError) as caught:
            model.alignment(fresh, tokens)
        assert caught.value.code == code


def test_mistakes(model: Seq2SeqModel) -> None:
    with pytest.raises(UsageError, match="reads features"):
        model.write(dataclasses.replace(request(0), features=None))
    with pytest.raises(UsageError, match="1 to 150 frames"):
        model.write(
            dataclasses.replace(request(0), features=Features(np.zeros((80, 151), np.float32)))
        )
    with pytest.raises(UsageError, match="batch is at least 1"):
        Seq2SeqModel(model.decoder, batch=0)
    assert not model.engine.is_busy
    with pytest.raises(UsageError, match="has no encoder"):
        Seq2SeqModel(dataclasses.replace(model.decoder, source=None))
