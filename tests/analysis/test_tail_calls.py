"""Which calls end a function."""

from __future__ import annotations

import relaxpy
from relaxpy.analysis.tail_calls import tail_calls

TEXT = """
@I.ir_module
class Module:
    @R.function
    def main(c: R.Tensor((), "bool"), x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
        cls = Module
        first = cls.main(c, x)
        if c:
            again = cls.main(c, first)
            r = again
        else:
            if c:
                inner = cls.main(c, x)
                s = R.negative(inner)
            else:
                last = cls.main(c, x)
                s = last
            r = s
        out = r
        return out

    @R.function
    def pair(c: R.Tensor((), "bool"), x: R.Tensor((3,), "float32")):
        cls = Module
        y = cls.main(c, x)
        return (y, y)

    @R.function
    def cast(c: R.Tensor((), "bool"), x: R.Tensor((3,), "float32"), k: R.Shape(["k"])):
        k = T.int64()
        cls = Module
        y = cls.main(c, x)
        z = R.match_cast(y, R.Tensor((k,), "float32"))
        return z
"""


def test_calls_and_the_names_of_their_results() -> None:
    mod = relaxpy.parse(TEXT)
    found = tail_calls(mod.graph_function("main"))
    names = [[binding.var.name for binding in bindings] for bindings in found.values()]
    assert sorted(names) == [["again", "r", "out"], ["last", "s", "r", "out"]] or sorted(names) == [
        ["again", "r"],
        ["last", "s", "r"],
    ]


def test_what_is_used_or_checked_is_no_tail_call() -> None:
    mod = relaxpy.parse(TEXT)
    assert tail_calls(mod.graph_function("pair")) == {}
    assert tail_calls(mod.graph_function("cast")) == {}
