"""Derivatives of programs: of dataflow blocks, branches, calls, recursion and loops; higher orders; errors."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.errors import ErrorGroup, PassError
from relaxpy.ir.module import IRModule
from relaxpy.ir.structural import structural_equal
from relaxpy.script import relax as R
from relaxpy.testing import check_grads
from relaxpy.testing.interpret import interpret
from relaxpy.transform import Gradient
from tests.sweeps import full

RNG = np.random.default_rng(0)


def module(*functions: str) -> IRModule:
    """A module of functions, whose text begins at the parameters of `main`."""
    head = "@I.ir_module\nclass M:\n    @R.function\n"
    return relaxpy.parse(head + "\n".join(functions))


SCALAR = '-> R.Tensor((), "float64")'
BRANCHES = f"""
    def main(x: R.Tensor(("n",), "float64"), c: R.Tensor((), "bool")) {SCALAR}:
        cls = M
        if c:
            y = R.sin(x)
            if c:
                z = R.multiply(y, x)
            else:
                z = y
        else:
            z = R.exp(x)
        u = cls.power(z, R.const(3, "int64"))
        return R.sum(u)
"""
POWER = """
    @R.function(private=True)
    def power(x: R.Tensor(("k",), "float64"), n: R.Tensor((), "int64")) -> R.Tensor(("k",), "float64"):
        cls = M
        stop = R.less_equal(n, R.const(0, "int64"))
        if stop:
            r = R.cos(x)
        else:
            m = R.subtract(n, R.const(1, "int64"))
            q = cls.power(x, m)
            r = R.multiply(q, x)
        return r
"""
LOOP = f"""
    def main(x: R.Tensor(("n",), "float64"), w: R.Tensor((), "float64"), n: R.Tensor((), "int64")) {SCALAR}:
        cls = M
        r = cls.loop(x, w, n)
        return R.sum(r)

    @R.function(private=True)
    def loop(
        x: R.Tensor(("k",), "float64"), w: R.Tensor((), "float64"), n: R.Tensor((), "int64")
    ) -> R.Tensor(("k",), "float64"):
        cls = M
        go = R.greater(n, R.const(0, "int64"))
        if go:
            y = R.sin(R.multiply(x, w))
            r = cls.loop(y, w, R.subtract(n, R.const(1, "int64")))
        else:
            r = x
        return r
"""
TUPLES = """
    def main(x: R.Tensor(("n", 4), "float64"), p: R.Tuple(R.Tensor((4,), "float64"), R.Tensor((4,), "int64"))):
        with R.dataflow():
            a = p[0]
            y = R.multiply(x, a)
            parts = R.split(y, 2, axis=1)
            first = parts[0]
            both = (first, y)
            again = both[1]
            s = R.match_cast(again, R.Tensor(("m", 4), "float64"))
            z = R.add(s, R.exp(s))
            last = R.sum(first)
            i = p[1]
            out = (z, last, i)
            R.output(out)
        return out
"""
UNKNOWN = """
    def main(x: R.Tensor(("n",), "float64"), y: R.Tensor(("m",), "float64")):
        u = R.multiply(x, y)
        v = R.add(u, x)
        return v
"""


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [RNG.uniform(-1.5, 1.5, shape) for shape in shapes]


@pytest.mark.parametrize(
    ("mod", "args"),
    [
        (module(BRANCHES, POWER), [*arrays((3,)), np.array(True)]),
        (module(BRANCHES, POWER), [*arrays((3,)), np.array(False)]),
        (module(LOOP), [*arrays((3,), ()), np.array(4)]),
        (module(LOOP), [*arrays((3,), ()), np.array(0)]),
        (module(TUPLES), [*arrays((3, 4)), (arrays((4,))[0], np.arange(4))]),
        (module(TUPLES), [*arrays((0, 4)), (arrays((4,))[0], np.arange(4))]),
        (module(UNKNOWN), arrays((3,), (1,))),
        (module(UNKNOWN), arrays((1,), (3,))),
        (module(UNKNOWN), arrays((3,), (3,))),
    ],
    ids=["then", "else", "loop", "no turn", "tuples", "no rows", "row by 1", "1 by row", "rows"],
)  # fmt: skip
def test_derivatives_are_the_slopes(mod: IRModule, args: list[Any]) -> None:
    """Both modes, and both of the derivative."""
    check_grads(mod, *args)
    for kind in ("vjp", "jvp"):
        new = Gradient(kind=kind)(mod)  # type: ignore[arg-type]
        check_well_formed(new)
        assert structural_equal(relaxpy.parse(new.script()), new)
        assert all(new[name] is mod[name] for name in mod)


def test_a_loop_is_run_once_forward_and_once_backward() -> None:
    """The cotangent of a tail call runs the loop in the same order, and computes each step a bounded number of times."""
    new = Gradient(kind="grad", argnums=0)(module(LOOP))
    text = new.script()
    assert text.count("cls.loop(") == 3  # in main, in the loop, and for the value in main_grad
    turns: list[int] = []
    seen = Counter[str]()

    def trace(*_: Any) -> None:
        seen.update("a")

    for count in (20, 40):
        seen.clear()
        interpret(new, "main_grad", *arrays((2,), ()), np.array(count), trace=trace)
        turns.append(seen.total())
    assert turns[1] < 2.3 * turns[0]


LOSS = relaxpy.parse("""
@R.function
def main(w: R.Tensor((4,), "float32"), x: R.Tensor(("n", 4), "float32")) -> R.Tensor((), "float32"):
    return R.mean(R.square(R.tanh(R.matmul(x, w))))
""")
loss: Any = LOSS["main"]
WITH_AUX = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n",), "float32")):
    y = R.exp(x)
    return (R.sum(y), y)
""")


def test_functions_are_compiled_once_for_all_shapes() -> None:
    slope, both = relaxpy.grad(loss), relaxpy.value_and_grad(loss, None)
    of: Any = R.grad
    assert str(of(loss)) == str(slope)
    assert callable(R.grad.no_grad)
    for n in (1, 5, 7):
        w, x = RNG.standard_normal((4,), np.float32), RNG.standard_normal((n, 4), np.float32)
        theirs: list[Any] = [torch.tensor(a, requires_grad=True) for a in (w, x)]
        value = torch.mean(torch.square(torch.tanh(theirs[1] @ theirs[0])))
        torch.autograd.backward(value)
        mine, grads = both(w, x)
        np.testing.assert_allclose(mine.numpy(), value.detach().numpy(), rtol=1e-5)
        for got, want in zip((slope(w, x), *grads), (theirs[0], *theirs), strict=True):
            np.testing.assert_allclose(got.numpy(), want.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_a_gradient_has_gradients() -> None:
    hessian_product: Any = relaxpy.jvp(relaxpy.grad(loss), 0)
    third = relaxpy.vjp(hessian_product, 0)
    w, x, v = (RNG.standard_normal(s, np.float32) for s in ((4,), (5, 4), (4,)))

    def theirs(w: torch.Tensor) -> torch.Tensor:
        return torch.mean(torch.square(torch.tanh(torch.tensor(x) @ w)))

    functional: Any = torch.autograd.functional
    _, want = functional.hvp(theirs, torch.tensor(w), torch.tensor(v))
    np.testing.assert_allclose(
        hessian_product(w, x, v)[1].numpy(), want.numpy(), rtol=1e-3, atol=1e-5
    )
    assert third.params[-1].name == "ct"


def test_auxiliary_results() -> None:
    x = np.array([0.5, 1.0], np.float32)
    (value, y), slope = relaxpy.value_and_grad(WITH_AUX.main, has_aux=True)(x)
    np.testing.assert_allclose(value.numpy(), np.exp(x).sum(), rtol=1e-6)
    for got in (y, slope):
        np.testing.assert_allclose(got.numpy(), np.exp(x), rtol=1e-6)
    derived = Gradient(kind="vjp", has_aux=True)(WITH_AUX)  # the first field alone has a cotangent
    (value, y), (slope,) = interpret(derived, "main_vjp", x, np.array(3, np.float32))  # type: ignore[misc]
    np.testing.assert_allclose(slope, 3 * np.exp(x), rtol=1e-6)
    with pytest.raises(PassError, match=r"other results \(has_aux\) gives a tuple, got R.Tensor"):
        Gradient(kind="vjp", has_aux=True)(module(LOOP))


def test_branches_and_loops_are_compiled() -> None:
    x, w = arrays((3,), ())
    f = relaxpy.grad(module(LOOP).main, None)
    want = interpret(Gradient(kind="grad")(module(LOOP)), "main_grad", x, w, np.array(4))
    got = f(x, w, np.array(4))
    for mine, theirs in zip(got, want, strict=True):  # type: ignore[arg-type]
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-12)


def test_what_is_stopped_is_a_constant() -> None:
    mod = module(f"""
    def main(x: R.Tensor(("n",), "float64")) {SCALAR}:
        y = R.grad.no_grad(R.unique(x))
        s = R.sum(y)
        return R.add(R.sum(R.square(x)), s)
""")
    np.testing.assert_array_equal(
        interpret(Gradient(kind="grad", argnums=0)(mod), "main_grad", np.array([3.0, 1.0])), [6, 2]
    )


def test_a_constant_needs_no_rule() -> None:
    """An operator without a rule for one of its arguments takes a marked constant there, in both modes."""
    mod = module(f"""
    def main(x: R.Tensor((3, 4), "float64"), y: R.Tensor((3,), "int64"), w: R.Tensor((4,), "float64")) {SCALAR}:
        return R.nn.nll_loss(R.nn.log_softmax(x), y, R.grad.no_grad(w), reduction="sum")
""")
    args = [*arrays((3, 4)), np.array([0, 3, 1]), np.ones(4)]
    for kind in ("vjp", "jvp"):
        assert Gradient(kind=kind, argnums=0)(mod)  # type: ignore[arg-type]
    of_w: Any = interpret(Gradient(kind="grad", argnums=2)(mod), "main_grad", *args)
    np.testing.assert_array_equal(of_w, np.zeros(4))


def test_a_tuple_that_is_a_parameter_has_tangents_by_field() -> None:
    mod = module("""
    def main(p: R.Tuple(R.Tensor(("n",), "float64"), R.Tensor(("n",), "float64"))):
        return R.sin(R.concat(p))
""")
    check_grads(mod, tuple(arrays((3,), (3,))))


def test_all_that_has_no_rule_is_reported() -> None:
    mod = module(f"""
    def main(x: R.Tensor((1, 1, 4, 4), "float64"), i: R.Tensor((3,), "int32")) {SCALAR}:
        y = R.nextafter(x, x)
        z = R.nextafter(y, y)
        return R.sum(z)
""")
    with pytest.raises(ErrorGroup) as caught:
        Gradient()(mod)
    assert [error.span.line for error in caught.value.errors if error.span] == [7, 6]
    assert "nextafter is not differentiable: it steps from one float to the next" in str(
        caught.value
    )
    with pytest.raises(PassError, match=r"i is .*int32.*, which is not differentiable"):
        Gradient(argnums=1)(mod)
    with pytest.raises(PassError, match="argnums has 2, and there are 2 parameters"):
        Gradient(argnums=2)(mod)


def test_a_result_that_is_no_scalar_is_refused() -> None:
    with pytest.raises(PassError, match="needs a float scalar as its result") as caught:
        Gradient()(module(UNKNOWN))
    assert caught.value.code == "gradient-argument"
    assert caught.value.span is not None


def test_effects_are_refused() -> None:
    mod = relaxpy.parse("""
@I.ir_module
class M:
    @R.function(pure=False)
    def main(x: R.Tensor((3,), "float64")) -> R.Tensor((), "float64"):
        _ = R.print(x, format="{}")
        return R.sum(x)
""")
    with pytest.raises(PassError, match="a call with an effect is not differentiable"):
        Gradient()(mod)


def test_tensor_programs_are_refused() -> None:
    from relaxpy.transform import LegalizeOps

    with pytest.raises(ErrorGroup, match="call_tir is not differentiable"):
        Gradient(kind="vjp")(LegalizeOps()(module(TUPLES)))


def deep(layers: int) -> IRModule:
    lines = "\n".join(f"        y{i + 1} = R.nn.relu(R.matmul(y{i}, w))" for i in range(layers))
    return module(f"""
    def main(y0: R.Tensor(("n", 8), "float64"), w: R.Tensor((8, 8), "float64")) {SCALAR}:
{lines}
        return R.sum(y{layers})
""")


def test_time_is_linear_in_the_depth() -> None:
    times: dict[int, float] = {}
    for layers in (128, 256):
        mod = deep(layers)
        tries: list[float] = []
        for _ in range(3):
            begin = time.process_time()
            Gradient()(mod)
            tries.append(time.process_time() - begin)
        times[layers] = min(tries)
    assert times[256] < 2.6 * times[128]


def test_size_grows_with_the_order_by_a_factor() -> None:
    """Each order adds as many calls as there are, times a constant: no more."""
    mod = module(f"""
    def main(x: R.Tensor(("n",), "float64")) {SCALAR}:
        return R.sum(R.multiply(R.tanh(x), x))
""")
    counts: list[int] = []
    name, args = "main", arrays((3,))
    for _ in range(4):
        mod = Gradient(name, "vjp")(mod)
        name = f"{name}_vjp"
        counts.append(len(list(mod.graph_functions[name].body.bindings)))
        args = [*args, interpret(mod, name.removesuffix("_vjp"), *args)]
    assert all(b < 3.5 * a for a, b in pairwise(counts)), counts


CNN = """
@R.function
def main(
    w1: R.Tensor((6, 3, 3, 3), "float32"), w2: R.Tensor((4, 3, 3, 3), "float32"),
    gamma: R.Tensor((6,), "float32"), beta: R.Tensor((6,), "float32"), out: R.Tensor((10, 4), "float32"),
    x: R.Tensor(("n", 3, "h", "w"), "float32"), y: R.Tensor(("n",), "int64"),
):
    n = T.int64()
    mean, var = R.zeros(R.shape([6]), "float32"), R.ones(R.shape([6]), "float32")
    normal = R.nn.batch_norm(R.nn.conv2d(x, w1, padding=1), gamma, beta, mean, var, axis=1)
    half = R.nn.max_pool2d(R.nn.relu(normal[0]), pool_size=2, strides=2)
    few = R.nn.gelu(R.nn.conv2d(half, w2, strides=2, padding=1, groups=2))
    flat = R.reshape(R.nn.adaptive_avg_pool2d(few, output_size=1), R.shape([n, 4]))
    return R.nn.nll_loss(R.nn.log_softmax(R.linear(flat, out)), y)
"""


def cnn(arrays: list[Any], y: Any) -> Any:
    w1, w2, gamma, beta, out, x = arrays
    functional: Any = torch.nn.functional
    normal = functional.batch_norm(
        functional.conv2d(x, w1, padding=1), None, None, gamma, beta, training=True
    )
    half = functional.max_pool2d(torch.relu(normal), 2)
    few = functional.gelu(functional.conv2d(half, w2, stride=2, padding=1, groups=2))
    return functional.cross_entropy(few.mean((2, 3)) @ out.T, y)


@full
@pytest.mark.slow
def test_a_convolutional_network_beside_torch() -> None:
    """Compiled once, for images of any number and size."""
    slopes = relaxpy.value_and_grad(relaxpy.parse(CNN).main, None)
    shapes = ((6, 3, 3, 3), (4, 3, 3, 3), (6,), (6,), (10, 4))
    weights = [RNG.standard_normal(s, np.float32) for s in shapes]
    for n, h, w in ((2, 12, 12), (3, 9, 17), (1, 8, 8)):
        x, y = RNG.standard_normal((n, 3, h, w), np.float32), RNG.integers(0, 10, n)
        theirs: list[Any] = [torch.tensor(a, requires_grad=True) for a in (*weights, x)]
        loss = cnn(theirs, torch.tensor(y))
        torch.autograd.backward(loss)
        value, grads = slopes(*weights, x, y)
        np.testing.assert_allclose(value.numpy(), loss.detach().numpy(), rtol=1e-4)
        for mine, each in zip(grads, theirs, strict=True):
            np.testing.assert_allclose(mine.numpy(), each.grad.numpy(), rtol=1e-3, atol=1e-5)
