"""CheckTensorPrograms: users' tensor programs do no harm."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import RuntimeCheckError
from relaxpy.ir.module import CHECK_INDICES, IRModule
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise.pattern_kind import PatternKind, pattern_kind
from relaxpy.transform import CheckTensorPrograms, LegalizeOps

GATHER = """
@I.ir_module
class M:
    @T.prim_func
    def gather(x: T.Buffer(("n",), "float32"), i: T.Buffer(("m",), "int64"), y: T.Buffer(("m",), "float32")):
        n, m = T.int64(), T.int64()
        for k in range(m):
            with T.sblock("y"):
                v = T.axis.spatial(m, k)
                y[v] = x[i[v]]

    @R.function
    def main(x: R.Tensor(("n",), "float32"), i: R.Tensor(("m",), "int64")):
        n, m = T.int64(), T.int64()
        with R.dataflow():
            a = R.exp(x)
            b = R.call_tir(M.gather, (a, i), out_ty=R.Tensor((m,), "float32"))
            c = R.negative(b)
            R.output(c)
        return c
"""


def test_example() -> None:
    check_example(CheckTensorPrograms())


def program(mod: IRModule, name: str) -> PrimFunc:
    found = mod[name]
    assert isinstance(found, PrimFunc)
    return found


def test_a_checked_program_is_fused_with_nothing() -> None:
    """Its checks look at what it is given; where a fusion of the user's own takes it all the same, they stay."""
    mod = CheckTensorPrograms()(relaxpy.parse(GATHER))
    assert pattern_kind(program(mod, "gather")) is PatternKind.OPAQUE
    assert pattern_kind(program(relaxpy.parse(GATHER), "gather")) is PatternKind.INJECTIVE


def test_the_mark_is_printed_and_read() -> None:
    once = CheckTensorPrograms()(relaxpy.parse(GATHER))
    again = relaxpy.parse(once.script())
    assert program(again, "gather").attrs[CHECK_INDICES] == "gather"
    assert CheckTensorPrograms()(again) is again


@pytest.mark.parametrize("checked", [True, False])
def test_every_build_checks(checked: bool) -> None:
    """A pipeline without the pass, too."""
    mod = relaxpy.parse(GATHER)
    passes = default_pipeline() if checked else default_pipeline(without=["check-tensor-programs"])
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, pipeline=passes))
    x = np.arange(4, dtype=np.float32)
    got = vm["main"](x, np.array([3, 0])).numpy()
    np.testing.assert_allclose(got, interpret(mod, "main", x, np.array([3, 0])), rtol=1e-6)
    for wrong in (4, -1):
        with pytest.raises(RuntimeCheckError) as compiled:
            vm["main"](x, np.array([0, wrong]))
        with pytest.raises(RuntimeCheckError) as interpreted:
            interpret(mod, "main", x, np.array([0, wrong]))
        assert str(compiled.value.message) == str(interpreted.value.message)
        assert f"gather: index {wrong} is out of bounds for dimension 0 of x, of extent 4" in str(
            compiled.value
        )


def test_operators_are_proved() -> None:
    """The programs of operators, read from a text, need no checks."""
    text = """
@I.ir_module
class M:
    @R.function
    def main(x: R.Tensor(("n", 8, "m"), "float32"), w: R.Tensor(("m", 16), "float32"), i: R.Tensor(("k",), "int64")):
        a = R.matmul(x, w)
        b = R.nn.softmax(a)
        c = R.permute_dims(b, [1, 0, 2])
        d = R.concat((c, c), axis=1)
        e = R.mean(d, axis=[0])
        f = R.nn.layer_norm(e, R.ones((16,), "float32"), R.zeros((16,), "float32"), axes=[-1])
        g = R.strided_slice(x, [1], [1], [7], [2])
        h = R.nn.pad(x, [1, 1, 2, 2, 0, 3])
        return f, g, h
"""
    mod = LegalizeOps()(relaxpy.transform.Normalize()(relaxpy.parse(text)))
    checked = CheckTensorPrograms()(mod)
    assert checked is mod


def test_an_error_is_an_effect() -> None:
    """A call whose result nothing uses stays where it may end the program; of constants it is no error of the build."""
    text = GATHER.replace("R.negative(b)", "R.negative(a)")
    vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(text)))
    x = np.arange(4, dtype=np.float32)
    assert vm["main"](x, np.array([3, 0])).shape == (4,)
    with pytest.raises(RuntimeCheckError, match="index 9 is out of bounds"):
        vm["main"](x, np.array([9]))


def test_constants_out_of_range_are_no_error_of_the_build() -> None:
    text = """
@I.ir_module
class M:
    @T.prim_func
    def f(i: T.Buffer((2,), "int64"), y: T.Buffer((2,), "int64")):
        for k in range(2):
            with T.sblock("y"):
                v = T.axis.spatial(2, k)
                y[v] = i[i[v]]

    @R.function
    def main():
        a = R.const([1, 7], "int64")
        b = R.call_tir(M.f, (a,), out_ty=R.Tensor((2,), "int64"))
        return b
"""
    vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(text)))
    with pytest.raises(
        RuntimeCheckError, match="f: index 7 is out of bounds for dimension 0 of i, of extent 2"
    ):
        vm["main"]()


IN_PLACE = {
    "prefix": (
        "x[v] = T.if_then_else(v > 0, x[v - 1], T.float32(0)) + y[v]",
        "x, y",
        [5, 11, 18, 26],
    ),
    "reversed": ("x[v] = x[n - 1 - v] + y[v]", "x, y", [9, 9, 16, 17]),
    "of itself": ("x[v] = x[v] + y[n - 1 - v]", "x, x", [5, 5, 5, 5]),
    "outside": ("x[v] = x[v + 1] + y[v]", "x, y", None),
}


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("pure", [True, False])
def test_in_place(name: str, pure: bool) -> None:
    """Iterations that need each other's results run in order; where an index is outside, nothing is written."""
    statement, args, expected = IN_PLACE[name]
    mod = relaxpy.parse(f"""
@I.ir_module
class M:
    @T.prim_func
    def f(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("b"):
                v = T.axis.spatial(n, i)
                {statement}

    @R.function(pure={pure})
    def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("n",), "float32")):
        n = T.int64()
        z = R.call_tir_inplace(M.f, ({args}), inplace_indices=[0], out_ty=R.Tensor((n,), "float32"))
        return z
""")
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    x, y = np.array([1, 2, 3, 4], np.float32), np.array([5, 6, 7, 8], np.float32)
    if expected is None:
        with pytest.raises(
            RuntimeCheckError, match="main: f: index 4 is out of bounds for dimension 0 of x"
        ):
            vm["main"](x, y)
        assert x.tolist() == [1, 2, 3, 4]
        return
    assert interpret(mod, "main", x.copy(), y).tolist() == expected
    assert vm["main"](x, y).numpy().tolist() == expected
