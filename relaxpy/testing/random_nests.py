"""Random tensor programs of several nests of loops, for random programs.

Their indices go through arithmetic of every width, buffers have layouts and views, elements are updated from their old
values, names are bound in chains, and the ranges of loops depend on outer loops and on data. Values are the smallest
integers, too, and are divided by -1.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from relaxpy.ir.annotation import TensorType
from relaxpy.ir.expr import GlobalVar
from relaxpy.op import astype
from relaxpy.op.call import call_tir
from relaxpy.testing.random_body import Body, Rule

NARROW = ("int8", "uint8", "int16", "uint16", "int32")
"""The dtypes of index arithmetic beside int64."""
RESULTS = (*NARROW, *("int8", "int16", "uint32", "int64", "float32", "float32", "float16"))
INDICES = (
    "({a} + {b})", "({a} - {b})", "({a} * {c})", "({a} // {c})", "({a} % {c})", "T.min({a}, {b})", "T.max({a}, {b})",
    "T.Select({a} < {b}, {a}, {b})",
)  # fmt: skip
DIFFERENCES = (
    "(({c} - {a}) % {n})", "(({a} - {b}) % {n})", "(({a} - {b}) // {c})", "(({c} - {a} * 2) // {n})",
    "(({a} - {c}) // {n})", "(({c} - {a}) % {d} // {n})", "(({n} - {a} * {c}) % {n})",
)  # fmt: skip
"""Of int64."""
ARITHMETIC = (
    "({a} + {b})", "({a} - {b})", "({a} * {b})", "({a} // {b})", "({a} % {b})", "T.truncdiv({a}, {b})",
    "T.truncmod({a}, {b})", "T.min({a}, {b})", "T.max({a}, {b})", "T.bitwise_xor({a}, {b})",
    "T.if_then_else({a} < {b}, {b}, {a})", "T.Select({a} < {b}, {a}, {b})", "T.shift_right({a}, {two})",
)  # fmt: skip
"""Of integers that wrap."""
SIGNED = ("T.abs({a})", "(-{a})", "({a} // {minus})", "({a} % {minus})", "T.truncdiv({a}, {minus})")
FLOATS = (
    "({a} + {b})", "({a} * {b})", "T.max({a}, {b})", "(T.tanh({a}) - {b})", "T.if_then_else({a} < {b}, {b}, {a})",
)  # fmt: skip
LETS = (
    "({p} + {p}) % {n}", "({p} + {q}) % 7", "{p} // 2 + {p} % 3", "({c} - {p}) % {n}", "T.max({p}, {q}) - {c}",
    "T.Cast('int64', T.Cast('int8', {p} * 9))",
)  # fmt: skip
"""The next index of a chain, of the last and another one."""


@dataclass
class Nests:
    """The text of a tensor program that makes a tensor `y` like `x`."""

    rng: random.Random
    dtype: str
    own: str
    """The dtype of y."""
    narrow: str
    """The dtype of the vector `d`."""
    rank: int
    lines: list[str] = field(default_factory=list[str])
    depth: int = 1
    names: list[str] = field(default_factory=list[str])
    """Indices of int64 that are defined here."""
    source: str = ""
    """What is read in the place of x: a view of it."""
    target: str = "y"
    declared: list[str] = field(default_factory=list[str])
    """Variables of layouts."""
    count: int = 0
    may_leave: bool = False
    """May an index be out of range?"""
    may_guard: bool = False
    """May a condition decide whether an index is in range? Few of these are proved, and devices refuse the others."""

    @property
    def sizes(self) -> Sequence[str]:
        return ("n", "m")[: self.rank]

    def text(self, name: str) -> str:
        """The whole program."""
        kind = self.rng.random()
        self.may_leave, self.may_guard = kind < 0.08, kind > 0.85
        shape = ", ".join(f'"{size}"' for size in self.sizes) + ","
        params = [
            f'x: T.Buffer(({shape}), "{self.dtype}"{self.layout()})',
            f'd: T.Buffer(("k",), "{self.narrow}")',
            f'y: T.Buffer(({shape}), "{self.own}"{self.layout()})',
        ]
        self.nest(is_first=True)
        for _ in range(self.rng.choice((0, 1, 1, 2))):
            self.nest()
        head = f"@T.prim_func(private=True)\ndef {name}({', '.join(params)}):"
        names = [*self.sizes, "k", *self.declared]
        return "\n".join([head, *(f"    {each} = T.int64()" for each in names), *self.lines]) + "\n"

    def pick(self, choices: Sequence[str], **parts: str) -> str:
        return self.rng.choice(choices).format(**parts)

    def fresh(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def layout(self) -> str:
        """The attributes of a parameter: what tensors have, or variables for it."""
        if self.rng.random() < 0.6:
            return ""
        found = ""
        if self.rng.random() < 0.7:
            inner = "1" if self.rng.random() < 0.4 else f'"{self.variable()}"'
            outer = '"m"' if self.rng.random() < 0.4 else f'"{self.variable()}"'
            found += f", strides=({inner},)" if self.rank == 1 else f", strides=({outer}, {inner})"
        if not found or self.rng.random() < 0.4:
            found += f', elem_offset="{self.variable()}"'
        return found

    def variable(self) -> str:
        self.declared.append(self.fresh("s"))
        return self.declared[-1]

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def inside(self, line: str) -> Iterator[None]:
        self.add(line)
        names = list(self.names)
        self.depth += 1
        yield
        self.depth -= 1
        self.names = names

    # Loops

    def nest(self, is_first: bool = False) -> None:
        """A nest. The first writes every element."""
        self.source, self.target = "x", "y"
        self.names = [*self.sizes]
        i, j = self.fresh("i"), self.fresh("j")
        whole = self.rng.choice(("range", "T.serial", "T.parallel"))
        with self.inside(f"for {i} in {whole}(n):"):
            self.names.append(i)
            loops = [i]
            if self.rank == 2 or (not is_first and self.rng.random() < 0.5):
                loops.append(j)
            if len(loops) == 1:
                self.body(loops, is_first)
                return
            with self.inside(f"for {j} in T.serial({self.range_of(i, is_first)}):"):
                self.names.append(j)
                self.body(loops, is_first)

    def range_of(self, i: str, is_first: bool) -> str:
        """The range of an inner loop, within the last axis."""
        size = self.sizes[-1]
        if is_first or self.rng.random() < 0.2:
            return size
        choices = (
            f"T.min({i} + 1, {size})",
            f"T.min({i}, {size}), {size}",
            f"T.min({self.datum()} % 4, {size})",
        )
        alone = (f"{i} + 1", f"{i}, n", f"{i} // 2, {i} + 1") if self.rank == 1 else ()
        return self.rng.choice((*choices, *alone))

    def body(self, loops: Sequence[str], is_first: bool) -> None:
        if self.rng.random() < 0.5:
            self.statements(loops, is_first)
            return
        with self.inside(f'with T.sblock("{self.fresh("b")}"):'):
            axes = [self.fresh("v") for _ in loops]
            sizes = [*self.sizes, "n"]
            self.names = [*self.sizes]
            for axis, size, loop in zip(axes, sizes, loops, strict=False):
                kind = "spatial" if is_first else self.rng.choice(("spatial", "opaque"))
                self.add(f"{axis} = T.axis.{kind}({size}, {loop})")
                self.names.append(axis)
            if self.rng.random() < 0.3:
                self.view(axes)
            self.statements(axes, is_first)

    def view(self, axes: Sequence[str]) -> None:
        """A view of a row, or of all, from which elements are read."""
        name, layout = self.fresh("z"), ""
        if self.rng.random() < 0.4:
            strides = ", ".join(self.variable() for _ in self.sizes)
            layout = f", strides=({strides},), elem_offset={self.variable()}, offset_factor=1"
        if self.rank == 2:
            region, shape, self.source = f"x[{axes[0]}, 0:m]", "(1, m)", f"{name}[0, "
        else:
            region, shape, self.source = "x[0:n]", "(n,)", f"{name}["
        self.add(f'{name} = T.match_buffer({region}, {shape}, "{self.dtype}"{layout})')

    def statements(self, loops: Sequence[str], is_first: bool) -> None:
        self.lets()
        place = ", ".join(loops[: self.rank])
        if is_first:
            self.add(f"y[{place}] = {self.value(2)}")
            return
        for _ in range(self.rng.choice((1, 1, 2))):
            if self.rng.random() < 0.5:
                place = self.place()
            old = f"y[{place}]"
            value = self.value(2, old) if self.rng.random() < 0.7 else f"{old} + {self.value(1)}"
            self.add(f"{old} = {value}")

    def lets(self) -> None:
        """Names for indices, each computed from the one before."""
        length = self.rng.choice((0, 0, 0, 2, 4, 7))
        p = q = self.wide(1)
        metas = 0
        for _ in range(length):
            name = self.fresh("a")
            value = self.pick(LETS, p=p, q=q, n=self.rng.choice(self.sizes), c=self.number())
            kind = self.rng.choice(("let", "bind", "meta_var" if metas < 3 else "let"))
            metas += kind == "meta_var"
            self.add(
                f"{name}: T.let[T.int64] = {value}"
                if kind == "let"
                else f"{name} = T.{kind}({value})"
            )
            p, q = name, p
            self.names.append(name)
        if length and self.rng.random() < 0.5:
            name = self.fresh("e")
            self.add(f"{name}: T.let[T.{self.own}] = {self.value(1)}")
            old = self.rng.choice((f"{name} + {name}", f"{name} * {name}"))
            self.add(f"{self.fresh('e')}: T.let[T.{self.own}] = {old}")

    # Indices

    def number(self) -> str:
        return str(self.rng.choice((1, 2, 2, 3, 5, 7)))

    def wide(self, depth: int) -> str:
        """An index of int64, which does not overflow."""
        if depth == 0:
            return self.rng.choice((*self.names[-3:], *self.names, f"T.int64({self.number()})"))
        kind = self.rng.random()
        if kind < 0.3:
            return f"T.Cast('int64', {self.thin(self.rng.choice(NARROW), depth - 1)})"
        a, b = self.wide(depth - 1), self.wide(depth - 1)
        forms = DIFFERENCES if kind < 0.7 else INDICES
        n = self.rng.choice((*self.sizes, self.number()))
        return self.pick(forms, a=a, b=b, c=self.number(), d=self.number(), n=n)

    def thin(self, dtype: str, depth: int) -> str:
        """An index of few bits, which may wrap."""
        kind = self.rng.random()
        if kind < 0.15:
            return constant(self.rng, dtype)
        if kind < 0.3 and self.narrow == dtype:
            return self.element()
        if depth == 0 or kind < 0.5:
            return f"T.Cast('{dtype}', {self.wide(max(depth - 1, 0))})"
        return self.arithmetic(dtype, lambda: self.thin(dtype, depth - 1))

    def element(self) -> str:
        """An element of d."""
        index = f"d[{self.wide(0)} % T.max(k, 1)]"
        return f"T.if_then_else(k > 0, {index}, {constant(self.rng, self.narrow)})"

    def datum(self) -> str:
        return f"T.Cast('int64', {self.element()})"

    def place(self, rank: int = 0) -> str:
        """Indices of an element."""
        return ", ".join(self.within(size) for size in self.sizes[-rank:])

    def within(self, size: str) -> str:
        index = self.wide(self.rng.choice((1, 2, 2)))
        if self.may_leave and self.rng.random() < 0.2:
            return index
        return self.rng.choice((f"{index} % {size}", f"T.max(T.min({index}, {size} - 1), 0)"))

    # Values

    def read(self) -> str:
        """An element of x, as a value of y's dtype."""
        if self.source == "x":
            found = f"x[{self.place()}]"
        else:
            found = f"{self.source}{self.place(1)}]"
        if self.may_guard and self.rng.random() < 0.3:
            index, size = self.wide(2), self.sizes[-1]
            other = f"T.Cast('{self.dtype}', 7)"
            first = f"{self.within('n')}, " if self.rank == 2 else ""
            found = f"T.if_then_else(0 <= {index} and {index} < {size}, x[{first}{index}], {other})"
        if self.own == self.dtype:
            return found
        if self.dtype == "float32" and "float" not in self.own:
            found = f"T.Cast('int32', {found} * T.float32(50))"
        return f"T.Cast('{self.own}', {found})"

    def value(self, depth: int, old: str = "") -> str:
        """A value of y's dtype, of elements of x and of an old value of y."""
        if depth == 0:
            kind = self.rng.random()
            if old and kind < 0.5:
                return old
            if kind < 0.7:
                return self.read()
            if "float" in self.own:
                return f"T.Cast('{self.own}', {self.wide(1)} % 8)"
            return (
                constant(self.rng, self.own)
                if kind < 0.8
                else f"T.Cast('{self.own}', {self.wide(1)})"
            )
        part = lambda: self.value(depth - 1, old)  # noqa: E731
        if "float" in self.own:
            return self.pick(FLOATS, a=part(), b=part())
        return self.arithmetic(self.own, part)

    def arithmetic(self, dtype: str, part: Callable[[], str]) -> str:
        """Integer arithmetic on two parts."""
        if not dtype.startswith("u") and self.rng.random() < 0.3:
            return self.pick(SIGNED, a=part(), minus=f"T.{dtype}(-1)")
        form = self.rng.choice(ARITHMETIC)
        b = part()
        if "//" in form or "%" in form or "trunc" in form:  # a literal 0 is refused
            b = (
                f"T.max({b}, T.{dtype}(1))"
                if self.rng.random() < 0.5
                else f"T.{dtype}({self.number()})"
            )
        return form.format(a=part(), b=b, two=f"T.{dtype}(2)")


def constant(rng: random.Random, dtype: str) -> str:
    """A number of an integer dtype: a small one, or a limit."""
    limits = np.iinfo(dtype)
    return f"T.{dtype}({rng.choice((1, 2, 3, 100, limits.max, limits.min, limits.min))})"


def nests(g: Body, dtype: str) -> tuple[str, Callable[[GlobalVar], Rule]]:
    """The text of a program without its name, and what calls it."""
    own, narrow = g.rng.choice(RESULTS), g.rng.choice(NARROW)
    rank = g.rng.choice((1, 1, 2))
    text = Nests(g.rng, dtype, own, narrow, rank).text("f")

    def use(name: GlobalVar) -> Rule:
        def rule(g: Body) -> bool:
            x, d = g.tensor_or_param(dtype, rank), g.tensor_or_param("int64", 1)
            given = g.builder.emit(astype(d, dtype=narrow))
            g.emit(call_tir(name, [x, given], TensorType(g.dims(x), own)))
            return True

        return rule

    return text.partition("f(")[2], use
