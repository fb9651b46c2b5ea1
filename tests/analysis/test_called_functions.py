"""Which functions of a module others mention."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.analysis.called_functions import with_callees
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.errors import UsageError

MODULE = relaxpy.parse("""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def copy(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("copy"):
                vi = T.axis.spatial(n, i)
                y[vi] = x[vi]

    @R.function(private=True)
    def inner(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        cls = Module
        y = R.call_tir(cls.copy, (x,), out_ty=R.Tensor((n,), dtype="float32"))
        return y

    @R.function
    def other(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        return R.exp(x)

    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        cls = Module
        f = cls.inner
        return f(x)

    @R.function
    def again(n: R.Prim("int64")) -> R.Prim("int64"):
        cls = Module
        return cls.again(n)
""")


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("copy", ["copy"]),
        ("other", ["other"]),
        ("main", ["copy", "inner", "main"]),
        ("again", ["again"]),
    ],
)
def test_a_function_with_what_it_calls(name: str, want: list[str]) -> None:
    """All that it needs, used as values too, in the module's order; what is left is well formed."""
    cut = with_callees(MODULE, name)
    assert list(cut.functions) == want
    check_well_formed(cut)


def test_a_name_that_there_is_not() -> None:
    with pytest.raises(UsageError) as error:
        with_callees(MODULE, "iner")
    assert error.value.code == "unknown-function"
    assert error.value.help == "did you mean 'inner'?"
