"""The base class of passes: a frozen dataclass whose fields are its options and whose `run` is a pure function from
module to module. A pass without options may also be a decorated function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.errors import OUR_DEFECT, ErrorGroup, PassError, RelaxError, defined_at, raised_in
from relaxpy.ir.expr import Function
from relaxpy.ir.module import BaseFunc, IRModule
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
    level: ClassVar[int] = 0
    """The level of optimisation from which a build runs it (Relay's -O, §5.2): 1 fusion, 2 constant folding, 3 all that
    makes programs faster or smaller. 0: at every level, as passes that you insert."""
    mandatory: ClassVar[bool] = False
    """Whether programs cannot be compiled without it."""
    prerequisites: ClassVar[tuple[str, ...]] = ()
    """Names of passes that come before it in a pipeline, as far as they are in it."""

    @abstractmethod
    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """Return the transformed module, or `mod` itself if nothing changed."""

    def __call__(self, mod: IRModule, ctx: PassContext | None = None) -> IRModule:
        """Run the pass on its own, outside of a pipeline."""
        with deep_recursion():
            return _module(self, self.run(mod, ctx or PassContext()))


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
                raise _crash(step, mod, error) from error
            mod = _module(step, mod)
            if not _is_ours(step):
                _check(step, mod)
            for instrument in ctx.instruments:
                instrument(number, step, before, mod)
        return mod


def _module(step: Pass, result: Any) -> IRModule:
    """The result of a pass, which must be a module of functions."""
    got = result
    if isinstance(result, IRModule):
        functions = result.functions.items()
        got = next((f for _, f in functions if not isinstance(f, BaseFunc)), None)
        if got is None:
            return result
    what = "a module" if got is result else "a module of functions"
    raise PassError(
        "pass-result",
        f"pass {step.name} must return {what}, got {type(got).__name__}",
        span=defined_at(getattr(step, "change", type(step).run)),
        help="return the changed module, or `mod` itself if nothing changed",
    )


def _crash(step: Pass, mod: IRModule, error: Exception) -> PassError:
    """The error for an exception that a pass raised: at the line of the user's code that failed, if it is theirs, else
    at the node of the program that it names."""
    place = raised_in(error)
    help = OUR_DEFECT if place is None else "this line is not relaxpy's, so look there"
    crash = PassError(
        "pass-crash",
        f"pass {step.name} failed: {type(error).__name__}: {error}",
        span=place or getattr(error, "span", None),
        help=f"{help}; the module before the pass is this error's `module`",
    )
    crash.module = mod
    return crash


def _is_ours(step: Pass) -> bool:
    return type(step).__module__.partition(".")[0] == "relaxpy"


def _check(step: Pass, mod: IRModule) -> None:
    """Refuse an invalid result of a pass that is not relaxpy's: the passes after it trust the module."""
    try:
        check_well_formed(mod)
    except RelaxError as error:
        for each in error.errors if isinstance(error, ErrorGroup) else (error,):
            each.show(f"this is so after the pass {step.name}", None)
        raise


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
            def changed(called: str, function: Function) -> Function:
                result = change(function, mod, ctx)
                if isinstance(result, Function):
                    return result
                raise PassError(
                    "pass-result",
                    f"pass {name} must return a function for {called}, got {type(result).__name__}",
                    span=defined_at(change),
                    help="return the changed function, or the function itself if nothing changed",
                )

            return mod.map_graph_functions(changed)

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
