"""FoldConstant: evaluate at compile time the values that depend only on constants and known shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from relaxpy.analysis.escape import escaping
from relaxpy.analysis.in_place import state, updated
from relaxpy.analysis.removable import is_size
from relaxpy.analysis.shape_values import LARGEST, MOVING, NotKnownError, evaluate, symbolic
from relaxpy.errors import DeduceError, RelaxError, RuntimeCheckError
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import Dim, product
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import (
    Binding,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    MatchCast,
    PrimValue,
    ShapeExpr,
    Tuple,
    TupleGetItem,
    Var,
)
from relaxpy.ir.module import BufferParam, IRModule
from relaxpy.ir.op import Operator
from relaxpy.ir.visitor import used_vars
from relaxpy.narrow import arrays_in, is_ndarray, is_sequence
from relaxpy.op.base import Op
from relaxpy.op.binary import Add, Divide, Maximum, Minimum, Multiply, Subtract
from relaxpy.op.call import CallTIR
from relaxpy.op.compare import Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual
from relaxpy.op.create import Full, FullLike, Ones, OnesLike, Zeros, ZerosLike
from relaxpy.op.datatype import Astype
from relaxpy.op.deduce import deduce
from relaxpy.op.elementwise import Elementwise
from relaxpy.op.gather import GatherND, IndexTensor
from relaxpy.op.intrinsic import ShapeOf, ShapeToTensor, TensorToShape
from relaxpy.op.quantization import Quantize
from relaxpy.op.recurrent_steps import RecurrentPanels
from relaxpy.op.reduce import Max, Min
from relaxpy.op.row_major import Size
from relaxpy.op.search import Where
from relaxpy.op.triangle import Tril, Triu
from relaxpy.op.unary import Abs, Ceil, Floor, Negative, Round, Sqrt, Square, Trunc
from relaxpy.tir.constant import run_on_constants
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dataflow_vars import with_outputs
from relaxpy.transform.rebuild import Rebuilder

MOVES: tuple[type[Operator], ...] = (
    *MOVING,
    GatherND,
    IndexTensor,
    Where,
    Triu,
    Tril,
    Zeros,
    ZerosLike,
    Ones,
    OnesLike,
    Full,
    RecurrentPanels,
    FullLike,
    Max,
    Min,
)
"""Operators that only move or select elements: exact in every dtype."""
ROUNDED: tuple[type[Operator], ...] = (
    Add,
    Subtract,
    Multiply,
    Divide,
    Sqrt,
    Square,
    Negative,
    Abs,
    Floor,
    Ceil,
    Round,
    Trunc,
    Maximum,
    Minimum,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Astype,
    Quantize,
)
"""Floating-point operators with one correct result (IEEE 754), on which reference and kernel agree in these dtypes:"""
ROUNDED_DTYPES = ("float32", "float64")
CAST_DTYPES = ("float32", "float64", "float16", "bfloat16")
"""Dtypes between which `astype` is exact."""


@dataclass(frozen=True)
class FoldConstant(Pass):
    """Replace calls with constant arguments by their results (`FoldConstant` in TVM), as computed by the operator's
    `reference`. A call is folded only if the result is bit-identical to the kernel's: integers, operators that only
    move elements, and single roundings in float32 and float64. Other floating-point results, and results that are NaN,
    are left to the kernels. Calls of tensor programs on integer constants are folded, too.

    Shapes computed with tensors stay symbolic. `shape_to_tensor`, slices and arithmetic on its result, and
    `tensor_to_shape` become the `R.shape` that they evaluate to, and reshapes by it become exact.

    Before:
        @R.function
        def main(x: R.Tensor(("n", 4, 8), dtype="float32")) -> R.Tensor(dtype="float32", ndim=2):
            s = R.shape_of(x)
            t = R.shape_to_tensor(s)
            n = R.strided_slice(t, axes=[0], begin=[0], end=[1])
            rest = R.add(R.const([16], "int64"), R.const([16], "int64"))
            u = R.concat((n, rest))
            v = R.tensor_to_shape(u)
            y = R.reshape(x, v)
            return y
    After:
        @R.function
        def main(x: R.Tensor(("n", 4, 8), dtype="float32")) -> R.Tensor(dtype="float32", ndim=2):
            n = T.int64()
            t = R.shape_to_tensor(R.shape([n, 4, 8]))
            n_1 = R.strided_slice(t, axes=[0], begin=[0], end=[1])
            u = R.concat((n_1, R.const([32], "int64")))
            y = R.reshape(x, R.shape([n, 32]))
            return y
    """

    name: ClassVar[str] = "fold-constant"
    level: ClassVar[int] = 2
    max_bytes: int = 1 << 16
    """A result larger than both this and the constants it is computed from is left to run time."""
    max_work: int = 1 << 14
    """The most elements that may be computed by a tensor program, or by an operator that is neither element-wise nor
    moves elements.
    """

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        folded = _Folder(mod, self).run()
        if folded is mod:
            return mod
        return folded.map_graph_functions(lambda _, f: with_outputs(f))


class _Folder(Rebuilder):
    """Walks forward. Variables that become constants or shapes are replaced at their uses."""

    def __init__(self, mod: IRModule, limits: FoldConstant) -> None:
        super().__init__(mod)
        self.limits = limits
        self.tuples: dict[Var, Tuple] = {}
        """Tuples whose fields are all constants."""
        self.dims: dict[Var, Any] = {}
        """Integer tensors, and tuples of them, whose elements are known as dimensions."""
        self.kept: frozenset[Var] = frozenset()
        """Tensors that a call may update in place. They must not become constants."""
        self.state: frozenset[Var] = frozenset()
        """Memory of the caller that a call may update. Its uses are never removed."""
        self.is_local = False
        """Is it in a function of the module, and so also in its local functions?"""

    def function(self, function: Function) -> Function:
        outer = self.kept, self.state, self.is_local
        self.kept |= escaping(function)
        if not self.is_local:
            self.kept |= updated(function.body)
        self.state |= state(function)
        self.is_local = True
        result = super().function(function)
        self.kept, self.state, self.is_local = outer
        return result

    def binding(self, binding: Binding) -> None:
        if isinstance(binding, MatchCast) or not isinstance(binding.value, (Call, TupleGetItem)):
            super().binding(binding)
            return
        value = self.use(binding.value)
        is_state = bool(self.state) and not self.state.isdisjoint(used_vars(value))
        found = None if is_state else self.folded(value)
        if isinstance(found, ShapeExpr) or (
            isinstance(found, Constant) and binding.var not in self.kept
        ):
            self.vars[binding.var] = found
            return
        super().binding(binding)
        var = self.bindings[-1].var
        if isinstance(found, Tuple) and binding.var not in self.kept:
            self.tuples[var] = found
        self.know(var, value)

    def folded(self, value: Expr) -> Expr | None:
        """The constant, tuple of constants or shape that a value evaluates to; None if it is not known."""
        match value:
            case TupleGetItem(tuple=Var() as whole, index=index) if whole in self.tuples:
                return self.tuples[whole].fields[index]
            case Call(op=ShapeOf(), args=(source,)):
                return self.shape_of(source)
            case Call(op=TensorToShape(), args=(source,)):
                return self.shape_from(source)
            case Call(op=Op() as op) as call:
                return self.operator(op, call)
            case (
                Call(op=CallTIR(), args=(GlobalVar(name=name), Tuple(fields=fields), *rest)) as call
            ) if not rest:
                return self.program(name, fields, call)
            case _:
                return None

    # Shapes

    def shape_of(self, source: Expr) -> Expr | None:
        annotation = deduce(source, self.mod)
        dims = annotation.dims if isinstance(annotation, TensorType) else None
        return None if dims is None else ShapeExpr(dims)

    def shape_from(self, source: Expr) -> Expr | None:
        dims = self.known_dims(source)
        if not is_ndarray(dims) or dims.ndim != 1 or not all(map(is_size, dims)):
            return None
        return ShapeExpr(list(dims))

    def known_dims(self, expr: Expr) -> Any:
        """The elements of an argument as dimensions (constants and shapes are returned unchanged); None if they are not
        known."""
        match expr:
            case Var() if expr in self.dims:
                return self.dims[expr]
            case Constant(data=data) if data.size <= LARGEST:
                return symbolic(data) if data.dtype == np.int64 else data
            case Tuple(fields=fields):
                found = tuple(map(self.known_dims, fields))
                return None if any(item is None for item in found) else found
            case ShapeExpr() | PrimValue():
                return _plain(expr)
            case _:
                return None

    def know(self, var: Var, value: Expr) -> None:
        """Record the elements of an integer tensor if they are dimensions."""
        try:
            found = self.dims_of(value)
        except (NotKnownError, RelaxError):
            return
        if found is not None:
            self.dims[var] = found

    def dims_of(self, value: Expr) -> Any:
        match value:
            case Call(op=ShapeToTensor(), args=(source,)):
                annotation = deduce(source, self.mod)
                known = annotation.dims if isinstance(annotation, ShapeType) else None
                return None if known is None or len(known) > LARGEST else symbolic(known)
            case Call(op=Size(), args=(source,)):
                annotation = deduce(source, self.mod)
                known = annotation.dims if isinstance(annotation, TensorType) else None
                return None if known is None else symbolic([product(known)]).reshape(())
            case TupleGetItem(tuple=Var() as whole, index=index) if whole in self.dims:
                return self.dims[whole][index]
            case Call(op=Op() as op, args=args) if args:
                given: list[Any] = []
                for arg in args:
                    dims = self.known_dims(arg)
                    if dims is None:  # nearly always the first one holds
                        return None
                    given.append(dims)
                first, *others = given
                return evaluate(op, [first, *map(_integers, others)])
            case _:
                return None

    # Constants

    def operator(self, op: Op, call: Call) -> Expr | None:
        """The result of an operator on constants, if it is exact and small enough."""
        if not op.pure or op.legalize is None:
            return self.whole(call)
        args: list[Any] = []
        for arg in call.args:
            value = self.constant(arg)
            if value is None:
                return self.whole(call)
            args.append(value)
        try:
            out = deduce(call, self.mod)
        except DeduceError:
            return None
        tensors = arrays_in(tuple(args))
        types = _types(out)
        if types is None or not self.exact(
            op, [str(t.dtype) for t in tensors] + [str(t.dtype) for t in types]
        ):
            return None
        sizes = [product(t.dims or ()).value or 0 for t in types]
        size = sum(
            n * DType(t.dtype or "bool").numpy.itemsize for n, t in zip(sizes, types, strict=True)
        )
        given = sum(
            {id(t): t.nbytes for t in tensors}.values()
        )  # one that is joined to itself grows
        if size > max(self.limits.max_bytes, given):
            return None
        cheap = isinstance(op, (*MOVES, Elementwise, Astype, Quantize))
        if not cheap and sum(sizes) + sum(t.size for t in tensors) > self.limits.max_work:
            return None
        given_args = [
            None
            if _left_out(op, i, arg)
            else op.as_array(i, arg, getattr(call.args[i], "dtype", None))
            for i, arg in enumerate(args)
        ]
        try:
            with np.errstate(all="ignore"):
                result = op.reference(*given_args)
        except RelaxError:
            return None  # the running program reports the error
        return _constants(result, out, isinstance(op, MOVES))

    def exact(self, op: Op, dtypes: list[str]) -> bool:
        """Is the reference bit-identical to the kernel?"""
        floats = {dtype for dtype in dtypes if "float" in dtype}
        if not floats or isinstance(op, MOVES):
            return True
        allowed = CAST_DTYPES if type(op) is Astype else ROUNDED_DTYPES
        return type(op) in ROUNDED and floats.issubset(allowed)

    def whole(self, call: Call) -> Expr | None:
        """The constant for an integer tensor whose elements are all known."""
        try:
            found = self.dims_of(call)
        except (NotKnownError, RelaxError):
            return None
        if not is_ndarray(found) or any(dim.value is None for dim in found.flat):
            return None
        values = [dim.value for dim in found.flat]
        if not all(-(1 << 63) <= value < 1 << 63 for value in values):
            return None
        return Constant(np.array(values, np.int64).reshape(found.shape))

    def constant(self, expr: Expr) -> Any:
        """The value of an argument; None if it is not known."""
        match expr:
            case Constant(data=data):
                return data
            case Var() if expr in self.tuples:
                return self.constant(self.tuples[expr])
            case Tuple(fields=fields):
                found = tuple(map(self.constant, fields))
                return None if any(item is None for item in found) else found
            case ShapeExpr() | PrimValue():
                return _plain(expr)
            case _:
                return None

    def program(self, name: str, fields: tuple[Expr, ...], call: Call) -> Expr | None:
        """The result of a tensor program on integer constants."""
        program = self.mod.functions.get(name)
        args = [self.constant(field) for field in fields]
        if not isinstance(program, PrimFunc) or not all(isinstance(a, np.ndarray) for a in args):
            return None
        params = program.params
        outs = [t for t in call.ty_args if isinstance(t, TensorType)]
        known = all(isinstance(p, BufferParam) and not p.dtype.is_float for p in params)
        sizes = [product(t.dims or ()).value for t in outs]
        work = None if program.work is None else program.work.value
        if not known or None in sizes or work is None or work > self.limits.max_work:
            return None
        made = [(_sizes(t.dims), DType(t.dtype or "bool").numpy) for t in outs]
        try:
            outputs = run_on_constants(program, args, made)
        except (RuntimeCheckError, RuntimeError):
            return None  # the running program reports the error
        out = outs[0] if len(outs) == 1 else TupleType(outs)
        return _constants(outputs[0] if len(outs) == 1 else outputs, out, True)


def _plain(expr: ShapeExpr | PrimValue) -> Any:
    """The value of a shape or scalar without symbols; None if it has symbols."""
    if isinstance(expr, ShapeExpr):
        return _sizes(expr.dims)
    return expr.value.value if isinstance(expr.value, Dim) else expr.value


def _sizes(dims: tuple[Dim, ...] | None) -> Any:
    values = tuple(dim.value for dim in dims or ())
    return None if None in values else values


def _integers(value: Any) -> Any:
    """An argument that gives positions of elements, as numbers if they are known."""
    if is_ndarray(value) and value.dtype == object:
        numbers = [dim.value for dim in value.flat]
        if None not in numbers:
            return np.array(numbers, np.int64).reshape(value.shape)
    return value


def _types(annotation: Annotation) -> list[TensorType] | None:
    """The tensor types of a result; None unless all have known, constant shapes."""
    match annotation:
        case TensorType() if annotation.dims is not None and annotation.dtype is not None:
            return [annotation] if all(dim.value is not None for dim in annotation.dims) else None
        case TupleType(fields=fields):
            found = [_types(field) for field in fields]
            return None if None in found else [t for types in found for t in types or ()]
        case _:
            return None


def _left_out(op: Op, place: int, value: Any) -> bool:
    """Is this the empty tuple that represents an omitted optional argument?"""
    spec = op.args[place]
    return (
        spec.optional
        and isinstance(value, tuple)
        and not value
        and spec.kind not in (TupleType, ShapeType)
    )


def _constants(result: Any, out: Annotation, moved: bool) -> Expr | None:
    """Return a result as constants if it has the deduced type. A computed NaN is left to the kernel, which may choose
    other bits.
    """
    if isinstance(out, TupleType):
        if not is_sequence(result) or len(result) != len(out.fields):
            return None
        fields = [_constants(r, t, moved) for r, t in zip(result, out.fields, strict=True)]
        return None if None in fields else Tuple(tuple(f for f in fields if f is not None))
    array = np.asarray(result)
    out = expect(TensorType, out)
    if array.dtype != DType(out.dtype or "bool").numpy or array.shape != _sizes(out.dims):
        return None
    if not moved and array.dtype.kind == "f" and np.isnan(array).any():
        return None
    return Constant.shared(np.ascontiguousarray(array).reshape(array.shape))
