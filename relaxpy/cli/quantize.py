"""`relaxpy quantize`: a quantised copy of a checkpoint, or an executable whose products are of integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from relaxpy.cli.language_model import on_this_machine
from relaxpy.cli.outputs import OutputFile, json_option, print_json
from relaxpy.errors import UsageError

EXECUTABLE = ".rxe"
_OF_FOLDERS = ("bits", "group", "zero", "overwrite")
"""The options of copies of checkpoints; the others, but for `--json`, are those of executables."""


@click.command(
    epilog="""
\b
Examples:
  relaxpy quantize ./TinyLlama ./TinyLlama-4bit
  relaxpy quantize model.gguf ./model-8bit --bits 8
  relaxpy quantize ./TinyLlama ./out --zero zero_point --group 64 --overwrite
  relaxpy quantize ./MiniLM minilm.rxe                     an encoder: products of int8
  relaxpy quantize resnet.onnx resnet.rxe --data samples   convolutions by calibration
  relaxpy quantize model.py model.rxe --params model.npz --data samples --keep-accuracy 0.99

If TARGET ends in .rxe, it is an executable whose matrix products and convolutions are of int8, with a table of what
each layer loses. SOURCE is then a script (.py), an ONNX model, or the folder of a BERT. Weights have a scale for each
output, and what they multiply one for each row, which needs no data; convolutions need --data, a folder of samples,
each an .npz file with the inputs by name, or an .npy file.

Otherwise TARGET is a folder. The source is a folder with config.json and safetensors, quantised or not, or a GGUF file.
The result is a folder in the
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
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="(.rxe) A folder of samples, each an .npz or .npy file.")  # fmt: skip
@click.option("--params", type=click.Path(exists=True, dir_okay=False),
              help="(.rxe) An .npz or .safetensors file with the weights of a script.")  # fmt: skip
@click.option("--function", metavar="NAME", help="(.rxe) The function that the data is for.")
@click.option("--float", "floats", multiple=True, metavar="LAYER",
              help="(.rxe) Leave these layers in floats: a name, or a pattern as layers.0.*; repeatable.")  # fmt: skip
@click.option("--method", type=click.Choice(["min_max", "percentile", "mse", "kl"]), default="min_max",
              show_default=True, help="(.rxe) How scales are made of what was seen.")  # fmt: skip
@click.option("--percentile", type=float, default=99.99, show_default=True,
              help="(.rxe) The share of numbers inside the range, for --method percentile.")  # fmt: skip
@click.option("--keep-accuracy", type=float, metavar="COSINE",
              help="(.rxe) Leave the layers that lose most in floats until results are so near.")  # fmt: skip
@click.option("--smooth", type=click.FloatRange(0, 1), metavar="PART",
              help="(.rxe) Move this part of activations' magnitudes to the weights (SmoothQuant): 0.5.")  # fmt: skip
@click.option("--correct-bias", is_flag=True,
              help="(.rxe) Add to each layer's result the mean that its channels lose on the data.")  # fmt: skip
@click.option("--calibration", type=OutputFile(),
              help="(.rxe) Keep what was seen of the data in this file, and use it if it is there.")  # fmt: skip
@click.option("--report", type=OutputFile(), help="(.rxe) Write the report as JSON to this file.")
@click.option("--target", "machine", default="llvm", show_default=True, help="(.rxe) The target.")
@click.option("--overwrite", is_flag=True, help="Replace a checkpoint that is there.")
@json_option
@click.pass_context
def quantize(
    context: click.Context,
    source: str,
    target: Path,
    bits: str,
    group: int,
    zero: str,
    overwrite: bool,
    as_json: bool,
    machine: str,
    **own: Any,
) -> None:
    """Write a quantised copy of a checkpoint, or an executable of integers."""
    _check_options(context, target)
    if target.suffix == EXECUTABLE:
        from relaxpy.cli.quantize_integers import Options, quantize_to_executable

        options = Options(**own, target=machine)
        place = source if Path(source).exists() else on_this_machine(source)
        quantize_to_executable(place, target, options, as_json)
        return
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


def _check_options(context: click.Context, target: Path) -> None:
    """Refuse options of the other kind of target."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not click.core.ParameterSource.COMMANDLINE:
            continue
        if name in ("source", "target", "as_json"):
            continue
        if (name in _OF_FOLDERS) is (target.suffix == EXECUTABLE):
            kind = "a folder" if name in _OF_FOLDERS else f"an executable ({EXECUTABLE})"
            option = {"floats": "float", "machine": "target"}.get(name, name).replace("_", "-")
            raise UsageError(
                "bad-arguments", f"--{option} is for a target that is {kind}, got {target}"
            )
