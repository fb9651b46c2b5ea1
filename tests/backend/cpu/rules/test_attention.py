"""Attention in one pass over the keys against the operator's reference: every kind of mask, bias and edge, all targets
that run here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relaxpy.backend.cpu.rules.attention import attention_program
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.op import te
from relaxpy.op.attention import Attention, AttentionVarLen
from relaxpy.target import Target
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from tests.sweeps import quick_target, sweep

TARGETS = ("llvm -opt-level=0", "llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64")
"""The first for all cases: LLVM's optimiser takes most of the time of a build."""
NUMPY = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
NAMES = {name: SymVar(name) for name in "bsthgde"}

Size = int | str
PLAIN = Attention()


@dataclass(frozen=True)
class Case:
    """An attention of queries (b, s, heads, width) with keys (b, t, groups, width) and values (b, t, groups, column)."""

    heads: Size
    groups: Size
    width: Size
    column: Size
    op: Attention = PLAIN
    bias: tuple[Size, ...] | None = None
    dtype: str = "float32"
    batch: Size = "b"

    def shapes(self, values: Mapping[str, int] | None = None) -> list[tuple[Any, ...]]:
        """Of the inputs: with dimensions, or with numbers in the place of names."""

        def size(of: Size) -> Any:
            if values is None:
                return Dim.of(NAMES[of]) if isinstance(of, str) else of
            return values[of] if isinstance(of, str) else of

        shapes: list[Sequence[Size]] = [
            (self.batch, "s", self.heads, self.width),
            (self.batch, "t", self.groups, self.width),
            (self.batch, "t", self.groups, self.column),
        ]
        if self.bias is not None:
            shapes.append(self.bias)
        return [tuple(map(size, shape)) for shape in shapes]

    def program(self) -> PrimFunc:
        """The operator legalised."""
        shapes = self.shapes()
        names = ("query", "key", "value", "bias")
        inputs = [te.placeholder(s, self.dtype, n) for s, n in zip(shapes, names, strict=False)]
        out = TensorType((*shapes[0][:3], shapes[2][3]), self.dtype)
        bias = inputs[3] if self.bias is not None else None
        made = self.op.legalize(out, *inputs[:3], bias)
        return PrimFunc.from_te(inputs, [made])

    def inputs(self, seed: int = 0, **values: int) -> list[np.ndarray]:
        """Random numbers, one element past an aligned address."""
        random = np.random.default_rng(seed)

        def made(shape: tuple[int, ...]) -> np.ndarray:
            memory = np.empty(int(np.prod(shape)) + 1, NUMPY[self.dtype])
            memory[1:] = random.standard_normal(memory.size - 1)
            return memory[1:].reshape(shape)

        return [made(shape) for shape in self.shapes(values)]


CASES = {
    "plain": Case(3, 3, 32, 16),
    "ragged": Case(2, 2, 5, 19, Attention(scale=0.3)),
    "shared": Case(6, 2, 16, 32),
    "five share": Case(10, 2, 16, 32, Attention(causal_mask="BottomRight")),
    "eight share": Case(8, 1, 32, 16, bias=("b", 1, 1, "t")),
    "twenty share": Case(20, 1, 16, 16, Attention(causal_mask="BottomRight")),
    "top left": Case(2, 2, 16, 16, Attention(causal_mask="TopLeft")),
    "bottom right": Case(4, 1, 32, 32, Attention(causal_mask="BottomRight")),
    "window": Case(2, 1, 8, 7, Attention(causal_mask="TopLeft", window_size=5)),
    "last keys": Case(2, 2, 16, 8, Attention(causal_mask="BottomRight", window_size=3)),
    "bias by key": Case(2, 2, 16, 16, bias=("b", 1, 1, "t")),
    "bias by query": Case(4, 2, 16, 16, Attention(causal_mask="TopLeft"), ("b", 1, "s", "t")),
    "bias by head": Case(2, 2, 8, 8, bias=(1, 2, 1, "t")),
    "one": Case(1, 1, 1, 2, batch=1),
}  # fmt: skip
ELSEWHERE = ("bottom right", "ragged", "bias by key", "five share", "eight share")
"""What is tried optimised, and on processors with fewer or shorter registers."""
SERIAL = "_serial"
LENGTHS = ((0, 3), (3, 0), (1, 1), (1, 70), (7, 64), (16, 65), (17, 130), (33, 5), (70, 131))


@pytest.fixture(
    scope="module",
    params=[*TARGETS[:2], *(pytest.param(t, marks=[pytest.mark.slow, sweep]) for t in TARGETS[2:])],
)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """All cases, for other targets some, compiled together; of one the serial twin too. For other processors they are
    quickly compiled, unless the sweep is in full."""
    other = request.param in TARGETS[2:]
    target = quick_target(request.param) if other else Target.parse(request.param)
    if not target.is_host_loadable:
        pytest.skip("this machine cannot run it")
    programs: dict[str, PrimFunc] = {}
    for name, case in CASES.items():
        if request.param != TARGETS[0] and name not in ELSEWHERE:
            continue
        scheduled = schedule_kernel(case.program().func, target)
        assert scheduled.rule == "attention"
        programs[name.replace(" ", "_")] = PrimFunc(scheduled.parallel)
        if name == ELSEWHERE[0]:
            programs[name.replace(" ", "_") + SERIAL] = PrimFunc(scheduled.serial)
    return Kernels(programs, target, schedule=False)


def run(kernels: Kernels, name: str, inputs: list[np.ndarray]) -> np.ndarray:
    """The result, which the serial twin (if there is one) gives to the bit, and which ends where it should."""
    if name.replace(" ", "_") not in kernels:
        pytest.skip("tried once")
    shape = (*inputs[0].shape[:3], inputs[2].shape[3])
    size = int(np.prod(shape))
    results: list[np.ndarray] = []
    for form in ("", SERIAL):
        if name.replace(" ", "_") + form not in kernels:
            continue
        memory = np.full(size + 64, 77, inputs[0].dtype)
        out = memory[:size].reshape(shape)
        kernels.run(name.replace(" ", "_") + form, inputs, [out])
        assert (memory[size:] == 77).all(), "wrote beyond its output"
        results.append(out)
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    return results[0]


def reference(case: Case, inputs: list[np.ndarray]) -> np.ndarray:
    """What the operator gives; scores that are not seen may overflow in it."""
    with np.errstate(all="ignore"):
        return case.op.reference(*inputs)


@sweep(2)
@pytest.mark.parametrize("name", CASES)
def test_every_edge(kernels: Kernels, name: str) -> None:
    case = CASES[name]
    for queries, keys in LENGTHS:
        for batch in (1, 2):
            inputs = case.inputs(b=batch, s=queries, t=keys)
            expected = reference(case, inputs)
            np.testing.assert_allclose(run(kernels, name, inputs), expected, atol=1e-5, rtol=1e-5)


def test_nothing_seen_gives_zero(kernels: Kernels) -> None:
    """A window behind all keys; a bias of minus infinity."""
    inputs = CASES["window"].inputs(b=1, s=20, t=3)
    result = run(kernels, "window", inputs)
    np.testing.assert_allclose(result, reference(CASES["window"], inputs), atol=1e-5)
    assert (result[:, 8:] == 0).all()
    *inputs, bias = CASES["bias by key"].inputs(b=2, s=20, t=70)
    bias[0] = -np.inf
    bias[1, ..., 3:] = -np.inf
    result = run(kernels, "bias by key", [*inputs, bias])
    assert (result[0] == 0).all()
    expected = reference(CASES["bias by key"], [*inputs, bias])
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_what_is_not_seen_takes_no_part(kernels: Kernels) -> None:
    """Infinities and NaN behind the mask; and those before it are not lost."""
    case = CASES["top left"]
    query, key, value = case.inputs(b=1, s=40, t=40)
    key[:, 30], value[:, 30], value[:, 33] = np.nan, np.inf, np.nan
    result = run(kernels, "top left", [query, key, value])
    assert np.isfinite(result[:, :30]).all()
    assert np.isnan(result[:, 30:]).all()


def test_scores_far_apart_do_not_overflow(kernels: Kernels) -> None:
    """The largest score may come last, and be much larger."""
    case = CASES["plain"]
    query, key, value = case.inputs(b=1, s=17, t=150)
    query *= 30
    key *= np.linspace(1, 40, 150, dtype=np.float32)[:, None, None]
    expected = reference(case, [query, key, value])
    np.testing.assert_allclose(run(kernels, "plain", [query, key, value]), expected, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats(dtype: str) -> None:
    """Computed in float32, rounded once."""
    cases = {
        "shared": Case(4, 2, 16, 32, dtype=dtype),
        "masked": Case(2, 2, 5, 3, Attention(causal_mask="BottomRight"), (1, 1, "s", "t"), dtype),
    }
    programs = {name: case.program() for name, case in cases.items()}
    target = Target.parse(TARGETS[0])
    for program in programs.values():
        assert schedule_kernel(program.func, target).rule == "attention"
    kernels = Kernels(programs, target)
    for name, case in cases.items():
        for queries, keys in ((1, 70), (19, 33), (5, 0)):
            inputs = case.inputs(b=2, s=queries, t=keys)
            out = np.zeros((2, queries, inputs[0].shape[2], inputs[2].shape[3]), inputs[0].dtype)
            kernels.run(name, inputs, [out])
            exact = reference(case, inputs).astype(np.float32)
            np.testing.assert_allclose(out.astype(np.float32), exact, rtol=1e-2, atol=4e-3)


def test_what_it_leaves_to_other_rules() -> None:
    """float64, widths that are not known, masks that are no intervals of keys."""
    wide = Case(2, 2, 8, 8, dtype="float64")
    assert attention_program(wide.program().func, Target.host()) is None
    assert attention_program(Case("h", "g", "d", "e").program().func, Target.host()) is None
    q, starts = (te.placeholder(s, t, "x") for s, t in (((1, 7, 2, 4), "float32"), ((3,), "int32")))
    out = AttentionVarLen().legalize(
        TensorType((1, 7, 2, 4), "float32"), q, q, q, starts, starts, None, None
    )
    several = PrimFunc.from_te([q, starts], [out])
    assert attention_program(several.func, Target.host()) is None
