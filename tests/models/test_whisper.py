"""Whisper beside transformers: encoder, prompt, decoding, ragged batches and alignment; its configuration."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.checkpoints import open_checkpoint
from relaxpy.checkpoints.unread import UnreadWarning
from relaxpy.errors import RelaxError, UsageError
from relaxpy.models.checkpoint import read_weights
from relaxpy.models.decoder_plan import plan_decoder
from relaxpy.models.encoder_decoder import EncoderDecoder, encoder_decoder_spec, load_weights
from relaxpy.models.families import SEQ2SEQ, checkpoint_sources, decoder_config
from relaxpy.models.loaded import Scheme, load_decoder
from relaxpy.models.whisper import WhisperConfig
from tests.models.whisper_checkpoints import FRAMES, logits, sound, whisper
from tests.sweeps import FULL, full, quick_target

HEADS = ((0, 1), (1, 3), (1, 0))
POSITIONS = FRAMES // 2


class Compiled:
    """A checkpoint with its functions, weights, and pages."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        mels = changes.pop("num_mel_bins", 80)
        self.reference = whisper(folder, num_mel_bins=mels)
        config = decoder_config(folder)
        assert isinstance(config, WhisperConfig)
        self.config = dataclasses.replace(config, page_size=16, alignment_heads=HEADS, **changes)
        mod, _ = EncoderDecoder(self.config).export(encoder_decoder_spec(self.config))
        self.vm = relaxpy.VirtualMachine(relaxpy.build(mod, quick_target(), pack=True))
        names = checkpoint_sources(self.config, folder)
        unused = sorted(self.config.ignored())
        self.weights = self.vm.pack(folder, names=names, keep=False, unused=unused)
        self.sources = self.vm["alloc_sources"](20)
        self.caches = self.vm["alloc_pages"](12)

    def encode(self, features: np.ndarray, tables: np.ndarray) -> None:
        self.vm["encode"](features, tables, self.sources, *self.weights["encode"])

    def step(
        self, texts: list[np.ndarray], tables: np.ndarray, lengths: list[int]
    ) -> list[np.ndarray]:
        """The logits after all tokens of each text."""
        counts = [len(each) for each in texts]
        widths = [-(-n // 16) for n in counts]
        own = np.full((1, len(texts), max(widths)), -1, np.int32)
        for row, (width, first) in enumerate(zip(widths, np.cumsum([0, *widths]), strict=False)):
            own[0, row, :width] = range(first, first + width)
        tokens = np.concatenate(texts)
        positions = np.concatenate([np.arange(n) for n in counts])
        starts = np.cumsum([0, *counts]).astype(np.int32)
        found = self.vm["step"](
            tokens, positions, starts, own, np.array(counts, np.int32), np.arange(len(tokens), dtype=np.int32),
            self.caches, tables, np.array(lengths, np.int32), self.sources, *self.weights["step"],
        )  # fmt: skip
        return np.split(found.numpy(), starts[1:-1])


def cross_weights(model: Any, features: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """The attention of HEADS by transformers."""
    torch: Any = pytest.importorskip("torch")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        given = torch.from_numpy(features[None]), torch.from_numpy(tokens[None])
        found = model(given[0], decoder_input_ids=given[1], output_attentions=True)
    return np.stack([found.cross_attentions[layer][0, head].numpy() for layer, head in HEADS])


@pytest.mark.parametrize("mels", [80, *([128, 7] if FULL else [])])
def test_beside_transformers(tmp_path: Path, mels: int) -> None:
    """Logits of ragged texts over inputs in any pages, one of them for two texts, and the weights of attention; then the
    same to the bit for each alone, and with inputs encoded one at a time."""
    own = Compiled(tmp_path, num_mel_bins=mels)
    rng = np.random.default_rng(0)
    features = np.stack([sound(rng, mels=mels) for _ in range(3)])
    tables = rng.permutation(20)[:15].reshape(3, 5).astype(np.int32)
    own.encode(features, tables)
    texts = [rng.integers(0, 131, n) for n in (17, 9, 1, 33)]
    chosen = [0, 1, 2, 1]
    found = own.step(texts, tables[chosen], [POSITIONS] * 4)
    for text, number, each in zip(texts, chosen, found, strict=True):
        wanted = logits(own.reference, features[number], text)
        np.testing.assert_allclose(each, wanted, atol=2e-5, rtol=2e-6)
    following, every = np.append(texts[3][1:], 0), np.array([131], np.int64)
    weights, logprobs = (
        each.numpy()
        for each in own.vm["align"](
            texts[3],
            np.arange(33),
            np.array([0, 33], np.int32),
            np.array([[[4, 7, 1]]], np.int32),
            np.array([33], np.int32),
            np.arange(33, dtype=np.int32),
            own.caches,
            tables[1:2],
            np.array([POSITIONS], np.int32),
            own.sources,
            following,
            every,
            *own.weights["align"],
        )
    )
    rows = found[3].astype(np.float64)
    probable = rows[range(33), following] - np.log(np.exp(rows).sum(1))
    np.testing.assert_allclose(logprobs, probable, atol=1e-5)
    assert weights.shape == (3, 33, 80)
    wanted = cross_weights(own.reference, features[1], texts[3])
    np.testing.assert_allclose(weights[..., :POSITIONS], wanted, atol=2e-5)
    assert (weights[..., POSITIONS:] == 0).all()
    for number in range(3):
        own.encode(features[number : number + 1], tables[number : number + 1])
    for text, number, each in zip(texts, chosen, found, strict=True):
        (alone,) = own.step([text], tables[number : number + 1], [POSITIONS])
        np.testing.assert_array_equal(alone, each)


def test_shorter_inputs_and_none(tmp_path: Path) -> None:
    """Fewer frames than a window has have fewer positions; a text without an input attends to nothing. Inputs that are
    too long, and pages that are not there, are refused."""
    own = Compiled(tmp_path)
    rng = np.random.default_rng(1)
    text = rng.integers(0, 131, 5)
    for frames in (1, 2, 31, 32, 33, 149):
        given, length = sound(rng, frames), -(-frames // 2)
        own.encode(given[None], np.array([[3, 1, 0, 2, 9]], np.int32))
        (found,) = own.step([text], np.array([[3, 1, 0, 2, 9]], np.int32), [length])
        wanted = shorter(own.reference, given, length, text)
        np.testing.assert_allclose(found, wanted, atol=2e-5, rtol=2e-6)
    (nothing,) = own.step([text], np.full((1, 1), -1, np.int32), [0])
    assert np.isfinite(nothing).all()
    with pytest.raises(RelaxError):
        own.encode(sound(rng, FRAMES + 1)[None], np.zeros((1, 5), np.int32))
    for page in (-1, 20):
        with pytest.raises(RelaxError, match="source tables"):
            own.encode(sound(rng)[None], np.array([[0, 1, 2, 3, page]], np.int32))
    with pytest.raises(RelaxError, match="source tables"):
        own.step([text], np.array([[20]], np.int32), [3])


def shorter(model: Any, features: np.ndarray, length: int, tokens: np.ndarray) -> np.ndarray:
    """transformers takes whole windows only: the same weights in a model of shorter ones."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    fields = {**model.config.to_dict(), "max_source_positions": length}
    other = transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(**fields)
    ).eval()
    state = model.state_dict()
    place = "model.encoder.embed_positions.weight"
    other.load_state_dict({**state, place: state[place][:length]})
    even = np.zeros((len(features), 2 * length), np.float32)
    even[:, : features.shape[1]] = features
    if (
        features.shape[1] % 2
    ):  # the last frame is followed by the border of zeros of the second convolution, not of the first
        x = torch.from_numpy(features[None])
        encoder = other.model.encoder
        with torch.no_grad():
            gelu = torch.nn.functional.gelu
            y = gelu(encoder.conv2(gelu(encoder.conv1(x))))
            y = y.permute(0, 2, 1) + state[place][:length]
            for layer in encoder.layers:
                y = layer(y, None)
                y = y[0] if isinstance(y, tuple) else y
            y = encoder.layer_norm(y)
            output = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=y)
            given = torch.tensor([[*tokens]])
            return other(encoder_outputs=output, decoder_input_ids=given).logits[0].numpy()
    return logits(other, even, tokens)


SCHEMES: dict[str, tuple[Scheme, float]] = {
    "int8 sources": (Scheme(None, source_dtype="int8"), 0.05),
    "bfloat16": (Scheme(None, dtype="bfloat16"), 0.08),
    "bfloat16 sources": (Scheme(None, source_dtype="bfloat16"), 0.05),
    "8 bits": (Scheme(8, activations=None), 0.05),
    "4 bits": (Scheme(4, activations=None), 0.6),
}
"""With the largest difference of log-probabilities' standard deviation that rounding makes, of that of all logits."""


@full
@pytest.mark.parametrize("name", SCHEMES if FULL else ["8 bits"])
def test_schemes(tmp_path: Path, name: str) -> None:
    """Loaded in every scheme: logits near those of floats, and a plan to the byte."""
    scheme, most = SCHEMES[name]
    reference = whisper(tmp_path, decoder_layers=3)
    loaded = load_decoder(tmp_path, scheme, target=str(quick_target()), keep=False)
    assert loaded.source is not None
    assert (loaded.source.frames, loaded.source.mels) == (FRAMES, 80)
    assert loaded.alignment_heads == tuple((n, h) for n in (1, 2) for h in range(4))
    features = sound(np.random.default_rng(2))
    vm = loaded.vm
    caches, sources = vm["alloc_pages"](2), vm["alloc_sources"](3)
    tables = np.array([[2, 0, 1]], np.int32)
    vm["encode"](features[None], tables, sources, *loaded.weights_of("encode"))
    tokens = np.random.default_rng(3).integers(0, 131, 21)
    found = vm["step"](
        tokens, np.arange(21), np.array([0, 21], np.int32), np.array([[[1]]], np.int32), np.array([21], np.int32),
        np.arange(21, dtype=np.int32), caches, tables, np.array([POSITIONS], np.int32), sources, *loaded.weights,
    ).numpy()  # fmt: skip
    wanted = logits(reference, features, tokens)
    assert np.std(found - wanted) < most * np.std(wanted)
    plan = plan_decoder(tmp_path, scheme, context=40, batch=2)
    assert plan.weights == loaded.packed.nbytes
    held = [sum(each.nbytes for layer in pages for each in layer) for pages in (caches, sources)]
    assert [plan.page * 2, plan.source_page * 3] == held
    assert (plan.pages, plan.source_pages, plan.sources) == (4, 6, 2 * held[1])
    assert "sources" in str(plan)
    assert plan.as_data()["sources"] == plan.sources


def test_alignment_heads_of_a_checkpoint(tmp_path: Path) -> None:
    whisper(tmp_path)
    path = tmp_path / "generation_config.json"
    for wrong in (
        {"alignment_heads": [[0]]},
        {"alignment_heads": [[0, -1]]},
        {"alignment_heads": 3},
    ):
        path.write_text(json.dumps(wrong))
        with pytest.raises(UsageError, match="pairs of a layer and a head"):
            load_decoder(tmp_path, Scheme(None), keep=False)
    path.write_text(json.dumps({"alignment_heads": [[0, 4]]}))
    with pytest.raises(UsageError, match="head 4 of layer 0"):
        load_decoder(tmp_path, Scheme(None), keep=False)


def test_a_loaded_module(tmp_path: Path) -> None:
    """Weights are taken strictly, by names with the prefix and without it."""
    whisper(tmp_path)
    config = decoder_config(tmp_path)
    assert isinstance(config, WhisperConfig)
    tensors = read_weights(tmp_path)
    model = EncoderDecoder(config)
    load_weights(model, tensors)
    load_weights(model, {name.removeprefix("model."): x for name, x in tensors.items()})
    with pytest.raises(RelaxError, match=r"missing: model\.encoder\.conv2\.bias"):
        load_weights(model, {n: x for n, x in tensors.items() if n != "model.encoder.conv2.bias"})
    with pytest.raises(RelaxError, match="unexpected: x"):
        load_weights(model, {**tensors, "x": np.zeros(1, np.float32)})


FIELDS: dict[str, Any] = {
    "model_type": "whisper",
    "d_model": 48,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
}


def test_its_configuration() -> None:
    """Fields are transformers' by default; what cannot be followed is refused."""
    config = SEQ2SEQ["whisper"].from_dict({"model_type": "whisper"})
    assert (config.hidden_size, config.encoder_layers, config.num_hidden_layers) == (384, 4, 4)
    assert (config.mels, config.source_positions, config.max_position_embeddings) == (80, 1500, 448)
    assert config.stride == 2
    assert (
        SEQ2SEQ["whisper"].from_dict({**FIELDS, "scale_embedding": True}).embedding_scale == 48**0.5
    )
    for change, match in (
        ({"d_model": 50}, "50 is not a multiple"),
        ({"encoder_attention_heads": 5}, "encoder_attention_heads 5"),
        ({"activation_function": "sine"}, "sine"),
        ({"is_encoder_decoder": False}, "without its encoder"),
        ({"num_mel_bins": "80"}, "num_mel_bins"),
        ({"encoder_layers": -1}, "encoder_layers"),
        ({"d_model": None}, "hidden_size"),
    ):
        with pytest.raises(UsageError, match=match):
            SEQ2SEQ["whisper"].from_dict({**FIELDS, **change})
    with pytest.raises(UsageError, match="source_dtype"):
        dataclasses.replace(config, source_dtype="float16")
    with pytest.raises(UsageError, match="no adapters"):
        dataclasses.replace(config, adapters=("query",))


def test_unknown_fields_are_named(tmp_path: Path) -> None:
    whisper(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rotary_sound": 3}))
    with pytest.warns(UnreadWarning, match="rotary_sound = 3"):
        open_checkpoint(tmp_path)


def test_a_decoder_takes_no_sources(tmp_path: Path) -> None:
    from tests.models.family_checkpoints import checkpoint

    checkpoint("llama", tmp_path)
    with pytest.raises(UsageError, match="has no encoder"):
        load_decoder(tmp_path, Scheme(None, source_dtype="int8"), keep=False)
