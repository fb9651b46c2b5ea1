"""What a call runs on, for the functions that it calls: its queues, and whom it communicates with.

Kernels need none of it: the handles that lines call are those of the call's queues already. A registered function that
wants it says so when it is registered (`relaxpy.register_function(name, func, with_state=True)`), and gets it as its
first argument. Others are called as ever.
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
    """See the module."""

    queues: Mapping[str, Queue] = field(default_factory=dict[str, "Queue"])
    """The queue of each slot by its name, but for the host, which has none. `queue.raw` is the queue as its device's
    library knows it."""
    communicator: object = None
    """What `VirtualMachine.on` was given: it means something to collective functions alone."""


@dataclass(frozen=True, eq=False, slots=True)
class Stateful:
    """A function whose first argument is the state of the call that it is called by."""

    func: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        """Call it outside of any machine."""
        return self.func(CallState(), *args)


def with_state(func: Callable[..., Any], state: CallState) -> Callable[..., Any]:
    """A registered function as the lines of a call call it."""
    return partial(func.func, state) if isinstance(func, Stateful) else func
