"""What checkpoints recommend for texts, beside `generate` of transformers."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest

from relaxpy.checkpoints.unread import UnreadWarning
from relaxpy.errors import UsageError
from relaxpy.llm import LanguageModel, load
from relaxpy.llm.generation_config import HARMLESS, NEUTRAL, READ, SEARCH, recommended
from relaxpy.models.loaded import Scheme
from relaxpy.serve.beams import Beams
from tests.llm.checkpoints import write_model
from tests.sweeps import FULL

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LanguageModel, Any]:
    place = write_model(tmp_path_factory.mktemp("model") / "tiny")
    model = load(place, scheme=Scheme(bits=None, activations=None))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32).eval()
    return place, model, theirs


def write(place: Path, fields: dict[str, Any]) -> None:
    (place / "generation_config.json").write_text(json.dumps(fields))


def ours(place: Path, model: LanguageModel, prompt: list[int], **options: Any) -> list[int]:
    model.defaults = recommended(place)
    pieces = model.generate(prompt, end_tokens=(1, 9), **options)
    list(pieces)
    return pieces.tokens


def test_every_field_of_transformers_is_known() -> None:
    assert {*transformers.GenerationConfig().to_dict()} <= READ | HARMLESS | {*NEUTRAL}
    assert not READ & HARMLESS
    assert not (READ | HARMLESS) & {*NEUTRAL}
    defaults = transformers.GenerationConfig._get_default_generation_params()
    for name, value in defaults.items():
        assert value in (None, NEUTRAL[name]) if name in NEUTRAL else True, name


def test_texts_are_those_of_transformers(pair: tuple[Path, LanguageModel, Any]) -> None:
    """Any mixture of fields, most probable tokens; the checkpoint's random weights repeat themselves soon."""
    place, model, theirs = pair
    for seed in range(200 if FULL else 25):
        pick = random.Random(seed)
        prompt = [pick.randrange(5, 320) for _ in range(pick.choice([1, 3, 8]))]
        fields: dict[str, Any] = {"eos_token_id": [1, 9]}
        own = ours(place, model, prompt, max_tokens=16)  # what it writes under the last fields
        for name, values in {
            "repetition_penalty": (1.3, 0.8),
            "no_repeat_ngram_size": (1, 2, 3),
            "suppress_tokens": (own[:3], [own[-1], 319]),
            "begin_suppress_tokens": (own[:1],),
            "bad_words_ids": ([own[1:3], own[3:4]], [[9], own[2:5]]),
            "sequence_bias": ([[own[2:4], -5.0], [[9], 3.0]], [[[9], 50.0]]),
            "min_length": (9,),
            "min_new_tokens": (4, 11),
            "max_length": (14,),
            "max_new_tokens": (6, 12),
        }.items():
            if pick.random() < 0.4:
                fields[name] = pick.choice(values)
        if "max_length" not in fields:
            fields.setdefault("max_new_tokens", 15)
        write(place, fields)
        given = {k: v for k, v in fields.items() if k != "eos_token_id"}
        with torch.no_grad():
            found = theirs.generate(
                torch.tensor([prompt]),
                generation_config=transformers.GenerationConfig(
                    eos_token_id=[1, 9], pad_token_id=0, do_sample=False, **given
                ),
            )
        assert ours(place, model, prompt) == found[0, len(prompt) :].tolist(), (seed, fields)


def test_lengths_and_stops(pair: tuple[Path, LanguageModel, Any]) -> None:
    place, model, _ = pair
    write(place, {"max_length": 6})
    assert len(ours(place, model, [5, 6, 7])) == 3
    assert len(ours(place, model, [5, 6, 7], max_tokens=5)) == 5
    with pytest.raises(UsageError, match=r"at most 6, prompt included \(max_length\)"):
        model.generate([*range(5, 11)])
    write(place, {"max_new_tokens": 12})
    text = model.tokenizer.decode(ours(place, model, [5, 6, 7]))
    stop = text[4:6]
    write(place, {"max_new_tokens": 12, "stop_strings": [stop, "never"]})
    model.defaults = recommended(place)
    pieces = model.generate([5, 6, 7], end_tokens=())
    assert "".join(pieces) == text[: text.index(stop)]
    assert (pieces.stop, pieces.finish_reason) == (stop, "stop")
    whole = "".join(model.generate([5, 6, 7], end_tokens=(), stop=()))
    assert whole
    assert text.startswith(whole.rstrip("\ufffd"))
    assert stop in whole
    write(place, {"max_length": 5, "max_new_tokens": 9})  # the second goes first
    assert len(ours(place, model, [5, 6, 7])) == 9


def test_texts_that_are_sampled(tmp_path: Path) -> None:
    """Without `top_k`, transformers samples from 50 tokens."""
    for fields, expected in (
        ({"do_sample": True}, 50),
        ({"do_sample": True, "top_k": None}, 50),
        ({"do_sample": True, "top_k": 0}, 0),
        ({"do_sample": True, "top_k": 7}, 7),
        ({"do_sample": False, "top_k": 7}, 0),
        ({}, 0),
    ):
        write(tmp_path, fields)
        assert recommended(tmp_path).sampling.top_k == expected
    write(tmp_path, {"min_length": 9, "min_new_tokens": 2})
    assert recommended(tmp_path).sampling_after(3).min_tokens == 2
    write(tmp_path, {"min_length": 9})
    assert recommended(tmp_path).sampling_after(3).min_tokens == 6
    assert recommended(tmp_path).sampling_after(30).min_tokens == 0


VALUES: dict[str, Any] = {
    "num_beams": 4, "num_beam_groups": 2, "num_return_sequences": 2, "penalty_alpha": 0.6, "dola_layers": "low",
    "constraints": [1], "force_words_ids": [[1]], "encoder_repetition_penalty": 1.2, "encoder_no_repeat_ngram_size": 3,
    "forced_bos_token_id": 3, "forced_eos_token_id": 2, "remove_invalid_values": True,
    "exponential_decay_length_penalty": [5, 1.1], "token_healing": True, "guidance_scale": 1.5,
    "watermarking_config": {"bias": 2.0}, "max_time": 3.0, "typical_p": 0.9, "top_h": 0.4, "epsilon_cutoff": 3e-4,
    "eta_cutoff": 3e-4,
}  # fmt: skip


def test_what_is_not_followed_is_named(tmp_path: Path) -> None:
    """Each field by itself, with a value that changes texts; without a word where it is neutral."""
    assert {*VALUES} == {*NEUTRAL}
    for name, value in {**VALUES, "a_field_of_tomorrow": 1}.items():
        write(tmp_path, {"do_sample": True, name: value})
        with pytest.warns(
            UnreadWarning, match=rf"generation_config\.json: not followed: {name} = "
        ):
            recommended(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write(tmp_path, {**NEUTRAL, "use_cache": False, "transformers_version": "5.0"})
        recommended(tmp_path)
        write(tmp_path, {"typical_p": 0.5})  # of samples
        recommended(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("do_sample", "yes"), ("max_length", 0), ("max_new_tokens", -1), ("min_length", 1.5), ("min_new_tokens", True),
        ("stop_strings", [""]), ("stop_strings", 3), ("bad_words_ids", [3]), ("sequence_bias", {"a": 1}),
        ("no_repeat_ngram_size", -2), ("suppress_tokens", [-1]), ("begin_suppress_tokens", "ab"),
    ],
)  # fmt: skip
def test_values_that_are_none(tmp_path: Path, name: str, value: Any) -> None:
    write(tmp_path, {name: value})
    with pytest.raises(UsageError, match=r"generation_config\.json: ") as caught:
        recommended(tmp_path)
    assert caught.value.code == "bad-checkpoint"
    assert name in caught.value.message or "stop string" in caught.value.message


def test_biases_of_tokens_that_do_not_exist(pair: tuple[Path, LanguageModel, Any]) -> None:
    place, model, _ = pair
    write(place, {"sequence_bias": [[[3, 320], 1.0]]})
    with pytest.raises(UsageError, match="sequence_bias names token 320"):
        ours(place, model, [5])


BART: dict[str, Any] = {
    "model_type": "bart", "decoder_start_token_id": 2, "forced_eos_token_id": 2, "bos_token_id": 0, "eos_token_id": 2,
    "pad_token_id": 1, "num_beams": 3, "bad_words_ids": [[7]],
}  # fmt: skip
"""A config.json of an older version of transformers."""


@pytest.mark.parametrize(
    "fields",
    [
        None, {"eos_token_id": 2}, {"bos_token_id": 5, "eos_token_id": [2, 4]}, {"decoder_start_token_id": 3, "num_beams": 2},
        {"decoder_start_token_id": 3, "forced_bos_token_id": 6, "bad_words_ids": [[8], [9, 4]]},
    ],
)  # fmt: skip
def test_a_file_says_all_or_nothing(tmp_path: Path, fields: dict[str, Any] | None) -> None:
    """config.json stands for a generation_config.json that is missing, and adds nothing to one that is there, as in
    transformers."""
    sizes = {"d_model": 4, "vocab_size": 11, "max_position_embeddings": 8}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 1, f"{side}_ffn_dim": 4, f"{side}_attention_heads": 1}
    transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes)).save_pretrained(
        tmp_path
    )
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({**sizes, **BART}))
    if fields is not None:
        write(tmp_path, fields)
    model = transformers.BartForConditionalGeneration.from_pretrained(tmp_path)
    theirs = model.generation_config
    found = recommended(tmp_path, {**sizes, **BART}, followed=SEARCH)
    assert found.beams == (Beams(theirs.num_beams) if theirs.num_beams not in (None, 1) else None)
    assert (found.first, found.last) == (theirs.forced_bos_token_id, theirs.forced_eos_token_id)
    assert json.loads(json.dumps(found.sampling.bad_words_ids)) == (theirs.bad_words_ids or [])
    ends = theirs.eos_token_id
    assert found.ends == ({*ends} if isinstance(ends, list) else {ends} - {None})
    start = theirs.decoder_start_token_id
    assert found.start == (theirs.bos_token_id if start is None else start)
    if found.start is not None:
        text = model.generate(torch.tensor([[5, 6]]), max_new_tokens=1, pad_token_id=1)
        assert text[0, 0] == found.start
