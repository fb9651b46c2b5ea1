"""Transcriptions beside those of openai-whisper itself, with the model of tests/speech/digits.

    pip download --no-deps --no-binary :all: openai-whisper && tar xzf openai_whisper-*.tar.gz
    python -m tests.speech.against_openai openai_whisper-20250625 [--count 40] [--folder tests/speech/digits]

The reference is only read where it is unpacked: its tokenizer is replaced by that of the checkpoint, and the length of its
windows by 3 seconds. Recordings are joined of words that espeak-ng speaks.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import types
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer as Backend
from transformers import WhisperForConditionalGeneration

from relaxpy.speech import load_transcriber
from tests.speech.spoken import Voice, joined
from tests.speech.train_digits import FOLDER, WORDS

_NAMES = (
    ("model.", ""), ("embed_positions.weight", "positional_embedding"), ("embed_tokens", "token_embedding"),
    (".layers.", ".blocks."), ("self_attn_layer_norm", "attn_ln"), ("encoder_attn_layer_norm", "cross_attn_ln"),
    ("self_attn", "attn"), ("encoder_attn", "cross_attn"), ("q_proj", "query"), ("k_proj", "key"),
    ("v_proj", "value"), ("out_proj", "out"), ("fc1", "mlp.0"), ("fc2", "mlp.2"), ("final_layer_norm", "mlp_ln"),
    ("encoder.layer_norm", "encoder.ln_post"), ("decoder.layer_norm", "decoder.ln"),
)  # fmt: skip
OPTIONS: list[dict[str, Any]] = [
    {}, {"word_timestamps": True}, {"condition_on_previous_text": False}, {"initial_prompt": "one two three"},
    {"word_timestamps": True, "hallucination_silence_threshold": 0.4}, {"clip_timestamps": "0.5,4,5.5"},
    {"without_timestamps": True}, {"max_initial_timestamp": 0.3}, {"beam_size": 1, "no_speech_threshold": 0.004},
    {"word_timestamps": True, "condition_on_previous_text": False}, {"beam_size": 3},
]  # fmt: skip
_OWN = {"log_prob_threshold": "logprob_threshold"}


class Encoding:
    """What openai-whisper needs of tiktoken, by the checkpoint's tokenizer."""

    def __init__(self, folder: Path) -> None:
        self.backend = Backend.from_file(str(folder / "tokenizer.json"))
        added = self.backend.get_added_tokens_decoder()
        self.special_tokens_set = {each.content for each in added.values()}
        self.eot_token = self.backend.token_to_id("<|endoftext|>")

    def encode_single_token(self, text: str) -> int:
        return self.backend.token_to_id(text)

    def encode(self, text: str, **_: Any) -> list[int]:
        found = self.backend.encode(text, add_special_tokens=False).ids
        # A small vocabulary cannot write all symbols that are suppressed: what it leaves out is no token of its own.
        return found if self.decode(found) == text else [self.eot_token + 1]

    def decode(self, tokens: Any, **_: Any) -> str:
        return self.backend.decode([int(token) for token in tokens], skip_special_tokens=False)


def reference(place: Path, folder: Path) -> Any:
    """openai-whisper's `transcribe`, with the checkpoint's model, as a function of samples and options."""
    for name in ("tiktoken", "numba", "more_itertools"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["numba"].jit = lambda **_: lambda function: function  # type: ignore[attr-defined]
    sys.modules["tiktoken"].Encoding = Any  # type: ignore[attr-defined]
    sys.path.insert(0, str(place))
    names = ("audio", "decoding", "timing", "tokenizer", "transcribe")
    audio, decoding, timing, tokenizer, transcribe = (
        import_module(f"whisper.{name}") for name in names
    )
    from whisper.model import ModelDimensions, Whisper  # type: ignore[import-not-found]

    theirs = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    config = theirs.config
    frames = 2 * config.max_source_positions
    for module in (audio, transcribe):
        module.N_FRAMES, module.N_SAMPLES = frames, frames * 160
    decoding.CHUNK_LENGTH = frames // 100
    audio.pad_or_trim.__defaults__ = (frames * 160,)

    encoding, languages = Encoding(folder), 2

    def made(*_: Any, language: str | None = None, task: str | None = None, **__: Any) -> Any:
        return tokenizer.Tokenizer(
            encoding, languages, language=language or "en", task=task or "transcribe"
        )

    tokenizer.LANGUAGES = {"en": "english", "de": "german"}
    for module in (decoding, transcribe, timing):
        module.get_tokenizer = made
    dims = ModelDimensions(
        config.num_mel_bins, config.max_source_positions, config.d_model, config.encoder_attention_heads,
        config.encoder_layers, config.vocab_size, config.max_target_positions, config.d_model,
        config.decoder_attention_heads, config.decoder_layers,
    )  # fmt: skip
    model = Whisper(dims)
    for block in (*model.encoder.blocks, *model.decoder.blocks):
        block.mlp[0] = torch.nn.Linear(config.d_model, config.encoder_ffn_dim)
        block.mlp[2] = torch.nn.Linear(config.encoder_ffn_dim, config.d_model)
    weights = {}
    for name, value in theirs.state_dict().items():
        if name != "proj_out.weight":
            for old, new in _NAMES:
                name = name.replace(old, new)
            weights[name] = value
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"decoder.mask", "encoder.positional_embedding"}, missing
    heads = torch.zeros(config.decoder_layers, config.decoder_attention_heads, dtype=torch.bool)
    for layer, head in theirs.generation_config.alignment_heads:
        heads[layer, head] = True
    model.register_buffer("alignment_heads", heads.to_sparse(), persistent=False)
    type(model).is_multilingual = property(lambda self: True)
    type(model).num_languages = property(lambda self: languages)
    mels = np.load(place / "whisper/assets/mel_filters.npz")
    audio.mel_filters = lambda device, n: torch.from_numpy(mels[f"mel_{n}"]).to(device)
    return lambda samples, **options: transcribe.transcribe(
        model.eval(), samples, temperature=0.0, **options
    )


def compare(ours: Any, theirs: Any, samples: np.ndarray, options: dict[str, Any]) -> list[str]:
    """What differs."""
    language = {"language": "en"}
    expected = theirs(
        samples, **language, **{_OWN.get(name, name): value for name, value in options.items()}
    )
    found = [*ours.transcribe(samples, temperature=0.0, **language, **options)]
    wanted = [each for each in expected["segments"] if each["text"]]
    wrong: list[str] = []
    if len(found) != len(wanted):
        wrong.append(f"{len(found)} segments, not {len(wanted)}")
    for mine, other in zip(found, wanted):
        for name in (
            "text",
            "start",
            "end",
            "avg_logprob",
            "no_speech_prob",
            "compression_ratio",
            "seek",
        ):
            a, b = getattr(mine, name), other[name]
            if a != b if isinstance(a, str) else abs(a - b) > 2e-3 * max(1, abs(b)):
                wrong.append(f"{name} of segment {mine.id}: {a!r}, not {b!r}")
        for word, their_word in zip(mine.words or (), other.get("words", ())):
            a = (word.word, word.start, word.end)
            b = (their_word["word"], their_word["start"], their_word["end"])
            if a[0] != b[0] or max(abs(a[1] - b[1]), abs(a[2] - b[2])) > 1e-6:
                wrong.append(f"word {a}, not {b}")
        if len(mine.words or ()) != len(other.get("words", ())):
            wrong.append(f"words of segment {mine.id}: {mine.words}, not {other.get('words')}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("place", type=Path)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--longest", type=float, default=60)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ours, theirs = load_transcriber(given.folder), reference(given.place, given.folder)
    rng, equal, spent = random.Random(1), 0, [0.0, 0.0]
    for k in range(given.count):
        count = rng.randint(1, max(1, round(given.longest / 1.5)))
        segments = [[rng.choice(WORDS) for _ in range(rng.randint(1, 4))] for _ in range(count)]
        samples, _ = joined(
            segments, rng, Voice.draw(rng), pause=(0.3, rng.choice([0.9, 2.5, 6.0]))
        )
        options = OPTIONS[k % len(OPTIONS)]
        begin = time.process_time()
        wrong = compare(ours, theirs, samples, options)
        spent[0] += time.process_time() - begin
        spent[1] += len(samples) / 16_000
        equal += not wrong
        print(f"{k}: {len(samples) / 16_000:.1f} s, {options}: {wrong[:3] or 'equal'}", flush=True)
    print(
        f"{equal} of {given.count} recordings are equal, {spent[1]:.0f} s of sound, {spent[0]:.0f} s of CPU time"
    )


if __name__ == "__main__":
    main()
