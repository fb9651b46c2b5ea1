"""Everything that is to be known of a GPU, in ten minutes: operators, random programs, models, and their peers.

    python benchmarks/gpu.py                                build, run, write benchmarks/results/gpu_cuda.json
    python benchmarks/gpu.py --prepare build/gpu            only build, on any machine
    python benchmarks/gpu.py --from build/gpu               only run; needs numpy, ml_dtypes and cuda-bindings
    python benchmarks/gpu.py --device vulkan --only encoder,matmul
    python benchmarks/gpu.py --report gpu_cuda.json         tables of a report in docs/targets.md

1. The first sample of every operator beside its reference, and random programs beside the interpreter.
2. An encoder of MiniLM's shape, of five sizes, with graphs and without.
3. Llamas of 1.1B and 8B parameters with random weights, in float16, bfloat16 and 4 bits: a step of 1 to 64 sequences,
   beside transformers, eager and by torch.compile; bytes a second, beside a copy's.
4. Linear layers beside cuBLAS (torch.matmul).
5. What fusion, graphs and the memory plan are worth; 6. the memory of successive calls, with a plan and without.

Each section runs in a process of its own, which is started again behind an item that fails or takes too long, since a
GPU's error ends the work of its process. Sections have shares of `--seconds`; what does not fit is reported as skipped.
Nothing that is prepared holds weights: they are made where they are used.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import gpu_agreement, gpu_sections  # noqa: E402
from benchmarks.gpu_plan import FULL, QUICK, Prepared  # noqa: E402
from benchmarks.gpu_sections import Bench, Skipped  # noqa: E402
from benchmarks.gpu_shares import add_shares  # noqa: E402
from relaxpy.runtime.child_process import problem_of  # noqa: E402
from relaxpy.version import __version__  # noqa: E402

SECTIONS = gpu_sections.SECTIONS | gpu_agreement.SECTIONS
ORDER = (
    "device", "operators", "programs", "encoder", "agreement", "libraries", "decoders", "matmul",
    "convolutions", "ablation", "memory", "transformers",
)  # fmt: skip
"""Of the sections: what is right before what is fast, and peers last."""
SECONDS = 560.0
NO_TIME = "there was no time left"


def run(
    folder: Path, device: str, seconds: float, only: Sequence[str], output: Path
) -> dict[str, Any]:
    """Run the sections, and write the report after each."""
    prepared = Prepared.load(folder)
    report: dict[str, Any] = {
        "version": __version__,
        "device": device,
        "target": prepared.target,
        "plan": prepared.plan.name,
        "left_out": prepared.left_out,
        "sections": {},
    }
    end = time.monotonic() + seconds
    shares = {name: SECTIONS[name][0] for name in only}
    for name in only:
        left = max(end - time.monotonic(), 0.0)
        budget = left * shares[name] / sum(shares[each] for each in only[only.index(name) :])
        start = time.monotonic()
        found = run_section(name, folder, device, budget)
        found["seconds"] = time.monotonic() - start
        report["sections"][name] = found
        add_shares(report)
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(report, indent=1) + "\n")
        print(summary(name, found), flush=True)
    return report


def run_section(name: str, folder: Path, device: str, seconds: float) -> dict[str, Any]:
    """The results of a section's items, the errors of those that failed, and why others were skipped."""
    found: dict[str, Any] = {"results": {}, "errors": {}, "skipped": {}}
    end = time.monotonic() + seconds
    first = 0
    with tempfile.TemporaryDirectory() as scratch:
        lines = Path(scratch) / "lines"
        while True:
            left = end - time.monotonic()
            lines.write_text("")
            problem = _child(name, folder, device, first, max(left, 0.0), lines)
            events = [json.loads(line) for line in lines.read_text().splitlines()]
            began = ""
            for event in events:
                if "begin" in event:
                    began, first = event["begin"], event["number"] + 1
                    continue
                found[event["kind"]][event["item"]] = event["value"]
                began = ""
            if began:
                found["errors"][began] = problem or "its process ended"
            if not problem:
                return found
            if not began:
                found["errors"][name] = problem  # it does not come to its first item
                return found


def _child(name: str, folder: Path, device: str, first: int, seconds: float, lines: Path) -> str:
    """Run items from the number `first` on in a process; what went wrong, or ""."""
    command = [sys.executable, str(Path(__file__)), "--from", str(folder), "--device", device]
    command += ["--section", name, "--first", str(first), "--seconds", str(seconds)]
    command += ["--lines", str(lines)]

    def watch(process: subprocess.Popen[Any]) -> str:
        # That a busy machine starts it slowly is not the items' fault.
        latest = time.monotonic() + STARTING
        while process.poll() is None and not lines.stat().st_size and time.monotonic() < latest:
            time.sleep(0.02)
        try:
            process.wait(timeout=seconds + GRACE)
        except subprocess.TimeoutExpired:
            return f"it took more than {seconds:.0f} s"
        return ""

    return problem_of(command, watch, cwd=ROOT, env=dict(os.environ))


STARTING = 40.0
"""Seconds that a process may take until it begins with its first item."""
GRACE = 20.0
"""Seconds that it may take longer than its time from then on, to finish an item."""


def section(name: str, folder: Path, device: str, first: int, seconds: float, lines: Path) -> int:
    """Run the items of a section from the number `first` on in this process. Each writes two lines of JSON: that it
    begins, and its result. Returns 1 behind an item that failed, since the device may be of no use any more."""
    end = time.monotonic() + seconds
    bench = Bench(Prepared.load(folder), device)
    with lines.open("a") as file:

        def write(**event: Any) -> None:
            file.write(json.dumps(event) + "\n")
            file.flush()

        for number, (item, measure) in enumerate(SECTIONS[name][1](bench)):
            if number < first:
                continue
            if time.monotonic() > end:
                write(kind="skipped", item=item, value=NO_TIME)
                continue
            write(begin=item, number=number)
            try:
                write(kind="results", item=item, value=measure())
            except Skipped as reason:
                write(kind="skipped", item=item, value=str(reason))
            except Exception as error:
                print(f"{type(error).__name__}: {error}".splitlines()[0], file=sys.stderr)
                return 1
    return 0


def summary(name: str, found: dict[str, Any]) -> str:
    """A section in one line, and its errors."""
    wrong = [
        text
        for result in found["results"].values()
        for text in (
            [result["wrong"]] if isinstance(result.get("wrong"), str) else result.get("wrong", ())
        )
        if text
    ]
    counts = f"{len(found['results'])} done, {len(found['skipped'])} skipped"
    lines = [
        f"{name}: {counts}, {len(found['errors'])} failed, {len(wrong)} wrong, {found['seconds']:.0f} s"
    ]
    lines += [f"  {item}: {error}" for item, error in found["errors"].items()]
    return "\n".join([*lines, *(f"  {text}" for text in wrong)])


def main() -> None:
    """Prepare, run, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", default="cuda", help="its kind, with a number if need be: cuda:1"
    )
    parser.add_argument("--target", help="of --prepare (default: the device's kind)")
    parser.add_argument("--prepare", type=Path, metavar="DIR", help="only build, into this folder")
    parser.add_argument("--from", type=Path, metavar="DIR", dest="folder", help="run what is there")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all sections")
    parser.add_argument("--only", default=",".join(ORDER), help="sections, with commas")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--json", type=Path, help="the report (benchmarks/results/gpu_KIND.json)")
    parser.add_argument(
        "--report", type=Path, metavar="JSON", help="only write its tables into docs/targets.md"
    )
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--lines", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.section:
        args = given.section, given.folder, given.device, given.first, given.seconds, given.lines
        sys.exit(section(*args))
    if given.report:
        from benchmarks.gpu_report import write_page

        write_page(json.loads(given.report.read_text()))
        return
    only = given.only.split(",")
    if unknown := sorted({*only} - {*SECTIONS}):
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    kind = given.device.partition(":")[0]
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or given.prepare or Path(scratch)
        if given.folder is None:
            from benchmarks.gpu_prepare import prepare, sizes

            prepare(folder, QUICK if given.quick else FULL, given.target or kind)
            print(f"{len(sizes(folder))} files, {sum(sizes(folder).values()) / 1e6:.1f} MB")
        if given.prepare is None:
            output = given.json or ROOT / "benchmarks" / "results" / f"gpu_{kind}.json"
            run(folder, given.device, given.seconds, only, output)


if __name__ == "__main__":
    main()
