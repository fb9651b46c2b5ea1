"""Long rows in blocks: the numbers of short rows, and the same bits whatever is beside a row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy.backend.cpu.rules.long_rows import _FEW, _WORTH, BLOCK, LONG, long_rows
from relaxpy.backend.cpu.rules.weights import with_weights
from relaxpy.tir.numerics import scalar
from relaxpy.tir.programs.elementary import written_out
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.tvm import te
from tests.backend.support import HOST, Kernel, compute, n, normal, over, tensor
from tests.sweeps import sweep

LENGTHS = [LONG, LONG + 1, LONG + BLOCK - 1, _WORTH + 3 * BLOCK + 77]
"""With the last of them, few rows are cut into pieces."""
ROWS = [0, 1, _FEW - 1, _FEW, _FEW + 3]


def softmax(x: Any, rows: Any, length: Any) -> Any:
    k, l = over(length), over(length)
    top = compute((rows,), lambda i: te.max(x[i, k], axis=k), "top")
    power = compute((rows, length), lambda i, j: scalar.exp(x[i, j] - top[i]), "power")
    total = compute((rows,), lambda i: te.sum(power[i, l], axis=l), "total")
    return compute((rows, length), lambda i, j: power[i, j] / total[i])


def built(call: str, length: int, dtype: str = "float32", rows: str = '"n",') -> Any:
    mod = relaxpy.parse(f"""
@R.function
def main(x: R.Tensor(({rows} {length},), "{dtype}")):
    with R.dataflow():
        y = {call}
        R.output(y)
    return y
""")
    return relaxpy.VirtualMachine(relaxpy.build(mod, target=HOST))["main"]


def weights(x: np.ndarray) -> np.ndarray:
    wide = x.astype("float64")
    power = np.exp(wide - wide.max(-1, keepdims=True, initial=-np.inf))
    return power / power.sum(-1, keepdims=True)


def variance(x: np.ndarray) -> np.ndarray:
    return x.astype("float64").var(-1)


CALLS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "R.nn.softmax(x)": weights,
    "R.nn.log_softmax(x)": lambda x: np.log(weights(x)),
    "R.variance(x, axis=-1)": variance,
    "R.argmax(x, axis=-1)": lambda x: x.argmax(-1),
    "R.argmin(x, axis=-1)": lambda x: x.argmin(-1),
    "R.sum(x, axis=-1, keepdims=True)": lambda x: x.sum(-1, keepdims=True, dtype="float64"),
    "R.max(x, axis=-1)": lambda x: x.max(-1),
    "R.subtract(x, R.mean(x, axis=-1, keepdims=True))": lambda x: (
        x - x.mean(-1, keepdims=True, dtype="float64")
    ),
}
SUM, CENTRED = list(CALLS)[5], list(CALLS)[7]
SMALL = {SUM: 2e-3, CENTRED: 1e-6}
"""Errors of results near 0 that are left of larger numbers."""


@sweep(2)
@pytest.mark.parametrize("call", CALLS)
def test_results_are_those_of_numpy_and_do_not_depend_on_other_rows(call: str) -> None:
    for length in LENGTHS:
        run = built(call, length)
        x = normal(max(ROWS), length)
        expected = CALLS[call](x)
        alone = [run(x[i : i + 1]).numpy()[0] for i in range(max(ROWS))]
        for rows in ROWS:
            found = run(x[:rows]).numpy()
            np.testing.assert_allclose(found, expected[:rows], rtol=2e-5, atol=SMALL.get(call, 0))
            for row in range(rows):
                np.testing.assert_array_equal(found[row], alone[row])


def test_softmax_has_two_phases(tmp_path: Path) -> None:
    x = tensor(n, LONG)
    func = written_out(with_weights(te.create_prim_func([x, softmax(x, n, LONG)])))
    stages = s.stages_of(func)
    assert stages is not None
    long = long_rows(stages, s.common_rows(stages), func)
    assert long is not None
    assert [part.phase for part in long.parts] == [0, 0, 0, 1]


def test_which_rows_are_long() -> None:
    def is_long(*tensors: Any) -> bool:
        func = te.create_prim_func(list(tensors))
        stages = s.stages_of(func) or ()
        return long_rows(stages, s.common_rows(stages), func) is not None

    x, k = tensor(n, LONG), over(LONG)
    assert is_long(x, compute((n,), lambda i: te.sum(x[i, k], axis=k)))
    short, l = tensor(n, LONG - 1), over(LONG - 1)
    assert not is_long(short, compute((n,), lambda i: te.sum(short[i, l], axis=l)))
    columns = tensor(LONG, n)
    assert not is_long(columns, compute((n,), lambda i: te.sum(columns[k, i], axis=k)))


@pytest.mark.parametrize("length", LENGTHS[1:])
@pytest.mark.parametrize("rows", [1, 5])
def test_softmax_of_what_is_not_finite(length: int, rows: int) -> None:
    """Blocks without finite numbers beside others, as masks make them, and rows without any."""
    run = built("R.nn.softmax(x)", length)
    x = normal(rows, length)
    x[:, : 2 * BLOCK] = -np.inf
    np.testing.assert_allclose(run(x).numpy(), weights(x), rtol=1e-5, atol=1e-9)
    x[:, :BLOCK] = -3e38
    np.testing.assert_allclose(run(x).numpy(), weights(x), rtol=1e-5, atol=1e-9)
    for value, places in ((np.nan, 5), (np.inf, length - 1), (-np.inf, slice(None))):
        y = x.copy()
        y[:, places] = value
        assert np.isnan(run(y).numpy()).all()


@pytest.mark.parametrize("length", LENGTHS[1:])
def test_softmax_far_apart(length: int) -> None:
    """Blocks whose weights are nothing beside others'."""
    run = built("R.nn.softmax(x)", length)
    x = normal(2, length)
    x[:, BLOCK : 2 * BLOCK] += 60
    x[:, 3 * BLOCK :] -= 1000
    np.testing.assert_allclose(run(x).numpy(), weights(x), rtol=2e-5, atol=1e-37)


def test_rows_of_bfloat16_and_more_dimensions() -> None:
    run = built("R.nn.softmax(x)", LONG + 5, "bfloat16", '2, "n",')
    x = normal(2, 3, LONG + 5).astype(ml_dtypes.bfloat16)
    found = run(x).numpy().astype("float64")
    np.testing.assert_allclose(found, weights(x), rtol=5e-3, atol=1e-9)


@pytest.mark.parametrize("rows", ["", "1,", "2, 1,"])
@pytest.mark.parametrize("call", ["R.nn.softmax(x)", "R.argmax(x, axis=-1)"])
def test_rows_of_a_known_number(call: str, rows: str) -> None:
    run = built(call, LENGTHS[-1], rows=rows)
    x = normal(*(int(size) for size in rows.split(",") if size.strip()), LENGTHS[-1])
    np.testing.assert_allclose(run(x).numpy(), CALLS[call](x), rtol=2e-5)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("call", ["argmax", "argmin"])
def test_the_first_of_equal_ones_or_of_nans(call: str, length: int) -> None:
    run = built(f"R.{call}(x, axis=-1)", length)
    x = np.round(normal(9, length))
    x[1:4] = [[-np.inf], [np.inf], [0]]
    x[4, 0::2] = -0.0
    x[5, length // 2 :: 3] = np.nan
    x[6, -1] = np.nan
    x[7, BLOCK] = x[7, BLOCK - 1] = 1e9
    x[8, BLOCK - 1] = x[8, 2 * BLOCK] = -1e9
    for rows in (x, x[4:5], x[5:7]):
        np.testing.assert_array_equal(run(rows).numpy(), getattr(np, call)(rows, -1))


@pytest.mark.parametrize("dtype", ["int32", "int8", "bool"])
def test_the_place_of_the_largest_integer(dtype: str) -> None:
    run = built("R.argmax(x, axis=-1)", LONG + 9, dtype)
    x = np.random.default_rng(0).integers(-3, 3, (6, LONG + 9)).astype(dtype)
    for rows in (x, x[:1]):
        np.testing.assert_array_equal(run(rows).numpy(), rows.argmax(-1))


def test_both_forms_agree(tmp_path: Path) -> None:
    """On all threads and on one; two results of one program, one of them a number of each row."""
    x, k = tensor(n, LENGTHS[-1]), over(LENGTHS[-1])
    total = compute((n,), lambda i: te.sum(x[i, k], axis=k), "total")
    out = compute((n, LENGTHS[-1]), lambda i, j: x[i, j] - total[i])
    kernel = Kernel(tmp_path, [x, total, out])
    for rows in ROWS:
        a = normal(rows, LENGTHS[-1])
        totals = np.full(rows, 77, np.float32)
        result = kernel(a, totals, out=a.shape)
        np.testing.assert_allclose(totals, a.sum(1, dtype="float64"), rtol=1e-4, atol=1e-2)
        np.testing.assert_array_equal(result, a - totals[:, None])
