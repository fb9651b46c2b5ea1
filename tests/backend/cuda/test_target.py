"""Targets of CUDA as text, and what devices must have for them."""

from __future__ import annotations

import pytest

from relaxpy.backend.cuda.target import CudaTarget, capability
from relaxpy.errors import BuildError
from relaxpy.target import Target


@pytest.mark.parametrize(
    ("text", "resolved"),
    [
        ("cuda", "cuda -arch=sm_90,compute_90,sm_80"),
        ("cuda -arch=sm_80", "cuda -arch=sm_80"),
        ("cuda -arch=sm_80,compute_100,sm_90a", "cuda -arch=compute_100,sm_90a,sm_80"),
        ("cuda -arch=sm_90 -threads=128", "cuda -arch=sm_90 -threads=128"),
        ("cuda -batch-invariant=0 -arch=sm_90", "cuda -arch=sm_90"),
        ("cuda -batch-invariant=1 -arch=sm_90", "cuda -arch=sm_90 -batch-invariant=1"),
        ("cuda -max-buffers=8 -arch=sm_90", "cuda -arch=sm_90 -max-buffers=8"),
        ("cuda -libs=cublas,cublas -arch=sm_90", "cuda -arch=sm_90 -libs=cublas"),
        ("cuda -libs=cudnn,cublas -arch=sm_90", "cuda -arch=sm_90 -libs=cudnn,cublas"),
    ],
)
def test_text_parses_back(text: str, resolved: str) -> None:
    target = Target.parse(text)
    assert isinstance(target, CudaTarget)
    assert str(target) == resolved
    assert Target.parse(resolved) == target


def test_alternatives() -> None:
    """Machine code of a device's own family comes before PTX, and that before what is older."""
    alternatives = Target.parse("cuda").alternatives
    assert [each.requirement() for each in alternatives] == [
        ("sm_90", "sm_90", ()),
        ("compute_90", "compute_90", ()),
        ("sm_80", "sm_80", ()),
    ]
    assert all(each.alternatives == (each,) for each in alternatives)


@pytest.mark.parametrize(
    "arch", ["", "sm_", "sm_9", "90", "sm_90x", "volta", "sm_90;sm_80", "compute"]
)
def test_what_is_no_architecture(arch: str) -> None:
    with pytest.raises(BuildError) as caught:
        Target.parse(f"cuda -arch={arch}")
    assert caught.value.code == "target-option"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("cuda -arch=sm_75", "older than sm_80"),
        ("cuda -arch=sm_80,sm_80", "sm_80 twice"),
        ("cuda -arch=sm_80,", "no architecture"),
        ("cuda -batch-invariant=yes", "must be 0 or 1"),
        ("cuda -threads=0", "number from 1 to"),
        ("cuda -max-buffers=3", "at least 4"),
        ("cuda -mcpu=haswell", "unknown target option"),
    ],
)
def test_wrong_options(text: str, problem: str) -> None:
    with pytest.raises(BuildError, match=problem) as caught:
        Target.parse(text)
    assert caught.value.code == "target-option"


def test_capabilities() -> None:
    assert [capability(a) for a in ("sm_80", "compute_90", "sm_90a", "sm_121")] == [
        (8, 0),
        (9, 0),
        (9, 0),
        (12, 1),
    ]


def test_libraries() -> None:
    target = Target.parse("cuda -libs=cublas,cudnn -batch-invariant=1")
    assert isinstance(target, CudaTarget)
    assert target.libs == ("cublas", "cudnn")
    assert target.libraries == ()


@pytest.mark.parametrize("name", ["cutlass", "cuDNN", "cudnn,blas", "cublas cudnn", "-"])
def test_unknown_libraries(name: str) -> None:
    with pytest.raises(BuildError) as caught:
        Target.parse(f"cuda -libs={name}")
    assert caught.value.code == "target-option"


def test_a_library_is_suggested() -> None:
    with pytest.raises(BuildError, match="unknown library cuddn") as caught:
        Target.parse("cuda -libs=cublas,cuddn")
    assert "cudnn" in str(caught.value)
