"""The arithmetic of elementary functions, as a formula of its arguments."""

from __future__ import annotations

import pytest

from relaxpy.tir.numerics.elementary import ELEMENTARY, applied, function_of, length_of
from relaxpy.tir.programs.elementary import value_written_out
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.walk import walk

TWO = ("pow", "atan2", "fmod", "hypot", "copysign", "nextafter")


def arguments(name: str, dtype: str) -> list[tvm.ir.Expr]:
    """Elements of buffers, one buffer for each argument."""
    dtypes = [dtype, "int32"] if name == "ldexp" else [dtype] * (1 + (name in TWO))
    zero = tirx.IntImm("int64", 0)
    return [tirx.BufferLoad(tirx.decl_buffer([4], kind, "x"), [zero]) for kind in dtypes]


def nodes(value: tvm.ir.Expr) -> int:
    found: list[object] = []
    walk(value, (tvm.ir.Expr, found.append))
    return len(found)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", sorted({*ELEMENTARY} - {"nextafter"}))
def test_arguments_are_computed_once(name: str, dtype: str) -> None:
    """A formula that repeats an argument would double what is computed at every level of nested calls."""
    if dtype == "float64" and name == "sigmoid":
        return  # TVM's, which names nothing
    loads: list[tvm.ir.TensorLoad] = []
    walk(applied(name, arguments(name, dtype)), (tvm.ir.TensorLoad, loads.append))
    assert len(loads) == len(arguments(name, dtype))


@pytest.mark.parametrize("name", sorted(ELEMENTARY))
def test_length_is_that_of_the_formula(name: str) -> None:
    args = arguments(name, "float32")
    call = tirx.call_intrin("float32", f"tirx.{name}", *args)
    assert length_of(call) + sum(map(nodes, args)) == nodes(value_written_out(call))


def test_length_of_nested_calls_adds_up() -> None:
    (x,) = arguments("exp", "float32")
    once = length_of(tirx.exp(x))
    nested = value_written_out(tirx.exp(tirx.exp(tirx.exp(x))))
    assert nodes(nested) == 3 * once + nodes(x)


def test_variables_are_new_in_each_formula() -> None:
    (x,) = arguments("exp", "float32")
    bound: list[tvm.ir.Var] = []
    walk(value_written_out(tirx.exp(tirx.exp(x))), (tirx.Let, lambda node: bound.append(node.var)))
    assert len(bound) == len(set(bound)) > 2


def test_other_calls() -> None:
    (x,) = arguments("exp", "float32")
    assert function_of(tirx.isnan(x)) is None
    assert function_of(tirx.call_intrin("int32", "tirx.exp", tirx.Var("i", "int32"))) is None
    assert length_of(tirx.isnan(x)) == 1
