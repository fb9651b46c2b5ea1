"""Instruction sets that products have kernels of their own for, named, so that tests do not depend on the processor
that runs them. What it lacks is emulated where that is a matter of one instruction."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from relaxpy.backend.cpu.dot import Dot
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.runtime.host import features
from relaxpy.runtime.host.features import host_features
from relaxpy.target import Target
from tests.backend.cpu.tile_places import emulated_tiles
from tests.runtime.devices.cuda.emulation import COMPILER, compile_c
from tests.sweeps import FULL

_DOTS = {"avxvnni": 256, "avx512vnni": 512}
"""Feature → the bits of the vectors that its instruction multiplies."""
_TILES = frozenset(("amx-tile", "amx-bf16", "amx-int8"))


@dataclass(frozen=True)
class Level:
    """An instruction set."""

    options: str
    """The target's, after `llvm`."""
    without: tuple[str, ...] = ()
    """Features that count as missing when the kernels of several processors are chosen from."""
    registers: int = 0
    """Vector registers, if there are more than the target has: LLVM keeps the others in memory."""


_THREE = "-mcpu=x86-64-v2,x86-64-v3,x86-64-v4"
LEVELS: Mapping[str, Level] = {
    "SSE2": Level("-mcpu=x86-64"),
    "SSE2, 32 registers as NEON's": Level("-mcpu=x86-64", registers=32),
    "AVX2": Level("-mcpu=haswell"),
    "AVX-VNNI": Level("-mcpu=alderlake"),
    "AVX-512": Level("-mcpu=skylake-avx512"),
    "AVX512_VNNI": Level("-mcpu=cascadelake"),
    "AVX512_BF16": Level("-mcpu=znver4 -mattr=-sse4a"),  # Intel's processors run it as well
    "AMX": Level("-mcpu=sapphirerapids -mattr=-avx512fp16,-avxvnni"),
    "first of three": Level(_THREE),
    "second of three": Level(_THREE, ("avx512f",)),
    "third of three": Level(_THREE, ("avx2",)),
}


@dataclass(frozen=True)
class _ManyRegisters(CpuTarget):
    @property
    def vector_registers(self) -> int:
        return 32


@dataclass(frozen=True)
class _WithoutDots(CpuTarget):
    """Kernels call the emulation, and LLVM, which makes dot products of other loops as well, has no instruction."""

    missing: tuple[str, ...] = ()

    def to_tvm(self) -> Any:
        features = (*self.features, *(f"-{feature}" for feature in self.missing))
        return CpuTarget(self.kind, self.mcpu, features, self.triple, self.opt_level).to_tvm()


@contextmanager
def running(level: Level, optimised: bool = FULL) -> Iterator[CpuTarget]:
    """A target of this level whose code runs in this process while the context is open, built with LLVM's optimisations
    or without; skips the test if there is none."""
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("x86 processors")
    quick = "" if optimised else " -opt-level=0"
    target: Any = Target.parse(f"llvm {level.options}{quick}")
    if level.registers > target.vector_registers:
        target = _ManyRegisters(**{name: getattr(target, name) for name in _FIELDS})
    needed = frozenset(target.required_features) - frozenset(level.without)
    missing = needed - host_features()
    emulated = missing & (_TILES | _DOTS.keys())
    if missing - emulated or (emulated and COMPILER is None):
        pytest.skip(f"this machine cannot run {', '.join(sorted(missing))}")
    if not emulated:
        yield target
        return
    if emulated & _DOTS.keys():
        fields = {name: getattr(target, name) for name in _FIELDS}
        target = _WithoutDots(**fields, missing=tuple(sorted(emulated & _DOTS.keys())))
    here, definition = features.host_features, Dot.definition
    try:
        features.host_features = lambda: host_features() | emulated  # pyright: ignore[reportAttributeAccessIssue]
        Dot.definition = lambda self, lanes: _dots(definition(self, lanes), emulated)
        if emulated & _TILES:
            with emulated_tiles():
                yield target
        else:
            yield target
    finally:
        features.host_features, Dot.definition = here, definition


_FIELDS = ("kind", "mcpu", "features", "triple", "opt_level", "others")


def _dots(definition: str, emulated: frozenset[str]) -> str:
    """The definition with calls of the emulation."""
    for feature in emulated & _DOTS.keys():
        _library()
        bits = _DOTS[feature]
        definition = definition.replace(
            f"@llvm.x86.avx512.vpdpbusd.{bits}", f"@emulated_vpdpbusd_{bits}"
        )
    return definition


@cache
def _library() -> ctypes.CDLL:
    path = Path(mkdtemp(prefix="relaxpy-dots-")) / "libdots.so"
    compile_c(Path(__file__).parent / "dots.c", path, "-march=native")
    return ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
