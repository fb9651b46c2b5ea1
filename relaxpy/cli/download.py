"""`relaxpy download`: the files of a model of the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

import click

from relaxpy.cli.language_model import is_hub_name, on_this_machine
from relaxpy.cli.outputs import json_option, print_json
from relaxpy.errors import UsageError


@click.command(
    epilog="""
\b
Examples:
  relaxpy download Qwen/Qwen2.5-0.5B-Instruct
  relaxpy download Qwen/Qwen2.5-0.5B-Instruct@7ae5576       a revision: a branch, a tag or a commit
  relaxpy download bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M    a GGUF file of several, by a part of its name

Only the files that a model is read from are downloaded, into the cache that other programs of the hub use, too (HF_HOME
says where). A private model needs a token: `hf auth login`, or the variable HF_TOKEN. HF_ENDPOINT names another hub.
chat, generate, serve and the others download what is missing by themselves, and then ask the hub no more; this command
asks it for a newer version.
"""
)
@click.argument("name", metavar="OWNER/MODEL")
@json_option
def download(name: str, as_json: bool) -> None:
    """Download a model of the Hugging Face hub, or what is new of it, and print the place of its files."""
    if not is_hub_name(name):
        raise UsageError(
            "hub-name",
            f"{name} is no name of a model on a hub",
            help="a name is OWNER/MODEL; what is on this machine needs no download",
        )
    place = on_this_machine(name, update=True)
    if as_json:
        print_json({"name": name, "place": place, "version": Path(place).name})
    else:
        click.echo(place)
