"""What a pass is: a frozen dataclass whose fields are its options and whose `run` is a pure
function of modules. A pass without options may be a decorated function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from relaxpy.errors import PassError, RelaxError
from relaxpy.ir.expr import Function
from relaxpy.ir.module import IRModule
from relaxpy.ir.recursion import deep_recursion
from relaxpy.target import Target

Instrument = Callable[[int, "Pass", IRModule, IRModule], None]
"""Called after each pass with its number, the pass, the module before and after."""


@dataclass(frozen=True)
class PassContext:
    """What passes may know besides the module."""

    target: Target | None = None
    """What to build for; None: this machine."""
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


ModuleChange = Callable[[IRModule, PassContext], IRModule]
"""What `module_pass` decorates."""
FunctionChange = Callable[[Function, IRModule, PassContext], Function]
"""What `function_pass` decorates: gets a graph function, the module that it is in (as it was before the pass), and the
context."""


def module_pass(name: str) -> Callable[[ModuleChange], Pass]:
    """A function of modules as a pass of this name.

    @module_pass("without-private")
    def without_private(mod: IRModule, ctx: PassContext) -> IRModule: ...
    """

    def decorate(change: ModuleChange) -> Pass:
        return _named(name, change, change)

    return decorate


def function_pass(name: str) -> Callable[[FunctionChange], Pass]:
    """A function of graph functions as a pass of this name that changes each of a module's.

    @function_pass("double-sums")
    def double_sums(function: Function, mod: IRModule, ctx: PassContext) -> Function: ...
    """

    def decorate(change: FunctionChange) -> Pass:
        def run(mod: IRModule, ctx: PassContext) -> IRModule:
            return mod.map_graph_functions(lambda _, function: change(function, mod, ctx))

        return _named(name, change, run)

    return decorate


@dataclass(frozen=True)
class _Decorated(Pass):
    """A pass that a decorator made; each has a class of its own, with its name."""

    change: ModuleChange

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return self.change(mod, ctx)


def _named(name: str, decorated: Callable[..., Any], run: ModuleChange) -> Pass:
    attributes = {"name": name, "__doc__": decorated.__doc__, "__module__": decorated.__module__}
    return type(decorated.__name__, (_Decorated,), attributes)(run)
