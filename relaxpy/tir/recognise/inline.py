"""Inline a value into the expression that reads it, so that each element that is read several times is computed
once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from relaxpy.tir.tvm import tirx, tvm, tvm_ffi
from relaxpy.tir.walk import rewritten, walk

Expr = tvm.ir.Expr
Var = tvm.ir.Var
Mutator = tvm_ffi.StructuralMutator

_CHOICE = "prim.if_then_else"


def with_named_reads(expr: Expr, buffer: Var, value: Callable[[Sequence[Expr]], Expr]) -> Expr:
    """Return the expression with each read of the buffer replaced by `value(indices)`.

    An element that is read several times is bound to a name before all its reads, or inside an arm of a choice if only
    that arm reads it. A product gets one name per factor: with a sum, products form one operation.
    """
    bound: set[Var] = set()
    walk(expr, (tirx.Let, lambda node: bound.add(node.var)))
    return _Namer(buffer, value, bound).run(expr)


@dataclass
class _Read:
    """One element of the buffer that is read."""

    indices: Sequence[Expr]
    values: dict[Var, Expr]
    """Variables, and the values that they are bound to."""
    result: Expr
    """The element, in terms of these variables."""
    count: int = 1


@dataclass
class _Namer:
    buffer: Var
    value: Callable[[Sequence[Expr]], Expr]
    bound: set[Var]
    """Names bound in the expression, which are not known before it."""
    regions: list[list[_Read]] = field(default_factory=list[list[_Read]])
    """The reads that certainly happen in the expression, and in the enclosing arms."""

    def run(self, expr: Expr) -> Expr:
        self.regions.append([])
        callbacks = ((tvm.ir.TensorLoad, self.load), (tvm.ir.Call, self.call))
        result = tvm_ffi.structural_mutate(expr, callbacks)
        return _named(result, self.regions.pop())

    def load(self, node: tvm.ir.TensorLoad, mutator: Mutator) -> Expr:
        if not node.source.same_as(self.buffer):
            return mutator.default_mutate(node)
        indices = [mutator.mutate(index) for index in node.indices]
        if _uses_any(indices, self.bound):
            return self.value(indices)
        for region in self.regions:
            known = _find(region, indices)
            if known is not None:
                known.count += 1
                return known.result
        read = _read(self.buffer.name, indices, self.value(indices))
        self.regions[-1].append(read)
        return read.result

    def call(self, node: tvm.ir.Call, mutator: Mutator) -> Expr:
        if str(getattr(node.op, "name", "")) != _CHOICE:
            return mutator.default_mutate(node)
        condition = mutator.mutate(node.args[0])
        values: list[Expr] = []
        arms: list[list[_Read]] = []
        for arm in node.args[1:]:
            self.regions.append([])
            values.append(mutator.mutate(arm))
            arms.append(self.regions.pop())
        same = self.in_both(*arms)
        for read in arms[1]:  # its indices may be elements that were renamed
            read.values = {var: _replaced(value, same) for var, value in read.values.items()}
        named = [
            _named(_replaced(value, same), arm) for value, arm in zip(values, arms, strict=True)
        ]
        return tvm.ir.Call(node.op, [condition, *named], node.attrs, ret_ty=node.ty)

    def in_both(self, arms: list[_Read], others: list[_Read]) -> dict[Var, Var]:
        """Move the reads that both arms share before the choice. Returns the renamed variables."""
        same: dict[Var, Var] = {}
        for read in list(arms):
            other = _find(others, read.indices)
            if other is not None:
                same.update(zip(other.values, read.values, strict=True))
                arms.remove(read)
                others.remove(other)
                read.count += other.count
                self.regions[-1].append(read)
        return same


def _find(reads: Sequence[_Read], indices: Sequence[Expr]) -> _Read | None:
    equal = tvm_ffi.structural_equal
    return next((read for read in reads if all(map(equal, read.indices, indices))), None)


def _read(name: str, indices: Sequence[Expr], value: Expr) -> _Read:
    parts = [value.a, value.b] if isinstance(value, tirx.Mul) else [value]
    names = [tirx.Var(name, part.ty) for part in parts]
    result = tirx.Mul(*names) if len(names) == 2 else names[0]
    return _Read(indices, dict(zip(names, parts, strict=True)), result)


def _named(expr: Expr, reads: Sequence[_Read]) -> Expr:
    """Return the expression with its reads replaced; elements that are read only once are inlined in place, unless they
    are indices of others."""
    names = {var for read in reads for var in read.values}
    indices: set[Var] = set()
    for read in reads:
        for value in read.values.values():
            walk(value, (Var, lambda var: indices.add(var) if var in names else None))
    once: dict[Var, Expr] = {}
    several: list[_Read] = []
    for read in reads:
        if read.count == 1 and indices.isdisjoint(read.values):
            once |= read.values
        else:
            several.append(read)
    expr = _replaced(expr, once)
    for read in reversed(several):
        for var, value in reversed(read.values.items()):
            expr = tirx.Let(var, value, expr)
    return expr


def _replaced(expr: Expr, values: dict[Var, Expr]) -> Expr:
    return rewritten(expr, (Var, lambda var: values.get(var, var))) if values else expr


def _uses_any(exprs: Sequence[Expr], names: set[Var]) -> bool:
    if not names:
        return False
    found: list[Var] = []

    def visit(var: Var) -> None:
        if var in names:
            found.append(var)

    for expr in exprs:
        walk(expr, (Var, visit))
    return bool(found)
