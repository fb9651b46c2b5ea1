"""whisper.cpp's files (`ggml-tiny.bin`): a Whisper in one file, its tensors mapped and not read.

    u32 magic 0x67676d6c
    11 of i32    tokens, positions, width, heads and layers of the encoder, the same four of the decoder, bands, type
    filters      i32 bands, i32 frequencies, their float32 numbers
    tokens       i32 count; each a u32 length and bytes, in the order of their numbers
    tensors      to the end: i32 rank, i32 length of the name, i32 type, sizes (the innermost first), name, data

Names are OpenAI's, biases of convolutions are (n, 1), types are those of GGUF files. Tokens after those of text have no
names: they are openai-whisper's, in its order. Everything is checked against the file's size before it is used.
"""

from __future__ import annotations

import math
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relaxpy.checkpoints.gguf import stored_tensor, tensor_bytes
from relaxpy.checkpoints.stored import Checkpoint, Floats, Stored
from relaxpy.errors import UsageError
from relaxpy.files import open_regular
from relaxpy.runtime.tensor import Array

MAGIC = 0x67676D6C
_SIZES = (
    "vocab_size", "max_source_positions", "d_model", "encoder_attention_heads", "encoder_layers",
    "max_target_positions", "decoder_width", "decoder_attention_heads", "decoder_layers", "num_mel_bins", "type",
)  # fmt: skip
_FREQUENCIES = 201
_MOST_SIZE = 1 << 24
_MOST_LAYERS = 1 << 12
END = b"<|endoftext|>"
BLOCK = {
    "attn_ln": "self_attn_layer_norm", "attn.query": "self_attn.q_proj", "attn.key": "self_attn.k_proj",
    "attn.value": "self_attn.v_proj", "attn.out": "self_attn.out_proj", "mlp_ln": "final_layer_norm", "mlp.0": "fc1",
    "mlp.2": "fc2",
}  # fmt: skip
CROSS = {
    name.replace("attn", "cross_attn"): theirs.replace("self_attn", "encoder_attn")
    for name, theirs in BLOCK.items()
    if "attn" in name
}
"""OpenAI's names in a block, and transformers'."""
OUTSIDE = {
    "encoder.positional_embedding": "model.encoder.embed_positions.weight",
    "encoder.conv1.weight": "model.encoder.conv1.weight", "encoder.conv1.bias": "model.encoder.conv1.bias",
    "encoder.conv2.weight": "model.encoder.conv2.weight", "encoder.conv2.bias": "model.encoder.conv2.bias",
    "encoder.ln_post.weight": "model.encoder.layer_norm.weight",
    "encoder.ln_post.bias": "model.encoder.layer_norm.bias",
    "decoder.positional_embedding": "model.decoder.embed_positions.weight",
    "decoder.token_embedding.weight": "model.decoder.embed_tokens.weight",
    "decoder.ln.weight": "model.decoder.layer_norm.weight", "decoder.ln.bias": "model.decoder.layer_norm.bias",
}  # fmt: skip
_INBLOCK = re.compile(r"(encoder|decoder)\.blocks\.(\d{1,4})\.(.+)\.(weight|bias)")


@dataclass(frozen=True, eq=False)
class GgmlFile:
    """The content of a file."""

    path: Path
    sizes: dict[str, int]
    """The eleven numbers."""
    tokens: tuple[bytes, ...]
    """Those of text, and sometimes `<|endoftext|>`."""
    tensors: dict[str, Stored]
    """By transformers' names."""

    @property
    def texts(self) -> int:
        """The number of tokens of text: the number of the one that ends a text."""
        return self.tokens.index(END) if END in self.tokens else len(self.tokens)

    def config(self) -> dict[str, Any]:
        """The fields that `config.json` would have."""
        found: dict[str, Any] = {"model_type": "whisper", "dtype": "float32"}
        found |= {n: v for n, v in self.sizes.items() if n not in ("decoder_width", "type")}
        for part in ("encoder", "decoder"):
            up = self.tensors.get(f"model.{part}.layers.0.fc1.weight")
            known = up is not None and len(up.shape) == 2
            found[f"{part}_ffn_dim"] = up.shape[0] if known and up else 4 * found["d_model"]
        return found


def is_ggml(path: Path) -> bool:
    """Does a file begin like one of whisper.cpp's? Those that cannot be opened do not."""
    try:
        with open_regular(path) as file:
            return file.read(4) == struct.pack("<I", MAGIC)
    except OSError:
        return False


def read_ggml(path: Path) -> GgmlFile:
    """Reads a file's header and maps its tensors. Raises: UsageError (`bad-checkpoint`) for a file that cannot be read,
    is damaged, or has what is not supported."""
    return _Reader(path).file()


def ggml_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a file. Raises: UsageError (`bad-checkpoint`)."""
    file = read_ggml(path)
    kinds = [each.format for each in file.tensors.values() if each.codes is not None]
    quantization = f"ggml {max(kinds, key=kinds.count)}" if kinds else ""
    return Checkpoint(path, (path,), file.config(), file.tensors, quantization)


def named(name: str) -> str | None:
    """The name that transformers has for a tensor; None if Whisper has no such tensor."""
    block = _INBLOCK.fullmatch(name)
    if block is None:
        return OUTSIDE.get(name)
    part, number, inner, kind = block.groups()
    theirs = BLOCK.get(inner) or (CROSS.get(inner) if part == "decoder" else None)
    return theirs and f"model.{part}.layers.{int(number)}.{theirs}.{kind}"


class _Aligned(Floats):
    """Floats at any place of a file."""

    def _floats(self) -> Array:
        return np.require(super()._floats(), requirements="A")


class _Reader:
    """Reads a file from its beginning to its end."""

    def __init__(self, path: Path) -> None:
        self.path, self.at = path, 0
        try:
            with open_regular(path) as file:
                self.size = os.fstat(file.fileno()).st_size
                if not self.size:
                    raise self.bad("it is empty")
                self.memory: Array = np.asarray(np.memmap(file, np.uint8, "r"))
        except OSError as error:
            raise self.bad(error.strerror or str(error)) from error
        self.view = memoryview(self.memory.data)

    def file(self) -> GgmlFile:
        """All of the file."""
        (magic,) = self.numbers("<I", "its first number")
        if magic != MAGIC:
            raise self.bad(f"it begins with {magic:#010x}, not {MAGIC:#010x}")
        sizes: dict[str, int] = dict(zip(_SIZES, self.numbers("<11i", "its header"), strict=True))
        for name, value in sizes.items():
            most = _MOST_LAYERS if name.endswith("layers") else _MOST_SIZE
            if name != "type" and not 0 < value <= most:
                raise self.bad(f"its header says {name} {value}")
        if sizes["decoder_width"] != sizes["d_model"]:
            raise self.bad(
                f"its encoder is {sizes['d_model']} wide and its decoder {sizes['decoder_width']}: no Whisper is"
            )
        bands, frequencies = self.numbers("<2i", "the header of its filters")
        if (bands, frequencies) != (sizes["num_mel_bins"], _FREQUENCIES):
            raise self.bad(
                f"its filters are {bands} by {frequencies}, not {sizes['num_mel_bins']} by {_FREQUENCIES}"
            )
        self.skip(4 * bands * frequencies, "its filters")
        tokens = self.tokens(sizes["vocab_size"])
        return GgmlFile(self.path, sizes, tokens, self.tensors())

    def tokens(self, most: int) -> tuple[bytes, ...]:
        """The tokens of text."""
        (count,) = self.numbers("<i", "the number of its tokens")
        if not 0 < count <= most:
            raise self.bad(f"it has {count} tokens, and its model {most}")
        found: list[bytes] = []
        for number in range(count):
            (length,) = self.numbers("<I", f"token {number}")
            found.append(bytes(self.skip(length, f"token {number}")))
        if len({*found}) != count:
            raise self.bad("it has a token twice")
        return tuple(found)

    def tensors(self) -> dict[str, Stored]:
        """The tensors by transformers' names."""
        found: dict[str, Stored] = {}
        while self.at < self.size:
            what = f"the header of tensor {len(found)}"
            rank, length, kind = self.numbers("<3i", what)
            if not 1 <= rank <= 4 or not 0 < length <= 1000:
                raise self.bad(
                    f"at byte {self.at - 12} it has a tensor of {rank} axes, with a name of {length} bytes"
                )
            shape = tuple(reversed(self.numbers(f"<{rank}i", what)))
            name = bytes(self.skip(length, what)).decode("utf-8", "replace")
            if min(shape) < 1 or math.prod(shape) > 1 << 48:
                raise self.bad(f"tensor {name} has sizes {shape}")
            data = self.skip(tensor_bytes(name, shape, kind, self.bad), f"tensor {name}")
            theirs = named(name)
            if theirs is None:
                raise self.bad(f"it has the tensor {name}, which no Whisper has")
            if theirs in found:
                raise self.bad(f"it has the tensor {name} twice")
            if name.startswith("encoder.conv") and name.endswith("bias"):
                shape = shape[:-1] if shape[-1:] == (1,) and rank == 2 else shape
            found[theirs] = stored_tensor(shape, kind, np.frombuffer(data, np.uint8), _Aligned)
        return found

    def numbers(self, form: str, of: str) -> tuple[Any, ...]:
        """The numbers of a `struct` format."""
        return struct.unpack(form, self.skip(struct.calcsize(form), of))

    def skip(self, count: int, of: str) -> memoryview:
        """The next bytes."""
        begin = self.at
        if count > self.size - begin:
            raise self.bad(
                f"it ends inside of {of}, {count - (self.size - begin)} bytes early: it is truncated"
            )
        self.at = begin + count
        return self.view[begin : self.at]

    def bad(self, reason: str, help: str | None = None) -> UsageError:
        return UsageError(
            "bad-checkpoint", f"{self.path} cannot be read as a file of whisper.cpp: {reason}", help=help
        )  # fmt: skip
