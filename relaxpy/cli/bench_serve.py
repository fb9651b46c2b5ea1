"""`relaxpy bench-serve`: measure a server under load."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relaxpy.cli.outputs import json_option, print_json
from relaxpy.errors import UsageError
from relaxpy.files import write_text

if TYPE_CHECKING:
    from relaxpy.server.bench import Result


@click.command(
    epilog="""
\b
Examples:
  relaxpy bench-serve                                  64 requests at once to http://127.0.0.1:8000
  relaxpy bench-serve --rate 4 --requests 200          4 a second, at random times
  relaxpy bench-serve http://host:8000 --concurrency 16 --shared 0.8 --plot times.svg

It speaks OpenAI's /v1/completions, so other servers can be measured as well; those that do not know the field
ignore_eos may end answers early.
"""
)
@click.argument("url", default="http://127.0.0.1:8000")
@click.option(
    "--requests",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    metavar="N",
    help="How many.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="X",
    help="Requests a second on average, at random times (Poisson); without it all come at once.",
)
@click.option(
    "--concurrency", type=click.IntRange(min=1), metavar="N", help="The most requests at once."
)
@click.option(
    "--prompt-words",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="The words of a prompt.",
)
@click.option(
    "--max-tokens",
    "-n",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    metavar="N",
    help="The tokens of an answer.",
)
@click.option(
    "--shared",
    type=click.FloatRange(0, 1),
    default=0,
    show_default=True,
    metavar="X",
    help="The fraction of a prompt that all have in common.",
)
@click.option("--model", default="", metavar="NAME", help="The default is the server's first one.")
@click.option(
    "--api-key",
    default="",
    envvar="RELAXPY_API_KEY",
    metavar="KEY",
    help="Also from RELAXPY_API_KEY.",
)
@click.option("--seed", type=int, default=0, metavar="N", help="Of prompts and times.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Write the distributions as SVG.",
)
@json_option
def bench_serve(url: str, plot: Path | None, as_json: bool, **given: Any) -> None:
    """Send requests to the server at URL, and show throughput, the time to the first token and between tokens."""
    try:
        from relaxpy.server.bench import Load, measure
    except ImportError as error:
        raise UsageError(
            "extra-missing",
            f"measuring a server needs the package {error.name}",
            help="pip install 'relaxpy[serve]'",
        ) from None
    if plot is not None and plot.suffix != ".svg":
        raise UsageError("bad-output", f"cannot write {str(plot)!r}", help="use the suffix .svg")
    result = asyncio.run(measure(Load(url.rstrip("/").removesuffix("/v1"), **given)))
    if as_json:
        print_json(result.data())
    else:
        show(result)
    if plot is not None:
        write_text(plot, result.svg())
        click.echo(f"wrote {plot}", err=as_json)


def show(result: Result) -> None:
    """The numbers as a table."""
    from rich.console import Console
    from rich.table import Table

    data = result.data()
    console = Console(highlight=False)
    cached = f", {data['cached_tokens']} of them cached" if data["cached_tokens"] else ""
    console.print(
        f"{data['answered']} of {result.load.requests} requests in {data['seconds']:.2f} s: "
        f"{data['requests_per_second']:.2f} requests/s, {data['completion_tokens_per_second']:.1f} tokens/s written; "
        f"prompts {data['prompt_tokens']} tokens{cached}"
    )
    for error, count in data["errors"].items():
        console.print(f"{count} failed: {error}", markup=False)
    names = {
        "first_token_ms": "first token", "between_tokens_ms": "between tokens", "whole_ms": "whole answer",
    }  # fmt: skip
    columns = [*data["first_token_ms"]]
    if not columns:
        return
    table = Table("milliseconds", *columns)
    for key, name in names.items():
        table.add_row(name, *(f"{data[key].get(column, 0):.1f}" for column in columns))
    console.print(table)
