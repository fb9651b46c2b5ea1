"""The cases that TVM's tests of gradients look at, each as a program of ours, with symbols, beside finite differences: of
operators (`test_op_gradient_numeric.py`), and of programs (`test_transform_gradient.py`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.testing import check_grads
from relaxpy.transform import Gradient
from tests.sweeps import part

RNG = np.random.default_rng(0)


def numbers(*shape: int, low: float = 0.0, high: float = 16.0) -> np.ndarray:
    return RNG.uniform(low, high, shape)


def apart(*shape: int) -> np.ndarray:
    """Numbers at least 0.01 from each other: maxima have no ties."""
    return RNG.permutation(int(np.prod(shape))).reshape(shape) * 0.011


TARGETS = RNG.integers(0, 3, (2, 4))
TARGETS[0, 0] = 0
CONVOLUTIONS = [
    ((3, 2, 3, 3), ""),
    ((3, 2, 1, 2), ""),
    ((3, 2, 3, 3), ", strides=(2, 2), padding=(3, 2), dilation=(1, 1)"),
    ((3, 2, 3, 3), ", strides=(2, 1), padding=(2, 2), dilation=(1, 1)"),
    ((4, 1, 3, 3), ", groups=2, strides=(2, 2), padding=(2, 2), dilation=(1, 1)"),
]
POOLS = [
    "pool_size=(3, 3)",
    "pool_size=(3, 3), strides=(2, 2), padding=(1, 2), dilation=(1, 1), count_include_pad=True",
    "pool_size=(5, 5), strides=(2, 2), padding=(2, 1), dilation=(1, 1), ceil_mode=True, count_include_pad=True",
]
DTYPE = '"float64"'
NLL = [
    ("mean", True, -1), ("sum", True, -1), ("none", True, -1), ("mean", True, 1), ("mean", False, 1),
]  # fmt: skip
OPERATORS: list[tuple[str, list[np.ndarray]]] = [
    *((f"{op}(a)", [numbers(3, 3, low=0.1, high=1)]) for op in ("log", "sqrt")),
    *(
        (f"{op}(a)", [numbers(3, 3, low=-1, high=1)])
        for op in ("abs", "cos", "exp", "negative", "sigmoid", "sin", "tanh", "nn.relu")
    ),
    *(
        (f"{op}(a, b)", [numbers(3, 3, low=1, high=2), numbers(3, 3, low=1, high=2)])
        for op in ("add", "subtract", "multiply", "divide", "power", "maximum", "minimum")
    ),
    ("triu(a, 0)", [numbers(3, 3)]),
    *(
        (f"{op}(a{more})", [numbers(*shape)])
        for op in ("sum", "mean", "variance")
        for more, shape in (("", (3, 3)), (", axis=[1, 3]", (2, 3, 4, 5)), (", keepdims=True, axis=1", (3, 3)))
    ),
    ("reshape(a, R.shape([5, 6]))", [numbers(2, 3, 5)]),
    ("reshape(a, (5, 2, 1, -1))", [numbers(2, 3, 5)]),
    ("reshape(a, R.shape([3, 2, 2]))", [numbers(3, 4)]),
    ("permute_dims(a)", [numbers(2, 3, 4, 5)]),
    ("permute_dims(a, axes=(0, 3, 1, 2))", [numbers(2, 3, 4, 5)]),
    ("concat((a, b, c), axis=1)", [numbers(3, 3), numbers(3, 4), numbers(3, 5)]),
    ("split(a, [3, 7], axis=1)", [numbers(3, 12)]),
    ("split(a, 3, axis=1)", [numbers(3, 12)]),
    ("cumsum(a, axis=1)", [numbers(3, 3)]),
    ("cumsum(a)", [numbers(3, 3)]),
    ("expand_dims(a, axis=1)", [numbers(3, 12)]),
    ("expand_dims(a, axis=(0, 2, 3))", [numbers(3, 12)]),
    ("broadcast_to(a, R.shape([2, 3, 4]))", [numbers(3, 4)]),
    ("take(a, b, axis=1)", [numbers(2, 3, 4), np.array([0, 1])]),
    ("take(a, b)", [numbers(5), np.array([1, 3])]),
    ("where(a, b, c)", [RNG.uniform(size=(3, 3)) > 0.5, numbers(3, 3), numbers(3, 3)]),
    *(
        ("matmul(a, b)", [numbers(*a), numbers(*b)])
        for a, b in (
            ((2, 3), (3, 4)), ((4,), (4,)), ((4,), (2, 3, 4, 5)), ((2, 3, 4, 5), (5,)),
            ((2, 3, 1, 4, 5), (3, 2, 5, 4)),
        )
    ),
    ("nn.silu(a)", [numbers(3, 3)]),
    *((f"nn.{op}(a{more})", [numbers(3, 3)]) for op in ("softmax", "log_softmax") for more in ("", ", axis=1")),
    *(
        ("nn.cross_entropy_with_logits(a, b)", [numbers(*shape, low=1), numbers(*shape, low=1)])
        for shape in ((3,), (2, 3))
    ),
    *(
        (
            f'nn.nll_loss(a, b{", R.const([1.5, 2.0, 9.0], " + DTYPE + ")" if weighted else ""}, reduction="{reduction}", ignore_index={ignored})',
            [x, targets],
        )
        for x, targets in ((numbers(2, 3, 4), TARGETS), (numbers(3), np.array(2)))
        for reduction, weighted, ignored in NLL
    ),
    *(
        (f"nn.conv2d(a, b{more})", [numbers(3, 2, 10, 10, high=2), numbers(*shape, high=2)])
        for shape, more in CONVOLUTIONS
    ),
    ("nn.conv2d(a, b, groups=2)", [numbers(3, 6, 10, 10, high=2), numbers(4, 3, 3, 3, high=2)]),
    *((f"nn.max_pool2d(a, {more})", [apart(3, 2, 10, 10)]) for more in POOLS),
    *((f"nn.avg_pool2d(a, {more})", [numbers(3, 2, 10, 10, high=3)]) for more in POOLS),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "args"), part(OPERATORS, 3), ids=[op for op, _ in part(OPERATORS, 3)]
)
def test_operators(op: str, args: list[np.ndarray]) -> None:
    """Not built for these sizes: what is no constant of the call has symbols."""
    params: list[str] = []
    fixed = any(
        word in op for word in ("reshape", "broadcast_to", "split", "nll_loss", "cross_entropy")
    )
    for name, array in zip("abc", args, strict=False):
        dims = [
            str(n) if fixed or op.startswith(("matmul", "nn.conv2d")) else f'"n{n}"'
            for n in array.shape
        ]
        first = f'"n{array.shape[0]}"' if dims and not fixed else "".join(dims[:1])
        dims[:1] = [first] if dims else []
        params.append(f'{name}: R.Tensor(({"".join(d + ", " for d in dims)}), "{array.dtype}")')
    mod = relaxpy.parse(
        f"@R.function\ndef main({', '.join(params)}):\n    y = R.{op}\n    return y\n"
    )
    precision = (
        None
        if np.max(np.abs(args[0])) < 5
        else relaxpy.testing.grad_check.Precision(1e-5, 1e-5, 1e-5)
    )
    check_grads(mod, *args, order=1, precision=precision)


V = 'R.Tensor(("n", 3), "float64")'
PROGRAMS: dict[str, tuple[str, str, Any]] = {
    "assigned": (f"x: {V}", "a = x; b = a; return R.sum(b)", 1),
    "used several times": (f"x: {V}", "a = R.add(x, x); b = R.add(a, x); return R.sum(b)", 1),
    "unused": (f"x: {V}, y: {V}", "a = R.add(x, x); b = R.add(a, x); return R.sum(x)", 2),
    "several targets": (f"x: {V}, y: {V}", "a = x; b = R.sum(x); c = R.sum(y); return (a, b, c)", 2),
    "tuple parameter": (
        f"x: R.Tuple({V}, {V}), y: {V}, z: {V}",
        "a = (y, z); b = x[0]; c = a[0]; d = R.add(b, c); return R.sum(d)", ((1, 1), 1, 1),
    ),
    "tuple assigned": (
        f"x: {V}, y: {V}",
        "a = (x, y); b = a[0]; c = R.add(b, x); d = a; e = d[0]; f = R.add(e, c); return R.sum(f)", 2,
    ),
    "nested tuples": (
        f"x: R.Tuple(R.Tuple({V}, {V}), {V}), y: {V}, z: {V}, u: {V}",
        "a = ((y, z), u); b = x[0]; c = b[0]; d = a[0]; e = d[1]; f = R.multiply(c, e); g = x[1]; h = R.add(f, g); return R.sum(h)",
        (((1, 1), 1), 1, 1, 1),
    ),
    "tuples used in turn": (
        f"x: {V}, y: {V}",
        "a = (x, y); b = R.multiply(x, y); c = a[0]; d = R.add(c, y); e = R.add(b, d); f = (x, y); g = f[0]; h = a[0]; "
        "i = R.add(e, g); j = R.add(i, h); return R.sum(j)", 2,
    ),
    "split and joined": ('x: R.Tensor((6, "n"), "float64")', "a = R.split(x, 2); b = R.concat(a); return R.sum(R.square(b))", None),
    "joined": (
        f"x: {V}, y: R.Tuple({V}, {V})",
        "a = (x, x); b = R.concat(a); c = R.concat((x, x)); d = R.concat(y); e = R.multiply(b, c); f = R.add(e, d); return R.sum(f)",
        (1, (1, 1)),
    ),
    "constants": (
        f"x: {V}",
        "k = R.const(2.0, \"float64\"); a = R.add(x, k); b = k; c = (k, (k, a)); d = c[1]; e = d[1]; f = R.subtract(R.square(e), b); "
        "return R.sum(f)", 1,
    ),
    "transposed product": (
        'x: R.Tensor(("n", "m"), "float64"), y: R.Tensor(("m", "n"), "float64")',
        "a = R.permute_dims(x); b = R.permute_dims(y); c = R.matmul(a, b); return R.sum(R.square(c))", None,
    ),
    "a shape as a value": (
        'x: R.Tensor((3, 4), "float64")', "s = R.shape([3, 2, 2]); a = R.reshape(x, s); return R.sum(R.exp(a))", None,
    ),
}  # fmt: skip
SHAPES: dict[str, list[np.ndarray]] = {
    "split and joined": [numbers(6, 2, high=1)],
    "transposed product": [numbers(2, 3, high=1), numbers(3, 2, high=1)],
    "a shape as a value": [numbers(3, 4, high=1)],
}


def drawn(tree: Any) -> Any:
    return tuple(map(drawn, tree)) if isinstance(tree, tuple) else numbers(2, 3, high=1)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    params, body, kinds = PROGRAMS[name]
    lines = "\n".join(f"    {line.strip()}" for line in body.split(";"))
    mod = relaxpy.parse(f"@R.function\ndef main({params}):\n{lines}\n")
    if name in SHAPES:
        args: list[Any] = SHAPES[name]
    else:
        args = [drawn(each) for each in ((1,) * kinds if isinstance(kinds, int) else kinds)]
    check_grads(mod, *args, order=1)


@pytest.mark.parametrize(
    ("result", "kind"),
    [("(R.sum(x), R.sum(x))", "a tuple"), ("x", "no scalar"), ("R.const(1)", "an integer")],
)
def test_what_is_no_float_scalar_is_refused(result: str, kind: str) -> None:
    mod = relaxpy.parse(
        f'@R.function\ndef main(x: R.Tensor((3, 3), "float32")):\n    return {result}\n'
    )
    with pytest.raises(RelaxError, match="needs a float scalar as its result"):
        Gradient("main", "grad")(mod)


def test_what_is_no_function_is_refused() -> None:
    mod = relaxpy.parse(
        '@R.function\ndef main(x: R.Tensor((3, 3), "int64")):\n    return R.sum(x)\n'
    )
    with pytest.raises(RelaxError, match="main1"):
        Gradient("main1")(mod)
    with pytest.raises(RelaxError, match="no parameter is a tensor of floats"):
        Gradient("main")(mod)
