"""Control flow and functions in random programs: branches, nested functions with captured values, recursion with a
decreasing counter, functions as values, and calls between functions of the module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from relaxpy import op
from relaxpy.errors import DeduceError
from relaxpy.ir.accessors import expect, tensor_of
from relaxpy.ir.annotation import Annotation, CallableType, TensorType, TupleType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    SeqExpr,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
)
from relaxpy.op.deduce import deduce
from relaxpy.shape.lattice import Verdict, accepts
from relaxpy.shape.prove import equal
from relaxpy.testing.random_body import CONDITIONAL, Body, Rule

DEEPEST = 2
"""The deepest nesting of functions and branches."""
COUNTER = TensorType((), "int64")
"""The type of a recursion's counter."""


def leave_dataflow(g: Body) -> None:
    """Raises DeduceError where no control flow may be."""
    if g.dataflow or g.depth >= DEEPEST:
        raise DeduceError("op-arguments", "control flow is not allowed here")


def branch(g: Body) -> bool:
    """One of two values, selected by a condition. Their shapes may differ."""
    leave_dataflow(g)
    condition = g.condition()
    wanted = tensor_of(g.tensor())

    def like(annotation: Annotation) -> bool:
        return (
            isinstance(annotation, TensorType)
            and annotation.ndim == wanted.ndim
            and annotation.dtype == wanted.dtype
        )

    def arm() -> SeqExpr:
        with g.arm() as (inner, seq):
            inner.steps(g.rng.choice((0, 1, 2)))
            seq.result(inner.pick(like))
        return seq.seq

    g.add(g.builder.emit_if(condition, arm(), arm()))
    return True


def calm(g: Body, x: Var) -> Var:
    """An elementwise function of x with the same annotation."""
    kind = tensor_of(x)
    if kind.dtype == "bool":
        return g.builder.emit(op.logical_not(x))
    floats = (op.tanh, op.negative, lambda v: op.multiply(v, 0.5))
    exact = (op.negative, lambda v: op.add(v, 1))
    is_float = kind.dtype is not None and kind.dtype.is_float
    return g.builder.emit(g.rng.choice(floats if is_float else exact)(x))


def _nested(
    g: Body,
    params: list[Var],
    body: Callable[[Body], Expr],
    ret: Annotation | None = None,
    itself: Sequence[Var] = (),
) -> Function:
    """A nested function that can use the values of this body. For a recursive function, `itself` is its variable."""
    with g.arm([*params, *itself]) as (inner, seq):
        inner.pool += params
        result = inner.builder.normalize(body(inner))
        if ret is not None and accepts(ret, deduce(result, g.builder.get())) is not Verdict.YES:
            # As the parser does for a declared result type that is not proved
            result = inner.builder.match_cast(result, ret)
        seq.result(result)
    declared = ret if ret is not None else deduce(seq.seq, g.builder.get())
    return Function(tuple(params), seq.seq, declared)


def _some_steps(x: Var) -> Callable[[Body], Expr]:
    """A few random bindings; returns the last value."""

    def body(inner: Body) -> Expr:
        calm(inner, x)
        inner.steps(inner.rng.choice((1, 2)))
        fits = [v for v in inner.pool if inner.comparable(v)]
        return fits[-1]

    return body


def closure(g: Body) -> bool:
    """A nested function of a tensor, called once or twice. Its parameter uses captured symbols, or symbols of its
    own."""
    leave_dataflow(g)
    x = g.tensor()
    kind = tensor_of(x)
    own = [SymVar(letter) for letter in "abcde"[: kind.ndim]]
    given = kind if g.rng.random() < 0.5 else TensorType(own, kind.dtype)
    param = Var(g.builder.fresh_name("p"), given)
    function = g.builder.emit(_nested(g, [param], _some_steps(param)), "inner")
    result = g.builder.emit(Call(function, (x,)))
    g.add(result)
    if g.rng.random() < 0.3 and result.annotation == kind:
        g.add(g.builder.emit(Call(function, (result,))))
    return True


def function_value(g: Body) -> bool:
    """Function values: selected by a branch, stored in a tuple, passed to a function, or returned by one."""
    leave_dataflow(g)
    x = g.tensor()
    kind = tensor_of(x)
    made: list[Var] = []
    for _ in range(2):
        param = Var(g.builder.fresh_name("p"), kind)
        function = _nested(g, [param], lambda inner, p=param: calm(inner, p), kind)
        made.append(g.builder.emit(function, "f"))
    choice = g.rng.randrange(4)
    if choice == 0:
        condition = g.condition()
        with g.arm() as (_, then):
            then.result(made[0])
        with g.arm() as (_, otherwise):
            otherwise.result(made[1])
        chosen = g.builder.emit_if(condition, then.seq, otherwise.seq)
    elif choice == 1:
        pair = g.builder.emit(Tuple(tuple(made)))
        chosen = g.builder.emit(TupleGetItem(pair, g.rng.randrange(2)))
    elif choice == 2:
        takes = Var(g.builder.fresh_name("takes"), made[0].annotation)
        twice = _nested(
            g,
            [takes],
            lambda inner: Call(takes, (inner.builder.emit(Call(takes, (x,))),)),
            kind,
        )
        applied = g.builder.emit(twice, "twice")
        g.add(g.builder.emit(Call(applied, (made[0],))))
        return True
    else:
        extra = Var(g.builder.fresh_name("q"), kind)

        def make(inner: Body) -> Expr:
            param = Var(g.builder.fresh_name("p"), kind)
            return inner.builder.emit(
                _nested(inner, [param], lambda _: op.maximum(param, extra), kind), "made"
            )

        if kind.dtype == "bool":
            return False
        maker = g.builder.emit(_nested(g, [extra], make, made[0].annotation), "maker")
        chosen = g.builder.emit(Call(maker, (x,)))
    g.add(g.builder.emit(Call(chosen, (x,))))
    return True


def recursion(g: Body) -> bool:
    """A nested function that calls itself until its counter is 0, as a tail call or before the last step."""
    leave_dataflow(g)
    x = g.tensor()
    kind = x.annotation
    counter = Var(g.builder.fresh_name("i"), COUNTER)
    value = Var(g.builder.fresh_name("acc"), kind)
    itself = Var(g.builder.fresh_name("loop"), CallableType([COUNTER, kind], kind))
    function = _nested(
        g,
        [counter, value],
        lambda inner: _count_down(inner, itself, counter, value),
        kind,
        [itself],
    )
    g.builder.emit_binding(VarBinding(itself, function))
    times = Constant(g.rng.choice((0, 1, 2, 5)), "int64")
    g.add(g.builder.emit(Call(itself, (times, x))))
    return True


def _count_down(g: Body, itself: Expr, counter: Var, value: Var) -> Expr:
    """`value` if the counter is at most 0, else a recursive call with the counter decreased by one."""
    done = g.builder.emit(op.less_equal(counter, 0))
    with g.arm() as (_, stop):
        stop.result(value)
    with g.arm() as (inner, go_on):
        less = inner.builder.emit(op.subtract(counter, 1))
        if g.rng.random() < 0.5:
            go_on.result(inner.builder.emit(Call(itself, (less, calm(inner, value)))))
        else:
            go_on.result(calm(inner, inner.builder.emit(Call(itself, (less, value)))))
    return g.builder.emit_if(done, stop.seq, go_on.seq)


def call(g: Body) -> bool:
    """A call of another function, directly or through a variable, possibly in a dataflow block."""
    if not g.globals:
        return False
    name = g.rng.choice(list(g.globals))
    args: list[Expr] = []
    for param in g.globals[name].params or ():
        if param == COUNTER:
            args.append(Constant(g.rng.choice((0, 1, 3)), "int64"))
            continue
        param = expect(TensorType, param)
        args.append(g.tensor(str(param.dtype), param.ndim))
    bound: dict[SymVar, Dim] = {}
    fits = [
        accepts(param, deduce(arg), bound, equal)
        for param, arg in zip(g.globals[name].params or (), args, strict=True)
    ]
    if any(verdict is not Verdict.YES for verdict in fits) and g.rng.random() >= CONDITIONAL:
        return False
    callee: Expr = GlobalVar(name)
    if not g.dataflow and g.rng.random() < 0.3:
        callee = g.builder.emit(callee, "f")
    g.add(g.builder.emit(Call(callee, tuple(args))))
    return True


def helper(g: Body) -> None:
    """A private function of a matrix with its own symbols, to be called from `g`."""
    inner = replace(
        g,
        name=f"{g.name}_helper",
        symbols=[SymVar("a"), SymVar("b")],
        places=[],
        params=[],
        pool=[],
        may_add_params=False,
    )
    a, b = inner.symbols
    inner.param(TensorType((a, b), "float32"))
    with g.builder.function(inner.name, inner.params, private=True):
        inner.steps(3)
        fits = [v for v in inner.pool if inner.comparable(v)]
        results = fits[-1:] if g.rng.random() < 0.7 else fits[-2:]
        g.builder.emit_func_output(results[0] if len(results) == 1 else Tuple(tuple(results)))
    _announce(g, inner.name)


def recursive_helper(g: Body) -> None:
    """A recursive private function."""
    name = f"{g.name}_loop"
    a = SymVar("a")
    kind = TensorType((a, g.rng.choice((a.dim, 3))), g.rng.choice(("float32", "int64")))
    counter, value = Var("i", COUNTER), Var("acc", kind)
    # Its type must be known before its body exists.
    g.builder.update_func(name, Function((counter, value), SeqExpr((), value), kind))
    inner = replace(g, name=name, params=[], pool=[], may_add_params=False)
    with g.builder.function(name, [counter, value], private=True, ret=kind):
        itself = GlobalVar(name)
        g.builder.emit_func_output(_count_down(inner, itself, counter, value))
    _announce(g, name)


def _announce(g: Body, name: str) -> None:
    annotation = expect(CallableType, g.builder.get().annotation_of(name))
    assert not isinstance(annotation.ret, TupleType) or annotation.ret.fields
    g.globals[name] = annotation


RULES: Mapping[Rule, int] = {branch: 2, closure: 2, function_value: 1, recursion: 1, call: 3}
