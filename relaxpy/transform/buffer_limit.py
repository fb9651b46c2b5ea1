"""The largest number of buffers that a launch may take, for a module on one device or several."""

from __future__ import annotations

from contextlib import suppress

from relaxpy.errors import BuildError
from relaxpy.ir.module import IRModule
from relaxpy.target import Target


def buffer_limit(mod: IRModule, target: Target | None) -> int | None:
    """Return the smallest buffer limit among the module's devices, or None if none of them has a limit.

    Devices are assigned to programs later (`relaxpy.backend.place_values`), so every program must fit every device
    until then.
    """
    targets = [] if target is None else [target]
    for name in dict.fromkeys(each.target for each in mod.vdevices):
        with suppress(BuildError):  # an unknown target is reported when it is compiled for
            targets.append(Target.parse(name))
    limits = [each.max_buffers_per_launch for each in targets]
    return min((limit for limit in limits if limit is not None), default=None)
