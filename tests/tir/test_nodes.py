"""What is read from TVM's nodes without its Python classes is what these say; a function with another body is new."""

from __future__ import annotations

from typing import Any

import pytest

from relaxpy.tir.nodes import dtype_of, items, operator_of, with_body
from relaxpy.tir.tvm import te, tirx, tvm_ffi


def program() -> Any:
    x = te.placeholder((4,), "float32", name="x")
    y = te.compute((4,), lambda i: tirx.exp(x[i]), name="y")
    return te.create_prim_func([x, y])


@pytest.mark.parametrize("dtype", ["int64", "float32", "bool", "float32x4", "bfloat16"])
def test_dtypes(dtype: str) -> None:
    var = tirx.Var("v", dtype)
    assert dtype_of(var) == dtype == dtype_of(tirx.Var("w", dtype))


def test_what_is_no_number_has_no_dtype() -> None:
    buffer, _ = program().params
    assert dtype_of(buffer) == ""


def test_operators() -> None:
    call = tirx.exp(tirx.Var("x", "float32"))
    assert operator_of(call) == call.op.name == operator_of(call)


def test_items() -> None:
    func = program()
    found = items(func.params)
    assert len(found) == 2
    assert all(one.same_as(other) for one, other in zip(found, func.params, strict=True))
    assert items(tvm_ffi.convert([])) == []


def test_bodies() -> None:
    """The first function keeps its body; everything else is the same in both, its attributes too."""
    func = program().with_attr("kept", "yes")
    before, other = func.body, tirx.Evaluate(tirx.IntImm("int32", 0))
    found = with_body(func, other)
    assert func.body.same_as(before)
    assert found.body.same_as(other)
    assert tvm_ffi.structural_equal(found, func.with_body(other))
    assert dict(found.attrs.items()) == dict(func.attrs.items())
    assert with_body(func, before) is func
