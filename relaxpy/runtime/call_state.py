"""The state of a call that registered functions may ask for: its queues and its communicator.

Kernels do not need it: a linked function calls handles that are bound to the call's queues already. A registered
function receives it as its first argument if it was registered with `relaxpy.register_function(name, func,
with_state=True)`. Other functions are called without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from relaxpy.runtime.devices.queue import Queue


@dataclass(frozen=True, eq=False, slots=True)
class CallState:
    """The queues and the communicator of a call."""

    queues: Mapping[str, Queue] = field(default_factory=dict[str, "Queue"])
    """Slot name → queue, for all slots but the host, which has none. `queue.raw` is the queue in the device library's
    own type."""
    communicator: object = None
    """The value given to `VirtualMachine.on`. Only collective functions use it."""


@dataclass(frozen=True, eq=False, slots=True)
class Stateful:
    """A function whose first argument is the state of the calling call."""

    func: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        """Call it outside of any machine."""
        return self.func(CallState(), *args)


def with_state(func: Callable[..., Any], state: CallState) -> Callable[..., Any]:
    """A registered function with the call's state bound, if it takes one."""
    return partial(func.func, state) if isinstance(func, Stateful) else func
