"""The functions of operators: `relaxpy.op.matmul`, `R.nn.relu`, `nn.op.nn.relu`.

Nothing is listed here. A function is made of the operator's class when its name is first asked for. It has the name,
the signature with types and the docstring of the operator, for `help`, `inspect.signature` and editors.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol, TypeAlias

import numpy as np

from relaxpy.errors import did_you_mean, nearest
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Call, Expr
from relaxpy.op.base import OPS, Op
from relaxpy.op.familiar import advice, familiar
from relaxpy.op.memory import Intrinsic
from relaxpy.op.parameters import names_of


class AsExpr(Protocol):
    """A value with an expression of the IR: the tensors and parameters of `relaxpy.nn`."""

    @property
    def __relax_expr__(self) -> Expr: ...


TensorLike: TypeAlias = Expr | AsExpr | np.ndarray
"""A tensor argument: an expression, or a numpy array, which becomes a constant."""
ScalarLike: TypeAlias = Expr | AsExpr | bool | int | float | Dim | SymVar
"""A scalar argument: an expression, a number, or a size such as `n * 2`."""
Operand: TypeAlias = Expr | AsExpr | np.ndarray | bool | int | float | Dim | SymVar
"""A tensor or scalar argument."""
ShapeLike: TypeAlias = Expr | AsExpr | Sequence[int | Dim | SymVar | Expr]
"""A shape argument: an expression, or its dimensions."""
TupleLike: TypeAlias = Expr | AsExpr | Sequence[TensorLike]
"""An argument that is a tuple of tensors."""
ExprLike: TypeAlias = TensorLike | ScalarLike | ShapeLike | TupleLike | str
"""An argument of any kind."""
DTypeLike: TypeAlias = DType | str
"""An element type or its name: `"float32"`."""

AnyOperator: TypeAlias = type[Op] | type[Intrinsic]

_OPERATORS: dict[Callable[..., Any], AnyOperator] = {}
"""Function → operator."""


@cache
def function_of(cls: AnyOperator) -> Callable[..., Call]:
    """The function that makes calls of this operator."""

    def operator(*args: Any, **kwargs: Any) -> Call:
        return cls.make(*args, **kwargs)

    describe_as(operator, cls, "relaxpy.op" if issubclass(cls, Op) else "relaxpy.script.relax")
    _OPERATORS[operator] = cls
    return operator


def operator_of(function: Any) -> AnyOperator | None:
    """The operator behind a function made by `function_of`; None for any other function."""
    return _OPERATORS.get(function) if isinstance(function, types.FunctionType) else None


def describe_as(
    function: Any, cls: AnyOperator, module: str, result: str = "Call", kind: Any = Call
) -> None:
    """Give a function the name, signature and docstring of an operator, in the namespace `module`. `kind` is the type
    of its results, written `result` in the signature."""
    parameters = cls.parameters()
    function.__module__, function.__qualname__ = module, cls.name
    function.__name__ = cls.name.rpartition(".")[2]
    function.__doc__ = inspect.cleandoc(cls.__doc__ or "")
    function.__signature__ = inspect.Signature(parameters, return_annotation=result)
    function.__annotations__ = {p.name: _type_of(p.annotation, cls.__module__) for p in parameters}
    function.__annotations__["return"] = kind
    function.__wrapped__ = cls  # read by `inspect.getsource`


@cache
def _type_of(text: str, module: str) -> Any:
    """The type that a signature writes as `text`; names not defined above come from the operator's file."""
    try:
        return eval(text, globals(), names_of(module))
    except NameError:
        return Any


def names_below(prefix: str, table: Any = OPS) -> list[str]:
    """The names that follow `prefix` in a table of operators, in order: `relu` and others for `nn.`."""
    cut = len(prefix)
    return sorted({name[cut:].split(".")[0] for name in table if name.startswith(prefix)})


class Namespace(types.ModuleType):
    """The functions of the operators whose names begin with a prefix: `relaxpy.op.nn`."""

    def __init__(self, prefix: str) -> None:
        super().__init__(f"relaxpy.op.{prefix}", f"The operators `R.{prefix}.…`, by name.")
        self._prefix = prefix + "."

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return dir(self)
        # `inspect` asks every module for `__file__` and others, and would wait for the nearest name.
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = member(self._prefix + name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return names_below(self._prefix, functions())


def functions() -> list[str]:
    """The names of all operators that have a function in `relaxpy.op`."""
    return [name for name, cls in OPS.items() if issubclass(cls, Op)]


def member(name: str) -> Any:
    """The function or namespace `relaxpy.op.<name>`. Raises AttributeError."""
    cls = OPS.get(name)
    if cls is not None and issubclass(cls, Op):
        return function_of(cls)
    if names_below(f"{name}.", functions()):
        return _namespace(name)
    raise AttributeError(f"relaxpy.op has no {name!r}{unknown(name, 'op.', repr)}")


def unknown(name: str, prefix: str, shown: Callable[[str], str] | None = None) -> str:
    """The end of a message about an operator that does not exist: `: did you mean …?`, or what to write instead of a
    function of numpy or torch. `shown` gives a name's form in the question, if it is not with `prefix`."""
    tail = name.split(".")[-1]
    same = namesake(tail)
    known = None if same else advice(tail, prefix)
    if known:
        return f": {known}"
    near = did_you_mean(same or name, functions(), shown or f"{prefix}{{}}".format)
    return f": {near}" if near else ""


def namesake(name: str) -> str | None:
    """The operator of this name in any namespace: `nn.softmax` for `softmax`."""
    return next((each for each in functions() if name in (each, each.split(".")[-1])), None)


def instead(name: str, prefix: str) -> str | None:
    """What to write for a function, method or attribute that a tensor does not have: the same of numpy or torch in our
    words, or an operator with a similar name. None if there is neither."""
    known = advice(name, prefix)
    if known:
        return known
    same = namesake(name)
    if same:
        return f"see {prefix}{same}, whose arguments may be others"
    near = nearest(name, [*familiar(), *functions()], cutoff=0.8)
    if near:
        return advice(near[0], prefix) or f"did you mean {prefix}{near[0]}?"
    return None


@cache
def _namespace(prefix: str) -> Namespace:
    made = Namespace(prefix)
    return sys.modules.setdefault(made.__name__, made)  # type: ignore[return-value]
