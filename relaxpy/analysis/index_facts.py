"""Facts at each statement of a tensor program (loop ranges, conditions that hold, values of axes and of bound
variables), and proofs of index comparisons from them.

TVM's analyser is tried first. It does not multiply ranges by symbols (`i * m + j < n * m`). An expression that it
leaves open is maximised or minimised over each loop, innermost first, in the normal form of dimensions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from relaxpy.errors import PassError
from relaxpy.ir.dim import Dim, SymVar, dim_op
from relaxpy.shape.prove import holds
from relaxpy.tir.analyzer import VarTable, unproved_beyond_64_bits
from relaxpy.tir.name_length import NameLengths
from relaxpy.tir.nodes import DIVISIONS, dtype_of
from relaxpy.tir.programs.loops import int64
from relaxpy.tir.ranges import Ranges
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi
from relaxpy.tir.types import Expr
from relaxpy.tir.walk import rewritten, walk
from relaxpy.tir.written import written_buffers

Load = tvm.ir.TensorLoad


class Facts:
    """The facts about one function. Statements are visited in order; `with` enters the scopes around them."""

    def __init__(self, func: Any) -> None:
        self.written = written_buffers(func)
        """Buffers whose elements may change while the function runs."""
        self.values: dict[Any, Expr] = {}
        """Axes of blocks and bound variables, in terms of loops and parameters."""
        self._opaque: set[Any] = set()
        self.loops: list[tuple[Any, Expr, Expr]] = []
        """The enclosing loops with their first value and extent, outermost first."""
        self._ranges = Ranges(func)
        self._analyzer = tvm.sym.Analyzer()
        self._lengths = NameLengths()
        self.dims = _Dims()
        self._given: list[Dim] = []
        self._elements: dict[int, list[tuple[Any, Expr]]] = {}
        """Structural hash → elements of buffers that occur in conditions and indices, and the variables that replace
        them in proofs."""
        self._sizes: set[SymVar] = set()
        self._dimensions: set[Any] = set()
        for param in func.params:
            for size in getattr(param.ty, "shape", None) or ():
                self._size(size)

    def _size(self, size: Expr) -> None:
        """A dimension of an argument is not negative."""
        if isinstance(size, tvm.ir.Var):
            bound = tvm.sym.ConstIntBound(0, tvm.sym.ConstIntBound.POS_INF)
            self._analyzer.update(size, bound, override=True)
            self._sizes.add(self.dims.symbol(size))
            self._dimensions.add(size)
        elif not isinstance(size, tirx.IntImm):
            self._analyzer.constraint_scope(size >= int64(0)).__enter__()
            self._note(int64(0) <= size)

    def _note(self, condition: Expr) -> None:
        try:
            self._given.append(self.dims.to_dim(condition))
        except PassError:
            return

    # Scopes

    @contextmanager
    def loop(self, loop: Any) -> Iterator[None]:
        """Enter a loop that runs at least once."""
        low, extent = self.known(loop.min), self.known(loop.extent)
        self._analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(low, extent), True)
        self.loops.append((loop.loop_var, low, extent))
        with ExitStack() as stack:
            for size in (extent, *self._factors(extent)):
                stack.enter_context(self.where(_signed(size) >= 1))
            yield
        self.loops.pop()

    def _factors(self, extent: Expr) -> list[Expr]:
        """The sizes that a product is made of. None of them is 0 if the product is not 0."""
        if isinstance(extent, tirx.Mul):
            return self._factors(extent.a) + self._factors(extent.b)
        return [extent] if extent in self._dimensions else []

    @contextmanager
    def where(self, condition: Expr) -> Iterator[None]:
        """Enter a scope in which a condition holds. Nothing is assumed about elements that may have changed since."""
        if not self.is_stable(condition) or lanes(condition) != 1:
            yield
            return
        condition = self._to_prove(condition)
        before = len(self._given)
        with ExitStack() as stack:
            for part in filter(self._is_exact, _parts(condition)):
                stack.enter_context(self._analyzer.constraint_scope(part))
                self._note(part)
            yield
        del self._given[before:]

    def _is_exact(self, condition: Expr) -> bool:
        """Does the condition mean the same for overflowing integers? Sizes are far from overflow, but elements and
        scalar arguments may be anything: `k + 5 < 10` does not imply that k is below 5."""
        while isinstance(condition, tirx.Not):
            condition = condition.a
        sides = [condition.a, condition.b] if isinstance(condition, _COMPARISONS) else [condition]
        return not any(self._is_wild(side) for side in sides if not _is_plain(side))

    def _is_wild(self, expr: Expr) -> bool:
        found: list[Any] = []
        walk(expr, (tvm.ir.Var, found.append))
        loops = [var for var, _, _ in self.loops]
        return any(var not in loops and var not in self._dimensions for var in found)

    def let(self, var: Any, value: Expr) -> None:
        """Record that a variable aliases a value. Nothing is recorded if the value grows too long with names
        expanded."""
        if self.is_stable(value) and self._lengths.keeps(var, value):
            value = self.known(value)
            self.values[var] = value
            if not _is_plain(value) and self._is_wild(self._without_loads(value)):
                self._opaque.add(var)

    def known(self, expr: Expr) -> Expr:
        """Return the expression with axes and bound variables replaced by their values."""
        return self._replaced(expr) if self.values else expr

    def _to_prove(self, expr: Expr) -> Expr:
        """The expression as used in proofs: over loops, parameters, elements, and variables bound to arithmetic on
        elements, which may have overflowed."""
        return self._without_loads(self._replaced(expr, self._opaque))

    def _replaced(self, expr: Expr, kept: Collection[Any] = ()) -> Expr:
        """The expression with names replaced by their values, except for those to be kept."""
        bound: set[Any] = set()
        walk(expr, (tirx.Let, lambda let: bound.add(let.var)))

        def value(var: Any) -> Expr:
            return var if var in bound or var in kept else self.values.get(var, var)

        return rewritten(expr, (tvm.ir.Var, value))

    def is_stable(self, expr: Expr) -> bool:
        """Does the expression read nothing that the function writes?"""
        found: list[Any] = []
        walk(expr, (Load, lambda load: found.append(load.source)))
        return not any(source in self.written for source in found)

    def _without_loads(self, expr: Expr) -> Expr:
        """Return the expression with a variable in place of each element (about which TVM's analyser assumes nothing)
        and of each term that may overflow (about which it would assume the opposite)."""
        if lanes(expr) != 1:
            return expr
        return rewritten(
            expr,
            (Load, self._stand_in),
            (tirx.Cast, lambda cast: self._stand_in(cast) if self._changes(cast) else cast),
            (_ARITHMETIC, lambda node: self._stand_in(node) if self._ranges.wraps(node) else node),
            (
                DIVISIONS,
                lambda node: node if self._is_plain_division(node) else self._stand_in(node),
            ),
            (tirx.IntImm, lambda number: self._stand_in(number) if _is_huge(number) else number),
        )

    def _stand_in(self, node: Expr) -> Expr:
        alike = self._elements.setdefault(int(tvm_ffi.structural_hash(node)), [])
        if not isinstance(node, Load) or node.source not in self.written:
            for known, var in alike:
                if tvm_ffi.structural_equal(known, node):
                    return var
        dtype: Any = node.ty
        var = tirx.Var("element", str(dtype.dtype))
        alike.append((node, var))
        return var

    def _is_plain_division(self, node: Any) -> bool:
        """Does TVM's analyser know what this quotient or remainder is? It takes `i // i` for 1, also of 0, and a
        remainder for at least 0, also one with the sign of its dividend."""
        if self._ranges.wraps(node):
            return False
        a, b = _signed(node.a), _signed(node.b)
        if isinstance(node, (tirx.FloorDiv, tirx.FloorMod)):
            return self._proves(b > 0) or self._proves(b < 0)
        return self._proves(b > 0) and self._proves(a >= 0)

    def _changes(self, cast: Any) -> bool:
        """May the conversion give another number?"""
        return not (_is_whole(cast) and _is_whole(cast.value)) or self._ranges.wraps(cast)

    # Proofs

    def is_within(self, index: Expr, low: Expr, extent: Expr) -> bool:
        """Is `low <= index < low + extent`, always?"""
        index, low, extent = (self._to_prove(int64(e)) for e in (index, low, extent))
        below = low + extent
        return self.at_most(low, index) and (
            self._proves(index < below) or self.at_most(index + int64(1), below)
        )

    def at_most(self, a: Expr, b: Expr) -> bool:
        """Is `a <= b`, always? For expressions without axes."""
        if self._proves(a <= b):
            return True
        try:
            distance = self.dims.to_dim(b) - self.dims.to_dim(a)
        except PassError:
            return False
        return self.is_positive(distance)

    def _proves(self, condition: Expr) -> bool:
        strengths = (tvm.sym.ProofStrength.DEFAULT, tvm.sym.ProofStrength.SYMBOLIC_BOUND)
        with unproved_beyond_64_bits():
            return any(self._analyzer.can_prove(condition, strength) for strength in strengths)
        return False

    def is_positive(self, distance: Dim) -> bool:
        """Is the minimum over all loops at least 0?"""
        least = self.extreme(distance, self.loops, largest=False)
        return least is not None and self._holds(dim_op("le", Dim.of(0), least))

    def extreme(
        self, value: Dim, loops: Sequence[tuple[Any, Expr, Expr]], *, largest: bool
    ) -> Dim | None:
        """The maximum or minimum of a value over these non-empty loops; None if it is not known."""
        try:
            for var, low, extent in reversed(loops):
                symbol = self.dims.symbol(var)
                if symbol not in value.vars:
                    continue
                first = self.dims.to_dim(low)
                last = first + self.dims.to_dim(extent) - 1
                step = value.substitute({symbol: symbol.dim + 1}) - value
                if symbol in step.vars:
                    return None
                if self._holds(dim_op("le", Dim.of(0), step)):
                    value = value.substitute({symbol: last if largest else first})
                elif self._holds(dim_op("le", step, Dim.of(0))):
                    value = value.substitute({symbol: first if largest else last})
                else:
                    return None
        except PassError:
            return None
        return value

    def _holds(self, condition: Dim) -> bool:
        if condition.value is not None:
            return bool(condition.value)
        given = tuple(self._given)
        symbols = dict.fromkeys([*condition.vars, *(v for known in given for v in known.vars)])
        bounds = {var: (0 if var in self._sizes else None, None) for var in symbols}
        return holds(condition, bounds, given)


class _Dims(VarTable):
    """Converts integers to dimensions. Variables that are not integers have none."""

    def symbol(self, var: Expr) -> SymVar:
        """A symbol of 64 bits, like all dimensions."""
        found = self.symbols.get(var)
        if found is None:
            found = self.symbols[var] = SymVar(str(var.name))
        return found

    def to_dim(self, expr: Expr) -> Dim:
        if not _is_whole(expr) or (isinstance(expr, tirx.Cast) and not _keeps_value(expr)):
            raise PassError("dimension", f"{expr} is not a dimension")
        return super().to_dim(expr)


def lanes(expr: Expr) -> int:
    """The number of lanes of the expression; 1 for a scalar."""
    return int(tvm.DataType(str(expr.ty.dtype)).lanes)


def _parts(condition: Expr) -> Iterator[Expr]:
    """The conjuncts of a condition. Those of `T.if_then_else(a, b, False)` are a and b."""
    name = str(condition.op.name) if isinstance(condition, tvm.ir.Call) else ""
    if isinstance(condition, tirx.And):
        yield from _parts(condition.a)
        yield from _parts(condition.b)
    elif name == "prim.likely":
        yield from _parts(condition.args[0])
    elif name == "prim.if_then_else" and _is_false(condition.args[2]):
        yield from _parts(condition.args[0])
        yield from _parts(condition.args[1])
    else:
        yield condition


_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul)
_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def _is_plain(expr: Expr) -> bool:
    """Is it a variable, perhaps converted to more bits?"""
    while isinstance(expr, tirx.Cast) and _keeps_value(expr):
        expr = expr.value
    return isinstance(expr, tvm.ir.Var)


def _is_whole(expr: Expr) -> bool:
    dtype = str(expr.ty.dtype)
    return dtype.startswith(("int", "uint", "bool"))


def _keeps_value(cast: Any) -> bool:
    """Is it a conversion between integers that preserves the value?"""
    old, new = str(cast.value.ty.dtype), str(cast.ty.dtype)
    if not _is_whole(cast.value) or not _is_whole(cast):
        return False
    room = tvm.DataType(new).bits - new.startswith("int")
    return old == new or (
        tvm.DataType(old).bits - old.startswith("int") <= room
        and (new.startswith("int") or not old.startswith("int"))
    )


def _is_huge(number: Any) -> bool:
    """Is it a literal so large that products of indices with it would overflow?"""
    return abs(int(number.value)) > 1 << 31


def _is_false(expr: Expr) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr.value) == 0


def _signed(size: Expr) -> Expr:
    """An integer to compare: TVM's simplifier subtracts what is compared, and refuses a negative number of an
    unsigned type."""
    return int64(size) if dtype_of(size).startswith("uint") else size
