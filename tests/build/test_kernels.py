"""Kernels of a module: each distinct program once, the same bytes however many at a time, from the cache or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import relaxpy
import relaxpy.version
from relaxpy.build.build_cache import BuildCache
from relaxpy.build.kernels import CompiledKernel, compile_kernels, compiler_id
from relaxpy.errors import BuildError, RelaxError
from relaxpy.ir import IRModule
from relaxpy.runtime import Executable
from relaxpy.runtime.bytecode import Heap, IntOp, KernelImage, KernelInfo, KernelMemory
from relaxpy.target import Target
from relaxpy.tir import te
from relaxpy.tir.prim_func import PrimFunc

HOST = Target.host()
QUICK = Target.parse("llvm -opt-level=0")

PROGRAM = """
@R.function
def main(x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 8), "float32")):
    a = R.exp(x)
    b = R.matmul(a, w)
    c = R.nn.softmax(b)
    d = R.sum(c, axis=1)
    return (c, d)
"""


@pytest.fixture(autouse=True)
def unchanged_sources(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Somebody may be editing them while the tests run; nothing would be kept."""
    compiler_id.cache_clear()
    monkeypatch.setattr(relaxpy.version, "LOADED_AT", float("inf"))
    yield
    compiler_id.cache_clear()


def plus(value: float, name: str = "x", dtype: str = "float32") -> PrimFunc:
    n = te.SymVar("n").dim
    x = te.placeholder([n], dtype, name)
    return PrimFunc.from_te([x], [te.compute([n], lambda i: x(i) + te.const(value, dtype), "y")])


def saved(exe: Executable, folder: Path) -> bytes:
    exe.save(folder / "module.rxe")
    return (folder / "module.rxe").read_bytes()


def cached(exe: Executable) -> list[bool]:
    assert exe.build_report is not None
    return [kernel.cached for kernel in exe.build_report.kernels]


def test_the_same_bytes_with_and_without_the_cache(tmp_path: Path) -> None:
    """And however many kernels are compiled at a time."""
    mod = relaxpy.parse(PROGRAM)
    without = relaxpy.build(mod, cache=False, jobs=1)
    cold = relaxpy.build(mod, cache=tmp_path / "cache", jobs=3)
    warm = relaxpy.build(mod, cache=tmp_path / "cache")
    assert not any(cached(without))
    assert not any(cached(cold))
    assert all(cached(warm))
    files = {saved(exe, tmp_path) for exe in (without, cold, warm)}
    assert len(files) == 1
    x, w = np.ones((3, 8), np.float32), np.eye(8, dtype=np.float32)
    c, d = relaxpy.VirtualMachine(warm)["main"](x, w)
    np.testing.assert_allclose(c.numpy(), np.full((3, 8), 0.125, np.float32), rtol=1e-6)
    np.testing.assert_allclose(d.numpy(), np.ones(3, np.float32), rtol=1e-6)


def test_a_damaged_entry_is_compiled_again(tmp_path: Path) -> None:
    mod = relaxpy.parse(PROGRAM)
    first = relaxpy.build(mod, QUICK, cache=tmp_path / "cache")
    for entry in BuildCache(tmp_path / "cache").entries():
        content = bytearray(entry.path.read_bytes())
        content[len(content) // 2] ^= 1
        entry.path.write_bytes(content)
    second = relaxpy.build(mod, QUICK, cache=tmp_path / "cache")
    assert not any(cached(second))
    assert second.objects == first.objects
    assert all(cached(relaxpy.build(mod, QUICK, cache=tmp_path / "cache")))


def test_a_cache_that_cannot_be_written_fails_no_build(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    exe = relaxpy.build(relaxpy.parse(PROGRAM), QUICK, cache=tmp_path / "file")
    assert not any(cached(exe))


def test_equal_programs_are_compiled_once() -> None:
    """Names, of the program and in it, make no difference; constants and dtypes do."""
    programs = {
        "one": plus(1.0),
        "same": plus(1.0),
        "renamed": plus(1.0, name="another"),
        "two": plus(2.0),
        "wide": plus(1.0, dtype="float64"),
        "nearly": plus(1.0 + 2**-23),
    }
    found = compile_kernels(programs, QUICK)
    assert found["one"] == found["same"] == found["renamed"]
    assert len({kernel.symbol for kernel in found.values()}) == len(programs) - 2


def test_the_key_tells_what_makes_a_difference(tmp_path: Path) -> None:
    build_cache = BuildCache(tmp_path)

    def is_cached(program: PrimFunc, target: Target, check_arguments: bool = False) -> bool:
        (kernel,) = compile_kernels(
            {"k": program}, target, build_cache=build_cache, check_arguments=check_arguments
        ).values()
        return kernel.cached

    baseline = replace(QUICK, mcpu="x86-64", features=())
    assert not is_cached(plus(1.0), QUICK)
    assert is_cached(plus(1.0), QUICK)
    assert not is_cached(plus(1.0 + 2**-23), QUICK)
    assert not is_cached(plus(1.0, dtype="float64"), QUICK)
    assert not is_cached(plus(1.0), QUICK, check_arguments=True)
    assert not is_cached(plus(1.0), replace(QUICK, opt_level=1))
    assert not is_cached(plus(1.0), baseline)
    assert is_cached(plus(1.0), baseline)


def test_nothing_is_kept_of_a_compiler_whose_source_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files say something else than what this process runs."""
    monkeypatch.setattr(relaxpy.version, "LOADED_AT", 0.0)
    assert compiler_id() is None
    for _ in range(2):
        found = compile_kernels({"k": plus(1.0)}, QUICK, build_cache=BuildCache(tmp_path))
        assert not found["k"].cached
    assert BuildCache(tmp_path).entries() == []


def test_the_compiler_is_told_by_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rule.py").write_text("a = 1\n")
    (tmp_path / "version.py").write_text("")
    monkeypatch.setattr(relaxpy.version, "__file__", str(tmp_path / "version.py"))
    ids: list[str | None] = []
    for text in ("a = 1\n", "a = 2\n", "a = 1\n"):
        (tmp_path / "rule.py").write_text(text)
        compiler_id.cache_clear()
        ids.append(compiler_id(("rule.py",)))
    compiler_id.cache_clear()
    assert ids[0] == ids[2] != ids[1]
    assert None not in ids


def test_an_entry_is_what_was_compiled() -> None:
    memory = KernelMemory(64, IntOp("mul", (Heap(0), 8)), ((1, 0),))
    info = KernelInfo("k1", (KernelImage("k1", "k1_serial", 0, 1, memory),))
    kernel = CompiledKernel(info, "matmul", 1.5, (b"\n\0{object}\n", b"", b"launchers"))
    assert CompiledKernel.decode(memoryview(kernel.encode())) == replace(kernel, cached=True)


def test_progress_counts_what_is_compiled(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    programs = {f"k{i}": plus(float(i)) for i in range(3)}
    for _ in range(2):
        compile_kernels(
            programs,
            QUICK,
            build_cache=BuildCache(tmp_path),
            progress=lambda *args: seen.append(args),
        )
    assert [(done, count) for done, count, _ in seen] == [(1, 3), (2, 3), (3, 3)]
    assert {name for *_, name in seen} == set(programs)


UNBOUND = """
@I.ir_module
class Module:
    @T.prim_func
    def wrong(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        i = T.launch_thread("threadIdx.x", 8)
        if i < 8:
            y[0] = x[0]

    @R.function
    def main(x: R.Tensor((8,), "float32")):
        cls = Module
        y = R.call_tir(cls.wrong, (x,), out_sinfo=R.Tensor((8,), "float32"))
        return y
"""


def test_an_error_names_the_kernel() -> None:
    with pytest.raises(BuildError, match='the kernel "wrong" does not compile') as caught:
        relaxpy.build(relaxpy.parse(UNBOUND), cache=False)
    assert caught.value.code == "kernel-compile"


def test_kernels_check_their_arguments_where_asked() -> None:
    """With them the object is larger, by what TVM compares."""
    mod = relaxpy.parse(PROGRAM)
    plain, checked = (relaxpy.build(mod, check_arguments=check) for check in (False, True))
    assert sum(map(len, checked.objects)) > sum(map(len, plain.objects))
    x, w = np.ones((3, 8), np.float32), np.eye(8, dtype=np.float32)
    a, b = (relaxpy.VirtualMachine(exe)["main"](x, w)[0].numpy() for exe in (plain, checked))
    np.testing.assert_array_equal(a, b)


def test_a_module_without_kernels(tmp_path: Path) -> None:
    mod = relaxpy.parse("@R.function\ndef main(x: R.Object):\n    return x\n")
    assert isinstance(mod, IRModule)
    exe = relaxpy.build(mod, cache=tmp_path)
    assert exe.objects == ()
    assert "0 kernels" in str(exe.build_report)


CALLS = """
@I.ir_module
class Module:
    @R.function
    def param(x: R.Tensor(("n", 8), "float32"), y: R.Tensor(("n", 8), "float32")):
        z = R.add(x, y)
        return z

    @R.function
    def field(x: R.Tensor(("n", 8), "float32"), t: R.Tuple(R.Tensor(("n", 8), "float32"))):
        z = R.add(x, t[0])
        return z

    @R.function
    def packed(x: R.Tensor(("n", 8), "float32"), f: R.Object) -> R.Tensor(("n", 8), "float32"):
        y = R.call_pure_packed("tests.build.same", f, sinfo_args=R.Tensor((n, 8), "float32"))
        z = R.add(x, y)
        return z

    @R.function
    def cast(x: R.Tensor(("n", 8), "float32"), f: R.Object) -> R.Tensor(("n", 8), "float32"):
        y = R.match_cast(f, R.Tensor((n, 8), "float32"))
        z = R.add(x, y)
        return z
"""

WRONG = {
    "rank": np.ones(3, np.float32),
    "dtype": np.ones((3, 8), np.float64),
    "extent": np.ones((3, 7), np.float32),
    "symbol": np.ones((2, 8), np.float32),
    "empty": np.ones((0, 8), np.float32),
    "nothing": None,
}


@pytest.fixture(scope="module")
def calls() -> relaxpy.VirtualMachine:
    """Every way by which a tensor comes to a kernel from outside, whose own checks are left out."""
    relaxpy.register_function("tests.build.same", lambda value: value)
    return relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(CALLS), QUICK))


@pytest.mark.parametrize("way", ["param", "field", "packed", "cast"])
@pytest.mark.parametrize("wrong", WRONG)
def test_no_kernel_sees_what_it_is_not_made_for(
    way: str, wrong: str, calls: relaxpy.VirtualMachine
) -> None:
    x, value = np.ones((3, 8), np.float32), WRONG[wrong]
    with pytest.raises(RelaxError) as caught:
        calls[way](x, (value,) if way == "field" else value)
    assert caught.value.code == "check"


@pytest.mark.parametrize("way", ["param", "field", "packed", "cast"])
def test_what_has_gaps_is_copied_first(way: str, calls: relaxpy.VirtualMachine) -> None:
    x = np.ones((3, 8), np.float32)
    y = np.arange(48, dtype=np.float32).reshape(3, 16)[:, ::2]
    got = calls[way](x, (y,) if way == "field" else y)
    np.testing.assert_array_equal(got.numpy(), x + y)


def test_an_error_of_the_code_generator_has_the_program_s_place() -> None:
    mod = relaxpy.parse("""
@T.prim_func
def f(x: T.Buffer((8, 8), "float32"), y: T.Buffer((8, 8), "float32")):
    for i in range(8):
        with T.sblock("outer"):
            vi = T.axis.spatial(8, i)
            own = T.sblock_alloc_buffer((i + 1,), "float32")
            for j in range(8):
                with T.sblock("inner"):
                    vj = T.axis.spatial(8, j)
                    own[0] = x[vi, vj]
                    y[vi, vj] = own[0]
""")
    program = mod["f"]
    assert isinstance(program, PrimFunc)
    with pytest.raises(BuildError) as caught:
        compile_kernels({"plus": plus(1.0), "f": program}, QUICK)
    assert caught.value.code == "kernel-compile"
    assert caught.value.span is not None
    assert caught.value.span.line == 3
