"""BlockBuilder: what it builds is well formed, in A-normal form, with deduced annotations."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from relaxpy.analysis import well_formed
from relaxpy.errors import DeduceError, RelaxError, Span, UsageError
from relaxpy.ir import (
    Call,
    DataflowBlock,
    DataflowVar,
    Function,
    GlobalVar,
    IRModule,
    MatchCast,
    ObjectType,
    ShapeExpr,
    SymVar,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Var,
    VarBinding,
)
from relaxpy.ir.expr import is_leaf
from relaxpy.ir.structural import structural_equal
from relaxpy.op.binary import Add, Multiply
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.op.call import CallTIR
from relaxpy.op.unary import Exp, Tanh
from relaxpy.script.parser import parse
from relaxpy.tir import te

n, m = SymVar("n"), SymVar("m")
FLOAT = TensorType((n, 4), "float32")


def tensor(name: str = "x") -> Var:
    return Var(name, FLOAT)


def built(bb: BlockBuilder, name: str = "main") -> Function:
    """The function, in a module that is well formed."""
    mod = bb.get()
    assert [e.message for e in well_formed(mod)] == []
    function = mod[name]
    assert isinstance(function, Function)
    return function


def test_a_function() -> None:
    bb = BlockBuilder()
    x = tensor()
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(Exp()(x))
            out = bb.emit_output(Add()(y, x))
        bb.emit_func_output(out)
    func = built(bb)
    assert func.ret == FLOAT
    assert func.attrs == {"global_symbol": "main"}
    (block,) = func.body.blocks
    assert isinstance(block, DataflowBlock)
    assert [type(b.var) for b in block.bindings] == [DataflowVar, Var]
    assert [b.var.annotation for b in block.bindings] == [FLOAT, FLOAT]


def test_nested_calls_are_flattened() -> None:
    """Arguments that are no leaves are bound first, in order of evaluation."""
    bb = BlockBuilder()
    x = tensor()
    with bb.function("main", [x]):
        bb.emit_func_output(Add()(Exp()(Tanh()(x)), Multiply()(x, Exp()(x))))
    names = [b.value.op.name for b in built(bb).body.bindings if isinstance(b.value, Call)]  # type: ignore[union-attr]
    assert names == ["tanh", "exp", "exp", "multiply", "add"]


def test_an_expression_that_is_used_twice_is_computed_once() -> None:
    """Written out, the sum would be computed 2 ** 40 times; a call is made once."""
    bb = BlockBuilder()
    x = tensor()
    with bb.function("main", [x]):
        value = Exp()(x)
        for _ in range(40):
            value = Add()(value, value)
        pair = Tuple((value, value))
        with bb.dataflow():
            inner = bb.emit_output(TupleGetItem(pair, 0))
        kept = Tanh()(inner)
        first = bb.emit(kept)
        bb.emit_func_output(Add()(Add()(kept, first), value))
    bindings = [binding for block in built(bb).body.blocks for binding in block.bindings]
    names = [b.value.op.name for b in bindings if isinstance(b.value, Call)]  # type: ignore[union-attr]
    assert names.count("exp") == 2  # what a dataflow block defines is not visible behind it
    assert names.count("add") == 82
    assert names.count("tanh") == 1


def test_random_programs_are_well_formed() -> None:
    """Whatever is emitted, in whatever nesting, the module is well formed and its calls have leaves for arguments."""
    for seed in range(30):
        rng = random.Random(seed)
        bb = BlockBuilder()
        x, c = tensor(), Var("c", TensorType((), "bool"))
        with bb.function("main", [x, c]):
            bb.emit_func_output(_body(bb, rng, [x], c, depth=2))
        func = built(bb)
        for binding in func.body.bindings:
            if isinstance(binding, VarBinding) and isinstance(binding.value, Call):
                assert all(map(is_leaf, binding.value.args))


def _body(bb: BlockBuilder, rng: random.Random, known: list[Var], cond: Var, depth: int) -> Var:
    known = list(known)
    for _ in range(rng.randrange(1, 5)):
        kind = rng.randrange(4)
        if kind == 0:
            with bb.dataflow():
                inner = bb.emit(_expression(rng, known))
                known.append(bb.emit_output(_expression(rng, [*known, inner])))
        elif kind == 1 and depth:
            with bb.seq() as then:
                then.result(_body(bb, rng, known, cond, depth - 1))
            with bb.seq() as otherwise:
                otherwise.result(_body(bb, rng, known, cond, depth - 1))
            known.append(bb.emit_if(cond, then.seq, otherwise.seq))
        elif kind == 2:
            known.append(bb.match_cast(rng.choice(known), FLOAT))
        else:
            known.append(bb.emit(_expression(rng, known)))
    return known[-1]


def _expression(rng: random.Random, known: list[Var], depth: int = 2) -> Any:
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(known)
    inner = _expression(rng, known, depth - 1)
    match rng.randrange(4):
        case 0:
            return Call(Exp(), (inner,))
        case 1:
            return Call(Add(), (inner, _expression(rng, known, depth - 1)))
        case 2:
            return TupleGetItem(Tuple((inner, rng.choice(known))), 0)
        case _:
            return Call(Multiply(), (inner, inner))


def test_same_calls_same_module() -> None:
    def make() -> IRModule:
        bb = BlockBuilder()
        s = SymVar("s")
        x = Var("x", TensorType((s,), "float32"))
        with bb.function("main", [x]):
            bb.emit_func_output(Exp()(Exp()(x)))
        return bb.get()

    assert structural_equal(make(), make())


def test_names_are_unique() -> None:
    """Variables get names of their own, starting with the hint, in each function anew."""
    bb = BlockBuilder()
    for function in ("f", "g"):
        x = tensor()
        with bb.function(function, [x]):
            a = bb.emit(Exp()(x), "x")
            b = bb.emit(Exp()(a), "y")
            c = bb.emit(Exp()(b), "y")
            bb.emit_func_output(c)
        assert [a.name, b.name, c.name] == ["x1", "y", "y1"]
    built(bb, "f")


def test_match_cast() -> None:
    bb = BlockBuilder()
    x = Var("x", ObjectType())
    wanted = TensorType((m, 4), "float32")
    with bb.function("main", [x]):
        y = bb.match_cast(x, wanted)
        shape = bb.emit(ShapeExpr((m,)))
        bb.emit_func_output(Tuple((y, shape)))
    func = built(bb)
    assert isinstance(next(iter(func.body.bindings)), MatchCast)
    # m is known inside only
    assert isinstance(func.ret, TupleType)
    assert func.ret.fields[0] == TensorType(None, "float32", 2)


def test_mistakes_are_located() -> None:
    bb = BlockBuilder()
    x, y = tensor(), Var("y", TensorType((3, 5), "float32"))
    span = Span("model.py", 12, 4)
    with pytest.raises(DeduceError) as caught, bb.function("main", [x, y]):
        bb.emit(Add()(x, y), span=span)
    assert caught.value.span == span
    # the builder is usable afterwards
    with bb.function("main", [tensor()]):
        bb.emit_func_output(ShapeExpr((1,)))
    built(bb)


def test_misuse() -> None:
    bb = BlockBuilder()
    with pytest.raises(UsageError, match="no function"):
        bb.emit(ShapeExpr((1,)))
    with pytest.raises(UsageError, match="no result"), bb.function("main", []):
        pass
    with (
        pytest.raises(UsageError, match="cannot be nested"),
        bb.function("f", []),
        bb.dataflow(),
        bb.dataflow(),
    ):
        pass


def test_call_te() -> None:
    """A function on te tensors becomes a tensor program and a call of it, with symbols in no shape as scalars."""
    bb = BlockBuilder()
    x = tensor()

    def scaled(t: te.Tensor) -> te.Tensor:
        return te.compute((n.dim * 2, 4), lambda i, j: t[i % te.dim(n), j] * 2.0, "out")

    with bb.function("main", [x]):
        y = bb.emit(bb.call_te(scaled, x))
        bb.emit_func_output(y)
    func = built(bb)
    assert func.ret == TensorType((n.dim * 2, 4), "float32")
    (binding,) = func.body.bindings
    assert isinstance(binding.value, Call)
    assert isinstance(binding.value.op, CallTIR)
    assert binding.value.args[0] == GlobalVar("scaled")
    assert [p.name for p in bb.get().prim_funcs["scaled"].params] == ["x0", "out"]


def test_call_te_outputs() -> None:
    """Several outputs are a tuple; a result that is an input is copied, so that it has memory of its own."""
    bb = BlockBuilder()
    x = tensor()
    with bb.function("main", [x]):
        bb.emit_func_output(bb.emit(bb.call_te(lambda t: (t, te.topi.exp(t)), x, name="both")))
    assert built(bb).ret == TupleType([FLOAT, FLOAT])
    assert len(bb.get().prim_funcs["both"].params) == 3


def test_private_and_impure() -> None:
    bb = BlockBuilder()
    with bb.function("f", [tensor()], private=True, pure=False):
        bb.emit_func_output(ShapeExpr((1,)))
    func = built(bb, "f")
    assert not func.attrs
    assert not func.pure


def test_outputs_where_there_can_be_none() -> None:
    bb, x = BlockBuilder(), tensor()
    with bb.function("main", [x]):
        with pytest.raises(UsageError, match="outside a dataflow block"):
            bb.emit_output(Exp()(x))
        bb.emit_func_output(x)
        with pytest.raises(UsageError, match="a result already"):
            bb.emit_func_output(x)
    assert built(bb).body.body is x


def test_many_bindings_with_one_hint() -> None:
    """Names are found at once, however many are taken."""
    bb, x = BlockBuilder(), tensor()
    with bb.function("main", [x]):
        y = x
        for _ in range(3000):
            y = bb.emit(Exp()(y))
        bb.emit_func_output(y)
    names = [binding.var.name for binding in built(bb).body.bindings]
    assert names[:3] == ["lv", "lv1", "lv2"]
    assert len(set(names)) == 3000


def foreign(build: Callable[[BlockBuilder, Var], Any]) -> RelaxError:
    bb, x = BlockBuilder(), tensor()
    with pytest.raises(RelaxError) as caught, bb.function("main", [x]):
        build(bb, x)
    assert caught.value.code == "builder"
    return caught.value


def test_variables_of_elsewhere_are_refused() -> None:
    """Where they are used: in a call, nested in one, as a result, in a cast, and in a branch."""
    other = tensor("elsewhere")

    def in_a_branch(bb: BlockBuilder, x: Var) -> None:
        with bb.seq() as then:
            then.result(other)

    for build in (
        lambda bb, x: bb.emit(Exp()(other)),
        lambda bb, x: bb.emit(Add()(x, Exp()(other))),
        lambda bb, x: bb.emit_func_output((x, other)),
        lambda bb, x: bb.match_cast(other, FLOAT),
        in_a_branch,
    ):
        assert "elsewhere is not defined" in foreign(build).message


def test_what_ended_is_refused() -> None:
    """A dataflow variable after its block, a variable of a branch after it, one of another function of the builder."""

    def after_dataflow(bb: BlockBuilder, x: Var) -> None:
        with bb.dataflow():
            inner = bb.emit(Exp()(x), "inner")
            bb.emit_output(inner)
        bb.emit(Exp()(inner))

    def after_branch(bb: BlockBuilder, x: Var) -> None:
        with bb.seq() as then:
            inner = bb.emit(Exp()(x), "inner")
            then.result(inner)
        bb.emit(Exp()(inner))

    def inside_another(bb: BlockBuilder, x: Var) -> None:
        inner = bb.emit(Exp()(x), "inner")
        with bb.function("other", [tensor()]):
            bb.emit(Exp()(inner))

    for build in (after_dataflow, after_branch, inside_another):
        assert "inner is not defined" in foreign(build).message


def test_symbols_of_elsewhere_are_refused() -> None:
    """A symbol comes from a parameter or a cast."""
    k = SymVar("k")
    assert "k is not defined" in foreign(lambda bb, x: bb.emit(ShapeExpr([k.dim]))).message
    bb, x = BlockBuilder(), tensor()
    with bb.function("main", [x]):
        bb.match_cast(x, TensorType((k, 4), "float32"))
        bb.emit_func_output(bb.emit(ShapeExpr([k.dim * 2])))
    assert len(list(built(bb).body.bindings)) == 2


def test_the_place_of_a_foreign_variable() -> None:
    bb, x, place = BlockBuilder(), tensor(), Span("model.py", 3)
    with pytest.raises(RelaxError) as caught, bb.function("main", [x]):
        bb.emit(Exp()(tensor("y")), span=place)
    assert caught.value.span == place


def test_parameters_are_variables() -> None:
    message = "the parameters of main must be variables, got 'x'"
    wrong: Any = ["x"]
    with (
        pytest.raises(UsageError, match=message) as caught,
        BlockBuilder().function("main", wrong),
    ):
        pass
    assert caught.value.code == "builder"


def test_a_result_that_may_be_what_is_declared() -> None:
    """It is checked by a `match_cast`, as where a function is parsed: the text gives an equal module."""
    bb = BlockBuilder()
    x = tensor()
    declared = TensorType((m, 4), "float32")
    with bb.function("main", [x, Var("y", declared)], ret=declared):
        bb.emit_func_output(Exp()(x))
    function = built(bb)
    *_, last = function.body.bindings
    assert isinstance(last, MatchCast)
    assert last.annotation == declared
    assert structural_equal(bb.get(), parse(bb.get().script()))
