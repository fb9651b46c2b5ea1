"""Memory and VM instructions as operators: what lowered programs print (paper §4.3, §4.7). They
have no tensor program.

A lowered function allocates explicitly, calls tensor programs with their outputs as arguments,
and keeps symbolic values in the slots of an integer heap: `vm.match` writes the sizes of a value
that came in there, `vm.store` what is computed from them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, ClassVar

from relaxpy.errors import DeduceError
from relaxpy.ir.annotation import (
    VOID,
    Annotation,
    CallableType,
    ObjectType,
    PrimType,
    ShapeType,
    TensorType,
)
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import Call, Expr
from relaxpy.ir.op import Operator
from relaxpy.op.base import OPS, as_expr, print_attr
from relaxpy.op.parameters import attributes
from relaxpy.shape.lattice import accepts, rounds, substitute


@dataclass(frozen=True)
class Intrinsic(Operator):
    """Base of instructions: arguments in order, attributes as keywords, a fixed result."""

    arity: ClassVar[tuple[int, int]] = (1, 1)
    """Least and greatest number of arguments (-1: any)."""

    def result(self, args: Sequence[Annotation]) -> Annotation:
        return VOID

    def deduce_call(self, call: Call, annotation_of: Callable[[Expr], Annotation]) -> Annotation:
        low, high = self.arity
        if len(call.args) < low or 0 <= high < len(call.args):
            raise DeduceError(
                "op-arguments",
                f"{self.name}: {low} arguments expected, got {len(call.args)}",
                span=call.span,
            )
        return self.result([annotation_of(arg) for arg in call.args])

    def print_args(self, call: Call, arg: Callable[[Expr], str]) -> list[str]:
        shown = [arg(a) for a in call.args]
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.default is dataclasses.MISSING or value != f.default:
                shown.append(f"{f.name}={print_attr(value)}")
        return shown

    @classmethod
    def parameters(cls) -> list[Parameter]:
        """The parameters of `make`, with types by their names in `relaxpy.op.function`."""
        values = Parameter("args", Parameter.VAR_POSITIONAL, annotation="ExprLike")
        return [values, *attributes(cls, after=[values])]

    @classmethod
    def make(cls, *args: Any, **attrs: Any) -> Call:
        """The call `R.<name>(…)`."""
        frozen = {k: tuple(v) if isinstance(v, list) else v for k, v in attrs.items()}
        known = {f.name for f in dataclasses.fields(cls)}
        for key in frozen:
            if key not in known:
                raise DeduceError("op-arguments", f"{cls.name} has no argument {key!r}")
        return Call(cls(**frozen), tuple(map(as_expr, args)))

    def __call__(self, *args: Any) -> Call:
        return Call(self, tuple(map(as_expr, args)))


def _define(cls: type[Intrinsic]) -> Any:
    made = dataclass(frozen=True)(cls)
    OPS[made.name] = made  # type: ignore[assignment]
    return made


@_define
class AllocStorage(Intrinsic):
    """`memory.alloc_storage(size, vdevice=…)`: `size` bytes that live as long as the call."""

    name = "memory.alloc_storage"
    vdevice: str | None = None

    def result(self, args: Sequence[Annotation]) -> Annotation:
        return ObjectType()


@_define
class AllocTensor(Intrinsic):
    """`memory.alloc_tensor(shape[, storage], dtype=…, offset=…, vdevice=…)`: an uninitialised tensor;
    without a storage it has memory of its own, which may leave the call. In a storage it begins
    `offset` bytes behind its start. `at` is where its shape stands in the heap, once lowered."""

    name = "memory.alloc_tensor"
    arity = (1, 2)
    dtype: str = "float32"
    at: int = -1
    vdevice: str | None = None
    offset: int = 0

    def result(self, args: Sequence[Annotation]) -> Annotation:
        shape = args[0]
        if not isinstance(shape, ShapeType):
            raise DeduceError("op-arguments", f"{self.name}: a shape is expected, got {shape}")
        return TensorType(shape.dims, self.dtype, shape.ndim, self.vdevice)


@_define
class View(Intrinsic):
    """`memory.view(x, shape, dtype=…, offset=…)`: the memory of the compact tensor x, from `offset`
    bytes on, seen with another shape."""

    name = "memory.view"
    arity = (2, 2)
    dtype: str
    at: int = -1
    offset: int = 0

    def result(self, args: Sequence[Annotation]) -> Annotation:
        shape = args[1]
        device = args[0].vdevice if isinstance(args[0], TensorType) else None
        if not isinstance(shape, ShapeType):
            return TensorType(vdevice=device)
        return TensorType(shape.dims, self.dtype, shape.ndim, device)


@_define
class CopyTo(Intrinsic):
    """`memory.copy_to(x, vdevice=…)`: the tensor x in the memory of a virtual device: x itself where it
    lives there, else a copy."""

    name = "memory.copy_to"
    vdevice: str

    def result(self, args: Sequence[Annotation]) -> Annotation:
        x = args[0]
        if not isinstance(x, TensorType):
            return TensorType(vdevice=self.vdevice)
        return TensorType(x.shape, x.dtype, x.ndim, self.vdevice)


@_define
class ReadScalar(Intrinsic):
    """`memory.read(x)`: the item of the 0-d tensor x of any device, as a scalar."""

    name = "memory.read"

    def result(self, args: Sequence[Annotation]) -> Annotation:
        x = args[0]
        if not isinstance(x, TensorType) or x.dtype is None or x.ndim not in (-1, 0):
            raise DeduceError("op-arguments", f"{self.name}: a 0-d tensor is expected, got {x}")
        return PrimType(x.dtype)


@_define
class Kill(Intrinsic):
    """`memory.kill(x, …)`: these values are not used again."""

    name = "memory.kill"
    arity = (1, -1)


@_define
class CallDPS(Intrinsic):
    """`vm.call_dps(f, args…)`: run a tensor program (or a library function, by name) on inputs,
    outputs, and symbolic variables."""

    name = "vm.call_dps"
    arity = (1, -1)


@_define
class MakeClosure(Intrinsic):
    """`vm.make_closure(f, captured…)`: a function value with its last parameters filled in."""

    name = "vm.make_closure"
    arity = (1, -1)

    def result(self, args: Sequence[Annotation]) -> Annotation:
        callee = args[0]
        if not isinstance(callee, CallableType) or callee.params is None:
            return CallableType(pure=False)
        kept = len(callee.params) - (len(args) - 1)
        bound: dict[SymVar, Dim] = {}
        for _ in rounds(bound):
            for param, actual in zip(callee.params[kept:], args[1:], strict=True):
                accepts(param, actual, bound)
        params = [substitute(param, bound) for param in callee.params[:kept]]
        return CallableType(params, substitute(callee.ret, bound), callee.pure)


@_define
class Match(Intrinsic):
    """`vm.match(x, slots=[…], what=…)`: check x against its annotation and write its dimensions
    to heap slots: one entry a dimension, in order; -1 where the dimension is a constant to
    compare with. `of` and `annotation` are what
    errors speak of."""

    name = "vm.match"
    slots: tuple[int, ...] = ()
    what: str = "parameter"
    of: str = ""
    annotation: str = ""


@_define
class Store(Intrinsic):
    """`vm.store(value, slot=…)`: write an integer to the heap."""

    name = "vm.store"
    slot: int = 0


@_define
class CheckEqual(Intrinsic):
    """`vm.check_equal(came, expected, …)`: fail unless two integers are equal. `of` is the
    annotation, `detail` the relation."""

    name = "vm.check_equal"
    arity = (2, 2)
    what: str = "parameter"
    of: str = ""
    annotation: str = ""
    detail: str = ""


@_define
class CheckDim(Intrinsic):
    """`vm.check_dim(condition, message=…)`: fail unless a relation of dimensions that could not
    be decided while compiling holds."""

    name = "vm.check_dim"
    message: str = ""


@_define
class MakeShape(Intrinsic):
    """`vm.make_shape(shape, at=…)`: the shape value that stands in the heap from `at` on."""

    name = "vm.make_shape"
    at: int = -1

    def result(self, args: Sequence[Annotation]) -> Annotation:
        return args[0]
