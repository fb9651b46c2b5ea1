"""What a pass knows after normalisation, and the one error where it is not so."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.errors import OUR_DEFECT, PassError, Span
from relaxpy.ir.accessors import UnexpectedNode, expect, known_dims, known_dtype, tensor_of
from relaxpy.ir.annotation import ObjectType, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import Dim
from relaxpy.ir.expr import Call, Function, Var
from relaxpy.ir.known import KnownTensor
from relaxpy.ir.module import IRModule
from relaxpy.transform.base import PassContext, Sequential, _crash, module_pass  # pyright: ignore[reportPrivateUsage]

TENSOR = TensorType((3, 5), "float32")
PLACE = Span("model.py", 7, 4)


def test_what_is_expected_is_given_back() -> None:
    known, var = KnownTensor((3, 5), "float32"), Var("x", TENSOR)
    assert expect(TensorType, known) is known
    assert tensor_of(var) is TENSOR
    assert known_dims(TENSOR) == known_dims(ShapeType((3, 5))) == (Dim.of(3), Dim.of(5))
    assert known_dtype(TENSOR) == "float32"


def test_a_tensor_that_is_known_in_part() -> None:
    with pytest.raises(
        UnexpectedNode, match=r"expected a tensor of known dimensions, got TensorType"
    ):
        known_dims(TensorType(None, "float32", 2))
    with pytest.raises(UnexpectedNode, match=r"expected a tensor of known dtype, got TensorType"):
        known_dtype(TensorType((3,), None))
    with pytest.raises(UnexpectedNode, match="known dimensions, got TupleType"):
        known_dims(TupleType([TENSOR]))
    with pytest.raises(UnexpectedNode, match="known dtype, got ObjectType"):
        known_dtype(ObjectType())


def test_the_error_has_the_place_of_the_node() -> None:
    var = Var("x", ObjectType(), span=PLACE)
    with pytest.raises(
        UnexpectedNode, match=r"^expected Call, got Var x, at model.py:7:5$"
    ) as raised:
        expect(Call, var)
    assert raised.value.span is PLACE
    with pytest.raises(UnexpectedNode, match=r"expected x to be a tensor, got ObjectType .*:7:5$"):
        tensor_of(var)


def test_a_pass_that_meets_it_crashed() -> None:
    """The pipeline says which pass, where in the user's program, and that the program is not at fault."""

    @module_pass("passes")
    def passes(mod: IRModule, ctx: PassContext) -> IRModule:
        expect(Call, expect(Function, mod["main"]).params[0])
        return mod

    mod = relaxpy.parse('@R.function\ndef main(x: R.Tensor((2,), "float32")):\n    return x\n')
    with pytest.raises(PassError) as raised:
        Sequential((passes,)).run(mod, PassContext())
    assert raised.value.code == "pass-crash"
    assert "expected Call, got Var x, at" in raised.value.message
    assert raised.value.module is mod
    assert raised.value.help is not None
    assert OUR_DEFECT not in raised.value.help, "the pass is this test's"
    crash = _crash(passes, mod, UnexpectedNode("Call", mod, PLACE))
    assert crash.span is PLACE
    assert OUR_DEFECT in (crash.help or "")
