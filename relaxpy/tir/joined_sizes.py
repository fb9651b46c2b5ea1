"""Sums of many sizes that a tensor program takes become one parameter each.

A kernel for `zeros((n0 + n1 + … + n399,))` would take 400 numbers and add them wherever it needs the size, and LLVM's
time grows with the square of that. What needs only the sum gets the sum.
"""

from __future__ import annotations

from typing import Any

from relaxpy.ir.dim import Dim, Monomial, SymVar, dim_sum
from relaxpy.ir.module import ScalarParam
from relaxpy.tir.nodes import address_of
from relaxpy.tir.prim_func import PrimFunc, read_symbols
from relaxpy.tir.te import substituted
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.walk import outermost, rewritten

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul)


def with_joined_sizes(program: PrimFunc, many: int) -> tuple[PrimFunc, dict[SymVar, Dim]] | None:
    """The program with one size in place of each sum of `many` or more of its scalar parameters that it uses in no
    other way (`a + b` and `4*a + 4*b + c` use a + b), and the scalar parameters that it then has, in order, each with
    its value in terms of those before. None if there is no such sum."""
    func = program.func
    scalars = {p.var for p in program.params if isinstance(p, ScalarParam)}
    if len(scalars) < many:
        return None
    sums = _Sums(func, scalars)
    groups = [group for group in sums.groups() if len(group) >= many]
    if not groups:
        return None
    values: dict[SymVar, Dim] = {}
    gone: dict[SymVar, Dim] = {}
    for number, (first, *others) in enumerate(groups):
        new = SymVar(f"size{number}")
        values[new] = dim_sum(var.dim for var in (first, *others))
        gone |= {first: new.dim} | dict.fromkeys(others, Dim.of(0))
    known: dict[SymVar, Any] = {var: each for each, var in sums.symbols.symbols.items()}
    known |= {new: tirx.Var(new.name, "int64") for new in values}
    changed = {
        address_of(each): substituted(dim.substitute(gone), known)
        for dim, places in sums.found.items()
        for each in places
    }
    func = rewritten(func, (_ARITHMETIC, lambda node: changed.get(address_of(node), node)))
    buffers = [p for p in func.params if isinstance(p.ty, tirx.BufferType)]
    shown = {address_of(size) for buffer in buffers for size in buffer.shape}
    # A size that is one of a buffer's is known from there.
    passed = [known[new] for new in values if address_of(known[new]) not in shown]
    kept = [p for p in func.params if sums.symbols.symbols.get(p) not in gone]
    result = PrimFunc(tirx.PrimFunc([*kept, *passed], func.body, attrs=func.attrs), program.span)
    before = {address_of(each): var for var, each in known.items()}
    found: dict[SymVar, Dim] = {}
    for var, symbol in read_symbols(result.func).symbols.items():
        old = before[address_of(var)]
        found[symbol] = values.get(old, old.dim)
    taken = [p.var for p in result.params if isinstance(p, ScalarParam)]
    return result, {var: found[var] for var in taken}


class _Sums:
    """The arithmetic of sizes in a program."""

    def __init__(self, func: tirx.PrimFunc, scalars: set[SymVar]) -> None:
        self.symbols = read_symbols(func)
        self.scalars = scalars
        self.found: dict[Dim, list[Any]] = {}
        """What is computed of sizes alone, each with the largest expressions that are equal to it."""
        self.alone: set[SymVar] = set()
        """Sizes that are used elsewhere as well."""
        self._pure: dict[int, tuple[Any, bool]] = {}
        """Address of an expression → the expression, kept alive, and the answer."""
        buffers = [p for p in func.params if isinstance(p.ty, tirx.BufferType)]
        for part in (*buffers, func.body):
            self._look(part)

    def groups(self) -> list[list[SymVar]]:
        """The scalar parameters that are in the same sums, with the same coefficients."""
        uses: dict[SymVar, list[tuple[int, int]]] = {}
        for number, dim in enumerate(self.found):
            for monomial, coefficient in dim.terms:
                symbol = _symbol(monomial)
                if symbol is not None:
                    uses.setdefault(symbol, []).append((number, coefficient))
                else:
                    self.alone.update(atom for atom, _ in monomial if isinstance(atom, SymVar))
        groups: dict[tuple[tuple[int, int], ...], list[SymVar]] = {}
        for symbol, places in uses.items():
            if symbol in self.scalars and symbol not in self.alone:
                groups.setdefault(tuple(places), []).append(symbol)
        return [*groups.values()]

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
            self.alone.add(symbol)

    def _is_pure(self, node: Any) -> bool:
        """Is everything in it a size or a literal?"""
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
                pure = part in self.symbols.symbols
            else:
                pure = isinstance(part, tirx.IntImm)
            self._pure[address_of(part)] = part, pure
        return self._pure[address_of(node)][1]


def _symbol(monomial: Monomial) -> SymVar | None:
    """The symbol that a monomial is; None for a number and for a product."""
    if len(monomial) != 1:
        return None
    ((atom, power),) = monomial
    return atom if power == 1 and isinstance(atom, SymVar) else None
