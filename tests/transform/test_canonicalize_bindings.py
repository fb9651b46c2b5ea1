"""CanonicalizeBindings: what is only another name, and what is not."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.errors import RuntimeCheckError
from relaxpy.ir.expr import Function
from relaxpy.ir.module import IRModule
from relaxpy.ir.structural import assert_structural_equal
from relaxpy.shape.declare import with_bounds
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.testing.pass_check import check_pass
from relaxpy.transform.canonicalize_bindings import CanonicalizeBindings
from relaxpy.transform.normalize import Normalize

HEADER = "from relaxpy.script import ir as I, relax as R, tir as T\n"
MATRIX = 'x: R.Tensor(("n", "m"), "float32")'


def module(body: str, params: str = MATRIX, pure: bool = True) -> IRModule:
    """A module with a function `main`, and a tensor program that adds one in place."""
    text = (
        HEADER
        + f"""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def increment(x: T.Buffer(("n", "m"), "float32")):
        n, m = T.int64(), T.int64()
        for i, j in T.grid(n, m):
            with T.sblock("x"):
                vi, vj = T.axis.remap("SS", [i, j])
                x[vi, vj] = x[vi, vj] + T.float32(1)

    @R.function(pure={pure})
    def main({params}):
        n, m = T.int64(), T.int64()
        cls = Module
"""
    )
    return Normalize()(
        relaxpy.parse(text + "".join(f"        {line}\n" for line in body.splitlines()))
    )


def after(body: str, params: str = MATRIX, pure: bool = True) -> list[str]:
    """What main binds after the pass: `name = value`."""
    main = CanonicalizeBindings()(module(body, params, pure))["main"]
    assert isinstance(main, Function)
    lines = [line.strip() for line in main.script().splitlines()]
    names = {binding.var.name for binding in main.body.bindings}
    found = [line for line in lines if line.split(" = ")[0].split(":")[0] in names]
    return [f"{line.split(' = ')[0].split(':')[0]} = {line.split(' = ', 1)[1]}" for line in found]


def test_example() -> None:
    check_example(CanonicalizeBindings())


def test_names_of_names() -> None:
    assert after("a = x\nb = a\nc = R.exp(b)\nd = c\nreturn d") == ["c = R.exp(x)"]


def test_a_dataflow_variable_that_is_named_outside_comes_out() -> None:
    mod = CanonicalizeBindings()(
        module(
            "with R.dataflow():\n    a = R.exp(x)\n    b = a\n    R.output(b)\nc = R.exp(b)\nreturn c"
        )
    )
    assert "R.output(a)" in mod.script()


def test_constants_and_shapes_go_where_they_are_used() -> None:
    found = after(
        'a = R.const(2.0)\nb = R.multiply(x, a)\ns = R.shape([n, m])\nc = R.zeros(s, "float32")\nreturn (b, c)'
    )
    assert found == [
        'b = R.multiply(x, R.const(2.0, "float32"))',
        'c = R.zeros(R.shape([n, m]), dtype="float32")',
    ]


def test_a_shape_that_may_be_negative_is_made_where_it_stands() -> None:
    assert (
        after('s = R.shape([n - 1])\na = R.exp(x)\nc = R.zeros(s, "float32")\nreturn c')[0]
        == "s = R.shape([n - 1])"
    )


def test_fields_of_known_tuples() -> None:
    assert (
        after("a = R.exp(x)\nt = (a, (x, a))\nb = t[1]\nc = b[0]\nd = R.add(c, c)\nreturn d")[-1]
        != "d = R.add(x, x)"
    )
    assert (
        after("a = R.exp(x)\nt = (x, a)\nb = t[0]\nd = R.add(b, b)\nreturn d")[-1]
        == "d = R.add(x, x)"
    )


def test_match_casts() -> None:
    """Proved: gone, and its symbols are what they were found to be. Not proved: there."""
    found = after(
        'a = R.match_cast(x, R.Tensor(("k", "l"), "float32"))\nb = R.zeros((k, l * 2), "float32")\nreturn b'.replace(
            "a = ", "k, l = T.int64(), T.int64()\na = "
        )
    )
    assert found == ['b = R.zeros(R.shape([n, m * 2]), dtype="float32")']
    assert after('a = R.match_cast(x, R.Tensor((n, 4), "float32"))\nb = R.exp(a)\nreturn b')[
        0
    ].startswith("a = ")
    assert (
        len(after('a = R.match_cast(x, R.Tensor((n, n), "float32"))\nb = R.exp(a)\nreturn b')) == 2
    )


def test_a_reshape_of_something_better_known_is_written_as_the_parser_writes_it() -> None:
    """What -1 stands for is known where the match_cast that forgot it is gone: with or without new annotations."""
    body = 'a = R.match_cast(x, R.Tensor(ndim=2, dtype="float32"))\nb = R.reshape(a, R.shape([-1, m]))\nreturn b'
    assert after(body) == ["b = R.reshape(x, R.shape([n, m]))"]
    made = CanonicalizeBindings()(module(body))
    for mod in (made, Normalize()(made)):
        assert_structural_equal(mod, relaxpy.parse(mod.script()))


def test_what_would_be_known_to_be_wrong_stays() -> None:
    """A call that cannot work, which only the program says if it comes to it: here it may not."""
    params = 'x: R.Tensor(("n", 3), "float32"), p: R.Tensor((), "bool")'
    mod = module(
        "k = T.int64()\na = x\nif p:\n"
        '    b = R.match_cast(a, R.Tensor((n, k), "float32"))\n'
        "    c = R.add(b, R.const([1, 2], 'float32'))\n    r = R.sum(c)\n"
        "else:\n    r = R.sum(a)\nreturn r",
        params,
    )
    made = CanonicalizeBindings()(mod)
    check_well_formed(made)
    x = np.ones((2, 3), np.float32)
    assert interpret(made, "main", x, np.array(False)) == 6
    with pytest.raises(RuntimeCheckError, match="add"):
        interpret(made, "main", x, np.array(True))


def test_a_match_cast_that_forgets_is_gone_and_what_was_deduced_from_it_stays_right() -> None:
    body = 'a = R.match_cast(x, R.Tensor(ndim=2, dtype="float32"))\nb = R.exp(a)\nc = R.match_cast(b, R.Tensor(("k", "l"), "float32"))\nd = R.exp(c)\nreturn d'
    mod = module("k, l = T.int64(), T.int64()\n" + body)
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(
        interpret(mod, "main", x), interpret(CanonicalizeBindings()(mod), "main", x)
    )


@pytest.mark.parametrize(
    "call",
    [
        "R.reshape(x, (n, m))",
        'R.astype(x, "float32")',
        "R.broadcast_to(x, (n, m))",
        "R.permute_dims(x, axes=[0, 1])",
        "R.squeeze(R.reshape(x, (n, m)), axis=[])",
        "R.permute_dims(R.permute_dims(x))",
        "R.tile(x, repeats=[1, 1])",
    ],
)
def test_calls_that_change_nothing(call: str) -> None:
    assert after(f"a = {call}\nb = R.exp(a)\nreturn b")[-1] == "b = R.exp(x)"


@pytest.mark.parametrize(
    "call",
    ["R.reshape(x, (m, n))", 'R.astype(x, "float16")', "R.permute_dims(x)", "R.flip(x, axis=0)"],
)
def test_calls_that_change_something(call: str) -> None:
    assert after(f"a = {call}\nb = R.exp(a)\nreturn b")[-1] == "b = R.exp(a)"


def test_a_reshape_that_is_checked_stays() -> None:
    """Whether y has k elements is known when the program runs."""
    params = 'x: R.Tensor(("n",), "float32"), y: R.Tensor(ndim=1, dtype="float32")'
    mod = module("a = R.reshape(y, (n,))\nb = R.add(a, x)\nreturn b", params)
    with pytest.raises(RuntimeCheckError):
        interpret(
            CanonicalizeBindings()(mod), "main", np.ones(3, np.float32), np.ones(4, np.float32)
        )


def test_transpositions_in_a_row() -> None:
    params = 'x: R.Tensor(("n", "m", 3), "float32")'
    found = after(
        "a = R.permute_dims(x, axes=[1, 2, 0])\nb = R.permute_dims(a, axes=[1, 0, 2])\nreturn b",
        params,
    )
    assert found[-1] == "b = R.permute_dims(x, axes=[2, 1, 0])"
    mod = module(
        "a = R.permute_dims(x, axes=[1, 2, 0])\nb = R.permute_dims(a, axes=[1, 0, 2])\nreturn b",
        params,
    )
    x = np.arange(30, dtype=np.float32).reshape(2, 5, 3)
    np.testing.assert_array_equal(
        interpret(mod, "main", x), interpret(CanonicalizeBindings()(mod), "main", x)
    )


def test_what_is_returned_is_not_the_argument() -> None:
    assert after("a = R.reshape(x, (n, m))\nreturn a") == ["a = R.reshape(x, R.shape([n, m]))"]
    assert after("a = R.reshape(x, (n, m))\nb = (a, x)\nreturn b")[0].startswith("a = R.reshape")
    branch = "if p:\n    a = R.reshape(x, (n, m))\n    r = a\nelse:\n    r = R.exp(x)\nreturn r"
    text = CanonicalizeBindings()(module(branch, MATRIX + ', p: R.Tensor((), "bool")')).script()
    assert "R.reshape" in text


def test_tensors_of_impure_functions_stay_what_they_are() -> None:
    """y is a copy of x as it was before the update."""
    mod = module(
        """y = R.reshape(x, (n, m))
a = R.call_tir_inplace(cls.increment, (x,), inplace_indices=[0], out_ty=R.Tensor((n, m), "float32"))
b = R.exp(y)
return b""",
        pure=False,
    )
    results = []
    for program in (mod, CanonicalizeBindings()(mod)):
        x = np.zeros((2, 2), np.float32)
        y = interpret(program, "main", x)
        results.append((x.tolist(), np.asarray(y).tolist()))
    assert results[0] == results[1]
    assert results[1][1] == [[1, 1], [1, 1]]


def test_nested_functions_and_branches() -> None:
    mod = module(
        """y = x
@R.function
def local(z: R.Tensor(("a",), "float32")) -> R.Tensor(("a",), "float32"):
    w = z
    s = R.sum(y)
    r = R.add(w, s)
    return r
if p:
    q = y
    r = R.exp(q)
else:
    r = R.tanh(y)
f = R.flatten(r)
g = local(f)
return g""",
        MATRIX + ', p: R.Tensor((), "bool")',
    )
    result = CanonicalizeBindings()(mod)
    text = result.script()
    for gone in ("y =", "w =", "q ="):
        assert gone not in text
    x = np.ones((2, 3), np.float32)
    for p in (True, False):
        want, got = (
            interpret(mod, "main", x, np.array(p)),
            interpret(result, "main", x, np.array(p)),
        )
        np.testing.assert_array_equal(want, got)


def test_nothing_to_do() -> None:
    mod = module("a = R.exp(x)\nb = R.permute_dims(a)\nreturn b")
    assert CanonicalizeBindings()(mod) is mod


def test_random_programs() -> None:
    assert check_pass(CanonicalizeBindings(), range(12), Normalize()) > 6


def test_a_cast_that_only_bounds_prove_stays() -> None:
    """What is deduced from it, in functions without bounds, needs what it says."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((8, 4), "float32")) -> R.Tensor(("n", 4), "float32"):
    n = T.int64()
    a = R.strided_slice(w, axes=(0,), begin=(0,), end=(n,))
    b = R.match_cast(a, R.Tensor((n, 4), "float32"))
    return R.add(x, b)
""")
    assert "R.match_cast(" in CanonicalizeBindings()(with_bounds(mod, {"n": 8})).script()


@pytest.mark.parametrize(("columns", "gone"), [("m", True), ("m * 2", False)])
def test_symbols_of_functions_inside_stay_symbols(columns: str, gone: bool) -> None:
    """A call of a function over k elements says that its result has k; over m * 2 it would find no m."""
    mod = module(
        f"""k = T.int64()
y = R.zeros((n, {columns}), "float32")
b = R.match_cast(y, R.Tensor((n, k), "float32"))
@R.function
def inner(p: R.Tensor((n, k), "float32")) -> R.Tensor((n, k), "float32"):
    q = R.exp(p)
    return q
c = inner(b)
return c"""
    )
    found = CanonicalizeBindings()(mod)
    assert ("R.match_cast" not in found.script()) is gone
    assert relaxpy.structural_equal(found, relaxpy.parse(found.script()))
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(interpret(found, "main", x), interpret(mod, "main", x))


def test_a_check_that_is_known_to_fail_stays_for_the_program_to_make() -> None:
    """That a size is 1 is known of the first cast; what casts it to 2 must not become a contradiction in the module."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor((1,), "int64")) -> R.Tensor((2,), "int64"):
    k = T.int64()
    any = R.match_cast(x, R.Tensor(dtype="int64"))
    sized = R.match_cast(any, R.Tensor((k,), "int64"))
    both = R.add(sized, sized)
    two = R.match_cast(both, R.Tensor((2,), "int64"))
    return two
""")
    after = CanonicalizeBindings()(mod)
    check_well_formed(after)
    with pytest.raises(RuntimeCheckError, match="dimension 0"):
        interpret(after, "main", np.ones(1, np.int64))
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    with pytest.raises(RuntimeCheckError, match="dimension 0"):
        vm["main"](np.ones(1, np.int64))
