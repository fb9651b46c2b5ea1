"""Gemma 3 with its eyes beside transformers: logits of prompts with pictures, in chunks and among others, texts, and what prompts have in the
place of a picture."""

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
from relaxpy.llm.pictures import Eyes, Seen
from relaxpy.llm.tokenizer import Tokenizer
from relaxpy.models.families import config_from
from relaxpy.models.loaded import LoadedDecoder, Scheme, load_decoder
from relaxpy.serve import Engine, Limits, PageBook, Request, Sampling
from relaxpy.serve.decoder_model import DecoderModel
from relaxpy.serve.messages import request_fields, request_of
from relaxpy.serve.pictures import Picture, Placed, last_places
from tests.sweeps import quick_target

transformers: Any = pytest.importorskip("transformers")
torch: Any = pytest.importorskip("torch")
Image: Any = pytest.importorskip("PIL.Image")

TOLERANCE = 2e-5
BEGIN, END, IMAGE = 320, 321, 322
SIDE = 24
TEXT = {
    "vocab_size": 323, "hidden_size": 24, "intermediate_size": 30, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "query_pre_attn_scalar": 8,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""The window is smaller than a picture's 9 tokens."""
VISION = {
    "hidden_size": 26, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 38, "patch_size": 4,
    "image_size": SIDE, "vision_use_head": False,
}  # fmt: skip
SETTINGS: dict[str, Any] = {
    "image_processor_type": "Gemma3ImageProcessor", "size": {"height": SIDE, "width": SIDE}, "do_pan_and_scan": True,
    "pan_and_scan_min_crop_size": 20, "pan_and_scan_max_num_crops": 3, "pan_and_scan_min_ratio_to_activate": 1.5,
}  # fmt: skip


@cache
def both() -> tuple[Any, LoadedDecoder, Path]:
    """transformers' model of random weights and ours, and the folder."""
    place = Path(mkdtemp())
    torch.manual_seed(4)
    torch.set_num_threads(1)
    config = transformers.Gemma3Config(
        text_config=TEXT, vision_config=VISION, mm_tokens_per_image=9, image_token_index=IMAGE, boi_token_index=BEGIN,
        eoi_token_index=END,
    )  # fmt: skip
    theirs = transformers.Gemma3ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.copy_(torch.randn_like(weight) * 0.2)
    theirs.save_pretrained(place)
    (place / "preprocessor_config.json").write_text(json.dumps(SETTINGS))
    return theirs, load_decoder(place, Scheme(bits=None), target=str(quick_target())), place


def pixels(number: int) -> np.ndarray:
    return np.random.default_rng(number).standard_normal((1, 3, SIDE, SIDE)).astype(np.float32)


Prompt = tuple[list[int], tuple[Placed, ...]]


def prompt_of(*parts: int) -> Prompt:
    """A prompt of tokens, and of pictures by negative numbers from -1 on."""
    prompt, placed = list[int](), list[Placed]()
    for part in parts:
        if part >= 0:
            prompt.append(part)
            continue
        placed.append(Placed(len(prompt), Picture([pixels(part + 99)], 9)))
        prompt += [IMAGE] * 9
    return prompt, tuple(placed)


CASES = (
    (4, BEGIN, -1, END, 5, 6),
    (*range(10, 40), BEGIN, -2, END, 7, BEGIN, -3, END, 8, -5, 9),
    (3, 2, 9, 9, 1),
    (BEGIN, -4),
    (BEGIN, -1, END, BEGIN, -1, END, 5),
)


def logits(tokens: list[int], placed: tuple[Placed, ...]) -> np.ndarray:
    """transformers' logits after each token (tokens, vocabulary)."""
    theirs, _, _ = both()
    ids = torch.tensor([tokens])
    given: dict[str, Any] = {}
    if placed:
        given["pixel_values"] = torch.from_numpy(
            np.concatenate([each.picture.inputs[0] for each in placed])
        )
        given["token_type_ids"] = (ids == IMAGE).int()
    with torch.no_grad():
        return theirs(input_ids=ids, **given).logits[0].numpy()


def stepped(prompts: list[Prompt], chunk: int) -> list[np.ndarray]:
    """The logits after each token of each prompt, as many chunks in a step as there are prompts; a chunk that would end
    in a picture goes on to its end."""
    _, decoder, _ = both()
    model, book = DecoderModel(decoder, 64), PageBook(64, decoder.page_size, decoder.windows)
    encoded = cache(model.encode_picture)
    of = {book.add(tokens, reuse=False): (len(tokens), placed) for tokens, placed in prompts}
    found: dict[int, list[np.ndarray]] = {each: [] for each in of}
    while waiting := {s: n for s in of if (n := book.pending_count(s))}:
        counts = dict[int, int]()
        for s, left in waiting.items():
            total, placed = of[s]
            last = total - left + min(chunk, left) - 1
            counts[s] = int(last_places(placed, last, 1)[0]) + 1 - (total - left)
        batch = book.batch(counts)
        rows, lasts = [np.zeros((0, 24), np.float32)], list[np.ndarray]()
        sources = np.full(len(batch.tokens), -1, np.int32)
        for own, first in zip(counts, batch.starts):
            done, (_, placed) = int(batch.positions[first]), of[own]
            lasts.append(last_places(placed, done, counts[own]))
            for start, shown in placed:
                if done <= start < done + counts[own]:
                    at = first + start - done
                    sources[at : at + 9] = sum(map(len, rows)) + np.arange(9)
                    rows.append(encoded(shown))
        batch = dataclasses.replace(
            batch, pictures=(np.concatenate(rows), sources, np.concatenate(lasts))
        )
        given = model.step(batch, np.arange(len(batch.tokens), dtype=np.int32)).numpy()
        book.commit(batch)
        for own, first in zip(counts, batch.starts):
            found[own].append(given[first : first + counts[own]])
    return [np.concatenate(each) for each in found.values()]


def test_logits_are_those_of_transformers() -> None:
    """At once, in chunks of 1, 7 and 33, and among others: the same to the bit, and transformers' to 2e-5."""
    cases = [prompt_of(*parts) for parts in CASES]
    alone = [stepped([case], 1000)[0] for case in cases]
    for case, ours in zip(cases, alone):
        wanted = logits(*case)
        assert abs(ours - wanted).max() < TOLERANCE * max(1, abs(wanted).max())
    for chunk in (1, 7, 33):
        for ours, again in zip(alone, stepped(cases, chunk)):
            np.testing.assert_array_equal(ours, again)


@pytest.mark.parametrize("pages", [64, 5])
def test_texts_are_those_of_transformers(pages: int) -> None:
    """Greedy texts by an engine with small chunks, whose requests went through JSON, and again from the cache; with few
    pages the text that is less urgent gives its own back, and is computed anew."""
    _, decoder, _ = both()
    engine = Engine(DecoderModel(decoder, pages), pages=pages, limits=Limits(running=8), chunk=5)
    cases = [prompt_of(*parts) for parts in CASES]
    texts: dict[int, list[int]] = {}

    def step() -> None:
        for piece in engine.step():
            assert piece.error is None
            texts.setdefault(piece.request, []).extend(piece.tokens)

    for again in (0, len(cases)):
        for number in sorted(range(len(cases)), key=lambda n: len(cases[n][0]), reverse=True):
            tokens, placed = cases[number]
            request = Request(
                number + again, tuple(tokens), 10, Sampling(temperature=0), pictures=placed,
                priority=int(len(tokens) > 50),
            )  # fmt: skip
            engine.submit(request_of(json.loads(json.dumps(request_fields(request)))))
            step()
        while engine.is_busy:
            step()
    for number, (tokens, placed) in enumerate(cases):
        written = list(tokens)
        for _ in range(10):
            written.append(int(logits(written, placed)[-1].argmax()))
        assert texts[number] == texts[number + len(cases)] == written[len(tokens) :]
    assert engine.counters.encoded_pictures == 5
    assert (engine.scheduler.preemptions > 0) == (pages == 5)


SHOWN = "<start_of_image>"
PROMPTS = (
    f"user\n{SHOWN}What is it?",
    f"\n{SHOWN}\n and {SHOWN}",
    f"a{SHOWN}{SHOWN}",
)


def test_prompts_are_those_of_transformers() -> None:
    """What is around pictures, and parts of long ones: the same tokens as transformers' processor gives, whose texts are
    joined with those beside them, and the same pixels."""
    from tokenizers import Tokenizer as Backend
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    from tests.llm.checkpoints import byte_level

    place = Path(mkdtemp())
    backend: Any = Backend.from_str(byte_level(BEGIN))
    backend.add_special_tokens([SHOWN, "<end_of_image>", "<image_soft_token>"])
    backend.add_tokens(["\n\n\n", "\n\n"])  # as those of Gemma are
    backend.save(str(place / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "boi_token": SHOWN, "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>", "unk_token": "<unk>",
    }  # fmt: skip
    (place / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = transformers.AutoTokenizer.from_pretrained(place)
    for name in ("boi", "eoi", "image"):
        setattr(theirs, f"{name}_token", settings[f"{name}_token"])
        setattr(theirs, f"{name}_token_id", theirs.convert_tokens_to_ids(settings[f"{name}_token"]))
    options = {k: v for k, v in SETTINGS.items() if k != "image_processor_type"}
    processor = transformers.Gemma3Processor(
        Gemma3ImageProcessorPil(**options), theirs, image_seq_length=9
    )
    _, decoder, folder = both()
    assert decoder.pictures is not None
    eyes, ours = Eyes.from_checkpoint(folder, decoder.pictures), Tokenizer.from_checkpoint(place)
    random = np.random.default_rng(7)
    crops = {k: v for k, v in options.items() if "pan" in k}  # which it reads of calls alone
    for text in PROMPTS:
        for sizes in ((30, 31), (30, 75)), ((90, 21), (8, 5)):
            shown = [random.integers(0, 256, (*size, 3), np.uint8) for size in sizes]
            shown = shown[: text.count(SHOWN)]
            wanted = processor(
                text=[text], images=[[*map(Image.fromarray, shown)]], return_tensors="np", **crops
            )
            seen = [eyes.read(each) for each in shown]
            tokens, placed = eyes.placed(ours.encode(text, special=False), seen, ours)
            assert tokens == [*wanted["input_ids"][0]]
            given = [each.picture.inputs[0] for each in placed]
            np.testing.assert_array_equal(np.concatenate(given), wanted["pixel_values"])
    literal = ours.encode_literally(SHOWN)
    seen = [Seen(("\n\n", BEGIN, Picture([pixels(1)], 9), END, "\n\n"))]
    tokens, _ = eyes.placed([*literal, BEGIN, *literal], seen, ours)
    assert tokens.count(BEGIN) == 1
    assert ours.decode(tokens).count(SHOWN) == 2


def test_configurations() -> None:
    _, _, place = both()
    fields = json.loads((place / "config.json").read_text())
    assert unread_fields(fields) == []
    config = config_from(fields)
    assert config.vision is not None
    assert config.vision.spans
    for change, match in (
        ({"image_token_index": 323}, "image_token_index must be a token below 323"),
        ({"boi_token_index": "a"}, "boi_token_index must be a token"),
        ({"mm_tokens_per_image": 8}, "mm_tokens_per_image is 8, and a picture has 6 × 6 patches"),
        ({"mm_tokens_per_image": 16}, "whose side divides that of the patches"),
        ({"text_config": {**TEXT, "model_type": "llama"}}, "type 'llama', and a Gemma 3 has"),
        ({"vision_config": {**VISION, "model_type": "vit"}}, "a Gemma 3 has a siglip_vision_model"),
    ):
        with pytest.raises(UsageError, match=match) as caught:
            config_from({**fields, **change})
        assert caught.value.code == "bad-config"
