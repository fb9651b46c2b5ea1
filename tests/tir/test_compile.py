"""Objects: deterministic, loadable, tolerant of alignment; errors that name the kernel."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy.errors import BuildError
from relaxpy.ir.dim import SymVar
from relaxpy.testing.kernels import Kernels
from relaxpy.tir import te as expressions
from relaxpy.tir._tvm import s_tir, te, tirx
from relaxpy.tir.compile import compile_object, compile_source, relax_alignment
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.target import Target
from tests.schedule.support import HOST, as_tensor, compute, f32, load, n, normal, tensor

SCRIPT = """
import hashlib, sys
from relaxpy.tir._tvm import s_tir, te, tirx
from relaxpy.tir.compile import compile_object
from relaxpy.tir.target import Target
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
def test_bytes_depend_on_neither_process_nor_order() -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, order], stdout=subprocess.PIPE, text=True)
        for order in ("forwards", "backwards")
    ]
    digests = {process.communicate()[0] for process in processes}
    assert len(digests) == 1
    assert len(digests.pop().strip()) == len(hashlib.sha256().hexdigest())


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


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=x86-64"])
def test_rounding_to_bfloat16(target: str) -> None:
    """To nearest, ties to even, NaN and infinities kept: as ml_dtypes, also where the operand has `Let`s."""
    exe = relaxpy.build(
        relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n",), "float32")) -> R.Tuple(R.Tensor(("n",), "bfloat16"), R.Tensor(("n",), "bfloat16")):
    a = R.astype(x, "bfloat16")
    b = R.exp(a)
    out = (a, b)
    return out
"""),
        target=target,
    )
    x = np.concatenate(
        [
            np.array(
                [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 3.4e38, 1.00390625, 1.01171875],
                "float32",
            ),
            np.random.default_rng(0).normal(size=200).astype("float32"),
        ]
    )
    a, b = (out.numpy() for out in relaxpy.VirtualMachine(exe)["main"](x))
    expected = x.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(a.astype("float32"), expected.astype("float32"))
    with np.errstate(over="ignore"):
        exact = np.exp(expected.astype("float32"))
    np.testing.assert_allclose(b.astype("float32"), exact, rtol=2**-8)


@pytest.mark.parametrize("schedule", [True, False])
def test_bfloat16_that_is_computed_or_kept_is_widened(schedule: bool) -> None:
    """Not from bits in memory: from a result of arithmetic, and from a buffer that the program allocates."""
    n = SymVar("n").dim
    x = expressions.placeholder([n], "bfloat16", "x")
    twice = expressions.compute([n], lambda i: x(i) + x(i), "twice")
    k = expressions.reduce_axis(n)
    total = expressions.compute(
        [1], lambda _: expressions.sum(twice(k).astype("float32"), k), "total"
    )
    sums = expressions.compute([n], lambda i: (x(i) + x(i)).astype("float32") + total(0), "sums")
    values = np.array([1.5, 2.25, -3, 0.5], ml_dtypes.bfloat16)
    got = np.empty(4, np.float32)
    Kernels({"k": PrimFunc.from_te([x], [sums])}, schedule=schedule).run("k", [values], [got])
    np.testing.assert_array_equal(got, values.astype(np.float32) * 2 + 2.5)
