from __future__ import annotations

import mmap
import platform
import sys

import pytest

from relaxpy.runtime.bytecode import Requirement
from relaxpy.runtime.host import features
from relaxpy.runtime.host.features import (
    SYSTEMS,
    features_from_cpuinfo,
    features_from_sysctl,
    features_from_words,
    host_features,
    missing_features,
    missing_here,
)


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="compares with the compiler's view"
)
def test_what_the_compiler_finds_is_found() -> None:
    from relaxpy.target import Target

    assert not missing_features(Target.host().required_features)


def test_missing_features_are_named() -> None:
    assert missing_features(("+avx9999", "neon2")) == ("avx9999", "neon2")
    assert missing_features(sorted(host_features())[:5]) == ()


def test_cpuinfo_of_other_machines() -> None:
    x86 = features_from_cpuinfo(
        "processor\t: 0\nflags\t\t: fpu sse4_1 avx512_vnni bmi1 abm pni\n", "x86_64"
    )
    assert {"sse4.1", "avx512vnni", "bmi", "lzcnt", "sse3"} <= x86
    arm = features_from_cpuinfo("Features\t: fp asimd asimddp sve i8mm atomics\n", "aarch64")
    assert {"neon", "dotprod", "sve", "i8mm", "lse", "fp-armv8"} <= arm
    assert features_from_cpuinfo("nothing here", "x86_64") == frozenset()


def test_sysctl_of_a_mac() -> None:
    text = "hw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_BF16: 0\nhw.optional.AdvSIMD: 1\n"
    assert features_from_sysctl(text) == {"dotprod", "neon"}
    intel = "machdep.cpu.features: FPU SSE4.1 AVX1.0 RDRAND\nmachdep.cpu.leaf7_features: AVX2\n"
    assert {"sse4.1", "avx", "avx2", "rdrnd"} <= features_from_sysctl(intel)


def test_auxiliary_vector() -> None:
    """Of a processor without SVE, whatever machine an emulator runs on, and of one with it."""
    assert features_from_words({16: 0b11 | 1 << 8 | 1 << 20, 26: 0}) == {
        "fp-armv8", "neon", "lse", "dotprod",
    }  # fmt: skip
    assert {"sve", "sve2", "i8mm", "bf16"} <= features_from_words({16: 1 << 22, 26: 0x6002})


def test_aarch64_reads_what_the_program_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """The auxiliary vector, not /proc/cpuinfo, which has the machine under an emulator."""
    words = {16: 0b11 | 1 << 8, 26: 0}
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(features, "_auxiliary", words.__getitem__)
    assert host_features.__wrapped__() == {"fp-armv8", "neon", "lse"}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no auxiliary vector")
def test_an_entry_of_the_auxiliary_vector() -> None:
    """AT_PAGESZ is known; an entry that is not there is 0."""
    assert features._auxiliary(6) == mmap.PAGESIZE  # pyright: ignore[reportPrivateUsage]
    assert features._auxiliary(9999) == 0  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_other_systems(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are named; code for Linux does not say so."""
    monkeypatch.setattr(sys, "platform", system)
    for name in ("macOS", "Windows"):
        needed = Requirement("", "", (name.lower(),))
        wanted = () if SYSTEMS[system] == name else (f"the operating system {name}",)
        assert missing_here(needed) == wanted
