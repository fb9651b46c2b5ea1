"""Checks on in-place updates: a function may update memory that the caller can see, may write to, and passed only once.

A parameter that a function updates (`bytecode.Param.updated`) is checked at the start of the function, for every
caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.devices.tensor import DeviceTensor
from relaxpy.runtime.tensor import Fixed, Shape, Tensor

_Piece = tuple[int, int, int]
"""Start, end, and position of the argument."""


def tensors(value: object) -> Iterator[Tensor]:
    """The tensors in a value, which may be a tuple of tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple) and not isinstance(value, Shape):
        for item in value:
            yield from tensors(item)


def require_updatable(value: object) -> None:
    """Raises: RuntimeCheckError (`read-only`, `update-lost`) if a value contains memory that must not be updated."""
    for tensor in tensors(value):
        if not tensor.size:
            continue
        owner = tensor.owner
        if isinstance(owner, Fixed) and not owner.read_only:
            raise RuntimeCheckError(
                "update-lost",
                f"the value {owner.reason}, but the function updates it in place: the update would be lost",
                help=f"pass {owner.advice}",
            )
        if not tensor.writable:
            raise RuntimeCheckError(
                "read-only",
                "the array is read-only, but the function updates it in place",
                help=f"pass {owner.advice if isinstance(owner, Fixed) else 'a copy that may be written to: x.copy()'}",
            )


def require_apart(
    values: Sequence[object], updated: Sequence[int], name: Callable[[int], str]
) -> None:
    """Checks that no other argument shares memory with those that a function updates. `name` returns a parameter's
    name.

    Raises: RuntimeCheckError (`update-shared`).
    """
    written_to = frozenset(updated)
    pieces: list[_Piece] = []
    elsewhere: dict[int, list[_Piece]] = {}
    """Buffer of a device → pieces of it."""
    for position in written_to:
        _add(values[position], position, pieces, elsewhere)
    # The pieces that are only read are many, as the weights of a model. All but a few are outside of this range.
    low = min((begin for begin, _, _ in pieces), default=0)
    high = max((end for _, end, _ in pieces), default=0)
    for position, value in enumerate(values):
        if position in written_to:
            continue
        if type(value) is Tensor:
            begin = value.pointer
            if begin >= high or (end := begin + value.nbytes) <= low:
                continue
            pieces.append((begin, end, position))
        else:
            _add(value, position, pieces, elsewhere)
    for memory in (pieces, *elsewhere.values()):
        _require_apart(memory, written_to, name)


def _add(
    value: object, position: int, pieces: list[_Piece], elsewhere: dict[int, list[_Piece]]
) -> None:
    """Add the pieces of an argument to those of the host's memory and of buffers."""
    for tensor in (value,) if isinstance(value, Tensor) else tensors(value):
        if isinstance(tensor, DeviceTensor):
            start, memory = tensor.offset, elsewhere.setdefault(id(tensor.buffer), [])
        else:
            start, memory = tensor.pointer, pieces
        memory.append((start, start + tensor.nbytes, position))


def _require_apart(
    pieces: list[_Piece], written_to: frozenset[int], name: Callable[[int], str]
) -> None:
    """Checks the pieces of one memory for overlap."""
    pieces.sort()
    reach = {False: (0, -1), True: (0, -1)}
    """The furthest end of the preceding pieces and its argument: of those that are only read (False), and of those that
    are updated (True)."""
    for begin, end, position in pieces:
        if begin == end:
            continue
        written = position in written_to
        for other_written, (other_end, other) in reach.items():
            if begin < other_end and (written or other_written):
                raise _shared(name, (position, other) if written else (other, position))
        if end > reach[written][0]:
            reach[written] = end, position


def _shared(name: Callable[[int], str], positions: tuple[int, int]) -> RuntimeCheckError:
    first, second = map(name, positions)
    if positions[0] == positions[1]:
        message = f"two tensors in {first} share memory, and the function updates {first} in place"
    else:
        message = f"{first} and {second} share memory, and the function updates {first} in place"
    return RuntimeCheckError("update-shared", message, help="pass a copy of one of them: x.copy()")


def require_own(values: Sequence[Any], updated: Sequence[int], name: Callable[[int], str]) -> None:
    """Checks the arguments of a function that updates the parameters `updated` in place.

    Raises: RuntimeCheckError (`read-only`, `update-lost`, `update-shared`).
    """
    for position in updated:
        try:
            require_updatable(values[position])
        except RuntimeCheckError as error:
            error.message = f"parameter {name(position)}: {error.message}"
            raise
    require_apart(values, updated, name)
