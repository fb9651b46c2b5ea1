"""Translate tensor programs to Python source over numpy arrays, for the reference interpreter: slow, and obviously
correct.

Loops become loops, and every element is computed separately, in numpy scalars of its dtype. Reductions are initialised
in loops of their own, so that an empty reduction has a value. An access outside of a buffer raises the same error as in
the compiled kernel (`at`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

import numpy as np

from relaxpy.errors import PassError, RuntimeCheckError, out_of_range
from relaxpy.ir.dtype import DType
from relaxpy.ir.nesting import parse_any_depth
from relaxpy.ir.recursion import deep_recursion
from relaxpy.tir.nodes import dtype_of
from relaxpy.tir.plain import plain, unlike
from relaxpy.tir.ranges import Ranges
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi

_SMALL = 1 << 31
"""Literals up to this are far from the limits of 64 bits."""
_INFIX = {
    "Add": "+", "Sub": "-", "Mul": "*", "EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">=",
    "BitwiseAnd": "&", "BitwiseOr": "|", "BitwiseXor": "^", "And": "and", "Or": "or",
}  # fmt: skip
_DIVISIONS = {
    "Div": "quotient", "Mod": "remainder", "FloorDiv": "floor_quotient", "FloorMod": "floor_remainder",
}  # fmt: skip
_PREFIX = {"Not": "not ", "BitwiseNot": "~"}


def _one(x: Any) -> Any:
    return x.dtype.type(1)


def _sigmoid(x: Any) -> Any:
    small = np.exp(-np.abs(x))
    return (small if x < 0 else _one(x)) / (_one(x) + small)


def _left(a: Any, b: Any) -> Any:
    """Shift everything out for a negative number, or for the number of bits or more."""
    return np.left_shift(*_int64s(a, b))


def _right(a: Any, b: Any) -> Any:
    return np.right_shift(*_int64s(a, b))


def _int64s(a: Any, b: Any) -> tuple[Any, Any]:
    """The operands; those of loops and literals of 64 bits as numpy's integers."""
    return (np.int64(a), np.int64(b)) if isinstance(a, int) and isinstance(b, int) else (a, b)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "exp2": np.exp2, "exp10": lambda x: np.power(x.dtype.type(10), x), "log": np.log, "log2": np.log2,
    "log10": np.log10, "log1p": np.log1p, "sqrt": np.sqrt, "rsqrt": lambda x: _one(x) / np.sqrt(x),
    "tanh": np.tanh, "sinh": np.sinh, "cosh": np.cosh, "sin": np.sin, "cos": np.cos, "tan": np.tan, "atan": np.arctan,
    "asin": np.arcsin, "acos": np.arccos, "atan2": np.arctan2, "pow": np.power, "floor": np.floor, "ceil": np.ceil,
    "trunc": np.trunc, "round": np.round, "nearbyint": np.rint, "fabs": np.abs, "fma": lambda a, b, c: a * b + c,
    "erf": lambda x: x.dtype.type(math.erf(x)), "sigmoid": _sigmoid,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "expm1": np.expm1, "cbrt": np.cbrt,
    "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "fmod": np.fmod, "likely": lambda x: x,
    "copysign": np.copysign, "nextafter": np.nextafter, "ldexp": np.ldexp,
    "hypot": np.hypot, "abs": np.abs, "bitwise_not": operator.invert,
    "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
    "shift_left": _left, "shift_right": _right, "max_value": max, "min_value": min,
}  # fmt: skip
"""TVM's scalar functions in terms of numpy."""


@lru_cache(maxsize=1024)
def to_python(func: Any, name: str = "main") -> Callable[..., None]:
    """Return the function `f(*arrays_and_scalars)` that computes the same as TVM's PrimFunc, with parameters in its
    order. Errors call it `name`.

    Raises `PassError` (`interpret`) for constructs without a translation: vectors, pointers, machine intrinsics.
    """
    for found in unlike(func):
        raise PassError("interpret", f"the buffer {found.buffer.name} has {found.what} of its own")
    writer = _Writer(func)
    source = writer.function(plain(func))
    scope: dict[str, Any] = {**_RUNTIME, **writer.values, "program_name": name}
    with deep_recursion():
        exec(compile(parse_any_depth(source), "<tensor program>", "exec"), scope)
    return scope["program"]


def python_source(func: Any) -> str:
    """The source of the function that `to_python` returns."""
    return _Writer(func).function(func)


# Functions that the source calls


def at(index: Any, extent: int, dim: int, name: str, program: str) -> int:
    """An index of a buffer; raises an error if it is out of bounds."""
    place = int(index)
    if not 0 <= place < extent:
        raise RuntimeCheckError("tir-bounds", out_of_range(program, name, dim, place, extent))
    return place


def axis(value: Any, low: int, extent: int, name: str, program: str) -> None:
    """The value of a block's axis; raises an error if it is out of range."""
    if not low <= value < low + extent:
        message = out_of_range(program, name, -1, int(value), int(extent))
        raise RuntimeCheckError("tir-bounds", message)


def size(value: Any, name: str, program: str) -> None:
    """The size of an allocation; raises an error if it is negative."""
    if value < 0:
        raise RuntimeCheckError("tir-bounds", out_of_range(program, name, -2, int(value), 0))


def failed(text: str) -> None:
    """Raise the error of a failed assertion of the program."""
    raise RuntimeError(text)


def unset(shape: Sequence[int], dtype: str) -> np.ndarray:
    """An uninitialised buffer: NaN, or a conspicuous number."""
    kind = DType(dtype)
    return np.full(
        tuple(map(int, shape)), np.nan if kind.is_float else 0 if kind.is_bool else 77, kind.numpy
    )


def check_shape(array: np.ndarray, shape: tuple[int, ...], dtype: str, name: str) -> None:
    """Refuse an argument that does not fit its buffer."""
    if array.shape != shape or array.dtype != DType(dtype).numpy:
        raise RuntimeCheckError(
            "tir-argument",
            f"{name} is a buffer of shape {shape} and dtype {dtype}, got {array.shape} and {array.dtype}",
        )


def convert(value: Any, dtype: str) -> Any:
    """Convert a scalar to another dtype: integers modulo 2**bits, floats to integers by truncation and saturation (NaN
    gives 0)."""
    make, limits = _numbers(dtype)
    if limits is None:
        return make(value)
    low, high = limits
    if isinstance(value, (int, np.integer, np.bool_)):
        return make((int(value) - low) % (high - low + 1) + low)
    number = float(value)
    if math.isnan(number):
        return make(0)
    return make(
        min(max(number, low), high) if math.isinf(number) else min(max(int(number), low), high)
    )


@cache
def _numbers(dtype: str) -> tuple[Callable[[Any], Any], tuple[int, int] | None]:
    """What makes numbers of a dtype, and the limits of an integer one."""
    kind = DType(dtype)
    limits = np.iinfo(kind.numpy) if kind.is_int else None
    return kind.numpy.type, None if limits is None else (int(limits.min), int(limits.max))


def reinterpret(value: Any, source: str, dtype: str) -> Any:
    """Reinterpret the bits of a scalar as another dtype."""
    if _numbers(source)[1] is not None and _numbers(dtype)[1] is not None:
        return convert(value, dtype)
    return np.asarray(value, DType(source).numpy).reshape(1).view(DType(dtype).numpy)[0]


def wrapped(value: Any) -> Any:
    """The value in 64 bits of a sum, difference or product of integers."""
    if isinstance(value, int):
        return (value + (1 << 63)) % (1 << 64) - (1 << 63)
    return value


def larger(a: Any, b: Any) -> Any:
    """The maximum as the machine computes it: the second operand if either is NaN."""
    return a if a > b else b


def smaller(a: Any, b: Any) -> Any:
    """The minimum as the machine computes it: the second operand if either is NaN."""
    return a if a < b else b


def floor_quotient(a: Any, b: Any) -> Any:
    """Division rounded down; 0 for an integer division by 0. numpy's smallest integer by -1 is itself."""
    return a // b if b else a * 0


def floor_remainder(a: Any, b: Any) -> Any:
    """The remainder of `floor_quotient`; 0 if b is 0."""
    return a % b if b else a * 0


def quotient(a: Any, b: Any) -> Any:
    """Division as in C: integers are truncated; 0 for an integer division by 0."""
    if isinstance(a, (int, np.integer)):
        if not b:
            return a * 0
        if b == -1:
            return 0 * a - a  # the smallest integer wraps around
        found = abs(int(a)) // abs(int(b))
        return type(a)(found if (a < 0) == (b < 0) else -found)
    return a / b


def remainder(a: Any, b: Any) -> Any:
    """The remainder as in C, with the sign of a; 0 for an integer remainder by 0."""
    if isinstance(a, (int, np.integer)):
        return a - quotient(a, b) * b if b else a * 0
    return np.fmod(a, b)


_RUNTIME: dict[str, Any] = {
    f.__name__: f
    for f in (
        at,
        axis,
        size,
        failed,
        unset,
        check_shape,
        convert,
        reinterpret,
        wrapped,
        larger,
        smaller,
        quotient,
        remainder,
        floor_quotient,
        floor_remainder,
    )
} | {f"f_{name}": function for name, function in FUNCTIONS.items()}


class _Writer:
    """Writes one program; `values` are constants that the source names."""

    def __init__(self, func: Any) -> None:
        self.ranges = Ranges(func, of_user=True)
        self.values: dict[str, Any] = {}
        self.lines: list[str] = []
        self.depth = 1
        self.names: dict[Any, str] = {}
        self.initialised: set[Any] = set()
        """Blocks whose initial value was written before the reduction loops."""

    def function(self, func: Any) -> str:
        """The whole function as text."""
        params = [self.name(param) for param in func.params]
        buffers = [p for p in func.params if isinstance(p.ty, tirx.BufferType)]
        known = {p for p in func.params if p not in buffers}
        for param in func.params:
            if param in known:
                self.narrow(param)
        for buffer in buffers:
            for i, size in enumerate(buffer.shape):
                if type(size).__name__ == "Var" and size not in known:
                    known.add(size)
                    self.line(f"{self.name(size)} = {self.name(buffer)}.shape[{i}]")
                    self.narrow(size)
        for buffer in buffers:
            name = self.name(buffer)
            self.line(
                f"check_shape({name}, {self.tuple(buffer.shape)}, {str(buffer.dtype)!r}, {str(buffer.name)!r})"
            )
        self.stmt(func.body)
        return f"def program({', '.join(params)}):\n" + "\n".join(self.lines or ["    pass"]) + "\n"

    def name(self, var: Any) -> str:
        """The Python name of a variable or buffer."""
        found = self.names.get(var)
        if found is None:
            stem = "".join(c if c.isalnum() else "_" for c in str(var.name))
            found = self.names[var] = f"v{len(self.names)}_{stem}"
        return found

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def indented(self, head: str) -> Iterator[None]:
        """Indent lines under `head`."""
        self.line(head)
        self.depth += 1
        self.line("pass")
        yield
        self.depth -= 1

    # Statements

    def stmt(self, node: Any) -> None:
        match type(node).__name__:
            case "SeqStmt":
                for part in node.seq:
                    self.stmt(part)
            case "For":
                self.loop(node)
            case "SBlockRealize":
                self.block(node)
            case "BufferStore":
                self.line(f"{self.element(node.buffer, node.indices)} = {self.expr(node.value)}")
            case "IfThenElse":
                with self.indented(f"if {self.expr(node.condition)}:"):
                    self.stmt(node.then_case)
                if node.else_case is not None:
                    with self.indented("else:"):
                        self.stmt(node.else_case)
            case "While":
                with self.indented(f"while {self.expr(node.condition)}:"):
                    self.stmt(node.body)
            case "Bind" | "LetStmt":
                self.line(f"{self.name(node.var)} = {self.expr(node.value)}")
                self.body_of(node)
            case "AllocBuffer":
                self.allocate(node.buffer)
                self.body_of(node)
            case "AttrStmt":
                self.body_of(node)
            case "AssertStmt":
                text = "".join(str(getattr(part, "value", part)) for part in node.message_parts)
                with self.indented(f"if not {self.expr(node.condition)}:"):
                    self.line(f"failed({text!r})")
                self.body_of(node)
            case "Evaluate":
                self.line(self.expr(node.value))
            case kind:
                raise PassError("interpret", f"a {kind} in a tensor program cannot be interpreted")

    def body_of(self, node: Any) -> None:
        """The body of a statement, if it has one."""
        body = getattr(node, "body", None)
        if body is not None:
            self.stmt(body)

    def loop(self, node: Any) -> None:
        for realize in _reductions(node):
            if realize.block not in self.initialised and _reduces(realize, node.loop_var):
                self.initialised.add(realize.block)
                self.initialise(node, realize)
        var, low, extent = self.name(node.loop_var), self.expr(node.min), self.expr(node.extent)
        step = "" if node.step is None else f", {self.expr(node.step)}"
        with self.indented(f"for {var} in range({low}, {low} + {extent}{step}):"):
            self.narrow(node.loop_var)
            self.stmt(node.body)

    def narrow(self, var: Any) -> None:
        """Make a variable of few bits numpy's, whose arithmetic wraps around."""
        dtype = str(var.ty.dtype)
        if dtype not in ("int64", "bool") and "int" in dtype:
            self.line(f"{self.name(var)} = convert({self.name(var)}, {dtype!r})")

    def initialise(self, node: Any, target: Any) -> None:
        """Write the initial value of a block, in the loops from `node` on that are not reduced."""
        match type(node).__name__:
            case "SBlockRealize" if node.same_as(target):
                self.axes(node, reduced=False)
                self.stmt(node.block.init)
            case "For":
                var, low, extent = (
                    self.name(node.loop_var),
                    self.expr(node.min),
                    self.expr(node.extent),
                )
                if _reduces(target, node.loop_var):
                    self.initialise(node.body, target)
                else:
                    with self.indented(f"for {var} in range({low}, {low} + {extent}):"):
                        self.narrow(node.loop_var)
                        self.initialise(node.body, target)
            case "SBlockRealize":
                self.axes(node)
                self.initialise(node.block.body, target)
            case "SeqStmt":
                (inner,) = (
                    part for part in node.seq if any(r.same_as(target) for r in _reductions(part))
                )
                self.initialise(inner, target)
            case kind:
                raise PassError("interpret", f"a reduction inside a {kind} cannot be interpreted")

    def axes(self, node: Any, reduced: bool = True) -> None:
        """The values of a block's axes, from the loops around it."""
        for axis, value in zip(node.block.iter_vars, node.iter_values, strict=True):
            if reduced or not _is_reduced(axis):
                self.line(f"{self.name(axis.var)} = {self.expr(value)}")

    def block(self, node: Any) -> None:
        block = node.block
        self.axes(node)
        with self.indented(f"if {self.expr(node.predicate)}:"):
            for axis in block.iter_vars:
                if axis.dom is not None:
                    what = f"axis {axis.var.name} of the block {block.name_hint}"
                    bounds = f"{self.expr(axis.dom.min)}, {self.expr(axis.dom.extent)}"
                    self.line(f"axis({self.name(axis.var)}, {bounds}, {what!r}, program_name)")
            for buffer in block.alloc_buffers:
                self.allocate(buffer)
            for match in block.match_buffers:
                self.match_buffer(match)
            if block.init is not None and block not in self.initialised:
                first = [
                    f"{self.name(a.var)} == {self.expr(a.dom.min)}"
                    for a in block.iter_vars
                    if _is_reduced(a)
                ]
                with self.indented(f"if {' and '.join(first) or True}:"):
                    self.stmt(block.init)
            self.stmt(block.body)

    def allocate(self, buffer: Any) -> None:
        name = self.name(buffer)
        for dim, size in enumerate(buffer.shape):
            if not isinstance(size, tirx.IntImm):
                what = f"dimension {dim} of {buffer.name}"
                self.line(f"size({self.expr(size)}, {what!r}, program_name)")
        self.line(f"{name} = unset({self.tuple(buffer.shape)}, {str(buffer.dtype)!r})")

    def match_buffer(self, match: Any) -> None:
        """Bind a region of a buffer to a name."""
        ranges = [
            f"{self.expr(r.min)}:{self.expr(r.min)} + {self.expr(r.extent)}"
            for r in match.source.region
        ]
        whole = match.source.source
        for dim, r in enumerate(match.source.region):
            size, text = f"{self.name(whole)}.shape[{dim}]", repr(str(whole.name))
            for end in (r.min, r.min + r.extent - 1):
                self.line(f"at({self.expr(end)}, {size}, {dim}, {text}, program_name)")
        sizes, region = list(match.buffer.shape), list(match.source.region)
        for size, r in zip(sizes, region[len(region) - len(sizes) :], strict=True):
            if type(size).__name__ == "Var" and size not in self.names:
                self.line(f"{self.name(size)} = {self.expr(r.extent)}")
        source = f"{self.name(match.source.source)}[{', '.join(ranges)}]"
        view = self.name(match.buffer)
        self.line(f"{view} = {source}.reshape({self.tuple(match.buffer.shape)})")
        for dim, stride in enumerate(match.buffer.strides or ()):
            self.line(f"{self.name(stride)} = {view}.strides[{dim}] // {view}.itemsize")

    # Expressions

    def tuple(self, values: Sequence[Any]) -> str:
        return "(" + "".join(f"{self.expr(v)}, " for v in values) + ")"

    def element(self, buffer: Any, indices: Sequence[Any]) -> str:
        name = self.name(buffer)
        index = ", ".join(
            f"at({self.expr(i)}, {name}.shape[{dim}], {dim}, {str(buffer.name)!r}, program_name)"
            for dim, i in enumerate(indices)
        )
        return f"{name}[{index or '()'}]"

    def expr(self, node: Any) -> str:
        """A Python expression, parenthesised unless it is an atom."""
        kind = type(node).__name__
        if kind in _INFIX:
            text = f"({self.expr(node.a)} {_INFIX[kind]} {self.expr(node.b)})"
            return f"wrapped{text}" if _exceeds(node, self.ranges) else text
        if kind in _PREFIX:
            return f"({_PREFIX[kind]}{self.expr(node.a)})"
        match kind:
            case "Var":
                return self.name(node)
            case "IntImm":
                return self.integer(int(node.value), str(node.ty.dtype))
            case "FloatImm":
                return self.constant(float(node.value), str(node.ty.dtype))
            case "TensorLoad":
                return self.element(node.source, node.indices)
            case "Cast":
                return f"convert({self.expr(node.value)}, {str(node.ty.dtype)!r})"
            case "Select":
                parts = (node.condition, node.true_value, node.false_value)
                return self.choice(*parts)
            case "Min" | "Max":
                function = "smaller" if kind == "Min" else "larger"
                return f"{function}({self.expr(node.a)}, {self.expr(node.b)})"
            case "LShift" | "RShift":
                function = "f_shift_left" if kind == "LShift" else "f_shift_right"
                return f"{function}({self.expr(node.a)}, {self.expr(node.b)})"
            case "Div" | "Mod" | "FloorDiv" | "FloorMod":
                function = _DIVISIONS[kind]
                return f"{function}({self.expr(node.a)}, {self.expr(node.b)})"
            case "Let":
                value, body = self.expr(node.value), self.expr(node.body)
                return f"(lambda {self.name(node.var)}: {body})({value})"
            case "Call":
                return self.call(node)
            case _:
                raise PassError("interpret", f"a {kind} in a tensor program cannot be interpreted")

    def choice(self, condition: Any, then: Any, otherwise: Any) -> str:
        """A choice of which only the chosen side is evaluated."""
        return f"({self.expr(then)} if {self.expr(condition)} else {self.expr(otherwise)})"

    def integer(self, value: int, dtype: str) -> str:
        """A literal. Small ones of 64 bits are Python's; others are numpy's, whose arithmetic wraps around."""
        if dtype == "bool":
            return repr(bool(value))
        if dtype == "int64" and abs(value) <= _SMALL:
            return f"({value})"
        name = f"c{len(self.values)}"
        self.values[name] = convert(value, dtype)
        return name

    def constant(self, value: float, dtype: str) -> str:
        name = f"c{len(self.values)}"
        self.values[name] = DType(dtype).numpy.type(value)
        return name

    def call(self, node: Any) -> str:
        name = str(getattr(node.op, "name", node.op)).rsplit(".", 1)[-1]
        if name == "if_then_else":
            return self.choice(*node.args)
        if name == "reinterpret":
            (value,) = node.args
            return (
                f"reinterpret({self.expr(value)}, {str(value.ty.dtype)!r}, {str(node.ty.dtype)!r})"
            )
        if name == "call_pure_extern":
            # C library functions: of float64, or of float32 with a name that ends in f
            c_name = str(node.args[0].value)
            found = c_name.removesuffix("f") if c_name not in FUNCTIONS else c_name
            if found in FUNCTIONS:
                return f"f_{found}({', '.join(map(self.expr, node.args[1:]))})"
            name = c_name
        if name not in FUNCTIONS:
            raise PassError(
                "interpret", f"the function {name} in a tensor program cannot be interpreted"
            )
        return f"f_{name}({', '.join(map(self.expr, node.args))})"


def _reductions(node: Any) -> list[Any]:
    """The blocks in a statement that have an initial value."""
    found: list[Any] = []

    def visit(realize: Any) -> Any:
        if realize.block.init is not None:
            found.append(realize)
        return None

    tvm_ffi.structural_walk(node, (tvm.s_tir.SBlockRealize, visit), order="pre")
    return found


def _is_reduced(axis: Any) -> bool:
    return int(axis.iter_type) == tirx.IterVar.CommReduce


def _reduces(realize: Any, var: Any) -> bool:
    """Is a loop variable part of a reduction axis of a block?"""
    found = False

    def visit(used: Any) -> Any:
        nonlocal found
        found = found or used.same_as(var)
        return None

    for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        if _is_reduced(axis):
            tvm_ffi.structural_walk(value, (tvm.ir.Var, visit), order="pre")
    return found


def _exceeds(node: Any, ranges: Ranges) -> bool:
    """May Python's integers, which those of 64 bits are, exceed these?"""
    is_sum = isinstance(node, (tirx.Add, tirx.Sub, tirx.Mul)) and dtype_of(node) == "int64"
    return is_sum and ranges.wraps(node)
