"""Launches on devices that do not accept the same buffer twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.devices.base import Launcher
from relaxpy.runtime.devices.tensor import DeviceTensor
from relaxpy.runtime.terms import KernelInfo

if TYPE_CHECKING:
    from relaxpy.runtime.devices.queue import Queue
    from relaxpy.runtime.graphs import Recording


def apart(launcher: Launcher, info: KernelInfo, queue: Queue | Recording) -> Launcher:
    """Wraps `launcher` for a device that accepts a buffer only once per launch. If several arguments are in one buffer,
    all but one are copied first. The one that the kernel writes to is not copied. A device with `shares_reads` gets no
    copies of a buffer that is only read."""
    written = {i for i, param in enumerate(info.params or ()) if param.written}

    def launch(numbers: tuple[int, ...], sizes: tuple[int, ...], *args: Any) -> None:
        buffers = [id(arg.buffer) for arg in args if arg.__class__ is DeviceTensor]
        if len({*buffers}) == len(buffers):
            launcher(numbers, sizes, *args)
            return
        places: dict[int, list[int]] = {}
        for position, arg in enumerate(args):
            if arg.__class__ is DeviceTensor:
                places.setdefault(id(arg.buffer), []).append(position)
        given = list(args)
        for positions in places.values():
            if len(positions) > 1:
                outputs = [position for position in positions if position in written]
                if not outputs and queue.runtime.shares_reads:
                    continue
                if len(outputs) > 1 or info.params is None:
                    raise RuntimeCheckError(
                        "kernel-failed",
                        f"{queue.device} cannot pass a buffer twice, but {info.name} writes to one as arguments "
                        f"{' and '.join(map(str, outputs or positions))}",
                    )
                kept = outputs[0] if outputs else positions[0]
                for position in positions:
                    if position != kept:
                        given[position] = queue.copy(args[position])
        launcher(numbers, sizes, *given)

    return launch
