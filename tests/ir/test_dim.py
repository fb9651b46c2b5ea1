"""Dimensions: the normal form means what was written, is found, and prints as text that means the same."""

from __future__ import annotations

import gc
import itertools
import math
import operator
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sympy

from relaxpy.errors import UsageError
from relaxpy.ir.dim import (
    INT_FUNCTIONS,
    Dim,
    SymVar,
    dim_op,
    dim_sum,
    maximum,
    minimum,
    product,
    surely_at_least,
)

n, m, k = SymVar("n"), SymVar("m"), SymVar("k")
SYMBOLS = (n, m, k)

Evaluate = Callable[[dict[SymVar, int]], int]

_BINARY: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = (
    ("+", operator.add),
    ("-", operator.sub),
    ("*", operator.mul),
)


def expressions(seed: int, count: int, depth: int = 4) -> Iterator[tuple[Dim, Evaluate]]:
    """Random dimensions with the plain Python that computes them."""
    rng = random.Random(seed)

    def make(level: int) -> tuple[Dim, Evaluate]:
        kind = rng.random()
        if level == 0 or kind < 0.15:
            if rng.random() < 0.6:
                var = rng.choice(SYMBOLS)
                return var.dim, lambda values: values[var]
            value = rng.choice((-7, -3, -1, 0, 1, 2, 3, 4, 8, 16, 31))
            return Dim.of(value), lambda values: value
        a, f = make(level - 1)
        b, g = make(level - 1)
        if kind < 0.65:
            _, apply = rng.choice(_BINARY)
            return apply(a, b), lambda values: apply(f(values), g(values))
        if kind < 0.85:
            divisor = rng.choice((-5, -2, -1, 1, 2, 3, 4, 8))
            apply = rng.choice((operator.floordiv, operator.mod))
            return apply(a, divisor), lambda values: apply(f(values), divisor)
        if kind < 0.95:
            name = rng.choice(("min", "max", "eq", "ne", "lt", "le"))
            function = INT_FUNCTIONS[name]
            return dim_op(name, a, b), lambda values: function(f(values), g(values))
        c, h = make(level - 1)
        return dim_op("select", a, b, c), lambda values: g(values) if f(values) else h(values)

    for _ in range(count):
        yield make(depth)


def assignments(seed: int, count: int = 8) -> list[dict[SymVar, int]]:
    rng = random.Random(seed)
    return [{var: rng.randrange(0, 40) for var in SYMBOLS} for _ in range(count)]


def test_normal_form_means_what_was_written() -> None:
    """A dimension's value is that of the Python expression it was built by."""
    for dim, evaluate in expressions(1, 1500):
        for values in assignments(2):
            assert dim.evaluate(values) == evaluate(values), f"{dim} at {values}"


def test_division_by_a_symbol() -> None:
    """Division rounds down, as Python's, by symbols and negative numbers too; by zero it fails when evaluated."""
    for divisor in (n.dim, m.dim - 20, Dim.of(-3)):
        quotient, rest = (k.dim * 3 + 1) // divisor, (k.dim * 3 + 1) % divisor
        for values in assignments(3):
            below = divisor.evaluate(values)
            if below:
                assert quotient.evaluate(values) == (values[k] * 3 + 1) // below
                assert rest.evaluate(values) == (values[k] * 3 + 1) % below
    with pytest.raises(ZeroDivisionError):
        (k.dim // n).evaluate({k: 1, n: 0})


def test_text_means_the_same() -> None:
    """Printing and evaluating the text as Python gives the value."""

    class Namespace:
        min = staticmethod(min)
        max = staticmethod(max)
        Select = staticmethod(INT_FUNCTIONS["select"])
        And = staticmethod(INT_FUNCTIONS["and"])
        Or = staticmethod(INT_FUNCTIONS["or"])
        Not = staticmethod(INT_FUNCTIONS["not"])

    for dim, _ in expressions(4, 800):
        code = compile(dim.format(lambda var: var.name), "dim", "eval")
        for values in assignments(5, 4):
            names = {var.name: value for var, value in values.items()}
            assert eval(code, {"T": Namespace, **names}) == dim.evaluate(values), str(dim)


def test_substitution_commutes_with_evaluation() -> None:
    """Replacing a variable by an expression and evaluating is evaluating that expression first."""
    replaced = list(expressions(6, 200, depth=2))
    for (dim, _), (by, _) in zip(expressions(7, 200), replaced, strict=True):
        for values in assignments(8, 4):
            inner = by.evaluate(values)
            assert dim.substitute({n: by}).evaluate(values) == dim.evaluate({**values, n: inner})


def test_equal_polynomials_are_one_object() -> None:
    """What sympy expands to the same polynomial is the same dimension, and what it does not is another."""
    rng = random.Random(9)
    symbols = sympy.symbols("n m k", integer=True)
    pairs = dict(zip(SYMBOLS, symbols, strict=True))

    def make(level: int) -> tuple[Dim, Any]:
        if level == 0:
            if rng.random() < 0.7:
                var = rng.choice(SYMBOLS)
                return var.dim, pairs[var]
            value = rng.randrange(-4, 5)
            return Dim.of(value), sympy.Integer(value)
        (a, x), (b, y) = make(level - 1), make(level - 1)
        _, apply = rng.choice(_BINARY)
        return apply(a, b), apply(x, y)

    made = [make(3) for _ in range(60)]
    expanded = [sympy.expand(expression) for _, expression in made]
    equal = 0
    for i, (a, _) in enumerate(made):
        for j, (b, _) in enumerate(made):
            same = expanded[i] == expanded[j]
            assert (a == b) is same
            assert (a is b) is same
            equal += same
    assert equal >= len(made)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((n.dim + 1) * (n.dim - 1), n.dim * n.dim - 1),
        (n.dim * 4 + 4, (n.dim + 1) * 4),
        (n.dim * 8 // 4, n.dim * 2),
        ((n.dim * 4 + 7) // 4, n.dim + 1),
        ((n.dim * 4 + 7) % 4, Dim.of(3)),
        (n.dim // 2 // 3, n.dim // 6),
        (-(n.dim % 4) % 4, -n.dim % 4),
        ((m.dim + n.dim % 6 * 5) % 3, (m.dim + n.dim * 5) % 3),
        (minimum(n, n.dim + 1), n.dim),
        (maximum(n, m), maximum(m, n)),
        (dim_op("select", dim_op("eq", n, n), m, k), m.dim),
        (dim_op("eq", n.dim + 1, n), Dim.of(0)),
        (dim_op("lt", n, n.dim + 2), Dim.of(1)),
    ],
)
def test_simplified(left: Dim, right: Dim) -> None:
    assert left is right


def test_text_does_not_depend_on_addresses() -> None:
    """Terms are ordered by degree, then by name: in whatever order they were added, one text."""
    terms = [n.dim * n.dim, m.dim * 3, k.dim, Dim.of(7), n.dim * m.dim]
    texts: set[str] = set()
    rng = random.Random(10)
    for _ in range(20):
        rng.shuffle(terms)
        texts.add(str(sum(terms, Dim.of(0))))
    assert texts == {"m * n + n * n + k + m * 3 + 7"}


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        ((n.dim + 1) // 4 * 4 - m.dim * 2, "((n + 1) // 4) * 4 - m * 2"),
        (-n.dim, "-n"),
        (n.dim - m, "n - m"),
        (-n.dim - m.dim * 2, "-(m * 2) - n"),
        (minimum(n, 4), "T.min(n, 4)"),
        ((n.dim + 1) // (m.dim * 2), "(n + 1) // (m * 2)"),
        (n.dim // 4 % 3, "(n // 4) % 3"),
        (dim_op("select", dim_op("eq", n, 1), m, 4), "T.Select((n == 1), m, 4)"),
    ],
)
def test_text(dim: Dim, text: str) -> None:
    assert str(dim) == text


def test_hash_and_equality() -> None:
    """Constants equal Python's integers, a lone variable its symbol, and hash alike."""
    assert Dim.of(4) == 4
    assert hash(Dim.of(4)) == hash(4)
    assert n.dim == n
    assert n.dim != SymVar("n")
    assert n.dim != "n"


def test_truth() -> None:
    """A symbolic condition has no truth value."""
    assert not Dim.of(0)
    with pytest.raises(TypeError, match="no boolean value"):
        bool(dim_op("eq", n, 1))


def test_value_symbol_vars() -> None:
    assert (Dim.of(3).value, n.dim.value, n.dim.symbol, (n.dim + 1).symbol) == (3, None, n, None)
    assert set((n.dim * m.dim // 4 + minimum(k, 2)).vars) == {n, m, k}


def test_exact_division() -> None:
    assert (n.dim * m.dim * 6 + n.dim * 4).divide_exact(n.dim * 2) == m.dim * 3 + 2
    assert (n.dim * 6 + 4).divide_exact(n.dim) is None
    assert (n.dim * 6 + 3).divide_exact(2) is None
    assert (n.dim + 1).divide_exact(n.dim + 1) == 1
    for dim, _ in expressions(11, 100, depth=2):
        for divisor in (n.dim, Dim.of(3), n.dim * 2):
            assert (dim * divisor).divide_exact(divisor) == dim


def test_product() -> None:
    assert product((n.dim, Dim.of(4), n.dim)) == n.dim * n.dim * 4
    assert product(()) == 1


@pytest.mark.slow
def test_surely_at_least() -> None:
    """What is certain is true of all positive values of random expressions; and some of it is certain."""
    assert surely_at_least(12 * n.dim * m.dim, 2 * n.dim * m.dim)
    assert surely_at_least(n.dim * m.dim, n.dim)
    assert surely_at_least(n.dim + 4 * minimum(n.dim, m.dim), n.dim)
    assert not surely_at_least(n.dim, m.dim)
    assert not surely_at_least(n.dim + 4 * minimum(n.dim - 9, m.dim), n.dim)
    assert not surely_at_least(n.dim + 4 * maximum(-n.dim, -m.dim), n.dim)
    rng, certain = random.Random(5), 0
    for (a, f), (b, g) in itertools.pairwise(expressions(5, 1500)):
        if surely_at_least(a, b):
            certain += 1
            for _ in range(20):
                values = {var: rng.randint(1, 9) for var in SYMBOLS}
                assert f(values) >= g(values), (a, b, values)
    assert certain > 20


def test_interning_keeps_nothing_alive() -> None:
    """Dimensions that nobody holds are collected, but for some integers."""
    from relaxpy.ir import dim as module

    module._constant.cache_clear()  # those that are new would take the place of others
    gc.collect()
    before = len(module._dims)
    made = [SymVar("t").dim * i + i for i in range(100)]
    assert len(module._dims) >= before + 99
    del made
    module._constant.cache_clear()
    gc.collect()
    assert len(module._dims) <= before + 2


def test_sum() -> None:
    """The same as adding one by one."""
    found = [dim for dim, _ in expressions(11, 40)]
    for count in (0, 1, 2, 40):
        expected = Dim.of(0)
        for dim in found[:count]:
            expected = expected + dim
        assert dim_sum(found[:count]) is expected


def test_a_long_product_is_not_written_out_to_compare_it() -> None:
    """With each variable one larger, it has a million terms."""
    sizes = [SymVar(f"s{i}") for i in range(20)]
    volume = product(tuple(size.dim for size in sizes))
    assert not surely_at_least(volume * 4, volume)
    assert surely_at_least(product(tuple(size.dim for size in sizes[:5])) * 4, sizes[0].dim)


SIZE, FOUR = SymVar("n").dim, Dim.of(4)

KNOWN = {
    "FOUR > 3": True, "FOUR >= 4.5": False, "FOUR < 4": False, "3 <= FOUR": True, "SIZE + 1 > SIZE": True,
    "SIZE <= SIZE": True, "max(FOUR, 5)": 5, "[*range(FOUR)]": [0, 1, 2, 3], "int(FOUR)": 4, "float(FOUR)": 4.0,
    "FOUR / 8": 0.5, "8 / FOUR": 2.0, "FOUR ** 0.5": 2.0, "FOUR ** 2": 16, "2 ** FOUR": 16, "FOUR * 0.5": 2.0,
    "0.5 * FOUR": 2.0, "FOUR - 0.5": 3.5, "0.5 - FOUR": -3.5, "FOUR // 0.5": 8.0, "9.0 % FOUR": 1.0, "math.sqrt(FOUR)": 2.0,
    "'abcdef'[FOUR]": "e", "f'{FOUR:3d}'": "  4", "FOUR << 1": 8, "FOUR & 6": 4, "9 & FOUR": 0, "1 << FOUR": 16, "bool(FOUR)": True,
    "SIZE ** 3 == SIZE * SIZE * SIZE": True, "SIZE ** 0 == 1": True, "divmod(SIZE, 2) == (SIZE // 2, SIZE % 2)": True,
    "SIZE << 1 == SIZE * 2": True, "SIZE >> 2 == SIZE // 4": True, "(7 & SIZE) == SIZE % 8": True, "(SIZE & ~7) == SIZE - SIZE % 8": True,
    "abs(SIZE - 3) == abs(3 - SIZE)": True, "round(SIZE) == SIZE": True, "f'{SIZE}'": "n", "{SIZE: 1}[SIZE]": 1, "SIZE == 4": False, "SIZE in (3, SIZE)": True,
}  # fmt: skip


@pytest.mark.parametrize("text", KNOWN)
def test_python_computes_with_what_is_known(text: str) -> None:
    got = eval(text, {"SIZE": SIZE, "FOUR": FOUR, "math": math})
    assert got == KNOWN[text]
    assert type(got) is type(KNOWN[text]) or "max" in text


UNKNOWN = {
    "SIZE > 4": "nn.op.where(", "4 < SIZE": "nn.op.where(", "SIZE < 2.5": "nn.op.where(", "max(SIZE, 4)": "nn.op.where(",
    "range(SIZE)": "nn.op.arange(n)", "[0][SIZE]": "give the size as a number", "'a' * SIZE": "give the size as a number",
    "int(SIZE)": "give the size as a number", "float(SIZE)": "nn.op.full((), n", "math.sqrt(SIZE)": "nn.op.full((), n",
    "SIZE / 2": "write n // 2", "2 / SIZE": "nn.op.full((), n", "SIZE * 0.5": "nn.op.full((), n",
    "0.5 - SIZE": "nn.op.full((), -n", "SIZE // 0.5": "nn.op.full((), n", "9.0 % SIZE": "nn.op.full((), n",
    "SIZE ** 0.5": "nn.op.full((), n", "SIZE ** -1": "nn.op.full((), n", "2 ** SIZE": "nn.op.full((), n",
    "SIZE & SIZE": "n & k", "1 << SIZE": "a number k", "SIZE << 64": "a number k", "256 >> SIZE": "a number k", "not SIZE": "relaxpy.shape.prove",
    "Dim.of(2.5)": "write //",
}  # fmt: skip


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_python_cannot_know_is_told(text: str) -> None:
    """At the user's line, and also as the TypeError that Python expects."""
    with pytest.raises(TypeError) as caught:
        eval(text, {"SIZE": SIZE, "Dim": Dim, "math": math})
    assert isinstance(caught.value, UsageError)
    assert caught.value.code == "size-as-python"
    assert UNKNOWN[text] in (caught.value.help or "")
    assert caught.value.span is not None
    assert caught.value.span.file == "<string>"


@pytest.mark.parametrize(
    "text",
    [
        "SIZE + other",
        "SIZE * other",
        "SIZE / other",
        "SIZE % other",
        "SIZE - other",
        "SIZE // other",
    ],
)
def test_operands_that_are_no_sizes_have_the_operator(text: str) -> None:
    """As tensors have it."""

    class Other:
        def __radd__(self, size: Dim) -> tuple[str, Dim]:
            return "other", size

        __rmul__ = __rtruediv__ = __rmod__ = __rsub__ = __rfloordiv__ = __radd__

    assert eval(text, {"SIZE": SIZE, "other": Other()}) == ("other", SIZE)


def test_large_powers_are_refused() -> None:
    with pytest.raises(UsageError, match="at most 64 factors"):
        SIZE**65
