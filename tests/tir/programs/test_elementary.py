"""Calls of elementary functions: the same in operators and in users' tensor programs, whatever the loops look like."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.ir.dtype import DType
from relaxpy.op.base import OPS, Op
from relaxpy.target import Target
from relaxpy.testing.op_samples import program_of, samples
from relaxpy.tir.numerics.elementary import ELEMENTARY
from relaxpy.tir.programs.elementary import value_written_out, written_out
from relaxpy.tir.to_python import FUNCTIONS, to_python
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi
from relaxpy.tir.walk import contains, walk
from tests.backend.support import HOST
from tests.sweeps import part, quick_target, sweep

TWO = ("pow", "atan2", "fmod", "hypot", "copysign", "nextafter")
OPERATORS = {
    "pow": "power", "fmod": "mod", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "round",
    "nearbyint": "round", **{name: name for name in ELEMENTARY if name in OPS},
}  # fmt: skip
"""The operator that a function is, by its name in `T`."""
FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
EDGES = (
    *(0.0, -0.0, 0.25, -0.5, 0.5, 1.0, -1.0, 1.5, -2.0, 2.5, 3.0, 10.0, -10.0, 88.0, -88.0),
    *(1e4, 1e-3, np.inf, -np.inf, np.nan),
)


def in_t(name: str, dtype: str, calling: str | None = None) -> str:
    """A module that applies the function of `T` to every element, and the operator `calling` to all."""
    taken = ["x", "y"] if name in TWO else ["x"]
    buffers = ", ".join(f'{x}: T.Buffer(("n",), "{dtype}")' for x in taken)
    tensors = ", ".join(f'{x}: R.Tensor(("n",), "{dtype}")' for x in taken)
    used = ", ".join(f"{x}[v]" for x in taken)
    whole = f"R.{calling}({', '.join(taken)})" if calling else "x"
    return f"""
@I.ir_module
class Module:
    @T.prim_func
    def applied({buffers}, out: T.Buffer(("n",), "{dtype}")):
        n = T.int64()
        for i in range(n):
            with T.sblock("out"):
                v = T.axis.spatial(n, i)
                out[v] = {spelled(name, used, dtype)}

    @R.function
    def main({tensors}):
        n = T.int64()
        out = R.call_tir(Module.applied, ({", ".join(taken)},), out_ty=R.Tensor((n,), "{dtype}"))
        whole = {whole}
        return out, whole
"""


def spelled(name: str, used: str, dtype: str) -> str:
    """TVM's function `pow` refuses bfloat16 and float8, though the intrinsic knows them."""
    if name == "pow" and dtype.startswith(("bfloat16", "float8")):
        x, y = used.split(", ")
        wide = f'T.pow(T.Cast("float32", {x}), T.Cast("float32", {y}))'
        return f'T.Cast("{dtype}", {wide})'
    if name == "ldexp":
        return f'T.ldexp({used}, T.Cast("int32", T.min(T.max({used}, T.Cast("{dtype}", -9.0)), T.Cast("{dtype}", 9.0))))'
    return f"T.{name}({used})"


def arguments(name: str, dtype: str) -> list[np.ndarray]:
    x = np.array(EDGES).astype(DType(dtype).numpy)
    if name not in TWO:
        return [x]
    pairs = np.meshgrid(x.astype(np.float64), x.astype(np.float64))
    return [p.ravel().astype(x.dtype) for p in pairs]


def run(source: str, *xs: np.ndarray, target: Target = HOST) -> list[np.ndarray]:
    exe = relaxpy.build(relaxpy.parse(source), target=target)
    return [found.numpy() for found in relaxpy.VirtualMachine(exe)["main"](*xs)]


def bits(x: np.ndarray) -> np.ndarray:
    """The bits; of every NaN the same."""
    words = x.view(f"uint{8 * x.dtype.itemsize}").copy()
    words[np.isnan(x.astype(np.float64))] = 0x7F
    return words


def target_of(dtype: str) -> Target:
    """Narrow floats are computed in float32, which LLVM has optimised once: quickly, unless the sweep is in full."""
    return HOST if dtype in ("float64", "float32") else quick_target()


@sweep
@pytest.mark.parametrize(
    ("name", "dtype"), part([*itertools.product(sorted(OPERATORS), FLOATS)], 11)
)
def test_functions_of_t_are_the_operators(name: str, dtype: str) -> None:
    """The same bits at the edges."""
    source, xs = in_t(name, dtype, OPERATORS[name]), arguments(name, dtype)
    ours, operator = run(source, *xs, target=target_of(dtype))
    np.testing.assert_array_equal(bits(ours), bits(operator))


@sweep
@pytest.mark.parametrize("dtype", part(["float32", "float16", "bfloat16", "float64"], 2))
@pytest.mark.parametrize("name", sorted({*ELEMENTARY} - {*OPERATORS}))
def test_other_functions_of_t(name: str, dtype: str) -> None:
    """As numpy has them, of every dtype."""
    module, xs = in_t(name, dtype), arguments(name, dtype)
    if name == "ldexp":
        xs = [x[np.isfinite(x.astype(np.float64))] for x in xs]
    found, _ = run(module, *xs, target=target_of(dtype))
    expected = np.empty_like(found)
    with np.errstate(all="ignore"):
        to_python(relaxpy.parse(module)["applied"].func)(*xs, expected)
    if name in ("copysign", "nextafter", "ldexp"):
        # numpy's nextafter of two zeros is the first for some dtypes, the second for others
        zeros = (found == 0) & (expected == 0) if name == "nextafter" else np.zeros(1, bool)
        np.testing.assert_array_equal(bits(found) * ~zeros, bits(expected) * ~zeros)
        return
    wide, tolerance = np.float64, {"float64": 1e-12, "float32": 1e-5}.get(dtype, 1e-2)
    limit = float(DType(dtype).limits[1]) / 2
    got, want = found.astype(wide), expected.astype(wide)
    inside = ~(np.abs(want) > limit)
    np.testing.assert_array_equal(got[np.isinf(want)], want[np.isinf(want)])
    np.testing.assert_allclose(got[inside], want[inside], rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("name", sorted(ELEMENTARY))
def test_writing_out_twice_is_once(name: str) -> None:
    for dtype in ("float64", "float32", "bfloat16"):
        x = tirx.Var("x", dtype)
        args = [x, tirx.Var("e", "int32")] if name == "ldexp" else [x] * (1 + (name in TWO))
        call = tirx.call_intrin(dtype, f"tirx.{name}", *args)
        once = value_written_out(call)
        again = value_written_out(once)
        assert tvm_ffi.structural_equal(once, again, map_free_vars=True)


def test_functions_of_integers_are_left() -> None:
    """They are an error of the code generator's."""
    call = tirx.call_intrin("int32", "tirx.tanh", tirx.Var("x", "int32"))
    assert value_written_out(call).same_as(call)


def test_a_program_without_calls_is_left() -> None:
    program = relaxpy.parse(in_t("abs", "float32"))["applied"].func
    assert written_out(program).same_as(program)


def test_all_can_be_interpreted() -> None:
    assert set(ELEMENTARY) <= set(FUNCTIONS)


@pytest.mark.parametrize("name", ["exp", "tanh", "atan2", "pow", "sin"])
def test_no_call_reaches_the_rules_loops(name: str) -> None:
    program = relaxpy.parse(in_t(name, "float32"))["applied"].func
    assert contains(program.body, tvm.ir.Call, lambda call: call.op.name == f"tirx.{name}")
    scheduled = schedule_kernel(program, HOST).parallel
    assert not contains(scheduled.body, tvm.ir.Call, lambda call: call.op.name == f"tirx.{name}")


LOOPS: dict[str, str] = {
    "a loop that is vectorised": """
        for i in T.vectorized(8):
            out[i] = T.{name}(x[i])""",
    "vectors": """
        for i in range(2):
            out[T.Ramp(i * 4, 1, 4)] = T.{name}(x[T.Ramp(i * 4, 1, 4)])""",
    "a parallel loop": """
        for i in T.parallel(8):
            out[i] = T.{name}(x[i])""",
    "the value of a name": """
        for i in range(8):
            v: T.let = T.{name}(x[i])
            out[i] = T.if_then_else(v == v, v, v)""",
}
"""Loops that their author arranged."""


@sweep(3)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", ["exp", "tan", "log1p"])
@pytest.mark.parametrize("loops", LOOPS)
def test_loops_of_the_authors(loops: str, name: str, dtype: str) -> None:
    source = f"""
@I.ir_module
class Module:
    @T.prim_func
    def applied(x: T.Buffer((8,), "{dtype}"), out: T.Buffer((8,), "{dtype}")):
        T.func_attr({{"tirx.is_scheduled": True}}){LOOPS[loops].format(name=name)}

    @R.function
    def main(x: R.Tensor((8,), "{dtype}")):
        out = R.call_tir(Module.applied, (x,), out_ty=R.Tensor((8,), "{dtype}"))
        whole = R.{"exp" if name == "log1p" else name}(x)
        return out, whole
"""
    x = np.linspace(-0.5, 3.0, 8).astype(DType(dtype).numpy)
    ours, operator = run(source, x)
    if name == "log1p":
        tolerance = 1e-6 if dtype in ("float32", "float64") else 1e-2
        np.testing.assert_allclose(
            ours.astype(np.float64), np.log1p(x.astype(np.float64)), rtol=tolerance
        )
    else:
        np.testing.assert_array_equal(bits(ours), bits(operator))


def test_functions_in_indices() -> None:
    """Checked before the program runs, by the same functions."""
    source = """
@I.ir_module
class Module:
    @T.prim_func
    def looked_up(x: T.Buffer(("n",), "float32"), at: T.Buffer((5,), "float32"), out: T.Buffer((5,), "float32")):
        n = T.int64()
        for i in range(5):
            with T.sblock("out"):
                v = T.axis.spatial(5, i)
                out[v] = x[T.Cast("int64", T.exp(at[v]))]

    @R.function
    def main(x: R.Tensor(("n",), "float32"), at: R.Tensor((5,), "float32")):
        out = R.call_tir(Module.looked_up, (x, at), out_ty=R.Tensor((5,), "float32"))
        return out, out
"""
    x, at = np.arange(9, dtype=np.float32), np.array([0, 1, 2, -3, 0.5], np.float32)
    found, _ = run(source, x, at)
    np.testing.assert_array_equal(found, np.exp(at).astype(np.int64).astype(np.float32))
    with pytest.raises(relaxpy.RelaxError, match="looked_up"):
        run(source, x[:7], at)


def named(name: str) -> Callable[[Any], bool]:
    return lambda call: str(getattr(call.op, "name", "")).endswith(name)


@pytest.mark.parametrize(
    "name", sorted(n for n, c in OPS.items() if issubclass(c, Op) and c.legalize is not None)
)
def test_programs_of_operators_call_no_c_function(name: str) -> None:
    """They are calls of `T`, which every backend has in its own way."""
    first = next((s for s in samples(name) if not s.code), None)
    if first is not None:
        program, _, _ = program_of(first, True)
        assert not contains(program.func.body, tvm.ir.Call, named("call_pure_extern"))


def test_fewer_digits_where_the_result_is_rounded_and_factors_only() -> None:
    """An error relative to a factor is one relative to the product; of a difference it could be all."""
    x, y = tirx.Var("x", "float32"), tirx.Var("y", "float32")

    def length(value: Any) -> int:
        nodes: list[Any] = []
        walk(value_written_out(value), (tvm.ir.Expr, nodes.append))
        return len(nodes)

    def saved(value: Any) -> int:
        return length(value) + 1 - length(value.astype("bfloat16"))

    assert saved(tirx.exp(x)) > 0
    assert saved(y * tirx.exp(x)) == saved(tirx.exp(x) / y) == saved(tirx.exp(x))
    assert saved(tirx.exp(x) - y) == saved(tirx.exp(tirx.exp(x)) - y) == 0
    assert length(tirx.exp(x).astype("int32")) == length(tirx.exp(x)) + 1
