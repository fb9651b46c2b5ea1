"""Derivatives of functions that are called: `relaxpy.grad(f)`, for f a decorated function or `Module.main`.

    @R.function
    def loss(w: R.Tensor((4,), "float32"), x: R.Tensor(("n", 4), "float32")) -> R.Tensor((), "float32"):
        return R.mean(R.square(R.matmul(x, w)))

    slope = relaxpy.grad(loss)
    slope(w, x)  # built once, for all n

The result is a function as `f` is: of parameters of its own, compiled at the first call, with a derivative itself. The
pass behind it is `relaxpy.transform.Gradient`.
"""

from __future__ import annotations

from typing import TypeVar

from relaxpy.build.first_call import ModuleFunction
from relaxpy.errors import UsageError
from relaxpy.ir.expr import Function
from relaxpy.ir.module import IRModule
from relaxpy.transform.checkpoint import Checkpoint
from relaxpy.transform.gradient import Gradient, Kind

F = TypeVar("F", Function, ModuleFunction)
Argnums = int | tuple[int, ...] | None


def grad(f: F, argnums: Argnums = 0) -> F:
    """The gradient of a function whose result is a float scalar, with respect to parameter `argnums`; to several, a
    tuple; None: to all that are floats."""
    return _derived(f, "grad", argnums)


def value_and_grad(f: F, argnums: Argnums = 0, *, has_aux: bool = False) -> F:
    """The function of (result, gradient), which share the forward pass. With `has_aux` the result of f is a tuple of
    the scalar and other values."""
    return _derived(f, "value_and_grad", argnums, has_aux)


def vjp(f: F, argnums: Argnums = None, *, has_aux: bool = False) -> F:
    """Reverse mode: the function of (parameters of f, cotangent of its result) with the result (result of f, cotangents
    of parameters): products of vectors with the Jacobian. With `has_aux` the result of f is a tuple of what is
    differentiated, which alone has a cotangent, and other values."""
    return _derived(f, "vjp", argnums, has_aux)


def jvp(f: F, argnums: Argnums = None) -> F:
    """Forward mode: the function of (parameters of f, a tangent for each) with the result (result of f, its tangent):
    products of the Jacobian with vectors."""
    return _derived(f, "jvp", argnums)


def checkpoint(f: F, policy: tuple[str, ...] = ()) -> F:
    """The function f, of which a gradient keeps the arguments, and the results of the operators that `policy` names,
    and recomputes all else: less memory, more time. A function that others
    of its module call is marked by the pass `Checkpoint`, stages inside of a function by `R.grad.start_checkpoint`.

    Raises: PassError for an unknown operator, and for a function without a parameter of floats."""
    name, mod, alone = _source(f, "checkpoint")
    new = Checkpoint(name, policy)(mod)
    return new.graph_functions[name] if alone else ModuleFunction(new, name)  # type: ignore[return-value]


gradient = grad
"""The service behind `R.grad(f)`."""


def _derived(f: F, kind: Kind, argnums: Argnums, has_aux: bool = False) -> F:
    name, mod, alone = _source(f, kind)
    new = Gradient(name, kind, argnums, has_aux)(mod)
    called = next(each for each in new if each not in mod)
    alone = alone and len(new) == 2
    return new.graph_functions[called] if alone else ModuleFunction(new, called)  # type: ignore[return-value]


def _source(f: Function | ModuleFunction, asked: str) -> tuple[str, IRModule, bool]:
    """A function's name and module, and whether it is alone."""
    if isinstance(f, Function):
        name = str(f.attrs.get("global_symbol", "main"))
        return name, IRModule({name: f}), True
    if isinstance(f, ModuleFunction):
        return f.name, f.module, False
    raise UsageError(
        "arguments",
        f"relaxpy.{asked} takes a function, got a {type(f).__name__}",
        help="pass one that is decorated with @R.function, or a module's: Module.main",
    )
