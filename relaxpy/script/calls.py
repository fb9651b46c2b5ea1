"""Cross-level calls in the script: tensor programs, library functions, functions known by name, function values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from relaxpy.errors import ScriptError
from relaxpy.ir.expr import Call, ExternFunc, GlobalVar, PrimValue, StringImm, Tuple
from relaxpy.op import call
from relaxpy.op.base import as_expr
from relaxpy.script.annotations import DimReader, as_annotation, as_dim
from relaxpy.script.describe import describe
from relaxpy.script.dialects.lowered import FUNCTIONS
from relaxpy.script.dialects.older_words import KEYWORDS


def _older_keywords(make: Callable[..., Call]) -> Callable[..., Call]:
    """Wrap `make` to accept older keyword names: `out_sinfo` for `out_ty`."""

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Call:
        older = [key for key in KEYWORDS if key in kwargs and KEYWORDS[key] not in kwargs]
        return make(
            *args,
            **{KEYWORDS[key] if key in older else key: value for key, value in kwargs.items()},
        )

    return made


@_older_keywords
def call_tir(
    func: Any,
    args: Any,
    out_ty: Any = None,
    tir_vars: Any = None,
) -> Call:
    """Call a tensor program: `R.call_tir(cls.f, (x,), out_ty=R.Tensor((n, 4), "float32"))`."""
    gvar = _tensor_program("call_tir", func)
    return call.call_tir(gvar, args, _outputs("call_tir", out_ty), tir_vars)


@_older_keywords
def call_tir_inplace(
    func: Any,
    args: Any,
    inplace_indices: Any = None,
    out_ty: Any = None,
    tir_vars: Any = None,
) -> Call:
    """Call a tensor program that writes into its arguments: `R.call_tir_inplace(cls.f, (x, y), inplace_indices=[0],
    out_ty=R.Tensor((n,), "float32"))`. See `relaxpy.op.call.CallTIRInplace`."""
    gvar = _tensor_program("call_tir_inplace", func)
    given = _outputs("call_tir_inplace", out_ty)
    return call.call_tir_inplace(
        gvar, args, _indices("call_tir_inplace", inplace_indices), given, tir_vars
    )


@_older_keywords
def call_tir_with_grad(
    func: Any,
    args: Any,
    out_ty: Any = None,
    te_grad_name: Any = "",
    te_grad_kwargs: Mapping[str, Any] | None = None,
    tir_vars: Any = None,
) -> Call:
    """`R.call_tir` with the name of the function that makes its gradient."""
    gvar = _tensor_program("call_tir_with_grad", func)
    given = _outputs("call_tir_with_grad", out_ty)
    name = te_grad_name.value if isinstance(te_grad_name, StringImm) else str(te_grad_name)
    kwargs: dict[str, Any] = {}
    for key, value in (te_grad_kwargs or {}).items():
        if isinstance(value, (StringImm, PrimValue)):
            value = value.value
        if not isinstance(value, (bool, int, float, str)):
            raise ScriptError(
                "bad-value",
                f"{key} in te_grad_kwargs must be a number or a string, not {describe(value)}",
            )
        kwargs[key] = value
    return call.call_tir_with_grad(gvar, args, given, name, kwargs, tir_vars)


@_older_keywords
def call_dps_library(func: Any, args: Any, out_ty: Any = None) -> Call:
    """Call a library function that writes its outputs: `R.call_dps_library("lib.f", (x,), out_ty=R.Tensor(…))`."""
    name = _function_name("call_dps_library", func)
    return call.call_dps_library(name, args, _outputs("call_dps_library", out_ty))


@_older_keywords
def call_packed(func: Any, *args: Any, ty_args: Any = ()) -> Call:
    """Call a registered function by name; it may have side effects."""
    name = _function_name("call_packed", func)
    if name in FUNCTIONS:
        return FUNCTIONS[name](*args)
    return call.call_packed(name, *args, ty_args=_annotations(ty_args))


@_older_keywords
def call_pure_packed(func: Any, *args: Any, ty_args: Any = ()) -> Call:
    """Call a registered function without side effects by name."""
    name = _function_name("call_pure_packed", func)
    if name in FUNCTIONS:
        return FUNCTIONS[name](*args)
    return call.call_pure_packed(name, *args, ty_args=_annotations(ty_args))


@_older_keywords
def call_inplace_packed(
    func: Any, *args: Any, inplace_indices: Any = None, ty_args: Any = ()
) -> Call:
    """Call a registered function by name that changes some of its arguments in place and returns them."""
    return call.call_inplace_packed(
        _function_name("call_inplace_packed", func),
        *args,
        inplace_indices=_indices("call_inplace_packed", inplace_indices),
        ty_args=_annotations(ty_args),
    )


def call_builtin_with_ctx(func: Any, args: Any = (), *, ty_args: Any = ()) -> Call:
    """Call a builtin of the virtual machine, as printed in TVM's lowered programs."""
    name = _function_name("call_builtin_with_ctx", func)
    if name == "vm.builtin.invoke_closure":
        func, *values = args.fields if isinstance(args, Tuple) else args
        return call.invoke_closure(as_expr(func), tuple(values), _annotations(ty_args))
    return call.call_builtin(name, args, _annotations(ty_args))


def invoke_closure(func: Any, args: Any = (), ty_args: Any = ()) -> Call:
    """Call a function value, which may have side effects; `ty_args` is the annotation of the result."""
    return call.invoke_closure(as_expr(func), args, _annotations(ty_args))


def invoke_pure_closure(func: Any, args: Any = (), ty_args: Any = ()) -> Call:
    """Call a function value without side effects; `ty_args` is the annotation of the result."""
    return call.invoke_closure(as_expr(func), args, _annotations(ty_args), pure=True)


def _tensor_program(word: str, func: Any) -> GlobalVar:
    if isinstance(func, GlobalVar):
        return func
    raise ScriptError(
        "bad-value",
        f"R.{word} calls a tensor program of the module, not {_name(func)}",
        help="write cls.f, where f is a @T.prim_func of the same class",
    ).about("func")


def _indices(word: str, given: Any) -> list[int]:
    values = given if isinstance(given, (tuple, list)) else [given]
    dims = [as_dim(value) for value in values]
    found = [dim.value for dim in dims if dim is not None and dim.value is not None]
    if len(found) != len(values):
        raise ScriptError(
            "bad-value",
            f"R.{word} needs inplace_indices, a list of integers",
            help="write inplace_indices=[0] to put output 0 into the memory of argument 0",
        ).about("inplace_indices")
    return found


def _function_name(word: str, func: Any) -> str:
    if isinstance(func, ExternFunc):
        return func.name
    if isinstance(func, StringImm):
        return func.value
    if isinstance(func, str):
        return str(func)
    raise ScriptError(
        "bad-value",
        f"R.{word} takes the name of a function, not {_name(func)}",
        help=f'write R.{word}("library.f", …)',
    ).about("func")


def _name(value: Any) -> str:
    return str(getattr(value, "name", None) or describe(value))


def _outputs(word: str, out_ty: Any) -> Any:
    if out_ty is None:
        raise ScriptError(
            "bad-value",
            f"R.{word} needs out_ty, the annotation of its output",
            help='write out_ty=R.Tensor((n, 4), dtype="float32")',
        )
    return _annotations(out_ty, "out_ty")


def _annotations(given: Any, arg: str = "ty_args") -> Any:
    reader = DimReader()
    try:
        if isinstance(given, (list, tuple)):
            return [as_annotation(item, reader) for item in given]
        return as_annotation(given, reader)
    except ScriptError as error:
        raise error.about(arg) from None
