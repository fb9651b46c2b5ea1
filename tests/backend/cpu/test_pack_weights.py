"""PackWeights: constant factors in panels, the same numbers to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.backend.cpu.pack_weights import PackWeights
from relaxpy.build.pipeline import default_pipeline
from relaxpy.ir.expr import Call, Constant, Tuple
from relaxpy.ir.module import IRModule
from relaxpy.target import Target
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.transform import BindParams, PassContext
from tests.sweeps import quick_target, sweep

BASELINE = "llvm -mcpu=x86-64"
"""Four lanes a vector: panels of eight columns."""


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype="float32")


def layer(depth: int, columns: int, *, transposed: bool = False, bias: bool = True) -> IRModule:
    """A matrix product with a parameter `w`, and what is done to the sums."""
    shape, index = ((columns, depth), "vj, vk") if transposed else ((depth, columns), "vk, vj")
    after = "T.max(c[vi, vj] + b[vj], T.float32(0))" if bias else "c[vi, vj] * T.float32(2)"
    return relaxpy.parse(f"""
from relaxpy.script import ir as I, relax as R, tir as T

@I.ir_module
class Module:
    @T.prim_func(private=True)
    def layer(
        x: T.Buffer(("n", {depth}), "float32"), w: T.Buffer({shape}, "float32"),
        b: T.Buffer(({columns},), "float32"), y: T.Buffer(("n", {columns}), "float32"),
    ):
        n = T.int64()
        c = T.sblock_alloc_buffer((n, {columns}))
        for i, j, k in T.grid(n, {columns}, {depth}):
            with T.sblock("product"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    c[vi, vj] = T.float32(0)
                c[vi, vj] = c[vi, vj] + x[vi, vk] * w[{index}]
        for i, j in T.grid(n, {columns}):
            with T.sblock("after"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = {after}

    @R.function
    def main(
        x: R.Tensor(("n", {depth}), "float32"), w: R.Tensor({shape}, "float32"),
        b: R.Tensor(({columns},), "float32"),
    ) -> R.Tensor(("n", {columns}), "float32"):
        n = T.int64()
        cls = Module
        y = R.call_tir(cls.layer, (x, w, b), out_ty=R.Tensor((n, {columns}), "float32"))
        return y
""")


def bound(mod: IRModule, **params: np.ndarray) -> IRModule:
    """The module with parameters as constants."""
    return BindParams()(mod, PassContext(params=params))


def packed(mod: IRModule, target: str = BASELINE) -> IRModule:
    after = PackWeights()(mod, PassContext(Target.parse(target)))
    check_well_formed(after)
    return after


def constants(mod: IRModule) -> list[Constant]:
    """The constants that tensor programs are called with, in order."""
    return [
        field
        for function in mod.graph_functions.values()
        for binding in function.body.bindings
        if isinstance(call := binding.value, Call) and len(call.args) > 1
        if isinstance(args := call.args[1], Tuple)
        for field in args.fields
        if isinstance(field, Constant)
    ]


def test_example() -> None:
    check_example(PackWeights(), PassContext(Target.parse(BASELINE)))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("depth", "columns"), [(6, 3), (1, 5), (7, 8), (12, 19), (3, 64)])
def test_a_packed_program_computes_the_same(depth: int, columns: int, transposed: bool) -> None:
    """Interpreted, where only the layout matters; the panels are the matrix, then zeros."""
    w = weights(columns, depth) if transposed else weights(depth, columns)
    mod = bound(layer(depth, columns, transposed=transposed), w=w, b=weights(columns))
    after = packed(mod)
    (data,) = (c.data for c in constants(after) if c.data.ndim == 3)
    width = 4 if columns <= 4 else 8
    assert data.shape == (-(-columns // width), depth, width)
    flat = data.swapaxes(0, 1).reshape(depth, -1)
    np.testing.assert_array_equal(flat[:, :columns], w.T if transposed else w)
    assert not flat[:, columns:].any()
    assert list(after.prim_funcs) == ["layer_packed"]
    for rows in (0, 1, 3):
        x = weights(rows, depth)
        np.testing.assert_array_equal(interpret(after, "main", x), interpret(mod, "main", x))


@sweep(4)
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell", BASELINE])
@pytest.mark.parametrize(
    ("depth", "columns", "transposed"),
    [
        (17, 33, False),
        (1, 64, False),
        (530, 24, True),
        (64, 130, False),
        (1100, 192, False),
        (24, 16, True),
        (3, 9, False),
        (40, 112, False),
        (240, 40, True),
        (700, 384, False),
    ],
)
def test_kernels_give_the_same_bits(
    target: str, depth: int, columns: int, transposed: bool
) -> None:
    """At every number of rows that has a program of its own: few, a tile, a rest, several chunks. Optimised for this
    processor and matrices that are turned, and all in a full sweep."""
    own = Target.host() if target == "llvm" and transposed else quick_target(target)
    if not own.is_host_loadable:
        pytest.skip(f"{target} does not run here")
    w = weights(columns, depth) if transposed else weights(depth, columns)
    params = {"w": w, "b": weights(columns)}
    mod = layer(depth, columns, transposed=transposed)
    plain = relaxpy.build(mod, own, params, pipeline=default_pipeline(without=["pack-weights"]))
    ours = relaxpy.build(mod, own, params)
    assert any(c.data.ndim == 3 for c in constants(packed(bound(mod, **params), target)))
    machines = [relaxpy.VirtualMachine(executable) for executable in (plain, ours)]
    for rows in (0, 1, 2, 3, 5, 8, 9, 10, 11, 12, 13, 14, 30, 211):
        x = weights(rows, depth)
        expected, got = (vm["main"](x).numpy() for vm in machines)
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_allclose(
            got, np.maximum(x @ (w.T if transposed else w) + params["b"], 0), atol=1e-3
        )


TWO_CALLS = """
from relaxpy.script import ir as I, relax as R, tir as T

@I.ir_module
class Module:
    @T.prim_func(private=True)
    def product(
        x: T.Buffer(("n", 8), "float32"), w: T.Buffer((8, 8), "float32"), y: T.Buffer(("n", 8), "float32")
    ):
        n = T.int64()
        for i, j, k in T.grid(n, 8, 8):
            with T.sblock("product"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    y[vi, vj] = T.float32(0)
                y[vi, vj] = y[vi, vj] + x[vi, vk] * w[vk, vj]

    @R.function
    def main(
        x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 8), "float32"), v: R.Tensor((8, 8), "float32")
    ):
        n = T.int64()
        cls = Module
        a = R.call_tir(cls.product, (x, w), out_ty=R.Tensor((n, 8), "float32"))
        b = R.call_tir(cls.product, (a, w), out_ty=R.Tensor((n, 8), "float32"))
        c = R.call_tir(cls.product, (b, v), out_ty=R.Tensor((n, 8), "float32"))
        return c
"""


@pytest.mark.parametrize(("channels", "filters"), [(24, 32), (33, 70)])
def test_a_convolution_of_single_pixels_is_a_product(channels: int, filters: int) -> None:
    """Its weight has two dimensions of 1 more than a matrix; the product reads it in panels, from the caller, too."""
    mod = relaxpy.parse(f"""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", {channels}, 1, 1), "float32"), w: R.Tensor(({filters}, {channels}, 1, 1), "float32")):
        R.func_attr({{"num_input": 1}})
        return R.nn.relu(R.nn.conv2d(x, w))
""")
    w = weights(filters, channels, 1, 1)
    known = relaxpy.build(mod, params={"w": w})
    assert [kernel.name for kernel in known.kernels] == ["fused_conv2d_relu_packed"]
    given = relaxpy.VirtualMachine(relaxpy.build(mod, pack=True))
    for count in (0, 1, 3, 40):
        x = weights(count, channels, 1, 1)
        found = relaxpy.VirtualMachine(known)["main"](x).numpy()
        want = np.maximum(x.reshape(count, channels) @ w.reshape(filters, channels).T, 0)
        np.testing.assert_allclose(found.reshape(want.shape), want, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(
            given["main"](x, *given.pack({"w": w})["main"]).numpy(), found
        )


@sweep(2)
@pytest.mark.parametrize("columns", [8, 13])
@pytest.mark.parametrize("target", [BASELINE, "llvm"])
def test_a_matrix_for_each_product(columns: int, target: str) -> None:
    """The panels of a number of columns are those of all matrices; the numbers are those of one product each."""
    columns *= 4
    w = weights(3, 1, 7, columns)
    mod = relaxpy.parse(f"""
from relaxpy.script import relax as R

@R.function
def main(x: R.Tensor((3, "b", "n", 7), "float32"), w: R.Tensor({w.shape}, "float32")):
    y = R.matmul(x, w)
    return y
""")
    legal = default_pipeline(target).through("fuse")(bound(mod, w=w))
    after = packed(legal, target)
    (constant,) = constants(after)
    lanes = constant.data.shape[-1]
    assert constant.data.shape == (-(-columns // lanes), 3, 7, lanes)
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, params={"w": w}, target=target))
    plain = default_pipeline(target).without("pack-weights")
    built = relaxpy.build(mod, params={"w": w}, target=target, pipeline=plain)
    unpacked = relaxpy.VirtualMachine(built)
    for count, rows in ((2, 1), (1, 5), (4, 9), (0, 3)):
        x = weights(3, count, rows, 7)
        want = x @ w
        np.testing.assert_allclose(interpret(after, "main", x), want, rtol=1e-5, atol=1e-5)
        got = vm["main"](x).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(got, unpacked["main"](x).numpy())


def test_a_constant_is_packed_once() -> None:
    w, v = weights(8, 8), weights(8, 8)[::-1]
    mod = bound(relaxpy.parse(TWO_CALLS), w=w, v=v)
    first, second, third = constants(packed(mod))
    assert first is second
    assert third is not first
    executable = relaxpy.build(relaxpy.parse(TWO_CALLS), params={"w": w, "v": v})
    assert len(executable.constants) == 2


def test_calls_with_a_variable_keep_their_program() -> None:
    mod = bound(relaxpy.parse(TWO_CALLS), w=weights(8, 8))
    after = packed(mod)
    assert list(after.prim_funcs) == ["product", "product_packed"]
    x, v = weights(3, 8), weights(8, 8)
    np.testing.assert_array_equal(interpret(after, "main", x, v), interpret(mod, "main", x, v))


def test_a_second_run_changes_nothing() -> None:
    after = packed(bound(relaxpy.parse(TWO_CALLS), w=weights(8, 8), v=weights(8, 8)))
    assert packed(after) is after


@pytest.mark.parametrize(
    ("mod", "params"),
    [
        pytest.param(layer(6, 8), {"b": weights(8)}, id="no constant"),
        pytest.param(layer(6, 2), {"w": weights(6, 2)}, id="few columns"),
        pytest.param(layer(6, 8), {"x": weights(4, 6)}, id="the left-hand factor"),
    ],
)
def test_what_is_left_alone(mod: IRModule, params: dict[str, Any]) -> None:
    mod = bound(mod, **params)
    assert packed(mod) is mod


def test_one_row_times_a_transposed_matrix_is_left_alone() -> None:
    """It is a reduction of contiguous rows: other kernels, and another order of sums."""
    mod = relaxpy.parse(TWO_CALLS.replace('("n", 8)', "(1, 8)").replace("(n, 8)", "(1, 8)")
                        .replace("T.grid(n,", "T.grid(1,").replace("w[vk, vj]", "w[vj, vk]")
                        .replace("        n = T.int64()\n", ""))  # fmt: skip
    mod = bound(mod, w=weights(8, 8))
    assert packed(mod) is mod


def test_programs_that_their_author_arranged_are_left_alone() -> None:
    text = TWO_CALLS.replace(
        "        n = T.int64()\n        for",
        '        T.func_attr({"tirx.is_scheduled": True})\n        n = T.int64()\n        for',
    )
    mod = bound(relaxpy.parse(text), w=weights(8, 8))
    assert packed(mod) is mod
