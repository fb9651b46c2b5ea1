"""Sound from files, bytes and arrays, at 16 kHz in one channel.

    sound = Sound("talk.mp3")            # or bytes, or samples as an array at 16 kHz
    sound.seconds                        # decoded once to the end: what files say of their length is not trusted
    sound.samples(48_000, 96_000)        # float32, decoded when they are asked for

Files are decoded by PyAV, which has FFmpeg in it, in pieces: a recording of hours takes the memory of a window. What is
read from the file is only this file: playlists and other files that name places are refused, and FFmpeg is given the
bytes through Python, so that it opens nothing itself.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any, BinaryIO

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.files import open_regular
from relaxpy.narrow import is_ndarray
from relaxpy.speech.log_mel import RATE

HELP = "pip install 'relaxpy[speech]'"
"""The command that installs what decodes sound."""
_FORMATS = (
    "aac", "ac3", "aiff", "amr", "ape", "asf", "au", "avi", "caf", "flac", "flv", "matroska", "mov", "mp3", "mpegts",
    "ogg", "wav", "w64", "wv",
)  # fmt: skip
"""FFmpeg's demuxers that read one file. Others read what the file names (hls, concat, dash), or devices."""
_WITH_LENGTH = {"aiff", "caf", "flac", "matroska"}
"""Formats that say how long they are."""
_UNKNOWN = 0x7FFF0000
"""A length of more bytes stands for one that was not known when the file was begun."""
PIECE = 30 * RATE
"""Samples of a piece."""
_MOST_CHANNELS = 64
_MOST_NAMED = 8
"""Channels that have places, by which FFmpeg mixes them. Of more it does not know how."""
_KEPT = 10 * 60 * RATE
"""Samples that are kept in memory: decoded anew are only recordings that are longer."""
_LARGEST = 1e4
"""Samples beyond it are damage: sound is from -1 to 1."""


class Sound:
    """A recording. It may be read from several places, in any order; in order it is quickest. Used by one thread."""

    def __init__(
        self,
        given: str | os.PathLike[str] | bytes | np.ndarray,
        name: str = "",
        *,
        longest: float | None = None,
        heard: Callable[[np.ndarray], None] | None = None,
    ) -> None:
        """A file, its contents, or samples (n,) at 16 kHz; `name` is what errors call it, `longest` the most seconds,
        and `heard` is called with each piece of up to 30 s while it is decoded for the first time.

        Raises: UsageError: `bad-sound` for what has no sound, or cannot be decoded; `extra-missing` without PyAV.
        """
        self.name = name or _name(given)
        self.length = 0
        """In samples."""
        self._given, self._kept = given, np.empty(0, np.float32)
        self._pieces: Iterator[np.ndarray] | None = None
        self._at = 0
        self._waiting: list[np.ndarray] = []
        if is_ndarray(given):
            self._kept = checked(given)
        kept: list[np.ndarray] = []
        for piece in self.pieces():
            self.length += len(piece)
            if longest is not None and self.seconds > longest:
                raise UsageError(
                    "bad-sound",
                    f"{self.name} is longer than {longest:g} s",
                    help="cut it into parts",
                )
            if heard is not None:
                heard(piece)
            if self.length <= _KEPT:
                kept.append(piece)
            else:
                kept.clear()
        if not is_ndarray(given) and self.length <= _KEPT:
            self._kept = np.concatenate(kept)

    def __repr__(self) -> str:
        return f"<sound {self.name}: {self.seconds:.2f} s>"

    @property
    def seconds(self) -> float:
        return self.length / RATE

    def pieces(self) -> Iterator[np.ndarray]:
        """The samples, piece by piece, float32."""
        if len(self._kept) or is_ndarray(self._given):
            yield from (self._kept[k : k + PIECE] for k in range(0, len(self._kept), PIECE))
            return
        with _opened(self._given, self.name) as file, closing(_decoded(file, self.name)) as pieces:
            yield from pieces

    def samples(self, start: int, stop: int) -> np.ndarray:
        """The samples from `start` to `stop`, float32; before the recording and after it they are 0."""
        found = np.zeros(max(0, stop - start), np.float32)
        first, last = max(0, start), min(stop, self.length)
        if first < last:
            found[first - start : last - start] = self._read(first, last)
        return found

    def _read(self, start: int, stop: int) -> np.ndarray:
        if len(self._kept):
            return self._kept[start:stop]
        if self._pieces is None or start < self._at:
            self._pieces, self._at, self._waiting = self.pieces(), 0, []
        found = np.zeros(stop - start, np.float32)
        at = self._at
        kept: list[np.ndarray] = []
        waiting = iter(self._waiting)
        while at < stop:
            piece = next(waiting, None)
            if piece is None:
                piece = next(self._pieces, None)
            if piece is None:  # the file became shorter
                break
            first, last = max(at, start), min(at + len(piece), stop)
            if first < last:
                found[first - start : last - start] = piece[first - at : last - at]
            at += len(piece)
            kept.append(piece)
        kept += waiting
        # Windows overlap: what was read lately is kept.
        while len(kept) > 3 and self._at + len(kept[0]) <= start:
            self._at += len(kept.pop(0))
        self._waiting = kept
        return found


def _name(given: Any) -> str:
    if is_ndarray(given):
        return "samples"
    if isinstance(given, bytes | bytearray):
        return "sound"
    try:
        return os.fsdecode(given)
    except TypeError:
        raise UsageError(
            "bad-sound",
            f"a sound is the path of a file, its bytes, or an array of samples at 16 kHz, got {type(given).__name__}",
        ) from None


def checked(given: np.ndarray) -> np.ndarray:
    """Samples as float32. Raises: UsageError (`bad-sound`)."""
    if given.ndim != 1:
        raise UsageError(
            "bad-sound",
            f"samples are an array (n,) of one channel at 16 kHz, got {given.shape}",
            help="take the mean of channels: samples.mean(axis=1)" if given.ndim == 2 else None,
        )
    if given.dtype == np.int16:
        return given.astype(np.float32) / 32768
    if given.dtype.kind != "f":
        raise UsageError(
            "bad-sound", f"samples are float32 from -1 to 1, or int16, got {given.dtype}"
        )
    found = np.ascontiguousarray(given, np.float32)
    _check_range(found, "samples", 0)
    return found


def _check_range(samples: np.ndarray, name: str, before: int) -> None:
    wrong = ~(np.abs(samples) <= _LARGEST)
    if wrong.any():
        value = samples[wrong][0]
        place = before + int(wrong.reshape(-1).argmax() if samples.ndim == 1 else 0)
        raise UsageError(
            "bad-sound",
            f"{name} has the sample {value} after {place / RATE:.2f} s: sound is numbers from -1 to 1",
        )


@contextmanager
def _opened(given: Any, name: str) -> Iterator[BinaryIO]:
    """The file, which FFmpeg does not open itself."""
    if isinstance(given, bytes | bytearray):
        file: BinaryIO = io.BytesIO(given)
    else:
        try:
            file = open_regular(given)
        except OSError as error:
            raise UsageError(
                "bad-sound", f"cannot read {name}: {error.strerror or error}"
            ) from None
    with file:
        yield file


def _package() -> Any:
    try:
        import av
    except ImportError:
        raise UsageError(
            "extra-missing", "to decode sound takes the package av", help=HELP
        ) from None
    found: Any = av
    found.logging.set_level(None)
    return found


def _refused(url: str, *_: Any) -> Any:
    raise PermissionError(f"it names {url}, and nothing but the file is opened")


def _decoded(file: BinaryIO, name: str) -> Generator[np.ndarray]:
    """The samples of a file, in pieces. Raises: UsageError (`bad-sound`)."""
    av = _package()
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if not size:
        raise UsageError("bad-sound", f"{name} is empty: it has 0 bytes")
    _check_wav(file, size, name)
    try:
        container = av.open(
            file, mode="r", metadata_errors="replace", io_open=_refused,
            options={"format_whitelist": ",".join(_demuxers(av)), "protocol_whitelist": ""},
        )  # fmt: skip
    except (av.FFmpegError, OSError, ValueError, UnicodeError) as error:
        raise UsageError(
            "bad-sound",
            f"{name} is no sound that can be decoded: {_reason(error)}",
            help="formats are mp3, m4a, mp4, webm, ogg, opus, flac, wav, and others of one file",
        ) from None
    with container:
        if not container.streams.audio:
            kinds = ", ".join(dict.fromkeys(each.type for each in container.streams)) or "nothing"
            raise UsageError("bad-sound", f"{name} has no sound: it has {kinds}")
        yield from _stream(av, container, container.streams.audio[0], name)


def _demuxers(av: Any) -> list[str]:
    """Names that FFmpeg's `format_whitelist` compares: of those it has several have aliases."""
    found: list[str] = []
    for name in av.formats_available:
        if any(each in name.split(",") for each in _FORMATS):
            found.append(name)
    return found or [*_FORMATS]


def _stream(av: Any, container: Any, stream: Any, name: str) -> Iterator[np.ndarray]:
    """The samples of a stream, at 16 kHz in one channel."""
    resampler: Any = None
    shape = None
    waiting: list[np.ndarray] = []
    count, total, broken = 0, 0, None

    def taken(frames: Any) -> None:
        nonlocal count
        for frame in frames:
            array = frame.to_ndarray().reshape(-1).astype(np.float32) / np.float32(32768)
            waiting.append(array)
            count += len(array)

    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets, None)
            if packet is None:
                break
            for frame in packet.decode():
                now = frame.format.name, frame.layout.name, frame.sample_rate
                if now != shape:  # a stream may change in its middle
                    if frame.layout.nb_channels > _MOST_CHANNELS or frame.sample_rate < 100:
                        raise UsageError(
                            "bad-sound",
                            f"{name} has {frame.layout.nb_channels} channels at {frame.sample_rate} Hz: up to "
                            f"{_MOST_CHANNELS} channels at 100 Hz or more can be read",
                        )
                    if resampler is not None:
                        taken(resampler.resample(None))
                    resampler, shape = av.AudioResampler("s16", "mono", RATE), now
                if frame.format.name.startswith(("flt", "dbl")):
                    _check_range(frame.to_ndarray(), name, total + count)
                frame = _mixed(av, frame)
                frame.pts = None  # gaps and jumps of clocks are none of the sound
                taken(resampler.resample(frame))
        except (av.FFmpegError, OSError, ValueError) as error:
            if not total + count:
                raise UsageError(
                    "bad-sound", f"{name} cannot be decoded: {_reason(error)}"
                ) from None
            broken = error
            break
        while count >= PIECE:
            joined = np.concatenate(waiting)
            yield joined[:PIECE]
            waiting, count, total = [joined[PIECE:]], count - PIECE, total + PIECE
    if broken is not None:
        raise UsageError(
            "bad-sound",
            f"{name} is damaged after {(total + count) / RATE:.2f} s: {_reason(broken)}",
            help="cut the file there, or write it anew from the recording",
        )
    if resampler is not None:
        taken(resampler.resample(None))
    if not total + count:
        raise UsageError("bad-sound", f"{name} has no sound: its stream is empty")
    seconds, said = (total + count) / RATE, _said(container)
    if said is not None and seconds < said - max(0.5, 0.02 * said):
        raise _cut(name, f"it says that it has {said:.2f} s, and ends after {seconds:.2f} s")
    if count:
        yield np.concatenate(waiting)


def _mixed(av: Any, frame: Any) -> Any:
    """A frame, and of one of many channels their mean, as a frame of one."""
    count = frame.layout.nb_channels
    if count <= _MOST_NAMED:
        return frame
    array = frame.to_ndarray()
    samples = array if frame.format.is_planar else array.reshape(-1, count).T
    mean = samples.mean(axis=0, dtype=np.float64)
    if samples.dtype == np.uint8:
        mean = (mean - 128) / 128
    elif samples.dtype.kind == "i":
        mean /= float(np.iinfo(samples.dtype).max)
    found = av.AudioFrame.from_ndarray(mean[None].astype(np.float32), format="flt", layout="mono")
    found.rate = frame.sample_rate
    return found


def _said(container: Any) -> float | None:
    """The seconds that a file says it has, if it does: some formats have no length, and FFmpeg estimates that of
    others."""
    names = set(container.format.name.split(","))
    return container.duration / 1e6 if container.duration and names & _WITH_LENGTH else None


def _check_wav(file: BinaryIO, size: int, name: str) -> None:
    """Raises: UsageError (`bad-sound`) for a wav file whose samples are fewer than it says: FFmpeg decodes what is
    there. What is written to a pipe has the largest number, or 0, in place of a length."""
    head = file.read(12)
    place = 12
    while head[:4] == b"RIFF" and head[8:] == b"WAVE" and place + 8 <= size:
        file.seek(place)
        kind, length = struct.unpack("<4sI", file.read(8))
        place += 8
        if kind == b"data":
            if length < _UNKNOWN and place + length > size:
                raise _cut(
                    name, f"it says that it has {length} bytes of samples, and has {size - place}"
                )
            break
        place += length + length % 2
    file.seek(0)


def _cut(name: str, why: str) -> UsageError:
    return UsageError(
        "bad-sound",
        f"{name} is cut off: {why}",
        help="write it anew from the recording, or decode what there is, and give the samples",
    )


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(str(text).split())[:200]
