"""Files of whisper.cpp: tensors, tokens, damage, and a recording as text by one."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.checkpoints import open_checkpoint
from relaxpy.checkpoints.ggml import is_ggml, read_ggml
from relaxpy.checkpoints.ggml_tokenizer import merges
from relaxpy.errors import UsageError
from relaxpy.llm.tokenizer import Tokenizer
from relaxpy.models.families import config_from, decoder_config
from relaxpy.speech import load_transcriber
from tests.checkpoints.ggml_files import ggml_file, tensor
from tests.sweeps import FULL, full

SPEECH = Path(__file__).parents[1] / "speech"
DIGITS, PAUSES = SPEECH / "digits", SPEECH / "recorded/pauses.flac"


def written(folder: Path, kind: str, **options: Any) -> Path:
    path = folder / f"ggml-{kind}.bin"
    path.write_bytes(ggml_file(DIGITS, kind, **options))
    return path


@pytest.mark.parametrize(("kind", "limit"), [("f32", 0), ("f16", 0), ("q8_0", 0.006), ("q5_0", 0.05)])  # fmt: skip
def test_tensors(tmp_path: Path, kind: str, limit: float) -> None:
    """Those of the checkpoint that it was written from; a code is off by the share of a block's largest number."""
    path = written(tmp_path, kind)
    assert is_ggml(path)
    found, wanted = open_checkpoint(path), open_checkpoint(DIGITS)
    assert {*found.tensors} == {*wanted.tensors} - {"proj_out.weight"}
    for name, stored in found.tensors.items():
        ours, theirs = stored.read(), wanted.tensors[name].read()
        assert ours.shape == theirs.shape, name
        assert ours.flags.aligned
        error = np.abs(ours.astype(np.float64) - theirs).max()
        assert error <= limit * np.abs(theirs).max() + 1e-9, name
    assert any(each.codes is not None for each in found.tensors.values()) == (limit > 0)
    assert found.has_codes == bool(found.quantization) == (limit > 0)
    assert decoder_config(DIGITS, "float32") == config_from(found.config, "float32")


@pytest.mark.parametrize("with_end", [False, True])
def test_tokens(tmp_path: Path, with_end: bool) -> None:
    """Merges that are found again; the names of those that control."""
    found = Tokenizer.from_checkpoint(written(tmp_path, "f16", with_end=with_end))
    wanted = Tokenizer.from_checkpoint(DIGITS)
    assert len(found) == len(wanted) == 218
    assert found.end_tokens == wanted.end_tokens
    for text in (" one two three", " nine-eight, seven.", "four's", "", " zero<|endoftext|>"):
        assert found.encode_literally(text) == wanted.encode_literally(text), text
    rng = random.Random(0)
    for _ in range(50):
        tokens = [rng.randrange(57) for _ in range(rng.randrange(12))]
        assert found.decode(tokens) == wanted.decode(tokens)
    for text in ("endoftext", "startoftranscript", "en", "translate", "notimestamps", "0.00", "3.00"):  # fmt: skip
        assert found.number(f"<|{text}|>") == wanted.number(f"<|{text}|>"), text
    assert found.token_text(60) == "<|zh|>"  # the second language of Whisper; files name none


def test_merges() -> None:
    """A token is merged from its parts by those before it, not by those after; one that no merge reaches has none."""
    order = [b"a", b"b", b"c", b"bc", b"ab", b"abc", b"aab", b"cba"]
    numbers = {token: n for n, token in enumerate(order)}
    assert merges(numbers) == [(b"b", b"c"), (b"a", b"b"), (b"a", b"bc"), (b"a", b"ab")]


@full
def test_a_recording(tmp_path: Path) -> None:
    """As text, by codes of 5 bits that are kept."""
    transcriber: Any = load_transcriber(written(tmp_path, "q5_0"), target="llvm" if FULL else "llvm -opt-level=0")  # fmt: skip
    transcriber.vocabulary.is_multilingual = (
        True  # files say it by the number of tokens, 51865 or more
    )
    segments = transcriber.transcribe(PAUSES, language="en")
    assert [segment.text for segment in segments] == [" four", " nine zero", " seven"]
    assert transcriber.recogniser.model.decoder.scheme.bits is None


def changed(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + struct.pack("<i", value) + data[at + 4 :]


def test_damaged(tmp_path: Path) -> None:
    """Files that are cut at any place, and numbers that cannot be."""
    path = tmp_path / "bad.bin"
    data = ggml_file(DIGITS, "q8_0")
    tokens = 56 + 4 * 80 * 201

    def message(content: bytes) -> str:
        path.write_bytes(content)
        with pytest.raises(UsageError) as caught:
            read_ggml(path)
        assert caught.value.code == "bad-checkpoint"
        assert str(path) in caught.value.message
        return caught.value.message

    rng = random.Random(0)
    for length in [0, 3, 4, 47, 48, 55, 56, tokens, tokens + 3, *(rng.randrange(len(data)) for _ in range(30))]:  # fmt: skip
        text = message(data[:length])
        assert "truncated" in text or "is empty" in text, length
    assert "begins with 0x00000007" in message(changed(data, 0, 7))
    assert "vocab_size -1" in message(changed(data, 4, -1))
    assert "encoder_layers 100000" in message(changed(data, 20, 100_000))
    assert "96 wide and its decoder 95" in message(changed(data, 28, 95))
    assert "filters are 81 by 201, not 80" in message(changed(data, 48, 81))
    assert "it has 219 tokens, and its model 218" in message(changed(data, tokens, 219))
    assert "which no Whisper has" in message(data + tensor("decoder.blocks.0.other.weight", np.ones(3), "f32"))  # fmt: skip
    assert "ln.bias twice" in message(data + tensor("decoder.ln.bias", np.ones(96), "f32"))
    assert "Q8_0, has rows of 48" in message(
        data + changed(tensor("decoder.ln.bias", np.ones(48), "f32"), 8, 8)
    )
    assert "of type Q8_1, which is not supported" in message(
        data + changed(tensor("decoder.ln.bias", np.ones(48), "f32"), 8, 9)
    )
    assert "a tensor of 0 axes" in message(data + bytes(12))
    first = tokens + 4
    assert "a token twice" in message(data[: first + 4] + data[first + 9 : first + 10] + data[first + 5 :])  # fmt: skip


def test_other_sizes_are_named(tmp_path: Path) -> None:
    """Tensors that the header says and are not there are missing to the model; too few tokens for the names are an
    error."""
    path = tmp_path / "bad.bin"
    path.write_bytes(changed(ggml_file(DIGITS, "f16"), 36, 2))
    found = open_checkpoint(path)
    sources = config_from(found.config).sources_in(found.tensors)
    missing = {each.name for each in sources.values()} - {*found.tensors}
    assert len(missing) == 24
    assert all(name.startswith("model.decoder.layers.1.") for name in missing)
    path.write_bytes(changed(ggml_file(DIGITS, "f16"), 4, 216))
    with pytest.raises(UsageError, match="which leaves 0 for languages"):
        Tokenizer.from_checkpoint(path)


def test_pickles_are_refused(tmp_path: Path) -> None:
    for name, start in {"tiny.pt": b"PK\x03\x04", "old.pt": b"\x80\x02"}.items():
        (tmp_path / name).write_bytes(start + bytes(50))
        with pytest.raises(UsageError, match="is a pickle of torch") as caught:
            load_transcriber(tmp_path / name)
        assert "ggml-tiny.bin" in str(caught.value.help)
