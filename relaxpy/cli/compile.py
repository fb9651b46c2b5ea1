"""`relaxpy compile`: compile a program to an executable file."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import click

import relaxpy
from relaxpy.cli import STARTED
from relaxpy.cli.options import file_argument, option
from relaxpy.cli.outputs import json_option, print_json


@click.command(
    "compile",
    epilog="""
\b
Examples:
  relaxpy compile mlp.py -o mlp.rxe                                for this machine
  relaxpy compile mlp.py --target 'llvm -mcpu=haswell' -o mlp.rxe  for any CPU with AVX2
  relaxpy compile mlp.py --target 'llvm -mcpu=haswell,znver4' -o mlp.rxe  for several, in one file
  relaxpy compile mlp.py --params mlp.npz -o mlp.rxe               with the weights bound by name
  relaxpy compile mlp.py --params mlp.safetensors --weights beside -o mlp.rxe
  relaxpy compile mlp.py --precision auto -o mlp.rxe               bfloat16 where that is faster
  relaxpy compile mlp.py --opt-level 1 -o mlp.rxe                  with fusion alone
  relaxpy compile mlp.py -o mlp.rxe --timings                      and where the time went
  relaxpy compile model.onnx -o model.rxe                          an ONNX model, with its weights

The executable runs without the compiler: `relaxpy run`, or relaxpy.load(...) in Python.
""",
)
@file_argument
@option("--output", required=True, help="The file of the executable.")
@option("--target", help="The target. llvm without options is this CPU.")
@option("--params")
@click.option(
    "--weights",
    type=click.Choice(["inside", "beside"]),
    default="inside",
    show_default=True,
    help="Write constants into the executable, or into a second file beside it.",
)
@option(
    "--bound",
    help="An upper bound of a symbolic variable, n=2048 or main.n=2048, for the memory plan.",
)
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16", "float16", "auto"]),
    help="The dtype of products of float32; auto: the fastest of the target.",
)
@click.option(
    "--check-numbers",
    is_flag=True,
    help="Calls end with an error at the first operator that makes a NaN or an infinity. For debugging.",
)
@click.option(
    "--opt-level",
    type=click.IntRange(0, 3),
    help="Passes: 0 what compiling needs, 1 fusion, 2 constant folding, 3 all. (LLVM's is in --target: -opt-level=2.)",
)
@click.option("--require", multiple=True, metavar="PASS", help="Run a pass at any level.")
@click.option("--disable", multiple=True, metavar="PASS", help="Leave a pass out at any level.")
@click.option("--timings", is_flag=True, help="Show the time of each step and kernel.")
@click.option(
    "--dump",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the module after each pass to this folder.",
)
@option("--no-cache")
@json_option
def compile_command(
    file: str,
    output: Path,
    target: str,
    params: str | None,
    weights: Literal["inside", "beside"],
    bounds: tuple[str, ...],
    precision: str | None,
    check_numbers: bool,
    opt_level: int | None,
    require: tuple[str, ...],
    disable: tuple[str, ...],
    timings: bool,
    dump: Path | None,
    no_cache: bool,
    as_json: bool,
) -> None:
    """Compile the program in FILE, a script or an ONNX model, once for all shapes."""

    from relaxpy.build.dump import DumpPasses
    from relaxpy.cli.inputs import read_sizes
    from relaxpy.cli.source import read_program

    limits = read_sizes(bounds, "--bound")
    mod, weights_by_name = read_program(file, params)
    start = time.perf_counter()
    instruments = [] if dump is None else [DumpPasses(dump)]
    exe = relaxpy.build(
        mod,
        target=target,
        params=weights_by_name,
        bounds=limits,
        cache=not no_cache,
        instruments=instruments,
        precision=precision,
        check_numbers=check_numbers,
        opt_level=opt_level,
        required_passes=require,
        disabled_passes=disable,
    )
    seconds = time.perf_counter() - start
    exe.save(output, weights=weights)
    size = os.path.getsize(output)
    waited = time.perf_counter() - STARTED
    if as_json:
        found: dict[str, Any] = {
            "output": output,
            "bytes": size,
            "seconds": waited,
            "compile_seconds": seconds,
            "functions": [
                {"name": function.name, "signature": str(exe.signature(function.name))}
                for function in exe.functions
                if function.public
            ],
        }
        if exe.build_report is not None and exe.build_report.precision:
            found["precision"] = exe.build_report.precision
        if dump is not None:
            found["modules"] = instruments[0].written
        if timings and exe.build_report is not None:
            found["timings"] = asdict(exe.build_report)
        print_json(found)
        return
    click.echo(
        f"{output}: {size / 1024:,.1f} KiB, in {waited:.2f} s ({seconds:.2f} s of them to compile)"
    )
    if exe.build_report is not None and exe.build_report.precision:
        click.echo(f"products in {exe.build_report.precision}")
    for function in exe.functions:
        if function.public:
            click.echo(f"  {exe.signature(function.name)}")
    if dump is not None:
        click.echo(f"{len(instruments[0].written)} modules in {dump}")
    if timings:
        click.echo(f"\n{exe.build_report}")
