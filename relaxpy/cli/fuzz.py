"""`relaxpy fuzz`: run random programs through the whole compiler and compare with the reference interpreter."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from relaxpy.cli.outputs import json_option, print_json

if TYPE_CHECKING:
    from rich.progress import Progress

    from relaxpy.testing.file_mutations import Finding
    from relaxpy.testing.fuzz import Outcome


@click.command(
    epilog="""
\b
Examples:
  relaxpy fuzz                            100 programs
  relaxpy fuzz --count 3000 --jobs 2      more of them, in two processes
  relaxpy fuzz --seed 17 --count 1        one program again
  relaxpy fuzz --count 500 --keep found   and write what fails to found/seed-….txt
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
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="The seed of the first program; the next has seed + 1.",
)
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
    "--files",
    type=click.IntRange(min=1),
    help="Mutate this number of executables instead, with valid checksums, and load and run them.",
)
@json_option
def fuzz(
    count: int, seed: int, jobs: int, keep: Path | None, files: int | None, as_json: bool
) -> None:
    """Generate random dynamic programs and check that every way to run them gives the same result: the interpreter
    before and after each pass (of the default pipeline, or of one with passes left out and moved), the kernels, the
    virtual machine in two threads, a fresh process.

    A failing program is reduced and shown. The exit code is then 1.
    """

    from relaxpy.testing.fuzz import fuzz as outcomes_of

    if files is not None:
        _fuzz_files(files, seed, jobs, as_json)
        return
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    failed: list[Outcome] = []
    with _bar() as progress:
        task = progress.add_task("programs", total=count)
        for outcome in outcomes_of(count, seed, jobs):
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
        print_json({"programs": count, "seed": seed, "failed": failures})
    else:
        click.echo(f"{count} programs from seed {seed}: {len(failed) or 'none'} failed")
    if failed:
        where = f"; small programs are in {keep}" if keep is not None else ""
        click.echo(f"again: relaxpy fuzz --count 1 --seed {failed[0].seed}{where}", err=True)
        sys.exit(1)


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
