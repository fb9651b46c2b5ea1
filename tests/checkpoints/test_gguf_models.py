"""Models in GGUF files: tiny models of transformers, written as llama.cpp's converter writes them, and read back; logits
and tokens beside llama.cpp where its Python package is installed."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from relaxpy import nn
from relaxpy.checkpoints import open_checkpoint
from relaxpy.checkpoints.gguf_models import ARCHITECTURES, gguf_checkpoint
from relaxpy.checkpoints.unread import UnreadWarning
from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import read_weights
from relaxpy.models.families import config_from, decoder_config
from relaxpy.models.loaded import LoadedDecoder, Scheme, load_decoder
from relaxpy.serve import PageBook
from tests.checkpoints.gguf_files import write_gguf
from tests.sweeps import FULL, quick_target, sweep

SIZES = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
FAR = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
_GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"attention_bias": True, "rms_norm_eps": 1e-5}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {"rope_parameters": YARN}),
    "qwen3": ("Qwen3", {}),
    "gemma": ("Gemma", {}),
    "gemma2": ("Gemma2", {"sliding_window": 7, "query_pre_attn_scalar": 32}),
    "gemma3": (
        "Gemma3Text",
        {"sliding_window": 5, "rope_parameters": FAR, "query_pre_attn_scalar": 32, "num_hidden_layers": 7},
    ),
    "gpt2": ("GPT2", _GPT2),
    "gpt_neox": ("GPTNeoX", {"num_key_value_heads": None, "head_dim": None, "hidden_act": "gelu"}),
    "phi3": ("Phi3", {"sliding_window": 11}),
    "qwen3_moe": (
        "Qwen3Moe", {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True},
    ),
    "gpt_oss": (
        "GptOss",
        {
            "num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 7,
            "rope_parameters": {**YARN, "truncate": False},
        },
    ),
}  # fmt: skip


def model(name: str, folder: Path, **more: Any) -> dict[str, Any]:
    """A model of transformers with random weights in a folder, and the fields of its configuration."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    kind, settings = CASES[name]
    sizes = {n: v for n, v in SIZES.items() if kind != "GPT2" or n[-2:] == "id" or n[0] == "v"}
    if kind == "Phi3":
        del sizes["head_dim"]
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **settings, **more})
    torch.manual_seed(0)
    config._attn_implementation = "eager"  # the only one with sinks
    found = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for own, weight in found.named_parameters():
            is_norm = own.endswith("weight") and ("norm" in own or "ln_" in own)
            width = weight.shape[-1] ** 0.5 if weight.ndim > 1 and "embed" not in own else 4
            weight.copy_(torch.randn_like(weight) / width + (is_norm and "emma" not in kind))
    found.save_pretrained(folder)
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_the_model_that_it_was_made_from(name: str, tmp_path: Path) -> None:
    """Tensors by transformers' names, to the bit, and the same configuration."""
    fields = model(name, tmp_path / "hf")
    tensors = read_weights(tmp_path / "hf")
    write_gguf(tmp_path / "model.gguf", fields, tensors)
    found = open_checkpoint(tmp_path / "model.gguf")
    assert found.tensors.keys() == tensors.keys()
    for key, tensor in tensors.items():
        stored = found.tensors[key]
        assert stored.shape == tensor.shape
        got = stored.read()
        assert (got.shape, got.dtype) == (tensor.shape, tensor.dtype)
        if "emma" in name and key.endswith("norm.weight"):
            np.testing.assert_allclose(got, tensor, atol=1e-6)
        else:
            np.testing.assert_array_equal(got, tensor)
    expected, config = decoder_config(tmp_path / "hf"), config_from(found.config)
    for key in vars(expected):
        given, wanted = getattr(config, key), getattr(expected, key)
        if key in ("rope", "local_rope") and wanted is not None:
            width = expected.head_dim
            np.testing.assert_allclose(given.frequencies(width), wanted.frequencies(width), 1e-6)
            assert given.rotated(width) == wanted.rotated(width)
        else:
            assert given == wanted, key


MIXED = {
    "attn_q": Kind.Q4_K, "attn_k": Kind.Q4_K, "attn_v": Kind.Q6_K, "attn_output": Kind.Q4_K, "ffn_gate": Kind.Q5_K,
    "ffn_up": Kind.Q5_K, "ffn_down": Kind.Q6_K, "output": Kind.Q6_K, "token_embd": Kind.Q4_K,
}  # fmt: skip
OLDER = {
    "attn_q": Kind.Q5_0, "attn_k": Kind.Q5_1, "attn_v": Kind.Q8_0, "attn_output": Kind.Q4_1, "ffn_gate": Kind.Q4_0,
    "ffn_up": Kind.Q4_0, "ffn_down": Kind.Q4_1, "output": Kind.Q8_0, "token_embd": Kind.F16,
}  # fmt: skip


def mixture(kinds: dict[str, Kind]) -> Callable[[str, np.ndarray], Kind]:
    return lambda name, _: kinds[name.split(".")[-2].removesuffix("_exps")]


FORMATS: dict[str, Callable[[str, np.ndarray], Kind]] = {
    "F32": lambda *_: Kind.F32,
    "F16": lambda *_: Kind.F16,
    "BF16": lambda *_: Kind.BF16,
    "Q8_0": lambda *_: Kind.Q8_0,
    "Q4_0": lambda *_: Kind.Q4_0,
    "Q4_K": lambda *_: Kind.Q4_K,
    "Q6_K": lambda *_: Kind.Q6_K,
    "Q3_K": lambda *_: Kind.Q3_K,
    "mixed": mixture(MIXED),
    "older": mixture(OLDER),
}
WIDE = {
    "hidden_size": 256, "intermediate_size": 256, "num_key_value_heads": 4, "head_dim": 64, "num_hidden_layers": 1,
}  # fmt: skip
"""Widths of whole blocks; few, since every shape is a kernel to compile."""
TRIED = FORMATS if FULL else ("mixed", "older")
"""Formats that are run: these two have most of the others."""
IN_EVERY_WAY = FORMATS if FULL else ("older",)
"""Formats whose codes are decoded and meet int8 activations, too."""
EXACT = Scheme(bits=None, activations=None)


def loaded(place: Path, scheme: Scheme | None = None) -> LoadedDecoder:
    """Built without LLVM's optimisations, but in a full run."""
    return load_decoder(place, scheme, target=str(quick_target()))


def logits(decoder: LoadedDecoder, tokens: np.ndarray) -> np.ndarray:
    """After every token of a prompt."""
    book = PageBook(4, decoder.page_size, decoder.windows)
    caches = decoder.vm["alloc_pages"](4)
    batch = book.batch({book.add(tokens.tolist()): len(tokens)})
    decoder.vm["copy_pages"](batch.sources, batch.targets, caches)
    *given, _ = batch.arguments
    rows = np.arange(len(tokens), dtype=np.int32)
    return decoder.vm["step"](*given, rows, caches, *decoder.weights).numpy()


def by_transformers(folder: Path, tensors: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """The logits of transformers in float32, with these weights."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    from safetensors.numpy import save_file

    copy = folder.with_name("rounded")
    copy.mkdir()
    (copy / "config.json").write_text((folder / "config.json").read_text())
    arrays = {name: np.ascontiguousarray(each, np.float32) for name, each in tensors.items()}
    save_file(arrays, copy / "model.safetensors", {"format": "pt"})
    found = transformers.AutoModelForCausalLM.from_pretrained(
        copy, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        return found(torch.from_numpy(tokens[None])).logits.numpy()[0]


def by_llama_cpp(path: Path, tokens: np.ndarray, count: int) -> tuple[np.ndarray, list[int]]:
    """The logits of llama.cpp after every token, and so many greedy tokens after them."""
    llama_cpp: Any = pytest.importorskip("llama_cpp")
    found = llama_cpp.Llama(
        str(path), logits_all=True, n_ctx=64, n_batch=64, type_k=0, type_v=0, verbose=False
    )
    found.eval(tokens.tolist())
    every, more = np.array(found.scores[: len(tokens)]), []
    for _ in range(count):
        more.append(int(np.argmax(found.scores[len(tokens) + len(more) - 1])))
        found.eval(more[-1:])
    return every, more


TOKENS = np.array([3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 4])


def drift(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("name", TRIED)
def test_every_type_as_it_is_stored(name: str, tmp_path: Path) -> None:
    """The codes as they are, and the floats that they mean, give the logits of transformers with those floats."""
    fields = model("llama", tmp_path / "hf", **WIDE)
    path = tmp_path / "model.gguf"
    rounded = write_gguf(path, fields, read_weights(tmp_path / "hf"), FORMATS[name])
    checkpoint = gguf_checkpoint(path)
    for key, array in rounded.items():
        np.testing.assert_array_equal(checkpoint.tensors[key].read().astype(np.float32), array)
    expected = by_transformers(tmp_path / "hf", rounded, TOKENS)
    decoder = loaded(path, EXACT)
    np.testing.assert_allclose(
        logits(decoder, TOKENS), expected, atol=1e-4 * np.abs(expected).max()
    )
    if name[0] in "Qmo":
        assert checkpoint.quantization
        assert decoder.packed.nbytes < sum(each.nbytes for each in rounded.values()) * 0.6
    if checkpoint.quantization and name in IN_EVERY_WAY:
        floats = loaded(path, Scheme(bits=None, activations=None, decode=True))
        assert floats.packed.nbytes > decoder.packed.nbytes * 1.5
        np.testing.assert_allclose(
            logits(floats, TOKENS), expected, atol=1e-4 * np.abs(expected).max()
        )
        assert drift(logits(loaded(path), TOKENS), expected) < 0.05  # with int8 activations


MXFP4 = {"ffn_gate_exps": Kind.MXFP4, "ffn_up_exps": Kind.MXFP4, "ffn_down_exps": Kind.MXFP4}
"""As gpt-oss is published: the rest in 8 bits."""
RUN = ("phi3", "qwen3_moe")
"""Families whose codes are run in every run: joined, and of experts."""


@sweep(3)
@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "phi3", "gemma2", "qwen3_moe", "gpt_oss"])
def test_codes_of_other_families(name: str, tmp_path: Path) -> None:
    """Turned and joined matrices, rows in another order, and those of experts, as codes: they mean the weights, and
    give their logits."""
    fields = model(name, tmp_path / "hf")
    path = tmp_path / "model.gguf"
    kinds = MXFP4 if name == "gpt_oss" else {}
    rounded = write_gguf(
        path, fields, read_weights(tmp_path / "hf"),
        lambda own, _: kinds.get(own.split(".")[-2], Kind.Q8_0 if kinds else Kind.Q4_0),
    )  # fmt: skip
    for key, stored in open_checkpoint(path).tensors.items():
        meant = stored.read()
        np.testing.assert_array_equal(meant.astype(np.float32), rounded[key])
        if stored.codes is not None:
            parts = {part: each.read() for part, each in stored.parts().items()}
            lies = meant.swapaxes(-1, -2) if stored.turned else meant
            floats = stored.codes.dequantize(parts, lies.ndim - 1, lies.shape[-1])
            np.testing.assert_array_equal(floats, lies)
    if not FULL and name not in RUN:
        return
    expected = by_transformers(tmp_path / "hf", rounded, TOKENS)
    found = logits(loaded(path, EXACT), TOKENS)
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["F32", "Q8_0", "Q4_0", "mixed"])
@pytest.mark.parametrize("family", ["llama", "llama3", "qwen2", "qwen3_moe"])
def test_logits_and_tokens_beside_llama_cpp(family: str, name: str, tmp_path: Path) -> None:
    """llama.cpp rounds activations to 8 bits, as the default does."""
    pytest.importorskip("llama_cpp")
    wide = {**WIDE, "moe_intermediate_size": 256} if "moe" in family else WIDE
    fields = model(family, tmp_path / "hf", **wide)
    path = tmp_path / "model.gguf"
    write_gguf(path, fields, read_weights(tmp_path / "hf"), FORMATS[name])
    expected, more = by_llama_cpp(path, TOKENS, 8)
    decoder = loaded(path, EXACT)
    found = logits(decoder, TOKENS)
    assert drift(found, expected) < (1e-4 if name == "F32" else 0.1)
    if name == "F32":
        own = TOKENS
        for token in more:
            assert int(np.argmax(logits(decoder, own)[-1])) == token
            own = np.append(own, token)


def test_several_parts(tmp_path: Path) -> None:
    """Any of them stands for all; those that are missing, or of something else, are named."""
    fields = model("qwen3_moe", tmp_path / "hf")
    tensors = read_weights(tmp_path / "hf")
    write_gguf(tmp_path / "model.gguf", fields, tensors, lambda *_: Kind.Q4_0)
    write_gguf(tmp_path / "model.gguf", fields, tensors, lambda *_: Kind.Q4_0, parts=7)
    parts = sorted(tmp_path.glob("model-*.gguf"))
    assert [each.name for each in parts] == [f"model-{n:05d}-of-00004.gguf" for n in range(1, 5)]
    whole = open_checkpoint(tmp_path / "model.gguf")
    for each in (parts[0], parts[-1]):
        found = open_checkpoint(each)
        assert found.files == tuple(parts)
        assert (found.config, found.formats) == (whole.config, whole.formats)
        for name, tensor in found.tensors.items():
            np.testing.assert_array_equal(tensor.read(), whole.tensors[name].read())
    other = parts[1].read_bytes()
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(UsageError, match=r"00002-of-00004.gguf .*says that it is part 2 of 4"):
        open_checkpoint(parts[0])
    parts[1].unlink()
    with pytest.raises(UsageError, match=r"lacks the parts model-00002-of-00004\.gguf$"):
        open_checkpoint(parts[3])
    parts[1].write_bytes(other[:-100])
    with pytest.raises(UsageError, match=r"00002.* truncated"):
        open_checkpoint(parts[0])
    parts[0].rename(tmp_path / "model-1.gguf")
    with pytest.raises(UsageError, match=r"does not end with -00001-of-00004\.gguf, say"):
        open_checkpoint(tmp_path / "model-1.gguf")


def test_what_is_not_supported_is_named(tmp_path: Path) -> None:
    fields = model("llama", tmp_path / "hf")
    tensors = read_weights(tmp_path / "hf")
    path = tmp_path / "model.gguf"
    cases: list[tuple[Callable[[Any], None], str]] = [
        (lambda w: w.add_expert_count(8), "mixtures of experts"),
        (
            lambda w: w.add_string("llama.rope.scaling.type", "other"),
            "'other', which is not supported",
        ),
        (lambda w: w.add_uint16("split.count", 3), "one of 3 parts, and its name does not end"),
        (lambda w: w.add_array("split.count", [3, 4]), r"split\.count is \[3, 4\]"),
        (lambda w: w.add_int32("split.count", -1), r"split\.count is -1"),
    ]
    for more, message in cases:
        write_gguf(path, fields, tensors, more=more)
        with pytest.raises(UsageError, match=message) as caught:
            open_checkpoint(path)
        assert caught.value.code == "bad-checkpoint"
        assert str(path) in str(caught.value)
    assert "mamba" not in ARCHITECTURES
    data = path.read_bytes()
    write_gguf(path, fields, tensors)
    path.write_bytes(
        path.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba", 1)
    )
    with pytest.raises(UsageError, match="architecture 'mamba', which is not supported"):
        open_checkpoint(path)
    assert data[:4] == b"GGUF"


def test_longer_contexts(tmp_path: Path) -> None:
    """What a file says of the rotary embeddings, by names of any age, as llama.cpp understands it."""
    fields = model("llama", tmp_path / "hf")
    tensors = read_weights(tmp_path / "hf")
    path = tmp_path / "model.gguf"

    def rope(**given: float | str) -> Any:
        def more(writer: Any) -> None:
            for name, value in given.items():
                key = "llama.rope." + name.replace("__", ".")
                (writer.add_string if isinstance(value, str) else writer.add_float32)(key, value)

        write_gguf(path, {**fields, "rope_parameters": {"rope_theta": 500.0}}, tensors, more=more)
        return config_from(open_checkpoint(path).config).rope

    longest = int(fields["max_position_embeddings"])
    four = nn.rotary.LinearScaling(4.0)
    assert rope().scaling is None
    assert rope(scale_linear=4.0).scaling == four
    assert rope(scaling__factor=4.0).scaling == four
    assert rope(scaling__factor=4.0, scale_linear=2.0).scaling == four
    assert rope(scaling__type="linear", scaling__factor=4.0).scaling == four
    assert rope(scaling__type="none", scaling__factor=4.0).scaling is None
    yarn = {"scaling__type": "yarn", "scaling__factor": 4.0}
    plain = rope(**yarn).scaling
    assert plain == nn.rotary.YarnScaling(4.0, longest)
    assert rope(**yarn, scaling__attn_factor=0.5).scaling.magnitude == plain.magnitude / 2
    assert rope(**yarn, scaling__yarn_attn_factor=1.25).scaling.magnitude == 1.25
    of_all = rope(**yarn, scaling__yarn_log_multiplier=0.5).scaling.magnitude
    expected = nn.rotary.YarnScaling(4.0, longest, mscale=1.0, mscale_all_dim=0.5).magnitude
    assert of_all == pytest.approx(expected)
    for given in ({"scaling__attn_factor": 2.0}, {**yarn, "scaling__yarn_ext_factor": 0.5}):
        name = [*given][-1].replace("__", ".")
        with pytest.warns(
            UnreadWarning, match=rf"model\.gguf: not followed: llama\.rope\.{name} = "
        ):
            rope(**given)


def test_fields_that_nobody_reads_are_named(tmp_path: Path) -> None:
    fields = model("qwen3_moe", tmp_path / "hf")
    tensors = read_weights(tmp_path / "hf")
    path = tmp_path / "model.gguf"
    cases: list[tuple[Callable[[Any], None], str]] = [
        (lambda w: w.add_float32("qwen3moe.logit_scale", 0.5), "qwen3moe.logit_scale = 0.5"),
        (lambda w: w.add_uint32("qwen3moe.expert_gating_func", 2), "expert_gating_func = 2"),
        (lambda w: w.add_uint32("qwen3moe.nextn_predict_layers", 1), "nextn_predict_layers = 1"),
        (lambda w: w.add_bool("qwen3moe.attention.causal", False), "attention.causal = False"),
        (lambda w: w.add_float32("general.sampling.temp", 0.5), "general.sampling.temp = 0.5"),
        (lambda w: w.add_float32("qwen3moe.residual_scale", 1.0), ""),
        (lambda w: w.add_uint32("qwen3moe.expert_gating_func", 1), ""),
        (lambda w: w.add_string("general.description", "a model"), ""),
    ]
    for more, named in cases:
        write_gguf(path, fields, tensors, more=more)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            open_checkpoint(path)
        messages = [str(each.message) for each in found if each.category is UnreadWarning]
        assert bool(messages) == bool(named), named
        assert named in "".join(messages)


def test_all_that_does_not_fit_is_listed(tmp_path: Path) -> None:
    fields = model("llama", tmp_path / "hf", **WIDE)
    tensors = read_weights(tmp_path / "hf")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:5]
    write_gguf(
        tmp_path / "model.gguf",
        fields,
        tensors,
        more=lambda w: w.add_tensor("other", np.zeros(3, np.float32)),
    )
    with pytest.raises(UsageError, match="3 problems") as caught:
        loaded(tmp_path / "model.gguf", EXACT)
    notes = "\n".join(caught.value.notes)
    assert "missing: model.layers.0.mlp.up_proj.weight" in notes
    assert "model.norm.weight: dimension 0 is 5, not 256" in notes
    assert "unexpected: other" in notes


def test_text_from_a_file_alone(tmp_path: Path) -> None:
    """Weights, configuration, tokenizer and template of one file: the greedy text is llama.cpp's, where it is there."""
    from relaxpy import llm
    from tests.checkpoints.test_gguf_tokenizer import add_byte_pairs, byte_pairs

    backend = byte_pairs("llama-bpe")
    size = backend.get_vocab_size()
    fields = model("llama", tmp_path / "hf", vocab_size=size, **WIDE)
    path = tmp_path / "model.gguf"
    write_gguf(
        path, fields, read_weights(tmp_path / "hf"), lambda *_: Kind.Q8_0,
        more=lambda writer: add_byte_pairs(writer, backend, "llama-bpe"),
    )  # fmt: skip
    found = llm.load(path, context=64, target=str(quick_target()))
    text = "".join(found.generate("Hello, world!", max_tokens=8))
    tokens = np.array(found.tokenizer.encode("Hello, world!"))
    assert tokens[0] == 0
    expected = ""
    for _ in range(8):
        tokens = np.append(tokens, int(np.argmax(logits(found.decoder, tokens)[-1])))
        if int(tokens[-1]) in found.tokenizer.end_tokens:
            break
        expected = found.tokenizer.decode(tokens[-8:].tolist())
    assert text
    assert expected.endswith(text[-3:])
    assert found.tokenizer.templates.keys() == {"default"}
