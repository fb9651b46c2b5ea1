"""Parakeet beside transformers: features, logits of ragged batches, texts; what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.checkpoints.config_keys import unread_fields
from relaxpy.errors import UsageError
from relaxpy.models.families import ctc_config
from relaxpy.models.parakeet import ParakeetConfig
from relaxpy.speech import CtcTranscriber, load_transcriber
from tests.sweeps import FULL

ENCODER = {
    "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 65,
    "conv_kernel_size": 5, "subsampling_factor": 4, "subsampling_conv_channels": 7, "num_mel_bins": 20,
    "initializer_range": 0.2,
}  # fmt: skip
PIECES = ["<unk>", "\u2581the", "\u2581a", "\u2581", "ing", *"abcdefghijklmnopqrstuvwxy"]


def parakeet(folder: Path) -> tuple[Any, Any]:
    """A model of transformers and its processor, written to the folder."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    tokenizers: Any = pytest.importorskip("tokenizers")
    torch.manual_seed(0)
    config = transformers.ParakeetCTCConfig(vocab_size=31, pad_token_id=30, encoder_config=ENCODER)
    model = transformers.ParakeetForCTC(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
        for name, buffer in model.named_buffers():
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 2)
            elif name.endswith("running_mean"):
                buffer.normal_()
    model.save_pretrained(folder)
    vocab = [(text, 0.0) for text in PIECES]
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram(vocab, unk_id=0))
    backend.decoder = tokenizers.decoders.Metaspace()
    tokenizer = transformers.ParakeetTokenizer(tokenizer_object=backend, pad_token="<pad>")
    extractor = transformers.ParakeetFeatureExtractor(feature_size=20)
    processor = transformers.ParakeetProcessor(extractor, tokenizer)
    processor.save_pretrained(folder)
    return model, processor


def test_beside_transformers(tmp_path: Path) -> None:
    """A ragged batch of 7, of lengths beside those at which a frame begins, rows by themselves, and a text."""
    torch: Any = pytest.importorskip("torch")
    reference, processor = parakeet(tmp_path)
    target = "llvm" if FULL else "llvm -opt-level=0"
    own = load_transcriber(tmp_path, target=target, keep=False)
    assert isinstance(own, CtcTranscriber)
    model: Any = own.model
    config = ParakeetConfig.from_checkpoint(tmp_path)
    assert (config.hop, config.reach, config.frames(640), config.frames(800)) == (640, 320, 1, 2)
    rng = np.random.default_rng(0)
    lengths = [320, 479, 480, 5000, 3201, 3839, 641]
    rows = [rng.standard_normal(length).astype(np.float32) for length in lengths]
    given = processor.feature_extractor(rows, sampling_rate=16_000, return_tensors="pt")
    samples = np.zeros((7, max(lengths)), np.float32)
    for row, values in zip(samples, rows):
        row[: len(values)] = values
    features = model.vm["features"](samples, np.array(lengths)).numpy()
    wanted = given["input_features"].numpy()[:, : features.shape[1]]
    np.testing.assert_allclose(features, wanted, atol=2e-5)
    with torch.no_grad():
        wanted = reference(**given).logits.numpy()
    assert np.abs(wanted).max() > 2
    found = model.logits(samples, np.array(lengths))
    for ours, theirs, row in zip(found, wanted, rows):
        frames = config.frames(len(row))
        np.testing.assert_allclose(ours[:frames], theirs[:frames], atol=2e-5, rtol=2e-6)
        alone = model.logits(row[None], np.array([len(row)]))
        assert alone.shape == (1, frames, 31)
        np.testing.assert_allclose(alone[0], theirs[:frames], atol=2e-5, rtol=2e-6)
    long = rng.standard_normal(30_011).astype(np.float32)
    given = processor.feature_extractor(long, sampling_rate=16_000, return_tensors="pt")
    with torch.no_grad():
        tokens = reference(**given).logits[0].argmax(-1)[: config.frames(len(long))]
    wanted = processor.tokenizer.decode(tokens)
    segments = [*own.transcribe(long, word_timestamps=True)]
    assert "".join(each.text for each in segments).split() == wanted.split()
    assert wanted


def test_configurations() -> None:
    base = ParakeetConfig.from_dict({"model_type": "parakeet_ctc"})
    assert (base.hop, base.hidden_size, base.num_mel_bins, base.bands) == (1280, 1024, 80, 10)
    fields: dict[str, Any] = {"model_type": "parakeet_ctc", "encoder_config": ENCODER}
    for change, message in {
        "subsampling_factor": "subsampling_factor is 3, not a power of two",
        "subsampling_conv_stride": "subsampling_conv_stride = 3 is not supported",
        "num_mel_bins": "which must be a multiple of 4",
    }.items():
        with pytest.raises(UsageError, match=message):
            ctc_config({**fields, "encoder_config": {**ENCODER, change: 3}})
    with pytest.raises(UsageError, match="encoder_config must have fields"):
        ctc_config({**fields, "encoder_config": [1]})
    with pytest.raises(UsageError, match="conv_kernel_size is 4, which must be odd"):
        ctc_config({**fields, "encoder_config": {**ENCODER, "conv_kernel_size": 4}})
    assert unread_fields(fields) == []
    odd = {**fields, "encoder_config": {**ENCODER, "chunked": 3}}
    assert unread_fields(odd) == ["encoder_config.chunked = 3"]
