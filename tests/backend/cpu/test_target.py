"""Targets: reading, resolving, refusing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from relaxpy.backend.cpu import target as cpu_target
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.errors import BuildError
from relaxpy.runtime import host_features
from relaxpy.target import Target
from relaxpy.tir.tvm import tvm

LINUX = "-mtriple=x86_64-unknown-linux-gnu"


@pytest.mark.parametrize(
    "text",
    [
        "llvm",
        "c",
        "llvm -mcpu=haswell",
        f"llvm {LINUX} -mcpu=x86-64-v3 -mattr=+avx512f,-bmi",
        "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76",
        "llvm -mtriple=aarch64-linux-gnu",
        "llvm -opt-level=0",
        f"llvm {LINUX} -mcpu=x86-64-v3,x86-64-v4 -opt-level=0",
        f"llvm {LINUX} -mcpu=x86-64-v3; llvm {LINUX} -mcpu=x86-64-v4 -mattr=+avx512vnni",
        f"llvm {LINUX} -mcpu=haswell; llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76",
        "llvm -mcpu=native",
        "wasm",
        "wasm -mattr=+relaxed-simd -opt-level=0",
    ],
)
def test_text_of_a_target_parses_back(text: str) -> None:
    target = Target.parse(text)
    assert Target.parse(str(target)) == target
    assert Target.parse(target) is target


def test_plain_llvm_is_this_machine() -> None:
    target = Target.parse("llvm")
    assert target.mcpu
    assert target == Target.host()
    assert target.is_host_loadable


def test_features_follow_the_processor_and_its_changes() -> None:
    haswell = Target.parse(f"llvm {LINUX} -mcpu=haswell")
    assert (haswell.vector_bits, haswell.lanes(), haswell.vector_registers) == (256, 8, 16)
    assert haswell.has("avx2")
    assert not haswell.has("avx512f")
    wide = Target.parse(f"llvm {LINUX} -mcpu=haswell -mattr=avx512f")
    assert (wide.vector_bits, wide.lanes(64), wide.vector_registers) == (512, 8, 32)
    narrow = Target.parse(f"llvm {LINUX} -mcpu=haswell -mattr=-avx")
    assert narrow.vector_bits == 128


@pytest.mark.parametrize(
    ("target", "has"),
    [
        (f"llvm {LINUX} -mcpu=haswell", True), (f"llvm {LINUX} -mcpu=znver4", True),
        (f"llvm {LINUX} -mcpu=nehalem", False), (f"llvm {LINUX} -mcpu=nehalem,haswell", False), ("c", False),
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1", False), ("llvm -mtriple=arm64-apple-macos -mcpu=apple-m1", False),
        ("vulkan", True),
    ],
)  # fmt: skip
def test_products_of_bytes(target: str, has: bool) -> None:
    """Where kernels have instructions for them; of alternatives, all."""
    assert Target.parse(target).has_byte_products == has


def test_a_generic_processor_requires_nothing_of_this_machine() -> None:
    assert Target.parse(f"llvm {LINUX} -mcpu=x86-64").required_features == ()
    assert Target.parse(f"llvm {LINUX} -mcpu=generic").required_features == ()


def test_tuning_flags_and_system_instructions_are_not_required() -> None:
    required = Target.parse(f"llvm {LINUX} -mcpu=znver4").required_features
    assert "avx512vnni" in required
    assert not {"wbnoinvd", "mwaitx", "fast-imm16", "vzeroupper"} & set(required)


def test_another_architecture_does_not_load_here() -> None:
    assert not Target.parse("llvm -mtriple=riscv64-linux-gnu -mcpu=generic").is_host_loadable


def test_wasm_is_llvm_for_the_machine_of_browsers() -> None:
    """With vectors, without threads, and not for this machine."""
    target = CpuTarget.read("wasm")
    assert (target.kind, target.arch, target.vector_bits) == ("llvm", "wasm32", 128)
    assert "+simd128" in target.features
    assert target.is_wasm
    assert not target.is_host_loadable
    assert not CpuTarget.host().is_wasm


@pytest.mark.parametrize(
    ("text", "code", "match"),
    [
        ("wasm -mcpu=generic", "target-option", "names -mcpu, and wasm is one machine"),
        ("wasm -mtriple=wasm64", "target-option", "names -mtriple"),
        ("wasm -mattr=+simd", "target-feature", "unknown processor feature"),
        ("", "target-kind", "empty"),
        ("lvm", "target-kind", "did you mean llvm"),
        (f"llvm {LINUX} -mcpu=hasswell", "target-cpu", "did you mean haswell"),
        (f"llvm {LINUX} -mattr=+avx51f", "target-feature", "did you mean avx512f"),
        ("llvm -cpu=haswell", "target-option", "did you mean mcpu"),
        ("llvm mcpu=haswell", "target-option", "-name=value"),
        ("llvm -mcpu=haswell -mcpu=znver4", "target-option", "is repeated"),
        ("llvm -mtriple=pdp11-unix", "target-option", "pdp11"),
        ("llvm 'x", "target-option", "cannot read"),
        ("llvm -opt-level=4", "target-option", "from 0 to 3"),
        ("c -mcpu=haswell", "target-option", "no options"),
    ],
)
def test_mistakes_name_the_way_out(text: str, code: str, match: str) -> None:
    with pytest.raises(BuildError, match=match) as caught:
        Target.parse(text)
    assert caught.value.code == code


def test_importing_the_compiler_changes_nothing_in_the_process() -> None:
    """`import tvm` replaces the exception hook and `inspect.getfile`; ours puts them back."""
    code = (
        "import inspect, sys; before = sys.excepthook, inspect.getfile\n"
        "import relaxpy.target; assert (sys.excepthook, inspect.getfile) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_segmentation_fault_still_reaches_faulthandler() -> None:
    """The handler of SIGSEGV that was there before the import is there after it."""
    code = (
        "import ctypes, faulthandler; faulthandler.enable()\n"
        "import relaxpy.target; ctypes.string_at(0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Fatal Python error: Segmentation fault" in done.stderr


def test_targets_of_tvm_say_how_they_are_written() -> None:
    with pytest.raises(BuildError, match="got TVM's Target") as caught:
        Target.parse(tvm.target.Target("llvm"))  # type: ignore[arg-type]
    assert '"llvm"' in str(caught.value.help)


def test_alternatives() -> None:
    """What asks for most comes first; the target itself says what the last one says."""
    target = Target.parse(f"llvm {LINUX} -mcpu=x86-64-v4,x86-64-v2,x86-64-v3")
    assert [each.requirement()[0] for each in target.alternatives] == [
        "x86-64-v4", "x86-64-v3", "x86-64-v2",
    ]  # fmt: skip
    assert str(target) == f"llvm {LINUX} -mcpu=x86-64-v2,x86-64-v3,x86-64-v4"
    assert target == Target.parse(f"llvm {LINUX} -mcpu=x86-64-v2,x86-64-v3,x86-64-v4")
    assert target.alternatives[-1] == Target.parse(f"llvm {LINUX} -mcpu=x86-64-v2")
    assert all(each.alternatives == (each,) for each in target.alternatives)
    assert target != target.alternatives[-1]


def test_each_alternative_streams_what_its_caches_do_not_hold() -> None:
    target = Target.parse(f"llvm {LINUX} -mcpu=haswell,znver4,emeraldrapids")
    least = {each.mcpu: each.streamed_bytes >> 20 for each in target.alternatives}
    assert least == {"haswell": 16, "znver4": 32, "emeraldrapids": 16}


def test_alternatives_run_where_one_of_them_does() -> None:
    assert Target.parse("llvm -mtriple=riscv64-linux-gnu -mcpu=generic; llvm").is_host_loadable
    assert Target.parse("llvm -mcpu=native") == Target.host()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("llvm -mcpu=haswell,haswell", "names haswell twice"),
        ("llvm -mcpu=haswell,", "has an empty name"),
        ("llvm -mcpu=haswell,nehale", 'no processor "nehale"'),
        ("llvm -mcpu=haswell;", 'beside ";" is empty'),
        ("llvm -mcpu=haswell; -mcpu=znver4", "does not begin with llvm"),
        ("llvm; c", "of kind llvm"),
        ("llvm -mtriple=riscv64-linux-gnu -mcpu=native", '"native" is not a processor'),
    ],
)
def test_alternatives_that_are_refused(text: str, problem: str) -> None:
    with pytest.raises(BuildError, match=problem):
        Target.parse(text)


@pytest.mark.parametrize(
    ("triple", "system"),
    [("x86_64-apple-macosx", "macos"), ("arm64-apple-darwin22.1.0", "macos"), ("x86_64-pc-windows-msvc", "windows"),
     ("x86_64-w64-mingw32", "windows"), ("aarch64-linux-gnu", ""), ("x86_64-conda-linux-gnu", ""), ("x86_64", "")],
)  # fmt: skip
def test_systems(triple: str, system: str) -> None:
    """Code for another system than Linux requires it, by name."""
    target = Target.parse(f"llvm -mtriple={triple} -mcpu=generic")
    features = target.requirement()[2]
    assert [each for each in ("macos", "windows") if each in features] == [system] * bool(system)
    if system:
        assert not target.is_host_loadable or sys.platform != "linux"


@pytest.mark.parametrize("hidden", ["", "gfni", "avxvnni", "avx512fp16", "amx-bf16"])
def test_code_for_this_machine_needs_only_what_the_runtime_sees(
    monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    """LLVM asks the processor itself, and may name a feature that the system does not."""
    seen = host_features() - {hidden}
    monkeypatch.setattr(cpu_target, "host_features", lambda: seen)
    mcpu, changes = cpu_target._host_cpu.__wrapped__()
    made = CpuTarget("llvm", mcpu, changes, cpu_target._host_triple())
    assert set(made.required_features) <= seen
