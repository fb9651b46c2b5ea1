"""`relaxpy classify`: what pictures show, by a model's own labels or by texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from relaxpy.cli.language_model import on_this_machine
from relaxpy.cli.options import option
from relaxpy.cli.outputs import json_option, print_json
from relaxpy.errors import UsageError

if TYPE_CHECKING:
    from relaxpy.models.picture_embedding import Label


@click.command(
    epilog="""
\b
Examples:
  relaxpy classify cat.jpg --model google/vit-base-patch16-224           the labels of the model
  relaxpy classify *.jpg -m openai/clip-vit-base-patch32 -l cat -l dog   labels of your own
  relaxpy classify cat.jpg -m ./siglip -l "a cat" --template "{}" --json

A model is a folder with a checkpoint of a ViT, DINOv2, CLIP or SigLIP, or a name on the Hugging Face hub. It is
compiled at its first use, and kept.
"""
)
@click.argument("pictures", nargs=-1, required=True, metavar="PICTURE...")
@click.option("--model", "-m", required=True, metavar="MODEL", help="The model.")
@click.option(
    "--label",
    "-l",
    "labels",
    multiple=True,
    metavar="TEXT",
    help="What a picture may be (repeatable), for a CLIP or SigLIP, which compares it with texts.",
)
@click.option(
    "--template",
    metavar="TEXT",
    help='What is said of a label, in place of {} (default: "This is a photo of {}.").',
)
@click.option(
    "--top", type=click.IntRange(min=1), default=5, show_default=True, help="Labels to show."
)
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16", "int8"]),
    default="float32",
    show_default=True,
    help="What products with weights are computed in.",
)
@option("--target")
@option("--no-cache")
@json_option
def classify(
    pictures: tuple[str, ...],
    model: str,
    labels: tuple[str, ...],
    template: str | None,
    top: int,
    precision: str,
    target: str,
    no_cache: bool,
    as_json: bool,
) -> None:
    """Tell what pictures, PICTURE..., show, the most probable first."""
    from rich.console import Console

    from relaxpy.models.picture_embedding import TEMPLATE, PictureEmbedder

    if template is not None and not labels:
        raise UsageError("bad-arguments", "--template is for labels of your own (--label)")
    place = on_this_machine(model)
    with Console(stderr=True, highlight=False).status("loading the model") as status:
        embedder = PictureEmbedder.from_checkpoint(
            place,
            target=target,
            cache=not no_cache,
            precision=precision,
            on_compile=lambda: status.update("compiling the model, once for every batch size"),
        )
    found = embedder.classify(
        pictures, labels or None, template=TEMPLATE if template is None else template
    )
    shown = [row[:top] for row in found]
    if as_json:
        print_json(
            [
                {"image": name, "labels": [label._asdict() for label in row]}
                for name, row in zip(pictures, shown, strict=True)
            ]
        )
        return
    for number, (name, row) in enumerate(zip(pictures, shown, strict=True)):
        if len(pictures) > 1:
            click.echo(f"{chr(10) * (number > 0)}{name}")
        show(row)


def show(row: list[Label]) -> None:
    """Prints labels with their probabilities, in percent."""
    for label in row:
        click.echo(f"{label.probability:7.1%}  {label.name}")
