"""Winograd: which convolutions are replaced, that the numbers stay but for rounding, and what is fused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import RelaxError, UsageError
from relaxpy.ir.expr import Call, Function
from relaxpy.ir.module import IRModule
from relaxpy.ir.op import Operator
from relaxpy.testing.interpret import interpret
from relaxpy.tir.programs.winograd import Matrices
from relaxpy.transform import (
    BindParams,
    ConvertToDataflow,
    Normalize,
    PassContext,
    Sequential,
    Winograd,
)
from tests.sweeps import quick_target, sweep

RNG = np.random.default_rng(0)
SMALL = Winograd(fewest=1)
tiles = pytest.mark.parametrize("tile", [2, 4])


def array(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(dtype)


def module(
    options: str = "padding=1",
    *,
    weight: tuple[int, ...] = (3, 3, 3, 2),
    data: str = '("n", "h", "w", 2)',
    dtype: str = "float32",
    bind: bool = True,
) -> IRModule:
    """A convolution of images `x`, with channels last, by a weight (outputs, height, width, inputs)."""
    mod = relaxpy.parse(f"""
from relaxpy.script import relax as R

@R.function
def main(x: R.Tensor({data}, "{dtype}"), w: R.Tensor({weight}, "{dtype}")):
    R.func_attr({{"num_input": 1}})
    with R.dataflow():
        y = R.nn.conv2d(x, w, {options}, data_layout="NHWC", kernel_layout="OHWI")
        R.output(y)
    return y
""")
    params = PassContext(params={"w": array(*weight, dtype=dtype)} if bind else {})
    return Sequential((BindParams(), Normalize(), ConvertToDataflow()))(mod, params)


def operators(mod: IRModule) -> list[str]:
    """The operators of the function, in order."""
    main = mod["main"]
    assert isinstance(main, Function)
    calls = [each.value for each in main.body.bindings if isinstance(each.value, Call)]
    return [call.op.name for call in calls if isinstance(call.op, Operator)]


def replaced(step: Winograd, mod: IRModule, *data: np.ndarray) -> list[str]:
    """The operators after the pass. The numbers are compared with those before, and the text with what it parses to."""
    after = step(mod)
    want, got = (np.asarray(interpret(m, "main", *data)) for m in (mod, after))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    relaxpy.assert_structural_equal(relaxpy.parse(after.script()), after)
    return [name for name in operators(after) if name != "vm.check_dim"]


TRANSFORMED = ["call_tir", "matmul", "call_tir"]


@tiles
def test_the_matrices_compute_a_convolution(tile: int) -> None:
    """In one direction, exactly but for rounding in float64."""
    m, window, pixels = Matrices.of(tile), RNG.standard_normal(3), RNG.standard_normal(tile + 2)
    got = m.result @ ((m.window @ window) * (m.patch @ pixels))
    np.testing.assert_allclose(got, np.correlate(pixels, window, "valid"), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tile", [2, 4])
def test_the_matrices_of_pixels_are_exact(tile: int) -> None:
    m = Matrices.of(tile)
    for matrix in (m.result, m.patch):
        np.testing.assert_array_equal(matrix.astype("float32").astype("float64"), matrix)


@sweep(3)
@tiles
@pytest.mark.parametrize("size", [(1, 8, 4), (2, 5, 7), (1, 1, 1), (1, 2, 3), (3, 3, 6), (0, 4, 4)])
def test_any_extents(tile: int, size: tuple[int, int, int]) -> None:
    assert replaced(Winograd(tile, fewest=1), module(), array(*size, 2)) == TRANSFORMED


@sweep(2)
@pytest.mark.parametrize(
    "padding", ["0", "1", "(0, 1)", "(1, 0, 0, 1)", "(0, 0, 2, 1)", "(2, 1, 0, 1)"]
)
def test_any_narrow_padding(padding: str) -> None:
    mod = module(f"padding={padding}")
    for size in ((1, 3, 3), (2, 6, 9)):
        assert replaced(SMALL, mod, array(*size, 2)) == TRANSFORMED


def test_known_extents() -> None:
    assert replaced(SMALL, module(data="(2, 7, 5, 2)"), array(2, 7, 5, 2)) == TRANSFORMED


def test_an_image_without_pixels_is_refused_as_before() -> None:
    """A padded image of two rows has no place for a window."""
    mod = module(data='("n", "h", 4, 2)')
    for each in (mod, SMALL(mod)):
        vm = relaxpy.VirtualMachine(relaxpy.build(each, quick_target()))
        assert vm["main"](array(1, 1, 4, 2)).shape == (1, 1, 4, 3)
        with pytest.raises(RelaxError, match="along H"):
            vm["main"](array(1, 0, 4, 2))


@pytest.mark.parametrize(
    "mod",
    [
        module("padding=1, strides=2"),
        module("padding=2, dilation=2"),
        module("padding=1, groups=2", weight=(4, 3, 3, 1)),
        module("padding=2", weight=(3, 5, 5, 2)),
        module("padding=0", weight=(3, 1, 3, 2)),
        module("padding=2"),
        module("padding=(0, 1, 3, 1)"),
        module('padding=1, out_layout="NCHW"'),
        module('padding=1, out_dtype="float64"'),
        module(dtype="float16"),
        module(dtype="float64"),
        module(bind=False),
    ],
    ids=["stride", "dilation", "groups", "5 x 5", "1 x 3", "padding", "padding on one side",
         "layout", "wide result", "float16", "float64", "parameter"],
)  # fmt: skip
def test_others_stay(mod: IRModule) -> None:
    assert operators(SMALL(mod)) == ["nn.conv2d"]


def test_numbers_of_channels() -> None:
    mod = module(weight=(8, 3, 3, 4), data='("n", "h", "w", 4)')
    for step, name in (
        (Winograd(fewest=4, most=8), "matmul"),
        (Winograd(fewest=5, most=8), "nn.conv2d"),
        (Winograd(fewest=4, most=7), "nn.conv2d"),
    ):
        assert name in operators(step(mod))


def test_other_tiles_are_refused() -> None:
    with pytest.raises(UsageError, match="2 or 4 pixels, got 3"):
        Winograd(3)


def test_equal_shapes_share_programs() -> None:
    mod = relaxpy.parse("""
from relaxpy.script import relax as R

@R.function
def main(x: R.Tensor(("n", "h", "w", 2), "float32"), v: R.Tensor((2, 3, 3, 2), "float32"), w: R.Tensor((2, 3, 3, 2), "float32")):
    with R.dataflow():
        y = R.nn.conv2d(x, v, padding=1, data_layout="NHWC", kernel_layout="OHWI")
        z = R.nn.conv2d(y, w, padding=1, data_layout="NHWC", kernel_layout="OHWI")
        R.output(z)
    return z
""")
    params = {"v": array(2, 3, 3, 2), "w": array(2, 3, 3, 2)}
    after = SMALL(BindParams()(Normalize()(mod), PassContext(params=params)))
    assert set(after.functions) == {"main", "patches", "pixels"}


BLOCK = """
from relaxpy.script import relax as R

@R.function
def main(
    x: R.Tensor(("n", 32, "h", "w"), "float32"), u: R.Tensor((32, 32, 1, 1), "float32"),
    v: R.Tensor((32, 32, 3, 3), "float32"), w: R.Tensor((32, 32, 3, 3), "float32"), b: R.Tensor((32, 1, 1), "float32"),
):
    with R.dataflow():
        i = R.nn.conv2d(x, u)
        y = R.nn.relu(R.add(R.nn.conv2d(i, v, padding=1), b))
        z = R.nn.relu(R.add(R.nn.conv2d(y, w, padding=1), i))
        R.output(z)
    return z
"""


def convolution(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Of images NCHW by a weight OIHW, with zeros around the images that keep their size; in float64."""
    edge = w.shape[-1] // 2
    padded = np.pad(x.astype("float64"), ((0, 0), (0, 0), (edge, edge), (edge, edge)))
    places = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", places, w.astype("float64"))


@tiles
def test_a_block_of_a_network(tile: int) -> None:
    """Compiled as the user asks for it: bias, activation and residual are computed with the last transform."""
    params: dict[str, Any] = {name: array(32, 32, 3, 3) for name in "vw"}
    params |= {"u": array(32, 32, 1, 1), "b": array(32, 1, 1)}
    pipeline = default_pipeline().after("convert-layout", Winograd(tile, fewest=32))
    exe = relaxpy.build(relaxpy.parse(BLOCK), params=params, pipeline=pipeline)
    names = [kernel.name for kernel in exe.kernels]
    assert {"patches", "matmul_packed", "fused_pixels_add_relu"} <= set(names)
    vm = relaxpy.VirtualMachine(exe)
    found: list[np.ndarray] = []
    for size in ((1, 9, 6), (3, 4, 4), (2, 1, 11), (0, 5, 5)):
        x = array(size[0], 32, *size[1:])
        i = convolution(x, params["u"])
        y = np.maximum(convolution(i, params["v"]) + params["b"], 0)
        want = np.maximum(convolution(y, params["w"]) + i, 0)
        got = vm["main"](x).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max(initial=1))
        found += [
            got,
            np.concatenate([vm["main"](x[n : n + 1]).numpy() for n in range(len(x))] or [got]),
        ]
    for together, alone in zip(found[::2], found[1::2], strict=True):
        np.testing.assert_array_equal(together, alone)  # nothing depends on the batch
