"""Programs that contradict themselves are refused, at their place."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.errors import RelaxError

HEADER = "from relaxpy.script import ir as I, relax as R, tir as T\n"


def function(body: str, params: str = 'x: R.Tensor((4,), "float32")', options: str = "") -> str:
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    return f"{HEADER}@R.function{options}\ndef f({params}):\n{lines}"


def module(*functions: str) -> str:
    text = "\n".join(functions).removeprefix(HEADER)
    inside = "".join(f"    {line}\n" for line in text.replace(HEADER, "").splitlines())
    return f"{HEADER}@I.ir_module\nclass Module:\n{inside}"


def named(name: str, symbol: str, options: str = "") -> str:
    return function(
        f'R.func_attr({{"global_symbol": {symbol}}})\nreturn x', options=options
    ).replace("def f(", f"def {name}(")


PROGRAM = """@T.prim_func{options}
def k(x: T.Buffer(({dim},), "float32")):
    {attr}
    for i in range(4):
        x[i] = T.float32(0)
"""


def program(attr: str = "", options: str = "", dim: str = "4") -> str:
    return HEADER + PROGRAM.format(attr=attr or "pass", options=options, dim=dim)


REFUSED = {
    "negative rank": (function("return x", 'x: R.Tensor(dtype="float32", ndim=-2)'), "bad-annotation", "ndim"),
    "negative rank of a shape": (function("return x", "x: R.Shape(ndim=-2)"), "bad-annotation", "ndim"),
    "huge rank": (function("return R.add(x, x)", "x: R.Tensor(ndim=10**9)"), "bad-annotation", "64"),
    "huge rank of a shape": (function("return x", "x: R.Shape(ndim=10**9)"), "bad-annotation", "ndim"),
    "rank is a float": (function("return x", "x: R.Tensor(ndim=2.5)"), "bad-annotation", "2.5"),
    "rank is a string": (function("return x", 'x: R.Tensor(ndim="2")'), "bad-annotation", "'2'"),
    "rank is a bool": (function("return x", "x: R.Tensor(ndim=True)"), "bad-annotation", "True"),
    "rank of a shape": (function("return x", "x: R.Shape([3, 4], ndim=3)"), "bad-annotation", "ndim=3"),
    "rank of a shape variable": (
        function("return x", "s: R.Shape(ndim=2), x: R.Tensor(s, ndim=3)"), "bad-annotation", "ndim=3"),
    "too many dimensions": (function("return x", "x: R.Tensor((1,) * 10**6)"), "bad-annotation", "64"),
    "too many dimensions deduced": (
        function('return R.ones([1] * 65, "float32")'), "bad-annotation", "64 dimensions, not 65"),
    "device is a number": (function("return x", 'x: R.Tensor((4,), "float32", 3.5)'), "bad-annotation", "vdevice"),
    "purity is a string": (
        function("return x", 'x: R.Callable((R.Object,), R.Object, "no")'), "bad-annotation", "purity"),
    "value of a float": (function("return n", 'n: R.Prim("float32", value="n")'), "bad-annotation", "float32"),
    "int32 symbol": (function("n = T.int32()\nreturn x", 'x: R.Tensor(("n",))'), "bad-value", "int64"),
    "int32 symbol of a cast": (
        function("m = T.int32()\ny = R.match_cast(x, R.Tensor((m,)))\nreturn y", "x: R.Tensor(ndim=1)"), "bad-annotation", "m is int32"),
    "float symbol": (function("n = T.float32()\nreturn x"), "bad-value", "integer"),
    "int32 symbol around": (
        function("return x", "x: R.Tensor((n,))").replace("@R", "n = T.int32()\n@R"), "bad-annotation", "n is int32"),
    "int32 scalar before": (
        function("return x", 'n: R.Prim("int32"), x: R.Tensor(("n",))'), "bad-annotation", "parameter n is int32"),
    "int32 scalar after": (
        function("return x", 'x: R.Tensor(("n",)), n: R.Prim("float32")'), "bad-annotation", "n is float32"),
    "float symbol of a program": (program("n = T.float32()", dim='"n"'), "tir-dtype", "integer"),
    "loose value": (function("R.add(x, x)\nreturn x"), "unused-value", "not used"),
    "loose value of an operator": (function("x + x\nreturn x"), "unused-value", "not used"),
    "loose value in a dataflow block": (
        function("with R.dataflow():\n    R.add(x, x)\n    y = x\n    R.output(y)\nreturn y"), "unused-value", "not used"),
    "loose call": (
        module(function("return x"), function("Module.f(x)\nreturn x").replace("def f", "def g")),
        "unused-value", "not used"),
    "symbol twice": (module(named("f", '"k"'), named("g", '"k"')), "duplicate-name", "the same global symbol"),
    "symbol of another": (module(named("f", '"g"'), named("g", '"g"')), "duplicate-name", "the same global symbol"),
    "symbol of a program": (
        module(function("return x"), program('T.func_attr({"global_symbol": "f"})')), "duplicate-name", "the same global"),
    "private with a symbol": (named("f", '"f"', "(private=True)"), "bad-value", "private"),
    "private program with a symbol": (
        program('T.func_attr({"global_symbol": "k"})', "(private=True)"), "bad-value", "private"),
    "symbol is a number": (named("f", "3"), "wf-attribute", "a name"),
    "attribute of another type": (
        function('R.func_attr({"num_input": "x"})\nreturn x'), "wf-attribute", "a number of parameters"),
    "negative attribute": (function('R.func_attr({"num_input": -1})\nreturn x'), "wf-attribute", "negative"),
    "purity is forced by a text": (
        function('R.func_attr({"relax.force_pure": "x"})\nreturn x'), "wf-attribute", "True or False"),
    "unknown option": (function("return x", options="(prvate=True)"), "op-arguments", "private"),
    "option of another type": (function("return x", options='(private="no")'), "op-arguments", "True or False"),
    "option is a number": (function("return x", options="(pure=3)"), "op-arguments", "True or False"),
    "option keyword arguments only": (function("return x", options="(True)"), "op-arguments", "keyword arguments only"),
    "unknown option of a program": (program(options="(prvate=True)"), "op-arguments", "private"),
    "unknown option of a module": (
        module(function("return x")).replace("ir_module", "ir_module(foo=1)"), "op-arguments", "foo"),
    "module attribute twice": (
        module('I.module_attrs({"a": 1})', 'I.module_attrs({"a": 2})', function("return x")), "bad-value", "twice"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "code", "match"), REFUSED.values(), ids=list(REFUSED))
def test_is_refused(text: str, code: str, match: str) -> None:
    with pytest.raises(RelaxError) as caught:
        relaxpy.parse(text)
    assert caught.value.code == code
    assert match in str(caught.value)
    assert caught.value.span is not None


@pytest.mark.parametrize(
    "statement",
    [
        'R.print(x, format="{}")',
        "R.assert_op(R.const(True))",
        'R.call_packed("f", x)',
        'R.call_packed("f", x, ty_args=R.Tuple())',
        'R.call_packed("f", x, ty_args=R.Tensor)',
    ],
)
def test_a_call_for_its_effect_is_a_statement(statement: str) -> None:
    mod = relaxpy.parse(function(f"{statement}\nreturn x", options="(pure=False)"))
    assert relaxpy.structural_equal(mod, relaxpy.parse(mod.script()))


def test_symbols_of_programs_are_of_any_integer_type() -> None:
    text = program("n = T.int32()", dim='"n"').replace("    pass\n", "")
    assert relaxpy.parse(text).script() == relaxpy.parse(relaxpy.parse(text).script()).script()
