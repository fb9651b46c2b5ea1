"""Quantised copies of checkpoints: as they are read again, from folders and GGUF files, and what goes wrong."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

from relaxpy.checkpoints import open_checkpoint
from relaxpy.checkpoints.quantize import quantize_checkpoint
from relaxpy.cli.quantize import quantize
from relaxpy.codes import Codes
from relaxpy.errors import UsageError
from relaxpy.runtime.safetensors import map_tensors
from tests.checkpoints.gguf_files import write_gguf
from tests.models.family_checkpoints import checkpoint, text
from tests.runtime.test_safetensors import saved

FIELDS = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "rms_norm_eps": 1e-5,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 70, "max_position_embeddings": 64,
    "rope_parameters": {"rope_theta": 1e4},
}  # fmt: skip


def tensors() -> dict[str, np.ndarray]:
    shapes = {
        "model.embed_tokens": (70, 64), "lm_head": (70, 64), "model.norm": (64,),
        **{f"model.layers.0.self_attn.{n}_proj": (s, 64) for n, s in (("q", 64), ("k", 32), ("v", 32), ("o", 64))},
        "model.layers.0.mlp.gate_proj": (96, 64), "model.layers.0.mlp.up_proj": (96, 64),
        "model.layers.0.mlp.down_proj": (64, 96), "model.layers.0.input_layernorm": (64,),
        "model.layers.0.post_attention_layernorm": (64,),
    }  # fmt: skip
    random = np.random.default_rng(0)
    return {f"{n}.weight": random.standard_normal(s, np.float32) for n, s in shapes.items()}


def folder(place: Path, dtype: Any = ml_dtypes.bfloat16) -> Path:
    place.mkdir()
    (place / "config.json").write_text(json.dumps(FIELDS))
    (place / "tokenizer.json").write_text("{}")
    saved(place / "model.safetensors", {n: x.astype(dtype) for n, x in tensors().items()})
    return place


def _decompressed_elsewhere(place: Path, name: str, expected: np.ndarray) -> None:
    """A weight as the package compressed-tensors reads it, where that is installed."""
    if importlib.util.find_spec("compressed_tensors") is None:
        return
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    fields = json.loads((place / "config.json").read_text())["quantization_config"]
    config = QuantizationConfig.model_validate(fields)
    found = map_tensors([place / "model.safetensors"])
    module = name.removesuffix("weight")
    parts = {
        n.removeprefix(module): torch.from_numpy(np.array(x))
        for n, x in found.items()
        if n.startswith(module)
    }
    compressor = BaseCompressor.get_value_from_registry(config.format)
    weight = compressor.decompress(parts, config.config_groups["group_0"])["weight"].numpy()
    atol = 2e-3 * float(np.abs(expected).max())  # it multiplies in the dtype of the scales
    np.testing.assert_allclose(weight.astype(np.float32), expected, rtol=2e-3, atol=atol)


@pytest.mark.parametrize(
    "codes",
    [Codes(4, 32), Codes(8, 32), Codes(3, 32), Codes(4, None), Codes(4, 32, "zero_point"), Codes(8, 16, "zero_point"),
     Codes(3, 32, "zero_point"), Codes(4, 32, "symmetric", "float32")],
)  # fmt: skip
def test_what_was_written_is_what_was_meant(
    codes: Codes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relaxpy.checkpoints.quantize._CHUNK", 640)  # rows in pieces
    source = folder(tmp_path / "from")
    seen: list[str] = []
    report = quantize_checkpoint(
        source, tmp_path / "to", codes, progress=lambda name, _: seen.append(name)
    )
    before, after = open_checkpoint(source), open_checkpoint(tmp_path / "to")
    assert after.tensors.keys() == before.tensors.keys() == {*seen}
    for name, tensor in before.tensors.items():
        weight, found = tensor.read(), after.tensors[name].read()
        if not name.endswith("_proj.weight"):
            assert found.dtype == weight.dtype
            np.testing.assert_array_equal(found, weight)
            continue
        parts = codes.quantize(weight.astype(np.float32), 1)
        expected = codes.dequantize(parts, 1, weight.shape[1])
        np.testing.assert_array_equal(found, expected)
        error = np.linalg.norm(expected - weight) / np.linalg.norm(weight.astype(np.float32))
        assert report.drift[name] == pytest.approx(error, rel=1e-4)
        group = after.tensors[name].codes
        assert group is not None
        assert (group.bits, group.zero) == (codes.bits, codes.zero)
        _decompressed_elsewhere(tmp_path / "to", name, expected)
    assert len(report.drift) == 7
    assert report.bytes_after == (tmp_path / "to" / "model.safetensors").stat().st_size
    config = json.loads((tmp_path / "to" / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert config["quantization_config"]["ignore"] == ["lm_head", "model.embed_tokens"]
    assert (tmp_path / "to" / "tokenizer.json").read_text() == "{}"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["from", "to"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "codes"),
    [("llama", Codes(3, 32, "zero_point")), ("qwen3_moe", Codes(4, 32)), ("gpt_neox", Codes(8, None))],
    ids=str,
)  # fmt: skip
def test_transformers_loads_a_copy(family: str, codes: Codes, tmp_path: Path) -> None:
    """The logits of the weights that the codes mean. transformers reads no zero points of experts."""
    pytest.importorskip("compressed_tensors")
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    more = {"moe_intermediate_size": 64, "mlp_only_layers": []} if "moe" in family else {}
    checkpoint(family, tmp_path / "from", **sizes, **more)
    quantize_checkpoint(tmp_path / "from", tmp_path / "to", codes)
    (tmp_path / "rounded").mkdir()
    (tmp_path / "rounded" / "config.json").write_bytes(
        (tmp_path / "from" / "config.json").read_bytes()
    )
    rounded = {n: x.read() for n, x in open_checkpoint(tmp_path / "to").tensors.items()}
    saved(tmp_path / "rounded" / "model.safetensors", rounded)
    logits = []
    for place in ("to", "rounded"):
        own = transformers.CompressedTensorsConfig(dequantize=True) if place == "to" else None
        given = {} if own is None else {"quantization_config": own}
        found = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path / place, dtype=torch.float32, **given
        )
        with torch.no_grad():
            logits.append(found.eval()(torch.from_numpy(text(20)[None])).logits.numpy())
    np.testing.assert_allclose(*logits, atol=5e-3 * np.abs(logits[1]).max())


def test_a_copy_of_a_copy_and_of_a_gguf_file(tmp_path: Path) -> None:
    from gguf import GGMLQuantizationType as Kind

    path = tmp_path / "model.gguf"
    rounded = write_gguf(path, FIELDS, tensors(), lambda *_: Kind.Q8_0)
    quantize_checkpoint(path, tmp_path / "one", Codes(8, 32))
    quantize_checkpoint(tmp_path / "one", tmp_path / "two", Codes(4, 32))
    found = open_checkpoint(tmp_path / "two")
    assert found.tensors.keys() == rounded.keys()
    for name, weight in rounded.items():
        error = np.linalg.norm(found.tensors[name].read() - weight) / np.linalg.norm(weight)
        assert error < 0.15 if name.endswith("_proj.weight") else error == 0


@pytest.mark.parametrize("codes", [Codes(4, 32), Codes(3, 16, "zero_point")], ids=str)
@pytest.mark.parametrize("family", ["gpt2", "gpt_oss", "qwen3_moe"])
def test_matrices_that_lie_otherwise(family: str, codes: Codes, tmp_path: Path) -> None:
    """(in, out), those of all experts in one tensor, and both: the codes go along the depth, and are kept."""
    fields, names = {
        "gpt2": ({}, ("transformer.h.0.attn.c_attn.weight", "transformer.h.0.mlp.c_fc.weight")),
        "gpt_oss": ({}, tuple(f"model.layers.0.mlp.experts.{n}_proj" for n in ("gate_up", "down"))),
        "qwen3_moe": ({}, ("model.layers.0.mlp.experts.gate_up_proj",)),
    }[family]
    random = np.random.default_rng(0)
    shape, axis = {
        "gpt2": ((64, 96), 0),
        "gpt_oss": ((3, 64, 22), 1),
        "qwen3_moe": ((3, 22, 64), 2),
    }[family]
    given = {name: random.standard_normal(shape, np.float32) for name in names}
    given |= {
        "model.layers.0.mlp.experts.down_proj_bias": random.standard_normal((3, 64), np.float32)
    }
    given |= {"model.layers.0.mlp.gate.weight": random.standard_normal((3, 64), np.float32)}
    source = tmp_path / "from"
    source.mkdir()
    (source / "config.json").write_text(json.dumps({"model_type": family, **fields}))
    saved(source / "model.safetensors", given)
    report = quantize_checkpoint(source, tmp_path / "to", codes)
    assert (report.drift.keys(), report.is_own) == ({*names}, True)
    found = open_checkpoint(tmp_path / "to").tensors
    assert found.keys() == given.keys()
    for name, weight in given.items():
        stored = found[name]
        if name not in names:
            np.testing.assert_array_equal(stored.read(), weight)
            continue
        parts = codes.quantize(weight, axis)
        np.testing.assert_array_equal(stored.read(), codes.dequantize(parts, axis, 64))
        assert stored.codes is not None
        assert stored.turned == (family != "qwen3_moe")
        for part, own in stored.parts().items():
            wanted = parts[part].swapaxes(-1, -2) if stored.turned else parts[part]
            np.testing.assert_array_equal(own.read(), wanted)


def test_the_command(tmp_path: Path) -> None:
    source = folder(tmp_path / "from")
    run: Callable[..., Any] = lambda *args: CliRunner().invoke(
        quantize, [str(source), str(tmp_path / "to"), *args]
    )
    done = run()
    assert done.exit_code == 0, done.output
    assert "7 matrices in 4 bits" in done.output
    assert isinstance(run().exception, UsageError)
    assert "exists" in str(run().exception)
    again = run("--overwrite", "--bits", "8", "--json")
    assert again.exit_code == 0, again.output
    assert (
        open_checkpoint(tmp_path / "to").tensors["model.layers.0.mlp.up_proj.weight"].format
        == "int8"
    )
    assert len(json.loads(again.stdout)["drift"]) == 7


@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError, OSError])
@pytest.mark.parametrize("there", [False, True])
def test_a_failure_leaves_nothing_half(
    kind: type[BaseException], there: bool, tmp_path: Path
) -> None:
    source, target = folder(tmp_path / "from"), tmp_path / "to"
    if there:
        quantize_checkpoint(source, target, Codes(8, 32))
    before = {p: p.read_bytes() for p in target.glob("*")}

    def interrupt(name: str, _: int) -> None:
        if "gate" in name:
            raise kind

    with pytest.raises(UsageError if kind is OSError else kind):
        quantize_checkpoint(source, target, Codes(), overwrite=True, progress=interrupt)
    assert {p: p.read_bytes() for p in target.glob("*")} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == (["from", "to"] if there else ["from"])


def test_mistakes(tmp_path: Path) -> None:
    source = folder(tmp_path / "from")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("kept")
    cases: list[tuple[Path, Path, Codes, str]] = [
        (source, tmp_path / "to", Codes(4, 32, "minimum"), "no minimums"),
        (source, tmp_path / "to", Codes(4, 60), "groups of 60"),
        (source, tmp_path / "mine", Codes(), "is no checkpoint: it is not replaced"),
        (source, source / "config.json" / "x", Codes(), "cannot write"),
        (tmp_path / "none", tmp_path / "to", Codes(), "there is no checkpoint at"),
    ]
    for place, target, codes, message in cases:
        with pytest.raises(UsageError, match=message):
            quantize_checkpoint(place, target, codes, overwrite=True)
    assert (tmp_path / "mine" / "letter.txt").read_text() == "kept"
    assert not (tmp_path / "to").exists()
    broken = folder(tmp_path / "broken")
    arrays = tensors()
    arrays["model.layers.0.mlp.up_proj.weight"][3, 5] = np.nan
    saved(broken / "model.safetensors", arrays)
    with pytest.raises(
        UsageError, match=r"(?s)finite.*while model\.layers\.0\.mlp\.up_proj\.weight was quantised"
    ):
        quantize_checkpoint(broken, tmp_path / "to", Codes())
    assert not (tmp_path / "to").exists()
