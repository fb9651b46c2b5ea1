"""Realize: compute on the integers of pairs of quantize and dequantize."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.ir.accessors import expect, known_dims
from relaxpy.ir.annotation import TensorType, TupleType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import (
    Binding,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    ShapeExpr,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
    leaves_of,
)
from relaxpy.ir.module import BaseFunc, IRModule
from relaxpy.ir.names import FreshNames
from relaxpy.op.activation_scheme import quantize_rows
from relaxpy.op.base import Op
from relaxpy.op.binary import Add, Divide, Maximum, Multiply, Subtract
from relaxpy.op.call import CallTIR
from relaxpy.op.conv import Convolution
from relaxpy.op.data_layout import padding_pairs
from relaxpy.op.datatype import Astype
from relaxpy.op.deduce import deduce
from relaxpy.op.join import Concat
from relaxpy.op.linear_algebra import Linear, Matmul
from relaxpy.op.manipulate import ExpandDims, PermuteDims, Squeeze
from relaxpy.op.pad import Pad
from relaxpy.op.pool import MaxPooling
from relaxpy.op.quantization import NARROW, Dequantize, Quantize
from relaxpy.op.reduce import Max, Sum
from relaxpy.op.repetition import Repeat
from relaxpy.op.row_major import Flatten, Reshape
from relaxpy.op.slice import StridedSlice
from relaxpy.op.unary import Abs, Clip
from relaxpy.transform.annotate import TINY, Place, Sources, layer_of
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dequantized import Codes
from relaxpy.transform.rebuild import Rebuilder

_MOVES = (Reshape, Flatten, ExpandDims, Squeeze, PermuteDims, StridedSlice, MaxPooling)
"""Operators whose result has elements of their first argument: they give the same of codes as of numbers."""
_MOST_CODE = 127
"""The largest code of a row."""
_MOST = 2**31 - 1
"""The largest sum."""
SUMS = ("int32", "int16")
"""The dtypes that sums may be declared in."""
_EXACT = ("half_to_even", "half_away")
"""The roundings that give back the codes of numbers that were dequantised: what a division loses is no half."""


@dataclass(frozen=True)
class Realize(Pass):
    """Compute products of quantised tensors on their codes, int8 × int8 → int32. What follows is floats: the scales of
    both factors, a bias, and what else fusion moves into the kernel, such as the `quantize` of the next layer.

    `linear`, `matmul` and convolutions of two `dequantize` are realised, with a scale a tensor, a row (or an index of
    the second last axis) of the first factor, a column or an output channel of the second; where each channel of data
    is summed by itself (depthwise convolutions), one a channel of it, too. Zero points other than the constant 0 are
    subtracted from the sums of a matrix product, as sums of the other factor's codes. So is a constant one of the data
    of a convolution, which is padded with it; others are subtracted from the codes. A sum must be proved to fit into
    int32 from the depth and the ranges of the codes.

    `sums` is the dtype that sums are declared in. With "int16" each is the exact sum, saturated to 16 bits once, so
    that it does not depend on an order: what an accelerator with so few bits gives at best. Processors sum in 32 bits.

    The maxima of windows of dequantised numbers are computed of codes, and dequantised. A `quantize` of a `dequantize`
    with the same scale and zero point is gone, also with operators between that only move elements. Everything else
    stays a computation of floats on dequantised numbers; `realized` lists it with the reason.

    Before:
        @R.function
        def main(
            x: R.Tensor(("n", 4), dtype="int8"), w: R.Tensor((3, 4), dtype="int8")
        ) -> R.Tensor(("n", 3), dtype="float32"):
            with R.dataflow():
                a = R.dequantize(x, R.const(0.5, "float32"), R.const(0, "int8"))
                b = R.dequantize(w, R.const([1.0, 2.0, 3.0], "float32"), R.const(0, "int8"), axis=0)
                y = R.linear(a, b)
                R.output(y)
            return y
    After:
        @R.function
        def main(
            x: R.Tensor(("n", 4), dtype="int8"), w: R.Tensor((3, 4), dtype="int8")
        ) -> R.Tensor(("n", 3), dtype="float32"):
            with R.dataflow():
                a = R.dequantize(x, R.const(0.5, "float32"), R.const(0, "int8"))
                b = R.dequantize(w, R.const([1.0, 2.0, 3.0], "float32"), R.const(0, "int8"), axis=0)
                lv = R.linear(x, w, out_dtype="int32")
                lv1 = R.astype(lv, dtype="float32")
                lv2 = R.multiply(lv1, R.const([1.0, 2.0, 3.0], "float32"))
                y = R.multiply(lv2, R.const(0.5, "float32"))
                R.output(y)
            return y
    """

    name: ClassVar[str] = "realize"
    sums: str = "int32"

    def __post_init__(self) -> None:
        if self.sums not in SUMS:
            raise UsageError("quantization", f"sums are of {' or '.join(SUMS)}, got {self.sums!r}")

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return self.realized(mod)[0]

    def realized(self, mod: IRModule) -> tuple[IRModule, list[Place]]:
        """The module after the pass, and all calls that read a dequantised tensor."""
        realizer = _Realizer(mod, self.sums)
        return realizer.run(), realizer.places


class _StaysError(Exception):
    """Why a call stays a computation of floats."""


class _Realizer(Rebuilder):
    def __init__(self, mod: IRModule, sums: str) -> None:
        super().__init__(mod)
        self.sums = DType(sums)
        self.places: list[Place] = []
        self.calls: dict[Var, Call] = {}
        """The calls that the variables so far are bound to."""
        self.sources = Sources()
        self.function_name = self.value_name = ""
        self.programs: dict[str, BaseFunc] = {}
        """The tensor programs that quantise rows."""
        self._program_names = FreshNames(self.mod.functions)
        self._known: dict[Dim, str] = {}
        """Their names, by the depth."""
        self.row_scales: dict[Expr, Expr] = {}
        """The scales that they compute, by their codes."""
        self.moves: dict[Expr, Place] = {}
        """The entries of the report for the calls that values are results of."""

    def run(self) -> IRModule:
        def change(name: str, function: Function) -> Function:
            self.function_name = name
            return self.function(function)

        result = self.mod.map_graph_functions(change)
        if not self.programs:
            return result
        return result.with_functions({**result.functions, **self.programs})

    def start(self, function: Function) -> None:
        self.sources.start(function)

    def binding(self, binding: Binding) -> None:
        self.value_name = binding.var.name
        count = len(self.places)
        super().binding(binding)
        self.learn()
        if len(self.places) > count:
            self.moves[self.bindings[-1].var] = self.places[-1]

    def emit(self, value: Expr, name: str = "lv", annotation: Any = None) -> Var:
        var = super().emit(value, name, annotation)
        self.learn()
        return var

    def learn(self) -> None:
        """Look at the last binding."""
        binding = self.bindings[-1]
        self.sources.learn(binding)
        if not isinstance(binding, VarBinding):
            return
        if isinstance(binding.value, Call):
            self.calls[binding.var] = binding.value
        elif binding.value in self.row_scales:
            self.row_scales[binding.var] = self.row_scales[binding.value]

    def value(self, value: Expr) -> Expr:
        match value:
            case Call(op=Quantize() as op, args=(x, scale, zero)):
                return self.requantized(op, x, scale, zero) or self.in_rows(value) or value
            case Call(op=Op() as read, args=args) if self.reads_codes(value):
                pass
            case _:
                return value
        layer = layer_of(self.sources.weight(args[1]) if len(args) > 1 else None, self.value_name)
        place = Place(self.function_name, layer, read.name)
        try:
            result = self.realized_call(value)
        except _StaysError as reason:
            self.places.append(replace(place, reason=str(reason)))
            return value
        self.places.append(place)
        return result

    # What is dequantised

    def dequantized(self, expr: Expr) -> Codes | None:
        """The codes of a tensor that is dequantised, perhaps transposed since."""
        call = self.calls.get(expr) if isinstance(expr, Var) else None
        match call:
            case Call(op=Dequantize() as op, args=(codes, scale, zero)):
                kind = deduce(codes, self.mod)
                if not isinstance(kind, TensorType) or kind.dims is None or kind.dtype is None:
                    return None
                made = self.calls.get(codes) if isinstance(codes, Var) else None
                in_rows = codes in self.row_scales
                narrow = in_rows or getattr(made and made.op, "narrow_range", False)
                scale = self.row_scales.get(codes, scale)
                return Codes(op, codes, scale, zero, kind, bool(narrow))
            case _:
                return None

    def moved(self, expr: Expr) -> Codes | None:
        """Likewise; where that is transposed, or rows are arranged in other axes, the codes are."""
        call = self.calls.get(expr) if isinstance(expr, Var) else None
        match call:
            case Call(op=PermuteDims() as move, args=(source,)):
                found = self.dequantized(source)
                if found is None:
                    return None
                axes = move.axes if move.axes is not None else tuple(reversed(range(found.ndim)))
                axis = [axis % found.ndim for axis in axes].index(found.axis)
                return self.with_codes(found, self.emit(move(found.codes)), axis)
            case Call(op=Reshape() as move, args=(source, ShapeExpr(dims=dims) as shape)):
                found = self.dequantized(source)
                if found is None or found.kind.dims is None or not dims:
                    return None
                in_rows = found.ndim == 2 and found.axis == 0 and dims[-1] == found.kind.dims[-1]
                one = self.is_scalar(found.scale) and self.is_scalar(found.zero)
                if not in_rows and not one:
                    return None
                codes = self.emit(move(found.codes, shape))
                return self.with_codes(found, codes, max(len(dims) - 2, 0), None if one else dims)
            case _:
                return self.dequantized(expr)

    def with_codes(
        self, found: Codes, codes: Expr, axis: int, rows: tuple[Dim, ...] | None = None
    ) -> Codes:
        kind = deduce(codes, self.mod)
        assert isinstance(kind, TensorType), "as its source is"
        return replace(found, op=replace(found.op, axis=axis), codes=codes, kind=kind, rows=rows)

    def is_scalar(self, expr: Expr) -> bool:
        """Is it one number?"""
        kind = deduce(expr, self.mod)
        dims = kind.dims if isinstance(kind, TensorType) else None
        return dims is not None and all(dim == 1 for dim in dims)

    # Products

    def reads_codes(self, call: Call) -> bool:
        """Is an argument of a product dequantised, or one of another operator, which is its result then?"""
        if isinstance(call.op, (Linear, Matmul)):
            known = [self.source(arg) for arg in call.args[:2]]
        else:
            # Those of a factor are looked through.
            moved = isinstance(call.op, (Reshape, PermuteDims))
            args = () if moved else call.args
            known = leaves_of(args)
        return any(self.dequantized(arg) is not None for arg in known)

    def source(self, expr: Expr) -> Expr:
        """The argument of a reshape or a transpose; other values themselves."""
        call = self.calls.get(expr) if isinstance(expr, Var) else None
        moves = call is not None and isinstance(call.op, (Reshape, PermuteDims))
        return call.args[0] if call is not None and moves else expr

    def realized_call(self, call: Call) -> Expr:
        match call.op:
            case Linear() | Matmul():
                return self.matrix_product(call)
            case Convolution():
                return self.convolution(call)
            case MaxPooling():
                return _pooled(self, call)
            case _ if isinstance(call.op, (*_MOVES, Concat)):
                raise _StaysError("it moves numbers, and no quantize with the same scale follows")
            case _:
                raise _StaysError("it has no integer form: the kernel computes floats of the codes")

    def factors(self, call: Call) -> tuple[Codes, Codes]:
        """The codes of both factors."""
        op = expect(Op, call.op)
        pair = [self.moved(arg) for arg in call.args[:2]]
        for codes, spec in zip(pair, op.args, strict=False):
            if codes is None:
                raise _StaysError(f"{spec.name} is not quantised")
            if codes.kind.dtype not in ("int8", "uint8"):
                raise _StaysError(f"{spec.name} has codes of {codes.kind.dtype}")
        lhs, rhs = pair
        assert lhs is not None, "as was checked"
        assert rhs is not None, "as was checked"
        return lhs, rhs

    def check_depth(self, depth: Dim, lhs: Codes, rhs: Codes) -> None:
        most = lhs.largest * rhs.largest
        if depth.value is None:
            raise _StaysError(f"sums over {depth} products may not fit into int32")
        if depth.value * most > _MOST:
            raise _StaysError(f"sums over {depth} products of up to {most} do not fit into int32")

    def matrix_product(self, call: Call) -> Expr:
        op = call.op
        assert isinstance(op, (Linear, Matmul)), "as was matched"
        lhs, rhs = self.factors(call)
        if lhs.ndim < 2 or rhs.ndim < 2:
            raise _StaysError("it is of a vector")
        column, depth_axis = (0, 1) if isinstance(op, Linear) else (rhs.ndim - 1, rhs.ndim - 2)
        depth = known_dims(lhs.kind)[-1]
        for name, codes, axis in (("first", lhs, lhs.ndim - 2), ("second", rhs, column)):
            scalar = self.is_scalar(codes.scale) and self.is_scalar(codes.zero)
            if not scalar and codes.axis != axis:
                raise _StaysError(
                    f"the {name} factor has scales along axis {codes.axis}, not {axis}"
                )
        self.check_depth(depth, lhs, rhs)
        # Before the product, so that several of one argument can be joined with what follows them.
        scales = [self.factor(c.scale, c, is_row=c is lhs) for c in (rhs, lhs)]
        total: Expr = self.emit(replace(op, out_dtype=DType("int32"))(lhs.codes, rhs.codes))
        sums = Sum((depth_axis,), keepdims=isinstance(op, Matmul))
        left, right = (self.factor(c.zero, c, is_row=c is lhs) for c in (lhs, rhs))
        if lhs.is_shifted:
            of_columns = self.emit(sums(self.wide(rhs.codes)))
            if rhs.is_shifted:
                shift = self.emit(Multiply()(self.wide(right), self.count(depth)))
                of_columns = self.emit(Subtract()(of_columns, shift))
            total = self.emit(Subtract()(total, self.emit(Multiply()(of_columns, self.wide(left)))))
        if rhs.is_shifted:
            of_rows = self.emit(Sum((-1,), keepdims=True)(self.wide(lhs.codes)))
            total = self.emit(Subtract()(total, self.emit(Multiply()(of_rows, self.wide(right)))))
        return self.scaled(call, total, scales, *call.args[2:])

    def scaled(self, call: Call, total: Expr, scales: Sequence[Expr], *bias: Expr) -> Expr:
        """The floats of sums: times both scales, with a bias."""
        if self.sums != "int32":
            inside = self.emit(Clip(*map(int, self.sums.limits))(total))
            total = self.emit(Astype(self.sums)(inside))
        value: Expr = self.emit(Astype(DType("float32"))(total))
        right, left = map(self.as_float32, scales)
        value = self.emit(Multiply()(value, right))
        result = Multiply()(value, left, span=call.span)
        for each in bias:
            result = Add()(self.emit(result), self.as_float32(each), span=call.span)
        wanted = expect(TensorType, deduce(call, self.mod))
        if wanted.dtype in ("float32", None):
            return result
        return Astype(DType(wanted.dtype))(self.emit(result), span=call.span)

    def factor(self, expr: Expr, codes: Codes, *, is_row: bool) -> Expr:
        """The scales or zero points of a factor of a matrix product, in a shape that meets the product."""
        if self.is_scalar(expr):
            kind = expect(TensorType, deduce(expr, self.mod))
            return expr if not kind.dims else self.emit(Reshape()(expr, ShapeExpr(())))
        if not is_row:
            return expr
        assert codes.kind.dims is not None, "as was checked"
        dims = (
            codes.kind.dims[codes.axis : codes.axis + 1] if codes.rows is None else codes.rows[:-1]
        )
        return self.emit(Reshape()(expr, ShapeExpr((*dims, Dim.of(1)))))

    def wide(self, expr: Expr) -> Expr:
        if isinstance(expr, Constant):
            return Constant(expr.data.astype(np.int32))
        return self.emit(Astype(DType("int32"))(expr))

    def count(self, depth: Dim) -> Expr:
        return Constant(np.array(depth.value, np.int32))

    def as_float32(self, expr: Expr) -> Expr:
        kind = deduce(expr, self.mod)
        is_float32 = isinstance(kind, TensorType) and kind.dtype == "float32"
        return expr if is_float32 else self.emit(Astype(DType("float32"))(expr))

    def convolution(self, call: Call) -> Expr:
        op = expect(Convolution, call.op)
        lhs, rhs = self.factors(call)
        layouts = op.layouts()
        if any(layout.blocks for layout in layouts):
            raise _StaysError("its layout has blocks")
        apart = not (self.is_scalar(lhs.scale) and self.is_scalar(lhs.zero))
        if apart and lhs.axis != layouts[0].letters.index("C"):
            raise _StaysError(f"the data has scales along axis {lhs.axis}, which windows cross")
        if apart and (rhs.kind.dims or ())[layouts[1].letters.index("I")] != 1:
            raise _StaysError("the data has several scales, and a sum is over several channels")
        channel = layouts[1].letters.index("O")
        if apart and (rhs.kind.dims or ())[channel].value is None:
            raise _StaysError(
                "the data has several scales, and how many results each has is not known"
            )
        one = self.is_scalar(rhs.scale) and self.is_scalar(rhs.zero)
        if not one and rhs.axis != channel:
            raise _StaysError(f"the weight has scales along axis {rhs.axis}, not {channel}")
        depth = Dim.of(1)
        for axis, dim in enumerate(rhs.kind.dims or ()):
            depth = depth if axis == channel else depth * dim
        self.check_depth(depth, lhs, rhs)
        total = self.sums_of_windows(op, lhs, rhs)
        count = (rhs.kind.dims or ())[channel]
        scales = [_of_channels(self, op, codes.scale, codes, count) for codes in (rhs, lhs)]
        return self.scaled(call, total, scales)

    def sums_of_windows(self, op: Convolution, lhs: Codes, rhs: Codes) -> Expr:
        """The sums of a convolution of codes. A zero point of the data that is constant is subtracted from the sums, as
        those of the weight's codes: data is padded with it before."""
        product = replace(op, out_dtype=DType("int32"))
        zero = lhs.zero
        shifted = lhs.is_shifted and not rhs.is_shifted
        if not shifted or not isinstance(zero, Constant) or len(np.unique(zero.data)) > 1:
            return self.emit(product(self.unshifted(lhs), self.unshifted(rhs)))
        data, kernel, result = op.layouts()
        number = int(zero.data.flat[0])
        pairs = dict(zip(op.spatial, padding_pairs(op.padding, len(op.spatial)), strict=True))
        codes = lhs.codes
        if any(map(any, pairs.values())):
            widths = [n for letter in data.letters for n in pairs.get(letter, (0, 0))]
            codes = self.emit(Pad(tuple(widths), pad_value=float(number))(codes))
        total = self.emit(replace(product, padding=0)(codes, rhs.codes))
        channel = kernel.letters.index("O")
        over = tuple(axis for axis in range(rhs.ndim) if axis != channel)
        shift: Expr = self.emit(Sum(over)(self.wide(rhs.codes)))
        shift = self.emit(Multiply()(shift, Constant(np.array(number, np.int32))))
        dims = [Dim.of(1)] * len(result.letters)
        dims[result.letters.index("C")] = (rhs.kind.dims or ())[channel]
        shift = self.emit(Reshape()(shift, ShapeExpr(tuple(dims))))
        return self.emit(Subtract()(total, shift))

    def unshifted(self, codes: Codes) -> Expr:
        """The codes less their zero point: padding with 0 is the number 0 then."""
        if not codes.is_shifted:
            return codes.codes
        zero = codes.zero
        if not self.is_scalar(zero):
            dims = [Dim.of(1)] * codes.ndim
            dims[codes.axis] = (codes.kind.dims or ())[codes.axis]
            zero = self.emit(Reshape()(zero, ShapeExpr(tuple(dims))))
        else:
            zero = self.factor(zero, codes, is_row=True)
        parts = [self.emit(Astype(DType("int16"))(each)) for each in (codes.codes, zero)]
        return self.emit(Subtract()(*parts))

    # Rows whose scales are computed of them

    def in_rows(self, call: Call) -> Expr | None:
        """The codes of a matrix whose rows have the scales that `Annotate` computes of them, by a program that does
        both; None for another quantisation."""
        op, (x, scale, zero) = expect(Quantize, call.op), call.args
        kind = deduce(x, self.mod)
        if not isinstance(kind, TensorType) or kind.dtype != "float32" or len(kind.dims or ()) != 2:
            return None
        if self.sources.is_weight(
            x
        ):  # what is computed of constants is folded operator by operator
            return None
        if replace(op, axis=0) != Quantize(0, narrow_range=True) or op.axis not in (0, -2):
            return None
        if not isinstance(zero, Constant) or np.any(zero.data):
            return None
        read = self.read(scale, Maximum, TINY)
        read = self.read(read, Divide, _MOST_CODE)
        most = self.calls.get(read) if isinstance(read, Var) else None
        if most is None or most.op != Max((1,)):
            return None
        sizes = self.calls.get(most.args[0]) if isinstance(most.args[0], Var) else None
        if sizes is None or not isinstance(sizes.op, Abs) or sizes.args[0] is not x:
            return None
        assert kind.dims is not None, "as was checked"
        types = (TensorType(kind.dims, "int8"), TensorType(kind.dims[:1], "float32"))
        program = GlobalVar(self.program(kind.dims[1]))
        whole = Call(CallTIR(), (program, Tuple((x,))), types, span=call.span)
        made = self.emit(whole, "rows", TupleType(types))
        codes = self.emit(TupleGetItem(made, 0), "codes")
        self.row_scales[codes] = self.emit(TupleGetItem(made, 1), "scale")
        return codes

    def read(self, expr: Expr | None, kind: type[Op], by: float) -> Expr | None:
        """The first argument of a call of this operator whose second is this number."""
        call = self.calls.get(expr) if isinstance(expr, Var) else None
        if call is None or type(call.op) is not kind or not isinstance(call.args[1], Constant):
            return None
        number = call.args[1].data
        return call.args[0] if number.ndim == 0 and number == np.float32(by) else None

    def program(self, depth: Dim) -> str:
        """The name of the program for rows of this depth."""
        if depth not in self._known:
            self._known[depth] = name = self._program_names.fresh("quantize_rows")
            kind = TensorType((SymVar("rows"), depth), "float32")
            self.programs[name] = quantize_rows(kind, _MOST_CODE, TINY)
        return self._known[depth]

    # Pairs that meet

    def requantized(self, op: Quantize, x: Expr, scale: Expr, zero: Expr) -> Expr | None:
        """The codes of what is quantised again by the same scale; None if there are none."""
        if op.rounding not in _EXACT or op.out_dtype not in NARROW:
            return None
        return self.codes_of(op, x, scale, zero)

    def codes_of(self, op: Quantize, x: Expr, scale: Expr, zero: Expr) -> Expr | None:
        own = self.dequantized(x)
        if own is not None:
            same = own.kind.dtype == op.out_dtype and (own.narrow or not op.narrow_range)
            same = same and _equal(own.scale, scale) and _equal(own.zero, zero)
            one = self.is_scalar(scale) and self.is_scalar(zero)
            return own.codes if same and (one or own.op.axis == op.axis) else None
        call = self.calls.get(x) if isinstance(x, Var) else None
        if call is None or not (self.is_scalar(scale) and self.is_scalar(zero)):
            return None
        match call:
            case Call(op=Concat() as joins, args=(Tuple(fields=fields),)):
                codes = [self.codes_of(op, field, scale, zero) for field in fields]
                found = [each for each in codes if each is not None]
                if len(found) < len(fields):
                    return None
                self.is_of_codes(x)
                return joins(Tuple(tuple(found)))
            case Call(op=moves, args=(source, *rest)) if isinstance(moves, _MOVES):
                codes = self.codes_of(op, source, scale, zero)
                if codes is None:
                    return None
                self.is_of_codes(x)
                return moves(codes if isinstance(codes, Var) else self.emit(codes), *rest)
            case _:
                return None

    def is_of_codes(self, moved: Expr) -> None:
        """Report that what computes this value is computed of codes after all."""
        place = self.moves.pop(moved, None)
        if place is not None:
            self.places[self.places.index(place)] = replace(place, reason="")


def _equal(a: Expr, b: Expr) -> bool:
    """Are two scales or zero points known to be the same?"""
    if isinstance(a, Constant) and isinstance(b, Constant):
        return bool(a.data.shape == b.data.shape and np.array_equal(a.data, b.data))
    return a is b


def _of_channels(r: _Realizer, op: Convolution, scale: Expr, codes: Codes, count: Dim) -> Expr:
    """The scales of a factor of a convolution, in a shape that meets the `count` channels of the result, each of
    which is computed of one channel of data if that has several."""
    if r.is_scalar(scale):
        return r.factor(scale, codes, is_row=True)
    letters = op.layouts()[2].letters
    own = (codes.kind.dims or ())[codes.axis]
    if own != count:
        scale = r.emit(Repeat((count.value or 0) // op.groups)(scale))
    dims = [count if letter == "C" else Dim.of(1) for letter in letters]
    return r.emit(Reshape()(scale, ShapeExpr(tuple(dims))))


def _pooled(r: _Realizer, call: Call) -> Expr:
    """The largest codes of windows, dequantised: what reads them may read the codes."""
    own = r.dequantized(call.args[0])
    assert own is not None, "it reads codes"
    scale = own.scale.data if isinstance(own.scale, Constant) else None
    if scale is None or scale.size != 1 or not scale.min() > 0 or not r.is_scalar(own.zero):
        raise _StaysError("the largest numbers are those of the largest codes of one scale")
    codes = r.emit(replace(call, span=None, args=(own.codes,)), "codes")
    return replace(call, op=own.op, args=(codes, own.scale, own.zero))
