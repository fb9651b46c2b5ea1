"""`relaxpy transcribe`: recordings as text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relaxpy.cli.language_model import (
    SCHEME_OPTIONS,
    on_this_machine,
    options,
    printable,
    scheme_of,
)
from relaxpy.errors import RelaxError, UsageError

if TYPE_CHECKING:
    from relaxpy.speech import SoundTranscription, Transcription
    from relaxpy.speech.load import AnyTranscriber

MODEL = "openai/whisper-base"
"""The model without `--model`."""
AT_ONCE = 4
"""Recordings that are heard at the same time, in the same steps."""
_LAYOUT = ("max_line_width", "max_line_count", "max_words_per_line", "highlight_words")


@click.command(
    epilog="""
\b
Examples:
  relaxpy transcribe talk.mp3                                the text, as it is heard
  relaxpy transcribe talk.mp3 --format srt > talk.srt        subtitles
  relaxpy transcribe *.wav --format vtt --output-dir subs    a file for each recording
  relaxpy transcribe interview.m4a --words --format json     with the times of words
  relaxpy transcribe meeting.m4a --vad-filter --batch-size 8         without silence, windows together
  arecord -f S16_LE -r 16000 -t raw | relaxpy transcribe --live -    while it is spoken
  relaxpy transcribe vortrag.webm --language de --task translate    in English

A recording is a file of sound, or of video with sound. A model is a folder with a checkpoint of Whisper, Moonshine,
wav2vec 2.0, HuBERT or Parakeet, or a name on the Hugging Face hub; it is compiled at its first use, and kept.
"""
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--model", "-m", default=MODEL, show_default=True, metavar="MODEL", help="The model.")
@click.option(
    "--format",
    "-f",
    "file_format",
    type=click.Choice(["txt", "srt", "vtt", "tsv", "json"]),
    default="txt",
    show_default=True,
    help="What is written.",
)
@click.option(
    "--output-dir",
    "-o",
    type=click.Path(file_okay=False),
    help="Write a file for each recording here, in place of stdout.",
)
@click.option("--words", is_flag=True, help="Find the times of words, too.")
@click.option("--language", "-l", metavar="CODE", help="What is spoken (default: it is heard).")
@click.option(
    "--task",
    type=click.Choice(["transcribe", "translate"]),
    default="transcribe",
    show_default=True,
    help="translate: to English.",
)
@click.option(
    "--initial-prompt", metavar="TEXT", help="Text before the recording: names, spelling."
)
@click.option("--hotwords", metavar="TEXT", help="Words that come up, for every window.")
@click.option("--clip-timestamps", metavar="S,S,…", help="Only from second to second, in pairs.")
@click.option(
    "--temperature", type=click.FloatRange(min=0), help="Write at this one only, without retries."
)
@click.option(
    "--beam-size",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Beams of a search.",
)
@click.option("--without-timestamps", is_flag=True, help="One segment for each window.")
@click.option(
    "--independent", is_flag=True, help="Windows do not know the text before them: no loops."
)
@click.option(
    "--trim-words", is_flag=True, help="Words do not begin or end in silence (with --words)."
)
@click.option(
    "--vad-filter", is_flag=True, help="Cut out silence before the model hears the recording."
)
@click.option(
    "--vad-model",
    type=click.Path(),
    metavar="FILE",
    help="Silero's ONNX file, which tells speech from silence (default: loudness does).",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Hear so many windows of a recording together, cut at pauses.",
)
@click.option(
    "--live",
    is_flag=True,
    help="FILE is -: samples from stdin, while they come (16 kHz, one channel, int16).",
)
@click.option(
    "--max-line-width", type=click.IntRange(min=1), metavar="N", help="Characters of a line."
)
@click.option(
    "--max-line-count", type=click.IntRange(min=1), metavar="N", help="Lines of a subtitle."
)
@click.option(
    "--max-words-per-line", type=click.IntRange(min=1), metavar="N", help="Words of a subtitle."
)
@click.option("--highlight-words", is_flag=True, help="Underline each word as it is spoken.")
@options(*SCHEME_OPTIONS)
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Number of threads.")
@click.option("--target", default="llvm", show_default=True, help="The target.")
@click.option("--no-cache", is_flag=True, help="Keep nothing of the compiled model.")
def transcribe(
    files: tuple[str, ...],
    model: str,
    file_format: str,
    output_dir: str | None,
    words: bool,
    language: str | None,
    task: str,
    initial_prompt: str | None,
    hotwords: str | None,
    clip_timestamps: str | None,
    temperature: float | None,
    beam_size: int,
    without_timestamps: bool,
    independent: bool,
    trim_words: bool,
    vad_filter: bool,
    vad_model: str | None,
    batch_size: int | None,
    live: bool,
    **given: Any,
) -> None:
    """Write what is spoken in recordings, FILE..., as text or subtitles."""
    from relaxpy.speech.formats import SubtitleOptions, written

    layout = SubtitleOptions(**{name: given.pop(name) for name in _LAYOUT})
    places = _places(files, file_format, output_dir)
    asked: dict[str, Any] = {
        "language": language, "task": task, "initial_prompt": initial_prompt, "hotwords": hotwords,
        "beam_size": beam_size, "without_timestamps": without_timestamps,
        "condition_on_previous_text": not independent, "word_timestamps": words or layout.needs_words,
        "trim_words": trim_words, "vad_filter": vad_filter, "batch_size": batch_size,
    }  # fmt: skip
    if vad_model is not None:
        asked["vad_parameters"] = {"model": vad_model}
    if temperature is not None:
        asked["temperature"] = temperature
    if clip_timestamps is not None:
        asked["clip_timestamps"] = clip_timestamps
    if live:
        asked = _asked_live(files, asked, file_format, output_dir)
        _hear_live(_load(model, **given), asked)
        return
    transcriber = _load(model, **given)
    with ExitStack() as stack:
        progress = _Progress(stack, len(files))

        def parts(file: str) -> Iterator[str]:
            transcription = transcriber.transcribe(file, **asked)
            progress.begins(transcription)
            heard = progress.heard(transcription)
            yield from written(heard, file_format, layout, transcription.info.language)
            progress.ends(transcription)

        failed = _write(files, places, parts, progress)
    for file, error in failed:
        click.echo(f"{file}: {error.render()}" if len(files) > 1 else error.render(), err=True)
    if failed:
        raise click.exceptions.Exit(1)


def _asked_live(
    files: tuple[str, ...], asked: dict[str, Any], file_format: str, output_dir: str | None
) -> dict[str, Any]:
    """The options of `Transcriber.live`. Raises: UsageError (`bad-arguments`) for others."""
    if files != ("-",):
        raise UsageError(
            "bad-arguments",
            f"--live hears stdin, whose name is -, and the recording is {files[0]}",
            help="arecord -f S16_LE -r 16000 -t raw | relaxpy transcribe --live -",
        )
    names = ("language", "task", "initial_prompt", "hotwords", "beam_size", "temperature")
    found = {name: asked.pop(name) for name in names if name in asked}
    neutral = {"condition_on_previous_text": True}
    odd = [name for name, value in asked.items() if value and value != neutral.get(name)]
    odd += ["independent"] * (not asked["condition_on_previous_text"])
    odd += ["format"] * (file_format != "txt") + ["output-dir"] * (output_dir is not None)
    if odd:
        option = "words" if odd[0] == "word_timestamps" else odd[0].replace("_", "-")
        raise UsageError(
            "bad-arguments", f"--live writes text as it comes, and takes no --{option}"
        )
    return found


def _hear_live(transcriber: AnyTranscriber, asked: dict[str, Any]) -> None:
    """Write what is spoken into stdin. On a terminal, what may change is shown after what is certain."""
    import numpy as np

    from relaxpy.speech import Transcriber

    if not isinstance(transcriber, Transcriber):
        raise UsageError(
            "bad-arguments",
            f"{transcriber.name} {transcriber.nature}, and takes no --live",
            help="a Whisper takes it: --model openai/whisper-base",
        )
    hearing, held, begun = transcriber.live(**asked), b"", False
    is_shown = sys.stderr.isatty() and sys.stdout.isatty()

    def write(settled: str, provisional: str) -> None:
        nonlocal begun
        text = settled if begun else settled.lstrip()
        begun = begun or bool(text)
        if is_shown:
            click.echo("\x1b[0J", err=True, nl=False)
        sys.stdout.write(text)
        sys.stdout.flush()
        if is_shown:  # grey, and the cursor stays before it
            click.echo(f"\x1b7\x1b[2m{printable(provisional)}\x1b[0m\x1b8", err=True, nl=False)

    source: Any = sys.stdin.buffer  # read1 gives what there is
    while True:
        data: bytes = source.read1(1 << 16)
        if not data:
            break
        held += data
        whole = len(held) // 2 * 2
        part, held = held[:whole], held[whole:]
        text = hearing.feed(np.frombuffer(part, "<i2").astype(np.int16))
        write(text.settled, text.provisional)
    write(hearing.finish().settled + "\n", "")


def _places(files: tuple[str, ...], file_format: str, output_dir: str | None) -> list[Path | None]:
    """Where the text of each recording goes; None: stdout. Raises: UsageError (`bad-arguments`) for two recordings
    whose texts would have the same name."""
    if output_dir is None:
        return [None] * len(files)
    found = [Path(output_dir) / f"{Path(file).stem}.{file_format}" for file in files]
    for k, place in enumerate(found):
        if place in found[:k]:
            raise UsageError(
                "bad-arguments",
                f"{files[found.index(place)]} and {files[k]} would both be written to {place}",
                help="give them in two commands, with an --output-dir each",
            )
    Path(output_dir).mkdir(parents=True, exist_ok=True)
    return [*found]


def _write(
    files: tuple[str, ...],
    places: list[Path | None],
    parts: Callable[[str], Iterator[str]],
    progress: _Progress,
) -> list[tuple[str, RelaxError]]:
    """Write the texts of all recordings, in their order. The first one to stdout is written as it comes. What fails is
    no reason to leave out the others."""
    from relaxpy.files import write_text

    failed: list[tuple[str, RelaxError]] = []
    if len(files) == 1 and places[0] is None:
        try:
            for part in parts(files[0]):
                progress.print(part)
        except RelaxError as error:
            failed.append((files[0], error))
        return failed
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(_joined, parts, file) for file in files]
        try:
            for file, place, future in zip(files, places, running, strict=True):
                try:
                    text = future.result()
                except RelaxError as error:
                    failed.append((file, error))
                    continue
                if place is None:
                    progress.print(text, file)
                else:
                    write_text(place, text)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return failed


def _joined(parts: Callable[[str], Iterator[str]], file: str) -> str:
    return "".join(parts(file))


class _Progress:
    """Seconds of sound that were heard, on a terminal."""

    def __init__(self, stack: ExitStack, files: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.completed:.0f} of {task.total:.0f} s"),
            BarColumn(),
            TextColumn("{task.fields[times]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True, highlight=False),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._is_shown = sys.stderr.isatty() and sys.stdout.isatty()
        stack.enter_context(self._bar)
        self._task = self._bar.add_task("", total=0, times="")
        self._files = files

    def begins(self, transcription: Transcription | SoundTranscription) -> None:
        """A recording was opened."""
        total = (self._bar.tasks[0].total or 0) + transcription.info.duration
        self._bar.update(self._task, total=total)

    def heard(self, transcription: Transcription | SoundTranscription) -> Iterator[Any]:
        """The segments of a recording."""
        before = 0.0
        for segment in transcription:
            self._add(transcription.position - before)
            before = max(before, transcription.position)
            yield segment
        self._add(transcription.info.duration - before)

    def _add(self, seconds: float) -> None:
        if seconds > 0:
            task = self._bar.tasks[0]
            speed = (task.completed + seconds) / max(task.elapsed or 0.0, 1e-3)
            self._bar.update(
                self._task, advance=seconds, times=f"{speed:.0f} times as fast as it is spoken"
            )

    def ends(self, transcription: Transcription | SoundTranscription) -> None:
        """A recording was heard to its end."""
        info = transcription.info
        if info.all_language_probs is not None and self._files == 1:
            click.echo(f"language: {info.language} ({info.language_probability:.0%})", err=True)

    def print(self, text: str, file: str = "") -> None:
        """Text to stdout, above the bar."""
        if file:
            click.echo(f"{file}:", err=True)
        if self._is_shown:
            self._bar.console.print(printable(text), end="", markup=False, soft_wrap=True)
        else:
            sys.stdout.write(text)
            sys.stdout.flush()


def _load(
    place: str, *, bits: str | None, dtype: str | None, cache_dtype: str | None, check_numbers: bool,
    threads: int | None, target: str, no_cache: bool,
) -> AnyTranscriber:  # fmt: skip
    """The model of the options, with a note on the terminal while it is loaded."""
    from rich.console import Console

    import relaxpy
    from relaxpy.speech import load_transcriber

    place = on_this_machine(place)
    if threads is not None:
        relaxpy.set_num_threads(threads)
    with Console(stderr=True, highlight=False).status(
        "loading the model; the first time it is compiled"
    ):
        return load_transcriber(
            place,
            scheme=scheme_of(place, bits, dtype, cache_dtype, check_numbers),
            target=target,
            keep=not no_cache,
        )
