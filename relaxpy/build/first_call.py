"""Modules and functions that are called as they are: `Module.main(x)`, `main(x)`.

They are built for this machine at the first call, and kept as long as the module, or the function, lives. Both are
immutable, so their identity is what a build is found by; two threads that come at once build once.
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
    """The machine of a module, once there is one."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.machine: VirtualMachine | None = None


_lock = Lock()
_kept: WeakKeyDictionary[IRModule | Function, _Kept] = WeakKeyDictionary()


def machine_of(program: IRModule | Function) -> VirtualMachine:
    """The virtual machine that runs a module, or a function alone. Raises: what `relaxpy.build` raises."""
    with _lock:
        kept = _kept.setdefault(program, _Kept())
    with kept.lock:
        if kept.machine is None:
            kept.machine = VirtualMachine(build(program))
        return kept.machine


class ModuleFunction:
    """A function of a module that can be called: `Module.main`."""

    def __init__(self, mod: IRModule, name: str) -> None:
        self._mod = mod
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _refuse_expressions(self._name, args)
        function = self._mod.graph_function(self._name)
        if "global_symbol" not in function.attrs:
            raise UsageError(
                "function-name",
                f"{self._name} is private: only functions of its module call it",
                span=function.span,
                help="leave private=True out",
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
        return f"<{self._mod.name}.{self._name}: built when it is first called>"


def function_of_module(mod: IRModule, name: str) -> ModuleFunction:
    """`Module.main`, to be called."""
    return ModuleFunction(mod, name)


def call_module(mod: IRModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`Module(x)`: its only public function, or `main`."""
    _refuse_expressions(mod.name, args)
    return machine_of(mod)(*args, **kwargs)


def call_function(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`main(x)`: a function that needs no other of its module."""
    name = str(function.attrs.get("global_symbol", "main"))
    _refuse_expressions(name, args)
    others = [other for other in mentioned_functions(function) if other != name]
    if others:
        raise UsageError(
            "build-module",
            f"{name} calls {others[0]}, another function of its module",
            span=function.span,
            help=f"call it of the module, which has both: Module.{name}(…)",
        )
    return machine_of(function)[name](*args, **kwargs)


def _refuse_expressions(name: str, args: tuple[Any, ...]) -> None:
    if any(isinstance(arg, Expr) for arg in args):
        raise UsageError(
            "arguments",
            f"{name} is called with an expression of a program",
            help="a program calls it by its global name: builder.emit(Call(GlobalVar(name), args)); arrays run it",
        )
