"""Loops by the builder."""

from __future__ import annotations

from itertools import takewhile

import numpy as np
import pytest

import relaxpy
from relaxpy import op
from relaxpy.analysis.well_formed import well_formed
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import DeduceError
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import SymVar, dim_op
from relaxpy.ir.expr import Constant, Tuple, Var
from relaxpy.ir.structural import assert_structural_equal
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.op.loop import build_loop, while_loop
from relaxpy.testing.interpret import interpret
from relaxpy.transform.base import PassContext
from tests.sweeps import sweep

ONE = Constant(1, "float32")


def test_while_loop() -> None:
    bb = BlockBuilder()
    n = SymVar("n")
    x = Var("x", TensorType((n, 2), "float32"))
    with bb.function("main", [x]):
        i, y, rows = while_loop(
            bb,
            lambda i, y, rows: dim_op("lt", i, n.dim),
            lambda i, y, rows: (i + 2, op.add(y, ONE), op.concat([rows, rows])),
            [0, x, x],
            ["i", "y", "rows"],
        )
        bb.emit_func_output(
            Tuple((bb.emit(op.multiply(y, op.astype(op.full((), i, "int64"), "float32"))), rows))
        )
    mod = bb.get()
    assert well_formed(mod) == []
    assert_structural_equal(mod, relaxpy.parse(mod.script()))
    main = relaxpy.VirtualMachine(relaxpy.build(mod))["main"]
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    y, rows = main(x)
    np.testing.assert_array_equal(y.numpy(), (x + 2) * 4)
    np.testing.assert_array_equal(rows.numpy(), np.concatenate([x] * 4))


def test_a_loop_with_one_variable_and_no_step() -> None:
    bb = BlockBuilder()
    x = Var("x", TensorType((3,), "float32"))
    with bb.function("main", [x]):
        (y,) = while_loop(bb, lambda v: op.less(op.sum(v), ONE), lambda v: op.add(v, v), [x])
        bb.emit_func_output(y)
    mod = bb.get()
    assert well_formed(mod) == []
    main = relaxpy.VirtualMachine(relaxpy.build(mod))["main"]
    np.testing.assert_array_equal(
        main(np.full(3, 0.125, np.float32)).numpy(), np.full(3, 0.5, np.float32)
    )
    np.testing.assert_array_equal(main(np.ones(3, np.float32)).numpy(), np.ones(3, np.float32))


def _put(y, i, by):
    """Row i of y, replaced by another."""
    row = op.reshape(by, (1, 2))
    return op.slice_scatter(y, row, i, i + 1, 1)


def _row(y, i):
    return op.reshape(op.strided_slice(y, [0], [i], [i + 1]), (2,))


@sweep(2)
@pytest.mark.parametrize(
    ("step", "updates"),
    [
        (lambda i, y, z: (i + 1, _put(y, i, op.multiply(_row(y, i), ONE)), z), 1),
        (lambda i, y, z: (i + 1, _put(z, i, _row(y, i)), _put(y, i, _row(z, i))), 1),
        (lambda i, y, z: (i + 1, _put(y, i, _row(z, i)), op.add(z, y)), 0),
    ],
    ids=["state", "swapped, each read by the other", "read after"],
)
def test_steps_update_their_state_in_place(step, updates: int) -> None:
    """Unless they read it later. What is not the loop's own is copied once, before it."""
    bb = BlockBuilder()
    n = SymVar("n")
    x = Var("x", TensorType((n, 2), "float32"))
    with bb.function("main", [x]):
        _, y, z = while_loop(bb, lambda i, y, z: dim_op("lt", i, n.dim), step, [0, x, x])
        bb.emit_func_output(Tuple((x, y, z)))
    mod = bb.get()
    context, lowered = PassContext(target=relaxpy.Target.parse("llvm")), mod
    for phase in takewhile(lambda phase: phase.name != "memory", default_pipeline().phases):
        for each in phase.passes:
            lowered = each.run(lowered, context)
    loop = lowered["main_loop"].script()
    assert loop.count("slice_scatter_update") == updates
    assert "vm.builtin.copy" not in loop
    assert lowered["main"].script().count("vm.builtin.copy") >= updates
    main = relaxpy.VirtualMachine(relaxpy.build(mod, target="llvm -opt-level=0"))["main"]
    for rows in (1, 5):
        x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
        for got, want in zip(main(x), interpret(mod, "main", x.copy()), strict=True):
            np.testing.assert_array_equal(got.numpy(), want)
        np.testing.assert_array_equal(x, np.arange(2 * rows).reshape(rows, 2))


def test_several_ends() -> None:
    """`build_loop` leaves the branches to the caller."""
    bb = BlockBuilder()
    x = Var("x", TensorType((), "int64"))
    with bb.function("main", [x]):

        def write(loop):
            (v,) = loop.params
            with bb.seq() as small:
                small.result(loop.done([bb.emit(op.negative(v))]))
            with bb.seq() as large:
                large.result(loop.again([bb.emit(op.floor_divide(v, Constant(2, "int64")))]))
            return bb.emit_if(op.less(v, Constant(10, "int64")), small.seq, large.seq)

        bb.emit_func_output(build_loop(bb, [x], ["v"], write)[0])
    main = relaxpy.VirtualMachine(relaxpy.build(bb.get()))["main"]
    assert [int(main(np.array(v)).numpy()) for v in (3, 100, 77)] == [-3, -6, -9]


def test_a_variable_of_another_type() -> None:
    bb = BlockBuilder()
    x = Var("x", TensorType((3,), "float32"))
    with (
        pytest.raises(DeduceError, match=r"x is .*float32.* in one step of") as caught,
        bb.function("main", [x]),
    ):
        while_loop(
            bb, lambda v: op.less(op.sum(v), ONE), lambda v: op.astype(v, "int64"), [x], ["x"]
        )
    assert caught.value.code == "loop-variable"
    with (
        pytest.raises(DeduceError, match=r"begin with a tensor.*i = R.const"),
        bb.function("other", [x]),
    ):
        while_loop(bb, lambda i: dim_op("lt", i, 3), lambda i: op.full((), i, "int64"), [0], ["i"])


def test_the_result_names_what_does_not_change() -> None:
    bb = BlockBuilder()
    n, k = SymVar("n"), SymVar("k")
    x, w = Var("x", TensorType((n, 4), "float32")), Var("w", TensorType((k, 4), "float32"))
    with bb.function("main", [x, w]):
        i, y, z = while_loop(
            bb,
            lambda i, y, z: dim_op("lt", i, k.dim),
            lambda i, y, z: (i + 1, op.add(y, x), op.concat([z, w])),
            [0, x, w],
        )
        assert y.annotation == x.annotation
        assert z.annotation.dims[1] == 4
        assert z.annotation.dims[0].symbol not in (None, n, k)
        assert isinstance(i.symbol, SymVar)
        bb.emit_func_output(Tuple((y, z)))
