"""Name resolution: in a function (variables, symbols), in its module (functions), and in the surrounding Python
(values)."""

from __future__ import annotations

import builtins
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from relaxpy.errors import ScriptError, Span, did_you_mean
from relaxpy.ir.annotation import Annotation, CallableType, PrimType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import Var
from relaxpy.ir.python_operator import LONGEST
from relaxpy.ir.visitor import free_sym_vars
from relaxpy.script.annotations import DimReader
from relaxpy.script.dims import parse_dim
from relaxpy.shape.lattice import substitute


def bounded_range(*args: Any) -> range:
    """Python's `range`, limited so that a list made of it cannot exhaust memory."""
    found = range(*args)
    if len(found) > LONGEST:
        raise ScriptError("bad-value", f"{found} is too long")
    return found


SAFE_BUILTINS: Mapping[str, Any] = {"range": bounded_range} | {
    name: getattr(builtins, name)
    for name in (
        "abs",
        "float",
        "int",
        "bool",
        "str",
        "len",
        "list",
        "tuple",
        "True",
        "False",
        "None",
        "dict",
    )
}
"""Python builtins that any script may use: they only compute."""


class Skip(Exception):
    """Raised where a value is missing because of an error that was reported already."""


class Poison:
    """The value of a name whose definition was wrong; its uses are not reported again."""


POISON = Poison()


@dataclass(frozen=True)
class ModuleRef:
    """`cls`, or the name of the class: the base of `cls.f`."""

    name: str


@dataclass
class Surroundings:
    """The Python scope around a script. `trusted`: decorated code, whose values and functions may all be used. A text
    that is only parsed may use just its literals and the script's own names."""

    values: Mapping[str, Any]
    trusted: bool
    not_run: Mapping[str, Span] = field(default_factory=dict[str, Span])
    """Names that Python would define if the text were run, and where."""

    def find(self, name: str) -> Any:
        """The value of a name. Raises `KeyError`."""
        if name in self.values:
            return self.values[name]
        if name in SAFE_BUILTINS:
            return SAFE_BUILTINS[name]
        if self.trusted:
            return vars(builtins)[name]
        raise KeyError(name)


def suggest(name: str, known: Iterable[str]) -> str | None:
    """`did you mean …?`, if a known name is similar."""
    return did_you_mean(name, known, str)


class Symbols(DimReader):
    """The symbolic variables of a function, by name; those of enclosing functions are visible too.

    `mode` is the meaning of an unknown quoted name: `"define"` (parameters, match_cast) makes a new variable, `"use"`
    is an error. Inside `R.Callable(…)` a quoted name belongs to the function type if it is a whole dimension of a
    parameter, or is unknown in the function.
    """

    def __init__(
        self, outer: Symbols | None = None, scalar: Callable[[str], Dim | None] = lambda _: None
    ) -> None:
        super().__init__()
        self.outer = outer
        self.mode = "define"
        self.scalar = scalar
        """Returns the dimension of the scalar parameter with this name."""
        self.first_use: dict[SymVar, Span | None] = {}
        self.open: set[SymVar] = set()
        """Variables that are declared (`n = T.int64()`) but not yet defined by a value."""
        self._own: list[dict[str, SymVar]] = []
        self._outer: dict[str, Dim] = {}
        """Variables of enclosing functions that were looked up, so that a deep one does not ask them all again."""
        self._private: dict[SymVar, None] = {}

    def lookup(self, name: str) -> Dim | None:
        """The variable of this name, or None."""
        for names in (*reversed(self._own), self.symbols):
            if name in names:
                return names[name].dim
        found = self._outer.get(name)
        if found is None and self.outer is not None:
            found = self.outer.lookup(name)
            if found is not None:
                self._outer[name] = found
        return found

    def names(self) -> set[str]:
        """All names that `lookup` finds."""
        return {*self.symbols, *(self.outer.names() if self.outer is not None else ())}

    def declare(self, name: str, dtype: str = "int64") -> Dim:
        """The variable with this name; a new one if there is none."""
        found = self.lookup(name)
        if found is None:
            found = self.symbols.setdefault(name, SymVar(name, dtype)).dim
        return found

    def __call__(self, value: Any) -> Dim:
        if isinstance(value, str):
            span = getattr(value, "span", None)
            return parse_dim(value, lambda name: self.quoted(name, span), span)
        if isinstance(value, typing.TypeVar):
            return self.declare(value.__name__)
        return self.adopt_dim(super().__call__(value))

    def quoted(self, name: str, span: Span | None) -> Dim:
        """The dimension of a name in a quoted dimension. Raises `ScriptError` if it is unknown in mode `"use"`."""
        found = None if any(name in names for names in self._own) else self.scalar(name)
        if found is None:
            found = self.lookup(name)
        if found is None and self._own:
            return self._own[-1].setdefault(name, self._new_private(name)).dim
        if found is None and self.mode == "use":
            raise ScriptError(
                "symbol-undefined",
                f"there is no symbolic variable {name}",
                span=span,
                help=suggest(name, self.names())
                or "symbolic variables are defined by annotations of parameters and by R.match_cast",
            )
        if found is None:
            found = self.declare(name)
        if found.symbol is not None:
            self.first_use.setdefault(found.symbol, span)
        return found

    def new(self, name: str) -> SymVar:
        """A variable of this function that no text names."""
        return self._new_private(name)

    def _new_private(self, name: str) -> SymVar:
        found = SymVar(name)
        self._private[found] = None
        return found

    @contextmanager
    def using(self, mode: str) -> Iterator[None]:
        """Read quoted names in this mode in the block."""
        before, self.mode = self.mode, mode
        try:
            yield
        finally:
            self.mode = before

    @contextmanager
    def function_type(self, own: Iterable[str]) -> Iterator[None]:
        """In the block, the quoted names `own`, and unknown ones, belong to a function type."""
        self._own.append({name: self._new_private(name) for name in own})
        try:
            yield
        finally:
            self._own.pop()

    def known(self) -> set[SymVar]:
        """All variables visible here."""
        own = {*self.symbols.values(), *self._private}
        return own | (self.outer.known() if self.outer is not None else set())

    def count(self) -> tuple[int, int]:
        """How many variables this function has so far, for `since`."""
        return len(self.symbols), len(self._private)

    def since(self, count: tuple[int, int]) -> set[SymVar]:
        """The variables introduced after `count`."""
        later = islice(reversed(self.symbols.values()), len(self.symbols) - count[0])
        private = islice(reversed(self._private), len(self._private) - count[1])
        return {*later, *private}

    def knows(self, var: SymVar) -> bool:
        """Is this variable visible here?"""
        if self.symbols.get(var.name) is var or var in self._private:
            return True
        return self.outer is not None and self.outer.knows(var)

    def adopt_dim(self, dim: Dim) -> Dim:
        """`dim` with variables made outside (in Python) replaced by this function's variables of the same name."""
        if not dim.vars:
            return dim
        foreign = [var for var in dim.vars if not self.knows(var)]
        return (
            dim.substitute({v: self.declare(v.name, v.dtype) for v in foreign}) if foreign else dim
        )

    def adopt(self, annotation: Annotation) -> Annotation:
        """The same for an annotation made outside. The variables of a function type remain its own."""
        if isinstance(annotation, CallableType):
            return annotation
        foreign = [var for var in free_sym_vars([annotation]) if not self.knows(var)]
        return substitute(annotation, {var: self.declare(var.name, var.dtype) for var in foreign})


class MacroSymbols(Symbols):
    """The variables that one use of a macro introduces. Values keep the variables of the calling function, but the
    names of those are not visible here, unless the macro is defined in that function."""

    def __init__(self, outer: Symbols, local: bool) -> None:
        super().__init__(outer, outer.scalar)
        self.mode = outer.mode
        self.local = local

    def lookup(self, name: str) -> Dim | None:
        """The variable of this name, or None."""
        return super().lookup(name) if self.local or name in self.symbols or self._own else None


def scalar_dim(value: Any) -> Dim | None:
    """The dimension of a scalar variable's value, if it is known."""
    if isinstance(value, Var) and isinstance(value.annotation, PrimType):
        return value.annotation.value
    return None
