"""The base class of passes: a frozen dataclass whose fields are its options and whose `run` is a pure function from
module to module. A pass without options may also be a decorated function."""

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
"""Called after each pass with the pass's number, the pass, and the module before and after it."""


@dataclass(frozen=True)
class PassContext:
    """Inputs of a pass other than the module."""

    target: Target | None = None
    """The target to build for; None: this machine."""
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Arrays to bind to parameters, by name (`"w"`) or by function and name (`"main.w"`)."""
    instruments: Sequence[Instrument] = ()


class Pass(ABC):
    """One transformation of a module. The module is well formed before and after."""

    name: ClassVar[str]

    @abstractmethod
    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """Return the transformed module, or `mod` itself if nothing changed."""

    def __call__(self, mod: IRModule, ctx: PassContext | None = None) -> IRModule:
        """Run the pass on its own, outside of a pipeline."""
        with deep_recursion():
            return self.run(mod, ctx or PassContext())


@dataclass(frozen=True)
class Sequential(Pass):
    """Runs passes in order and calls the context's instruments after each."""

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
"""The signature of a function that `module_pass` decorates."""
FunctionChange = Callable[[Function, IRModule, PassContext], Function]
"""The signature of a function that `function_pass` decorates. Its arguments are a graph function, the module that
contains it (as it was before the pass), and the context."""


def module_pass(name: str) -> Callable[[ModuleChange], Pass]:
    """Turn a function from module to module into a pass of this name.

    @module_pass("without-private")
    def without_private(mod: IRModule, ctx: PassContext) -> IRModule: ...
    """

    def decorate(change: ModuleChange) -> Pass:
        return _named(name, change, change)

    return decorate


def function_pass(name: str) -> Callable[[FunctionChange], Pass]:
    """Turn a function from graph function to graph function into a pass that applies it to each graph function of a
    module.

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
    """A pass made by a decorator. Each has a class of its own, with the pass's name."""

    change: ModuleChange

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return self.change(mod, ctx)


def _named(name: str, decorated: Callable[..., Any], run: ModuleChange) -> Pass:
    attributes = {"name": name, "__doc__": decorated.__doc__, "__module__": decorated.__module__}
    return type(decorated.__name__, (_Decorated,), attributes)(run)
