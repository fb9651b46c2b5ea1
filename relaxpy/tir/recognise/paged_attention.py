"""Recognise attention over a paged cache: the program of `relaxpy.tir.programs.paged_attention`, to the last operation.

The program is a row of statements, not stages, so it is compared as a whole: the numbers in it say which options it
could have, and with one of them the writer must give the same loops. Whoever writes the same program by hand is
recognised, too; a program that differs in a comparison is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from relaxpy.ir.dtype import DType
from relaxpy.tir import te
from relaxpy.tir.analyzer import VarTable
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.loops import Buffer
from relaxpy.tir.programs.paged_attention import LOWEST, Operands, Scoring, paged_attention
from relaxpy.tir.recognise.rows import rows_of
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi
from relaxpy.tir.walk import walk

_RANKS = (3, 4, 4, 1, 2, 1)
"""Of query, key pages, value pages, starts, tables and lengths."""


@dataclass(frozen=True, eq=False)
class PagedForm:
    """Attention over a paged cache."""

    scoring: Scoring
    x: Operands
    """The buffers."""
    out: Buffer


def paged_attention_of(func: tirx.PrimFunc) -> PagedForm | None:
    """The form of a program; None for others."""
    params = list(func.params)
    if len(params) < len(_RANKS) + 1 or not all(hasattr(p.ty, "shape") for p in params):
        return None
    *given, out = params
    ranks = [len(p.shape) for p in given]
    rest = tuple(ranks[len(_RANKS) :])
    if tuple(ranks[: len(_RANKS)]) != _RANKS or len(out.shape) != 3:
        return None
    is_integer = [DType(str(p.dtype)).is_int for p in given[len(_RANKS) :]]
    has_lasts = is_integer[-1:] == [True]
    has_sinks, is_quantised, has_bias = rest[:1] == (1,) and not is_integer[0], 3 in rest, 2 in rest
    if (
        rest != (1,) * has_sinks + (3, 3) * is_quantised + (2,) * has_bias + (1,) * has_lasts
        or len(rows_of(func)) != 1
    ):
        return None
    left = iter(given[len(_RANKS) :])
    there = has_sinks, is_quantised, is_quantised, has_bias, has_lasts
    others = [next(left) if each else None for each in there]
    operands = Operands(*given[: len(_RANKS)], *others)
    for scoring in _candidates(func, (has_sinks, is_quantised, has_bias, has_lasts)):
        if tvm_ffi.structural_equal(
            _bare(func), _written(operands, scoring, str(out.dtype)), map_free_vars=True
        ):
            return PagedForm(scoring, operands, out)
    return None


def _bare(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function without attributes."""
    return tirx.PrimFunc(func.params, func.body, func.ret_type)


def _written(operands: Operands, scoring: Scoring, dtype: str) -> tirx.PrimFunc:
    """The program with these options, for parameters of the same shapes."""
    table = VarTable(shared=True)
    inputs = [
        te.placeholder(list(map(table.to_dim, x.shape)), str(x.dtype), x.name)
        for x in operands.given
    ]
    query, keys, values = (list(map(table.to_dim, x.shape)) for x in operands.given[:3])
    shape = *query[:2], values[3]
    out = paged_attention(scoring, operands.of(inputs), shape, keys[3], DType(dtype))
    return _bare(PrimFunc.from_te(inputs, [out]).func)


def _candidates(func: tirx.PrimFunc, operands: tuple[bool, bool, bool, bool]) -> Iterator[Scoring]:
    """The options that the numbers of a program allow, likely ones first. `operands`: has it sinks, scales, a bias,
    last places?"""
    floats: list[float] = []
    integers: set[int] = set()
    caps: list[float] = []

    def call(node: Any) -> None:
        if str(getattr(node.op, "name", "")) == "tirx.tanh" and isinstance(node.args[0], tirx.Div):
            caps.extend(_value(node.args[0].b))

    walk(
        func.body,
        (tirx.FloatImm, lambda node: floats.append(float(node.value))),
        (tirx.IntImm, lambda node: integers.add(abs(int(node.value)))),
        (tvm.ir.Call, call),
    )
    cap = caps[0] if caps else 0.0
    scales = [each for each in dict.fromkeys(floats) if each not in (0.0, LOWEST, cap)]
    windows = sorted({each + n for each in integers for n in (0, 1) if each + n > 0})
    for causal, window in [(True, 0), (False, 0), *((True, each) for each in windows)]:
        for scale in (*scales, cap or None, None, 1.0):  # a factor of 1 is not written
            yield Scoring(scale, causal, window, cap, *operands)


def _value(number: Any) -> Sequence[float]:
    return [float(number.value)] if isinstance(number, tirx.FloatImm) else []
