"""The reference interpreter on every kind of node, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import relaxpy
from relaxpy import op
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import RelaxError, RuntimeCheckError, UsageError
from relaxpy.ir import (
    BindingBlock,
    Function,
    IRModule,
    PrimType,
    SeqExpr,
    SymVar,
    TensorType,
    TupleType,
    Var,
    VarBinding,
)
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.runtime import Shape
from relaxpy.target import Target
from relaxpy.testing.differential import Call, Ways, check
from relaxpy.testing.interpret import interpret
from relaxpy.transform.base import PassContext
from tests.sweeps import sweep

HEADER = "from relaxpy.script import ir as I, relax as R, tir as T\n"


def parse(body: str) -> IRModule:
    return relaxpy.parse(HEADER + body)


FIGURE_3 = parse("""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 2, 2), "float32")):
        n, m = T.int64(), T.int64()
        with R.dataflow():
            lv0 = R.reshape(x, (n, 4))
            lv1 = R.flatten(lv0)
            lv2 = R.unique(lv1)
            lv3 = R.match_cast(lv2, R.Tensor((m,), "float32"))
            gv0 = R.exp(lv3)
            R.output(gv0)
        return gv0
""")


def test_figure_3() -> None:
    """A size that is known only when the program runs (paper, figure 3)."""
    x = np.array([[[1, 2], [2, 1]]], np.float32)
    np.testing.assert_array_equal(interpret(FIGURE_3, "main", x), np.exp([1, 2], dtype=np.float32))


CROSS_LEVEL = parse("""
@I.ir_module
class Module:
    @T.prim_func
    def mm(x: T.Buffer(("n", 3), "float32"), w: T.Buffer((3, 4), "float32"), o: T.Buffer(("n", 4), "float32")):
        n = T.int64()
        for i, j, k in T.grid(n, 4, 3):
            with T.sblock("mm"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    o[vi, vj] = T.float32(0)
                o[vi, vj] = o[vi, vj] + x[vi, vk] * w[vk, vj]
    @R.function
    def main(x: R.Tensor(("n", 3), "float32"), w: R.Tensor((3, 4), "float32")):
        n = T.int64()
        cls = Module
        y = R.call_tir(cls.mm, (x, w), out_ty=R.Tensor((n, 4), "float32"))
        z = R.call_dps_library("test.double", (y,), out_ty=R.Tensor((n, 4), "float32"))
        return z
""")


@pytest.mark.parametrize("n", [0, 1, 5])
def test_levels(n: int) -> None:
    """Tensor programs and library functions, destination passing (figures 4 and 5)."""
    x, w = np.random.default_rng(n).random((n, 3), np.float32), np.eye(3, 4, dtype=np.float32)

    def double(y: np.ndarray, out: np.ndarray) -> None:
        out[...] = 2 * y

    got = interpret(CROSS_LEVEL, "main", x, w, libraries={"test.double": double})
    np.testing.assert_allclose(got, 2 * x @ w, rtol=1e-6)


def test_wrong_argument() -> None:
    """The error of the virtual machine, with the parameter and its place."""
    with pytest.raises(
        RuntimeCheckError, match="main: parameter w: dimension 0 is 2, not 3"
    ) as caught:
        interpret(CROSS_LEVEL, "main", np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float32))
    assert caught.value.span is not None


def test_unknown_function() -> None:
    with pytest.raises(UsageError, match="no graph function 'mm'"):
        interpret(CROSS_LEVEL, "mm")


COUNT = parse("""
@I.ir_module
class Module:
    @R.function
    def count(i: R.Tensor((), "int64")) -> R.Tensor((), "int64"):
        cls = Module
        done = R.equal(i, R.const(0, "int64"))
        if done:
            out = R.multiply(i, R.const(1, "int64"))
        else:
            less = R.subtract(i, R.const(1, "int64"))
            rest = cls.count(less)
            out = R.add(rest, R.const(1, "int64"))
        return out
""")


def test_deep_recursion() -> None:
    """Calls do not nest on Python's stack."""
    assert interpret(COUNT, "count", np.array(5_000)) == 5_000


def test_closures() -> None:
    """A nested function sees what it was made in; functions are values, Python's too."""
    n = SymVar("n")
    vector = TensorType((n,), "float32")
    x, y = Var("x", vector), Var("y", vector)
    inner = Var("inner", relaxpy.ir.CallableType([vector], vector))
    z = Var("z", vector)
    body = SeqExpr((BindingBlock((VarBinding(z, op.add(x, y)),)),), z)
    main = Function(
        (x,),
        SeqExpr((BindingBlock((VarBinding(inner, Function((y,), body, vector)),)),), inner),
        inner.annotation,
    )
    add = interpret(main, "main", np.ones(3, np.float32))
    np.testing.assert_array_equal(add(np.full(3, 2, np.float32)), np.full(3, 3, np.float32))
    with pytest.raises(RuntimeCheckError, match=r"dimension 0 \(n\) must be 3, got 4"):
        add(np.ones(4, np.float32))


def test_shapes_and_tuples() -> None:
    """Shape values, tuples, scalars come in and go out."""
    n = SymVar("n")
    x = Var("x", TensorType((n, 4), "float32"))
    bb = BlockBuilder()
    with bb.function("main", [x]):
        shape = bb.emit(op.shape_of(x))
        both = bb.emit(relaxpy.ir.Tuple((shape, x)))
        bb.emit_func_output(both)
    got = interpret(bb.get(), "main", np.zeros((3, 4), np.float32))
    assert isinstance(got[0], Shape)
    assert got[0] == (3, 4)
    assert got[1].shape == (3, 4)


def test_relations_are_checked() -> None:
    """What deduction left open is checked, and a parameter's relation too."""
    n, m = SymVar("n"), SymVar("m")
    x, y = Var("x", TensorType((n,), "float32")), Var("y", TensorType((m,), "float32"))
    bb = BlockBuilder()
    with bb.function("main", [x, y]):
        bb.emit_func_output(bb.emit(op.add(x, y)))
    ones = np.ones(3, np.float32)
    np.testing.assert_array_equal(interpret(bb.get(), "main", ones, ones[:1]), 2 * ones)
    with pytest.raises(RuntimeCheckError, match="broadcast"):
        interpret(bb.get(), "main", ones, ones[:2])


def test_a_wrong_deduction_is_found() -> None:
    """A binding whose annotation does not fit its value is a mistake of the compiler."""
    x = Var("x", TensorType((3,), "float32"))
    wrong = Var("wrong", TensorType((4,), "float32"))
    main = Function(
        (x,), SeqExpr((BindingBlock((VarBinding(wrong, op.exp(x)),)),), wrong), wrong.annotation
    )
    with pytest.raises(RuntimeCheckError, match="binding wrong: dimension 0 is 3, not 4"):
        interpret(main, "main", np.ones(3, np.float32))


def test_scalars_and_tuples_as_arguments() -> None:
    s = SymVar("s")
    p = Var("p", PrimType("int64", s))
    t = Var("t", TupleType([TensorType((s,), "float32"), TensorType((), "float32")]))
    bb = BlockBuilder()
    with bb.function("main", [p, t]):
        first = bb.emit(relaxpy.ir.TupleGetItem(t, 0))
        bb.emit_func_output(bb.emit(op.multiply(first, bb.emit(relaxpy.ir.TupleGetItem(t, 1)))))
    got = interpret(bb.get(), "main", 2, ([1.0, 2.0], 3.0))
    np.testing.assert_array_equal(got, np.array([3, 6], np.float32))
    with pytest.raises(RuntimeCheckError):
        interpret(bb.get(), "main", 3, ([1.0, 2.0], 3.0))


def on_both(mod: IRModule, *args: object) -> list[object]:
    """What the interpreter and the virtual machine make of a call: the errors' class, code, text."""
    found: list[object] = []
    for call in (
        lambda: interpret(mod, "main", *args),
        lambda: relaxpy.VirtualMachine(relaxpy.build(mod))["main"](*args),
    ):
        try:
            found.append(call())
        except RelaxError as error:
            found.append((type(error).__name__, error.code, error.message))
    return found


X3 = 'x: R.Tensor(("n", 3), "float32")'
VECTOR = 'x: R.Tensor(("n",), "float32")'
CALLBACK = 'f: R.Callable([R.Tensor((2,), "float32")], R.Tensor((2,), "float32")), x: R.Tensor((2,), "float32")'


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def failing(_: object) -> None:
    raise KeyError("nothing")


WRONG_CALLS = {
    "relation": (f'{X3}, y: R.Tensor(("n * 2",), "float32")', "y = x", (zeros(2, 3), zeros(5))),
    "dtype": (X3, "y = x", (np.zeros((2, 3)),)),
    "rank": (X3, "y = x", (zeros(2),)),
    "constant dimension": (X3, "y = x", (zeros(3, 2),)),
    "too few": (X3, "y = x", ()),
    "too many": (X3, "y = x", (zeros(1, 3), zeros(2))),
    "no tensor": (X3, "y = x", ("a",)),
    "field": (
        'x: R.Tuple(R.Tensor(("n",), "float32"), R.Shape(["n"]))', "y = x", ((zeros(3), (4,)),),
    ),
    "fields": ('x: R.Tuple(R.Object, R.Object)', "y = x", ((zeros(3),),)),
    "broadcasting": (f'{VECTOR}, z: R.Tensor(("m",), "float32")', "y = R.add(x, z)", (zeros(3), zeros(4))),
    "unknown shape": (VECTOR, "u = R.unique(x)\n    y = R.add(u, x)", (np.array([1, 1, 2, 3], np.float32),)),
    "elements": (
        f'{VECTOR}, s: R.Shape(["a", "b"])', "y = R.reshape(x, R.shape([a, b]))", (zeros(5), (2, 3)),
    ),
    "match_cast": (VECTOR, 'y = R.match_cast(x, R.Tensor((4,), "float32"))', (zeros(3),)),
    "match_cast of a relation": (
        'x: R.Tensor(("n", "m"), "float32")', 'y = R.match_cast(x, R.Tensor((n, n + 1), "float32"))', (zeros(3, 3),),
    ),
    "match_cast of an object": (
        "x: R.Object", 'y = R.match_cast(x, R.Tensor((4,), "float32"))', ((1, 2),),
    ),
    "assert": (VECTOR, 'z = R.assert_op(R.const(False), x, format="no {}")\n    y = x', (zeros(2),)),
    "negative shape": ('x: R.Tensor((2,), "int64")', "y = R.tensor_to_shape(x)", (np.array([-1, 3]),)),
    "negative size": (VECTOR, 'y = R.zeros(R.shape([n - 3]), dtype="float32")', (zeros(2),)),
    "demand before negative size": (
        'x: R.Tensor(("n", "m", "a"), "float32")', "y = R.nn.conv1d_transpose(x, x)", (zeros(1, 7, 0),),
    ),
    "division": (
        'x: R.Tensor(("n", "m"), "float32")', 'y = R.zeros(R.shape([n // m]), dtype="float32")', (zeros(2, 0),),
    ),
    "callee's result": (CALLBACK, "y = f(x)", (lambda _: zeros(3), zeros(2))),
    "callee fails": (CALLBACK, "y = f(x)", (failing, zeros(2))),
    "no function": (CALLBACK, "y = f(x)", (3, zeros(2))),
    "result of a name": (
        VECTOR, 'y = R.call_packed("vm.builtin.shape_of", x, ty_args=R.Tensor((2,), "float32"))', (zeros(2),),
    ),
    "scalar": ('k: R.Prim("int64", "n"), x: R.Tensor(("n",), "float32")', "y = x", (3, zeros(2))),
    "scalar's dtype": ('x: R.Prim("int64")', "y = x", (3.5,)),
    "shape's rank": ("x: R.Shape(ndim=2)", "y = x", ((1, 2, 3),)),
    "lossy": ('x: R.Tensor((2,), "int8")', "y = x", ([1000, 3],)),
}  # fmt: skip


@sweep(2)
@pytest.mark.parametrize("case", WRONG_CALLS)
def test_errors_are_those_of_the_virtual_machine(case: str) -> None:
    """The same class, code and text, for every kind of check."""
    params, body, args = WRONG_CALLS[case]
    symbols = "".join(f"    {s} = T.int64()\n" for s in "nmab" if f'"{s}"' in params)
    mod = parse(f"""
@R.function(pure=False)
def main({params}):
{symbols}    {body}
    return y
""")
    interpreted, run = on_both(mod, *args)
    assert interpreted == run
    assert isinstance(run, tuple)
    assert run[0] in ("RuntimeCheckError", "UsageError")


@pytest.mark.parametrize(
    "annotation", ['R.Tensor((4,), "float32")', 'R.Tensor(("n * 2",), "float32")']
)
def test_declared_results_are_checked(annotation: str) -> None:
    """A return annotation that is not proved."""
    mod = parse(f"""
@R.function
def main(x: R.Tensor(("n",), "float32")) -> {annotation}:
    y = R.unique(x)
    return y
""")
    interpreted, run = on_both(mod, np.array([1, 2, 2], np.float32))
    assert interpreted == run
    assert isinstance(run, tuple)
    assert "dimension 0" in run[2]


EVERYTHING = parse("""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def twice(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n * 2",), "float32"), k: T.int64):
        n = T.int64()
        for i in range(n * 2):
            with T.sblock("twice"):
                vi = T.axis.spatial(n * 2, i)
                y[vi] = x[vi // 2] * T.Cast("float32", k)

    @R.function(private=True)
    def loop(i: R.Tensor((), "int64"), x: R.Tensor(("a",), "float32")) -> R.Tensor(("a",), "float32"):
        cls = Module
        done = R.less_equal(i, R.const(0, "int64"))
        if done:
            out = x
        else:
            less = R.subtract(i, R.const(1, "int64"))
            more = R.exp(R.negative(x))
            out = cls.loop(less, more)
        return out

    @R.function
    def main(x: R.Tensor(("n",), "float32"), w: R.Tensor(("n", "m"), "float32"), c: R.Tensor((), "bool")):
        n, m, u = T.int64(), T.int64(), T.int64()
        cls = Module
        with R.dataflow():
            a = R.matmul(x, w)
            b = R.nn.softmax(R.add(a, R.const(1.0, "float32")))
            t = R.call_tir(cls.twice, (b,), out_ty=R.Tensor((m * 2,), "float32"), tir_vars=R.shape([n]))
            v = R.unique(t)
            s = R.shape_of(t)
            R.output(b, t, v, s)
        named = R.match_cast(v, R.Tensor((u,), "float32"))

        @R.function
        def inner(p: R.Tensor((m,), "float32")) -> R.Tensor((m,), "float32"):
            q = R.multiply(p, b)
            return q

        @R.function
        def other(p: R.Tensor((m,), "float32")) -> R.Tensor((m,), "float32"):
            q = R.subtract(p, b)
            return q

        if c:
            f = inner
        else:
            f = other
        d = f(b)
        e = cls.loop(R.const(3, "int64"), d)
        h = R.call_dps_library("relaxpy.testing.halved", (e,), out_ty=R.Tensor((m,), "float32"))
        z = R.zeros(s, dtype="float32")
        return (h, (R.sum(named), z), s)
""")


@pytest.mark.slow
@pytest.mark.parametrize("condition", [True, False])
def test_after_every_pass(condition: bool) -> None:
    """Lowered modules are interpreted as those they come from."""
    rng = np.random.default_rng(0)
    x, w = rng.random(3, np.float32), rng.random((3, 4), np.float32)
    call = Call(EVERYTHING, "main", [x, w, np.array(condition)])
    assert check([call], Ways(fresh_process=False)) == []
    names = [step.name for phase in default_pipeline().phases for step in phase.passes]
    modules: dict[str, IRModule] = {}
    context = PassContext(
        Target.host(), {}, (lambda _, step, __, after: modules.update({step.name: after}),)
    )
    default_pipeline().run(EVERYTHING, context)
    assert list(modules) == list(dict.fromkeys(names))
    for name, mod in modules.items():
        assert call.disagreement(call.run(mod)) == "", name


def test_storage_is_memory() -> None:
    """Two tensors in one storage see each other: a plan that lets a value die too early shows."""
    mod = parse("""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def exp(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("exp"):
                vi = T.axis.spatial(n, i)
                y[vi] = T.exp(x[vi])

    @R.function(pure=False)
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        cls = Module
        storage = R.memory.alloc_storage(R.prim_value(n * 4))
        a = R.memory.alloc_tensor(R.shape([n]), storage, dtype="float32")
        _a = R.vm.call_dps(cls.exp, x, a)
        b = R.memory.alloc_tensor(R.shape([n]), storage, dtype="float32")
        _b = R.vm.call_dps(cls.exp, a, b)
        return b
""")
    assert np.isnan(interpret(mod, "main", np.ones(2, np.float32))).all()


def test_hooks() -> None:
    """Tensor programs can be watched, and floats disturbed."""
    seen: list[str] = []
    x, w = np.ones(3, np.float32), np.ones((3, 4), np.float32)
    args = (x, w, np.array(True))

    def observe(name: str, _: object, values: Sequence[object]) -> Callable[[], None]:
        seen.append(f"{name} of {len(values)}")
        return lambda: seen.append("done")

    exact = interpret(EVERYTHING, "main", *args, observe=observe)
    assert seen == ["twice of 3", "done"]
    other = interpret(EVERYTHING, "main", *args, perturb=lambda a: a + 1)
    assert not np.allclose(exact[0], other[0])


@pytest.mark.parametrize("result", ["z", 'z: R.Prim("int64")'])
@pytest.mark.parametrize("known", ["", ', value="p"'])
def test_integers_that_do_not_fit_are_refused_whether_they_have_names_or_not(
    known: str, result: str
) -> None:
    """Found by `relaxpy fuzz`: a product of scalars was modulo 2**64 until a pass had named its factors."""
    mod = parse(f"""
@R.function
def main(x: R.Prim("int64"{known}), y: R.Prim("int64", value="q")):
    {result} = R.multiply(x, y)
    return z
""")
    run = relaxpy.VirtualMachine(relaxpy.build(mod))["main"]
    assert interpret(mod, "main", 2, -(2**62)) == run(2, -(2**62)) == -(2**63)
    for call in (run, lambda *args: interpret(mod, "main", *args)):
        with pytest.raises(RuntimeCheckError) as caught:
            call(2, -(2**63))
        assert caught.value.code == "shape-arithmetic"
