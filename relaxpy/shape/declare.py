"""Upper bounds of symbolic variables given to the build: `relaxpy.build(mod, bounds={"n": 2048})`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from relaxpy.errors import UsageError, did_you_mean
from relaxpy.ir.expr import Function, MatchCast, SeqExpr
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import Visitor, free_sym_vars
from relaxpy.shape.bounds import UPPER


def with_bounds(mod: IRModule, bounds: Mapping[str, int]) -> IRModule:
    """Return the module with these upper bounds added to the declarations of its functions (`tir_var_upper_bound`); the
    smaller bound wins.

    `"n"` is the variable n of every public function that has one, in a parameter or in a `match_cast`. `"main.n"` is
    the variable of one function, which may be private.

    Raises: UsageError (`bounds`) for an unknown name, and a bound that is no integer from 0 up.
    """
    if not bounds:
        return mod
    known = {name: symbols_of(function) for name, function in mod.graph_functions.items()}
    limits: dict[str, dict[str, int]] = {name: {} for name in known}
    for key, limit in bounds.items():
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise UsageError(
                "bounds", f"the bound of {key} must be a non-negative integer, got {limit!r}"
            )
        owner, _, symbol = key.rpartition(".")
        of = [owner] if owner else [n for n in known if _is_public(mod.graph_functions[n])]
        of = [name for name in of if symbol in known.get(name, ())]
        if not of:
            raise _unknown(key, known)
        for name in of:
            limits[name][symbol] = min(limit, limits[name].get(symbol, limit))
    return mod.map_graph_functions(lambda name, f: _declared(f, limits[name]))


def symbols_of(function: Function) -> tuple[str, ...]:
    """The names of the symbolic variables that a function defines."""
    casts = _Casts()
    casts.visit(function.body)
    annotations = [param.annotation for param in function.params] + [
        cast.annotation for cast in casts.found
    ]
    return tuple(dict.fromkeys(symbol.name for symbol in free_sym_vars(annotations)))


class _Casts(Visitor):
    """Collects the `match_cast`s of a body, without those of nested functions."""

    def __init__(self) -> None:
        self.found: list[MatchCast] = []

    def visit_SeqExpr(self, node: SeqExpr) -> None:
        for binding in node.bindings:
            if isinstance(binding, MatchCast):
                self.found.append(binding)
            elif not isinstance(binding.value, Function):
                self.visit(binding.value)


def _is_public(function: Function) -> bool:
    return "global_symbol" in function.attrs


def _declared(function: Function, limits: Mapping[str, int]) -> Function:
    if not limits:
        return function
    before: Mapping[str, int] = function.attrs.get(UPPER, {})
    new = {name: min(limit, before.get(name, limit)) for name, limit in limits.items()}
    return replace(function, attrs={**function.attrs, UPPER: {**before, **new}})


def _unknown(key: str, known: Mapping[str, tuple[str, ...]]) -> UsageError:
    names = list(dict.fromkeys(symbol for symbols in known.values() for symbol in symbols))
    names += [f"{name}.{symbol}" for name, symbols in known.items() for symbol in symbols]
    shown = ", ".join(f"{name} has {', '.join(s) or 'none'}" for name, s in known.items())
    return UsageError(
        "bounds",
        f"no function has a symbolic variable {key!r}",
        help=did_you_mean(key, names) or shown,
    )
