"""Relayouts that matrix products and attention take in: heads split and put together, slices."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.build.pipeline import default_pipeline
from relaxpy.ir.module import IRModule
from relaxpy.testing.interpret import interpret
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise.attention import attention_of
from relaxpy.tir.recognise.matmul import matmul_of
from relaxpy.transform import FuseOps, FuseTensorIR, LegalizeOps, Normalize, Sequential
from tests.sweeps import quick_target, sweep

HEADER = "from relaxpy.script import ir as I, relax as R, tir as T\n"


def function(shapes: dict[str, str], *steps: str) -> IRModule:
    """A function of parameters of these shapes, one binding a step."""
    params = ", ".join(f'{name}: R.Tensor({shape}, "float32")' for name, shape in shapes.items())
    symbols = [s for s in "bst" if f'"{s}"' in params]
    lines = [f"            {step}" for step in steps]
    result = steps[-1].split(" = ")[0]
    return relaxpy.parse(
        "\n".join(
            [
                HEADER,
                "@I.ir_module",
                "class Module:",
                "    @R.function",
                f"    def main({params}):",
                *(f"        {symbol} = T.int64()" for symbol in symbols),
                "        with R.dataflow():",
                *lines,
                f"            R.output({result})",
                f"        return {result}",
            ]
        )
    )


def cut(x: str) -> list[str]:
    """Steps that cut q, k and v, of 3 heads, out of a tensor that is 144 wide."""
    return [
        step
        for n, name in enumerate("qkv")
        for step in (
            f"{name}0 = R.strided_slice({x}, axes=[2], begin=[{48 * n}], end=[{48 * n + 48}])",
            f"{name} = R.reshape({name}0, R.shape([b, s, 3, 16]))",
        )
    ]


SPLIT = "h = R.reshape(x, R.shape([b, s, 3, 8]))", "q = R.permute_dims(h, axes=[0, 2, 1, 3])"
HEADS: dict[str, IRModule] = {
    "left": function(
        {"x": '("b", "s", 24)', "k": '("b", 3, 8, "t")'}, *SPLIT, "y = R.matmul(q, k)"
    ),
    "right": function(
        {"x": '("b", "s", 24)', "p": '("b", 3, "t", "s")'}, *SPLIT, "y = R.matmul(p, q)"
    ),
    "output": function(
        {"p": '("b", 3, "t", "s")', "v": '("b", 3, "s", 8)'},
        "m = R.matmul(p, v)",
        "o = R.permute_dims(m, axes=[0, 2, 1, 3])",
        "y = R.reshape(o, R.shape([b, t, 24]))",
    ),
    "output with a bias": function(
        {"p": '("b", 3, "t", "s")', "v": '("b", 3, "s", 8)', "c": "(8,)"},
        "m = R.matmul(p, v)",
        "a = R.add(m, c)",
        "o = R.permute_dims(a, axes=[0, 2, 1, 3])",
        "y = R.reshape(o, R.shape([b, t, 24]))",
    ),
    "columns far apart": function(
        {"x": '("b", "s", 24)', "q": '("b", 3, "t", 8)'},
        "h = R.reshape(x, R.shape([b, s, 3, 8]))",
        "k = R.permute_dims(h, axes=[0, 2, 3, 1])",
        "y = R.matmul(q, k)",
    ),
    "a transposed weight": function(
        {"x": '("b", "s", 24)', "w": "(8, 24)"},
        "h = R.permute_dims(w)",
        "y = R.matmul(x, h)",
    ),
    "attention of slices": function(
        {"x": '("b", "s", 144)', "m": '("b", 1, 1, "s")'},
        *cut("x"),
        "y = R.nn.attention(q, k, v, m, scale=0.25)",
    ),
    "attention of heads in front": function(
        {"q": '("b", "s", 3, 8)', "k": '("b", 1, "t", 8)', "v": '("b", 1, "t", 8)'},
        "kt = R.permute_dims(k, axes=[0, 2, 1, 3])",
        "vt = R.permute_dims(v, axes=[0, 2, 1, 3])",
        'y = R.nn.attention(q, kt, vt, causal_mask="BottomRight")',
    ),
}
"""Programs that become one kernel."""

KEPT: dict[str, IRModule] = {
    "sums along rows far apart": function(
        {"x": '("s", "t")', "v": '("s", 8)'},
        "h = R.permute_dims(x)",
        "y = R.matmul(h, v)",
    ),
    "used twice": function(
        {"x": '("b", "s", 24)', "k": '("b", 3, 8, "t")'},
        *SPLIT,
        "m = R.matmul(q, k)",
        "e = R.sum(q)",
        "y = R.add(m, e)",
    ),
    "a part of the sums": function(
        {"p": "(5, 6)", "v": "(6, 8)"},
        "m = R.matmul(p, v)",
        "y = R.strided_slice(m, axes=[1], begin=[1], end=[5])",
    ),
    "queries that begin anywhere": function(
        {"x": '("b", "s", 3, 17)', "k": '("b", "t", 3, 16)'},
        "q = R.strided_slice(x, axes=[3], begin=[1], end=[17])",
        "y = R.nn.attention(q, k, k)",
    ),
    "widths that are far apart": function(
        {"q": '("b", "s", 3, 16)', "x": '("b", 16, 3, "t")'},
        "k = R.permute_dims(x, axes=[0, 3, 2, 1])",
        "y = R.nn.attention(q, k, q)",
    ),
    "narrow numbers that are widened": function(
        {"x": '("b", "s", 144)'},
        'w = R.astype(x, "bfloat16")',
        *cut("w"),
        *(f'{name}1 = R.astype({name}, "float32")' for name in "qkv"),
        "y = R.nn.attention(q1, k1, v1)",
    ),
    "a bias that is moved": function(
        {"q": '("b", "s", 3, 16)', "x": '(3, "s", "s")'},
        "p = R.permute_dims(x, axes=[0, 2, 1])",
        "m = R.expand_dims(p, axis=0)",
        "y = R.nn.attention(q, q, q, m)",
    ),
}
"""Programs in which the relayout stays a kernel."""

SIZES = {"b": (1, 2), "s": (0, 1, 9), "t": (1, 11)}


def fused(mod: IRModule) -> IRModule:
    return Sequential((Normalize(), LegalizeOps(), FuseOps(), FuseTensorIR()))(mod)


def arguments(mod: IRModule, sizes: dict[str, int]) -> list[np.ndarray]:
    generator = np.random.default_rng(1)
    shapes = [
        [sizes[d.symbol.name] if d.symbol else d.value for d in p.annotation.dims]  # pyright: ignore
        for p in mod.graph_functions["main"].params
    ]
    return [generator.standard_normal(shape, dtype="float32") for shape in shapes]


def bindings() -> list[dict[str, int]]:
    return [{"b": b, "s": s, "t": t} for b in SIZES["b"] for s in SIZES["s"] for t in SIZES["t"]]


@cache
def machines(name: str) -> tuple[Any, Any]:
    """The program with its relayouts inside the product, and with kernels of their own."""
    mod = HEADS[name]
    steps = default_pipeline().passes
    apart = Sequential(
        tuple(FuseOps(relayouts=False) if s.name == "fuse-ops" else s for s in steps)
    )
    return tuple(
        relaxpy.VirtualMachine(relaxpy.build(mod, quick_target(), pipeline=p))["main"]
        for p in (None, apart)
    )  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize("name", HEADS)
def test_one_kernel(name: str) -> None:
    after = fused(HEADS[name])
    (program,) = after.prim_funcs.values()
    assert isinstance(program, PrimFunc)
    assert is_found(program)


def is_found(program: PrimFunc) -> bool:
    """Is it a matrix product or attention?"""
    return (matmul_of(program.func) or attention_of(program.func)) is not None


@sweep(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_the_same_bits(name: str) -> None:
    together, apart = machines(name)
    for sizes in bindings():
        args = arguments(HEADS[name], sizes)
        got, expected = together(*args).numpy(), apart(*args).numpy()
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_allclose(got, interpret(HEADS[name], "main", *args), atol=1e-4)


@pytest.mark.parametrize("name", KEPT)
def test_kernels_of_their_own(name: str) -> None:
    """Where the product would find less contiguous, or not all of it is moved, or something else needs it moved."""
    products = [
        program
        for program in fused(KEPT[name]).prim_funcs.values()
        if isinstance(program, PrimFunc) and is_found(program)
    ]
    assert len(products) == 1
    assert len(fused(KEPT[name]).prim_funcs) > 1


def test_a_square_residual_is_read_where_it_is_written() -> None:
    """`(x @ w).T + r`: the residual has the sums' shape, but not their place."""
    mod = function(
        {"x": "(7, 5)", "w": "(5, 7)", "r": "(7, 7)"},
        "m = R.matmul(x, w)",
        "o = R.permute_dims(m, axes=[1, 0])",
        "y = R.add(o, r)",
    )
    main = relaxpy.VirtualMachine(relaxpy.build(mod, quick_target()))["main"]
    x, w, r = arguments(mod, {})
    np.testing.assert_allclose(main(x, w, r).numpy(), (x @ w).T + r, atol=1e-5)


def test_attention_of_widened_numbers_is_as_accurate() -> None:
    """Factors that are widened before attention in float32 join it; its powers are not rounded to their dtype."""
    mod = KEPT["narrow numbers that are widened"]
    values = np.random.default_rng(1).standard_normal((2, 70, 144), dtype="float32") * 3
    got = relaxpy.VirtualMachine(relaxpy.build(mod, quick_target()))["main"](values).numpy()
    np.testing.assert_allclose(got, interpret(mod, "main", values), atol=1e-4)
