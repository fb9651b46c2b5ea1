"""Scripts nested deeper than Python's own parser takes, and what such programs go through."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import well_formed
from relaxpy.errors import ScriptError
from relaxpy.ir import (
    BindingBlock,
    Call,
    Function,
    If,
    IRModule,
    SeqExpr,
    TensorType,
    Tuple,
    TupleType,
    Var,
    VarBinding,
    nesting,
)
from relaxpy.ir.annotation import Annotation
from relaxpy.ir.expr import Expr
from relaxpy.ir.structural import structural_hash
from relaxpy.op import add, exp
from relaxpy.op.deduce import deduce
from relaxpy.transform.normalize import Normalize
from tests.sweeps import full, part

ROOT = Path(__file__).resolve().parent.parent.parent
VECTOR = TensorType((4,), "float32")
DEPTH = 200


def seq(*bindings: tuple[Var, Expr]) -> SeqExpr:
    block = BindingBlock(tuple(VarBinding(var, value) for var, value in bindings))
    return SeqExpr((block,), bindings[-1][0])


def module(params: tuple[Var, ...], body: SeqExpr, ret: Annotation = VECTOR) -> IRModule:
    return IRModule({"main": Function(params, body, ret, attrs={"global_symbol": "main"})})


def nested_branches(depth: int) -> IRModule:
    cond, x = Var("c", TensorType((), "bool")), Var("x", VECTOR)
    body = seq((Var("v", VECTOR), exp(x)))
    for _ in range(depth):
        body = seq((Var("g", VECTOR), If(cond, body, seq((Var("v", VECTOR), add(x, x))))))
    return module((cond, x), body)


def nested_functions(depth: int) -> IRModule:
    """Each calls the one inside it; the innermost captures the outermost's parameter."""
    x, p = Var("x", VECTOR), Var("p", VECTOR)
    inner = Function((p,), seq((Var("v", VECTOR), add(p, x))), VECTOR)
    for level in range(depth):
        p, f = Var(f"p{level}", VECTOR), Var(f"f{level}", inner.annotation)
        inner = Function((p,), seq((f, inner), (Var("r", VECTOR), Call(f, (p,)))), VECTOR)
    f = Var("f", inner.annotation)
    return module((x,), seq((f, inner), (Var("r", VECTOR), Call(f, (x,)))))


def nested_tuple(depth: int) -> IRModule:
    x = Var("x", VECTOR)
    value: Expr = x
    for _ in range(depth):
        value = Tuple((value,))
    ret = deduce(value)
    assert isinstance(ret, TupleType)
    return module((x,), seq((Var("t", ret), value)), ret)


def every_stage(mod: IRModule) -> None:
    """What must work on any program without a `RecursionError`."""
    again = relaxpy.parse(mod.script())
    relaxpy.assert_structural_equal(mod, again)
    assert structural_hash(mod) == structural_hash(again)
    assert well_formed(mod) == []
    assert Normalize()(mod) is mod
    main = mod["main"]
    assert isinstance(main, Function)
    assert deduce(main.body, mod) == main.ret


@pytest.mark.parametrize("depth", part([DEPTH, 97], 2))
def test_nested_branches(depth: int) -> None:
    mod = nested_branches(depth)
    every_stage(mod)
    run = relaxpy.VirtualMachine(relaxpy.build(mod))["main"]
    x = np.ones(4, "float32")
    np.testing.assert_allclose(run(np.array(True), x).numpy(), np.exp(x), rtol=1e-6)
    np.testing.assert_array_equal(run(np.array(False), x).numpy(), x + x)


@full
def test_nested_functions() -> None:
    mod = nested_functions(DEPTH // 2)
    every_stage(mod)
    run = relaxpy.VirtualMachine(relaxpy.build(mod))["main"]
    np.testing.assert_array_equal(run(np.ones(4, "float32")).numpy(), np.full(4, 2, "float32"))


def test_nested_tuples() -> None:
    mod = nested_tuple(DEPTH)
    every_stage(mod)
    found = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](np.ones(4, "float32"))
    for _ in range(DEPTH):
        (found,) = found
    assert found.shape == (4,)


def test_nested_calls() -> None:
    """In the source, and in a program put together by hand."""
    depth = 300
    text = f"""@R.function
def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    y = {"R.tanh(" * depth}x{")" * depth}
    return y
"""
    mod = relaxpy.parse(text)
    every_stage(mod)
    main = mod["main"]
    assert isinstance(main, Function)
    assert len(list(main.body.bindings)) == depth
    innermost = next(iter(main.body.bindings))
    assert innermost.span is not None
    assert innermost.span.column == 8 + 7 * (depth - 1)


def test_a_mistake_deep_inside_is_where_it_is() -> None:
    opening = "R.tanh(" * 250
    text = (
        f'@R.function\ndef main(x: R.Tensor((4,), "float32")):\n    return {opening}ä{")" * 250}\n'
    )
    with pytest.raises(ScriptError) as raised:
        relaxpy.parse(text)
    span = raised.value.span
    assert span is not None
    assert (span.line, span.column, span.end_column) == (3, 11 + 7 * 250, 12 + 7 * 250)


def test_invalid_python_deep_inside_is_where_it_is() -> None:
    lines = ["@R.function", "def main(c, x):"]
    lines += ["    " * level + "if c:" for level in range(1, 150)]
    for wrong in ("y = = x", "y = (x"):
        text = "\n".join([*lines, "    " * 150 + wrong, "    return y"]) + "\n"
        with pytest.raises(ScriptError) as raised:
            relaxpy.parse(text)
        assert raised.value.span is not None
        assert raised.value.span.line >= 152


def test_pieces_that_are_assigned_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bracket that is cut out of a target is a target, with all targets in it."""
    monkeypatch.setattr(nesting, "BRACKETS", 2)
    text = "\n".join([
        "x = [a for (a, (b, [c, *d])), (e) in y]", "(p, (q[0], r.s)), [t, [*f]] = u",
        "for (v, (w)) in z:", "    del (v, [w])", "",
    ])  # fmt: skip
    expected = ast.dump(ast.parse(text), include_attributes=True)
    assert ast.dump(nesting.parse_nested(text), include_attributes=True) == expected


def test_pieces_give_the_tree_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut at every other level, our own sources (those without `match`) give Python's own tree, places included."""
    monkeypatch.setattr(nesting, "INDENTS", 2)
    monkeypatch.setattr(nesting, "BRACKETS", 4)
    for path in sorted((ROOT / "relaxpy").rglob("*.py"))[::25]:
        text = path.read_text("utf-8")
        tree = ast.parse(text)
        if not any(isinstance(node, ast.Match) for node in ast.walk(tree)):
            expected = ast.dump(tree, include_attributes=True)
            assert ast.dump(nesting.parse_nested(text), include_attributes=True) == expected, path
