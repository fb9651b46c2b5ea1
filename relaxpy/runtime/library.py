"""Functions that programs call by name: library functions in destination-passing style, and functions that return a
value.

A library function takes tensors and writes its outputs, which are its last arguments (`call_dps_library`). A registered
function returns its result (`call_packed`). Both are Python functions on `relaxpy.runtime.Tensor`s, or
`tvm_ffi.Function`s. Names are resolved when a virtual machine is created. An unregistered name is also looked up among
`tvm_ffi`'s global functions, except for TVM's own internals.

A library function must not keep references to its tensors: the next instruction may reuse their memory.

A function that needs the queues or the communicator of its call is registered with `with_state`
(`relaxpy.runtime.call_state`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from relaxpy.errors import ExecutableError, UsageError, did_you_mean
from relaxpy.runtime import blas, builtins, shape_heap
from relaxpy.runtime.call_state import Stateful
from relaxpy.runtime.ffi import ffi, is_ffi_function
from relaxpy.runtime.frame import record_of
from relaxpy.runtime.library_call import LibraryFunction
from relaxpy.runtime.tensor import Shape, Tensor

AnyFunction = Callable[..., Any]
F = TypeVar("F", bound=AnyFunction)

EXTRAS: dict[str, str] = {
    "blas.": "blas",
    "cublas": "cublas",
    "cudnn": "cudnn",
    "cutlass": "cuda",
    "torch.": "torch",
    "jax.": "jax",
}
"""Prefix of a library function's name → the extra of relaxpy that provides it."""

PROVIDERS: dict[str, Callable[[], Mapping[str, AnyFunction]]] = {"blas.": blas.functions}
"""Prefix of a library function's name → a function that returns all library functions with this prefix. It is called on
first use, and returns none if its dependencies are not installed."""

_NOT_FOR_PROGRAMS = frozenset(
    "codegen device_api ffi instrument ir node prim relax relaxpy rpc runtime s_tir schedule script sym target te"
    " tirx topi transform tvm_ffi_orcjit".split()
)
"""Prefixes of the names of TVM's internal functions, some of which load and write files."""

_libraries: dict[str, AnyFunction] = {}
_functions: dict[str, AnyFunction] = {**builtins.FUNCTIONS, **shape_heap.FUNCTIONS}
_python: set[str] = set()
"""Names of library functions that somebody registered and that take no state."""
_anywhere: set[str] = set(builtins.ANYWHERE)


@overload
def register_library(
    name: str, func: F, *, extra: str | None = None, with_state: bool = False
) -> F: ...
@overload
def register_library(
    name: str, func: None = None, *, extra: str | None = None, with_state: bool = False
) -> Callable[[F], F]: ...
def register_library(
    name: str, func: Any = None, *, extra: str | None = None, with_state: bool = False
) -> Any:
    """Registers `func(*inputs, *outputs)` as the library function `name`. Another function of that name is replaced,
    with a warning. Without `func` it is a decorator.

    `extra` is the extra of relaxpy that provides functions of this name, for the message if it is missing. With
    `with_state`, `func` is a Python function whose first argument is the state of the call
    (`relaxpy.runtime.CallState`).

    Raises: UsageError (`library-name`) for a name or function of the wrong kind.
    """
    _check_name(name)
    if extra is not None:
        EXTRAS[name] = extra
    _python.discard(name) if with_state else _python.add(name)
    return _register(_libraries, name, func, with_state)


@overload
def register_function(
    name: str, func: F, *, anywhere: bool = False, with_state: bool = False
) -> F: ...
@overload
def register_function(
    name: str, func: None = None, *, anywhere: bool = False, with_state: bool = False
) -> Callable[[F], F]: ...
def register_function(
    name: str, func: Any = None, *, anywhere: bool = False, with_state: bool = False
) -> Any:
    """Registers `func(*args) -> value` as the function `name` of `call_packed`. Without `func` it is a decorator.

    Its tensor arguments are copied to the host first. With `anywhere` it takes tensors of any device and returns
    tensors on the same device; this is read when a module is built. With `with_state`, it is a Python function whose
    first argument is the state of the call (`relaxpy.runtime.CallState`).

    Raises: UsageError (`library-name`) for a name or function of the wrong kind.
    """
    _check_name(name)
    if anywhere:
        _anywhere.add(name)
    else:
        _anywhere.discard(name)
    return _register(_functions, name, func, with_state)


def runs_anywhere(name: str) -> bool:
    """Whether the function `name` accepts tensors of any device and returns tensors on the same device."""
    return name in _anywhere


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name:
        raise UsageError("library-name", f"the name of a function must be a string, got {name!r}")


def _register(table: dict[str, AnyFunction], name: str, func: Any, with_state: bool) -> Any:
    if func is None:
        return lambda given: _register(table, name, given, with_state)
    if not callable(func):
        raise UsageError("library-name", f"{name!r} must be a function, got {func!r}")
    if with_state and is_ffi_function(func):
        raise UsageError(
            "library-name",
            f"{name!r} is not a Python function, so it cannot take the state of a call",
            help="call it from one: lambda state, *args: func(state.queues[slot].raw, *args)",
        )
    if (before := table.get(name)) is not None:
        _warn_of_another(name, before.func if isinstance(before, Stateful) else before, func)
    table[name] = Stateful(func) if with_state else func
    return func


def _warn_of_another(name: str, before: AnyFunction, after: AnyFunction) -> None:
    """Warns if another function takes a name: not if the same definition ran again, as cells of notebooks do."""
    old, new = (getattr(each, "__code__", None) for each in (before, after))
    if old is None or new is None or old.co_qualname == new.co_qualname:
        return
    at = f"{old.co_filename}:{old.co_firstlineno}"
    warnings.warn(
        f"the function {name!r} was {old.co_qualname} ({at}), and is {new.co_qualname} from now on",
        stacklevel=4,
    )


def find_library(name: str) -> AnyFunction:
    """The library function `name`, ready to be called with tensors and scalars.

    Raises: ExecutableError (`library-missing`), with the extra that brings it where that is known.
    """
    for prefix, functions in PROVIDERS.items():
        if name.startswith(prefix) and name not in _libraries:
            _libraries.update({**functions(), **_libraries})
    func = _find(_libraries, name, "library function", "relaxpy.register_library")
    if is_ffi_function(func):
        return _with_records(func)
    return LibraryFunction(name, func) if name in _python and func is _libraries[name] else func


def find_function(name: str) -> AnyFunction:
    """The function `name` of `call_packed`. Raises the same errors as `find_library`."""
    func = _find(_functions, name, "function", "relaxpy.register_function")
    return _with_tensors(func) if is_ffi_function(func) else func


def _find(table: dict[str, AnyFunction], name: str, what: str, register: str) -> AnyFunction:
    func = table.get(name)
    if func is None and name.partition(".")[0] not in _NOT_FOR_PROGRAMS:
        func = _global_function(name)
    if func is None:
        help = _help(table, name, register)
        raise ExecutableError(
            "library-missing", f"the {what} {name!r} is not registered", help=help
        )
    return func


def _global_function(name: str) -> AnyFunction | None:
    """The global function of `tvm_ffi`; None where a device's runtime is installed without that package."""
    try:
        tvm_ffi = ffi()
    except ImportError:
        return None
    found: AnyFunction | None = tvm_ffi.get_global_func(name, allow_missing=True)
    return found


def _help(table: dict[str, AnyFunction], name: str, register: str) -> str:
    for prefix, extra in EXTRAS.items():
        if name.startswith(prefix):
            return f'it belongs to an extra: pip install "relaxpy[{extra}]"'
    hint = did_you_mean(name, table)
    register = f"{register}({name!r}, func), or relaxpy run --import the module that does"
    return f"register it first: {register}{f'; {hint}' if hint else ''}"


def _with_records(func: AnyFunction) -> AnyFunction:
    """Wraps a library function of `tvm_ffi`: its tensors are passed as records, without a copy and without
    ownership."""

    def call(*args: Any) -> Any:
        return func(*(record_of(arg) if isinstance(arg, Tensor) else arg for arg in args))

    return call


def _with_tensors(func: AnyFunction) -> AnyFunction:
    """Wraps a function of `tvm_ffi` that may return its arguments: its tensors share memory and keep it alive."""
    tvm_ffi = ffi()

    def give(value: Any) -> Any:
        if isinstance(value, Tensor):
            return tvm_ffi.from_dlpack(value)
        return tvm_ffi.Shape(value) if isinstance(value, Shape) else value

    def take(value: Any) -> Any:
        if isinstance(value, tvm_ffi.Shape):
            return Shape(value)
        if isinstance(value, tvm_ffi.Array):
            return tuple(take(item) for item in value)
        return value

    return lambda *args: take(func(*map(give, args)))
