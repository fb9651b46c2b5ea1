"""PrimFunc: TVM's function behind the interface that the IR knows."""

from __future__ import annotations

from textwrap import indent

import pytest

from relaxpy.build.kernels import kernel_params
from relaxpy.ir.dim import SymVar
from relaxpy.ir.module import BufferParam, ScalarParam, TensorProgram
from relaxpy.script import parse
from relaxpy.tir import te
from relaxpy.tir.prim_func import PrimFunc, read_symbols
from relaxpy.tir.tvm import tvm, tvm_ffi


def scale(name: str = "n", factor: float = 2.0) -> PrimFunc:
    n = SymVar(name)
    x = te.placeholder((n, n.dim * 2), "float32", "x")
    return PrimFunc.from_te([x], [te.compute((n, n.dim * 2), lambda i, j: x[i, j] * factor, "out")])


def test_params() -> None:
    """Buffers with dimensions over one set of symbols, in the order of the program."""
    x, out = scale().params
    assert isinstance(x, BufferParam)
    assert isinstance(out, BufferParam)
    assert (x.name, out.name, x.dtype) == ("x", "out", "float32")
    n = x.shape[0].symbol
    assert n is not None
    assert x.shape == out.shape == (n.dim, n.dim * 2)


def test_params_are_stable() -> None:
    """Asked twice, the parameters have the same symbols."""
    func = scale()
    assert func.params[0] == func.params[0]
    assert set(read_symbols(func.func).symbols.values()) == set(func.params[0].shape[1].vars)  # type: ignore[union-attr]


def test_scalars_come_last() -> None:
    """A symbol in no buffer's shape is a scalar parameter."""
    n, k = SymVar("n"), SymVar("k")
    x = te.placeholder((n,), "int64", "x")
    func = PrimFunc.from_te([x], [te.compute((n,), lambda i: x[i] + te.dim(k))], [k])
    last = func.params[-1]
    assert isinstance(last, ScalarParam)
    assert (last.name, last.dtype) == ("k", "int64")


def test_equality_ignores_names() -> None:
    """Renamed symbols and the global symbol do not matter; numbers do."""
    assert scale("n").structural_equal(scale("m"))
    assert scale("n").structural_hash() == scale("m").structural_hash()
    named = PrimFunc(scale().func.with_attr("global_symbol", "main"))
    assert named.structural_equal(scale())
    assert named.structural_hash() == scale().structural_hash()
    assert not scale(factor=2.0).structural_equal(scale(factor=3.0))


def test_ranges_have_one_dtype() -> None:
    """te starts its axes at an int32 zero; ours are int64 like their extents."""
    ranges = []
    tvm_ffi.structural_walk(scale().func, (tvm.ir.Range, ranges.append))
    assert ranges
    assert {str(r.min.ty.dtype) for r in ranges} == {"int64"}


def test_is_a_tensor_program() -> None:
    assert isinstance(scale(), TensorProgram)
    assert "global_symbol" not in scale().attrs


def test_immutable() -> None:
    with pytest.raises(AttributeError):
        scale().func = None  # type: ignore[misc]


ACCESSES = """
@T.prim_func(private=True)
def program(
    x: T.Buffer((4, 8), "float32"), total: T.Buffer((4,), "float32"), kept: T.Buffer((4,), "float32"),
    changed: T.Buffer((4,), "float32"),
):
    for i, j in T.grid(4, 8):
        with T.sblock("total"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                total[vi] = T.float32(0)
            total[vi] = total[vi] + x[vi, vj]
    for i in range(4):
        with T.sblock("kept"):
            vi = T.axis.spatial(4, i)
            kept[vi] = x[vi, 0]
    for i in range(4):
        with T.sblock("changed"):
            vi = T.axis.spatial(4, i)
            changed[vi] = changed[vi] * T.float32(2)
"""


def test_what_is_read_and_written() -> None:
    """A sum does not look at the numbers that were there before its `init`; an update does."""
    program = parse(f"@I.ir_module\nclass M:\n{indent(ACCESSES, '    ')}").prim_funcs["program"]
    assert isinstance(program, PrimFunc)
    assert program.written == {1, 2, 3}
    assert program.read == {0, 3}
    accesses = [param.access for param in kernel_params(program)]
    assert accesses == ["read", "write", "write", "read-write"]
