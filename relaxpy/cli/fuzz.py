"""`relaxpy fuzz`: run random programs through the whole compiler and compare with the reference interpreter."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from relaxpy.cli.options import option
from relaxpy.cli.outputs import json_option, print_json

if TYPE_CHECKING:
    from rich.progress import Progress

    from relaxpy.testing.file_mutations import Finding
    from relaxpy.testing.fuzz import Outcome
    from relaxpy.testing.on_device import Where


@click.command(
    epilog="""
\b
Examples:
  relaxpy fuzz                            100 programs
  relaxpy fuzz --count 3000 --jobs 2      more of them, in two processes
  relaxpy fuzz --seed 17 --count 1        one program again
  relaxpy fuzz --count 500 --keep found   and write what fails to found/seed-….txt
  relaxpy fuzz --count 500 --target vulkan
                                          on a device, beside the interpreter
  relaxpy fuzz --target 'llvm -mtriple=aarch64-linux-gnu' --compile-only
                                          compiled for another processor, and not run
  relaxpy fuzz --count 300 --orders 5     the passes in five orders each, nothing compiled
  relaxpy fuzz --files 20000              no programs, but files that somebody has changed
""",
)
@click.option(
    "--count",
    default=100,
    show_default=True,
    type=click.IntRange(min=1),
    help="The number of programs.",
)
@option("--seed", help="The seed of the first program; the next has seed + 1.")
@click.option(
    "--jobs",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="The number of parallel processes.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write reduced failing programs to this folder.",
)
@click.option(
    "--target",
    help="Run the programs on this target instead (opencl, vulkan, webgpu, cuda, or a processor).",
)
@click.option("--compile-only", is_flag=True, help="Build the programs for --target and run none.")
@click.option(
    "--orders",
    type=click.IntRange(min=1),
    help="Only the interpreter, after all passes in so many random orders that their prerequisites allow.",
)
@click.option(
    "--files",
    type=click.IntRange(min=1),
    help="Mutate this number of executables instead, with valid checksums, and load and run them.",
)
@json_option
def fuzz(
    count: int,
    seed: int,
    jobs: int,
    keep: Path | None,
    target: str | None,
    compile_only: bool,
    orders: int | None,
    files: int | None,
    as_json: bool,
) -> None:
    """Generate random dynamic programs and check that every way to run them gives the same result: the interpreter
    before and after each pass (of the default pipeline, or of one with passes left out and moved), the kernels, the
    virtual machine in two threads, a fresh process. With --target: the programs there, and the interpreter. With
    --orders: the interpreter after the passes in other orders.

    A failing program is reduced and shown. The exit code is then 1.
    """

    from relaxpy.testing.fuzz import fuzz as outcomes_of

    if files is not None:
        if target is not None or compile_only:
            raise click.UsageError(
                "--files changes executables of this machine: leave --target out"
            )
        _fuzz_files(files, seed, jobs, as_json)
        return
    if orders and target is not None:
        raise click.UsageError("--orders compiles nothing: leave --target out")
    if compile_only and target is None:
        raise click.UsageError("--compile-only needs a --target to compile for")
    where = None if target is None else _where(target, compile_only)
    refused = 0
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    failed: list[Outcome] = []
    with _bar() as progress:
        task = progress.add_task("programs", total=count)
        for outcome in outcomes_of(count, seed, jobs, where=where, orders=orders or 0):
            refused += bool(outcome.refused)
            if outcome.failure is not None:
                failed.append(outcome)
                progress.console.print(
                    report(outcome), markup=False, highlight=False, soft_wrap=True
                )
                if keep is not None and outcome.program:
                    (keep / f"seed-{outcome.seed}.txt").write_text(
                        outcome.program, encoding="utf-8"
                    )
            progress.update(task, advance=1, description=described(len(failed)))
    if as_json:
        failures = [
            {"seed": each.seed, "failure": str(each.failure), "program": each.program}
            for each in failed
        ]
        on = {} if where is None else {"target": str(where.target), "refused": refused}
        print_json({"programs": count, "seed": seed, **on, "failed": failures})
    else:
        on = f" on {target}" if where is not None else ""
        less = f", {refused} refused" if refused else ""
        click.echo(f"{count} programs from seed {seed}{on}: {len(failed) or 'none'} failed{less}")
    if failed:
        kept = f"; small programs are in {keep}" if keep is not None else ""
        same = "" if target is None else f" --target {shlex.quote(target)}"
        same += " --compile-only" * compile_only + (f" --orders {orders}" if orders else "")
        click.echo(f"again: relaxpy fuzz --count 1 --seed {failed[0].seed}{same}{kept}", err=True)
        sys.exit(1)


def _where(target: str, compile_only: bool) -> Where:
    from relaxpy.target import Target
    from relaxpy.testing.on_device import Where

    return Where(Target.parse(target), compile_only)


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _fuzz_files(files: int, seed: int, jobs: int, as_json: bool) -> None:
    """Loads and runs mutated executables and counts the outcomes. The exit code is 1 if there was any outcome other
    than results and relaxpy's errors."""

    from relaxpy.testing.file_mutations import mutate_files

    found: list[Finding] = []
    ends: dict[str, int] = {}
    with _bar() as progress:
        task = progress.add_task("files", total=files)

        def show(outcomes: dict[str, int]) -> None:
            ends.update(outcomes)
            progress.update(task, completed=sum(outcomes.values()))

        for finding in mutate_files(files, seed, jobs, show):
            found.append(finding)
            text = f"seed {finding.seed}: {finding.what}"
            progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
    if as_json:
        kinds = {kind: ends.get(kind, 0) for kind in ("refused", "error", "ran")}
        failures = [{"seed": each.seed, "failure": each.what} for each in found]
        print_json({"files": files, "seed": seed, **kinds, "failed": failures})
    else:
        click.echo(
            f"{files} changed files from seed {seed}: {ends.get('refused', 0)} refused, "
            f"{ends.get('error', 0)} stopped with an error, {ends.get('ran', 0)} ran; {len(found) or 'none'} failed"
        )
    if found:
        click.echo(f"again: relaxpy fuzz --files 1 --seed {found[0].seed}", err=True)
        sys.exit(1)


def described(failures: int) -> str:
    """The text before the progress bar."""
    return f"programs, {failures} failed" if failures else "programs"


def report(outcome: Outcome) -> str:
    """A failure as text: the problem, and the reduced program."""
    return f"seed {outcome.seed}: {outcome.failure}\n\n{outcome.program}".rstrip() + "\n"
