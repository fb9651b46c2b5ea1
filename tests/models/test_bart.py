"""BART, mBART, Marian, M2M-100 and the T5s beside transformers: logits over inputs of several lengths, and texts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.llm.seq2seq import load_seq2seq
from relaxpy.models.decoder_plan import plan_decoder
from relaxpy.models.families import SEQ2SEQ
from relaxpy.models.loaded import Scheme
from relaxpy.serve import Beams, Features, Request, Sampling
from tests.models.seq2seq_checkpoints import CASES, seq2seq
from tests.sweeps import FULL, quick_target, sweep

OF_CHECKPOINTS: list[dict[str, Any]] = [
    {"max_length": 12, "no_repeat_ngram_size": 2},
    {
        "max_length": 14, "min_length": 6, "num_beams": 3, "length_penalty": 2.0, "early_stopping": True,
        "no_repeat_ngram_size": 2, "forced_bos_token_id": 7, "forced_eos_token_id": 2,
    },
    {"max_new_tokens": 9, "num_beams": 4, "length_penalty": -1.0, "forced_bos_token_id": 96, "bad_words_ids": [[12]]},
]  # fmt: skip
"""Fields of generation_config.json."""
TEXTS = [name for name in CASES if "whisper" not in name]


@sweep(2)
@pytest.mark.parametrize("name", TEXTS if FULL else ["m2m_100", "flan-t5"])
def test_beside_transformers(tmp_path: Path, name: str) -> None:
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    theirs = seq2seq(name, tmp_path)
    model = load_seq2seq(tmp_path, target=str(quick_target()), batch=4, keep=False)
    rng = np.random.default_rng(0)
    inputs = [rng.integers(3, 97, n) for n in (9, 1, 48, 9, 31, 9, 17)]
    prompts: list[tuple[int, ...]] = [(2,), (2, 5), (2, 7, 8, 9), (2,), (2,) * 20, (2, 3), (2, 96)]
    requests = [
        Request(0, prompt, 10, Sampling(temperature=0), frozenset([2]), features=Features(given))
        for given, prompt in zip(inputs, prompts, strict=True)
    ]
    together = model.write_all(requests)
    assert together == [model.write(each) for each in requests]
    searched = model.write_all([dataclasses.replace(each, beams=Beams(3)) for each in requests])
    for given, prompt, own, beams in zip(inputs, prompts, together, searched, strict=True):
        source = torch.from_numpy(given[None])
        text = [*prompt, *own.tokens]
        with torch.no_grad():
            logits = theirs(source, decoder_input_ids=torch.tensor([text])).logits[0].numpy()
        wanted = torch.log_softmax(torch.from_numpy(logits), -1).numpy()[len(prompt) - 1 : -1]
        assert own.tokens == tuple(logits[len(prompt) - 1 : -1].argmax(-1))
        np.testing.assert_allclose(
            own.logprobs, wanted[range(len(own.tokens)), own.tokens], atol=2e-5
        )
        found = theirs.generate(
            source, decoder_input_ids=torch.tensor([prompt]), max_new_tokens=10, num_beams=3, do_sample=False,
            early_stopping=False, forced_bos_token_id=None,
        )[0].tolist()[len(prompt) :]  # fmt: skip
        assert list(beams.tokens) == found
    for options in OF_CHECKPOINTS:
        config = transformers.GenerationConfig(
            **options, eos_token_id=2, pad_token_id=1, decoder_start_token_id=3, bos_token_id=0
        )
        config.save_pretrained(tmp_path)
        given = inputs[4]
        found = theirs.generate(torch.from_numpy(given[None]), config)[0].tolist()[1:]
        own = model.write(model.request(Features(given)))
        assert list(own.tokens) == (found[: found.index(2) + 1] if 2 in found else found)
    plan = plan_decoder(tmp_path, Scheme(None), batch=4)
    assert plan.weights == model.decoder.packed.nbytes
    with pytest.raises(UsageError, match="1 to 48 tokens, got 49"):
        model.write(dataclasses.replace(requests[0], features=Features(np.full(49, 5))))
    with pytest.raises(UsageError, match="0 to 96"):
        model.write(dataclasses.replace(requests[0], features=Features(np.array([97]))))
    with pytest.raises(UsageError, match="attention to sound"):
        model.align(Features(inputs[0]), (2, 5))


def test_what_is_refused() -> None:
    for change, match in (
        ({"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings"),
        ({"decoder_vocab_size": 90}, "decoder_vocab_size 90"),
        ({"is_encoder_decoder": False}, "without its encoder"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"activation_function": "sine"}, "sine"),
    ):
        with pytest.raises(UsageError, match=match):
            SEQ2SEQ["marian"].from_dict({**CASES["marian"][1], **change})
