"""Where tensors live and kernels run. The CPU so far; another device is another `kind` with its own memory."""

from __future__ import annotations

from dataclasses import dataclass

from relaxpy.errors import UsageError

_DLPACK_TYPES = {"cpu": 1}


@dataclass(frozen=True, slots=True)
class Device:
    """A device of this machine: its kind and its number among those of that kind."""

    kind: str = "cpu"
    index: int = 0

    def __post_init__(self) -> None:
        if self.kind not in _DLPACK_TYPES or self.index < 0:
            raise UsageError(
                "device",
                f"no device {self.kind}:{self.index}",
                help="programs of this version run on the CPU: leave the device out, or write cpu",
            )

    @property
    def dlpack(self) -> tuple[int, int]:
        """DLPack's (device type, device id)."""
        return _DLPACK_TYPES[self.kind], self.index

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
    """The CPU. There is one."""
    return Device("cpu", index)
