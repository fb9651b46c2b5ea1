"""The block types of GGUF beside the package gguf, to the bit: as floats, and as codes with scales."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from relaxpy.checkpoints.gguf_blocks import OTHERS, TYPES, Blocks, GgufRows
from relaxpy.checkpoints.stored import Coded

KINDS = {
    name: (number, kind) for number, (name, kind) in TYPES.items() if not isinstance(kind, str)
}


def random_blocks(kind: type[Blocks], shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Rows (rows, bytes) of any bytes, with scales that are finite."""
    rows, depth = int(np.prod(shape[:-1])), shape[-1]
    random = np.random.default_rng(seed)
    data = random.integers(0, 256, (rows * depth // kind.size, kind.nbytes), np.uint8)
    for at in {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "MXFP4": ()}.get(
        kind.__name__, (0, 2) if kind.kept.zero == "minimum" else (0,)
    ):
        half = random.standard_normal(len(data)).astype(np.float16)
        data[:, at : at + 2] = half[:, None].view(np.uint8)
    if kind.__name__ == "MXFP4":  # powers of two whose multiples are finite
        data[:, 0] %= 250
    return data.reshape(rows, -1)


def tensor(name: str, shape: tuple[int, ...], seed: int = 0) -> tuple[Coded, np.ndarray]:
    number, kind = KINDS[name]
    assert not isinstance(kind, str)
    data = random_blocks(kind, shape, seed)
    expected = gguf.dequantize(data, gguf.GGMLQuantizationType(number)).reshape(shape)
    return Coded(
        shape, name, data.nbytes, rows=GgufRows(kind, data), form=kind.kept, codes=kind.kept
    ), expected


@pytest.mark.parametrize("name", KINDS)
def test_floats_are_those_of_gguf(name: str) -> None:
    for shape in ((5, 512), (3, 2, 256), (256,)):
        found, expected = tensor(name, shape)
        np.testing.assert_array_equal(found.read().view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("name", KINDS)
def test_codes_mean_the_same_floats(name: str) -> None:
    found, expected = tensor(name, (6, 768), 1)
    assert found.codes is not None
    parts = {part: each.read() for part, each in found.parts().items()}
    for part, (shape, dtype) in found.codes.parts((6, 768), -1).items():
        assert (parts[part].shape, str(parts[part].dtype)) == (shape, dtype)
    again = found.codes.dequantize(parts, 1, 768)
    np.testing.assert_array_equal(again, expected)


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K"])
def test_a_large_tensor_is_decoded_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, expected = tensor(name, (7, 1024), 2)
    monkeypatch.setattr("relaxpy.checkpoints.stored._CHUNK", 2048)
    np.testing.assert_array_equal(found.read(), expected)


def test_types_are_those_of_gguf() -> None:
    """Every type of the package is known; names, sizes and widths agree."""
    assert {int(each) for each in gguf.GGMLQuantizationType} == TYPES.keys() | OTHERS.keys()
    for number, (name, kind) in TYPES.items():
        own = gguf.GGMLQuantizationType[name]
        assert own == number
        if not isinstance(kind, str):
            assert (kind.size, kind.nbytes) == gguf.GGML_QUANT_SIZES[own]
    assert all(gguf.GGMLQuantizationType(n).name == name for n, name in OTHERS.items())
