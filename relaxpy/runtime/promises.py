"""What a function that has ended by a tail call promised of its result.

A function compares the result of a function value with the annotation. If it also returns it, the call is a tail call
nevertheless: the comparison is made when the result is there. Steps of a loop promise the same again and again, so a
loop has few promises to keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.bytecode import (
    Assert,
    CallablePattern,
    Heap,
    Match,
    Pattern,
    PrimPattern,
    ShapePattern,
    TensorPattern,
    TuplePattern,
)
from relaxpy.runtime.integers import evaluate
from relaxpy.runtime.patterns import prim_fits
from relaxpy.runtime.tensor import Shape, Tensor

if TYPE_CHECKING:
    from relaxpy.runtime.linked_function import LinkedFunction


@dataclass(frozen=True, slots=True)
class Promise:
    """The instructions behind a tail call, with what they know of the call that ended."""

    function: LinkedFunction
    instrs: tuple[int, ...]
    slots: tuple[tuple[int, int], ...]
    """The heap slots that they read."""

    def check(self, value: Any) -> None:
        """Raises: RuntimeCheckError (`check`), located, for a value that does not fit."""
        found = dict(self.slots)
        function = self.function
        for at in self.instrs:
            instr = function.code.code[at]
            local = {f"s{slot}": size for slot, size in found.items()}
            error: RuntimeCheckError | None = None
            match instr:
                case Match(pattern=pattern):
                    if not matches(value, pattern, found):
                        error = function.mismatch(at, value, local)
                case Assert(lhs=lhs, rhs=rhs, check=check):
                    left, right = (evaluate(each, found.__getitem__) for each in (lhs, rhs))
                    if left != right:
                        error = function.unequal(check, left, right, local)
                case _:
                    pass
            if error is not None:
                raise function.placed(error, at)


def matches(value: Any, pattern: Pattern, slots: dict[int, int]) -> bool:
    """Whether a value matches a pattern, whose slots get its sizes."""
    match pattern:
        case TensorPattern(shape, ndim, dtype):
            fits = isinstance(value, Tensor) and dtype in ("", value.dtype)
            return fits and _sizes(value.shape, shape, ndim, slots)
        case ShapePattern(dims, ndim):
            return isinstance(value, Shape) and _sizes(value, dims, ndim, slots)
        case PrimPattern(dtype, wanted):
            if not prim_fits(value, dtype):
                return False
            return wanted is None or _sizes((int(value),), (wanted,), 1, slots)
        case TuplePattern(fields):
            is_tuple = type(value) is tuple and len(value) == len(fields)
            return is_tuple and all(map(lambda v, p: matches(v, p, slots), value, fields))
        case CallablePattern(arity):
            return callable(value) and arity in (-1, getattr(value, "arity", arity))
        case _:
            return True


def _sizes(
    sizes: tuple[int, ...],
    wanted: tuple[None | int | Heap, ...] | None,
    ndim: int,
    slots: dict[int, int],
) -> bool:
    if wanted is None:
        return ndim in (-1, len(sizes))
    if len(sizes) != len(wanted):
        return False
    for size, want in zip(sizes, wanted, strict=True):
        if isinstance(want, Heap):
            slots[want.index] = size
    return all(isinstance(w, Heap) or w in (None, s) for s, w in zip(sizes, wanted, strict=True))
