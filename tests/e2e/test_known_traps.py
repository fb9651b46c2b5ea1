"""Where graph compilers with symbolic shapes have gone wrong: one small program for each trap, through the whole default
pipeline. After every pass the module is verified, printed, parsed and interpreted; its kernels and its executable run."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

import relaxpy
from relaxpy.build.pipeline import default_pipeline
from relaxpy.ir.module import IRModule
from relaxpy.target import Target
from relaxpy.testing.differential import Call, Ways, check
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise.pattern_kind import PatternKind, pattern_kind
from relaxpy.transform.base import PassContext
from tests.sweeps import sweep

QUICK = Target.parse("llvm -opt-level=0")


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def same(mod: IRModule, *calls: list[np.ndarray]) -> None:
    """Every way to run `main` agrees with the interpreter, for all these arguments."""
    assert (
        check([Call(mod, "main", args) for args in calls], Ways(QUICK, fresh_process=False)) == []
    )


def after(mod: IRModule, name: str) -> IRModule:
    """The module behind the last run of a pass of the default pipeline."""
    seen: dict[str, IRModule] = {}
    context = PassContext(
        QUICK, instruments=[lambda _, step, __, new: seen.update({step.name: new})]
    )
    default_pipeline().run(mod, context)
    return seen[name]


def test_a_symbolic_reshape_through_a_shape_tensor() -> None:
    """The shape goes through a tensor, is cut and joined there, and comes back: n stays n."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 4, 6), "float32")):
    t = R.shape_to_tensor(R.shape_of(x))
    n = R.strided_slice(t, axes=[0], begin=[0], end=[1])
    rest = R.multiply(R.strided_slice(t, axes=[0], begin=[1], end=[2]), R.const([6], "int64"))
    y = R.reshape(x, R.tensor_to_shape(R.concat((n, rest))))
    return R.exp(y)
""")
    folded = after(mod, "fold-constant").script()
    assert "R.tensor_to_shape" not in folded
    assert re.search(r"R.Tensor\(\(n, 24\).* = R.reshape\(x, R.shape\(\[n, 24\]\)\)", folded)
    same(mod, [floats(0, 4, 6)], [floats(1, 4, 6)], [floats(5, 4, 6)])


def test_fusion_across_a_symbol_that_is_defined_in_between() -> None:
    """m has no value before the match_cast: nothing of that size is computed ahead of it, and a wrong size is refused."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(dtype="float32", ndim=1)):
    n = T.int64()
    m = T.int64()
    with R.dataflow():
        a = R.exp(x)
        b = R.match_cast(y, R.Tensor((m,), "float32"))
        c = R.negative(b)
        d = R.add(R.sum(c), a)
        e = R.add(d, R.full((n,), R.const(1.0), "float32"))
        f = R.match_cast(c, R.Tensor((n,), "float32"))
        g = R.multiply(e, f)
        R.output(g)
    return g
""")
    same(
        mod,
        [floats(0), floats(0)],
        [floats(1), floats(1)],
        [floats(5), floats(5)],
        [floats(5), floats(4)],
    )


def test_two_outputs_of_one_group_with_different_shapes() -> None:
    """One is a row longer than the other: they are no group with one loop, and both are right."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", "m"), "float32"), y: R.Tensor((1, "m"), "float32")):
    with R.dataflow():
        a = R.exp(x)
        b = R.concat((a, y), axis=0)
        c = R.negative(a)
        d = R.tanh(b)
        R.output(c, d)
    return (c, d)
""")
    sizes = ((0, 0), (0, 3), (1, 1), (4, 3))
    same(mod, *([floats(n, m), floats(1, m)] for n, m in sizes))


@pytest.mark.parametrize(
    "body",
    [
        "y = R.nn.softmax(R.cumsum(R.permute_dims(x), axis=1))",
        "y = R.max(R.add(x, R.sum(x, axis=0)), axis=[1])",
        "y = R.reshape(R.concat((x, R.exp(x)), axis=1), (m * 2, n))",
        "y = R.mean(R.nn.relu(R.broadcast_to(R.expand_dims(x, 0), (3, n, m))), axis=[0])",
    ],
)
def test_sizes_of_zero_and_one(body: str) -> None:
    mod = relaxpy.parse(f"""
@R.function
def main(x: R.Tensor(("n", "m"), "float32")):
    n, m = T.int64(), T.int64()
    {body}
    return y
""")
    least = 1 if "R.max" in body else 0  # there is no greatest of no numbers
    sizes = itertools.product((0, 1, 2), (least, 1, 5))
    same(mod, *([floats(n, m)] for n, m in sizes))


def test_a_tuple_that_escapes() -> None:
    """A tuple keeps what is fused around it: its fields are returned, once by name and once inside."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n",), "float32")):
    with R.dataflow():
        a = R.exp(x)
        b = R.negative(a)
        t = (a, (b, a))
        inner = t[1]
        c = R.add(inner[0], inner[1])
        R.output(t, c)
    return (t, c)
""")
    same(mod, [floats(0)], [floats(1)], [floats(7)])
    machine = relaxpy.VirtualMachine(relaxpy.build(mod, QUICK))
    (a, (b, _)), c = machine["main"](floats(7))
    b.numpy()[:] = 0
    want = np.exp(floats(7))
    np.testing.assert_allclose(a.numpy(), want, rtol=1e-6)
    np.testing.assert_allclose(c.numpy(), 0 * want, atol=1e-6)


def test_a_value_used_by_a_nested_function() -> None:
    """What a closure captured is needed until the closure is called, and its symbol with it."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
    n = T.int64()
    a = R.exp(x)
    b = R.add(a, a)

    @R.function
    def inner(y: R.Tensor((n, 4), "float32")) -> R.Tensor((n, 4), "float32"):
        z = R.multiply(y, a)
        zeros = R.zeros((n, 4), "float32")
        return R.subtract(z, zeros)

    c = inner(b)
    d = inner(R.negative(c))
    return d
""")
    same(mod, [floats(0, 4)], [floats(1, 4)], [floats(6, 4)])


IN_PLACE = """
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def accumulate(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("x"):
                vi = T.axis.spatial(n, i)
                x[vi] = x[vi] + y[vi]

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        cls = Module
        with R.dataflow():
            a = R.exp(x)
            b = {alias}
            c = R.call_tir_inplace(cls.accumulate, (a, {other}), inplace_indices=[0], out_ty=R.Tensor((n,), "float32"))
            d = R.add(c, {later})
            R.output(d)
        return d
"""


@sweep(3)
@pytest.mark.parametrize("alias", ["a", "R.negative(a)", "R.reshape(a, (n,))"])
@pytest.mark.parametrize("other", ["x", "a", "b"])
@pytest.mark.parametrize("later", ["x", "a", "b", "c"])
def test_arguments_in_place_under_two_names(alias: str, other: str, later: str) -> None:
    """The call may write over `a` only where nobody, under any name, looks at it afterwards, or while it runs."""
    mod = relaxpy.parse(IN_PLACE.format(alias=alias, other=other, later=later))
    calls = [Call(mod, "main", [floats(n)]) for n in (0, 1, 6)]
    ways = Ways(QUICK, print_passes=False, fresh_process=False)
    assert check(calls, ways) == []


READS = ("A[vi, vj]", "B[vj, vi]", "C[vj]")


@pytest.mark.parametrize("order", list(itertools.permutations(READS)))
def test_reads_in_every_order(order: tuple[str, ...]) -> None:
    """Algorithm 1 as printed lets the last read decide; a transposed read makes a program Injective wherever it stands,
    and so it does not go behind a matrix product, which is element-wise only."""
    mod = relaxpy.parse(f"""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def mixed(
        A: T.Buffer(("n", "n"), "float32"), B: T.Buffer(("n", "n"), "float32"),
        C: T.Buffer(("n",), "float32"), D: T.Buffer(("n", "n"), "float32"),
    ):
        n = T.int64()
        for i, j in T.grid(n, n):
            with T.sblock("D"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = {" + ".join(order)}

    @R.function
    def main(x: R.Tensor(("n", "n"), "float32"), c: R.Tensor(("n",), "float32")) -> R.Tensor(("n", "n"), "float32"):
        n = T.int64()
        cls = Module
        with R.dataflow():
            a = R.matmul(x, x)
            d = R.call_tir(cls.mixed, (a, a, c), out_ty=R.Tensor((n, n), "float32"))
            R.output(d)
        return d
""")
    program = mod["mixed"]
    assert isinstance(program, PrimFunc)
    assert pattern_kind(program) is PatternKind.INJECTIVE
    fused = after(mod, "fuse-tensor-ir")
    assert set(fused.prim_funcs) == {"matmul", "mixed"}
    for n in (0, 1, 5):
        call = Call(mod, "main", [floats(n, n), floats(n)])
        assert call.disagreement(call.run(fused)) == ""
