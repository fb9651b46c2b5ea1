"""Quantised checkpoints in safetensors: packed here from the published layouts, weight by weight, and read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relaxpy.checkpoints import open_checkpoint
from relaxpy.checkpoints.stored import Stored
from relaxpy.checkpoints.unread import UnreadWarning
from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import read_weights
from relaxpy.models.loaded import Scheme
from tests.checkpoints.test_gguf_models import TOKENS, by_transformers, loaded, logits, model
from tests.runtime.test_safetensors import saved
from tests.sweeps import full, sweep

Made = tuple[dict[str, np.ndarray], np.ndarray]
"""The tensors of a module `X`, without their `X.`, and the weight (out, in) that they mean."""


def words(bits: int, values: np.ndarray) -> np.ndarray:
    """Numbers (n, rows) as a stream of bits along the first axis, in words of 32: written bit by bit."""
    spread = (values[:, None, :] >> np.arange(bits)[:, None]) & 1
    stream = spread.reshape(-1, 32, values.shape[1]).astype(np.uint64)
    return (
        (stream << np.arange(32, dtype=np.uint64)[:, None])
        .sum(axis=1)
        .astype(np.uint32)
        .view(np.int32)
    )


def parts(out: int, depth: int, group: int, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes (out, in), zero points and scales (out, groups)."""
    random = np.random.default_rng(out + depth)
    codes = random.integers(0, 2**bits, (out, depth))
    zeros = random.integers(0, 2**bits, (out, depth // group))
    scales = (random.random((out, depth // group)) / 2**bits / depth**0.5 * 4 + 0.001).astype(
        np.float16
    )
    return codes, zeros, scales


def meant(codes: np.ndarray, zeros: Any, scales: np.ndarray, own: np.ndarray) -> np.ndarray:
    zeros = np.broadcast_to(zeros, scales.shape)
    found = [
        (codes[:, k] - zeros[:, g]).astype(np.float32) * scales[:, g].astype(np.float32)
        for k, g in enumerate(own)
    ]
    return np.stack(found, axis=1)


def awq(out: int, depth: int, group: int = 32) -> Made:
    codes, zeros, scales = parts(out, depth, group, 4)

    def pack(x: np.ndarray) -> np.ndarray:
        """Along the last axis; the columns 0 2 4 6 1 3 5 7 of each eight, the first in the lowest bits."""
        x = x.reshape(len(x), -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
        return (
            (x.astype(np.uint32) << np.arange(0, 32, 4, dtype=np.uint32))
            .sum(-1, dtype=np.uint32)
            .view(np.int32)
        )

    own = np.arange(depth) // group
    tensors = {
        "qweight": pack(codes.T),
        "qzeros": pack(zeros.T),
        "scales": np.ascontiguousarray(scales.T),
    }
    return tensors, meant(codes, zeros, scales, own)


def gptq(
    out: int, depth: int, bits: int = 4, group: int = 32, act: bool = False, version: int = 1
) -> Made:
    codes, zeros, scales = parts(out, depth, group, bits)
    own = np.arange(depth) // group
    if act:
        own = np.random.default_rng(1).permutation(own)
    # 1 is subtracted from all numbers of a word at once, so that a zero point of 0 borrows from its neighbour.
    ones = words(bits, np.ones_like(zeros)).view(np.uint32)
    points = words(bits, zeros).view(np.uint32) - ones * np.uint32(version == 1)
    tensors = {
        "qweight": words(bits, codes.T),
        "qzeros": np.ascontiguousarray(points.view(np.int32).T),
        "scales": np.ascontiguousarray(scales.T),
        "g_idx": own.astype(np.int32),
    }
    return tensors, meant(codes, zeros, scales, own)


def packed(out: int, depth: int, bits: int = 4, group: int = 32, zero: bool = False) -> Made:
    codes, zeros, scales = parts(out, depth, group, bits)
    each = 32 // bits

    def pack(x: np.ndarray) -> np.ndarray:
        filled = np.pad(x, ((0, 0), (0, -x.shape[1] % each))).reshape(len(x), -1, each)
        shifts = np.arange(each, dtype=np.uint32) * np.uint32(bits)
        return (filled.astype(np.uint32) << shifts).sum(-1, dtype=np.uint32).view(np.int32)

    tensors = {
        "weight_packed": pack(codes), "weight_scale": scales, "weight_shape": np.array([out, depth]),
    }  # fmt: skip
    if zero:
        tensors["weight_zero_point"] = np.ascontiguousarray(pack(zeros.T).T)
    own = np.arange(depth) // group
    return tensors, meant(codes, zeros if zero else 2 ** (bits - 1), scales, own)


def float8(
    out: int, depth: int, name: str = "weight_scale_inv", block: tuple[int, int] = (32, 16)
) -> Made:
    random = np.random.default_rng(out)
    weight = random.standard_normal((out, depth)).astype(ml_dtypes.float8_e4m3fn)
    scales = (
        random.random((-(-out // block[0]), -(-depth // block[1]))).astype(np.float32) / depth**0.5
    )
    every = np.repeat(np.repeat(scales, block[0], 0)[:out], block[1], 1)[:, :depth]
    return {"weight": weight, name: scales}, weight.astype(np.float32) * every


def bytes_by_row(out: int, depth: int) -> Made:
    random = np.random.default_rng(out)
    weight = random.integers(-128, 128, (out, depth)).astype(np.int8)
    scales = (random.random((out, 1)) / 128 / depth**0.5).astype(np.float32)
    return {"weight": weight, "weight_scale": scales}, weight.astype(np.float32) * scales


def groups(
    bits: int, symmetric: bool = True, kind: str = "int", form: str = "pack-quantized"
) -> dict[str, Any]:
    weights = {
        "num_bits": bits,
        "type": kind,
        "symmetric": symmetric,
        "strategy": "group",
        "group_size": 32,
    }
    return {
        "quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
    }  # fmt: skip


CASES: dict[str, tuple[dict[str, Any], Callable[[int, int], Made], bool]] = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}, awq, True),
    **{
        f"gptq {bits}": ({"quant_method": "gptq", "bits": bits, "group_size": 32, "desc_act": False, "sym": False},
                         lambda o, d, bits=bits: gptq(o, d, bits), True)
        for bits in (2, 3, 4, 8)
    },
    "gptq v2": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"},
        lambda o, d: gptq(o, d, version=2), True,
    ),
    "gptq desc_act": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
        lambda o, d: gptq(o, d, act=True), False,
    ),
    "int4": (groups(4), packed, True),
    "int4 asymmetric": (groups(4, False), lambda o, d: packed(o, d, zero=True), True),
    "int8": (groups(8), lambda o, d: packed(o, d, 8), True),
    "int8 asymmetric": (groups(8, False), lambda o, d: packed(o, d, 8, zero=True), True),
    "int3": (groups(3), lambda o, d: packed(o, d, 3), True),
    "int3 asymmetric": (groups(3, False), lambda o, d: packed(o, d, 3, zero=True), True),
    "int8 by row": (groups(8, form="int-quantized"), bytes_by_row, True),
    "float8 by row": (
        groups(8, kind="float", form="float-quantized"),
        lambda o, d: float8(o, d, "weight_scale", (1, d)), False,
    ),
    "float8 in blocks": (
        {"quant_method": "fp8", "weight_block_size": [32, 16], "activation_scheme": "dynamic"}, float8, False,
    ),
}  # fmt: skip


def folder(
    place: Path, options: dict[str, Any], tensors: dict[str, np.ndarray], **fields: Any
) -> Path:
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(json.dumps({**fields, "quantization_config": options}))
    saved(place / "model.safetensors", tensors)
    return place


@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str, tmp_path: Path) -> None:
    """Floats to the bit; where codes are kept they mean the same. Groups, rows and blocks are cut anywhere."""
    options, make, kept = CASES[name]
    for out, depth in ((32, 64), (96, 160)):
        made, expected = make(out, depth)
        place = folder(
            tmp_path / f"{out}", options,
            {**{f"a.{n}": x for n, x in made.items()}, "norm.weight": np.ones(5, np.float32)},
        )  # fmt: skip
        found = open_checkpoint(place)
        assert found.tensors.keys() == {"a.weight", "norm.weight"}
        assert found.quantization == options["quant_method"]
        stored = found.tensors["a.weight"]
        assert (stored.shape, stored.dtype) == ((out, depth), "float32")
        np.testing.assert_array_equal(stored.read(), expected)
        assert (stored.codes is not None) == kept == found.has_codes
        if stored.codes is not None:
            check_codes(stored, expected)


def check_codes(stored: Stored, expected: np.ndarray) -> None:
    codes = stored.codes
    assert codes is not None
    read = {part: each.read() for part, each in stored.parts().items()}
    for part, (shape, dtype) in codes.parts(stored.lies, -1).items():
        assert (read[part].shape, str(read[part].dtype)) == (shape, dtype)
    rows = expected.reshape(-1, expected.shape[-1])
    flat = {part: each.reshape(len(rows), -1) for part, each in read.items()}
    np.testing.assert_array_equal(codes.dequantize(flat, 1, rows.shape[1]), rows)


def test_floats_of_4_bits(tmp_path: Path) -> None:
    """Blocks and exponents as gpt-oss has them, beside the numbers of the standard."""
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (2, 6, 3, 16)).astype(np.uint8)
    scales = random.integers(90, 130, (2, 6, 3)).astype(np.uint8)
    values = np.array(
        [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32
    )
    expected = np.empty((2, 6, 3, 32), np.float32)
    expected[..., 0::2], expected[..., 1::2] = values[blocks & 15], values[blocks >> 4]
    expected = np.ldexp(expected, scales[..., None].astype(int) - 127).reshape(2, 6, 96)
    place = folder(
        tmp_path / "x", {"quant_method": "mxfp4"}, {"e.up_blocks": blocks, "e.up_scales": scales}
    )
    stored = open_checkpoint(place).tensors["e.up"]
    assert stored.shape == (2, 96, 6)
    np.testing.assert_array_equal(stored.read(), expected.swapaxes(-1, -2))
    check_codes(stored, expected)


@sweep(4)
@pytest.mark.parametrize("name", ["awq", "gptq desc_act", "int4 asymmetric", "float8 in blocks"])
def test_logits_are_those_of_the_weights_that_are_meant(name: str, tmp_path: Path) -> None:
    fields = model("llama", tmp_path / "hf", attention_bias=False)
    tensors, meaning = read_weights(tmp_path / "hf"), {}
    options, make, kept = CASES[name]
    lies: dict[str, np.ndarray] = {}
    for key, tensor in tensors.items():
        if key.endswith("_proj.weight"):
            made, meaning[key] = make(*tensor.shape)
            lies |= {f"{key.removesuffix('.weight')}.{part}": each for part, each in made.items()}
        else:
            lies[key] = meaning[key] = tensor
    expected = by_transformers(tmp_path / "hf", meaning, TOKENS)
    place = folder(tmp_path / "lies", options, lies, **fields)
    for decode in (False, True) if kept else (False,):
        found = logits(loaded(place, Scheme(bits=None, activations=None, decode=decode)), TOKENS)
        np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


@full
def test_logits_of_gpt_oss_in_floats_of_4_bits(tmp_path: Path) -> None:
    """As it is published; transformers decodes the experts itself."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    fields = model("gpt_oss", tmp_path / "hf", num_local_experts=3, num_experts_per_tok=2)
    random, tensors = np.random.default_rng(0), read_weights(tmp_path / "hf")
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, depth, out = tensors.pop(name).shape
        shape = experts, out, depth // 32
        tensors[f"{name}_blocks"] = random.integers(0, 256, (*shape, 16)).astype(np.uint8)
        tensors[f"{name}_scales"] = random.integers(121, 124, shape).astype(np.uint8)
    options = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
    }
    place = folder(tmp_path / "lies", options, tensors, **fields)
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        place, dtype=torch.float32, attn_implementation="eager",
        quantization_config=transformers.Mxfp4Config(dequantize=True),
    )  # fmt: skip
    with torch.no_grad():
        expected = reference.eval()(torch.from_numpy(TOKENS[None])).logits.numpy()[0]
    for decode in (False, True):
        decoder = loaded(place, Scheme(bits=None, activations=None, decode=decode))
        close = 1e-4 * float(np.abs(expected).max())
        np.testing.assert_allclose(logits(decoder, TOKENS), expected, atol=close)


@pytest.mark.parametrize(
    ("case", "change", "message"),
    [
        (
            "awq",
            {"quant_method": "bitsandbytes"},
            "quantised by 'bitsandbytes', which is not supported",
        ),
        ("awq", {"quant_method": ["awq"]}, "which is not supported"),
        ("awq", {"bits": 3}, "bits 3; supported are 4"),
        ("awq", {"version": "gemv"}, "version 'gemv'; supported are gemm"),
        ("awq", {"zero_point": False}, "zero_point False"),
        ("awq", {"group_size": 64}, "has 2 groups, and a depth of 64 in groups of 64"),
        ("awq", {"group_size": "all"}, "group_size 'all'"),
        ("gptq 4", {"bits": 5}, "bits 5; supported are 2, 3, 4, 8"),
        ("gptq 4", {"bits": True}, "bits True"),
        ("gptq 4", {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ("gptq 4", {"group_size": 0}, "group_size 0"),
        ("gptq 4", {"bits": 8}, "expected"),
        ("gptq 4", {"format": "marlin"}, "format 'marlin'"),
        ("gptq 4", {"is_marlin_format": True}, "is_marlin_format = True"),
        ("gptq 4", {"rotation": "hadamard"}, "rotation = hadamard, which is not supported"),
        ("gptq 4", {"adapter": {"rank": 8}}, "adapter = {'rank': 8}"),
        ("gptq 4", {"pack_dtype": "int16"}, "pack_dtype"),
        (
            "int4",
            {"transform_config": {"config_groups": {"u": {"type": "hadamard"}}}},
            "transform_config",
        ),
        ("int4", {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
        ("int4", {"format": "marlin-24"}, "format 'marlin-24'"),
        ("int4", {"config_groups": {}}, "no config_groups"),
        ("int4", {"config_groups": {"a": 1}}, "several types, or of none"),
        (
            "int4",
            {"config_groups": {"a": {"weights": {"num_bits": 4, "type": "float"}}}},
            "float of 4 bits",
        ),
        ("int4", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse"),
        ("float8 in blocks", {"weight_block_size": [32]}, r"weight_block_size \[32\]"),
        ("float8 in blocks", {"weight_block_size": [16, 16]}, "its scales"),
        ("float8 in blocks", {"fmt": "e5m2"}, "fmt 'e5m2'"),
    ],
)
def test_options_that_are_not_supported(
    case: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    options, make, _ = CASES[case]
    made, _ = make(32, 64)
    place = folder(tmp_path / "x", {**options, **change}, {f"a.{n}": x for n, x in made.items()})
    with pytest.raises(UsageError, match=message) as caught:
        open_checkpoint(place)
    assert caught.value.code == "bad-checkpoint"
    assert str(place) in str(caught.value)


def test_options_that_nobody_knows(tmp_path: Path) -> None:
    """A warning that names them; without a word where they ask for nothing."""
    options, make, _ = CASES["int4"]
    tensors = {f"a.{n}": x for n, x in make(32, 64)[0].items()}
    quiet = {"transform_config": {"config_groups": {}}, "kv_cache_scheme": None, "a_new_one": False}
    open_checkpoint(folder(tmp_path / "x", {**options, **quiet}, tensors))
    with pytest.warns(UnreadWarning, match=r"not followed: quantization_config: a_new_one = 3"):
        open_checkpoint(folder(tmp_path / "x", {**options, "a_new_one": 3}, tensors))


TENSORS = [
    (case, part, change)
    for case in (
        "awq",
        "gptq 3",
        "gptq desc_act",
        "int4 asymmetric",
        "int8 by row",
        "float8 in blocks",
    )
    for part in CASES[case][1](32, 64)[0]
    for change in ("gone", "shape", "dtype", "rank")
]


@pytest.mark.parametrize(("case", "part", "change"), TENSORS)
def test_tensors_that_do_not_fit(case: str, part: str, change: str, tmp_path: Path) -> None:
    """A located error. Orders and zero points may be absent: neighbours share a group, codes are symmetric."""
    options, make, _ = CASES[case]
    made, _ = make(32, 64)
    tensors = {f"a.{n}": x for n, x in made.items()}
    name = f"a.{part}"
    found = tensors.pop(name)
    if change == "shape":
        tensors[name] = np.concatenate([found, found[:1]])
    elif change == "dtype":
        tensors[name] = np.zeros(found.shape, np.float64)
    elif change == "rank":
        tensors[name] = found[None]
    place = folder(tmp_path / "x", options, tensors)
    optional = part == "g_idx" or part == "weight_zero_point"
    if optional and change == "gone":
        assert "a.weight" in open_checkpoint(place).tensors
        return
    with pytest.raises(UsageError) as caught:
        open_checkpoint(place)
    assert caught.value.code == "bad-checkpoint"
    assert str(place) in str(caught.value)
