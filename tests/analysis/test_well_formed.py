"""Well-formedness: every rule is broken by a program of a few lines, and nothing else is said about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from relaxpy.analysis import check_well_formed, well_formed
from relaxpy.errors import ErrorGroup, Span, VerifyError
from relaxpy.ir import (
    Binding,
    BindingBlock,
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
    SeqExpr,
    ShapeExpr,
    ShapeType,
    SymVar,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
)
from relaxpy.ir.annotation import Annotation
from relaxpy.ir.expr import Expr, seq
from relaxpy.op.binary import Add
from relaxpy.op.call import call_tir
from relaxpy.op.unary import Exp
from relaxpy.tir import te
from relaxpy.tir.prim_func import PrimFunc
from tests.sweeps import full

n, m, p = SymVar("n"), SymVar("m"), SymVar("p")
FLOAT = TensorType((n, 4), "float32")
OBJECT = ObjectType()
SPAN = Span("program.py", 7, 4)


def var(name: str, annotation: Annotation = FLOAT) -> Var:
    return Var(name, annotation)


def bind(variable: Var, value: Expr) -> VarBinding:
    return VarBinding(variable, value, span=SPAN)


def exp(x: Expr) -> Call:
    return Call(Exp(), (x,))


def function(
    params: Sequence[Var],
    bindings: Sequence[Binding],
    result: Expr,
    ret: Annotation = OBJECT,
    *,
    dataflow: bool = False,
    pure: bool = True,
) -> Function:
    block = (DataflowBlock if dataflow else BindingBlock)(tuple(bindings))
    return Function(tuple(params), SeqExpr((block,), result), ret, pure)


def scale_program() -> PrimFunc:
    """out[i, j] = x[i, j] * k for (r, 4) and a scalar k."""
    r, k = SymVar("r"), SymVar("k")
    x = te.placeholder((r, 4), "float32", "x")
    out = te.compute((r, 4), lambda i, j: x[i, j] * te.dim(k).astype("float32"), "out")
    return PrimFunc.from_te([x], [out], [k])


x, y, z, c = var("x"), var("y"), var("z"), var("c", TensorType((), "bool"))
inner = DataflowVar("inner", FLOAT)
callee = function([x], [], x, FLOAT)
impure = function(
    [x], [bind(OUT := var("o", OBJECT), Call(ExternFunc("print"), (x,)))], x, FLOAT, pure=False
)
tensor_call = lambda args, out, scalars=(3,): call_tir(
    GlobalVar("scale"), args, out, None if scalars is None else ShapeExpr(scalars)
)
WIDE = TensorType((n, 5), "float32")

WRONG: dict[str, tuple[Function, str]] = {
    "undefined variable": (function([x], [bind(y, exp(z))], y), "wf-scope"),
    "use before definition": (function([x], [bind(y, exp(z)), bind(z, exp(x))], y), "wf-scope"),
    "variable of a branch": (
        function([x, c], [bind(y, If(c, seq([bind(z, exp(x))], z), seq([], x)))], z),
        "wf-scope",
    ),
    "parameter of a closure": (
        function([x], [bind(y := var("f", OBJECT), function([z], [], z))], z),
        "wf-scope",
    ),
    "dataflow variable outside": (
        function([x], [bind(inner, exp(x))], inner, dataflow=True),
        "wf-scope",
    ),
    "undefined symbol in a shape": (
        function([x], [bind(var("s", OBJECT), ShapeExpr((m,)))], x),
        "wf-sym-scope",
    ),
    "undefined symbol in an annotation": (
        function([x], [bind(var("y", TensorType((m, 4), "float32")), exp(x))], x),
        "wf-sym-scope",
    ),
    "symbol of the body in the result": (
        function(
            [var("a", OBJECT)],
            [MatchCast(y2 := var("b", TensorType((m,))), Constant(np.zeros(3)), TensorType((m,)))],
            y2,
            TensorType((m,)),
        ),
        "wf-sym-scope",
    ),
    "undetermined symbol": (
        function([var("a", TensorType((n.dim + m,)))], [], Tuple(())),
        "wf-sym-scope",
    ),
    "symbol of a branch": (
        function(
            [var("a", TensorType(ndim=1)), c],
            [
                bind(
                    var("b", OBJECT),
                    If(
                        c,
                        seq(
                            [
                                MatchCast(
                                    var("d", TensorType((m,))),
                                    Constant(np.zeros(3)),
                                    TensorType((m,)),
                                )
                            ],
                            ShapeExpr((m,)),
                        ),
                        seq([], ShapeExpr((1,))),
                    ),
                ),
                bind(var("e", OBJECT), ShapeExpr((m,))),
            ],
            Tuple(()),
        ),
        "wf-sym-scope",
    ),
    "defined twice": (function([x], [bind(z, exp(x)), bind(z, exp(x))], z), "wf-single-definition"),
    "parameter twice": (function([x, x], [], x), "wf-single-definition"),
    "nested call": (function([x], [bind(z, exp(exp(x)))], z), "wf-anf"),
    "call in a tuple": (function([x], [bind(var("t", OBJECT), Tuple((exp(x),)))], x), "wf-anf"),
    "call as condition": (
        function([x], [bind(z, If(exp(x), seq([], x), seq([], x)))], z),
        "wf-anf",
    ),
    "call as result": (function([x], [], exp(x)), "wf-anf"),
    "body as value": (function([x], [bind(z, seq([], x))], z), "wf-anf"),
    "call in match_cast": (function([x], [MatchCast(z, exp(x), FLOAT)], z), "wf-anf"),
    "branch in a dataflow block": (
        function([x, c], [bind(z, If(c, seq([], x), seq([], x)))], z, dataflow=True),
        "wf-dataflow",
    ),
    "dataflow variable in a plain block": (function([x], [bind(inner, exp(x))], x), "wf-dataflow"),
    "effect in a dataflow block": (
        function(
            [x],
            [bind(var("e", OBJECT), Call(ExternFunc("print"), (x,)))],
            x,
            dataflow=True,
            pure=False,
        ),
        "wf-dataflow-pure",
    ),
    "effect in a pure function": (
        function([x], [bind(var("e", OBJECT), Call(ExternFunc("print"), (x,)))], x),
        "wf-pure",
    ),
    "effect of a callee": (function([x], [bind(z, Call(GlobalVar("impure"), (x,)))], z), "wf-pure"),
    "unknown callee": (
        function(
            [f := var("f", CallableType(pure=False)), x], [bind(var("e", OBJECT), Call(f, (x,)))], x
        ),
        "wf-pure",
    ),
    "contradicting annotation": (function([x], [bind(var("w", WIDE), exp(x))], x), "wf-annotation"),
    "contradicting dtype": (
        function([x], [bind(var("w", TensorType((n, 4), "int8")), exp(x))], x),
        "wf-annotation",
    ),
    "impossible match_cast": (
        function([x], [MatchCast(var("w", WIDE), x, WIDE)], x),
        "wf-annotation",
    ),
    "contradicting branch": (
        function([x, c], [bind(var("w", ShapeType()), If(c, seq([], x), seq([], x)))], x),
        "wf-annotation",
    ),
    "contradicting result": (function([x], [bind(z, exp(x))], z, WIDE), "wf-return"),
    "kind of result": (function([x], [], ShapeExpr((n,)), FLOAT), "wf-return"),
    "number of arguments": (
        function([x], [bind(z, Call(GlobalVar("callee"), (x, x)))], z),
        "wf-call-arity",
    ),
    "argument": (
        function(
            [w := var("w", WIDE)], [bind(var("r", OBJECT), Call(GlobalVar("callee"), (w,)))], w
        ),
        "wf-call-argument",
    ),
    "callee is a tensor": (
        function([x], [bind(var("r", OBJECT), Call(x, ()))], x),
        "wf-call-argument",
    ),
    "operator's argument": (
        function([x, w], [bind(var("r", OBJECT), Call(Add(), (x, w)))], x),
        "shape-mismatch",
    ),
    "field": (function([x], [bind(z, TupleGetItem(Tuple((x,)), 1))], x), "wf-annotation"),
    "unknown function": (
        function([x], [bind(z, Call(GlobalVar("callees"), (x,)))], z),
        "wf-global",
    ),
    "tensor program called directly": (
        function([x], [bind(z, Call(GlobalVar("scale"), (x,)))], z),
        "wf-prim-func-call",
    ),
    "graph function in call_tir": (
        function([x], [bind(z, call_tir(GlobalVar("callee"), (x,), FLOAT))], z),
        "wf-prim-func-call",
    ),
    "number of tensors": (
        function([x], [bind(z, tensor_call((x, x), FLOAT))], z),
        "wf-prim-func-call",
    ),
    "number of scalars": (
        function([x], [bind(z, tensor_call((x,), FLOAT, None))], z),
        "wf-prim-func-call",
    ),
    "dimension of a program": (
        function([w], [bind(var("r", WIDE), tensor_call((w,), WIDE))], w),
        "wf-prim-func-call",
    ),
    "dtype of a program": (
        function(
            [h := var("h", TensorType((n, 4), "float16"))],
            [bind(var("r", OBJECT), tensor_call((h,), FLOAT))],
            h,
        ),
        "wf-prim-func-call",
    ),
    "rank of a program": (
        function(
            [h1 := var("h", TensorType((n,), "float32"))],
            [bind(var("r", OBJECT), tensor_call((h1,), FLOAT))],
            h1,
        ),
        "wf-prim-func-call",
    ),
    "dimension of an output": (
        function(
            [x],
            [bind(var("r", OBJECT), tensor_call((x,), TensorType((n.dim + 1, 4), "float32")))],
            x,
        ),
        "wf-prim-func-call",
    ),
}


def module(main: Function) -> IRModule:
    fresh = {"callee": function([a := var("x")], [], a, FLOAT)}
    effect = function(
        [b := var("x")],
        [bind(var("o", OBJECT), Call(ExternFunc("print"), (b,)))],
        b,
        FLOAT,
        pure=False,
    )
    return IRModule({"main": main, **fresh, "impure": effect, "scale": scale_program()})


@pytest.mark.parametrize("name", WRONG)
def test_violation(name: str) -> None:
    """The rule that is broken is named, and only that."""
    main, code = WRONG[name]
    assert {error.code for error in well_formed(module(main))} == {code}


def good() -> dict[str, Function]:
    v = [var(f"v{i}") for i in range(8)]
    cond = var("c", TensorType((), "bool"))
    lv, gv = DataflowVar("lv", FLOAT), var("gv")
    unknown = var("u", TensorType(None, "float32", 2))
    known = var("k", TensorType((m, p.dim * 2), "float32"))
    recursive = var("loop", CallableType([FLOAT], FLOAT))
    a, b = var("a"), var("b")
    return {
        "dataflow": function(
            [v[0]], [bind(lv, exp(v[0])), bind(gv, exp(lv))], gv, FLOAT, dataflow=True
        ),
        "branch": function(
            [v[1], cond], [bind(v[2], If(cond, seq([], v[1]), seq([], v[1])))], v[2], FLOAT
        ),
        "match_cast": function(
            [unknown],
            [
                MatchCast(known, unknown, known.annotation),
                bind(var("s", ShapeType((p,))), ShapeExpr((p,))),
            ],
            known,
            TensorType(None, "float32", 2),
        ),
        "coarser": function([v[3]], [bind(var("o", OBJECT), exp(v[3]))], v[3], TensorType()),
        "unknown": function(
            [var("q", OBJECT)],
            [bind(w := var("w", FLOAT2 := TensorType((3,))), Constant(np.zeros(3)))],
            w,
            FLOAT2,
        ),
        "recursion": function(
            [v[4]],
            [
                bind(recursive, function([a], [bind(b, Call(recursive, (a,)))], b, FLOAT)),
                bind(v[5], Call(recursive, (v[4],))),
            ],
            v[5],
            FLOAT,
        ),
        "effect": function(
            [v[6]],
            [bind(var("e", OBJECT), Call(ExternFunc("f"), (v[6],)))],
            v[6],
            FLOAT,
            pure=False,
        ),
        "call_tir": function(
            [v[7]], [bind(t := var("t"), tensor_call((v[7],), FLOAT, (n.dim + 1,)))], t, FLOAT
        ),
        "scalar": function(
            [var("s", PrimType("int64", m))], [], ShapeExpr((m.dim + 1,)), ShapeType((m.dim + 1,))
        ),
        "determined": function([var("d", TensorType((m.dim * 2 + 1,)))], [], ShapeExpr((m,))),
    }


@pytest.mark.parametrize("name", good())
def test_good(name: str) -> None:
    """Nothing is said about what is right."""
    assert [str(error.message) for error in well_formed(module(good()[name]))] == []


def test_all_violations_are_found() -> None:
    """One run tells all of them, in the order of the program, and check_well_formed raises them together."""
    main = function(
        [a := var("a")],
        [bind(b := var("b"), exp(z)), bind(var("w", WIDE), exp(a))],
        b,
        TensorType((1, 4)),
    )
    mod = module(main)
    assert [error.code for error in well_formed(mod)] == ["wf-scope", "wf-annotation"]
    with pytest.raises(ErrorGroup) as caught:
        check_well_formed(mod)
    assert len(caught.value.errors) == 2
    check_well_formed(module(good()["dataflow"]))


def test_single_violation_is_raised_itself() -> None:
    with pytest.raises(VerifyError) as caught:
        check_well_formed(module(WRONG["undefined variable"][0]))
    assert caught.value.code == "wf-scope"
    assert caught.value.span == SPAN


def test_a_name_that_is_nearly_right() -> None:
    (error,) = well_formed(module(WRONG["unknown function"][0]))
    assert error.help == "did you mean callee?"


def test_one_variable_in_two_functions() -> None:
    """A variable is defined once in a module; a symbol once in a function."""
    a = var("a")
    mod = IRModule({"f": function([a], [], a), "g": function([a], [], a)})
    assert [error.code for error in well_formed(mod)] == ["wf-single-definition"]


@full
@pytest.mark.slow
def test_long_and_deep() -> None:
    """10 000 bindings and 200 nested branches."""
    start = last = var("x")
    bindings: list[Any] = []
    for i in range(10_000):
        bindings.append(bind(var(f"v{i}"), exp(last)))
        last = bindings[-1].var
    assert well_formed(IRModule({"f": function([start], bindings, last, FLOAT)})) == []
    cond, source = var("c", TensorType((), "bool")), var("s")
    body = seq([], source)
    for i in range(200):
        v = var(f"b{i}")
        body = seq([bind(v, If(cond, body, seq([], source)))], v)
    assert well_formed(IRModule({"f": Function((cond, source), body, FLOAT)})) == []


def test_two_functions_of_one_global_symbol() -> None:
    first, second = (function([x := var("x", FLOAT)], [], x) for _ in range(2))
    attrs = {"global_symbol": "k"}
    mod = IRModule({"f": replace(first, attrs=attrs), "g": replace(second, attrs=attrs)})
    assert [error.code for error in well_formed(mod)] == ["wf-attribute"]
