"""Python function calls of one use of the compiler: a figure without noise, beside the times.

    python benchmarks/call_counts.py        of the relaxpy that is found: JSON, stage → calls

Two versions whose counts are equal do the same work in Python; a time that differs then comes from the machine. Calls
of built-in functions count too. `benchmarks/versions.py` compares two versions.
"""

from __future__ import annotations

import cProfile
import gc
import json
import os
import pstats
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent))

BINDINGS = 500
"""Of the program that is parsed, printed and built."""
TEXT = """
@R.function
def main(x: R.Tensor(("n", 16), "float32"), w: R.Tensor((16, 16), "float32")):
    return R.nn.relu(R.matmul(x, w))
"""


def calls(work: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> int:
    """The calls of the second run of `work`: the first one fills caches that programs share."""
    work()
    before()
    gc.collect()
    gc.disable()  # a collection calls back, and comes at any time
    profile = cProfile.Profile()
    profile.enable()
    try:
        work()
    finally:
        profile.disable()
        gc.enable()
    return int(pstats.Stats(profile).total_calls)  # pyright: ignore[reportAttributeAccessIssue]


def counts() -> dict[str, int]:
    """Stage → calls."""
    import relaxpy
    from benchmarks.language import program
    from relaxpy.analysis.well_formed import well_formed
    from relaxpy.ir.structural import structural_equal
    from relaxpy.op.deduce import deduce

    text = program(BINDINGS)
    mod = relaxpy.parse(text)
    printed = mod.script()
    again = relaxpy.parse(printed)
    bindings = [each for block in mod["main"].body.blocks for each in block.bindings]
    fresh = iter(range(10**9))  # a comment makes each text a new one
    run = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(TEXT)))["main"]
    x, w = np.ones((4, 16), "float32"), np.ones((16, 16), "float32")
    return {
        "parse": calls(lambda: relaxpy.parse(f"{text}# {next(fresh)}\n")),
        "parse printed": calls(lambda: relaxpy.parse(f"{printed}# {next(fresh)}\n")),
        "print": calls(mod.script),
        "verify": calls(lambda: well_formed(mod)),
        "deduce": calls(lambda: [deduce(each.value, mod) for each in bindings]),
        "compare": calls(lambda: structural_equal(mod, again)),
        "build": calls(lambda: relaxpy.build(mod), empty_cache),
        "a call of one layer": calls(lambda: run(x, w)),
    }


def empty_cache() -> None:
    """Builds from here on find nothing."""
    os.environ["RELAXPY_CACHE_DIR"] = tempfile.mkdtemp(dir=os.environ["TMPDIR"])


def modules(name: str) -> int:
    """How many modules `import name` loads in a fresh process."""
    code = f"import sys; before = len(sys.modules); import {name}; print(len(sys.modules) - before)"
    return int(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = folder
        empty_cache()
        found = counts()
    names = ("relaxpy", "relaxpy.runtime", "relaxpy.script.parser")
    print(json.dumps(found | {f"modules of import {name}": modules(name) for name in names}))


if __name__ == "__main__":
    main()
