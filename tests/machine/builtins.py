"""Cases of builtin functions that programs call by name: arguments, and the result or the error code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from relaxpy.runtime.data import CLASSES
from relaxpy.runtime.tensor import Shape
from tests.machine.values import FunctionValue


@dataclass(frozen=True)
class BuiltinCase:
    """A call of a builtin function."""

    builtin: str
    args: Sequence[Any]
    result: Any = None
    error: str = ""
    after: Sequence[Any] | None = None
    """The arguments after the call, if it updates them."""
    output: str | None = None
    """The text that it writes to standard output."""


def f32(*items: Any) -> np.ndarray:
    return np.array(items, np.float32)


def i64(*items: Any) -> np.ndarray:
    return np.array(items, np.int64)


NAN, INF = float("nan"), float("inf")
GRID = np.arange(6, dtype=np.float32).reshape(2, 3)


def builtin_cases() -> list[BuiltinCase]:
    """All cases."""
    made = [
        *_shapes(),
        *_scalars(),
        *_copies(),
        *_data(),
        *_types(),
        *_says(),
        *_heap(),
        *_checks(),
    ]
    return [BuiltinCase(*each) if isinstance(each, tuple) else each for each in made]


def _fails(name: str, args: Sequence[Any], code: str) -> BuiltinCase:
    return BuiltinCase(name, args, error=code)


def _types() -> list[Any]:
    """Values of data types."""
    cons, nil = "List.Cons(head, tail)", "List.Nil()"
    make, made_by, field = (f"relaxpy.data.{each}" for each in ("make", "is", "field"))
    value = CLASSES[cons](GRID, CLASSES[nil]())
    return [
        (make, [nil], CLASSES[nil]()),
        (make, [cons, GRID, value], CLASSES[cons](GRID, value)),
        (made_by, [cons, value], True),
        (made_by, [nil, value], False),
        (made_by, [nil, 3], False),
        (field, [cons, value, 0], GRID),
        (field, [cons, value, 1], CLASSES[nil]()),
        _fails(field, [nil, value, 0], "check"),
        _fails(field, [cons, GRID, 0], "check"),
    ]


def _shapes() -> list[Any]:
    to_shape, to_tensor, reshape = (
        "vm.builtin.tensor_to_shape",
        "vm.builtin.shape_to_tensor",
        "vm.builtin.reshape",
    )
    return [
        ("vm.builtin.shape_of", [GRID], Shape([2, 3])),
        ("vm.builtin.shape_of", [f32(1)[0:0]], Shape([0])),
        ("vm.builtin.shape_of", [np.array(1.0)], Shape([])),
        (to_shape, [i64(2, 0, 2**40)], Shape([2, 0, 2**40])),
        (to_shape, [np.array([3], np.uint8)], Shape([3])),
        (to_shape, [i64()], Shape([])),
        _fails(to_shape, [i64(2, -1)], "shape-value"),
        _fails(to_shape, [f32(2)], "shape-value"),
        _fails(to_shape, [i64([1], [2])], "shape-value"),
        _fails(to_shape, [np.array([2**63], np.uint64)], "shape-value"),
        (to_tensor, [Shape([2, 0, 2**53 + 1])], i64(2, 0, 2**53 + 1)),
        (to_tensor, [Shape([])], i64()),
        (reshape, [GRID, Shape([3, 2])], GRID.reshape(3, 2)),
        (reshape, [GRID, Shape([6])], GRID.reshape(6)),
        (reshape, [f32(5), Shape([])], np.array(5, np.float32)),
        _fails(reshape, [GRID, Shape([4])], "shape-value"),
        _fails(reshape, [f32(), Shape([2**32, 2**32])], "shape-value"),
        ("vm.builtin.zeros", [Shape([2, 2]), "int32"], np.zeros((2, 2), np.int32)),
        ("vm.builtin.zeros", [Shape([0]), "bool"], np.zeros(0, bool)),
        _fails("vm.builtin.zeros", [Shape([2**62]), "float32"], "out-of-memory"),
        _fails("vm.builtin.zeros", [Shape([1]), "nothing"], "dtype"),
    ]


def _scalars() -> list[Any]:
    to_tensor, to_scalar = "vm.builtin.scalar_to_tensor", "vm.builtin.tensor_to_scalar"
    return [
        (to_tensor, [5, "int64"], np.array(5, np.int64)),
        (to_tensor, [-(2**63), "int64"], np.array(-(2**63), np.int64)),
        (to_tensor, [300, "uint8"], np.array(44, np.uint8)),
        (to_tensor, [-1, "uint16"], np.array(65535, np.uint16)),
        (to_tensor, [200, "int8"], np.array(-56, np.int8)),
        (to_tensor, [True, "int32"], np.array(1, np.int32)),
        (to_tensor, [2.75, "int32"], np.array(2, np.int32)),
        (to_tensor, [0.1, "float32"], np.array(0.1, np.float32)),
        (to_tensor, [3, "float16"], np.array(3, np.float16)),
        (to_tensor, [1 / 3, "bfloat16"], np.array(1 / 3, ml_dtypes.bfloat16)),
        (to_tensor, [True, "bool"], np.array(True)),
        (to_tensor, [NAN, "float64"], np.array(NAN)),
        (to_tensor, [-INF, "float32"], np.array(-INF, np.float32)),
        (to_scalar, [np.array(7, np.int8)], 7),
        (to_scalar, [np.array(2**64 - 1, np.uint64)], 2**64 - 1),
        (to_scalar, [np.array(0.1, np.float32)], float(np.float32(0.1))),
        (to_scalar, [np.array(False)], False),
        (to_scalar, [np.array(1.5, ml_dtypes.bfloat16)], 1.5),
        (to_scalar, [np.array(-INF)], -INF),
        _fails(to_scalar, [f32(1)], "check"),
    ]


def _copies() -> list[Any]:
    return [
        ("vm.builtin.copy", [GRID], GRID),
        ("vm.builtin.copy", [f32()], f32()),
        ("vm.builtin.writable", [GRID], GRID),
        ("vm.builtin.writable", [(GRID, 3, Shape([2]))], (GRID, 3, Shape([2]))),
        ("vm.builtin.null_value", [], None),
        ("relaxpy.same", [5], 5),
        ("relaxpy.same", [GRID, "float32", 3], GRID),
        BuiltinCase(
            "vm.builtin.print",
            [3, "text", True, Shape([1, 2])],
            output="3\ntext\nTrue\nShape([1, 2])\n",
        ),
        BuiltinCase("relaxpy.print", [(1, "a"), ""], output="1\na\n"),
        BuiltinCase("relaxpy.print", [(1, "a"), "{} and {}"], output="1 and a\n"),
        BuiltinCase("relaxpy.print", [(), "nothing"], output="nothing\n"),
        BuiltinCase("relaxpy.assert", [True, (), "no"]),
        BuiltinCase("relaxpy.assert", [np.array(True), (), "no"]),
        _fails("relaxpy.assert", [False, (), "no"], "assertion-failed"),
        _fails("relaxpy.assert", [np.array(False), (3,), "got {}"], "assertion-failed"),
    ]


def _data() -> list[Any]:
    unique, nonzero, squeeze = "relaxpy.unique", "relaxpy.nonzero", "relaxpy.squeeze"
    sliced, boxes = "relaxpy.dynamic_strided_slice", "relaxpy.all_class_non_max_suppression"
    x = i64(3, 1, 3, 2, 1)
    corners = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.9], [2, 2, 3, 3]]], np.float32)
    scores = np.array([[[0.5, 0.9, 0.2]]], np.float32)
    made_finite = "relaxpy.check_made_finite"
    limits = [i64(2), np.array([0.5], np.float32), np.array([0.1], np.float32)]
    rows = np.array([[1, 2], [1, 2], [0, 5]], np.int32)
    return [
        (unique, [x], i64(1, 2, 3)),
        (unique, [x, False], i64(3, 1, 2)),
        (
            unique,
            [x, True, True, True, True],
            (i64(1, 2, 3), i64(1, 3, 0), i64(2, 0, 2, 1, 0), i64(2, 1, 2)),
        ),
        (
            unique,
            [x, False, True, True, True],
            (i64(3, 1, 2), i64(0, 1, 3), i64(0, 1, 0, 2, 1), i64(2, 2, 1)),
        ),
        (unique, [x, True, False, False, True, ()], (i64(1, 2, 3), i64(2, 1, 2))),
        (
            unique,
            [rows, True, False, False, True, 0],
            (np.array([[0, 5], [1, 2]], np.int32), i64(1, 2)),
        ),
        (unique, [f32(2, NAN, 1)], f32(1, 2, NAN)),
        (unique, [i64()], i64()),
        (unique, [np.array([2, 1, 2], ml_dtypes.bfloat16)], np.array([1, 2], ml_dtypes.bfloat16)),
        (nonzero, [np.array([[0, 1], [2, 0]], np.int32)], i64([0, 1], [1, 0])),
        (nonzero, [f32(0, NAN, -0.0)], i64([1])),
        (nonzero, [np.array(True)], i64([0])),
        (nonzero, [np.zeros((2, 2), bool)], np.zeros((2, 0), np.int64)),
        (squeeze, [np.zeros((1, 2, 1), np.float32)], np.zeros(2, np.float32)),
        (squeeze, [np.zeros((1, 2, 1), np.float32), ()], np.zeros(2, np.float32)),
        (squeeze, [np.zeros((1, 2, 1), np.float32), (0,)], np.zeros((2, 1), np.float32)),
        (squeeze, [np.zeros((1, 2, 1), np.float32), (-1,)], np.zeros((1, 2), np.float32)),
        _fails(squeeze, [np.zeros((1, 2), np.float32), (1,)], "shape-value"),
        _fails(squeeze, [np.zeros((1, 2), np.float32), (2,)], "shape-value"),
        (sliced, [GRID, i64(0, 2), i64(2, -4), i64(1, -2)], np.array([[2, 0], [5, 3]], np.float32)),
        (sliced, [f32(1, 2, 3, 4), i64(-3), i64(100), i64(2)], f32(2, 4)),
        (sliced, [f32(1, 2), i64(2), i64(1), i64(1)], f32()),
        _fails(sliced, [f32(1, 2), i64(0), i64(1), i64(0)], "shape-value"),
        ("relaxpy.check_range", [i64(0, 4), 5, "tokens"], i64(0, 4)),
        ("relaxpy.check_range", [i64(), 0, "tokens"], i64()),
        _fails("relaxpy.check_range", [i64(0, 5), 5, "tokens"], "index-range"),
        _fails("relaxpy.check_range", [i64(0, -1), 5, "tokens"], "index-range"),
        ("relaxpy.check_finite", [f32(0, -3), "logits"], f32(0, -3)),
        ("relaxpy.check_finite", [f32(), "logits"], f32()),
        _fails("relaxpy.check_finite", [f32(0, math.nan), "logits"], "not-a-number"),
        _fails("relaxpy.check_finite", [f32(-math.inf, 1), "logits"], "not-a-number"),
        (made_finite, [f32(0, -3), "y", f32(1)], f32(0, -3)),
        (made_finite, [f32(math.inf), "y", f32(1), f32(math.nan)], f32(math.inf)),
        _fails(made_finite, [f32(0, math.inf), "y", f32(1), f32(2, 3)], "not-a-number"),
        _fails(made_finite, [f32(math.nan), "y"], "not-a-number"),
        *_pages(),
        ("relaxpy.check_range", [i64(0, -1), 5, "tokens", -1], i64(0, -1)),
        _fails("relaxpy.check_range", [i64(-2), 5, "tokens", -1], "index-range"),
        (boxes, [corners, scores, *limits, "onnx"], (i64([0, 0, 1], [0, 0, 2]), i64(2))),
        (
            boxes,
            [corners, scores, *limits, "tensorflow"],
            (i64([[0, 1], [0, 2], [0, 0]]), np.array([[0.9, 0.2, 0]], np.float32), i64(2)),
        ),
        (
            boxes,
            [corners, scores, i64(0), *limits[1:], "onnx"],
            (np.zeros((0, 3), np.int64), i64(0)),
        ),
    ]


def _says() -> list[Any]:
    says = "relaxpy.inspect."
    return [
        (says + "shape", [GRID, 1], 3),
        _fails(says + "shape", [GRID, 2], "check"),
        _fails(says + "shape", [GRID, -1], "check"),
        (says + "stride", [GRID, 0], 3),
        (says + "stride", [GRID, 1], 1),
        _fails(says + "stride", [GRID, 2], "check"),
        (says + "ndim", [GRID], 2),
        (says + "ndim", [np.array(1.0)], 0),
        (says + "dtype_code", [GRID], 2),
        (says + "dtype_code", [np.array(True)], 6),
        (says + "dtype_code", [np.array(1, ml_dtypes.bfloat16)], 4),
        (says + "dtype_bits", [GRID], 32),
        (says + "dtype_bits", [np.array(True)], 8),
        (says + "dtype_lanes", [GRID], 1),
        (says + "offset", [GRID], 0),
    ]


def _heap() -> list[Any]:
    """The shape heap functions of TVM's programs."""
    call = "vm.builtin."
    heap = i64(4, 7, 0)
    return [
        (call + "alloc_shape_heap", [3], i64(0, 0, 0)),
        BuiltinCase(
            call + "match_shape",
            [GRID, heap, 2, 0, 2, 1, 2, ""],
            (),
            after=[GRID, i64(4, 7, 3), 2, 0, 2, 1, 2, ""],
        ),
        BuiltinCase(
            call + "match_shape",
            [Shape([4, 9]), heap, 2, 3, 0, 2, 0, ""],
            (),
            after=[Shape([4, 9]), heap, 2, 3, 0, 2, 0, ""],
        ),
        (call + "match_shape", [GRID, None, 2, 0, 2, 2, 0, ""], ()),
        _fails(call + "match_shape", [GRID, None, 2, 0, 5, 2, 0, "x"], "check"),
        _fails(call + "match_shape", [GRID, None, 2, 1, 0, 2, 0, "x"], "check"),
        _fails(call + "match_shape", [GRID, heap, 2, 0, 5, 2, 0, "x"], "check"),
        _fails(call + "match_shape", [GRID, heap, 2, 3, 0, 2, 0, "x"], "check"),
        _fails(call + "match_shape", [GRID, heap, 1, 2, 0, "x"], "check"),
        BuiltinCase(call + "match_prim_value", [9, heap, 1, 0], (), after=[9, i64(9, 7, 0), 1, 0]),
        (call + "match_prim_value", [7, heap, 3, 1, ""], ()),
        _fails(call + "match_prim_value", [8, heap, 3, 1, ""], "check"),
        _fails(call + "match_prim_value", [8, heap, 0, 1, ""], "check"),
        (call + "make_shape", [heap, 3, 0, 5, 1, 1, 1, 0], Shape([5, 7, 4])),
        (call + "make_shape", [None, 2, 0, 5, 0, 3], Shape([5, 3])),
        _fails(call + "make_shape", [None, 1, 1, 0], "check"),
        _fails(call + "make_shape", [i64(-1), 1, 1, 0], "shape-value"),
        (call + "make_prim_value", [heap, 0, 5], 5),
        (call + "make_prim_value", [heap, 1, 1], 7),
        (call + "tuple_getitem", [(1, "b"), 1], "b"),
    ]


def _checks() -> list[Any]:
    call = "vm.builtin.check_"
    tensor, shape, prim, count, func = (
        call + each
        for each in ("tensor_info", "shape_info", "prim_value_info", "tuple_info", "func_info")
    )
    return [
        (tensor, [GRID, 2, "float32", "x"], ()),
        (tensor, [GRID, -1, ""], ()),
        (tensor, [GRID, 2, None, ""], ()),
        (tensor, [GRID, 2, "void", ""], ()),
        _fails(tensor, [GRID, 1, "float32", "x"], "check"),
        _fails(tensor, [GRID, 2, "int32", "x"], "check"),
        _fails(tensor, [3, 0, "float32", "x"], "check"),
        (shape, [Shape([1]), 1, ""], ()),
        (shape, [Shape([1, 2]), -1, ""], ()),
        _fails(shape, [Shape([1]), 2, ""], "check"),
        _fails(shape, [GRID, -1, ""], "check"),
        (prim, [1, "int64", ""], ()),
        (prim, [1.5, "float32", ""], ()),
        (prim, [True, "bool", ""], ()),
        _fails(prim, [1.5, "int64", ""], "check"),
        _fails(prim, ["x", "float32", ""], "check"),
        _fails(prim, [1, "bool", ""], "check"),
        (count, [(1, 2), 2, ""], ()),
        _fails(count, [(1, 2), 1, ""], "check"),
        _fails(count, [1, 1, ""], "check"),
        (func, [FunctionValue("main"), ""], ()),
        _fails(func, [3, ""], "check"),
    ]


def _pages() -> list[Any]:
    """Two sequences of 3 and 1 tokens, of which 2 and 1 are new, in pages of 2; two groups, one with a window of 1."""
    name = "relaxpy.check_pages"
    tables = np.array([[[3, 0], [1, -1]], [[1, 2], [0, 9]]], np.int32)
    good: list[Any] = [
        tables,
        i64(1, 2, 0),
        i64(0, 2, 3),
        i64(3, 1),
        i64(2, 1),
        4,
        2,
        Shape([0, 1]),
    ]

    def other(place: int, value: Any, code: str = "index-range") -> BuiltinCase:
        return _fails(name, [*good[:place], value, *good[place + 1 :]], code)

    wrong, shared = tables.copy(), tables.copy()
    wrong[0, 0, 0], shared[0, 1, 0] = -1, 0
    return [
        (name, good, tables),
        (name, [*good[:4], i64(), *good[5:]], tables),
        other(0, wrong),
        other(0, shared),
        other(0, tables[:1], "shape-mismatch"),
        other(1, i64(1, 2, 1)),
        other(2, i64(0, 1, 3)),
        other(2, i64(0, 2, 4)),
        other(2, i64(), "shape-mismatch"),
        other(3, i64(1, 1)),
        other(3, i64(5, 1)),
        other(4, i64(3)),
        other(5, 3),
    ]
