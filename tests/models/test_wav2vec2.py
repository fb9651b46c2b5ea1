"""wav2vec 2.0 and HuBERT beside transformers: logits of ragged batches, texts of recordings; what is refused."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.llm.language_model import SPEECH
from relaxpy.models.families import CTC, ctc_config, decoder_config
from relaxpy.models.hubert import HubertConfig
from relaxpy.models.loaded import Scheme
from relaxpy.models.loaded_ctc import load_ctc
from relaxpy.models.wav2vec2 import Wav2Vec2Config
from relaxpy.speech import CtcTranscriber, WhisperModel, ctc, load_transcriber
from relaxpy.speech.load import CTC_TYPES
from tests.models.ctc_checkpoints import HOP, SIZES, ctc_model
from tests.sweeps import FULL, full, sweep

TARGET = "llvm" if FULL else "llvm -opt-level=0"
LAYERED = {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "wav2vec2": ("Wav2Vec2", {}),
    "hubert": ("Hubert", {**LAYERED, "conv_pos_batch_norm": True, "num_conv_pos_embeddings": 13}),
    **({"layered": ("Wav2Vec2", LAYERED), "plain": ("Hubert", {"feat_proj_layer_norm": False})} if FULL else {}),
}  # fmt: skip


def compiled(
    folder: Path, case: str, scheme: Scheme | None = None
) -> tuple[Any, CtcTranscriber, Any]:
    """A checkpoint by transformers and by us, and its configuration."""
    kind, settings = CASES[case]
    reference = ctc_model(folder, kind, **settings)
    config = (HubertConfig if kind == "Hubert" else Wav2Vec2Config).from_checkpoint(folder)
    own = load_transcriber(folder, scheme=scheme, target=TARGET)
    assert isinstance(own, CtcTranscriber)
    return reference, own, config


def logits(model: Any, samples: np.ndarray, lengths: list[int]) -> np.ndarray:
    """By transformers, with a mask."""
    torch: Any = pytest.importorskip("torch")
    there = np.arange(samples.shape[1]) < np.array(lengths)[:, None]
    with torch.no_grad():
        given = torch.from_numpy(samples), torch.from_numpy(there.astype(np.int64))
        return model(given[0], attention_mask=given[1]).logits.numpy()


@sweep(2)
@pytest.mark.parametrize("case", CASES)
def test_beside_transformers(tmp_path: Path, case: str) -> None:
    """A ragged batch of 7, of lengths beside those at which a frame begins, then rows by themselves; and the text of a
    recording, by one window and by several."""
    reference, transcriber, config = compiled(tmp_path, case)
    own: Any = transcriber.model
    assert (config.hop, own.hop, own.reach) == (HOP, HOP, config.reach)
    assert config.frames(config.reach) == 1
    assert config.frames(config.reach - 1) == 0
    rng = np.random.default_rng(0)
    first = config.reach
    lengths = [first, first + HOP - 1, first + HOP, 997, 1499, 1201, 701]
    samples = np.zeros((7, max(lengths)), np.float32)
    for row, length in zip(samples, lengths):
        row[:length] = rng.standard_normal(length)
    found = own.logits(samples, np.array(lengths))
    wanted = logits(reference, samples, lengths)
    assert found.shape == wanted.shape
    assert np.abs(wanted).max() > 2
    for ours, theirs, length in zip(found, wanted, lengths):
        frames = config.frames(length)
        np.testing.assert_allclose(ours[:frames], theirs[:frames], atol=2e-5, rtol=2e-6)
    for length in (first, first + HOP, 1499):
        alone = own.logits(samples[4:5, :length], np.array([length]))
        wanted = logits(reference, samples[4:5, :length], [length])
        np.testing.assert_allclose(alone, wanted, atol=2e-5, rtol=2e-6)
    again: Any = load_transcriber(tmp_path, target=TARGET)  # what was compiled and packed is kept
    np.testing.assert_array_equal(again.model.logits(samples, np.array(lengths)), found)
    if case == "wav2vec2":
        check_texts(tmp_path, transcriber, reference)


def check_texts(folder: Path, transcriber: CtcTranscriber, reference: Any) -> None:
    """The texts and the times of words that transformers' pipeline gives, in windows of the same length."""
    transformers: Any = pytest.importorskip("transformers")
    processor = transformers.AutoProcessor.from_pretrained(folder)
    pipeline = transformers.pipeline(
        "automatic-speech-recognition",
        model=reference,
        tokenizer=processor.tokenizer,
        feature_extractor=processor.feature_extractor,
    )
    samples = np.random.default_rng(1).standard_normal(21_017).astype(np.float32)
    for window, edge in ((30.0, 5.0), (0.6, 0.09)):
        options = {} if window > 1 else {"chunk_length_s": window, "stride_length_s": edge}
        wanted = pipeline(samples.copy(), return_timestamps="word", **options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ctc, "WINDOW", window)
            patch.setattr(ctc, "EDGE", edge)
            segments = [*transcriber.transcribe(samples, word_timestamps=True)]
        text = "".join(segment.text for segment in segments)
        assert text.split() == wanted["text"].split()
        assert len(text.split()) > 3
        words = [word for segment in segments for word in segment.words or ()]
        for ours, theirs in itertools.zip_longest(words, wanted["chunks"]):
            assert ours.word.strip() == theirs["text"].strip()
            assert np.allclose((ours.start, ours.end), theirs["timestamp"], atol=0.011)


@full
@pytest.mark.parametrize("bits", [8, 4])
def test_quantised(tmp_path: Path, bits: int) -> None:
    reference, own, _ = compiled(tmp_path, "wav2vec2", Scheme(bits=bits))
    samples = np.random.default_rng(0).standard_normal((1, 1499)).astype(np.float32)
    wanted = logits(reference, samples, [1499])
    found = own.model.logits(samples, np.array([1499]))
    cosine = (found * wanted).sum() / np.linalg.norm(found) / np.linalg.norm(wanted)
    assert cosine > (0.999 if bits == 8 else 0.9)


def test_configurations() -> None:
    assert {*CTC} == {*CTC_TYPES} == {*SPEECH} - {"whisper", "moonshine"}
    base = Wav2Vec2Config.from_dict({"model_type": "wav2vec2"})
    assert (base.hop, base.reach, base.frames(480_000)) == (320, 400, 1499)
    for change, message in {
        "add_adapter": "add_adapter = True is not supported",
        "conv_dim": "conv_dim must be a list of sizes, got True",
        "feat_extract_norm": "feat_extract_norm must be a name",
    }.items():
        with pytest.raises(UsageError, match=message):
            ctc_config({**SIZES, "model_type": "hubert", change: True})
    with pytest.raises(UsageError, match="have 3, 2 and 3 numbers"):
        ctc_config({**SIZES, "model_type": "wav2vec2", "conv_stride": [5, 4]})
    with pytest.raises(UsageError, match="neither 'group' nor 'layer'"):
        ctc_config({**SIZES, "model_type": "wav2vec2", "feat_extract_norm": "batch"})
    with pytest.raises(UsageError, match="pad_token_id 31, the blank, is not below vocab_size 31"):
        ctc_config({**SIZES, "model_type": "wav2vec2", "pad_token_id": 31})
    with pytest.raises(UsageError, match="which gives no tokens of frames"):
        ctc_config({"model_type": "llama"})


def test_refused(tmp_path: Path) -> None:
    """Before anything is compiled."""
    ctc_model(tmp_path, "Wav2Vec2")
    with pytest.raises(UsageError, match="hears, and writes no other texts"):
        decoder_config(tmp_path)
    with pytest.raises(UsageError, match="takes no cache_dtype"):
        load_ctc(tmp_path, Scheme(bits=None, cache_dtype="int8"))
    with pytest.raises(UsageError, match="takes no dtype"):
        load_ctc(tmp_path, Scheme(bits=None, dtype="bfloat16"))
    (tmp_path / "processor_config.json").unlink()
    (tmp_path / "preprocessor_config.json").write_text('{"sampling_rate": 8000}')
    with pytest.raises(UsageError, match="sampling_rate is 8000, and must be 16000"):
        WhisperModel(tmp_path)
