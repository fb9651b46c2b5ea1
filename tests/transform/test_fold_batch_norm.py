"""FoldBatchNorm: what goes into the convolution, what is multiplied, what stays, and that the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.ir.expr import Call, Function
from relaxpy.ir.module import IRModule
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.transform import (
    BindParams,
    CanonicalizeBindings,
    DeadCodeElimination,
    FoldBatchNorm,
    Normalize,
    PassContext,
    Sequential,
)

RNG = np.random.default_rng(0)
CHANNELS = 4
NUMBERS = {
    "gamma": RNG.uniform(-1, 1, CHANNELS).astype("float32"),
    "beta": RNG.uniform(-1, 1, CHANNELS).astype("float32"),
    "mean": RNG.uniform(-1, 1, CHANNELS).astype("float32"),
    "variance": RNG.uniform(0.1, 2, CHANNELS).astype("float32"),
}


def module(
    convolution: str,
    normalise: str = "axis=1, training=False",
    *,
    weight: tuple[int, ...] = (CHANNELS, 3, 3, 3),
    data: str = '("n", 3, "h", "w")',
    result: str = "normal[0]",
) -> IRModule:
    """A convolution of `x` by `w`, normalised; the weight and the statistics are bound."""
    vectors = ", ".join(f'{name}: R.Tensor(({CHANNELS},), "float32")' for name in NUMBERS)
    mod = relaxpy.parse(f"""
from relaxpy.script import relax as R

@R.function
def main(x: R.Tensor({data}, "float32"), w: R.Tensor({weight}, "float32"), {vectors}):
    with R.dataflow():
        y = {convolution}
        normal = R.nn.batch_norm(y, {", ".join(NUMBERS)}, {normalise})
        z = {result}
        R.output(z)
    return z
""")
    w = RNG.uniform(-1, 1, weight).astype("float32")
    return BindParams()(Normalize()(mod), PassContext(params={**NUMBERS, "w": w}))


def folded(mod: IRModule, *data: np.ndarray) -> list[str]:
    """The operators after the pass, whose numbers are compared with those before."""
    after = Sequential((FoldBatchNorm(), DeadCodeElimination()))(mod)
    want, got = (np.asarray(interpret(m, "main", *data)) for m in (mod, after))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    main = after["main"]
    assert isinstance(main, Function)
    return [b.value.op.name for b in main.body.bindings if isinstance(b.value, Call)]  # type: ignore[union-attr]


def images(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype("float32")


def test_example() -> None:
    check_example(FoldBatchNorm())


@pytest.mark.parametrize(
    "convolution",
    ["R.nn.conv2d(x, w)", "R.nn.conv2d(x, w, padding=1, strides=2)"],
)
def test_into_the_weight(convolution: str) -> None:
    """One convolution and one addition are left."""
    assert folded(module(convolution), images(2, 3, 6, 5)) == ["nn.conv2d", "add"]


@pytest.mark.parametrize("order", ["R.add(y0, b)", "R.add(b, y0)"])
@pytest.mark.parametrize("shape", [(1, CHANNELS, 1, 1), (CHANNELS, 1, 1), (1, 1, 1, 1), ()])
def test_a_bias_between_becomes_part_of_the_shift(order: str, shape: tuple[int, ...]) -> None:
    bias = RNG.uniform(-1, 1, shape).tolist()
    mod = module(
        f"R.nn.conv2d(x, w)\n        y0 = y\n        b = R.const({bias}, 'float32')\n        y = {order}"
    )
    mod = CanonicalizeBindings()(mod)
    assert folded(mod, images(2, 3, 5, 7)) == ["nn.conv2d", "add"]


def test_sums_that_are_no_bias_stay() -> None:
    """Numbers along a row, and a sum that has another use."""
    row = f"b = R.const({[1.0, 2.0, 3.0]}, 'float32')\n        y = R.add(y0, b)"
    mod = CanonicalizeBindings()(module(f"R.nn.conv2d(x, w)\n        y0 = y\n        {row}"))
    assert folded(mod, images(2, 3, 5, 5)) == ["nn.conv2d", "add", "multiply", "add"]
    number = "b = R.const(2.0, 'float32')\n        y = R.add(y0, b)"
    mod = module(
        f"R.nn.conv2d(x, w)\n        y0 = y\n        {number}", result="R.add(normal[0], y)"
    )
    operators = folded(CanonicalizeBindings()(mod), images(2, 3, 5, 5))
    assert operators == ["nn.conv2d", "add", "multiply", "add", "add"]


def test_channels_last() -> None:
    """The axis of the channels is that of the convolution's layout."""
    convolution = 'R.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO")'
    mod = module(
        convolution, "axis=3, training=False", weight=(3, 3, 3, CHANNELS), data='("n", "h", "w", 3)'
    )
    assert folded(mod, images(1, 4, 5, 3)) == ["nn.conv2d", "add"]


def test_groups() -> None:
    mod = module(
        "R.nn.conv2d(x, w, groups=2)", weight=(CHANNELS, 2, 3, 3), data='("n", 4, "h", "w")'
    )
    assert folded(mod, images(1, 4, 4, 4)) == ["nn.conv2d", "add"]


def test_without_gamma_and_beta() -> None:
    mod = module("R.nn.conv2d(x, w)", "axis=1, training=False, center=False, scale=False")
    assert folded(mod, images(1, 3, 3, 4)) == ["nn.conv2d", "add"]


def test_sums_that_something_else_uses() -> None:
    """They must not change: the factor is multiplied."""
    mod = module("R.nn.conv2d(x, w)", result="normal[0] + y")
    assert folded(mod, images(1, 3, 4, 4)) == ["nn.conv2d", "multiply", "add", "add"]


def test_other_axis() -> None:
    """A factor for each row of the image is no factor for each channel."""
    mod = module(
        "R.nn.conv2d(x, w)", "axis=2, training=False", data=f'("n", 3, {CHANNELS + 2}, "w")'
    )
    assert folded(mod, images(1, 3, CHANNELS + 2, 5)) == ["nn.conv2d", "multiply", "add"]


def test_no_convolution() -> None:
    mod = module("R.nn.relu(x)", weight=(1,), data='("n", 4, "h", "w")')
    assert folded(mod, images(1, 4, 2, 2)) == ["nn.relu", "multiply", "add"]


def test_moving_statistics() -> None:
    """They come out as they went in."""
    after = FoldBatchNorm()(module("R.nn.conv2d(x, w)", result="normal[1]"))
    np.testing.assert_array_equal(interpret(after, "main", images(1, 3, 3, 3)), NUMBERS["mean"])


def test_training() -> None:
    """Statistics of the data are not known."""
    mod = module("R.nn.conv2d(x, w)", "axis=1")
    assert folded(mod, images(2, 3, 4, 4)) == ["nn.conv2d", "nn.batch_norm"]


def test_without_a_normalisation_nothing_is_done() -> None:
    mod: IRModule = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 4), dtype="float32")) -> R.Tensor(("n", 4), dtype="float32"):
    y = R.exp(x)
    return y
""")
    assert FoldBatchNorm()(mod) is mod
