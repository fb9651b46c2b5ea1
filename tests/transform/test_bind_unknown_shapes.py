"""BindUnknownShapes: every tensor of known rank gets dimensions."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import well_formed
from relaxpy.errors import PassError, RuntimeCheckError
from relaxpy.ir import Function, IRModule, MatchCast, TensorType
from relaxpy.ir.structural import assert_structural_equal
from relaxpy.ir.visitor import free_vars
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.transform import BindUnknownShapes


def run(text: str) -> Function:
    mod: IRModule = BindUnknownShapes()(relaxpy.parse(text))
    function = mod["main"]
    assert isinstance(function, Function)
    return function


def test_example() -> None:
    check_example(BindUnknownShapes())


def test_parameter_of_known_rank() -> None:
    function = run("""
@R.function
def main(x: R.Tensor(dtype="float32", ndim=2)) -> R.Tensor(dtype="float32", ndim=2):
    y = R.exp(x)
    return y
""")
    first, second = function.body.bindings
    assert isinstance(first, MatchCast)
    assert isinstance(second.var.annotation, TensorType)
    assert second.var.annotation.dims is not None


def test_a_broadcast_by_cases() -> None:
    function = run("""
@R.function
def main(x: R.Tensor(("n",), dtype="float32"), y: R.Tensor(("m",), dtype="float32")) -> R.Tensor(dtype="float32", ndim=1):
    z = R.add(x, y)
    return z
""")
    _, cast = function.body.bindings
    assert isinstance(cast, MatchCast)
    assert isinstance(cast.annotation, TensorType)
    assert cast.annotation.dims is not None


def test_an_output_of_a_dataflow_block_stays_one() -> None:
    mod = BindUnknownShapes()(
        relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(dtype="float32", ndim=1):
    with R.dataflow():
        y = R.unique(x)
        R.output(y)
    return y
""")
    )
    assert well_formed(mod) == []


SHAPE_VARIABLES = {
    "a parameter": "s: R.Shape(ndim=2), x: R.Tensor(s, 'float32')): return x",
    "the result": "s: R.Shape(ndim=2), x: R.Tensor('float32')) -> R.Tensor(s, 'float32'): return x",
    "a match_cast": "s: R.Shape(ndim=2), x: R.Tensor('float32')):\n"
    "    y = R.match_cast(x, R.Tensor(s, 'float32'))\n"
    "    return y",
    "a field": "s: R.Shape(ndim=2), x: R.Tensor('float32')):\n"
    "    y = R.match_cast((x, s), R.Tuple(R.Tensor(s), R.Shape(ndim=2)))\n"
    "    return y[0]",
}


@pytest.mark.parametrize("text", SHAPE_VARIABLES.values(), ids=SHAPE_VARIABLES)
def test_a_tensor_has_the_shape_that_a_variable_holds(text: str) -> None:
    mod = relaxpy.parse(f"@R.function\ndef main({text}\n")
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    right, wrong = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(vm["main"]((2, 3), right).numpy(), right)
    messages: list[str] = []
    for run_main in (vm["main"], lambda *args: interpret(mod, "main", *args)):
        with pytest.raises(RuntimeCheckError, match=r"\(s_0\) must be 2, got 3") as caught:
            run_main((2, 3), wrong)
        messages.append(caught.value.message)
    assert messages[0] == messages[1]


def test_a_shape_parameter_says_its_dimensions_to_callers() -> None:
    mod = relaxpy.parse("""
@I.ir_module
class Module:
    @R.function
    def same(s: R.Shape(ndim=2), x: R.Tensor(s, "float32")) -> R.Tensor(s, "float32"):
        return x
    @R.function
    def main(x: R.Tensor(("n", 4), "float32")):
        n = T.int64()
        y = Module.same(R.shape([n, 4]), x)
        return y
""")
    main = mod["main"]
    assert isinstance(main, Function)
    assert main.ret == TensorType(None, "float32", ndim=2), "a type cannot mention the callee's s"
    bound = BindUnknownShapes()(BindUnknownShapes()(mod))["main"]
    assert isinstance(bound, Function)
    call, *_ = bound.body.bindings
    assert call.var.annotation == main.params[0].annotation


def test_a_shape_of_unknown_rank() -> None:
    text = "@R.function\ndef main(s: R.Shape, x: R.Tensor(s, 'float32')): return x\n"
    with pytest.raises(PassError, match="the rank of s must be known"):
        run(text)
    with pytest.raises(RuntimeCheckError, match="it has 2 dimensions, not 1"):
        interpret(relaxpy.parse(text), "main", (2,), np.ones((2, 3), np.float32))


def test_nothing_unknown_is_the_same_module() -> None:
    """Nor is anything deduced again."""
    mod: IRModule = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 4), dtype="float32")) -> R.Tensor(("n", 4), dtype="float32"):
    y = R.exp(x)
    return y
""")
    assert BindUnknownShapes()(mod) is mod


def test_local_functions_see_the_names_around_them() -> None:
    """What a local function captures is what was named, though nothing in the function itself is unknown."""
    function = run("""
@R.function
def main(x: R.Tensor(("n",), dtype="float32")) -> R.Shape(ndim=1):
    a = R.unique(x)
    s = R.shape_of(a)

    @R.function
    def inner(c: R.Tensor((), "bool")) -> R.Tensor((), "int64"):
        t = R.size(a)
        return t

    return s
""")
    bindings = list(function.body.bindings)
    casts = {b.value: b.var for b in bindings if isinstance(b, MatchCast)}
    (local,) = (b.value for b in bindings if isinstance(b.value, Function))
    captured = free_vars(local)
    assert captured
    assert casts.keys().isdisjoint(captured)


def test_a_result_that_became_less_exact_is_cast() -> None:
    """Of a recursion with arguments in another order the result was known exactly; after the pass it is a tuple of
    tensors of new symbols. What is printed parses to an equal module all the same."""
    mod = BindUnknownShapes()(
        relaxpy.parse("""
@I.ir_module
class Module:
    @R.function
    def main(t: R.Tensor((), "int64"), a: R.Tensor(("n",), "float32"), b: R.Tensor(("n",), "float32")) -> R.Tuple(R.Tensor(("n",), "float32"), R.Tensor(("n",), "float32")):
        if t <= 0:
            z = (a, b)
        else:
            if t == 5:
                q = R.concat((a[1:99], b[:1]))
            else:
                q = R.exp(b)
            z = Module.main(t - 1, q, a)
        return z
""")
    )
    function = mod["main"]
    assert isinstance(function, Function)
    *_, last = function.body.bindings
    assert isinstance(last, MatchCast)
    assert last.annotation == function.ret
    assert_structural_equal(mod, relaxpy.parse(mod.script()))
    a, b = np.array([1, 2, 3], "float32"), np.array([4, 5, 6], "float32")
    for found, wanted in zip(interpret(mod, "main", 1, a, b), (np.exp(b), a), strict=True):
        np.testing.assert_allclose(found, wanted)
