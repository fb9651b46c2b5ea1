"""The corpus of executables for mutation (`relaxpy.testing.file_mutations`): small programs, which together contain
every instruction, each with valid and invalid arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from platform import machine
from typing import Any

import ml_dtypes
import numpy as np

from relaxpy.build.build import build
from relaxpy.ir.accessors import expect
from relaxpy.runtime.bytecode import HOST_SLOT, Copy, Graph, If, Kernel, Read, Slot
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.library import register_library
from relaxpy.script import parse

_FLOW = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32"), c: R.Tensor((), "bool")) -> R.Tensor(("n", 4), "float32"):
        n = T.int64()
        if c:
            a = R.exp(x)
            b = R.add(a, x)
            y = R.reshape(R.reshape(b, (n * 4,)), (n, 4))
        else:
            y = R.nn.softmax(x)
        z = R.concat((y, x), axis=0)
        return R.split(z, 2, axis=0)[0]

    @R.function
    def count(i: R.Tensor((), "int64"), acc: R.Tensor(("a", "b"), "float32")) -> R.Tensor(("a", "b"), "float32"):
        done = R.less_equal(i, R.const(0, "int64"))
        if done:
            out = acc
        else:
            less = R.subtract(i, R.const(1, "int64"))
            out = R.tanh(Module.count(less, acc))
        return out

    @R.function
    def parts(p: R.Tuple(R.Tensor(("n", 4), "float32"), R.Tuple(R.Shape(["m"]), R.Prim("int64"))), s: R.Prim("bool")):
        n = T.int64()
        m = T.int64()
        x = p[0]
        flat = R.reshape(x, (n * 4,))
        if s:
            r = R.exp(flat)
        else:
            r = R.negative(flat)
        return (r, R.prim_value(7), R.str("text"), R.full((m,), R.const(1.0, "float32"), "float32"))
"""

_CONDITION = """
@R.function
def main(x: R.Tensor(("n",), "float32"), c: R.Tensor((), "bool")) -> R.Tensor(("n",), "float32"):
    if c:
        y = R.exp(x)
    else:
        y = R.negative(x)
    return y
"""

_CLOSURES = """
@I.ir_module
class Module:
    @R.function
    def twice(f: R.Callable((R.Tensor(("n",), "float32"),), R.Tensor(("n",), "float32")),
              x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        y: R.Tensor((n,), "float32") = f(x)
        z: R.Tensor((n,), "float32") = f(y)
        return z

    @R.function
    def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("n",), "float32")):
        n = T.int64()

        @R.function
        def inner(z: R.Tensor((n,), "float32")) -> R.Tensor((n,), "float32"):
            return R.add(R.multiply(z, y), x)

        a = inner(x)
        b: R.Tensor((n,), "float32") = Module.twice(inner, a)
        return (a, (b, inner, R.shape([n, n + 1])))
"""

_LIBRARIES = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 8), "float32"), m: R.Shape(["m"]), k: R.Prim("int64")):
        n = T.int64()
        m = T.int64()
        y = R.call_dps_library("relaxpy.testing.negated", (x,), R.Tensor((n, 8), "float32"))
        u = R.unique(R.flatten(y))
        p = T.int64()
        v = R.match_cast(u, R.Tensor((p,), "float32"))
        w = R.add(v, v)
        s = R.match_cast(x, R.Tensor((m, 8), "float32"))
        t = R.zeros((m, n), "float32")
        return (y, w, R.exp(s), t)
"""

_MEMORY = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", "m"), "float32"), w: R.Tensor(("m", 16), "float32")):
        R.func_attr({"tir_var_upper_bound": {"n": 64, "m": 32}})
        n = T.int64()
        m = T.int64()
        with R.dataflow():
            a = R.matmul(x, w)
            b = R.nn.relu(a)
            c = R.permute_dims(b)
            d = R.matmul(b, c)
            e = R.sum(d, axis=1)
            f = R.astype(e, "float16")
            g = R.take(d, R.arange(0, 3, 1, "int64"), axis=1)
            R.output(f, g)
        return (f, g)
"""

_UPDATES = """
@I.ir_module
class Module:
    @T.prim_func
    def bump(x: T.Buffer(("n",), "float32"), i: T.int64):
        n = T.int64()
        for j in range(n):
            with T.sblock("b"):
                v = T.axis.spatial(n, j)
                x[v] = x[v] + T.float32(1) + T.Cast("float32", i)

    @R.function(pure=False)
    def main(x: R.Tensor(("n",), "float32"), i: R.Prim("int64")) -> R.Tensor(("n",), "float32"):
        cls = Module
        n = T.int64()
        y = R.call_tir_inplace(cls.bump, (x,), [0], R.Tensor((n,), "float32"), tir_vars=R.shape([3]))
        return y
"""

_WEIGHTS = """
@R.function
def main(x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 8), "float32"), b: R.Tensor((8,), "float32"),
         t: R.Tensor((4, 8), "bfloat16")) -> R.Tensor(("n", 8), "float32"):
    y = R.add(R.matmul(x, w), b)
    z = R.add(y, R.sum(R.astype(t, "float32"), axis=0))
    return R.nn.layer_norm(z, b, b, axes=[-1])
"""


@dataclass(frozen=True)
class Sample:
    """An executable file, and the arguments of calls of its functions."""

    name: str
    file: Path
    calls: tuple[tuple[str, tuple[Any, ...]], ...]


def _negated(x: Any, out: Any) -> None:
    """The library function of the corpus."""
    out[...] = -x.numpy()


def write_corpus(folder: Path) -> list[Sample]:
    """Builds the programs and saves them. The files are the same each time."""
    register_library("relaxpy.testing.negated", _negated)
    rng = np.random.default_rng(0)

    def f32(*shape: int) -> np.ndarray[Any, Any]:
        return rng.standard_normal(shape, dtype=np.float32)

    params = {"w": f32(8, 8), "b": f32(8), "t": np.ones((4, 8), ml_dtypes.bfloat16)}
    yes = np.array(True)
    found: list[Sample] = []

    def add(
        name: str,
        text: str,
        calls: Sequence[tuple[str, tuple[Any, ...]]],
        beside: bool = False,
        given: dict[str, Any] | None = None,
        target: str = "llvm",
    ) -> None:
        exe = build(parse(text), target=target, params=given)
        exe.save(folder / f"{name}.rxe", weights="beside" if beside else "inside")
        found.append(Sample(name, folder / f"{name}.rxe", tuple(calls)))

    add("flow", _FLOW, [
        ("main", (f32(3, 4), yes)), ("main", (f32(3, 4), ~yes)), ("count", (np.array(3), f32(2, 2))),
        ("main", (f32(3, 5), yes)), ("count", (np.array(-1), f32(2))), ("main", (f32(0, 4), yes)),
        ("parts", ((f32(2, 4), ((5,), 3)), True)), ("parts", ((f32(2, 4), ((5,), 3)), False)),
        ("parts", ((f32(2, 4), ((5, 5), 3)), False)), ("parts", (f32(2, 4), True)),
    ])  # fmt: skip
    add("closures", _CLOSURES, [
        ("main", (f32(3), f32(3))), ("main", (f32(3), f32(4))), ("twice", (lambda x: x, f32(2))),
        ("twice", (3, f32(2))),
    ])  # fmt: skip
    add("libraries", _LIBRARIES, [
        ("main", (f32(3, 8), (3,), 2)), ("main", (f32(3, 8), (4,), 2)), ("main", (f32(3, 8), 4, "2")),
    ])  # fmt: skip
    add("memory", _MEMORY, [
        ("main", (f32(5, 7), f32(7, 16))), ("main", (f32(64, 32), f32(32, 16))),
        ("main", (f32(65, 32), f32(32, 16))), ("main", (f32(5, 7), f32(6, 16))),
    ])  # fmt: skip
    add(
        "updates",
        _UPDATES,
        [("main", (f32(6), 2)), ("main", (f32(6, 1), 2)), ("main", (f32(6), 2.5))],
    )
    add("weights", _WEIGHTS, [("main", (f32(3, 8),)), ("main", (f32(3, 7),))], True, params)
    two = "llvm -mcpu=x86-64,native" if machine() in ("x86_64", "AMD64") else "llvm"
    add("images", _CONDITION, [
        ("main", (f32(3), yes)), ("main", (f32(0), ~yes)), ("main", (f32(3), f32(1))),
    ], target=two)  # fmt: skip
    exe = _with_a_second_slot(build(parse(_CONDITION), target="llvm"))
    exe.save(folder / "slots.rxe")
    calls = [("main", (f32(3), yes)), ("main", (f32(0), ~yes)), ("main", (f32(3), f32(1)))]
    found.append(Sample("slots", folder / "slots.rxe", tuple(calls)))
    return found


def _with_a_second_slot(exe: Executable) -> Executable:
    """The program with its condition copied to another slot and read from there, and with a kernel in a graph. One
    machine maps both slots to the CPU, which no build produces."""
    main = exe.functions[0]
    at = next(i for i, instr in enumerate(main.code) if isinstance(instr, If))
    branch = expect(If, main.code[at])
    there, here = main.num_regs, main.num_regs + 1
    kernel = next(i for i, instr in enumerate(main.code) if isinstance(instr, Kernel))
    assert at < kernel <= at + branch.then_len
    code = (
        *main.code[:at],
        Copy(branch.loc, there, branch.cond, 1),
        Read(branch.loc, here, there),
        replace(branch, cond=here, then_len=branch.then_len + 1),
        *main.code[at + 1 : kernel],
        Graph(branch.loc, 1, 0),
        *main.code[kernel:],
    )
    changed = replace(main, code=code, num_regs=here + 1)
    return replace(exe, functions=(changed,), slots=(HOST_SLOT, Slot("other", "cpu")))
