"""Measures schedules of kernels on a device, from the archive that `relaxpy tune --emit` wrote.

    relaxpy tune --measure FOLDER
    python -m relaxpy.runtime.inspect.measure FOLDER      without click and rich: numpy and cuda-bindings suffice

For each kernel: the present schedule's results, then the results and times of all others at all sizes, and at the end
the best one and the present one in turns. Each result is a line of `results.jsonl`, so a run that was ended goes on
where it was. The work is done in a process of its own, which is started again behind a schedule that fails or hangs,
since a GPU's error ends the work of its process. `records.json` has the records (`relaxpy.runtime.tuned`), for
`relaxpy tune --adopt`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from relaxpy.errors import RelaxError, UsageError
from relaxpy.files import locked, write_text
from relaxpy.runtime.child_process import problem_of
from relaxpy.runtime.inspect.candidate_bench import Bench
from relaxpy.runtime.inspect.candidate_results import (
    RESULTS,
    TURNS,
    Item,
    Results,
    append,
    end_last_line,
    items_of,
    records,
)
from relaxpy.runtime.inspect.candidates import Archive
from relaxpy.runtime.tuned import FamilyRecord, as_json, file_text

RECORDS = "records.json"
LONGEST = 120.0
"""Seconds after which a schedule counts as one that hangs."""
_MODULE = "relaxpy.runtime.inspect.measure"
_LOOK = 0.05
"""Seconds between two looks at the results of the process that measures."""
Progress = Callable[[int, int, str], None]
"""Called with the number of items that are done, of all, and a text for the one that runs."""


def measure(
    folder: Path, device: str = "cuda", progress: Progress | None = None
) -> list[FamilyRecord]:
    """Measure what is not measured yet, and write `records.json`. Returns the records.

    Raises: UsageError: `tuning-archive`; `tuning-measure` for results of another archive or device, while another
    process measures, and where the device cannot be used at all.
    """
    archive = Archive.read(folder)
    try:
        with locked(folder, wait=False) as lock:
            _measure(archive, device, progress, lock)
    except BlockingIOError:
        raise UsageError(
            "tuning-measure",
            f"another process measures {folder}",
            help="wait for it, or copy the folder and leave its results out",
        ) from None
    found = records(archive, Results.read(archive))
    families = {record.key: record for record in found}
    write_text(folder / RECORDS, file_text({"families": as_json(families)}))
    return found


def _measure(archive: Archive, device: str, progress: Progress | None, lock: int) -> None:
    items = items_of(archive)
    end_last_line(archive)
    while True:
        before = Results.read(archive)
        left = [item for item in items if item not in before.done]
        if not left:
            return
        problem = _child(
            archive, device, lock, lambda: progress and _show(archive, items, progress)
        )
        after = Results.read(archive)
        if problem and after.begun is not None and after.begins > before.begins:
            append(archive, {"item": after.begun, "error": problem})
        elif len(after.done) == len(before.done):
            raise UsageError(
                "tuning-measure",
                f"nothing can be measured on {device}: {problem or 'its process ended'}",
                help="`relaxpy doctor` says what a device lacks",
            )


def _show(archive: Archive, items: Sequence[Item], progress: Progress) -> None:
    found = Results.read(archive)
    text = ""
    if found.begun is not None:
        number, candidate = found.begun
        kernel = archive.kernels[number]
        setting = "the best one" if candidate == TURNS else dict(kernel.choices[candidate])
        text = f"{kernel.kernel}: {setting or 'the present schedule'}"
    progress(len(found.done), len(items), text)


def _child(archive: Archive, device: str, lock: int, look: Callable[[], object]) -> str:
    """Measure in a process until all is done, or it fails; what went wrong, or "". `look` is called meanwhile."""
    command = [sys.executable, "-m", _MODULE, str(archive.folder), "--device", device, "--work"]
    path = archive.folder / RESULTS

    def watch(process: subprocess.Popen[Any]) -> str:
        size, since = -1, time.monotonic()
        while process.poll() is None:
            now = path.stat().st_size if path.exists() else 0
            if now != size:
                size, since = now, time.monotonic()
                look()
            if time.monotonic() - since > LONGEST:
                return f"it took more than {LONGEST:.0f} s"
            time.sleep(_LOOK)
        look()
        return ""

    # The process holds the lock as well: it may live longer than this one.
    keep = () if sys.platform == "win32" else (lock,)
    return problem_of(command, watch, env=dict(os.environ), pass_fds=keep)


# The process that measures


def _work(archive: Archive, device: str) -> None:
    """Measure all that is left in this process, as long as the one that started it lives."""
    results = Results.read(archive)
    bench, parent = Bench(archive, device), os.getppid()
    if results.device and results.device["name"] != bench.name:
        raise UsageError(
            "tuning-measure",
            f"the results are of {results.device['name']}, and this is {bench.name}",
            help="copy the folder and leave its results out",
        )
    for item in items_of(archive):
        if item in results.done:
            continue
        if os.getppid() != parent:
            return
        append(archive, {"begin": item})
        try:
            if not results.device:
                append(archive, {"archive": archive.digest, **bench.about()})
            event = {"item": item, **bench.measured(results, *item)}
        except RelaxError as error:
            if error.code == "device-failed":
                raise  # the device is of no use to this process any more
            event = {"item": item, "error": error.message}
        append(archive, event)
        results = Results.read(archive)


def main() -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda", help="its kind, with a number if need be: cuda:1")  # fmt: skip
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()

    def say(done: int, count: int, text: str) -> None:
        sys.stderr.write(f"{done} of {count}: {text}\n")

    try:
        if given.work:
            _work(Archive.read(given.folder), given.device)
            return
        found = measure(given.folder, given.device, say)
    except RelaxError as error:
        sys.exit(f"{error.message}\n" if given.work else str(error))
    sys.stdout.write(f"{len(found)} records in {given.folder / RECORDS}\n")


if __name__ == "__main__":
    main()
