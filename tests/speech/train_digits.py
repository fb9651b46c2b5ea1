"""Trains the Whisper of tests/speech/digits: 0.45 M weights that read digits spoken by espeak-ng.

    python -m tests.speech.train_digits [FOLDER] [--minutes 8] [--start FOLDER]

Windows are 3 seconds of words and short strings that begin at known times, drawn anew for each step, so the model
learns all that a Whisper does: texts with and without times, segments that the end of the window cuts, windows
without speech, and texts before the window. One core.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor
from transformers import WhisperForConditionalGeneration as Whisper
from transformers.models.whisper.feature_extraction_whisper import (
    WhisperFeatureExtractor as Extractor,
)

from tests.speech.spoken import RATE, WORDS, Voice, silence, speak

SECONDS, STEP, MELS = 3, 0.02, 80
CONTEXT = 48
FOLDER = Path(__file__).parent / "digits"
LANGUAGES = ("en", "de")


def tokenizer() -> Tokenizer:
    """Byte-level BPE in which each word, with its space, is one token; then the special tokens of Whisper."""
    texts = ["Ġ" + word for word in WORDS]
    alphabet = sorted({*"".join(texts), *",.'-"})
    merges = list(dict.fromkeys((text[:n], text[n]) for text in texts for n in range(1, len(text))))
    vocabulary = {text: n for n, text in enumerate([*alphabet, *map("".join, merges)])}
    found = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    names = [
        "endoftext",
        "startoftranscript",
        *LANGUAGES,
        "translate",
        "transcribe",
        "startoflm",
        "startofprev",
    ]
    names += [
        "nospeech",
        "notimestamps",
        *(f"{n * STEP:.2f}" for n in range(round(SECONDS / STEP) + 1)),
    ]
    found.add_special_tokens(
        [AddedToken(f"<|{n}|>", special=True, normalized=False) for n in names[:10]]
    )
    found.add_tokens([AddedToken(f"<|{n}|>", special=False, normalized=False) for n in names[10:]])
    return found


TOKENS = tokenizer()
NUMBER = TOKENS.token_to_id
END, START, PREVIOUS = (
    NUMBER(f"<|{n}|>") for n in ("endoftext", "startoftranscript", "startofprev")
)
NO_SPEECH, NO_TIMES, ZERO = (NUMBER(f"<|{n}|>") for n in ("nospeech", "notimestamps", "0.00"))
WORD_TOKENS = [NUMBER("Ġ" + word) for word in WORDS]


class Material:
    """Recordings of single words and of strings, a few voices each."""

    def __init__(self, words: int, strings: int, seed: int) -> None:
        rng = random.Random(seed)
        self.voices = [Voice.draw(rng) for _ in range(words // 10)]
        asked = [((digit,), voice) for voice in self.voices for digit in range(10)]
        asked += [
            (tuple(rng.randrange(10) for _ in range(rng.randint(2, 4))), Voice.draw(rng))
            for _ in range(strings)
        ]
        with ThreadPoolExecutor(2) as pool:
            sounds = pool.map(
                lambda each: speak(" ".join(WORDS[d] for d in each[0]), each[1]), asked
            )
            found = [(digits, sound) for (digits, _), sound in zip(asked, sounds)]
        self.words, self.strings = found[: 10 * len(self.voices)], found[10 * len(self.voices) :]

    def segment(self, rng: random.Random) -> tuple[tuple[int, ...], np.ndarray, list[float]]:
        """Digits, how they are spoken, and where each begins, in seconds; of strings that is not known."""
        if rng.random() < 0.5:
            return *rng.choice(self.strings), []
        voice = rng.randrange(len(self.voices))
        digits = tuple(rng.randrange(10) for _ in range(rng.randint(1, 3)))
        parts, begins = [], []
        for digit in digits:
            begins.append(sum(map(len, parts)) / RATE)
            parts += [self.words[10 * voice + digit][1], silence(rng.uniform(0.04, 0.12))]
        return digits, np.concatenate(parts[:-1]), begins

    def window(self, rng: random.Random) -> Window:
        """A window, of which the end of the recording may be a part."""
        sound = np.zeros(SECONDS * RATE, np.float32)
        before = (
            [PREVIOUS, *rng.choices(WORD_TOKENS, k=rng.randint(1, 22))]
            if rng.random() < 0.35
            else []
        )
        sot = [START, NUMBER("<|en|>"), NUMBER("<|transcribe|>")]
        noise = np.random.default_rng(rng.getrandbits(32)).standard_normal(len(sound), np.float32)
        sound += np.float32(rng.choice([0, 0, 1e-4, 1e-3, 3e-3])) * noise
        content = len(sound)
        if rng.random() < 0.06:
            content = rng.randrange(800, len(sound) + 1) if rng.random() < 0.5 else content
            return Window(
                sound, content, [*before, *sot], [-100] * len(before) + [NO_SPEECH, -100, END], {}
            )
        times = rng.random() < 0.75
        body: list[int] = []
        begins: dict[int, float] = {}  # place in the body → seconds
        end, at = 0, 0 if rng.random() < 0.3 else round(rng.uniform(0, 0.9) * RATE)
        for k in range(rng.randint(1, 4)):
            digits, spoken, own = self.segment(rng)
            spoken = spoken * np.float32(rng.uniform(0.25, 1.0))
            if at + len(spoken) > len(sound):
                if k == 0:
                    return self.window(rng)
                if times and at + 2400 < len(sound):
                    sound[at:] += spoken[: len(sound) - at]
                    body += [ZERO + round(at / RATE / STEP)]
                break
            start, end = at, at + len(spoken)
            sound[start:end] += spoken
            if times:
                body.append(ZERO + round(start / RATE / STEP))
            begins |= {len(body) + n: start / RATE + second for n, second in enumerate(own)}
            body += [WORD_TOKENS[d] for d in digits]
            if times:
                body.append(ZERO + round(end / RATE / STEP))
            at = end + round(rng.uniform(0.25, 0.9) * RATE)
        else:
            if rng.random() < 0.6 and at < len(sound):  # the recording ends in this window
                content = rng.randrange(end, len(sound) + 1)
        if not times:
            begins[len(body)] = end / RATE
        tokens = [*before, *sot, *([] if times else [NO_TIMES]), *body, END]
        labels = [-100] * len(before) + tokens[len(before) + 1 :]
        offset = len(tokens) - len(body) - 2  # a token is written where the one before it is read
        spans: dict[int, tuple[float, float]] = {}
        for place, begin in begins.items():
            after = begins.get(place + 1, end / RATE if place < len(body) else content / RATE)
            if after > begin + STEP:
                spans[place + offset] = begin, after
        return Window(sound, content, tokens[:-1], labels, spans)


@dataclass(frozen=True)
class Window:
    """What a step of the training sees."""

    sound: np.ndarray
    content: int
    """How many of its samples are sound; after them the recording has ended."""
    tokens: list[int]
    labels: list[int]
    """The token that comes after each; -100: any."""
    spans: dict[int, tuple[float, float]]
    """Place of a token → the seconds in which the next one is spoken, with the pause after it in a segment."""


class Features:
    """Log-mel features of windows, as the extractor of transformers gives them, many at once."""

    def __init__(self) -> None:
        made = Extractor(feature_size=MELS, chunk_length=SECONDS)
        self.filters = torch.from_numpy(np.asarray(made.mel_filters)).float().T
        self.hann = torch.hann_window(400)

    def __call__(self, sounds: np.ndarray, contents: list[int], padded: list[bool]) -> torch.Tensor:
        spectrum = torch.stft(
            torch.from_numpy(sounds), 400, 160, window=self.hann, return_complex=True
        )
        mel = (self.filters @ spectrum[..., :-1].abs() ** 2).clamp(min=1e-10).log10()
        mel = (torch.maximum(mel, mel.amax((1, 2), keepdim=True) - 8) + 4) / 4
        for row, content, is_padded in zip(mel, contents, padded):
            if is_padded:  # the end of a long recording is padded after the logarithm
                row[:, content // 160 :] = 0
        return mel


def make_model() -> Any:
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=TOKENS.get_vocab_size(), num_mel_bins=MELS, encoder_layers=2, decoder_layers=1,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=320, decoder_ffn_dim=320, d_model=96,
        max_source_positions=round(SECONDS * 50), max_target_positions=CONTEXT, pad_token_id=END, bos_token_id=END,
        eos_token_id=END, decoder_start_token_id=START, suppress_tokens=None, begin_suppress_tokens=None, dropout=0.0,
    )  # fmt: skip
    return Whisper._from_config(config, attn_implementation="eager")


def batch(
    material: Material, features: Features, rng: random.Random, size: int
) -> tuple[torch.Tensor, ...]:
    """Features, tokens, labels, and where attention is to look (size, tokens, positions)."""
    drawn = [material.window(rng) for _ in range(size)]
    longest = max(len(each.tokens) for each in drawn)
    tokens, labels = np.full((size, longest), END), np.full((size, longest), -100)
    looks = np.zeros((size, longest, round(SECONDS / STEP)), np.float32)
    for k, each in enumerate(drawn):
        tokens[k, : len(each.tokens)], labels[k, : len(each.labels)] = each.tokens, each.labels
        for place, (begin, end) in each.spans.items():
            looks[k, place, round(begin / STEP) : round(end / STEP)] = 1
    padded = [rng.random() < 0.5 for _ in drawn]
    mel = features(
        np.stack([each.sound for each in drawn]), [each.content for each in drawn], padded
    )
    return mel, torch.from_numpy(tokens), torch.from_numpy(labels), torch.from_numpy(looks)


def loss_of(
    model: Any, mel: torch.Tensor, tokens: torch.Tensor, labels: torch.Tensor, looks: torch.Tensor
) -> Any:
    """That of the texts, and that of the first head, which is to look evenly at the word that is written: by it words are
    timed."""
    found = model(
        input_features=mel, decoder_input_ids=tokens, labels=labels, output_attentions=True
    )
    weights = found.cross_attentions[0][:, 0]
    share = looks / looks.sum(-1, keepdim=True).clamp(min=1)
    missed = -(share * weights.clamp(min=1e-8).log()).sum(-1)
    return found.loss + 0.1 * missed.sum() / max(1, int((looks.sum(-1) > 0).sum()))


def share_right(
    model: Any, material: Material, features: Features, count: int
) -> tuple[float, float]:
    """Of windows drawn from material that was not trained on: exact texts; those with times within 0.1 s."""
    rng, right, within, total = random.Random(7), 0, 0, 0
    model.eval()
    with torch.no_grad():
        for _ in range(count // 20):
            drawn = [material.window(rng) for _ in range(20)]
            mel = features(
                np.stack([each.sound for each in drawn]),
                [each.content for each in drawn],
                [False] * 20,
            )
            states = model.model.encoder(mel).last_hidden_state
            for k, each in enumerate(drawn):
                start = each.tokens.index(START) + 3
                body = each.tokens[start:]
                if not body:
                    continue
                prompt = each.tokens[: start + (body[0] == NO_TIMES)]
                body = body[body[0] == NO_TIMES :]
                ids = torch.tensor([prompt])
                while ids.shape[1] < CONTEXT:
                    logits = model(
                        encoder_outputs=(states[k : k + 1],), decoder_input_ids=ids
                    ).logits[:, -1]
                    if (best := logits.argmax(-1)).item() == END:
                        break
                    ids = torch.cat([ids, best[:, None]], 1)
                got = ids[0, len(prompt) :].tolist()
                right += [t for t in got if t < END] == [t for t in body if t < END]
                total += 1
                within += len(got) == len(body) and all(
                    a == b or (min(a, b) >= ZERO and abs(a - b) <= 5) for a, b in zip(got, body)
                )
    model.train()
    return right / total, within / total


def save(model: Any, folder: Path) -> None:
    """The checkpoint as transformers writes it, weights in float16."""
    folder.mkdir(exist_ok=True)
    number = {each: NUMBER(f"<|{each}|>") for each in ("translate", "transcribe", *LANGUAGES)}
    model.generation_config = GenerationConfig(
        bos_token_id=END, eos_token_id=END, pad_token_id=END, decoder_start_token_id=START, max_length=CONTEXT,
        begin_suppress_tokens=[NUMBER("Ġ"), END], suppress_tokens=[], no_timestamps_token_id=NO_TIMES,
        is_multilingual=True, lang_to_id={f"<|{each}|>": number[each] for each in LANGUAGES},
        task_to_id={each: number[each] for each in ("translate", "transcribe")}, return_timestamps=False,
        alignment_heads=[[0, 0]], prev_sot_token_id=PREVIOUS, max_initial_timestamp_index=50,
    )  # fmt: skip
    copy = make_model()
    copy.load_state_dict(model.state_dict())
    copy.generation_config = model.generation_config
    copy.half().save_pretrained(folder)
    TOKENS.save(str(folder / "tokenizer.json"))
    WhisperFeatureExtractor(feature_size=MELS, chunk_length=SECONDS).save_pretrained(folder)
    options = {"tokenizer_class": "WhisperTokenizer", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>",
               "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(options, indent=1) + "\n")


def train(
    folder: Path, minutes: float, start: Path | None = None, size: int = 16
) -> tuple[float, float]:
    """The shares of held-out windows whose words are right, and whose times are, too."""
    torch.set_num_threads(1)
    begin = time.process_time()
    material, held_out = Material(1200, 1500, 1), Material(200, 200, 2)
    print(f"recordings: {time.process_time() - begin:.0f} s", flush=True)
    features, rng, model = Features(), random.Random(0 if start is None else 1), make_model()
    print(f"{sum(p.numel() for p in model.parameters())} weights", flush=True)
    if start is not None:
        model.load_state_dict(Whisper.from_pretrained(start, dtype=torch.float32).state_dict())
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=2e-3, weight_decay=0.01, fused=True, betas=(0.9, 0.98)
    )
    begin, step = time.process_time(), 0
    while (done := (time.process_time() - begin) / (60 * minutes)) < 1:
        rate = 2e-3 * min(
            (step + 1) / 200, 1, max(0.02, 2 * (1 - done))
        )  # falls in the second half
        for group in optimiser.param_groups:
            group["lr"] = rate
        loss = loss_of(model, *batch(material, features, rng, size))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        step += 1
        if step % 500 == 0:
            right, within = share_right(model, held_out, features, 60)
            spent = time.process_time() - begin
            print(
                f"{step}: {spent:.0f} s, loss {loss.item():.3f}, texts {right:.3f}, with times {within:.3f}",
                flush=True,
            )
    right, within = share_right(model, held_out, features, 400)
    print(
        f"{step} steps, {time.process_time() - begin:.0f} s: texts {right:.3f}, with times {within:.3f}",
        flush=True,
    )
    save(model, folder)
    return right, within


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--start", type=Path, help="go on with the weights of this folder")
    given = parser.parse_args()
    train(given.folder, given.minutes, given.start)
