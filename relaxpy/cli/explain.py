"""`relaxpy explain`: an HTML page about a build, or about what changed between two."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import relaxpy
from relaxpy.cli.features import feature_option, read_features, warn_about
from relaxpy.cli.functions import called, import_option
from relaxpy.cli.options import file_argument, option
from relaxpy.cli.outputs import json_option, print_json
from relaxpy.errors import UsageError
from relaxpy.files import write_text

if TYPE_CHECKING:
    from relaxpy.explain import Explanation


@click.command(
    epilog="""
\b
Examples:
  relaxpy explain mlp.py -o mlp.html                     one page, to be opened in a browser
  relaxpy explain model.py --params model.npz --bound n=2048 -o model.html
  relaxpy explain mlp.py --without fuse-ops -o apart.html
  relaxpy explain mlp.py --input 'x=f32[64,64]'          with measured times
  relaxpy explain mlp.rxe --size n=64                    of an executable
  relaxpy explain model.onnx                             of an ONNX model
  relaxpy explain before.rxe after.rxe --size n=64       what changed: printed, and a page

The page needs no network and no other file.
""",
)
@file_argument
@click.argument("other", required=False, type=click.Path(exists=True, dir_okay=False))
@option("--output", help="Where the page goes.  [default: the program's name with .html]")
@option("--target", help="The target.  [default: llvm, this CPU]", default=None)
@option("--params")
@option("--bound", help="An upper bound of a symbolic variable, for memory and costs.")
@option("--size", help="The value of a symbolic variable, for memory and costs.")
@option("--without")
@feature_option
@option("--input", help="An argument, as for `relaxpy run`: calls are measured.")
@click.option("--function", help="The function to measure [default: main, or the only one].")
@option("--repeat", help="Calls to measure.")
@option("--seed", help="Seed of generated inputs.")
@import_option
@json_option
def explain(
    file: str,
    other: str | None,
    output: Path | None,
    target: str | None,
    params: str | None,
    bounds: tuple[str, ...],
    sizes: tuple[str, ...],
    without: tuple[str, ...],
    without_features: tuple[str, ...],
    inputs: tuple[str, ...],
    function: str | None,
    repeat: int,
    seed: int,
    as_json: bool,
) -> None:
    """Write a page about the build of the program in FILE: the module after each pass, fusion decisions and their
    reasons, memory, kernels, time. A build that fails is shown up to the failing step; the exit code is then 1. FILE
    may be an executable too: its passes are not known.

    With OTHER, the page is about the build of OTHER and what changed since FILE, which is printed as well."""

    from relaxpy.cli.inputs import parse_inputs, read_arrays, read_sizes
    from relaxpy.cli.source import is_executable
    from relaxpy.explain import compare, page

    if other is not None and file != "-" and os.path.samefile(file, other):
        raise click.UsageError(f"{file} and {other} are the same file: there is nothing to compare")
    files = [file] if other is None else [file, other]
    compiled = {each: is_executable(each) or each.endswith(".rxe") for each in files}
    limits = read_sizes(bounds, "--bound")
    if all(compiled.values()) and (target or params or limits or without):
        raise UsageError(
            "arguments",
            "--target, --params, --bound and --without are for a build: an executable was built already",
            help="say --size n=2048 for the sizes to show memory and costs for",
        )
    settings = _Settings(
        target or "llvm",
        None if params is None else read_arrays(params),
        limits,
        read_sizes(sizes, "--size"),
        without,
        read_features(without_features),
        parse_inputs(inputs, seed),
        function,
        repeat,
    )
    found = [_explained(each, compiled[each], settings) for each in files]
    path = output or _page_path(files)
    changes = compare(*found) if len(found) == 2 else None
    if as_json:
        print_json((changes or found[0]).as_json())
    elif changes is not None:
        click.echo(str(changes))
    text = page(found[-1], changes)
    write_text(path, text)
    click.echo(f"{path}: {len(text.encode()) / 1024:,.0f} KiB", err=as_json)
    failures = [each.error for each in found if each.error is not None]
    for error in failures:
        click.echo(error.render(), err=True)
    if failures:
        sys.exit(1)


@dataclass(frozen=True)
class _Settings:
    """The options that hold for both builds."""

    target: str
    params: Mapping[str, Any] | None
    bounds: Mapping[str, int]
    sizes: Mapping[str, int]
    without: Sequence[str]
    features: Sequence[str]
    inputs: Mapping[str, Any]
    function: str | None
    repeat: int


def _explained(file: str, is_compiled: bool, settings: _Settings) -> Explanation:
    """The explanation of a program or an executable, measured if there are inputs."""
    from relaxpy.build.pipeline import default_pipeline
    from relaxpy.build.progress import progress_bar
    from relaxpy.cli.source import read_program
    from relaxpy.explain import explain as explain_build
    from relaxpy.explain import explain_executable

    title = "stdin" if file == "-" else Path(file).name
    if is_compiled:
        executable = relaxpy.load(file, any_cpu=True)
        result = explain_executable(
            executable, settings.sizes, title=title, without_features=settings.features
        )
    else:
        mod, weights = read_program(file, settings.params)
        with progress_bar(None) as on_kernel:
            result = explain_build(
                mod,
                settings.target,
                weights,
                pipeline=default_pipeline(settings.target, without=settings.without),
                bounds=settings.bounds,
                sizes=settings.sizes,
                title=title,
                progress=on_kernel,
                without_features=settings.features,
            )
    if result.executable is not None:
        warn_about(settings.features, result.executable, file)
        if settings.inputs:
            machine = relaxpy.VirtualMachine(result.executable, without_features=settings.features)
            name, _ = called(machine, settings.function, settings.inputs)
            result.profile = machine.profile(name, repeat=settings.repeat, **settings.inputs)
    return result


def _page_path(files: Sequence[str]) -> Path:
    """The page beside the first program, with the names of both."""
    paths = [Path("program" if file == "-" else file) for file in files]
    return paths[0].with_name("-".join(path.stem for path in paths) + ".html")
