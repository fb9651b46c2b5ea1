"""Cases of instructions: their data types, and the kernels that they launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy.runtime.bytecode import (
    HOST_SLOT,
    Check,
    FunctionCode,
    Heap,
    Instr,
    IntExpr,
    IntOp,
    Location,
    Match,
    ObjectPattern,
    Param,
    Pattern,
    PrimPattern,
    Slot,
    TensorPattern,
)

KERNELS = """
@I.ir_module
class Kernels:
    @T.prim_func
    def add(a: T.Buffer(("n",), "float32"), b: T.Buffer(("n",), "float32"), c: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("c"):
                v = T.axis.spatial(n, i)
                c[v] = a[v] + b[v]

    @T.prim_func
    def double(a: T.Buffer(("n",), "float32"), b: T.Buffer(("n * 2",), "float32")):
        n = T.int64()
        for i in range(n * 2):
            with T.sblock("b"):
                v = T.axis.spatial(n * 2, i)
                b[v] = a[v // 2]

    @T.prim_func
    def count(a: T.Buffer(("n",), "int64"), start: T.int64):
        n = T.int64()
        for i in range(n):
            with T.sblock("a"):
                v = T.axis.spatial(n, i)
                a[v] = v + start

    @T.prim_func
    def increase(a: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("a"):
                v = T.axis.spatial(n, i)
                a[v] = a[v] + T.float32(1)

    @R.function
    def main(x: R.Tensor(("n",), "float32"), s: R.Prim("int64")):
        n = T.int64()
        cls = Kernels
        a = R.call_tir(cls.add, (x, x), out_ty=R.Tensor((n,), "float32"))
        b = R.call_tir(cls.double, (x,), out_ty=R.Tensor((n * 2,), "float32"))
        c = R.call_tir(cls.count, (), out_ty=R.Tensor((n,), "int64"), tir_vars=R.shape([3]))
        d = R.call_tir_inplace(cls.increase, (x,), [0], R.Tensor((n,), "float32"))
        return (a, b, c, d)
"""
"""The kernels of the cases, as the tensor programs that they are compiled from."""
NAMES = ("add", "double", "count", "increase")
"""The names of the kernels by index."""
ADD, DOUBLE, COUNT, INCREASE = range(4)
LIBRARIES = {"suite.negate": "(x, out): out[i] = -x[i], for tensors of float32 of one shape"}
"""The library functions of the cases."""


@dataclass(frozen=True)
class Run:
    """A call of `main` and its expected outcome."""

    args: Sequence[Any]
    result: Any = None
    error: str = ""
    """The error code; "" for none."""
    after: Sequence[Any] | None = None
    """The arguments after the call, if it updates them."""


@dataclass(frozen=True)
class Case:
    """An executable and calls of its function `main`."""

    name: str
    functions: tuple[FunctionCode, ...]
    runs: tuple[Run, ...] = ()
    constants: tuple[np.ndarray, ...] = ()
    packed: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    slots: tuple[Slot, ...] = (HOST_SLOT,)
    refused: str = ""
    """The error code with which the file is rejected; "" for a valid file."""


def function(
    params: Sequence[Pattern],
    body: Sequence[Instr],
    *,
    name: str = "main",
    regs: int = 12,
    heap: Sequence[int] = (0, 0, 0, 0),
    storages: Sequence[IntExpr] = (),
    checks: Sequence[Check] = (),
    updated: Sequence[int] = (),
) -> FunctionCode:
    """A function that matches its parameters. `checks` are appended to the checks of the parameters."""
    names = [f"p{i}" for i in range(len(params))]
    own = [Check("parameter", each, "R.Object") for each in names]
    return FunctionCode(
        name=name,
        params=tuple(Param(each, "R.Object", i in updated) for i, each in enumerate(names)),
        ret="R.Object",
        num_regs=regs,
        heap_init=tuple(heap),
        storages=tuple(storages),
        code=(*(Match(0, i, pattern, i) for i, pattern in enumerate(params)), *body),
        checks=(*own, *checks),
        locations=(Location("lv", "model.py", 10, 4),),
    )


N, M = Heap(0), Heap(1)
ANY = ObjectPattern()
INT = PrimPattern("int64")
BOOL = TensorPattern((), 0, "bool")
VECTOR = TensorPattern((N,), 1, "float32")
OTHER = TensorPattern((M,), 1, "float32")


def f32(*items: float) -> np.ndarray:
    return np.array(items, np.float32)


def i64(*items: int) -> np.ndarray:
    return np.array(items, np.int64)


def op(name: str, *args: IntExpr) -> IntOp:
    return IntOp(name, args)


def case(
    name: str, params: Sequence[Pattern], body: Sequence[Instr], *runs: Run, **more: Any
) -> Case:
    """A case with one function. `more` are options of the function or of the case."""
    fields = ("constants", "packed", "libraries", "slots", "refused")
    own = {key: value for key, value in more.items() if key in fields}
    rest = {key: value for key, value in more.items() if key not in fields}
    return Case(name, (function(params, body, **rest),), runs, **own)
