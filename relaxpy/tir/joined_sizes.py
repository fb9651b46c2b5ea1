"""Sums of many sizes that a tensor program takes become one parameter each.

A kernel for `zeros((n0 + n1 + … + n399,))` would take 400 numbers and add them wherever it needs the size, and LLVM's
time grows with the square of that. What needs only the sum gets the sum.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.module import ScalarParam
from relaxpy.tir.nodes import address_of
from relaxpy.tir.prim_func import PrimFunc, read_symbols
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.walk import outermost, rewritten

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul)


def with_joined_sizes(
    program: PrimFunc, many: int
) -> tuple[PrimFunc, dict[SymVar, Dim]] | None:
    """The program with one size in place of each sum of `many` or more of its scalar parameters that it uses in no other
    way, and the scalar parameters that it then has, in order, each with its value in terms of those before. None if
    there is no such sum."""
    func = program.func
    scalars = {p.var for p in program.params if isinstance(p, ScalarParam)}
    if len(scalars) < many:
        return None
    sums = _Sums(func, scalars)
    joined = {
        dim: tirx.Var(f"size{number}", "int64")
        for number, dim in enumerate(sums.found)
        if len(dim.vars) >= many and all(sums.uses[var] == 1 for var in dim.vars)
    }
    if not joined:
        return None
    new = {address_of(each): var for dim, var in joined.items() for each in sums.found[dim]}
    func = rewritten(func, (_ARITHMETIC, lambda node: new.get(address_of(node), node)))
    gone = {var for dim in joined for var in dim.vars}
    symbols = read_symbols(program.func).symbols
    buffers = [p for p in func.params if isinstance(p.ty, tirx.BufferType)]
    sizes = {address_of(size) for buffer in buffers for size in buffer.shape}
    # A buffer's shape tells its sizes.
    values = {var: dim for dim, var in joined.items() if address_of(var) not in sizes}
    kept = [p for p in func.params if symbols.get(p) not in gone]
    result = PrimFunc(tirx.PrimFunc([*kept, *values], func.body, attrs=func.attrs), program.span)
    table = {symbol: var for var, symbol in read_symbols(result.func).symbols.items()}
    found: dict[SymVar, Dim] = {}
    for param in result.params:
        if isinstance(param, ScalarParam):
            var = table[param.var]
            found[param.var] = values[var] if var in values else symbols[var].dim
    return result, found


class _Sums:
    """The arithmetic of scalar parameters in a program."""

    def __init__(self, func: tirx.PrimFunc, scalars: set[SymVar]) -> None:
        self.symbols = read_symbols(func)
        self.scalars = scalars
        self.found: dict[Dim, list[Any]] = {}
        """What is computed of nothing else, as dimensions, each with the largest expressions that are equal to it."""
        self.uses = Counter[SymVar]()
        """In how many of these each parameter is; and elsewhere, which counts twice."""
        self._pure: dict[int, tuple[Any, bool]] = {}
        """Address of an expression → the expression, kept alive, and the answer."""
        buffers = [p for p in func.params if isinstance(p.ty, tirx.BufferType)]
        for part in (*buffers, func.body):
            self._look(part)
        for dim in self.found:
            self.uses.update(dim.vars)

    def _look(self, node: Any) -> None:
        for each in outermost(node, _ARITHMETIC, self._alone):
            if self._is_pure(each):
                self.found.setdefault(self.symbols.to_dim(each), []).append(each)
            else:
                self._look(each.a)
                self._look(each.b)

    def _alone(self, var: Any) -> None:
        symbol = self.symbols.symbols.get(var)
        if symbol is not None:
            self.uses[symbol] += 2

    def _is_pure(self, node: Any) -> bool:
        """Is everything in it a parameter or a literal?"""
        waiting = [node]
        while waiting:
            part = waiting[-1]
            if address_of(part) in self._pure:
                waiting.pop()
                continue
            inner = [part.a, part.b] if isinstance(part, _ARITHMETIC) else []
            missing = [each for each in inner if address_of(each) not in self._pure]
            if missing:
                waiting += missing
                continue
            if inner:
                pure = all(self._pure[address_of(each)][1] for each in inner)
            elif isinstance(part, tvm.ir.Var):
                pure = self.symbols.symbols.get(part) in self.scalars
            else:
                pure = isinstance(part, tirx.IntImm)
            self._pure[address_of(part)] = part, pure
        return self._pure[address_of(node)][1]
