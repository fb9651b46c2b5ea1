"""LLaVA beside transformers: logits of prompts with pictures, in chunks and among others, and texts."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest

from relaxpy.checkpoints import open_checkpoint
from relaxpy.checkpoints.config_keys import unread_fields
from relaxpy.errors import UsageError
from relaxpy.models.decoder_plan import plan_decoder
from relaxpy.models.families import config_from
from relaxpy.models.llava import LlavaVision
from relaxpy.models.loaded import LoadedDecoder, Scheme, decoder_program, load_decoder
from relaxpy.serve import Engine, Limits, PageBook, Request, Sampling
from relaxpy.serve.decoder_model import DecoderModel
from relaxpy.serve.pictures import Picture, Placed
from tests.models.llava_checkpoints import (
    CASES,
    IMAGE,
    SCHEME,
    TARGET,
    logits,
    pixels,
    reference,
    tokens_of,
    write,
)
from tests.runtime.test_safetensors import saved
from tests.sweeps import FULL

pytest.importorskip("transformers")
pytest.importorskip("torch")

TOLERANCE = 2e-5


@cache
def both(name: str) -> tuple[Any, LoadedDecoder, Path]:
    """transformers' model and ours of a case, and the folder."""
    place = Path(mkdtemp())
    theirs = write(name, place)
    return theirs, load_decoder(place, SCHEME, target=TARGET), place


def prompt_of(name: str, *parts: int) -> tuple[list[int], tuple[Placed, ...], list[np.ndarray]]:
    """A prompt of tokens, and of pictures by negative numbers: their tokens, places and pixels."""
    prompt: list[int] = []
    placed: list[Placed] = []
    found: list[np.ndarray] = []
    for part in parts:
        if part >= 0:
            prompt.append(part)
            continue
        found.append(pixels(name, -part))
        placed.append(Placed(len(prompt), Picture([found[-1]], tokens_of(name))))
        prompt += [IMAGE] * tokens_of(name)
    return prompt, tuple(placed), found


class Stepped:
    """The logits of prompts, computed in chunks."""

    def __init__(self, decoder: LoadedDecoder) -> None:
        self.model = DecoderModel(decoder, 64)
        self.book = PageBook(64, decoder.page_size, decoder.windows)
        self.encoded = cache(self.model.encode_picture)

    def logits(
        self, prompts: list[tuple[list[int], tuple[Placed, ...]]], chunk: int
    ) -> list[np.ndarray]:
        """Those after each token of each prompt, as many chunks in a step as there are prompts."""
        of = {self.book.add(tokens, reuse=False): placed for tokens, placed in prompts}
        found: dict[int, list[np.ndarray]] = {each: [] for each in of}
        while counts := {s: min(chunk, n) for s in of if (n := self.book.pending_count(s))}:
            batch = self.book.batch(counts)
            rows = [np.zeros((0, 32), np.float32)]
            sources = np.full(len(batch.tokens), -1, np.int32)
            for own, first in zip(counts, batch.starts):
                done = int(batch.positions[first])
                for start, picture in of[own]:
                    made = self.encoded(picture)
                    for place in range(
                        max(start, done), min(start + len(made), done + counts[own])
                    ):
                        sources[first + place - done] = sum(map(len, rows))
                        rows.append(made[place - start][None])
            batch = dataclasses.replace(batch, pictures=(np.concatenate(rows), sources))
            given = self.model.step(batch, np.arange(len(batch.tokens), dtype=np.int32)).numpy()
            self.book.commit(batch)
            for own, first in zip(counts, batch.starts):
                found[own].append(given[first : first + counts[own]])
        return [np.concatenate(each) for each in found.values()]


@pytest.mark.parametrize("name", CASES if FULL else ["llava"])
def test_logits_are_those_of_transformers(name: str) -> None:
    """At once, in chunks of 1, 7 and 33, and among others: the same to the bit, and transformers' to 2e-5."""
    theirs, decoder, _ = both(name)
    own = Stepped(decoder)
    cases = [
        prompt_of(name, *parts)
        for parts in ((4, -1, 5, 6), (-2, 7, -1, 8, -3, 9), (3, 2, 9, 9, 1), (1, -4))
    ]
    alone = [own.logits([(tokens, placed)], 1000)[0] for tokens, placed, _ in cases]
    for (tokens, _, found), ours in zip(cases, alone):
        assert abs(ours - logits(theirs, tokens, found)).max() < TOLERANCE
    for chunk in (1, 7, 33):
        for ours, again in zip(alone, own.logits([case[:2] for case in cases], chunk)):
            np.testing.assert_array_equal(ours, again)


def ask(number: int, tokens: list[int], placed: tuple[Placed, ...], **more: Any) -> Request:
    return Request(number, tuple(tokens), 12, Sampling(temperature=0), pictures=placed, **more)


def run(engine: Engine) -> dict[int, list[int]]:
    texts: dict[int, list[int]] = {}
    while engine.is_busy:
        for piece in engine.step():
            assert piece.error is None
            texts.setdefault(piece.request, []).extend(piece.tokens)
    return texts


def test_texts_are_those_of_transformers() -> None:
    """Greedy texts, with pictures in the middle of prompts, by an engine with few pages and small chunks."""
    import torch

    theirs, decoder, _ = both("llava")
    cases = [
        prompt_of("llava", *parts)
        for parts in ((4, -1, 5, 6), (-2, 7, -1, 8, 9), (3, 2, 9), (-1, 5), (4, -2, 5, 6))
    ]
    engine = Engine(DecoderModel(decoder, 5), pages=5, limits=Limits(running=4), chunk=7)
    for number, (tokens, placed, _) in enumerate(cases):
        engine.submit(ask(number, tokens, placed))
    texts = run(engine)
    assert engine.counters.encoded_pictures >= 2
    for number, (tokens, _, found) in enumerate(cases):
        given: dict[str, Any] = {"input_ids": torch.tensor([tokens])}
        if found:
            given["pixel_values"] = torch.from_numpy(np.concatenate(found))
        expected = theirs.generate(
            **given, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert texts[number] == expected[0, len(tokens) :].tolist()


def test_the_tower_stays_float() -> None:
    """Quantised weights are those of the decoder."""
    _, plain, place = both("llava")
    checkpoint = open_checkpoint(place)
    for bits in (4, 8):
        scheme = Scheme(bits=bits, activations=None)
        mod, _ = decoder_program(checkpoint, scheme.applied(checkpoint), scheme)
        text = mod.script()
        assert "layers_0_attention_query_weight_quantized" in text
        assert "vision_first_weight" in text
        assert not re.search(r"vision_\w*_quantized", text)
    if not FULL:
        return
    own = load_decoder(place, Scheme(bits=4), target=TARGET)
    picture = Picture([pixels("llava", 1)], tokens_of("llava"))
    rows = [DecoderModel(each, 1).encode_picture(picture) for each in (plain, own)]
    np.testing.assert_array_equal(*rows)


@pytest.mark.parametrize(
    ("text", "head", "tower", "projector"),
    [
        ("model.language_model.", "lm_head.", "model.vision_tower.", "model.multi_modal_projector."),
        ("model.language_model.", "lm_head.", "model.vision_tower.vision_model.", "model.multi_modal_projector."),
        ("language_model.model.", "language_model.lm_head.", "vision_tower.vision_model.", "multi_modal_projector."),
    ],
)  # fmt: skip
def test_other_names_of_tensors(
    text: str, head: str, tower: str, projector: str, tmp_path: Path
) -> None:
    """As versions of transformers write them."""
    from safetensors.numpy import load_file

    _, plain, place = both("llava")
    tensors = load_file(place / "model.safetensors")
    names = {
        "language_model.model.": text, "language_model.lm_head.": head, "vision_tower.": tower,
        "multi_modal_projector.": projector,
    }  # fmt: skip
    renamed = {}
    for name, value in tensors.items():
        (old,) = (each for each in names if name.startswith(each))
        renamed[names[old] + name.removeprefix(old)] = value
    renamed[f"{tower}embeddings.position_ids"] = np.arange(10)[None]
    (tmp_path / "config.json").write_text((place / "config.json").read_text())
    saved(tmp_path / "model.safetensors", renamed)
    own = load_decoder(tmp_path, SCHEME, target=TARGET)
    prompt, placed, _ = prompt_of("llava", 4, -1, 5)
    one, two = (Stepped(each).logits([(prompt, placed)], 99)[0] for each in (plain, own))
    np.testing.assert_array_equal(one, two)


def fields(**more: Any) -> dict[str, Any]:
    return {"model_type": "llava", **CASES["llava"], "image_token_index": IMAGE, **more}


def test_the_first_checkpoints_say_little() -> None:
    """LLaVA 1.5's `config.json` leaves out the sizes of its Llama; with no tower at all it is that of LLaVA 1.5."""
    from transformers import LlavaConfig

    said = {
        "model_type": "llama",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "vocab_size": 32064,
    }
    config = config_from(
        {
            "model_type": "llava",
            "text_config": said,
            "image_token_index": 32000,
            "torch_dtype": "float16",
        }
    )
    theirs = LlavaConfig(text_config=said)
    for name in (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
    ):
        assert getattr(config, name) == getattr(theirs.text_config, name)
    assert config.dtype == "float16"
    vision = config.vision
    assert isinstance(vision, LlavaVision)
    assert (vision.most_tokens, vision.token, vision.layers, vision.tower.num_hidden_layers) == (
        576,
        32000,
        24,
        23,
    )
    for name in ("hidden_size", "intermediate_size", "num_attention_heads"):
        assert getattr(vision.tower, name) == getattr(theirs.vision_config, name)
    assert vision.tower.image_size == (theirs.vision_config.image_size,) * 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"vision_feature_layer": [-2, -5]}, "vision_feature_layer must be the number of one layer"),
        ({"vision_feature_layer": -5}, "which has 3, got -5"),
        ({"vision_feature_select_strategy": "cls"}, "default or full, got 'cls'"),
        ({"image_token_index": 323}, "a token below 323, got 323"),
        ({"projector_hidden_act": 3}, "projector_hidden_act must be a name"),
        ({"projector_hidden_act": "swash"}, "unknown activation 'swash'"),
        ({"text_config": {"model_type": "opt"}}, "text_config is for a model of type 'opt'"),
        ({"text_config": [1]}, "text_config has no fields"),
        ({"vision_config": {"model_type": "pixtral"}}, "vision_config is for a model of type 'pixtral'"),
        ({"vision_config": "clip"}, "vision_config has no fields"),
        ({"multimodal_projector_bias": "yes"}, "must be true or false"),
    ],
)  # fmt: skip
def test_settings_that_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        config_from(fields(**wrong))


def test_fields_that_are_not_read() -> None:
    """None of transformers' own; others are named."""
    import json

    whole = json.loads(reference("llava").config.to_json_string(use_diff=False))
    assert not unread_fields({**whole, "model_type": "llava"})
    found = unread_fields(
        fields(pan_and_scan=True, vision_config={"model_type": "clip_vision_model", "stride": 3})
    )
    assert [each.split()[0] for each in found] == ["pan_and_scan", "vision_config.stride"]


def test_a_picture_of_another_size(tmp_path: Path) -> None:
    _, decoder, _ = both("llava")
    model = DecoderModel(decoder, 1)
    with pytest.raises(UsageError, match="has 8 tokens in the prompt, and the tower makes 9 rows"):
        model.encode_picture(Picture([pixels("llava", 1)], 8))
    with pytest.raises(Exception, match="pixels"):
        model.encode_picture(Picture([np.zeros((1, 3, 9, 9), np.float32)], 9))


def test_the_plan_names_the_tower() -> None:
    """Its weights are those of the loaded model, and a picture has its rows."""
    _, decoder, place = both("llava")
    plan = plan_decoder(place, SCHEME, context=64, step=32, target=TARGET)
    assert plan.weights == decoder.packed.nbytes
    assert 0 < plan.tower < plan.weights
    assert (plan.picture_tokens, plan.picture) == (9, 9 * 32 * 4)
    assert "are the tower's" in str(plan)
    assert re.search(
        r"pictures .* at most, of what the tower makes of pictures: of one .*, 9 tokens", str(plan)
    )
    assert plan.as_data()["total"] == plan.total
