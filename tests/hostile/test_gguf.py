"""Damaged and hostile GGUF files: located errors, in little time and memory, and nothing else."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.checkpoints import gguf_tokenizer, open_checkpoint
from relaxpy.errors import UsageError


def string(text: str | bytes) -> bytes:
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def field(name: str | bytes, kind: int, data: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + data


def u32(name: str, value: int) -> bytes:
    return field(name, 4, struct.pack("<I", value))


def text(name: str, value: str | bytes) -> bytes:
    return field(name, 8, string(value))


FIELDS = {
    "general.architecture": text("general.architecture", "llama"),
    **{
        name: u32(f"llama.{name}", value)
        for name, value in {
            "block_count": 1, "context_length": 32, "embedding_length": 32, "feed_forward_length": 32,
            "attention.head_count": 2,
        }.items()
    },
    "eps": field("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)),
}  # fmt: skip


def tensor(
    name: str | bytes = "output.weight", sizes: tuple[int, ...] = (32, 4), kind: int = 0, offset: int = 0,
    rank: int | None = None,
) -> bytes:  # fmt: skip
    rank = len(sizes) if rank is None else rank
    numbers = struct.pack(f"<I{len(sizes)}QIQ", rank, *sizes, kind, offset)
    return string(name) + numbers


def build(
    *tensors: bytes, magic: bytes = b"GGUF", version: int = 3, counts: tuple[int, int] | None = None,
    more: tuple[bytes, ...] = (), without: str = "", data: int = 4096, align: int = 32, **changes: bytes,
) -> bytes:  # fmt: skip
    fields = [changes.get(name, each) for name, each in FIELDS.items() if name != without]
    fields += more
    tensors = tensors or (tensor(),)
    count = counts or (len(tensors), len(fields))
    head = magic + struct.pack("<IQQ", version, *count) + b"".join(fields) + b"".join(tensors)
    return head + bytes(-len(head) % align) + bytes(data)


HUGE = (1 << 64) - 1
CASES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "GGUF"),
    "only magic": (b"GGUF", "truncated"),
    "half a header": (build()[:20], "truncated"),
    "other magic": (build(magic=b"GGML"), "does not begin with GGUF"),
    "version 1": (build(version=1), "version 1; 2 and 3"),
    "version 4": (build(version=4), "version 4; 2 and 3"),
    "big-endian": (build(version=3 << 24), "version 3 in big-endian order"),
    "huge count of fields": (build(counts=(1, HUGE)), "truncated|unknown type|UTF-8|sizes|twice"),
    "huge count of tensors": (build(counts=(HUGE, 7)), "truncated|axes"),
    "field cut": (build()[:60], "truncated"),
    "tensors cut": (build()[:330], "truncated"),
    "name of huge length": (build(more=(struct.pack("<Q", HUGE),)), "truncated"),
    "name not UTF-8": (build(more=(field(b"\xff\xfe", 4, bytes(4)),)), "not UTF-8"),
    "text not UTF-8": (build(more=(text("general.name", b"\xc3\x28"),)), "not UTF-8"),
    "text of huge length": (build(more=(field("general.name", 8, struct.pack("<Q", 1 << 40)),)), "truncated"),
    "field twice": (build(more=(u32("llama.block_count", 1),)), "field llama.block_count twice"),
    "unknown type of field": (build(more=(field("x", 99, bytes(8)),)), "unknown type, 99"),
    "array of unknown type": (build(more=(field("x", 9, struct.pack("<IQ", 77, 1)),)), "array of an unknown type, 77"),
    "array of arrays": (build(more=(field("x", 9, struct.pack("<IQ", 9, 1) + bytes(12)),)), "array of arrays"),
    "array of huge length": (build(more=(field("x", 9, struct.pack("<IQ", 4, HUGE)),)), "truncated"),
    "array of texts of huge length": (build(more=(field("x", 9, struct.pack("<IQ", 8, 1 << 60)),)), "truncated"),
    "array of bytes of huge length": (build(more=(field("x", 9, struct.pack("<IQ", 0, 1 << 50)),)), "truncated"),
    "alignment 0": (build(more=(u32("general.alignment", 0),)), "alignment is 0"),
    "alignment 24": (build(more=(u32("general.alignment", 24),)), "alignment is 24"),
    "alignment huge": (build(more=(u32("general.alignment", 1 << 31),)), "alignment is"),
    "alignment a text": (build(more=(text("general.alignment", "32"),)), "alignment is '32'"),
    "in parts": (build(more=(field("split.count", 2, struct.pack("<H", 4)),)), "one of 4 parts, and its name"),
    "rank 0": (build(tensor(sizes=())), "0 axes"),
    "rank 5": (build(tensor(sizes=(1,) * 5)), "5 axes"),
    "rank huge": (build(tensor(rank=1 << 31)), "axes"),
    "sizes overflow": (build(tensor(sizes=(1 << 32, 1 << 32))), "sizes"),
    "sizes overflow to 0": (build(tensor(sizes=(1 << 63, 2, 1))), "sizes"),
    "size huge beside 0": (build(tensor(sizes=(HUGE, 0))), "sizes"),
    "tensor beyond the end": (build(tensor(sizes=(32, 4000))), "after the file: it is truncated"),
    "offset beyond the end": (build(tensor(offset=1 << 40)), "after the file"),
    "offset huge": (build(tensor(offset=HUGE - 31)), "after the file"),
    "offset not aligned": (build(tensor(offset=8)), "not at a multiple of 32"),
    "overlap": (build(tensor(), tensor("token_embd.weight", offset=256)), "overlap"),
    "the same place": (build(tensor(), tensor("token_embd.weight")), "overlap"),
    "tensor twice": (build(tensor(), tensor(offset=1024)), "tensor output.weight twice"),
    "tensor name not UTF-8": (build(tensor(b"\xff")), "not UTF-8"),
    "removed type": (build(tensor(kind=4)), "type number 4, which is not supported"),
    "unknown type": (build(tensor(kind=4_000_000_000)), "number 4000000000"),
    "IQ type": (build(tensor(kind=16)), "IQ2_XXS, which is not supported"),
    "Q8_K": (build(tensor(kind=15)), "Q8_K"),
    "rows that blocks do not divide": (build(tensor(sizes=(40, 4), kind=2)), "rows of 40"),
    "rows shorter than a block": (build(tensor(sizes=(32, 4), kind=12)), "rows of 32"),
    "no architecture": (build(without="general.architecture"), "architecture None"),
    "architecture a number": (build(**{"general.architecture": u32("general.architecture", 3)}), "architecture 3"),
    "other architecture": (build(**{"general.architecture": text("general.architecture", "rwkv")}), "'rwkv'"),
    "no block count": (build(without="block_count"), "lacks the field llama.block_count"),
    "no heads": (build(without="attention.head_count"), "lacks the field llama.attention.head_count"),
    "heads 0": (build(**{"attention.head_count": u32("llama.attention.head_count", 0)}), "head_count is 0"),
    "heads by layer": (
        build(**{"attention.head_count": field("llama.attention.head_count", 9, struct.pack("<IQ2I", 4, 2, 2, 4))}),
        "head_count is 2 values",
    ),
    "block count a text": (build(block_count=text("llama.block_count", "1")), "block_count is '1'"),
    "epsilon a bool": (build(eps=field("llama.attention.layer_norm_rms_epsilon", 7, b"\1")), "is True"),
    "experts": (build(more=(u32("llama.expert_count", 8),)), "mixtures of experts"),
    "other scaling": (build(more=(text("llama.rope.scaling.type", "magic"),)), "'magic', which is not supported"),
    "keys of another length": (
        build(more=(u32("llama.attention.key_length", 16), u32("llama.attention.value_length", 8))),
        "other lengths",
    ),
    "factors of another type": (build(tensor("rope_freqs.weight", (16,), 1)), "not a list of F32"),
    "one name in two ways": (
        build(tensor("blk.0.attn_q.weight", (32, 32)), tensor("blk.00.attn_q.weight", (32, 32), offset=4096), data=9000),
        "the same one of the model",
    ),
}  # fmt: skip


def outcome(path: Path) -> str:
    """The code of the error, or "text" for a file whose tensors and tokenizer can be read."""
    try:
        for each in open_checkpoint(path).tensors.values():
            each.read()
        gguf_tokenizer(path)
    except UsageError as error:
        return error.code
    return "text"


@pytest.mark.parametrize("name", CASES)
def test_a_located_error(name: str, tmp_path: Path) -> None:
    data, message = CASES[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=message) as caught:
        open_checkpoint(path)
    assert caught.value.code == "bad-checkpoint"
    assert str(path) in str(caught.value)


def test_the_undamaged_file_opens(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(build())
    found = open_checkpoint(path)
    assert found.tensors["lm_head.weight"].read().shape == (4, 32)


def test_no_file_at_all(tmp_path: Path) -> None:
    import os

    (tmp_path / "folder.gguf").mkdir()
    os.mkfifo(tmp_path / "pipe.gguf")
    for name in ("none.gguf", "folder.gguf", "pipe.gguf"):
        with pytest.raises(UsageError) as caught:
            open_checkpoint(tmp_path / name)
        assert caught.value.code == "bad-checkpoint"


# A name of a field that nobody knows is told.
@pytest.mark.filterwarnings("ignore::relaxpy.checkpoints.unread.UnreadWarning")
@pytest.mark.parametrize("seed", range(40))
def test_bytes_changed_anywhere(seed: int, tmp_path: Path) -> None:
    """The file opens, or is refused; tensors that are there are read."""
    random = np.random.default_rng(seed)
    whole = build(
        tensor(), tensor("token_embd.weight", (32, 4), 2, 512),
        more=(text("tokenizer.ggml.model", "gpt2"), field("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + string("a") + string("b"))),
    )  # fmt: skip
    head = len(whole) - 4096
    path = tmp_path / "model.gguf"
    for _ in range(25):
        data = bytearray(whole)
        for _ in range(random.integers(1, 4)):
            data[random.integers(head)] = random.integers(256)
        path.write_bytes(
            bytes(data[: random.integers(head // 2, len(data))]) if seed % 2 else bytes(data)
        )
        for read in (_read_all, gguf_tokenizer):
            try:
                read(path)
            except UsageError as error:
                assert error.code == "bad-checkpoint"  # noqa: PT017 (any of many)
                assert str(path) in str(error)  # noqa: PT017


def _read_all(path: Path) -> Any:
    return [each.read() for each in open_checkpoint(path).tensors.values()]
