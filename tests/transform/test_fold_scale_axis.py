"""FoldScaleAxis: what goes into the weights, what is multiplied, what stays, and that the numbers stay."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Call, Function
from relaxpy.ir.module import IRModule
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.transform import (
    BindParams,
    CanonicalizeBindings,
    DeadCodeElimination,
    FoldScaleAxis,
    Normalize,
    PassContext,
    Sequential,
)
from tests.sweeps import part, sweep

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
    after = Sequential((FoldScaleAxis(), DeadCodeElimination()))(mod)
    want, got = (np.asarray(interpret(m, "main", *data)) for m in (mod, after))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    main = after["main"]
    assert isinstance(main, Function)
    return [b.value.op.name for b in main.body.bindings if isinstance(b.value, Call)]  # type: ignore[union-attr]


def images(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype("float32")


def test_example() -> None:
    check_example(FoldScaleAxis())


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
    after = FoldScaleAxis()(module("R.nn.conv2d(x, w)", result="normal[1]"))
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
    assert FoldScaleAxis()(mod) is mod


# Scales of any kind


def program(
    body: str,
    constants: Mapping[str, np.ndarray],
    data: str = '("n", 3, 7, 5), "float32"',
    result: str = "z",
) -> IRModule:
    """A function of `x` whose dataflow block is `body`; the constants are bound."""
    given = "".join(f', {name}: R.Tensor({c.shape}, "{c.dtype}")' for name, c in constants.items())
    lines = "".join(f"        {line.strip()}\n" for line in body.strip().splitlines())
    text = f"@R.function\ndef main(x: R.Tensor({data}){given}):\n    with R.dataflow():\n{lines}"
    mod = Normalize()(relaxpy.parse(f"{text}        R.output({result})\n    return {result}\n"))
    return BindParams()(mod, PassContext(params=constants))


W = {
    "w": images(4, 3, 3, 3),
    "v": images(5, 4, 1, 1),
    "s": RNG.uniform(0.5, 2, (4, 1, 1)).astype("float32"),
    "t": RNG.uniform(0.5, 2, (1, 3, 1, 1)).astype("float32"),
    "b": images(1, 4, 1, 1),
}

GONE = {
    "into a convolution": "y = R.nn.conv2d(x, w)\n z = R.multiply(y, s)",
    "from the left": "y = R.nn.conv2d(x, w)\n z = R.multiply(s, y)",
    "a division": "y = R.nn.conv2d(x, w)\n z = R.divide(y, s)",
    "a number": "y = R.nn.conv2d(x, w)\n z = R.multiply(y, R.const(-0.7, 'float32'))",
    "through relu, a bias and a pool": """y = R.nn.conv2d(x, w)
        a = R.add(y, b)
        r = R.nn.relu(a)
        p = R.nn.max_pool2d(r, pool_size=2)
        q = R.nn.avg_pool2d(p, pool_size=(2, 1))
        z = R.multiply(q, s)""",
    "through a reshape": """y = R.nn.conv2d(x, w)
        r = R.reshape(y, (n, 4, 15))
        p = R.permute_dims(r, axes=(0, 2, 1))
        z = R.multiply(p, R.const([0.5, 3, -1, 0.1], 'float32'))""",
    "through a sum of two": """y = R.nn.conv2d(x, w)
        u = R.nn.conv2d(x, w)
        a = R.add(y, u)
        z = R.multiply(a, s)""",
    "through a concatenation": """y = R.nn.conv2d(x, w)
        u = R.nn.conv2d(x, w, padding=0)
        a = R.concat((y, u), axis=1)
        r = R.nn.relu(a)
        z = R.multiply(r, R.const([[[0.5]], [[3]], [[1]], [[0.1]], [[2]], [[7]], [[8]], [[9]]], 'float32'))""",
    "a scale before": "y = R.multiply(x, t)\n z = R.nn.conv2d(y, w, padding=1)",
    "before two convolutions": """y = R.multiply(x, t)
        a = R.nn.conv2d(y, w)
        r = R.nn.relu(y)
        c = R.nn.conv2d(r, w)
        z = R.add(a, c)""",
    "pixels, with mean and deviation": """y = R.divide(x, R.const(255.0, 'float32'))
        a = R.subtract(y, t)
        c = R.divide(a, R.const([[[0.2]], [[0.3]], [[0.4]]], 'float32'))
        z = R.nn.conv2d(c, w, padding=1)""",
    "two scales": """y = R.nn.conv2d(x, w)
        a = R.multiply(y, s)
        c = R.multiply(a, R.const(2.5, 'float32'))
        z = R.nn.conv2d(c, v)""",
    "part of a concatenation, forward": """a = R.tanh(x)
        y = R.multiply(a, t)
        c = R.concat((y, x), axis=1)
        e = R.nn.avg_pool2d(c, pool_size=2)
        z = R.nn.conv2d(e, g)""",
    "zero": "y = R.nn.conv2d(x, w)\n z = R.multiply(y, R.const(0.0, 'float32'))",
}


def scales_left(mod: IRModule) -> int:
    main = mod["main"]
    assert isinstance(main, Function)
    calls = [b.value for b in main.body.bindings if isinstance(b.value, Call)]
    return sum(getattr(call.op, "name", "") in ("multiply", "divide") for call in calls)


@pytest.mark.parametrize("name", GONE)
def test_what_goes(name: str) -> None:
    """No multiplication and no division is left, a second run does nothing, and the numbers stay."""
    mod = program(GONE[name].replace("\n ", "\n"), {**W, "g": images(2, 6, 1, 1)})
    after = FoldScaleAxis()(mod)
    assert scales_left(mod) > 0
    assert scales_left(after) == 0, after.script()
    assert FoldScaleAxis()(after) is after
    check_well_formed(after)
    data = images(2, 3, 7, 5)
    want, got = (np.asarray(interpret(m, "main", data)) for m in (mod, after))
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


STAYS = {
    "a negative scale and relu": "y = R.nn.conv2d(x, w)\n r = R.nn.relu(y)\n z = R.multiply(r, R.const(-2.0, 'float32'))",
    "zero and relu": "y = R.nn.conv2d(x, w)\n r = R.nn.relu(y)\n z = R.multiply(r, R.const(0.0, 'float32'))",
    "infinity": "y = R.nn.conv2d(x, w)\n z = R.multiply(y, inf)",
    "not a number": "y = R.nn.conv2d(x, w)\n z = R.multiply(y, nan)",
    "division by zero": "y = R.nn.conv2d(x, w)\n z = R.divide(y, R.const(0.0, 'float32'))",
    "weights that overflow": "y = R.nn.conv2d(x, w)\n z = R.multiply(y, R.const(3e38, 'float32'))",
    "weights that vanish": "y = R.nn.conv2d(x, w)\n z = R.multiply(y, R.const(1e-39, 'float32'))",
    "along pixels": "y = R.nn.conv2d(x, w)\n z = R.multiply(y, R.const([1.0, 2, 3], 'float32'))",
    "a value that is read twice": "y = R.nn.conv2d(x, w)\n a = R.multiply(y, s)\n z = R.add(a, y)",
    "a larger result": "y = R.nn.conv2d(x, w)\n p = R.nn.adaptive_avg_pool2d(y, output_size=1)\n z = R.multiply(p, R.const([1.0, 2, 3], 'float32'))",
    "softmax": "y = R.nn.conv2d(x, w)\n r = R.nn.softmax(y)\n z = R.multiply(r, s)",
    "a result": "y = R.multiply(x, t)\n c = R.nn.conv2d(y, w)\n z = (c, y)",
    "a residual, forward": "y = R.multiply(x, t)\n c = R.nn.conv2d(y, w3, padding=1)\n z = R.add(c, y)",
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name: str) -> None:
    large = {**W, "w": 4 * W["w"], "w3": images(3, 3, 3, 3)}
    special = {"inf": np.array(np.inf, "float32"), "nan": np.array(np.nan, "float32")}
    mod = program(STAYS[name].replace("\n ", "\n"), large | special)
    assert FoldScaleAxis()(mod) is mod


def test_linear_layers_and_products() -> None:
    """Weights of linear layers, their bias, and both sides of products."""
    constants = {
        "u": images(4, 6),
        "c": images(4),
        "p": images(4, 3),
        "s": images(4),
        "r": images(2, 6),
    }
    mod = program(
        """y = R.linear(x, u, c)
        a = R.multiply(y, s)
        e = R.matmul(a, p)
        f = R.multiply(e, R.const(0.125, 'float32'))
        g = R.nn.relu(f)
        h = R.multiply(g, R.const([1.0, 2, 3], 'float32'))
        i = R.permute_dims(x)
        j = R.multiply(i, R.const(0.3, 'float32'))
        k = R.matmul(r, j)
        z = (h, k)""",
        constants,
        data='("n", 6), "float32"',
    )
    after = FoldScaleAxis()(mod)
    assert scales_left(after) == 0, after.script()
    data = images(5, 6)
    for got, want in zip(interpret(after, "main", data), interpret(mod, "main", data), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_are_scaled_by_powers_of_two(dtype: str) -> None:
    """Others would be rounded in the weight, whose errors a sum adds up."""
    narrow = DType(dtype).numpy
    w, x = images(4, 6).astype(narrow), images(3, 6).astype(narrow)
    for scale, left in ((0.25, 0), (0.3, 1)):
        text = f"y = R.linear(x, w)\nz = R.multiply(y, R.const({scale}, '{dtype}'))"
        mod = program(text, {"w": w}, data=f'("n", 6), "{dtype}"')
        after = FoldScaleAxis()(mod)
        assert scales_left(after) == left
        np.testing.assert_array_equal(interpret(after, "main", x), interpret(mod, "main", x))


def test_narrow_batch_norm_is_computed_in_float32() -> None:
    """It has one rounding, as the operator."""
    numbers = {k: v.astype("float16") for k, v in NUMBERS.items()}
    mod = program(
        "y = R.nn.conv2d(x, w)\nn = R.nn.batch_norm(y, gamma, beta, mean, variance, axis=1, training=False)\nz = n[0]",
        {"w": W["w"].astype("float16"), **numbers},
        data='("n", 3, 7, 5), "float16"',
    )
    after = FoldScaleAxis()(mod)
    data = images(2, 3, 7, 5).astype("float16")
    got, want = (np.asarray(interpret(m, "main", data)).astype("float64") for m in (after, mod))
    assert np.abs(got - want).max() <= np.abs(want).max() * 2.0**-10
    assert scales_left(after) == 1


def test_special_values_of_the_data_stay_what_they_are() -> None:
    text = """y = R.nn.conv2d(x, w)
        r = R.nn.relu(y)
        p = R.nn.max_pool2d(r, pool_size=2)
        z = R.multiply(p, s)"""
    mod = program(text, W)
    after = FoldScaleAxis()(mod)
    assert scales_left(after) == 0
    data = images(4, 3, 7, 5)
    data[0, 0, 3, 2], data[1, 1, 3, 2], data[2, 2, 3, 2], data[3] = np.nan, np.inf, -np.inf, 0
    with np.errstate(all="ignore"):
        got, want = (np.asarray(interpret(m, "main", data)) for m in (after, mod))
    np.testing.assert_allclose(
        got, want, rtol=1e-5, atol=1e-5
    )  # NaN and infinities at the same places


def test_a_large_weight_that_is_read_twice_is_not_stored_twice() -> None:
    """As tied embeddings: looked up, and the weight of the last layer."""
    text = """e = R.take(w, x, axis=0)
        y = R.linear(e, w)
        z = R.multiply(y, R.const(0.5, 'float32'))"""
    for rows, left in ((1000, 1), (10, 0)):
        mod = program(text, {"w": images(rows, 16)}, data='("n",), "int32"')
        assert scales_left(FoldScaleAxis()(mod)) == left


def test_a_shift_joins_the_bias_of_products_only() -> None:
    """What is added to x by itself may be what makes it small."""
    text = "y = R.linear(x, w, c)\na = R.add(y, s)\nz = R.subtract(a, R.const(2.0, 'float32'))"
    constants = {"w": images(4, 6), "c": images(4), "s": images(4)}
    mod = program(text, constants, data='("n", 6), "float32"')
    after = FoldScaleAxis()(mod)
    main = after["main"]
    assert isinstance(main, Function)
    assert len(list(main.body.bindings)) == 1
    data = images(5, 6)
    np.testing.assert_allclose(
        interpret(after, "main", data), interpret(mod, "main", data), atol=1e-5
    )
    mod = program("a = R.add(x, c)\nz = R.add(a, s)", constants, data='("n", 4), "float32"')
    assert FoldScaleAxis()(mod) is mod


@sweep
@pytest.mark.parametrize("seed", part(range(200), 12))
def test_random_networks(seed: int) -> None:
    """Layers with scales at random places: the numbers stay, and nothing is left to do."""
    mod = random_network(seed)
    after = FoldScaleAxis()(mod)
    check_well_formed(after)
    assert FoldScaleAxis()(after) is after
    data = images(2, 3, 7, 5)
    before, now = (np.asarray(interpret(m, "main", data)).astype("float64") for m in (mod, after))
    assert np.abs(now - before).max() <= 1e-4 * max(1.0, np.abs(before).max())


def random_network(seed: int) -> IRModule:
    rng = np.random.default_rng([43, seed])
    channels, lines, constants = 3, list[str](), dict[str, np.ndarray]()
    names = ["x"]
    for i in range(int(rng.integers(3, 12))):
        x, to = names[-1], f"y{i}"
        kind = rng.choice(
            ["conv", "depth", "scale", "scale", "number", "relu", "bias", "pool", "norm", "sum"]
        )
        if kind == "conv":
            new = int(rng.integers(1, 6))
            constants[f"c{i}"] = rng.uniform(-1, 1, (new, channels, 3, 1)).astype("float32")
            lines.append(f"{to} = R.nn.conv2d({x}, c{i}, padding=(1, 0))")
            channels, names = new, []
        elif kind == "depth":
            constants[f"c{i}"] = rng.uniform(-1, 1, (channels, 1, 1, 3)).astype("float32")
            lines.append(f"{to} = R.nn.conv2d({x}, c{i}, padding=(0, 1), groups={channels})")
        elif kind in ("scale", "bias"):
            low = float(rng.choice([-2, 0.5]))
            constants[f"c{i}"] = rng.uniform(low, 2, (channels, 1, 1)).astype("float32")
            name = {"bias": "add"}.get(str(kind), str(rng.choice(["multiply", "divide"])))
            lines.append(f"{to} = R.{name}({x}, c{i})")
        elif kind == "number":
            lines.append(f"{to} = R.multiply({x}, R.const({rng.uniform(0.1, 3)}, 'float32'))")
        elif kind == "relu":
            lines.append(f"{to} = R.nn.{rng.choice(['relu', 'leakyrelu'])}({x})")
        elif kind == "pool":
            lines.append(
                f"{to} = R.nn.{rng.choice(['max', 'avg'])}_pool2d({x}, pool_size=3, padding=1)"
            )
        elif kind == "norm":
            for part, low in (("g", -1.0), ("b", -1.0), ("m", -1.0), ("v", 0.1)):
                constants[f"{part}{i}"] = rng.uniform(low, 2, channels).astype("float32")
            lines.append(
                f"n{i} = R.nn.batch_norm({x}, g{i}, b{i}, m{i}, v{i}, axis=1, training=False)"
            )
            lines.append(f"{to} = n{i}[0]")
        else:
            lines.append(f"{to} = R.add({x}, {names[int(rng.integers(len(names)))]})")
        names.append(to)
    return program("\n".join(lines), constants, result=names[-1])
