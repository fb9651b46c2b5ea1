"""Reading checkpoints: what does not fit is said by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import Source, gather, read_config, read_weights

SOURCES = {"w": Source("linear.weight", transpose=True), "b": Source("linear.bias")}
SHAPES = {"w": (3, 2), "b": (2,)}


def tensors() -> dict[str, np.ndarray]:
    return {
        "linear.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "linear.bias": np.ones(2, np.float32),
    }


def test_gather_transposes_and_keeps_c_order() -> None:
    found = gather(tensors(), SOURCES, SHAPES)
    np.testing.assert_array_equal(found["w"], tensors()["linear.weight"].T)
    assert found["w"].flags.c_contiguous


def test_gather_converts_other_floats() -> None:
    halves = {name: value.astype(np.float16) for name, value in tensors().items()}
    assert {v.dtype.name for v in gather(halves, SOURCES, SHAPES).values()} == {"float32"}


def test_bfloat16_is_read_in_a_process_that_has_not_met_it(tmp_path: Path) -> None:
    save_file({"w": np.ones(2, ml_dtypes.bfloat16)}, tmp_path / "model.safetensors")
    code = (
        "import sys; from pathlib import Path; from relaxpy.models.checkpoint import read_weights; "
    )
    code += "print(read_weights(Path(sys.argv[1]))['w'].dtype)"
    run = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert run.stdout.strip() == "bfloat16", run.stderr


def test_gather_lists_every_problem() -> None:
    bad = {"linear.weight": np.ones((3, 2), np.float32), "extra": np.ones(1), "known": np.ones(1)}
    with pytest.raises(UsageError) as caught:
        gather(bad, SOURCES, SHAPES, unused={"known"})
    assert caught.value.code == "bad-weights"
    assert caught.value.notes == (
        "wrong shape: linear.weight is (3, 2), but the configuration requires (2, 3)",
        "missing: linear.bias (2,)",
        "unexpected: extra",
    )


def test_gather_refuses_integers() -> None:
    ints = {**tensors(), "linear.bias": np.ones(2, np.int64)}
    with pytest.raises(UsageError, match=r"linear\.bias is int64, not a float"):
        gather(ints, SOURCES, SHAPES)


def test_a_long_list_is_cut() -> None:
    many = {**tensors(), **{f"extra.{i}": np.ones(1) for i in range(30)}}
    with pytest.raises(UsageError, match="and 18 more"):
        gather(many, SOURCES, SHAPES)


def test_config_of_another_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(UsageError, match="'llama', not 'bert'"):
        read_config(tmp_path, "bert")


@pytest.mark.parametrize(
    ("text", "match"),
    [(None, "no config.json"), ("{", "not JSON"), ("[]", "has no fields: it is a list")],
)
def test_config_that_is_none(tmp_path: Path, text: str | None, match: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=match):
        read_config(tmp_path, "bert")


def test_weights_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no model\.safetensors"):
        read_weights(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(UsageError, match="cannot be read"):
        read_weights(tmp_path)


def test_weights_in_several_files(tmp_path: Path) -> None:
    """Large checkpoints are split; theirs are mostly bfloat16."""
    from safetensors.numpy import save_file

    first = {"a": np.arange(3).astype(ml_dtypes.bfloat16)}
    save_file(first, tmp_path / "model-1.safetensors")
    save_file({"b": np.ones(2, np.float32)}, tmp_path / "model-2.safetensors")
    places = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps(places))
    found = read_weights(tmp_path)
    assert {name: value.dtype.name for name, value in found.items()} == {
        "a": "bfloat16",
        "b": "float32",
    }
    np.testing.assert_array_equal(found["a"], first["a"])
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(UsageError, match=r"lacks model-2\.safetensors"):
        read_weights(tmp_path)
    index.write_text("[]")
    with pytest.raises(UsageError, match="is not a valid index"):
        read_weights(tmp_path)
