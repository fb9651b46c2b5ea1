"""Tuples in tuples: out of dataflow blocks and branches, into functions, returned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.ir.structural import assert_structural_equal
from relaxpy.testing.interpret import interpret
from tests.sweeps import sweep

SOURCE = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("m",), "float32")):
        n = T.int64()
        cls = Module
        {body}

    @R.function(private={private})
    def g(x: R.Tensor(("n",), "float32")):
        with R.dataflow():
            a = R.negative(x)
            b = R.add(a, x)
            c = R.sum(b)
            t = ((a, b), (c, (x,)))
            R.output(t)
        return t
"""
BLOCK = """with R.dataflow():
            a = R.negative(x)
            b = R.add(a, x)
            {}
            R.output({})
        """
BODIES = {
    "tuples only": BLOCK.format("t = ((a, b), (a, x))", "t") + "return t",
    "deep": BLOCK.format("t = (((a,), ((b, a),)), ((y,),))", "t") + "return t",
    "a list": BLOCK.format("t = [[a, b], (a, [x, y])]", "t") + "return t",
    "empty inside": BLOCK.format("t = ((a, R.tuple()), (R.tuple(),))", "t") + "return t",
    "of parameters": BLOCK.format("t = ((x, x), (y,))", "t") + "return t",
    "the same one": BLOCK.format("t = ((a, a), (a, (a, a)))", "t") + "return t",
    "shapes and constants": BLOCK.format(
        "t = ((R.shape([n, 2]), R.prim_value(n)), (R.const(1.0, 'float32'), a))", "t"
    )
    + "return t",
    "taken apart": BLOCK.format("t = ((a, b), (a, x))\n            u = t[1]", "t, u")
    + "v = R.add(u[0], t[0][1])\n        return (v, (u, t))",
    "taken apart inside": BLOCK.format(
        "t = ((a, b), (a, x))\n            u = t[1]\n            w = u[1]", "w"
    )
    + "return w",
    "two blocks": BLOCK.format("t = ((a, b), (a, x))", "t")
    + "with R.dataflow():\n            u = ((t, t[0]), (t[1][0],))\n            R.output(u)\n        return (u, u[0])",
    "parts": BLOCK.format("p, q = (a, b), (b, x)\n            t = ((p, q), (q,))", "t, p")
    + "return (t, p)",
    "split": BLOCK.format(
        "s = R.split(R.concat((x, x), axis=0), 2, axis=0)\n            t = ((s, a), (s[0], s))", "t"
    )
    + "return t",
    "a function": BLOCK.format("t = cls.g(x)\n            u = ((t, t), (x, t[1]))", "u")
    + "return u",
    "a local function": """@R.function
        def inner(t: R.Tuple(R.Tuple(R.Tensor(("k",), "float32")), R.Tuple(R.Tensor(("k",), "float32")))):
            with R.dataflow():
                a = R.add(t[0][0], t[1][0])
                r = ((a, t[0]), t)
                R.output(r)
            return r
        """
    + BLOCK.format("t = ((a,), (b,))", "t")
    + "z = inner(t)\n        return z",
    "branches": BLOCK.format(
        "t = ((a, b), (a, x))\n            c = R.sum(x) > R.const(1.0, 'float32')", "t, c"
    )
    + """if c:
            with R.dataflow():
                d = R.add(t[0][0], x)
                r = ((d, x), (d, t[1][1]))
                R.output(r)
            q = r
        else:
            q = t
        z = R.add(q[0][0], q[1][0])
        return (z, q)""",
    "a cast": BLOCK.format("t = ((a, b), (a, x))", "t")
    + """u = R.match_cast(t, R.Tuple(R.Tuple(R.Tensor(("k",), "float32"), R.Tensor(("k",), "float32")),
            R.Tuple(R.Tensor(("k",), "float32"), R.Tensor(("k",), "float32"))))
        return u""",
}


def leaves(value: Any) -> Any:
    """The values in a result, nested as they are."""
    if isinstance(value, (tuple, list)):
        return [leaves(item) for item in value]
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value).tolist()


@sweep(3)
@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("body", BODIES)
def test_tuples_in_tuples(body: str, private: bool) -> None:
    mod = relaxpy.parse(SOURCE.format(body=BODIES[body], private=private))
    assert_structural_equal(mod, relaxpy.parse(mod.script()))
    run = relaxpy.VirtualMachine(relaxpy.build(mod))["main"]
    for n in (4, 1, 0):
        x, y = np.arange(n, dtype=np.float32), np.ones(2, np.float32)
        assert leaves(run(x, y)) == leaves(interpret(mod, "main", x, y))


def test_tuples_of_python_stay_python() -> None:
    """What holds no values of the program is read with it: pads, shapes."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor((2, "n"), "float32")):
    n = T.int64()
    shape = (n, 2)
    nested = ((n, 2), (1, (2, n)))
    return R.permute_dims(R.reshape(x, nested[1][1]), axes=(nested[0][1] - 1, 0))
""")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    got = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](x)
    np.testing.assert_array_equal(got.numpy(), x.T)
