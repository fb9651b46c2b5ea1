"""Estimate the cost of a tensor program, as an expression of its symbolic variables.

The runtime uses the estimate at every call to decide whether to run a kernel in parallel and whether to release the
interpreter lock; a factor of two does not matter. Every store counts once per iteration of the loops around it, times
one plus the operations in its value. Elementary functions count as the arithmetic that they are expanded to on
processors, dozens of operations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from relaxpy.errors import PassError, UsageError
from relaxpy.ir.dim import Dim, SymVar, factors_of, minimum, product, surely_at_least
from relaxpy.tir.analyzer import VarTable
from relaxpy.tir.prim_func import PrimFunc, read_symbols
from relaxpy.tir.programs.elementary import written_out
from relaxpy.tir.programs.loops import ABOUT
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi
from relaxpy.tir.walk import walk

_CHEAP = frozenset({
    "Add", "Sub", "Mul", "Min", "Max", "EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or", "Not", "Select", "Cast",
    "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "LShift", "RShift",
})  # fmt: skip
_DIVISIONS = frozenset({"Div", "Mod", "FloorDiv", "FloorMod"})
_DIVISION, _FUNCTION = 4, 8
"""The cost of a division and of an elementary function, in additions, when vectorised."""
_FREE_CALLS = frozenset({"prim.if_then_else", "prim.likely", "tirx.reinterpret", "tirx.fma"})

_FLOATING = frozenset({"Add", "Sub", "Mul", "Div", "Min", "Max"})
_FLOAT_CALLS = {**dict.fromkeys(_FREE_CALLS, 0), "tirx.fma": 2}
"""Floating-point operations of calls; other calls count as one."""


@lru_cache(maxsize=512)  # a program is called from many places
def work(func: Any) -> Dim | None:
    """About how many scalar operations a run of TVM's PrimFunc executes, over the symbols of its parameters; None if
    the extent of a loop is not an expression of them."""
    counter = _Counter(func)
    return counter.total(written_out(func).body)


@lru_cache(maxsize=512)
def bytes_moved(func: Any) -> Dim | None:
    """The fewest bytes that a run must move: the size of the parameters, each element once. An input of which less is
    read (a table with looked-up rows) counts only that much. None as for `work`."""
    table = read_symbols(func)
    written, read_often = PrimFunc(func).written, loads(func)
    total = Dim.of(0)
    for number, param in enumerate(func.params):
        if not isinstance(param.ty, tirx.BufferType):
            continue
        read = None if number in written else read_often[number]
        try:
            elements = product(table.to_dim(extent) for extent in param.ty.shape)
            if read is not None and not surely_at_least(read, elements):
                elements = minimum(elements, read)
            total = total + elements * max(1, tvm.DataType(str(param.ty.dtype)).bits // 8)
        except (PassError, UsageError):
            return None
    return total


@lru_cache(maxsize=512)
def product_flops(func: Any) -> Dim | None:
    """Floating-point operations of the sums of products in a run, two per product (the unit in which the speed of
    matrix products is given), over the program's symbols; None as for `work`."""
    return _Products(func).total(func.body)


@lru_cache(maxsize=512)
def flops(func: Any) -> Dim | None:
    """Floating-point operations of a run, over the program's symbols; None as for `work`.

    Additions, subtractions, multiplications, divisions, minima, maxima and elementary functions of floats count one
    each, whatever they cost (a multiply-add two); comparisons, choices, conversions, and integers none. Both arms of a
    branch count.
    """
    return _Floats(func).total(func.body)


@lru_cache(maxsize=512)
def loads(func: Any) -> tuple[Dim | None, ...]:
    """The number of reads from each parameter in a run, over the program's symbols; None as for `work`. A parameter
    read more often than it has elements may be read whole; of a table with looked-up rows only a part is."""
    counter = _Loads(func)
    total = counter.total(func.body)
    if total is None:
        return (None,) * len(func.params)
    found = factors_of(total, counter.tags.values())
    return tuple(found[counter.tags[param]] for param in func.params)


@lru_cache(maxsize=4096)  # fusion asks for a program at each of its calls
def length(func: Any) -> int:
    """The length of a program: the nodes of all stored values, with elementary functions expanded. A kernel's compile
    time grows with it."""
    total = 0

    def count(_: object) -> None:
        nonlocal total
        total += 1

    walk(
        written_out(func).body,
        (tirx.BufferStore, lambda store: walk(store.value, (tvm.ir.Expr, count))),
    )
    return total


class Extents:
    """Upper bounds of sizes in a program, over the symbols of its parameters. Loops are entered on the way down."""

    def __init__(self, func: Any) -> None:
        self.table = VarTable()
        self.table.symbols.update(read_symbols(func).symbols)
        self.known = set(self.table.symbols)
        self.largest: dict[Any, Dim] = {}
        """The largest values of loop variables, axes and bound variables."""

    def enter(self, node: Any) -> None:
        """Record the bounds of the variables that a loop, a block or a binding defines. Raises PassError if they are
        not expressions of known variables."""
        match type(node).__name__:
            case "For":
                self.largest[node.loop_var] = self.dim(node.min) + self.dim(node.extent) - 1
            case "SBlockRealize":
                for axis in node.block.iter_vars:
                    self.largest[axis.var] = self.dim(axis.dom.min) + self.dim(axis.dom.extent) - 1
            case "Bind":
                value = node.value
                if type(value).__name__ == "Div":  # of sizes, which are not negative
                    value = tirx.FloorDiv(value.a, value.b)
                self.largest[node.var] = self.dim(value)
            case _:
                pass

    def dim(self, expr: Any) -> Dim:
        """An extent over the program's symbols. An extent that depends on enclosing loops counts with its largest
        value."""
        if isinstance(expr, tirx.IntImm):
            return Dim.of(expr.value)
        dim = self.table.to_dim(expr)
        replaced = {}
        for var in dim.vars:
            tvm_var = next(v for v, symbol in self.table.symbols.items() if symbol is var)
            if tvm_var in self.largest:
                replaced[var] = self.largest[tvm_var]
            elif tvm_var not in self.known:
                raise PassError("dimension", f"{var} is known only at run time")
        return dim.substitute(replaced)


class _Counter(Extents):
    def total(self, body: Any) -> Dim | None:
        try:
            return self.stmt(body)
        except (PassError, UsageError):  # or a count that has too many terms
            return None

    def stmt(self, node: Any) -> Dim:
        """The work of a statement, for one iteration of the loops around it."""
        match type(node).__name__:
            case "For":
                extent = self.dim(node.annotations.get(ABOUT, node.extent))
                self.largest[node.loop_var] = self.dim(node.min) + extent - 1
                return extent * self.stmt(node.body)
            case "SBlockRealize":
                self.enter(node)
                return self.stmt(node.block.body)
            case "SeqStmt":
                return sum((self.stmt(part) for part in node.seq), Dim.of(0))
            case "IfThenElse":
                otherwise = Dim.of(0) if node.else_case is None else self.stmt(node.else_case)
                return self.stmt(node.then_case) + otherwise
            case "BufferStore":
                lanes = node.value.ty.dtype.lanes
                return Dim.of(lanes * (1 + operations(node.value)))
            case "Evaluate" | "Bind":
                return Dim.of(operations(node.value))
            case "AttrStmt" | "LetStmt" | "AssertStmt":
                return (
                    self.stmt(node.body) if getattr(node, "body", None) is not None else Dim.of(0)
                )
            case "AllocBuffer" | "DeclBuffer":
                body = getattr(node, "body", None)
                return Dim.of(0) if body is None else self.stmt(body)
            case kind:
                raise PassError("dimension", f"the work of a {kind} is unknown")


class _Products(_Counter):
    """Counts `sum = sum + a * b` as two operations, and nothing else."""

    def stmt(self, node: Any) -> Dim:
        match type(node).__name__:
            case "BufferStore":
                lanes = node.value.ty.dtype.lanes
                return Dim.of(2 * lanes if _adds_product(node) else 0)
            case "Evaluate" | "Bind":
                return Dim.of(0)
            case _:
                return super().stmt(node)


class _Floats(_Counter):
    """Counts the floating-point operations."""

    def stmt(self, node: Any) -> Dim:
        match type(node).__name__:
            case "BufferStore" | "Evaluate" | "Bind":
                return Dim.of(_float_operations(node.value))
            case _:
                return super().stmt(node)


class _Loads(_Counter):
    """Counts the loads of all parameters in one walk. Each load is represented by a symbol for its parameter."""

    def __init__(self, func: Any) -> None:
        super().__init__(func)
        self.tags: dict[Any, SymVar] = {
            param: SymVar(f"loads{i}") for i, param in enumerate(func.params)
        }

    def stmt(self, node: Any) -> Dim:
        match type(node).__name__:
            case "BufferStore":
                values = (node.value, *node.indices)
                return sum(map(self.count, values), Dim.of(0))
            case "Evaluate" | "Bind":
                return self.count(node.value)
            case _:
                return super().stmt(node)

    def count(self, value: Any) -> Dim:
        """Loads in one expression, counted with their lanes."""
        found: dict[SymVar, int] = {}

        def visit(load: Any) -> None:
            tag = self.tags.get(load.source)
            if tag is not None:
                found[tag] = found.get(tag, 0) + load.ty.dtype.lanes

        walk(value, (tvm.ir.TensorLoad, visit))
        return sum((tag.dim * count for tag, count in found.items()), Dim.of(0))


def _adds_product(store: Any) -> bool:
    """Does a store add an expression with a product to the value stored before?"""
    if type(store.value).__name__ != "Add":
        return False
    a, b = store.value.a, store.value.b
    for before, added in ((a, b), (b, a)):
        if type(before).__name__ == "TensorLoad" and before.source.same_as(store.buffer):
            return _has_product(added)
    return False


def _has_product(value: Any) -> bool:
    return _sum_of(value, lambda _, kind: int(kind == "Mul")) > 0


def _float_operations(value: Any) -> int:
    """The floating-point operations of one expression, counted with their lanes."""

    def weight(node: Any, kind: str) -> int:
        each = _FLOAT_CALLS.get(_called(node), 1) if kind == "Call" else int(kind in _FLOATING)
        dtype = getattr(node.ty, "dtype", "") if each else ""  # a pointer has none
        return each * dtype.lanes if "float" in dtype else 0

    return _sum_of(value, weight)


def operations(value: Any) -> int:
    """The operations of one expression, without index arithmetic."""

    def weight(node: Any, kind: str) -> int:
        if kind == "Call":
            return 1 if _called(node) in _FREE_CALLS else _FUNCTION
        return _DIVISION if kind in _DIVISIONS else int(kind in _CHEAP)

    return _sum_of(value, weight)


def _called(call: Any) -> str:
    return str(getattr(call.op, "name", ""))


def _sum_of(value: Any, weight: Callable[[Any, str], int]) -> int:
    """The sum of the weights of an expression's nodes (by class name), without the indices of loads."""
    total = 0

    def visit(node: Any) -> Any:
        nonlocal total
        kind = type(node).__name__
        if kind == "TensorLoad":
            return tvm_ffi.WalkResult.SKIP
        total += weight(node, kind)
        return None

    tvm_ffi.structural_walk(value, (tvm.ir.Expr, visit), order="pre")
    return total
