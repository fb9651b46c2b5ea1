"""`relaxpy explain`: an HTML page about the build of a program."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from relaxpy.cli.outputs import OutputFile
from relaxpy.files import write_text


@click.command(
    epilog="""
\b
Examples:
  relaxpy explain mlp.py -o mlp.html                     one page, to be opened in a browser
  relaxpy explain model.py --params model.npz --bound n=2048 -o model.html
  relaxpy explain mlp.py --without fuse-ops -o apart.html

The page needs no network and no other file.
""",
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--output",
    "-o",
    type=OutputFile(),
    help="Where the page goes.  [default: the program's name with .html]",
)
@click.option(
    "--target",
    "-t",
    default="llvm",
    show_default=True,
    help="What to compile for. Plain llvm is this CPU.",
)
@click.option(
    "--params",
    type=click.Path(exists=True, dir_okay=False),
    help="An .npz or .safetensors file; its arrays are bound to the parameters of the same names.",
)
@click.option(
    "--bound",
    "bounds",
    multiple=True,
    metavar="NAME=INT",
    help="The largest value of a symbol: the memory is shown for it.",
)
@click.option("--without", multiple=True, metavar="PASS", help="Leave a pass out.")
def explain(
    file: str,
    output: Path | None,
    target: str,
    params: str | None,
    bounds: tuple[str, ...],
    without: tuple[str, ...],
) -> None:
    """Write a page about the build of the program in FILE: the module after each pass, fusion decisions and their
    reasons, memory, kernels, time. A build that fails is shown up to the failing step; the exit code is then 1."""

    from relaxpy.build.pipeline import default_pipeline
    from relaxpy.build.progress import progress_bar
    from relaxpy.cli.inputs import read_arrays, read_sizes
    from relaxpy.cli.source import read_module
    from relaxpy.explain import explain as explain_build
    from relaxpy.explain import page

    mod = read_module(file)
    title = "stdin" if file == "-" else Path(file).name
    path = output or Path("program.html" if file == "-" else file).with_suffix(".html")
    limits = read_sizes(bounds, "--bound")
    with progress_bar(None) as on_kernel:
        explanation = explain_build(
            mod,
            target,
            None if params is None else read_arrays(params),
            pipeline=default_pipeline(target, without=without),
            bounds=limits,
            title=title,
            progress=on_kernel,
        )
    text = page(explanation)
    write_text(path, text)
    click.echo(f"{path}: {len(text.encode()) / 1024:,.0f} KiB")
    if explanation.error is not None:
        click.echo(explanation.error.render(), err=True)
        sys.exit(1)
