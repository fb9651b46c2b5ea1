"""Walking and rewriting: order of evaluation, sharing of what does not change, variables renamed at definition and
use."""

from __future__ import annotations

from typing import Any

from relaxpy.ir import (
    Call,
    CallableType,
    Dim,
    Function,
    If,
    MatchCast,
    Node,
    ObjectType,
    PrimType,
    Rewriter,
    ShapeExpr,
    ShapeType,
    SymVar,
    TensorType,
    Tuple,
    TupleType,
    Var,
    VarBinding,
    Visitor,
)
from relaxpy.ir.expr import seq
from relaxpy.ir.structural import structural_equal
from relaxpy.ir.visitor import for_each_dim, free_sym_vars, free_vars, map_annotation
from relaxpy.op.unary import Exp, Tanh

n, m = SymVar("n"), SymVar("m")
FLOAT = TensorType((n, 4), "float32")


def program() -> Function:
    """exp(x), a branch, a match_cast, a closure over x."""
    x, c = Var("x", FLOAT), Var("c", TensorType((), "bool"))
    a, b, d, f, y = (Var(name, FLOAT) for name in "abdfy")
    bindings = [
        VarBinding(a, Call(Exp(), (x,))),
        VarBinding(b, If(c, seq([], a), seq([VarBinding(y, Call(Tanh(), (a,)))], y))),
        MatchCast(d, b, TensorType((m, 4), "float32")),
        VarBinding(f, Function((), seq([], Tuple((x, d))), ObjectType())),
    ]
    return Function((x, c), seq(bindings, Tuple((f, ShapeExpr((n, m))))), ObjectType())


def test_visits_in_order() -> None:
    """Values before the variables they are bound to; each node once."""
    seen: list[str] = []

    class Names(Visitor):
        def visit_Var(self, node: Var) -> None:
            seen.append(node.name)

        def visit_Call(self, node: Call) -> None:
            seen.append(node.op.name)  # type: ignore[union-attr]
            self.generic(node)

        def visit_dim(self, dim: Dim) -> None:
            seen.append(str(dim))

    Names().visit(program())
    assert " ".join(seen) == "x c exp x a c a tanh a y y b b m 4 d x d f f n m"


def test_nothing_changed_is_the_same_object() -> None:
    """A rewriter that changes nothing gives back what it got."""
    func = program()
    assert Rewriter().rewrite(func) is func


def test_replaces_nodes() -> None:
    """A changed node changes what contains it, and nothing else."""

    class Swap(Rewriter):
        def rewrite_Call(self, node: Call) -> Any:
            return Call(Exp(), node.args) if isinstance(node.op, Tanh) else node

    func = program()
    new = Swap().rewrite(func)
    old_bindings, new_bindings = list(func.body.bindings), list(new.body.bindings)
    assert new is not func
    assert [a is b for a, b in zip(old_bindings, new_bindings, strict=True)] == [
        True,
        False,
        True,
        True,
    ]


def test_symbols_replaced_everywhere() -> None:
    """Replacing a symbol makes new variables at their definitions, and every use follows."""
    rewriter = Rewriter()
    rewriter.syms = {n: 8}
    func = program()
    new = rewriter.rewrite(func)
    assert new.params[0].annotation == TensorType((8, 4), "float32")
    assert free_vars(new) == ()
    assert not any(n in dim.vars for dim in _dims(new))
    assert not structural_equal(func, new)


def _dims(func: Function) -> list[Dim]:
    found: list[Dim] = []

    class Dims(Visitor):
        def visit_dim(self, dim: Dim) -> None:
            found.append(dim)

        def visit_VarBinding(self, node: VarBinding) -> None:
            super().visit_VarBinding(node)
            for_each_dim(node.var.annotation, found.append)

    Dims().visit(func)
    return found


def test_spans_are_kept() -> None:
    """A rewritten node stays where the user wrote it."""
    from relaxpy.errors import Span

    span = Span("f.py", 3)
    x = Var("x", FLOAT, span=span)
    func = Function(
        (x,),
        seq([VarBinding(Var("y", FLOAT), Call(Exp(), (x,), span=span), span=span)], x),
        FLOAT,
        span=span,
    )
    rewriter = Rewriter()
    rewriter.syms = {n: 8}
    new = rewriter.rewrite(func)
    (binding,) = new.body.bindings
    nodes: tuple[Node, ...] = (new, new.params[0], binding)
    assert all(node.span == span for node in nodes)


def test_free_vars() -> None:
    """What is used and not defined, in order of first use; a closure's own parameters are not free."""
    func = program()
    (_, branch, _, closure) = func.body.bindings
    assert [v.name for v in free_vars(func)] == []
    assert [v.name for v in free_vars(closure.value)] == ["x", "d"]
    assert [v.name for v in free_vars(branch.value)] == ["c", "a"]


def test_map_annotation() -> None:
    """Dimensions are replaced in every kind of annotation; an annotation without a change is the same object."""
    shape = Var("s", ShapeType(ndim=2))
    kinds = TupleType(
        [
            TensorType((n, m), "float32"),
            ShapeType((n.dim + 1,)),
            PrimType("int64", n),
            CallableType([TensorType((n,))], ShapeType((n,))),
            TensorType(shape, "float32"),
            TensorType(ndim=3),
            ObjectType(),
        ]
    )
    assert map_annotation(kinds, lambda dim: dim) is kinds
    new = map_annotation(kinds, lambda dim: dim.substitute({n: 3}))
    assert new == TupleType(
        [
            TensorType((3, m), "float32"),
            ShapeType((4,)),
            PrimType("int64", 3),
            CallableType([TensorType((3,))], ShapeType((3,))),
            TensorType(shape, "float32"),
            TensorType(ndim=3),
            ObjectType(),
        ]
    )
    assert free_sym_vars([kinds]) == (n, m)
    assert map_annotation(
        kinds.fields[4], lambda dim: dim, lambda _: ShapeExpr((2, n))
    ) == TensorType((2, n), "float32")


def test_a_local_function_that_calls_itself_is_rewritten() -> None:
    """The variable is replaced in the function's own body, too."""
    kind = TensorType((n,), "float32")
    x, y = Var("x", kind), Var("y", kind)
    itself = Var("loop", CallableType([kind], kind))
    inner = Function((x,), seq([VarBinding(y, Call(itself, (x,)))], y), kind)
    rewriter = Rewriter()
    rewriter.syms[n] = SymVar("k").dim
    outer = rewriter.rewrite(seq([VarBinding(itself, inner)], itself))
    (binding,) = outer.bindings
    (call,) = binding.value.body.bindings
    assert binding.var is not itself
    assert call.value.op is binding.var is outer.body
