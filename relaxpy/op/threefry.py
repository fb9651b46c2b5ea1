"""Threefry: random bits as a function of a key and of numbers that count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from relaxpy.op import te
from relaxpy.op.base import Sample, define_op, sample, wrong
from relaxpy.op.elementwise import Binary
from relaxpy.op.rule import INTEGERS

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
"""Bits by which a word is rotated in the rounds of one group of four, and of the next."""
PARITY = 0x1BD11BDA


@define_op
class Threefry(Binary):
    """The 64 random bits that Threefry-2x32 with 20 rounds (Salmon et al., 2011; the generator of JAX) makes of the key
    x1 and the count x2, each of two words of 32 bits, the first the high half."""

    name = "threefry"
    no_vjp = INTEGERS
    takes = "integers of 64 bits"

    def scalar(self, *xs: Any) -> Any:
        x1, x2 = (te.cast(x, "uint64") for x in xs)
        half = te.literal(32, x1)

        def words(value: Any) -> list[Any]:
            return [te.cast(each, "uint32") for each in (te.right_shift(value, half), value)]

        def word(value: int) -> Any:
            return te.const(value, "uint32")

        def rounds(i: int, keys: list[Any], x: Any, y: Any) -> Any:
            """The result from round i on."""
            if i == 20:
                high, low = (te.cast(each, "uint64") for each in (x, y))
                return te.bitwise_or(te.left_shift(high, half), low)
            by = ROTATIONS[i // 4 % 2][i % 4]
            turned = te.bitwise_or(te.left_shift(y, word(by)), te.right_shift(y, word(32 - by)))

            def mixed(x: Any) -> Any:
                new = te.bitwise_xor(x, turned)
                if i % 4 < 3:
                    return te.let("y", new, lambda y: rounds(i + 1, keys, x, y))
                group = i // 4 + 1
                x = x + keys[group % 3]
                new = new + (keys[(group + 1) % 3] + word(group))
                return te.let(
                    "x", x, lambda x: te.let("y", new, lambda y: rounds(i + 1, keys, x, y))
                )

            return te.let("x", x + y, mixed)

        def started(k0: Any, k1: Any) -> Any:
            third = te.bitwise_xor(te.bitwise_xor(k0, k1), word(PARITY))

            def begin(k2: Any) -> Any:
                x, y = words(x2)
                keys = [k0, k1, k2]
                return te.let(
                    "x", x + k0, lambda x: te.let("y", y + k1, lambda y: rounds(0, keys, x, y))
                )

            return te.let("k2", third, begin)

        first, second = words(x1)
        return te.let("k0", first, lambda k0: te.let("k1", second, lambda k1: started(k0, k1)))

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        def words(value: np.ndarray) -> list[np.ndarray]:
            value = value.astype(np.uint64)
            return [(value >> np.uint64(32)).astype(np.uint32), value.astype(np.uint32)]

        (k0, k1), (x, y) = words(x1), words(x2)
        keys = [k0, k1, k0 ^ k1 ^ np.uint32(PARITY)]
        with np.errstate(over="ignore"):
            x, y = x + k0, y + k1
            for i in range(20):
                by = ROTATIONS[i // 4 % 2][i % 4]
                x = x + y
                y = x ^ (y << np.uint32(by) | y >> np.uint32(32 - by))
                if i % 4 == 3:
                    group = i // 4 + 1
                    x, y = x + keys[group % 3], y + keys[(group + 1) % 3] + np.uint32(group)
        return x.astype(np.uint64) << np.uint64(32) | y.astype(np.uint64)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        keys = np.array([0, 2**64 - 1, 0x13198A2E03707344, 7], np.uint64)
        counts = np.array([[0], [2**64 - 1], [0x243F6A8885A308D3]], np.uint64)
        yield sample(cls(), keys, counts, dims="n, m 1")
        yield sample(cls(), keys[3:].reshape(()), counts[1:2].reshape(()))
        yield sample(cls(), keys[:0], keys[:1].reshape(()))
        yield sample(cls(), keys.view(np.int64), counts.view(np.int64), dims="n, m 1")
        narrow = np.zeros(3, np.int32)
        yield wrong(cls(), narrow, narrow, code="op-dtype", match="64 bits")
