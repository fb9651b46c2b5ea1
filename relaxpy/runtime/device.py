"""The name of a device, on which tensors live and kernels run. Its operations are those of its `DeviceRuntime`
(`relaxpy.runtime.devices.base`)."""

from __future__ import annotations

from dataclasses import dataclass

from relaxpy.errors import UsageError


@dataclass(frozen=True, slots=True)
class Device:
    """A device of this machine: its kind, and its number within that kind."""

    kind: str = "cpu"
    index: int = 0

    def __post_init__(self) -> None:
        if self.index < 0:
            raise UsageError(
                "device",
                f"no device {self.kind}:{self.index}",
                help="devices are counted from 0",
            )
        if self.kind != "cpu":
            from relaxpy.runtime.devices.registry import runtime_class  # of which this is a part

            runtime_class(self.kind)

    @property
    def dlpack(self) -> tuple[int, int]:
        """DLPack's (device type, device id)."""
        if self.kind == "cpu":
            return 1, self.index
        from relaxpy.runtime.devices.registry import runtime_class

        return runtime_class(self.kind).dlpack_type, self.index

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}"

    @classmethod
    def of(cls, given: Device | str | None) -> Device:
        """A device, `"cpu"`, `"cpu:0"`, or None for the CPU.

        Raises: UsageError (`device`) for anything else.
        """
        if given is None:
            return CPU
        if isinstance(given, Device):
            return given
        kind, _, number = str(given).partition(":")
        if number and not number.isdigit():
            raise UsageError("device", f"no device {given}", help="write kind:number, e.g. cpu:0")
        return cls(kind, int(number or 0))


CPU = Device("cpu", 0)


def cpu(index: int = 0) -> Device:
    """The CPU. There is only one."""
    return Device("cpu", index)
