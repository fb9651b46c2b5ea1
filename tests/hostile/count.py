"""All damaged and hostile checkpoints, one after the other in a process that is watched: how many there are, what they
end in, how long they take and how much memory.

    python -m tests.hostile.count [WORD]        those with this word in their names

The tests of this folder and of `tests/llm/test_chat_template.py` run a part of the cases, or all in a full sweep. Here
the process may use `MEMORY` bytes beyond its start, and is ended if a case takes `SECONDS`. A table comes at the end;
the exit code is 1 if anything but a located error or a text came.
"""

from __future__ import annotations

import json
import resource
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SECONDS = 60
MEMORY = 2 << 30
GOOD = {"error", "text"}
WIDTH = 12

Case = Callable[[Path], str]
"""Writes its files into an empty folder, and says what reading them ends in."""


def cases() -> dict[str, Case]:
    """All cases by group and name."""
    from tests.hostile import test_checkpoints, test_gguf
    from tests.llm.checkpoints import write_model
    from tests.llm.test_chat_template import ESCAPES, HUNGRY

    good = write_model(Path(tempfile.mkdtemp(prefix="relaxpy-good-")) / "tiny")

    def changed(change: test_checkpoints.Change) -> Case:
        def case(folder: Path) -> str:
            place = folder / "tiny"
            shutil.copytree(good, place)
            change(place)
            return test_checkpoints.outcome(place)

        return case

    def gguf(data: bytes) -> Case:
        def case(folder: Path) -> str:
            path = folder / "model.gguf"
            path.write_bytes(data)
            return test_gguf.outcome(path)

        return case

    def rendered(source: str) -> Case:
        return lambda _: _render(source)

    found = {name: changed(change) for name, change in test_checkpoints.CASES.items()}
    found |= {f"GGUF: {name}": gguf(data) for name, (data, _) in test_gguf.CASES.items()}
    found |= {f"templates: {source}": rendered(source) for source in ESCAPES}
    found |= {f"templates: {name}": rendered(source) for name, source in HUNGRY.items()}
    return found


def _render(source: str) -> str:
    """What a template writes: nothing that is inside of the process."""
    from relaxpy.errors import RelaxError
    from relaxpy.llm import ChatTemplate

    try:
        text = ChatTemplate(source, seconds=1).render(messages=[{"role": "user", "content": "Hi"}])
    except RelaxError as error:
        return error.code
    return "text" if text.strip() in ("", "[]", "[Undefined]") else f"wrote {text[:80]!r}"


def work(word: str, first: int) -> None:
    """Run the cases from the first on. For each, a line with its number before it, and one after it."""
    found = [(name, case) for name, case in cases().items() if word in name]
    soft = _memory() + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (soft, soft))
    for number, (name, case) in enumerate(found[first:], first):
        print(json.dumps({"number": number, "name": name, "of": len(found)}), flush=True)
        folder, start = Path(tempfile.mkdtemp(prefix="relaxpy-case-")), time.perf_counter()
        try:
            code = case(folder)
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"[:200]
        seconds = time.perf_counter() - start
        shutil.rmtree(folder, ignore_errors=True)
        print(json.dumps({"code": code, "seconds": seconds, "memory": _memory()}), flush=True)


def _memory() -> int:
    """The most memory that this process had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def watched(word: str) -> Iterator[dict[str, Any]]:
    """What each case ended in. A process that ends, or takes too long, is a finding, and the next one goes on."""
    first, count = 0, 1
    while first < count:
        command = [sys.executable, "-m", __spec__.name, "--work", word, str(first)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            started: dict[str, Any] = {}
            for line in _lines(process):
                data = json.loads(line)
                if "number" in data:
                    started, count = data, data["of"]
                else:
                    first = started["number"] + 1
                    yield {**started, **data}
            process.kill()
            if first < count:
                if not started or started["number"] < first:
                    raise SystemExit(
                        f"the worker does not start: {process.stderr and process.stderr.read()}"
                    )
                first = started["number"] + 1
                code = f"the process ended: {process.wait()}"
                yield {**started, "code": code, "seconds": float(SECONDS), "memory": 0}


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """The lines of a process, until it ends, or gives none for as long as a case may take."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(SECONDS) and (line := process.stdout.readline()):
            yield line


def main(word: str = "") -> int:
    counts: dict[str, Counter[str]] = {}
    longest: dict[str, float] = {}
    wrong: list[str] = []
    memory: list[int] = []

    for each in watched(word):
        group = each["name"].partition(":")[0]
        code = each["code"]
        kind = "text" if code == "text" else "error" if _is_code(code) else "wrong"
        counts.setdefault(group, Counter())[kind] += 1
        longest[group] = max(longest.get(group, 0.0), each["seconds"])
        memory.append(each["memory"])
        if kind not in GOOD:
            wrong.append(f"{each['name']}: {code}")
    print(f"{'':{WIDTH}} {'cases':>6} {'errors':>7} {'texts':>6} {'wrong':>6} {'longest':>8}")
    total = sum(counts.values(), Counter[str]())
    for group, found in [*counts.items(), ("all", total)]:
        seconds = longest.get(group, max(longest.values(), default=0))
        print(
            f"{group:{WIDTH}} {found.total():6} {found['error']:7} {found['text']:6} {found['wrong']:6} {seconds:6.1f} s"
        )
    print(f"memory grew by {(max(memory) - memory[0]) >> 20} MiB, {len(wrong)} wrong")
    print(*wrong, sep="\n")
    return int(bool(wrong))


def _is_code(code: str) -> bool:
    """Whether this is the code of a located error."""
    return bool(code) and all(part.isalpha() and part.islower() for part in code.split("-"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(main(*sys.argv[1:2]))
