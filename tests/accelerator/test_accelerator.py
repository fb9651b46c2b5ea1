"""The accelerator computes what the interpreter does, to the bit, for any number of rows and any widths."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import relaxpy
from relaxpy.ir.module import IRModule
from relaxpy.testing.interpret import interpret
from relaxpy.transform import BindParams, FoldScaleAxis, Normalize, PassContext, Sequential
from tests.accelerator.device import BLOCK, Core, layer
from tests.accelerator.offload import CORE, Quantise, pipeline


def network(sizes: tuple[int, ...], seed: int = 0) -> IRModule:
    """Layers with scales between them, and a maximum at the end, whose weights are bound and scales folded."""
    rng, lines, weights = np.random.default_rng(seed), list[str](), dict[str, np.ndarray]()
    x = "x"
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        weights[f"w{i}"] = (
            rng.standard_normal((outputs, inputs)) / np.sqrt(max(inputs, 1))
        ).astype("float32")
        weights[f"b{i}"] = (rng.standard_normal(outputs) / 4).astype("float32")
        weights[f"s{i}"] = rng.uniform(0.5, 2, outputs).astype("float32")
        lines += [
            f"y{i} = R.linear({x}, w{i}, b{i})",
            f"m{i} = R.multiply(y{i}, s{i})",
            f"a{i} = R.nn.relu(m{i})",
        ]
        x = f"a{i}"
    lines.append(f"z = R.max({x}, axis=[1])")
    params = "".join(f", {k}: R.Tensor({w.shape}, 'float32')" for k, w in weights.items())
    body = "".join(f"        {line}\n" for line in lines)
    text = f"@R.function\ndef main(x: R.Tensor(('n', {sizes[0]}), 'float32'){params}):\n    with R.dataflow():\n{body}"
    mod = Normalize()(relaxpy.parse(f"{text}        R.output(z)\n    return z\n"))
    return Sequential((BindParams(), FoldScaleAxis()))(mod, PassContext(params=weights))


def quantised(mod: IRModule, count: int) -> IRModule:
    return Quantise({"x": 3.0, **{f"a{i}": 6.0 for i in range(count)}})(mod)


@pytest.mark.parametrize("sizes", [(37, 50, 19, 3), (16, 32, 16), (1, 1, 1), (100, 17)])
def test_equal_to_the_bit(sizes: tuple[int, ...]) -> None:
    """Layers run on the core, without a scale between them; what is before and behind them on the processor."""
    mod = network(sizes)
    assert "R.multiply" not in mod.script()
    program = quantised(mod, len(sizes))
    exe = relaxpy.build(program, pipeline=pipeline())
    assert exe.as_text().count("accelerator.layer") >= len(sizes) - 2
    vm = relaxpy.VirtualMachine(exe)
    for rows in (0, 1, 5, 16, 33):
        x = np.random.default_rng(rows).standard_normal((rows, sizes[0])).astype("float32")
        CORE.counts.clear()
        got = vm["main"](x).numpy()
        np.testing.assert_array_equal(got, interpret(program, "main", x))
        tiles = [-(-size // BLOCK) for size in sizes]
        steps = sum(a * b for a, b in pairwise(tiles)) * -(-rows // BLOCK)
        assert CORE.counts["multiply"] == steps
        if rows:
            floats = np.asarray(interpret(mod, "main", x))
            assert np.abs(got - floats).max() < 0.15 * max(1, np.abs(floats).max())


def test_no_scalar_is_left_between_layers() -> None:
    """The codes of one layer are those that the next one reads."""
    text = relaxpy.build(quantised(network((37, 50, 19)), 2), pipeline=pipeline()).as_text()
    between = text[text.index("accelerator.layer") :].split("accelerator.product")[0].splitlines()
    assert not any("multiply" in line or "quantize" in line for line in between[1:])


def test_a_scale_that_is_no_shift_stays_on_the_processor() -> None:
    """Then the core computes the product alone."""
    program = relaxpy.parse("""
from relaxpy.script import relax as R

@R.function
def main(x: R.Tensor(("n", 20), "int8"), w: R.Tensor((18, 20), "int8")):
    with R.dataflow():
        y = R.linear(x, w, out_dtype="int32")
        f = R.astype(y, "float32")
        g = R.multiply(f, R.const(0.3, "float32"))
        q = R.quantize(g, R.const(0.5, "float32"), R.const(0, "int8"))
        R.output(q)
    return q
""")
    w = np.random.default_rng(1).integers(-127, 128, (18, 20)).astype("int8")
    program = BindParams()(Normalize()(program), PassContext(params={"w": w}))
    exe = relaxpy.build(program, pipeline=pipeline())
    assert "accelerator.product" in exe.as_text()
    assert "accelerator.layer" not in exe.as_text()
    x = np.random.default_rng(2).integers(-128, 128, (21, 20)).astype("int8")
    np.testing.assert_array_equal(
        relaxpy.VirtualMachine(exe)["main"](x).numpy(), interpret(program, "main", x)
    )


@pytest.mark.parametrize("shift", [0, 1, 5])
def test_the_core_rounds_as_quantize(shift: int) -> None:
    """Halves to even, below 0, too; what is too large is saturated."""
    x = np.array([[127, 127], [-128, 127], [1, 0], [3, 0], [-3, 0], [0, 0]], np.int8)
    weights = np.zeros((1, 1, BLOCK, BLOCK), np.int8)
    weights[0, 0, :2, :2] = [[1, 0], [3, 2]]
    out = np.zeros((6, 2), np.int8)
    layer(Core(), x, weights, np.zeros((1, BLOCK), np.int32), out, (shift, False))
    exact = (x.astype(float) @ weights[0, 0, :2, :2].T.astype(float)) * 2.0**-shift
    np.testing.assert_array_equal(out, np.clip(np.rint(exact), -128, 127))
