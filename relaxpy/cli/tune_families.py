"""`relaxpy tune` for devices that are elsewhere: `--emit`, `--measure`, `--adopt` and `--report`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relaxpy.cli.outputs import print_json
from relaxpy.errors import UsageError

if TYPE_CHECKING:
    from relaxpy.build.emit import Emitted
    from relaxpy.ir.module import IRModule
    from relaxpy.runtime.tuned import FamilyRecord, Measurement


def emit(
    mod: IRModule,
    sizes: Sequence[Mapping[str, int]],
    folder: Path,
    target: str,
    params: Mapping[str, object],
    kernel: str,
    trials: int | None,
    as_json: bool,
) -> None:
    """Compile schedules of a program's kernels into a folder."""
    from relaxpy.build.emit import LIMIT, TRIALS
    from relaxpy.build.emit import emit as write

    most = trials or TRIALS
    with _bar("schedules of a kernel") as show:
        emitted = write(
            mod, sizes, folder, target, params,
            kernels=lambda name: fnmatchcase(name, kernel), trials=most,
            progress=lambda name, done: show(done, most, name),
        )  # fmt: skip
    archive = emitted.archive
    if as_json:
        facts = {"folder": folder, "target": archive.target, "bytes": emitted.nbytes}
        print_json({**facts, "kernels": _kernels(emitted)})
        return
    for each in _kernels(emitted):
        reasons = "".join(f"; {count} {why}" for why, count in each["left_out"].items())
        click.echo(f"{each['kernel']}: {each['schedules']} schedules{reasons}\n  {each['family']}")
    count = sum(len(each.choices) for each in archive.kernels)
    size = f"{emitted.nbytes / (1 << 20):.1f} of {LIMIT >> 20} MiB"
    click.echo(f"{count} schedules for {archive.target} in {folder}, {size}")
    click.echo(f"beside the device: relaxpy tune --measure {folder}", err=True)


def _kernels(emitted: Emitted) -> list[dict[str, Any]]:
    return [
        {
            "kernel": each.kernel,
            "family": each.family,
            "schedules": len(each.choices),
            "left_out": emitted.left_out[each.kernel],
        }
        for each in emitted.archive.kernels
    ]


def measure(folder: Path, device: str, as_json: bool) -> None:
    """Measure what `emit` wrote."""
    from relaxpy.runtime.inspect.candidate_results import Results
    from relaxpy.runtime.inspect.candidates import Archive
    from relaxpy.runtime.inspect.measure import RECORDS
    from relaxpy.runtime.inspect.measure import measure as run

    with _bar("measured") as show:
        found = run(folder, device, show)
    archive = Archive.read(folder)
    done = Results.read(archive).done
    failed = {item: str(each["error"]) for item, each in done.items() if "error" in each}
    if as_json:
        facts = {"records": folder / RECORDS, "families": _as_data(found)}
        print_json({**facts, "failed": list(failed.values())})
        return
    show_records(found)
    for (number, candidate), reason in failed.items():
        kernel = archive.kernels[number]
        choices = kernel.choices[candidate] if candidate >= 0 else "the best one"
        click.echo(f"{kernel.kernel}, {choices or 'the present schedule'}: {reason}", err=True)
    click.echo(f"{len(found)} record{'s' * (len(found) != 1)} in {folder / RECORDS}")


def adopt(path: Path, records: Path | None, as_json: bool) -> None:
    """Put the records of a file into those of builds."""
    from relaxpy.backend.registry import backend_of
    from relaxpy.runtime.tuned import read_families, write_families
    from relaxpy.target import Target

    if not path.exists():
        help = "`relaxpy tune --measure FOLDER` writes records"
        raise UsageError("tuning-file", f"there is no file {path}", help=help)
    places: dict[Path, list[FamilyRecord]] = {}
    for record in read_families(path).values():
        place = records or backend_of(Target.parse(record.target)).tuned
        if place is None:
            raise UsageError(
                "tuning-file",
                f"no records come with the backend of {record.target}",
                help="name a file: --records FILE",
            )
        places.setdefault(place, []).append(record)
    for place, own in places.items():
        write_families(place, {record.key: record for record in own})
    if as_json:
        print_json({"adopted": {str(place): _as_data(own) for place, own in places.items()}})
        return
    for place, own in places.items():
        click.echo(f"{len(own)} record{'s' * (len(own) != 1)} in {place}")
    if not places:
        click.echo(f"{path} has no records")


def report(records: Path | None, as_json: bool) -> None:
    """Show the records of a file, or all that builds read."""
    from relaxpy.backend.registry import backend_of, backends
    from relaxpy.files import tuning_path
    from relaxpy.runtime.tuned import read_families

    named = [records]
    if records is None:
        own = dict.fromkeys(backend_of(each.kind).tuned for each in backends())
        named = [*own, tuning_path()]
    found = {key: each for path in named if path for key, each in read_families(path).items()}
    if as_json:
        print_json({"families": _as_data(found.values())})
        return
    if found:
        show_records(found.values())
    click.echo(f"{len(found)} record{'s' * (len(found) != 1)} of families")


def _as_data(found: Iterable[FamilyRecord]) -> list[dict[str, object]]:
    from relaxpy.runtime.tuned import as_json

    return as_json({record.key: record for record in found})


def show_records(found: Iterable[FamilyRecord]) -> None:
    """Prints records as a table, a line for each size."""
    from rich.console import Console
    from rich.table import Table

    from relaxpy.runtime.tuned import settings

    table = Table(box=None, pad_edge=False)
    for heading in ("family", "device", "settings", "sizes"):
        table.add_column(heading, overflow="fold")
    for heading in ("µs", "tuned", "faster", "of a copy", "TFLOP/s"):
        table.add_column(heading, justify="right")
    for record in found:
        named = record.family, f"{record.device}, {record.target}", settings(record.choices)
        for number, each in enumerate(record.measured):
            first = named if number == 0 else ("", "", "")
            table.add_row(*first, *_cells(each))
    Console(width=None if Console().is_terminal else 160).print(table)


def _cells(each: Measurement) -> tuple[str, ...]:
    sizes = ", ".join(f"{name}={size}" for name, size in each.sizes.items())
    share = "" if each.share is None else f"{each.share:.0%}"
    rate = "" if each.teraflops is None else f"{each.teraflops:.3g}"
    times = f"{each.before:.1f}", f"{each.after:.1f}", f"{each.before / each.after:.2f}×"
    return sizes, *times, share, rate


@contextmanager
def _bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on a terminal. Yields what shows how many are done, of how many, and what runs."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[trying]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, trying="")
        yield lambda done, count, text: progress.update(
            task, completed=done, total=count, trying=text
        )
