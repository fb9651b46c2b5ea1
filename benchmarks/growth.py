"""How every stage grows with a program: parse, print, verify, each pass, build, interpreter, call.

    python benchmarks/growth.py [PART_OF_A_NAME …] [--counts 100 200 400 800] [--json FILE] [--docs]

Programs are those of `program_shapes.py`, and its deep and wide ones. Each size is measured in a process of its
own, with one job and without a cache; processor time, which other work on the machine does not change much. A stage is
*steep* if its time grows by more than `STEEP` with the last doubling and is more than `SHORT` seconds. `--docs` writes
what the file has to docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.program_shapes import Program, deep_shapes, shapes  # noqa: E402
from benchmarks.report import markdown_table, replace_section  # noqa: E402

STEEP, SHORT = 2.4, 0.1
"""The growth of a doubling, and the seconds, above which a stage is shown as steep."""
SLOWEST = 120
"""Seconds of processor time after which a size is given up, and larger ones with it."""
SECTION = "Growth of deep and wide programs: seconds of processor time"


def programs() -> dict[str, Program]:
    """Name → program; of the chains only two."""
    kept = ("chain: exp, float32", "chain: x + y, bfloat16")
    found = {n: p for n, p in shapes().items() if not n.startswith("chain: ") or n in kept}
    return found | deep_shapes()


def measure(name: str, count: int) -> dict[str, Any]:
    """Stage → processor seconds, in this process; and the code of the error that ended them."""
    import numpy as np

    import relaxpy
    from relaxpy.analysis.well_formed import check_well_formed
    from relaxpy.build.pipeline import default_pipeline
    from relaxpy.errors import RelaxError
    from relaxpy.ir import Function, TensorType
    from relaxpy.ir.recursion import deep_recursion
    from relaxpy.ir.visitor import free_sym_vars
    from relaxpy.testing.interpret import interpret
    from relaxpy.testing.random_arguments import argument_of
    from relaxpy.transform.base import PassContext

    found: dict[str, float] = {}

    def timed(stage: str, run: Callable[[], Any]) -> Any:
        start = process_time()
        try:
            return run()
        finally:
            found[stage] = found.get(stage, 0.0) + process_time() - start

    gc.disable()  # as a build does; a collection takes as long as a pass
    warm = relaxpy.parse(shapes()["layers"](8))  # imports, and TVM's first use
    relaxpy.VirtualMachine(relaxpy.build(warm, cache=False))
    warm.script()
    text = programs()[name](count)
    try:
        mod = timed("parse", lambda: relaxpy.parse(text))
        timed("print", mod.script)
        timed("verify", lambda: check_well_formed(mod))
        context = PassContext(target=relaxpy.Target.parse("llvm"))
        step = mod
        with deep_recursion():
            for phase in default_pipeline().phases:
                for each in phase.passes:
                    step = timed(each.name, lambda each=each, step=step: each.run(step, context))
        timed("print lowered", step.script)
        exe = timed("build", lambda: relaxpy.build(mod, cache=False, jobs=1))
        timed("text of the executable", exe.as_text)
        machine = timed("link", lambda: relaxpy.VirtualMachine(exe))
        main = mod["main"]
        assert isinstance(main, Function)
        sizes = dict.fromkeys(free_sym_vars(p.annotation for p in main.params), 3)
        arguments = [
            np.ones((3, 64), np.float32)
            if isinstance(p.annotation, TensorType) and p.annotation.dims is None
            else argument_of(p.annotation, sizes, (1,), (0, 1))
            for p in main.params
        ]
        timed("interpreter", lambda: interpret(mod, "main", *arguments))
        timed("first call", lambda: machine["main"](*arguments))
        timed("call", lambda: machine["main"](*arguments))
    except RelaxError as error:
        return found | {"refused": error.code}
    return found


def in_process(name: str, count: int) -> dict[str, Any]:
    """The measurement of one size, in a process of its own."""
    command = [sys.executable, str(Path(__file__)), "--worker", name, str(count)]
    limit = partial(resource.setrlimit, resource.RLIMIT_CPU, (SLOWEST, SLOWEST + 1))
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, preexec_fn=limit
    )
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return {"refused": f"more than {SLOWEST} s"}
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return {"refused": lines[-1][:100] if lines else f"exit code {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def rows(sizes: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, list[float], float]]:
    """Stage, its seconds a size, and its growth with the last doubling."""
    for stage in next(iter(sizes.values()), {}):
        times = [each[stage] for each in sizes.values() if isinstance(each.get(stage), float)]
        if times:
            yield stage, times, times[-1] / max(times[-2], 1e-9) if len(times) > 1 else 0.0


def is_steep(times: Sequence[float], growth: float) -> bool:
    """Does a stage take long for its last size, and much longer than for half of that?"""
    return growth > STEEP and times[-1] > SHORT


def section(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The section of docs/benchmarks.md: a row for each program of `deep_shapes` that was measured."""
    names = [name for name in deep_shapes() if name in found]
    counts = sorted({int(count) for name in names for count in found[name]})
    lines: list[list[str]] = []
    for name in names:
        sizes = found[name]
        stages = {stage: (times, growth) for stage, times, growth in rows(sizes)}
        builds = [sizes.get(str(count), {}).get("build") for count in counts]
        steep = [
            f"{stage}: {times[-1]:.1f}, × {growth:.1f}"
            for stage, (times, growth) in stages.items()
            if stage != "build" and is_steep(times, growth)
        ]
        refused = [
            f"{count}: {sizes[count]['refused']}" for count in sizes if "refused" in sizes[count]
        ]
        growth = stages["build"][1] if "build" in stages else 0.0
        lines.append([
            name,
            *("" if seconds is None else f"{seconds:.2f}" for seconds in builds),
            f"{growth:.2f}" if growth else "",
            "; ".join(steep),
            "; ".join(refused),
        ])  # fmt: skip
    columns = ["program", *map(str, counts), "growth", "stages that are steep", "refused"]
    note = (
        "`python benchmarks/growth.py --docs`. A build with one job and without a cache, of programs of so many "
        "operators, parameters, levels, loops or symbols (`benchmarks/program_shapes.py`), each in a process of its "
        "own. Growth is that of the last doubling: 2 is linear. A stage (parser, printer, verifier, one pass, linking, "
        f"interpreter) is steep if it grows by more than {STEEP} and takes more than {SHORT} s. What is refused ends "
        f"with an error of this code, or was given up after {SLOWEST} s. Other work kept the machine busy."
    )
    return f"{note}\n\n{markdown_table(columns, lines, 'l' + 'r' * (len(counts) + 1))}"


def main() -> None:
    """Measure, print, write."""
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]))))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", default=[""], help="parts of the names of programs")
    parser.add_argument("--counts", type=int, nargs="*", default=[100, 200, 400, 800])
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/growth.json")
    parser.add_argument("--docs", action="store_true", help="write the table of the page")
    options = parser.parse_args()
    found = json.loads(options.json.read_text("utf-8")) if options.json.exists() else {}
    console = Console(width=120)
    for name in (n for n in programs() if any(part in n for part in options.names)):
        sizes: dict[str, Any] = {}
        for count in options.counts:
            sizes[str(count)] = in_process(name, count)
            if "refused" in sizes[str(count)]:
                break
        found[name] = sizes
        table = Table(title=name)
        for column in ("", *sizes, "growth"):
            table.add_column(column, justify="right" if column else "left")
        for stage, times, growth in rows(sizes):
            if is_steep(times, growth) or stage in ("build", "interpreter", "call"):
                table.add_row(stage, *(f"{t:.3f}" for t in times), f"{growth:.2f}")
        refused = [each["refused"] for each in sizes.values() if "refused" in each]
        console.print(table, *refused)
        options.json.parent.mkdir(exist_ok=True)
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if options.docs:
        replace_section(SECTION, section(found))


if __name__ == "__main__":
    main()
