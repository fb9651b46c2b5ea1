"""Reductions: right at every extent, rows together, columns in tiles, NaN passed on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.target import Target
from relaxpy.testing.interpret import interpret
from relaxpy.tir.numerics import math as tir_math
from relaxpy.tir.numerics import scalar
from relaxpy.tir.schedule import loops_of
from relaxpy.tir.tvm import te, tirx, tvm_ffi
from tests.backend.support import (
    AVX2,
    HOST,
    Kernel,
    compute,
    d,
    f32,
    i64,
    m,
    n,
    normal,
    over,
    sizes,
    tensor,
)
from tests.sweeps import part, quick_target, sweep


def softmax(x: Any, *shape: Any) -> Any:
    *outer, last = shape
    k, l = over(last), over(last)
    top = compute(outer, lambda *i: scalar.reduce_max(x[(*i, k)], axis=k), "top")
    exp = compute(shape, lambda *i: tir_math.exp(x[i] - top[i[:-1]]), "exp")
    total = compute(outer, lambda *i: te.sum(exp[(*i, l)], axis=l), "total")
    return compute(shape, lambda *i: exp[i] / total[i[:-1]])


def layer_norm(x: Any, gamma: Any, beta: Any, rows: Any, width: Any) -> Any:
    count = i64(width).astype("float32")
    k, l, zero = over(width), over(width), i64(0)
    total = compute((rows, 1), lambda i, _: te.sum(x[i, k], axis=k), "total")
    mean = compute((rows, 1), lambda i, j: total[i, j] / count, "mean")
    centred = compute((rows, width), lambda i, j: x[i, j] - mean[i, zero], "centred")
    square = compute((rows, width), lambda i, j: centred[i, j] * centred[i, j], "square")
    spread = compute((rows, 1), lambda i, _: te.sum(square[i, l], axis=l), "spread")
    scale = compute((rows, 1), lambda i, j: tirx.rsqrt(spread[i, j] / count + f32(1e-5)), "scale")
    return compute((rows, width), lambda i, j: centred[i, j] * scale[i, zero] * gamma[j] + beta[j])


@pytest.mark.parametrize("target", [HOST, AVX2], ids=["host", "avx2"])
def test_softmax_is_one_loop_over_rows(tmp_path: Path, target: Target) -> None:
    x = tensor(n, m)
    kernel = Kernel(tmp_path, [x, softmax(x, n, m)], target)
    assert kernel.rule == "reduction"
    outer = kernel.scheduled.parallel.body
    assert len([loop for loop in loops_of(kernel.scheduled.parallel) if loop.kind == 1]) == 1
    assert allocated(outer) <= 4 * 16 * 4, "no row, no tensor: the output holds the exponentials"
    for shape in sizes(2):
        a = normal(*shape)
        exp = np.exp(a - a.max(-1, keepdims=True, initial=-np.inf))
        expected = exp / exp.sum(-1, keepdims=True)
        np.testing.assert_allclose(kernel(a, out=shape), expected, rtol=2e-6, atol=1e-7)


def test_softmax_of_four_axes_with_a_mask(tmp_path: Path) -> None:
    scores, mask = tensor(n, 3, m, d), tensor(n, d, name="mask")
    masked = compute(
        (n, 3, m, d), lambda i, j, k, l: scores[i, j, k, l] * f32(0.125) + mask[i, l], "masked"
    )
    kernel = Kernel(tmp_path, [scores, mask, softmax(masked, n, 3, m, d)])
    for a, b, c in sizes(3):
        x, bias = normal(a, 3, b, c), normal(a, c, seed=1)
        value = x * np.float32(0.125) + bias[:, None, None, :]
        exp = np.exp(value - value.max(-1, keepdims=True, initial=-np.inf))
        result = kernel(x, bias, out=x.shape)
        np.testing.assert_allclose(result, exp / exp.sum(-1, keepdims=True), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("width", [384, m], ids=["static", "dynamic"])
def test_layer_norm(tmp_path: Path, width: Any) -> None:
    x, gamma, beta = tensor(n, width), tensor(width, name="gamma"), tensor(width, name="beta")
    kernel = Kernel(tmp_path, [x, gamma, beta, layer_norm(x, gamma, beta, n, width)])
    assert kernel.rule == "reduction"
    for rows, columns in [(0, 384), (1, 384), (37, 384)] if width == 384 else sizes(2):
        a, g, b = normal(rows, columns), normal(columns, seed=1), normal(columns, seed=2)
        result = kernel(a, g, b, out=(rows, columns))
        if a.size:
            spread = a.astype("float64") - a.mean(-1, keepdims=True, dtype="float64")
            scale = 1 / np.sqrt((spread**2).mean(-1, keepdims=True) + 1e-5)
            np.testing.assert_allclose(result, spread * scale * g + b, rtol=1e-4, atol=2e-5)


@sweep(2)
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("kind", ["sum", "max"])
def test_any_axes(tmp_path: Path, kind: str, axes: tuple[int, ...]) -> None:
    shape = (n, m, d)
    x = tensor(*shape)
    reduced = {a: over(shape[a], f"k{a}") for a in axes}
    kept = [dim for a, dim in enumerate(shape) if a not in axes]

    def element(*i: Any) -> Any:
        places = iter(i)
        index = tuple(reduced[a] if a in reduced else next(places) for a in range(3))
        return getattr(te, kind)(x[index], axis=list(reduced.values()))

    kernel = Kernel(tmp_path, [x, compute(kept, element)])
    for extents in [*sizes(3), (2, 3, 300)]:
        a = normal(*extents)
        initial = 0.0 if kind == "sum" else float(np.finfo(np.float32).min)
        expected = getattr(np, kind)(a.astype("float64"), axis=axes, initial=initial)
        result = kernel(a, out=expected.shape)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-4)


def test_mean_over_the_middle_runs_in_tiles_of_columns(tmp_path: Path) -> None:
    """Both stages have the kept axes only: without tiles, one column at a time would be read."""
    x, k = tensor(n, m, 384), over(m)
    total = compute((n, 384), lambda i, j: te.sum(x[i, k, j], axis=k), "total")
    kernel = Kernel(
        tmp_path, [x, compute((n, 384), lambda i, j: total[i, j] / m.astype("float32"))]
    )
    assert "x16" in kernel.scheduled.serial.script() or HOST.vector_bits < 512
    for rows, count in ((0, 3), (1, 1), (2, 7), (3, 130)):
        a = normal(rows, count, 384)
        expected = a.mean(1, dtype="float64")
        np.testing.assert_allclose(kernel(a, out=(rows, 384)), expected, rtol=1e-4, atol=1e-5)


def test_softmax_over_the_first_axis_runs_stage_by_stage(tmp_path: Path) -> None:
    x, k, l = tensor(n, m), over(n), over(n)
    top = compute((m,), lambda j: te.max(x[k, j], axis=k), "top")
    exp = compute((n, m), lambda i, j: tir_math.exp(x[i, j] - top[j]), "exp")
    total = compute((m,), lambda j: te.sum(exp[l, j], axis=l), "total")
    kernel = Kernel(tmp_path, [x, compute((n, m), lambda i, j: exp[i, j] / total[j])])
    for shape in sizes(2):
        a = normal(*shape)
        exponentials = np.exp(a - a.max(0, keepdims=True, initial=-np.inf))
        expected = exponentials / exponentials.sum(0, keepdims=True)
        np.testing.assert_allclose(kernel(a, out=shape), expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 63, 64, 65, 200])
def test_a_nan_anywhere_reaches_the_maximum(tmp_path: Path, size: int) -> None:
    x, k = tensor(n, size), over(size)
    kernel = Kernel(tmp_path, [x, compute((n,), lambda i: scalar.reduce_max(x[i, k], axis=k))])
    a = normal(size, size)
    np.fill_diagonal(a, np.nan)
    assert np.isnan(kernel(a, out=(size,))).all()
    b = normal(size, size)
    np.testing.assert_array_equal(kernel(b, out=(size,)), b.max(1))


def test_two_outputs_of_one_pass(tmp_path: Path) -> None:
    x = tensor(n, m)
    exp = compute((n, m), lambda *i: tir_math.exp(x[i]), "exp")
    more = compute((n, m), lambda *i: exp[i] + f32(1.0), "more")
    kernel = Kernel(tmp_path, [x, exp, more])
    a = normal(5, 33)
    first = np.empty((5, 33), np.float32)
    second = kernel(a, first, out=(5, 33))
    np.testing.assert_allclose(first, np.exp(a), rtol=1e-6)
    np.testing.assert_array_equal(second, first + np.float32(1))


def test_halves_are_gathered_in_float32(tmp_path: Path) -> None:
    x, k = tensor(n, m, dtype="float16"), over(m)
    kernel = Kernel(
        tmp_path, [x, compute((n,), lambda i: te.sum(x[i, k].astype("float32"), axis=k))]
    )
    for rows, columns in sizes(2):
        a = normal(rows, columns, dtype="float16")
        expected = a.astype("float64").sum(1)
        np.testing.assert_allclose(kernel(a, out=(rows,)), expected, rtol=1e-5, atol=1e-4)


def allocated(stmt: Any) -> int:
    """Bytes of buffers of constant size; a buffer of symbolic size counts as a megabyte."""
    total = 0

    def visit(node: tirx.AllocBuffer) -> None:
        nonlocal total
        size = 4
        for dim in node.buffer.shape:
            size *= int(dim) if isinstance(dim, tirx.IntImm) else 1 << 20
        total = max(total, size)

    tvm_ffi.structural_walk(stmt, (tirx.AllocBuffer, visit))
    return total


ALONG = {
    "sum": "R.sum(x, axis={})",
    "largest": "R.max(x, axis={}, keepdims=True)",
    "place": "R.argmax(x, axis={})",
    "softmax": "R.nn.softmax(x, axis={})",
    "centred": "R.subtract(x, R.mean(x, axis={}, keepdims=True))",
    "running": "R.cumsum(x, axis={})",
}


@sweep(2)
@pytest.mark.parametrize("symbolic", part([True, False], 2))
@pytest.mark.parametrize("extents", [(2, 3, 1), (5, 1, 20)])
def test_axes_of_one_in_any_place(extents: tuple[int, ...], symbolic: bool) -> None:
    """Results in a column do not lie along their last dimension."""
    dims = ", ".join(
        f'"n{i}"' if symbolic and size > 1 else str(size) for i, size in enumerate(extents)
    )
    functions = "".join(
        f"""
    @R.function
    def {name}{axis}(x: R.Tensor(({dims}), "float32")):
        with R.dataflow():
            y = {text.format(axis)}
            R.output(y)
        return y
"""
        for name, text in ALONG.items()
        for axis in range(3)
    )
    mod = relaxpy.parse(f"@I.ir_module\nclass Module:{functions}")
    target = HOST if symbolic and extents[-1] == 1 else quick_target()
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, target=target))
    x = np.random.default_rng(0).standard_normal(extents).astype(np.float32)
    for name in vm.functions:
        wanted = np.asarray(interpret(mod, name, x))
        np.testing.assert_allclose(vm[name](x).numpy(), wanted, rtol=1e-4, atol=1e-5, err_msg=name)
