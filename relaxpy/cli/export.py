"""`relaxpy export`: write a program as an ONNX model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

import relaxpy
from relaxpy.cli.functions import chosen_function
from relaxpy.cli.options import file_argument, option
from relaxpy.cli.outputs import json_option, print_json
from relaxpy.errors import UsageError


@click.command(
    epilog="""
\b
Examples:
  relaxpy export mlp.py --params mlp.npz -o mlp.onnx      with the weights in the file
  relaxpy export mlp.py --params mlp.safetensors --weights beside -o mlp.onnx    and in mlp.onnx.data
  relaxpy export mlp.py --function encode --opset 23 -o encode.onnx

Operators that ONNX does not have are listed, all at once, with their lines.
""",
)
@file_argument
@option("--output", required=True, help="The file of the model: NAME.onnx.")
@option(
    "--params",
    help="An .npz or .safetensors file; its arrays become the initializers of the parameters of the same names.",
)
@click.option("--function", help="The function to write [default: main, or the only one].")
@click.option("--opset", type=int, metavar="N", help="The version of ONNX's operators.")
@click.option(
    "--weights",
    type=click.Choice(["inside", "beside"]),
    help="Write weights into the file, or into a second one, NAME.onnx.data.  [default: inside, if they fit]",
)
@json_option
def export(
    file: str,
    output: Path,
    params: str | None,
    function: str | None,
    opset: int | None,
    weights: Literal["inside", "beside"] | None,
    as_json: bool,
) -> None:
    """Write the program in FILE, a script or an ONNX model, as an ONNX model for other runtimes. Symbolic sizes keep
    their names."""

    from relaxpy.cli.source import read_program
    from relaxpy.onnx.exporter import OPSET, described, weights_file

    if output.suffix != ".onnx":
        raise UsageError("bad-output", f"cannot write {str(output)!r}", help="use the suffix .onnx")
    mod, arrays = read_program(file, params)
    model = relaxpy.onnx.export(
        mod,
        output,
        params=arrays,
        function=chosen_function(function, [*mod.graph_functions]),
        opset=opset or OPSET,
        external_data=None if weights is None else weights == "beside",
    )
    beside = weights_file(output)
    outside = any(each.external_data for each in model.graph.initializer)
    files = [output, beside] if outside else [output]
    size = sum(each.stat().st_size for each in files)
    graph = {
        name: [described(each) for each in values]
        for name, values in (("inputs", model.graph.input), ("outputs", model.graph.output))
    }
    if as_json:
        found: dict[str, Any] = {
            "output": output,
            "bytes": size,
            "opset": model.opset_import[0].version,
            "nodes": len(model.graph.node),
            "weights": len(model.graph.initializer),
            **graph,
        }
        if outside:
            found["weights_file"] = beside
        print_json(found)
        return
    click.echo(
        f"{' and '.join(map(str, files))}: {size / 1024:,.1f} KiB, opset {model.opset_import[0].version}, "
        f"{len(model.graph.node)} nodes"
    )
    for name, values in graph.items():
        for each in values:
            click.echo(f"  {name[:-1]} {each}")
