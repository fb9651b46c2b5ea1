"""Objects: deterministic, loadable, tolerant of alignment; errors that name the kernel."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from relaxpy.backend.cpu import compile
from relaxpy.backend.cpu.compile import compile_object, compile_source, relax_alignment
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.errors import BuildError
from relaxpy.target import Target
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Program
from relaxpy.tir.tvm import s_tir, te, tirx
from tests.backend.support import HOST, as_tensor, compute, f32, load, n, normal, tensor
from tests.sweeps import optimised

SCRIPT = """
import hashlib, sys
from relaxpy.tir.tvm import s_tir, te, tirx
from relaxpy.backend.cpu.compile import compile_object
from relaxpy.target import Target
n = tirx.Var("n", "int64")
def add(value):
    x = te.placeholder((n,), "float32", name="x")
    return te.create_prim_func([x, te.compute((n,), lambda i: x[i] + tirx.FloatImm("float32", value))])
kernels = {name: add(value) for name, value in (("one", 1.0), ("two", 2.0), ("three", 3.0))}
order = sorted(kernels, reverse=sys.argv[1] == "backwards")
object_code = compile_object({name: kernels[name] for name in order}, Target.parse("llvm"))
print(hashlib.sha256(object_code).hexdigest())
"""


def plus(value: float) -> tirx.PrimFunc:
    x = tensor(n)
    return te.create_prim_func([x, compute((n,), lambda i: x[i] + f32(value))])


@pytest.mark.slow
@optimised
def test_bytes_depend_on_neither_process_nor_order(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-c", SCRIPT, "backwards"]
    theirs = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    monkeypatch.setattr(sys, "argv", ["-c", "forwards"])
    exec(SCRIPT, {})
    assert theirs == capsys.readouterr().out
    assert len(theirs.strip()) == len(hashlib.sha256().hexdigest())


def test_the_name_inside_the_function_does_not_matter() -> None:
    named = plus(1.0).with_attr("global_symbol", "something_else")
    assert compile_object({"k": named}, HOST) == compile_object({"k": plus(1.0)}, HOST)


def test_every_kernel_is_found_under_its_key(tmp_path: Path) -> None:
    library = load(tmp_path, {"one": plus(1.0), "two": plus(2.0)})
    for name, value in (("one", 1.0), ("two", 2.0)):
        a, out = normal(5), np.empty(5, np.float32)
        library[name](as_tensor(a), as_tensor(out))
        np.testing.assert_array_equal(out, a + np.float32(value))


def test_parameters_ask_for_the_alignment_of_their_items() -> None:
    x = tensor(n, dtype="float16")
    func = te.create_prim_func([x, compute((n,), lambda i: x[i].astype("float64"))])
    relaxed = relax_alignment(func)
    assert [param.data_alignment for param in relaxed.params] == [2, 8]
    assert [param.data_alignment for param in func.params] == [64, 64]
    assert relax_alignment(relaxed) is relaxed


def test_text_of_the_kernels() -> None:
    assert "__tvm_ffi_k" in compile_source({"k": plus(1.0)}, HOST)
    assert "float" in compile_source({"k": plus(1.0)}, Target.parse("c"))


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs files in memory")
def test_only_launches_are_not_in_a_function_of_their_own() -> None:
    """The loops are functions; before them is only what reads the arguments."""
    kernel = schedule_kernel(plus(1.0), HOST)
    parallel, serial = (
        compile_source({"k": each}, HOST) for each in (kernel.parallel, kernel.serial)
    )
    assert "k_compute_" not in parallel
    assert "k_compute_" in serial


def test_a_loop_before_a_launch_knows_its_pointers() -> None:
    x, y, z = (tirx.decl_buffer([n], "float32", name, layout=None) for name in "xyz")
    p = Program()
    from_, to, last = p.flat_view(x), p.flat_view(y), p.flat_view(z)
    with p.loop("i", n) as i:
        p.store(to, i, loops.load(from_, i) + f32(1.0))
    with p.loop("j", n, parallel=True) as j:
        p.store(last, j, loops.load(to, j))
    func = loops.finished(tirx.PrimFunc([x, y, z], tirx.Evaluate(0)), p.body())
    assert "k_compute_" in compile_source({"k": func}, HOST)


def test_no_disk_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM ends the process where it cannot write."""
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    assert compile_object({"k": plus(2.0)}, HOST).startswith(b"\x7fELF")


def test_a_full_disk_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where files are on disk, room is asked for first."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    assert compile_object({"k": plus(2.0)}, HOST).startswith(b"\x7fELF")
    monkeypatch.setattr(compile, "_ROOM", 1 << 62)
    with pytest.raises(OSError, match="No space left"):
        compile_object({"k": plus(2.0)}, HOST)


def test_c_has_no_object() -> None:
    with pytest.raises(BuildError, match="no object files") as caught:
        compile_object({"k": plus(1.0)}, Target.parse("c"))
    assert caught.value.code == "target-object"


def test_a_name_that_is_no_symbol() -> None:
    with pytest.raises(BuildError, match="not an identifier") as caught:
        compile_object({"no-symbol": plus(1.0)}, HOST)
    assert caught.value.code == "kernel-name"


def test_an_error_names_the_kernel() -> None:
    schedule = s_tir.Schedule(plus(1.0))
    (loop,) = schedule.get_loops(schedule.get_sblock("out"))
    schedule.bind(loop, "threadIdx.x")  # which a processor does not have
    wrong = schedule.mod["main"]
    with pytest.raises(BuildError, match='the kernel "wrong" does not compile') as caught:
        compile_object({"right": plus(1.0), "wrong": wrong}, HOST)
    assert caught.value.code == "kernel-compile"
    assert "tensor program" in caught.value.notes[0]
