"""Modules and functions called as they are: built at the first call, and kept."""

# pyright: reportInvalidTypeForm=false

from __future__ import annotations

import copy
import inspect
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.build import first_call
from relaxpy.errors import UsageError
from relaxpy.ir import Function, GlobalVar
from relaxpy.script import ir as I
from relaxpy.script import relax as R

TEXT = """
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def twice(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("y"):
                v = T.axis.spatial(n, i)
                y[v] = x[v] + x[v]

    @R.function
    def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        cls = Module
        z = cls.other(x)
        w = R.subtract(z, y)
        return w

    @R.function
    def other(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        cls = Module
        z = R.call_tir(cls.twice, (x,), out_ty=R.Tensor((n,), "float32"))
        return z
"""
X, Y = np.arange(3, dtype=np.float32), np.ones(3, np.float32)


@I.ir_module
class Decorated:
    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        return R.exp(x)


@R.function
def alone(x: R.Tensor(("n",), "float32")):
    return R.exp(x)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was built."""
    seen: list[Any] = []

    def build(program: Any) -> Any:
        seen.append(program)
        return relaxpy.build(program)

    monkeypatch.setattr(first_call, "build", build)
    return seen


def test_a_module_is_built_once(builds: list[Any]) -> None:
    mod = relaxpy.parse(TEXT)
    for size in (3, 5, 3):
        x = np.arange(size, dtype=np.float32)
        np.testing.assert_array_equal(mod.main(x, np.ones_like(x)).numpy(), 2 * x - 1)
    np.testing.assert_array_equal(mod.main(y=Y, x=X).numpy(), 2 * X - 1)
    np.testing.assert_array_equal(mod.other(X).numpy(), 2 * X)
    np.testing.assert_array_equal(mod(X, Y).numpy(), 2 * X - 1)
    assert builds == [mod]
    changed = mod.with_function("other", mod["other"])
    changed.other(X)
    assert builds == [mod]  # the same functions: the same module


def test_another_module_is_another_build(builds: list[Any]) -> None:
    """Nothing of the old one is found for a changed one."""
    mod = relaxpy.parse(TEXT)
    changed = relaxpy.parse(TEXT.replace("x[v] + x[v]", "x[v] * x[v]"))
    np.testing.assert_array_equal(mod.other(X).numpy(), 2 * X)
    np.testing.assert_array_equal(changed.other(X).numpy(), X * X)
    np.testing.assert_array_equal(mod.other(X).numpy(), 2 * X)
    assert builds == [mod, changed]


def test_decorated_modules_and_functions() -> None:
    np.testing.assert_allclose(Decorated.main(X).numpy(), np.exp(X), rtol=1e-6)
    np.testing.assert_allclose(Decorated(X).numpy(), np.exp(X), rtol=1e-6)
    np.testing.assert_allclose(Decorated["main"](X).numpy(), np.exp(X), rtol=1e-6)
    np.testing.assert_allclose(alone(X).numpy(), np.exp(X), rtol=1e-6)


GONE = """
import gc, weakref
import numpy as np
import relaxpy
from relaxpy.build.first_call import machine_of
mod = relaxpy.parse({text!r})
mod.main(np.ones(3, np.float32), np.ones(3, np.float32))
refs = weakref.ref(mod), weakref.ref(machine_of(mod))
del mod
gc.collect()
assert [ref() for ref in refs] == [None, None]
"""


def test_a_module_that_is_gone_takes_its_machine_along() -> None:
    """In a process of its own: the tests' fixtures look at modules."""
    subprocess.run([sys.executable, "-c", GONE.format(text=TEXT)], check=True, timeout=120)


def test_threads_build_once(builds: list[Any]) -> None:
    mod = relaxpy.parse(TEXT)
    found: list[np.ndarray] = []
    start = threading.Barrier(4)

    def call() -> None:
        start.wait()
        found.append(mod.main(X, Y).numpy())

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert len(found) == 4
    for each in found:
        np.testing.assert_array_equal(each, 2 * X - 1)


def test_a_build_that_fails_is_tried_again() -> None:
    mod = relaxpy.parse("""
@R.function(pure=False)
def main(x: R.Tensor((3,), "float32")):
    y = R.call_packed("test.first_call.later", x, ty_args=R.Tensor((3,), "float32"))
    return y
""")
    with pytest.raises(relaxpy.RelaxError, match=r"test\.first_call\.later"):
        mod(X)
    relaxpy.register_function("test.first_call.later")(lambda x: x)
    np.testing.assert_array_equal(mod(X).numpy(), X)


def test_what_cannot_be_called_says_so() -> None:
    mod = relaxpy.parse(TEXT)
    with pytest.raises(AttributeError, match=r"twice is not a graph function.*R\.call_tir"):
        mod.twice(X, Y)
    with pytest.raises(AttributeError, match="did you mean 'main'"):
        mod.mian  # noqa: B018
    with pytest.raises(UsageError, match="calls other, another function of its module") as caught:
        mod.graph_function("main")(X, Y)
    assert "Module.main(" in str(caught.value)
    main = mod["main"]
    assert isinstance(main, Function)
    for call in (mod.main, mod["other"], mod):
        with pytest.raises(UsageError, match="an expression of a program"):
            call(GlobalVar("x"))  # type: ignore[operator]
    with pytest.raises(UsageError, match="lacks y"):
        mod.main(X)
    assert list(inspect.signature(mod.main).parameters) == ["x", "y"]
    assert "main" in repr(mod.main)
    assert not hasattr(mod, "__wrapped__")


def test_machines_are_called() -> None:
    mod = relaxpy.parse(TEXT)
    exe = relaxpy.build(mod)
    vm = relaxpy.VirtualMachine(exe)
    np.testing.assert_array_equal(vm(X, Y).numpy(), 2 * X - 1)
    two = relaxpy.VirtualMachine(
        relaxpy.build(relaxpy.parse(TEXT.replace("def main", "def first")))
    )
    with pytest.raises(UsageError, match="one function, or a main") as caught:
        two(X)
    assert 'vm["first"]' in str(caught.value)
    for wrong in (lambda: exe(X), lambda: exe["main"]):
        with pytest.raises(UsageError, match="a virtual machine runs"):
            wrong()


def test_modules_are_copied_as_before() -> None:
    mod = relaxpy.parse(TEXT)
    mod.other(X)
    assert copy.copy(mod).functions.keys() == mod.functions.keys()
    graph = relaxpy.parse(TEXT)["other"]
    assert isinstance(graph, Function)
    assert copy.copy(graph).ret == graph.ret


def test_what_is_no_module_is_named() -> None:
    """Each says what it is, and how it becomes a module."""
    from relaxpy import nn

    exe = relaxpy.build(Decorated)

    class Plain:
        pass

    class FromOnnx:
        pass

    FromOnnx.__module__ = "onnx.onnx_ml_pb2"

    for given, message, help in (
        (TEXT, "a text", "parse it first"),
        (exe, "an executable", "VirtualMachine(exe)"),
        (nn.Linear(2, 2), "an nn.Module (Linear)", "export it first"),
        (nn.Linear, "the class Linear", "export it first"),
        (FromOnnx(), "an onnx FromOnnx", "relaxpy.from_onnx(model)"),
        (Plain, "the class Plain", "@I.ir_module"),
        (lambda x: x, "a Python function", "@R.function"),
        (relaxpy.parse(TEXT)["twice"], "a tensor program", "R.call_tir"),
        ((Decorated, {}), "a tuple", "params=params"),
        (None, "a NoneType", "@I.ir_module"),
    ):
        with pytest.raises(UsageError) as caught:
            relaxpy.build(given)  # type: ignore[arg-type]
        assert message in caught.value.message
        assert help in str(caught.value.help)


def test_modules_of_tvm_are_read_as_text() -> None:
    """What the message says to write works."""
    from tvm.script import ir as tvm_i  # pyright: ignore[reportMissingImports]
    from tvm.script import tirx as tvm_t  # pyright: ignore[reportMissingImports]

    @tvm_i.ir_module(s_tir=True)
    class Other:
        @tvm_t.prim_func(s_tir=True)
        def main(x: tvm_t.Buffer((4,), "float32"), y: tvm_t.Buffer((4,), "float32")):
            for i in range(4):
                with tvm_t.sblock("y"):
                    v = tvm_t.axis.spatial(4, i)
                    y[v] = x[v] + x[v]

    with pytest.raises(UsageError, match="got TVM's IRModule") as caught:
        relaxpy.build(Other)  # type: ignore[arg-type]
    assert "relaxpy.parse(mod.script(show_meta=True))" in str(caught.value.help)
    assert "main" in relaxpy.parse(Other.script(show_meta=True))
