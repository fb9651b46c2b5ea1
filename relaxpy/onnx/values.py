"""Tensors and bindings of inputs and outputs under ONNX Runtime's names, on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from relaxpy.errors import UsageError

if TYPE_CHECKING:
    from relaxpy.onnx.session import InferenceSession


class OrtValue:
    """A tensor."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(array: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:  # noqa: ARG004  # ONNX Runtime's
        if device_type != "cpu":
            raise UsageError(
                "onnx-session", f"a tensor on the device {device_type!r} is not supported"
            )
        return OrtValue(np.asarray(array))

    def numpy(self) -> np.ndarray:
        return self._array

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def device_name(self) -> str:
        return "cpu"

    def is_tensor(self) -> bool:
        return True


class IOBinding:
    """Inputs and outputs of a call, bound by name."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._wanted: dict[str, Any] = {}
        self._outputs: list[np.ndarray] = []

    def bind_cpu_input(self, name: str, array: Any) -> None:
        self._inputs[name] = np.asarray(array)

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        self._inputs[name] = value.numpy()

    def bind_output(self, name: str, device_type: str = "cpu", device_id: int = 0) -> None:
        if device_type != "cpu":
            raise UsageError(
                "onnx-session", f"an output on the device {device_type!r} is not supported"
            )
        self._wanted[name] = None

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        self._wanted[name] = value.numpy()

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._wanted.clear()

    def run(self) -> None:
        """Run the session with what is bound."""
        self._outputs = self._session.run(list(self._wanted) or None, self._inputs)
        for target, found in zip(self._wanted.values(), self._outputs, strict=False):
            if target is not None:
                target[...] = found

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        return self._outputs

    def get_outputs(self) -> list[OrtValue]:
        return [OrtValue(each) for each in self._outputs]
