"""`relaxpy translate`: texts in other languages."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from relaxpy.cli.language_model import (
    SCHEME_OPTIONS,
    on_this_machine,
    options,
    printable,
    read_file,
    read_stdin,
    scheme_of,
)
from relaxpy.errors import UsageError

if TYPE_CHECKING:
    from relaxpy.llm.translator import Translator


@click.command(
    epilog="""
\b
Examples:
  relaxpy translate "How are you?" --to de --model Helsinki-NLP/opus-mt-en-de
  relaxpy translate --file letter.txt --from en --to french --model facebook/nllb-200-distilled-600M > lettre.txt
  cat letter.txt | relaxpy translate --from de --to en --model ./m2m100
  relaxpy translate "How are you?" --to german --model google-t5/t5-small

A model is a folder with a checkpoint of Opus-MT (Marian), mBART, M2M-100, NLLB or T5, or a name on the Hugging Face
hub; it is compiled at its first use, and kept. A language is a code of the checkpoint, one of two letters, or a name;
one that the model does not know is refused with those that it knows. Lines are kept.
"""
)
@click.argument("text", required=False)
@click.option("--model", "-m", required=True, metavar="MODEL", help="The model.")
@click.option("--to", required=True, metavar="LANGUAGE", help="The language to translate to.")
@click.option(
    "--from", "source", metavar="LANGUAGE", help="That of the text, for models that read several."
)
@click.option("--file", "-f", metavar="PATH", help="A text file; - is stdin.")
@click.option(
    "--beam-size",
    type=click.IntRange(min=1),
    help="Beams of a search (default: as the checkpoint says).",
)
@click.option(
    "--max-tokens", "-n", type=click.IntRange(min=1), metavar="N", help="The most tokens of a line."
)
@options(*SCHEME_OPTIONS)
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Number of threads.")
@click.option("--target", default="llvm", show_default=True, help="The target.")
@click.option("--no-cache", is_flag=True, help="Keep nothing of the compiled model.")
def translate(
    text: str | None,
    model: str,
    to: str,
    source: str | None,
    file: str | None,
    beam_size: int | None,
    max_tokens: int | None,
    **given: Any,
) -> None:
    """Translate TEXT (an argument, a file, or stdin), and print it line by line."""
    from relaxpy.serve.beams import Beams

    lines = _text(text, file).removesuffix("\n").split("\n")
    translator = _load(model, **given)
    beams = translator.beams
    if beam_size is not None:
        beams = replace(beams or Beams(1), num_beams=beam_size)
    found = translator.translate(lines, to, source=source, max_tokens=max_tokens, beams=beams)
    is_terminal = sys.stdout.isatty()
    for line in found:
        sys.stdout.write(f"{printable(line) if is_terminal else line}\n")
        sys.stdout.flush()


def _text(text: str | None, file: str | None) -> str:
    """What is translated. Raises: UsageError."""
    if text is not None and file is not None:
        raise UsageError(
            "bad-arguments",
            "the text is given both as an argument and with --file",
            help="give one",
        )
    if text is not None and text != "-":
        return text
    if file is not None and file != "-":
        return read_file(file)
    if text is None and file is None and sys.stdin.isatty():
        raise UsageError(
            "bad-arguments",
            "there is no text",
            help='write relaxpy translate "How are you?" --to de, or use --file PATH, or stdin',
        )
    return read_stdin()


def _load(
    place: str, *, bits: str | None, dtype: str | None, cache_dtype: str | None, check_numbers: bool,
    threads: int | None, target: str, no_cache: bool,
) -> Translator:  # fmt: skip
    """The model of the options, with a note on the terminal while it is loaded."""
    from rich.console import Console

    import relaxpy
    from relaxpy.llm import translator

    place = on_this_machine(place)
    if threads is not None:
        relaxpy.set_num_threads(threads)
    with Console(stderr=True, highlight=False).status(
        "loading the model; the first time it is compiled"
    ):
        return translator.load_translator(
            place,
            scheme=scheme_of(place, bits, dtype, cache_dtype, check_numbers),
            target=target,
            keep=not no_cache,
        )
