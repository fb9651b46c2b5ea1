"""What deduction remembers: the same question has the same answer, and only that one."""

from __future__ import annotations

import gc
import weakref

import numpy as np

from relaxpy.ir import Call, Constant, Function, SymVar, TensorType, Var, VarBinding
from relaxpy.ir.annotation import Annotation
from relaxpy.ir.expr import seq
from relaxpy.op import deduction
from relaxpy.op.base import Op
from relaxpy.op.binary import Add
from relaxpy.op.deduce import deduce
from relaxpy.op.deduction import Deduction
from relaxpy.op.unary import Exp
from relaxpy.shape.bounds import assuming

n, m = SymVar("n"), SymVar("m")


def asked(op: Op, *args: Annotation, exact: bool = False) -> Deduction:
    call = Call(op, tuple(Var(f"x{i}", a) for i, a in enumerate(args)))
    deduction = Deduction(op, call, deduce, exact)
    deduction.run()
    return deduction


def test_the_same_question_is_answered_once() -> None:
    """Calls of other variables with equal annotations get the one annotation."""
    annotation = TensorType((n, 4), "float32")
    calls = [Call(Exp(), (Var(name, TensorType((n, 4), "float32")),)) for name in "xy"]
    first, second = map(deduce, calls)
    assert first == annotation
    assert first is second


def test_requirements_are_found_every_time() -> None:
    """n + m is checked in each of the calls, by the names that each has for its sizes."""
    rows = [TensorType((size, 4), "float32") for size in (n, m)]
    for _ in range(2):
        assert len(asked(Add(), *rows, exact=True).requirements) == 1


def test_what_is_assumed_is_part_of_the_question() -> None:
    """Where n is 1, rows of n and of m are rows of m; elsewhere that is not known, before and afterwards."""
    call = Call(Add(), tuple(Var("x", TensorType((size, 4), "float32")) for size in (n, m)))
    outside = deduce(call)
    with assuming({n: (1, 1), m: (1, 1)}):
        inside = deduce(call)
    assert isinstance(outside, TensorType)
    assert outside.dims is None
    assert isinstance(inside, TensorType)
    assert inside.dims is not None
    assert deduce(call) == outside


def test_no_program_is_kept_alive() -> None:
    """Annotations are remembered, not the calls and functions that asked."""
    data = np.zeros((3, 4), "float32")
    gone = weakref.ref(data)
    weight = Constant.shared(data)
    call = Call(Exp(), (weight,))
    y = Var("y", deduce(call))
    function = Function((), seq([VarBinding(y, call)], y), y.annotation)
    assert gone() is not None
    del function, weight, call, y, data
    gc.collect()
    assert gone() is None


def test_the_number_of_answers_is_bounded() -> None:
    """Another program is forgotten rather than remembered without end."""
    for size in range(deduction.REMEMBERED + 10):
        asked(Exp(), TensorType((size,), "float32"))
        assert len(deduction._deduced) <= deduction.REMEMBERED  # pyright: ignore[reportPrivateUsage]
