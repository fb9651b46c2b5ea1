"""NVRTC: machine code, PTX, what kernels take, and errors."""

from __future__ import annotations

import sys

import pytest

from relaxpy.backend.cuda import compiler
from relaxpy.backend.cuda.compiler import compile_source
from relaxpy.errors import BuildError

ONE = """extern "C" __global__ void one(float* a) {
  __shared__ float s[64]; s[threadIdx.x] = a[threadIdx.x]; __syncthreads(); a[threadIdx.x] = s[63 - threadIdx.x];
}"""


def test_machine_code() -> None:
    made = compile_source(ONE, "sm_80", "one")
    assert made.format == "cubin"
    assert made.code.startswith(b"\x7fELF")
    assert made.resources["shared"] == 256
    assert made.resources["spills"] == made.resources["stack"] == 0
    assert 0 < made.resources["registers"] < 64
    assert compile_source(ONE, "sm_80", "one").code == made.code


def test_ptx() -> None:
    made = compile_source(ONE, "compute_90", "one")
    assert made.format == "ptx"
    assert b".target sm_90" in made.code
    assert b".entry one(" in made.code
    assert not made.resources


@pytest.mark.parametrize(
    ("arch", "version"), [("compute_80", b"8.0"), ("compute_90", b"8.0"), ("compute_100", b"9.0")]
)
def test_ptx_is_not_only_for_the_newest_drivers(arch: str, version: bytes) -> None:
    """NVRTC writes its own version, which drivers refuse that are older than it."""
    made = compile_source(ONE, arch, "one")
    assert b".version " + version + b"\n" in made.code


def test_registers_that_do_not_fit() -> None:
    """What is kept in memory because it does not fit is counted."""
    lines = "".join(f"  float v{n} = a[{n} * m];\n" for n in range(300))
    uses = "".join(f"  a[{n} * m + 1] = v{n} * v{299 - n} + v{n * 7 % 300};\n" for n in range(300))
    source = f'extern "C" __global__ void __launch_bounds__(1024) k(volatile float* a, int m) {{\n{lines}{uses}}}'
    made = compile_source(source, "sm_80", "k")
    assert made.resources["registers"] <= 64
    assert made.resources["spills"] > 0


def test_a_source_that_is_wrong() -> None:
    with pytest.raises(
        BuildError, match=r'the kernel "my_kernel" for sm_80: kernel.cu\(1\): error'
    ) as caught:
        compile_source("int x = y;", "sm_80", "my_kernel")
    assert caught.value.code == "kernel-compile"
    assert any("int x = y;" in note for note in caught.value.notes)


@pytest.mark.parametrize("arch", ["sm_99", "compute_85", "sm_9999"])
def test_an_architecture_that_it_does_not_know(arch: str) -> None:
    with pytest.raises(BuildError, match=f"does not compile for {arch}") as caught:
        compile_source(ONE, arch, "one")
    assert caught.value.code == "cuda-compiler"


def test_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(BuildError, match="NVRTC, which cannot be used") as caught:
        compile_source(ONE, "sm_80", "one")
    assert caught.value.code == "cuda-compiler"
    assert caught.value.help == compiler.INSTALL
