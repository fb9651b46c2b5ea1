"""Speech as text while it is spoken.

    live = transcriber.live(language="en")
    for samples in microphone:                    float32 or int16 at 16 kHz, as many at a time as there are
        text = live.feed(samples)
        text.settled, text.provisional            what is certain since the last time; what may change
    live.finish().settled

The sound since the last cut is heard again and again, a step of new sound at a time. Words that two hearings in a row
agree on are settled (LocalAgreement-2: Macháček, Dabre, Bojar, "Turning Whisper into Real-Time Transcription System",
2023), and are the beginning of every further text, so that they are never taken back. The sound is cut after a settled
word, and the text before the cut is the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.speech.alignment import TimedWord, with_punctuation
from relaxpy.speech.log_mel import HOP, RATE
from relaxpy.speech.options import TranscriptionOptions
from relaxpy.speech.segments import Word
from relaxpy.speech.sound import checked
from relaxpy.speech.spectrum import Spectrum
from relaxpy.speech.windows import Prompt, hear, is_silence, window_prompt
from relaxpy.speech.word_times import window_words

if TYPE_CHECKING:
    from relaxpy.speech.transcriber import Transcriber

_NOT_LIVE = {
    "vad_filter", "vad_parameters", "batch_size", "clip_timestamps", "hallucination_silence_threshold", "prefix",
    "without_timestamps", "word_timestamps", "trim_words", "multilingual", "max_initial_timestamp",
    "condition_on_previous_text",
    "prompt_reset_on_temperature", "language_detection_segments", "language_detection_threshold",
}  # fmt: skip
"""Options that say how a whole recording is cut into windows and segments."""


@dataclass(frozen=True)
class LiveText:
    """What was heard."""

    settled: str
    """Certain, and new: all of these together are the text."""
    provisional: str
    """After it, and not certain."""
    words: tuple[Word, ...]
    """Those that are settled, with times in seconds since the beginning."""


class LiveTranscriber:
    """Hears sound as it comes; used by one thread."""

    def __init__(
        self, transcriber: Transcriber, step: float | None, options: dict[str, Any]
    ) -> None:
        """`Transcriber.live` makes one."""
        for name in options:
            if name in _NOT_LIVE:
                raise UsageError(
                    "bad-arguments",
                    f"{name} is for recordings: there is no such option of live()",
                    help="transcribe() takes it",
                )
        made = TranscriptionOptions.of({"temperature": 0.0, **options})
        self.options = replace(made, without_timestamps=True)
        if made.language is not None:
            transcriber.vocabulary.start(transcriber.vocabulary.language(made.language), made.task)
        window = transcriber.recogniser.frames * HOP
        seconds = min(1.0, window / RATE / 6) if step is None else step
        if not 0 < seconds * RATE <= window / 4:
            raise UsageError(
                "bad-arguments",
                f"step is from 0 to {window / RATE / 4:g} seconds, a quarter of a window, got {step!r}",
            )
        self._transcriber, self._step = transcriber, max(1, round(seconds * RATE))
        self._language = made.language and transcriber.vocabulary.language(made.language)
        prompt = made.initial_prompt
        encode = transcriber.vocabulary.encode
        self._before = (
            encode(" " + prompt.strip()) if isinstance(prompt, str) else [*(prompt or ())]
        )
        self._waiting = np.empty(0, np.float32)
        self._sound = _Buffer()
        self._is_over = False

    @property
    def language(self) -> str | None:
        """Of what is spoken; None: it was not heard yet."""
        return self._language

    def feed(self, samples: np.ndarray) -> LiveText:
        """The next samples (n,) at 16 kHz, float32 or int16. They are heard once there are those of a step; those of
        several, as after a delay, are heard together. Raises: UsageError (`bad-sound`; `bad-arguments` after the
        end)."""
        if self._is_over:
            raise UsageError(
                "bad-arguments",
                "finish() has ended this recording: it takes no more samples",
                help="begin another with live()",
            )
        self._waiting = np.concatenate([self._waiting, checked(samples)])
        return self._heard(self._step)

    def finish(self) -> LiveText:
        """The rest of the text: all of it is settled."""
        found = self._heard(1)
        self._is_over = True
        rest = self._settle(len(self._sound.guessed))
        return LiveText(
            found.settled + "".join(each.word for each in rest), "", (*found.words, *rest)
        )

    def _heard(self, least: int) -> LiveText:
        window = self._transcriber.recogniser.frames * HOP
        new: list[Word] = []
        while len(self._waiting) >= least and len(self._waiting):
            taken, self._waiting = np.split(self._waiting, [min(len(self._waiting), window // 4)])
            new += self._make_room(window - len(taken))
            self._sound.samples = np.concatenate([self._sound.samples, taken])
            new += self._hear()
        guessed = "".join(each.word for each in self._sound.guessed)
        return LiveText("".join(each.word for each in new), guessed, tuple(new))

    def _hear(self) -> list[Word]:
        """Hear the sound since the last cut. The words that are settled now."""
        own, sound, options = self._transcriber, self._sound, self.options
        recogniser, vocabulary = own.recogniser, own.vocabulary
        spectrum = Spectrum(sound.samples, own.log_mel, recogniser.frames)
        features = spectrum.window(0, spectrum.frames)
        if options.language is None and not sound.spoken:
            self._language = (
                own.languages_of(features)[0][0] if vocabulary.is_multilingual else "en"
            )
        assert self._language is not None
        begun = tuple(token for each in sound.settled for token in each.tokens)
        made = window_prompt(
            vocabulary, options, recogniser.positions, self._language, self._before, None
        )
        prompt = Prompt((*made.tokens, *begun), made.start, begun)
        (heard,) = hear(recogniser, vocabulary, options, [(features, prompt)], lambda: options.seed)
        if is_silence(heard, options):
            sound.guessed = []
            return []
        text = tuple(token for token in heard.tokens if token < vocabulary.end)
        timed = window_words(
            recogniser, vocabulary, options, self._language, features, spectrum.frames, text
        )
        words = with_punctuation(timed, options.prepend_punctuations, options.append_punctuations)
        found = _after([each for each in words if each.word], len(begun), vocabulary.decode)
        agreed = 0
        for mine, before in zip(found, sound.guessed):
            if mine.word != before.word:
                break
            agreed += 1
        sound.guessed = found
        return self._settle(agreed)

    def _settle(self, count: int) -> list[Word]:
        """So many of the words that are not settled are, from now on."""
        sound = self._sound
        new, sound.guessed = sound.guessed[:count], sound.guessed[count:]
        sound.settled += new
        found: list[Word] = []
        for each in new:
            start = max(sound.spoken, round(sound.start / RATE + each.start, 2))
            sound.spoken = max(start, round(sound.start / RATE + each.end, 2))
            found.append(Word(start, sound.spoken, each.word, each.probability))
        return found

    def _make_room(self, most: int) -> list[Word]:
        """Cut the sound where it is longer than half a window, after a settled word, so that it has at most so many
        samples. The words that are settled by that."""
        sound, new = self._sound, list[Word]()
        if len(sound.samples) <= min(most, 2 * most // 3):
            return new
        if len(sound.samples) > most and not sound.settled and sound.guessed:
            new = self._settle(max(1, len(sound.guessed) - 1))  # no two hearings agree
        # What is left of a word is not heard as another one: the text begins with the word after it.
        gone, sound.settled = sound.settled[:-1], sound.settled[-1:]
        if gone:
            sound.cut(round(gone[-1].end * RATE))
        if len(sound.samples) > most and sound.settled:
            gone, sound.settled = [*gone, *sound.settled], []
            sound.cut(round(gone[-1].end * RATE))
        self._before += [token for each in gone for token in each.tokens]
        if len(sound.samples) > most:
            sound.cut(len(sound.samples) - most)
        return new


class _Buffer:
    """The sound since the last cut, and what was heard in it."""

    def __init__(self) -> None:
        self.start = 0
        """Samples before it."""
        self.samples = np.empty(0, np.float32)
        self.settled: list[TimedWord] = []
        """Words that are certain. Their times, and those of the others, are seconds of this sound."""
        self.guessed: list[TimedWord] = []
        """Words after them."""
        self.spoken = 0.0
        """Seconds since the beginning where the last settled word ends."""

    def cut(self, place: int) -> None:
        """Forget so many samples."""
        place = min(place, len(self.samples))
        self.samples, self.start = self.samples[place:], self.start + place
        moved = place / RATE
        self.settled, self.guessed = (
            [
                replace(each, start=max(0.0, each.start - moved), end=max(0.0, each.end - moved))
                for each in words
            ]
            for words in (self.settled, self.guessed)
        )


def _after(words: Sequence[TimedWord], count: int, decode: Any) -> list[TimedWord]:
    """The words after so many tokens; of one that they end in, the rest."""
    found: list[TimedWord] = []
    for word in words:
        left, count = max(0, count), count - len(word.tokens)
        if count >= 0:
            continue
        tokens = word.tokens[left:]
        found.append(replace(word, tokens=tokens, word=decode(tokens) if left else word.word))
    return found
