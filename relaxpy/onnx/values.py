"""Tensors and bindings of inputs and outputs under ONNX Runtime's names, on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.frontend.onnx.element_types import NAMES, NUMBERS
from relaxpy.onnx import errors

if TYPE_CHECKING:
    from relaxpy.onnx.session import InferenceSession

_NAMES = {"float32": "float", "float64": "double"}
"""Dtypes whose name in ONNX Runtime is another."""


def type_name(dtype: Any) -> str:
    """ONNX Runtime's name of a tensor's type."""
    name = str(dtype)
    return f"tensor({_NAMES.get(name, name)})"


def dtype_named(name: str) -> str:
    """The dtype of which this is ONNX Runtime's name."""
    short = name.removeprefix("tensor(").removesuffix(")")
    return next((dtype for dtype, other in _NAMES.items() if other == short), short)


class OrtValue:
    """A tensor."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(array: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """The tensor that is this array; it shares its memory."""
        _check_device(device_type, device_id)
        return OrtValue(np.asarray(array))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """A tensor of any values. The type is numpy's, or ONNX's number of it."""
        _check_device(device_type, device_id)
        return OrtValue(np.empty(list(shape), _numpy_type(element_type)))

    def numpy(self) -> np.ndarray:
        return self._array

    def update_inplace(self, array: Any) -> None:
        """Copy the values of an array of the same shape and dtype."""
        found = np.asarray(array)
        if found.shape != self._array.shape or found.dtype != self._array.dtype:
            raise errors.InvalidArgument(
                "onnx-session",
                f"{type_name(found.dtype)} of the shape {list(found.shape)} does not fit into {self.data_type()} "
                f"of the shape {self.shape()}",
            )
        self._array[...] = found

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def data_type(self) -> str:
        return type_name(self._array.dtype)

    def element_type(self) -> int:
        """ONNX's number of the type."""
        return NUMBERS[str(self._array.dtype)]

    def data_ptr(self) -> int:
        return self._array.ctypes.data

    def tensor_size_in_bytes(self) -> int:
        return self._array.nbytes

    def device_name(self) -> str:
        return "cpu"

    def has_value(self) -> bool:
        return True

    def is_tensor(self) -> bool:
        return True

    def is_sparse_tensor(self) -> bool:
        return False

    def is_tensor_sequence(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        raise errors.Unsupported(f"OrtValue.{name}")


class IOBinding:
    """Inputs and outputs of a call, bound by name."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, np.ndarray] = {}
        self._wanted: dict[str, np.ndarray | None] = {}
        self._outputs: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        if name not in {each.name for each in self._session.get_inputs()}:
            raise errors.InvalidArgument("onnx-session", f"the model has no input {name!r}")
        self._inputs[name] = np.asarray(arr_on_cpu)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:  # fmt: skip
        """Bind memory at an address, which must stay there until the call is done."""
        _check_device(device_type, device_id)
        self.bind_cpu_input(name, _at(buffer_ptr, element_type, shape))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self.bind_cpu_input(name, ortvalue.numpy())

    def bind_output(
        self, name: str, device_type: str = "cpu", device_id: int = 0, element_type: Any = None,
        shape: Sequence[int] | None = None, buffer_ptr: int | None = None,
    ) -> None:  # fmt: skip
        """Bind an output: to memory at an address, if there is one, else to a new tensor at each call."""
        _check_device(device_type, device_id)
        is_placed = buffer_ptr is not None and shape is not None
        self._bind(name, _at(buffer_ptr, element_type, shape) if is_placed else None)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self._bind(name, ortvalue.numpy())

    def _bind(self, name: str, target: np.ndarray | None) -> None:
        if name not in {each.name for each in self._session.get_outputs()}:
            raise errors.InvalidArgument("onnx-session", f"the model has no output {name!r}")
        self._wanted[name] = target

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._wanted.clear()

    def synchronize_inputs(self) -> None:
        """Nothing is on its way."""

    def synchronize_outputs(self) -> None:
        """Nothing is on its way."""

    def run(self, run_options: Any = None) -> None:
        """Run the session with what is bound."""
        if not self._wanted:
            raise errors.Fail("onnx-session", "no output is bound", help="bind_output(name)")
        found = self._session.run(list(self._wanted), self._inputs, run_options)
        self._outputs = []
        for (name, target), array in zip(self._wanted.items(), found, strict=True):
            if target is None:
                self._outputs.append(OrtValue(array))
                continue
            if target.shape != array.shape or target.dtype != array.dtype:
                raise errors.InvalidArgument(
                    "onnx-session",
                    f"the output {name!r} is {type_name(array.dtype)} of the shape {list(array.shape)}, and bound to "
                    f"{type_name(target.dtype)} of the shape {list(target.shape)}",
                )
            target[...] = array
            self._outputs.append(OrtValue(target))

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        return [each.numpy() for each in self._outputs]

    def get_outputs(self) -> list[OrtValue]:
        return list(self._outputs)

    def __getattr__(self, name: str) -> Any:
        raise errors.Unsupported(f"IOBinding.{name}")


def _check_device(device_type: str, device_id: int) -> None:
    if device_type != "cpu" or device_id:
        raise UsageError(
            "onnx-session", f"a tensor on the device {device_type}:{device_id} is not supported"
        )


def _numpy_type(element_type: Any) -> np.dtype[Any]:
    name = NAMES.get(element_type, "") if isinstance(element_type, int) else element_type
    try:
        return np.dtype(name)
    except TypeError:
        raise errors.InvalidArgument(
            "onnx-session", f"{element_type!r} is no type of elements"
        ) from None


def _at(address: int | None, element_type: Any, shape: Any) -> np.ndarray:
    """The memory at an address as an array."""
    dtype = _numpy_type(element_type)
    count = int(np.prod(shape, dtype=np.int64))
    if not count:
        return np.empty(list(shape), dtype)
    buffer: Any = (ctypes.c_char * (count * dtype.itemsize)).from_address(address or 0)
    return np.ndarray(list(shape), dtype, buffer)
