"""A progress bar on the terminal for long builds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from relaxpy.build.kernels import Progress

PATIENCE = 1.5
"""Seconds before a progress bar appears."""


@contextmanager
def progress_bar(wanted: bool | None) -> Iterator[Progress | None]:
    """A progress callback for finished kernels, or None. If `wanted` is None, the bar appears on a terminal after
    `PATIENCE` seconds."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield None
        return
    bar: Any = None
    task: Any = None
    start = perf_counter()

    def show(done: int, count: int, name: str) -> None:
        nonlocal bar, task
        if bar is None:
            if wanted is None and (perf_counter() - start < PATIENCE or done == count):
                return
            bar = _bar()
            task = bar.add_task("compiling kernels", total=count, name="")
            bar.start()
        bar.update(task, completed=done, name=name)

    try:
        yield show
    finally:
        if bar is not None:
            bar.stop()


def _bar() -> Any:
    # Imported on demand, since the import takes longer than many builds.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[name]}"),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
