"""How far a build is, on the terminal: for those that take long."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from relaxpy.build.kernels import Progress

PATIENCE = 1.5
"""Seconds that people wait without being told why."""


@contextmanager
def progress_bar(wanted: bool | None) -> Iterator[Progress | None]:
    """What to call as kernels get done, or None. `wanted` is None: on a terminal, for builds that take longer than
    `PATIENCE`."""
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
    # Loaded where it is needed: it takes longer than many a build.
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
