"""Values that a gradient recomputes instead of keeping: the same numbers from less memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.build.plan import memory_plan
from relaxpy.errors import PassError, UsageError
from relaxpy.ir.expr import Call
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import used_vars
from relaxpy.op.create import Ones
from relaxpy.testing import check_grads
from relaxpy.testing.interpret import interpret
from relaxpy.transform import Checkpoint, EliminateCommonSubexpr, Gradient

RNG = np.random.default_rng(0)


def layers(
    count: int, marks: bool = True, dtype: str = "float64", width: int = 8, shared: bool = True
) -> IRModule:
    """Layers with a residual path each, which are stages."""
    start, end = ("R.grad.start_checkpoint", "R.grad.end_checkpoint") if marks else ("", "")
    names = [("w", "v") if shared else (f"w{i}", f"v{i}") for i in range(count)]
    params = ", ".join(
        f'{w}: R.Tensor(({width}, {2 * width}), "{dtype}"), {v}: R.Tensor(({2 * width}, {width}), "{dtype}")'
        for w, v in dict.fromkeys(names)
    )
    lines = "\n".join(
        f"""        s{i} = {start}(h{i})
        a{i} = R.nn.gelu(R.matmul(s{i}, {w}))
        b{i} = R.tanh(R.matmul(a{i}, {v}))
        h{i + 1} = {end}(R.add(b{i}, s{i}))"""
        for i, (w, v) in enumerate(names)
    )
    return relaxpy.parse(f"""
@R.function
def main(h0: R.Tensor(("n", {width}), "{dtype}"), {params}) -> R.Tensor((), "{dtype}"):
    with R.dataflow():
{lines}
        out = R.mean(h{count})
        R.output(out)
    return out
""")


def test_memory_is_that_of_one_layer() -> None:
    """The peak of 12 layers, from the plan."""
    peaks: list[int] = []
    for marks in (False, True):
        mod = Gradient()(layers(12, marks, "float32", 64, shared=False))
        own = mod.with_functions({"main": mod["main_value_and_grad"]})
        peaks.append(memory_plan(own, sizes={"n": 2048})["main"].peak)
    assert peaks[1] < 0.5 * peaks[0], peaks


def weights(rows: int = 3, width: int = 8) -> list[np.ndarray]:
    return [
        RNG.standard_normal((rows, width)),
        RNG.standard_normal((width, 2 * width)) * 0.3,
        RNG.standard_normal((2 * width, width)) * 0.3,
    ]


def kept(mod: IRModule, function: str) -> set[str]:
    """The forward values that the backward pass reads: all uses behind its seed."""
    bindings = list(mod.graph_functions[function].body.bindings)
    names = [b.var.name for b in bindings]
    seed = next(
        i
        for i, b in enumerate(bindings)
        if isinstance(b.value, Call) and isinstance(b.value.op, Ones)
    )
    forward = set(names[:seed])
    return {v.name for b in bindings[seed:-1] for v in used_vars(b.value)} & forward


def test_stages_are_recomputed() -> None:
    """The backward pass reads what enters a stage, and nothing in it; equal to before, also in both orders."""
    mod = layers(3)
    new = EliminateCommonSubexpr()(Gradient()(mod))
    check_well_formed(new)
    assert kept(new, "main_value_and_grad") <= {"h1", "h2", "s0", "s1", "s2"}
    args = weights()
    want: Any = interpret(Gradient()(layers(3, marks=False)), "main_value_and_grad", *args)
    got: Any = interpret(new, "main_value_and_grad", *args)
    for a, b in zip((got[0], *got[1]), (want[0], *want[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13)
    check_grads(layers(1), *args, order=1)


CONTROL = """
@I.ir_module
class M:
    @R.function
    def main(x: R.Tensor(("n",), "float64"), c: R.Tensor((), "bool"), k: R.Tensor((), "int64")) -> R.Tensor((), "float64"):
        cls = M
        s = R.grad.start_checkpoint(x)
        y = R.exp(s)
        if c:
            z = R.multiply(R.sin(y), s)
        else:
            z = R.square(y)
        parts = (z, R.tanh(z))
        m = R.match_cast(parts[1], R.Tensor(("q",), "float64"))
        e = R.grad.end_checkpoint(m)
        f = cls.loop(R.grad.start_checkpoint(e), k)
        return R.sum(R.multiply(R.grad.end_checkpoint(f), x))

    @R.function(private=True)
    def loop(x: R.Tensor(("q",), "float64"), k: R.Tensor((), "int64")) -> R.Tensor(("q",), "float64"):
        cls = M
        if R.greater(k, R.const(0, "int64")):
            r = cls.loop(R.sin(x), R.subtract(k, R.const(1, "int64")))
        else:
            r = x
        return r
"""


@pytest.mark.parametrize("chosen", [False, True])
def test_branches_loops_and_tuples_are_recomputed(chosen: bool) -> None:
    mod = relaxpy.parse(CONTROL)
    check_well_formed(Gradient()(mod))
    check_grads(mod, np.array([0.3, -0.5]), np.array(chosen), np.array(2))


def test_a_function_is_a_stage() -> None:
    """With the results of products kept, it recomputes no product."""
    mod = layers(2, marks=False)
    args = weights()
    want: Any = interpret(Gradient()(mod), "main_value_and_grad", *args)
    counts: dict[tuple[str, ...], int] = {}
    for policy in ((), ("matmul",)):
        marked = Checkpoint("main", policy)(mod)
        check_well_formed(marked)
        new = Gradient()(marked)
        got: Any = interpret(new, "main_value_and_grad", *args)
        for a, b in zip((got[0], *got[1]), (want[0], *want[1]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-13)
        counts[policy] = new.graph_functions["main_value_and_grad"].script().count("R.matmul(")
    plain = Gradient()(mod).graph_functions["main_value_and_grad"].script().count("R.matmul(")
    assert counts == {(): plain + 4, ("matmul",): plain}


PAIR = """
@R.function
def main(p: R.Tuple(R.Tensor((3,), "float64"), R.Tensor((2,), "int64")), x: R.Tensor((3,), "float64")):
    y = R.multiply(R.exp(p[0]), x)
    return (R.sum(y), (y, p[1]))
"""


def test_tuples_have_marks_by_field() -> None:
    mod = relaxpy.parse(PAIR)
    marked = Checkpoint()(mod)
    check_well_formed(marked)
    check_grads(marked, (np.arange(3.0), np.arange(2)), np.arange(3.0) + 0.5)


def test_relaxpy_checkpoint() -> None:
    f: Any = layers(1, marks=False)["main"]
    args = weights()
    marked: Any = relaxpy.checkpoint(f, policy=("matmul",))
    want: Any = interpret(Gradient(kind="grad", argnums=0)(layers(1)), "main_grad", *args)
    np.testing.assert_allclose(relaxpy.grad(marked)(*args).numpy(), want, rtol=1e-12)
    assert relaxpy.checkpoint(layers(1).main).name == "main"


def test_wrong_checkpoints_are_refused() -> None:
    mod = layers(1)
    with pytest.raises(PassError, match="none called 'dots'") as caught:
        relaxpy.checkpoint(mod.main, policy=("dots",))
    assert caught.value.span is not None
    whole = relaxpy.parse(
        '@R.function\ndef main(x: R.Tensor((3,), "int32")):\n    return R.add(x, x)\n'
    )
    with pytest.raises(PassError, match="no parameter is a tensor of floats"):
        Checkpoint()(whole)
    with pytest.raises(UsageError, match=r"relaxpy\.checkpoint takes a function, got a int"):
        relaxpy.checkpoint(3)  # type: ignore[type-var]
