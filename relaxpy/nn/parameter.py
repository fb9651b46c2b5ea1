"""The tensors of a module: weights, and buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.ir import DType, Expr, TensorType
from relaxpy.ir.array import as_array
from relaxpy.nn.construction import Construction, mistake
from relaxpy.nn.tensor import Value


class Parameter(Value):
    """A weight of fixed shape and dtype. `data` is None until it is loaded. The first argument is the shape, or an
    array (of numpy, or a tensor of torch) with its values.

    Raises: UsageError (`bad-spec`) for a dimension that is not a non-negative integer.
    """

    def __init__(self, shape: Sequence[int] | Any, dtype: str | None = None) -> None:
        data = None
        if hasattr(shape, "__array__") and hasattr(shape, "dtype"):
            data = values_of(shape)
            data = data if dtype is None else data.astype(DType(dtype).numpy)
            shape, dtype = data.shape, DType(data.dtype)
        elif isinstance(shape, (int, np.integer)):
            raise mistake(
                "bad-spec",
                f"a shape must be a tuple, got {shape}",
                help=f"write ({shape},) for a vector",
            )
        for dim in shape:
            if isinstance(dim, bool) or not isinstance(dim, (int, np.integer)) or dim < 0:
                raise mistake(
                    "bad-spec",
                    f"{dim!r} in a parameter's shape {tuple(shape)} is not a non-negative integer",
                    help="sizes of parameters must be integers; only those of arguments can be symbolic",
                )
        self._shape = tuple(int(dim) for dim in shape)
        self.dtype = DType(dtype or "float32")
        self._data: np.ndarray | None = data

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""
        return self._shape

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def data(self) -> np.ndarray | None:
        """Its values; None until they are loaded."""
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        """Set the values. UsageError if shape or dtype differ from the parameter's."""
        self._data = self.fitting(value)

    def fitting(self, value: Any) -> np.ndarray:
        """`value` as an array of this shape and dtype. Raises UsageError (`bad-weights`)."""
        array = values_of(value)
        if array.shape == self.shape and array.dtype == self.dtype.numpy:
            return array
        message = f"the parameter is {self.dtype}{list(self.shape)}, the value {array.dtype}{list(array.shape)}"
        help = None
        if array.shape == self.shape:
            help = (
                f'there are no implicit casts: pass value.astype("{self.dtype}"), or declare '
                f'"{array.dtype}" (module.to("{array.dtype}"))'
            )
        elif len(self.shape) > 1 and array.shape == self.shape[::-1]:
            help = (
                "the value is transposed (the weight of a Linear has shape (out, in)): pass value.T"
            )
        raise mistake("bad-weights", message, help=help)

    def to(self, dtype: str) -> Self:
        """Change its dtype, and convert its values. Returns itself."""
        self.dtype = DType(dtype)
        if self._data is not None:
            self._data = self._data.astype(self.dtype.numpy)
        return self

    @property
    def annotation(self) -> TensorType:
        """Its annotation as a value of the program."""
        return TensorType(self.shape, self.dtype)

    @property
    def __relax_expr__(self) -> Expr:
        return Construction.current().parameter(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dtype}{list(self.shape)})"


class Buffer(Parameter):
    """A tensor of a module that is not a weight: statistics, a table, or state that `forward` updates in place
    (`op.call_tir_inplace`). A function that updates a buffer takes it as an argument, which the caller keeps. A buffer
    that is not `persistent` is left out of `state_dict`."""

    def __init__(
        self, shape: Sequence[int] | Any, dtype: str | None = None, persistent: bool = True
    ) -> None:
        super().__init__(shape, dtype)
        self.persistent = persistent


def values_of(value: Any) -> np.ndarray:
    """The values of an array of any package, as a numpy array. UsageError (`bad-weights`) if there are none."""
    place = str(getattr(value, "device", ""))
    if place == "meta" or getattr(value, "is_sparse", False) is True:
        which = "on torch's meta device, which has no values" if place == "meta" else "sparse"
        help = "load the checkpoint to the CPU" if place == "meta" else "pass value.to_dense()"
        raise mistake("bad-weights", f"the tensor is {which}", help)
    try:
        array = as_array(value)
    except Exception as error:  # whatever another package raises
        raise mistake("bad-weights", f"{type(value).__name__} is not an array: {error}") from None
    try:
        DType(array.dtype)
    except (UsageError, TypeError, ValueError):
        raise mistake(
            "bad-weights",
            f"{type(value).__name__} is not an array of numbers: its dtype is {array.dtype}",
            help="pass an array of numpy, or a tensor of torch",
        ) from None
    return array
