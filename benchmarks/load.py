"""The cost of a process that only runs: time and memory from the start of Python to the first result.

    python benchmarks/load.py [FILE.rxe] [--json out.json]

Builds a small program (or takes the executable given), then starts fresh processes that load it with nothing on PATH
and call nothing but `relaxpy.runtime`. Medians over the processes; memory is the resident set after each step. Without
a file the program is called as well.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

PROGRAM = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 64), "float32")):
        with R.dataflow():
            y = R.matmul(x, w)
            z = R.exp(y)
            R.output(z)
        return z
"""

CHILD = """
import json, os, sys, time
start = time.perf_counter()
steps = []
def step(name):
    now = time.perf_counter() - start
    try:
        pages = int(open("/proc/self/statm").read().split()[1])
    except OSError:  # not Linux
        pages = 0
    steps.append((name, now * 1e3, pages * os.sysconf("SC_PAGESIZE") / 1e6))
step("Python")
import numpy as np
step("import numpy")
import relaxpy.runtime as runtime
step("import relaxpy.runtime")
exe = runtime.load(sys.argv[1])
step("load the executable")
vm = runtime.VirtualMachine(exe)
step("make the machine")
if sys.argv[2] == "call":
    vm["main"](np.zeros((3, 64), np.float32), np.zeros((64, 64), np.float32))
    step("first call")
assert "tvm" not in sys.modules
print(json.dumps(steps))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("executable", nargs="?", type=Path)
    parser.add_argument("--processes", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = options.executable
        if file is None:
            import relaxpy

            file = Path(folder, "small.rxe")
            relaxpy.build(relaxpy.parse(PROGRAM)).save(file)
        runs = [run(file, call=options.executable is None) for _ in range(options.processes)]
    table = Table(title="A fresh process, medians")
    for column in ("step", "ms since the start", "MB in all"):
        table.add_column(column, justify="left" if column == "step" else "right")
    figures = {}
    for index, (name, _, _) in enumerate(runs[0]):
        milliseconds = median(steps[index][1] for steps in runs)
        megabytes = median(steps[index][2] for steps in runs)
        figures[name] = {"milliseconds": milliseconds, "megabytes": megabytes}
        table.add_row(name, f"{milliseconds:.0f}", f"{megabytes:.0f}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def run(file: Path, call: bool) -> list[tuple[str, float, float]]:
    """One process: (step, milliseconds, megabytes) for each step."""
    command = [sys.executable, "-c", CHILD, str(file), "call" if call else "load"]
    done = subprocess.run(
        command,
        env={"PATH": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [tuple(step) for step in json.loads(done.stdout)]


if __name__ == "__main__":
    main()
