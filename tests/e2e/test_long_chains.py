"""Operators behind one another, fused: compiled in seconds however deep they go, and right."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy.errors import UsageError
from tests.sweeps import full, part, sweep

DEPTH = 12
SECONDS = 5

CHAINS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "exp": ("R.exp(R.negative({0}))", lambda x: np.exp(-x)),
    "sigmoid": ("R.sigmoid({0})", lambda x: 1 / (1 + np.exp(-x))),
    "silu": ("R.nn.silu({0})", lambda x: x / (1 + np.exp(-x))),
    "mish": ("R.multiply({0}, R.tanh(R.nn.softplus({0})))", lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    "relu": ("R.nn.relu({0})", lambda x: np.maximum(x, 0)),
    "negative": ("R.negative({0})", lambda x: -x),
    "log": ("R.log(R.add({0}, R.const(2, DTYPE)))", lambda x: np.log(x + 2)),
    "where": ("R.where(R.less({0}, x), R.tanh({0}), x)", lambda x: x),
}  # fmt: skip


def chain(step: str, depth: int, dtype: str) -> str:
    lines = [f"v{k + 1} = {step.format(f'v{k}')}" for k in range(depth)]
    body = "\n        ".join(["v0 = x", *lines, f"gv = R.add(v{depth}, x)", "R.output(gv)"])
    head = f'@R.function\ndef main(x: R.Tensor(("n", 8), "{dtype}")):\n    with R.dataflow():'
    return f"{head}\n        {body}\n    return gv\n".replace("DTYPE", f'"{dtype}"')


@sweep(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", part([*CHAINS], 2))
def test_chain(name: str, dtype: str) -> None:
    step, function = CHAINS[name]
    mod = relaxpy.parse(chain(step, DEPTH, dtype))
    start = process_time()
    exe = relaxpy.build(mod, cache=False)
    assert process_time() - start < SECONDS
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x = np.linspace(-1, 1, 24).reshape(3, 8).astype(kind)
    found = np.asarray(relaxpy.VirtualMachine(exe)["main"](x).numpy(), np.float32)
    value = x
    for _ in range(DEPTH):
        value = function(value.astype(np.float64)).astype(kind)
    wanted = (value + x).astype(np.float32)
    tolerance = 1e-4 if dtype == "float32" else 5e-2
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


@full
def test_divisions_of_elements_under_many_names() -> None:
    """Each is guarded against 0 and the smallest integer by -1, by a program that comes to the guards twice."""
    depth, n = 12, 5
    names = "".join(
        f"            a{i + 1}: T.let[T.int64] = (a{i} * T.int64(3) + a{i} // T.int64(2)) % (T.int64(7) + a{i})\n"
        for i in range(depth)
    )
    mod = relaxpy.parse(f"""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def k(x: T.Buffer(("n",), "int64"), y: T.Buffer(("n",), "int64")):
        n = T.int64()
        for i in range(n):
            a0: T.let[T.int64] = x[i]
{names}            with T.sblock("b"):
                vi = T.axis.spatial(n, i)
                y[vi] = a{depth}

    @R.function
    def main(x: R.Tensor(("n",), "int64")):
        n = T.int64()
        cls = Module
        y = R.call_tir(cls.k, (x,), out_ty=R.Tensor((n,), "int64"))
        return y
""")
    start = process_time()
    exe = relaxpy.build(mod, cache=False, jobs=1)
    assert process_time() - start < 2 * SECONDS
    given = np.arange(n)
    wanted = [int(each) for each in given]
    for _ in range(depth):
        wanted = [(each * 3 + each // 2) % (7 + each) for each in wanted]
    found = relaxpy.VirtualMachine(exe)["main"](given)
    np.testing.assert_array_equal(found, wanted)


def test_indices_under_many_names() -> None:
    """Each name four times in the value of the next, as an author may write it: six were too many to compile."""
    depth, n = 7, 5
    names = "".join(
        f"            a{i + 1}: T.let[T.int64] = (a{i} * T.int64(3) + a{i} // T.int64(2)) % (n + a{i})\n"
        for i in range(depth)
    )
    mod = relaxpy.parse(f"""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def k(x: T.Buffer((16,), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            a0: T.let[T.int64] = i + T.int64(1)
{names}            with T.sblock("b"):
                vi = T.axis.spatial(n, i)
                y[vi] = x[a{depth}]

    @R.function
    def main(x: R.Tensor((16,), "float32"), s: R.Shape(["n"])):
        n = T.int64()
        cls = Module
        y = R.call_tir(cls.k, (x,), out_ty=R.Tensor((n,), "float32"))
        return y
""")
    start = process_time()
    exe = relaxpy.build(mod, cache=False, jobs=1)
    assert process_time() - start < SECONDS
    places = []
    for place in range(1, n + 1):
        for _ in range(depth):
            place = (place * 3 + place // 2) % (n + place)
        places.append(place)
    x = np.arange(16, dtype=np.float32)
    main = relaxpy.VirtualMachine(exe)["main"]
    np.testing.assert_array_equal(main(x, (n,)), x[places])
    with pytest.raises(relaxpy.RelaxError, match="out of bounds for dimension 0 of x"):
        main(x, (60,))


def product_of_sums(count: int) -> str:
    sizes = [f"s{i}" for i in range(count)]
    declared = ", ".join("T.int64()" for _ in sizes)
    shape = "".join(f"{size} + 1, " for size in sizes)
    return f"""
@R.function
def main(q: R.Shape([{", ".join(map(repr, sizes))}])):
    {", ".join(sizes)} = {declared}
    y = R.flatten(R.ones(({shape}), "float32"))
    return y
"""


def test_a_product_of_sums() -> None:
    """Written out, it has a term for each choice of the summands: 256 are compiled, more are refused."""
    start = process_time()
    exe = relaxpy.build(relaxpy.parse(product_of_sums(8)), cache=False)
    assert process_time() - start < 2 * SECONDS
    sizes = (0, 1, 0, 2, 0, 1, 0, 3)
    found = relaxpy.VirtualMachine(exe)["main"](sizes)
    assert found.shape == (np.prod([size + 1 for size in sizes]),)
    for count in (9, 10, 24):
        with pytest.raises(UsageError, match=r"at most 1024 products|at most 4096 terms") as caught:
            relaxpy.parse(product_of_sums(count))
        assert caught.value.span is not None


@pytest.mark.parametrize("rank", [12, 13, 29])
def test_many_dimensions(rank: int) -> None:
    """Each of a size of its own."""
    sizes = ", ".join(f'"s{i}"' for i in range(rank))
    mod = relaxpy.parse(f"""
@R.function
def main(x: R.Tensor(({sizes}), "float32")):
    return R.exp(x) + R.sum(x)
""")
    x = np.ones([2] * 3 + [1] * (rank - 3), "float32")
    found = relaxpy.VirtualMachine(relaxpy.build(mod, cache=False))["main"](x)
    np.testing.assert_allclose(found.numpy(), np.exp(x) + x.sum(), rtol=1e-6)
