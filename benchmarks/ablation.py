"""What each optimisation is worth: all-MiniLM-L6-v2 built without any, then with one more at a time (the paper's
figure 17, on a CPU).

    python benchmarks/ablation.py
    python benchmarks/ablation.py --shapes 1x16,8x64 --seconds 30 --json out.json

All executables live in one process, on the same threads, and take turns, so that what disturbs the machine disturbs
all of them; reported is the shortest of all calls. With `--threads 1` the clock is the thread's own, which stands
still while other processes run: the figure to take on a busy machine. The embeddings of all must be the same, to the
rounding of sums that are taken in another order.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

OPTIMISATIONS: dict[str, tuple[str, ...]] = {
    "fusion": ("fuse-ops", "fuse-tensor-ir"),
    "packed weights": ("pack-weights",),
    "relayouts": (),
}
"""What is switched on one after the other, and the passes that it is; the last is an option of `fuse-ops`."""

SHAPES = "1x1,1x16,1x128,8x64"
TOLERANCE = 1e-5


@dataclass
class Variant:
    """The model built with some of the optimisations."""

    name: str
    executable: Any
    run: Any
    """(input_ids, attention_mask) → embeddings."""


@dataclass
class Row:
    """One variant at one shape."""

    variant: str
    shape: str
    milliseconds: float
    kernel_calls: int


def variants() -> list[Variant]:
    """The model without optimisations, then with one more at a time."""
    import relaxpy
    from models import bert
    from models.sentence_embedding import default_checkpoint, read_weights
    from relaxpy.build.pipeline import default_pipeline
    from relaxpy.transform import FuseOps, Sequential

    directory = default_checkpoint()
    model = bert.BertEncoder(bert.BertConfig.from_checkpoint(directory))
    bert.load_weights(model, read_weights(directory))
    mod, params = model.export({"embed": bert.SPEC["embed"]})
    found: list[Variant] = []
    names = list(OPTIMISATIONS)
    for count in range(len(names) + 1):
        off = [step for name in names[count:] for step in OPTIMISATIONS[name]]
        steps = default_pipeline(without=off).passes
        if "relayouts" in names[count:]:
            steps = tuple(
                FuseOps(relayouts=False) if isinstance(step, FuseOps) else step for step in steps
            )
        executable = relaxpy.build(mod, params=params, pipeline=Sequential(steps))
        machine = relaxpy.VirtualMachine(executable)
        name = "none" if count == 0 else f"+ {names[count - 1]}"
        found.append(Variant(name, executable, machine["embed"]))
    return found


def measure(
    all_variants: list[Variant], shape: str, seconds: float, clock: Callable[[], float]
) -> list[Row]:
    """Every variant at one shape, in turns, for about so many seconds."""
    batch, length = map(int, shape.split("x"))
    ids = np.random.default_rng(0).integers(0, 30000, (batch, length))
    mask = np.ones_like(ids)
    reference = all_variants[0].run(ids, mask).numpy()
    for variant in all_variants:  # and warm
        difference = np.abs(variant.run(ids, mask).numpy() - reference).max()
        assert difference < TOLERANCE, f"{variant.name} differs by {difference}"
    best = [float("inf")] * len(all_variants)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for i, variant in enumerate(all_variants):
            variant.run(ids, mask)  # its weights back into the caches
            for _ in range(2):
                start = clock()
                variant.run(ids, mask)
                best[i] = min(best[i], clock() - start)
    return [
        Row(variant.name, shape, round(time_of * 1e3, 3), kernel_calls(variant, ids, mask))
        for variant, time_of in zip(all_variants, best, strict=True)
    ]


def kernel_calls(variant: Variant, ids: np.ndarray, mask: np.ndarray) -> int:
    """How many kernels one call of the model calls."""
    import relaxpy
    from benchmarks.kernel_times import recording

    with recording() as times:
        relaxpy.VirtualMachine(variant.executable)["embed"](ids, mask)
    return sum(kernel.calls for kernel in times.by_time())


def table(rows: list[Row], threads: int) -> Table:
    """Variants down, shapes across; a cell says milliseconds and what share of the first variant's they are."""
    shapes = list(dict.fromkeys(row.shape for row in rows))
    view = Table(title=f"all-MiniLM-L6-v2, {threads} threads: ms (of the time with none)")
    view.add_column("optimisations")
    view.add_column("kernel calls", justify="right")
    for shape in shapes:
        view.add_column(shape.replace("x", " × "), justify="right")
    first = {row.shape: row.milliseconds for row in reversed(rows)}
    for name in dict.fromkeys(row.variant for row in rows):
        own = {row.shape: row for row in rows if row.variant == name}
        cells = [
            f"{own[s].milliseconds:.2f} ({own[s].milliseconds / first[s]:.2f})" for s in shapes
        ]
        view.add_row(name, str(own[shapes[0]].kernel_calls), *cells)
    return view


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", default=SHAPES, help="batch x tokens")
    parser.add_argument("--seconds", type=float, default=10, help="a shape")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, default=Path("build/bench/ablation.json"))
    args = parser.parse_args()
    os.environ["RELAXPY_NUM_THREADS"] = str(args.threads)
    clock = time.thread_time if args.threads == 1 else time.perf_counter
    console = Console(width=None if sys.stdout.isatty() else 120)
    with console.status("building"):
        built = variants()
    rows: list[Row] = []
    for shape in args.shapes.split(","):
        with console.status(shape):
            rows += measure(built, shape, args.seconds, clock)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    report = {"benchmark": "ablation", "threads": args.threads, "rows": [asdict(r) for r in rows]}
    args.json.write_text(json.dumps(report, indent=1) + "\n")
    console.print(table(rows, args.threads))
    console.print(f"written to {args.json}", style="dim")


if __name__ == "__main__":
    main()
