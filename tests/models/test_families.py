"""The families of decoders against transformers: a tiny checkpoint of each, written by transformers and read as it
lies."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError, UsageError
from relaxpy.models.bert import BertConfig
from relaxpy.models.checkpoint import read_weights
from relaxpy.models.decoder import Decoder, load_weights, spec, step_spec
from relaxpy.models.families import FAMILIES, checkpoint_sources, decoder_config, model_config
from relaxpy.runtime.safetensors import Source
from relaxpy.serve import PageBook
from tests.models.family_checkpoints import CASES, SIZES, TOKENS, checkpoint, text
from tests.models.test_agreement import EXACT, PARTS
from tests.sweeps import FULL, full, quick_target, sweep

PAGES, PAGE = 96, 4
TOLERANCE = 1e-4


class Served:
    """A checkpoint as it lies, its model of transformers, and ours over a cache."""

    def __init__(
        self, name: str, folder: Path, changes: Mapping[str, Any] | None = None, **fields: Any
    ) -> None:
        self.reference = checkpoint(name, folder, **fields)
        changes = {"page_size": PAGE, **(changes or {})}
        self.config = dataclasses.replace(decoder_config(folder), **changes)
        mod, _ = Decoder(self.config).export(step_spec(self.config))
        self.vm = relaxpy.VirtualMachine(relaxpy.build(mod, quick_target(), pack=True))
        self.weights = self.vm.pack(
            folder, names=checkpoint_sources(self.config, folder), keep=False
        )["step"]
        self.start()

    def start(self) -> None:
        self.caches = self.vm["alloc_pages"](PAGES)
        self.book = PageBook(PAGES, PAGE, self.config.windows)

    def run(self, counts: Mapping[int, int], every: bool = False) -> np.ndarray:
        """The logits of a step after each sequence's last token, or after every token."""
        batch = self.book.batch(counts)
        self.vm["copy_pages"](batch.sources, batch.targets, self.caches)
        *given, rows = batch.arguments
        rows = np.arange(len(batch.tokens), dtype=np.int32) if every else rows
        logits = self.vm["step"](*given, rows, self.caches, *self.weights)
        self.book.commit(batch)
        return logits.numpy()

    def expected(self, tokens: np.ndarray) -> np.ndarray:
        """Logits after every token by transformers."""
        torch: Any = pytest.importorskip("torch")

        with torch.no_grad():
            return self.reference(torch.from_numpy(tokens[None])).logits.numpy()[0]


TRIED = [name for name in CASES if FULL or PARTS.get(name) not in EXACT]
"""The others are compared in the same phases by tests/models/test_agreement.py, with quantised weights and floats as
exact as here."""


@pytest.fixture(scope="module", params=TRIED)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(request.param, tmp_path_factory.mktemp("checkpoint"))


def check(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)


@sweep(3)
def test_a_prompt(served: Served) -> None:
    """At once, with the logits of all tokens, which differ enough to be told apart."""
    served.start()
    prompt = text(37)
    expected = served.expected(prompt)
    check(served.run({served.book.add(prompt): len(prompt)}, every=True), expected)
    assert np.abs(expected - expected[:, :1]).max() > 0.5


def test_chunks_and_decoding(served: Served) -> None:
    """Longer than any window, so that pages are given back on the way."""
    served.start()
    prompt = text(41)
    expected, one = served.expected(prompt), served.book.add(prompt)
    found = [served.run({one: count}, every=True) for count in (3, 11, 1, 1, 7, 2, *[1] * 16)]
    check(np.concatenate(found), expected)


def test_ragged_mixtures(served: Served) -> None:
    """Prompts, chunks, next tokens and drafts that are taken back, of forks too, in the same steps; and bits that do
    not depend on the neighbours."""
    served.start()
    book, texts = served.book, [text(30), text(21), text(9)]
    wanted = [served.expected(each) for each in texts]
    one, two = book.add(texts[0][:20]), book.add(texts[1])
    check(served.run({one: 20, two: 5}), np.stack([wanted[0][19], wanted[1][4]]))
    twin, three = book.fork(one), book.add(texts[2])
    book.append(one, [texts[0][20], 0, 0])
    book.append(twin, texts[0][20:23])
    found = served.run({three: 9, one: 3, twin: 3, two: 13}, every=True)
    check(found[:9], wanted[2])
    check(found[9:10], wanted[0][20:21])
    check(found[12:15], wanted[0][20:23])
    book.pop(one, 2)
    book.append(one, texts[0][21:])
    left = len(book.pending(one))
    last = served.run({two: 3, one: left}, every=True)
    check(last[3 + left - 9 :], wanted[0][21:])
    check(last[:3], wanted[1][18:])
    served.start()
    alone = served.run({served.book.add(texts[0]): 30}, every=True)
    np.testing.assert_array_equal(last[-1], alone[-1])


LONG = {
    "head_dim": 8, "max_position_embeddings": 128, "original_max_position_embeddings": 32,
    "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 1e4,
        "short_factor": [1.0 + 0.1 * n for n in range(4)], "long_factor": [2.0 + n for n in range(4)],
    },
}  # fmt: skip


@sweep(2)
@pytest.mark.parametrize("context", [32, 0])
def test_long_rope(tmp_path: Path, context: int) -> None:
    """The context that is served chooses the factors of all sequences. They are transformers' for sequences up to the
    original context, if it is that, and for longer ones, if it is longer; in chunks and with neighbours, too."""
    served = Served("phi3", tmp_path, {"context": context}, **LONG)
    lengths = (30, 21) if context else (60, 45)
    texts = [text(each) for each in lengths]
    wanted = [served.expected(each) for each in texts]
    one, two = (served.book.add(each) for each in texts)
    check(served.run({one: 9, two: lengths[1]}, every=True)[9:], wanted[1])
    check(served.run({one: lengths[0] - 10}), wanted[0][-2:-1])
    last = served.run({one: 1})
    check(last, wanted[0][-1:])
    other = served.expected(text(21)) if not context else served.expected(text(60))
    served.start()
    tokens = text(21) if not context else text(60)
    found = served.run({served.book.add(tokens): len(tokens)}, every=True)
    assert np.abs(found - other).max() > 1e-2  # transformers has the other factors there


@full
def test_without_pages(tmp_path: Path) -> None:
    """`prefill`, `decode` and `logits` with windows, weights loaded by hand."""
    reference = checkpoint("gemma3", tmp_path)
    torch: Any = pytest.importorskip("torch")

    config = decoder_config(tmp_path)
    model = Decoder(config)
    load_weights(model, read_weights(tmp_path))
    mod, params = model.export(spec(config))
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, quick_target(), params=params))
    ids = np.stack([text(14), text(14, 1)])
    with torch.no_grad():
        expected = reference(torch.from_numpy(ids)).logits.numpy()
    check(vm["logits"](ids).numpy(), expected)
    found, cache = vm["prefill"](ids[:, :12])
    check(found.numpy(), expected[:, 11])
    for step in (12, 13):
        found, cache = vm["decode"](ids[:, step : step + 1], cache)
        check(found.numpy(), expected[:, step])


def test_every_family_is_tried() -> None:
    tried = {name.split()[0] for name in CASES}
    assert {kind.removesuffix("_text") for kind in FAMILIES} == tried


def write(folder: Path, **fields: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma2", **SIZES, **fields}))
    return folder


@pytest.mark.parametrize(
    ("fields", "code", "match"),
    [
        ({"model_type": "mamba"}, "bad-config", "type 'mamba', which is not supported"),
        ({"model_type": None}, "bad-config", "type None"),
        ({"hidden_size": None}, "bad-config", "lacks hidden_size"),
        (
            {"num_hidden_layers": "3"},
            "bad-config",
            "num_hidden_layers must be an integer from 1 to 10000",
        ),
        (
            {"num_hidden_layers": -1},
            "bad-config",
            "num_hidden_layers must be an integer from 1 to 10000",
        ),
        ({"num_key_value_heads": 3}, "bad-config", "not a multiple of num_key_value_heads 3"),
        (
            {"layer_types": ["full_attention", "linear_attention"] * 2},
            "bad-config",
            "linear_attention",
        ),
        ({"layer_types": ["sliding_attention"]}, "bad-config", "1 sliding windows for 3 layers"),
        ({"sliding_window": None}, "bad-config", "a sliding window, but it is None"),
        ({"sliding_window": 0}, "bad-config", "sliding_window must be an integer from 1"),
        ({"use_bidirectional_attention": True}, "bad-config", "use_bidirectional_attention"),
        ({"hidden_activation": "softplus"}, "bad-config", "unknown activation"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "bad-config", "'spiral'"),
    ],
)
def test_configurations_that_are_refused(
    tmp_path: Path, fields: dict[str, Any], code: str, match: str
) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        decoder_config(write(tmp_path, **fields))
    assert caught.value.code == code


def test_older_configurations(tmp_path: Path) -> None:
    """As transformers 4 wrote them."""
    old = {
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    found = decoder_config(
        write(tmp_path, model_type="gemma3_text", sliding_window_pattern=3, sliding_window=8, **old)
    )
    assert found.sliding_windows == (8, 8, 0)
    assert (found.rope.theta, found.local_rope and found.local_rope.theta) == (1e6, 1e4)
    assert found.rope.scaling is not None
    assert found.rope_of(0) is found.local_rope
    first = decoder_config(write(tmp_path, model_type="gemma", hidden_act="gelu"))
    assert first.hidden_act == "gelu_pytorch_tanh"
    none = decoder_config(write(tmp_path, model_type="mistral", sliding_window=None))
    assert none.windows == (0,)
    assert decoder_config(write(tmp_path, model_type="mistral")).windows == (4096,)


def test_joined_tensors_of_another_size(tmp_path: Path) -> None:
    """A part of a tensor is not taken from one that is joined of other parts."""
    checkpoint("phi3", tmp_path)
    config = decoder_config(tmp_path)
    tensors = read_weights(tmp_path)
    name = "model.layers.1.mlp.gate_up_proj.weight"
    tensors[name] = np.concatenate([tensors[name], tensors[name][:2]])
    with pytest.raises(UsageError) as caught:
        load_weights(Decoder(config), tensors)
    assert (
        caught.value.notes
        == (f"wrong shape: {name} is (98, 32), but the configuration requires (96, 32)",) * 2
    )


JUNK: tuple[Any, ...] = (
    None,
    0,
    -1,
    7,
    1 << 70,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "silu",
    True,
    [],
    [1],
    {},
    {"a": 1},
    [None],
    [[]],
)
"""Values that a field may have by mistake."""


@sweep(2)
@pytest.mark.parametrize("name", CASES)
def test_damaged_configurations(tmp_path: Path, name: str) -> None:
    """Any field of any other value is read, or refused by name; never an exception of another kind, nor a program that
    is made for ever."""
    transformers: Any = pytest.importorskip("transformers")

    kind, settings = CASES[name]
    text = "Text" if kind == "Gemma3" else ""
    sizes = TOKENS if kind == "GPT2" else SIZES
    whole = getattr(transformers, f"{kind}{text}Config")(**{**sizes, **settings}).to_dict()
    whole = json.loads(json.dumps(whole, default=str))
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    refused, codes = 0, set[str]()
    for _ in range(300 if FULL else 60):
        damaged = json.loads(json.dumps(whole))
        place = damaged
        key = str(rng.choice(sorted(damaged)))
        if isinstance(place[key], dict) and place[key] and rng.integers(2):
            place = place[key]
            key = str(rng.choice(sorted(place)))
        if rng.integers(8):
            place[key] = JUNK[rng.integers(len(JUNK))]
        else:
            del place[key]
        (tmp_path / "config.json").write_text(json.dumps(damaged))
        try:
            config = decoder_config(tmp_path)
            if rng.integers(20) == 0 and config.hidden_size < 100 and config.num_hidden_layers < 9:
                Decoder(config).export(step_spec(config))
        except RelaxError as error:
            refused += 1
            codes.add(error.code)
    assert refused > 5
    assert codes == {"bad-config"}


def test_checkpoints_without_a_prefix(tmp_path: Path) -> None:
    """As GPT-2 was published: the names begin with `h.0`, and masks are among the tensors."""
    files: Any = pytest.importorskip("safetensors.numpy")
    checkpoint("gpt2", tmp_path)
    config = decoder_config(tmp_path)
    whole = read_weights(tmp_path)
    assert checkpoint_sources(config, tmp_path) == config.sources()
    bare = {name.removeprefix("transformer."): x for name, x in whole.items()}
    model, other = Decoder(config), Decoder(config)
    load_weights(model, whole)
    load_weights(other, {**bare, "h.0.attn.bias": np.zeros((1, 1, 8, 8), np.float32)})
    for (name, one), (_, two) in zip(
        model.named_parameters(), other.named_parameters(), strict=True
    ):
        np.testing.assert_array_equal(one.data, two.data, name)
    files.save_file(bare, tmp_path / "model.safetensors")
    found = checkpoint_sources(config, tmp_path)
    assert found["layers.2.attention.key.weight"] == Source(
        "h.2.attn.c_attn.weight", True, (32, 64, 96)
    )
    assert {source.name for source in found.values()} == set(bare)


def test_experts_apart_and_together(tmp_path: Path) -> None:
    """A tensor for each expert, as checkpoints are published, and one for all, as transformers 5 has them in memory,
    are the same parameters; of several that are missing each is named."""
    checkpoint("qwen3_moe", tmp_path)
    config = decoder_config(tmp_path)
    apart = read_weights(tmp_path)
    place = "model.layers.0.mlp.experts"
    together = {name: x for name, x in apart.items() if ".experts." not in name}
    for layer in (0, 2):
        own = f"model.layers.{layer}.mlp.experts"
        of = {
            name: [apart[f"{own}.{e}.{name}_proj.weight"] for e in range(6)]
            for name in ("gate", "up", "down")
        }
        joined = [np.concatenate(pair) for pair in zip(of["gate"], of["up"], strict=True)]
        together[f"{own}.gate_up_proj"] = np.stack(joined)
        together[f"{own}.down_proj"] = np.stack(of["down"])
    models = [Decoder(config), Decoder(config)]
    for model, tensors in zip(models, (apart, together), strict=True):
        load_weights(model, tensors)
    one, two = (dict(model.named_parameters()) for model in models)
    for name, parameter in one.items():
        np.testing.assert_array_equal(parameter.data, two[name].data)
    del apart[f"{place}.3.up_proj.weight"]
    apart[f"{place}.4.down_proj.weight"] = apart[f"{place}.4.down_proj.weight"][:3]
    with pytest.raises(UsageError, match="2 problems") as caught:
        load_weights(Decoder(config), apart)
    assert caught.value.notes[0] == f"missing: {place}.3.up_proj.weight"
    assert caught.value.notes[1].startswith(f"wrong shape: {place}.down_proj is (3, 20)")


BERT = {
    "model_type": "bert", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 101,
}  # fmt: skip


def test_an_encoder(tmp_path: Path) -> None:
    """BERT is chosen by its `config.json` as decoders are; as a decoder it is refused, with what takes it."""
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    found = model_config(tmp_path)
    assert isinstance(found, BertConfig)
    assert (found.hidden_size, found.max_position_embeddings) == (32, 512)
    with pytest.raises(UsageError, match="type 'bert', an encoder") as caught:
        decoder_config(tmp_path)
    assert "relaxpy embed" in (caught.value.help or "")
    (tmp_path / "config.json").write_text(json.dumps({**BERT, "model_type": "qwen3_moe"}))
    with pytest.raises(UsageError, match="num_experts"):
        model_config(tmp_path)


@pytest.mark.parametrize(
    "name", [*sorted(set(BERT) - {"model_type"}), "hidden_act", "layer_norm_eps"]
)
def test_damaged_configurations_of_an_encoder(tmp_path: Path, name: str) -> None:
    codes = set[str]()
    for value in JUNK:
        (tmp_path / "config.json").write_text(json.dumps({**BERT, name: value}))
        try:
            model_config(tmp_path)
        except RelaxError as error:
            codes.add(error.code)
    assert codes == {"bad-config"}
