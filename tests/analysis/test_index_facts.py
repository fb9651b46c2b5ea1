"""What is known where a statement stands."""

from __future__ import annotations

import relaxpy
from relaxpy.analysis.index_facts import Facts
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.loops import int64
from relaxpy.tir.tvm import tirx


def test_facts_hold_inside_only() -> None:
    found = relaxpy.parse("""
@I.ir_module
class M:
    @T.prim_func
    def f(x: T.Buffer(("n", "m"), "float32"), k: T.int64):
        n, m = T.int64(), T.int64()
        for i in range(n):
            x[i, 0] = T.float32(0)
""")["f"]
    assert isinstance(found, PrimFunc)
    func = found.func
    facts = Facts(func)
    n, m = func.params[0].shape
    k = func.params[1]
    assert not facts.is_within(k, int64(0), n)
    with facts.where(tirx.all(k >= int64(0), k < n)):
        assert facts.is_within(k, int64(0), n)
    assert not facts.is_within(k, int64(0), n)
    assert not facts.at_most(int64(1), n)
    loop = func.body
    while not isinstance(loop, tirx.For):
        loop = loop.block.body
    with facts.loop(loop):
        assert facts.at_most(int64(1), n)  # it runs
        assert facts.is_within(loop.loop_var * m + m - 1, int64(-1), n * m + 1)
    assert not facts.at_most(int64(1), n)
