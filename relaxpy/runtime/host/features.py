"""The features of this CPU by LLVM's names, found without a compiler.

An executable lists the features that its code needs (`Executable.requirements`). `relaxpy.runtime.load` compares them
with `host_features()` and refuses a file whose code would stop with an illegal instruction.
"""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from relaxpy.runtime.host.tile_registers import FEATURES, may_use_tiles
from relaxpy.runtime.terms import Requirement

# /proc/cpuinfo's name -> LLVM's, where they differ. Everything else is the same after `_` is replaced.
_X86 = {
    "pni": "sse3", "bmi1": "bmi",
    "sse4_1": "sse4.1", "sse4_2": "sse4.2", "lahf_lm": "sahf", "abm": "lzcnt", "cmp_legacy": None,
    "pclmulqdq": "pclmul", "rdrand": "rdrnd", "avx512_vnni": "avx512vnni", "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16", "avx512_vbmi2": "avx512vbmi2", "avx512_bitalg": "avx512bitalg",
    "avx512_vpopcntdq": "avx512vpopcntdq", "avx512_vp2intersect": "avx512vp2intersect", "avx512_ifma": "avx512ifma",
    "avx_vnni": "avxvnni", "avx_vnni_int8": "avxvnniint8", "avx_vnni_int16": "avxvnniint16", "avx_ifma": "avxifma",
    "avx_ne_convert": "avxneconvert", "amx_tile": "amx-tile", "amx_int8": "amx-int8", "amx_bf16": "amx-bf16",
    "amx_fp16": "amx-fp16", "sha_ni": "sha", "tsc_adjust": None, "3dnowprefetch": "prfchw", "cx16": "cx16",
    "fsgsbase": "fsgsbase", "lm": "64bit",
}  # fmt: skip
_ARM = {
    "asimd": "neon", "fp": "fp-armv8", "asimdhp": "fullfp16", "asimddp": "dotprod", "crc32": "crc", "atomics": "lse",
    "sha2": "sha2", "sha3": "sha3", "asimdrdm": "rdm", "fphp": "fullfp16", "i8mm": "i8mm", "bf16": "bf16",
    "sve": "sve", "sve2": "sve2", "sme": "sme", "lrcpc": "rcpc", "asimdfhm": "fp16fml", "jscvt": "jsconv",
    "fcma": "complxnum", "paca": "pauth", "sb": "sb", "bti": "bti", "pmull": "aes",
}  # fmt: skip
_HWCAP = {
    16: "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 "
    "sm3 sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs sb paca pacg",
    26: "dcpodp sve2 sveaes svepmull svebitperm svesha3 svesm4 flagm2 frint svei8mm svef32mm svef64mm svebf16 i8mm "
    "bf16 dgh rng bti mte ecv afp rpres mte3 sme smei16i64 smef64f64 smei8i32 smef16f32 smeb16f32 smef32f32 smefa64 "
    "wfxt ebf16 sveebf16 cssc rprfm sve2p1 sme2",
}  # fmt: skip
"""Entries of the auxiliary vector of a process on Linux for AArch64, and the names of their bits, the lowest first."""
_MAC_ARM = {
    "AdvSIMD": "neon", "FEAT_FP16": "fullfp16", "FEAT_DotProd": "dotprod", "FEAT_LSE": "lse", "FEAT_I8MM": "i8mm",
    "FEAT_BF16": "bf16", "FEAT_FHM": "fp16fml", "FEAT_AES": "aes", "FEAT_SHA256": "sha2", "FEAT_SHA3": "sha3",
    "FEAT_CRC32": "crc", "FEAT_RDM": "rdm", "FEAT_FCMA": "complxnum", "FEAT_JSCVT": "jsconv", "FEAT_LRCPC": "rcpc",
    "armv8_crc32": "crc",
}  # fmt: skip

# Features that change which instructions the compiler may select. LLVM also lists tuning flags and system instructions
# (prefetch hints, key loading, …) under "features"; a missing one of those must not make an executable unusable.
_X86_ISA = """
    sse3 ssse3 sse4.1 sse4.2 sse4a popcnt lzcnt bmi bmi2 movbe f16c fma fma4 xop tbm avx avx2 gfni
    avx512f avx512bw avx512cd avx512dq avx512vl avx512vnni avx512bf16 avx512fp16 avx512vbmi avx512vbmi2
    avx512bitalg avx512vpopcntdq avx512ifma avx512vp2intersect avxvnni avxvnniint8 avxvnniint16 avxifma
    avxneconvert avx10.1 avx10.2 egpr amx-tile amx-int8 amx-bf16 amx-fp16
"""
_AARCH64_ISA = """
    neon fp-armv8 lse rdm dotprod fullfp16 fp16fml bf16 i8mm sve sve2 sve2p1 sme sme2
"""
ISA_FEATURES = frozenset(_X86_ISA.split()) | frozenset(_AARCH64_ISA.split())
"""The features that executables may require."""

SYSTEMS = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}
"""The names of operating systems, by Python's names of them. Code for another one than Linux requires it by its name in
lower case, as a feature."""
_ARCHES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}
"""Alternative names of architectures."""


@cache
def host_features() -> frozenset[str]:
    """The features of this CPU by LLVM's names, e.g. `avx2`, `avx512f`, `neon`; empty if they cannot be determined.
    Tiles are among them if the system lets this process use their registers, for which it is asked here."""
    if sys.platform == "darwin":
        return _features_macos()
    if sys.platform == "linux" and platform.machine() == "aarch64":
        return features_from_words({entry: _auxiliary(entry) for entry in _HWCAP})
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    found = features_from_cpuinfo(text, platform.machine())
    return found if found.isdisjoint(FEATURES) or may_use_tiles() else found - FEATURES


def features_from_cpuinfo(text: str, machine: str) -> frozenset[str]:
    """Features from the text of Linux's /proc/cpuinfo on a `machine` (`x86_64`, `aarch64`)."""
    table, key = (_X86, "flags") if machine in ("x86_64", "AMD64") else (_ARM, "Features")
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return _translate(value.split(), table)
    return frozenset()


def _auxiliary(entry: int) -> int:
    """An entry of the auxiliary vector: what the system lets this process use. /proc/cpuinfo describes the machine,
    which an emulator of processors does not change."""
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.argtypes, getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
    return int(getauxval(entry))


def features_from_words(words: Mapping[int, int]) -> frozenset[str]:
    """Features of an AArch64 processor from entries of the auxiliary vector."""
    names = [
        name
        for entry, word in words.items()
        for bit, name in enumerate(_HWCAP[entry].split())
        if word >> bit & 1
    ]
    return _translate(names, _ARM)


def _translate(
    names: Iterable[str], table: dict[str, str] | dict[str, str | None]
) -> frozenset[str]:
    found = (table.get(name, name.replace("_", "-")) for name in names)
    return frozenset(name for name in found if name)


def _features_macos() -> frozenset[str]:
    """The features that sysctl reports: `hw.optional.*` on Apple silicon, `machdep.cpu.*features` on Intel."""
    try:
        command = ["/usr/sbin/sysctl", "hw.optional", "machdep.cpu"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    return features_from_sysctl(done.stdout)


def features_from_sysctl(text: str) -> frozenset[str]:
    """Features from the output of `sysctl hw.optional machdep.cpu`."""
    found: set[str] = set()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        last = name.rpartition(".")[2]
        if name.startswith("hw.optional.") and value.strip() == "1" and last in _MAC_ARM:
            found.add(_MAC_ARM[last])
        elif name.startswith("machdep.cpu.") and last.endswith("features"):
            words = (word.lower().replace("avx1.0", "avx") for word in value.split())
            found |= _translate(words, _X86)
    return frozenset(found)


def missing_features(needed: Iterable[str]) -> tuple[str, ...]:
    """The features in `needed` (LLVM names, with or without a leading `+`) that this CPU lacks, in order.

    If the features of this CPU cannot be determined, none is reported as missing.
    """
    host = host_features()
    if not host:
        return ()
    return tuple(
        name for name in (item.lstrip("+") for item in needed) if name and name not in host
    )


def missing_here(requirement: Requirement) -> tuple[str, ...]:
    """The unmet parts of a requirement on this machine: only the architecture or the system if that differs, else the
    missing features."""
    here, wanted = (
        _ARCHES.get(each.lower(), each.lower()) for each in (platform.machine(), requirement.arch)
    )
    if wanted and here and wanted != here:
        return (f"a processor of the architecture {requirement.arch}",)
    here = SYSTEMS.get(sys.platform, sys.platform)
    names = {name.lower(): name for name in SYSTEMS.values()}
    for feature in requirement.features:
        if feature in names and names[feature] != here:
            return (f"the operating system {names[feature]}",)
    return missing_features(each for each in requirement.features if each not in names)
