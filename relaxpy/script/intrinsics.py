"""The members of R that are no operators: statements, constants, scalars, shapes, devices.

Cross-level calls are in `relaxpy.script.calls`. `relaxpy.script.relax` gives all of them their names in the script.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, overload

import numpy as np

from relaxpy.errors import ScriptError
from relaxpy.ir.array import of_numbers
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import (
    Call,
    Constant,
    DataTypeImm,
    Expr,
    ExternFunc,
    Function,
    PrimValue,
    ShapeExpr,
    StringImm,
    Tuple,
    TupleGetItem,
)
from relaxpy.ir.python_operator import LONGEST
from relaxpy.op.base import as_expr
from relaxpy.op.create import Full
from relaxpy.script.annotations import DimReader, as_dim
from relaxpy.script.describe import describe
from relaxpy.script.dialects.older_words import DEVICE_TYPES


class Statement:
    """A word with a meaning only at its place in a function; the parser recognises it by identity."""

    def __init__(self, name: str, usage: str) -> None:
        self.name = name
        self.usage = usage
        self.__doc__ = f"A statement: `{usage}`."

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ScriptError(
            "statement-place",
            f"R.{self.name} is allowed only in a function decorated with @R.function",
            help=f"write {self.usage}",
        )

    def __repr__(self) -> str:
        return f"R.{self.name}"


dataflow = Statement("dataflow", "with R.dataflow(): …")
output = Statement("output", "R.output(y) as the last statement of a dataflow block")
match_cast = Statement("match_cast", 'y = R.match_cast(x, R.Tensor(("m",), "float32"))')
func_attr = Statement("func_attr", 'R.func_attr({"key": 1}) as the first statement of a function')


@overload
def function(func: Callable[..., Any]) -> Function: ...
@overload
def function(*, private: bool = False, pure: bool = True, name: str | None = None) -> Any: ...
def function(
    func: Any = None,
    *,
    private: bool = False,
    pure: bool = True,
    name: str | None = None,
    check_well_formed: bool = True,
) -> Any:
    """Decorator that turns a Python function into a graph-level function: `@R.function`, `@R.function(private=True,
    pure=False)`.

    In a class decorated with `@I.ir_module` the function is left as it is: the class is parsed as a whole.
    """
    del private, pure, name, check_well_formed  # parsed from the source
    if func is None:
        return function
    from relaxpy.script.parser import in_class_body, parse_decorated_function

    frame = sys._getframe(1)
    return func if in_class_body(frame) else parse_decorated_function(func, frame)


def const(value: Any, dtype: str | None = None) -> Constant | Call:
    """A tensor constant from a number, nested lists or an array. Python floats become float32, integers int32 (as in
    TVM). A size or a scalar gives a tensor of its value: `R.full((), n)`."""
    if isinstance(value, Constant):
        value = value.data
    if isinstance(value, (PrimValue, Dim, SymVar)):
        return Full.make((), value, *(() if dtype is None else (dtype,)))
    if isinstance(value, Expr):
        raise ScriptError(
            "bad-value",
            "R.const takes a Python value, not a value of the program",
            help="use the value without R.const",
        )
    if isinstance(dtype, DataTypeImm):
        dtype = dtype.dtype
    if not isinstance(value, (np.ndarray, np.generic)) and hasattr(value, "__dlpack__"):
        value = np.from_dlpack(value)
    if isinstance(value, (list, tuple)) and _count(value) > LONGEST:
        raise ScriptError(
            "bad-value",
            "this constant has too many elements for nested lists",
            help="pass a numpy array to R.const, in a decorated function",
        )
    array = of_numbers(value)
    wide = [v for v in array.flat if isinstance(v, int)] if array.dtype.kind == "O" else []
    if wide and len(wide) == array.size:
        largest = max(wide, key=abs)
        raise ScriptError(
            "bad-value", f"R.const: {_shortly(largest)} is out of range of all integer dtypes"
        )
    if array.dtype.kind in "OUSM":
        raise ScriptError("bad-value", f"a constant cannot be made of {type(value).__name__}")
    if dtype is None and not isinstance(value, (np.ndarray, np.generic)):
        dtype = {"f": "float32", "i": "int32"}.get(array.dtype.kind)
    if dtype is not None and not _fits(array, DType(dtype)):
        raise ScriptError(
            "bad-value",
            f"R.const: {_shortly(value)} does not fit {dtype}",
            help="use a wider dtype, or cast: R.astype(R.const(…), dtype)",
        )
    try:
        with np.errstate(over="raise"):
            constant = Constant(array, dtype)
        if _are_as_finite(constant.data, array):
            return constant
        problem = f"a number is too large for {dtype}"
    except FloatingPointError:
        problem = f"a number is too large for {dtype or array.dtype}"
    except OverflowError as error:
        problem = str(error)
    raise ScriptError("bad-value", f"R.const: {problem}")


def _are_as_finite(converted: np.ndarray, array: np.ndarray) -> bool:
    """Are infinities and NaN in the same places as before the conversion? numpy raises an overflow only for conversions
    from float64."""
    if array.dtype.kind not in "iuf" or not DType(converted.dtype).is_narrow:
        return True
    wide, before = converted.astype(np.float32), array.astype(np.float64)
    return bool(np.all((np.isnan(wide) == np.isnan(before)) & (np.isinf(wide) == np.isinf(before))))


def _fits(array: np.ndarray, dtype: DType) -> bool:
    """Are all numbers representable in the integer dtype? Other dtypes always fit: floats are rounded."""
    if not dtype.is_int or array.dtype.kind == "b" or not array.size:
        return True
    low, high = dtype.limits
    whole = array.dtype.kind in "iu" or bool(np.all(np.trunc(array) == array))
    return whole and low <= array.min().item() and array.max().item() <= high


def _shortly(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


def _count(value: Any) -> int:
    """The approximate number of elements in nested lists."""
    count = 1
    while isinstance(value, (list, tuple)) and value:
        count *= len(value)
        value = value[0]
    return count


def shape(dims: Any) -> ShapeExpr:
    """A shape value: `R.shape([n, 4])`."""
    if isinstance(dims, ShapeExpr):
        return dims
    if not isinstance(dims, (tuple, list)):
        raise ScriptError(
            "bad-value",
            f"R.shape takes a list of dimensions, not {describe(dims)}",
            help="write R.shape([n, 4])",
        )
    read = DimReader()
    found = [read(value) for value in dims]
    for dim in found:
        if dim.value is not None and dim.value >= 1 << 63:
            raise ScriptError("bad-value", f"a size must fit into 64 bits: {dim}")
    return ShapeExpr(found)


def prim_value(value: Any, dtype: str | None = None) -> PrimValue:
    """A scalar: `R.prim_value(n + 1)`, `R.prim_value(0.5)`."""
    if isinstance(value, PrimValue):
        return value
    if isinstance(value, (bool, float)):
        return PrimValue(value, dtype)
    dim = as_dim(value)
    if dim is None:
        raise ScriptError(
            "bad-value",
            f"R.prim_value takes a number or an expression of dimensions, not {describe(value)}",
        )
    return PrimValue(dim, dtype)


def string(value: Any) -> StringImm:
    """A string argument."""
    return value if isinstance(value, StringImm) else StringImm(str(value))


def data_type(value: Any) -> DataTypeImm:
    """A dtype argument."""
    return value if isinstance(value, DataTypeImm) else DataTypeImm(DType(value))


def device(device_type: Any = "cpu", index: Any = 0) -> str:
    """The name of a device: `R.device("cuda", 1)` is "cuda:1"."""
    kind, number = as_dim(device_type), as_dim(index)
    name = str(getattr(device_type, "value", device_type))
    if kind is not None:
        name = DEVICE_TYPES.get(kind.value or 0, "")
    if not name or number is None or number.value is None:
        raise ScriptError(
            "bad-value",
            f"R.device({describe(device_type)}, {describe(index)}) is not a device",
            help='write R.device("cpu", 0)',
        )
    return f"{name}:{number.value}"


def cpu(index: Any = 0) -> str:
    """The name of a CPU: `R.cpu()` is "cpu:0"."""
    return device("cpu", index)


def cuda(index: Any = 0) -> str:
    """The name of a CUDA device."""
    return device("cuda", index)


def tuple_(*fields: Any) -> Tuple:
    """A tuple of values: `R.tuple(x, y)`; `R.tuple()` is the empty one."""
    return Tuple(tuple(as_expr(item) for item in fields))


def tuple_get_item(tuple_value: Any, index: Any) -> TupleGetItem:
    """A field of a tuple: `R.TupleGetItem(t, 0)` is `t[0]`."""
    place = as_dim(index)
    if place is None or place.value is None or place.value < 0:
        raise ScriptError(
            "tuple-index",
            f"the index of a tuple must be an integer of at least 0, got {describe(index)}",
        ).about("index")
    return TupleGetItem(as_expr(tuple_value), place.value)


def extern_func(name: Any) -> ExternFunc:
    """A function that is known only by its name, at run time."""
    return name if isinstance(name, ExternFunc) else ExternFunc(str(name))
