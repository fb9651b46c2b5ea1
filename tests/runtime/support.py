"""What the runtime's tests share: kernels compiled once, and executables written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from relaxpy.runtime import Executable
from relaxpy.runtime.bytecode import (
    Check,
    FunctionCode,
    Heap,
    Instr,
    IntExpr,
    IntOp,
    KernelImage,
    KernelInfo,
    Location,
    Match,
    Param,
    Pattern,
    Requirement,
    TensorPattern,
)

ADD1, ADD, BF16_COPY, HEAVY, IOTA, MATMUL = range(6)
"""Kernels of `KERNELS`, by index."""

KERNELS = (
    KernelInfo("add1", (KernelImage("add1", "add1_serial"),)),
    KernelInfo("add", (KernelImage("add", "add"),)),
    KernelInfo("bf16_copy", (KernelImage("bf16_copy", "bf16_copy"),)),
    KernelInfo("heavy", (KernelImage("heavy", "heavy_serial"),)),
    KernelInfo("iota", (KernelImage("iota", "iota"),)),
    KernelInfo("matmul", (KernelImage("matmul", "matmul_serial"),)),
)


def _programs() -> dict[str, Any]:
    import tvm
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def add1(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        for i in range(n):
            with T.sblock("B"):
                v = T.axis.spatial(n, i)
                B[v] = A[v] + T.float32(1)

    @T.prim_func(s_tir=True)
    def add(a: T.handle, b: T.handle, c: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        C = T.match_buffer(c, (n,), "float32")
        for i in range(n):
            with T.sblock("C"):
                v = T.axis.spatial(n, i)
                C[v] = A[v] + B[v]

    @T.prim_func(s_tir=True)
    def bf16_copy(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,), "bfloat16")
        B = T.match_buffer(b, (n,), "bfloat16")
        for i in range(n):
            with T.sblock("B"):
                v = T.axis.spatial(n, i)
                B[v] = A[v]

    @T.prim_func(s_tir=True)
    def heavy(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        for i in range(n):
            with T.sblock("B"):
                v = T.axis.spatial(n, i)
                B[v] = T.exp(T.exp(T.exp(A[v])))

    @T.prim_func(s_tir=True)
    def iota(b: T.handle, start: T.int64):
        n = T.int64()
        B = T.match_buffer(b, (n,), "int64")
        for i in range(n):
            with T.sblock("B"):
                v = T.axis.spatial(n, i)
                B[v] = v + start

    @T.prim_func(s_tir=True)
    def matmul(a: T.handle, b: T.handle, c: T.handle):
        n, m, k = T.int64(), T.int64(), T.int64()
        A = T.match_buffer(a, (n, k), "float32")
        B = T.match_buffer(b, (k, m), "float32")
        C = T.match_buffer(c, (n, m), "float32")
        for i, j, p in T.grid(n, m, k):
            with T.sblock("C"):
                vi, vj, vp = T.axis.remap("SSR", [i, j, p])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + A[vi, vp] * B[vp, vj]

    def parallel(func: Any, block: str) -> Any:
        schedule = tvm.s_tir.Schedule(func)
        loop = schedule.get_loops(schedule.get_sblock(block))[0]
        outer, _ = schedule.split(loop, [None, 64 if block == "B" else 1])
        schedule.parallel(outer)
        return schedule.mod["main"]

    return {
        "add1": parallel(add1, "B"),
        "add1_serial": add1,
        "add": add,
        "bf16_copy": bf16_copy,
        "heavy": parallel(heavy, "B"),
        "heavy_serial": heavy,
        "iota": iota,
        "matmul": parallel(matmul, "C"),
        "matmul_serial": matmul,
    }


@cache
def object_code() -> bytes:
    """The object with all kernels, for this machine."""
    from relaxpy.backend.cpu.compile import compile_object
    from relaxpy.target import Target

    # Bytecode written by hand may hand kernels anything.
    return compile_object(_programs(), Target.host(), check_arguments=True)


def f32(*shape: None | int | Heap) -> TensorPattern:
    """A float32 tensor whose dimensions are bound, fixed or free."""
    return TensorPattern(shape, len(shape), "float32")


def times(slot: int, factor: int) -> IntOp:
    return IntOp("mul", (Heap(slot), factor))


def function(
    name: str,
    params: Sequence[tuple[str, Pattern]],
    body: Sequence[Instr],
    *,
    regs: int = 16,
    heap: Sequence[int] = (0, 0, 0, 0),
    storages: Sequence[IntExpr] = (),
    checks: Sequence[Check] = (),
    public: bool = True,
) -> FunctionCode:
    """A function that matches its parameters first; its checks follow those of the parameters."""
    symbols = tuple((f"n{i}", i) for i in range(len(heap)))
    own = [
        Check("parameter", param, f"annotation of {param}", symbols=symbols) for param, _ in params
    ]
    matches = [Match(0, i, pattern, i) for i, (_, pattern) in enumerate(params)]
    return FunctionCode(
        name=name,
        params=tuple(Param(param, f"annotation of {param}") for param, _ in params),
        ret="R.Object",
        num_regs=regs,
        heap_init=tuple(heap),
        storages=tuple(storages),
        code=(*matches, *body),
        checks=(*own, *checks),
        locations=tuple(Location(f"lv{i}", "model.py", 10 + i, 4) for i in range(8)),
        public=public,
    )


def executable(*functions: FunctionCode, **fields: Any) -> Executable:
    """An executable of these functions with all test kernels."""
    from relaxpy.target import Target

    needs = Requirement(*Target.host().requirement())
    fields = {"kernels": KERNELS, "target": {"kind": "llvm"}, "requirements": (needs,), **fields}
    return Executable(functions, objects=(object_code(),), **fields)


def floats(*values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(values, np.float32)
