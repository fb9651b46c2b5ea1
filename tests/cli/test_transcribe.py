"""`relaxpy transcribe`: what it writes, where, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from relaxpy.cli.transcribe import transcribe
from relaxpy.errors import UsageError
from relaxpy.speech import Sound

SPEECH = Path(__file__).parents[1] / "speech"
SHORT, PAUSES = str(SPEECH / "recorded/short.wav"), str(SPEECH / "recorded/pauses.flac")


def run(*args: str) -> Result:
    return CliRunner().invoke(transcribe, [*args, "--model", str(SPEECH / "digits")])


def test_text_and_subtitles() -> None:
    assert run(PAUSES).stdout == "four\nnine zero\nseven\n"
    done = run(PAUSES, "-f", "srt", "--language", "en")
    assert done.stdout.startswith("1\n00:00:00,")
    assert done.stdout.count(" --> ") == 3
    assert "language" not in done.stderr


def test_json_with_words() -> None:
    done = run(SHORT, "-f", "json", "--words")
    data = json.loads(done.stdout)
    assert data["language"] == "en"
    assert [word["word"] for word in data["segments"][0]["words"]] == [" one", " two"]
    assert "language: en" in done.stderr


def test_files_for_several_recordings(tmp_path: Path) -> None:
    done = run(SHORT, PAUSES, "-f", "vtt", "-o", str(tmp_path / "subs"))
    assert done.exit_code == 0
    assert done.stdout == ""
    assert sorted(path.name for path in (tmp_path / "subs").iterdir()) == [
        "pauses.vtt",
        "short.vtt",
    ]
    assert (tmp_path / "subs/short.vtt").read_text().startswith("WEBVTT\n\n")


def test_several_recordings_to_stdout(tmp_path: Path) -> None:
    """In their order; one that fails is said, and the others are written."""
    bad = tmp_path / "bad.mp3"
    bad.write_text("no sound")
    done = run(PAUSES, str(bad), SHORT)
    assert done.exit_code == 1
    assert done.stdout == "four\nnine zero\nseven\none two\n"
    assert "bad-sound" in done.stderr


def test_windows_without_silence(tmp_path: Path) -> None:
    done = run(PAUSES, "--vad-filter", "--batch-size", "2")
    assert done.stdout.split() == ["four", "nine", "zero", "seven"]
    assert "nothing asks for it" in str(run(PAUSES, "--vad-model", "silero.onnx").stderr)
    assert run(PAUSES, "--vad-filter", "--vad-model", str(tmp_path / "none.onnx")).exit_code == 1


def test_live() -> None:
    """Samples come in a pipe, and in pieces that end within one."""
    sound = Sound(PAUSES)
    data = (sound.samples(0, sound.length) * 32767).astype("<i2").tobytes()
    words = ["-", "--live", "--language", "en", "--model", str(SPEECH / "digits")]
    done = CliRunner().invoke(transcribe, words, input=data)
    assert done.stdout == "four nine zero seven\n"
    assert "whose name is -" in str(run(SHORT, "--live").exception)
    assert "no --words" in str(run("-", "--live", "--words").exception)
    assert "no --format" in str(run("-", "--live", "--format", "srt").exception)
    assert "no --independent" in str(run("-", "--live", "--independent").exception)


def test_mistakes(tmp_path: Path) -> None:
    assert run(SHORT, "--format", "docx").exit_code == 2
    assert "no sound that can be decoded" in run(__file__).stderr
    done = run(SHORT, SHORT, "-o", str(tmp_path))
    assert isinstance(done.exception, UsageError)
    assert "both be written" in str(done.exception)
    done = run(SHORT, "--language", "klingon")
    assert done.exit_code == 1
    assert "language 'klingon'" in done.stderr
