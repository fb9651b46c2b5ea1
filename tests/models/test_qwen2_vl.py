"""Qwen2-VL and Qwen2.5-VL beside transformers: rotary positions, logits of prompts with pictures of odd sizes, in chunks and among others,
and texts."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest

from relaxpy.checkpoints.config_keys import unread_fields
from relaxpy.errors import UsageError
from relaxpy.llm.pictures import READERS
from relaxpy.models.families import config_from
from relaxpy.models.loaded import LoadedDecoder, Scheme, load_decoder
from relaxpy.serve import Engine, Limits, PageBook, Request, Sampling
from relaxpy.serve.decoder_model import DecoderModel
from relaxpy.serve.messages import request_fields, request_of
from relaxpy.serve.pictures import Picture, Placed, turns
from tests.sweeps import FULL, sweep

transformers: Any = pytest.importorskip("transformers")
torch: Any = pytest.importorskip("torch")

TOLERANCE = 2e-5
IMAGE = 90
TEXT = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [2, 1, 3]},
}  # fmt: skip
VISION = {
    "depth": 2, "embed_dim": 24, "hidden_size": 48, "num_heads": 2, "mlp_ratio": 2, "patch_size": 3, "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}  # fmt: skip
VISION25 = {
    "depth": 3, "hidden_size": 24, "out_hidden_size": 48, "intermediate_size": 30, "num_heads": 2, "patch_size": 3,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 12, "fullatt_block_indexes": [1],
}  # fmt: skip
"""Windows of 2 × 2 squares."""
FAMILIES = {"qwen2_vl": ("Qwen2VL", VISION), "qwen2_5_vl": ("Qwen2_5_VL", VISION25)}
SIZES = ((20, 30), (6, 6), (40, 13), (7, 50), (18, 12))
"""Heights and widths of pictures, by their numbers."""


@cache
def both(family: str) -> tuple[Any, LoadedDecoder, Path]:
    """transformers' model of random weights and ours, and the folder."""
    place = Path(mkdtemp())
    torch.manual_seed(4)
    torch.set_num_threads(1)
    kind, vision = FAMILIES[family]
    config = getattr(transformers, f"{kind}Config")(
        text_config=TEXT, vision_config=vision, image_token_id=IMAGE, vision_start_token_id=91, vision_end_token_id=92,
        video_token_id=93,
    )  # fmt: skip
    theirs = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for name, weight in theirs.named_parameters():
            one = "norm" in name and name.endswith("weight")
            weight.copy_(torch.randn_like(weight) * 0.2 + float(one))
    theirs.save_pretrained(place)
    settings = {
        "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 3, "merge_size": 2, "min_pixels": 36,
        "max_pixels": 1600,
    }  # fmt: skip
    (place / "preprocessor_config.json").write_text(json.dumps(settings))
    return theirs, load_decoder(place, Scheme(bits=None)), place


@cache
def picture(family: str, number: int) -> Picture:
    """What the tower reads of a picture."""
    _, decoder, place = both(family)
    assert decoder.pictures is not None
    shown = np.random.default_rng(number).integers(0, 256, (*SIZES[number], 3), np.uint8)
    return READERS[family](place, decoder.pictures)(shown)


def prompt_of(family: str, *parts: int) -> tuple[list[int], tuple[Placed, ...]]:
    """A prompt of tokens, and of pictures by negative numbers from -1 on."""
    prompt, placed = list[int](), list[Placed]()
    for part in parts:
        if part >= 0:
            prompt.append(part)
            continue
        shown = picture(family, -1 - part)
        placed.append(Placed(len(prompt), shown))
        prompt += [IMAGE] * shown.tokens
    return prompt, tuple(placed)


CASES = (
    (4, 91, -1, 92, 5, 6),
    (91, -2, 92, 7, 91, -3, 92, 8, -5, 9),
    (3, 2, 9, 9, 1),
    (91, -4, 92),
    (91, -1, 92, 91, -1, 92, 5),
)


def logits(family: str, tokens: list[int], placed: tuple[Placed, ...]) -> np.ndarray:
    """transformers' logits after each token (tokens, vocabulary)."""
    theirs, _, _ = both(family)
    ids = torch.tensor([tokens])
    given: dict[str, Any] = {}
    if placed:
        patches = np.concatenate([each.picture.inputs[0].reshape(-1, 54) for each in placed])
        grids = [each.picture.grid or () for each in placed]
        given["pixel_values"] = torch.from_numpy(patches)
        given["image_grid_thw"] = torch.tensor(
            [[1, 2 * rows, 2 * columns] for rows, columns in grids]
        )
        given["mm_token_type_ids"] = (ids == IMAGE).int()
    with torch.no_grad():
        return theirs(input_ids=ids, **given).logits[0].numpy()


@sweep(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_rotary_positions(family: str) -> None:
    """Those of transformers, also from places within a picture and after several."""
    theirs, _, _ = both(family)
    for parts in CASES:
        tokens, placed = prompt_of(family, *parts)
        if not placed:
            continue
        ids = torch.tensor([tokens])
        grids = torch.tensor(
            [
                [1, 2 * each.picture.grid[0], 2 * each.picture.grid[1]]
                for each in placed
                if each.picture.grid
            ]
        )
        wanted, delta = theirs.model.get_rope_index(
            ids, mm_token_type_ids=(ids == IMAGE).int(), image_grid_thw=grids
        )
        wanted = wanted[:, 0].numpy()
        np.testing.assert_array_equal(turns(placed, 0, len(tokens)), wanted)
        for start in range(len(tokens)):
            np.testing.assert_array_equal(
                turns(placed, start, 3)[:, : len(tokens) - start], wanted[:, start : start + 3]
            )
        after = turns(placed, len(tokens) + 5, 1)
        np.testing.assert_array_equal(after, np.full((3, 1), len(tokens) + 5 + int(delta[0, 0])))


def stepped(
    family: str, prompts: list[tuple[list[int], tuple[Placed, ...]]], chunk: int
) -> list[np.ndarray]:
    """The logits after each token of each prompt, as many chunks in a step as there are prompts."""
    _, decoder, _ = both(family)
    model, book = DecoderModel(decoder, 64), PageBook(64, decoder.page_size, decoder.windows)
    encoded = cache(model.encode_picture)
    of = {book.add(tokens, reuse=False): placed for tokens, placed in prompts}
    found: dict[int, list[np.ndarray]] = {each: [] for each in of}
    while counts := {s: min(chunk, n) for s in of if (n := book.pending_count(s))}:
        batch = book.batch(counts)
        rows, turned = [np.zeros((0, 48), np.float32)], list[np.ndarray]()
        sources = np.full(len(batch.tokens), -1, np.int32)
        for own, first in zip(counts, batch.starts):
            done = int(batch.positions[first])
            turned.append(turns(of[own], done, counts[own]))
            for start, shown in of[own]:
                made = encoded(shown)
                for place in range(max(start, done), min(start + len(made), done + counts[own])):
                    sources[first + place - done] = sum(map(len, rows))
                    rows.append(made[place - start][None])
        seen = np.concatenate(rows), sources, np.concatenate(turned, axis=1)
        batch = dataclasses.replace(batch, pictures=seen)
        given = model.step(batch, np.arange(len(batch.tokens), dtype=np.int32)).numpy()
        book.commit(batch)
        for own, first in zip(counts, batch.starts):
            found[own].append(given[first : first + counts[own]])
    return [np.concatenate(each) for each in found.values()]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(family: str) -> None:
    """At once, in chunks of 1, 7 and 33, and among others: the same to the bit, and transformers' to 2e-5."""
    cases = [prompt_of(family, *parts) for parts in CASES]
    alone = [stepped(family, [case], 1000)[0] for case in cases]
    for case, ours in zip(cases, alone):
        wanted = logits(family, *case)
        assert abs(ours - wanted).max() < TOLERANCE * max(1, abs(wanted).max())
    for chunk in (1, 7, 33):
        for ours, again in zip(alone, stepped(family, cases, chunk)):
            np.testing.assert_array_equal(ours, again)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", (5, 64) if FULL else (5,))
def test_texts_are_those_of_transformers(chunk: int, family: str) -> None:
    """Greedy texts by an engine with small chunks, whose requests went through JSON; guessed tokens included."""
    _, decoder, _ = both(family)
    engine = Engine(DecoderModel(decoder, 64), pages=64, limits=Limits(running=8), chunk=chunk)
    cases = [prompt_of(family, *parts) for parts in CASES]
    for number, (tokens, placed) in enumerate(cases):
        request = Request(number, tuple(tokens), 10, Sampling(temperature=0), pictures=placed)
        engine.submit(request_of(json.loads(json.dumps(request_fields(request)))))
    texts: dict[int, list[int]] = {}
    while engine.is_busy:
        for piece in engine.step():
            assert piece.error is None
            texts.setdefault(piece.request, []).extend(piece.tokens)
    for number, (tokens, placed) in enumerate(cases):
        written = list(tokens)
        for _ in range(10):
            written.append(int(logits(family, written, placed)[-1].argmax()))
        assert texts[number] == written[len(tokens) :]
    assert engine.counters.encoded_pictures == 5


def test_configurations() -> None:
    """As transformers writes it, and as it was published."""
    _, _, place = both("qwen2_vl")
    fields = json.loads((place / "config.json").read_text())
    assert unread_fields(fields) == []
    config = config_from(fields)
    old = {
        **{k: v for k, v in TEXT.items() if k != "rope_parameters"}, "model_type": "qwen2_vl", "rope_theta": 1000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 3]}, "image_token_id": IMAGE, "vision_config": VISION,
    }  # fmt: skip
    assert config_from(old).vision == config.vision
    assert config_from(old).rope == config.rope
    for change, match in (
        (
            {"rope_scaling": {"type": "mrope", "mrope_section": [2, 1]}},
            "must have three numbers of pairs, 6 together",
        ),
        ({"rope_scaling": {"type": "yarn"}}, "are of type mrope, got 'yarn'"),
        ({"image_token_id": 97}, "image_token_id must be a token below 97"),
        (
            {"vision_config": {**VISION, "hidden_size": 40}},
            "makes rows of 40 numbers, and the decoder reads 48",
        ),
        ({"vision_config": {**VISION, "num_heads": 5}}, "a tower of width 24 has no 5 heads"),
        ({"vision_config": {**VISION, "in_channels": 1}}, "pictures have 3 channels"),
        ({"vision_config": {**VISION, "mlp_ratio": "4"}}, "mlp_ratio must be a positive number"),
        ({"vision_config": []}, "vision_config has no fields"),
    ):
        with pytest.raises(UsageError, match=match) as caught:
            config_from({**old, **change})
        assert caught.value.code == "bad-config"


def test_configurations_with_windows() -> None:
    _, _, place = both("qwen2_5_vl")
    fields = json.loads((place / "config.json").read_text())
    assert unread_fields(fields) == []
    for change, match in (
        ({"fullatt_block_indexes": 3}, "fullatt_block_indexes must be numbers of layers, got 3"),
        ({"fullatt_block_indexes": ["a"]}, "fullatt_block_indexes must be"),
        ({"window_size": 5}, "window_size is 5, less than a square of 6 pixels"),
        ({"out_hidden_size": 24}, "makes rows of 24 numbers"),
    ):
        with pytest.raises(UsageError, match=match):
            config_from({**fields, "vision_config": {**fields["vision_config"], **change}})
