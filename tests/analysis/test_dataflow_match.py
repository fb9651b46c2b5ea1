"""Patterns found in programs."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.analysis.dataflow_match import Match, find_matches, match
from relaxpy.errors import UsageError
from relaxpy.ir import DataflowBlock, Function, IRModule, SymVar, TensorType, Var
from relaxpy.ir.pattern import (
    Pattern,
    is_call_dps_library,
    is_call_packed,
    is_call_tir,
    is_const,
    is_function,
    is_op,
    is_shape,
    is_tuple,
    is_tuple_get_item,
    is_var,
    joined,
    wildcard,
)
from relaxpy.op.deduce import deduce
from relaxpy.tir.recognise.pattern_kind import PatternKind
from relaxpy.transform.legalize_ops import LegalizeOps
from relaxpy.transform.normalize import Normalize

PARAMS = 'x: R.Tensor(("n", "k"), "float32"), w: R.Tensor(("k", 8), "float32"), b: R.Tensor((8,), "float32")'


def program(body: str, params: str = PARAMS) -> IRModule:
    """A module whose `main` is one dataflow block; it gives `gv`."""
    lines = "".join(f"            {line}\n" for line in body.strip().splitlines())
    text = f"@I.ir_module\nclass Module:\n    @R.function\n    def main({params}):\n"
    text += f"        with R.dataflow():\n{lines}            R.output(gv)\n        return gv\n"
    return Normalize()(relaxpy.parse(text))


def block_of(mod: IRModule) -> DataflowBlock:
    main = mod["main"]
    assert isinstance(main, Function)
    (block,) = (b for b in main.body.blocks if isinstance(b, DataflowBlock))
    return block


def search(pattern: Pattern, body: str, params: str = PARAMS) -> Match | None:
    """What `gv` of a program matches."""
    mod = program(body, params)
    block = block_of(mod)
    return match(pattern, block.bindings[-1].var, block, mod)


def names(found: Match | None) -> list[str]:
    assert found is not None
    return [binding.var.name for binding in found.bindings]


def test_calls_are_followed_through_bindings() -> None:
    x, w = wildcard(), wildcard()
    product = is_op("matmul")(x, w)
    found = search(is_op("nn.relu")(product), "a = R.matmul(x, w)\ngv = R.nn.relu(a)")
    assert names(found) == ["a", "gv"]
    assert found is not None
    shown = [found[p] for p in (x, w, product)]
    assert [v.name for v in shown if isinstance(v, Var)] == ["x", "w", "a"]


def test_another_operator_does_not_match() -> None:
    assert search(is_op("nn.relu")(wildcard()), "gv = R.exp(x)") is None
    assert search(is_op("matmul")(wildcard()), "gv = R.matmul(x, w)") is None


def test_an_operator_alone_is_any_call_of_it_and_dots_are_further_arguments() -> None:
    body = "gv = R.linear(x, w, b)"
    params = PARAMS.replace('("k", 8)', '(8, "k")')
    assert names(search(is_op("linear"), body, params)) == ["gv"]
    assert names(search(is_op("relax.linear")(wildcard(), ...), body, params)) == ["gv"]
    assert search(is_op("linear")(wildcard(), wildcard()), body, params) is None


def test_any_order_and_alternatives() -> None:
    bias = wildcard().has_shape((8,))
    pattern = is_op("add")(is_op("matmul"), bias, any_order=True)
    for sum_ in ("R.add(a, b)", "R.add(b, a)"):
        found = search(pattern, f"a = R.matmul(x, w)\ngv = {sum_}")
        assert found is not None
        assert repr(found[bias]) == "b"
    either = is_op("nn.relu")(x := wildcard()) | is_op("tanh")(y := wildcard())
    found = search(either, "gv = R.tanh(x)")
    assert found is not None
    assert (found.get(x), repr(found[y]), x in found) == (None, "x", False)


def test_one_pattern_at_two_places_is_one_value() -> None:
    """silu, written out."""
    x = wildcard()
    silu = is_op("multiply")(x, is_op("sigmoid")(x), any_order=True)
    assert names(search(silu, "s = R.sigmoid(x)\ngv = R.multiply(s, x)")) == ["s", "gv"]
    assert search(silu, "y = R.exp(x)\ns = R.sigmoid(x)\ngv = R.multiply(s, y)") is None
    # backtracking: the first order puts x at the wrong place
    assert names(search(silu, "s = R.sigmoid(x)\nt = R.sigmoid(s)\ngv = R.multiply(t, s)")) == [
        "t",
        "gv",
    ]


def test_equal_leaves_are_one_value() -> None:
    c = is_const()
    pattern = is_op("add")(is_op("multiply")(wildcard(), c), c)
    body = "a = R.multiply(x, R.const({}))\ngv = R.add(a, R.const(2.0))"
    assert search(pattern, body.format("2.0")) is not None
    assert search(pattern, body.format("3.0")) is None


def test_constants_and_numbers() -> None:
    half = is_op("multiply")(wildcard(), 0.5)
    assert search(half, "gv = R.multiply(x, R.const(0.5))") is not None
    assert search(half, "gv = R.multiply(x, R.const(0.25))") is None
    assert search(half, "gv = R.multiply(x, x)") is None


def test_values_from_outside() -> None:
    assert search(is_op("exp")(is_var()), "gv = R.exp(x)") is not None
    assert search(is_op("exp")(is_var("y")), "gv = R.exp(x)") is None
    assert search(is_op("exp")(is_var()), "a = R.exp(x)\ngv = R.exp(a)") is None


def test_and_and_not() -> None:
    big = wildcard().has_dtype("float32") & ~is_const()
    assert search(is_op("exp")(big), "gv = R.exp(x)") is not None
    assert search(is_op("exp")(~is_op("tanh")), "a = R.tanh(x)\ngv = R.exp(a)") is None


def test_tuples() -> None:
    parts = is_op("split")
    second = is_tuple_get_item(parts, 1)
    body = "s = R.split(x, 2, axis=0)\na = s[{}]\ngv = R.exp(a)"
    params = 'x: R.Tensor((4, "n"), "float32")'
    assert names(search(is_op("exp")(second), body.format(1), params)) == ["s", "a", "gv"]
    assert search(is_op("exp")(second), body.format(0), params) is None
    whole = is_op("concat")(is_tuple([is_op("exp"), wildcard()]))
    assert names(search(whole, "a = R.exp(x)\ngv = R.concat((a, x), axis=0)")) == ["a", "gv"]
    assert search(whole, "gv = R.concat((x, x, x), axis=0)") is None


def test_attributes() -> None:
    body = "gv = R.sum(x, axis=[1], keepdims=True)"
    assert search(is_op("sum").has_attr(axis=[1], keepdims=True), body) is not None
    assert search(is_op("sum").has_attr({"keepdims": False})(wildcard()), body) is None
    assert search(is_op("sum")(wildcard()).has_attr(axis=lambda a: 1 in a), body) is not None
    assert search(is_op("sum").has_attr(axes=[1]), body) is None


def test_symbolic_shapes() -> None:
    a, b = wildcard().has_shape(("m", "k")), wildcard().has_shape(("k", None))
    body = "gv = R.matmul(x, w)"
    found = search(is_op("matmul")(a, b), body)
    assert found is not None
    assert str(found.dim("m")) == "n"
    assert found.annotation(b) == deduce(found[b])
    square = wildcard().has_shape(("m", "m"))
    assert search(is_op("matmul")(square, wildcard()), body) is None
    assert search(is_op("matmul")(wildcard(), wildcard().has_shape((..., 8))), body) is not None
    assert search(is_op("matmul")(wildcard(), wildcard().has_shape((..., 4))), body) is None
    assert (
        search(is_op("matmul")(wildcard(), wildcard().has_shape((1, ..., None, 8))), body) is None
    )


def test_compound_dimensions_wait_for_their_symbols_and_are_proved() -> None:
    k = SymVar("k")
    flat = is_op("reshape")(wildcard().has_shape((None, k)), is_shape((None,))).has_shape(
        (k.dim * 3,)
    )
    body = "gv = R.reshape(x, R.shape([m * 3]))"
    assert search(flat, body, 'x: R.Tensor((3, "m"), "float32")') is not None
    body = "a = R.reshape(x, R.shape([{}, 3]))\ngv = R.exp(a)"
    first = is_op("exp")(is_op("reshape")(wildcard().has_shape((k, 3)), wildcard())).has_shape(
        (k.dim, None)
    )
    assert search(first, body.format("m // 1"), 'x: R.Tensor(("m", 3), "float32")') is not None
    early = is_op("permute_dims")(wildcard().has_shape((k.dim * 2, k))).has_shape((k, None))
    assert search(early, "gv = R.permute_dims(x)", 'x: R.Tensor(("m" , 4), "float32")') is None
    assert (
        search(early, "gv = R.permute_dims(x)", 'x: R.Tensor(("2 * m", "m"), "float32")')
        is not None
    )


def test_types() -> None:
    floats = wildcard().has_type(TensorType(None, "float32", ndim=2))
    assert search(is_op("exp")(floats), "gv = R.exp(x)") is not None
    assert search(is_op("exp")(floats), "gv = R.exp(b)") is None


def test_a_match_cast_is_a_value_from_outside() -> None:
    body = 'y = R.exp(x)\na = R.match_cast(y, R.Tensor(("p", 4), "float32"))\ngv = R.exp(a)'
    assert search(is_op("exp")(is_op("exp")), body) is None
    assert names(search(is_op("exp")(is_var()), body)) == ["gv"]


def test_tensor_programs_by_kind_by_name_and_by_loops() -> None:
    mod = LegalizeOps()(program("a = R.matmul(x, w)\ngv = R.exp(a)"))
    block = block_of(mod)
    product = is_call_tir(kind=PatternKind.OUTPUT_EWISE_FUSIBLE)
    simple = is_call_tir(kind=(PatternKind.ELEMENT_WISE, PatternKind.BROADCAST), args=[product])
    (found,) = find_matches(simple, block, mod)
    assert names(found) == ["a", "gv"]
    assert [names(m) for m in find_matches(is_call_tir("exp"), block, mod)] == [["gv"]]
    assert [names(m) for m in find_matches(is_call_tir(mod.prim_funcs["exp"]), block, mod)] == [
        ["gv"]
    ]
    assert list(find_matches(is_call_tir(kind=PatternKind.OPAQUE), block, mod)) == []
    assert list(find_matches(is_call_tir(args=[wildcard()] * 3), block, mod)) == []


def test_kinds_need_the_module() -> None:
    mod = LegalizeOps()(program("gv = R.exp(x)"))
    with pytest.raises(UsageError, match="is unknown without its module") as caught:
        list(find_matches(is_call_tir(kind=0), block_of(mod)))
    assert caught.value.code == "pattern-module"


def test_functions_known_by_name() -> None:
    out = 'R.Tensor((n, k), "float32")'
    body = f'a = R.call_dps_library("lib.f", (x,), {out})\ngv = R.call_pure_packed("g", a, ty_args={out})'
    library = is_call_dps_library("lib.f", [wildcard()])
    assert names(
        search(is_call_packed("g", [library]), "n = T.int64()\nk = T.int64()\n" + body)
    ) == ["a", "gv"]
    assert search(is_call_packed("g", [is_call_dps_library("lib.g")]), body) is None
    assert search(is_call_packed("g"), body) is not None


def test_calls_of_functions_of_the_module() -> None:
    mod = relaxpy.parse(
        """
@I.ir_module
class Module:
    @R.function
    def f(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        return x

    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        cls = Module
        with R.dataflow():
            gv = cls.f(x)
            R.output(gv)
        return gv
"""
    )
    (found,) = find_matches(is_function("f")(wildcard()), block_of(mod), mod)
    assert names(found) == ["gv"]
    assert list(find_matches(is_function("g")(wildcard()), block_of(mod), mod)) == []


def test_all_matches_come_in_order_with_their_alternatives() -> None:
    mod = program("a = R.exp(x)\nb = R.add(a, x)\ngv = R.exp(b)")
    found = find_matches(is_op("exp")(wildcard()), block_of(mod), mod)
    assert [names(m) for m in found] == [["a"], ["gv"]]
    left = wildcard()
    both = list(find_matches(is_op("add")(left, wildcard(), any_order=True), block_of(mod), mod))
    assert [repr(m[left]) for m in both] == ["a", "x"]


def test_graphs_of_values() -> None:
    """Three products of one input; a value used by two."""
    mod = program("q = R.matmul(x, w)\nk = R.matmul(x, w)\ne = R.add(q, k)\ngv = R.exp(e)")
    x = wildcard()
    a, b = is_op("matmul")(x, wildcard()), is_op("matmul")(x, wildcard())
    pairs = [names(m) for m in find_matches(joined(a, b), block_of(mod), mod)]
    assert pairs == [["q", "k"], ["q", "k"]]
    add = is_op("add")
    assert [names(m) for m in find_matches(a.used_by(add, 1), block_of(mod), mod)] == [["k", "e"]]
    both = a.used_by(add) & b.used_by(add)
    assert [names(m) for m in find_matches(both, block_of(mod), mod)] == [["q", "k", "e"]] * 2


def test_only_used_by() -> None:
    mod = program("a = R.exp(x)\nb = R.tanh(a)\nc = R.negative(a)\ngv = R.add(b, c)")
    e, t, n, s = (is_op(name) for name in ("exp", "tanh", "negative", "add"))
    block = block_of(mod)
    assert [names(m) for m in find_matches(e.used_by(t) & e.used_by(n), block, mod)] == [
        ["a", "b", "c"]
    ]
    assert list(find_matches(e.only_used_by(t), block, mod)) == []
    assert [names(m) for m in find_matches(t.only_used_by(s), block, mod)] == [["b", "gv"]]
    assert list(find_matches(s.only_used_by(e), block, mod)) == []


@pytest.mark.parametrize(
    ("make", "code", "says"),
    [
        (lambda: match(is_op("nn.rleu")(wildcard()), Var("x", TensorType())), "pattern-op", "nn.relu"),
        (
            lambda: match(wildcard().has_shape((SymVar("n").dim * 2,)), Var("x", TensorType())),
            "pattern-shape",
            "is not defined",
        ),
        (lambda: wildcard().has_shape(("n * 2",)), "pattern-shape", "SymVar"),
        (lambda: wildcard().has_shape((..., 1, ...)), "pattern-shape", "at most one"),
        (lambda: wildcard().has_shape("n"), "pattern-shape", "tuple"),
        (lambda: is_op("add")("x", wildcard()), "pattern-type", "wildcard()"),  # type: ignore[arg-type]
        (lambda: is_op("add")(..., wildcard()), "pattern-type", "last argument"),
    ],
)  # fmt: skip
def test_mistakes(make: object, code: str, says: str) -> None:
    assert callable(make)
    with pytest.raises(UsageError) as caught:
        make()
    assert caught.value.code == code
    assert says in caught.value.render()
