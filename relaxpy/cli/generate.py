"""`relaxpy generate`: continue a text with a language model."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from relaxpy.cli.language_model import (
    IMAGE_OPTION,
    MMPROJ_OPTION,
    MODEL_OPTIONS,
    SAMPLING_OPTIONS,
    as_data,
    check_images,
    load_model,
    model_and_text,
    on_this_machine,
    options,
    read_file,
    read_stdin,
    show_pieces,
    summary,
    take_sampling,
)
from relaxpy.cli.outputs import json_option, print_json
from relaxpy.errors import UsageError

if TYPE_CHECKING:
    from relaxpy.llm import Generation, LanguageModel

_LONGEST = 60
"""The most characters of a prompt that a note repeats."""


@click.command(
    epilog="""
\b
Examples:
  relaxpy generate "def fibonacci(n):" -n 60         the model that ships with relaxpy
  relaxpy generate ./TinyLlama "Once upon a time" --temperature 0.8 --seed 7
  relaxpy generate Qwen/Qwen2.5-0.5B "Once upon a time"    a model of the Hugging Face hub, downloaded once
  cat story.txt | relaxpy generate ./TinyLlama       the prompt from stdin
  relaxpy generate ./TinyLlama "1, 2, 3," --stop 7 --json
  relaxpy generate ./llava "USER: <image> What is it? ASSISTANT:" --image cat.png

A model is the folder of a checkpoint (config.json, model.safetensors, tokenizer.json), a GGUF file, or a name on the
Hugging Face hub, OWNER/MODEL, OWNER/MODEL@REVISION or OWNER/MODEL:FILE.gguf (`relaxpy download --help`).
It is compiled and packed at the first use, and both are kept. Sampling is the checkpoint's own where no option is
given; many take the most probable token.

The prompt is continued as it stands, like a file that breaks off: by a model that was trained to answer, too, which may
end a question at once. `relaxpy chat` asks such a model, in the template of its checkpoint.

The prompt has the placeholder of the model (LLaVA: <image>) where a picture is; without any, pictures come first.
"""
)
@click.argument("arguments", nargs=-1, metavar="[MODEL] [PROMPT]")
@click.option("--file", "-f", metavar="PATH", help="A text file with the prompt; - is stdin.")
@options(IMAGE_OPTION, MMPROJ_OPTION, *SAMPLING_OPTIONS, *MODEL_OPTIONS)
@json_option
def generate(
    arguments: tuple[str, ...],
    file: str | None,
    images: tuple[str, ...],
    mmproj: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Continue PROMPT (an argument, a file, or stdin) with a language model, and print the text as it is written."""

    from rich.console import Console

    given_place, prompt = model_and_prompt(arguments, file)
    model_place = given_place and on_this_machine(given_place)
    check_images(model_place, images, mmproj)
    sampling = take_sampling(given)
    model = load_model(model_place, mmproj=mmproj, quiet=as_json, **given)
    if model.eyes is not None:
        mark = model.tokenizer.decode([model.eyes.shape.placeholder], special=True)
        if images:
            prompt = with_placeholders(mark, prompt, len(images))
        elif mark in prompt:
            raise UsageError(
                "bad-prompt",
                f"the prompt has {prompt.count(mark)} of {mark}, the place of a picture, and there is no picture",
                help="relaxpy generate … --image PATH",
            )
    pieces = model.generate(
        prompt, images=images, **sampling, stop_loops="max_tokens" not in sampling
    )
    notes = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        if as_json:
            for _ in pieces:
                pass
            print_json(as_data(pieces))
        else:
            show_pieces(pieces)
    finally:
        if pieces.tokens and not as_json:
            notes.print(summary(pieces), style="dim", markup=False)
            if note := note_on_chats(model, pieces, given_place, prompt):
                notes.print(note, markup=False)


def with_placeholders(placeholder: str, prompt: str, count: int) -> str:
    """The prompt with a placeholder for each picture: if it has none, they come first."""
    return prompt if placeholder in prompt else f"{placeholder * count}\n{prompt}"


def note_on_chats(
    model: LanguageModel, pieces: Generation, place: str | None, prompt: str
) -> str | None:
    """What to write instead, where a model that has a chat template did not continue a prompt without one: such models
    have learned that an answer follows a question only where the template says that one begins."""
    if (
        pieces.text.strip()
        or pieces.finish_reason != "stop"
        or pieces.stop is not None
        or not model.tokenizer.templates
    ):
        return None
    asked = shlex.quote(prompt) if len(prompt) <= _LONGEST and prompt.isprintable() else '"…"'
    command = ["relaxpy", "chat", *([] if place is None else [shlex.quote(place)]), asked]
    if place is None and len(prompt.split()) == 1:  # a word alone would be a model
        command = ["echo", asked, "|", "relaxpy", "chat"]
    return (
        "note: the model ended the text at once. generate continues a text as it stands, and this model is one for "
        f"chats, which answers: {' '.join(command)}"
    )


def model_and_prompt(arguments: tuple[str, ...], file: str | None) -> tuple[str | None, str]:
    """The place of the model (None: the one that ships) and the prompt. Raises: UsageError."""
    place, prompt = model_and_text(arguments, 'relaxpy generate MODEL "Once upon a time"')
    if prompt is not None and file is not None:
        raise UsageError(
            "bad-arguments",
            "the prompt is given both as an argument and with --file",
            help="give one",
        )
    if prompt is not None and prompt != "-":
        return place, prompt
    if file is not None and file != "-":
        return place, read_file(file)
    if prompt is None and file is None and sys.stdin.isatty():
        raise UsageError(
            "bad-arguments",
            "there is no prompt",
            help='write relaxpy generate "Once upon a time", or use --file PATH, or stdin',
        )
    return place, read_stdin()
