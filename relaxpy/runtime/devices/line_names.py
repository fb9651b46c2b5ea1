"""The names in the code of linked functions that accesses a device's memory (`relaxpy.runtime.devices.emit`), as data:
they outlive the writer of the code, and are kept with it (`relaxpy.runtime.links`)."""

from __future__ import annotations

from collections.abc import Mapping
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relaxpy.runtime.program import BoundProgram


class LineNames:
    """The names in the code of one slot of a function."""

    __slots__ = ()

    def bound(self, program: BoundProgram) -> Mapping[str, Any]:
        """The names in the code, bound to a program."""
        del program
        return {}

    def position(self, code: CodeType, local: Mapping[str, Any]) -> int:
        """The index of the running launch, from 0, in a frame that a single line called for several launches; -1 for
        any other frame."""
        del code, local
        return -1
