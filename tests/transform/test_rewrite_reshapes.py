"""RewriteReshapes: what becomes a view, and what must be copied."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.build.pipeline import default_pipeline
from relaxpy.ir.module import IRModule
from relaxpy.target import Target
from relaxpy.testing.before_after import check_example
from relaxpy.testing.differential import Call, Ways, check
from relaxpy.transform import RewriteReshapes

QUICK = "llvm -opt-level=0"
PROGRAMS = """
    @T.prim_func(private=True)
    def flatten(x: T.Buffer(("n", 4), "float32"), y: T.Buffer(("n * 4",), "float32")):
        n = T.int64()
        for i in range(n * 4):
            with T.sblock("y"):
                vi = T.axis.spatial(n * 4, i)
                y[vi] = x[vi // 4, vi % 4]

    @T.prim_func(private=True)
    def exp(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("y"):
                vi = T.axis.spatial(n, i)
                y[vi] = T.exp(x[vi])

    @T.prim_func(private=True)
    def double(x: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("x"):
                vi = T.axis.spatial(n, i)
                x[vi] = x[vi] * T.float32(2)
"""


def lowered(body: str, pure: bool = True) -> IRModule:
    """A lowered function of x (n, 4)."""
    text = f"@I.ir_module\nclass Module:\n{PROGRAMS}\n    @R.function(pure={pure})\n"
    text += '    def main(x: R.Tensor(("n", 4), "float32")):\n        n = T.int64()\n        cls = Module\n'
    text += '        flat = R.memory.alloc_tensor(R.shape([n * 4]), dtype="float32")\n'
    return relaxpy.parse(text + "".join(f"        {line}\n" for line in body.splitlines()))


EXP = """y = R.memory.alloc_tensor(R.shape([n * 4]), dtype="float32")
_1 = R.vm.call_dps(cls.exp, flat, y)
"""


def views(mod: IRModule) -> int:
    return RewriteReshapes()(mod).script().count("R.memory.view(")


def test_example() -> None:
    check_example(RewriteReshapes())


def test_a_view_of_a_parameter() -> None:
    mod = lowered("_ = R.vm.call_dps(cls.flatten, x, flat)\n" + EXP + "return y")
    after = RewriteReshapes()(mod)
    assert (
        'flat: R.Tensor((n * 4,), dtype="float32") = R.memory.view(x, R.shape([n * 4]), dtype="float32")'
        in after.script()
    )
    assert "cls.flatten" not in after.script()
    assert RewriteReshapes()(after) is after
    for n in (0, 1, 5):
        args = [np.random.default_rng(n).random((n, 4), np.float32)]
        assert Call(mod, "main", args).disagreement(Call(mod, "main", args).run(after)) == ""


@pytest.mark.parametrize(
    ("body", "pure"),
    [
        ("_ = R.vm.call_dps(cls.flatten, x, flat)\nreturn flat", True),
        ("_ = R.vm.call_dps(cls.flatten, x, flat)\nt = (flat, x)\nreturn t", True),
        ("_ = R.vm.call_dps(cls.flatten, x, flat)\n_2 = R.vm.call_dps(cls.double, flat)\n" + EXP + "return y", True),
        ("_ = R.vm.call_dps(cls.flatten, x, flat)\n_2 = R.vm.call_dps(\"lib\", x)\n" + EXP + "return y", False),
        ("_ = R.vm.call_dps(cls.flatten, x, flat)\n_2 = R.print(x)\n_3 = R.call_packed(\"f\", x)\n" + EXP + "return y", False),
    ],
    ids=["returned", "in a tuple", "written again", "a library may write it", "Python may write it"],
)  # fmt: skip
def test_what_stays_a_copy(body: str, pure: bool) -> None:
    assert views(lowered(body, pure)) == 0


PROGRAM = """
@R.function
def main(x: R.Tensor(("n", 4), "float32"), y: R.Tensor(("n", 4), "float32")):
    n = T.int64()
    a = R.reshape(x, (n * 2, 2))
    b = R.cumsum(a, axis=1)
    c = R.reshape(b, (n, 4))
    d = R.cumsum(c, axis=0)
    e = R.reshape(d, (2, n * 2))
    return (d, e, R.flatten(y))
"""


def test_in_a_build() -> None:
    """Of four reshapes two are views; what leaves the function is memory of its own."""
    mod = relaxpy.parse(PROGRAM)
    names = [k.name for k in relaxpy.build(mod, QUICK).kernels]
    apart = default_pipeline(without=["rewrite-reshapes"])
    assert len([k for k in relaxpy.build(mod, QUICK, pipeline=apart).kernels]) > len(names)
    calls = [
        Call(mod, "main", [np.random.default_rng(i).random((n, 4), np.float32) for i in (0, 1)])
        for n in (0, 1, 7)
    ]
    assert check(calls, Ways(Target.parse(QUICK), fresh_process=False)) == []


def test_what_is_returned_does_not_change() -> None:
    """The caller may write to what it gave and to what it got."""
    vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(PROGRAM), QUICK))
    x = np.ones((3, 4), np.float32)
    d, e, flat = vm["main"](x, x)
    d.numpy()[:] = 9
    x[:] = 7
    assert e.numpy().max() == 6
    np.testing.assert_array_equal(flat.numpy(), np.ones(12))
