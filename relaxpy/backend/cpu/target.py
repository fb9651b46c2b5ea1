"""Targets that are processors: a code generator and the processor that it may assume.

Plain `"llvm"` resolves to this machine's processor, by name and with the features that the operating system enables, so
that an executable records exactly what the code needs.

`-mcpu=a,b` and texts with `;` between them request code for each of several processors. They are kept in descending
order of their requirements. Decisions that must hold for all of them (layouts of weights) use `alternatives`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

from relaxpy.runtime.host.features import ISA_FEATURES, host_features
from relaxpy.runtime.host.tile_registers import FEATURES, may_use_tiles
from relaxpy.target import Target, fail, first_word, nearest, options_of
from relaxpy.tir.numerics import avx512
from relaxpy.tir.tvm import tvm, tvm_ffi

KINDS = ("llvm", "c", "wasm")
"""TVM's code generators for processors; `wasm` is `llvm` for the machine of browsers."""

WASM = "wasm32-unknown-unknown"
"""The triple of WebAssembly."""

CACHE_LINE = 64
"""Bytes of a cache line."""

_ZEN_OF_32_MIB = ("znver3", "znver4", "znver5")
"""LLVM's names of AMD's processors whose eight cores share 32 MiB of third-level cache."""

_SYSTEMS = {"macos": ("macos", "darwin"), "windows": ("windows", "win32", "mingw", "cygwin")}
"""The words of triples for operating systems (`relaxpy.runtime.host.features.SYSTEMS`)."""
_OPTIONS = ("mcpu", "mattr", "mtriple", "opt-level")


@dataclass(frozen=True)
class CpuTarget(Target):
    """A code generator and the processor that it compiles for."""

    kind: str
    """One of `KINDS`."""
    mcpu: str = ""
    """LLVM's name of the processor; empty for kinds that do not have one."""
    features: tuple[str, ...] = ()
    """Features added to or removed from the processor's own: `"+name"` or `"-name"`, sorted by name."""
    triple: str = ""
    """LLVM's machine triple, such as `x86_64-unknown-linux-gnu`."""
    opt_level: int = 3
    """LLVM's optimisation level, from 0 to 3. Level 0 compiles in a quarter of the time, and kernels are several times
    slower: for trying programs out."""
    others: tuple[CpuTarget, ...] = ()
    """Further processors that kernels are compiled for, the most demanding first. This one is the least demanding."""

    @classmethod
    def read(cls, text: str) -> CpuTarget:
        """Parse `KIND [-mcpu=NAME[,NAME…]] [-mattr=+a,-b] [-mtriple=TRIPLE] [-opt-level=0..3]`, or several of these
        separated by `;`.

        `"llvm"` alone means this machine, and so does the name `native`. Raises `BuildError` (codes `target-option`,
        `target-cpu`, `target-feature`) for an unknown option or name, with the nearest known one.
        """
        parts = [part.strip() for part in text.split(";")]
        if "" in parts:
            fail("target-option", f'an alternative beside ";" is empty in the target "{text}"')
        found = [target for part in parts for target in cls._read_one(part)]
        if len(found) == 1:
            return found[0]
        for number, target in enumerate(found):
            if target in found[:number]:
                fail(
                    "target-option",
                    f'the target "{text}" names {target.mcpu or target.kind} twice',
                    "name each alternative once",
                )
        kinds = {target.kind for target in found}
        if kinds != {"llvm"}:
            fail("target-option", f'alternatives must be targets of kind llvm, got "{text}"')
        *others, last = sorted(found, key=lambda each: each._demand, reverse=True)
        return replace(last, others=tuple(others))

    @classmethod
    def _read_one(cls, text: str) -> list[CpuTarget]:
        """The targets of a text without `;`."""
        kind = first_word(text)
        options = options_of(text, _OPTIONS, "-mcpu=haswell")
        if kind == "wasm":
            kind, options = "llvm", _of_wasm(text, options)
        if kind == "c":
            if options:
                fail("target-option", f'target "c" takes no options, got -{next(iter(options))}')
            return [cls("c")]
        if kind not in KINDS:
            fail(
                "target-option",
                f'"{text}" does not begin with llvm',
                'each alternative is a complete target: "llvm -mcpu=haswell; llvm -mcpu=znver4"',
            )
        triple = options.get("mtriple") or _host_triple()
        level = options.get("opt-level", "3")
        if level not in ("0", "1", "2", "3"):
            fail("target-option", f"-opt-level must be a number from 0 to 3, got {level}")
        _check_triple(triple)
        found: list[CpuTarget] = []
        for mcpu in options.get("mcpu", "").split(","):
            own: tuple[str, ...] = ()
            if mcpu and mcpu != "native":
                _check_cpu(mcpu, triple)
            elif mcpu or "mcpu" not in options:
                if triple != _host_triple():
                    if mcpu:
                        fail("target-cpu", f'"native" is not a processor of {triple}')
                    mcpu = "generic"
                else:
                    mcpu, own = _host_cpu()
            else:
                fail("target-option", f'-mcpu has an empty name in "{text}"')
            given = _parse_features(options.get("mattr", ""), mcpu, triple)
            found.append(cls(kind, mcpu, _merge_features((*own, *given)), triple, int(level)))
        return found

    @staticmethod
    def host() -> CpuTarget:
        return CpuTarget.read("llvm")

    def __str__(self) -> str:
        found = self.alternatives[::-1]
        if len({replace(each, mcpu="") for each in found}) == 1:
            return self._text(",".join(each.mcpu for each in found))
        return "; ".join(each._text(each.mcpu) for each in found)

    def _text(self, mcpu: str) -> str:
        parts = [self.kind]
        if self.triple:
            parts.append(f"-mtriple={self.triple}")
        if mcpu:
            parts.append(f"-mcpu={mcpu}")
        if self.features:
            parts.append(f"-mattr={','.join(self.features)}")
        if self.opt_level != 3:
            parts.append(f"-opt-level={self.opt_level}")
        return " ".join(parts)

    @property
    def alternatives(self) -> tuple[CpuTarget, ...]:
        return (*self.others, replace(self, others=())) if self.others else (self,)

    @property
    def _demand(self) -> tuple[int, int]:
        """Sort key by requirements; the widest vectors first."""
        return self.vector_bits, len(self.required_features)

    @cached_property
    def required_features(self) -> tuple[str, ...]:
        """LLVM's names of the instruction-set features that code for this target may use, sorted.

        A loader must refuse the code if one is missing. Empty for `c`, whose compiler decides.
        """
        if self.kind != "llvm":
            return ()
        return tuple(sorted(_llvm_features(self.mcpu, self.features, self.triple) & ISA_FEATURES))

    def has(self, feature: str) -> bool:
        """May code for this target use the instruction-set feature of this LLVM name?"""
        return feature in self.required_features

    @property
    def has_avx512(self) -> bool:
        """Does it have the instructions of `relaxpy.tir.numerics.avx512`?"""
        return all(map(self.has, avx512.FEATURES))

    @property
    def arch(self) -> str:
        """The first part of the triple: `x86_64`, `aarch64`, …; empty for `c`."""
        return self.triple.split("-", 1)[0]

    @property
    def is_wasm(self) -> bool:
        """Is it WebAssembly? Its code has one thread, and is run by `relaxpy/web/js/wasm.js`."""
        return self.arch.startswith("wasm")

    @property
    def vector_bits(self) -> int:
        """Width of the widest vector register that kernels should use."""
        if self.has("avx512f"):
            return 512
        return 256 if self.has("avx") else 128

    @property
    def second_level_bytes(self) -> int:
        """Bytes of the second-level cache of a core, the smallest among processors with these instructions: 2 MiB where
        there are tiles (Sapphire Rapids), 1 MiB with AVX-512 (Skylake-X, Zen 4), 256 KiB otherwise (Haswell)."""
        if self.has("amx-tile"):
            return 2 << 20
        return 1 << 20 if self.has("avx512f") else 256 << 10

    @property
    def streamed_bytes(self) -> int:
        """The bytes that a kernel reads and writes from which on its result is written past the caches
        (`relaxpy.backend.cpu.rules.streaming`): 32 MiB where that many are in a third-level cache as fast as Zen 3's to
        Zen 5's, 16 MiB otherwise (Emerald Rapids)."""
        return 32 << 20 if self.mcpu in _ZEN_OF_32_MIB else 16 << 20

    @property
    def has_byte_products(self) -> bool:
        from relaxpy.backend.cpu.dots import Dots  # which is about targets

        return all(each.kind == "llvm" and Dots.of(each) is not None for each in self.alternatives)

    def lanes(self, bits: int = 32) -> int:
        """The number of elements of `bits` bits in one vector register."""
        return max(1, self.vector_bits // bits)

    @property
    def vector_registers(self) -> int:
        """The number of vector registers of the architecture, which bounds a register tile."""
        return 32 if self.has("avx512f") or self.arch.startswith(("aarch64", "arm64")) else 16

    def to_tvm(self) -> tvm.target.Target:
        """The corresponding TVM target, for the code generators; cached."""
        return _tvm_target(self)

    def facts(self) -> Mapping[str, str | int | bool | tuple[str, ...]]:
        return {**super().facts(), "mcpu": ",".join(each.mcpu for each in self.alternatives[::-1])}

    def requirement(self) -> tuple[str, str, tuple[str, ...]]:
        system = _system(self.triple)
        return self.mcpu or self.kind, self.arch, (*self.required_features, *filter(None, [system]))

    @property
    def is_host_loadable(self) -> bool:
        """Does code for one of its alternatives run on this machine?"""
        return any(each._is_loadable for each in self.alternatives)

    @property
    def _is_loadable(self) -> bool:
        if self.kind == "c":
            return True
        host = _host_triple()
        if self.arch != host.split("-", 1)[0] or _system(self.triple) != _system(host):
            return False
        mcpu, own = _host_cpu()
        return set(self.required_features) <= _llvm_features(mcpu, own, _host_triple())


def _of_wasm(text: str, options: dict[str, str]) -> dict[str, str]:
    """The options of `llvm` for a text of `wasm`, with the vectors that browsers have had since 2023."""
    for name in ("mtriple", "mcpu"):
        if name in options:
            fail(
                "target-option",
                f'"{text}" names -{name}, and wasm is one machine',
                "-mattr=+relaxed-simd adds instructions that only some browsers have",
            )
    return {**options, "mtriple": WASM, "mattr": f"+simd128,{options.get('mattr', '')}"}


def _parse_features(text: str, mcpu: str, triple: str) -> tuple[str, ...]:
    """The features of a `-mattr` option, each with its sign, checked against LLVM's names."""
    features: list[str] = []
    for word in filter(None, text.split(",")):
        signed = word if word[0] in "+-" else f"+{word}"
        name = signed[1:]
        # LLVM reports an unknown name only as a warning on stderr: ask it last.
        known = _known_features(triple)
        if name not in known and name not in _llvm_features(mcpu, (f"+{name}",), triple):
            fail("target-feature", f'unknown processor feature "{name}"', nearest(name, known))
        features.append(signed)
    return _merge_features(features)


def _merge_features(features: Iterable[str]) -> tuple[str, ...]:
    """Features sorted by name; of two with one name the later one wins."""
    last = {feature[1:]: feature for feature in features}
    return tuple(last[name] for name in sorted(last))


def _check_triple(triple: str) -> None:
    arch = triple.split("-", 1)[0]
    arch = {"arm64": "aarch64", "amd64": "x86_64", "i686": "i386", "i586": "i386"}.get(arch, arch)
    known = {str(name) for name in tvm.target.codegen.llvm_get_targets()}
    if arch not in known:
        message = f'unknown architecture "{arch}" in the triple "{triple}"'
        fail("target-option", message, nearest(arch, known))


def _check_cpu(mcpu: str, triple: str) -> None:
    if not tvm.target.codegen.llvm_is_valid_cpu(mcpu, triple):
        fail(
            "target-cpu",
            f'LLVM has no processor "{mcpu}" for {triple.split("-", 1)[0]}',
            nearest(mcpu, _known_cpus(triple)),
        )


def _system(triple: str) -> str:
    """The operating system of a triple, as a requirement names it; "" for Linux and others of its files."""
    parts = triple.split("-")[1:]
    for name, words in _SYSTEMS.items():
        if any(part.startswith(words) for part in parts):
            return name
    return ""


@cache
def _host_triple() -> str:
    return str(tvm.target.codegen.llvm_get_system_triple())


@cache
def _host_cpu() -> tuple[str, tuple[str, ...]]:
    """The processor of this machine, and how its features differ from those that LLVM's name for it implies.

    Differences are common: a hypervisor or the firmware can hide a feature of the processor, and the system may keep
    the registers of tiles to itself.
    """
    mcpu = str(tvm.target.codegen.llvm_get_system_cpu())
    host = tvm_ffi.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    here = {str(name): bool(on) for name, on in host.items() if str(name) in ISA_FEATURES}
    # What the runtime does not see it does not run: LLVM asks the processor, which may name what the system does not
    # (AVX10.1, of a kernel that is older than it).
    seen = host_features()
    if not here:  # LLVM cannot detect features on this platform
        here = dict.fromkeys(seen & ISA_FEATURES, True)
    elif seen:
        here = {name: on and name in seen for name, on in here.items()}
    if not may_use_tiles():
        here |= dict.fromkeys(FEATURES, False)
    implied = _llvm_features(mcpu, (), _host_triple())
    added = [f"+{name}" for name, on in here.items() if on and name not in implied]
    hidden = [f"-{name}" for name, on in here.items() if not on and name in implied]
    return mcpu, _merge_features((*added, *hidden))


@cache
def _llvm_features(mcpu: str, features: tuple[str, ...], triple: str) -> frozenset[str]:
    """All features, including tuning flags, that LLVM derives from a processor and changes to it."""
    target = _tvm_target(CpuTarget("llvm", mcpu, features, triple))
    return frozenset(str(name) for name in tvm.target.codegen.llvm_get_cpu_features(target))


@cache
def _known_cpus(triple: str) -> tuple[str, ...]:
    target = _tvm_target(CpuTarget("llvm", "", (), triple))
    return tuple(str(name) for name in tvm.target.codegen.llvm_get_cpu_archlist(target))


@cache
def _known_features(triple: str) -> frozenset[str]:
    """Every feature of any processor of the architecture."""
    names: set[str] = set()
    for mcpu in _known_cpus(triple):
        names |= _llvm_features(mcpu, (), triple)
    return frozenset(names)


@cache
def _tvm_target(target: CpuTarget) -> tvm.target.Target:
    config: dict[str, object] = {"kind": target.kind}
    if target.triple:
        config["mtriple"] = target.triple
    if target.mcpu:
        config["mcpu"] = target.mcpu
    if target.features:
        config["mattr"] = list(target.features)
    if target.opt_level != 3:
        config["opt-level"] = target.opt_level
    if target.is_wasm:
        config["vector-width"] = 128  # otherwise TVM warns that it assumes it
    return tvm.target.Target(config)
