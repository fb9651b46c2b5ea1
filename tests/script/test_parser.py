from __future__ import annotations

import linecache
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import well_formed
from relaxpy.errors import ErrorGroup, RelaxError, ScriptError, UsageError
from relaxpy.ir import (
    Call,
    CallableType,
    Constant,
    DataflowBlock,
    DataflowVar,
    ExternFunc,
    Function,
    GlobalVar,
    If,
    IRModule,
    MatchCast,
    ObjectType,
    PrimType,
    ShapeType,
    SymVar,
    TensorType,
    TupleGetItem,
    TupleType,
    Var,
)
from relaxpy.script import ir as I
from relaxpy.script import relax as R
from relaxpy.script import tir as T
from relaxpy.testing.interpret import interpret
from tests.sweeps import full

WIDTH = 8
TABLE = np.arange(6, dtype="int64").reshape(2, 3)
k = T.int64()


def parsed(mod: IRModule) -> IRModule:
    """The module after print → parse, which must be equal."""
    again = relaxpy.parse(mod.script())
    relaxpy.assert_structural_equal(mod, again)
    assert again.script() == mod.script()
    return again


def main(
    body: str,
    params: str = 'x: R.Tensor(("n", 4), "float32")',
    ret: str = "",
    decorator: str = "@R.function",
) -> Function:
    """The function of this body, after a round trip."""
    lines = "\n".join("    " + line for line in body.split("\n"))
    mod = relaxpy.parse(f"{decorator}\ndef main({params}){ret}:\n{lines}\n")
    parsed(mod)
    found = mod["main"]
    assert isinstance(found, Function)
    return found


def annotations(func: Function) -> list[str]:
    """Annotations of all bindings, as script."""
    return [str(binding.var.annotation) for binding in func.body.bindings]


def refused(body: str, **kwargs: str) -> ScriptError:
    with pytest.raises(relaxpy.RelaxError) as caught:
        main(body, **kwargs)
    return caught.value  # type: ignore[return-value]


# Modules


def test_module_of_both_levels() -> None:
    """Figure 4: a tensor program, a library call and a graph function in one class, symbols quoted or declared."""

    @I.ir_module
    class Figure4:
        @T.prim_func
        def mm(
            X: T.Buffer(("n", 128), "float32"),
            W: T.Buffer((128, 256), "float32"),
            Y: T.Buffer(("n", 256), "float32"),
        ):
            n = T.int64()
            for i, j, k in T.grid(n, 256, 128):
                with T.sblock("mm"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    with T.init():
                        Y[vi, vj] = T.float32(0)
                    Y[vi, vj] = Y[vi, vj] + X[vi, vk] * W[vk, vj]

        @R.function
        def main(x: R.Tensor(("n", 128), "float32"), w: R.Tensor((128, 256), "float32")):
            n = T.int64()
            cls = Figure4
            with R.dataflow():
                lv0 = R.call_tir(cls.mm, [x, w], R.Tensor((n, 256), "float32"))
                lv1 = R.call_dps_library("cutlass.rms_norm", [lv0], R.Tensor((n, 256), "float32"))
                R.output(lv1)
            return lv1

    assert list(Figure4) == ["mm", "main"]
    assert str(Figure4["main"].ret) == 'R.Tensor((n, 256), dtype="float32")'
    assert isinstance(Figure4["main"].body.blocks[0], DataflowBlock)
    parsed(Figure4)


def test_figure_3() -> None:
    func = main(
        "n = T.int64()\n"
        "lv0: R.Tensor((n, 4), 'float32') = R.reshape(x, R.shape([n, 4]))\n"
        "lv1 = R.flatten(lv0)\n"
        "lv2: R.Tensor(ndim=1) = R.unique(lv1)\n"
        'lv3 = R.match_cast(lv2, R.Tensor(("m",), "float32"))\n'
        "gv0: R.Tensor(('m',), 'float32') = R.exp(lv3)\n"
        "return gv0",
        'x: R.Tensor(("n", 2, 2), "float32")',
    )
    assert annotations(func)[1] == 'R.Tensor((n * 4,), dtype="float32")'
    assert isinstance(list(func.body.bindings)[3], MatchCast)
    assert func.ret == TensorType(None, "float32", 1)  # m is not seen from outside


def test_figure_7() -> None:
    mod = relaxpy.parse(
        """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32"), u: R.Shape(ndim=2)):
        cls = Module
        f0 = cls.subfn
        a = cls.subfn(R.shape([n, 4]))
        b = cls.subfn(R.shape([3, 4]))
        c = f0((n, 4))
        d = f0(u)
        return (a, b, c, d)

    @R.function
    def subfn(s: R.Shape(["n", "m"])) -> R.Tensor(("n * m",), "float32"):
        n, m = T.int64(), T.int64()
        return R.zeros(R.shape([n * m]), "float32")
"""
    )
    parsed(mod)
    assert annotations(mod["main"])[1:] == [
        'R.Tensor((n * 4,), dtype="float32")',
        'R.Tensor((12,), dtype="float32")',
        'R.Tensor((n * 4,), dtype="float32")',
        'R.Tensor(dtype="float32", ndim=1)',
    ]
    f0 = next(iter(mod["main"].body.bindings)).var.annotation
    assert isinstance(f0, CallableType)


def test_figure_8() -> None:
    """The parameters' n * 2 is solved for n by the shape parameter; TVM's spellings are read."""
    mod = relaxpy.parse(
        """
from tvm.script import ir as I
from tvm.script import tirx as T
from tvm.script import relax as R

@I.ir_module(s_tir=True)
class Module:
    @R.function(private=True)
    def fused_add_relu(
        x: R.Tensor(("n * 2",), dtype="float32"), y: R.Tensor(("n * 2",), dtype="float32"), s: R.Shape(["n"])
    ) -> R.Tensor(("n * 2",), dtype="float32"):
        n = T.int64(is_size_var=True)
        R.func_attr({"Primitive": 1})
        with R.dataflow():
            lv: R.Tensor((n * T.int64(2),), dtype="float32") = R.add(x, y)
            gv: R.Tensor((n * 2,), dtype="float32") = R.nn.relu(lv)
            R.output(gv)
        return gv

    @R.function
    def main(x: R.Tensor(("n", 2), dtype="float32")) -> R.Tensor(("n * 2",), dtype="float32"):
        n = T.int64()
        cls = Module
        lv = R.reshape(x, R.shape([n * 2]))
        gv: R.Tensor((n * 2,), dtype="float32") = cls.fused_add_relu(lv, lv, R.shape([n]))
        return gv
"""
    )
    parsed(mod)
    assert mod["fused_add_relu"].attrs == {"Primitive": 1}
    assert mod["main"].attrs == {"global_symbol": "main"}


def test_older_spellings() -> None:
    mod = relaxpy.parse(
        """
from collections.abc import Callable
from typing import Any, TypeVar
n = TypeVar("n")

@I.ir_module
class Module:
    @T.prim_func
    def f(x: T.handle, y: T.handle):
        n = T.int64()
        X = T.match_buffer(x, (n,), "float32")
        Y = T.match_buffer(y, (n,), "float32")
        for i in range(n):
            with T.block("f"):
                vi = T.axis.spatial(n, i)
                Y[vi] = X[vi]

    @R.function(pure=False)
    def main(x: R.Tensor((n,), dtype="float32")) -> R.Tensor((n,), dtype="float32"):
        cls = Module
        a = R.call_tir(cls.f, (x,), out_sinfo=R.Tensor((n,), dtype="float32"))
        b = R.call_dps_packed("lib.g", (a,), out_sinfo=R.Tensor((n,), dtype="float32"))
        c = R.call_packed("h", b, sinfo_args=(R.Tensor((n,), dtype="float32"),))
        d = R.call_pure_packed("h", c, sinfo_args=R.Tensor((n,), dtype="float32"))
        return d
"""
    )
    parsed(mod)
    assert str(mod["main"].ret) == 'R.Tensor((n,), dtype="float32")'


def test_functions_in_any_order_deduce_each_other() -> None:
    """A result that is not declared is deduced from the callee's body, wherever that stands."""
    mod = relaxpy.parse(
        """
@I.ir_module
class M:
    @R.function
    def a(x: R.Tensor(("n",), "float32")):
        return M.b(x)

    @R.function
    def b(y: R.Tensor(("m",), "float32")):
        return c(y)

    @R.function(private=True)
    def c(z: R.Tensor(("k",), "float32")):
        return R.concat((z, z), axis=0)
"""
    )
    assert str(mod["a"].ret) == 'R.Tensor((n * 2,), dtype="float32")'
    assert list(mod) == ["a", "b", "c"]
    parsed(mod)


def test_module_attributes_and_extern_functions() -> None:
    mod = relaxpy.parse(
        """
@I.ir_module
class M:
    I.module_attrs({"key": [1, 2.5, "a"], "none": None})
    I.module_global_infos({"vdevice": [I.vdevice("llvm", 0)]})
    g = I.extern("library.g")

    @R.function(pure=False)
    def main(x: R.Tensor((2,), "float32", "llvm:0:global")) -> R.Object:
        R.func_attr({"n": 3})
        return M.g(x)
"""
    )
    assert mod.attrs == {"key": [1, 2.5, "a"], "none": None}
    assert mod["main"].pure is False
    parsed(mod)


# Decorated functions


def test_values_of_the_python_around() -> None:
    """Integers, dtypes, arrays, annotations, symbols, functions and loops of Python around a decorated function."""
    hidden, kind = 16, "float16"
    weight = np.ones((4, hidden), kind)
    spec = R.Tensor(("n", 4), kind)
    m = T.int64()

    def twice(value):
        return R.add(value, value)

    @R.function
    def func(x: spec, y: R.Tensor((m, hidden), kind)) -> R.Tensor((m, 2 * hidden), kind):
        lv = R.matmul(x, R.const(weight))
        lv = R.add(twice(lv), R.zeros((1, WIDTH * 2), kind))
        return R.concat([y, y], axis=len("a"))

    assert isinstance(func, Function)
    assert str(func.ret) == 'R.Tensor((m, 32), dtype="float16")'
    assert str(func.params[0].annotation) == 'R.Tensor((n, 4), dtype="float16")'
    constants = [
        a
        for b in func.body.bindings
        for a in getattr(b.value, "args", ())
        if isinstance(a, Constant)
    ]
    assert constants[0].data.shape == (4, 16)


def test_symbols_of_two_functions_are_two() -> None:
    @I.ir_module
    class M:
        @R.function
        def f(x: R.Tensor((k,), "float32")):
            return x

        @R.function
        def g(x: R.Tensor((k,), "float32")):
            return M.f(x)

    f, g = M["f"].params[0].annotation, M["g"].params[0].annotation
    assert f.dims[0].symbol is not g.dims[0].symbol
    assert f.dims[0].symbol.name == g.dims[0].symbol.name == "k"
    parsed(M)


def test_functions_made_outside_join_the_module() -> None:
    @R.function
    def helper(x: R.Tensor(("n",), "float32")):
        return R.exp(x)

    @T.prim_func
    def copy(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("copy"):
                vi = T.axis.spatial(4, i)
                Y[vi] = X[vi]

    @I.ir_module
    class M:
        @R.function
        def main(x: R.Tensor((4,), "float32")):
            y = R.call_tir(copy, (x,), out_ty=R.Tensor((4,), "float32"))
            return helper(y)

    assert set(M) == {"main", "helper", "copy"}
    assert str(M["main"].ret) == 'R.Tensor((4,), dtype="float32")'
    parsed(M)


def test_no_source() -> None:
    with pytest.raises(ScriptError) as caught:
        exec(
            "from relaxpy.script import relax as R\n@R.function\ndef f(x: R.Object):\n    return x\n",
            {"__name__": "nowhere"},
        )
    assert caught.value.code == "no-source"


def test_source_that_only_linecache_knows() -> None:
    """As in a notebook cell."""
    text = "from relaxpy.script import relax as R\n@R.function\ndef f(x: R.Object):\n    return y\n"
    linecache.cache["<cell 1>"] = (len(text), None, text.splitlines(True), "<cell 1>")
    with pytest.raises(ScriptError) as caught:
        exec(compile(text, "<cell 1>", "exec"), {"__name__": "cell"})
    assert str(caught.value.span) == "<cell 1>:4:12"


def test_spans_are_those_of_the_file() -> None:
    with pytest.raises(ErrorGroup) as caught:

        @R.function
        def func(x: R.Tensor(("n", 4), "float32"), größe: R.Tensor((5, 6), "float32")):
            x = R.matmul(x, größe)  # error one
            return R.exp(R.sum(größe, axis=9))  # error two

    lines = __import__("pathlib").Path(__file__).read_text("utf-8").split("\n")
    one, two = caught.value.errors
    assert lines[one.span.line - 1].endswith("# error one")
    assert lines[one.span.line - 1][one.span.column : one.span.end_column] == "größe"
    assert lines[two.span.line - 1][two.span.column : two.span.end_column] == "9"
    assert one.span.file == __file__


def test_every_binding_has_its_place() -> None:
    text = '@R.function\ndef main(x: R.Tensor((4,), "float32")):\n    y = R.exp(R.exp(x))\n    return y\n'
    func = relaxpy.parse(text, filename="m.py")["main"]
    assert [str(b.span) for b in func.body.bindings] == ["m.py:3:15", "m.py:3:9"]
    assert [str(b.value.span) for b in func.body.bindings] == ["m.py:3:15", "m.py:3:9"]
    assert str(func.span) == "m.py:2:1"


def test_importing_the_namespaces_is_light() -> None:
    code = (
        "from relaxpy.script import ir as I, relax as R, tir as T; import sys\n"
        "x = R.Tensor(('n', 4), 'float32'); T.Buffer((4,), 'float32'); print('tvm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# Symbols


def test_scalar_parameters_are_dimensions() -> None:
    func = main("return R.zeros((k, 2), 'float32')", 'k: R.Prim("int64")')
    assert isinstance(func.params[0].annotation, PrimType)
    assert func.params[0].annotation.value is not None
    assert str(func.ret) == 'R.Tensor((k, 2), dtype="float32")'


def test_an_int64_is_a_symbol_unless_it_says_otherwise() -> None:
    """The symbol of a scalar may be negative; one that is a dimension of a parameter may not."""
    alone = main("return k", 'k: R.Prim("int64")').params[0].annotation
    assert alone.value.symbol.name == "k"
    assert alone.value.symbol.signed
    size = main("return k", 'k: R.Prim("int64"), x: R.Tensor(("k",), "int8")').params[0].annotation
    assert not size.value.symbol.signed
    opaque = main("return k", 'k: R.Prim("int64", value=None)')
    assert opaque.params[0].annotation == PrimType("int64")
    assert main("return k", 'k: R.Prim("int32")').params[0].annotation == PrimType("int32")
    assert "value=None" in opaque.script()


def test_linear_dimensions_are_solved() -> None:
    func = main("return x", 'x: R.Tensor(("n * 2 + 1", "n + m"), "float32")')
    assert [v.name for v in func.params[0].annotation.dims[1].vars] == ["m", "n"]


def test_an_earlier_parameter_may_use_a_later_symbol() -> None:
    main("return x", 'x: R.Tensor(("n * m",), "float32"), s: R.Shape(["n", "m"])')


def test_a_function_type_may_use_the_symbol_of_a_later_parameter() -> None:
    """By its bare name; the later one may have it in an expression."""
    func = main(
        "y = f(x)\nreturn y",
        'f: R.Callable((R.Tensor((n + 1,), "float32"),), R.Tensor((n + 1,), "float32")), '
        'x: R.Tensor(("n + 1",), "float32")',
    )
    assert str(func.ret) == 'R.Tensor((n + 1,), dtype="float32")'


@pytest.mark.parametrize("dim", ["n * m", "n * n", "n // 2", "T.max(n, 4)"])
def test_a_symbol_must_follow_from_the_arguments(dim: str) -> None:
    assert (
        refused("return x", params=f'x: R.Tensor(("{dim}",), "float32")').code == "symbol-undefined"
    )


@pytest.mark.parametrize(
    "dim",
    [
        "T.max(n, 4)",
        "n // 4 % 3",
        "-n + 10",
        "T.min(n, T.max(4, n * n))",
        "T.Select(n < 4, n, 4)",
        "(n + 3) // 4 * 4",
    ],
)
def test_dimension_expressions_print_and_parse(dim: str) -> None:
    func = main(f"s = R.shape([{dim}])\nreturn s")
    quoted = main("return x", f'x: R.Tensor(("n", "{dim}"), "float32")')
    assert str(next(iter(func.body.bindings)).value.dims[0]) == str(
        quoted.params[0].annotation.dims[1]
    )


def test_a_function_types_symbols_are_its_own() -> None:
    func = main(
        "return x",
        'x: R.Tensor(("n",), "float32"), '
        'f: R.Callable((R.Tensor(("n", "m"), "float32"),), R.Tensor(("n * m",), "float32"))',
    )
    own = func.params[1].annotation.params[0].dims[0].symbol
    assert own is not func.params[0].annotation.dims[0].symbol
    assert own in func.params[1].annotation.ret.dims[0].vars


def test_shape_variable_as_shape() -> None:
    func = main("return x", "s: R.Shape(ndim=2), x: R.Tensor(s, 'float32')")
    assert func.params[1].annotation.shape is func.params[0]
    assert func.params[1].annotation.ndim == 2


# Statements


def test_operators_of_python() -> None:
    func = main(
        "y = -x * 2 + 1.5\nz = (y > x) & (x <= 0) if False else y @ R.permute_dims(x)\nreturn z"
    )
    names = [binding.value.op.name for binding in func.body.bindings]
    assert names == ["negative", "multiply", "add", "permute_dims", "matmul"]


def test_python_numbers_are_known_while_reading() -> None:
    func = main("a = 2\nb = a * 2\ns = (n, b)\nx += a\nreturn R.reshape(x, s)")
    assert str(func.ret) == 'R.Tensor((n, 4), dtype="float32")'


def test_names_can_be_bound_again() -> None:
    func = main("x = R.exp(x)\nx = R.exp(x)\nreturn x")
    first, second = func.body.bindings
    assert second.value.args[0] is first.var
    assert first.value.args[0] is func.params[0]


def test_tuples() -> None:
    func = main("t = (x, (x, R.tuple()))\na, b = t\nc = b[-2]\nreturn (a, c, t[1][1])")
    assert isinstance(
        func.body.body.annotation if isinstance(func.body.body, Var) else None,
        (TupleType, type(None)),
    )
    assert sum(isinstance(b.value, TupleGetItem) for b in func.body.bindings) == 5
    assert isinstance(func.ret, TupleType)


def test_dataflow_variables() -> None:
    func = main("with R.dataflow():\n    y = R.exp(x)\n    z = R.exp(y)\n    R.output(z)\nreturn z")
    first, second = func.body.bindings
    assert isinstance(first.var, DataflowVar)
    assert not isinstance(second.var, DataflowVar)


def test_a_dataflow_block_may_end_with_the_return() -> None:
    block = "with R.dataflow():\n    y = R.exp(x)\n    z = R.exp(y)\n    "
    for value in ("z", "(z, x)", "R.add(z, z)"):
        func = main(f"{block}return {value}")
        first, second, *_ = func.body.bindings
        assert isinstance(first.var, DataflowVar)
        assert not isinstance(second.var, DataflowVar)
        after = main(f"{block}R.output(z)\nreturn {value}")
        assert relaxpy.structural_equal(func, after)


def test_branches() -> None:
    func = main(
        "if c:\n    t = R.exp(x)\n    y = R.exp(t)\nelif d:\n    y = x\nelse:\n    y = R.flatten(x)\nreturn y",
        'c: R.Tensor((), "bool"), d: R.Prim("bool"), x: R.Tensor(("n", 4), "float32")',
    )
    outer = next(iter(func.body.bindings))
    assert isinstance(outer.value, If)
    assert outer.var.annotation == TensorType(None, "float32")  # both branches' ranks differ
    assert outer.value.otherwise.bindings


def test_a_branch_declared_coarser_stays_so() -> None:
    func = main(
        "y: R.Object\nif c:\n    y = x\nelse:\n    y = R.exp(x)\nreturn y",
        'c: R.Tensor((), "bool"), x: R.Tensor(("n",), "float32")',
    )
    assert next(iter(func.body.bindings)).var.annotation == ObjectType()


def test_nested_functions_capture_and_recur() -> None:
    func = main(
        "@R.function\n"
        'def loop(i: R.Tensor((), "int64"), y: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):\n'
        "    if R.less(i, R.const(1, 'int64')):\n"
        "        z = y\n"
        "    else:\n"
        "        z = loop(R.subtract(i, R.const(1, 'int64')), R.add(x, y))\n"
        "    return z\n"
        "return loop(R.const(3, 'int64'), x)"
    )
    binding = next(iter(func.body.bindings))
    assert isinstance(binding.value, Function)
    n = func.params[0].annotation.dims[0].symbol
    assert binding.value.params[1].annotation.dims[0].symbol is n  # n is the outer function's


def test_declared_annotations() -> None:
    """Proved: kept as declared. Not proved: checked by a match_cast. Refuted: an error."""
    func = main(
        'y: R.Tensor(ndim=2) = R.exp(x)\nz: R.Tensor((3, 4), "float32") = R.exp(x)\nreturn z'
    )
    bindings = list(func.body.bindings)
    assert bindings[0].var.annotation == TensorType(None, None, 2)
    assert isinstance(bindings[2], MatchCast)
    assert (
        refused('y: R.Tensor((n, 3), "float32") = R.exp(x)\nreturn y').code == "annotation-mismatch"
    )


def test_return_annotation() -> None:
    func = main("return x", 'x: R.Tensor("float32", ndim=1)', ' -> R.Tensor((8,), "float32")')
    assert isinstance(next(iter(func.body.bindings)), MatchCast)
    assert refused("return x", ret=' -> R.Tensor(("n", 5), "float32")').code == "return-mismatch"
    assert main("return x", ret=" -> R.Object").ret == ObjectType()


def test_errors_are_not_repeated_at_uses() -> None:
    with pytest.raises(relaxpy.RelaxError) as caught:
        main("y = R.exq(x)\nz = R.exp(y)\nw = R.add(z, y)\nreturn w")
    assert not isinstance(caught.value, ErrorGroup)


def test_parsing_runs_nothing() -> None:
    for line in (
        "y = __import__('os').getcwd()",
        "y = open('x')",
        "y = print('hello')",
        "y = x.__class__",
    ):
        assert refused(line + "\nreturn x").code == "unknown-name"


def test_values_of_a_text() -> None:
    mod = relaxpy.parse(
        "width = 4\n@R.function\ndef f(x: R.Tensor((width,), 'float32')):\n    return x\n"
    )
    assert str(mod["f"].ret) == 'R.Tensor((4,), dtype="float32")'


def test_a_file(tmp_path: object) -> None:
    path = tmp_path / "m.py"  # type: ignore[operator]
    path.write_text("@R.function\ndef f(x: R.Object):\n    return y\n")
    with pytest.raises(ScriptError) as caught:
        relaxpy.parse(path)
    assert caught.value.span is not None
    assert caught.value.span.file == str(path)


@full
@pytest.mark.slow
def test_ten_thousand_bindings_and_deep_nesting() -> None:
    """Neither recursion limits nor a time that grows faster than the program."""
    lines = "\n".join(f"    x{i + 1} = R.exp(x{i})" for i in range(10_000))
    text = f'@R.function\ndef main(x0: R.Tensor((4,), "float32")):\n{lines}\n    return x10000\n'
    parsed(relaxpy.parse(text))
    nested = "R.exp(" * 190 + "x" + ")" * 190
    assert len(list(main(f"return {nested}").body.bindings)) == 190


def test_call_values() -> None:
    """A function that is bound to a name is called by its own; a closure is called as a value."""
    func = main("f = R.ExternFunc('lib.f')\nreturn f(x)", decorator="@R.function(pure=False)")
    call = list(func.body.bindings)[1].value
    assert isinstance(call, Call)
    assert isinstance(call.op, ExternFunc)
    func = main(
        "f: R.Callable = R.call_pure_packed('make', ty_args=R.Callable)\nreturn f(x)",
        decorator="@R.function(pure=False)",
    )
    call = list(func.body.bindings)[1].value
    assert isinstance(call, Call)
    assert isinstance(call.op, Var)
    assert GlobalVar("a") == GlobalVar("a")


def test_captured_symbols() -> None:
    """SymVar objects and type variables of Python become the function's own symbols of that name."""
    n, m = SymVar("n"), TypeVar("m")

    @R.function
    def func(x: R.Tensor((n, m), "float32"), s: R.Shape([n])):
        return R.zeros((m, n), "float32")

    assert str(func.ret) == 'R.Tensor((m, n), dtype="float32")'
    assert func.params[0].annotation.dims[0].symbol is not n
    assert isinstance(func.params[1].annotation, ShapeType)


def test_a_parameter_of_a_program_is_the_symbol_of_its_name() -> None:
    """A scalar parameter hides a type variable and a number of that name, before and behind the buffers."""
    mod = relaxpy.parse("""
n = TypeVar("n")
m = TypeVar("m")
@I.ir_module
class Module:
    @T.prim_func(private=True, s_tir=True)
    def twice(x: T.Buffer((n * 2, "m * 3"), "float32"), n: T.int64, m: T.int64, y: T.Buffer(("n * 2", m * 3), "float32")):
        for i, j in T.grid(n * 2, m * 3):
            y[i, j] = x[i, j] * T.float32(2)

    @R.function
    def main(x: R.Tensor(("n * 2", "m * 3"), "float32"), s: R.Shape([n, m])):
        return R.call_tir(Module.twice, (x, n, m), out_ty=R.Tensor((n * 2, m * 3), "float32"))
""")
    n, m = mod["twice"].params[1:3]
    assert set(mod["twice"].params[0].shape[0].vars) == {n.var}
    assert set(mod["twice"].params[3].shape[1].vars) == {m.var}
    x = np.arange(60, dtype=np.float32).reshape(10, 6)
    np.testing.assert_array_equal(interpret(mod, "main", x, (5, 2)), 2 * x)


PRINTED_BY_TVM = """
# from collections.abc import Callable
from typing import Any, TypeVar
# from tvm.script import ir as I
# from tvm.script import tirx as T
# from tvm.tirx.layout import Axis
# from tvm.script import relax as R

n = TypeVar("n")
m = TypeVar("m")
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def copy(X: T.Buffer((n, 4), "float32"), Y: T.Buffer((n, 4), "float32")):
        # with T.sblock("root"):
        for i, j in T.grid(n, 4):
            with T.sblock("copy"):
                vi, vj = T.axis.remap("SS", [i, j])
                T.reads(X[vi, vj])
                T.writes(Y[vi, vj])
                Y[vi, vj] = X[vi, vj]

    @R.function
    def sub(s: R.Shape([n, m])) -> R.Tensor(("n * m",), dtype="float32"):
        gv: R.Tensor((n * m,), dtype="float32") = R.zeros(R.shape([n * m]), dtype="float32")
        return gv

    @R.function
    def main(x: R.Tensor((n, 4), dtype="float32"), c: R.Tensor((), dtype="bool")) -> R.Tuple(R.Any, R.Tensor(ndim=2)):
        cls = Module
        m = T.int64()
        with R.dataflow():
            lv0 = R.call_tir(cls.copy, (x,), out_ty=R.Tensor((n, 4), dtype="float32"))
            lv1 = R.call_dps_packed("rms_norm", (lv0,), out_ty=R.Tensor((n, 4), dtype="float32"))
            lv2: R.Tensor((m, 4), dtype="float32") = R.match_cast(lv1, R.Tensor((m, 4), dtype="float32"))
            lv3: R.Tensor((m, 4), dtype="float32") = R.add(lv2, R.const(1.0, "float32"))
            lv6: R.Tensor((m, 1), dtype="float32") = R.sum(lv3, axis=[1], keepdims=True)
            lv8: R.Tuple(R.Tensor((m, 2), dtype="float32"), R.Tensor((m, 2), dtype="float32")) = R.split(lv3, indices_or_sections=2, axis=1)
            lv9: R.Tensor((m, 2), dtype="float32") = lv8[0]
            lv9_1: R.Tensor((m, 2), dtype="float16") = R.astype(lv9, dtype="float16")
            R.output(lv3)
        if c:
            y: R.Tensor((m, 4), dtype="float32") = lv3
        else:
            y_else: R.Tensor((m, 4), dtype="float32") = R.exp(lv3)
            y: R.Tensor((m, 4), dtype="float32") = y_else
        z: R.Tensor((n * 4,), dtype="float32") = cls.sub(R.shape([n, 4]))
        q: R.Tensor(ndim=2) = R.call_pure_packed("f", z, y, ty_args=(R.Tensor(ndim=2),))
        return (z, q)
"""


def test_text_printed_by_tvm() -> None:
    """What TVM 0.27 prints, its imports as comments and its symbols as type variables of the module."""
    parsed(relaxpy.parse(PRINTED_BY_TVM))


def test_lowered_programs() -> None:
    """The module after every step of the pipeline is script, too."""
    from relaxpy.build.pipeline import default_pipeline
    from relaxpy.transform.base import PassContext

    mod = relaxpy.parse(PRINTED_BY_TVM)
    for phase in default_pipeline().phases:
        for step in phase.passes:
            mod = step.run(mod, PassContext())
            parsed(mod)


NOT_WELL_FORMED = """
@I.ir_module{0}
class Module:
    @T.prim_func
    def double(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        for i in range(4):
            y[i] = x[i] * T.float32(2)

    @R.function{1}
    def main(x: R.Tensor((3,), "float32")):
        cls = Module
        y = R.call_tir(cls.double, (x,), out_ty=R.Tensor((4,), "float32"))
        return y
"""


def test_check_well_formed() -> None:
    """`check_well_formed=False`, of the module or of a function, reads what the verifier refuses."""
    with pytest.raises(RelaxError):
        relaxpy.parse(NOT_WELL_FORMED.format("", ""))
    for options in (("(check_well_formed=False)", ""), ("", "(check_well_formed=False)")):
        mod = relaxpy.parse(NOT_WELL_FORMED.format(*options))
        assert [error.code for error in well_formed(mod)] == ["wf-prim-func-call"]


@pytest.mark.parametrize(
    ("function", "help"),
    [(len, "its annotation"), (print, "R.print"), (np.exp, "R.exp"), (abs, "R.abs")],
)
def test_python_of_values_in_decorated_code(function: Callable[..., Any], help: str) -> None:
    """Functions of Python would see the program's values as objects of its tree."""
    with pytest.raises(ScriptError, match="of a value of the program") as caught:

        @R.function
        def _main(x: R.Tensor((3,), "float32")):
            return function(x)

    assert caught.value.help is not None
    assert help in caught.value.help


def test_what_is_no_text() -> None:
    with pytest.raises(UsageError, match="got int"):
        relaxpy.parse(3)  # type: ignore[arg-type]
    mod = relaxpy.parse("@R.function\ndef main(x: R.Object):\n    return x\n")
    with pytest.raises(UsageError) as caught:
        relaxpy.parse(mod)  # type: ignore[arg-type]
    assert "is a module already" in str(caught.value)


def test_functions_named_like_operators() -> None:
    """`R.sum` in a function `sum` is no call of itself, nor is `R.log` in `exp` one of `log`."""
    mod = relaxpy.parse("""
@I.ir_module
class Module:
    @R.function
    def sum(x: R.Tensor(("n",), "float32")):
        y = R.sum(x)
        return y

    @R.function
    def exp(x: R.Tensor(("n",), "float32")):
        y = R.log(x)
        return y

    @R.function
    def log(x: R.Tensor(("n",), "float32")):
        cls = Module
        y = R.exp(cls.exp(x))
        return y
""")
    assert str(mod.graph_functions["sum"].ret) == 'R.Tensor((), dtype="float32")'
    assert str(mod.graph_functions["log"].ret) == 'R.Tensor((n,), dtype="float32")'
    with pytest.raises(RelaxError, match="calls itself"):
        relaxpy.parse("""
@I.ir_module
class Module:
    @R.function
    def sum(x: R.Tensor(("n",), "float32")):
        cls = Module
        y = cls.sum(x)
        return y
""")
