"""How many buffers a launch may take, in a module of one device or several."""

from __future__ import annotations

from contextlib import suppress

from relaxpy.errors import BuildError
from relaxpy.ir.module import IRModule, VDevice
from relaxpy.target import Target

_VDEVICES = "vdevice"
"""The module's global information that lists its virtual devices."""


def buffer_limit(mod: IRModule, target: Target | None) -> int | None:
    """The fewest buffers that a launch on one of the module's devices may take; None where none of them has a limit.

    Which program runs where is known later (`relaxpy.backend.place_values`): until then all are made to fit anywhere.
    """
    targets = [] if target is None else [target]
    names = (v.target for v in mod.global_infos.get(_VDEVICES, ()) if isinstance(v, VDevice))
    for name in dict.fromkeys(names):
        with suppress(BuildError):  # of a target that nobody compiles for, which is told when it is
            targets.append(Target.parse(name))
    limits = [each.max_buffers_per_launch for each in targets]
    return min((limit for limit in limits if limit is not None), default=None)
