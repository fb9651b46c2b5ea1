"""Decoders from a checkpoint's directory: the first start, the second one without the compiler, and what goes wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relaxpy.checkpoints.stored import Checkpoint, Floats
from relaxpy.errors import UsageError
from relaxpy.models.llama import TINY, Llama, LlamaConfig, sources
from relaxpy.models.loaded import LoadedDecoder, Scheme
from relaxpy.models.loaded import load_decoder as load_with
from tests.runtime.test_safetensors import saved
from tests.sweeps import full, quick_target, sweep

FIELDS: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 70, "max_position_embeddings": 64,
    "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16", "rope_theta": 10000.0,
}  # fmt: skip


TARGET = str(quick_target())
load_decoder = partial(load_with, target=TARGET)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of this module's own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAXPY_CACHE_DIR", str(folder))
        patch.delenv("RELAXPY_CACHE_SIZE", raising=False)
        yield folder


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """A checkpoint by transformers' names, in bfloat16."""
    config = LlamaConfig.from_dict(FIELDS)
    shapes = {name: parameter.shape for name, parameter in Llama(config).named_parameters()}
    random = np.random.default_rng(seed)
    found = {}
    for name, source in sources(config).items():
        noise = random.standard_normal(shapes[name], dtype=np.float32)
        array = 1 + noise / 8 if "norm" in name else noise / np.float32(shapes[name][-1] ** 0.5)
        found[source.name] = array.astype(ml_dtypes.bfloat16)
    return found


def checkpoint(place: Path, arrays: dict[str, np.ndarray], **changes: Any) -> Path:
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(json.dumps({**FIELDS, **changes}))
    saved(place / "model.safetensors", arrays)
    return place


def logits(decoder: LoadedDecoder) -> np.ndarray:
    """Of a prompt of five tokens."""
    caches = decoder.vm["alloc_pages"](2)
    ends, table = np.array([0, 5], np.int32), np.array([[[1]]], np.int32)
    given = (
        np.array([3, 1, 4, 1, 5]),
        np.arange(5),
        ends,
        table,
        ends[1:],
        np.array([0, 4], np.int32),
    )
    return decoder.vm["step"](*given, caches, *decoder.weights).numpy()


def test_a_second_start_needs_no_compiler(tmp_path: Path) -> None:
    """Another process finds both caches: the same numbers, and neither TVM nor the model's code is imported."""
    place = checkpoint(tmp_path / "tiny", tensors())
    first = load_decoder(place)
    assert first.packed.kept is not None
    assert (first.vocab_size, first.page_size) == (70, TINY.page_size)
    np.save(tmp_path / "first.npy", logits(first))
    code = f"""
import sys
import numpy as np
from relaxpy.models.loaded import load_decoder
decoder = load_decoder({str(place)!r}, target={TARGET!r})
caches = decoder.vm["alloc_pages"](2)
ends, table = np.array([0, 5], np.int32), np.array([[[1]]], np.int32)
given = np.array([3, 1, 4, 1, 5]), np.arange(5), ends, table, ends[1:], np.array([0, 4], np.int32)
found = decoder.vm["step"](*given, caches, *decoder.weights).numpy()
np.testing.assert_array_equal(found, np.load({str(tmp_path / "first.npy")!r}))
assert str(decoder.packed.kept) == {str(first.packed.kept)!r}
loaded = [name for name in ("tvm", "relaxpy.ir", "relaxpy.nn", "relaxpy.build", "relaxpy.models.decoder") if name in sys.modules]
print(loaded)
"""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


@full
def test_schemes_agree(tmp_path: Path) -> None:
    """Weights as they are, in 8 bits, in 4 bits with int8 activations."""
    place = checkpoint(tmp_path / "tiny", tensors())
    exact = logits(load_decoder(place, Scheme(bits=None, activations=None)))
    for scheme, bound in ((Scheme(8), 0.03), (Scheme(), 0.4)):
        error = np.abs(logits(load_decoder(place, scheme)) - exact).max() / np.abs(exact).max()
        assert bound / 30 < error < bound


@sweep(2)
@pytest.mark.parametrize(
    ("target", "group"), [(TARGET, 32), ("llvm -mcpu=nehalem -opt-level=0", None)]
)
def test_activations_are_those_of_the_target(
    tmp_path: Path, target: str, group: int | None
) -> None:
    """Floats where it has no products of bytes: the same numbers as with a scheme that says so. A second start, from the
    cache, knows it, too."""
    place = checkpoint(tmp_path / "tiny", tensors())
    first, second = (load_with(place, target=target) for _ in range(2))
    assert [each.scheme.activations for each in (first, second)] == [group, group]
    assert ("activations in 8" in first.scheme.described()) == (group is not None)
    said = load_with(place, Scheme(activations=group), target=target)
    np.testing.assert_array_equal(logits(first), logits(said))


def test_another_checkpoint_of_the_same_configuration(tmp_path: Path, cache: Path) -> None:
    """The executable serves it; its weights are packed. The first one's are found again."""
    one, other = (checkpoint(tmp_path / f"{n}", tensors(n)) for n in range(2))
    first, second = load_decoder(one), load_decoder(other)
    assert len([*cache.glob("executables/*.rxe")]) >= 1
    assert first.packed.kept != second.packed.kept
    assert not np.array_equal(logits(first), logits(second))
    count = len([*cache.glob("executables/*")])
    again = load_decoder(one)
    assert again.packed.kept == first.packed.kept
    np.testing.assert_array_equal(logits(again), logits(first))
    assert len([*cache.glob("executables/*")]) == count


def test_a_checkpoint_that_changes_in_its_place(tmp_path: Path) -> None:
    place = checkpoint(tmp_path / "tiny", tensors())
    os.utime(place / "model.safetensors", (1e9, 1e9))
    first = logits(load_decoder(place))
    checkpoint(place, tensors(1))
    os.utime(place / "model.safetensors", (1e9, 1e9))
    assert not np.array_equal(logits(load_decoder(place)), first)


def test_all_that_is_wrong_is_listed(tmp_path: Path, cache: Path) -> None:
    """Missing, unexpected, of another shape, of another type; nothing is kept."""
    arrays = tensors()
    arrays["model.layers.0.mlp.up_proj.bias"] = np.zeros(96, ml_dtypes.bfloat16)
    arrays["model.norm.weight"] = arrays["model.norm.weight"].astype(np.int8)
    key = "model.layers.0.self_attn.k_proj.weight"
    arrays[key] = np.ascontiguousarray(arrays[key].T)
    del arrays["lm_head.weight"]
    arrays["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(8, np.float32)
    before = {*cache.glob("weights/*")}
    with pytest.raises(UsageError, match="4 problems") as caught:
        load_decoder(checkpoint(tmp_path / "tiny", arrays))
    notes = "\n".join(caught.value.notes)
    assert "missing: lm_head.weight; bfloat16 (70, 64) is expected" in notes
    assert "unexpected: model.layers.0.mlp.up_proj.bias" in notes
    assert "model.norm.weight: the dtype is int8, not bfloat16" in notes
    assert f"{key}: dimension 0 is 64, not 32" in notes
    assert {*cache.glob("weights/*")} == before


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    place = checkpoint(tmp_path / "tiny", tensors(), model_type="mamba")
    with pytest.raises(UsageError, match="type 'mamba', which is not supported"):
        load_decoder(place)
    place = checkpoint(tmp_path / "tiny", tensors())
    whole = (place / "model.safetensors").read_bytes()
    (place / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(UsageError, match="truncated"):
        load_decoder(place)
    (place / "model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"has no model\.safetensors"):
        load_decoder(place)
    with pytest.raises(UsageError, match=r"no config\.json"):
        load_decoder(tmp_path)


@pytest.mark.parametrize("change", ["truncated", "empty", "zeros", "facts", "gone"])
def test_a_damaged_executable_is_built_anew(tmp_path: Path, cache: Path, change: str) -> None:
    place = checkpoint(tmp_path / "tiny", tensors())
    expected = logits(load_decoder(place))
    for path in cache.glob("executables/*.rxe"):
        data = path.read_bytes()
        if change == "truncated":
            path.write_bytes(data[:-1])
        elif change == "empty":
            path.write_bytes(b"")
        elif change == "zeros":
            path.write_bytes(data[:5000] + bytes(100) + data[5100:])
        elif change == "facts":
            path.with_suffix(".json").write_text("{")
        else:
            path.with_suffix(".json").unlink()
    np.testing.assert_array_equal(logits(load_decoder(place)), expected)
    np.testing.assert_array_equal(logits(load_decoder(place)), expected)


def test_no_place_to_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder that cannot be one, or no cache: slower, never an error."""
    place = checkpoint(tmp_path / "tiny", tensors())
    expected = logits(load_decoder(place))
    monkeypatch.setattr(
        "relaxpy.runtime.executable_cache.kept_folder", lambda name: tmp_path / "file" / name
    )
    monkeypatch.setattr("relaxpy.runtime.pack.kept_folder", lambda name: tmp_path / "file" / name)
    (tmp_path / "file").write_text("")
    found = load_decoder(place)
    assert found.packed.kept is None
    np.testing.assert_array_equal(logits(found), expected)
    monkeypatch.setattr("relaxpy.runtime.executable_cache.kept_folder", lambda _: None)
    np.testing.assert_array_equal(logits(load_decoder(place)), expected)


def test_the_key_says_what_is_built() -> None:
    from relaxpy.models import loaded

    def key(
        fields: dict[str, Any], scheme: Scheme, target: str = "llvm", dtype: Any = np.float32
    ) -> str | None:
        stored = {"norm": Floats.of(np.zeros(2, dtype))}
        return loaded.kept_key(Checkpoint(Path("x"), (), fields, stored), scheme, target)

    known = {
        key(FIELDS, Scheme()),
        key({**FIELDS, "rms_norm_eps": 1e-3}, Scheme()),
        key(FIELDS, Scheme(), "llvm -mcpu=haswell"),
        key(FIELDS, Scheme(), dtype=np.float16),
        *(key(FIELDS, dataclasses.replace(Scheme(), **each)) for each in (
            {"bits": 8}, {"group": 64}, {"zero": "minimum"}, {"activations": None}, {"dtype": "bfloat16"},
            {"cache_dtype": "int8"}, {"adapters": ("query",)}, {"decode": True}, {"context": 32},
        )),
    }  # fmt: skip
    assert len(known) == 13
    assert None not in known
    assert key(dict(reversed(FIELDS.items())), Scheme()) in known


def test_tensors_of_several_types(tmp_path: Path) -> None:
    """Norms in float32, a matrix in float16: each is read as it is stored."""
    arrays = {name: each.astype(np.float32) for name, each in tensors().items()}
    mixed = {
        name: each
        if "norm" in name
        else each.astype("float16" if "up" in name else ml_dtypes.bfloat16)
        for name, each in arrays.items()
    }
    scheme = Scheme(bits=None, activations=None)
    found = logits(load_decoder(checkpoint(tmp_path / "mixed", mixed), scheme))
    expected = logits(load_decoder(checkpoint(tmp_path / "tiny", tensors()), scheme))
    np.testing.assert_allclose(found, expected, atol=1e-5)
