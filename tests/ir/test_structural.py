"""Structural equality and hash: equal up to names, different in anything else, at any length and depth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from relaxpy.ir import (
    BindingBlock,
    Call,
    CallableType,
    Constant,
    DataflowBlock,
    DataflowVar,
    DataTypeImm,
    Dim,
    ExternFunc,
    Function,
    GlobalVar,
    If,
    IRModule,
    MatchCast,
    ObjectType,
    PrimType,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    ShapeType,
    StringImm,
    SymVar,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Var,
    VarBinding,
)
from relaxpy.ir.expr import seq
from relaxpy.ir.structural import assert_structural_equal, structural_equal, structural_hash
from relaxpy.op.binary import Add
from relaxpy.op.reduce import Sum
from relaxpy.op.unary import Exp, Tanh


def chain(length: int, name: str = "v", symbol: str = "n") -> Function:
    """`length` bindings, each of the one before."""
    n = SymVar(symbol)
    x = Var("x", TensorType((n, n.dim * 2), "float32"))
    bindings: list[VarBinding] = []
    last: Var = x
    for i in range(length):
        last = Var(f"{name}{i}", x.annotation)
        bindings.append(VarBinding(last, Call(Exp(), (bindings[-1].var if bindings else x,))))
    return Function((x,), seq(bindings, last), x.annotation)


def nested(depth: int) -> Function:
    """Branches inside branches."""
    cond = Var("c", TensorType((), "bool"))
    x = Var("x", TensorType((4,), "float32"))
    body = seq([], x)
    for _ in range(depth):
        var = Var("y", x.annotation)
        body = seq([VarBinding(var, If(cond, body, seq([], x)))], var)
    return Function((cond, x), body, x.annotation)


def binding(value: Any, annotation: Any = None, kind: type[Var] = Var) -> Function:
    """A function of x: (n, m) that binds one value."""
    n, m = SymVar("n"), SymVar("m")
    x = Var("x", TensorType((n, m), "float32"))
    made = value(x, n, m) if callable(value) else value
    var = kind("v", annotation(n, m) if annotation else ObjectType())
    block = DataflowBlock if kind is DataflowVar else BindingBlock
    return Function((x,), SeqExpr((block((VarBinding(var, made),)),), x), ObjectType())


def callback(*dims: str) -> CallableType:
    names = {name: SymVar(name) for name in dims}
    tensor = TensorType([names[d] for d in dims], "float32")
    return CallableType([tensor], tensor)


def cast(dim: Callable[[SymVar], Dim]) -> Function:
    """match_cast to a new symbol and a dimension of it, the dimension first."""
    x = Var("x", TensorType(None, "float32", 2))
    p = SymVar("p")
    annotation = TensorType((dim(p), p), "float32")
    y = Var("y", annotation)
    return Function((x,), seq([MatchCast(y, x, annotation)], y), ObjectType())


DIFFERENT: dict[str, tuple[Any, Any]] = {
    "operator": (
        binding(lambda x, n, m: Call(Exp(), (x,))),
        binding(lambda x, n, m: Call(Tanh(), (x,))),
    ),
    "attribute": (
        binding(lambda x, n, m: Call(Sum(axis=(0,)), (x,))),
        binding(lambda x, n, m: Call(Sum(axis=(1,)), (x,))),
    ),
    "arguments": (
        binding(lambda x, n, m: Call(Add(), (x, x))),
        binding(lambda x, n, m: Call(Exp(), (x,))),
    ),
    "order of symbols": (
        binding(lambda x, n, m: ShapeExpr((n, m))),
        binding(lambda x, n, m: ShapeExpr((m, n))),
    ),
    "dimension": (
        binding(lambda x, n, m: ShapeExpr((n.dim + 1,))),
        binding(lambda x, n, m: ShapeExpr((n.dim + 2,))),
    ),
    "symbol in a compound": (
        binding(lambda x, n, m: ShapeExpr((n.dim * 2 + m,))),
        binding(lambda x, n, m: ShapeExpr((m.dim * 2 + n,))),
    ),
    "rank": (binding(lambda x, n, m: ShapeExpr((n,))), binding(lambda x, n, m: ShapeExpr((n, n)))),
    "constant": (binding(Constant(np.zeros(3))), binding(Constant(np.ones(3)))),
    "sign of zero": (binding(Constant(np.array(0.0))), binding(Constant(np.array(-0.0)))),
    "dtype of a constant": (
        binding(Constant(np.zeros(3, "float32"))),
        binding(Constant(np.zeros(3, "int32"))),
    ),
    "shape of a constant": (binding(Constant(np.zeros((3, 1)))), binding(Constant(np.zeros(3)))),
    "scalar": (binding(PrimValue(1.0)), binding(PrimValue(2.0))),
    "scalar's dtype": (binding(PrimValue(1, "int32")), binding(PrimValue(1, "int64"))),
    "kind of scalar": (binding(PrimValue(1)), binding(PrimValue(True))),
    "string": (binding(StringImm("a")), binding(StringImm("b"))),
    "data type": (binding(DataTypeImm("int8")), binding(DataTypeImm("int16"))),
    "global name": (binding(GlobalVar("f")), binding(GlobalVar("g"))),
    "external name": (binding(ExternFunc("f")), binding(ExternFunc("g"))),
    "kind of name": (binding(GlobalVar("f")), binding(ExternFunc("f"))),
    "field": (
        binding(lambda x, n, m: TupleGetItem(x, 0)),
        binding(lambda x, n, m: TupleGetItem(x, 1)),
    ),
    "tuple": (binding(lambda x, n, m: Tuple((x, x))), binding(lambda x, n, m: Tuple((x,)))),
    "annotation": (
        binding(lambda x, n, m: x, lambda n, m: TensorType((n, m), "float32")),
        binding(lambda x, n, m: x, lambda n, m: TensorType((m, n), "float32")),
    ),
    "unknown dtype": (
        binding(lambda x, n, m: x, lambda n, m: TensorType((n, m), "float32")),
        binding(lambda x, n, m: x, lambda n, m: TensorType((n, m))),
    ),
    "kind of variable": (binding(lambda x, n, m: x), binding(lambda x, n, m: x, kind=DataflowVar)),
    "length": (chain(3), chain(4)),
    "depth": (nested(3), nested(4)),
    "purity": (chain(1), replace(chain(1), pure=False)),
    "function's attribute": (chain(1), replace(chain(1), attrs={"global_symbol": "main"})),
    "name of a function": (IRModule({"f": chain(1)}), IRModule({"g": chain(1)})),
    "module's attribute": (IRModule({"f": chain(1)}), IRModule({"f": chain(1)}, attrs={"a": 1})),
    "callback": (callback("n", "m"), callback("n", "n")),
    "annotation kinds": (TensorType(ndim=2), ShapeType(ndim=2)),
    "prim value": (PrimType("int64", 1), PrimType("int64")),
    "tuple annotation": (TupleType([ObjectType()]), TupleType([])),
    "match_cast": (cast(lambda p: p.dim * 2), cast(lambda p: p.dim * 3)),
}

SAME: dict[str, tuple[Any, Any]] = {
    "names": (chain(5, "v", "n"), chain(5, "w", "m")),
    "NaN": (binding(Constant(np.array([math.nan]))), binding(Constant(np.array([math.nan])))),
    "NaN as a scalar": (binding(PrimValue(math.nan)), binding(PrimValue(math.nan))),
    "compound before its symbol": (cast(lambda p: p.dim * 2 + 1), cast(lambda p: p.dim * 2 + 1)),
    "callback": (callback("n", "m"), callback("a", "b")),
    "order of functions": (
        IRModule({"f": chain(1), "g": chain(2)}),
        IRModule({"g": chain(2), "f": chain(1)}, name="Other"),
    ),
    "list attribute": (
        replace(chain(1), attrs={"a": [1, 2.0]}),
        replace(chain(1), attrs={"a": (1, 2.0)}),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_same(name: str) -> None:
    a, b = SAME[name]
    assert structural_equal(a, b)
    assert structural_equal(b, a)
    assert structural_hash(a) == structural_hash(b)


@pytest.mark.parametrize("name", DIFFERENT)
def test_different(name: str) -> None:
    """Each difference is found, from either side, and changes the hash."""
    a, b = DIFFERENT[name]
    assert structural_equal(a, a)
    assert not structural_equal(a, b)
    assert not structural_equal(b, a)
    assert structural_hash(a) != structural_hash(b)


def test_variables_map_one_to_one() -> None:
    """Two variables are not one, in either direction."""

    def two(first: int, second: int) -> Function:
        x, y = Var("x", ObjectType()), Var("y", ObjectType())
        return Function((x, y), seq([], Tuple(((x, y)[first], (x, y)[second]))), ObjectType())

    assert structural_equal(two(0, 1), two(0, 1))
    for other in (two(0, 0), two(1, 0), two(1, 1)):
        assert not structural_equal(two(0, 1), other)
        assert not structural_equal(other, two(0, 1))


def test_symbols_map_one_to_one() -> None:
    def shapes(*names: str) -> Function:
        symbols = {name: SymVar(name) for name in names}
        x = Var("x", TensorType([symbols[name] for name in names], "float32"))
        return Function((x,), seq([], x), ObjectType())

    assert structural_equal(shapes("n", "m"), shapes("a", "b"))
    assert not structural_equal(shapes("n", "n"), shapes("a", "b"))
    assert not structural_equal(shapes("a", "b"), shapes("n", "n"))


def test_free_variables() -> None:
    """A free variable is itself only, unless free variables may be mapped."""
    x, y = Var("x", ObjectType()), Var("y", ObjectType())
    n, m = SymVar("n"), SymVar("m")
    assert structural_equal(Tuple((x,)), Tuple((x,)))
    assert not structural_equal(Tuple((x, x)), Tuple((y, y)))
    assert structural_equal(Tuple((x, x)), Tuple((y, y)), map_free_vars=True)
    assert not structural_equal(Tuple((x, y)), Tuple((y, y)), map_free_vars=True)
    assert structural_equal(ShapeExpr((n, n.dim + 1)), ShapeExpr((n, n.dim + 1)))
    assert not structural_equal(ShapeType((n,)), ShapeType((m,)))
    assert structural_equal(ShapeType((n,)), ShapeType((m,)), map_free_vars=True)


def test_free_variable_of_other_annotation() -> None:
    """Mapped free variables have the same annotation."""
    x, y = Var("x", ObjectType()), Var("y", TensorType())
    assert not structural_equal(x, y, map_free_vars=True)


def test_proof() -> None:
    """With proof, dimensions that are written differently may be equal."""
    a = binding(lambda x, n, m: ShapeExpr((n.dim // 4 * 4 + n.dim % 4,)))
    b = binding(lambda x, n, m: ShapeExpr((n,)))
    assert not structural_equal(a, b)
    assert structural_equal(a, b, prove=True)
    assert not structural_equal(a, binding(lambda x, n, m: ShapeExpr((m,))), prove=True)


def test_closures() -> None:
    """A local function may use what is around it and call itself; two of them may share a symbol object or not."""

    def make(shared: bool) -> Function:
        n = SymVar("n")
        x = Var("x", ObjectType())
        bindings: list[VarBinding] = []
        for i in range(2):
            k = n if shared else SymVar("k")
            y = Var("y", TensorType((k,), "float32"))
            f = Var(f"f{i}", ObjectType())
            value = Function((y,), seq([], Tuple((x, y, f))), ObjectType())
            bindings.append(VarBinding(f, value))
        return Function((x,), seq(bindings, bindings[-1].var), ObjectType())

    assert structural_equal(make(True), make(False))
    assert structural_hash(make(True)) == structural_hash(make(False))


def test_long_and_deep() -> None:
    """10 000 bindings and 500 levels need no recursion."""
    a, b = chain(10_000, "v"), chain(10_000, "w")
    assert structural_equal(a, b)
    assert structural_hash(a) == structural_hash(b)
    assert structural_equal(nested(500), nested(500))
    assert not structural_equal(nested(500), nested(499))
    assert structural_hash(nested(500)) == structural_hash(nested(500))


def test_shared_subterms_are_compared_once_a_use() -> None:
    """Equality is not identity: one object on both sides in different roles is not equal."""
    x, y = Var("x", ObjectType()), Var("y", ObjectType())
    assert not structural_equal(
        Function((x, y), seq([], x), ObjectType()), Function((y, x), seq([], x), ObjectType())
    )


def test_message() -> None:
    """The assertion says where the first difference is, and shows both sides."""
    with pytest.raises(AssertionError) as caught:
        assert_structural_equal(IRModule({"main": chain(3)}), IRModule({"main": chain(4)}))
    text = str(caught.value)
    assert text.startswith(
        "main.body.blocks[0]: a BindingBlock of 3 bindings against a BindingBlock of 4 bindings"
    )
    assert "--- left" in text
    assert "--- right" in text
    assert_structural_equal(chain(3), chain(3))
