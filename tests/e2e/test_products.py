"""Products of rows with weights of every kind: numbers, bits of a row among others, and NaN, at widths of all remainders
(`tests/e2e/products.py`), for every instruction set (`tests/backend/cpu/levels.py`) and kind of device that is here.

`make test` builds some widths for one of nine pairs of a kind and an instruction set, `make test-slow` more of them for
all pairs, and `make test-products` every width from 1 to 400, and every vocabulary, for all pairs: hours of a core.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Sequence

import numpy as np
import pytest

from tests.backend.cpu.levels import LEVELS, running
from tests.e2e.products import (
    EVERY_ROW,
    FAMILIES,
    VOCABULARIES,
    WAYS,
    WIDTHS,
    Family,
    Product,
    problems,
)
from tests.runtime.devices.opencl.support import needs_opencl
from tests.runtime.devices.webgpu.support import needs_vulkan
from tests.sweeps import FULL, part, sweep

ALL = os.environ.get("RELAXPY_PRODUCTS") == "all"
TOGETHER = 25
"""Widths that are built together."""
FEW_ROWS = (1, 2, 9, 33)


@pytest.fixture(autouse=True)
def modules_round_trip() -> None:
    """Other tests print and parse these modules."""


def widths_of(name: str, level: str) -> list[Sequence[int]]:
    """What is built together for a kind and an instruction set: widths of which the vectors are left over when panels
    have four, and others."""
    if ALL:
        whole = [WIDTHS[at : at + TOGETHER] for at in range(0, len(WIDTHS), TOGETHER)]
        return [*whole, *([each] for each in VOCABULARIES)]
    drawn = random.Random(zlib.crc32(f"{name} {level}".encode()))
    ragged = [n for n in WIDTHS if n > 144 and -(-n // 16) % 4 in (1, 2)]
    return [sorted([drawn.choice(ragged), *drawn.sample(WIDTHS, 5 if FULL else 1)])]


PAIRS = [(name, level) for name in FAMILIES for level in LEVELS]


@sweep
@pytest.mark.parametrize(("name", "level"), PAIRS if ALL else part(PAIRS, 9))
def test_on_processors(name: str, level: str) -> None:
    own = LEVELS[level]
    with running(own) as target:
        for number, widths in enumerate(widths_of(name, level)):
            way = WAYS[(number + len(name) + len(level)) % len(WAYS)]
            rows = EVERY_ROW if max(widths) <= max(WIDTHS) else FEW_ROWS
            found = problems(FAMILIES[name], widths, target, way, rows, own.without)
            assert not found, "\n".join(found)


@sweep
@pytest.mark.parametrize("name", part(("8 bits", "float32", "int8 by 4 bits"), 3))
def test_a_head_of_a_vocabulary(name: str) -> None:
    """GPT-2's, on this processor."""
    found = problems(FAMILIES[name], [50257], "llvm -opt-level=0", "packed", FEW_ROWS)
    assert not found, "\n".join(found)


DEVICES = [
    pytest.param("opencl", marks=needs_opencl),
    pytest.param("vulkan", marks=needs_vulkan),
]


@sweep
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", part([*FAMILIES], 12))
def test_on_devices(name: str, device: str) -> None:
    """With `-batch-invariant=1`, which promises the bits of a row."""
    family = FAMILIES[name]
    if device == "vulkan" and family.dtype == "float64":
        pytest.skip("WGSL has no float64")
    widths = (7, 33, 160, 269) if FULL else (33,)
    found = problems(family, widths, f"{device} -batch-invariant=1", "given", FEW_ROWS)
    assert not found, "\n".join(found)


def test_what_it_finds() -> None:
    """Columns that are others', a row that depends on the number of rows, and a NaN that becomes a number."""
    product = Product(Family(), 37)
    weight, bias = product.weights().values()

    def exact(x: np.ndarray) -> np.ndarray:
        # Each row by itself: the bits of numpy's products depend on the number of rows.
        rows = [np.maximum((row * weight).sum(1) + bias, 0) for row in x]
        return np.array(rows, np.float32).reshape(-1, 37)

    def shifted(x: np.ndarray) -> np.ndarray:
        found = exact(x)
        found[:, 20:] = found[:, 19:-1] if len(x) > 8 else found[:, 20:]
        return found

    assert not [*product.problems(exact)]
    found = "\n".join(product.problems(shifted))
    assert "columns 20, 21, 22, 23, … 36 (17 of them) are wrong" in found
    assert "the first 8 rows have other bits" in found

    def finite(x: np.ndarray) -> np.ndarray:
        return np.nan_to_num(exact(x))

    assert "is lost" in "\n".join(product.problems(finite))
