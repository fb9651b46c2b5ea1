"""Operators that the runtime does, from their samples through the virtual machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RuntimeCheckError
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Var
from relaxpy.ir.visitor import free_vars
from relaxpy.op.base import Sample
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.testing.op_samples import apply, reference_arrays, samples

NAMES = ("unique", "nonzero", "dynamic_strided_slice")
RIGHT = [(name, s) for name in NAMES for s in samples(name) if not s.code]


def results(value: Any) -> list[np.ndarray]:
    """What a function returned, as arrays."""
    return [v.numpy() for v in (value if isinstance(value, (tuple, list)) else (value,))]


@pytest.mark.parametrize(("name", "s"), RIGHT, ids=lambda v: v if isinstance(v, str) else "")
def test_the_machine_computes_the_reference(name: str, s: Sample) -> None:
    """With symbols, every combination of attributes: also what is left out."""
    applied = apply(s, bool(s.dims))
    params = [v for v in free_vars(applied.call) if isinstance(v, Var)]
    bb = BlockBuilder()
    with bb.function("main", params):
        bb.emit_func_output(bb.emit(applied.call))
    vm = relaxpy.VirtualMachine(relaxpy.build(bb.get(), target="llvm"))
    found = results(vm["main"](*applied.arrays))
    wanted = reference_arrays(s)
    assert [DType(f.dtype) for f in found] == [DType(w.dtype) for w in wanted]
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64), name)


def test_a_stride_of_nothing_stops_the_program() -> None:
    """It is known only when the program runs."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n",), "float32"), s: R.Tensor((1,), "int64")):
    y = R.dynamic_strided_slice(x, s, s, s)
    return y
""")
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, target="llvm"))
    with pytest.raises(RuntimeCheckError, match=r"\[0\] is 0") as caught:
        vm["main"](np.ones(3, np.float32), np.zeros(1, np.int64))
    assert caught.value.code == "shape-value"
