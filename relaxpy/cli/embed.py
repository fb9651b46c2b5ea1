"""`relaxpy embed`: embeddings of sentences and pictures by a transformer model compiled with relaxpy."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relaxpy.cli.language_model import on_this_machine
from relaxpy.cli.options import option
from relaxpy.cli.outputs import OutputFile, json_option, print_json
from relaxpy.errors import UsageError
from relaxpy.files import replacing, write_text

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

    from relaxpy.models.sentence_embedding import SentenceEmbedder

TABLE_SENTENCES = range(2, 9)
"""The numbers of sentences for which a similarity table fits a terminal."""
PROGRESS_FROM = 256
"""The number of sentences from which a progress bar is shown."""
SHOWN = 100
"""The most sentences to print if nothing is saved."""


@click.command(
    epilog="""
\b
Examples:
  relaxpy embed "A cat sleeps." "A kitten naps."     vectors and their similarity
  relaxpy embed --file sentences.txt --save out.npy  one sentence a line
  cat sentences.txt | relaxpy embed --save out.json
  relaxpy embed --model ./my-bert "A sentence."      another BERT checkpoint
  relaxpy embed --precision int8 -f sentences.txt    products of bytes
  relaxpy embed -m ./clip --image *.jpg "a cat"      pictures, and texts in the same space

The model is all-MiniLM-L6-v2 unless --model says otherwise. It is compiled at the first use, once for every batch size
and length, and kept in the folder that `relaxpy cache` tells.
"""
)
@click.argument("sentences", nargs=-1)
@click.option(
    "--image",
    "images",
    multiple=True,
    metavar="PATH",
    help="A picture (repeatable); then arguments that are files are pictures, too. For a ViT, DINOv2, CLIP or SigLIP.",
)
@click.option(
    "--file", "-f", "file", metavar="PATH", help="A text file, one sentence a line; - is stdin."
)
@click.option(
    "--save",
    "-s",
    type=OutputFile(),
    help="Save the vectors: .npy (an array) or .json (with the sentences).",
)
@click.option(
    "--model",
    "-m",
    metavar="DIR",
    help="A checkpoint of a BERT, or of a model of pictures, or its name on the Hugging Face hub.",
)
@click.option("--target", default="llvm", show_default=True, help="The target.")
@click.option(
    "--max-tokens",
    type=int,
    metavar="N",
    help="Truncate sentences after N tokens (default: the limit of the model).",
)
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16", "int8"]),
    default="float32",
    show_default=True,
    help="What products with weights are computed in; int8 is faster, vectors differ a little; bfloat16: of pictures.",
)
@click.option(
    "--pooling",
    type=click.Choice(["cls", "mean"]),
    help="Of a ViT or DINOv2: the first position (cls, the default), or the mean of the patches.",
)
@option("--no-cache")
@json_option
def embed(
    sentences: tuple[str, ...],
    images: tuple[str, ...],
    file: str | None,
    save: Path | None,
    model: str | None,
    target: str,
    max_tokens: int | None,
    precision: str,
    pooling: str | None,
    no_cache: bool,
    as_json: bool,
) -> None:
    """Print or save the embeddings of SENTENCES (arguments, a file, or stdin), and of pictures."""

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    if save is not None and save.suffix not in (".npy", ".json"):
        raise UsageError(
            "bad-output", f"cannot save as {str(save)!r}", help="use the suffix .npy or .json"
        )
    pictures, sentences = pictures_of(images, sentences)
    only_pictures = bool(pictures) and not sentences and file is None
    texts = [] if only_pictures else read_sentences(sentences, file)
    from relaxpy.models.embedders import load_embedder

    model = model and on_this_machine(model)
    notes = Console(stderr=True, highlight=False)
    start = time.perf_counter()
    with notes.status("loading the model") as status:
        embedder = load_embedder(
            model,
            pooling=pooling,
            target=target,
            max_tokens=max_tokens,
            cache=not no_cache,
            precision=precision,
            on_compile=lambda: status.update(
                "compiling the model, once for every batch size and length"
            ),
        )
    loaded = time.perf_counter()
    with Progress(
        TextColumn("embedding"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=notes,
        transient=True,
        disable=len(texts) + len(pictures) < PROGRESS_FROM or not notes.is_terminal,
    ) as bar:
        task = bar.add_task("embedding", total=len(texts) + len(pictures))
        vectors, truncated = embedded(
            embedder, pictures, texts, lambda count: bar.advance(task, count)
        )
    finished = time.perf_counter()
    for i in truncated:
        notes.print(
            f"note: sentence {i + 1} is longer than {embedder.max_tokens} tokens and was truncated: "
            f"{shorten(texts[i], 40)}",
            markup=False,
            soft_wrap=True,
        )
    named = [*pictures, *texts]
    if as_json:
        print_json(rows(named, vectors, len(pictures)))
    elif save is None:
        show(named, vectors)
    if save is not None:
        write(save, named, vectors, len(pictures))
        click.echo(f"saved {save}", err=as_json)
    notes.print(
        f"{counted(len(pictures), len(texts))} × {vectors.shape[1]} numbers in "
        f"{(finished - loaded) * 1e3:.0f} ms (model ready after {loaded - start:.2f} s)",
        style="dim",
    )


def pictures_of(
    images: Sequence[str], arguments: Sequence[str]
) -> tuple[list[str], tuple[str, ...]]:
    """The pictures, and the arguments that are sentences: a shell writes the files of `--image *.jpg` as one value and
    arguments."""
    if not images:
        return [], tuple(arguments)
    files = [each for each in arguments if Path(each).is_file()]
    return [*images, *files], tuple(each for each in arguments if each not in files)


def embedded(
    embedder: SentenceEmbedder,
    pictures: Sequence[str],
    texts: Sequence[str],
    progress: Callable[[int], None],
) -> tuple[np.ndarray, tuple[int, ...]]:
    """The vectors of pictures, and then of texts; the numbers of texts that were truncated."""
    import numpy as np

    found: list[np.ndarray] = []
    truncated: tuple[int, ...] = ()
    if pictures:
        from relaxpy.models.picture_embedding import PictureEmbedder

        if not isinstance(embedder, PictureEmbedder):
            raise UsageError(
                "bad-arguments",
                "this model reads sentences, and no pictures",
                help="name a ViT, DINOv2, CLIP or SigLIP with --model",
            )
        found.append(embedder.embed_pictures(pictures, progress=progress))
    if texts:
        result = embedder.embed(texts, progress=progress)
        found.append(result.vectors)
        truncated = result.truncated
    return np.concatenate(found), truncated


def counted(pictures: int, sentences: int) -> str:
    """How many there are: "1 picture and 2 sentences"."""
    each = {"picture": pictures, "sentence": sentences}
    return " and ".join(f"{n} {word}{'s' * (n != 1)}" for word, n in each.items() if n)


def read_sentences(arguments: Sequence[str], file: str | None) -> list[str]:
    """The sentences: from the arguments, the nonblank lines of `file`, or stdin."""
    if arguments and file is not None:
        raise UsageError(
            "bad-arguments",
            "sentences are given both as arguments and with --file",
            help="give one",
        )
    if arguments:
        lines = list(arguments)
    elif file is not None and file != "-":
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise UsageError(
                "unreadable-file", f"{file} is not text in UTF-8 (byte {error.start})"
            ) from None
        except OSError as error:
            raise UsageError(
                "unreadable-file", f"{file} cannot be read: {error.strerror}"
            ) from None
    elif file == "-" or not sys.stdin.isatty():
        lines = sys.stdin.read().splitlines()
    else:
        lines = []
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise UsageError(
            "no-sentences",
            "there are no sentences to embed",
            help='write relaxpy embed "A sentence.", or use --file PATH, or stdin',
        )
    for line in found:
        if any("\ud800" <= character <= "\udfff" for character in line):
            raise UsageError(
                "unreadable-file", f"a sentence is not text in UTF-8: {shorten(ascii(line), 40)}"
            )
    if blank := len(lines) - len(found):
        lines_are = "line is" if blank == 1 else "lines are"
        click.echo(f"note: {blank} blank {lines_are} ignored", err=True)
    return found


def show(texts: Sequence[str], vectors: np.ndarray) -> None:
    """Prints the first elements of the vectors and, for a few sentences, their similarities."""

    from rich.console import Console

    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    for i, (text, vector) in enumerate(zip(texts[:SHOWN], vectors[:SHOWN], strict=True), 1):
        numbers = " ".join(f"{number:+.4f}" for number in vector[:6])
        console.print(f"{i:3}  {shorten(text, 48):48}  [{numbers} …]", markup=False)
    if len(texts) > SHOWN:
        console.print(
            f"… and {len(texts) - SHOWN} more; --save PATH writes all of them", markup=False
        )
    if len(texts) in TABLE_SENTENCES:
        console.print()
        console.print(similarity_table(texts, vectors, console.width))


def similarity_table(texts: Sequence[str], vectors: np.ndarray, width: int = 80) -> Table:
    """Cosine similarities of all pairs, in `width` columns. The nearest other sentence of each row is bold."""

    import numpy as np
    from rich.markup import escape
    from rich.table import Table

    cosines = vectors @ vectors.T
    table = Table(title="similarity (cosine)", title_justify="left")
    table.add_column("", justify="right")
    table.add_column(
        "sentence",
        no_wrap=True,
        overflow="ellipsis",
        max_width=max(6, width - 10 - 8 * len(texts)),
    )
    for i in range(len(texts)):
        table.add_column(str(i + 1), justify="right", min_width=5)
    for i, text in enumerate(texts):
        others = [cosines[i, j] if j != i else -2.0 for j in range(len(texts))]
        nearest = int(np.argmax(others))
        cells = [
            f"[bold]{c:.2f}[/]" if j == nearest else f"{c:.2f}" for j, c in enumerate(cosines[i])
        ]
        table.add_row(str(i + 1), escape(text), *cells)
    return table


def write(path: Path, texts: Sequence[str], vectors: np.ndarray, pictures: int = 0) -> None:
    """Saves as .npy (float32, one row each) or .json (a list of pictures and sentences, with their embeddings)."""

    import numpy as np

    if path.suffix == ".npy":
        with replacing(path) as beside, beside.open("wb") as file:
            np.save(file, vectors)
    else:
        text = json.dumps(rows(texts, vectors, pictures), ensure_ascii=False, indent=1)
        write_text(path, f"{text}\n")


def rows(texts: Sequence[str], vectors: np.ndarray, pictures: int = 0) -> list[dict[str, Any]]:
    """JSON data of each picture or sentence with its vector; the first `pictures` of `texts` are names of pictures.
    Numbers have nine digits, which determine a float32."""
    return [
        {
            "image" if k < pictures else "sentence": text,
            "embedding": [float(f"{number:.9g}") for number in vector],
        }
        for k, (text, vector) in enumerate(zip(texts, vectors, strict=True))
    ]


def shorten(text: str, width: int) -> str:
    """`text` truncated to `width` characters."""
    return text if len(text) <= width else text[: width - 1] + "…"
