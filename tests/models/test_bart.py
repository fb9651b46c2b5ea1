"""BART, mBART, Marian and M2M-100 beside transformers: logits over inputs of several lengths, and texts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.llm.seq2seq import load_seq2seq
from relaxpy.models.families import SEQ2SEQ
from relaxpy.serve import Beams, Features, Request, Sampling
from tests.sweeps import FULL, quick_target

SIZES: dict[str, Any] = {
    "vocab_size": 97, "encoder_layers": 2, "encoder_attention_heads": 2, "decoder_layers": 2, "decoder_attention_heads": 4,
    "decoder_ffn_dim": 56, "encoder_ffn_dim": 72, "d_model": 40, "max_position_embeddings": 48, "pad_token_id": 1,
    "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None, "init_std": 0.25,
}  # fmt: skip
NAMES = {"bart": "Bart", "mbart": "MBart", "marian": "Marian", "m2m_100": "M2M100"}
OTHERS: dict[str, dict[str, Any]] = {
    "bart": {}, "mbart": {"scale_embedding": True, "activation_function": "relu"},
    "marian": {"scale_embedding": True, "activation_function": "swish"}, "m2m_100": {},
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES if FULL else ["bart", "m2m_100"])
def test_beside_transformers(tmp_path: Path, name: str) -> None:
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{NAMES[name]}Config")(**SIZES, **OTHERS[name])
    class_name = {"marian": "MarianMTModel"}.get(name, f"{NAMES[name]}ForConditionalGeneration")
    theirs = getattr(transformers, class_name)(config).eval()
    if hasattr(theirs, "final_logits_bias"):
        theirs.final_logits_bias.normal_()
    theirs.save_pretrained(tmp_path)
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
    with pytest.raises(UsageError, match="1 to 48 tokens, got 49"):
        model.write(dataclasses.replace(requests[0], features=Features(np.full(49, 5))))
    with pytest.raises(UsageError, match="0 to 96"):
        model.write(dataclasses.replace(requests[0], features=Features(np.array([97]))))


def test_what_is_refused() -> None:
    for change, match in (
        ({"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings"),
        ({"decoder_vocab_size": 90}, "decoder_vocab_size 90"),
        ({"is_encoder_decoder": False}, "without its encoder"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"activation_function": "sine"}, "sine"),
    ):
        with pytest.raises(UsageError, match=match):
            SEQ2SEQ["marian"].from_dict({**SIZES, **change})
