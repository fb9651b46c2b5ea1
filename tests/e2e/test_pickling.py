"""Programs, executables and models are pickled and copied; what is of a process says so."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.ir import Dim, Function, IRModule, SymVar
from relaxpy.ir.dim import dim_op
from relaxpy.testing.random_program import random_program
from tests.sweeps import part

SOURCE = """
@I.ir_module
class Odd:
    I.module_attrs({"key": [1, "two", {"three": 3.0}]})
    I.module_global_infos({"vdevice": [I.vdevice("llvm", 0)]})

    @T.prim_func
    def f(var_x: T.handle, var_y: T.handle):
        m = T.int64()
        x = T.match_buffer(var_x, (m,), "float32")
        y = T.match_buffer(var_y, (m,), "float32")
        for i in range(m):
            with T.sblock("y"):
                v = T.axis.spatial(m, i)
                y[v] = x[v] + T.float32(1)

    @R.function(private=True)
    def größe(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n * 4",), "float32"):
        n = T.int64()
        y: R.Tensor((n * 4,), "float32") = R.reshape(x, (n * 4,))
        return y

    @R.function
    def main(x: R.Tensor(("n", 4), "float32"), c: R.Tensor((), "bool")) -> R.Tensor(("n * 4",), "float32"):
        cls = Odd
        n = T.int64()
        if c:
            y = cls.größe(x)
        else:
            z = cls.größe(R.multiply(x, R.const([float("nan"), 1.0, -0.0, float("inf")], "float32")))
            y = R.call_tir(cls.f, (z,), out_ty=R.Tensor((n * 4,), "float32"))
        w = R.call_pure_packed("a \\\\ \\"strange\\" name\\n", y, R.str("\\u2028"), ty_args=R.Object())
        return y
"""


def by_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


COPIES = pytest.mark.parametrize("copied", [by_pickle, copy.copy, copy.deepcopy])


def check(mod: IRModule, made: IRModule) -> None:
    """Equal, and as able to be changed and compared as the first."""
    relaxpy.assert_structural_equal(made, mod)
    assert relaxpy.structural_hash(made) == relaxpy.structural_hash(mod)
    assert made.script() == mod.script()
    assert list(made) == list(mod)
    assert made.attrs == mod.attrs
    assert made.name == mod.name
    relaxpy.assert_structural_equal(relaxpy.parse(made.script()), mod)


@COPIES
def test_a_module(copied: Callable[[Any], Any]) -> None:
    mod = relaxpy.parse(SOURCE)
    made = copied(mod)
    check(mod, made)
    with pytest.raises(TypeError):
        made.functions["g"] = made["main"]
    for name, function in mod.functions.items():
        relaxpy.assert_structural_equal(copied(function), function)
        assert type(copied(function)) is type(function), name


@COPIES
def test_random_modules(copied: Callable[[Any], Any]) -> None:
    for seed in part(range(12), 3):
        mod = random_program(seed).mod
        check(mod, copied(mod))


def test_a_copy_runs() -> None:
    text = (
        "@R.function\ndef main(x: R.Tensor(('n', 4), 'float32')):\n    y = R.exp(x)\n    return y\n"
    )
    mod = relaxpy.parse(text)
    made = by_pickle(mod)
    x = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(made.main(x).numpy(), mod.main(x).numpy())
    np.testing.assert_array_equal(by_pickle(made["main"])(x).numpy(), mod.main(x).numpy())


def test_dimensions_of_a_copy_are_in_normal_form() -> None:
    """Variables of a copy are others, and sorted otherwise; equal dimensions are equal, too."""
    names = [SymVar(name) for name in "nnmkn"]
    a, b, c, d, e = (var.dim for var in names)
    dims = [
        a * b + c * d * 3 - e + 7, (a + b) // 3, (a * 8 + e) % 12, dim_op("min", c, d + 1), dim_op("max", e, a) * b,
        dim_op("select", dim_op("lt", a, b), c // 2, d), Dim.of(0), Dim.of(-5), a * a * a - b * b,
    ]  # fmt: skip
    for copied in (by_pickle, copy.deepcopy):
        made_names, made = copied((names[::-1], dims))
        back = dict(zip(made_names, names[::-1], strict=True))
        there = dict(zip(names[::-1], made_names, strict=True))
        for dim, other in zip(dims, made, strict=True):
            assert other.substitute(back) is dim
            assert dim.substitute(there) == other
            assert hash(dim.substitute(there)) == hash(other)
            assert other.vars == () or set(other.vars) <= set(made_names)
        assert made[6] is Dim.of(0)
    assert copy.copy(dims[0]) is dims[0]
    assert by_pickle(dims[1].atom).args[1] == 3  # type: ignore[union-attr]


def test_a_pickle_is_read_in_another_process(tmp_path: Path) -> None:
    """Where hashes and the order of variables are others."""
    mod = relaxpy.parse(SOURCE)
    (tmp_path / "mod").write_bytes(pickle.dumps(mod))
    code = (
        "import pickle, sys, relaxpy\n"
        "other = [relaxpy.ir.SymVar('n') for _ in range(1000)]\n"
        f"mod = pickle.loads(open({str(tmp_path / 'mod')!r}, 'rb').read())\n"
        "relaxpy.assert_structural_equal(relaxpy.parse(mod.script()), mod)\n"
        "sys.stdout.buffer.write(pickle.dumps(mod))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    check(mod, pickle.loads(done.stdout))


def test_a_long_program() -> None:
    lines = "".join(f"    y{i + 1} = R.exp(y{i})\n" for i in range(3000))
    text = f"@R.function\ndef main(y0: R.Tensor(('n',), 'float32')):\n{lines}    return y3000\n"
    function = relaxpy.parse(text)["main"]
    assert isinstance(function, Function)
    relaxpy.assert_structural_equal(by_pickle(function), function)


def test_an_executable_and_what_is_of_a_process() -> None:
    exe = relaxpy.build(
        relaxpy.parse(
            "@R.function\ndef main(x: R.Tensor(('n', 4), 'float32')):\n    y = R.exp(x)\n    return y\n"
        )
    )
    x = np.ones((3, 4), np.float32)
    vm = relaxpy.VirtualMachine(exe)
    for made in (by_pickle(exe), copy.deepcopy(exe)):
        got = relaxpy.VirtualMachine(made)["main"](x).numpy()
        np.testing.assert_array_equal(got, vm["main"](x).numpy())
    for copied in (by_pickle, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="pickle its Executable"):
            copied(vm)
        with pytest.raises(TypeError, match="function main belongs to this process"):
            copied(vm["main"])
    result = by_pickle(vm["main"](x))
    np.testing.assert_array_equal(result.numpy(), vm["main"](x).numpy())


class Layers(nn.Module):
    """A model with a list of layers."""

    def __init__(self) -> None:
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 2)])
        self.scale = nn.Parameter((2,), "float32")

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.layers(x) * self.scale


@pytest.mark.parametrize("copied", [by_pickle, copy.deepcopy])
def test_a_model(copied: Callable[[Any], Any]) -> None:
    model = Layers()
    model.scale.data = np.array([1, 2], np.float32)
    made = copied(model)
    spec = {"forward": {"x": nn.spec.Tensor(("n", 4), "float32")}}
    (mod, params), (other, other_params) = model.export(spec), made.export(spec)
    relaxpy.assert_structural_equal(other, mod)
    assert list(params) == list(other_params)
    np.testing.assert_array_equal(made.scale.data, model.scale.data)


def test_printing() -> None:
    mod = relaxpy.parse(SOURCE)
    assert repr(mod) == "<relaxpy IRModule Odd: f, größe, main>"
    assert str(mod).startswith("# from") or "class Odd" in str(mod)
    assert repr(IRModule()) == "<relaxpy IRModule Module: no functions>"
    main, private, program = mod["main"], mod["größe"], mod["f"]
    assert repr(main) == "<relaxpy Function main(x, c)>"
    assert repr(private) == "<relaxpy Function(x)>"
    assert repr(program) == "<relaxpy PrimFunc(x, y)>"
    assert "def main(x:" in str(main)
    assert "R.reshape(x" in str(private)
    assert "T.sblock" in str(program)
