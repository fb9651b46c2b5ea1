"""Products of computed factors: the same bits as with the factor in memory, from every layout, for any number of
rows."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.ir.module import IRModule
from relaxpy.op.weight_scheme import WeightScheme
from relaxpy.target import Target
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform import BindParams, QuantizeWeights
from relaxpy.transform.base import PassContext

ROWS = (0, 1, 2, 5, 6, 7, 31)


@cache
def layer(depth: int, columns: int, *, transposed: bool) -> IRModule:
    """A product with a weight, a bias and an activation."""
    shape, product = ((columns, depth), "linear") if transposed else ((depth, columns), "matmul")
    return relaxpy.parse(f"""
@R.function
def main(
    x: R.Tensor(("n", {depth}), "float32"), b: R.Tensor(({columns},), "float32"), w: R.Tensor({shape}, "float32")
) -> R.Tensor(("n", {columns}), "float32"):
    R.func_attr({{"num_input": 1}})
    with R.dataflow():
        y = R.nn.relu(R.add(R.{product}(x, w), b))
        R.output(y)
    return y
""")


def arrays(depth: int, columns: int, *, transposed: bool) -> dict[str, np.ndarray]:
    random = np.random.default_rng(depth + columns)
    shape = (columns, depth) if transposed else (depth, columns)
    return {
        "b": random.standard_normal(columns, dtype="float32"),
        "w": random.standard_normal(shape, dtype="float32"),
    }


def rules(mod: IRModule, target: str, **options: Any) -> set[str]:
    """The rules of the kernels that read weights in the layouts of the target."""
    seen: dict[str, IRModule] = {}
    relaxpy.build(
        mod,
        target=target,
        instruments=[lambda _n, step, _b, after: seen.update({step.name: after})],
        **options,
    )
    programs = [p for p in seen["pack-weights"].prim_funcs.values() if isinstance(p, PrimFunc)]
    return {str(schedule_kernel(each.func, Target.parse(target)).rule) for each in programs}


CASES = [
    (WeightScheme(4, 32), 96, 40, True, "llvm", "packed"),
    (WeightScheme(4, 32), 96, 40, True, "llvm", "plain"),
    (WeightScheme(4, 128, "zero_point"), 520, 33, False, "llvm", "packed"),
    (WeightScheme(3, 40, "minimum"), 90, 48, True, "llvm", "packed"),
    (WeightScheme(8, None, scale_dtype="float32"), 43, 20, False, "llvm", "plain"),
    (WeightScheme(4, 32, "minimum"), 64, 24, True, "llvm -mcpu=x86-64", "constant"),
]
"""Scheme, depth, columns, whether the weight is (columns, depth), target, and how the weight is given."""


@pytest.mark.parametrize(
    ("scheme", "depth", "columns", "transposed", "target", "way"), CASES, ids=str
)
def test_the_bits_of_the_product_with_floats(
    scheme: WeightScheme, depth: int, columns: int, transposed: bool, target: str, way: str
) -> None:
    """Beside the plain program with the floats that the codes mean: fused or not, packed or not, the numbers are those
    of the program as it is written."""
    mod, given = (
        layer(depth, columns, transposed=transposed),
        arrays(depth, columns, transposed=transposed),
    )
    step, axis = QuantizeWeights(scheme), 1 if transposed else 0
    params = step.quantized_params(mod, given)
    floats = scheme.dequantize(scheme.quantize(given["w"], axis), axis, depth)
    want = relaxpy.VirtualMachine(relaxpy.build(mod, target=target))["main"]
    quantised = step(mod)
    if way == "constant":
        quantised = BindParams()(quantised, PassContext(params=params))
    exe = relaxpy.build(quantised, target=target, pack=way == "packed")
    vm = relaxpy.VirtualMachine(exe)
    weights: Any = () if way == "constant" else [*params.values()]
    if way == "packed":
        weights = vm.pack(params, keep=False)["main"]
    for rows in ROWS:
        x = np.random.default_rng(rows).standard_normal((rows, depth), dtype="float32")
        found = vm["main"](x, *weights).numpy()
        np.testing.assert_array_equal(found, want(x, given["b"], floats).numpy(), err_msg=f"{rows}")
    assert np.abs(found).max() > 0


def test_the_rule() -> None:
    """The product and its epilogue are one kernel of the rule for products; the others are the packers' own."""
    mod = QuantizeWeights()(layer(96, 40, transposed=True))
    assert "matmul" in rules(mod, "llvm", pack=True)


FIGURE_9 = """
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def fused(
        x: T.Buffer(("n", 96), "float32"), data: T.Buffer((96, 8), "uint32"), scale: T.Buffer((96, 2), "float32"),
        o: T.Buffer(("n", 64), "float32"),
    ):
        n = T.int64()
        for i, j, k in T.grid(n, 64, 96):
            with T.sblock("mm"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    o[vi, vj] = T.float32(0)
                o[vi, vj] = o[vi, vj] + x[vi, vk] * (
                    (
                        T.Cast("float32", T.bitwise_and(
                            T.shift_right(data[vk, vj // 8], T.Cast("uint32", vj % 8 * 4)), T.uint32(15)
                        )) - T.float32(7)
                    ) * scale[vk, vj // 32]
                )

    @R.function
    def main(
        x: R.Tensor(("n", 96), "float32"), data: R.Tensor((96, 8), "uint32"), scale: R.Tensor((96, 2), "float32")
    ) -> R.Tensor(("n", 64), "float32"):
        n = T.int64()
        cls = Module
        y = R.call_tir(cls.fused, (x, data, scale), out_ty=R.Tensor((n, 64), "float32"))
        return y
"""


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=x86-64"])
def test_codes_along_the_columns(target: str) -> None:
    """Figure 9's own layout, written as one program."""
    mod = relaxpy.parse(FIGURE_9)
    program: Any = mod["fused"]
    assert schedule_kernel(program.func, Target.parse(target)).rule == "matmul"
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, target=target))
    random = np.random.default_rng(0)
    data = random.integers(0, 2**32, (96, 8), np.uint32)
    scale = random.random((96, 2), np.float32)
    codes = (data[:, :, None] >> (np.arange(8, dtype=np.uint32) * 4) & 15).reshape(96, 64)
    w = (codes.astype(np.float32) - 7) * np.repeat(scale, 32, 1)
    for rows in (1, 9):
        x = random.standard_normal((rows, 96), dtype="float32")
        np.testing.assert_allclose(vm["main"](x, data, scale).numpy(), x @ w, rtol=1e-4, atol=1e-4)
