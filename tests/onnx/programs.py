"""Programs of others that run ONNX models, unchanged: with ONNX Runtime, or with relaxpy in its place.

    python -m tests.onnx.programs ocr --count 20                    # with ONNX Runtime
    python -m tests.onnx.programs ocr --count 20 --relaxpy          # with relaxpy

Each prints what it found as JSON: a list of records, whose texts, labels and segments are the program's answer and whose
numbers are its scores.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

WORDS = (
    "the memory of a compiler holds every shape that a program may have while numbers like 48 or 7.25 stay where they "
    "are written and nobody asks for Invoice No. 2217 before Friday 14 March (paid) at 9:30 in Room B"
).split()


def pages(count: int) -> Iterator[np.ndarray]:
    """Rendered pages of text of several sizes, every third rotated."""
    from PIL import Image, ImageDraw, ImageFont

    drawn = np.random.default_rng(0)
    for page in range(count):
        width, height = int(drawn.integers(220, 900)), int(drawn.integers(120, 700))
        image = Image.new(
            "RGB", (width, height), tuple(int(v) for v in drawn.integers(225, 256, 3))
        )
        draw = ImageDraw.Draw(image)
        y = 14
        while y < height - 40:
            size = int(drawn.integers(17, 34))
            font = ImageFont.load_default(size=size)
            text = " ".join(drawn.choice(WORDS, int(drawn.integers(1, 7))))
            draw.text(
                (int(drawn.integers(8, 40)), y),
                text,
                fill=(20, 20, int(drawn.integers(0, 90))),
                font=font,
            )
            y += int(size * 1.7)
        if page % 3 == 2:
            angle = float((5, 90, 180, -12)[page // 3 % 4])
            image = image.rotate(angle, expand=True, fillcolor=(240, 240, 240))
        yield np.asarray(image)[:, :, ::-1].copy()


def ocr(count: int) -> Iterator[dict[str, Any]]:
    """rapidocr-onnxruntime: text detection, classification of its direction, recognition."""
    from rapidocr_onnxruntime import RapidOCR

    engine = RapidOCR()
    for page in pages(count):
        found, _ = engine(page)
        yield {
            "answer": [[text, np.round(np.array(box)).tolist()] for box, text, _ in found or []],
            "probabilities": [float(score) for _, _, score in found or []],
        }


def speech(rate: int) -> np.ndarray:
    """Sentences that espeak-ng speaks between pauses; without it, tones with the envelope of syllables."""
    pause = np.zeros(rate * 7 // 10, np.float32)
    parts = [pause]
    for sentence in (
        "The quick brown fox jumps over the lazy dog.",
        "How many shapes has a program?",
        "Seven.",
    ):
        parts += [_spoken(sentence, rate), pause]
    noise = np.random.default_rng(1).normal(0, 1e-3, sum(map(len, parts))).astype(np.float32)
    return np.concatenate(parts) + noise


def _spoken(sentence: str, rate: int) -> np.ndarray:
    if shutil.which("espeak-ng") is None:
        time = np.arange(rate * len(sentence) // 14) / rate
        tone = sum(np.sin(2 * np.pi * f * time) / f for f in (120, 240, 700, 1220, 2600))
        return (80 * tone * np.abs(np.sin(2 * np.pi * 2.3 * time)) * 0.3).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "speech.wav")
        subprocess.run(["espeak-ng", "-w", path, sentence], check=True)
        with wave.open(str(path)) as file:
            own = file.getframerate()
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16) / np.float32(
                2**15
            )
    times = np.arange(0, len(samples) / own, 1 / rate)
    return np.interp(times, np.arange(len(samples)) / own, samples).astype(np.float32)


def vad(count: int) -> Iterator[dict[str, Any]]:
    """silero-vad: speech in a recording, by each of its files."""
    import torch
    from silero_vad import get_speech_timestamps, utils_vad

    folder = Path(utils_vad.__file__).parent / "data"
    for path in sorted(folder.glob("*.onnx")):
        if "sequence" in path.name:
            continue
        model = utils_vad.OnnxWrapper(str(path), force_onnx_cpu=True)
        if "sr" not in (each.name for each in model.session.get_inputs()):
            yield {"file": path.name, "answer": [], "probabilities": _vad_by_frames(model.session)}
            continue
        for rate in (16000,) if "16k" in path.name else (16000, 8000):
            sound = torch.from_numpy(speech(rate))
            model.reset_states()
            scores = model.audio_forward(sound, sr=rate)
            found = get_speech_timestamps(sound, model, sampling_rate=rate)
            yield {
                "file": path.name, "answer": [[each["start"], each["end"]] for each in found],
                "probabilities": scores.flatten().tolist(),
            }  # fmt: skip
    from silero_vad.sequence_vad import SileroVADSequence

    path = str(folder / "silero_vad_16k_sequence.onnx")
    sequences = SileroVADSequence(path, sampling_rate=16000, max_frames=100)
    scores = sequences.audio_forward(speech(16000))
    yield {"file": "sequence", "answer": [], "probabilities": np.asarray(scores).flatten().tolist()}


def _vad_by_frames(session: Any) -> list[float]:
    """The score of each frame, of a file that has no argument for the rate."""
    sound = speech(16000)
    padded = np.concatenate(
        [np.zeros(64, np.float32), sound, np.zeros(-len(sound) % 512, np.float32)]
    )
    state, scores = np.zeros((2, 1, 128), np.float32), []
    for start in range(0, len(padded) - 64, 512):
        frame = padded[None, start : start + 576]
        score, state = session.run(None, {"input": frame, "state": state})
        scores.append(score.item())
    return scores


def files(count: int) -> Iterator[dict[str, Any]]:
    """magika: the types of files of Python's own library, and of damaged ones."""
    from magika import Magika

    magika = Magika()
    folder = Path(sysconfig.get_path("stdlib"))
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and "site-packages" not in p.parts)
    drawn = np.random.default_rng(2)
    for path in (paths[i] for i in drawn.choice(len(paths), count, replace=False)):
        content = path.read_bytes()[:200_000]
        for data in (content, content[len(content) // 2 :]):
            found = magika.identify_bytes(data)
            yield {"answer": str(found.output.label), "probabilities": [float(found.score)]}


PROGRAMS: dict[str, Callable[[int], Iterator[dict[str, Any]]]] = {
    "ocr": ocr,
    "vad": vad,
    "files": files,
}


def answers(program: str, count: int, relaxpy: bool) -> list[dict[str, Any]]:
    """What the program finds, run in a process of its own."""
    words = [sys.executable, "-m", "tests.onnx.programs", program, "--count", str(count)]
    done = subprocess.run(
        [*words, *["--relaxpy"] * relaxpy], stdout=subprocess.PIPE, check=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=sorted(PROGRAMS))
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--relaxpy", action="store_true")
    options = parser.parse_args()
    if options.relaxpy:
        import relaxpy.onnx

        relaxpy.onnx.patch()
    print(json.dumps(list(PROGRAMS[options.program](options.count))))  # noqa: T201


if __name__ == "__main__":
    main()
