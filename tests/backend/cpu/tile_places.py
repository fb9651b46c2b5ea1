"""Where the tests of tiles run: on the processor's own, and on emulated ones (`tiles.c`), where it has AVX-512."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.cpu.tiles import Tiles
from relaxpy.runtime.host.features import host_features
from tests.runtime.devices.cuda.emulation import COMPILER, compile_c
from tests.sweeps import FULL

_NEEDED = frozenset(("amx-tile", "amx-bf16", "amx-int8"))
PLACES = (
    pytest.param(
        "processor",
        marks=pytest.mark.skipif(
            not host_features() >= _NEEDED, reason="this processor has no tiles"
        ),
    ),
    pytest.param(
        "emulated",
        marks=pytest.mark.skipif(
            COMPILER is None
            or not host_features() >= {"avx512f", "avx512bf16"}
            or (host_features() >= _NEEDED and not FULL),
            reason="needs a C compiler and AVX512_BF16; where the processor has tiles, a full run",
        ),
    ),
)


@contextmanager
def tiles_at(place: str) -> Iterator[CpuTarget]:
    """A target with tiles whose code runs in this process while the context is open."""
    host = CpuTarget.host()
    if place == "processor":
        yield host
        return
    known = {feature[1:]: feature for feature in host.features}
    given = {**known, **{name: f"+{name}" for name in _NEEDED}}
    with emulated_tiles():
        yield replace(host, features=tuple(given[name] for name in sorted(given)))


@contextmanager
def emulated_tiles() -> Iterator[None]:
    """Code that is compiled while the context is open calls the emulation."""
    _library()
    original = Tiles.definitions
    try:
        Tiles.definitions = lambda self: (
            original(self)
            .replace(  # pyright: ignore[reportAttributeAccessIssue]
                "@llvm.x86.t", "@emulated_t"
            )
            .replace("@llvm.x86.ldtilecfg", "@emulated_ldtilecfg")
        )
        yield
    finally:
        Tiles.definitions = original


@cache
def _library() -> ctypes.CDLL:
    """The emulation, whose functions code that is linked later finds."""
    path = Path(mkdtemp(prefix="relaxpy-tiles-")) / "libtiles.so"
    compile_c(Path(__file__).parent / "tiles.c", path, "-lm")
    return ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
