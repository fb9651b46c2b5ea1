from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.script import ir as I
from relaxpy.script import relax as R
from relaxpy.script import tir as T
from relaxpy.testing.interpret import interpret

scale = 3.0
width = 4


@R.macro
def scaled(x, bias=1.0):
    y = x * scale
    y = y + bias
    return R.exp(y)


@R.macro(hygienic=False)
def with_local(x):
    return x + offset


@T.macro
def copy_row(A, B, i, factor):
    for j in range(width):
        with T.sblock("row"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * factor


@T.macro(hygienic=False)
def copy_any(A, B, i):
    for j in range(columns):
        with T.sblock("any"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj]


def test_a_macro_of_decorated_code() -> None:
    """Names of the macro are its own: `y` and `scale` of the function are others."""
    scale = "of no use to the macro"

    @R.function
    def main(x: R.Tensor(("n", 4), "float32")):
        y = x - 1.0
        with R.dataflow():
            a = scaled(y, bias=2.0)
            R.output(a)
        return (a, scaled(R.abs(x)), y)

    del scale
    mod = relaxpy.IRModule({"main": main})
    relaxpy.assert_structural_equal(mod, relaxpy.parse(mod.script()))
    x = np.linspace(-1, 1, 8, dtype="float32").reshape(2, 4)
    a, b, y = interpret(mod, "main", x)
    np.testing.assert_allclose(a, np.exp((x - 1) * 3 + 2), rtol=1e-5)
    np.testing.assert_allclose(b, np.exp(np.abs(x) * 3 + 1), rtol=1e-5)
    np.testing.assert_allclose(y, x - 1)


def test_names_of_the_place_of_use() -> None:
    @R.function
    def main(x: R.Tensor((4,), "float32")):
        offset = R.const(5.0)  # noqa: F841
        return with_local(x)

    x = np.zeros(4, "float32")
    np.testing.assert_array_equal(interpret(relaxpy.IRModule({"main": main}), "main", x), 5)


def test_macros_of_tensor_programs() -> None:
    columns = 4

    @I.ir_module
    class M:
        @T.prim_func
        def f(
            A: T.Buffer((2, 4), "float32"),
            B: T.Buffer((2, 4), "float32"),
            C: T.Buffer((2, 4), "float32"),
        ):
            for i in range(2):
                copy_row(A, B, i, T.float32(2))
            for j in range(2):
                copy_any(B, C, j)

        @R.function
        def main(x: R.Tensor((2, 4), "float32")):
            t = R.call_tir(
                M.f, (x,), out_ty=[R.Tensor((2, 4), "float32"), R.Tensor((2, 4), "float32")]
            )
            return t[1]

    del columns
    relaxpy.assert_structural_equal(M, relaxpy.parse(M.script()))
    x = np.arange(8, dtype="float32").reshape(2, 4)
    np.testing.assert_array_equal(interpret(M, "main", x), x * 2)
    np.testing.assert_array_equal(
        relaxpy.VirtualMachine(relaxpy.build(M))["main"](x).numpy(), x * 2
    )


TEXT = """
from relaxpy.script import ir as I, relax as R, tir as T

size = 4

@T.macro
def body(A, B, i):
    with T.sblock("b"):
        vi = T.axis.spatial(size, i)
        B[vi] = A[vi] + T.float32(1)

@R.macro
def twice(f, x):
    y = inner(x)
    return R.call_tir(f, (y,), out_ty=R.Tensor((4,), "float32"))

@R.macro
def inner(x):
    return x * 2.0

@I.ir_module
class M:
    @T.prim_func
    def inc(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
        for i in range(size):
            body(A, B, i)

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        return twice(M.inc, x)
"""


def test_macros_of_a_text() -> None:
    mod = relaxpy.parse(TEXT)
    relaxpy.assert_structural_equal(mod, relaxpy.parse(mod.script()))
    x = np.arange(4, dtype="float32")
    np.testing.assert_array_equal(interpret(mod, "main", x), 2 * x + 1)


def test_a_mistake_inside_says_where_the_macro_is_used() -> None:
    with pytest.raises(relaxpy.RelaxError) as caught:
        relaxpy.parse(TEXT.replace("x * 2.0", "R.matmul(x, 2)"))
    assert "the macro is used here" in str(caught.value)
    assert "R.matmul(x, 2)" in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("twice(M.inc)", "got no x"),
        ("twice(M.inc, x, x)", "got 3 arguments"),
        ("twice(M.inc, z=x)", "got the argument z"),
    ],
)
def test_wrong_uses(wrong: str, message: str) -> None:
    with pytest.raises(relaxpy.RelaxError, match=message):
        relaxpy.parse(TEXT.replace("twice(M.inc, x)", wrong))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return x * 2.0", "return inner(x)"),
        ("    with T.sblock", "    body(A, B, i)\n    with T.sblock"),
    ],
)
def test_a_macro_that_uses_itself(before: str, after: str) -> None:
    with pytest.raises(relaxpy.RelaxError, match="is recursive"):
        relaxpy.parse(TEXT.replace(before, after))


def test_a_macro_must_return() -> None:
    with pytest.raises(relaxpy.RelaxError, match="returns nothing"):
        relaxpy.parse(TEXT.replace("    return x * 2.0", "    y = x * 2.0"))


def test_python_cannot_call_a_macro() -> None:
    with pytest.raises(relaxpy.RelaxError, match="only in a function of the script"):
        scaled(1)


def test_macros_inside_functions() -> None:
    """They see the variables of the function around, and stay inside it."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor((4,), "float32"), k: R.Tensor((4,), "float32")):
    @R.macro
    def plus(v):
        w = v + k
        return w

    return plus(plus(x))
""")
    expected = relaxpy.parse("""
@R.function
def main(x: R.Tensor((4,), "float32"), k: R.Tensor((4,), "float32")):
    a = x + k
    b = a + k
    return b
""")
    relaxpy.assert_structural_equal(mod, expected)


def test_symbols_of_a_macro_are_new_at_each_use() -> None:
    """The `n` of one use is not that of another, nor the function's."""
    mod = relaxpy.parse("""
@R.macro
def flat(x):
    n = T.int64()
    y = R.match_cast(x, R.Tensor((n, 2), "float32"))
    return R.reshape(y, (n * 2,))

@R.function
def main(n: R.Prim("int64"), x: R.Tensor(("m", 2), "float32"), y: R.Tensor((5, 2), "float32")):
    a = flat(x)
    b = flat(y)
    return (a, b)
""")
    assert "(n_1, 2)" in mod.script()
    relaxpy.assert_structural_equal(mod, relaxpy.parse(mod.script()))
    x, y = np.ones((3, 2), "float32"), np.ones((5, 2), "float32")
    a, b = interpret(mod, "main", 1, x, y)
    assert (a.shape, b.shape) == ((6,), (10,))


@pytest.mark.parametrize("kind", ["R", "T"])
def test_macros_that_use_each_other_too_often(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each uses the one before twice: that would be 2 ** 40 statements."""
    monkeypatch.setattr("relaxpy.script.macro.MOST_USES", 200)
    if kind == "R":
        first, step = (
            "@R.macro\ndef m0(v):\n    return v\n",
            "    w = m{1}(v)\n    return m{1}(w)\n",
        )
        main = '@R.function\ndef main(x: R.Tensor((4,), "float32")):\n    return m40(x)\n'
    else:
        first, step = "@T.macro\ndef m0(v):\n    v[0] = v[1]\n", "    m{1}(v)\n    m{1}(v)\n"
        main = '@T.prim_func\ndef main(x: T.Buffer((4,), "float32")):\n    m40(x)\n'
    head = f"@{kind}.macro\ndef m{{0}}(v):\n"
    steps = [(head + step).format(i, i - 1) for i in range(1, 41)]
    with pytest.raises(RelaxError, match="more than"):
        relaxpy.parse(first + "".join(steps) + main)
