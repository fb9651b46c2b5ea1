"""The block types of GGUF files: a row of a tensor is a sequence of blocks of 32 or 256 weights.

Each type says where the codes and scales are in a block's bytes. All of them mean `code * scale`, some with a minimum
for each group, so codes with scales (`relaxpy.codes`) hold them exactly, which is also how floats are computed.
K-quants have scales of scales; their products are float32. The fields below are those of ggml's structures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from relaxpy.codes import Codes
from relaxpy.runtime.tensor import Array


class Blocks:
    """A type of block. Its functions take blocks (n, nbytes) of uint8."""

    size: ClassVar[int] = 32
    """The weights of a block."""
    nbytes: ClassVar[int]
    kept: ClassVar[Codes]

    @classmethod
    def codes(cls, blocks: Array) -> Array:
        """The codes (n, size), uint8, as `kept` has them."""
        raise NotImplementedError

    @classmethod
    def scale(cls, blocks: Array) -> Array:
        """The scales (n, groups)."""
        return _half(blocks, 0)

    @classmethod
    def minimum(cls, blocks: Array) -> Array:
        """The minimums (n, groups) of types that have them."""
        raise NotImplementedError


def _half(blocks: Array, at: int) -> Array:
    """The float16 at a place of each block: (n, 1)."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16)


def _wide(blocks: Array, at: int) -> Array:
    return _half(blocks, at).astype(np.float32)


def _fields(data: Array, bits: int, run: int) -> Array:
    """The fields of bytes (n, bytes), those of `run` bytes together: first the lowest bits of each, then the next."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = data.reshape(len(data), -1, 1, run) >> shifts[:, None] & np.uint8(2**bits - 1)
    return parts.reshape(len(data), -1)


def _fifth(data: Array) -> Array:
    """32 bits in order, (n, 32): the highest of codes of 5 bits."""
    return np.unpackbits(np.ascontiguousarray(data), axis=-1, bitorder="little")


def _products(factor: Array, numbers: Array) -> Array:
    with np.errstate(all="ignore"):  # a file may have any scale
        return factor * numbers.astype(np.float32)


class Q4_0(Blocks):  # noqa: N801 (the names of ggml)
    """float16 d; 16 bytes, whose low nibbles come first."""

    nbytes = 18
    kept = Codes(4, 32)

    @classmethod
    def codes(cls, blocks: Array) -> Array:
        return _fields(blocks[:, 2:], 4, 16)


class Q4_1(Blocks):  # noqa: N801
    """float16 d and minimum; 16 bytes."""

    nbytes = 20
    kept = Codes(4, 32, "minimum")

    @classmethod
    def codes(cls, blocks: Array) -> Array:
        return _fields(blocks[:, 4:], 4, 16)

    @classmethod
    def minimum(cls, blocks: Array) -> Array:
        return _half(blocks, 2)


class Q5_0(Blocks):  # noqa: N801
    """float16 d; the highest bit of each weight; 16 bytes."""

    nbytes = 22
    kept = Codes(8, 32)

    @classmethod
    def codes(cls, blocks: Array) -> Array:
        return (_fields(blocks[:, 6:], 4, 16) | _fifth(blocks[:, 2:6]) << 4) + np.uint8(128 - 16)


class Q5_1(Blocks):  # noqa: N801
    """float16 d and minimum; the highest bit of each weight; 16 bytes."""

    nbytes = 24
    kept = Codes(8, 32, "minimum")

    @classmethod
    def codes(cls, blocks: Array) -> Array:
        return _fields(blocks[:, 8:], 4, 16) | _fifth(blocks[:, 4:8]) << 4

    @classmethod
    def minimum(cls, blocks: Array) -> Array:
        return _half(blocks, 2)


class Q8_0(Blocks):  # noqa: N801
    """float16 d; 32 of int8."""

    nbytes = 34
    kept = Codes(8, 32)

    @classmethod
    def codes(cls, blocks: Array) -> Array:
        return blocks[:, 2:] ^ np.uint8(128)


class Q2_K(Blocks):  # noqa: N801
    """16 scales and minimums of 4 bits; 64 bytes; float16 d and that of the minimums."""

    size, nbytes = 256, 84
    kept = Codes(4, 16, "minimum", "float32")

    @classmethod
    def codes(cls, blocks: Array) -> Array:
        return _fields(blocks[:, 16:80], 2, 32)

    @classmethod
    def scale(cls, blocks: Array) -> Array:
        return _products(_wide(blocks, 80), blocks[:, :16] & 15)

    @classmethod
    def minimum(cls, blocks: Array) -> Array:
        return -_products(_wide(blocks, 82), blocks[:, :16] >> 4)


class Q3_K(Blocks):  # noqa: N801
    """The highest bit of each weight; 64 bytes; 16 scales of 6 bits; float16 d."""

    size, nbytes = 256, 110
    kept = Codes(3, 16, "symmetric", "float32")

    @classmethod
    def codes(cls, blocks: Array) -> Array:
        return _fields(blocks[:, 32:96], 2, 32) | _fields(blocks[:, :32], 1, 32) << 2

    @classmethod
    def scale(cls, blocks: Array) -> Array:
        packed = blocks[:, 96:108]
        scales = _fields(packed[:, :8], 4, 8) | _fields(packed[:, 8:], 2, 4) << 4
        return _products(_wide(blocks, 108), scales.astype(np.int8) - np.int8(32))


class Q4_K(Blocks):  # noqa: N801
    """float16 d and that of the minimums; 8 scales and minimums of 6 bits; 128 bytes."""

    size, nbytes = 256, 144
    kept = Codes(4, 32, "minimum", "float32")

    @classmethod
    def codes(cls, blocks: Array) -> Array:
        return _fields(blocks[:, 16:], 4, 32)

    @classmethod
    def scale(cls, blocks: Array) -> Array:
        own, _, rest = np.split(blocks[:, 4:16], 3, axis=1)
        scales = np.concatenate([own & 63, rest & 15 | own >> 2 & 48], axis=1)
        return _products(_wide(blocks, 0), scales)

    @classmethod
    def minimum(cls, blocks: Array) -> Array:
        _, own, rest = np.split(blocks[:, 4:16], 3, axis=1)
        scales = np.concatenate([own & 63, rest >> 4 | own >> 2 & 48], axis=1)
        return -_products(_wide(blocks, 2), scales)


class Q5_K(Q4_K):  # noqa: N801
    """As Q4_K, with the highest bit of each weight before the 128 bytes."""

    nbytes = 176
    kept = Codes(8, 32, "minimum", "float32")

    @classmethod
    def codes(cls, blocks: Array) -> Array:
        return _fields(blocks[:, 48:], 4, 32) | _fields(blocks[:, 16:48], 1, 32) << 4


class Q6_K(Blocks):  # noqa: N801
    """128 bytes of low nibbles; 64 of the two highest bits; 16 scales of int8; float16 d."""

    size, nbytes = 256, 210
    kept = Codes(8, 16, "symmetric", "float32")

    @classmethod
    def codes(cls, blocks: Array) -> Array:
        found = _fields(blocks[:, :128], 4, 64) | _fields(blocks[:, 128:192], 2, 32) << 4
        return found + np.uint8(128 - 32)

    @classmethod
    def scale(cls, blocks: Array) -> Array:
        return _products(_wide(blocks, 208), blocks[:, 192:208].view(np.int8))


E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Twice the number of each float of 4 bits; that of code 8 is -0."""


def halved_exponent(exponents: Array) -> Array:
    """Half of the power of two that a byte of MXFP4 means, as a float32; of 0 and 1 it is subnormal."""
    wide = exponents.astype(np.uint32)
    bits = np.where(wide < 2, np.uint32(0x00200000) << np.minimum(wide, 1), wide - 1 << 23)
    return bits.astype(np.uint32).view(np.float32)


class MXFP4(Blocks):
    """A power of two; 16 bytes, whose nibbles are floats of 4 bits: multiples of a half."""

    nbytes = 17
    kept = Codes(8, 32, "symmetric", "float32")

    @classmethod
    def codes(cls, blocks: Array) -> Array:
        return E2M1.view(np.uint8)[_fields(blocks[:, 1:], 4, 16)] ^ np.uint8(128)

    @classmethod
    def scale(cls, blocks: Array) -> Array:
        return halved_exponent(blocks[:, :1])


class GgufRows:
    """The rows of a tensor of blocks."""

    def __init__(self, kind: type[Blocks], data: Array) -> None:
        self.kind, self.data = kind, data
        """The rows (rows, bytes) as they lie in the file, uint8."""

    def codes(self, rows: object) -> Array:
        return self._made(self.kind.codes, rows)

    def scale(self, rows: object) -> Array:
        return self._made(self.kind.scale, rows)

    def offset(self, rows: object) -> Array:
        return self._made(self.kind.minimum, rows)

    def _made(self, function: Callable[[Array], Array], rows: Any) -> Array:
        data: Array = self.data[rows]
        blocks = np.ascontiguousarray(data).reshape(-1, self.kind.nbytes)
        return function(blocks).reshape(len(data), -1)


TYPES: Mapping[int, tuple[str, type[Blocks] | str]] = {
    0: ("F32", "float32"), 1: ("F16", "float16"), 30: ("BF16", "bfloat16"), 28: ("F64", "float64"),
    24: ("I8", "int8"), 25: ("I16", "int16"), 26: ("I32", "int32"), 27: ("I64", "int64"),
    2: ("Q4_0", Q4_0), 3: ("Q4_1", Q4_1), 6: ("Q5_0", Q5_0), 7: ("Q5_1", Q5_1), 8: ("Q8_0", Q8_0),
    10: ("Q2_K", Q2_K), 11: ("Q3_K", Q3_K), 12: ("Q4_K", Q4_K), 13: ("Q5_K", Q5_K), 14: ("Q6_K", Q6_K),
    39: ("MXFP4", MXFP4),
}  # fmt: skip
"""By number: the name of a type, and the dtype of its elements or its blocks."""
OTHERS: Mapping[int, str] = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
"""Types that are not supported."""
