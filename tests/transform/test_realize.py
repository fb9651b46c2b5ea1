"""Realize: what becomes integers, what stays and why, and that the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import UsageError
from relaxpy.ir.expr import Call
from relaxpy.ir.module import IRModule
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.transform import Realize
from tests.sweeps import part
from tests.transform.quantized_programs import quantized_program


def module(
    body: str, params: str = 'x: R.Tensor(("n", 5), "int8"), w: R.Tensor((3, 5), "int8")'
) -> IRModule:
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    return relaxpy.parse(f"""
from relaxpy.script import relax as R, tir as T

@R.function
def main({params}):
    with R.dataflow():
{lines}
        R.output(y)
    return y
""")


def operators(mod: IRModule) -> list[str]:
    """The names of the operators that main calls, in order."""
    values = (binding.value for binding in mod.graph_function("main").body.bindings)
    return [value.op.name for value in values if isinstance(value, Call)]  # type: ignore[union-attr]


def reasons(mod: IRModule) -> list[str]:
    return [place.reason for place in Realize().realized(mod)[1]]


def pair(scale: str, zero: str = "0", dtype: str = "int8", axis: int = -1) -> str:
    return f'R.const({scale}, "float32"), R.const({zero}, "{dtype}"), axis={axis}'


def test_example() -> None:
    check_example(Realize())


@pytest.mark.parametrize("seeds", part([range(n, n + 25) for n in range(0, 2000, 25)], 40), ids=str)
def test_random_programs_are_within_one_unit(seeds: range) -> None:
    """Of the scale of the result; every product is of integers."""
    for seed in seeds:
        made = quantized_program(seed)
        real, places = Realize().realized(made.mod)
        assert [place.reason for place in places if "it moves" not in place.reason] == [""], (
            made.text
        )
        want, got = (interpret(mod, "main", *made.arguments) for mod in (made.mod, real))
        assert got.dtype == want.dtype
        difference = np.abs(got.astype(int) - want.astype(int))
        assert difference.max(initial=0) <= 1, made.text
        assert difference.mean() < 0.02, made.text


def test_compiled_programs_are_those_of_the_interpreter() -> None:
    """For this processor; the sizes of a call are not known before it."""
    for seed in range(5000, 5003):
        made = quantized_program(seed)
        real = Realize()(made.mod)
        got = relaxpy.VirtualMachine(relaxpy.build(real))["main"](*made.arguments).numpy()
        want = interpret(real, "main", *made.arguments)
        assert np.abs(got.astype(int) - want.astype(int)).max(initial=0) <= 1, made.text


def test_sums_that_may_not_fit_stay_floats() -> None:
    """33 026 products of 255 by 255 fit into int32, 33 027 do not; a depth that is not known may be any."""
    shifted = pair("1.0", "3", "uint8")

    def deep(depth: object) -> IRModule:
        params = f'x: R.Tensor(("n", {depth}), "uint8"), w: R.Tensor((3, {depth}), "uint8")'
        return module(
            f"a = R.dequantize(x, {shifted})\nb = R.dequantize(w, {shifted})\ny = R.linear(a, b)",
            params,
        )

    assert reasons(deep(33025)) == [""]
    (reason,) = reasons(deep(33027))
    assert reason == "sums over 33027 products of up to 65025 do not fit into int32"
    assert "may not fit" in reasons(deep('"k"'))[0]


def test_the_bound_of_codes_from_minus_127() -> None:
    """A code that `narrow_range` leaves out counts."""
    params = 'x: R.Tensor(("n", 131072), "float32"), w: R.Tensor((1, 131072), "float32")'
    body = """
q = R.quantize(x, R.const(0.1, "float32"), R.const(0, "int8"), narrow_range={narrow})
a = R.dequantize(q, R.const(0.1, "float32"), R.const(0, "int8"))
p = R.quantize(w, R.const(0.1, "float32"), R.const(0, "int8"), narrow_range={narrow})
b = R.dequantize(p, R.const(0.1, "float32"), R.const(0, "int8"))
y = R.linear(a, b)"""
    assert reasons(module(body.format(narrow=True), params)) == [""]
    assert "do not fit" in reasons(module(body.format(narrow=False), params))[0]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (f"a = R.dequantize(x, {pair('0.1')})\nf = R.astype(w, 'float32')\ny = R.linear(a, f)",
         "weight is not quantised"),
        (f"a = R.dequantize(x, {pair('[.1, .2, .3, .4, .5]', axis=1)})\nb = R.dequantize(w, {pair('0.1')})\n"
         "y = R.linear(a, b)", "scales along axis 1, not 0"),
        (f"a = R.dequantize(x, {pair('0.1')})\nb = R.dequantize(w, {pair('[.1, .2, .3, .4, .5]', axis=1)})\n"
         "y = R.linear(a, b)", "scales along axis 1, not 0"),
        (f"a = R.dequantize(x, {pair('0.1')})\ny = R.nn.relu(a)", "no integer form"),
        (f"a = R.dequantize(x, {pair('0.1')})\nb = R.dequantize(x, {pair('0.2')})\ny = R.add(a, b)",
         "no integer form"),
        (f"a = R.dequantize(x, {pair('0.1')})\ny = R.concat((a, a))", "no quantize with the same scale"),
    ],
)  # fmt: skip
def test_what_stays_is_listed(body: str, reason: str) -> None:
    mod = module(body)
    (found,) = reasons(mod)
    assert reason in found
    assert operators(Realize()(mod)) == operators(mod)


def test_wide_codes_stay_floats() -> None:
    params = 'x: R.Tensor(("n", 5), "int16"), w: R.Tensor((3, 5), "int8")'
    body = f"a = R.dequantize(x, {pair('0.1')})\nb = R.dequantize(w, {pair('0.1')})\ny = R.linear(a, b)"
    assert reasons(module(body, params)) == ["data has codes of int16"]


def test_a_transposed_weight_keeps_its_scales() -> None:
    """As ONNX's quantisers write it: dequantised, transposed, multiplied."""
    steps = "[0.1, 0.2, 0.3]"
    mod = module(f"""
a = R.dequantize(x, {pair("0.1", "-5")})
b = R.dequantize(w, {pair(steps, "[1, 0, -2]", axis=0)})
t = R.permute_dims(b)
y = R.matmul(a, t)""")
    real, (place,) = Realize().realized(mod)
    assert not place.reason
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-128, 128, shape).astype("int8") for shape in ((7, 5), (3, 5)))
    want, got = (interpret(each, "main", x, w) for each in (mod, real))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


def test_rows_in_several_axes() -> None:
    """A scale for each row of a matrix whose rows are then those of two axes."""
    params = (
        'x: R.Tensor(("b", "s", 5), "int8"), s: R.Tensor(("b * s",), "float32"), '
        'z: R.Tensor(("b * s",), "int8"), w: R.Tensor((3, 5), "int8")'
    )
    mod = module(
        f"""
f = R.reshape(x, R.shape([b * s0, 5]))
d = R.dequantize(f, s, z, axis=0)
a = R.reshape(d, R.shape([b, s0, 5]))
c = R.dequantize(w, {pair("0.1")})
y = R.linear(a, c)""".replace("s0", "t"),
        params.replace('"s"', '"t"').replace("b * s", "b * t"),
    )
    real, (place,) = Realize().realized(mod)
    assert not place.reason
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-128, 128, shape).astype("int8") for shape in ((2, 7, 5), (3, 5)))
    scale, zero = rng.uniform(0.1, 1, 14).astype("float32"), rng.integers(-9, 9, 14).astype("int8")
    want, got = (interpret(each, "main", x, scale, zero, w) for each in (mod, real))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-3)


def test_pairs_that_meet_cancel() -> None:
    """Also around operators that move elements; not if the scales differ, or a rounding might give another code."""
    same, other = pair("0.5", "3"), pair("0.25", "3")

    def again(second: str, more: str = "", move: str = "R.permute_dims(a)") -> list[str]:
        body = f"a = R.dequantize(x, {same})\nm = {move}\ny = R.quantize(m, {second}{more})"
        return operators(Realize()(module(body)))

    assert again(same) == ["dequantize", "permute_dims", "permute_dims"]
    joined = ["dequantize", "concat", "concat"]
    assert again(same, move="R.concat((a, a), axis=1)") == joined
    assert again(other)[-1] == "quantize"
    assert again(same, ', rounding="floor"')[-1] == "quantize"
    assert again(same, ", narrow_range=True")[-1] == "quantize"  # x may have the code -128
    assert again(same, ', out_dtype="uint8"')[-1] == "quantize"


def test_codes_are_pooled() -> None:
    params = 'x: R.Tensor(("n", 2, 5, 7), "int8")'
    same = pair("0.5", "3")
    mod = module(
        f"a = R.dequantize(x, {same})\nm = R.nn.max_pool2d(a, pool_size=(2, 2), padding=1)\ny = R.quantize(m, {same})",
        params,
    )
    real, (place,) = Realize().realized(mod)
    assert not place.reason
    assert "quantize" not in operators(real)
    x = np.random.default_rng(0).integers(-128, 128, (3, 2, 5, 7)).astype("int8")
    np.testing.assert_array_equal(*(interpret(each, "main", x) for each in (mod, real)))


def test_sums_of_16_bits_saturate() -> None:
    """As they are declared: the exact sum, once, in every kernel as the interpreter says."""
    shifted = pair("0.5", "7", "uint8")
    params = 'x: R.Tensor(("n", 37), "uint8"), w: R.Tensor((5, 37), "int8")'
    body = (
        f"a = R.dequantize(x, {shifted})\nb = R.dequantize(w, {pair('0.25')})\ny = R.linear(a, b)"
    )
    mod = module(body, params)
    real, (place,) = Realize(sums="int16").realized(mod)
    assert not place.reason
    rng = np.random.default_rng(0)
    x, w = (
        rng.integers(0, 256, (3, 37)).astype("uint8"),
        rng.integers(-128, 128, (5, 37)).astype("int8"),
    )
    x[1] = 255
    sums = (x.astype(int) - 7) @ w.T.astype(int)
    assert np.abs(sums).max() > 2**15
    want = np.clip(sums, -(2**15), 2**15 - 1) * 0.125
    np.testing.assert_array_equal(interpret(real, "main", x, w), want)
    found = relaxpy.VirtualMachine(relaxpy.build(real))["main"](x, w).numpy()
    np.testing.assert_array_equal(found, want)
    with pytest.raises(UsageError, match="sums are of int32 or int16, got 'int8'"):
        Realize(sums="int8")


def test_random_programs_with_sums_of_16_bits() -> None:
    for seed in (5001, 5004):  # convolution, product
        made = quantized_program(seed)
        real = Realize(sums="int16")(made.mod)
        got = relaxpy.VirtualMachine(relaxpy.build(real))["main"](*made.arguments).numpy()
        np.testing.assert_array_equal(got, interpret(real, "main", *made.arguments), made.text)


def test_convolutions_read_the_codes_of_pools() -> None:
    """As NNCF writes them: nothing quantises the result of a pool again. What else reads it is dequantised."""
    params = 'x: R.Tensor(("n", 3, 9, 7), "uint8"), w: R.Tensor((5, 3, 3, 3), "int8")'
    body = f"""
a = R.dequantize(x, {pair("0.5", "7", "uint8")})
m = R.nn.max_pool2d(a, (3, 3), strides=(2, 2), padding=(1, 1))
b = R.dequantize(w, {pair("0.25")})
c = R.nn.conv2d(m, b, padding=1)
y = R.add(c, R.sum(m, axis=[1], keepdims=True))
"""
    mod = module(body, params)
    real, places = Realize().realized(mod)
    assert [place.operator for place in places if not place.reason] == [
        "nn.max_pool2d",
        "nn.conv2d",
    ]
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (2, 3, 9, 7)).astype("uint8")
    w = rng.integers(-128, 128, (5, 3, 3, 3)).astype("int8")
    want = interpret(mod, "main", x, w)
    np.testing.assert_allclose(interpret(real, "main", x, w), want, rtol=1e-6)
    found = relaxpy.VirtualMachine(relaxpy.build(real))["main"](x, w).numpy()
    np.testing.assert_allclose(found, want, rtol=1e-5)
    negative = module(body.replace("0.5", "-0.5"), params)
    assert "the largest codes" in Realize().realized(negative)[1][0].reason


def depthwise(
    channels: int, times: int, scales: str, axis: int = 1, groups: int | None = None
) -> IRModule:
    """A convolution of data with several scales, whose result is quantised."""
    groups = channels if groups is None else groups
    params = f'x: R.Tensor(("n", {channels}, 9, 7), "int8"), w: R.Tensor(({channels * times}, {channels // groups}, 3, 3), "int8")'
    return module(
        f"""
a = R.dequantize(x, {scales}, axis={axis})
b = R.dequantize(w, R.const({[0.1 + n / 64 for n in range(channels * times)]}, "float32"), R.const(0, "int8"), axis=0)
c = R.nn.conv2d(a, b, padding=1, groups={groups})
y = R.quantize(c, R.const(30.0, "float32"), R.const(3, "int8"))""",
        params,
    )


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("zeros", ["0, 0, 0, 0, 0", "4, 4, 4, 4, 4", "4, -7, 0, 127, -128"])
def test_channels_of_depthwise_data_have_scales_of_their_own(times: int, zeros: str) -> None:
    """As NNCF writes them: the scale of a channel is one of its results'."""
    scales = f'R.const([0.5, 0.25, 2.0, 1.0, 0.125], "float32"), R.const([{zeros}], "int8")'
    mod = depthwise(5, times, scales)
    real, places = Realize().realized(mod)
    assert [place.reason for place in places] == [""]
    rng = np.random.default_rng(0)
    x = rng.integers(-128, 128, (2, 5, 9, 7)).astype("int8")
    w = rng.integers(-128, 128, (5 * times, 1, 3, 3)).astype("int8")
    want = interpret(mod, "main", x, w).astype(int)
    assert np.abs(interpret(real, "main", x, w) - want).max() <= 1
    assert (np.ptp(want, axis=(0, 2, 3)) > 9).all()
    if times == 2:
        found = relaxpy.VirtualMachine(relaxpy.build(real))["main"](x, w).numpy()
        assert np.abs(found - want).max() <= 1


def test_scales_that_sums_cross_stay_floats() -> None:
    four = 'R.const([0.5, 0.25, 2.0, 1.0], "float32"), R.const(0, "int8")'
    assert reasons(depthwise(4, 1, four, groups=2)) == [
        "the data has several scales, and a sum is over several channels"
    ]
    seven = four.replace("1.0]", "1.0, 1.0, 2.0, 3.0]")
    assert "along axis 3, which windows cross" in reasons(depthwise(4, 1, seven, axis=3))[0]
