"""What a pass is: a frozen dataclass whose fields are its options and whose `run` is a pure
function of modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from relaxpy.errors import PassError, RelaxError
from relaxpy.ir.module import IRModule
from relaxpy.ir.recursion import deep_recursion

Instrument = Callable[[int, "Pass", IRModule, IRModule], None]
"""Called after each pass with its number, the pass, the module before and after."""


@dataclass(frozen=True)
class PassContext:
    """What passes may know besides the module."""

    target: Any = None
    """The `relaxpy.tir.target.Target` to build for."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Parameters to bind, by name (or by function and name: `"main.w"`): arrays."""
    instruments: Sequence[Instrument] = ()


class Pass(ABC):
    """One transformation. Modules are well formed before and after."""

    name: ClassVar[str]

    @abstractmethod
    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """The transformed module; `mod` itself where there is nothing to do."""

    def __call__(self, mod: IRModule, ctx: PassContext | None = None) -> IRModule:
        """`run`, for use on its own."""
        with deep_recursion():
            return self.run(mod, ctx or PassContext())


@dataclass(frozen=True)
class Sequential(Pass):
    """Passes in order, with the context's instruments called after each."""

    name: ClassVar[str] = "sequential"
    passes: tuple[Pass, ...] = ()

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        for number, step in enumerate(self.passes):
            before = mod
            try:
                mod = step.run(mod, ctx)
            except RelaxError:
                raise
            except Exception as error:
                crash = PassError(
                    "pass-crash",
                    f"pass {step.name} failed: {type(error).__name__}: {error}",
                    help="this is a bug in relaxpy; the module before the pass is this error's `module`",
                )
                crash.module = mod
                raise crash from error
            for instrument in ctx.instruments:
                instrument(number, step, before, mod)
        return mod
