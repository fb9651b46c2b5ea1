"""Control flow, recursion, closures, tuples and functions as values: parsed, printed, interpreted, built and run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.testing.interpret import interpret

HEAD = "from relaxpy.script import ir as I, relax as R, tir as T\n\n@I.ir_module\nclass Module:\n"


def run(functions: str, *args: Any, name: str = "main") -> Any:
    """The result, the same from the interpreter and the virtual machine, of the text and of what it prints as."""
    body = "".join(f"    {line}\n" if line else "\n" for line in functions.strip("\n").split("\n"))
    mod = relaxpy.parse(HEAD + body)
    again = relaxpy.parse(mod.script())
    relaxpy.assert_structural_equal(mod, again)
    settled = again.script()  # function types that shared a symbol have one each now
    assert relaxpy.parse(settled).script() == settled
    expected = interpret(mod, name, *args)
    got = relaxpy.VirtualMachine(relaxpy.build(again))[name](*args)
    same(expected, got)
    return expected


def same(expected: Any, got: Any) -> None:
    if isinstance(expected, tuple):
        assert len(expected) == len(got)
        for a, b in zip(expected, got, strict=True):
            same(a, b)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)
        assert got.dtype == str(expected.dtype)
    else:
        assert expected == got


X = np.array([[1, -2], [3, 4]], "float32")

CHOOSE = """
@R.function
def main(x: R.Tensor(("n", 2), "float32"), c: R.Tensor((), "bool"), d: R.Tensor((), "bool")):
    if c:
        t = R.exp(x)
        y = t + 1
    elif d:
        y = -x
    else:
        y = x * 2
    return y
"""


@pytest.mark.parametrize(("c", "d"), [(True, False), (False, True), (False, False)])
def test_branches(c: bool, d: bool) -> None:
    expected = np.exp(X) + 1 if c else -X if d else X * 2
    got = run(CHOOSE, X, np.array(c), np.array(d))
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_branches_of_different_shapes() -> None:
    """The value of an if is as coarse as both branches need."""
    text = """
@R.function
def main(x: R.Tensor(("n", 2), "float32"), c: R.Tensor((), "bool")):
    if c:
        y = x
    else:
        y = R.flatten(x)
    return y
"""
    assert run(text, X, np.array(True)).shape == (2, 2)
    assert run(text, X, np.array(False)).shape == (4,)


def test_a_condition_that_is_computed() -> None:
    text = """
@R.function
def main(x: R.Tensor(("n", 2), "float32")):
    if R.sum(x) > 3.0:
        y = x
    else:
        y = R.zeros_like(x)
    return y
"""
    np.testing.assert_array_equal(run(text, X), X)
    np.testing.assert_array_equal(run(text, -X), 0 * X)


def test_recursion_of_global_functions() -> None:
    """A loop: while i < n: x = x * 2."""
    text = """
@R.function
def main(x: R.Tensor(("n",), "float32"), count: R.Tensor((), "int64")) -> R.Tensor(("n",), "float32"):
    return Module.loop(x, R.const(0, "int64"), count)

@R.function(private=True)
def loop(
    x: R.Tensor(("n",), "float32"), i: R.Tensor((), "int64"), count: R.Tensor((), "int64")
) -> R.Tensor(("n",), "float32"):
    if i < count:
        y = Module.loop(x * 2.0, i + 1, count)
    else:
        y = x
    return y
"""
    x = np.arange(3, dtype="float32")
    np.testing.assert_array_equal(run(text, x, np.array(5)), x * 32)
    np.testing.assert_array_equal(run(text, x, np.array(0)), x)


def test_recursion_that_changes_shapes() -> None:
    """Every call has its own n: x doubles in length until it has 20 elements."""
    text = """
@R.function
def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(ndim=1, dtype="float32"):
    n = T.int64()
    s = R.shape_to_tensor(R.shape([n]))
    if s[0] >= 20:
        y = x
    else:
        y = Module.main(R.concat((x, x), axis=0))
    return y
"""
    assert run(text, np.arange(3, dtype="float32")).shape == (24,)


def test_mutual_recursion() -> None:
    text = """
@R.function
def even(i: R.Tensor((), "int64")) -> R.Tensor((), "bool"):
    if i == 0:
        y = R.const(True)
    else:
        y = Module.odd(i - 1)
    return y

@R.function
def odd(i: R.Tensor((), "int64")) -> R.Tensor((), "bool"):
    if i == 0:
        y = R.const(False)
    else:
        y = Module.even(i - 1)
    return y
"""
    assert bool(run(text, np.array(10), name="even"))
    assert not bool(run(text, np.array(10), name="odd"))


def test_closures_capture_values_and_shapes() -> None:
    text = """
@R.function
def main(x: R.Tensor(("n", 2), "float32"), scale: R.Tensor((), "float32")):
    n = T.int64()
    offset = R.ones((n, 2), "float32")

    @R.function
    def affine(y: R.Tensor((n, 2), "float32")) -> R.Tensor((n, 2), "float32"):
        return y * scale + offset

    a = affine(x)
    return affine(a)
"""
    got = run(text, X, np.float32(3))
    np.testing.assert_allclose(got, (X * 3 + 1) * 3 + 1)


def test_closures_of_closures_recursive_and_returned() -> None:
    text = """
@R.function
def main(x: R.Tensor(("n",), "float32")):
    n = T.int64()

    @R.function
    def outer(y: R.Tensor((n,), "float32")):
        @R.function
        def inner(z: R.Tensor((n,), "float32")) -> R.Tensor((n,), "float32"):
            return z + y + x

        return inner

    @R.function
    def power(y: R.Tensor((n,), "float32"), i: R.Tensor((), "int64")) -> R.Tensor((n,), "float32"):
        if i == 0:
            r = R.ones((n,), "float32")
        else:
            r = y * power(y, i - 1)
        return r

    f = outer(x * 10)
    return (f(x), power(x, R.const(3, "int64")))
"""
    x = np.arange(4, dtype="float32")
    a, b = run(text, x)
    np.testing.assert_array_equal(a, x * 12)
    np.testing.assert_array_equal(b, x**3)


def test_functions_as_values() -> None:
    """Global functions bound to names, chosen, passed, put into tuples."""
    text = """
@R.function
def main(x: R.Tensor(("n",), "float32"), c: R.Tensor((), "bool")):
    n = T.int64()
    if c:
        f = Module.double
    else:
        f = Module.square
    fs = (f, Module.double)
    g = fs[1]
    return (Module.twice(f, x), g(x), Module.twice(Module.square, x))

@R.function
def twice(
    f: R.Callable((R.Tensor(("m",), "float32"),), R.Tensor(("m",), "float32")), x: R.Tensor(("m",), "float32")
) -> R.Tensor(("m",), "float32"):
    return f(f(x))

@R.function
def double(x: R.Tensor(("m",), "float32")) -> R.Tensor(("m",), "float32"):
    return x * 2

@R.function
def square(x: R.Tensor(("m",), "float32")) -> R.Tensor(("m",), "float32"):
    return x * x
"""
    x = np.arange(4, dtype="float32")
    for c, expected in ((True, x * 4), (False, x**4)):
        a, b, d = run(text, x, np.array(c))
        np.testing.assert_array_equal(a, expected)
        np.testing.assert_array_equal(b, x * 2)
        np.testing.assert_array_equal(d, x**4)


def test_tuples_in_tuples() -> None:
    text = """
@R.function
def main(t: R.Tuple(R.Tensor(("n",), "float32"), R.Tuple(R.Tensor((2, "n"), "float32"), R.Shape(["n"])))):
    a, rest = t
    b, s = rest
    with R.dataflow():
        c = (b[0] + a, (a, R.tuple()))
        d = c[1]
        R.output(c, d)
    return (c, d[0], s, rest[1], ())
"""
    a = np.arange(3, dtype="float32")
    b = np.ones((2, 3), "float32")
    c, d, s, r, empty = run(text, (a, (b, relaxpy.Shape((3,)))))
    np.testing.assert_array_equal(c[0], a + 1)
    np.testing.assert_array_equal(d, a)
    assert tuple(s) == tuple(r) == (3,)
    assert empty == ()


def test_scalars_and_shapes() -> None:
    text = """
@R.function
def main(x: R.Tensor(("n", "m"), "float32"), k: R.Prim("int64")):
    n, m = T.int64(), T.int64()
    s = R.shape([n * m, k])
    return (R.zeros(s, "float32"), s, n + m * 2, s[0], x[n - 1])
"""
    z, s, p, first, last = run(text, X, 3)
    assert z.shape == (4, 3)
    assert tuple(s) == (4, 3)
    assert (int(p), int(first)) == (6, 4)
    np.testing.assert_array_equal(last, X[-1])


def test_calls_of_every_kind() -> None:
    text = """
@T.prim_func
def add(a: T.handle, b: T.handle, c: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (n,), "float32")
    C = T.match_buffer(c, (n,), "float32")
    for i in range(n):
        with T.block("add"):
            vi = T.axis.spatial(n, i)
            C[vi] = A[vi] + B[vi]

@R.function(pure=False)
def main(x: R.Tensor(("n",), "float32"), f: R.Callable((R.Tensor(("n",), "float32"),), R.Object)):
    n = T.int64()
    cls = Module
    a = R.call_tir(cls.add, (x, x), out_sinfo=R.Tensor((n,), "float32"))
    b = R.call_dps_library("e2e.twice", (a,), out_ty=R.Tensor((n,), "float32"))
    c = R.call_packed("e2e.negate", b, sinfo_args=R.Tensor((n,), "float32"))
    d = R.call_pure_packed("e2e.negate", c, ty_args=R.Tensor((n,), "float32"))
    e = R.invoke_closure(f, (d,), ty_args=R.Tensor((n,), "float32"))
    g = R.call_inplace_packed("e2e.fill", R.zeros((n,), "float32"), inplace_indices=[0], ty_args=R.Tensor((n,), "float32"))
    return (c, d, e, g)
"""

    @relaxpy.register_library("e2e.twice")
    def twice(x: relaxpy.Tensor, out: relaxpy.Tensor) -> None:
        np.from_dlpack(out)[...] = np.from_dlpack(x) * 2

    @relaxpy.register_function("e2e.negate")
    def negate(x: relaxpy.Tensor) -> Any:
        return -x.numpy()

    @relaxpy.register_function("e2e.fill")
    def fill(x: relaxpy.Tensor) -> relaxpy.Tensor:
        x.numpy()[...] = 7
        return x

    x = np.arange(3, dtype="float32")
    c, d, e, g = run(text, x, lambda v: v.numpy() + 1)
    np.testing.assert_array_equal(c, -4 * x)
    np.testing.assert_array_equal(d, 4 * x)
    np.testing.assert_array_equal(e, 4 * x + 1)
    np.testing.assert_array_equal(g, np.full(3, 7, "float32"))


def test_marks_and_inspection() -> None:
    text = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")):
    a = R.builtin.stop_lift_params(R.hint_on_device(x, R.cpu(0)))
    stride = R.inspect.tensor_stride_i(a, 0)
    size = R.inspect.tensor_shape_i(a, 0)
    bits = R.inspect.tensor_dtype_bits(a)
    return (a, stride, size, bits, R.inspect.tensor_byte_offset(a))
"""
    _, stride, size, bits, offset = run(text, np.ones((3, 4), "float32"))
    assert (int(stride), int(size), int(bits), int(offset)) == (4, 3, 32, 0)
