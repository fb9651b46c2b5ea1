"""Trains the LLaVA of tests/vision/shapes: 0.5 M weights that say which shape of which color a picture shows.

    python -m tests.vision.train_shapes [FOLDER] [--minutes 6] [--start FOLDER]

Pictures are drawn by Pillow: one of four shapes in one of six colors, anywhere, of any size and turned a little, on a
background that is not quite even. The model answers three questions: what it is ("red circle"), its color, its shape.
One core: both words of 85 of 100 pictures after 193 seconds, and of 91 after 43 more with --start.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    GenerationConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from tests.vision.drawn import COLORS, QUESTIONS, SHAPES, SIDE, answer_to, draw

FOLDER = Path(__file__).parent / "shapes"
PATCH, WIDTH = 8, 96
PATCHES = (SIDE // PATCH) ** 2
TEMPLATE = (
    "{% for message in messages %}{{ message['role'].upper() + ':' }}"
    "{% if message['content'] is string %}{{ ' ' + message['content'] }}{% else %}"
    "{% for each in message['content'] if each['type'] == 'image' %}{{ ' <image>' }}{% endfor %}"
    "{% for each in message['content'] if each['type'] == 'text' %}{{ ' ' + each['text'] }}{% endfor %}"
    "{% endif %}{% if message['role'] == 'assistant' %}{{ '</s>' }}{% else %}{{ '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


def tokenizer() -> Tokenizer:
    """Byte-level BPE in which each word, with its space, is one token; then special tokens."""
    words = dict.fromkeys(
        [*" ".join(QUESTIONS).replace("?", "").split(), *COLORS, *SHAPES, "USER", "ASSISTANT"]
    )
    texts = [*("Ġ" + word for word in words), *words]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = list(dict.fromkeys((text[:n], text[n]) for text in texts for n in range(1, len(text))))
    vocabulary = {text: n for n, text in enumerate([*alphabet, *map("".join, merges)])}
    found = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens(
        [AddedToken(each, special=True, normalized=False) for each in ("<s>", "</s>", "<pad>", "<image>")]
    )  # fmt: skip
    return found


TOKENS = tokenizer()
END, PAD, IMAGE = (TOKENS.token_to_id(each) for each in ("</s>", "<pad>", "<image>"))


def processor() -> LlavaProcessor:
    pictures = CLIPImageProcessorPil(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}
    )
    texts = PreTrainedTokenizerFast(
        tokenizer_object=TOKENS, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    return LlavaProcessor(
        pictures, texts, patch_size=PATCH, vision_feature_select_strategy="default", chat_template=TEMPLATE,
        num_additional_image_tokens=1,
    )  # fmt: skip


def make_model() -> Any:
    torch.manual_seed(0)
    vision = CLIPVisionConfig(
        hidden_size=WIDTH, intermediate_size=288, num_hidden_layers=3, num_attention_heads=4, image_size=SIDE,
        patch_size=PATCH, projection_dim=WIDTH, initializer_range=0.1,
    )  # fmt: skip
    text = LlamaConfig(
        vocab_size=TOKENS.get_vocab_size(), hidden_size=WIDTH, intermediate_size=192, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, bos_token_id=TOKENS.token_to_id("<s>"),
        eos_token_id=END, pad_token_id=PAD, initializer_range=0.08,
    )  # fmt: skip
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=IMAGE,
        image_seq_length=PATCHES,
        pad_token_id=PAD,
    )
    return LlavaForConditionalGeneration(config)


class Material:
    """Pictures, as numbers, and what they show."""

    def __init__(self, count: int, seed: int) -> None:
        rng = random.Random(seed)
        self.shown = [
            (rng.choice([*COLORS]), rng.choice(SHAPES), rng.randint(SIDE, 2 * SIDE))
            for _ in range(count)
        ]
        make = processor().image_processor
        drawn = [draw(rng, color, shape, side) for color, shape, side in self.shown]
        found = [
            np.asarray(make(each, return_tensors="np")["pixel_values"][0], np.float32)
            for each in drawn
        ]
        self.pixels = torch.from_numpy(np.stack(found))

    def batch(
        self, picks: Sequence[int], questions: Sequence[str]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Pixels, tokens, and labels of the answers."""
        rows: list[list[int]] = []
        labels: list[list[int]] = []
        for pick, question in zip(picks, questions, strict=True):
            color, shape, _ = self.shown[pick]
            prompt = TOKENS.encode(prompt_of(question)).ids
            answer = [*TOKENS.encode(f" {answer_to(question, color, shape)}").ids, END]
            rows.append([*prompt, *answer])
            labels.append([-100] * len(prompt) + answer)
        longest = max(map(len, rows))
        tokens = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
        wanted = torch.tensor([row + [-100] * (longest - len(row)) for row in labels])
        return self.pixels[list(picks)], tokens, wanted


def prompt_of(question: str) -> str:
    """What the template makes of a question about a picture, whose token stands as often as it has patches."""
    return f"USER: {'<image>' * PATCHES} {question}\nASSISTANT:"


def share_right(model: Any, material: Material) -> float:
    """Of answers to the first question: how many have both words right, and end."""
    model.eval()
    right = 0
    with torch.no_grad():
        for start in range(0, len(material.shown), 50):
            picks = range(start, min(start + 50, len(material.shown)))
            pixels, tokens, labels = material.batch(picks, [QUESTIONS[0]] * len(picks))
            found = model(pixel_values=pixels, input_ids=tokens).logits[:, :-1].argmax(-1)
            known = labels[:, 1:] != -100
            right += int(((found == labels[:, 1:]) | ~known).all(1).sum())
    model.train()
    return right / len(material.shown)


def save(model: Any, folder: Path) -> None:
    """The checkpoint as transformers writes it, weights in float16."""
    copy = make_model()
    copy.load_state_dict(model.state_dict())
    copy.generation_config = GenerationConfig(
        bos_token_id=TOKENS.token_to_id("<s>"), eos_token_id=END, pad_token_id=PAD
    )
    copy.half().save_pretrained(folder)
    processor().save_pretrained(folder)
    for path in folder.glob("*.json"):  # no path of this machine
        fields = json.loads(path.read_text())
        if fields.pop("name_or_path", None) is not None:
            path.write_text(json.dumps(fields, indent=2) + "\n")


def train(
    folder: Path, minutes: float, start: Path | None = None, count: int = 6000, size: int = 16
) -> float:
    """The share of 400 held-out pictures about which both words are right."""
    torch.set_num_threads(1)
    begin = time.process_time()
    material, held_out = Material(count, 1), Material(400, 2)
    print(f"pictures: {time.process_time() - begin:.0f} s", flush=True)
    rng, model = random.Random(0 if start is None else 1), make_model()
    if start is not None:
        begun = LlavaForConditionalGeneration.from_pretrained(start, dtype=torch.float32)
        model.load_state_dict(begun.state_dict())
    print(f"{sum(p.numel() for p in model.parameters())} weights", flush=True)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=1.5e-3, weight_decay=0.01, fused=True, betas=(0.9, 0.98)
    )
    peak = 1.5e-3 if start is None else 5e-4
    begin, step = time.process_time(), 0
    while (done := (time.process_time() - begin) / (60 * minutes)) < 1:
        rate = peak * min(
            (step + 1) / 100, 1, max(0.02, 2 * (1 - done))
        )  # falls in the second half
        for group in optimiser.param_groups:
            group["lr"] = rate
        picks = [rng.randrange(count) for _ in range(size)]
        questions = rng.choices(QUESTIONS, weights=(4, 1, 1), k=size)
        pixels, tokens, labels = material.batch(picks, questions)
        loss = model(pixel_values=pixels, input_ids=tokens, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        step += 1
        if step % 400 == 0:
            spent, right = time.process_time() - begin, share_right(model, held_out)
            print(f"{step}: {spent:.0f} s, loss {loss.item():.3f}, right {right:.3f}", flush=True)
    right = share_right(model, held_out)
    print(f"{step} steps, {time.process_time() - begin:.0f} s: right {right:.3f}", flush=True)
    save(model, folder)
    return right


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--minutes", type=float, default=6)
    parser.add_argument("--start", type=Path, help="go on with the weights of this folder")
    given = parser.parse_args()
    train(given.folder, given.minutes, given.start)
