"""Dimensions: integer polynomials over symbolic variables, always in normal form.

A `Dim` is a sum of terms `coefficient * atom**power * …`. An atom is a variable (`SymVar`) or an integer function of
dimensions that is no polynomial (`DimOp`: floordiv, floormod, min, max, select, comparisons). Dims are interned: equal
normal forms are one object, so `==` and `hash` cost nothing, and `n * 4 + 4 == 4 * (n + 1)` holds by construction.
`relaxpy.shape.prove` can prove equalities that the normal form does not decide.

Terms are ordered by degree, then by the names of their variables, then by the variables' age; never by address, so the
same program always prints the same text. Division rounds down, as in Python.
"""

from __future__ import annotations

import itertools
import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any, TypeAlias, Union
from weakref import WeakValueDictionary

import numpy as np

from relaxpy.errors import UsageError, caller_span

_serial = itertools.count()


class SymVar:
    """A symbolic integer variable, identified by object identity; its name is only for printing. It is a size, at least
    0, unless it is `signed`: the value of a scalar."""

    depth = 0
    __slots__ = ("__weakref__", "dtype", "key", "name", "signed")

    def __init__(self, name: str, dtype: str = "int64", signed: bool = False) -> None:
        self.name = name
        self.dtype = dtype
        self.signed = signed
        self.key = (0, name, next(_serial))

    def renamed(self, name: str) -> SymVar:
        """A new variable of the same kind."""
        return SymVar(name, self.dtype, self.signed)

    @property
    def least(self) -> int | None:
        """Its declared lower bound: 0 for a size; None for a signed variable."""
        return None if self.signed else 0

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, ...]:
        # A copy is a different variable: the ordering key is only valid in this process.
        return SymVar, (self.name, self.dtype, self.signed)

    @property
    def dim(self) -> Dim:
        """This variable as a dimension."""
        return _intern(((((self, 1),), 1),))


class DimOp:
    """An integer function of dimensions, used as an atom of polynomials; interned."""

    __slots__ = ("__weakref__", "args", "depth", "key", "op")

    op: str
    args: tuple[Dim, ...]
    depth: int
    """Nesting depth of functions; comparisons do not count."""

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled_op, (self.op, *self.args)

    def __repr__(self) -> str:
        return _format_atom(self)


_TRUTHS = frozenset(("eq", "ne", "lt", "le", "and", "or", "not"))
MOST_TERMS = 4096
MOST_PRODUCTS = 1024
MOST_DEGREE = 64
MOST_NESTED = 12
"""Limits of a dimension: the number of terms of a sum; the number of multiplications (a product of sums is written out:
each factor `a + b` doubles it); the number of factors of a term (more factors, of sizes above 1, exceed 64 bits); the
nesting depth of functions (each level doubles the time of TVM's analyser)."""
_SHORT = 64
"""The number of terms up to which a dimension is short: nothing about it needs to be counted."""


def _too_large(problem: str) -> UsageError:
    return UsageError(
        "dimension-size",
        f"a dimension {problem}",
        help="bind it to a new variable: y = R.match_cast(x, R.Tensor((m, 4))), with m = T.int64()",
    )


class SizeAsPythonError(UsageError, TypeError):
    """A size that Python cannot compute with. A TypeError, too, as Python raises it for values of the wrong kind."""


def _unknown(problem: str, help: str) -> SizeAsPythonError:
    return SizeAsPythonError("size-as-python", problem, span=caller_span(), help=help)


def _as_tensor(size: Dim) -> str:
    return f'as a number of the program it is a tensor: nn.op.full((), {size}, dtype="float32")'


def _refused(size: Dim, sign: str, other: Any) -> Any:
    """For an operand that is no size: a tensor has the operator itself; a float would lose its fraction."""
    if _is_other(other):
        return NotImplemented
    if size.value is None:
        raise _unknown(f"{size} {sign} {other} is no size: sizes are integers", _as_tensor(size))
    return _FLOATS[sign](size.value, other)


_FLOATS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": lambda a, b: a // b,
    "%": operator.mod,
}  # fmt: skip


def _is_other(value: Any) -> bool:
    """Is it an operand that has the operator itself, as tensors have?"""
    return not isinstance(value, (int, float, complex, *_SIZES))


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Dim) and value.value is not None else value


Atom: TypeAlias = "SymVar | DimOp"
Monomial: TypeAlias = tuple[tuple[Atom, int], ...]
Terms: TypeAlias = tuple[tuple[Monomial, int], ...]
DimLike: TypeAlias = Union["Dim", SymVar, int]

_dims: WeakValueDictionary[Terms, Dim] = WeakValueDictionary()
_ops: WeakValueDictionary[tuple[str, tuple[Dim, ...]], DimOp] = WeakValueDictionary()


class Dim:
    """An integer expression in normal form. Make one with `Dim.of(…)`, `SymVar.dim`, and Python's
    operators."""

    __slots__ = ("__dict__", "__weakref__", "_hash", "terms", "value")

    terms: Terms
    value: int | None
    """The integer value of a constant; None if there are variables."""
    _hash: int

    @staticmethod
    def of(value: DimLike) -> Dim:
        """Convert `value` to a dimension."""
        if isinstance(value, Dim):
            return value
        if type(value) is int:
            return _constant(value)
        if isinstance(value, SymVar):
            return value.dim
        try:
            return _constant(operator.index(value))
        except TypeError:
            raise _unknown(
                f"{value!r} is no size: sizes are integers", "write // for a size that is divided"
            ) from None

    @staticmethod
    def var(name: str) -> Dim:
        """A new variable with this name, as a dimension."""
        return SymVar(name).dim

    @property
    def atom(self) -> Atom | None:
        """The variable or function if the dimension is a single atom, else None."""
        if len(self.terms) != 1:
            return None
        monomial, coefficient = self.terms[0]
        if coefficient != 1 or len(monomial) != 1 or monomial[0][1] != 1:
            return None
        return monomial[0][0]

    @property
    def symbol(self) -> SymVar | None:
        """The variable if the dimension is a single variable, else None."""
        atom = self.atom
        return atom if isinstance(atom, SymVar) else None

    @property
    def is_truth(self) -> bool:
        """Is this a comparison, or a combination of comparisons by and, or and not? Its value is always 0 or 1."""
        atom = self.atom
        return isinstance(atom, DimOp) and atom.op in _TRUTHS

    @cached_property
    def vars(self) -> tuple[SymVar, ...]:
        """All its variables, in order of first use."""
        found: dict[SymVar, None] = {}
        for monomial, _ in self.terms:
            for atom, _power in monomial:
                if isinstance(atom, SymVar):
                    found[atom] = None
                else:
                    for arg in atom.args:
                        found.update(dict.fromkeys(arg.vars))
        return tuple(found)

    @cached_property
    def depth(self) -> int:
        """Nesting depth of functions."""
        return max((atom.depth for monomial, _ in self.terms for atom, _ in monomial), default=0)

    @cached_property
    def magnitude(self) -> int:
        """The largest absolute value of its coefficients, constants and powers."""
        found = 0
        for monomial, coefficient in self.terms:
            found = max(found, abs(coefficient), *(power for _, power in monomial), 0)
            for atom, _ in monomial:
                if isinstance(atom, DimOp):
                    found = max(found, *(arg.magnitude for arg in atom.args))
        return found

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dim):
            return self is other or self.terms == other.terms
        if isinstance(other, int):
            return self.value == other
        if isinstance(other, SymVar):
            return self.symbol is other
        return NotImplemented

    def __reduce__(self) -> tuple[object, ...]:
        # Rebuilt from its atoms: terms are sorted by variables, and a copy has different variables.
        return _unpickled, (self.terms,)

    def __repr__(self) -> str:
        return self.format(lambda var: var.name)

    def format(self, name: Callable[[SymVar], str], functions: str = "T.") -> str:
        """Print as Python source. `name` names the variables; min and max are prefixed by `functions`."""
        return _format(self, name, functions)[0]

    def __add__(self, other: DimLike) -> Dim:
        if not isinstance(other, _SIZES):
            return _refused(self, "+", other)
        other = Dim.of(other)
        if self.value is not None and other.value is not None:
            return _constant(self.value + other.value)
        if not self.terms or not other.terms:
            return self if self.terms else other
        longer, shorter = self.terms, other.terms
        if len(longer) < len(shorter):
            longer, shorter = shorter, longer
        if len(longer) > _SHORT and len(shorter) <= _FEW and _is_linear(shorter):
            return _intern(_with_terms(longer, shorter))
        sums = dict(longer)
        for monomial, coefficient in shorter:
            sums[monomial] = sums.get(monomial, 0) + coefficient
        return _from_dict(sums)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return _intern(tuple((monomial, -coefficient) for monomial, coefficient in self.terms))

    def __sub__(self, other: DimLike) -> Dim:
        if not isinstance(other, _SIZES):
            return _refused(self, "-", other)
        return self + -Dim.of(other)

    def __rsub__(self, other: DimLike) -> Dim:
        if not isinstance(other, _SIZES):
            return _refused(-self, "+", other)
        return Dim.of(other) + -self

    def __mul__(self, other: DimLike) -> Dim:
        if not isinstance(other, _SIZES):
            return _refused(self, "*", other)
        other = Dim.of(other)
        if self.value is not None and other.value is not None:
            return _constant(self.value * other.value)
        if self.value == 1 or other.value == 1:
            return other if self.value == 1 else self
        if len(self.terms) * len(other.terms) > 4 * MOST_TERMS:
            raise _too_large(f"has at most {MOST_TERMS} terms")
        products: dict[Monomial, int] = {}
        for left, a in self.terms:
            for right, b in other.terms:
                monomial = _merge(left, right)
                products[monomial] = products.get(monomial, 0) + a * b
        return _from_dict(products)

    __rmul__ = __mul__

    def __floordiv__(self, other: DimLike) -> Dim:
        if not isinstance(other, _SIZES):
            return _refused(self, "//", other)
        return _floordiv(self, Dim.of(other))

    def __rfloordiv__(self, other: DimLike) -> Dim:
        if not isinstance(other, _SIZES):
            return NotImplemented if _is_other(other) else other // self._number("//", other, True)
        return _floordiv(Dim.of(other), self)

    def __mod__(self, other: DimLike) -> Dim:
        if not isinstance(other, _SIZES):
            return _refused(self, "%", other)
        return _floormod(self, Dim.of(other))

    def __rmod__(self, other: DimLike) -> Dim:
        if not isinstance(other, _SIZES):
            return NotImplemented if _is_other(other) else other % self._number("%", other, True)
        return _floormod(Dim.of(other), self)

    def __pow__(self, power: Any) -> Any:
        """A product of equal factors; for a known size also another power."""
        if self.value is not None:
            return self.value ** _plain(power)
        if not isinstance(power, int) or power < 0:
            return self._number("**", power)
        if power > MOST_DEGREE:
            raise _too_large(f"is a product of at most {MOST_DEGREE} factors")
        return product((self,) * power)

    def __rpow__(self, base: Any) -> Any:
        return base ** self._number("**", base, True)

    def __truediv__(self, other: Any) -> Any:
        return NotImplemented if _is_other(other) else self._number("/", other) / _plain(other)

    def __rtruediv__(self, other: Any) -> Any:
        return NotImplemented if _is_other(other) else other / self._number("/", other, True)

    def __divmod__(self, other: DimLike) -> tuple[Dim, Dim]:
        return self // other, self % other

    def __round__(self, digits: int | None = None) -> Dim:
        return self

    def __format__(self, spec: str) -> str:
        return repr(self) if self.value is None else format(self.value, spec)

    def __lt__(self, other: DimLike) -> bool:
        return self._compared(other, "<") < 0

    def __le__(self, other: DimLike) -> bool:
        return self._compared(other, "<=") <= 0

    def __gt__(self, other: DimLike) -> bool:
        return self._compared(other, ">") > 0

    def __ge__(self, other: DimLike) -> bool:
        return self._compared(other, ">=") >= 0

    def _compared(self, other: DimLike | float, sign: str) -> float:
        """The difference, which must be known."""
        if self.value is not None and isinstance(other, float):
            return self.value - other
        difference = self - other if isinstance(other, _SIZES) else None
        if difference is None or difference.value is None:
            raise _unknown(
                f"{self} {sign} {other} is not known before the program runs",
                "Python decides once, at export: give the size as a number there, or choose between two results: "
                f'nn.op.where(nn.op.full((), {self}, dtype="int64") {sign} {other}, a, b)',
            )
        return difference.value

    def __bool__(self) -> bool:
        if self.value is None:
            raise _unknown(
                f"{self} has no boolean value before the program runs",
                "compare it with a number, if both are known; relaxpy.shape.prove proves relations of sizes",
            )
        return self.value != 0

    def __index__(self) -> int:
        if self.value is None:
            raise _unknown(
                f"the size {self} is not known before the program runs, so it is no integer of Python",
                "give the size as a number, or use operators on whole tensors: "
                f"nn.op.arange({self}) instead of range({self})",
            )
        return self.value

    __int__ = __index__

    def __float__(self) -> float:
        if self.value is None:
            raise _unknown(
                f"the size {self} is not known before the program runs", _as_tensor(self)
            )
        return float(self.value)

    def _number(self, sign: str, other: Any, reflected: bool = False) -> int:
        """The value of a size that is known, as an operand of an operator that gives no size."""
        if self.value is None:
            shown = f"{other} {sign} {self}" if reflected else f"{self} {sign} {other}"
            advice = _as_tensor(self)
            if sign == "/" and not reflected:
                advice = f"write {self} // {other} for a size (it rounds down); {advice}"
            raise _unknown(f"{shown} is no size: sizes are integers", advice)
        return self.value

    def _bits(self, sign: str, other: Any) -> Any:
        """An operator on bits, where it is a size (`bitwise`)."""
        if not isinstance(other, _SIZES):
            return NotImplemented
        found = bitwise(sign, self, Dim.of(other))  # type: ignore[arg-type]  # numpy's integers, too
        if found is None:
            raise _unknown(f"{self} {sign} {other} is no size", BITWISE)
        return _plain(found)

    def __and__(self, other: Any) -> Any:
        return self._bits("&", other)

    def __or__(self, other: Any) -> Any:
        return self._bits("|", other)

    def __xor__(self, other: Any) -> Any:
        return self._bits("^", other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __lshift__(self, other: Any) -> Any:
        return self._bits("<<", other)

    def __rshift__(self, other: Any) -> Any:
        return self._bits(">>", other)

    def __rlshift__(self, other: Any) -> Any:
        return NotImplemented if _is_other(other) else Dim.of(other)._bits("<<", self)

    def __rrshift__(self, other: Any) -> Any:
        return NotImplemented if _is_other(other) else Dim.of(other)._bits(">>", self)

    def __abs__(self) -> Dim:
        return dim_op("max", self, -self)

    def __invert__(self) -> Dim:
        return dim_op("not", self) if self.is_truth else -1 - self

    def divide_exact(self, divisor: DimLike) -> Dim | None:
        """The polynomial q with q * divisor == self, for a divisor of one term; None if there is
        none."""
        divisor = Dim.of(divisor)
        if len(divisor.terms) != 1:
            return _constant(1) if divisor == self else None
        (factors, scale) = divisor.terms[0]
        quotient: dict[Monomial, int] = {}
        for monomial, coefficient in self.terms:
            powers = dict(monomial)
            for atom, power in factors:
                powers[atom] = powers.get(atom, 0) - power
            if coefficient % scale or any(power < 0 for power in powers.values()):
                return None
            quotient[_monomial(powers)] = coefficient // scale
        return _from_dict(quotient)

    def substitute(self, replacements: Mapping[SymVar, DimLike]) -> Dim:
        """Substitute variables; the result is in normal form."""
        if not any(var in replacements for var in self.vars):
            return self
        parts: list[Dim] = []
        for monomial, coefficient in self.terms:
            part = _constant(coefficient)
            for atom, power in monomial:
                if isinstance(atom, SymVar):
                    factor = Dim.of(replacements.get(atom, atom))
                else:
                    factor = dim_op(atom.op, *(arg.substitute(replacements) for arg in atom.args))
                for _ in range(power):
                    part = part * factor
            parts.append(part)
        return dim_sum(parts)

    def evaluate(self, values: Mapping[SymVar, int]) -> int:
        """The integer value for these values of the variables.

        Raises `KeyError` for a variable without a value and `ZeroDivisionError` as Python does.
        """
        result = 0
        for monomial, coefficient in self.terms:
            product = coefficient
            for atom, power in monomial:
                if isinstance(atom, SymVar):
                    factor = values[atom]
                else:
                    factor = INT_FUNCTIONS[atom.op](*(arg.evaluate(values) for arg in atom.args))
                product *= factor**power
            result += product
        return result


_SIZES = (Dim, int, SymVar, np.integer)
"""The classes of operands of a size."""


def _not(value: int) -> int:
    return int(not value)


def _select(condition: int, then: int, otherwise: int) -> int:
    return then if condition else otherwise


_BINARY_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "floordiv": lambda a, b: a // b,
    "floormod": lambda a, b: a % b,
    "min": min,
    "max": max,
    "eq": lambda a, b: int(a == b),
    "ne": lambda a, b: int(a != b),
    "lt": lambda a, b: int(a < b),
    "le": lambda a, b: int(a <= b),
    "and": lambda a, b: int(bool(a) and bool(b)),
    "or": lambda a, b: int(bool(a) or bool(b)),
}

INT_FUNCTIONS: dict[str, Callable[..., int]] = {
    **_BINARY_FUNCTIONS,
    "not": _not,
    "select": _select,
}
"""The functions of atoms on Python integers: the one definition of their meaning."""


def dim_op(op: str, *args: DimLike) -> Dim:
    """Apply `op` (a name of INT_FUNCTIONS) to dimensions, with simplifications that are cheap and always valid."""
    dims = tuple(Dim.of(arg) for arg in args)
    if op == "floordiv":
        return _floordiv(*dims)
    if op == "floormod":
        return _floormod(*dims)
    values = [dim.value for dim in dims]
    if all(value is not None for value in values):
        return _constant(INT_FUNCTIONS[op](*values))
    if op == "select" and values[0] is not None:
        return dims[1] if values[0] else dims[2]
    if op == "select" and dims[1] == dims[2]:
        return dims[1]
    if op in ("min", "max", "eq", "ne", "lt", "le"):
        difference = (dims[0] - dims[1]).value
        if difference is not None:
            if op in ("min", "max"):
                return dims[0] if (difference <= 0) == (op == "min") else dims[1]
            return _constant(INT_FUNCTIONS[op](difference, 0))
        if op in ("min", "max", "eq", "ne"):
            dims = tuple(sorted(dims, key=_dim_key))
    return _atom(op, dims)


BITWISE = "n << k and n >> k take a number k from 0 to 63, n & k, n | k and n ^ k a number k of at most 64 bits"
"""What operators on bits are sizes, as help."""


def bitwise(sign: str, a: Dim, b: Dim) -> Dim | None:
    """`a & b`, `a | b`, `a ^ b`, `a << b` and `a >> b` of integers in two's complement, as a polynomial of remainders
    by powers of two; None if it is none: a shift that is not known, bits of two sizes. Of comparisons, `and`, `or` and
    `!=`."""
    if sign in ("<<", ">>"):
        if b.value is None or not 0 <= b.value < 64:
            return None
        scale = _constant(1 << b.value)
        return a * scale if sign == "<<" else _floordiv(a, scale)
    if a.is_truth and b.is_truth:
        return dim_op({"&": "and", "|": "or", "^": "ne"}[sign], a, b)
    if b.value is None:
        a, b = b, a
    if b.value is None or b.value.bit_length() > 64:
        return None
    both = _masked(a, b.value)
    return both if sign == "&" else a + b - both * (1 if sign == "|" else 2)


def _masked(a: Dim, mask: int) -> Dim:
    """`a & mask`. A run of ones, from bit i up to bit j - 1, keeps `a % 2**j - a % 2**i`."""
    if mask < 0:
        return a - _masked(a, ~mask)
    edges = mask ^ (mask << 1)  # where runs begin and end, by turns
    places = [bit for bit in range(edges.bit_length()) if edges >> bit & 1]
    rests = [_floormod(a, _constant(1 << bit)) for bit in places]
    return dim_sum(rest if i % 2 else -rest for i, rest in enumerate(rests))


def minimum(a: DimLike, b: DimLike) -> Dim:
    return dim_op("min", a, b)


def maximum(a: DimLike, b: DimLike) -> Dim:
    return dim_op("max", a, b)


def surely_at_least(a: Dim, b: Dim) -> bool:
    """Do the signs of coefficients show that a ≥ b if all variables are at least 1? They do if the difference, in terms
    of the variables minus 1, has no negative term, and its atoms are variables and minima of such sums. Microseconds,
    where a proof (`relaxpy.shape.prove`) takes milliseconds; of long differences it is not known."""
    difference = a - b
    written_out = sum(2 ** sum(power for _, power in monomial) for monomial, _ in difference.terms)
    if written_out > MOST_PRODUCTS:
        return False
    above = difference.substitute({var: var.dim + 1 for var in difference.vars})
    return all(
        coefficient >= 0 and all(_is_natural(atom) for atom, _ in monomial)
        for monomial, coefficient in above.terms
    )


def _is_natural(atom: Atom) -> bool:
    """Is an atom of `surely_at_least` not negative?"""
    if isinstance(atom, SymVar):
        return True
    return atom.op == "min" and all(surely_at_least(arg, _constant(0)) for arg in atom.args)


def dim_sum(dims: Iterable[Dim]) -> Dim:
    """The sum of dimensions; 0 for no dimensions. Adding one by one would sort the terms each time."""
    sums: dict[Monomial, int] = {}
    for dim in dims:
        for monomial, coefficient in dim.terms:
            sums[monomial] = sums.get(monomial, 0) + coefficient
    return _from_dict(sums)


def product(dims: Iterator[Dim] | tuple[Dim, ...]) -> Dim:
    """The product of dimensions; 1 for no dimensions."""
    result = _constant(1)
    for dim in dims:
        result = result * dim
    return result


def constant_of(dim: Dim) -> int:
    """The term without variables; 0 if there is none."""
    return dim.terms[-1][1] if dim.terms and not dim.terms[-1][0] else 0


def factors_of(dim: Dim, symbols: Iterable[SymVar]) -> dict[SymVar, Dim]:
    """What each of these variables is multiplied by. Every term has one of them at most."""
    found: dict[SymVar, dict[Monomial, int]] = {symbol: {} for symbol in symbols}
    for monomial, coefficient in dim.terms:
        for symbol, _ in monomial:
            if symbol in found:
                rest = tuple(factor for factor in monomial if factor[0] is not symbol)
                found[symbol][rest] = coefficient
    return {symbol: _from_dict(terms) for symbol, terms in found.items()}


# Normal form


def _intern(terms: Terms) -> Dim:
    found = _dims.get(terms)
    if found is not None:
        return found
    dim = object.__new__(Dim)
    dim.terms = terms
    if not terms:
        value = 0
    else:
        value = terms[0][1] if len(terms) == 1 and not terms[0][0] else None
    dim.value = value
    fingerprint = hash(terms) if value is None else hash(value)
    dim._hash = fingerprint  # pyright: ignore[reportPrivateUsage]  # `Dim` is made here only
    return _dims.setdefault(terms, dim)


@lru_cache(maxsize=1024)  # the same few sizes occur everywhere in a program
def _constant(value: int) -> Dim:
    return _intern((((), value),)) if value else _intern(())


def _from_dict(terms: dict[Monomial, int]) -> Dim:
    kept = [(monomial, coefficient) for monomial, coefficient in terms.items() if coefficient]
    if len(kept) > 1:
        if len(kept) > MOST_TERMS:
            raise _too_large(f"has at most {MOST_TERMS} terms, not {len(kept)}")
        if len(kept) > _SHORT:
            products = sum(sum(power for _, power in monomial) - 1 for monomial, _ in kept)
            if products > MOST_PRODUCTS:
                raise _too_large(f"has at most {MOST_PRODUCTS} products, not {products}")
        kept.sort(key=_term_key)
    return _intern(tuple(kept))


_FEW = 4
"""The most terms that are put into a long sum one by one."""


def _is_linear(terms: Terms) -> bool:
    return all(
        not monomial or (len(monomial) == 1 and monomial[0][1] == 1) for monomial, _ in terms
    )


def _with_terms(long: Terms, more: Terms) -> Terms:
    """The terms of a long sum and a few more, which are no products: without sorting them all again."""
    terms = list(long)
    for monomial, coefficient in more:
        place = bisect_left(terms, _term_key((monomial, 0)), key=_term_key)
        if place < len(terms) and terms[place][0] == monomial:
            coefficient += terms.pop(place)[1]
        if coefficient:
            terms.insert(place, (monomial, coefficient))
    if len(terms) > MOST_TERMS:
        raise _too_large(f"has at most {MOST_TERMS} terms, not {len(terms)}")
    return tuple(terms)


def _term_key(term: tuple[Monomial, int]) -> tuple[int, tuple[object, ...]]:
    monomial = term[0]
    return -sum(power for _, power in monomial), tuple(
        (atom.key, power) for atom, power in monomial
    )


def _dim_key(dim: Dim) -> tuple[object, ...]:
    return tuple((_term_key(term), term[1]) for term in dim.terms)


def _monomial(powers: Mapping[Atom, int]) -> Monomial:
    return tuple(sorted(((a, p) for a, p in powers.items() if p), key=lambda item: item[0].key))


def _merge(left: Monomial, right: Monomial) -> Monomial:
    if not left:
        return right
    if not right:
        return left
    powers = dict(left)
    for atom, power in right:
        powers[atom] = powers.get(atom, 0) + power
    if sum(powers.values()) > MOST_DEGREE:
        raise _too_large(f"is a product of at most {MOST_DEGREE} factors")
    return _monomial(powers)


def _atom(op: str, args: tuple[Dim, ...]) -> Dim:
    atom = _ops.get((op, args))
    if atom is None:
        atom = object.__new__(DimOp)
        atom.op = op
        atom.args = args
        atom.depth = max((arg.depth for arg in args), default=0) + (op not in _TRUTHS)
        if atom.depth > MOST_NESTED:
            raise _too_large(f"has at most {MOST_NESTED} nested functions (//, %, min, max)")
        atom.key = (1, op, tuple(_dim_key(arg) for arg in args))
        atom = _ops.setdefault((op, args), atom)
    return _intern(((((atom, 1),), 1),))


def _unpickled(terms: Terms) -> Dim:
    """Rebuild a sum of terms from unpickled atoms."""
    found: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        found[_monomial(dict(monomial))] = coefficient
    return _from_dict(found)


def _unpickled_op(op: str, *args: Dim) -> Atom:
    """Rebuild the function `op` from unpickled dimensions."""
    atom = dim_op(op, *args).atom
    assert atom is not None, op
    return atom


def _split(dim: Dim, divisor: int) -> tuple[Dim, Dim]:
    """(q, r) with dim == q * divisor + r. q takes as much as the coefficients allow; the constant of r is in [0,
    divisor)."""
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, coefficient in dim.terms:
        if monomial and coefficient % divisor:
            rest[monomial] = coefficient
        else:
            quotient[monomial], remainder = divmod(coefficient, divisor)
            if remainder:
                rest[monomial] = remainder
    return _from_dict(quotient), _from_dict(rest)


def _floordiv(a: Dim, b: Dim) -> Dim:
    divisor = b.value
    if divisor is None or divisor == 0:
        return _atom("floordiv", (a, b))
    if divisor < 0:
        a, divisor = -a, -divisor
    if divisor == 1:
        return a
    quotient, rest = _split(a, divisor)
    if rest.value is not None:
        return quotient
    if len(rest.terms) == 1 and rest.terms[0][1] == 1 and len(rest.terms[0][0]) == 1:
        atom, power = rest.terms[0][0][0]
        if (
            power == 1
            and isinstance(atom, DimOp)
            and atom.op == "floordiv"
            and (atom.args[1].value or 0) > 0
        ):
            inner, scale = atom.args
            return quotient + _floordiv(inner, scale * divisor)
    return quotient + _atom("floordiv", (rest, _constant(divisor)))


def _floormod(a: Dim, b: Dim) -> Dim:
    divisor = b.value
    if divisor is None or divisor <= 0:
        return _atom("floormod", (a, b))
    _, rest = _split(a, divisor)
    if rest.value is not None:
        return rest
    for monomial, coefficient in rest.terms:  # c * (e % m) is c * e but for multiples of c * m
        term = _from_dict({monomial: coefficient})
        atom = _from_dict({monomial: 1}).atom
        inner = atom.args if isinstance(atom, DimOp) and atom.op == "floormod" else None
        if inner is not None and coefficient * (inner[1].value or 1) % divisor == 0:
            return _floormod(rest - term + inner[0] * coefficient, b)
    return _atom("floormod", (rest, b))


# Text

_SUM, _PRODUCT, _ATOM = 0, 1, 2
_INFIX = {"floordiv": "//", "floormod": "%"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<="}
_CALLS = {"min": "min", "max": "max", "select": "Select", "and": "And", "or": "Or", "not": "Not"}


def _format(dim: Dim, name: Callable[[SymVar], str], functions: str) -> tuple[str, int]:
    """(text, precedence of its outermost operator)."""
    if not dim.terms:
        return "0", _ATOM
    text, level = "", _ATOM
    # `n - m` reads better than `-m + n`: a positive term comes first where there is one
    first = next((term for term in dim.terms if term[1] > 0), dim.terms[0])
    for i, (monomial, coefficient) in enumerate([first, *(t for t in dim.terms if t is not first)]):
        factors: list[tuple[str, int]] = []
        for atom, power in monomial:
            factors += [_format_atom_at(atom, name, functions)] * power
        magnitude = abs(coefficient)
        if magnitude != 1 or not factors:
            factors.append((str(magnitude), _ATOM))
        # the first factor of a product may itself be a product ((n // 4) * 2 needs its parentheses all the same)
        term = " * ".join(f"({t})" if lvl < _ATOM and len(factors) > 1 else t for t, lvl in factors)
        term_level = factors[0][1] if len(factors) == 1 else _PRODUCT
        if i == 0:
            text, level = (term, term_level)
            if coefficient < 0:
                text = f"-{term}" if term_level == _ATOM or not monomial else f"-({term})"
                level = _PRODUCT if monomial else _SUM
        else:
            text += f" {'-' if coefficient < 0 else '+'} {term}"
            level = _SUM
    return text, level


def _format_atom_at(atom: Atom, name: Callable[[SymVar], str], functions: str) -> tuple[str, int]:
    if isinstance(atom, SymVar):
        return name(atom), _ATOM
    parts = [_format(arg, name, functions) for arg in atom.args]
    if atom.op in _INFIX:
        left, right = (f"({text})" if level < _ATOM else text for text, level in parts)
        return f"{left} {_INFIX[atom.op]} {right}", _PRODUCT
    if atom.op in _COMPARE:
        return f"({parts[0][0]} {_COMPARE[atom.op]} {parts[1][0]})", _ATOM
    return f"{functions}{_CALLS[atom.op]}({', '.join(text for text, _ in parts)})", _ATOM


def _format_atom(atom: DimOp) -> str:
    return _format_atom_at(atom, lambda var: var.name, "T.")[0]
