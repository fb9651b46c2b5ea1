"""ConvertLayout: what is computed in blocks of channels, where relayouts are left, and that the numbers stay."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import UsageError
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.expr import Call, Function, VarBinding
from relaxpy.ir.module import IRModule
from relaxpy.op.base import Op
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.transform import (
    BindParams,
    ConvertLayout,
    ConvertToDataflow,
    DeadCodeElimination,
    LiftPackers,
    Normalize,
    PassContext,
    Sequential,
)

RNG = np.random.default_rng(0)
BLOCKS = ConvertLayout({"nn.conv2d": ("NCHW4c", "OIHW4i4o")})
LAST = ConvertLayout({"relax.nn.conv2d": ("NHWC", "OHWI")})
both = pytest.mark.parametrize("step", [BLOCKS, LAST], ids=["blocks", "channels last"])


def array(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype("float32")


WEIGHTS = {
    "first": array(8, 3, 3, 3),
    "second": array(12, 8, 3, 3),
    "same": array(8, 8, 3, 3),
    "odd": array(6, 8, 1, 1),
    "grouped": array(8, 4, 3, 3),
    "deep": array(8, 1, 3, 3),
    "thin": array(8, 3, 1, 1),
    "few": array(3, 8, 3, 3),
    "bias": array(8, 1, 1),
    "full": array(1, 8, 5, 6),
}


def module(*lines: str, weights: tuple[str, ...] = tuple(WEIGHTS), bind: bool = True) -> IRModule:
    """A function of images `x` with these bindings, the last one of which is its result."""
    params = ", ".join(f'{name}: R.Tensor({WEIGHTS[name].shape}, "float32")' for name in weights)
    body = "\n        ".join(lines)
    result = lines[-1].split(" = ")[0]
    mod = relaxpy.parse(f"""
from relaxpy.script import relax as R

@R.function
def main(x: R.Tensor(("n", 3, "h", "w"), "float32"), {params}):
    R.func_attr({{"num_input": 1{"" if bind else f', "packed_params": {list(weights)}'}}})
    with R.dataflow():
        {body}
        R.output({result})
    return {result}
""")
    params = PassContext(params={name: WEIGHTS[name] for name in weights} if bind else {})
    return Sequential((BindParams(), Normalize(), ConvertToDataflow()))(mod, params)


def converted(step: ConvertLayout, mod: IRModule, *data: np.ndarray) -> list[str]:
    """The operators after the pass, with the layouts of convolutions. The numbers are compared with those before, and
    the text with what it parses to."""
    after = Sequential((step, DeadCodeElimination()))(mod)
    want, got = (np.asarray(interpret(m, "main", *data)) for m in (mod, after))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    relaxpy.assert_structural_equal(relaxpy.parse(after.script()), after)
    assert _convolutions(step(after)) == _convolutions(after)
    return [_name(op) for op in _operators(after)]


def _operators(mod: IRModule) -> list[Any]:
    main = mod["main"]
    assert isinstance(main, Function)
    return [b.value.op for b in main.body.bindings if isinstance(b.value, Call)]


def _convolutions(mod: IRModule) -> set[str]:
    return {_name(op) for op in _operators(mod) if op.name == "nn.conv2d"}


def _name(op: Op) -> str:
    layouts = [getattr(op, f"{each}_layout", None) for each in ("data", "kernel", "out")]
    return " ".join(map(str, (op.name, *filter(None, layouts))))


FIRST = "i = R.nn.conv2d(x, first, padding=1)"
SECOND = "y = R.nn.conv2d(i, same, padding=1)"
PACKED = "nn.conv2d NCHW OIHW4o NCHW4c"
"""The first convolution, whose input is plain."""
INNER = "nn.conv2d NCHW4c OIHW4i4o NCHW4c"
PLAIN = ["permute_dims", "reshape"]


def test_example() -> None:
    check_example(ConvertLayout({"nn.conv2d": ("NCHW2c", "OIHW2i2o")}))


def test_without_layouts() -> None:
    mod = module(FIRST)
    assert ConvertLayout()(mod) is mod


@pytest.mark.parametrize("size", [(0, 5, 6), (1, 5, 6), (2, 1, 1), (3, 9, 4)])
def test_a_block_of_a_network(size: tuple[int, int, int]) -> None:
    """Bias, activation and residual stay in blocks; there is one relayout, at the end."""
    mod = module(
        FIRST, "a = R.nn.relu(R.add(i, bias))", "b = R.nn.conv2d(a, same, padding=1)",
        "c = R.clip(R.add(R.add(b, bias), a), 0.0, 6.0)", "z = R.nn.conv2d(c, second, (2, 1), (1, 0, 1, 2))",
    )  # fmt: skip
    images, height, width = size
    assert converted(BLOCKS, mod, array(images, 3, height, width)) == [
        PACKED, "add", "nn.relu", INNER, "add", "add", "clip", INNER, *PLAIN,
    ]  # fmt: skip


def test_channels_last() -> None:
    mod = module(FIRST, "a = R.nn.relu(R.add(i, bias))", "z = R.nn.conv2d(a, second, dilation=2)")
    assert converted(LAST, mod, array(1, 3, 5, 6)) == [
        "nn.conv2d NCHW OHWI NHWC", "add", "nn.relu", "nn.conv2d NHWC OHWI NHWC", "permute_dims",
    ]  # fmt: skip


def test_products_with_channels_last() -> None:
    """A window of one position reads channels that are contiguous."""
    mod = module("a = R.nn.relu(x)", "i = R.nn.conv2d(a, thin)", "z = R.nn.conv2d(i, odd)")
    assert converted(LAST, mod, array(2, 3, 5, 6)) == [
        "nn.relu", "permute_dims", *["nn.conv2d NHWC OHWI NHWC"] * 2, "permute_dims",
    ]  # fmt: skip


def test_depthwise_with_channels_last() -> None:
    """Its weight has contiguous channels, too."""
    mod = module(FIRST, "z = R.nn.conv2d(i, deep, padding=1, groups=8)")
    assert converted(LAST, mod, array(1, 3, 5, 6)) == [
        "nn.conv2d NCHW OHWI NHWC", "nn.conv2d NHWC HWIO NHWC", "permute_dims",
    ]  # fmt: skip


def test_few_channels_stay_plain() -> None:
    mod = module(FIRST, SECOND, "z = R.nn.conv2d(y, few, padding=1)")
    step = dataclasses.replace(LAST, fewest=4)
    assert converted(step, mod, array(1, 3, 5, 6)) == [
        "nn.conv2d NCHW OHWI NHWC", "nn.conv2d NHWC OHWI NHWC", "permute_dims", "nn.conv2d NCHW OIHW",
    ]  # fmt: skip


@both
@pytest.mark.parametrize(
    "call",
    [
        "R.nn.max_pool2d(y, 3, 2, 1)",
        "R.nn.avg_pool2d(y, 2, ceil_mode=True)",
        "R.nn.adaptive_avg_pool2d(y, (2, 3))",
        "R.image.resize2d(y, (3, 4))",
        "R.mean(y, axis=(2, 3), keepdims=True)",
        "R.max(y, axis=[-1, -2], keepdims=True)",
        "R.concat((y, R.nn.relu(y)), axis=1)",
        "R.concat((y, y), axis=-3)",
        "R.strided_slice(y, axes=[1, -1], begin=[2, 0], end=[6, 5])",
        'R.astype(R.astype(y, "float64"), "float32")',
        "R.multiply(y, R.sigmoid(R.mean(y, axis=(2, 3), keepdims=True)))",
        "R.add(y, R.const(2.0))",
        "R.maximum(full, y)",
        "R.add(R.sum(y, axis=1, keepdims=True), y)",
    ],
)
def test_operators(step: ConvertLayout, call: str) -> None:
    """What follows a convolution is computed in its layout: there is a relayout at the end, and one of what was not
    converted."""
    mod = module(FIRST, SECOND, f"z = {call}")
    relayouts = converted(step, mod, array(1, 3, 5, 6)).count("permute_dims")
    pixels = 1 if call.startswith(("R.mean", "R.max(")) else 30  # a single pixel is not moved
    assert relayouts == (pixels > 1) + ("R.sum" in call)


@both
def test_means_without_axes_are_plain(step: ConvertLayout) -> None:
    """Channels in blocks follow one another: no element moves."""
    mod = module(FIRST, SECOND, "z = R.mean(y, axis=(2, 3))")
    names = converted(step, mod, array(2, 3, 5, 6))
    assert names[-2:] == ["mean", "reshape"]


def test_single_pixels_are_not_moved() -> None:
    mod = module(FIRST, SECOND, "z = R.nn.adaptive_avg_pool2d(y, 1)")
    assert converted(BLOCKS, mod, array(2, 3, 5, 6)) == [
        PACKED, INNER, "nn.adaptive_avg_pool2d", "reshape",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "reads"),
    [
        ("R.nn.softmax(y, axis=1)", "nn.softmax"),
        ("R.mean(y, axis=2)", "mean"),
        ("R.concat((y, y), axis=2)", "concat"),
        ("R.nn.conv2d(y, odd)", "nn.conv2d NCHW OIHW"),
        ("R.nn.conv2d(y, grouped, groups=2)", "nn.conv2d NCHW OIHW"),
        ('R.nn.max_pool2d(y, 2, out_layout="NHWC")', "nn.max_pool2d NHWC"),
    ],
)
def test_what_stays_plain(call: str, reads: str) -> None:
    """Blocks are undone before it."""
    mod = module(FIRST, SECOND, f"z = {call}")
    assert converted(BLOCKS, mod, array(1, 3, 5, 6)) == [PACKED, INNER, *PLAIN, reads]


def test_depthwise() -> None:
    """Each channel by itself: the weight has blocks of rows only."""
    mod = module(FIRST, "z = R.nn.conv2d(i, deep, padding=1, groups=8)")
    kernel = "nn.conv2d NCHW4c OIHW4o NCHW4c"
    assert converted(BLOCKS, mod, array(1, 3, 5, 6)) == [PACKED, kernel, *PLAIN]


def test_a_value_that_both_read() -> None:
    """It is undone once."""
    mod = module(FIRST, SECOND, "a = R.nn.softmax(y, axis=1)", "b = R.nn.log_softmax(y, axis=1)", "z = R.add(a, b)")  # fmt: skip
    assert converted(BLOCKS, mod, array(1, 3, 5, 6)).count("permute_dims") == 1


def test_values_outside_of_dataflow_blocks() -> None:
    """What leaves a block is plain."""
    mod = relaxpy.parse("""
from relaxpy.script import relax as R

@R.function
def main(
    x: R.Tensor(("n", 3, "h", "w"), "float32"), first: R.Tensor((8, 3, 3, 3), "float32"),
    same: R.Tensor((8, 8, 3, 3), "float32"),
):
    with R.dataflow():
        i = R.nn.conv2d(x, first, padding=1)
        y = R.nn.conv2d(i, same, padding=1)
        R.output(y)
    z = R.nn.relu(y)
    return (y, z)
""")
    mod = BindParams()(
        Normalize()(mod), PassContext(params={n: WEIGHTS[n] for n in ("first", "same")})
    )
    after, x = BLOCKS(mod), array(2, 3, 4, 5)
    assert _convolutions(after) == {PACKED, INNER}
    for want, got in zip(interpret(mod, "main", x), interpret(after, "main", x), strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-4, atol=1e-5)


def test_weights_that_are_arguments_stay() -> None:
    """They would be converted in every call."""
    mod = module(FIRST, SECOND, weights=("first", "same"), bind=False)
    main = mod["main"]
    assert isinstance(main, Function)
    plain = mod.with_functions({"main": dataclasses.replace(main, attrs={"num_input": 1})})
    assert _convolutions(BLOCKS(plain)) == {"nn.conv2d NCHW OIHW"}


@pytest.mark.parametrize(
    "lines",
    [
        (FIRST,),
        (FIRST, "z = R.nn.relu(i)"),
        (FIRST, "a = R.nn.softmax(i, axis=1)", "z = R.nn.conv2d(a, odd)"),
    ],
)
def test_one_convolution_alone_stays(lines: tuple[str, ...]) -> None:
    """Data and result stay plain; without blocks the weight is brought to the layout, as kernels can transpose."""
    mod = module(*lines)
    assert BLOCKS(mod) is mod
    assert converted(LAST, mod, array(2, 3, 5, 6))[0] == "nn.conv2d NCHW OHWI NCHW"


def test_products_alone_stay() -> None:
    mod = module("i = R.nn.conv2d(x, thin)", "z = R.nn.relu(i)")
    assert LAST(mod) is mod


def test_a_region_in_the_middle() -> None:
    """Its input is brought to blocks."""
    mod = module(
        FIRST, "s = R.nn.softmax(i, axis=1)", "a = R.nn.conv2d(s, same)", "z = R.nn.conv2d(a, same)"
    )
    plain = "nn.conv2d NCHW OIHW"
    blocks = ["reshape", "permute_dims"]
    assert converted(BLOCKS, mod, array(1, 3, 6, 5)) == [
        plain, "nn.softmax", *blocks, INNER, INNER, *PLAIN,
    ]  # fmt: skip


def test_packed_weights() -> None:
    """A packer converts the weight."""
    mod = module(FIRST, "z = R.nn.conv2d(i, same)", weights=("first", "same"), bind=False)
    after = Sequential((BLOCKS, LiftPackers()))(mod)
    main = after["main"]
    assert isinstance(main, Function)
    shapes = {
        tuple(dim.value for dim in p.annotation.dims or ())
        for p in main.params[1:]
        if isinstance(p.annotation, TensorType)
    }
    assert shapes == {(2, 3, 3, 3, 4), (2, 2, 3, 3, 4, 4)}
    assert _convolutions(after) == {PACKED, INNER}


def test_two_convolutions_with_one_weight() -> None:
    """It is converted once."""
    mod = module(FIRST, SECOND, "z = R.nn.conv2d(y, same)")
    after = BLOCKS(mod)["main"]
    assert isinstance(after, Function)
    calls = [b.value for b in after.body.bindings if isinstance(b, VarBinding)]
    weights = [c.args[1] for c in calls if isinstance(c, Call) and _name(c.op) == INNER]  # type: ignore[arg-type]
    assert len(weights) == 2
    assert weights[0] is weights[1]


@pytest.mark.parametrize(
    ("layouts", "message"),
    [
        ({"nn.conv1d": ("NCW4c", "OIW4i4o")}, "nn.conv1d"),
        ({"nn.conv2d": ("NCHW4c",)}, "two layouts"),
        ({"nn.conv2d": ("NCHW4c", "OIHW8i8o")}, "different sizes"),
        ({"nn.conv2d": ("NCHW4c", "OIHW")}, "different sizes"),
        ({"nn.conv2d": ("NCW4c", "OIHW4i4o")}, "not layouts"),
        ({"nn.conv2d": ("NCHW?", "OIHW")}, "not layouts"),
    ],
)
def test_wrong_layouts(layouts: dict[str, tuple[str, ...]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ConvertLayout(layouts)


@both
def test_sizes_that_may_be_broadcast_stay_plain(step: ConvertLayout) -> None:
    mod = relaxpy.parse("""
from relaxpy.script import ir as I, relax as R

@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((1, 8, "n", 5), "float32"), z: R.Tensor((1, 8, "m", 5), "float32"), w: R.Tensor((8, 8, 1, 1), "float32")):
        with R.dataflow():
            a = R.nn.conv2d(x, w)
            b = R.nn.conv2d(z, w)
            c = R.add(a, b)
            d = R.nn.conv2d(a, w)
            e = R.nn.conv2d(b, w)
            R.output(c, d, e)
        return (c, d, e)
""")
    mod = BindParams()(Normalize()(mod), PassContext(params={"w": array(8, 8, 1, 1)}))
    after = step(mod)
    x, z = array(1, 8, 3, 5), array(1, 8, 1, 5)
    for got, want in zip(interpret(after, "main", x, z), interpret(mod, "main", x, z), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_integers_follow() -> None:
    """Convolutions of bytes, the quantisation between them and the border of zero points."""
    mod = relaxpy.parse("""
from relaxpy.script import relax as R

@R.function
def main(x: R.Tensor(("n", 3, "h", "w"), "uint8"), v: R.Tensor((8, 3, 3, 3), "int8"), w: R.Tensor((8, 8, 3, 3), "int8")):
    R.func_attr({"num_input": 1})
    with R.dataflow():
        a = R.nn.conv2d(x, v, padding=1, out_dtype="int32")
        b = R.astype(a, dtype="float32")
        c = R.quantize(b, R.const(300.0, "float32"), R.const(7, "uint8"), out_dtype="uint8")
        d = R.nn.pad(c, pad_width=(0, 0, 0, 0, 1, 2, 3, 0), pad_value=7.0)
        y = R.nn.conv2d(d, w, out_dtype="int32")
        R.output(y)
    return y
""")
    rng = np.random.default_rng(1)
    weights = {
        name: rng.integers(-128, 128, shape).astype("int8")
        for name, shape in (("v", (8, 3, 3, 3)), ("w", (8, 8, 3, 3)))
    }
    steps = Sequential((BindParams(), Normalize(), ConvertToDataflow()))
    bound = steps(mod, PassContext(params=weights))
    x = rng.integers(0, 256, (2, 3, 7, 5)).astype("uint8")
    found = converted(LAST, bound, x)
    assert found == [
        "nn.conv2d NCHW OHWI NHWC", "astype", "quantize", "nn.pad", "nn.conv2d NHWC OHWI NHWC", "permute_dims",
    ]  # fmt: skip
    # Blocks have no border: it is plain, and what follows it.
    assert converted(BLOCKS, bound, x)[-2:] == ["nn.pad", "nn.conv2d NCHW OIHW"]


@pytest.mark.parametrize(
    ("first", "last", "count"),
    [
        ((0, 3, 1, 2), (0, 2, 3, 1), 0),
        (
            (0, 3, 1, 2),
            (0, 3, 2, 1),
            1,
        ),  # rows and columns change places: one transposition of NHWC
        ((0, 3, 2, 1), (0, 2, 3, 1), 1),
        ((0, -1, 1, 2), (2, 0, 3, 1), 1),
    ],
)
def test_transpositions_at_the_ends(
    first: tuple[int, ...], last: tuple[int, ...], count: int
) -> None:
    """Those to the desired layout and from it are left out; there are never more than before."""
    mod = module(
        f"a = R.permute_dims(R.permute_dims(x, (0, 2, 3, 1)), {first})",
        "b = R.nn.relu(a)",
        "c = R.nn.conv2d(b, first, padding=1)",
        "y = R.nn.conv2d(c, second, padding=1)",
        f"z = R.permute_dims(y, {last})",
    )
    before = [op.name for op in _operators(mod)].count("permute_dims")
    for shape in ((1, 3, 5, 6), (2, 3, 6, 5)):
        found = converted(LAST, mod, array(*shape)).count("permute_dims")
        assert found == count + 1  # and that of the argument, which the test makes
        assert found <= before


def test_a_transposed_value_that_something_else_reads() -> None:
    mod = module(
        "t = R.permute_dims(x, (0, 2, 3, 1))",
        "a = R.permute_dims(t, (0, 3, 1, 2))",
        "c = R.nn.conv2d(a, first, padding=1)",
        "y = R.nn.conv2d(c, second, padding=1)",
        "z = R.add(R.sum(R.nn.softmax(a, axis=1), axis=[1], keepdims=True), R.permute_dims(R.permute_dims(y, (0, 2, 3, 1)), (0, 3, 1, 2)))",
    )
    converted(LAST, mod, array(2, 3, 5, 6))
