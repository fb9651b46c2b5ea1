"""Pictures in prompts: what a tower reads, which tokens of a prompt stand for it, and what towers have made so far.

    picture = Picture((pixels,), tokens=576)
    request = Request(0, prompt, max_tokens=100, pictures=(Placed(5, picture),))

A picture's tokens all have the number of a placeholder. What stands for them in a step are the rows that a tower makes
of the picture, so keys and values depend on its content: caches know these tokens by the picture's digest and their
place in it (`relaxpy.serve.pages.Content`). Rows are needed until the keys and values are written; a bounded store
keeps them longer, by content, for the next question about a picture. The salt of a request is part of what they are
found by, as with prefixes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.serve.pages import Content

STORED = 64 << 20
"""The most bytes of rows that are kept."""


@dataclass(frozen=True)
class PictureShape:
    """What a model's tower makes of pictures."""

    hidden: int
    """Numbers of a row."""
    token: int
    """The token that stands for a picture's places in prompts."""
    tokens: int = 0
    """The tokens of a picture; 0: it depends on the picture."""
    size: tuple[int, int] | None = None
    """Height and width of what the tower reads; None: it depends on the picture."""
    axes: int = 0
    """Rotary positions of a token; 0: its place is the one that it has."""
    window: int = 0
    """Tokens of the side of a window whose patches the tower reads together; 0: there are none."""
    spans: bool = False
    """Whether a picture's tokens attend to each other, also to later ones: they are computed in one step."""
    around: tuple[int, int] | None = None
    """The tokens before and after those of a picture, of which the first is what prompts have in its place; None: they
    have `token` there."""

    @property
    def placeholder(self) -> int:
        """The token that prompts have in the place of a picture."""
        return self.token if self.around is None else self.around[0]


def picture_shape_of(fields: Mapping[str, Any] | None) -> PictureShape | None:
    """From its fields, which went through JSON."""
    if fields is None:
        return None
    own = dict(fields)
    for name in ("size", "around"):
        own[name] = None if own[name] is None else tuple(own[name])
    return PictureShape(**own)


class Picture:
    """What a tower reads of a picture: the inputs of `encode_picture`, as the checkpoint's processor makes them. Equal
    ones are one, by a digest of them, on which the rows depend and on nothing else of the picture. The arrays are not
    to be changed afterwards."""

    def __init__(
        self, inputs: Sequence[np.ndarray], tokens: int, grid: tuple[int, int] | None = None
    ) -> None:
        """`tokens` stand for it, which are rows and columns of a `grid` where tokens have positions by it. Raises:
        UsageError (`bad-prompt`) for none, and for numbers that are not finite."""
        self.inputs = tuple(np.ascontiguousarray(each) for each in inputs)
        self.tokens, self.grid = tokens, grid
        if tokens < 1:
            raise UsageError("bad-prompt", f"a picture has 1 token or more, got {tokens}")
        if not all(np.isfinite(each).all() for each in self.inputs):
            raise UsageError("bad-prompt", "the numbers of a picture are not all finite")

    @cached_property
    def digest(self) -> str:
        """Of all that the tower's output depends on."""
        found = sha256(f"{self.tokens}{self.grid}".encode())
        for each in self.inputs:
            found.update(f"{each.dtype.str}{each.shape}".encode())
            found.update(each.data)
        return found.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Picture) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<picture {[each.shape for each in self.inputs]}, {self.tokens} tokens>"


class Placed(NamedTuple):
    """A picture in a prompt."""

    start: int
    """The place of its first token."""
    picture: Picture

    @property
    def end(self) -> int:
        """The place after its last token."""
        return self.start + self.picture.tokens

    @property
    def content(self) -> Content:
        """What caches know its tokens by."""
        return Content(self.start, self.end, self.picture.digest)


def check_pictures(placed: Sequence[Placed], prompt: int, shape: PictureShape | None) -> None:
    """Raises: UsageError (`bad-prompt`) for pictures that the model does not see, or that are not one after the other
    within a prompt of so many tokens."""
    if placed and shape is None:
        raise UsageError("bad-prompt", "this model sees no pictures: it reads texts alone")
    end = 0
    for each in placed:
        if not end <= each.start < each.end <= prompt:
            raise UsageError(
                "bad-prompt",
                f"a picture has the tokens {each.start} to {each.end - 1} of a prompt of {prompt}: pictures are one "
                "after the other, within the prompt",
            )
        end = each.end


def within(placed: Sequence[Placed], start: int, end: int) -> list[Placed]:
    """Those with tokens from `start` on, before `end`."""
    return [each for each in placed if each.start < end and start < each.end]


def turns(placed: Sequence[Placed], start: int, count: int) -> np.ndarray:
    """The rotary positions (3, count) int64 of so many tokens of a text from a place on: time, row and column. All
    three of a token of text are one more than the largest before it; those of a picture's tokens are its begin, plus
    their row and column in its grid."""
    found = np.tile(np.arange(start, start + count), (3, 1))
    behind = 0
    """By how much tokens after the pictures so far are behind their places."""
    for begin, picture in placed:
        rows, columns = picture.grid or (picture.tokens, 1)
        end = begin + picture.tokens
        inside = np.arange(max(begin, start), min(end, start + count))
        if len(inside):
            number = inside - begin
            axes = np.stack([0 * number, number // columns, number % columns])
            found[:, inside - start] = begin - behind + axes
        grown = picture.tokens - max(rows, columns)
        behind += grown
        found[:, max(end - start, 0) :] -= grown
    return found


def last_places(placed: Sequence[Placed], start: int, count: int) -> np.ndarray:
    """The last places (count,) int64 that so many tokens of a text attend to, from a place on, where a picture's tokens
    attend to each other."""
    found = np.arange(start, start + count)
    for each in within(placed, start, start + count):
        found[max(each.start - start, 0) : each.end - start] = each.end - 1
    return found


@dataclass(eq=False)
class PictureStore:
    """The rows that a tower has made of pictures, by content and salt; the least recently used are dropped. It is used
    by one thread."""

    limit: int = STORED
    """The most bytes."""
    seen: int = 0
    """How often the tower ran."""
    _rows: OrderedDict[tuple[str, str], np.ndarray] = field(
        default_factory=OrderedDict[tuple[str, str], np.ndarray]
    )

    @property
    def nbytes(self) -> int:
        """The bytes of all rows."""
        return sum(each.nbytes for each in self._rows.values())

    def __contains__(self, key: tuple[Picture, str]) -> bool:
        return (key[0].digest, key[1]) in self._rows

    def rows(self, picture: Picture, salt: str) -> np.ndarray:
        """The rows (tokens, hidden) of a picture that is there."""
        key = picture.digest, salt
        self._rows.move_to_end(key)
        return self._rows[key]

    def put(
        self, picture: Picture, salt: str, rows: np.ndarray, needed: Collection[tuple[Picture, str]]
    ) -> None:
        """Keep the rows of a picture. Those of the pictures and salts that are `needed` next are not dropped for it."""
        key = picture.digest, salt
        self._rows[key] = rows
        self.seen += 1
        kept = {key, *((each.digest, own) for each, own in needed)}
        total = self.nbytes
        for other in [each for each in self._rows if each not in kept]:
            if total <= self.limit:
                break
            total -= self._rows.pop(other).nbytes
