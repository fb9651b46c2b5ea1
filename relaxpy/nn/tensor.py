"""The values of `forward`: expressions of the function under construction, with Python's operators."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import currentframe
from typing import Any, NoReturn, Self

from relaxpy.errors import UsageError
from relaxpy.ir import Annotation, Dim, DType, Expr, TensorType
from relaxpy.nn.apply import apply, index
from relaxpy.nn.construction import caller_span
from relaxpy.op import OPS
from relaxpy.op.familiar import advice
from relaxpy.op.function import instead


class Value:
    """A value usable as a tensor in `forward`: a `Tensor`, or a `Parameter` of the module."""

    __slots__ = ()

    @property
    def __relax_expr__(self) -> Expr:
        """Its expression, as an argument of operators."""
        raise NotImplementedError

    def __add__(self, other: Any) -> Tensor:
        return apply("add", self, other)

    def __radd__(self, other: Any) -> Tensor:
        return apply("add", other, self)

    def __sub__(self, other: Any) -> Tensor:
        return apply("subtract", self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return apply("subtract", other, self)

    def __mul__(self, other: Any) -> Tensor:
        return apply("multiply", self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return apply("multiply", other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return apply("divide", self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return apply("divide", other, self)

    def __floordiv__(self, other: Any) -> Tensor:
        return apply("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return apply("floor_divide", other, self)

    def __mod__(self, other: Any) -> Tensor:
        return apply("floor_mod", self, other)

    def __rmod__(self, other: Any) -> Tensor:
        return apply("floor_mod", other, self)

    def __pow__(self, other: Any) -> Tensor:
        return apply("power", self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return apply("power", other, self)

    def __matmul__(self, other: Any) -> Tensor:
        return apply("matmul", self, other)

    def __and__(self, other: Any) -> Tensor:
        return apply("bitwise_and", self, other)

    def __rand__(self, other: Any) -> Tensor:
        return apply("bitwise_and", other, self)

    def __or__(self, other: Any) -> Tensor:
        return apply("bitwise_or", self, other)

    def __ror__(self, other: Any) -> Tensor:
        return apply("bitwise_or", other, self)

    def __xor__(self, other: Any) -> Tensor:
        return apply("bitwise_xor", self, other)

    def __rxor__(self, other: Any) -> Tensor:
        return apply("bitwise_xor", other, self)

    def __lshift__(self, other: Any) -> Tensor:
        return apply("left_shift", self, other)

    def __rshift__(self, other: Any) -> Tensor:
        return apply("right_shift", self, other)

    def __rlshift__(self, other: Any) -> Tensor:
        return apply("left_shift", other, self)

    def __rrshift__(self, other: Any) -> Tensor:
        return apply("right_shift", other, self)

    def __divmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return self // other, self % other

    def __lt__(self, other: Any) -> Tensor:
        return apply("less", self, other)

    def __le__(self, other: Any) -> Tensor:
        return apply("less_equal", self, other)

    def __gt__(self, other: Any) -> Tensor:
        return apply("greater", self, other)

    def __ge__(self, other: Any) -> Tensor:
        return apply("greater_equal", self, other)

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        if other is None:
            raise _not_python("a tensor of `forward` is compared with None", _NONE)
        return apply("equal", self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        if other is None:
            raise _not_python("a tensor of `forward` is compared with None", _NONE)
        return apply("not_equal", self, other)

    __hash__ = object.__hash__

    def __neg__(self) -> Tensor:
        return apply("negative", self)

    def __pos__(self) -> Self:
        return self

    def __round__(self) -> Tensor:
        return apply("round", self)

    def __floor__(self) -> Tensor:
        return apply("floor", self)

    def __ceil__(self) -> Tensor:
        return apply("ceil", self)

    def __trunc__(self) -> Tensor:
        return apply("trunc", self)

    def __invert__(self) -> Tensor:
        return apply("bitwise_not", self)

    def __abs__(self) -> Tensor:
        return apply("abs", self)

    def __getitem__(self, items: Any) -> Tensor:
        """Indexing as in numpy: integers and dimensions, slices, `None`, `...`, and one tensor of integers."""
        return index(self, items if isinstance(items, tuple) else (items,))

    def __len__(self) -> int:
        """The size of its first axis. UsageError (`tensor-as-python`) if that is symbolic, or there is no axis."""
        size = Dim.of(self.shape[0]).value if self.shape else None
        if size is None:
            raise _not_python(
                "a 0-d tensor has no length"
                if not self.shape
                else f"the length of this tensor is symbolic ({self.shape[0]}), so Python cannot use it during export",
                "`forward` runs once, during export: replace the loop by operators on whole tensors",
            )
        return size

    def __iter__(self) -> Iterator[Tensor]:
        """Its slices along the first axis. UsageError as in `len`."""
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        raise _not_python(
            "a tensor of `forward` has no boolean value during export",
            "`forward` runs once, during export: replace `if` by nn.op.where(condition, a, b); "
            "test for a missing tensor with `x is not None`",
        )

    def __float__(self) -> float:
        raise _not_python(
            "a tensor of `forward` cannot be converted to a Python number during export", _COMPUTE
        )

    __int__ = __index__ = __float__  # type: ignore[assignment]

    def __format__(self, spec: str) -> str:
        if spec:
            raise _not_python("a tensor of `forward` has no numbers to be formatted", _COMPUTE)
        return repr(self)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise _not_python(
            "a tensor of `forward` cannot be converted to an array during export", _COMPUTE
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Tensor:
        """Numpy's functions, and numpy values in Python's operators, if there is an operator with the same meaning."""
        name = _NUMPY_NAMES.get(ufunc.__name__, ufunc.__name__)
        if method != "__call__" or options or name not in OPS:
            known = advice(ufunc.__name__, "nn.op.")
            raise _not_python(
                f"numpy.{ufunc.__name__} does not support tensors of `forward`", known or _COMPUTE
            )
        return apply(name, *inputs)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        """Torch's hook for tensors of other libraries: refuses its functions, with a hint."""
        del types, args, kwargs
        name = str(getattr(func, "__name__", func))
        known = instead(name, "nn.op.")
        if layer := _layer_of_torch():
            name = f"nn.{layer}"
            same = (
                "" if not hasattr(sys.modules["relaxpy.nn"], layer) else f"write nn.{layer}(…), or "
            )
            known = f"{same}import the whole model: relaxpy.from_torch(model, args=(x,))"
        raise UsageError(
            "tensor-as-python",
            f"torch.{name} does not support tensors of relaxpy",
            span=caller_span(beyond="torch"),
            help=known or _COMPUTE,
        )

    def __setitem__(self, items: Any, value: Any) -> NoReturn:
        raise _not_python(
            "a tensor of `forward` cannot be assigned to: values are immutable", _REPLACE
        )

    @property
    def shape(self) -> tuple[Any, ...]:
        """Its dimensions."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by tools, which do not read hints
            raise AttributeError(name)
        known = instead(name, "nn.op.")
        hint = f": {known}" if known else ""
        raise AttributeError(f"a tensor of `forward` has no attribute {name!r}{hint}")


@dataclass(frozen=True, slots=True, eq=False)
class Tensor(Value):
    """A value bound in the function under construction; `annotation` is its deduced annotation."""

    expr: Expr
    annotation: Annotation

    @property
    def __relax_expr__(self) -> Expr:
        return self.expr

    @property
    def shape(self) -> tuple[Dim, ...]:
        """Its dimensions. UsageError if they are not all known."""
        dims = self.annotation.dims if isinstance(self.annotation, TensorType) else None
        if dims is None:
            raise UsageError(
                "unknown-shape",
                f"the shape of a {self.annotation} is unknown",
                help="declare it with nn.op.match_cast",
            )
        return dims

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> DType:
        """Its element type. UsageError if it is not known."""
        dtype = self.annotation.dtype if isinstance(self.annotation, TensorType) else None
        if dtype is None:
            raise UsageError("unknown-dtype", f"the dtype of a {self.annotation} is unknown")
        return dtype


class Values(tuple[Any, ...]):
    """The values of an operator that has several: a tuple, with which nothing is computed by mistake. Python would
    repeat it for `y * 2`."""

    __slots__ = ()

    def __add__(self, other: Any) -> tuple[Any, ...]:  # type: ignore[override]
        return super().__add__(other) if isinstance(other, tuple) else self._refused("+")

    def __radd__(self, other: Any) -> tuple[Any, ...]:
        return (*other, *self) if isinstance(other, tuple) else self._refused("+")

    def __mul__(self, other: Any) -> NoReturn:
        self._refused("*")

    __rmul__ = __mul__

    def _refused(self, what: str) -> NoReturn:
        raise _not_python(
            f"these are {len(self)} values, and {what} is for one", "take one of them: y[0]"
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # asked for by tools
            raise AttributeError(name)
        raise AttributeError(
            f"these are {len(self)} values, and {name} is of one: write y[0].{name}"
        )


_NONE = "write `x is None`, or `x is not None`"
_NUMPY_NAMES = {"remainder": "floor_mod", "absolute": "abs", "invert": "bitwise_not"}
"""numpy's name of an operator → our name, where they differ."""

_COMPUTE = (
    "`forward` runs once, during export, on symbolic tensors: use nn.op and Python's operators"
)


_REPLACE = (
    "use a new one: nn.op.slice_scatter(x, rows, 0, 1, 1, axis=0) for x[0:1] = rows, nn.op.where(c, v, x) for "
    "x[c] = v, nn.op.index_put(x, (i, j), v) for x[i, j] = v; a buffer is updated by nn.update_slice"
)


def _layer_of_torch() -> str | None:
    """The class of torch's layer that is being called, the outermost; None: a function is."""
    frame, found = currentframe(), None
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        package = name.partition(".")[0]
        if found and package not in ("torch", "relaxpy"):
            return found
        if name.startswith("torch.nn.modules.") and "self" in frame.f_locals:
            found = type(frame.f_locals["self"]).__name__
        frame = frame.f_back
    return found


def _not_python(what: str, help: str) -> UsageError:
    return UsageError("tensor-as-python", what, span=caller_span(), help=help)
