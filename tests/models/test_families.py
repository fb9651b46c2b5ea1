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
from relaxpy.models.checkpoint import read_weights
from relaxpy.models.decoder import Decoder, load_weights, spec, step_spec
from relaxpy.models.families import FAMILIES, checkpoint_sources, decoder_config
from relaxpy.runtime.checkpoint import Source
from relaxpy.serve import PageBook
from tests.sweeps import FULL, quick_target

SIZES = {
    "vocab_size": 101, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
TOKENS = {name: SIZES[name] for name in SIZES if name.endswith(("_id", "vocab_size"))}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}
FAR = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": 9}),
    "mistral without a window": ("Mistral", {"sliding_window": None, "rope_parameters": LINEAR}),
    "qwen2": ("Qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen2 without a window": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"rms_norm_eps": 1e-3}),
    "gemma": ("Gemma", {}),
    "gemma2": (
        "Gemma2",
        {
            "sliding_window": 7, "query_pre_attn_scalar": 40, "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 1.5,
        },
    ),
    "gemma3": ("Gemma3", {"sliding_window": 5, "rope_parameters": FAR, "query_pre_attn_scalar": 30}),
    "gpt2": (
        "GPT2",
        {"n_embd": 32, "n_inner": 48, "n_layer": 3, "n_head": 4, "n_positions": 128, "layer_norm_epsilon": 1e-3},
    ),
    "gpt2 of usual width": (
        "GPT2",
        {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128, "activation_function": "relu"},
    ),
    "gpt_neox": ("GPTNeoX", {"num_key_value_heads": None, "head_dim": None}),
    "gpt_neox one after the other": (
        "GPTNeoX",
        {
            "num_key_value_heads": None, "head_dim": None, "use_parallel_residual": False, "attention_bias": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        },
    ),
    "phi3": ("Phi3", {"sliding_window": 11}),
    "phi3 in part": (
        "Phi3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}},
    ),
}  # fmt: skip
"""By name: the class of transformers, and settings beside the sizes."""
PAGES, PAGE = 96, 4
TOLERANCE = 1e-4


def checkpoint(name: str, folder: Path, **more: Any) -> Any:
    """A model of transformers with random weights, written to the folder."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")

    kind, settings = CASES[name]
    text = "Text" if kind == "Gemma3" else ""
    sizes = TOKENS if kind == "GPT2" else SIZES
    config = getattr(transformers, f"{kind}{text}Config")(**{**sizes, **settings, **more})
    if kind == "Gemma3":
        config.layer_types = ["sliding_attention", "full_attention", "sliding_attention"]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config._attn_implementation = "eager"  # the only one with a soft cap
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for own, weight in model.named_parameters():
            # Norms and biases start with numbers that would hide mistakes.
            weight.copy_(torch.randn_like(weight) * 0.2 + (_is_norm(own) and "emma" not in kind))
    model.save_pretrained(folder)
    return model


def _is_norm(name: str) -> bool:
    return name.endswith("weight") and ("norm" in name or "ln_" in name)


class Served:
    """A checkpoint as it lies, its model of transformers, and ours over a cache."""

    def __init__(self, name: str, folder: Path) -> None:
        self.reference = checkpoint(name, folder)
        self.config = dataclasses.replace(decoder_config(folder), page_size=PAGE)
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


@pytest.fixture(scope="module", params=CASES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(request.param, tmp_path_factory.mktemp("checkpoint"))


def text(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([length, seed]).integers(0, SIZES["vocab_size"], length)


def check(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)


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
