"""Services: functions that nodes of the IR offer, implemented by packages above the IR: `mod.script()`, `mod.show()`,
`main(x)`, proofs, and parsing a target, which its backend does; and models of speech, which language models do not
know.

The IR does not import these packages. A service is declared here with its type. `relaxpy/__init__.py`, which runs
whatever part of relaxpy is imported, names the module that implements it. That module is loaded when the service is
first used. The function there has the same name and parameters.

This module is a leaf, as `errors` is.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    from os import PathLike

    from relaxpy.ir.annotation import Annotation
    from relaxpy.ir.dim import Dim
    from relaxpy.ir.expr import Function
    from relaxpy.ir.module import IRModule
    from relaxpy.target import Target

_P = ParamSpec("_P")
_R = TypeVar("_R", covariant=True)


class Service(Generic[_P, _R]):
    """A function implemented by a module of a higher layer. Use it to decorate the declaration."""

    def __init__(self, declaration: Callable[_P, _R]) -> None:
        self.name = declaration.__name__
        self.declaration = declaration
        self.__doc__ = declaration.__doc__
        self._provider: Callable[_P, _R] | None = None
        self._module = ""

    def provided_by(self, module: str) -> None:
        """Register `module` as the one that implements it, by a function of this name."""
        self._module, self._provider = module, None

    @property
    def provider(self) -> Callable[_P, _R]:
        """The implementation, loaded at first use."""
        provider = self._provider
        if provider is None:
            provider = getattr(importlib.import_module(self._module), self.name)
            self._provider = provider
        return provider

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return (self._provider or self.provider)(*args, **kwargs)


@Service
def types_of_module(mod: IRModule) -> Any:
    """The data types of a module, for Python."""
    ...


@Service
def print_annotation(annotation: Annotation) -> str:
    """An annotation as TVMScript."""
    ...


@Service
def print_function(func: Function, name: str | None = None, *, abbreviated: bool = False) -> str:
    """A graph-level function as TVMScript."""
    ...


@Service
def print_module(
    mod: IRModule, constants: str | PathLike[str] | None = None, *, abbreviated: bool = False
) -> str:
    """A module as TVMScript."""
    ...


@Service
def show(text: str, language: str = "python", plain: bool = False) -> None:
    """Print script, highlighted if stdout is a terminal."""
    ...


@Service
def html(text: str) -> str:
    """Script as highlighted HTML."""
    ...


@Service
def prove(condition: Dim, bounds: Any = None) -> bool:
    """Is a comparison of dimensions true for all values of its symbols?"""
    ...


@Service
def function_of_module(mod: IRModule, name: str) -> Any:
    """`Module.main` as a callable."""
    ...


@Service
def call_module(mod: IRModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`Module(x)`: compiled at the first call, and run."""
    ...


@Service
def call_function(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`main(x)`: compiled at the first call, and run."""
    ...


@Service
def gradient(f: Any, argnums: Any = 0) -> Any:
    """`R.grad(f)`: the gradient of a function."""
    ...


@Service
def work(func: Any) -> Dim | None:
    """Approximate number of scalar operations of a run of TVM's function; None if unknown."""
    ...


@Service
def flops(func: Any) -> Dim | None:
    """Floating-point operations of a run of TVM's function; None if unknown."""
    ...


@Service
def bytes_moved(func: Any) -> Dim | None:
    """Bytes of its buffers that a run of TVM's function must read or write, each once; None if unknown."""
    ...


@Service
def unset_outputs(func: Any) -> frozenset[int]:
    """Positions of the buffers that TVM's function is not proved to write wholly, and before it reads them."""
    ...


@Service
def read_before_written(func: Any) -> frozenset[int]:
    """Positions of the buffers of which TVM's function certainly reads an element before it writes any."""
    ...


@Service
def read_target(text: str) -> Target:
    """Parse a target, by the backend of its first word."""
    ...


@Service
def load_transcriber(
    place: str | PathLike[str],
    *,
    scheme: Any = None,
    batch: int = 8,
    target: str = "llvm",
    keep: bool = True,
) -> Any:
    """What `relaxpy.llm.load` gives for a model of speech."""
    ...


SERVICES: dict[str, Service[..., Any]] = {
    value.name: value for value in tuple(globals().values()) if isinstance(value, Service)
}
"""All services by name."""
