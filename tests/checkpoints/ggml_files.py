"""Writes files of whisper.cpp from checkpoints of transformers, as its converter does."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from relaxpy.checkpoints.ggml import BLOCK, CROSS, MAGIC, OUTSIDE
from relaxpy.checkpoints.tokenizer_file import BYTE_CHARACTERS
from relaxpy.models.checkpoint import read_weights
from relaxpy.models.log_mel import mel_filters

NUMBERS = {"f32": 0, "f16": 1, "q5_0": 6, "q8_0": 8}
"""The types of tensors."""


def blocks(values: np.ndarray, kind: str) -> bytes:
    """Rows as blocks of 32, as ggml quantises them."""
    rows = values.astype(np.float32).reshape(-1, 32)
    largest = rows[np.arange(len(rows)), np.abs(rows).argmax(1)][:, None]
    scale = np.abs(largest) / 127 if kind == "q8_0" else largest / -16
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    half = scale.astype(np.float16).view(np.uint8)
    if kind == "q8_0":
        codes = np.rint(rows * inverse).astype(np.int8).view(np.uint8)
        return np.concatenate([half, codes], 1).tobytes()
    codes = np.minimum(31, (rows * inverse + 16.5).astype(np.int8)).astype(np.uint8)
    high = np.packbits(codes >> 4, axis=1, bitorder="little")
    low = (codes[:, :16] & 15) | (codes[:, 16:] & 15) << 4
    return np.concatenate([half, high, low], 1).tobytes()


def names(config: dict[str, Any]) -> dict[str, str]:
    """transformers' names and OpenAI's."""
    found = {theirs: ours for ours, theirs in OUTSIDE.items()}
    for part, inner in {"encoder": BLOCK, "decoder": {**BLOCK, **CROSS}}.items():
        for layer in range(config[f"{part}_layers"]):
            for ours, theirs in inner.items():
                for kind in ("weight", "bias"):
                    own = f"{part}.blocks.{layer}.{ours}.{kind}"
                    found[f"model.{part}.layers.{layer}.{theirs}.{kind}"] = own
    return found


def ggml_file(folder: Path, kind: str, *, with_end: bool = False) -> bytes:
    """The file of a checkpoint; its matrices in a type. With `with_end` the tokens of text end with the first one that
    controls, as in some files."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    numbers = {char: byte for byte, char in enumerate(BYTE_CHARACTERS)}
    tokens = [bytes(numbers[char] for char in text) for text in sorted(vocab, key=vocab.get)]
    tokens += [b"<|endoftext|>"] * with_end
    mels = config["num_mel_bins"]
    sizes = [
        config["vocab_size"], config["max_source_positions"], config["d_model"], config["encoder_attention_heads"],
        config["encoder_layers"], config["max_target_positions"], config["d_model"],
        config["decoder_attention_heads"], config["decoder_layers"], mels, int(kind != "f32"),
    ]  # fmt: skip
    filters = np.ascontiguousarray(mel_filters(mels).T, np.float32)
    parts = [struct.pack("<I11i2i", MAGIC, *sizes, *filters.shape), filters.tobytes()]
    parts += [struct.pack("<i", len(tokens)), *(struct.pack("<I", len(t)) + t for t in tokens)]
    ours = names(config)
    for theirs, array in read_weights(folder).items():
        if theirs == "proj_out.weight":
            continue
        own = kind
        if array.ndim < 2 or "positional" in ours[theirs]:
            own = "f32"
        elif kind.startswith("q") and ("conv" in theirs or array.shape[-1] % 32):
            own = "f16"
        values = array[:, None] if "conv" in theirs and array.ndim == 1 else array
        parts.append(tensor(ours[theirs], values, own))
    return b"".join(parts)


def tensor(name: str, values: np.ndarray, kind: str) -> bytes:
    """A tensor of a file."""
    head = struct.pack("<3i", values.ndim, len(name), NUMBERS[kind])
    head += struct.pack(f"<{values.ndim}i", *values.shape[::-1]) + name.encode()
    if kind.startswith("q"):
        return head + blocks(values, kind)
    return head + values.astype(np.float16 if kind == "f16" else np.float32).tobytes()
