"""Buffers of blocks shrink to what is used of them, but where the analysis would write out long values of names."""

from __future__ import annotations

import time
from typing import Any

import pytest

import relaxpy
from relaxpy.tir.lowering.compact import compact_buffers
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.tvm import s_tir, tvm
from relaxpy.tir.walk import walk


def sizes(names: int) -> list[list[int]]:
    """The sizes of the buffers that a program with a chain of so many names allocates, after the pass."""
    chain = "\n".join(
        f"                a{i}: T.let[T.int64] = (a{i - 1} + a{i - 1} // 2) % 64"
        for i in range(1, names + 1)
    )
    mod = relaxpy.parse(f"""
@T.prim_func
def f(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    own = T.sblock_alloc_buffer((64,))
    for i in range(64):
        with T.sblock("own"):
                v = T.axis.spatial(64, i)
                a0: T.let[T.int64] = v
{chain}
                own[v] = x[T.max(T.min(a{names}, 63), 0)]
        with T.sblock("y"):
            v = T.axis.spatial(64, i)
            y[v] = own[v] * T.float32(2)
""")
    func = mod["f"]
    assert isinstance(func, PrimFunc)
    lowered: Any = tvm.IRModule({"f": func.func.with_attr("s_tir", True)})
    before = [
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
    ]
    lowered = tvm.transform.Sequential([*before, compact_buffers])(lowered)
    found: list[list[int]] = []

    def note(block: Any) -> None:
        found.extend([int(size) for size in each.shape] for each in block.alloc_buffers)

    walk(lowered["f"].body, (s_tir.SBlock, note))
    return found


@pytest.mark.parametrize(("names", "size"), [(0, 1), (2, 1), (40, 64)])
def test_buffers(names: int, size: int) -> None:
    began = time.process_time()
    assert sizes(names) == [[size]]
    assert time.process_time() - began < 10
