"""What the instructions do, run through a virtual machine."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime import Shape, Tensor, VirtualMachine, register_function, register_library
from relaxpy.runtime.bytecode import (
    Alloc,
    Assert,
    Call,
    CallablePattern,
    Check,
    Closure,
    Const,
    Eval,
    Heap,
    If,
    Instr,
    IntExpr,
    IntOp,
    Invoke,
    Item,
    Kernel,
    Kill,
    Library,
    MakePrim,
    MakeShape,
    MakeTuple,
    Match,
    Move,
    ObjectPattern,
    Packed,
    PrimPattern,
    Reg,
    Return,
    ShapePattern,
    TensorPattern,
    TuplePattern,
    View,
)
from relaxpy.runtime.devices.cpu.kernels import LARGE_WORK
from relaxpy.runtime.link import translate
from tests.runtime.support import ADD, ADD1, IOTA, executable, f32, floats, function, times

N = Heap(0)
VECTOR = f32(N)
BOOL = TensorPattern((), 0, "bool")


def run(*functions: Any, **fields: Any) -> Any:
    return VirtualMachine(executable(*functions, **fields))["main"]


def add1(at: int, src: int, dst: int, storage: int = -1) -> list[Instr]:
    return [Alloc(at, dst, 0, 1, "float32", storage), Kernel(at, ADD1, (Reg(src), Reg(dst)), N)]


# Integers


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (IntOp("floordiv", (IntOp("sub", (N, 9)), 4)), -2),
        (IntOp("floormod", (IntOp("sub", (N, 9)), 4)), 2),
        (IntOp("min", (N, 2)), 2),
        (IntOp("max", (N, 2)), 3),
        (IntOp("select", (IntOp("lt", (N, 5)), 10, 20)), 10),
        (IntOp("and", (IntOp("eq", (N, 3)), IntOp("ne", (N, 3)))), 0),
        (IntOp("or", (IntOp("le", (N, 3)), 0)), 1),
        (IntOp("not", (N,)), 0),
        (IntOp("mul", (Heap(3), IntOp("add", (N, 1)))), 28),
        (IntOp("mul", (Heap(3), 6)), 42),
    ],
)
def test_integer_operations(expr: IntExpr, expected: int) -> None:
    """The same whether an operand is known when linking (slot 3 is a constant 7) or at the call."""
    main = function(
        "main",
        [("x", VECTOR)],
        [Eval(0, 1, expr), MakeShape(1, 1, 1, 1), Return(1, 1)],
        heap=(0, 0, 0, 7),
    )
    assert run(main)(np.zeros(3, np.float32)) == Shape((expected,))


def test_division_by_zero_is_an_error_with_its_place() -> None:
    body = [Eval(2, 1, IntOp("floordiv", (5, N))), Return(2, 0)]
    with pytest.raises(RuntimeCheckError, match="it divides by 0") as caught:
        run(function("main", [("x", VECTOR)], body))(np.zeros(0, np.float32))
    assert caught.value.span is not None
    assert caught.value.span.line == 12


# Memory


def test_storage_grows_and_shrinks_with_the_call() -> None:
    body = [*add1(0, 0, 1, 0), *add1(1, 1, 2, 1), *add1(2, 2, 3, 0), *add1(3, 3, 4), Return(4, 4)]
    main = run(function("main", [("x", VECTOR)], body, storages=[times(0, 4)] * 2))
    for size in (3, 1000, 0, 1, 100_000, 5):
        np.testing.assert_array_equal(main(np.full(size, 2, np.float32)).numpy(), np.full(size, 6))


def test_results_of_two_calls_are_apart() -> None:
    main = run(function("main", [("x", VECTOR)], [*add1(0, 0, 1), Return(1, 1)]))
    first = main(floats(1, 2))
    second = main(floats(5, 6))
    np.testing.assert_array_equal(first.numpy(), [2, 3])
    np.testing.assert_array_equal(second.numpy(), [6, 7])


def test_a_view_shares_memory_and_changes_shape() -> None:
    body = [
        Eval(0, 1, IntOp("floordiv", (N, 2))),
        *add1(0, 0, 1),
        View(1, 2, 1, 1, 2, "float32"),
        MakeTuple(2, 3, (1, 2, 0)),
        Return(2, 3),
    ]
    main = run(function("main", [("x", VECTOR)], body, heap=(0, 0, 2, 0)))
    x = np.arange(6, dtype=np.float32)
    flat, view, same = main(x)
    np.testing.assert_array_equal(view.numpy(), (x + 1).reshape(3, 2))
    flat.numpy()[0] = 50
    assert view.numpy()[0, 0] == 50
    assert same.numpy().__array_interface__["data"] == x.__array_interface__["data"]


def test_a_view_of_storage_is_an_argument_of_kernels() -> None:
    body = [*add1(0, 0, 1, 0), View(1, 2, 1, 0, 1, "float32"), *add1(2, 2, 3), Return(3, 3)]
    main = run(function("main", [("x", VECTOR)], body, storages=[times(0, 4)]))
    np.testing.assert_array_equal(main(floats(1, 2)).numpy(), [3, 4])


def test_what_aliases_what() -> None:
    constant = np.arange(3, dtype=np.float32)
    body = [Const(0, 1, 0), MakeTuple(0, 2, (0, 1, 1, 0)), Return(0, 2)]
    main = run(function("main", [("x", VECTOR)], body), constants=(constant,))
    x = main(floats(1, 2, 3))[0]
    a, c, d, b = main(x)
    assert a is x
    assert b is x
    assert c is d
    c.numpy()[:] = 9
    np.testing.assert_array_equal(main(x)[1].numpy(), constant)
    np.testing.assert_array_equal(constant, [0, 1, 2])


def test_constants_are_arguments_of_kernels() -> None:
    body = [
        Const(0, 1, 0),
        Alloc(0, 2, 0, 1, "float32", -1),
        Kernel(0, ADD, (Reg(0), Reg(1), Reg(2)), N),
        Return(0, 2),
    ]
    main = run(function("main", [("x", VECTOR)], body), constants=(floats(10, 20),))
    np.testing.assert_array_equal(main(floats(1, 2)).numpy(), [11, 22])
    with pytest.raises(RuntimeCheckError, match="add failed") as caught:
        main(floats(1, 2, 3))
    assert caught.value.code == "kernel-failed"
    assert caught.value.span is not None
    assert (caught.value.span.file, caught.value.span.line) == ("model.py", 10)
    assert "in the binding of lv0" in str(caught.value)
    assert caught.value.__cause__ is not None


def _large(at: int, kernel: int, *regs: int) -> Kernel:
    """A kernel that counts as large work from three numbers on."""
    return Kernel(at, kernel, tuple(map(Reg, regs)), times(0, LARGE_WORK // 3 + 1))


def test_large_kernels_are_a_row_and_what_is_between_them_comes_before_it() -> None:
    body = [
        Alloc(0, 1, 0, 1, "float32", 0),
        _large(0, ADD1, 0, 1),
        Eval(1, 1, IntOp("add", (N, 1))),
        Alloc(1, 2, 0, 1, "float32", -1),
        _large(2, ADD, 0, 1, 2),
        MakeShape(3, 3, 1, 1),
        MakeTuple(3, 4, (2, 3)),
        Return(3, 4),
    ]
    main = run(function("main", [("x", VECTOR)], body, storages=(times(0, 4),)))
    assert main.source.index("r2 = empty") < main.source.index("row0(")
    assert main.source.count("row0(") == 1
    assert "row1(" not in main.source
    for values in ((1.0,), (1.0, 2.0, 3.0), tuple(range(100))):  # one by one; as a row
        for _ in range(3):
            out, shape = main(floats(*values))
            np.testing.assert_array_equal(out.numpy(), 2 * floats(*values) + 1)
            assert shape == (len(values) + 1,)


@pytest.mark.parametrize("turns", [1, 3])
def test_a_kernel_that_fails_in_a_row_is_located(turns: int) -> None:
    body = [
        Const(0, 1, 0),
        Alloc(0, 2, 0, 1, "float32", -1),
        Alloc(0, 3, 0, 1, "float32", -1),
        _large(1, ADD1, 0, 2),
        _large(2, ADD, 2, 1, 3),
        _large(3, ADD1, 2, 3),
        Return(4, 3),
    ]
    main = run(function("main", [("x", VECTOR)], body), constants=(floats(1, 2, 3),))
    for _ in range(turns):  # alone at first, then in one piece
        main(floats(1, 2, 3))
    with pytest.raises(RuntimeCheckError, match="add failed") as caught:
        main(floats(1, 2, 3, 4))
    assert caught.value.span is not None
    assert caught.value.span.line == 12
    assert "in the binding of lv2" in str(caught.value)


@pytest.mark.parametrize("between", ["kill", "again", "slot"])
def test_a_row_ends_where_what_it_reads_changes(between: str) -> None:
    change: dict[str, list[Instr]] = {
        "kill": [Kill(0, (1,)), Alloc(0, 3, 0, 1, "float32", -1)],
        "again": [Alloc(0, 1, 0, 1, "float32", -1), Alloc(0, 3, 0, 1, "float32", -1)],
        "slot": [Eval(0, 1, N), Alloc(0, 3, 0, 1, "float32", -1)],
    }
    body = [
        Eval(0, 1, N),
        Alloc(0, 1, 0, 1, "float32", -1),
        Alloc(0, 2, 1, 1, "float32", -1),
        _large(0, ADD1, 0, 1),
        _large(0, ADD1, 1, 2),
        *change[between],
        _large(0, ADD1, 2, 3),
        Return(0, 3),
    ]
    main = run(function("main", [("x", VECTOR)], body))
    last = {"kill": "r1 = None", "again": "r1 = empty", "slot": "s1 = s0"}[between]
    assert main.source.index("row0(") < main.source.rindex(last)
    np.testing.assert_array_equal(main(floats(1, 2, 3)).numpy(), [4, 5, 6])


def test_integers_of_the_heap_are_arguments_of_kernels() -> None:
    body = [
        Eval(0, 1, IntOp("mul", (N, 10))),
        Alloc(0, 1, 0, 1, "int64", -1),
        Kernel(0, IOTA, (Reg(1), Heap(1)), N),
        Return(0, 1),
    ]
    np.testing.assert_array_equal(
        run(function("main", [("x", VECTOR)], body))(floats(0, 0, 0)).numpy(), [30, 31, 32]
    )


def test_a_scalar_register_is_an_argument_of_kernels() -> None:
    body = [Alloc(0, 2, 0, 1, "int64", -1), Kernel(0, IOTA, (Reg(2), Reg(1)), N), Return(0, 2)]
    main = run(function("main", [("x", VECTOR), ("start", PrimPattern("int64"))], body))
    np.testing.assert_array_equal(main(floats(0, 0), 7).numpy(), [7, 8])


def test_zero_sizes_and_0d() -> None:
    main = run(
        function(
            "main",
            [("x", VECTOR)],
            [*add1(0, 0, 1, 0), *add1(1, 1, 2), Return(1, 2)],
            storages=[times(0, 4)],
        )
    )
    assert main(np.zeros(0, np.float32)).shape == (0,)
    scalar = function("main", [("x", f32())], [Return(0, 0)])
    assert run(scalar)(2).item() == 2.0
    assert run(scalar)(np.float32(3)).item() == 3.0


def test_an_unmatched_register_is_an_argument_of_kernels() -> None:
    """Fields of tuples have no shape that the linker knows."""
    pattern = TuplePattern((ObjectPattern(), f32(N)))
    body = [Item(0, 1, 0, 0), *add1(0, 1, 2), Return(0, 2)]
    main = run(function("main", [("t", pattern)], body))
    np.testing.assert_array_equal(main((floats(1, 2), floats(0, 0))).numpy(), [2, 3])


def test_many_shapes_of_one_register_at_different_times() -> None:
    """A register and a slot that are used twice keep what was computed from the first use apart."""
    body = [
        *add1(0, 0, 1, 0),
        *add1(0, 1, 2),
        Eval(0, 0, IntOp("add", (Heap(1), 0))),
        *add1(1, 3, 1, 0),
        *add1(1, 1, 4),
        MakeTuple(1, 5, (2, 4)),
        Return(1, 5),
    ]
    second = function(
        "main",
        [("x", f32(Heap(0))), ("_", ObjectPattern()), ("_", ObjectPattern()), ("y", f32(Heap(1)))],
        body,
        storages=[times(0, 4)],
    )
    a, b = run(second)(floats(1), 0, 0, np.zeros(9999, np.float32))
    np.testing.assert_array_equal(a.numpy(), [3])
    np.testing.assert_array_equal(b.numpy(), np.full(9999, 2))


# Control flow


def branch(storage: int) -> Any:
    """`x + 1 + 1` if the condition holds, else `x + 1`, then `+ 1`."""
    then = [
        *add1(1, 0, 2, storage),
        *add1(2, 2, 3, storage if storage < 0 else 1),
        Move(3, 4, 3),
        Kill(3, (2, 3)),
    ]
    other = [*add1(4, 0, 2, storage), Move(4, 4, 2)]
    body = [If(0, 1, len(then), len(other)), *then, *other, *add1(5, 4, 5), Return(6, 5)]
    return function("main", [("x", VECTOR), ("c", BOOL)], body, storages=[times(0, 4)] * 2)


@pytest.mark.parametrize("storage", [-1, 0])
def test_if(storage: int) -> None:
    main = run(branch(storage))
    for size, condition in itertools.product((2, 5000, 1), (True, False)):
        result = main(np.zeros(size, np.float32), np.array(condition))
        np.testing.assert_array_equal(result.numpy(), np.full(size, 3 if condition else 2))


def test_what_is_computed_in_an_arm_is_not_used_behind_it() -> None:
    """Storage checks, work groups and matches inside an arm do not count after the join."""
    arm = [Match(1, 2, f32(Heap(0)), 2), *add1(1, 2, 3, 0), Kill(1, (3,))]
    body = [
        If(0, 1, len(arm), 0), *arm,
        Match(2, 2, f32(Heap(0)), 2),
        Alloc(2, 4, 0, 1, "float32", 0), Kernel(2, ADD1, (Reg(2), Reg(4)), N),
        Alloc(2, 5, 0, 1, "float32", -1), Kernel(2, ADD1, (Reg(4), Reg(5)), N),
        Return(2, 5),
    ]  # fmt: skip
    params = [("x", f32(Heap(1))), ("c", BOOL), ("y", ObjectPattern())]
    main = run(function("main", params, body, storages=[times(0, 4)]))
    for condition in (False, True, False):
        out = main(floats(0), condition, np.zeros(100 if condition else 5000, np.float32))
        assert (out.numpy() == 2).all()


def test_a_slot_that_an_arm_wrote_is_not_what_it_was_before() -> None:
    """Storage that was large enough before the branch is measured again behind it."""
    arm = [Match(1, 2, f32(Heap(0)), 2)]
    body = [
        *add1(0, 0, 3, 0), Kill(0, (3,)),
        If(0, 1, len(arm), 0), *arm,
        Alloc(2, 4, 0, 1, "float32", 0), Kernel(2, ADD1, (Reg(2), Reg(4)), N),
        Alloc(2, 5, 0, 1, "float32", -1), Kernel(2, ADD1, (Reg(4), Reg(5)), N),
        Return(2, 5),
    ]  # fmt: skip
    params = [("x", f32(Heap(0))), ("c", BOOL), ("y", ObjectPattern())]
    code = function("main", params, body, storages=[times(0, 4)])
    main = run(code)
    assert main.source.count("> caps[0]") == 2
    for condition, size in ((False, 2), (True, 3_000_000), (False, 2)):
        out = main(floats(0, 0), condition, np.zeros(size, np.float32))
        assert (out.numpy() == 2).all()
        assert out.shape == (size,)


def test_conditions_are_bools() -> None:
    body = [If(0, 0, 1, 1), MakePrim(0, 1, 1, "int64"), MakePrim(0, 1, 2, "int64"), Return(0, 1)]
    main = run(function("main", [("c", ObjectPattern())], body))
    assert main(True) == 1
    assert main(np.bool_(False)) == 2
    with pytest.raises(RuntimeCheckError, match="must be a bool"):
        main(3)


def test_nested_if() -> None:
    inner = [If(0, 1, 1, 1), MakePrim(0, 2, 1, "int64"), MakePrim(0, 2, 2, "int64")]
    body = [If(0, 0, 3, 1), *inner, MakePrim(0, 2, 3, "int64"), Return(0, 2)]
    main = run(function("main", [("a", PrimPattern("bool")), ("b", PrimPattern("bool"))], body))
    assert [main(a, b) for a in (True, False) for b in (True, False)] == [1, 2, 3, 3]


@pytest.mark.parametrize("depth", [79, 200])
def test_deeply_nested_if(depth: int) -> None:
    """Deeper than Python's 100 levels of indentation, then-branch in else-branch in turn."""
    body: list[Instr] = [MakePrim(0, 2, depth, "int64")]
    for level in reversed(range(depth)):
        leaf: list[Instr] = [MakePrim(0, 2, level, "int64")]
        arms = (body, leaf) if level % 2 else (leaf, body)
        body = [Item(0, 1, 0, level), If(0, 1, len(arms[0]), len(arms[1])), *arms[0], *arms[1]]
    params = [("bits", TuplePattern((PrimPattern("bool"),) * depth))]
    main = run(function("main", params, [*body, Return(0, 2)]))
    inward = [level % 2 == 1 for level in range(depth)]
    assert main(tuple(inward)) == depth
    for level in range(0, depth, 13):
        assert main((*inward[:level], not inward[level], *inward[level + 1 :])) == level


# Values


def test_values_of_every_kind() -> None:
    body = [
        MakeShape(0, 1, 0, 2),
        MakePrim(0, 2, 2.5, "float32"),
        MakePrim(0, 3, float("inf"), "float32"),
        MakePrim(0, 4, "text", "string"),
        MakePrim(0, 5, N, "int64"),
        MakeTuple(0, 6, (1, 2)),
        MakeTuple(0, 7, (3, 4, 5, 6)),
        MakeTuple(0, 8, ()),
        Item(0, 9, 7, 3),
        MakeTuple(0, 10, (7, 8, 9)),
        Return(0, 10),
    ]
    main = run(function("main", [("x", VECTOR)], body, heap=(0, 5)))
    shape = Shape((2, 5))
    assert main(floats(0, 0)) == ((float("inf"), "text", 2, (shape, 2.5)), (), (shape, 2.5))


def test_shapes_bind_and_are_checked() -> None:
    main = run(
        function(
            "main",
            [("s", ShapePattern((N, 4), 2))],
            [Eval(0, 1, times(0, 3)), MakeShape(0, 1, 1, 1), Return(0, 1)],
        )
    )
    assert main((5, 4)) == Shape((15,))
    assert main([np.int64(5), 4]) == Shape((15,))
    for wrong in ((5, 5), (5,), 5, (5, 4.0)):
        with pytest.raises(RuntimeCheckError, match="parameter s"):
            main(wrong)


def test_scalars_bind_and_are_checked() -> None:
    main = run(
        function("main", [("k", PrimPattern("int64", N))], [MakeShape(0, 1, 0, 1), Return(0, 1)])
    )
    assert main(5) == (5,)
    assert main(np.int32(5)) == (5,)
    assert main(np.array(5)) == (5,)
    for wrong in (True, 1.0, "x", 2**63, None):
        with pytest.raises(RuntimeCheckError, match="scalar of type int64"):
            main(wrong)


def test_tuples_are_matched_through() -> None:
    pattern = TuplePattern((f32(N), TuplePattern((f32(3), CallablePattern(1)))))
    main = run(function("main", [("t", pattern)], [MakeShape(0, 1, 0, 1), Return(0, 1)]))
    three = np.zeros(3, np.float32)
    assert main((floats(1), [three, len])) == (1,)
    for wrong, text in [
        ((floats(1),), "expected 2 fields"),
        ((floats(1), (floats(1), len)), "dimension 0 of field 0 of field 1 is 1, not 3"),
        ((floats(1), (three, 3)), "expected a function"),
        (floats(1), "expected a tuple"),
    ]:
        with pytest.raises(RuntimeCheckError, match=text):
            main(wrong)


# Checks


def test_tensor_checks_say_what_is_wrong() -> None:
    main = run(
        function(
            "main",
            [("x", TensorPattern((N, 4), 2, "float32")), ("y", TensorPattern(None, 1, ""))],
            [Return(0, 0)],
        )
    )
    good = np.zeros((2, 4), np.float32)
    row = np.zeros(3, np.int8)
    main(good, row)
    for x, y, text in [
        (np.zeros((2, 5), np.float32), row, "x: dimension 1 is 5, not 4"),
        (np.zeros(4, np.float32), row, "x: it has 1 dimension, not 2"),
        (np.zeros((2, 4), np.float64), row, "x: the dtype is float64, not float32"),
        ("text", row, "x: expected a tensor, got the str 'text'"),
        (None, row, "x: expected a tensor, got None"),
        (good, good, "y: it has 2 dimensions, not 1"),
    ]:
        with pytest.raises(RuntimeCheckError, match=text) as caught:
            main(x, y)
        assert "annotation of" in str(caught.value)
        cast = getattr(x, "dtype", None) == np.float64
        assert ('x.astype("float32")' in str(caught.value)) == cast


def test_assert_shows_bound_symbols() -> None:
    check = Check(
        "parameter", "y", 'R.Tensor((n * 4,), "float32")', "dimension 0: n * 4", (("n", 0),)
    )
    body = [Assert(0, Heap(1), times(0, 4), 2), Return(0, 0)]
    main = run(function("main", [("x", VECTOR), ("y", f32(Heap(1)))], body, checks=[check]))
    main(np.zeros(2, np.float32), np.zeros(8, np.float32))
    with pytest.raises(RuntimeCheckError) as caught:
        main(np.zeros(2, np.float32), np.zeros(7, np.float32))
    text = str(caught.value)
    for part in (
        "main: parameter y",
        "must be 8, got 7",
        "bound so far: n = 2",
        "n * 4",
        "model.py:10",
    ):
        assert part in text


def test_match_of_a_tensor_made_here() -> None:
    check = Check("match_cast", "lv1", 'R.Tensor((3,), "float32")')
    ok = [
        *add1(0, 0, 1, 0),
        Match(1, 1, f32(3), 1),
        Match(1, 1, f32(Heap(1)), 1),
        *add1(2, 1, 2),
        Return(2, 2),
    ]
    main = run(function("main", [("x", VECTOR)], ok, storages=[times(0, 4)], checks=[check]))
    np.testing.assert_array_equal(main(floats(1, 2, 3)).numpy(), [3, 4, 5])
    with pytest.raises(RuntimeCheckError, match="match_cast lv1: dimension 0 is 2, not 3"):
        main(floats(1, 2))
    wrong = [*add1(0, 0, 1, 0), Match(1, 1, f32(3, 3), 1), Return(2, 0)]
    with pytest.raises(RuntimeCheckError, match="it has 1 dimension, not 2"):
        run(function("main", [("x", VECTOR)], wrong, storages=[times(0, 4)], checks=[check]))(
            floats(1)
        )


# Calls


def test_calls_between_functions() -> None:
    inner = function("inner", [("x", VECTOR)], [*add1(0, 0, 1), Return(0, 1)], public=False)
    main = function(
        "main", [("x", VECTOR)], [Call(0, 1, 0, (0,)), Call(1, 2, 0, (1,)), Return(1, 2)]
    )
    vm = VirtualMachine(executable(inner, main))
    assert vm.functions == ("main",)
    np.testing.assert_array_equal(vm["main"](floats(1)).numpy(), [3])


def test_storage_tensors_are_arguments_of_calls() -> None:
    inner = function("inner", [("x", VECTOR)], [*add1(0, 0, 1), Return(0, 1)])
    main = function(
        "main",
        [("x", VECTOR)],
        [*add1(0, 0, 1, 0), Call(0, 2, 0, (1,)), Return(1, 2)],
        storages=[times(0, 4)],
    )
    np.testing.assert_array_equal(run(inner, main)(floats(1)).numpy(), [3])


def test_an_error_names_its_callers() -> None:
    inner = function("inner", [("x", f32(3))], [Return(0, 0)])
    main = function("main", [("x", VECTOR)], [Call(3, 1, 0, (0,)), Return(1, 1)])
    with pytest.raises(RuntimeCheckError) as caught:
        run(inner, main)(floats(1))
    assert caught.value.notes[-1] == "called from main, in the binding of lv3, model.py:13"
    assert caught.value.message.startswith("inner: parameter x")


def counter() -> Any:
    """`main(x, k) = x if k == 0 else main(x + 1, k - 1)`."""
    body = [
        Packed(0, 2, 0, (Reg(1),)),
        If(0, 2, 1, 5),
        Move(0, 3, 0),
        *add1(1, 0, 4),
        Packed(1, 5, 1, (Reg(1),)),
        Call(2, 6, 0, (4, 5)),
        Move(3, 3, 6),
        Return(4, 3),
    ]
    return function("main", [("x", VECTOR), ("k", PrimPattern("int64"))], body)


@pytest.mark.parametrize("depth", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_recursion_is_as_deep_as_memory(depth: int) -> None:
    register_function("test.is_zero", lambda k: k == 0)
    register_function("test.minus_one", lambda k: k - 1)
    main = run(counter(), packed=("test.is_zero", "test.minus_one"))
    assert main(floats(0), depth).numpy().tolist() == [depth]
    assert main(floats(0), 3).numpy().tolist() == [3]


def test_an_error_deep_in_a_recursion_comes_out() -> None:
    def is_zero(k: int) -> bool:
        if k == 5:
            raise KeyError("five")
        return k == 0

    register_function("test.is_zero_but_five", is_zero)
    register_function("test.minus_one_each", lambda k: k - 1)
    main = run(counter(), packed=("test.is_zero_but_five", "test.minus_one_each"))
    with pytest.raises(RuntimeCheckError, match=r"test\.is_zero_but_five failed") as caught:
        main(floats(0), 1000)
    assert isinstance(caught.value.__cause__, KeyError)
    assert main(floats(0), 4).numpy().tolist() == [4]


def test_deep_chains_of_functions() -> None:
    chain = [function("f0", [("x", VECTOR)], [*add1(0, 0, 1), Return(0, 1)])]
    chain += [
        function(f"f{i}", [("x", VECTOR)], [Call(0, 1, i - 1, (0,)), Return(0, 1)])
        for i in range(1, 300)
    ]
    vm = VirtualMachine(executable(*chain))
    assert vm["f299"](floats(1)).numpy().tolist() == [2]


def test_closures() -> None:
    """`adder(y) = lambda x: x + y`, called inside, outside and through itself."""
    body = [
        Alloc(0, 2, 0, 1, "float32", -1),
        Kernel(0, ADD, (Reg(0), Reg(1), Reg(2)), N),
        Return(0, 2),
    ]
    lifted = function("lifted", [("x", VECTOR), ("y", VECTOR)], body, public=False)
    adder = function("adder", [("y", VECTOR)], [Closure(0, 1, 0, (0,)), Return(0, 1)])
    twice = function(
        "twice",
        [("f", CallablePattern(1)), ("x", VECTOR)],
        [Invoke(0, 2, 0, (1,)), Invoke(0, 3, 0, (2,)), Return(0, 3)],
    )
    vm = VirtualMachine(executable(lifted, adder, twice))
    add10 = vm["adder"](floats(10))
    assert add10(floats(1)).numpy().tolist() == [11]
    assert add10.arity == 1
    assert vm["twice"](add10, floats(1)).numpy().tolist() == [21]
    assert vm["twice"](lambda t: t.numpy() * 2, floats(3)).numpy().tolist() == [12]
    with pytest.raises(
        RuntimeCheckError, match="adder: parameter y: expected a tensor, got a relaxpy"
    ):
        vm["twice"](vm["adder"], floats(1))
    with pytest.raises(RuntimeCheckError, match="parameter f"):
        vm["twice"](vm["twice"], floats(1))


def test_a_python_callback_fails() -> None:
    twice = function(
        "main", [("f", CallablePattern()), ("x", VECTOR)], [Invoke(2, 2, 0, (1,)), Return(0, 2)]
    )
    main = run(twice)

    def bad(_: Tensor) -> None:
        raise LookupError("mine")

    with pytest.raises(
        RuntimeCheckError,
        match="a function that was passed as an argument failed: LookupError: mine",
    ) as caught:
        main(bad, floats(1))
    assert isinstance(caught.value.__cause__, LookupError)
    assert caught.value.code == "callback-failed"
    with pytest.raises(KeyboardInterrupt):
        main(lambda _: (_ for _ in ()).throw(KeyboardInterrupt), floats(1))
    assert main(lambda t: t, floats(1)).numpy().tolist() == [1]


def test_a_callback_may_call_the_machine_again() -> None:
    apply = function(
        "apply",
        [("f", CallablePattern()), ("x", VECTOR)],
        [Invoke(0, 2, 0, (1,)), *add1(0, 2, 3), Return(0, 3)],
    )
    # The result of a Python function is matched before kernels use its shape.
    vm = VirtualMachine(executable(apply))

    def again(t: Tensor) -> Tensor:
        return vm["apply"](lambda u: u, t)

    assert vm["apply"](again, floats(1)).numpy().tolist() == [3]


def test_libraries_and_packed_functions() -> None:
    @register_library("test.double")
    def double(x: Tensor, k: int, out: Tensor) -> None:
        np.multiply(x.numpy(), k, out=out.numpy())

    body = [
        *add1(0, 0, 1, 0),
        Alloc(1, 2, 0, 1, "float32", 1),
        Library(1, 0, (Reg(1), N, Reg(2))),
        *add1(2, 2, 3),
        Packed(2, 4, 0, (Reg(3),)),
        Packed(2, 5, 1, (Reg(3),)),
        MakeTuple(3, 6, (3, 4, 5)),
        Return(3, 6),
    ]
    main = function("main", [("x", VECTOR)], body, storages=[times(0, 4)] * 2)
    fields = {"libraries": ("test.double",), "packed": ("vm.builtin.shape_of", "relaxpy.unique")}
    out, shape, unique = run(main, **fields)(floats(1, 1, 2))
    assert out.numpy().tolist() == [7, 7, 10]
    assert shape == Shape((3,))
    assert unique.numpy().tolist() == [7, 10]


def test_the_source_names_bindings_and_tracebacks_show_them() -> None:
    main = run(function("main", [("x", VECTOR)], [*add1(0, 0, 1), Return(1, 1)]))
    assert "# lv0, model.py:10" in main.source
    compile(main.source, "again", "exec")


def test_tensors_that_only_kernels_see_cost_nothing() -> None:
    body: list[Instr] = []
    for i in range(10):
        body += add1(0, i, i + 1, i % 2)
    body += [*add1(0, 10, 11), Return(0, 11)]
    text = translate(
        function("main", [("x", VECTOR)], body, storages=[times(0, 4)] * 2), frozenset(), False
    ).text
    assert text.count("tensor_at(") == 0
    assert text.count("f.grow") == 1
    assert text.count("pick0") == 1
