"""Intervals of integer expressions, and which of them wrap around.

TVM's analyser takes all integers for unlimited, of few bits, too, and looks through conversions to fewer bits. So
arithmetic that may wrap has to be told from arithmetic that does not, before the analyser sees it.

Arithmetic of 64 bits on loops and sizes is taken not to wrap, except for high powers of one of them, for products of
sizes that no tensor has together, and for huge coefficients. In programs of users, a loop in a product counts as the
sizes that bound it (`of_user`). Elements of tensors are not known at all: both are others' concern
(`relaxpy.tir.lowering.exact`, `relaxpy.analysis.index_facts`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from relaxpy.tir.nodes import address_of, dtype_of, operator_of, size_vars
from relaxpy.tir.tvm import s_tir, tirx, tvm
from relaxpy.tir.types import Expr
from relaxpy.tir.walk import walk

Interval: TypeAlias = tuple[int, int]

_LARGEST_SIZE = (1 << 30) - 1
"""Sizes, and loops below them, of 32 bits are taken to be at most this."""
_POWER, _POWER_OF_SIZES = 3, 5
"""Powers of loops, and of sizes, that may exceed 64 bits. Tensors of n × n × n × n elements have indices with four."""
_SQUARE = 2
"""The power of a size that fits into 64 bits for any tensor in memory."""
_LARGEST_COEFFICIENT = 1 << 46
"""A product of more, and of a loop, may exceed 64 bits, and TVM's analyser cannot multiply it out; and so may a sum of
more."""
_DEEPEST = 64
"""Nothing is known of expressions that are nested deeper."""
_SUMS = (tirx.Add, tirx.Sub, tirx.Mul)
_NOTHING = (0, 0)
"""Of what is no integer."""


def limits(dtype: str) -> Interval | None:
    """The smallest and the largest integer of a type, or of a lane of it; None if it is no type of integers."""
    if dtype.startswith("bool"):
        return 0, 1
    if not dtype.startswith(("int", "uint")):
        return None
    bits = tvm.DataType(dtype).bits
    return (0, (1 << bits) - 1) if dtype[0] == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)


class Ranges:
    """The intervals of a function's loops, axes, sizes and bound variables."""

    def __init__(self, func: Any, of_user: bool = False) -> None:
        self._of_user = of_user
        self._spans: dict[Any, tuple[Expr, Expr]] = {}
        """Loops and axes: the first value and the number of values."""
        self._values: dict[Any, Expr] = {}
        self._sizes: set[Any] = size_vars(func)
        self._together = [*_sizes_of_buffers(func)]
        """The sizes of each buffer, and how often: their product is a number of elements."""
        self._wrapping: dict[int, tuple[Expr, bool]] = {}
        """Address of an expression of 64 bits → the expression, kept alive, and whether it wraps."""
        self._degrees: dict[Any, Counter[Any]] = {}
        """Loops and axes: the sizes of which the product bounds them."""
        self._found: dict[int, tuple[Expr, Interval]] = {}
        """Address of an expression → the expression, kept alive, and its interval."""
        self._coefficients: dict[int, tuple[Expr, int]] = {}
        """Address of an expression → the expression, kept alive, and the bound of its coefficients."""
        walk(
            func.body,
            (tirx.For, self._loop),
            (s_tir.SBlock, self._block),
            ((tirx.Bind, tirx.Let), self._bind),
        )

    def _loop(self, loop: Any) -> None:
        self._spans[loop.loop_var] = loop.min, loop.extent

    def _block(self, block: Any) -> None:
        for axis in block.iter_vars:
            if axis.dom is not None:
                self._spans[axis.var] = axis.dom.min, axis.dom.extent

    def _bind(self, node: Any) -> None:
        self._values[node.var] = node.value

    def of(self, expr: Expr, depth: int = 0) -> Interval:
        """The interval of an integer expression."""
        found = self._found.get(address_of(expr))
        if found is None:
            interval = _within(self._exact(expr, depth + 1), dtype_of(expr))
            found = self._found[address_of(expr)] = expr, interval
        return found[1]

    def wraps(self, node: Expr) -> bool:
        """May this sum, difference, product or conversion of integers give another value than without limits?"""
        dtype = dtype_of(node)
        own = limits(dtype)
        if own is None:
            return False
        if dtype.startswith("int64") and not isinstance(node, tirx.Cast):
            found = self._wrapping.get(address_of(node))
            if found is None:
                found = self._wrapping[address_of(node)] = node, self._wraps_64(node)
            return found[1]
        if isinstance(node, tirx.Cast) and limits(dtype_of(node.value)) is None:
            return False
        low, high = self._exact(node, 0)
        return low < own[0] or own[1] < high

    def _wraps_64(self, node: Expr) -> bool:
        """The same for 64 bits. What is computed with what wraps may have any value."""
        if not isinstance(node, _SUMS):
            return False
        if self._coefficient(node) > _LARGEST_COEFFICIENT:
            return True
        if isinstance(node, tirx.Mul) and self._is_large_product(node):
            return True
        return any(
            operator_of(part).endswith(".reinterpret")
            if isinstance(part, tvm.ir.Call)
            else self._of_user and isinstance(part, _SUMS) and self.wraps(part)
            for part in (node.a, node.b)
        )

    def wrapped(self, node: Expr) -> int | None:
        """The value of a scalar that wraps, in its own type, if it is always the same one."""
        low, high = self._exact(node, 0)
        own = limits(dtype_of(node))
        if low != high or own is None or "x" in dtype_of(node):
            return None
        return own[0] + (low - own[0]) % (own[1] - own[0] + 1)

    def _is_large_product(self, product: Expr) -> bool:
        """May the product exceed 64 bits for tensors that fit into memory? So it may if a variable is a factor often,
        or for sizes that are not the sizes of one tensor."""
        factors: list[Expr] = []
        parts = [product]
        while parts and len(factors) < _DEEPEST:
            part = self._values.get(parts[-1], parts[-1])
            parts.pop()
            if isinstance(part, tirx.Mul):
                parts += [part.a, part.b]
            elif isinstance(part, tvm.ir.Var):
                factors.append(part)
        sizes = self._sizes.intersection(factors)
        if len(sizes) > 1 and not any(sizes <= each.keys() for each in self._together):
            return True
        if self._of_user:
            degrees = sum((self._degrees_of(factor) for factor in factors), Counter[Any]())
            is_square = len(degrees) == 1 and degrees.total() <= _SQUARE
            return not is_square and not any(degrees <= each for each in self._together)
        return any(
            factors.count(var) >= (_POWER_OF_SIZES if var in sizes else _POWER) for var in factors
        )

    def _degrees_of(self, var: Any) -> Counter[Any]:
        if var in self._sizes:
            return Counter([var])
        found = self._degrees.get(var)
        if found is None:
            found = self._degrees[var] = Counter()  # a loop's own, until it is known
            used: list[Any] = []
            for bound in self._spans.get(var, ()):
                walk(bound, (tvm.ir.Var, used.append))
            if var in self._values:
                walk(self._values[var], (tvm.ir.Var, used.append))
            for each in used:
                found = found + self._degrees_of(each)
            self._degrees[var] = found
        return found

    def _coefficient(self, expr: Expr) -> int:
        """A bound of the coefficients and constants of an integer, multiplied out. That of an operation beyond the
        largest counts as 1 in what is computed from it, since the operation is hidden from whoever multiplies out."""
        found = self._coefficients.get(address_of(expr))
        if found is None:
            found = self._coefficients[address_of(expr)] = expr, self._new_coefficient(expr)
        return found[1]

    def _new_coefficient(self, expr: Expr) -> int:
        def of(part: Expr) -> int:
            inner = self._coefficient(part)
            return inner if inner <= _LARGEST_COEFFICIENT or isinstance(part, tirx.IntImm) else 1

        match expr:
            case tirx.IntImm():
                return abs(int(expr.value))
            case tvm.ir.Var() if expr in self._values:
                return of(self._values[expr])
            case tirx.Add() | tirx.Sub():
                return of(expr.a) + of(expr.b)
            case tirx.Mul():
                return of(expr.a) * of(expr.b)
            case tirx.Cast():
                return of(expr.value)
            case _:
                return 1

    def _exact(self, expr: Expr, depth: int) -> Interval:
        """The interval without limits of the expression's own type."""
        if isinstance(expr, tirx.IntImm):
            return int(expr.value), int(expr.value)
        if depth > _DEEPEST:
            return limits(dtype_of(expr)) or _NOTHING
        if isinstance(expr, tvm.ir.Var):
            return self._variable(expr, depth)
        operation = _OPERATIONS.get(type(expr).__name__)
        if operation is not None:
            return operation(self.of(expr.a, depth), self.of(expr.b, depth))
        if isinstance(expr, (tirx.Cast, tirx.Broadcast)) and limits(dtype_of(expr.value)):
            return self.of(expr.value, depth)
        if isinstance(expr, tirx.Select):
            then, otherwise = self.of(expr.true_value, depth), self.of(expr.false_value, depth)
            return min(then[0], otherwise[0]), max(then[1], otherwise[1])
        return limits(dtype_of(expr)) or _NOTHING

    def _variable(self, var: Any, depth: int) -> Interval:
        own = limits(dtype_of(var)) or _NOTHING
        if var in self._sizes:
            return 0, min(own[1], _LARGEST_SIZE) if own[1] < 1 << 32 else own[1]
        if var in self._values:
            return self.of(self._values[var], depth)
        if var not in self._spans:
            return own
        first, most = (self.of(part, depth) for part in self._spans[var])
        return _within((first[0], first[1] + max(0, most[1] - 1)), dtype_of(var))


def _sizes_of_buffers(func: Any) -> Iterator[Counter[Any]]:
    """The variables in the shape of each buffer that may have elements, and how often."""
    found = [param for param in func.params if isinstance(param.ty, tirx.BufferType)]
    walk(func.body, (s_tir.SBlock, lambda block: found.extend(block.alloc_buffers)))
    for buffer in found:
        if not any(isinstance(size, tirx.IntImm) and size.value == 0 for size in buffer.shape):
            sizes: list[Any] = []
            for size in buffer.shape:
                walk(size, (tvm.ir.Var, sizes.append))
            yield Counter(sizes)


def _within(found: Interval, dtype: str) -> Interval:
    """The interval, or all of the type if it exceeds that."""
    own = limits(dtype)
    return found if own is None or (own[0] <= found[0] and found[1] <= own[1]) else own


def _add(a: Interval, b: Interval) -> Interval:
    return a[0] + b[0], a[1] + b[1]


def _multiply(a: Interval, b: Interval) -> Interval:
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)


def _divide(a: Interval, b: Interval) -> Interval:
    """Of a quotient, rounded in any way; the divisor may be 0 or -1."""
    if b[0] > 0:
        ends = [x // y for x in a for y in b]
        return min(ends), max(ends) + (min(ends) < 0)
    most = max(abs(a[0]), abs(a[1]))
    return -most, most


def _remainder(a: Interval, b: Interval) -> Interval:
    """Of a remainder with any sign."""
    most = max(abs(b[0]), abs(b[1]), 1) - 1
    if a[0] >= 0 and b[0] >= 0:
        return 0, min(most, a[1])
    return -most, most


def _mask(a: Interval, b: Interval) -> Interval:
    """Of the bits that both have."""
    masks = [each[1] for each in (a, b) if each[0] >= 0]
    most = max(abs(end) for each in (a, b) for end in each)
    return (0, min(masks)) if masks else (-2 * most, most)


_OPERATIONS: dict[str, Callable[[Interval, Interval], Interval]] = {
    "Add": _add,
    "Sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "Mul": _multiply,
    "FloorDiv": _divide,
    "Div": _divide,
    "FloorMod": _remainder,
    "Mod": _remainder,
    "BitwiseAnd": _mask,
    "Min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "Max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
}
