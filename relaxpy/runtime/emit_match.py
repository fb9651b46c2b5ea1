"""Writes the code that matches a value with a pattern and binds heap slots to its sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from relaxpy.runtime.bytecode import (
    CallablePattern,
    DataPattern,
    Heap,
    ObjectPattern,
    ParamPattern,
    Pattern,
    PrimPattern,
    ShapePattern,
    TensorPattern,
    TuplePattern,
)


@dataclass(frozen=True, slots=True)
class MatchLines:
    """Writes the code of matches, as part of a function's code."""

    _emit: Callable[[str], None]
    """Adds a line."""
    _temp: Callable[[], str]
    """Returns an unused name."""
    _no_tensor: Callable[[int, str], str]
    """Returns a condition that is true if a value is not a tensor of a slot."""

    def value(self, pattern: Pattern, src: str, bad: str, bound: list[int]) -> list[str]:
        """Checks `src` and binds slots, which are appended to `bound`. Returns the sizes of a tensor as expressions."""
        match pattern:
            case TensorPattern(shape, ndim, dtype, slot):
                test = self._no_tensor(slot, src)
                if dtype:
                    test += f" or {src}.dtype != {dtype!r}"
                return self._sizes(test, f"{src}.shape", shape, ndim, bad, bound)
            case ShapePattern(dims, ndim):
                self._sizes(f"{src}.__class__ is not Shape", src, dims, ndim, bad, bound)
            case PrimPattern(dtype, wanted):
                test = f"not prim_fits({src}, {dtype!r})"
                if isinstance(wanted, int):
                    test += f" or {src} != {wanted}"
                self._emit(f"if {test}: {bad}")
                if isinstance(wanted, Heap):
                    # An integer of another type may have any value.
                    value = f"int({src})" if dtype == "int64" else f"int64(int({src}))"
                    self._emit(f"s{wanted.index} = {value}")
                    bound.append(wanted.index)
            case TuplePattern(fields):
                self._emit(f"if {src}.__class__ is not tuple or len({src}) != {len(fields)}: {bad}")
                for index, item in enumerate(fields):
                    name = self._temp()
                    self._emit(f"{name} = {src}[{index}]")
                    self.value(item, name, bad, bound)
            case CallablePattern(arity):
                test = f"not callable({src})"
                if arity >= 0:
                    test += f" or getattr({src}, 'arity', {arity}) != {arity}"
                self._emit(f"if {test}: {bad}")
            case ObjectPattern() | DataPattern() | ParamPattern():
                pass  # those of data types are compared as a whole (`relaxpy.runtime.check_data`)
        return []

    def _sizes(
        self,
        test: str,
        sizes: str,
        wanted: tuple[None | int | Heap, ...] | None,
        ndim: int,
        bad: str,
        bound: list[int],
    ) -> list[str]:
        if wanted is None:
            if ndim >= 0:
                test += f" or len({sizes}) != {ndim}"
            self._emit(f"if {test}: {bad}")
            return []
        if all(isinstance(want, int) for want in wanted):
            self._emit(f"if {test} or {sizes} != {wanted!r}: {bad}")
            return [str(want) for want in wanted]
        self._emit(f"if {test} or len({sizes}) != {len(wanted)}: {bad}")
        names: list[str] = []
        fixed: list[tuple[str, int]] = []
        for want in wanted:
            if isinstance(want, Heap):
                names.append(f"s{want.index}")
                bound.append(want.index)
            else:
                names.append(self._temp())
                if want is not None:
                    fixed.append((names[-1], want))
        self._emit(f"({', '.join(names)},) = {sizes}")
        if fixed:
            test = " or ".join(f"{name} != {want}" for name, want in fixed)
            self._emit(f"if {test}: {bad}")
        constants = dict(fixed)
        return [str(constants.get(name, name)) for name in names]
