"""Transposed convolutions as convolutions of phases, beside torch."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.ir import Call, IRModule
from relaxpy.op.base import Op
from relaxpy.op.conv_transpose import Phases
from relaxpy.testing.interpret import interpret
from relaxpy.transform import DecomposeOps
from tests.sweeps import quick_target, sweep

torch = pytest.importorskip("torch")
TORCH = {
    1: torch.nn.functional.conv_transpose1d,
    2: torch.nn.functional.conv_transpose2d,
    3: torch.nn.functional.conv_transpose3d,
}


def program(
    axes: int, kernel: list[int], channels: tuple[int, int], options: dict[str, Any]
) -> IRModule:
    sizes = ", ".join(f'"s{i}"' for i in range(axes))
    text = ", ".join(f"{name}={value}" for name, value in options.items())
    shape = ", ".join(map(str, (*channels, *kernel)))
    return relaxpy.parse(f"""
@R.function
def main(x: R.Tensor(("n", {channels[0]}, {sizes}), "float32"), w: R.Tensor(({shape}), "float32")):
    with R.dataflow():
        y = R.nn.conv{axes}d_transpose(x, w, {text})
        R.output(y)
    return y
""")


def calls(mod: IRModule) -> set[str]:
    bindings = (b for block in mod["main"].body.blocks for b in block.bindings)
    values = (each.value for each in bindings)
    return {v.op.name for v in values if isinstance(v, Call) and isinstance(v.op, Op)}


def drawn(seed: int) -> tuple[int, list[int], tuple[int, int], int, dict[str, Any]]:
    rng = random.Random(seed)
    axes = rng.choice((1, 2, 2, 2, 3))
    groups = rng.choice((1, 1, 2, 3))
    kernel, stride, padding, extra, dilation = ([] for _ in range(5))
    for _ in range(axes):
        kernel.append(rng.choice((1, 2, 3, 4, 5, 7)))
        stride.append(rng.choice((1, 2, 2, 3, 4)))
        dilation.append(rng.choice((1, 1, 1, 2)))
        padding.append(rng.randint(0, min(2, (kernel[-1] - 1) * dilation[-1])))
        extra.append(rng.randint(0, max(stride[-1], dilation[-1]) - 1))
    options = {
        "strides": stride, "padding": padding, "output_padding": extra, "dilation": dilation, "groups": groups,
    }  # fmt: skip
    return axes, kernel, (groups * rng.choice((1, 3)), rng.choice((1, 2, 5))), groups, options


def test_random_ones_are_torchs() -> None:
    composed = 0
    for seed in range(150):
        axes, kernel, channels, groups, options = drawn(seed)
        mod = DecomposeOps()(program(axes, kernel, channels, options))
        composed += f"nn.conv{axes}d_transpose" not in calls(mod)
        rng = np.random.default_rng(seed)
        x = rng.integers(-9, 9, (2, channels[0], *rng.integers(3, 6, axes))).astype(np.float32)
        w = rng.integers(-9, 9, (*channels, *kernel)).astype(np.float32)
        want = TORCH[axes](
            torch.from_numpy(x), torch.from_numpy(w), None, options["strides"], options["padding"],
            options["output_padding"], groups, options["dilation"],
        )  # fmt: skip
        assert np.array_equal(interpret(mod, "main", x, w), want.numpy()), (seed, options)
    assert 40 < composed < 140


def test_infinities_stay_where_they_are() -> None:
    """A phase multiplies data by no zeros that only fill a kernel."""
    mod = program(
        2, [3, 3], (2, 3), {"strides": [2, 2], "padding": [1, 1], "output_padding": [1, 1]}
    )
    x = np.ones((1, 2, 4, 5), np.float32)
    x[0, 0, 1, 2], x[0, 1, 3, 4] = np.inf, np.nan
    w = np.random.default_rng(0).standard_normal((2, 3, 3, 3)).astype(np.float32)
    want = torch.nn.functional.conv_transpose2d(
        torch.from_numpy(x), torch.from_numpy(w), None, 2, 1, 1
    )
    found = relaxpy.VirtualMachine(relaxpy.build(mod, quick_target()))["main"](x, w).numpy()
    assert "nn.conv2d_transpose" not in calls(DecomposeOps()(mod))
    np.testing.assert_allclose(found, want.numpy(), rtol=1e-5, atol=1e-5)


@sweep(2)
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 1), (4, 2, 1), (5, 3, 0), (3, 1, 1)]
)
def test_one_build_for_all_sizes(kernel: int, stride: int, padding: int) -> None:
    options = {"strides": stride, "padding": padding}
    mod = program(2, [kernel, kernel], (5, 3), options)
    rng = np.random.default_rng(0)
    w = rng.standard_normal((5, 3, kernel, kernel)).astype(np.float32)
    main = relaxpy.VirtualMachine(relaxpy.build(mod, quick_target(), params={"w": w}))["main"]
    for shape in ((1, 5, 1, 1), (2, 5, 7, 3), (3, 5, 16, 17)):
        x = rng.standard_normal(shape).astype(np.float32)
        want = torch.nn.functional.conv_transpose2d(
            torch.from_numpy(x), torch.from_numpy(w), None, stride, padding
        )
        np.testing.assert_allclose(main(x).numpy(), want.numpy(), rtol=1e-4, atol=1e-4)


def test_what_is_no_convolution() -> None:
    """A kernel shorter than the stride, more padding than kernel, gaps in the kernel."""
    assert Phases.of(1, 2, 0, 0, 0) is None
    assert Phases.of(3, 2, 2, 2, 0) is None
    assert Phases.of(2, 1, 0, 3, 0) is None
    options = {"strides": [2, 2], "dilation": [2, 2]}
    mod = program(2, [3, 3], (2, 3), options)
    assert calls(DecomposeOps()(mod)) == {"nn.conv2d_transpose"}
