"""Memory and VM instructions as operators: the vocabulary of lowered programs (paper §4.3, §4.7). They have no tensor
program.

A lowered function allocates memory explicitly and calls tensor programs with their outputs as arguments. It keeps
symbolic values in the slots of an integer heap: `vm.match` writes the dimensions of an argument there, `vm.store`
writes values computed from them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, ClassVar, TypeVar, dataclass_transform

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
    """Base of instructions: positional arguments, keyword attributes, and a fixed result."""

    arity: ClassVar[tuple[int, int]] = (1, 1)
    """Minimum and maximum number of arguments (-1: no maximum)."""

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
        """The parameters of `make`; their types are names from `relaxpy.op.function`."""
        values = Parameter("args", Parameter.VAR_POSITIONAL, annotation="ExprLike")
        return [values, *attributes(cls, after=[values])]

    @classmethod
    def make(cls, *args: Any, **attrs: Any) -> Call:
        """Make the call `R.<name>(…)`."""
        frozen = {k: tuple(v) if isinstance(v, list) else v for k, v in attrs.items()}
        known = {f.name for f in dataclasses.fields(cls)}
        for key in frozen:
            if key not in known:
                raise DeduceError("op-arguments", f"{cls.name} has no argument {key!r}")
        return Call(cls(**frozen), tuple(map(as_expr, args)))

    def __call__(self, *args: Any) -> Call:
        return Call(self, tuple(map(as_expr, args)))


_I = TypeVar("_I", bound=Intrinsic)


@dataclass_transform(frozen_default=True)
def _define(cls: type[_I]) -> type[_I]:
    made = dataclass(frozen=True)(cls)
    OPS[made.name] = made  # type: ignore[assignment]
    return made


@_define
class AllocStorage(Intrinsic):
    """`memory.alloc_storage(size, vdevice=…)`: `size` bytes that are freed when the call ends."""

    name = "memory.alloc_storage"
    vdevice: str | None = None

    def result(self, args: Sequence[Annotation]) -> Annotation:
        return ObjectType()


@_define
class AllocTensor(Intrinsic):
    """`memory.alloc_tensor(shape[, storage], dtype=…, offset=…, vdevice=…)`: an uninitialised tensor, `offset` bytes
    into the storage. Without a storage it has memory of its own, and may be returned. `at` is the heap slot of its
    shape, once lowered."""

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
    """`memory.view(x, shape, dtype=…, offset=…)`: a view of the compact tensor x with another shape, starting at byte
    `offset`."""

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
    """`memory.copy_to(x, vdevice=…)`: the tensor x in the memory of a virtual device; x itself if it is already there,
    else a copy."""

    name = "memory.copy_to"
    vdevice: str

    def result(self, args: Sequence[Annotation]) -> Annotation:
        x = args[0]
        if not isinstance(x, TensorType):
            return TensorType(vdevice=self.vdevice)
        return TensorType(x.shape, x.dtype, x.ndim, self.vdevice)


@_define
class ReadScalar(Intrinsic):
    """`memory.read(x)`: the element of the 0-d tensor x, on any device, as a scalar."""

    name = "memory.read"

    def result(self, args: Sequence[Annotation]) -> Annotation:
        x = args[0]
        if not isinstance(x, TensorType) or x.dtype is None or x.ndim not in (-1, 0):
            raise DeduceError("op-arguments", f"{self.name}: a 0-d tensor is expected, got {x}")
        return PrimType(x.dtype)


@_define
class Kill(Intrinsic):
    """`memory.kill(x, …)`: end the lifetime of these values."""

    name = "memory.kill"
    arity = (1, -1)


@_define
class CallDPS(Intrinsic):
    """`vm.call_dps(f, args…)`: run a tensor program, or a library function given by name, on inputs, outputs, and
    symbolic variables."""

    name = "vm.call_dps"
    arity = (1, -1)


@_define
class BeginGraph(Intrinsic):
    """`vm.begin_graph()`: the bindings up to the next `vm.end_graph` launch tensor programs of one device on static
    memory. They may be recorded and replayed as a graph. What they bind is not used after them."""

    name = "vm.begin_graph"
    arity = (0, 0)


@_define
class EndGraph(Intrinsic):
    """`vm.end_graph()`: the end of a graph."""

    name = "vm.end_graph"
    arity = (0, 0)


@_define
class MakeClosure(Intrinsic):
    """`vm.make_closure(f, captured…)`: a function value whose last parameters are bound to these values."""

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
    """`vm.match(x, slots=[…], what=…)`: check x against its annotation and write its dimensions to heap slots. `slots`
    has an entry for each dimension, in order; -1 is a constant to compare with. `of` and `annotation` are used in error
    messages."""

    name = "vm.match"
    slots: tuple[int, ...] = ()
    what: str = "parameter"
    of: str = ""
    annotation: str = ""


@_define
class Store(Intrinsic):
    """`vm.store(value, slot=…)`: write an integer to a heap slot."""

    name = "vm.store"
    slot: int = 0


@_define
class CheckEqual(Intrinsic):
    """`vm.check_equal(came, expected, …)`: raise an error unless two integers are equal. `of` is the annotation,
    `detail` the relation."""

    name = "vm.check_equal"
    arity = (2, 2)
    what: str = "parameter"
    of: str = ""
    annotation: str = ""
    detail: str = ""


@_define
class CheckDim(Intrinsic):
    """`vm.check_dim(condition, message=…)`: raise an error unless a relation of dimensions, which could not be decided
    at compile time, holds."""

    name = "vm.check_dim"
    message: str = ""


@_define
class MakeShape(Intrinsic):
    """`vm.make_shape(shape, at=…)`: the shape value whose dimensions are in the heap slots from `at` on."""

    name = "vm.make_shape"
    at: int = -1

    def result(self, args: Sequence[Annotation]) -> Annotation:
        return args[0]
