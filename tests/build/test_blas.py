"""Which products the table for OpenBLAS takes, and that numbers stay, in the machine, for every size."""

from __future__ import annotations

import re

import numpy as np
import pytest

import relaxpy
from relaxpy.build.blas import BLAS
from relaxpy.build.pipeline import default_pipeline
from relaxpy.ir import IRModule
from relaxpy.testing.interpret import interpret
from relaxpy.transform.lower_to_library import LowerToLibrary
from relaxpy.transform.normalize import Normalize

RNG = np.random.default_rng(0)
WITH_BLAS = default_pipeline().before("match", LowerToLibrary(BLAS))
F32 = '"float32"'


def program(body: str, params: str) -> IRModule:
    lines = "".join(f"            {line}\n" for line in body.strip().splitlines())
    text = f"@I.ir_module\nclass Module:\n    @R.function\n    def main({params}):\n"
    text += f"        with R.dataflow():\n{lines}            R.output(gv)\n        return gv\n"
    return Normalize()(relaxpy.parse(text))


def taken(mod: IRModule) -> list[str]:
    """The library functions that the table gives a program."""
    return re.findall(r'call_dps_library\("([\w.]+)"', LowerToLibrary(BLAS)(mod).script())


X = f'x: R.Tensor(("b", "n", 8), {F32})'
W = f"w: R.Tensor((8, 4), {F32})"
T = f"w: R.Tensor((4, 8), {F32})"
C = f"c: R.Tensor((4,), {F32})"


@pytest.mark.parametrize(
    ("body", "params", "want"),
    [
        ("gv = R.matmul(x, w)", [X, W], ["blas.matmul"]),
        ("gv = R.nn.relu(R.add(R.matmul(x, w), c))", [X, W, C], ["blas.matmul_bias_relu"]),
        ("gv = R.add(c, R.matmul(x, w))", [X, W, C], ["blas.matmul_bias"]),
        ("gv = R.nn.relu(R.matmul(x, w))", [X, W], ["blas.matmul_relu"]),
        ("gv = R.matmul(x, R.permute_dims(w))", [X, T], ["blas.matmul_nt"]),
        ("gv = R.nn.relu(R.linear(x, w, c))", [X, T, C], ["blas.matmul_nt_bias_relu"]),
        ("gv = R.linear(x, w)", [X, T], ["blas.matmul_nt"]),
        ("gv = R.matmul(x, R.permute_dims(x, axes=[0, 2, 1]))", [X], ["blas.matmul_nt"]),
        (
            "gv = R.exp(R.matmul(R.matmul(x, w), v))",
            [X, W, f"v: R.Tensor((4, 4), {F32})"],
            ["blas.matmul", "blas.matmul"],
        ),
    ],
)
def test_products_go_to_the_library(body: str, params: list[str], want: list[str]) -> None:
    mod = program(body, ", ".join(params))
    assert taken(mod) == want
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, pipeline=WITH_BLAS))
    for b, n in ((2, 3), (1, 1), (0, 3), (2, 0)):
        shapes = {"x": (b, n, 8), "w": (8, 4) if W in params else (4, 8), "c": (4,), "v": (4, 4)}
        names = [param.partition(":")[0] for param in params]
        args = [RNG.uniform(-1, 1, shapes[name]).astype("float32") for name in names]
        expected = np.asarray(interpret(mod, "main", *args))
        np.testing.assert_allclose(vm["main"](*args).numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "params"),
    [
        ("gv = R.matmul(x, w)", 'x: R.Tensor(("n", 8), "float16"), w: R.Tensor((8, 4), "float16")'),
        ("gv = R.matmul(x, w)", f"x: R.Tensor((8,), {F32}), w: R.Tensor((8, 4), {F32})"),
        (
            'gv = R.matmul(x, w, out_dtype="float32")',
            'x: R.Tensor(("n", 8), "int8"), w: R.Tensor((8, 4), "int8")',
        ),
    ],
)
def test_what_it_does_not_take_is_left_to_code_generation(body: str, params: str) -> None:
    assert taken(program(body, params)) == []


def test_a_bias_that_widens_the_result_is_added_by_a_kernel() -> None:
    mod = program(
        "gv = R.add(R.matmul(x, w), c)",
        f'x: R.Tensor(("n", 8), {F32}), {W}, c: R.Tensor((2, 1, 4), {F32})',
    )
    assert taken(mod) == ["blas.matmul"]


def test_a_transposition_that_is_used_elsewhere_is_made() -> None:
    mod = program("t = R.permute_dims(w)\na = R.matmul(x, t)\ngv = (a, t)", f"{X}, {T}")
    assert taken(mod) == ["blas.matmul"]
