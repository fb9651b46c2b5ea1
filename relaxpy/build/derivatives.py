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


def vjp(f: F, argnums: Argnums = None) -> F:
    """Reverse mode: the function of (parameters of f, cotangent of its result) with the result (result of f, cotangents
    of parameters): products of vectors with the Jacobian."""
    return _derived(f, "vjp", argnums)


def jvp(f: F, argnums: Argnums = None) -> F:
    """Forward mode: the function of (parameters of f, a tangent for each) with the result (result of f, its tangent):
    products of the Jacobian with vectors."""
    return _derived(f, "jvp", argnums)


gradient = grad
"""The service behind `R.grad(f)`."""


def _derived(f: F, kind: Kind, argnums: Argnums, has_aux: bool = False) -> F:
    if isinstance(f, Function):
        name = str(f.attrs.get("global_symbol", "main"))
        mod = IRModule({name: f})
    elif isinstance(f, ModuleFunction):
        name, mod = f.name, f.module
    else:
        raise UsageError(
            "arguments",
            f"relaxpy.{kind} takes a function, got a {type(f).__name__}",
            help="pass one that is decorated with @R.function, or a module's: Module.main",
        )
    new = Gradient(name, kind, argnums, has_aux)(mod)
    called = next(each for each in new if each not in mod)
    alone = isinstance(f, Function) and len(new) == 2
    return new.graph_functions[called] if alone else ModuleFunction(new, called)  # type: ignore[return-value]
