"""The gain of each optimisation (the paper's figure 17, on a CPU): models built with all of them, with all but one,
and with none.

    python benchmarks/ablation.py
    python benchmarks/ablation.py --only minilm --seconds 5

The models are all-MiniLM-L6-v2 in fp32 and four layers of a Llama-shaped decoder in bf16 (2048 wide, 5632 inner, 32
heads with 4 for keys; random weights), reading a prompt of 128 tokens and adding one to 127. All executables of a model
live in one process, on the same threads, and take turns, so that what disturbs the machine disturbs all of them;
reported is the shortest of all calls. With `--threads 1` the clock is the thread's own, which stands still while other
processes run: the figure to take on a busy machine. What all variants give must be the same, to the rounding of sums
that are taken in another order.

Kernels are arranged by the rules of `relaxpy.backend.schedule` in all variants: without those a product runs at about
1 % of its speed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.report import markdown_table, replace_section, save, saved

if TYPE_CHECKING:
    import relaxpy
    from relaxpy.transform.phases import Pipeline

SECTION = "Ablation: ms without an optimisation"
ALL, NONE = "all", "none"


def switched_off(pipeline: Pipeline, optimisation: str) -> Pipeline:
    """The pipeline without one of `OPTIMISATIONS`."""
    from relaxpy.transform import FuseOps

    if optimisation == "relayouts":
        if not any(step.name == FuseOps.name for step in pipeline.passes):
            return pipeline
        return pipeline.replace(FuseOps.name, FuseOps(relayouts=False))
    return pipeline.without(*OPTIMISATIONS[optimisation])


OPTIMISATIONS: dict[str, tuple[str, ...]] = {
    "simplification": ("simplify",),
    "attention as one kernel": ("fuse-attention",),
    "combined products": ("combine-parallel",),
    "relayouts": (),
    "fusion": ("fuse-ops", "fuse-tensor-ir"),
    "packed weights": ("pack-weights",),
    "views and updates in place": ("rewrite-reshapes", "update-in-place"),
    "memory plan": ("plan-memory",),
}
"""Name → passes (or phases) that it is; `relayouts` is an option of `fuse-ops`: products read through permutations."""


@dataclass
class Model:
    """A model that is built in variants."""

    title: str
    mod: relaxpy.IRModule
    params: Mapping[str, np.ndarray]
    calls: Mapping[str, tuple[str, tuple[Any, ...]]]
    """Name → function and arguments."""
    tolerance: float
    """Largest difference between variants, of the largest result."""


@dataclass
class Row:
    """One variant of a model in one call."""

    model: str
    variant: str
    call: str
    ms: float
    kernels: int


def minilm() -> Model:
    """The real weights: four sizes of a batch."""
    from relaxpy.models import bert
    from relaxpy.models.checkpoint import read_weights
    from relaxpy.models.sentence_embedding import default_checkpoint

    directory = default_checkpoint()
    model = bert.BertEncoder(bert.BertConfig.from_checkpoint(directory))
    bert.load_weights(model, read_weights(directory))
    mod, params = model.export({"embed": bert.SPEC["embed"]})
    calls: dict[str, tuple[str, tuple[Any, ...]]] = {}
    for batch, length in ((1, 1), (1, 16), (1, 128), (8, 64)):
        ids = np.random.default_rng(0).integers(0, 30000, (batch, length))
        calls[f"{batch} × {length}"] = "embed", (ids, np.ones_like(ids))
    return Model("all-MiniLM-L6-v2, fp32, batch × tokens", mod, params, calls, 1e-5)


def llama(layers: int = 4) -> Model:
    """Random weights: a prompt, and a token behind one."""
    from relaxpy.models.llama import Llama, LlamaConfig, spec

    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=4,
        vocab_size=1024,
        dtype="bfloat16",
    )
    model, rng = Llama(config), np.random.default_rng(0)
    for name, parameter in model.named_tensors():
        size = 1.0 if name.endswith("norm.weight") else parameter.shape[0] ** -0.5
        values = rng.standard_normal(parameter.shape, np.float32) * size
        parameter.data = values.astype(parameter.dtype.numpy)
    specs = spec(config)
    mod, params = model.export({name: specs[name] for name in ("prefill", "decode")})
    ids = rng.integers(0, config.vocab_size, (1, 128))
    cached = rng.standard_normal((1, 127, config.num_key_value_heads, config.head_dim), np.float32)
    pair = (cached.astype("bfloat16"),) * 2
    cache = (pair,) * config.num_hidden_layers
    calls = {
        "prefill 128": ("prefill", (ids,)),
        "decode 1 behind 127": ("decode", (ids[:, :1], cache)),
    }
    return Model(f"{layers} layers of a Llama shape, bf16", mod, params, calls, 5e-2)


MODELS: dict[str, Callable[[], Model]] = {"minilm": minilm, "llama": llama}


def variants(model: Model, console: Console) -> dict[str, relaxpy.Executable]:
    """The model built with all optimisations, with all but one, and with none."""
    import relaxpy
    from relaxpy.build.pipeline import default_pipeline

    pipelines = {ALL: default_pipeline()}
    for name in OPTIMISATIONS:
        pipelines[f"without {name}"] = switched_off(default_pipeline(), name)
    pipelines[NONE] = default_pipeline()
    for name in OPTIMISATIONS:
        pipelines[NONE] = switched_off(pipelines[NONE], name)
    built: dict[str, relaxpy.Executable] = {}
    for name, pipeline in pipelines.items():
        with console.status(f"building {model.title}: {name}"):
            built[name] = relaxpy.build(model.mod, params=model.params, pipeline=pipeline)
    return built


def measure(
    model: Model, console: Console, seconds: float, clock: Callable[[], float]
) -> list[Row]:
    """Every variant in every call, for about so many seconds a call."""
    import relaxpy

    executables = variants(model, console)
    machines = {name: relaxpy.VirtualMachine(each) for name, each in executables.items()}
    rows: list[Row] = []
    for call, (function, given) in model.calls.items():
        args = resident(given)
        runs = {name: machine[function] for name, machine in machines.items()}
        with console.status(f"{model.title}: {call}"):
            check(model, call, {name: first(run(*args)) for name, run in runs.items()})
            calls = {name: partial(run, *args) for name, run in runs.items()}
            best = turns(calls, seconds, clock)
        for name, time_of in best.items():
            count = kernel_calls(executables[name], function, args)
            rows.append(Row(model.title, name, call, round(time_of * 1e3, 3), count))
    return rows


def resident(value: Any) -> Any:
    """Arrays, also in tuples, as the machine's own tensors."""
    from relaxpy.runtime.tensor import from_numpy

    return tuple(map(resident, value)) if isinstance(value, tuple) else from_numpy(value)


def first(result: Any) -> np.ndarray:
    """The result, or the first of several, as float32."""
    while isinstance(result, tuple):
        result = result[0]
    return result.numpy().astype(np.float32)


def check(model: Model, call: str, results: Mapping[str, np.ndarray]) -> None:
    """AssertionError unless all variants give the same."""
    reference = results[NONE]
    for name, result in results.items():
        difference = np.abs(result - reference).max() / np.abs(reference).max()
        assert difference < model.tolerance, f"{call}: {name} differs by {difference:.1e}"


def turns(
    runs: Mapping[str, Callable[[], Any]], seconds: float, clock: Callable[[], float]
) -> dict[str, float]:
    """The shortest call of each, all taking turns for about so many seconds."""
    best = dict.fromkeys(runs, float("inf"))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, run in runs.items():
            run()  # its weights back into the caches
            for _ in range(2):
                start = clock()
                run()
                best[name] = min(best[name], clock() - start)
    return best


def kernel_calls(executable: relaxpy.Executable, function: str, args: tuple[Any, ...]) -> int:
    """How many kernels one call of the model calls."""
    import relaxpy
    from benchmarks.kernel_times import recording

    with recording() as times:
        relaxpy.VirtualMachine(executable)[function](*args)
    return sum(kernel.calls for kernel in times.by_time())


def cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Of one model: columns, and a row a variant: kernel calls, milliseconds, what share of those with all they are."""
    calls = list(dict.fromkeys(row.call for row in rows))
    columns = [""]
    for call in calls:
        columns += [call, "kernels"]
    with_all = {row.call: row.ms for row in rows if row.variant == ALL}
    lines: list[list[str]] = []
    for name in dict.fromkeys(row.variant for row in rows):
        line = [name]
        for row in (row for row in rows if row.variant == name):
            line += [f"{row.ms:.2f} ({row.ms / with_all[row.call]:.2f})", str(row.kernels)]
        lines.append(line)
    return columns, lines


def table(rows: Sequence[Row], threads: int) -> Table:
    """One model's, for the terminal."""
    columns, lines = cells(rows)
    view = Table(title=f"{rows[0].model}, {threads} threads: ms (of those with all)")
    for name in columns:
        view.add_column(name, justify="right" if name else "left")
    for line in lines:
        view.add_row(*line)
    return view


def publish(rows: Sequence[Row], threads: int) -> None:
    """Put the rows into the results and the documentation, in the place of those of the same models."""
    measured = {row.model for row in rows}
    kept = [
        row
        for each in saved("ablation").get("rows", ())
        if (row := Row(**each)).model not in measured
    ]
    merged = [*kept, *rows]
    save("ablation", {"threads": threads, "rows": [asdict(row) for row in merged]})
    parts = [
        f"`make bench-ablation`, {threads} threads: the shortest of all calls in turns, and in brackets what part "
        "of the time with all optimisations it is; how many kernels a call calls."
    ]
    for model in dict.fromkeys(row.model for row in merged):
        columns, lines = cells([row for row in merged if row.model == model])
        parts.append(f"{model}:\n\n" + markdown_table(columns, lines, "l" + "r" * len(columns)))
    replace_section(SECTION, "\n\n".join(parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=MODELS, help="one of the models")
    parser.add_argument(
        "--seconds", type=float, default=10, help="a call, for all variants together"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--quick", action="store_true", help="one turn of each; nothing is written")
    args = parser.parse_args()
    os.environ["RELAXPY_NUM_THREADS"] = str(args.threads)
    clock = time.thread_time if args.threads == 1 else time.perf_counter
    console = Console(width=None if sys.stdout.isatty() else 150)
    for name in [args.only] if args.only else MODELS:
        rows = measure(MODELS[name](), console, 0.01 if args.quick else args.seconds, clock)
        console.print(table(rows, args.threads))
        if not args.quick:
            publish(rows, args.threads)


if __name__ == "__main__":
    main()
