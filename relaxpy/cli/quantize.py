"""`relaxpy quantize`: a quantised copy of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import click

from relaxpy.cli.language_model import on_this_machine
from relaxpy.cli.outputs import json_option, print_json


@click.command(
    epilog="""
\b
Examples:
  relaxpy quantize ./TinyLlama ./TinyLlama-4bit
  relaxpy quantize model.gguf ./model-8bit --bits 8
  relaxpy quantize ./TinyLlama ./out --zero zero_point --group 64 --overwrite

The source is a folder with config.json and safetensors, quantised or not, or a GGUF file. The result is a folder in the
format of compressed-tensors (pack-quantized), which transformers, vLLM and relaxpy load; that of a GPT-2 or a gpt-oss,
whose matrices that format does not have, relaxpy alone. It appears when it is complete.
"""
)
@click.argument("source")
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--bits",
    type=click.Choice(["3", "4", "8"]),
    default="4",
    show_default=True,
    help="Bits of a weight.",
)
@click.option("--group", type=click.IntRange(0, 1 << 20), default=32, show_default=True,
              help="Neighbours that share a scale; 0: a whole row.")  # fmt: skip
@click.option("--zero", type=click.Choice(["symmetric", "zero_point"]), default="symmetric", show_default=True,
              help="The value of code 0.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace a checkpoint that is there.")
@json_option
def quantize(
    source: str, target: Path, bits: str, group: int, zero: str, overwrite: bool, as_json: bool
) -> None:
    """Write a quantised copy of a checkpoint."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from relaxpy.checkpoints import open_checkpoint
    from relaxpy.checkpoints.quantize import quantize_checkpoint
    from relaxpy.codes import Codes

    folder = Path(on_this_machine(source))
    codes = Codes(int(bits), group or None, "zero_point" if zero == "zero_point" else "symmetric")
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    console = Console(stderr=True, highlight=False)
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("quantising", total=open_checkpoint(folder).nbytes)
        report = quantize_checkpoint(
            folder, target, codes, overwrite, lambda _, size: bar.advance(task, size)
        )
    worst = max(report.drift, key=lambda name: report.drift[name])
    mean = sum(report.drift.values()) / len(report.drift)
    if as_json:
        print_json(
            {
                "target": str(target),
                "bytes_before": report.bytes_before,
                "bytes_after": report.bytes_after,
                "drift": report.drift,
            }
        )
        return
    click.echo(
        f"{target}: {report.bytes_after / 1e6:.1f} MB, before {report.bytes_before / 1e6:.1f} MB; "
        f"{len(report.drift)} matrices in {bits} bits"
    )
    click.echo(
        f"error of a matrix over its size: {mean:.2%} on average, at most {report.drift[worst]:.2%} ({worst})"
    )
    if report.is_own:
        click.echo("relaxpy alone loads it: other libraries have no codes of such matrices")
