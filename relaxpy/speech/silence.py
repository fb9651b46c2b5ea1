"""Where somebody speaks in a recording: voice activity detection.

    detector = Detector(VadOptions())
    detector.hear(piece)                          each piece of the samples, in order
    detector.spoken(length)                       [(start, stop), …] in samples

Each 512 samples have a score from 0 to 1: that of Silero's network, where its ONNX file is given (it runs in relaxpy's
own session), else one of their loudness. What scores make speech is decided by Silero's rule, and options have the
names and defaults of faster-whisper.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from relaxpy.errors import UsageError, did_you_mean
from relaxpy.speech.log_mel import RATE

FRAME = 512
"""Samples that have a score."""
_CONTEXT = 64
"""Samples before them that Silero's network reads, too."""
_STATE = 128
_SHORT = 0.098
"""Seconds: where speech is too long it is cut in a silence of more than these, if there is one."""
_QUIET = -100.0
"""Decibels of no sound."""
_GAP = 3
"""Frames: a pause beside a word is longer, and what is there of another word not."""
_FAINT = -60.0
"""Decibels of full scale below which nobody speaks, by loudness."""

Range = tuple[int, int]
"""The first sample, and the one after the last."""


@dataclass(frozen=True)
class VadOptions:
    """Fields of `vad_parameters`. Raises: UsageError (`bad-arguments`)."""

    threshold: float = 0.5
    """Scores from here on are speech."""
    neg_threshold: float | None = None
    """Speech ends below this score; None: 0.15 below `threshold`."""
    min_speech_duration_ms: float = 0
    """Shorter speech is none."""
    max_speech_duration_s: float = math.inf
    """Longer speech is cut, in a pause if there is one."""
    min_silence_duration_ms: float = 2000
    """Shorter silences are part of the speech around them."""
    speech_pad_ms: float = 400
    """So much silence is left before and after speech."""
    model: str | os.PathLike[str] | None = None
    """The path of Silero's ONNX file; None: speech is told by its loudness."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value: object = getattr(self, each.name)
            if each.name == "model" or (value is None and each.name == "neg_threshold"):
                continue
            is_share = each.name.endswith("threshold")
            number = -1.0
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                number = float(value)
            if not 0 <= number <= (1 if is_share else math.inf):
                expected = "from 0 to 1" if is_share else "a number of at least 0"
                raise UsageError(
                    "bad-arguments", f"{each.name} of vad_parameters is {expected}, got {value!r}"
                )

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> VadOptions:
        """Options by name. Raises: UsageError (`bad-arguments`), for unknown ones too."""
        known = [each.name for each in fields(cls)]
        for name in given or ():
            if name not in known:
                raise UsageError(
                    "bad-arguments",
                    f"vad_parameters has no {name!r}",
                    help=did_you_mean(str(name), known) or f"there are {', '.join(known)}",
                )
        return cls(**(given or {}))

    @property
    def lowest(self) -> float:
        """The score below which speech ends."""
        given = self.neg_threshold
        return max(self.threshold - 0.15, 0.01) if given is None else given

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Detector:
    """Hears a recording, piece by piece; used by one thread."""

    def __init__(self, options: VadOptions) -> None:
        """Raises: UsageError (`bad-arguments`) for a file that is not Silero's; those of the reader of ONNX files."""
        self.options = options
        self._score = _loudness if options.model is None else _silero(options.model)
        self._held = np.zeros(_CONTEXT, np.float32)
        self._scores: list[np.ndarray] = []
        self.speech = np.zeros(0, bool)
        """Whether a frame has speech; known after `spoken`."""

    def hear(self, piece: np.ndarray) -> None:
        """The next samples, float32."""
        self._held = np.concatenate([self._held, piece])
        count = (len(self._held) - _CONTEXT) // FRAME
        if count:
            windows = np.lib.stride_tricks.sliding_window_view(self._held, _CONTEXT + FRAME)
            self._scores.append(self._score(np.ascontiguousarray(windows[::FRAME][:count])))
            self._held = self._held[count * FRAME :].copy()

    def spoken(self, length: int) -> list[Range]:
        """The speech of the recording, which has so many samples and was heard to its end."""
        waiting = FRAME - (len(self._held) - _CONTEXT)
        self.hear(np.zeros(waiting, np.float32))
        scores = np.concatenate(self._scores)
        if self.options.model is None:
            scores = _by_loudness(scores, max(1, length // FRAME))
        self.speech = scores >= self.options.lowest
        found = _spoken(scores, length, self.options)
        return _padded(found, length, round(RATE * self.options.speech_pad_ms / 1000))


def _loudness(frames: np.ndarray) -> np.ndarray:
    """The decibels (n,) of frames (n, 576)."""
    power = np.square(frames[:, _CONTEXT:], dtype=np.float64).mean(axis=1)
    return 10 * np.log10(np.maximum(power, 10 ** (_QUIET / 10)))


def _by_loudness(decibels: np.ndarray, count: int) -> np.ndarray:
    """Scores by loudness: 0.5 is above the background of the recording, which has `count` frames, by 0.3 of its range,
    and by 6 to 15 decibels."""
    quiet, loud = np.percentile(decibels[:count], [10, 95])
    border = max(_FAINT, quiet + min(15.0, max(6.0, 0.3 * (loud - quiet))))
    return 1 / (1 + np.exp(np.clip((border - decibels) / 2, -50, 50)))


def _silero(path: str | os.PathLike[str]) -> Callable[[np.ndarray], np.ndarray]:
    """The scores (n,) of frames (n, 576) by a file of Silero: one that takes the frames of a recording at once (that of
    faster-whisper), or one that takes them one by one (that of silero-vad)."""
    from relaxpy.onnx import InferenceSession

    session = InferenceSession(os.fspath(path))
    names = {each.name for each in session.get_inputs()}
    if names == {"input", "h", "c"}:
        states = [np.zeros((1, 1, _STATE), np.float32)] * 2

        def of_all(frames: np.ndarray) -> np.ndarray:
            given = {"input": frames, "h": states[0], "c": states[1]}
            scores, *states[:] = session.run(None, given)
            return scores.reshape(-1)

        return of_all
    if names - {"sr"} == {"input", "state"}:
        given: dict[str, Any] = {"state": np.zeros((2, 1, _STATE), np.float32)}
        if "sr" in names:
            given["sr"] = np.array(RATE, np.int64)

        def of_each(frames: np.ndarray) -> np.ndarray:
            found: list[float] = []
            for k in range(len(frames)):
                score, given["state"] = session.run(None, {**given, "input": frames[k : k + 1]})
                found.append(score.item())
            return np.array(found, np.float32)

        return of_each
    raise UsageError(
        "bad-arguments",
        f"{os.fspath(path)} is no file of Silero's voice detection: its inputs are {', '.join(sorted(names))}",
        help="take silero_vad.onnx of the package silero-vad, or silero_vad_v6.onnx of faster-whisper",
    )


def _spoken(scores: np.ndarray, length: int, options: VadOptions) -> list[Range]:
    """Speech by the scores of frames (silero-vad, `get_speech_timestamps`)."""
    low = options.lowest
    least = RATE * options.min_speech_duration_ms / 1000
    pause = RATE * options.min_silence_duration_ms / 1000
    padding = RATE * options.speech_pad_ms / 1000
    most = max(FRAME, RATE * options.max_speech_duration_s - FRAME - 2 * padding)
    found: list[Range] = []
    start: int | None = None
    quiet = cut = again = (
        0  # where it became quiet; the last pause in which speech can be cut, and what follows it
    )
    for number, score in enumerate(scores.tolist()):
        at = FRAME * number
        if score >= options.threshold:
            if quiet and again < cut:
                again = at
            quiet = 0
            if start is None:
                start = at
                continue
        if start is None:
            continue
        if at - start > most:
            found.append((start, cut or at))
            start = again if cut and again >= cut else None
            quiet = cut = again = 0
        if start is None or score >= low:
            continue
        quiet = quiet or at
        if at - quiet > RATE * _SHORT:
            cut = quiet
        if at - quiet >= pause:
            if quiet - start > least:
                found.append((start, quiet))
            start, quiet, cut, again = None, 0, 0, 0
    if start is not None and length - start > least:
        found.append((start, length))
    return found


def _padded(ranges: Sequence[Range], length: int, padding: int) -> list[Range]:
    """Ranges with silence around them; those that are near to each other share it."""
    found = [*ranges]
    for k, (start, stop) in enumerate(found):
        before = padding if k == 0 else 0
        following = found[k + 1] if k + 1 < len(found) else None
        after = padding
        if following is not None:
            silence = following[0] - stop
            after = silence // 2 if silence < 2 * padding else padding
            found[k + 1] = max(0, following[0] - after), following[1]
        found[k] = max(0, start - before), min(length, stop + after)
    return found


def trimmed(start: float, end: float, speech: np.ndarray) -> tuple[float, float]:
    """A word without the silence at its ends, by the frames that have speech; attention gives the pause before a word
    to the word. What is there of another word beyond a pause is none of it."""
    first = int(start * RATE) // FRAME
    own = np.flatnonzero(speech[first : -(-round(end * RATE) // FRAME)])
    for _ in range(2):  # one at the beginning, one at the end
        gap = int(np.diff(own).argmax()) if len(own) > 1 else 0
        if len(own) < 2 or own[gap + 1] - own[gap] <= _GAP:
            break
        before, after = gap + 1, len(own) - gap - 1
        if min(before, after) > _GAP:
            break
        own = own[before:] if before <= after else own[:before]
    if not len(own):
        return start, end
    first_loud, last_loud = (first + int(own[0])) * FRAME, (first + int(own[-1]) + 1) * FRAME
    return max(start, round(first_loud / RATE, 2)), min(end, round(last_loud / RATE, 2))


def within(ranges: Sequence[Range], clips: Sequence[Range]) -> list[Range]:
    """What is in ranges and in clips, in the order of the clips."""
    pairs = [(max(a, c), min(b, d)) for c, d in clips for a, b in ranges]
    return [(a, b) for a, b in pairs if a < b]


def packed(ranges: Sequence[Range], most: int) -> list[list[Range]]:
    """Windows of at most so many samples: speech one after the other, without the silence between."""
    parts = [
        (at, min(at + most, stop)) for start, stop in ranges for at in range(start, stop, most)
    ]
    found: list[list[Range]] = []
    room = 0
    for start, stop in parts:
        if stop - start > room or not found:
            found.append([])
            room = most
        found[-1].append((start, stop))
        room -= stop - start
    return found


def cut_at_pauses(ranges: Sequence[Range], start: int, stop: int, most: int) -> list[list[Range]]:
    """Windows of at most so many samples that are all from `start` to `stop` together, cut in the silence between
    ranges of speech: as late as they can be, and in speech only where no pause is near enough."""
    edges = [start, *(each for part in ranges for each in part), stop]
    pauses = [(a, b) for a, b in zip(edges[::2], edges[1::2]) if a < b]
    found: list[list[Range]] = []
    while start < stop:
        last = start + most
        if last < stop:
            # In the later half of a pause.
            places = [
                min(last, (a + 3 * b) // 4) for a, b in pauses if start < (a + b) // 2 <= last
            ]
            last = min(last, max(places, default=last))
        else:
            last = stop
        found.append([(start, last)])
        start = last
    return found
