"""Modules and functions that are called directly: `Module.main(x)`, `main(x)`.

They are built for this machine at the first call, and the build is kept as long as the module or function. Both are
immutable, so builds are looked up by identity. If two threads make the first call at the same time, only one builds.
"""

from __future__ import annotations

import inspect
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from relaxpy.analysis.called_functions import mentioned_functions
from relaxpy.build.build import build
from relaxpy.errors import UsageError
from relaxpy.ir.expr import Expr, Function
from relaxpy.ir.module import IRModule
from relaxpy.runtime.vm import VirtualMachine


class _Kept:
    """The virtual machine of a module, once it is built."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.machine: VirtualMachine | None = None


_lock = Lock()
_kept: WeakKeyDictionary[IRModule | Function, _Kept] = WeakKeyDictionary()


def machine_of(program: IRModule | Function) -> VirtualMachine:
    """The virtual machine of a module, or of a single function. Raises the errors of `relaxpy.build`."""
    with _lock:
        kept = _kept.setdefault(program, _Kept())
    with kept.lock:
        if kept.machine is None:
            kept.machine = VirtualMachine(build(program))
        return kept.machine


class ModuleFunction:
    """A callable function of a module: `Module.main`."""

    def __init__(self, mod: IRModule, name: str) -> None:
        self._mod = mod
        self._name = name

    @property
    def module(self) -> IRModule:
        """The module that it belongs to."""
        return self._mod

    @property
    def name(self) -> str:
        """Its name there."""
        return self._name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _refuse_expressions(self._name, args)
        function = self._mod.graph_function(self._name)
        if "global_symbol" not in function.attrs:
            raise UsageError(
                "function-name",
                f"{self._name} is private: only functions of its module can call it",
                span=function.span,
                help="remove private=True",
            )
        return machine_of(self._mod)[self._name](*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        function = self._mod.graph_function(self._name)
        params = [
            inspect.Parameter(param.name, kind, annotation=str(param.annotation))
            for param in function.params
            if param.name.isidentifier()
        ]
        return inspect.Signature(params, return_annotation=str(function.ret))

    def __repr__(self) -> str:
        return f"<{self._mod.name}.{self._name}: built at the first call>"


def function_of_module(mod: IRModule, name: str) -> ModuleFunction:
    """`Module.main` as a callable."""
    return ModuleFunction(mod, name)


def call_module(mod: IRModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls `Module(x)`: its only public function, or `main`."""
    _refuse_expressions(mod.name, args)
    return machine_of(mod)(*args, **kwargs)


def call_function(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls `main(x)`, a function that refers to no other function of its module."""
    name = str(function.attrs.get("global_symbol", "main"))
    _refuse_expressions(name, args)
    others = [other for other in mentioned_functions(function) if other != name]
    if others:
        raise UsageError(
            "build-module",
            f"{name} calls {others[0]}, another function of its module",
            span=function.span,
            help=f"call it through the module, which has both: Module.{name}(…)",
        )
    return machine_of(function)[name](*args, **kwargs)


def _refuse_expressions(name: str, args: tuple[Any, ...]) -> None:
    if any(isinstance(arg, Expr) for arg in args):
        raise UsageError(
            "arguments",
            f"{name} is called with an expression of a program",
            help="in a program call it by name: builder.emit(Call(GlobalVar(name), args)); to run it pass arrays",
        )
