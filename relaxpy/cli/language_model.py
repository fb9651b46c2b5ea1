"""The options of commands that run language models, and how they load one and show its text."""

from __future__ import annotations

import shlex
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from relaxpy.errors import RelaxError, UsageError

if TYPE_CHECKING:
    from relaxpy.checkpoints.hub import Download
    from relaxpy.llm import Generation, LanguageModel, Tokenizer
    from relaxpy.models.loaded import Scheme

F = TypeVar("F", bound=Callable[..., Any])
_WORTH_A_PLAN = 32 << 20
"""Bytes to download from which the memory is planned before."""

SCHEME_OPTIONS = (
    click.option(
        "--bits",
        type=click.Choice(["3", "4", "8", "none"]),
        help="Bits of a weight (default: 4, or as in a quantised checkpoint); none: as the checkpoint has it.",
    ),
    click.option(
        "--dtype",
        type=click.Choice(["float32", "bfloat16", "float16"]),
        help="Of the computation, and of weights that are not quantised (default: float32).",
    ),
    click.option(
        "--cache-dtype",
        type=click.Choice(["int8"]),
        help="Of keys and values; default: that of the computation.",
    ),
    click.option(
        "--check-numbers",
        is_flag=True,
        help="Check each layer for NaN and name the first that has some (slow).",
    ),
)
"""How weights and cache are kept (`relaxpy.models.loaded.Scheme`)."""

CONTEXT_OPTION = click.option(
    "--context",
    type=click.IntRange(min=1),
    metavar="N",
    help="The most tokens of a text, prompt included (default: the model's, at most 4096).",
)

MODEL_OPTIONS = (
    *SCHEME_OPTIONS,
    CONTEXT_OPTION,
    click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Number of threads."),
    click.option("--target", default="llvm", show_default=True, help="The target."),
    click.option("--no-cache", is_flag=True, help="Keep nothing of the compiled model."),
)
"""How a model is loaded."""

SAMPLING_OPTIONS = (
    click.option(
        "--max-tokens",
        "-n",
        type=click.IntRange(min=1),
        metavar="N",
        help="The most tokens to generate.",
    ),
    click.option(
        "--temperature", "-t", type=float, metavar="X", help="0 takes the most probable token."
    ),
    click.option("--top-k", type=int, metavar="N", help="Only the N most probable tokens."),
    click.option(
        "--top-p", type=float, metavar="X", help="Only the most probable tokens, X together."
    ),
    click.option(
        "--min-p", type=float, metavar="X", help="Only tokens X times as probable as the first."
    ),
    click.option(
        "--repetition-penalty", type=float, metavar="X", help="Above 1: repeat less of the text."
    ),
    click.option(
        "--presence-penalty", type=float, metavar="X", help="Subtracted if a token was generated."
    ),
    click.option("--frequency-penalty", type=float, metavar="X", help="The same for each time."),
    click.option("--seed", type=int, metavar="N", help="The same seed gives the same text."),
    click.option(
        "--stop", multiple=True, metavar="TEXT", help="End before this text (repeatable)."
    ),
)
"""How tokens are chosen; what is not given is the checkpoint's own choice."""
SAMPLING: Mapping[str, type[int | float]] = {
    "max_tokens": int, "temperature": float, "top_k": int, "top_p": float, "min_p": float, "repetition_penalty": float,
    "presence_penalty": float, "frequency_penalty": float, "seed": int,
}  # fmt: skip
"""The options that are numbers."""


IMAGE_OPTION = click.option(
    "--image",
    "images",
    multiple=True,
    metavar="PATH",
    help="A picture, for a model that sees (repeatable).",
)


MMPROJ_OPTION = click.option(
    "--mmproj",
    metavar="PATH",
    help="The projector of a GGUF model that sees (default: the mmproj*.gguf beside it).",
)


def check_images(place: str | None, images: Sequence[str], mmproj: str | None = None) -> None:
    """Can the pictures be read, and by the model? What is found before a model is compiled. Raises: UsageError."""
    if not images:
        return
    from relaxpy.checkpoints.config_file import config_of
    from relaxpy.checkpoints.gguf_projector import projector_of
    from relaxpy.embedded import embedded_model
    from relaxpy.llm.pictures import READERS, refused
    from relaxpy.vision.picture import read_picture

    folder = Path(place or embedded_model())
    kind = str((config_of(folder) or {}).get("model_type"))
    if kind not in READERS and projector_of(folder, mmproj) is None:
        raise refused(folder.name, len(images))
    for each in images:
        read_picture(each)


def options(*groups: Callable[[F], F]) -> Callable[[F], F]:
    """A decorator that adds options to a command, in this order."""

    def add(function: F) -> F:
        for option in reversed(groups):
            function = option(function)
        return function

    return add


def take_sampling(given: dict[str, Any]) -> dict[str, Any]:
    """Remove the options of sampling from those of a command, and return those that were given."""
    names = (*SAMPLING, "stop")
    return {name: value for name in names if (value := given.pop(name)) not in (None, ())}


def scheme_of(
    place: str | None,
    bits: str | None,
    dtype: str | None,
    cache_dtype: str | None,
    check_numbers: bool = False,
) -> Scheme | None:
    """The scheme that the options ask for; None: they ask for nothing. Without bits the weights are kept as they are
    by default: those of a quantised checkpoint in its codes. Raises: UsageError (`bad-checkpoint`)."""
    from relaxpy.checkpoints import open_checkpoint
    from relaxpy.embedded import embedded_model
    from relaxpy.models.loaded import Scheme

    if bits is dtype is cache_dtype is None and not check_numbers:
        return None
    if bits is None:
        own = Scheme.of(open_checkpoint(place or embedded_model()))
    else:
        own = Scheme(None, activations=None) if bits == "none" else Scheme(int(bits))
    return replace(
        own,
        dtype=dtype or own.dtype,
        cache_dtype=cache_dtype or own.cache_dtype,
        check_numbers=check_numbers,
    )


def load_model(
    place: str | None,
    *,
    bits: str | None,
    dtype: str | None,
    cache_dtype: str | None,
    check_numbers: bool,
    context: int | None,
    threads: int | None,
    target: str,
    no_cache: bool,
    mmproj: str | None = None,
    tokenizer: Tokenizer | None = None,
    quiet: bool = False,
) -> LanguageModel:
    """The model of a command's options, with a note on the terminal while it is loaded, and unless `quiet` a line on
    what it is."""
    from rich.console import Console

    import relaxpy
    from relaxpy import llm

    if threads is not None:
        relaxpy.set_num_threads(threads)
    with Console(stderr=True, highlight=False).status(
        "loading the model; the first time it is compiled"
    ):
        loaded = llm.load(
            place,
            scheme=scheme_of(place, bits, dtype, cache_dtype, check_numbers),
            context=context,
            target=target,
            keep=not no_cache,
            tokenizer=tokenizer,
            mmproj=mmproj,
        )
    if not quiet:
        click.echo(f"{loaded.name}: {loaded.decoder.scheme.described()}, {target}", err=True)
    return loaded


def on_this_machine(place: str, update: bool = False) -> str:
    """The place of a model on this machine: what is given, or the files of a model on a hub, which are downloaded if
    they are not here. What it takes is shown before."""
    from relaxpy.checkpoints.hub import local_checkpoint

    return str(local_checkpoint(place, _announce, update=update))


def _announce(download: Download) -> None:
    """Shows what is downloaded, and the memory that it will take."""
    from relaxpy.checkpoints.hub import headers_alone
    from relaxpy.models.decoder_plan import plan_decoder
    from relaxpy.runtime.inspect.units import shown

    count, there = len(download.left), len(download.sizes) - len(download.left)
    here = f" ({there} more are here)" if there else ""
    click.echo(
        f"{download.name} at {download.commit[:12]}: {count} file{'s' * (count != 1)}, {shown(download.nbytes)}, "
        f"into {download.folder}{here}",
        err=True,
    )
    if download.nbytes < _WORTH_A_PLAN:
        return
    with suppress(RelaxError), headers_alone(download.name) as headers:
        plan = plan_decoder(headers)
        fits = {True: "it fits", False: "it does not fit", None: "what is free is unknown"}
        click.echo(
            f"to run, in its default scheme with a context of {plan.context} tokens, it takes {shown(plan.total)}: "
            f"{fits[plan.fits]}",
            err=True,
        )


def is_hub_name(text: str) -> bool:
    """Whether a text looks like the name of a model on a hub, OWNER/MODEL."""
    from relaxpy.checkpoints.hub import HubName

    return HubName.of(text) is not None


def is_place(text: str) -> bool:
    """Whether an argument is the place of a model: it is there, or looks like a path, or like a name on a hub of
    models."""
    if text.startswith(("/", "./", "../", "~")) and not any(c.isspace() for c in text):
        return True
    if is_hub_name(text):
        return True
    try:
        return bool(text.strip()) and (text.endswith(".gguf") or Path(text).is_dir())
    except (OSError, ValueError):  # too long for a path
        return False


def model_and_text(
    arguments: Sequence[str], example: str, words: bool = True
) -> tuple[str | None, str | None]:
    """The place of a model and a text, each of which may be left out, of a command's arguments. Unless `words`, a word
    alone is a place. Raises: UsageError."""
    if len(arguments) > 2:
        raise UsageError(
            "bad-arguments",
            f"a model and a text are expected, got {len(arguments)} arguments",
            help=f"put the text in quotes: {example}",
        )
    if len(arguments) == 2:
        if (
            is_place(arguments[1])
            and not is_place(arguments[0])
            and not Path(arguments[0]).exists()
        ):
            raise UsageError(
                "bad-arguments", "the model comes before the text", help=f"write {example}"
            )
        return arguments[0], arguments[1]
    if arguments and (is_place(arguments[0]) or (not words and len(arguments[0].split()) == 1)):
        word = arguments[0]
        if not is_place(word) and not Path(word).exists():
            raise UsageError(
                "bad-arguments",
                f"a word alone is a model, and there is no folder or file {word} here",
                help=f"a name on the Hugging Face hub is OWNER/{word}; as a message it is: "
                f"echo {shlex.quote(word)} | relaxpy chat",
            )
        return word, None
    return None, arguments[0] if arguments else None


def show_pieces(pieces: Iterable[str]) -> None:
    """Write a text to stdout, piece by piece, and an end of line after it."""
    is_terminal, last = sys.stdout.isatty(), "\n"
    try:
        for piece in pieces:
            sys.stdout.write(printable(piece) if is_terminal else piece)
            sys.stdout.flush()
            last = piece or last
    finally:
        if not last.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()


def printable(text: str) -> str:
    """The text without control characters, by which it could change the terminal."""
    return "".join(
        "\ufffd" if unicodedata.category(char) == "Cc" and char not in "\n\t" else char
        for char in text
    )


ENDS = {
    "stop": "ended by itself", "length": "ended at the limit", "cancelled": "interrupted",
    "repetition": "ended since it repeats itself",
}  # fmt: skip
"""Why a text ended, in words."""


def summary(pieces: Generation) -> str:
    """One line on how long a text took."""
    usage, timings = pieces.usage, pieces.timings
    found = f", {usage.cached_tokens} of them cached" if usage.cached_tokens else ""
    end = (
        f"ended before {pieces.stop!r}" if pieces.stop else ENDS.get(pieces.finish_reason or "", "")
    )
    return (
        f"prompt {usage.prompt_tokens} tokens{found} in {timings.prompt:.2f} s "
        f"({timings.prompt_per_second:.0f} tokens/s); answer {usage.completion_tokens} tokens in "
        f"{timings.decoding:.2f} s ({timings.per_second:.1f} tokens/s), {end}"
    )


def as_data(pieces: Generation) -> Mapping[str, Any]:
    """A text that has ended, as JSON data."""
    usage, timings = pieces.usage, pieces.timings
    return {
        "text": pieces.text,
        "finish_reason": pieces.finish_reason,
        "stop": pieces.stop,
        "seed": pieces.sampling.seed,
        "tokens": pieces.tokens,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
        },
        "timings": {
            "prompt": timings.prompt,
            "decoding": timings.decoding,
            "prompt_per_second": timings.prompt_per_second,
            "per_second": timings.per_second,
        },
    }


def read_stdin() -> str:
    """The text of stdin. Raises: UsageError (`unreadable-file`)."""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError(
            "unreadable-file", f"stdin is not text in UTF-8 (byte {error.start})"
        ) from None


def read_file(path: str) -> str:
    """The text of a file. Raises: UsageError (`unreadable-file`)."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            "unreadable-file", f"{path} is not text in UTF-8 (byte {error.start})"
        ) from None
    except OSError as error:
        raise UsageError("unreadable-file", f"{path} cannot be read: {error.strerror}") from None
