"""`Let`s become statements: compiled in time that grows with their number, and computed only where they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest

from relaxpy.backend.cpu.compile import compile_object
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.tir.lowering.unnest import unnest_new_lets, unnested
from relaxpy.tir.numerics.floats import f32, let
from relaxpy.tir.programs.loops import Program
from relaxpy.tir.tvm import te, tirx, tvm, tvm_ffi
from tests.backend.support import HOST, as_tensor, compute, load, n, tensor

DEPTH = 30
SECONDS = 5

Step = Callable[[Any], Any]


def square(x: Any) -> Any:
    """Of numbers up to 1 again one: both uses of its operand count."""
    return x * x * f32(0.5) - f32(0.25)


def in_arms(x: Any) -> Any:
    arm = let("w", x, square)
    return tirx.if_then_else(x < f32(0.1), arm, let("u", x, lambda u: square(u) * u))


def in_condition(x: Any) -> Any:
    return tirx.if_then_else(let("w", x, square) < f32(-0.2), x, square(x))


NESTED: dict[str, Step] = {
    "a value in a value": lambda x: let("v", x, square),
    "two values in a value": lambda x: let("v", x, lambda v: let("w", square(v), square)),
    "values in arms": lambda x: let("v", x, in_arms),
    "values in a condition": lambda x: let("v", x, in_condition),
    "a truth": lambda x: let("b", x < f32(0.1), lambda b: tirx.Select(b, x + f32(0.1), x)),
}
"""Steps; of the last the operand stands in three places, so that few are taken."""


def expected(name: str, x: np.ndarray, depth: int) -> np.ndarray:
    def once(v: np.ndarray) -> np.ndarray:
        return v * v * np.float32(0.5) - np.float32(0.25)

    for _ in range(depth):
        match name:
            case "a value in a value":
                x = once(x)
            case "two values in a value":
                x = once(once(x))
            case "values in arms":
                x = np.where(x < np.float32(0.1), once(x), once(x) * x)
            case "values in a condition":
                x = np.where(once(x) < np.float32(-0.2), x, once(x))
            case _:
                x = np.where(x < np.float32(0.1), x + np.float32(0.1), x)
    return x


@pytest.mark.parametrize("scheduled", [True, False])
@pytest.mark.parametrize("name", NESTED)
def test_nested_values(name: str, scheduled: bool, tmp_path: Path) -> None:
    """They take seconds where they took for ever, and the numbers are right."""
    depth = 5 if name == "a truth" else DEPTH

    def value(i: Any) -> Any:
        result = x[i].asobject()
        for _ in range(depth):
            result = NESTED[name](result)
        return result

    x = tensor(n)
    func = te.create_prim_func([x, compute((n,), value)])
    func = schedule_kernel(func, HOST).parallel if scheduled else func
    start = process_time()
    kernel = load(tmp_path, {"f": func})["f"]
    assert process_time() - start < SECONDS
    numbers = np.linspace(-1, 1, 37, dtype=np.float32)
    out = np.zeros_like(numbers)
    kernel(as_tensor(numbers), as_tensor(out))
    np.testing.assert_allclose(out, expected(name, numbers, depth), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_statements_that_name_values(dtype: str) -> None:
    """Those of an author: each name stands several times in the value of the next."""
    program = Program()
    x, y = (tirx.decl_buffer([16], dtype, name, layout=None) for name in "xy")
    with program.loop("i", 16) as i:
        value = tirx.BufferLoad(x, [i])
        for k in range(DEPTH):
            value = program.let(f"v{k}", value * value + value)
        program.add(tirx.BufferStore(y, value, [i]))
    start = process_time()
    compile_object({"f": tirx.PrimFunc([x, y], program.body())}, HOST)
    assert process_time() - start < SECONDS


def rewritten(value: Callable[[Any], Any]) -> Any:
    """The statements of a function that stores this value of an element."""
    x, y = (tirx.decl_buffer([16], "float32", name, layout=None) for name in "xy")
    i = tirx.Var("i", "int64")
    store = tirx.BufferStore(y, value(tirx.BufferLoad(x, [i])), [i])
    return unnested(tirx.PrimFunc([x, y, i], store)).body


def long(x: Any) -> Any:
    """More than what a name keeps."""
    return let("v", x * x, lambda v: let("w", v * v * v * v, lambda w: w * w * w * w))


def kinds(node: Any, kind: type) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(node, (kind, lambda inner: found.append(inner)))
    return found


def test_what_is_not_chosen_is_not_computed() -> None:
    body = rewritten(lambda x: tirx.if_then_else(x < f32(0), long(x), f32(1)))
    assert not kinds(body, tirx.Let)
    (branch,) = kinds(body, tirx.IfThenElse)
    assert len(kinds(branch.then_case, tirx.AllocBuffer)) == 2
    assert len(kinds(body, tirx.AllocBuffer)) == 3


def test_a_value_in_two_places_has_two_names() -> None:
    shared = let("v", f32(1) + f32(2), lambda v: v * v)
    body = rewritten(lambda x: x * shared + tirx.if_then_else(x < f32(0), shared, x))
    (branch,) = kinds(body, tirx.IfThenElse)
    assert len(kinds(branch.then_case, tirx.AllocBuffer)) == 1
    first, _, second = (alloc.buffer for alloc in kinds(body, tirx.AllocBuffer))
    assert not first.same_as(second)


def test_beside_what_changes_something_they_stay() -> None:
    """The value is read after the call, as it was."""
    changing = tirx.call_extern("float32", "changes_x")
    assert kinds(rewritten(lambda x: changing + long(x)), tirx.Let)
    x = tirx.decl_buffer([16], "float32", "x", layout=None)
    outer = tirx.Evaluate(tirx.call_extern("float32", "f", long(tirx.BufferLoad(x, [0]))))
    assert not kinds(unnested(tirx.PrimFunc([x], outer)).body, tirx.Let)


def test_a_condition_that_is_computed_again_keeps_its_values() -> None:
    x = tirx.decl_buffer([16], "float32", "x", layout=None)
    condition = long(tirx.BufferLoad(x, [0])) < f32(1)
    loop = tirx.While(condition, tirx.BufferStore(x, f32(2), [0]))
    body = unnested(tirx.PrimFunc([x], loop)).body
    assert isinstance(body, tirx.While)
    assert kinds(body.condition, tirx.Let)


def test_short_indices_keep_their_values() -> None:
    """By these TVM knows how memory is aligned."""
    x, y = (tirx.decl_buffer([16], "float32", name, layout=None) for name in "xy")
    program = Program()
    with program.loop("i", 4) as i:
        start = program.let("start", i * 4)
        program.add(tirx.BufferStore(y, tirx.BufferLoad(x, [start]), [start]))
    func = tirx.PrimFunc([x, y], program.body())
    assert tvm_ffi.structural_equal(unnested(func), func)


def test_new_ones() -> None:
    """A function without `Let`s is not looked at again."""
    x = tirx.decl_buffer([4], "float32", "x")
    values = {"plain": x[0] * x[0], "nested": let("w", x[0], square)}
    mod = tvm.IRModule(
        {
            name: tirx.PrimFunc([x], tirx.BufferStore(x, value, [tirx.const(0, "int64")]))
            for name, value in values.items()
        }
    )
    done = unnest_new_lets(mod)
    assert done["plain"].same_as(mod["plain"])
    assert not done["nested"].same_as(mod["nested"])
