"""The check of what a step over a paged cache is told: which tokens belong to which sequence, and its pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.tensor import Tensor


def check_pages(
    tables: Tensor,
    positions: Tensor,
    starts: Tensor,
    lengths: Tensor,
    rows: Tensor,
    pages: int,
    page_size: int,
    windows: Sequence[int],
) -> Tensor:
    """Returns `tables` (groups, sequences, width) if a step can use them. `starts` divides the tokens among the
    sequences; `positions` are those that follow from it and from `lengths`; the pages that a sequence reads are numbers
    below `pages`, and no two tokens are written to one place; `rows` are tokens. `windows` has the sliding window of
    each group, 0 for none.

    Raises: RuntimeCheckError (`index-range`) that names the first element which is wrong, and its place;
    (`shape-mismatch`) for numbers of groups or sequences that differ.
    """
    table, place, start, length, row = (
        x.numpy().astype(np.int64) for x in (tables, positions, starts, lengths, rows)
    )
    found = table.shape[:2], start.shape, length.shape
    batch = length.size
    expected = (len(windows), batch), (batch + 1,), (batch,)
    if found != expected:
        raise RuntimeCheckError(
            "shape-mismatch",
            f"tables of {table.shape[0]} groups and {table.shape[1]} sequences, {start.size} starts and "
            f"{batch} lengths; {len(windows)} groups and a start more than sequences are expected",
        )
    _check_sequences(place, start, length, table.shape[2] * page_size)
    _first((row < 0) | (row >= len(place)), row, "rows", f"tokens, from 0 to {len(place) - 1}")
    new = start[1:] - start[:-1]
    last = -(-length // page_size)
    numbers = np.arange(table.shape[2])
    owner = np.repeat(np.arange(len(length)), new)
    for group, window in enumerate(windows):
        own = table[group]
        first = np.maximum(length - new + 1 - window, 0) // page_size if window else 0 * length
        needed = (numbers >= first[:, None]) & (numbers < last[:, None])
        wrong = needed & ((own < 0) | (own >= pages))
        if wrong.any():
            s, p = np.argwhere(wrong)[0]
            _fail("tables", own[s, p], [group, s, p], f"pages, from 0 to {pages - 1}")
        written = own[owner, place // page_size] * page_size + place % page_size
        order = np.argsort(written, kind="stable")
        in_order = written[order]
        same = in_order[1:] == in_order[:-1]
        if same.any():
            at = int(same.argmax())
            one, other = order[at], order[at + 1]
            raise RuntimeCheckError(
                "index-range",
                f"tokens {one} and {other} would be written to the same place: page "
                f"{written[one] // page_size} of group {group}, slot {written[one] % page_size}",
                help="a page that two sequences share is copied before one of them writes to it",
            )
    return tables


def _check_sequences(place: np.ndarray, start: np.ndarray, length: np.ndarray, room: int) -> None:
    """Check that starts, lengths and positions fit together."""
    expected = "offsets that never decrease, from 0 to the number of tokens"
    if start[0] != 0:
        _fail("starts", start[0], [0], f"{expected}: the first is 0")
    new = start[1:] - start[:-1]
    wrong = start > len(place)
    wrong[1:] |= new < 0
    _first(wrong, start, "starts", f"{expected}, {len(place)}")
    if start[-1] != len(place):
        _fail("starts", start[-1], [len(start) - 1], f"{expected}: the last is {len(place)}")
    _first(length < new, length, "lengths", "at least the new tokens of their sequences")
    _first(length > room, length, "lengths", f"at most {room}, for which tables have room")
    follow = np.repeat(length - start[1:], new) + np.arange(len(place))
    wrong = place != follow
    if wrong.any():
        token = int(wrong.argmax())
        _fail("positions", place[token], [token], f"{follow[token]} here, by starts and lengths")


def _first(wrong: np.ndarray, values: np.ndarray, what: str, expected: str) -> None:
    """Refuse the first value that is wrong."""
    if wrong.any():
        first = int(wrong.argmax())
        _fail(what, values[first], [first], expected)


def _fail(what: str, value: Any, place: Sequence[int], expected: str) -> NoReturn:
    raise RuntimeCheckError(
        "index-range", f"{what} must be {expected}; got {value} at {list(map(int, place))}"
    )
