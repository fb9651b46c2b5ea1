from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.ir import Function
from relaxpy.testing.interpret import interpret

X = np.arange(60, dtype="float32").reshape(3, 4, 5)
I = np.array([2, 0, -1], "int64")

SUBSCRIPTS = """
0
-1
1, 2
1, 2, 3
-3, -4, -5
0, ...
..., 0
..., -2
...
:
1:
:2
-2:
:-1
1:3, :, ::2
::-1
::-2, 1
3:0:-1
-1:-4:-1
5:1:-2
7:
-9:9
2:1
None
None, 0
:, None, 1
..., None
None, ..., None, 2:4
1:2, None, ::2, None
i
:, i
..., i
1:, i
i, ..., ::2
i, i
i, i, i
i, i[::-1], ...
""".strip().split("\n")


def module(subscript: str, shape: str) -> relaxpy.IRModule:
    return relaxpy.parse(
        f'@R.function\ndef main(x: R.Tensor({shape}, "float32"), i: R.Tensor((3,), "int64")):\n    return x[{subscript}]\n'
    )


@pytest.mark.parametrize("shape", ["(3, 4, 5)", '("a", "b", "c")'])
@pytest.mark.parametrize("subscript", SUBSCRIPTS)
def test_as_numpy(subscript: str, shape: str) -> None:
    expected = eval(f"x[{subscript}]", {"x": X, "i": I})
    mod = module(subscript, shape)
    got = interpret(mod, "main", X, I)
    np.testing.assert_array_equal(got, expected)
    assert mod["main"].ret.ndim == expected.ndim


@pytest.mark.parametrize("subscript", ["0", "-1", "1:", "..., 0", "::-1", "None, i"[:4]])
def test_unknown_shape(subscript: str) -> None:
    mod = relaxpy.parse(
        f'@R.function\ndef main(x: R.Tensor(dtype="float32", ndim=3)):\n    return x[{subscript}]\n'
    )
    np.testing.assert_array_equal(interpret(mod, "main", X), eval(f"x[{subscript}]", {"x": X}))


def test_dimensions_as_places() -> None:
    """`x[n - 1]`, `x[:k]` with a scalar parameter."""
    mod = relaxpy.parse(
        '@R.function\ndef main(x: R.Tensor(("n", 4), "float32"), k: R.Prim("int64")):\n'
        "    n = T.int64()\n    a = x[n - 1]\n    b = x[:k, 1:]\n    s = R.shape([k])\n    return (a, b)\n"
    )
    x = X[0, :, :4]
    a, b = interpret(mod, "main", x, 2)
    np.testing.assert_array_equal(a, x[-1])
    np.testing.assert_array_equal(b, x[:2, 1:])


def test_built_and_run() -> None:
    mod = module("-1, 1:, ::-2", '("a", "b", "c")')
    got = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](X, I)
    np.testing.assert_array_equal(got.numpy(), X[-1, 1:, ::-2])


def test_a_place_that_is_not_there() -> None:
    """Not known while compiling: an error at run time."""
    with pytest.raises(relaxpy.RelaxError):
        interpret(module("5", '("a", "b", "c")'), "main", X, I)


@pytest.mark.parametrize(
    ("subscript", "message"),
    [
        ("3", "out of range for an axis of size 3"),
        ("-4", "out of range"),
        ("0, 0, 0, 0", "4 indices for a tensor of 3 dimensions"),
        ("..., ...", "more than one"),
        ("'a'", "indexed by integers"),
        ("1.5", "indexed by integers"),
        ("True", "indexed by integers"),
        ("x", "indexed by integers"),
        ("0, i, i", "of the first axes"),
        ("i, :, i", "of the first axes"),
        ("x > 0", "a tensor of bools"),
        ("0, i", "beside an integer"),
        ("::0", "a step of 0"),
        ("i:2", "indexed by integers"),
    ],
)
def test_refused(subscript: str, message: str) -> None:
    with pytest.raises(relaxpy.RelaxError, match=message) as caught:
        module(subscript, "(3, 4, 5)")
    assert caught.value.code == "tensor-index"
    assert caught.value.span is not None


@pytest.mark.parametrize(
    ("subscript", "shape"),
    [("::-1", "(a,)"), ("::-2", "((a + 1) // 2,)")],
)
def test_the_shape_of_a_slice_is_simple(subscript: str, shape: str) -> None:
    """What is left out of a slice leaves no traces of 2**63 in its shape."""
    main = relaxpy.parse(
        f'@R.function\ndef main(x: R.Tensor(("a",), "float32")):\n    return x[{subscript}]\n'
    )["main"]
    assert isinstance(main, Function)
    assert str(main.ret).startswith(f"R.Tensor({shape}")
