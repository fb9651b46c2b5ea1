"""BindParams: parameters become constants."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import PassError
from relaxpy.ir import Constant, Function, IRModule
from relaxpy.testing.before_after import check_example
from relaxpy.transform import BindParams, PassContext

TWO = """
@I.ir_module
class Module:
    @R.function
    def f(x: R.Tensor(("n", 4), dtype="float32"), w: R.Tensor((4,), dtype="float32")) -> R.Tensor(("n", 4), dtype="float32"):
        y = R.add(x, w)
        return y

    @R.function
    def g(x: R.Tensor(("n", "k"), dtype="float32"), w: R.Tensor(("k",), dtype="float32")) -> R.Tensor(("n", "k"), dtype="float32"):
        y = R.multiply(x, w)
        return y
"""


def bind(params: dict[str, np.ndarray]) -> IRModule:
    return BindParams()(relaxpy.parse(TWO), PassContext(params=params))


def names(mod: IRModule, name: str) -> list[str]:
    function = mod[name]
    assert isinstance(function, Function)
    return [param.name for param in function.params]


def test_example() -> None:
    check_example(BindParams(), PassContext(params={"w": np.zeros(4, "float32")}))


def test_an_unqualified_name_binds_everywhere() -> None:
    mod = bind({"w": np.ones(4, "float32")})
    assert names(mod, "f") == names(mod, "g") == ["x"]


def test_a_qualified_name_binds_in_one_function() -> None:
    mod = bind({"f.w": np.ones(4, "float32")})
    assert names(mod, "f") == ["x"]
    assert names(mod, "g") == ["x", "w"]


def test_symbols_of_the_bound_parameter_become_numbers() -> None:
    function = bind({"g.w": np.ones(3, "float32")})["g"]
    assert isinstance(function, Function)
    assert str(function.params[0].annotation) == 'R.Tensor((n, 3), dtype="float32")'


def test_the_array_is_not_copied() -> None:
    weight = np.ones(4, "float32")
    function = bind({"f.w": weight})["f"]
    assert isinstance(function, Function)
    (binding,) = function.body.bindings
    constant = binding.value.args[1]  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(constant, Constant)
    assert np.shares_memory(constant.data, weight)


def test_unknown_name() -> None:
    with pytest.raises(PassError, match=r"no parameter 'ww' to bind[\s\S]*did you mean 'w'"):
        bind({"ww": np.ones(4, "float32")})


def test_wrong_shape_and_dtype() -> None:
    with pytest.raises(
        PassError, match=r"parameter w of f is .*\(4,\).* but its value is .*\(5,\)"
    ):
        bind({"f.w": np.ones(5, "float32")})
    with pytest.raises(PassError, match="float64"):
        bind({"f.w": np.ones(4, "float64")})


def test_a_parameter_that_is_written() -> None:
    """Its memory would be the user's array, or the executable's file."""
    mod = relaxpy.parse("""
@I.ir_module
class Module:
    @T.prim_func
    def add(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        for i in range(4):
            y[i] = y[i] + x[i]

    @R.function(pure=False)
    def main(x: R.Tensor((4,), "float32"), w: R.Tensor((4,), "float32")):
        cls = Module
        v = w
        cls.add(x, v)
        return x
""")
    values = {"x": np.ones(4, "float32")}
    assert BindParams().run(mod, PassContext(params=values)) is not mod  # it is read only
    with pytest.raises(PassError, match="main updates a parameter that is bound") as caught:
        BindParams().run(mod, PassContext(params={"w": np.ones(4, "float32")}))
    assert caught.value.span is not None


@pytest.mark.parametrize(
    ("value", "advice"),
    [(np.zeros((2, 3)), 'value.astype("float32")'), (np.zeros((3, 2), np.float32), "value.T")],
)
def test_values_that_do_not_fit_say_what_to_give(value: np.ndarray, advice: str) -> None:
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 2), "float32"), w: R.Tensor((2, 3), "float32")):
    return R.matmul(x, w)
""")
    with pytest.raises(relaxpy.RelaxError, match="but its value is") as caught:
        relaxpy.build(mod, params={"w": value})
    assert advice in str(caught.value.help)
