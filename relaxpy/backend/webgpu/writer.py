"""Write a device function as WGSL.

TVM's own WGSL is not used: it prints floats with 7 digits, bytes and booleans in types that WGSL does not have, and
64-bit integers as 32-bit ones. Here every value is exact.

* Integers of 64 bits are *wide* (`vec2<u32>`) where they are data. Indices, which are integers of 64 bits in a program
  too, are `i32`: numbers of the launch, loops and threads, and arithmetic on them. A launch checks that its numbers
  fit (`Written.narrow`). Data that is used as an index is saturated to the nearest `i32`.
* Elements of less than 32 bits are parts of words in memory, and are stored with atomic operations, since threads write
  neighbours. In registers they are `i32`, `u32` or `bool`.
* Numbers in bfloat16, float16 and float8 are bits by now, and computed with in float32. float64 is computed in
  integers, slowly and exactly rounded; elementary functions of float64 are refused.
* Elementary functions are relaxpy's own formulas (`relaxpy.tir.numerics`), so that they are as accurate as on
  processors, except for those that compute in float64 there. Sums and products in them pass through `keep`, since
  drivers reassociate floats.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from relaxpy.backend.gpu.half import NARROW, WIDEN
from relaxpy.backend.webgpu.names import Names
from relaxpy.errors import BuildError
from relaxpy.tir.numerics.elementary import ELEMENTARY, applied
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi
from relaxpy.tir.types import Expr, Stmt, Var
from relaxpy.tir.walk import walk

WIDE = "vec2<u32>"
_REGISTERS = {
    "bool": "bool", "int8": "i32", "int16": "i32", "int32": "i32", "uint8": "u32", "uint16": "u32", "uint32": "u32",
    "int64": WIDE, "uint64": WIDE, "float64": WIDE, "float32": "f32", "float16": "f32", "bfloat16": "f32",
}  # fmt: skip
"""The type of a value of each dtype in registers."""
_BITS = {"bool": 8, "int8": 8, "uint8": 8, "int16": 16, "uint16": 16}
"""Dtypes that are parts of words in memory."""
_SIGNS = {tirx.Add: "+", tirx.Sub: "-", tirx.Mul: "*"}
_WORDS = {tirx.BitwiseAnd: "&", tirx.BitwiseOr: "|", tirx.BitwiseXor: "^"}
_ARITHMETIC = {
    tirx.Add: "add", tirx.Sub: "sub", tirx.Mul: "mul", tirx.Div: "div", tirx.Mod: "mod", tirx.FloorDiv: "floor_div",
    tirx.FloorMod: "floor_mod",
}  # fmt: skip
_COMPARISONS = {
    tirx.EQ: "==", tirx.NE: "!=", tirx.LT: "<", tirx.LE: "<=", tirx.GT: ">", tirx.GE: ">=",
}  # fmt: skip
_OPERATORS = {
    "bitwise_and": tirx.BitwiseAnd, "bitwise_or": tirx.BitwiseOr, "bitwise_xor": tirx.BitwiseXor,
    "shift_left": tirx.LShift, "shift_right": tirx.RShift,
}  # fmt: skip
_NATIVE = {
    "exp": "exp", "exp2": "exp2", "log2": "log2", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
    "nearbyint": "round", "round": "round", "rint": "round", "sin": "sine", "cos": "cosine", "tan": "tangent",
    "pow": "power", "fabs": "magnitude", "abs": "magnitude", "copysign": "copy_sign", "copysignf": "copy_sign",
    "fmod": "f_mod", "fmodf": "f_mod", "nextafter": "next_after", "nextafterf": "next_after", "hypot": "hypotenuse",
    "hypotf": "hypotenuse", "ldexp": "ld_exp", WIDEN: WIDEN, NARROW: NARROW,
}  # fmt: skip
"""Functions on float32 that are one function in WGSL. WGSL's `round` takes ties to even."""
_FLOAT64 = {
    "floor": "f64_floor", "ceil": "f64_ceil", "trunc": "f64_trunc", "nearbyint": "f64_round", "round": "f64_round",
    "fabs": "f64_abs", "abs": "f64_abs",
}  # fmt: skip
"""Functions on float64."""
_LESS = {"int64": "wide_less", "uint64": "wide_less_unsigned", "float64": "f64_less"}
_LARGEST = (1 << 31) - 1


@dataclass
class Written:
    """A kernel in WGSL."""

    body: list[str] = field(default_factory=list)
    functions: dict[str, str] = field(default_factory=dict)
    """The elementary functions that it calls, by name."""
    shared: list[str] = field(default_factory=list)
    """Declarations of memory that a group of threads shares."""
    shared_bytes: int = 0
    narrow: set[Var] = field(default_factory=set)
    """Integer parameters that are used as `i32`, and so must fit."""
    stored: set[Var] = field(default_factory=set)
    """Pointers that it writes to."""
    threads: dict[str, int] = field(default_factory=dict)
    """The number of threads of a group along each axis that it has."""
    axes: set[str] = field(default_factory=set)
    """The axes of the grid that it has."""


class Writer:
    """Writes one device function."""

    def __init__(self, func: tirx.PrimFunc, name: str, names: Names) -> None:
        self.to = Written()
        self._func = func
        self._name = name
        self.names = names
        self._indent = 1
        self._pointers = {p for p in func.params if isinstance(p.ty, tvm.ir.PointerType)}
        self._numbers = set(func.params) - self._pointers
        self._memory: dict[Var, Var] = {}
        """Buffers → the pointers that they are declared over."""
        self._same: dict[Var, Var] = {}
        """Buffers → the buffers whose memory they are."""
        self._scalars: set[Var] = set()
        """Local buffers of one element."""
        self._wide: set[Var] = set()
        """Names of wide values."""
        self._data: set[Var] = set()
        """Names of other values that are computed from data."""
        self._exact = False
        """Whether floats must not be reassociated."""
        self._meant: dict[Any, Expr] = {}
        """Names, and places in a thread's own memory, as `(buffer, index)` → their values."""
        self._parts_of: dict[Any, frozenset[int]] = {}
        """The same → the parts of the value (`_parts`)."""
        walk(func.body, (tirx.DeclBuffer, self._declare), (tirx.BufferStore, self._note_store))

    def _declare(self, node: Any) -> None:
        if isinstance(node.data, tvm.ir.Call):  # the memory of another buffer of the kernel
            self._same[node.buffer] = node.data.args[0]
        else:
            self._memory[node.buffer] = node.data

    def _origin(self, buffer: Var) -> Var:
        """The buffer that was allocated, or declared over a parameter."""
        while buffer in self._same:
            buffer = self._same[buffer]
        return buffer

    def _note_store(self, node: Any) -> None:
        pointer = self._memory.get(self._origin(node.buffer))
        if pointer is not None:
            self.to.stored.add(pointer)

    def write(self) -> Written:
        """Raises: BuildError (`device-dtype`, `kernel-compile`)."""
        self._stmt(self._func.body)
        return self.to

    # Statements

    def _line(self, text: str) -> None:
        self.to.body.append("  " * self._indent + text)

    @contextmanager
    def _block(self, head: str, tail: str = "}") -> Iterator[None]:
        self._line(head)
        self._indent += 1
        yield
        self._indent -= 1
        self._line(tail)

    def _stmt(self, stmt: Stmt) -> None:
        method = self._STATEMENTS.get(type(stmt).__name__)
        if method is None:
            raise self._unknown(stmt)
        method(self, stmt)

    def _unknown(self, node: Any) -> BuildError:
        return BuildError(
            "kernel-compile",
            f'the kernel "{self._name}" has a {type(node).__name__}, which has no form in WGSL: {node}',
        )

    def _seq(self, stmt: Stmt) -> None:
        for each in stmt.seq:
            self._stmt(each)

    def _attr(self, stmt: Stmt) -> None:
        if stmt.attr_key == "thread_extent":
            axis = stmt.node
            kind, _, letter = str(axis.thread_tag).partition(".")
            name = self.names[axis.var]
            if kind == "threadIdx":
                self.to.threads[letter] = int(stmt.value.value)
                self._line(f"let {name} = i32(thread.{letter});")
            elif kind == "blockIdx" and letter == "z" and _is_one(stmt.value):
                self._line(f"let {name} = 0i;")  # the axis is free for a fold
            elif kind == "blockIdx":
                self.to.axes.add(letter)
                self._line(f"let {name} = i32(group_{letter});")
            else:
                raise self._unknown(stmt)
        self._stmt(stmt.body)

    def _bind(self, stmt: Stmt) -> None:
        self._named(stmt.var, stmt.value)

    def _named(self, var: Var, value: Expr) -> None:
        if "float" in str(var.ty.dtype):
            self._note(var, value)
        if str(var.ty.dtype) in ("int64", "uint64") and not self._is_index(value):
            self._wide.add(var)
            text = self._value(value)
        else:
            text = self._narrow(value) if str(var.ty.dtype) == "int64" else self._value(value)
            if not self._is_index(value):
                self._data.add(var)
        self._line(f"let {self.names[var]} = {text};")

    def _alloc(self, stmt: Stmt) -> None:
        buffer = stmt.buffer
        extents = [getattr(extent, "value", None) for extent in buffer.shape]
        if any(extent is None for extent in extents):
            raise self._unknown(stmt)
        dtype, count = str(buffer.dtype), math.prod(int(each) for each in extents)  # type: ignore[arg-type]
        kind, name = self._register(dtype), self.names[buffer]
        if str(buffer.scope()).startswith("shared"):
            item = 8 if kind == WIDE else 4
            self.to.shared.append(
                f"var<workgroup> {name}: array<{'u32' if kind == 'bool' else kind}, {count}>;"
            )
            self.to.shared_bytes += item * count
        elif count == 1:
            self._scalars.add(buffer)
            self._line(f"var {name}: {kind};")
        else:
            self._line(f"var {name}: array<{kind}, {count}>;")

    def _declaration(self, stmt: Stmt) -> None:
        del stmt  # known from the start

    def _if(self, stmt: Stmt) -> None:
        condition = self._value(stmt.condition)
        with self._block(f"if ({condition}) {{"):
            self._stmt(stmt.then_case)
        if stmt.else_case is not None:
            self.to.body.pop()
            with self._block("} else {"):
                self._stmt(stmt.else_case)

    def _for(self, stmt: Stmt) -> None:
        name = self.names[stmt.loop_var]
        start, extent = self._narrow(stmt.min), self._narrow(stmt.extent)
        end = extent if start == "0i" else f"({start} + {extent})"
        if not end.endswith("i"):  # computed once
            last = self.names.fresh("end")
            self._line(f"let {last} = {end};")
            end = last
        with self._block(f"for (var {name}: i32 = {start}; {name} < {end}; {name}++) {{"):
            self._stmt(stmt.body)

    def _while(self, stmt: Stmt) -> None:
        with self._block("loop {"):
            self._line(f"if (!({self._value(stmt.condition)})) {{ break; }}")
            self._stmt(stmt.body)

    def _break(self, stmt: Stmt) -> None:
        del stmt
        self._line("break;")

    def _continue(self, stmt: Stmt) -> None:
        del stmt
        self._line("continue;")

    def _evaluate(self, stmt: Stmt) -> None:
        value = stmt.value
        if isinstance(value, tvm.ir.Call):
            if _op(value) != "tvm_storage_sync":
                raise self._unknown(value)
            self._line("storageBarrier();")
            self._line("workgroupBarrier();")

    def _store(self, stmt: Stmt) -> None:
        buffer, dtype = self._origin(stmt.buffer), str(stmt.buffer.dtype)
        value = self._as(stmt.value, dtype)
        index = self._narrow(self._one(stmt.indices))
        name = self._place(buffer)
        if buffer not in self._memory:
            if "float" in dtype:
                self._note((buffer, index), stmt.value)
            if buffer in self._scalars:
                self._line(f"{name} = {value};")
            elif dtype == "bool" and str(buffer.scope()).startswith("shared"):
                self._line(f"{name}[{index}] = select(0u, 1u, {value});")
            else:
                self._line(f"{name}[{index}] = {value};")
        elif dtype not in _BITS:
            self._line(f"{name}[{index}] = {value};")
        else:
            self._store_part(name, dtype, index, value)

    def _store_part(self, name: str, dtype: str, index: str, value: str) -> None:
        """A part of a word: cleared, then set. Other threads write other parts only. The value is first, since it may
        be computed from the old one."""
        bits = _BITS[dtype]
        mask, shift = self.names.fresh("mask"), self.names.fresh("shift")
        word, part = self.names.fresh("word"), self.names.fresh("part")
        if dtype == "bool":
            value = f"select(0u, 1u, {value})"
        elif dtype.startswith("int"):
            value = f"bitcast<u32>({value})"
        per_word = 32 // bits
        self._line(
            f"let {shift} = (u32({index}) & {per_word - 1}u) * {bits}u; let {word} = u32({index}) / {per_word}u; "
            f"let {mask} = {(1 << bits) - 1}u << {shift};"
        )
        self._line(f"let {part} = ({value} << {shift}) & {mask};")
        self._line(f"atomicAnd(&{name}[{word}], ~{mask});")
        self._line(f"atomicOr(&{name}[{word}], {part});")

    def _one(self, indices: Sequence[Expr]) -> Expr:
        (index,) = indices  # flat by now
        return index

    def _place(self, buffer: Var) -> str:
        pointer = self._memory.get(buffer)
        return self.names[buffer if pointer is None else pointer]

    # Values

    def _register(self, dtype: str) -> str:
        found = _REGISTERS.get(dtype)
        if found is None:
            raise BuildError(
                "device-dtype",
                f'the kernel "{self._name}" has values of {dtype}, which WGSL cannot represent',
            )
        return found

    def _dtype(self, expr: Expr) -> str:
        return str(expr.ty.dtype)

    def _is_index(self, expr: Expr) -> bool:
        """Is it an integer that an `i32` holds, since it is computed from indices only, or lies between them?"""
        match expr:
            case tvm.ir.Var():
                return expr not in self._wide and expr not in self._data
            case tirx.IntImm():
                return self._dtype(expr) != "uint64" and abs(int(expr.value)) <= _LARGEST
            case (
                tirx.Add()
                | tirx.Sub()
                | tirx.Mul()
                | tirx.Div()
                | tirx.Mod()
                | tirx.FloorDiv()
                | tirx.FloorMod()
            ):
                return (
                    self._dtype(expr) != "uint64"
                    and self._is_index(expr.a)
                    and self._is_index(expr.b)
                )
            case tirx.Min() | tirx.Max():
                if self._dtype(expr) == "uint64":
                    return False
                return self._is_bounded(expr)
            case tirx.Cast():
                own, inner = self._dtype(expr), self._dtype(expr.value)
                if own not in ("int64", "int32") or "float" in inner or inner == "uint64":
                    return False
                if inner in _BITS:
                    return True
                return inner in ("int32", "int64") and self._is_index(expr.value)
            case tirx.Select():
                return self._is_index(expr.true_value) and self._is_index(expr.false_value)
            case tvm.ir.Call() if self._called(expr) in ("if_then_else", "likely"):
                return all(self._is_index(each) for each in list(expr.args)[-2:])
            case _:
                return False

    def _is_bounded(self, expr: Expr) -> bool:
        """Is a minimum or maximum between two indices, or of indices?"""
        a, b = expr.a, expr.b
        if self._is_index(a) and self._is_index(b):
            return True
        other = tirx.Max if isinstance(expr, tirx.Min) else tirx.Min
        inner = a if isinstance(a, other) else b
        outer = b if inner is a else a
        if not isinstance(inner, other) or not self._is_index(outer):
            return False
        return self._is_index(inner.a) or self._is_index(inner.b)

    def _narrow(self, expr: Expr) -> str:
        """An integer as `i32`: an index as it is, data saturated."""
        dtype = self._dtype(expr)
        if dtype == "int64" or dtype == "uint64":
            if isinstance(expr, tirx.Min | tirx.Max) and dtype == "int64":
                function = "min" if isinstance(expr, tirx.Min) else "max"
                return f"{function}({self._narrow(expr.a)}, {self._narrow(expr.b)})"
            if self._is_index(expr):
                return self._index(expr)
            if isinstance(expr, tirx.Cast) and self._dtype(expr.value) == "int32":
                return self._value(expr.value)
            return f"saturated({self._wide_index(expr) if dtype == 'int64' else self._value(expr)})"
        text = self._value(expr)
        if dtype == "bool":
            return f"select(0i, 1i, {text})"
        return f"i32({text})" if dtype.startswith("u") else text

    def _wide_index(self, expr: Expr) -> str:
        """An index of 64 bits that is computed from data, wide; its parts that are not fit, as other indices do."""
        if self._is_index(expr):
            return f"wide_of_int({self._narrow(expr)})"
        if isinstance(expr, tirx.Add | tirx.Sub | tirx.Mul):
            function = f"wide_{_ARITHMETIC[type(expr)]}"
            return f"{function}({self._wide_index(expr.a)}, {self._wide_index(expr.b)})"
        return self._value(expr)

    def _index(self, expr: Expr) -> str:
        """An index of 64 bits as `i32`."""
        match expr:
            case tvm.ir.Var():
                if expr in self._numbers:
                    self.to.narrow.add(expr)
                return self.names[expr]
            case tirx.IntImm():
                return _int(int(expr.value))
            case tirx.Add() | tirx.Sub() | tirx.Mul():
                return f"({self._narrow(expr.a)} {_SIGNS[type(expr)]} {self._narrow(expr.b)})"
            case tirx.Div():
                return f"({self._narrow(expr.a)} / {self._narrow(expr.b)})"
            case tirx.Mod():
                return f"({self._narrow(expr.a)} % {self._narrow(expr.b)})"
            case tirx.FloorDiv() | tirx.FloorMod():
                function = _ARITHMETIC[type(expr)]
                return f"{function}({self._narrow(expr.a)}, {self._narrow(expr.b)})"
            case tirx.Cast():
                return self._narrow(expr.value)
            case tirx.Select():
                return self._chosen(
                    expr.condition, self._narrow(expr.true_value), self._narrow(expr.false_value)
                )
            case tvm.ir.Call():
                if self._called(expr) == "likely":
                    return self._narrow(expr.args[0])
                condition, a, b = expr.args
                return self._chosen(condition, self._narrow(a), self._narrow(b))
            case _:
                raise self._unknown(expr)

    def _as(self, expr: Expr, dtype: str) -> str:
        """A value as one of another dtype, as in a store."""
        own = self._dtype(expr)
        if own == dtype or self._register(own) == self._register(dtype) == "f32":
            return self._value(expr)
        return self._value(tirx.Cast(dtype, expr))

    def _value(self, expr: Expr) -> str:
        """An expression in the register type of its dtype."""
        if self._dtype(expr) == "int64" and isinstance(expr, tvm.ir.Var | tirx.IntImm):
            return self._wide_leaf(expr)
        for kinds, method in self._EXPRESSIONS:
            if isinstance(expr, kinds):
                return method(self, expr)
        raise self._unknown(expr)

    def _wide_leaf(self, expr: Expr) -> str:
        if isinstance(expr, tirx.IntImm):
            return _wide(int(expr.value))
        if expr in self._wide:
            return self.names[expr]
        if expr in self._numbers:
            name = self.names[expr]
            return f"{WIDE}(numbers.{name}, numbers.{name}_high)"
        return f"wide_of_int({self.names[expr]})"

    def _var(self, var: Var) -> str:
        if var not in self._numbers:
            return self.names[var]
        name, kind = f"numbers.{self.names[var]}", self._register(self._dtype(var))
        if kind == WIDE:
            return f"{WIDE}({name}, {name}_high)"
        return (
            f"({name} != 0u)"
            if kind == "bool"
            else name
            if kind == "u32"
            else f"bitcast<{kind}>({name})"
        )

    def _int_literal(self, literal: Expr) -> str:
        dtype, value = self._dtype(literal), int(literal.value)
        match self._register(dtype):
            case "bool":
                return "true" if value else "false"
            case "u32":
                return f"{value}u"
            case "i32":
                return _int(value)
            case _:
                return _wide(value)

    def _float_literal(self, literal: Expr) -> str:
        value, dtype = float(literal.value), self._dtype(literal)
        if dtype == "float64":
            (bits,) = struct.unpack("<Q", struct.pack("<d", value))
            return _wide(bits)
        return _float(value)

    def _sum(self, node: Expr) -> str:
        dtype, sign = self._dtype(node), _SIGNS[type(node)]
        match self._register(dtype):
            case "vec2<u32>":
                prefix = "f64" if dtype == "float64" else "wide"
                name = f"{prefix}_{_ARITHMETIC[type(node)]}"
                return f"{name}({self._value(node.a)}, {self._value(node.b)})"
            case "bool":
                return self._value(
                    tirx.Cast("bool", type(node)(node.a.astype("int32"), node.b.astype("int32")))
                )
            case "f32":
                first, second = self._factor(node.a), self._factor(node.b)
                if not self._exact and self._may_cancel(node):
                    second = f"keep({second})"
                text = f"({first} {sign} {second})"
                return f"keep{text}" if self._exact else text
            case _:
                return self._wrapped(f"({self._value(node.a)} {sign} {self._value(node.b)})", dtype)

    def _factor(self, expr: Expr) -> str:
        """An operand of float32. A literal 0 is hidden from the driver: the product of NaN and 0 is no 0."""
        text = self._value(expr)
        if isinstance(expr, tvm.ir.Call) and self._called(expr) == "reinterpret":
            (expr,) = expr.args
        is_zero = isinstance(expr, tirx.FloatImm | tirx.IntImm) and expr.value in (0, -(2**31))
        return f"keep({text})" if is_zero else text

    def _may_cancel(self, node: Expr) -> bool:
        """Would a driver that takes floats for real numbers simplify this sum, difference or product by what its
        operands have in common? `x - x` would be 0 for a NaN, `x + (y - x)` would be `y`, `x * y - x * z` infinite
        where it is a NaN, and `exp(x) * exp(y)` a number where one of them is infinite."""
        a, b = self._meaning(node.a), self._meaning(node.b)
        if isinstance(node, tirx.Mul):
            called = {self._called(each) for each in (a, b) if isinstance(each, tvm.ir.Call)}
            return len(called) == 1 and called <= _POWERS and type(a) is type(b)
        if isinstance(a, tirx.Mul) and isinstance(b, tirx.Mul):
            factors = [{_hash(each.a), _hash(each.b)} for each in (a, b)]
            if not factors[0].isdisjoint(factors[1]):
                return True
        return not self._parts(node.a).isdisjoint(self._parts(node.b))

    def _meaning(self, expr: Expr) -> Expr:
        """The value of a name, or of what is in a thread's own memory."""
        return self._meant.get(self._key(expr), expr)

    def _key(self, expr: Expr) -> Any:
        """What an expression is known by in `_meant`."""
        if isinstance(expr, tvm.ir.TensorLoad):
            buffer = self._origin(expr.source)
            own = buffer not in self._memory and not str(buffer.scope()).startswith("shared")
            return (buffer, self._narrow(self._one(expr.indices))) if own else None
        return expr if isinstance(expr, tvm.ir.Var) else None

    def _note(self, key: Any, value: Expr) -> None:
        self._parts_of[key] = self._parts(value)
        self._meant[key] = self._meaning(value)

    def _parts(self, expr: Expr) -> frozenset[int]:
        """What an expression is the sum of, through names: hashes of expressions, and 0 for all constants."""
        if isinstance(expr, tirx.FloatImm):
            return frozenset([0])
        if isinstance(expr, tirx.Add | tirx.Sub):
            return self._parts(expr.a) | self._parts(expr.b)
        if isinstance(expr, tirx.Mul):
            for one, other in ((expr.a, expr.b), (expr.b, expr.a)):
                if isinstance(one, tirx.FloatImm):
                    return self._parts(other)
        own = frozenset([_hash(expr)])
        return own | self._parts_of.get(self._key(expr), frozenset())

    def _wrapped(self, text: str, dtype: str) -> str:
        """An integer modulo the size of its type."""
        if dtype not in _BITS or dtype == "bool":
            return text
        if dtype.startswith("u"):
            return f"({text} & {(1 << _BITS[dtype]) - 1}u)"
        unused = 32 - _BITS[dtype]
        return f"(({text} << {unused}u) >> {unused}u)"

    def _quotient(self, node: Expr) -> str:
        dtype, kind = self._dtype(node), self._register(self._dtype(node))
        plain = self._factor if kind == "f32" else self._value
        a, b = plain(node.a), plain(node.b)
        name = _ARITHMETIC[type(node)]
        if dtype == "float64" and name == "div":
            return f"f64_div({a}, {b})"
        if kind == WIDE and dtype != "float64":
            unsigned = name.removeprefix("floor_")
            return (
                f"wide_{unsigned}_unsigned({a}, {b})"
                if dtype == "uint64"
                else f"wide_{name}({a}, {b})"
            )
        if name.startswith("floor") and kind == "i32":
            return self._wrapped(f"{name}({a}, {b})", dtype)
        if "float" in dtype:
            if name != "div":
                raise self._unknown(node)
            return f"keep({a} / {b})" if self._exact else f"({a} / {b})"
        return self._wrapped(f"({a} {'/' if name.endswith('div') else '%'} {b})", dtype)

    def _bitwise(self, node: Expr) -> str:
        dtype = self._dtype(node)
        if dtype == "float64":
            raise self._unknown(node)
        return f"({self._value(node.a)} {_WORDS[type(node)]} {self._value(node.b)})"

    def _inverted(self, node: Expr) -> str:
        (value,) = node.args if isinstance(node, tvm.ir.Call) else (node.a,)
        dtype = self._dtype(node)
        if dtype == "bool":
            return f"(!{self._value(value)})"
        return self._wrapped(f"(~{self._value(value)})", dtype)

    def _shift(self, node: Expr) -> str:
        dtype = self._dtype(node)
        kind, a = self._register(dtype), self._value(node.a)
        by = self._value(node.b)
        if self._register(self._dtype(node.b)) == WIDE:
            by = f"{by}.x"
        elif self._register(self._dtype(node.b)) == "i32":
            by = f"u32({by})"
        is_left = isinstance(node, tirx.LShift)
        if kind == WIDE:
            unsigned = "_unsigned" if dtype == "uint64" and not is_left else ""
            return f"wide_{'shl' if is_left else 'shr'}{unsigned}({a}, {by})"
        if is_left:
            return self._wrapped(f"({a} << {by})", dtype)
        return f"({a} >> {by})"

    def _extreme(self, node: Expr) -> str:
        dtype = self._dtype(node)
        kind = self._register(dtype)
        is_max = isinstance(node, tirx.Max)
        if kind in ("i32", "u32"):
            return f"{'max' if is_max else 'min'}({self._value(node.a)}, {self._value(node.b)})"
        a, b = self._twice(node.a), self._twice(node.b)
        if kind == WIDE:
            first, second = (b, a) if is_max else (a, b)
            return f"select({b}, {a}, {_LESS[dtype]}({first}, {second}))"
        if kind == "bool":
            return f"({a} {'||' if is_max else '&&'} {b})"
        # The second if one is a NaN.
        return f"select({b}, {a}, {a} {'>' if is_max else '<'} {b})"

    def _twice(self, expr: Expr) -> str:
        """A value that is used twice, under a name unless it is short."""
        text = self._value(expr)
        if text.replace("_", "").isalnum() or isinstance(expr, tirx.IntImm | tirx.FloatImm):
            return text
        name = self.names.fresh("value")
        self._line(f"let {name} = {text};")
        return name

    def _comparison(self, node: Expr) -> str:
        sign, dtype = _COMPARISONS[type(node)], self._dtype(node.a)
        kind = self._register(dtype)
        if dtype == "int64" and self._is_index(node.a) and self._is_index(node.b):
            return f"({self._narrow(node.a)} {sign} {self._narrow(node.b)})"
        a, b = self._value(node.a), self._value(node.b)
        if kind == "bool" and sign not in ("==", "!="):
            a, b = f"select(0u, 1u, {a})", f"select(0u, 1u, {b})"
        if kind == "f32" and sign == "!=":  # WGSL's may be false for a NaN
            return f"(!({a} == {b}))"
        if kind != WIDE:
            return f"({a} {sign} {b})"
        if dtype == "float64":
            first, second = (b, a) if sign in (">", ">=") else (a, b)
            name = "equal" if sign in ("==", "!=") else "less_equal" if "=" in sign else "less"
            return f"({'!' if sign == '!=' else ''}f64_{name}({first}, {second}))"
        if sign in ("==", "!="):
            return f"{'all' if sign == '==' else 'any'}({a} {sign} {b})"
        first, second = (a, b) if sign in ("<", ">=") else (b, a)
        return f"({'' if len(sign) == 1 else '!'}{_LESS[dtype]}({first}, {second}))"

    def _logical(self, node: Expr) -> str:
        sign = "&&" if isinstance(node, tirx.And) else "||"
        return f"({self._value(node.a)} {sign} {self._value(node.b)})"

    def _not(self, node: Expr) -> str:
        return f"(!{self._value(node.a)})"

    def _select(self, node: Expr) -> str:
        return self._chosen(
            node.condition, self._value(node.true_value), self._as_of(node.false_value, node)
        )

    def _as_of(self, expr: Expr, node: Expr) -> str:
        return self._as(expr, self._dtype(node))

    def _chosen(self, condition: Expr, a: str, b: str) -> str:
        """Both sides are computed; neither can fail."""
        return f"select({b}, {a}, {self._value(condition)})"

    def _let(self, node: Expr) -> str:
        self._named(node.var, node.value)
        return self._value(node.body)

    def _load(self, node: Expr) -> str:
        buffer = self._origin(node.source)
        dtype, name = str(buffer.dtype), self._place(buffer)
        self._register(dtype)
        index = self._narrow(self._one(node.indices))
        pointer = self._memory.get(buffer)
        if buffer in self._scalars:
            return name
        if pointer is None:
            text = f"{name}[{index}]"
            is_word = dtype == "bool" and str(buffer.scope()).startswith("shared")
            return f"({text} != 0u)" if is_word else text
        if dtype not in _BITS:
            return f"{name}[{index}]"
        bits = _BITS[dtype]
        per_word = 32 // bits
        word = f"{name}[u32({index}) / {per_word}u]"
        if pointer in self.to.stored:
            word = f"atomicLoad(&{word})"
        part = f"({word} >> ((u32({index}) & {per_word - 1}u) * {bits}u))"
        if dtype == "bool":
            return f"(({part} & 255u) != 0u)"
        if dtype.startswith("u"):
            return f"({part} & {(1 << bits) - 1}u)"
        return f"(bitcast<i32>({part} << {32 - bits}u) >> {32 - bits}u)"

    def _cast(self, node: Expr) -> str:
        target, value = self._dtype(node), node.value
        own = self._dtype(value)
        kind, given = self._register(target), self._register(own)
        if target == own:
            return self._value(value)
        if target == "float64":
            return self._to_float64(value, own)
        if own == "float64":
            if "float" in target:
                return f"f64_to_float({self._value(value)})"
            if target == "bool":
                return f"(!f64_is_zero({self._value(value)}))"
            whole = f"f64_to_wide({self._value(value)})"
            return whole if kind == WIDE else self._from_wide(whole, target)
        if own == "int64" and self._is_leaf(value) and kind != WIDE:
            return self._from_int(self._narrow(value), "int32", target)
        if kind == WIDE:
            return self._widened(value, own, target)
        text = self._value(value)
        if given == WIDE:
            if kind == "f32":
                function = "float_of_unsigned" if own == "uint64" else "float_of_wide"
                return f"{function}({text})"
            if kind == "bool":
                return f"any({text} != {WIDE}(0u, 0u))"
            return self._from_wide(text, target)
        if given == "f32":
            match kind:
                case "f32":
                    return text
                case "bool":
                    return f"({text} != 0.0f)"
                case "u32" if target == "uint32":
                    return f"wide_of_float({text}).x"
                case "u32":
                    return self._wrapped(f"bitcast<u32>(int_of_float({text}))", target)
                case _:
                    return self._wrapped(f"int_of_float({text})", target)
        return self._from_int(text, own, target)

    def _from_wide(self, text: str, target: str) -> str:
        """The low bits of an integer of 64 bits."""
        is_unsigned = self._register(target) == "u32"
        return self._wrapped(f"{text}.x" if is_unsigned else f"bitcast<i32>({text}.x)", target)

    def _to_float64(self, value: Expr, own: str) -> str:
        if self._register(own) == "f32":
            return f"f64_of_float({self._value(value)})"
        if own == "uint64":
            return f"f64_of_unsigned({self._value(value)})"
        return f"f64_of_wide({self._value(tirx.Cast('int64', value))})"

    def _is_leaf(self, expr: Expr) -> bool:
        """Is it an index that did not overflow, as no product of indices is known to?"""
        if isinstance(expr, tirx.Add | tirx.Sub):
            return self._is_leaf(expr.a) and isinstance(expr.b, tirx.IntImm)
        return isinstance(expr, tvm.ir.Var | tirx.IntImm) and self._is_index(expr)

    def _from_int(self, text: str, own: str, target: str) -> str:
        """An integer in one word, or a bool, as another type in one word."""
        given, kind = self._register(own), self._register(target)
        if kind == "bool":
            return text if given == "bool" else f"({text} != {'0i' if given == 'i32' else '0u'})"
        if given == "bool":
            zero, one = {"i32": ("0i", "1i"), "u32": ("0u", "1u"), "f32": ("0.0f", "1.0f")}[kind]
            return f"select({zero}, {one}, {text})"
        if kind == "f32":
            return f"f32({text})"
        converted = text if given == kind else f"bitcast<{kind}>({text})"
        fits = _bits(own) < _bits(target) and (own.startswith("u") or not target.startswith("u"))
        return converted if fits else self._wrapped(converted, target)

    def _widened(self, value: Expr, own: str, target: str) -> str:
        given = self._register(own)
        if own == "int64" and self._is_leaf(value):
            return (
                self._wide_leaf(value)
                if not isinstance(value, tirx.Add | tirx.Sub)
                else f"wide_of_int({self._narrow(value)})"
            )
        text = self._value(value)
        match given:
            case "f32":
                function = "wide_of_float_unsigned" if target == "uint64" else "wide_of_float"
                return f"{function}({text})"
            case "bool":
                return f"{WIDE}(select(0u, 1u, {text}), 0u)"
            case "u32":
                return f"{WIDE}({text}, 0u)"
            case "i32":
                return f"wide_of_int({text})"
            case _:
                return text

    # Calls

    def _called(self, call: Expr) -> str:
        name = _op(call)
        return str(call.args[0].value) if name in _EXTERN else name

    def _call(self, call: Expr) -> str:
        name = self._called(call)
        args = list(call.args)[1:] if _op(call) in _EXTERN else list(call.args)
        match name:
            case "if_then_else":
                condition, a, b = args
                return self._chosen(condition, self._as_of(a, call), self._as_of(b, call))
            case "likely":
                return self._value(args[0])
            case "reinterpret":
                return self._bits(args[0], self._dtype(call))
            case "isnan" | "isinf":
                prefix = "f64_" if self._dtype(args[0]) == "float64" else ""
                return f"{prefix}is_{name[2:]}({self._value(args[0])})"
            case "isfinite" if self._dtype(args[0]) != "float64":
                return f"((bitcast<u32>({self._value(args[0])}) & 0x7f800000u) != 0x7f800000u)"
            case "bitwise_not":
                return self._inverted(call)
            case "popcount" | "clz":
                return self._counted(name, args[0], self._dtype(call))
            case "large_uint_imm":
                return _wide(int(args[0].value) | int(args[1].value) << 32)
            case _ if name in _OPERATORS:
                return self._value(_OPERATORS[name](*args))
            case _:
                pass
        if name in ("abs", "fabs") and "int" in self._dtype(call):
            return self._absolute(args[0])
        if self._dtype(call) == "float64":
            if name not in _FLOAT64:
                raise BuildError(
                    "device-dtype",
                    f'the kernel "{self._name}" computes {name} in float64, which WGSL does not have',
                    help='compute in float32: R.astype(x, "float32")',
                )
            return f"{_FLOAT64[name]}({self._value(args[0])})"
        if name == "exp10":
            return f"power(10.0f, {self._value(args[0])})"
        if name in _NATIVE:
            return self._native(name, args)
        if name in ELEMENTARY and self._dtype(call) == "float32":
            return f"{self._elementary(name, len(args))}({', '.join(map(self._value, args))})"
        raise self._unknown(call)

    def _native(self, name: str, args: Sequence[Expr]) -> str:
        texts = [
            self._narrow(a) if "int" in self._dtype(a) and name == "ldexp" else self._value(a)
            for a in args
        ]
        return f"{_NATIVE[name]}({', '.join(texts)})"

    def _bits(self, value: Expr, dtype: str) -> str:
        own = self._dtype(value)
        given, kind = self._register(own), self._register(dtype)
        text = self._value(value)
        if given == kind:
            return self._from_int(text, own, dtype) if given in ("i32", "u32") else text
        if (
            "f32" in (given, kind)
            and WIDE not in (given, kind)
            and _bits(own) == _bits(dtype) == 32
        ):
            return f"bitcast<{kind}>({text})"
        if {given, kind} == {"i32", "u32"}:
            return self._from_int(text, own, dtype)
        raise BuildError(
            "device-dtype",
            f'the kernel "{self._name}" takes the bits of {own} as {dtype}, which WGSL cannot',
        )

    def _counted(self, name: str, value: Expr, dtype: str) -> str:
        function = "countOneBits" if name == "popcount" else "countLeadingZeros"
        own, text = self._dtype(value), self._twice(value)
        if self._register(own) == WIDE:
            if name == "popcount":
                found = f"({function}({text}.x) + {function}({text}.y))"
            else:
                found = f"select({function}({text}.y), 32u + {function}({text}.x), {text}.y == 0u)"
            return self._from_int(found, "uint32", dtype)
        bits = _bits(own)
        word = text if self._register(own) == "u32" else f"bitcast<u32>({text})"
        if bits < 32:
            word = f"({word} & {(1 << bits) - 1}u)"
        unused = f" - {32 - bits}u" if name == "clz" and bits < 32 else ""
        found = f"({function}({word}){unused})"
        if self._register(dtype) == WIDE:
            return f"{WIDE}({found}, 0u)"
        return self._from_int(found, "uint32", dtype)

    def _absolute(self, value: Expr) -> str:
        dtype = self._dtype(value)
        if self._register(dtype) == WIDE:
            return f"wide_magnitude({self._value(value)})"
        return self._wrapped(f"abs({self._value(value)})", dtype)

    def _elementary(self, name: str, arity: int) -> str:
        """A function of relaxpy's own formula, written once for each kernel."""
        function = f"relaxpy_{name}"
        if function in self.to.functions:
            return function
        args = [tirx.Var(f"x{i}", "float32") for i in range(arity)]
        value = applied(name, args)
        outer, self.to.body = self.to.body, []
        indent, self._indent, exact, self._exact = self._indent, 1, self._exact, True
        text = self._value(value)
        body, self.to.body = self.to.body, outer
        self._indent, self._exact = indent, exact
        head = f"fn {function}({', '.join(f'{self.names[a]}: f32' for a in args)}) -> f32 {{"
        self.to.functions[function] = "\n".join([head, *body, f"  return {text};", "}"]) + "\n"
        return function

    # The method of each kind of node

    _STATEMENTS: ClassVar[dict[str, Callable[[Any, Stmt], None]]] = {
        "SeqStmt": _seq, "AttrStmt": _attr, "Bind": _bind, "AllocBuffer": _alloc,
        "DeclBuffer": _declaration, "IfThenElse": _if, "For": _for, "While": _while,
        "Break": _break, "Continue": _continue, "Evaluate": _evaluate, "BufferStore": _store,
    }  # fmt: skip
    _EXPRESSIONS: ClassVar[tuple[tuple[Any, Callable[[Any, Expr], str]], ...]] = (
        (tvm.ir.Var, _var),
        (tirx.IntImm, _int_literal),
        (tirx.FloatImm, _float_literal),
        (tuple(_SIGNS), _sum),
        ((tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod), _quotient),
        (tuple(_WORDS), _bitwise),
        (tirx.BitwiseNot, _inverted),  # pyright: ignore[reportAttributeAccessIssue]
        ((tirx.LShift, tirx.RShift), _shift),
        ((tirx.Min, tirx.Max), _extreme),
        (tuple(_COMPARISONS), _comparison),
        ((tirx.And, tirx.Or), _logical),
        (tirx.Not, _not),
        (tirx.Select, _select),
        (tirx.Let, _let),
        (tvm.ir.TensorLoad, _load),
        (tirx.Cast, _cast),
        (tvm.ir.Call, _call),
    )


_POWERS = frozenset({"exp", "exp2", "sqrt"})
"""Functions whose product drivers compute as one of them."""
_EXTERN = ("call_pure_extern", "call_extern")
"""Calls of a function that their first argument names."""


def _op(call: Expr) -> str:
    """The operator of a call, without the prefix of its table."""
    return str(getattr(call.op, "name", "")).rpartition(".")[2]


def _hash(expr: Expr) -> int:
    """The same for expressions of the same form, of the same variables."""
    return int(tvm_ffi.structural_hash(expr))


def _is_one(extent: Expr) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent.value) == 1


def _bits(dtype: str) -> int:
    return 1 if dtype == "bool" else int(tvm.DataType(dtype).bits)


def _int(value: int) -> str:
    if value == -(1 << 31):
        return "i32(-2147483648)"
    return f"{value}i" if value >= 0 else f"({value}i)"


def _wide(value: int) -> str:
    return f"{WIDE}({value & 0xFFFFFFFF}u, {value >> 32 & 0xFFFFFFFF}u)"


_SMALLEST_NORMAL = 2.0**-126


def _float(value: float) -> str:
    """A float32. Those that WGSL has no literals for, or may flush to 0, are bits."""
    try:
        (single,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        single = math.copysign(math.inf, value)
    is_zero = single == 0 and math.copysign(1, single) > 0
    if not math.isfinite(single) or (abs(single) < _SMALLEST_NORMAL and not is_zero):
        (bits,) = struct.unpack("<I", struct.pack("<f", single))
        return f"from_bits(0x{bits:08x}u)"
    short = f"{single:.6g}"
    if float(short) == single:
        text = f"{short}f" if "." in short or "e" in short else f"{short}.0f"
    else:
        digits, _, exponent = float(single).hex().partition("p")
        text = f"{digits.rstrip('0').rstrip('.')}p{exponent}f"
    return text if single >= 0 else f"({text})"
