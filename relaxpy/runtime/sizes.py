"""Symbolic sizes as polynomials over the arguments' dimensions, and proofs about them.

The verifier (`relaxpy.runtime.verifier.verify`) computes with these in place of numbers. An *atom* is an unknown: a
dimension of an argument, or an operation such as `n // 4` on sizes. Equal operations are the same atom. A *size* is a
sum of products of atoms in normal form, so that equal sizes are equal tuples.

Facts that the program checks (`assume_equal`, `assume_at_least_0`) hold for the code after the check, or until the end
of its branch: `mark` and `undo` remove them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from relaxpy.runtime.bytecode import Heap, IntExpr, IntOp
from relaxpy.runtime.integers import compute

Monomial: TypeAlias = "tuple[int, ...]"
"""Indices of atoms in ascending order. An atom that occurs twice is squared."""
Size: TypeAlias = "tuple[tuple[Monomial, int], ...]"
"""Monomials with nonzero coefficients, in ascending order."""
Limits: TypeAlias = "tuple[int | None, int | None]"
"""The smallest and the largest value; None: unknown."""

_TERMS, _DEGREE, _COEFFICIENT, _DEPTH = 48, 12, 1 << 128, 40
"""Limits of a polynomial, and of the depth of atoms that are searched. A larger polynomial becomes an atom."""
_LEVELS = 2
_MISSING: Any = object()
_TRIES = 8


@dataclass(frozen=True, slots=True)
class _Atom:
    op: str
    """"" for an atom that is not an operation."""
    args: tuple[Size, ...]
    low: int | None
    high: int | None
    depth: int


def number(value: int) -> Size:
    """A size that is a constant."""
    return (((), value),) if value else ()


def value_of(size: Size) -> int | None:
    """The value of a constant size, or None."""
    if not size:
        return 0
    return size[0][1] if len(size) == 1 and not size[0][0] else None


def plus(a: Size, b: Size, factor: int = 1) -> Size:
    """The sum of a and factor · b."""
    if not b:
        return a
    if not a and factor == 1:
        return b
    terms = dict(a)
    for monomial, coefficient in b:
        terms[monomial] = terms.get(monomial, 0) + factor * coefficient
    return _sorted(terms)


def _sorted(terms: dict[Monomial, int]) -> Size:
    return tuple(sorted((m, c) for m, c in terms.items() if c))


class Sizes:
    """The atoms of a function, and the facts known about them at the current instruction."""

    def __init__(self) -> None:
        self.atoms: list[_Atom] = []
        self._numbers: dict[tuple[str, tuple[Size, ...]], int] = {}
        self._equal: dict[int, Size] = {}
        self._low: dict[int, int] = {}
        self._high: dict[int, int] = {}
        self._at_least_0: dict[Size, bool] = {}
        self._contradictions: dict[Size, bool] = {}
        self._trail: list[tuple[dict[Any, Any], Any, Any]] = []

    @property
    def contradictory(self) -> bool:
        """Do the facts exclude each other? Then a check before this instruction always fails: it is never reached, and
        nothing is refuted by what would hold here."""
        return bool(self._contradictions)

    # Known facts, and the trail to undo them

    def put(self, table: dict[Any, Any], key: Any, value: Any = _MISSING) -> None:
        """Sets an entry of a table, or deletes it without a `value`. `undo` restores it."""
        self._trail.append((table, key, table.get(key, _MISSING)))
        if value is _MISSING:
            table.pop(key, None)
        else:
            table[key] = value

    def mark(self) -> int:
        """The current position in the trail, for `undo`."""
        return len(self._trail)

    def changed(self, mark: int, table: dict[Any, Any]) -> dict[Any, Any]:
        """The entries of a table that were set since `mark`; deleted ones are `None`."""
        keys = {key for each, key, _ in self._trail[mark:] if each is table}
        return {key: table.get(key) for key in keys}

    def undo(self, mark: int) -> None:
        """Removes all facts since `mark`."""
        while len(self._trail) > mark:
            table, key, old = self._trail.pop()
            if old is _MISSING:
                table.pop(key, None)
            else:
                table[key] = old

    # Making sizes

    def fresh(self, low: int | None = None) -> Size:
        """A new unknown that is at least `low`."""
        self.atoms.append(_Atom("", (), low, None, 0))
        return (((len(self.atoms) - 1,), 1),)

    def of(self, expr: IntExpr, slots: Callable[[int], Size]) -> Size:
        """The value of a bytecode formula over sizes."""
        if isinstance(expr, Heap):
            return slots(expr.index)
        if isinstance(expr, IntOp):
            return self.apply(expr.op, tuple(self.of(arg, slots) for arg in expr.args))
        return number(expr)

    def apply(self, op: str, args: tuple[Size, ...]) -> Size:
        """Applies an operation to sizes."""
        match op:
            case "add":
                return self._bounded(op, args, plus(args[0], args[1]))
            case "sub":
                return self._bounded(op, args, plus(args[0], args[1], -1))
            case "mul":
                return self.times(args[0], args[1])
        known = [value for arg in args if (value := value_of(arg)) is not None]
        if len(known) == len(args):
            try:
                return number(compute(op, known))
            except ZeroDivisionError:
                return self._atom(op, args)
        match op:
            case "floordiv" | "floormod":
                return self._divided(op, args)
            case "min" | "max":
                return self._extreme(op, tuple(sorted(set(args))))
            case "select" if args[1] == args[2]:
                return args[1]
        return self._atom(op, args)

    def times(self, a: Size, b: Size) -> Size:
        """The product of two sizes."""
        factor = value_of(b)
        if factor is None and (value := value_of(a)) is not None:
            a, factor = b, value
        if factor is not None:
            product = tuple((m, c * factor) for m, c in a) if factor else ()
            return self._bounded("mul", (a, number(factor)), product)
        if len(a) * len(b) > _TERMS * 2:
            return self._atom("mul", tuple(sorted((a, b))))
        terms: dict[Monomial, int] = {}
        for one, c in a:
            for other, d in b:
                monomial = tuple(sorted(one + other))
                terms[monomial] = terms.get(monomial, 0) + c * d
        return self._bounded("mul", tuple(sorted((a, b))), _sorted(terms))

    def product(self, sizes: Iterable[Size], factor: int = 1) -> Size:
        """The product of all sizes, times `factor`."""
        total = number(factor)
        for size in sizes:
            total = self.times(total, size)
        return total

    def _bounded(self, op: str, args: tuple[Size, ...], size: Size) -> Size:
        """The size, or an atom for it if it has become too large."""
        if len(size) <= _TERMS and all(
            len(m) <= _DEGREE and -_COEFFICIENT < c < _COEFFICIENT for m, c in size
        ):
            return size
        return self._atom(op, args)

    def _divided(self, op: str, args: tuple[Size, ...]) -> Size:
        """Moves multiples of the divisor out of the division: (4n + 6) // 4 = n + 1 + 2 // 4."""
        size, divisor = args[0], value_of(args[1])
        if divisor is None or divisor <= 0:
            return self._atom(op, args)
        rest = _sorted({m: c % divisor for m, c in size})
        whole = _sorted({m: c // divisor for m, c in size})
        known = value_of(rest)
        if known is not None:
            return whole if op == "floordiv" else number(known)
        if op == "floormod":
            return self._atom(op, (rest, args[1]))
        return plus(whole, self._atom(op, (rest, args[1])))

    def _extreme(self, op: str, args: tuple[Size, ...]) -> Size:
        if len(args) == 1:
            return args[0]
        if len(args) == 2:
            a, b = args
            if self.is_at_least_0(plus(a, b, -1)):
                return a if op == "max" else b
            if self.is_at_least_0(plus(b, a, -1)):
                return b if op == "max" else a
        return self._atom(op, args)

    def _atom(self, op: str, args: tuple[Size, ...]) -> Size:
        key = (op, args)
        found = self._numbers.get(key)
        if found is None:
            depth = 1 + max(
                (self.atoms[a].depth for arg in args for m, _ in arg for a in m), default=0
            )
            # These limits are permanent, so they must not use facts, which may be undone.
            low, high = self._limits(op, args, -1) if depth <= _DEPTH else (None, None)
            found = self._numbers[key] = len(self.atoms)
            self.atoms.append(_Atom(op, args, low, high, depth))
        return (((found,), 1),)

    def _limits(self, op: str, args: tuple[Size, ...], levels: int) -> Limits:
        limits = [self.limits(arg, levels) for arg in args]
        lows, highs = [low for low, _ in limits], [high for _, high in limits]
        match op:
            case "floordiv":
                divisor = value_of(args[1])
                if divisor is not None and divisor > 0:
                    return tuple(None if x is None else x // divisor for x in limits[0])  # type: ignore[return-value]
                positive = lows[0] is not None and lows[0] >= 0 and (lows[1] or 0) >= 1
                return (0, highs[0]) if positive else (None, None)
            case "floormod":
                if (lows[1] or 0) >= 1:
                    return 0, None if highs[1] is None else highs[1] - 1
            case "min":
                return (None if None in lows else min(lows)), min(  # type: ignore[type-var]
                    (high for high in highs if high is not None), default=None
                )
            case "max":
                return max((low for low in lows if low is not None), default=None), (
                    None if None in highs else max(highs)  # type: ignore[type-var]
                )
            case "select":
                low = None if None in lows[1:] else min(lows[1:])  # type: ignore[type-var]
                return low, None if None in highs[1:] else max(highs[1:])  # type: ignore[type-var]
            case "mul":
                if all(low is not None and low >= 0 for low in lows):
                    return 0, None
            case "add" | "sub":
                pass
            case _:
                return 0, 1
        return None, None

    def translated(self, size: Size, other: Sizes, bound: dict[int, Size]) -> Size | None:
        """Translates a size over the atoms of `other` to this object's atoms. `bound` maps atoms of `other` to sizes
        here, and is extended with those computed from them. None if an atom cannot be computed."""
        total: Size = ()
        for monomial, coefficient in size:
            term = number(coefficient)
            for atom in monomial:
                if atom not in bound:
                    found = other.atoms[atom]
                    args = [self.translated(arg, other, bound) for arg in found.args]
                    known = tuple(arg for arg in args if arg is not None)
                    if not found.op or len(known) < len(args) or found.depth > _DEPTH:
                        return None
                    bound[atom] = self.apply(found.op, known)
                term = self.times(term, bound[atom])
            total = plus(total, term)
        return total

    # Proofs

    def limits(self, size: Size, levels: int = _LEVELS) -> Limits:
        """The smallest and the largest value of a size, as far as known. Facts are searched `levels` operations deep;
        -1: not at all."""
        low: int | None = 0
        high: int | None = 0
        for monomial, coefficient in size:
            ends = self._monomial_limits(monomial, levels)
            if coefficient < 0:
                ends = ends[::-1]
            low = None if low is None or ends[0] is None else low + coefficient * ends[0]
            high = None if high is None or ends[1] is None else high + coefficient * ends[1]
        return low, high

    def _monomial_limits(self, monomial: Monomial, levels: int = _LEVELS) -> Limits:
        if not monomial:
            return 1, 1
        if len(monomial) == 1:
            return self._atom_limits(monomial[0], levels)
        low, high = 1, 1
        unlimited = False
        for atom in monomial:
            least, most = self._atom_limits(atom, levels)
            if least is None or least < 0:
                return (0, None) if len(set(monomial)) * 2 == len(monomial) == 2 else (None, None)
            low *= least
            unlimited |= most is None
            high *= most or 0
        return low, None if unlimited else high

    def _atom_limits(self, atom: int, levels: int = _LEVELS) -> Limits:
        known = self.atoms[atom]
        low, high = known.low, known.high
        if levels >= 0:
            low, high = self._low.get(atom, low), self._high.get(atom, high)
        if known.op and levels > 0:
            least, most = self._limits(known.op, known.args, levels - 1)
            low = max((x for x in (low, least) if x is not None), default=None)
            high = min((x for x in (high, most) if x is not None), default=None)
        return low, high

    def are_equal(self, a: Size, b: Size) -> bool:
        """Whether two sizes are proved equal."""
        return a == b or (bool(self._equal) and self.resolved(a) == self.resolved(b))

    def is_at_least_0(self, size: Size) -> bool:
        """Whether a size is proved nonnegative."""
        for each in self._alternatives(size):
            low = self.limits(each)[0]
            if (low is not None and low >= 0) or each in self._at_least_0:
                return True
        return False

    def _alternatives(self, size: Size) -> Iterator[Size]:
        """Lower bounds of a size: other forms of it, and forms with an operand in place of a maximum."""
        yield size
        todo = [self.resolved(size)]
        for _ in range(_TRIES):
            if not todo:
                return
            size = todo.pop(0)
            yield size
            for monomial, coefficient in size:
                for position, atom in enumerate(monomial):
                    found = self.atoms[atom]
                    rest = monomial[:position] + monomial[position + 1 :]
                    low = self._monomial_limits(rest)[0]
                    useful = found.op == ("max" if coefficient > 0 else "min")
                    if useful and low is not None and low >= 0:
                        others = plus(size, ((monomial, coefficient),), -1)
                        todo += [
                            plus(others, self.times(((rest, coefficient),), arg))
                            for arg in found.args
                        ]

    def resolved(self, size: Size) -> Size:
        """A size with known equalities substituted."""
        for _ in range(_TRIES):
            if not self._equal:
                break
            other = self._replaced(size, {})
            if other == size:
                break
            size = other
        return size

    def _replaced(self, size: Size, done: dict[int, Size]) -> Size:
        total: Size = ()
        for monomial, coefficient in size:
            term = number(coefficient)
            for atom in monomial:
                if atom not in done:
                    done[atom] = self._replaced_atom(atom, done)
                term = self.times(term, done[atom])
            total = plus(total, term)
        return total

    def _replaced_atom(self, atom: int, done: dict[int, Size]) -> Size:
        if atom in self._equal:
            return self._equal[atom]
        found = self.atoms[atom]
        same: Size = (((atom,), 1),)
        if not found.op or found.depth > _DEPTH:
            return same
        args = tuple(self._replaced(arg, done) for arg in found.args)
        return same if args == found.args else self.apply(found.op, args)

    # Facts

    def assume_equal(self, a: Size, b: Size) -> None:
        """Adds the fact that the two are equal."""
        difference = self.resolved(plus(a, b, -1))
        if value_of(difference):
            self.put(self._contradictions, difference, True)
        # Substitute the youngest atom: it is the actual size of a dimension that is compared with the others.
        for monomial, coefficient in sorted(difference, reverse=True):
            if len(monomial) == 1 and coefficient in (1, -1):
                rest = plus(difference, ((monomial, coefficient),), -1)
                if monomial[0] not in self._atoms_in(rest):
                    other = tuple((m, -coefficient * c) for m, c in rest)
                    low, high = self._atom_limits(monomial[0])
                    self.put(self._equal, monomial[0], other)
                    if low is not None:
                        self.assume_at_least_0(plus(other, number(-low)))
                    if high is not None:
                        self.assume_at_least_0(plus(number(high), other, -1))
                    return

    def assume_at_least_0(self, size: Size) -> None:
        """Adds the fact that a size is nonnegative."""
        self.put(self._at_least_0, size, True)
        known = [(m, c) for m, c in size if m]
        if len(known) != 1 or len(known[0][0]) != 1:
            return
        ((atom,), factor), constant = known[0], dict(size).get((), 0)
        low, high = self._atom_limits(atom)
        if factor > 0:
            least = -(constant // factor)  # ceil(-constant / factor)
            if low is None or least > low:
                self.put(self._low, atom, least)
        else:
            most = constant // -factor
            if high is None or most < high:
                self.put(self._high, atom, most)

    def assume(self, condition: IntExpr, slots: Callable[[int], Size]) -> None:
        """Adds the fact that a condition holds."""
        if not isinstance(condition, IntOp):
            return
        if condition.op == "and":
            for each in condition.args:
                self.assume(each, slots)
        elif condition.op in ("le", "lt", "eq"):
            a, b = (self.of(arg, slots) for arg in condition.args)
            if condition.op == "eq":
                self.assume_equal(a, b)
            else:
                self.assume_at_least_0(plus(plus(b, a, -1), number(-(condition.op == "lt"))))

    def _atoms_in(self, size: Size) -> set[int]:
        """All atoms of a size, including those inside operations."""
        found: set[int] = set()
        todo = [atom for monomial, _ in size for atom in monomial]
        while todo:
            atom = todo.pop()
            if atom not in found:
                found.add(atom)
                todo += [a for arg in self.atoms[atom].args for m, _ in arg for a in m]
        return found
