"""QuantizeWeights: figure 9 for every scheme, from a program of operators."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy.errors import PassError, UsageError
from relaxpy.ir.module import IRModule
from relaxpy.op.weight_scheme import WeightScheme
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.transform import BindParams, QuantizeWeights
from relaxpy.transform.base import PassContext
from tests.sweeps import quick_target, sweep

SCHEMES = [
    WeightScheme(bits, group, zero)  # type: ignore[arg-type]
    for (bits, group), zero in itertools.product(
        ((3, 40), (4, 32), (8, None)), ("symmetric", "zero_point", "minimum")
    )
]


def layer(product: str, shape: tuple[int, int]) -> IRModule:
    """A product with a weight `w`, then a bias and an activation."""
    return relaxpy.parse(f"""
@R.function
def main(
    x: R.Tensor(("n", 80), "float32"), w: R.Tensor({shape}, "float32"), b: R.Tensor((24,), "float32")
) -> R.Tensor(("n", 24), "float32"):
    R.func_attr({{"num_input": 1}})
    with R.dataflow():
        y = {product}
        z = R.add(y, b)
        r = R.nn.relu(z)
        R.output(r)
    return r
""")


PRODUCTS = {
    "R.matmul(x, w)": (80, 24),
    "R.linear(x, w)": (24, 80),
    "R.matmul(x, R.permute_dims(w))": (24, 80),
}


def arguments(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        name: random.standard_normal(size, dtype="float32")
        for name, size in {"x": (3, 80), "w": shape, "b": (24,)}.items()
    }


def test_example() -> None:
    check_example(QuantizeWeights(WeightScheme(8, 2)))


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_the_product_of_the_dequantised_weight(scheme: WeightScheme, product: str) -> None:
    """The same as the program before with the floats that the codes mean."""
    mod = layer(product, PRODUCTS[product])
    step = QuantizeWeights(scheme)
    given = arguments(PRODUCTS[product])
    axis = 0 if product == "R.matmul(x, w)" else 1
    floats = scheme.dequantize(scheme.quantize(given["w"], axis), axis, 80)
    want = interpret(mod, "main", given["x"], floats, given["b"])
    after = step(mod)
    params = step.quantized_params(mod, {name: given[name] for name in ("w", "b")})
    assert [p.name for p in after["main"].params] == ["x", *params]  # type: ignore[union-attr]
    found = interpret(after, "main", given["x"], *params.values())
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)  # numpy rounds as layouts have it


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_floats_are_nowhere(product: str) -> None:
    """One kernel computes weight, product, bias and activation (figure 9); nothing is planned in memory."""
    mod = layer(product, PRODUCTS[product])
    step = QuantizeWeights()
    exe = relaxpy.build(step(mod), quick_target())
    assert len(exe.kernels) == 1
    assert "storage" not in exe.as_text()
    given = arguments(PRODUCTS[product])
    params = step.quantized_params(mod, {name: given[name] for name in ("w", "b")})
    want = interpret(step(mod), "main", given["x"], *params.values())
    found: Any = relaxpy.VirtualMachine(exe)["main"](given["x"], *params.values())
    np.testing.assert_allclose(found.numpy(), want, rtol=1e-4, atol=1e-4)


def test_constants() -> None:
    """A constant weight is quantised by the pass; used twice, it is stored once."""
    w = arguments((80, 24))["w"]
    two = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 80), "float32"), w: R.Tensor((80, 24), "float32")) -> R.Tensor(("n", 24), "float32"):
    with R.dataflow():
        y = R.add(R.matmul(x, w), R.matmul(R.nn.relu(x), w))
        R.output(y)
    return y
""")
    bound = BindParams()(two, PassContext(params={"w": w}))
    after = QuantizeWeights()(bound)
    assert "float32" not in {str(c.data.dtype) for c in _constants(after)}
    assert len({id(c) for c in _constants(after)}) == 2
    x = arguments((80, 24))["x"]
    floats = WeightScheme().dequantize(WeightScheme().quantize(w, 0), 0, 80)
    want = x @ floats + np.maximum(x, 0) @ floats
    np.testing.assert_allclose(interpret(after, "main", x), want, rtol=1e-4, atol=1e-4)


def _constants(mod: IRModule) -> list[Any]:
    from relaxpy.ir.expr import Constant
    from relaxpy.ir.visitor import Visitor

    found: list[Any] = []

    class Constants(Visitor):
        def visit_Constant(self, node: Constant) -> None:
            found.append(node)

    for function in mod.graph_functions.values():
        Constants().visit(function)
    return found


def test_what_is_no_weight_stays() -> None:
    """An input, a weight that something else reads too, and one that the caller does not choose."""
    tied = layer("R.add(R.matmul(x, w), R.take(w, R.const([0]), axis=0))", (80, 24))
    assert QuantizeWeights()(tied) is tied
    plain = layer("R.matmul(x, w)", (80, 24))
    assert QuantizeWeights(choose=lambda name, _: name != "w")(plain) is plain


def test_arrays_of_another_shape() -> None:
    mod = layer("R.matmul(x, w)", (80, 24))
    with pytest.raises(PassError, match=r"w must have shape \(80, 24\)"):
        QuantizeWeights().quantized_params(mod, {"w": np.zeros((24, 80), np.float32)})


@pytest.mark.parametrize(
    ("bits", "group", "match"),
    [(8, 32, "4 bits"), (4, 16, "multiple of 32"), (4, 0, "multiple"), (4, 32.0, "multiple")],
)
def test_activations_that_no_kernel_takes(bits: int, group: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        QuantizeWeights(WeightScheme(bits), activations=group)


def test_quantised_activations_are_in_the_program() -> None:
    """By a tensor program that the module shows; without the option there is none, and one that does not fit the depth
    stays out."""
    mod = layer("R.matmul(x, w)", (80, 24))
    assert "int8" not in QuantizeWeights()(mod).script()
    assert "int8" not in QuantizeWeights(activations=32)(mod).script()
    wide = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("b", "n", 64), "float32"), w: R.Tensor((64, 24), "float32")):
    R.func_attr({"num_input": 1})
    with R.dataflow():
        y = R.matmul(x, w)
        R.output(y)
    return y
""")
    step = QuantizeWeights(activations=32)
    after = step(wide)
    assert "cls.quantize_activations, (x,)" in after.script()
    random = np.random.default_rng(0)
    x, w = (
        random.standard_normal((2, 3, 64), "float32"),
        random.standard_normal((64, 24), "float32"),
    )
    x[1, 2] = 0
    params = step.quantized_params(wide, {"w": w})
    floats = WeightScheme().dequantize(params_of(params), 0, 64)
    found = np.asarray(interpret(after, "main", x, *params.values()))
    np.testing.assert_allclose(found, x @ floats, rtol=0, atol=0.02 * np.abs(found).max())
    assert not found[1, 2].any()


def params_of(params: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The parts of the weight `w` by their own names."""
    return {name.removeprefix("w_"): part for name, part in params.items()}


TABLE = """
@R.function
def main(
    ids: R.Tensor(("b", "n"), "int64"), x: R.Tensor(("m", 80), "float32"), w: R.Tensor((50, 80), "{stored}")
) -> R.Tuple(R.Tensor(("b", "n", 80), "float32"), R.Tensor(("m", 50), "float32")):
    R.func_attr({{"num_input": 2}})
    rows = R.take(w, ids, axis=0)
    found = R.astype(rows, "float32")
    again = R.astype(w, "float32")
    scores = R.linear(x, again)
    return (found, scores)
"""


@sweep(3)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_a_table_and_the_head_that_is_tied_to_it(scheme: WeightScheme) -> None:
    """Rows are those of the dequantised table to the bit, whatever dtype it is stored in and whatever ids are asked
    for; the packed table is in memory once."""
    mod = relaxpy.parse(TABLE.format(stored="bfloat16"))
    step = QuantizeWeights(scheme, lookups=True)
    random = np.random.default_rng(0)
    w = random.standard_normal((50, 80), np.float32).astype(ml_dtypes.bfloat16)
    parts = step.quantized_params(mod, {"w": w})
    floats = scheme.dequantize({n.removeprefix("w_"): part for n, part in parts.items()}, 1, 80)
    ids, x = np.array([[3, 49, -7], [0, 99, 3]]), random.standard_normal((2, 80), np.float32)
    vm = relaxpy.VirtualMachine(relaxpy.build(step(mod), quick_target(), pack=True))
    packed = vm.pack(parts)
    rows, scores = vm["main"](ids, x, *packed["main"])
    np.testing.assert_array_equal(rows.numpy(), floats[ids.clip(0, 49)])
    np.testing.assert_allclose(scores.numpy(), x @ floats.T, rtol=1e-4, atol=1e-4)
    assert len(packed["main"]) == len(parts)
    assert packed.nbytes < 1.4 * sum(part.nbytes for part in parts.values())  # panels are filled


def test_a_table_that_is_only_looked_up() -> None:
    """It is quantised on load from the floats that are stored; without `lookups`, and where anything else reads it, it
    is not."""
    text = (
        TABLE.format(stored="float16")
        .replace("again", "x")
        .replace("x = R.astype(w", "y = R.astype(x")
    )
    text = text.replace("R.linear(x, x)", "R.nn.relu(x)").replace('("m", 50)', '("m", 80)')
    mod, scheme = relaxpy.parse(text), WeightScheme(8, 32)
    step = QuantizeWeights(scheme, on_load=True, lookups=True)
    (function,) = mod.graph_functions.values()
    assert [*step.weights(function).values()] == [1]
    assert not QuantizeWeights(scheme).weights(function)
    other = relaxpy.parse(
        text.replace("R.nn.relu(x)", "R.add(x, R.sum(R.astype(w, 'float32'), axis=0))")
    )
    assert not step.weights(other.graph_functions["main"])
    w = np.random.default_rng(0).standard_normal((50, 80)).astype(np.float16)
    vm = relaxpy.VirtualMachine(relaxpy.build(step(mod), quick_target(), pack=True))
    ids, x = np.array([[3, 49]]), np.zeros((1, 80), np.float32)
    rows, _ = vm["main"](ids, x, *vm.pack({"w": w})["main"])
    floats = scheme.dequantize(scheme.quantize(w, 1), 1, 80)
    np.testing.assert_array_equal(rows.numpy(), floats[ids])
