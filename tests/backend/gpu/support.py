"""Programs for the tests of launches and threads."""

from __future__ import annotations

import relaxpy
from relaxpy.tir.prim_func import PrimFunc

HEAD = "@I.ir_module\nclass M:\n    @T.prim_func\n"


def program(text: str) -> PrimFunc:
    """The tensor program of a text `def main(…): …`, at any indentation."""
    lines = text.strip("\n").splitlines()
    margin = len(lines[0]) - len(lines[0].lstrip())
    body = "\n".join(f"    {line[margin:]}" for line in lines)
    found = relaxpy.parse(f"{HEAD}{body}\n")["main"]
    assert isinstance(found, PrimFunc)
    return found


def printed(func: object) -> str:
    """A program as its text."""
    return PrimFunc(func).script()


MATMUL = """
    def main(x: T.Buffer(("n", "k"), "float32"), w: T.Buffer(("k", 3), "float32"), y: T.Buffer(("n", 3), "float32")):
        n = T.int64()
        k = T.int64()
        for i, j, l in T.grid(n, 3, k):
            with T.sblock("y"):
                vi, vj, vl = T.axis.remap("SSR", [i, j, l])
                with T.init():
                    y[vi, vj] = T.float32(0)
                y[vi, vj] = y[vi, vj] + x[vi, vl] * w[vl, vj]
"""
TWO = """
    def main(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        total = T.sblock_alloc_buffer((1,), "float32")
        for i in T.serial(n):
            with T.sblock("total"):
                vi = T.axis.reduce(n, i)
                with T.init():
                    total[0] = T.float32(0)
                total[0] = total[0] + x[vi]
        for i in T.serial(n):
            with T.sblock("y"):
                vi = T.axis.spatial(n, i)
                y[vi] = x[vi] / total[0]
"""
ROWS = """
    def main(x: T.Buffer(("n", "m"), "float32"), y: T.Buffer(("n", "m"), "float32")):
        n = T.int64()
        m = T.int64()
        with T.sblock("rows"):
            T.reads(x[0:n, 0:m])
            T.writes(y[0:n, 0:m])
            for row in T.parallel(n):
                turned = T.alloc_buffer((m,), "float32")
                for i in range(m):
                    turned[i] = x[row, m - 1 - i]
                for i in range(m):
                    y[row, i] = turned[i]
"""
SCAN = """
    def main(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in T.serial(n):
            with T.sblock("y"):
                vi = T.axis.spatial(n, i)
                y[vi] = x[vi] + T.if_then_else(vi > 0, y[T.max(vi - 1, 0)], T.float32(0))
"""
