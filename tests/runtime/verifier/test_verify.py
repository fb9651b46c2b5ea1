"""The verifier: what bytecode may not do, and what is left to be checked when it runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import ExecutableError, RuntimeCheckError
from relaxpy.runtime import Executable, VirtualMachine, load
from relaxpy.runtime.bytecode import (
    Alloc,
    Assert,
    Call,
    Check,
    Closure,
    Const,
    Eval,
    FunctionCode,
    Heap,
    If,
    Instr,
    IntOp,
    Item,
    Kernel,
    KernelMemory,
    Kill,
    Library,
    Location,
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
    TuplePattern,
    View,
)
from relaxpy.runtime.verifier.function import Function
from relaxpy.runtime.verifier.state import MOST_NESTED, MOST_NESTED_TUPLES
from relaxpy.runtime.verifier.verify import verify
from tests.runtime.support import executable, f32, floats, function, times


@cache
def built() -> Executable:
    """Kernels as the compiler makes them: they look at nothing. `twice(n) → (n * 2)`, `add`, `update` in place."""
    text = """
@I.ir_module
class Module:
    @T.prim_func
    def twice(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n * 2",), "float32")):
        n = T.int64()
        for i in range(n * 2):
            with T.sblock("b"):
                v = T.axis.spatial(n * 2, i)
                y[v] = x[v // 2]

    @T.prim_func
    def fill(y: T.Buffer(("n",), "float32"), k: T.int64):
        n = T.int64()
        for i in range(n):
            with T.sblock("b"):
                v = T.axis.spatial(n, i)
                y[v] = T.Cast("float32", k)

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        cls = Module
        n = T.int64()
        a = R.call_tir(cls.twice, (x,), R.Tensor((n * 2,), "float32"))
        b = R.call_tir(cls.fill, (), R.Tensor((n * 2,), "float32"), tir_vars=R.shape([3]))
        return (a, b)
"""
    return relaxpy.build(relaxpy.parse(text), target="llvm")


TWICE, FILL = 0, 1
N = Heap(0)
X = [("x", f32(N))]


def program(
    body: Sequence[Instr], params: Sequence[tuple[str, Any]] = X, **fields: Any
) -> Executable:
    """One function that may call the kernels of `built`."""
    fields.setdefault("heap", (0, 0, 0, 5))
    code = function("main", params, body, **fields)
    return replace(built(), functions=(code,), constants=(floats(1, 2),))


def double(*more: Instr, src: int = 0, dst: int = 1) -> list[Instr]:
    """`dst = twice(src)` of n elements, and more."""
    return [
        Eval(0, 1, times(0, 2)), Alloc(0, dst, 1, 1, "float32", -1),
        Kernel(0, TWICE, (Reg(src), Reg(dst)), N), *more,
    ]  # fmt: skip


def unproved(exe: Executable) -> list[frozenset[int]]:
    return list(verify(exe))


def test_a_right_program() -> None:
    exe = program(double(Return(0, 1)))
    assert unproved(exe) == [frozenset()]
    assert VirtualMachine(exe)["main"](floats(1, 2)).numpy().tolist() == [1, 1, 2, 2]


WRONG: dict[str, tuple[list[Instr], str]] = {
    "register": ([Return(0, 1)], "register 1 is read and not set"),
    "killed": ([Kill(0, (0,)), Return(0, 0)], "register 0 is read and not set"),
    "no such register": ([Move(0, 99, 0), Return(0, 0)], "there is no register 99, but 16"),
    "slot": ([MakeShape(0, 1, 1, 1), Eval(0, 1, N), Return(0, 1)], "heap slot 1 is read and not set"),
    "no such slot": ([MakeShape(0, 1, 3, 2), Return(0, 1)], "there is no heap slot 4, but 4"),
    "written slot": ([Eval(0, 7, 1), Return(0, 0)], "there is no heap slot 7"),
    "constant": ([Const(0, 1, 3), Return(0, 1)], "there is no constant 3, but 1"),
    "function": ([Call(0, 1, 7, ()), Return(0, 1)], "there is no function 7, but 1"),
    "arguments": ([Call(0, 1, 0, (0, 0)), Return(0, 1)], "main takes 1 arguments, it is given 2"),
    "closure": ([Closure(0, 1, 3, ()), Return(0, 1)], "there is no function 3"),
    "captured": ([Closure(0, 1, 0, (0, 0)), Return(0, 1)], "it captures more values"),
    "kernel": ([Kernel(0, 9, (Reg(0),), 1), Return(0, 0)], "there is no kernel 9"),
    "library": ([Library(0, 0, (Reg(0),)), Return(0, 0)], "there is no library function 0"),
    "packed": ([Packed(0, 1, 0, ()), Return(0, 0)], "there is no function by name 0"),
    "check": ([Match(0, 0, f32(2), 5), Return(0, 0)], "there is no check 5"),
    "location": ([Move(99, 1, 0), Return(0, 0)], "there is no location 99"),
    "no return": ([Move(0, 1, 0)], "does not end with a Return"),
    "two returns": ([Return(0, 0), Return(0, 0)], "a Return is the last instruction"),
    "operands": ([Eval(0, 1, IntOp("add", (1,))), Return(0, 0)], "the operation add has 1 operands"),
    "select": ([Eval(0, 1, IntOp("select", (1, 2))), Return(0, 0)], "select has 2 operands"),
    "long arms": ([If(0, 0, 3, 1), Move(0, 1, 0), Return(0, 0)], "arms are longer than the block"),
    "one arm": ([If(0, 0, 1, 0), Move(0, 1, 0), Return(0, 1)], "register 1 is read and not set"),
    "slot of an arm": (
        [If(0, 0, 1, 0), Eval(0, 1, N), MakeShape(0, 1, 1, 1), Return(0, 1)],
        "heap slot 1 is read and not set",
    ),
    "return in an arm": ([If(0, 0, 1, 0), Return(0, 0), Return(0, 0)], "a Return is the last"),
    "item": ([MakeTuple(0, 1, (0,)), Item(0, 2, 1, 1), Return(0, 2)], "item 1 of a tuple of 1"),
    "item of a tensor": ([Item(0, 1, 0, 0), Return(0, 1)], "takes an item of a tensor"),
    "view of a shape": (
        [MakeShape(0, 1, 0, 1), View(0, 2, 1, 0, 1, "float32"), Return(0, 2)], "it views a shape",
    ),
    "frame": (
        [Alloc(0, 1, 0, 1, "float32", 0), Return(0, 1)], "it returns memory of the frame",
    ),
    "storage": ([Alloc(0, 1, 0, 1, "float32", 1), Return(0, 0)], "there is no storage 1, but 1"),
    "offset": (
        [Alloc(0, 1, 0, 1, "float32", 0, 4), Return(0, 0)], "does not fit into its storage, by 4",
    ),
    "no size": (
        [Alloc(0, 1, 3, 1, "float32", 1), Return(0, 0)], "does not fit into its storage, by 20",
    ),
    "unaligned": (
        [Alloc(0, 1, 0, 0, "float32", 0, 2), Return(0, 0)], "cannot lie at byte 2",
    ),
    "larger view": (
        [Const(0, 1, 0), View(0, 2, 1, 3, 1, "float32"), Return(0, 2)], "larger than its tensor, by 12",
    ),
    "count": ([Kernel(0, TWICE, (Reg(0),), N), Return(0, 0)], "takes 2 arguments, it is given 1"),
    "no tensor": ([Kernel(0, TWICE, (Reg(0), 3), N), Return(0, 0)], "argument 1 must be a tensor"),
    "a shape": (
        [MakeShape(0, 1, 0, 1), Kernel(0, TWICE, (Reg(0), Reg(1)), N), Return(0, 0)],
        "argument 1 must be a tensor, got a shape",
    ),
    "dtype": (
        [*double()[:1], Alloc(0, 1, 1, 1, "int32", -1), Kernel(0, TWICE, (Reg(0), Reg(1)), N), Return(0, 0)],
        "argument 1 must be of float32, got int32",
    ),
    "rank": (
        [*double()[:1], Alloc(0, 1, 0, 2, "float32", -1), Kernel(0, TWICE, (Reg(0), Reg(1)), N), Return(0, 0)],
        "must have 1 dimensions, got 2",
    ),
    "size": (
        [Const(0, 1, 0), Alloc(0, 2, 3, 1, "float32", -1), Kernel(0, TWICE, (Reg(1), Reg(2)), N), Return(0, 0)],
        "a size of argument 1 differs from that of the kernel",
    ),
    "scalar": ([Kernel(0, FILL, (Reg(0), 2.5), N), Return(0, 0)], "argument 1 must be a int64"),
    "text": ([Kernel(0, FILL, (Reg(0), "3"), N), Return(0, 0)], "argument 1 must be a int64"),
    "tensor as scalar": (
        [Alloc(0, 1, 0, 1, "float32", -1), Kernel(0, FILL, (Reg(1), Reg(0)), N), Return(0, 0)],
        "argument 1 must be a scalar, got a tensor",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refuted(name: str) -> None:
    body, problem = WRONG[name]
    exe = program(body, storages=[times(0, 4)] if name != "no size" else [times(0, 4), 0])
    with pytest.raises(ExecutableError, match=problem) as caught:
        VirtualMachine(exe)
    assert caught.value.code == "bytecode"
    assert "function main" in caught.value.message


def test_an_error_names_its_place(tmp_path: Any) -> None:
    program([Move(0, 1, 0), Item(0, 2, 1, 0), Return(0, 2)]).save(tmp_path / "m.rxe")
    with pytest.raises(ExecutableError) as caught:
        load(tmp_path / "m.rxe")
    assert caught.value.message.startswith(
        f"{tmp_path / 'm.rxe'}: function main, instruction 2 (Item): "
    )


def error_of(exe: Executable, *args: Any) -> str:
    """How a call ends; all arguments of the kernel are compared, so in an error."""
    assert any(unproved(exe))
    messages: set[str] = set()
    for check_memory in (False, True):
        with pytest.raises(RuntimeCheckError) as caught:
            VirtualMachine(exe, check_memory=check_memory)["main"](*args)
        assert caught.value.code == "check"
        assert caught.value.notes[0].startswith("in function main")
        messages.add(caught.value.message)
    (message,) = messages
    return message


def test_sizes_that_may_not_agree() -> None:
    """The second dimension is another symbol: compared when it runs, and from then on known."""
    body = [
        Kernel(0, TWICE, (Reg(0), Reg(1)), N), Kernel(0, TWICE, (Reg(0), Reg(1)), N), Return(0, 1),
    ]  # fmt: skip
    exe = program(body, [("x", f32(N)), ("y", f32(Heap(1)))])
    assert unproved(exe) == [frozenset({2})]  # y may be written to by then
    out = np.zeros(4, np.float32)
    VirtualMachine(exe)["main"](floats(1, 2), out)
    assert out.tolist() == [1, 1, 2, 2]
    assert "argument 1 of the kernel twice must have shape (4,), got (5,)" in error_of(
        exe, floats(1, 2), floats(1, 2, 3, 4, 5)
    )


def test_a_constant_is_not_written_to() -> None:
    body = [Const(0, 1, 0), Kernel(0, FILL, (Reg(1), 1), N), Return(0, 1)]
    for seen in ([], [View(0, 1, 1, 0, 1, "float32")]):
        with pytest.raises(ExecutableError, match="argument 0 is written to, and is a constant"):
            verify(program([body[0], *seen, *body[1:]]))
    fixed = np.zeros(2, np.float32)
    fixed.flags.writeable = False
    exe = program([Kernel(0, FILL, (Reg(0), 1), N), Return(0, 0)])
    assert "is updated, but is a constant or read-only" in error_of(exe, fixed)
    VirtualMachine(exe)["main"](np.zeros(2, np.float32))


def test_a_value_of_any_kind() -> None:
    exe = program(double(Return(0, 1)), [("x", ObjectPattern())], heap=(3, 0, 0, 5))
    assert unproved(exe) == [frozenset({3})]
    vm = VirtualMachine(exe)
    assert vm["main"](floats(1, 2, 3)).shape == (6,)
    assert "must be a tensor of float32 of 1 dimensions" in error_of(exe, 7)
    assert "must be a tensor of float32" in error_of(exe, np.zeros(3))
    assert "must have shape (4,), got (6,)" in error_of(exe, floats(1, 2))


def test_dimensions_that_may_be_negative() -> None:
    body = [Alloc(0, 1, 0, 1, "float32", -1), Kernel(0, FILL, (Reg(1), 3), N), Return(0, 1)]
    exe = program(body, [("n", PrimPattern("int64", N))])
    assert unproved(exe) == [frozenset({1})]
    assert VirtualMachine(exe)["main"](2).numpy().tolist() == [3, 3]
    assert "a dimension is negative" in error_of(exe, -2)
    known = [Assert(0, IntOp("le", (0, N)), 1, 1), *body]
    assert not any(
        unproved(
            program(known, [("n", PrimPattern("int64", N))], checks=[Check("relation", "", "")])
        )
    )


def test_a_storage_that_may_be_too_small() -> None:
    body = [
        Alloc(0, 1, 0, 1, "float32", 0), Kernel(0, FILL, (Reg(1), 3), N),
        *double(Return(0, 2), src=1, dst=2),
    ]  # fmt: skip
    exe = program(body, storages=[40])
    assert unproved(exe) == [frozenset({1})]
    assert VirtualMachine(exe)["main"](floats(*range(10))).shape == (20,)
    assert "a tensor of 44 bytes in a storage of 40" in error_of(exe, floats(*range(11)))
    bound = Assert(0, IntOp("le", (N, 10)), 1, 1)
    check = [Check("relation", "", "", "n is at most 10")]
    assert not any(unproved(program([bound, *body], storages=[40], checks=check)))
    negative = program(body, storages=[times(0, -4)])
    assert "in a storage of -8" in error_of(negative, floats(1, 2))
    most = IntOp("max", (times(0, 2), times(0, 4)))
    assert not any(unproved(program(body, storages=[most])))


def test_a_view_that_may_be_too_large() -> None:
    body = [View(0, 2, 0, 1, 1, "float32"), Return(0, 2)]
    exe = program(body, [("x", f32(N)), ("s", ShapePattern((Heap(1),), 1))])
    assert unproved(exe) == [frozenset({2})]
    vm = VirtualMachine(exe)
    assert vm["main"](floats(1, 2, 3), (2,)).numpy().tolist() == [1, 2]
    assert "a tensor of 16 bytes in a storage of 12" in error_of(exe, floats(1, 2, 3), (4,))
    reshaped = [Eval(0, 1, times(0, 3)), View(0, 1, 0, 1, 1, "float32"), Return(0, 1)]
    assert not any(unproved(program(reshaped, [("x", f32(N, 3))])))


def test_branches() -> None:
    """Where both arms make tensors of one shape, so is what they give; facts of an arm end with it."""
    arm = [
        Eval(0, 1, times(0, 2)),
        Alloc(0, 2, 1, 1, "float32", -1),
        Kernel(0, FILL, (Reg(2), 1), N),
    ]
    other = [
        Eval(0, 2, times(0, 2)),
        Alloc(0, 2, 2, 1, "float32", -1),
        Kernel(0, FILL, (Reg(2), 2), N),
    ]
    c = ("c", PrimPattern("bool"))
    body = [If(0, 1, 3, 3), *arm, *other, Kernel(0, TWICE, (Reg(0), Reg(2)), N), Return(0, 2)]
    exe = program(body, [*X, c])
    assert not any(unproved(exe))
    longer = [Eval(0, 2, times(0, 3)), *other[1:]]
    exe = program([If(0, 1, 3, 3), *arm, *longer, *body[7:]], [*X, c])
    VirtualMachine(exe)["main"](floats(1, 2), True)
    assert "must have shape (4,), got (6,)" in error_of(exe, floats(1, 2), False)


def test_a_shape_that_is_overwritten_in_the_heap() -> None:
    body = [
        Eval(0, 1, times(0, 2)), Alloc(0, 1, 1, 1, "float32", -1), Eval(0, 1, times(0, 4)),
        Kernel(0, TWICE, (Reg(0), Reg(1)), N), Return(0, 1),
    ]  # fmt: skip
    with pytest.raises(ExecutableError, match="has been overwritten in the heap"):
        verify(program(body))


def test_what_functions_return_is_known() -> None:
    inner = function("inner", X, double(Return(0, 1)), public=False)
    outer = function(
        "main", [("y", f32(Heap(2)))],
        [
            Call(0, 1, 0, (0,)), Eval(0, 0, times(2, 4)), Alloc(0, 2, 0, 1, "float32", -1),
            Kernel(0, TWICE, (Reg(1), Reg(2)), N), Return(0, 2),
        ],
    )  # fmt: skip
    exe = replace(built(), functions=(inner, outer))
    assert unproved(exe) == [frozenset(), frozenset()]
    assert VirtualMachine(exe)["main"](floats(1, 2)).numpy().tolist() == [1] * 4 + [2] * 4
    again = replace(outer, code=(*outer.code[:2], Eval(0, 0, times(2, 3)), *outer.code[3:]))
    assert unproved(replace(exe, functions=(inner, again))) == [frozenset(), frozenset({4})]


def nested_tuples(levels: int) -> list[Instr]:
    return [*(MakeTuple(0, 1 + i % 2, (2 - i % 2, 2 - i % 2)) for i in range(levels))]


def test_what_is_nested_deeply_or_large() -> None:
    deep: Any = N
    for _ in range(MOST_NESTED + 1):
        deep = IntOp("add", (deep, 1))
    with pytest.raises(ExecutableError, match="a formula is nested more than"):
        verify(program([Eval(0, 1, deep), Return(0, 0)]))
    assert isinstance(deep, IntOp)
    exe = program([Eval(0, 1, deep.args[0]), MakeShape(0, 1, 1, 1), Return(0, 1)])
    assert VirtualMachine(exe)["main"](floats(1, 2)) == (2 + MOST_NESTED,)
    pattern: Any = ObjectPattern()
    for _ in range(MOST_NESTED_TUPLES + 2):
        pattern = TuplePattern((pattern,))
    with pytest.raises(ExecutableError, match="a pattern is nested more than"):
        verify(program([Return(0, 0)], [("x", pattern)]))
    # Doubled 60 times it would be looked through for ever.
    body = [Move(0, 2, 0), *nested_tuples(60), Return(0, 1)]
    with pytest.raises(ExecutableError, match="a tuple contains more than"):
        verify(program(body))


def test_many_digits_are_computed_when_it_runs() -> None:
    huge: Any = 1 << 62
    for _ in range(100):
        huge = IntOp("mul", (huge, 1 << 62))
    exe = program([Eval(0, 1, huge), Alloc(0, 1, 1, 1, "float32", -1), Return(0, 1)])
    with pytest.raises(RuntimeCheckError):
        VirtualMachine(exe)["main"](floats(1))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"params": None}, "its parameters are missing"),
        ({"params": ()}, "compiled with other parameters"),
        ({"images": ()}, "it has no image"),
        ({"symbol": "add1", "serial_symbol": "add1"}, "compiled with other parameters"),
        ({"serial_symbol": "k_serial"}, "its serial version is another kernel"),
        ({"object": 7}, "there is no object 7"),
        ({"needs": 7}, "there is no requirement 7"),
        ({"memory": KernelMemory(Heap(3), 0)}, "there is no size 3"),
        ({"memory": KernelMemory(0, 0, ((7, 0),))}, "there is no parameter 7"),
        ({"memory": KernelMemory(0, 0, ((0, 3),))}, "parameter 0 has no dimension 3"),
    ],
)
def test_kernels_say_what_they_were_compiled_for(change: dict[str, Any], problem: str) -> None:
    exe = built()
    kernel = exe.kernels[0]
    if change.keys() & {"params", "images"}:
        changed = replace(kernel, **change)
    else:  # also where another image is right
        changed = replace(kernel, images=(kernel.image, replace(kernel.image, **change)))
    with pytest.raises(ExecutableError, match=problem) as caught:
        verify(replace(exe, kernels=(changed, *exe.kernels[1:])))
    assert "kernel 0 (twice)" in caught.value.message


def test_parameters_of_another_kernel() -> None:
    """The symbol that goes with other parameters is not in the object."""
    exe = built()
    one, two = exe.kernels
    swapped = (replace(one, params=two.params), two)
    with pytest.raises(ExecutableError, match="compiled with other parameters"):
        verify(replace(exe, kernels=swapped))
    symbol = one.image.symbol.split("_")[0] + "_" + two.image.symbol.split("_")[1]
    image = replace(one.image, symbol=symbol, serial_symbol=symbol)
    forged = replace(one, params=two.params, images=(image,))
    with pytest.raises(ExecutableError) as caught:
        VirtualMachine(replace(program([Return(0, 0)]), kernels=(forged, two)))
    assert caught.value.code == "object-code"


def test_two_functions_of_one_name() -> None:
    code = function("main", X, [Return(0, 0)])
    with pytest.raises(ExecutableError, match="two functions are called main"):
        verify(replace(built(), functions=(code, code)))


HOSTILE = "\r\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\0\ud800'\"\\{}#"


def test_texts_of_a_file_are_not_compiled(tmp_path: Any) -> None:
    """Names, texts and places of any kind run as they are, and are compiled nowhere."""
    code = function(f"main{HOSTILE}", X, [MakePrim(3, 1, HOSTILE, "string"), Return(3, 1)])
    places = tuple(
        Location(f"raise SystemExit{HOSTILE}", f"{HOSTILE}raise SystemExit", 3) for _ in range(8)
    )
    code = replace(code, locations=places)
    exe = executable(code, sources={HOSTILE: HOSTILE})
    exe.save(tmp_path / "m.rxe")
    exe = load(tmp_path / "m.rxe")
    for check_memory in (False, True):
        vm = VirtualMachine(exe, check_memory=check_memory)
        assert vm[f"main{HOSTILE}"](floats(1)) == HOSTILE
        source = vm[f"main{HOSTILE}"].linked.source
        assert all(line.isprintable() for line in source.split("\n"))
    assert vm.profile(f"main{HOSTILE}", floats(1), repeat=1).repeat == 1
    assert all(line.isprintable() for line in exe.as_text(kernels=True).split("\n"))
    with pytest.raises(RuntimeCheckError) as caught:
        vm[f"main{HOSTILE}"](3)
    assert "parameter x" in str(caught.value)
    assert all(line.isprintable() for line in str(caught.value).split("\n"))


def test_a_place_that_is_no_file(tmp_path: Any) -> None:
    """An error shows the line of the source that the file names: no pipe is waited for, nothing without end is read."""
    os.mkfifo(tmp_path / "pipe")
    for name in (str(tmp_path / "pipe"), "/dev/zero", str(tmp_path), "x\0y", "\ud800"):
        code = function("main", X, [Return(0, 0)])
        exe = executable(replace(code, locations=(Location("x", name, 1),)))
        with pytest.raises(RuntimeCheckError) as caught:
            VirtualMachine(exe)["main"](3)
        assert "parameter x" in str(caught.value)


def test_a_function_without_places() -> None:
    code = function("main", X, double(Return(9, 1)))
    exe = replace(built(), functions=(replace(code, locations=()),))
    assert "main" in exe.as_text()
    assert exe.memory_plan(n0=4).functions[0].unplanned == 32
    vm = VirtualMachine(exe)
    assert vm["main"](floats(1)).shape == (2,)
    assert vm.profile("main", floats(1), repeat=1).repeat == 1
    with pytest.raises(RuntimeCheckError, match="parameter x"):
        vm["main"](3)


@pytest.mark.parametrize(
    "char", ["\r", "\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\0", "\ud800"]
)
def test_a_file_name_is_not_compiled(char: str, tmp_path: Any) -> None:
    text = (
        '@R.function\ndef main(x: R.Tensor(("n",), "float32")):\n    y = R.exp(x)\n    return y\n'
    )
    mod = relaxpy.parse(text, f"model.py{char} raise SystemExit{char}#")
    exe = relaxpy.build(mod, target="llvm", cache=False)
    exe.save(tmp_path / "m.rxe")
    for each in (exe, load(tmp_path / "m.rxe")):
        assert VirtualMachine(each)["main"](floats(0)).numpy().tolist() == [1]


def test_the_cost_is_linear() -> None:
    """Instructions that the verifier looks at, counted by the sizes that it makes: not by time."""

    def count(times_: int) -> int:
        body: list[Instr] = []
        for _ in range(times_):
            body += double(Kill(0, (1,)))
        code: FunctionCode = program([*body, Return(0, 0)]).functions[0]
        walk = Function(replace(built(), functions=(code,)), code, {})
        walk.walk()
        return len(walk.sizes._trail)

    assert count(400) < 2.1 * count(200) < 4.3 * count(100)


def test_nothing_is_refuted_behind_a_check_that_always_fails() -> None:
    """`relaxpy fuzz` found it: the sizes that a kernel would get there contradict one another, and the file was called
    damaged. It is the check that says what is wrong."""
    mod = relaxpy.parse("""@I.ir_module
class M:
    @T.prim_func
    def larger(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32"), o: T.Buffer(("n",), "float32")):
        for i in range(n):
            with T.sblock("b"):
                v = T.axis.spatial(n, i)
                o[v] = T.max(x[v], y[v])
    @R.function
    def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(dtype="float32")):
        n = T.int64()
        cls = M
        a = R.match_cast(x, R.Tensor(dtype="float32"))
        b = R.call_tir(cls.larger, (a, y), out_ty=R.Tensor((n + 1,), "float32"))
        return R.maximum(b, b)
""")
    main = VirtualMachine(relaxpy.build(mod, "llvm -opt-level=0"))["main"]
    ones = np.ones(3, "float32")
    with pytest.raises(RuntimeCheckError, match=r"dimension 0 \(n \+ 1\) must be 4, got 3"):
        main(ones, ones)
