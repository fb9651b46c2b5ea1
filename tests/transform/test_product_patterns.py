"""Patterns of products: all forms, the longest first."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.analysis.dataflow_match import match
from relaxpy.ir.expr import Expr
from relaxpy.ir.module import IRModule
from relaxpy.transform.product_patterns import ProductPattern, dims_of, product_patterns

PATTERNS = tuple(product_patterns(("gelu_tanh", "relu")))


def value(body: str) -> tuple[Expr, IRModule]:
    mod = relaxpy.parse(f"""
@R.function
def main(
    x: R.Tensor(("n", 8), "float32"), w: R.Tensor((4, 8), "float32"), b: R.Tensor((4,), "float32"),
    full: R.Tensor((2, 4, 4), "float32"), s: R.Tensor(("k", 5, 8), "float32"), h: R.Tensor((4,), "float16"),
):
    with R.dataflow():
        y = {body}
        R.output(y)
    return y
""")
    (block,) = mod.graph_function("main").body.blocks
    return block.bindings[-1].var, mod


def first(body: str) -> tuple[ProductPattern, str | None] | None:
    """The first pattern that matches, and the dtype."""
    expr, mod = value(body)
    (block,) = mod.graph_function("main").body.blocks
    for product in PATTERNS:
        found = match(product.pattern, expr, block, mod)
        if found is not None:
            return product, product.dtype(found)
    return None


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("R.matmul(x, R.permute_dims(w))", "matmul_nt"),
        ("R.matmul(x, R.permute_dims(w, axes=[1, 0]))", "matmul_nt"),
        ("R.linear(s, w, b)", "matmul_nt_bias"),
        ("R.nn.relu(R.add(b, R.matmul(w, R.permute_dims(w))))", "matmul_nt_bias_relu"),
        ("R.nn.gelu_tanh(R.linear(x, w))", "matmul_nt_gelu_tanh"),
        ("R.matmul(x, R.permute_dims(w, axes=[0, 1]))", "matmul"),
    ],
)
def test_the_longest_form(body: str, name: str) -> None:
    if name == "matmul":
        body = body.replace("x,", "R.permute_dims(w),")
    found = first(body)
    assert found is not None
    assert (found[0].name, found[1]) == (name, "float32")


def test_other_values() -> None:
    assert first("R.nn.relu(x)") is None
    assert first("R.add(x, x)") is None


def test_shapes_that_an_epilogue_changes() -> None:
    """`bias` is larger than the product."""
    found = first("R.add(full, R.matmul(w, R.permute_dims(w)))")
    assert found is not None
    assert found[1] is None


def test_vectors_are_no_factors() -> None:
    found = first("R.matmul(R.permute_dims(w), b)")
    assert found is not None
    assert found[1] is None


def test_dims() -> None:
    expr, mod = value("R.linear(x, w)")
    assert dims_of(mod.graph_function("main").params[1].annotation) == (4, 8)
    assert dims_of(expr.annotation) is not None  # type: ignore[attr-defined]
