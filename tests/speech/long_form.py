"""Long recordings beside the sequential transcriptions of openai-whisper and of transformers, with the model of
tests/speech/digits: segments, their times, and texts.

    python -m tests.speech.long_form PLACE [--count 40] [--longest 1200]

PLACE is where openai-whisper's sdist is unpacked (`tests.speech.against_openai`). Recordings from 5 seconds to `longest`
are joined of words that espeak-ng speaks, with pauses from 0.3 to 6 seconds. The table is that of docs/speech.md.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.utils import logging

from relaxpy.speech import load_transcriber
from tests.speech.against_openai import reference
from tests.speech.spoken import RATE, WORDS, Voice, Word, joined
from tests.speech.train_digits import FOLDER

Lines = list[tuple[str, float, float]]
"""Text, start and end of segments."""
SHORTEST = 5.0


def recording(number: int, count: int, longest: float) -> tuple[np.ndarray, list[Word]]:
    """Recording number k, and its words. Lengths grow from the shortest to the longest by equal factors."""
    rng = random.Random(1000 + number)
    seconds = SHORTEST * (longest / SHORTEST) ** (number / max(1, count - 1))
    voice, pause = Voice.draw(rng), (0.3, rng.choice([0.9, 2.5, 6.0]))
    parts: list[np.ndarray] = []
    words: list[Word] = []
    length = 0
    while length < seconds * RATE:
        part, truth = joined(
            [[rng.choice(WORDS) for _ in range(rng.randint(1, 4))]], rng, voice, pause
        )
        begin = length / RATE
        words += [Word(w.text, w.start + begin, w.end + begin) for own in truth for w in own]
        parts.append(part)
        length += len(part)
    return np.concatenate(parts), words


def by_transformers(model: Any, extractor: Any, samples: np.ndarray) -> Lines:
    """The segments of `WhisperForConditionalGeneration.generate`, whose windows do not know the text before them: of that
    it takes other tokens than openai-whisper does."""
    made = extractor(
        samples, sampling_rate=RATE, return_tensors="pt", truncation=False, padding="longest",
        return_attention_mask=True,
    )  # fmt: skip
    features, mask = made.input_features, made.attention_mask
    window = 2 * model.config.max_source_positions
    if features.shape[-1] <= window:  # one window: generate() takes it whole
        features = torch.nn.functional.pad(features, (0, window + 1 - features.shape[-1]))
        mask = torch.nn.functional.pad(mask, (0, window + 1 - mask.shape[-1]))
    with torch.no_grad():
        found = model.generate(
            features, attention_mask=mask, return_timestamps=True, return_segments=True, language="en",
            task="transcribe", temperature=0.0, no_speech_threshold=0.6,
            logprob_threshold=-1.0,
        )  # fmt: skip
    texts = [(model.decoded(each["tokens"].tolist()), each) for each in found["segments"][0]]
    return [(text, float(s["start"]), float(s["end"])) for text, s in texts if text.strip()]


def differences(mine: Lines, theirs: Lines) -> tuple[bool, bool, bool]:
    """Whether the number of segments, the texts, and the times are equal."""
    texts = [a[0] for a in mine] == [b[0] for b in theirs]
    times = len(mine) == len(theirs) and all(
        abs(x - y) < 0.006 for a, b in zip(mine, theirs) for x, y in zip(a[1:], b[1:])
    )
    return len(mine) == len(theirs), texts, times


def word_errors(words: list[Any], truth: list[Word]) -> list[tuple[float, float]]:
    """How far the starts and the ends of words are from the truth, where the words around are right, too."""
    from difflib import SequenceMatcher

    found = [word.word.strip() for word in words]
    matcher = SequenceMatcher(None, [each.text for each in truth], found, autojunk=False)
    return [
        (words[b + k].start - truth[a + k].start, words[b + k].end - truth[a + k].end)
        for a, b, size in matcher.get_matching_blocks()
        for k in range(size)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("place", type=Path)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--longest", type=float, default=1200)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    ours, theirs = load_transcriber(FOLDER), reference(given.place, FOLDER)
    model: Any = WhisperForConditionalGeneration.from_pretrained(FOLDER, dtype=torch.float32).eval()
    model.decoded = ours.vocabulary.decode
    extractor = WhisperFeatureExtractor.from_pretrained(FOLDER)
    equal = {"openai-whisper": np.zeros(4, int), "transformers": np.zeros(4, int)}
    spent = {"relaxpy": 0.0, "openai-whisper": 0.0, "transformers": 0.0}
    sound, errors, same_words = 0.0, list[tuple[float, float]](), 0
    for number in range(given.count):
        samples, truth = recording(number, given.count, given.longest)
        sound += len(samples) / RATE
        has_words = number % 4 == 3
        begin = time.process_time()
        options = {"language": "en", "word_timestamps": has_words}
        found = [*ours.transcribe(samples, temperature=0.0, **options)]
        spent["relaxpy"] += time.process_time() - begin
        mine = [(each.text, each.start, each.end) for each in found]
        results: dict[str, Lines] = {}
        begin = time.process_time()
        other = [each for each in theirs(samples, **options)["segments"] if each["text"].strip()]
        results["openai-whisper"] = [(each["text"], each["start"], each["end"]) for each in other]
        spent["openai-whisper"] += time.process_time() - begin
        begin = time.process_time()
        if has_words:
            words = [word for each in found for word in each.words or ()]
            their_words = [word for each in other for word in each["words"]]
            errors += word_errors(words, truth)
            same_words += [(w.word, w.start, w.end) for w in words] == [
                (w["word"], w["start"], w["end"]) for w in their_words
            ]
        alone = ours.transcribe(
            samples, temperature=0.0, language="en", condition_on_previous_text=False
        )
        plain = [(each.text, each.start, each.end) for each in alone]
        begin = time.process_time()
        results["transformers"] = by_transformers(model, extractor, samples)
        spent["transformers"] += time.process_time() - begin
        line = []
        for name, lines in results.items():
            same = differences(plain if name == "transformers" else mine, lines)
            equal[name] += [*same, all(same)]
            line.append(f"{name} {'equal' if all(same) else same}")
        print(
            f"{number}: {len(samples) / RATE:.1f} s, {len(mine)} segments: {', '.join(line)}",
            flush=True,
        )
    print(f"\n{given.count} recordings, {sound:.0f} s of sound\n")
    print("| | segments | texts | times | all | s of CPU time |\n|---|---|---|---|---|---|")
    print(f"| relaxpy | | | | | {spent['relaxpy']:.0f} |")
    for name, counts in equal.items():
        print(f"| {name} | {' | '.join(map(str, counts))} | {spent[name]:.0f} |")
    if errors:
        starts, ends = ([abs(each[k]) for each in errors] for k in (0, 1))
        print(
            f"\nwords of {given.count // 4} recordings, as openai-whisper's in {same_words}: {len(errors)} words, median "
            f"distance from the truth {statistics.median(starts):.3f} s of starts, {statistics.median(ends):.3f} s of ends; "
            f"within 0.1 s {np.mean(np.array(starts) < 0.1):.1%} and {np.mean(np.array(ends) < 0.1):.1%}"
        )


if __name__ == "__main__":
    main()
