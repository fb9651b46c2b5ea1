"""`relaxpy profile`: show where the time of a call is spent."""

from __future__ import annotations

from pathlib import Path

import click

import relaxpy
from relaxpy.cli.functions import called, import_option
from relaxpy.cli.options import function_argument, option
from relaxpy.cli.outputs import OutputFile, json_option, print_json


@click.command(
    epilog="""
\b
Examples:
  relaxpy profile mlp.rxe --input 'x=f32[64,64]'
  relaxpy profile mlp.py --params mlp.npz --input 'x=f32[64,64]' --lines
  relaxpy profile model.onnx --input 'x=f32[64,64]'
  relaxpy profile mlp.rxe --input x=batch.npy --trace trace.json   for chrome://tracing or ui.perfetto.dev

Inputs are written as for `relaxpy run`.
""",
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@function_argument
@option("--input")
@option(
    "--params", help="Arrays to bind to the parameters of the same names, if FILE is a program."
)
@option("--seed")
@option("--repeat")
@click.option("--lines", is_flag=True, help="Show the time by source line, too.")
@click.option("--trace", type=OutputFile(), help="Write a Chrome trace.")
@import_option
@json_option
def profile(
    file: str,
    function: str | None,
    inputs: tuple[str, ...],
    params: str | None,
    seed: int,
    repeat: int,
    lines: bool,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Run FUNCTION (if not given: "main", or the only one) of an executable, or of a program or an ONNX model
    that is compiled first.
    Print the time of each kernel, the bytes that it moved, its floating-point operations, and the fraction of this
    machine's peak bandwidth and arithmetic that it reached."""

    from relaxpy.build import build
    from relaxpy.cli.inputs import parse_inputs
    from relaxpy.cli.run import load
    from relaxpy.cli.source import is_executable, read_program

    values = parse_inputs(inputs, seed)
    if file.endswith(".rxe") or is_executable(file):
        executable = load(file)
    else:
        mod, weights = read_program(file, params)
        executable = build(mod, params=weights)
    vm = relaxpy.VirtualMachine(executable)
    name, _ = called(vm, function, values)
    found = vm.profile(name, repeat=repeat, **values)
    if as_json:
        data = found.as_json()
        print_json(data if lines else {k: v for k, v in data.items() if k != "lines"})
    else:
        click.echo(str(found))
    if lines and not as_json:
        click.echo()
        click.echo(found.by_line())
    if trace is not None:
        found.save_trace(trace)
        click.echo(f"wrote {trace}", err=as_json)
