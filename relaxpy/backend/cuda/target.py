"""Targets of NVIDIA's GPUs: `cuda [-arch=NAME[,NAME…]] [-libs=NAME[,NAME…]]` and the options of all GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from relaxpy.backend.gpu.target import GpuTarget, WarpFunctions, tvm_target
from relaxpy.target import fail, nearest, options_of

KIND = "cuda"
DEFAULT_ARCHS = ("sm_90", "compute_90", "sm_80")
"""Machine code for the Hopper and Ampere families, and PTX, which the driver compiles for later ones."""
CUBLAS = "cublas"
CUDNN = "cudnn"
LIBRARIES = (CUBLAS, CUDNN)
"""The libraries that kernels may call."""
COPIES_ON_THEIR_WAY = 1, 2
"""Groups of copies that a thread need not wait for."""
_THREADS = 256
_BUFFERS = 128
"""A launch has at least 4096 bytes of arguments, of which a pointer takes 8; the rest is for sizes."""
_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
_OLDEST = (8, 0)


@dataclass(frozen=True)
class CudaTarget(GpuTarget):
    """One or several architectures of NVIDIA's GPUs: `sm_XY` is machine code for devices of compute capability X.Y and
    later ones of X, `compute_XY` is PTX for all from X.Y on."""

    device: ClassVar[str] = KIND
    default_threads: ClassVar[int] = _THREADS
    default_buffers: ClassVar[int] = _BUFFERS
    vector_bytes: ClassVar[int] = 16
    tensor_cores: ClassVar[Mapping[str, str]] = {
        dtype: f"relaxpy_mma_{dtype}" for dtype in ("float16", "bfloat16", "int8")
    }
    warp_functions: ClassVar[WarpFunctions | None] = WarpFunctions(
        copy="relaxpy_copy",
        copied="relaxpy_copied",
        commit="relaxpy_commit",
        copied_but={number: f"relaxpy_copied_but_{number}" for number in COPIES_ON_THEIR_WAY},
        squares="relaxpy_squares",
        turned="relaxpy_turned_squares",
        largest="relaxpy_largest_of_four",
        total="relaxpy_total_of_four",
        pair={dtype: f"relaxpy_pair_{dtype}" for dtype in ("float16", "bfloat16")},
    )

    kind: str = KIND
    threads: int = _THREADS
    max_buffers: int = _BUFFERS
    archs: tuple[str, ...] = DEFAULT_ARCHS
    """The most demanding first; machine code before PTX of the same capability, which loads later."""

    libs: tuple[str, ...] = ()
    """The libraries that are asked for, of `LIBRARIES`."""

    @classmethod
    def read(cls, text: str) -> CudaTarget:
        """Raises: BuildError (`target-option`)."""
        options = options_of(text, ("arch", "libs", *cls.common), "-arch=sm_90")
        archs = options.get("arch", ",".join(DEFAULT_ARCHS)).split(",")
        for arch in archs:
            _check_arch(arch)
            if archs.count(arch) > 1:
                fail("target-option", f"-arch names {arch} twice", "name each architecture once")
        ordered = sorted(archs, key=_demand, reverse=True)
        libs = [lib for lib in options.get("libs", "").split(",") if lib]
        for lib in libs:
            if lib not in LIBRARIES:
                fail(
                    "target-option", f"-libs has the unknown library {lib}", nearest(lib, LIBRARIES)
                )
        return cls(
            archs=tuple(ordered),
            libs=tuple(dict.fromkeys(libs)),
            **cls.values(options, cls.default_threads, _BUFFERS),
        )

    @property
    def libraries(self) -> tuple[str, ...]:
        """The libraries that kernels call. None if rows must have the same numbers in any batch: a library chooses the
        order of its sums by their number."""
        return () if self.batch_invariant else self.libs

    @property
    def alternatives(self) -> tuple[CudaTarget, ...]:
        return tuple(replace(self, archs=(arch,)) for arch in self.archs)

    def __str__(self) -> str:
        kind, _, rest = super().__str__().partition(" ")
        libs = f"-libs={','.join(self.libs)}" if self.libs else ""
        return " ".join(filter(None, (kind, f"-arch={','.join(self.archs)}", libs, rest)))

    @property
    def has_graphs(self) -> bool:
        return True

    def requirement(self) -> tuple[str, str, tuple[str, ...]]:
        (arch,) = self.archs
        return arch, arch, ()

    def to_tvm(self) -> Any:
        """The target whose intrinsics are lowered; the code does not depend on the architecture."""
        return tvm_target(KIND, arch="sm_80")


def capability(arch: str) -> tuple[int, int]:
    """The compute capability that an architecture is of: (9, 0) for `sm_90` and `compute_90`."""
    found = _ARCH.fullmatch(arch)
    assert found is not None
    return int(found[2]), int(found[3])


def _demand(arch: str) -> tuple[tuple[int, int], bool]:
    return capability(arch), arch.startswith("sm")


def _check_arch(arch: str) -> None:
    help = "machine code: sm_80, sm_86, sm_89, sm_90, sm_100, …; PTX for these and later ones: compute_80, …"
    if _ARCH.fullmatch(arch) is None:
        fail("target-option", f"-arch has {arch!r}, which is no architecture", help)
    if capability(arch) < _OLDEST:
        fail("target-option", f"-arch={arch} is older than sm_80, the oldest supported", help)
