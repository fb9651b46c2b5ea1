"""Moonshine beside transformers: what the encoder gives, logits in every way in which they come, texts, and those of
a recording."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.models.families import SEQ2SEQ
from relaxpy.serve import Beams, Features
from relaxpy.speech import MoonshineTranscriber, load_transcriber
from tests.llm.checkpoints import write_tokenizer
from tests.models.seq2seq_agreement import Run
from tests.models.seq2seq_checkpoints import seq2seq

RNG = np.random.default_rng(3)


def test_beside_transformers(tmp_path: Path) -> None:
    """Numbers within 2e-5 and equal texts, greedy and with beams, of any number of samples; then the transcription of a
    recording is the text of its samples."""
    torch: Any = pytest.importorskip("torch")
    reference = seq2seq("moonshine", tmp_path)
    write_tokenizer(tmp_path)
    transcriber = load_transcriber(tmp_path, target="llvm -opt-level=0", keep=False)
    assert isinstance(transcriber, MoonshineTranscriber)
    model = transcriber.model
    assert model.alignment_heads == ()
    differences = Run(model, reference).differences()
    assert max(differences.values()) < 2e-5, differences
    for samples in (895, 1278, 1279, 16_001):
        sound = RNG.standard_normal((1, samples)).astype(np.float32)
        assert model.source.length(Features(sound)) == (samples - 895) // 384 + 1
        asked = model.request(Features(sound), max_tokens=20)
        for beams in (1, 3):
            search = Beams(beams) if beams > 1 else None
            found = model.write(dataclasses.replace(asked, beams=search))
            wanted = reference.generate(
                torch.from_numpy(sound), max_new_tokens=20, do_sample=False, num_beams=beams
            )
            assert [*found.tokens] == wanted[0, 1:].tolist(), (samples, beams)
    sound = 0.1 * sound[:, :16_000]
    wanted = reference.generate(torch.from_numpy(sound), max_new_tokens=8, do_sample=False)
    (segment,) = transcriber.transcribe(sound[0])
    assert [*segment.tokens] == wanted[0, 1:].tolist()
    assert (segment.start, segment.end) == (0, 1)
    with pytest.raises(UsageError, match="the encoder reads 895 to 480126 frames, got 894"):
        model.write(model.request(Features(sound[:, :894]), max_tokens=1))


def test_its_configuration() -> None:
    config = SEQ2SEQ["moonshine"].from_dict({})
    assert (config.hidden_size, config.encoder_layers, config.num_hidden_layers) == (288, 6, 6)
    assert (config.gated, config.hidden_act, config.encoder_act) == (True, "silu", "gelu")
    assert (config.stride, config.reach, config.source_positions) == (384, 895, 1248)
    assert config.rope.rotated(config.head_dim) == 32
    other = SEQ2SEQ["moonshine"].from_dict(
        {"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}}
    )
    assert (other.rope.theta, other.rope.rotated(36)) == (500, 18)
    for change, match in (
        ({"is_encoder_decoder": False}, "without its encoder"),
        ({"decoder_num_key_value_heads": 4}, "decoder_num_key_value_heads 4 is another than"),
        ({"decoder_num_attention_heads": 4}, "decoder_num_attention_heads 4 is another than"),
        ({"encoder_num_hidden_layers": 0}, "encoder_num_hidden_layers must be"),
        ({"encoder_hidden_act": "sine"}, "sine"),
    ):
        with pytest.raises(UsageError, match=match):
            SEQ2SEQ["moonshine"].from_dict(change)
