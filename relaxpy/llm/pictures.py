"""Pictures in prompts: what a checkpoint makes of them before its tower, and where their tokens are.

    eyes = Eyes.from_checkpoint(folder, decoder.pictures)
    texts, found = taken(messages)                        # the pictures of a chat's messages, and messages without
    tokens, placed = eyes.placed(tokens, [eyes.read(each.picture, each.name) for each in found], tokenizer)

A prompt has a placeholder for each picture, which the chat template writes, or who continues a text. It stands for as
many tokens as the picture has; of Gemma 3 also for what is before and after them, and for parts of the picture.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np

from relaxpy.checkpoints.config_file import config_of
from relaxpy.checkpoints.gguf_projector import Projector, projector_of
from relaxpy.errors import UsageError
from relaxpy.narrow import is_list, is_mapping
from relaxpy.serve.pictures import Picture, PictureShape, Placed

if TYPE_CHECKING:
    from relaxpy.llm.tokenizer import Tokenizer
    from relaxpy.vision.picture import Picture as PictureFile
    from relaxpy.vision.processor import PictureProcessor

Piece: TypeAlias = "Picture | int | str"
"""What comes in the place of a placeholder, in parts: what the tower reads, a token, or a text."""


class Seen(NamedTuple):
    """What a prompt has in the place of a placeholder, where it is more than what the tower reads."""

    pieces: tuple[Piece, ...]


Reader = Callable[..., "Picture | Seen"]
"""From a picture, what errors call it, and the most pixels (`most_pixels=`) to what a prompt has of it."""


class Given(NamedTuple):
    """A picture of a chat."""

    picture: PictureFile
    name: str
    """What errors call it."""


class Eyes:
    """Reads pictures as a checkpoint wants them."""

    def __init__(self, shape: PictureShape, reader: Callable[[], Reader]) -> None:
        """`reader` is called when the first picture is read."""
        self.shape, self._make = shape, reader
        self._reader: Reader | None = None

    @classmethod
    def from_checkpoint(
        cls, folder: Path, shape: PictureShape, mmproj: str | os.PathLike[str] | None = None
    ) -> Eyes:
        """Those of a checkpoint whose model sees pictures; `mmproj` as `projector_of` takes it."""

        def reader() -> Reader:
            projector = projector_of(folder, mmproj)
            if projector is not None:
                return of_projector(projector, shape)
            family = str((config_of(folder) or {}).get("model_type"))
            return READERS.get(family, fixed_size)(folder, shape)

        return cls(shape, reader)

    def read(self, picture: PictureFile, name: str = "", **limits: int) -> Picture | Seen:
        """A picture, as `relaxpy.vision.read_picture` takes it, as the tower reads it, and a prompt has it. Raises:
        UsageError: `bad-picture`, and those of the checkpoint's processor."""
        if self._reader is None:
            self._reader = self._make()
        return self._reader(picture, name, **limits)

    def placed(
        self, tokens: Sequence[int], pictures: Sequence[Picture | Seen], tokenizer: Tokenizer
    ) -> tuple[list[int], tuple[Placed, ...]]:
        """The tokens of a prompt, in which each picture has as many placeholders as tokens, and where it is. Raises:
        UsageError (`bad-prompt`) if there are not as many placeholders as pictures."""
        placeholder = self.shape.placeholder
        if (count := list(tokens).count(placeholder)) != len(pictures):
            raise UsageError(
                "bad-prompt",
                f"the prompt has {count} places for pictures, and there are {len(pictures)} pictures",
                help="a chat template for pictures writes a place for each; in a text, write the checkpoint's "
                f"placeholder (token {placeholder}) where a picture is",
            )
        left, pieces = iter(pictures), list[Piece]()
        for token in tokens:
            each = next(left) if token == placeholder else token
            pieces += each.pieces if isinstance(each, Seen) else (each,)
        found, placed = list[int](), list[Placed]()
        for piece in _joined(pieces, tokenizer):
            if isinstance(piece, int):
                found.append(piece)
                continue
            placed.append(Placed(len(found), piece))
            found += [self.shape.token] * piece.tokens
        return found, tuple(placed)


def _joined(pieces: Sequence[Piece], tokenizer: Tokenizer) -> Iterator[Picture | int]:
    """Pieces without texts: those are tokens together with the text before and after them, as in a prompt that was
    written at once, up to the next control token or picture."""
    run = list[int | str]()
    for piece in (*pieces, None):
        if isinstance(piece, str) or (
            isinstance(piece, int) and piece not in tokenizer.special_tokens
        ):
            run.append(piece)
            continue
        yield from _tokens_of(run, tokenizer)
        run.clear()
        if piece is not None:
            yield piece


def _tokens_of(run: Sequence[int | str], tokenizer: Tokenizer) -> Iterator[int]:
    """The tokens of a text of which some is tokens already. What somebody wrote as a control token stays a text."""
    if any(isinstance(each, str) for each in run):
        own = [
            each.encode() if isinstance(each, str) else tokenizer.token_bytes(each) for each in run
        ]
        found = tokenizer.encode(b"".join(own).decode("utf-8", "replace"), special=False)
        if tokenizer.special_tokens.isdisjoint(found):
            yield from found
            return
    for each in run:
        yield from (tokenizer.encode(each, special=False) if isinstance(each, str) else (each,))


def fixed_size(folder: Path, shape: PictureShape) -> Reader:
    """The reader of models whose pictures all have one size, and as many tokens. Raises: UsageError (`bad-config`)."""
    from relaxpy.vision.processor import PictureProcessor

    return _fixed(PictureProcessor.from_checkpoint(folder, "clip"), folder, shape)


def of_projector(projector: Projector, shape: PictureShape) -> Reader:
    """The same of a pair of GGUF files."""
    from relaxpy.vision.processor import PictureProcessor

    own = PictureProcessor.from_dict(projector.processor, "clip", str(projector.path))
    return _fixed(own, projector.path, shape)


def _fixed(processor: PictureProcessor, folder: Path, shape: PictureShape) -> Reader:
    _check_size(processor, folder, shape)

    def read(picture: PictureFile, name: str = "", **limits: int) -> Picture:
        pixels = processor(picture, name, **limits)
        return Picture([pixels[np.newaxis]], shape.tokens)

    return read


def _check_size(processor: PictureProcessor, folder: Path, shape: PictureShape) -> None:
    """Raises: UsageError (`bad-config`) for a processor that does not make what the tower reads."""
    if processor.result != shape.size:
        given, reads = (
            "sizes of their own" if size is None else f"the size {size[0]} × {size[1]}"
            for size in (processor.result, shape.size)
        )
        raise UsageError(
            "bad-config",
            f"{folder}: pictures get {given}, and the model reads {reads}",
            help="check that preprocessor_config.json belongs to config.json",
        )


def of_patches(folder: Path, shape: PictureShape) -> Reader:
    """The reader of models whose pictures keep their shape, and have tokens by it: Qwen2-VL and Qwen2.5-VL."""
    from relaxpy.vision.several import PatchProcessor, windows

    processor = PatchProcessor.from_checkpoint(folder)
    square = processor.merge**2

    def read(picture: PictureFile, name: str = "", **limits: int) -> Picture:
        found = processor(picture, name, **limits)
        rows, columns = (each // processor.merge for each in found.grid)
        patches = found.numbers.reshape(rows * columns, square, -1)
        places = processor.places(found.grid).reshape(rows * columns, square, 2)
        own = windows(rows, columns, shape.window) if shape.window else ()
        return Picture([patches, places, *own], rows * columns, (rows, columns))

    return read


def of_views(folder: Path, shape: PictureShape) -> Reader:
    """The reader of models that see a picture, and parts of a long one, each as a picture of one size: Gemma 3."""
    from relaxpy.vision.several import PanAndScan

    processor = PanAndScan.from_checkpoint(folder)
    _check_size(processor.base, folder, shape)
    assert shape.around is not None, "made so"
    begin, end = shape.around

    def read(picture: PictureFile, name: str = "", **limits: int) -> Seen:
        first, *parts = (
            Picture([each[np.newaxis]], shape.tokens) for each in processor(picture, name, **limits)
        )
        if not parts:
            return Seen(("\n\n", begin, first, end, "\n\n"))
        found: list[Piece] = ["Here is the original image \n\n", begin, first, end]
        between = "\n\n and here are some crops to help you see better \n\n"
        for part in parts:
            found += [between, begin, part, end]
            between = "\n\n \n\n"
        return Seen((*found, "\n\n"))

    return read


READERS: Mapping[str, Callable[[Path, PictureShape], Reader]] = {
    "llava": fixed_size,
    "qwen2_vl": of_patches,
    "qwen2_5_vl": of_patches,
    "gemma3": of_views,
}
"""By `model_type`."""
_KEYS = "image", "path"
"""What a part of a message has a picture in."""


def taken(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[Sequence[Mapping[str, Any]], list[Given]]:
    """Messages whose pictures are parts `{"type": "image"}` without more, as chat templates read them, and the
    pictures, in their order. A part with a picture is `{"type": "image", "image": picture}`, or has its file's name as
    "path". Raises: UsageError (`bad-prompt`) for one without a picture."""
    found = list[Given]()
    if not is_list(messages) and not isinstance(messages, tuple):
        return messages, found  # whoever reads them says what they are

    def part_of(part: Any, message: int, number: int) -> Any:
        if not is_mapping(part) or part.get("type") != "image":
            return part
        given = [part[key] for key in _KEYS if part.get(key) is not None]
        unknown = sorted({*map(str, part)} - {"type", *_KEYS})
        if len(given) != 1 or unknown:
            what = f"it has {', '.join(unknown)}" if len(given) == 1 else f"it has {len(given)}"
            raise UsageError(
                "bad-prompt",
                f"part {number} of message {message} is no picture: {what}",
                help='{"type": "image", "image": picture}: the path of a file, its bytes, an array or a Pillow image',
            )
        picture = cast("PictureFile", given[0])
        name = str(picture) if isinstance(picture, str | Path) else f"picture {len(found) + 1}"
        found.append(Given(picture, name))
        return {"type": "image"}

    without = list[Mapping[str, Any]]()
    for message, each in enumerate(messages):
        content = each.get("content") if is_mapping(each) else None
        if is_list(content):
            parts = [part_of(part, message, number) for number, part in enumerate(content)]
            each = {**each, "content": parts}
        without.append(each)
    return without, found


def refused(name: str, count: int) -> UsageError:
    """The error of pictures for a model that reads texts."""
    return UsageError(
        "bad-prompt",
        f"{name} reads texts alone, and there {'is a picture' if count == 1 else f'are {count} pictures'}",
        help="load a model that sees, such as a LLaVA: config.json has its model_type",
    )
