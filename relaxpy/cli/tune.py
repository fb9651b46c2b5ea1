"""`relaxpy tune`: measure the fastest schedules of a program's kernels, and record them for later builds."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relaxpy.cli import tune_families
from relaxpy.cli.options import option
from relaxpy.cli.outputs import json_option, print_json
from relaxpy.errors import UsageError

if TYPE_CHECKING:
    from relaxpy.build.tune import Tuned


@click.command(
    epilog="""
\b
Examples:
  relaxpy tune mlp.py --at n=1 --at n=128              for two sizes, with equal weight
  relaxpy tune model.py --at batch=8,seq=64 --params model.safetensors
  relaxpy tune mlp.py --at n=64 --kernel '*matmul*'    only kernels with these names
  relaxpy tune mlp.py --at n=64 --records mlp.json     to a file: relaxpy.build(mod, tuning="mlp.json")

\b
For a GPU that is elsewhere (docs/tuning.md):
  relaxpy tune mlp.py --emit DIR --target cuda --at n=1 --at n=64   compile schedules, on any machine
  relaxpy tune --measure DIR                                        measure them, beside the GPU
  relaxpy tune --adopt DIR/records.json                             let builds use the fastest
  relaxpy tune --report                                             show what builds use

The key of a record is the computation of the kernel: it applies to all programs with the same kernel.
Without --records, the file is that of RELAXPY_TUNING, or tuning.json beside the cache, which all builds read.
""",
)
@click.argument(
    "file", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@click.option(
    "--at",
    "sizes",
    multiple=True,
    metavar="NAME=N,…",
    help="Values of the symbolic variables; repeat the option for several points.",
)
@option("--params")
@click.option("--kernel", default="*", metavar="PATTERN", help="Only kernels whose names match.")
@click.option(
    "--trials",
    type=click.IntRange(min=2),
    help="The most schedules of a kernel.  [default: 32; 64 with --emit]",
)
@click.option(
    "--records",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file of the tuning records.",
)
@click.option(
    "--emit",
    type=click.Path(file_okay=False, path_type=Path),
    help="Compile schedules for --target into this folder, to be measured elsewhere.",
)
@option("--target", help="The target of --emit.  [default: cuda]", default=None)
@click.option(
    "--measure",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Measure what --emit wrote into this folder, or the rest of it.",
)
@click.option("--device", help="The device of --measure, cuda:1 for example.  [default: cuda]")
@click.option(
    "--adopt",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Add the records of this file to those of builds, or to --records.",
)
@click.option("--report", is_flag=True, help="Show the records of --measure that builds use.")
@json_option
def tune(
    file: str | None,
    sizes: tuple[str, ...],
    params: str | None,
    kernel: str,
    trials: int | None,
    records: Path | None,
    emit: Path | None,
    target: str | None,
    measure: Path | None,
    device: str | None,
    adopt: Path | None,
    report: bool,
    as_json: bool,
) -> None:
    """Try the settings of each kernel of the program in FILE on this machine, and record the fastest.

    Records are saved after each kernel, so an interrupted run keeps them. Run nothing else at the same time.
    """
    modes = {"--emit": emit, "--measure": measure, "--adopt": adopt, "--report": report}
    chosen = [name for name, value in modes.items() if value]
    mode = chosen[0] if chosen else ""
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} are different steps: choose one.")
    if (file is None) == (mode in ("", "--emit")):
        raise click.UsageError(
            "Missing argument 'FILE'."
            if file is None
            else f"{mode} takes no FILE, but {file!r} was given."
        )
    if target and not emit:
        raise click.UsageError("--target is an option of --emit.")
    if device and not measure:
        raise click.UsageError("--device is an option of --measure.")
    if measure:
        tune_families.measure(measure, device or "cuda", as_json)
    elif adopt:
        tune_families.adopt(adopt, records, as_json)
    elif report:
        tune_families.report(records, as_json)
    elif file is not None and emit:
        from relaxpy.cli.inputs import read_sizes
        from relaxpy.cli.source import read_program

        at = [read_sizes([text], "--at") for text in sizes]
        mod, weights = read_program(file, params)
        tune_families.emit(mod, at, emit, target or "cuda", weights, kernel, trials, as_json)
    elif file is not None:
        _tune_here(file, sizes, params, kernel, trials, records, as_json)


def _tune_here(
    file: str,
    sizes: tuple[str, ...],
    params: str | None,
    kernel: str,
    trials: int | None,
    records: Path | None,
    as_json: bool,
) -> None:
    """Measure on this machine."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from relaxpy.build.tune import TRIALS, Tuner
    from relaxpy.build.tuning import TuningRecords
    from relaxpy.cli.inputs import read_sizes
    from relaxpy.cli.source import read_program

    path = records or TuningRecords.default_path()
    if path is None:
        raise UsageError(
            "tuning-file",
            "there is no folder for the records",
            help="choose a file: --records FILE",
        )
    known = TuningRecords.read(path)
    at = [read_sizes([text], "--at") for text in sizes]
    mod, weights = read_program(file, params)
    tuner = Tuner(mod, at, params=weights, trials=trials or TRIALS)
    names = fnmatch.filter(tuner.kernels(), kernel)
    for name in fnmatch.filter(tuner.skipped, kernel):
        click.echo(
            f"{name}: its shapes are unknown; give values to more symbols with --at", err=True
        )
    if not names:
        raise UsageError(
            "tuning-kernel",
            f"no kernel of {file} can be measured"
            + (f" whose name matches {kernel!r}" if kernel != "*" else ""),
            help=f"it has {', '.join(tuner.programs) or 'none'}; give its symbols values with --at",
        )
    known.write(path)  # fails before any measurement if it cannot be written
    done: list[Tuned] = []
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[trying]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("kernels", total=len(names), trying="")
        for name in names:

            def trying(text: str, name: str = name) -> None:
                progress.update(task, trying=f"{name}: {text}")

            done.append(tuner.tune(name, trying))
            known = known.with_record(done[-1].key, done[-1].record)
            known.write(path)
            progress.advance(task)
    if as_json:
        print_json({"records": path, "kernels": [as_data(tuned) for tuned in by_gain(done)]})
        return
    show(done)
    better = sum(bool(t.record.choices) for t in done)
    click.echo(
        f"{len(done)} kernel{'s' * (len(done) != 1)} measured, {better} with a better schedule; recorded in {path}"
    )


def by_gain(done: Sequence[Tuned]) -> list[Tuned]:
    return sorted(done, key=lambda tuned: -tuned.speedup)


def as_data(tuned: Tuned) -> dict[str, Any]:
    """The result of tuning a kernel, as JSON data."""
    before, after = tuned.record.microseconds
    return {
        "kernel": tuned.kernel,
        "rule": tuned.rule,
        "tried": tuned.settings,
        "microseconds": before,
        "best_microseconds": after,
        "speedup": tuned.speedup,
        "settings": dict(tuned.record.choices),
        "sizes": [dict(size) for size in tuned.record.sizes],
    }


def show(done: Sequence[Tuned]) -> None:
    """Prints the results, the greatest speedup first."""

    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("kernel", "rule", "tried", "µs", "best", "faster", "settings"):
        right = heading in ("tried", "µs", "best", "faster")
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for tuned in by_gain(done):
        before, after = tuned.record.microseconds
        settings = ", ".join(f"{k}={v}" for k, v in tuned.record.choices.items())
        table.add_row(
            tuned.kernel,
            tuned.rule,
            str(tuned.settings),
            f"{before:.1f}",
            f"{after:.1f}",
            f"{tuned.speedup:.2f}×",
            settings or "the rule's own",
        )
    Console(width=None if Console().is_terminal else 120).print(table)
