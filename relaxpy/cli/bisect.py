"""`relaxpy bisect`: find the pass that makes a program's results wrong."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relaxpy.cli.functions import chosen_function, import_option, imported
from relaxpy.cli.options import file_argument, function_argument, option
from relaxpy.cli.outputs import json_option, print_json
from relaxpy.errors import UsageError
from relaxpy.files import write_text

if TYPE_CHECKING:
    from relaxpy.ir.dim import SymVar
    from relaxpy.ir.module import IRModule
    from relaxpy.testing.bisect import Finding
    from relaxpy.testing.values import Value
    from relaxpy.transform.base import Pass

SIZES = (3, 5, 7, 2, 11, 13)
"""Default values of symbols: small and distinct, so that swapped sizes are detected."""


@click.command(
    epilog="""
\b
Examples:
  relaxpy bisect model.py                                 arguments are generated, sizes are small
  relaxpy bisect model.py --size n=17 --seed 3            at this size, with other numbers
  relaxpy bisect model.py main --input x=bad.npy          with the argument that showed it
  relaxpy bisect model.py --pipeline mypasses:pipeline    your own pipeline (or pass), from mypasses.py
  relaxpy bisect model.py --without fuse-ops --dump found

Inputs are written as for `relaxpy run`. The exit code is 1 if a step is found.
""",
)
@file_argument
@function_argument
@option("--input", help="An argument. Others are generated.")
@option(
    "--size", metavar="NAME=N", help="The value of a symbolic variable, for generated arguments."
)
@option("--seed", help="The seed of generated arguments.")
@option("--params")
@click.option(
    "--pipeline",
    "pipeline_name",
    metavar="MODULE:NAME",
    help="A pass or pipeline in a Python module (which is imported), instead of the default one.",
)
@option("--without")
@click.option(
    "--dump",
    type=click.Path(file_okay=False, path_type=Path),
    help="A folder for the modules before and after the pass.",
)
@import_option
@json_option
def bisect(
    file: str,
    function: str | None,
    inputs: tuple[str, ...],
    sizes: tuple[str, ...],
    seed: int,
    params: str | None,
    pipeline_name: str | None,
    without: tuple[str, ...],
    dump: Path | None,
    as_json: bool,
) -> None:
    """Find the first pass (then kernel) after which FUNCTION (if not given: "main", or the only one) of the program in
    FILE gives other results than the reference interpreter, and the first variable whose value differs.
    """

    from rich.console import Console

    from relaxpy.build.pipeline import default_pipeline
    from relaxpy.cli.inputs import parse_inputs, read_sizes
    from relaxpy.cli.source import read_program
    from relaxpy.testing.bisect import bisect as find
    from relaxpy.transform.phases import Pipeline

    mod, weights = read_program(file, params)
    function = chosen_function(function, [*mod.graph_functions])
    given, chosen = parse_inputs(inputs, seed), read_sizes(sizes, "--size")
    args = arguments(mod, function, given, chosen, seed, weights)
    pipeline = default_pipeline() if pipeline_name is None else load_pipeline(pipeline_name)
    if without:
        if not isinstance(pipeline, Pipeline):
            raise UsageError(
                "bad-pipeline",
                f"passes cannot be removed from a {type(pipeline).__name__}",
                help="--without needs the default pipeline, or a Pipeline derived from it",
            )
        pipeline = pipeline.without(*without)
    console = Console(stderr=True)
    with console.status("") as status:
        found = find(
            mod,
            function,
            args,
            pipeline=pipeline,
            params=weights,
            progress=lambda text: status.update(text),
        )
    if found is None and as_json:
        print_json({"function": function, "found": None})
        return
    if found is None:
        click.echo(
            f"{function}: all passes, the kernels and the virtual machine agree with the interpreter"
        )
        return
    if as_json:
        print_json({"function": function, "found": as_data(found)})
    else:
        click.echo(str(found))
    if dump is not None:
        for path in write(found, dump):
            click.echo(f"wrote {path}", err=as_json)
    sys.exit(1)


def as_data(found: Finding) -> dict[str, Any]:
    """The finding as JSON data."""
    return {
        "step": found.step.name,
        "number": found.step.number,
        "passes": found.count,
        "before": found.before.name,
        "problem": found.problem,
        "function": found.function,
        "variable": None if found.binding is None else found.binding.var.name,
        "difference": found.difference,
        "text": str(found),
    }


def write(found: Finding, folder: Path) -> list[Path]:
    """Writes the modules before and after the step, as scripts."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, step in (("before", found.before), ("after", found.step)):
        path = folder / f"{name}.py"
        write_text(path, step.mod.script())
        written.append(path)
    return written


def arguments(
    mod: IRModule,
    name: str,
    given: Mapping[str, Value],
    sizes: Mapping[str, int],
    seed: int,
    params: Mapping[str, object],
) -> list[Value]:
    """Arguments of a function: the given ones, and generated ones for the others. Bound parameters have none."""

    from relaxpy.ir.visitor import free_sym_vars
    from relaxpy.testing.random_arguments import argument_of

    function = mod.graph_function(name)
    names = [p.name for p in function.params]
    for key in given:
        if key not in names:
            raise UsageError(
                "arguments", f"{name} has no parameter {key!r}", help=f"it has {', '.join(names)}"
            )
    symbols = free_sym_vars(p.annotation for p in function.params)
    unknown = sorted(set(sizes) - {symbol.name for symbol in symbols})
    if unknown:
        known = ", ".join(symbol.name for symbol in symbols) or "none"
        raise UsageError(
            "arguments", f"{name} has no symbol {unknown[0]!r}", help=f"it has {known}"
        )
    chosen: dict[SymVar, int] = {
        symbol: sizes.get(symbol.name, SIZES[i % len(SIZES)]) for i, symbol in enumerate(symbols)
    }
    bound = {key for key in names if key in params or f"{name}.{key}" in params}
    return [
        given[p.name] if p.name in given else argument_of(p.annotation, chosen, (seed, i))
        for i, p in enumerate(function.params)
        if p.name not in bound
    ]


def load_pipeline(text: str) -> Pass:
    """The pass at `MODULE:NAME`. If that is a function, it is called."""

    from relaxpy.transform.base import Pass

    module_name, colon, name = text.partition(":")
    if not colon or not name.isidentifier():
        raise UsageError(
            "bad-pipeline",
            f"{text!r} is not the name of a pipeline",
            help="write MODULE:NAME, e.g. mypasses:pipeline",
        )
    value: object = getattr(imported(module_name), name, None)
    if callable(value) and not isinstance(value, Pass):
        value = value()
    if not isinstance(value, Pass):
        raise UsageError(
            "bad-pipeline",
            f"{text} is {type(value).__name__}, not a pass",
            help="it must be a relaxpy.transform.Pass, or a function that returns one",
        )
    return value
