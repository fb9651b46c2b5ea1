"""`call_tir_inplace`: a value's semantics, whatever memory is written."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.in_place import state, updatable, updated
from relaxpy.ir import Function
from relaxpy.testing.interpret import interpret

HEAD = """
@I.ir_module
class M:
    @T.prim_func
    def twice(A: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("b"):
                vi = T.axis.spatial(n, i)
                A[vi] = A[vi] * T.float32(2)

    @T.prim_func
    def both(A: T.Buffer(("n",), "float32"), B: T.Buffer(("n",), "float32"), C: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("b"):
                vi = T.axis.spatial(n, i)
                A[vi] = A[vi] + B[vi]
                C[vi] = A[vi] - T.float32(1)

    @T.prim_func
    def inc(A: T.Buffer(("n",), "float32"), B: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("b"):
                vi = T.axis.spatial(n, i)
                B[vi] = A[vi] + T.float32(1)
"""
TWICE = (
    'R.call_tir_inplace(cls.twice, ({},), inplace_indices=[0], out_ty=R.Tensor((n,), "float32"))'
)
INC = 'R.call_tir(cls.inc, ({},), out_ty=R.Tensor((n,), "float32"))'


def module(
    body: str, options: str = "", params: str = 'x: R.Tensor(("n",), "float32")'
) -> relaxpy.IRModule:
    lines = ["n = T.int64()", "cls = M", *body.strip().split("\n")]
    text = "".join(f"        {line}\n" for line in lines)
    mod = relaxpy.parse(f"{HEAD}\n    @R.function{options}\n    def main({params}):\n{text}")
    relaxpy.assert_structural_equal(mod, relaxpy.parse(mod.script()))
    return mod


def count(mod: relaxpy.IRModule) -> int:
    """Arguments that are changed in place."""
    main = mod["main"]
    assert isinstance(main, Function)
    return len(updatable(main))


def run(mod: relaxpy.IRModule, *args: np.ndarray) -> object:
    """The result, the same from the interpreter and the virtual machine; the arguments are as the latter left them."""
    expected = interpret(mod, "main", *(a.copy() for a in args))
    got = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](*args)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (expected, got)), strict=True):
        np.testing.assert_array_equal(a, b.numpy())
    return expected


def test_memory_made_here_is_changed_where_it_is() -> None:
    mod = module(
        f"a = {INC.format('x')}\nb = {TWICE.format('a')}\nc = {TWICE.format('b')}\nreturn c"
    )
    assert count(mod) == 2
    x = np.arange(3, dtype="float32")
    np.testing.assert_array_equal(run(mod, x), [4, 8, 12])
    np.testing.assert_array_equal(x, [0, 1, 2])


@pytest.mark.parametrize(
    "body",
    [
        f"b = {TWICE.format('x')}\nreturn b",
        f"a = {INC.format('x')}\nb = {TWICE.format('a')}\nreturn (a, b)",
        f"a = {INC.format('x')}\nb = {TWICE.format('a')}\nc = R.add(a, b)\nreturn (b, c)",
        f"a = {INC.format('x')}\nt = (a, x)\nb = {TWICE.format('a')}\nreturn (b, t[0])",
        f"a = {INC.format('x')}\na2 = a\nb = {TWICE.format('a')}\nreturn (b, a2)",
        f"a = {INC.format('x')}\na2 = R.match_cast(a, R.Tensor((n,), 'float32'))\nb = {TWICE.format('a')}\nreturn (b, a2)",
        f"a = R.const([1.0, 2.0], 'float32')\nm = R.match_cast(a, R.Tensor((n,), 'float32'))\nb = {TWICE.format('m')}\nreturn b",
    ],
    ids=["parameter", "returned", "used-later", "in-a-tuple", "alias", "cast", "constant"],
)
def test_what_is_seen_later_is_copied(body: str) -> None:
    mod = module(body)
    assert count(mod) == 0
    x = np.array([3, 5], "float32")
    first = run(mod, x)
    np.testing.assert_array_equal(x, [3, 5])
    again = run(mod, x)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (first, again)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_impure_function_updates_its_parameters() -> None:
    """State: the caller's array is changed, since the function says that it has an effect."""
    mod = module(f"b = {TWICE.format('x')}\nc = {TWICE.format('b')}\nreturn c", "(pure=False)")
    assert count(mod) == 2
    x = np.arange(3, dtype="float32")
    result = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](x)
    np.testing.assert_array_equal(result.numpy(), [0, 4, 8])
    np.testing.assert_array_equal(x, [0, 4, 8])
    y = np.arange(3, dtype="float32")
    interpret(mod, "main", y)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("reading", ["R.reshape(x, (n,))", "R.exp(x)", "R.astype(x, 'float32')"])
def test_operators_read_a_parameter_before_its_update(reading: str) -> None:
    """Their results are new, also where numpy gives a view."""
    mod = module(
        f"a = {reading}\nb = {TWICE.format('x')}\nc = {TWICE.format('a')}\nreturn (b, c)",
        "(pure=False)",
    )
    assert count(mod) == 2
    x, y = np.arange(3, dtype="float32"), np.arange(3, dtype="float32")
    doubled, read = interpret(mod, "main", y)  # type: ignore[misc]
    results = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](x)
    np.testing.assert_array_equal(x, [0, 2, 4])
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(results[0].numpy(), doubled)
    np.testing.assert_allclose(results[1].numpy(), read, rtol=1e-6)
    expected = np.exp(np.arange(3)) if "exp" in reading else np.arange(3)
    np.testing.assert_allclose(read, 2 * expected, rtol=1e-6)


def test_a_field_of_a_parameter() -> None:
    mod = module(
        f"a = caches[0]\nb = caches[1]\nc = {TWICE.format('a')}\nreturn (c, b)",
        "(pure=False)",
        'caches: R.Tuple(R.Tensor(("n",), "float32"), R.Tensor(("n",), "float32"))',
    )
    assert count(mod) == 1
    x, y = np.arange(3, dtype="float32"), np.ones(3, "float32")
    relaxpy.VirtualMachine(relaxpy.build(mod))["main"]((x, y))
    np.testing.assert_array_equal(x, [0, 2, 4])
    np.testing.assert_array_equal(y, 1)


def test_two_outputs_one_of_them_allocated() -> None:
    call = (
        "R.call_tir_inplace(cls.both, (a, x), inplace_indices=[0, -1], "
        'out_ty=[R.Tensor((n,), "float32"), R.Tensor((n,), "float32")])'
    )
    mod = module(f"a = {INC.format('x')}\nt = {call}\nreturn t")
    x = np.arange(3, dtype="float32")
    a, c = run(mod, x)
    np.testing.assert_array_equal(a, [1, 3, 5])
    np.testing.assert_array_equal(c, [0, 2, 4])


def test_the_same_memory_twice_is_copied() -> None:
    call = (
        "R.call_tir_inplace(cls.both, (a, a), inplace_indices=[0, -1], "
        'out_ty=[R.Tensor((n,), "float32"), R.Tensor((n,), "float32")])'
    )
    mod = module(f"a = {INC.format('x')}\nt = {call}\nreturn t")
    assert count(mod) == 0
    np.testing.assert_array_equal(run(mod, np.arange(3, dtype="float32"))[0], [2, 4, 6])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ('(x,), inplace_indices=[1], out_ty=R.Tensor((n,), "float32")', "different arguments of 1"),
        (
            '(x,), inplace_indices=[-1], out_ty=R.Tensor((n,), "float32")',
            "no output is updated in place",
        ),
        ('(x,), inplace_indices=[0, 0], out_ty=R.Tensor((n,), "float32")', "2 indices for 1"),
        (
            '(x,), inplace_indices=[0], out_ty=R.Tensor((n + 1,), "float32")',
            "cannot use the memory",
        ),
        ('(x,), inplace_indices=[0], out_ty=R.Tensor((n,), "int32")', "cannot use the memory"),
        ('(x,), inplace_indices="a", out_ty=R.Tensor((n,), "float32")', "integers"),
        ("(x,), inplace_indices=[0]", "needs out_ty"),
    ],
)
def test_wrong_calls(arguments: str, message: str) -> None:
    with pytest.raises(relaxpy.RelaxError, match=message) as caught:
        module(f"b = R.call_tir_inplace(cls.twice, {arguments})\nreturn b")
    assert "R.call_tir_inplace" in str(caught.value)


def test_state_is_what_a_call_may_update_in_the_callers_memory() -> None:
    """With all its names; a pure function has none."""
    body = f"a = x\nb = {TWICE.format('a')}\nc = {INC.format('b')}\nreturn c"
    for options, names in (("(pure=False)", {"x", "a", "b"}), ("", set())):
        main = module(body, options)["main"]
        assert isinstance(main, Function)
        assert {var.name for var in state(main)} <= names
        assert {"x", "a"} & names <= {var.name for var in state(main)}


def test_updated_is_whatever_an_in_place_call_takes() -> None:
    main = module(f"a = R.exp(x)\nb = a\nc = {TWICE.format('b')}\nd = {INC.format('x')}\nreturn d")[
        "main"
    ]
    assert isinstance(main, Function)
    assert {var.name for var in updated(main.body)} == {"a", "b"}
