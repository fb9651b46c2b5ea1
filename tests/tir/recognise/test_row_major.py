"""Programs that only reshape, told by their loops."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.ir.module import IRModule
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise.row_major import reshaped
from relaxpy.transform import FuseOps, FuseTensorIR, LegalizeOps, Normalize, Sequential

STEPS = Sequential((Normalize(), LegalizeOps(), FuseOps(), FuseTensorIR()))


def program(value: str) -> PrimFunc:
    """The one tensor program that an expression of x (n, 12) and y (n, m) comes to."""
    mod: IRModule = relaxpy.parse(
        f"""
@R.function
def main(x: R.Tensor(("n", 12), "float32"), y: R.Tensor(("n", "m"), "float32")):
    n, m = T.int64(), T.int64()
    with R.dataflow():
        z = {value}
        R.output(z)
    return z
"""
    )
    (found,) = STEPS(mod).prim_funcs.values()
    assert isinstance(found, PrimFunc)
    return found


@pytest.mark.parametrize(
    "value",
    [
        "R.flatten(x)",
        "R.flatten(y)",
        "R.reshape(x, (n * 3, 4))",
        "R.reshape(x, (n, 2, 6, 1))",
        "R.reshape(y, (m, n))",
        "R.reshape(y, (n, 1, m, 1))",
        "R.expand_dims(y, 1)",
        "R.squeeze(R.expand_dims(x, 0), 0)",
        "R.reshape(R.flatten(x), (n, 3, 4))",
    ],
)
def test_reshapes(value: str) -> None:
    assert reshaped(program(value)) == (0, 1)


@pytest.mark.parametrize(
    "value",
    [
        "R.permute_dims(y)",
        "R.nn.relu(x)",
        'R.astype(x, "float16")',
        "R.strided_slice(x, axes=[1], begin=[0], end=[6])",
        "R.broadcast_to(R.expand_dims(y, 0), (2, n, m))",
        "R.flip(x, axis=0)",
        "R.concat((x, x), axis=0)",
        "R.sum(x, axis=1)",
        "R.add(R.flatten(x), R.const(0.0))",
        "R.zeros((n, 12), 'float32')",
    ],
)
def test_others(value: str) -> None:
    assert reshaped(program(value)) is None


def test_a_program_of_the_users_own() -> None:
    """Written backwards, with a divisor that is no size: only what is proved counts."""
    text = """
@I.ir_module
class Module:
    @T.prim_func
    def f(y: T.Buffer((T.int64(12),), "float32"), x: T.Buffer((T.int64(3), T.int64(4)), "float32")):
        for i in range(T.int64(12)):
            with T.sblock("y"):
                vi = T.axis.spatial(T.int64(12), i)
                y[vi] = x[DIV, vi % T.int64(4)]
"""
    for divided, want in (("vi // T.int64(4)", (1, 0)), ("vi // T.int64(8)", None)):
        found = relaxpy.parse(text.replace("DIV", divided))["f"]
        assert isinstance(found, PrimFunc)
        assert reshaped(found) == want
