"""Long sweeps that go on where they were interrupted: each item in a process of its own, with a limit of processor
time, and a line in a log.

    records = run(Path("build/models.jsonl"), kinds(), outcome, seconds=120)

Items that the log has are not run again. A process is a copy of this one, so what is imported here is not imported again.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]
"""`item`, `seconds` of a processor, and what the work returned; or `outcome`: "too long" or "crashed"."""


def run(
    log: Path, items: Sequence[str], work: Callable[[str], Mapping[str, Any]], seconds: int
) -> list[Record]:
    """The records of the items, which are in the log afterwards: those that it had, and those of the work that is done
    now, one after the other."""
    log.parent.mkdir(parents=True, exist_ok=True)
    known = {record["item"]: record for record in read(log)}
    for item in items:
        if item not in known:
            known[item] = record = _in_a_process(item, work, seconds)
            with log.open("a") as file:
                file.write(json.dumps(record) + "\n")
            _show(record)
    return [known[item] for item in items]


def read(log: Path) -> Iterator[Record]:
    if log.exists():
        yield from map(json.loads, log.read_text().splitlines())


def table(records: Sequence[Record]) -> str:
    """How many items have each outcome."""
    counts = Counter(record["outcome"] for record in records)
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())


def _in_a_process(item: str, work: Callable[[str], Mapping[str, Any]], seconds: int) -> Record:
    start = time.monotonic()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(item, work, seconds, writer)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    _, status, usage = os.wait4(child, 0)
    record: Record = {"item": item, "seconds": round(usage.ru_utime + usage.ru_stime, 1)}
    if text:
        return {**record, **json.loads(text)}
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if killed in (signal.SIGXCPU, signal.SIGALRM):
        return {**record, "outcome": "too long"}
    took = time.monotonic() - start
    return {**record, "outcome": "crashed", "text": f"status {status} after {took:.0f} s"}


def _child(item: str, work: Callable[[str], Mapping[str, Any]], seconds: int, writer: int) -> None:
    """Do the work, write its record, and end."""
    sys.stdout.flush()
    # At the soft limit the system sends SIGXCPU, which tells the end from a crash; at the hard one SIGKILL.
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    signal.alarm(10 * seconds)  # of the clock: something waits for ever
    try:
        record = dict(work(item))
    except BaseException as error:
        lines = "".join(traceback.format_exception(error)).strip().splitlines()
        record = {"outcome": "crashed", "text": "\n".join(lines[-12:])}
    with os.fdopen(writer, "w") as file:
        file.write(json.dumps(record))
    os._exit(0)


def _show(record: Record) -> None:
    text = " ".join(str(record.get("text", "")).split())[:300]
    print(f"{record['item']}: {record['outcome']} ({record['seconds']} s) {text}", flush=True)  # noqa: T201
