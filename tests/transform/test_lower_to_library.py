"""Regions that match registered patterns become library calls: figure 12 (a) of the paper."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.pattern_regions import UnmatchedPatternWarning
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.build.pipeline import default_pipeline
from relaxpy.ir import IRModule, TensorType
from relaxpy.ir.pattern import is_call_tir, is_const, is_op, wildcard
from relaxpy.runtime import Tensor
from relaxpy.runtime.library import register_library
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.tir.recognise.pattern_kind import PatternKind
from relaxpy.transform.legalize_ops import LegalizeOps
from relaxpy.transform.lower_to_library import LibraryPattern, LowerToLibrary
from relaxpy.transform.normalize import Normalize

PARAMS = 'x: R.Tensor(("n", 5), "float32"), w: R.Tensor((5, 4), "float32")'
RNG = np.random.default_rng(0)
ARGS = [RNG.uniform(-1, 1, shape).astype(np.float32) for shape in ((3, 5), (5, 4))]


def softmax(x: Tensor, out: Tensor, room: Tensor) -> None:
    """Works in `room`: a row's exponentials."""
    assert room.nbytes == x.shape[-1] * 4
    row = room.numpy().view(np.float32)
    for i, values in enumerate(x.numpy()):
        row[...] = np.exp(values - values.max())
        out.numpy()[i] = row / row.sum()


def divided(x: Tensor, y: Tensor, out: Tensor) -> None:
    out.numpy()[...] = x.numpy() / y.numpy()


def halves(x: Tensor, low: Tensor, high: Tensor, room: Tensor) -> None:
    del room
    half = low.shape[0]
    low.numpy()[...], high.numpy()[...] = x.numpy()[:half], x.numpy()[half:]


def product(x: Tensor, w: Tensor, out: Tensor) -> None:
    np.matmul(x.numpy(), w.numpy(), out.numpy())


@pytest.fixture(autouse=True)
def libraries() -> None:
    """What the programs of this file call besides OpenBLAS."""
    for func in (softmax, divided, halves, product):
        register_library(f"tests.{func.__name__}", func)


RELU = LibraryPattern(
    "product with relu",
    is_op("nn.relu")(is_op("matmul")(wildcard(), wildcard())),
    "blas.matmul_relu",
)


def program(body: str, params: str = PARAMS) -> IRModule:
    lines = "".join(f"            {line}\n" for line in body.strip().splitlines())
    text = f"@I.ir_module\nclass Module:\n    @R.function\n    def main({params}):\n"
    text += f"        with R.dataflow():\n{lines}            R.output(gv)\n        return gv\n"
    return Normalize()(relaxpy.parse(text))


def lowered(mod: IRModule, *patterns: LibraryPattern, args: list[np.ndarray] = ARGS) -> str:
    """The script with library calls, after the numbers were compared: interpreted, and in the machine."""
    step = LowerToLibrary(patterns)
    after = step(mod)
    check_well_formed(after)
    pipeline = default_pipeline().before("match", step)
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, pipeline=pipeline))
    for size in (3, 1, 0):
        some = [args[0][:size], *args[1:]]
        want = interpret(mod, "main", *some)
        for got in (interpret(after, "main", *some), vm["main"](*some)):
            for a, b in zip(_flat(want), _flat(got), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return after.script()


def _flat(value: object) -> list[np.ndarray]:
    if isinstance(value, tuple):
        return [array for item in value for array in _flat(item)]
    return [np.asarray(value)]


def test_example() -> None:
    check_example(LowerToLibrary((RELU,)))


def test_the_region_is_one_call_and_the_rest_stays() -> None:
    text = lowered(program("a = R.matmul(x, w)\nb = R.nn.relu(a)\ngv = R.exp(b)"), RELU)
    assert 'R.call_dps_library("blas.matmul_relu", (x, w), out_ty=R.Tensor((n, 4)' in text
    assert "R.exp(b)" in text
    assert "R.matmul" not in text


def test_workspace_is_an_output_of_the_call() -> None:
    x = wildcard().has_shape(("n", "k"))
    pattern = LibraryPattern(
        "softmax", is_op("nn.softmax")(x), "tests.softmax", workspace=lambda m: m.dim("k") * 4
    )
    text = lowered(program("a = R.nn.softmax(x, axis=-1)\ngv = R.exp(a)"), pattern)
    assert 'R.Tensor((20,), dtype="uint8")' in text
    assert "a_and_workspace[0]" in text


def test_arguments_in_an_order_of_their_own() -> None:
    x, y = wildcard(), wildcard()
    quotient = is_op("multiply")(is_op("divide")(1.0, y), x)
    pattern = LibraryPattern("quotient", quotient, "tests.divided", (x, y))
    mod = program(
        "a = R.divide(R.const(1.0), R.exp(x))\ngv = R.multiply(a, x)", PARAMS.partition(", w")[0]
    )
    assert '("tests.divided", (x, lv)' in lowered(mod, pattern, args=ARGS[:1])


def test_constants_without_a_value_are_arguments() -> None:
    pattern = LibraryPattern("q", is_op("divide")(wildcard(), is_const()), "tests.divided")
    mod = program("gv = R.divide(x, R.const(2.0))", PARAMS.partition(", w")[0])
    assert '("tests.divided", (x, R.const(2' in lowered(mod, pattern, args=ARGS[:1])


def test_several_results_beside_a_workspace() -> None:
    x = wildcard()
    pattern = LibraryPattern(
        "split", is_op("split")(x, ...), "tests.halves", workspace=lambda _: 64
    )
    mod = program(
        "s = R.split(x, 2, axis=0)\na = s[0]\nb = s[1]\ngv = R.add(a, b)",
        'x: R.Tensor((4, "n"), "float32")',
    )
    after = LowerToLibrary((pattern,))(mod)
    check_well_formed(after)
    given = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_array_equal(interpret(after, "main", given), given[:2] + given[2:])


def test_tensor_programs_go_to_libraries_too() -> None:
    """Cross-level: a program that analysis finds to be a product, whatever it is called."""
    mod = LegalizeOps()(program("a = R.matmul(x, w)\ngv = R.exp(a)"))
    pattern = LibraryPattern(
        "products",
        is_call_tir(kind=PatternKind.OUTPUT_EWISE_FUSIBLE, args=[wildcard(), wildcard()]),
        "tests.product",
    )
    text = lowered(mod, pattern)
    assert 'R.call_dps_library("tests.product", (x, w)' in text
    assert "R.call_tir(cls.exp, (a,)" in text


def test_a_function_chosen_by_the_match() -> None:
    x = wildcard()
    pattern = LibraryPattern(
        "exp",
        is_op("exp")(x),
        lambda m: f"tests.exp_{m.annotation(x).dtype}",  # type: ignore[attr-defined]
    )
    after = LowerToLibrary((pattern,))(program("gv = R.exp(x)"))
    assert '"tests.exp_float32"' in after.script()


def test_a_pattern_that_never_matched_is_reported_with_what_stood_in_the_way() -> None:
    w = wildcard()
    square = LibraryPattern(
        "square product",
        is_op("matmul")(wildcard(), w),
        "tests.product",
        condition=lambda m: m.annotation(w) == TensorType((4, 4), "float32"),
    )
    mod = program("gv = R.matmul(x, w)")
    with pytest.warns(UnmatchedPatternWarning) as seen:
        assert LowerToLibrary((square,))(mod) is mod
    warning = seen[0].message
    assert isinstance(warning, UnmatchedPatternWarning)
    assert warning.report.matches == 0
    ((why, where),) = warning.report.refused
    assert why == "the condition of the rule returned false"
    assert where is not None
    assert "square product" in str(warning)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LowerToLibrary((dataclasses.replace(square, expected=False),))(mod)


def test_a_result_of_unknown_shape_is_left() -> None:
    mod = program("gv = R.exp(x)", 'x: R.Tensor(ndim=2, dtype="float32")')
    with pytest.warns(UnmatchedPatternWarning, match="shape or dtype of its result"):
        LowerToLibrary((LibraryPattern("exp", is_op("exp")(wildcard()), "tests.exp"),))(mod)


def test_two_patterns_take_what_the_first_leaves() -> None:
    plain = LibraryPattern("product", is_op("matmul")(wildcard(), wildcard()), "tests.product")
    mod = program(
        "a = R.matmul(x, w)\nb = R.nn.relu(a)\nd = R.exp(x)\nc = R.matmul(d, w)\ngv = R.add(b, c)"
    )
    text = lowered(mod, RELU, plain)
    assert text.count("tests.product") == 1
    assert text.count("blas.matmul_relu") == 1
