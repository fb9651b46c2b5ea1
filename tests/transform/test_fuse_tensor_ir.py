"""FuseTensorIR: functions marked `Primitive` become tensor programs (tests/transform/test_fuse_ops.py has the numbers)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.errors import RelaxError
from relaxpy.ir.module import TensorProgram
from relaxpy.ir.structural import assert_structural_equal
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.transform.fuse_ops import FuseOps
from relaxpy.transform.fuse_tensor_ir import FuseTensorIR
from relaxpy.transform.legalize_ops import LegalizeOps
from tests.sweeps import sweep

PROGRAMS = """
from relaxpy.script import ir as I, relax as R, tir as T

@I.ir_module
class Module:
    @T.prim_func(private=True)
    def both(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32"), z: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("both"):
                vi = T.axis.spatial(n, i)
                y[vi] = x[vi] + T.float32(1)
                z[vi] = x[vi] * T.float32(2)

    @T.prim_func(private=True)
    def shifted(x: T.Buffer(("n",), "float32"), k: T.int64, y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("shifted"):
                vi = T.axis.spatial(n, i)
                y[vi] = x[(vi + k) % n]
"""


def test_example() -> None:
    check_example(FuseTensorIR())


def test_tuples_inside_a_group() -> None:
    """A program with two outputs, used one by one, both returned."""
    mod = relaxpy.parse(
        PROGRAMS
        + """
    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        cls = Module
        with R.dataflow():
            gv = cls.group(x)
            R.output(gv)
        return gv

    @R.function(private=True)
    def group(x: R.Tensor(("n",), "float32")) -> R.Tuple(R.Tensor(("n",), "float32"), R.Tensor(("n",), "float32")):
        R.func_attr({"Primitive": True})
        n = T.int64()
        cls = Module
        with R.dataflow():
            a = R.call_tir(cls.both, (x,), out_ty=[R.Tensor((n,), "float32"), R.Tensor((n,), "float32")])
            b = a[0]
            c = R.call_tir(cls.both, (b,), out_ty=[R.Tensor((n,), "float32"), R.Tensor((n,), "float32")])
            d = c[1]
            e = a[1]
            R.output(d, e)
        return (d, e)
"""
    )
    fused = FuseTensorIR()(mod)
    check_well_formed(fused)
    assert list(fused.prim_funcs) == ["shifted", "group"]
    for x in (np.arange(4, dtype=np.float32), np.zeros(0, np.float32)):
        for got in (interpret(fused, "main", x), interpret(mod, "main", x)):
            np.testing.assert_array_equal(got[0], (x + 1) * 2)
            np.testing.assert_array_equal(got[1], x * 2)


X = 'x: R.Tensor(("n",), "float32")'
TWO = (
    "a = R.call_tir(cls.both, (x,), out_ty=[R.Tensor((n,), 'float32'), R.Tensor((n,), 'float32')])"
)
BODIES = {
    "operators": "y = R.exp(x)\nz = R.add(y, y)\nreturn z",
    "a constant as argument": "y = R.add(x, R.const(2.0, 'float32'))\nz = R.exp(y)\nreturn z",
    "a constant as result": "return R.const(2.0, 'float32')",
    "its parameter": "return x",
    "its parameter among others": "y = R.exp(x)\nz = R.add(y, x)\nreturn ((x, y), z)",
    "one value twice": "y = R.exp(x)\nreturn (y, y)",
    "one step": f"{TWO}\nreturn a",
    "a tuple in a tuple": f"{TWO}\ny = R.exp(x)\nb = (a, x)\nreturn (b, y, b[0][1])",
    "shapes": "y = R.exp(x)\nreturn (y, R.shape([n, n + 1]), R.prim_value(n * 2))",
    "nothing": "return R.tuple()",
    "another name": "y = R.exp(x)\nw = y\nz = R.exp(w)\nreturn z",
    "a branch": "c = R.max(x) > R.const(0.0, 'float32')\nif c:\n    y = R.exp(x)\nelse:\n    y = R.negative(x)\nreturn y",
    "a cast": "y = R.match_cast(x, R.Tensor((4,), 'float32'))\nz = R.exp(y)\nreturn z",
    "a size that the values decide": "y = R.unique(x)\nz = R.exp(y)\nreturn z",
    "what copies": "y = R.reshape(x, (n, 1))\nz = R.exp(y)\nreturn z",
}
CALLS = {
    "once": "y = cls.f(x)\n        return y",
    "twice": "y = cls.f(x)\n        z = cls.f(x)\n        return (y, z)",
    "never": "return x",
    "as a value": "t = (cls.f, x)\n        g = t[0]\n        y = g(x)\n        z = cls.f(x)\n        return (y, z)",
    "in a branch": """c = R.max(x) > R.const(0.0, 'float32')
        if c:
            y = cls.f(x)
        else:
            y = cls.f(x)
        return y""",
}


def marked(params: str, body: str, call: str = CALLS["once"], *, private: bool = True) -> str:
    """`f` of this body, marked by its author, and `main`, which calls it."""
    lines = "".join(f"        {line}\n" for line in body.split("\n"))
    return (
        PROGRAMS
        + f"""
    @R.function
    def main({X}, v: R.Tensor(("m",), "float32")):
        n = T.int64()
        m = T.int64()
        cls = Module
        {call}

    @R.function(private={private})
    def f({params}):
        R.func_attr({{"Primitive": True}})
        n = T.int64()
        cls = Module
{lines}"""
    )


def leaves(value: Any) -> Any:
    """The values in a result, nested as they are."""
    if isinstance(value, (tuple, list)):
        return [leaves(item) for item in value]
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value).round(3).tolist()


def check_runs(text: str, *args: np.ndarray, entries: tuple[str, ...] = ("main",)) -> None:
    mod = relaxpy.parse(text)
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    for entry in entries:
        given = args[: len(mod.graph_function(entry).params)]
        assert leaves(vm[entry](*given)) == leaves(interpret(mod, entry, *given))


@sweep(3)
@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize(
    ("body", "call"),
    [*((body, "once") for body in BODIES), *(("its parameter among others", c) for c in CALLS)],
)
def test_a_function_that_its_author_marks(body: str, call: str, private: bool) -> None:
    """It is one program where it can be, and a function as others are where not; a public one can be called."""
    x = np.array([0.5, 0.25, -1.0, 0.0], np.float32)
    entries = ("main",) if private else ("main", "f")
    check_runs(marked(X, BODIES[body], CALLS[call], private=private), x, x, entries=entries)


def test_one_program_where_it_can_be() -> None:
    mod = LegalizeOps()(relaxpy.parse(marked(X, BODIES["its parameter among others"])))
    fused = FuseTensorIR()(mod)
    check_well_formed(fused)
    assert isinstance(fused["f"], TensorProgram)
    public = FuseTensorIR()(
        LegalizeOps()(relaxpy.parse(marked(X, BODIES["one step"], private=False)))
    )
    check_well_formed(public)
    assert isinstance(public["fused_f"], TensorProgram)
    assert public.graph_function("f").attrs == {"global_symbol": "f"}


def test_a_function_that_calls_itself() -> None:
    text = marked(X, "y = cls.f(x)\nz = R.exp(y)\nreturn z").replace(
        f"f({X})", f'f({X}) -> R.Tensor(("n",), "float32")'
    )
    fused = FuseTensorIR()(LegalizeOps()(relaxpy.parse(text)))
    check_well_formed(fused)
    assert fused.graph_function("f").attrs == {}


def test_parameters_of_every_kind() -> None:
    x, v = np.arange(4, dtype=np.float32), np.ones(3, np.float32)
    tuples = 't: R.Tuple(R.Tensor(("n",), "float32"), R.Tuple(R.Tensor(("k",), "float32"), R.Tensor(("n",), "float32")))'
    body = "a = R.add(t[0], t[1][1])\nb = R.negative(t[1][0])\nreturn ((a, b), t[1], t)"
    check_runs(marked(tuples, body, "y = cls.f((x, (v, x)))\n        return y"), x, v)
    check_runs(
        marked(tuples, body, "t = (x, (v, x))\n        y = cls.f(t)\n        return y"), x, v
    )
    shape = f'{X}, s: R.Shape(("n", "k"))'
    body = "a = R.broadcast_to(x, (k, n))\nb = R.negative(a)\nreturn (b, s, R.shape([k * 2]))"
    check_runs(marked(shape, body, "y = cls.f(x, R.shape([n, m + 1]))\n        return y"), x, v)


def test_arguments_that_may_not_fit_are_checked() -> None:
    """The call stays one of the function, which checks; another call, which fits, is one of the program."""
    params = f'{X}, y: R.Tensor(("n",), "float32")'
    call = "y = cls.f(x, v)\n        z = cls.f(x, x)\n        return (y, z)"
    text = marked(params, "a = R.add(x, y)\nb = R.negative(a)\nreturn b", call)
    x = np.arange(4, dtype=np.float32)
    check_runs(text, x, x)
    run = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(text)))["main"]
    with pytest.raises(RelaxError, match="must be 4, got 3"):
        run(x, x[:3])
    bounded = text.replace(
        '{"Primitive": True}', '{"Primitive": True, "tir_var_upper_bound": {"n": 3}}'
    )
    with pytest.raises(RelaxError, match="n exceeds its upper bound 3"):
        relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(bounded)))["main"](x, x)


def test_a_division_by_a_size_that_becomes_0() -> None:
    """In a loop that does not run: the program prints, parses and runs all the same."""
    mod = relaxpy.parse("""
from relaxpy.script import ir as I, relax as R, tir as T

@I.ir_module
class Module:
    @T.prim_func
    def spread(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n * 2",), "float32")):
        for i in range(n * 2):
            with T.sblock("b"):
                v = T.axis.spatial(n * 2, i)
                y[v] = x[v // 2] + x[v % n]

    @R.function
    def main(x: R.Tensor((0,), "float32")) -> R.Tensor((0,), "float32"):
        with R.dataflow():
            y = R.call_tir(Module.spread, (x,), out_ty=R.Tensor((0,), "float32"))
            z = R.call_tir(Module.spread, (y,), out_ty=R.Tensor((0,), "float32"))
            R.output(z)
        return z
""")
    fused = FuseTensorIR()(FuseOps()(mod))
    assert "fused_spread_spread" in fused.prim_funcs
    assert_structural_equal(fused, relaxpy.parse(fused.script()))
    run = relaxpy.VirtualMachine(relaxpy.build(mod))["main"]
    assert run(np.zeros(0, "float32")).numpy().shape == (0,)


@pytest.mark.parametrize("private", [True, False])
def test_relations_are_checked_by_the_caller(private: bool) -> None:
    """What an operator of the function relies on, and nobody could prove, in the caller's symbols."""
    mod = relaxpy.parse(f"""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("a", "b"), "float32"), w: R.Tensor(("c", 2), "float32")):
        cls = Module
        with R.dataflow():
            y = cls.group(x, w)
            R.output(y)
        return y

    @R.function(private={private})
    def group(x: R.Tensor(("n", "k"), "float32"), w: R.Tensor(("m", 2), "float32")) -> R.Tensor(("n", 2), "float32"):
        R.func_attr({{"Primitive": True}})
        with R.dataflow():
            y = R.nn.relu(R.matmul(x, w))
            R.output(y)
        return y
""")
    after = FuseTensorIR()(LegalizeOps()(mod))
    check_well_formed(after)
    assert ("group" in after.graph_functions) == (not private)
    if private:
        assert "check_dim" in after["main"].script()
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    x, w = np.ones((3, 4), np.float32), np.ones((4, 2), np.float32)
    for function in ["main"] + ["group"] * (not private):
        np.testing.assert_array_equal(vm[function](x, w).numpy(), np.full((3, 2), 4, np.float32))
        with pytest.raises(RelaxError):
            vm[function](x, w[:3].copy())


def test_sizes_between_steps_are_checked() -> None:
    """A dimension that no argument and no result has may be negative: `relaxpy fuzz` found that the fused program takes
    it for 0."""
    mod = relaxpy.parse("""@I.ir_module
class M:
    @R.function
    def total(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        return R.sum(R.zeros(R.shape([n - 2, 2]), "int64"))

    @R.function
    def flat(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        return R.reshape(R.zeros(R.shape([n - 1, 2]), "int64"), R.shape([n * 2 - 2]))
""")
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, "llvm -opt-level=0"))
    for name, least in (("total", 2), ("flat", 1)):
        for n in range(5):
            x = np.zeros(n, "float32")
            if n >= least:
                np.testing.assert_array_equal(vm[name](x), interpret(mod, name, x))
                continue
            for call in (vm[name], lambda x, name=name: interpret(mod, name, x)):
                with pytest.raises(RelaxError, match=f"the dimension n - {least} is negative"):
                    call(x)
