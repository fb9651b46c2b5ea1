"""Compile time: cold and warm builds, phase by phase, beside `tvm.relax` on the same modules; graph passes a binding;
how it grows with programs of many shapes.

    python benchmarks/compile.py [--models minilm prefill llama] [--layers 2 8 32] [--json FILE]
    python benchmarks/compile.py --models --layers [--shapes PART_OF_A_NAME …] [--counts 250 500 1000 2000]

The modules are those of the models, without weights (they are parameters): all-MiniLM-L6-v2, and a decoder of the shape
of Llama 2 7B with 32 layers (its decode, over `past + 1` tokens, is more than `tvm.relax` can legalise). `tvm.relax`
reads the text that relaxpy prints; what its operators spell otherwise is respelt (`respelt`). Each build is the first
of its process, compiler imported. *Warm* is the first of another process, which finds in the cache what the cold one
kept; *edited* as well, of a module that differs a little: the graph is compiled anew, the kernels are found.
`tvm.relax` is measured with its default pipeline, which schedules nothing and fuses nothing for processors, and with
its fusion before that. Both sides end with an object file.

Graph passes: the same decoder, fewer layers, everything before kernels.

Shapes (`program_shapes.py`): programs of 250 to 2 000 operators, each parsed and built cold in a process of its own
with one job; processor time, which other work on the machine does not change much. *Growth* is the largest ratio of
a size's time to that of half the size.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.report import markdown_table, replace_section  # noqa: E402

MODELS = {
    "minilm": "all-MiniLM-L6-v2",
    "weights": "all-MiniLM-L6-v2 with its weights, 91 MB",
    "prefill": "Llama 2 7B's shape, 32 layers: prefill",
    "llama": "Llama 2 7B's shape, 32 layers: prefill and decode",
}
KERNEL_STEPS = ("schedule", "listing", "kernels")
"""Steps of a build that are not of the graph. Kernels are compiled during all of these, and while code is generated."""


def module(model: str, layers: int) -> tuple[Any, Any]:
    """The model's module, weights as parameters, and their values where the model is to have them."""
    if model in ("minilm", "weights"):
        from relaxpy.models.bert import SPEC, BertConfig, BertEncoder, load_weights
        from relaxpy.models.checkpoint import read_weights
        from relaxpy.models.sentence_embedding import default_checkpoint

        encoder = BertEncoder(BertConfig.from_checkpoint(default_checkpoint()))
        if model == "weights":
            load_weights(encoder, read_weights(default_checkpoint()))
        mod, values = encoder.export({"embed": SPEC["embed"]})
        return mod, values if model == "weights" else None
    from relaxpy.models.llama import Llama, LlamaConfig, spec

    config = LlamaConfig(
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=layers,
        num_attention_heads=32,
        vocab_size=32000,
    )
    functions = spec(config)
    names = ("prefill", "decode") if model == "llama" else ("prefill",)
    return Llama(config).export({name: functions[name] for name in names})[0], None


def respelt(text: str) -> str:
    """Our script as `tvm.relax` reads it.

    Norms name their axis; slices take tuples; constants that are not written out become parameters; MiniLM's table of
    positions is gathered instead of sliced and cast, on which that compiler ends with a segmentation fault.
    """
    text = text.split("\n", 1)[1].split("\n# The data of the constants", 1)[0]
    text = re.sub(r"(R\.nn\.\w+_norm\([^\n]*?)(, epsilon)", r"\1, axes=[-1]\2", text)
    text = re.sub(
        r"strided_slice: [^\n]*\n(\s*)cast = R\.match_cast\(strided_slice, ([^\n]*)\)\n",
        r"positions = R.arange(R.prim_value(0), R.prim_value(seq), R.prim_value(1), dtype='int64')\n"
        r"\1cast: \2 = R.take(embeddings_position_weight, positions, axis=0)\n",
        text,
    )
    text = re.sub(
        r"R\.strided_slice\((\w+), R\.shape\(\[(.*?)\]\), R\.shape\(\[(.*?)\]\), R\.shape\(\[(.*?)\]\)",
        r"R.strided_slice(\1, (\2,), (\3,), (\4,)",
        text,
    )
    text = re.sub(
        r"R\.arange\((R\.prim_value\([^,\n]*\)), (R\.prim_value\([^,\n]*\))\)\n",
        r"R.arange(\1, \2, R.prim_value(1), dtype='int64')\n",
        text,
    )
    for number, constant in enumerate(
        dict.fromkeys(re.findall(r'R\.const_ref\("\w+", .*?"\)\)', text))
    ):
        name, annotation = f"constant{number}", constant.split(", ", 1)[1][:-1]
        text = text.replace(constant, name)
        text = re.sub(r"(def \w+\()", rf"\1{name}: {annotation}, ", text)
    return text


def measure_relaxpy(model: str, layers: int, cache: str, edited: bool) -> dict[str, Any]:
    """Seconds of a build's steps in this process."""
    import relaxpy
    from relaxpy.ir.expr import Function

    mod, params = module(model, layers)
    if edited:
        mod = replace(mod, name="Edited")
    relaxpy.build(relaxpy.parse("@R.function\ndef main(x: R.Object):\n    return x\n"))  # imports
    bindings = sum(
        len(list(func.body.bindings))
        for func in mod.functions.values()
        if isinstance(func, Function)
    )
    start = perf_counter()
    exe = relaxpy.build(mod, params=params, cache=cache)
    seconds = perf_counter() - start
    report = exe.build_report
    assert report is not None
    steps = dict(report.steps)
    graph = sum(spent for name, spent in report.steps if name not in KERNEL_STEPS)
    return {
        "seconds": seconds,
        "bindings": bindings,
        "graph": graph,
        "kernels": steps.get("kernels", 0.0),
        "count": len(report.kernels),
        "hits": report.hits,
        "steps": report.steps,
        "object_bytes": sum(map(len, exe.objects)),
        "peak_kernel": max(kernel.seconds for kernel in report.kernels),
    }


def measure_tvm(model: str, layers: int, fuse: bool) -> dict[str, Any]:
    """The same in `tvm.relax`; its graph passes are those before the tensor programs are lowered."""
    import tvm
    import tvm.script
    from tvm import relax

    mod = tvm.script.from_source(respelt(module(model, layers)[0].script()))
    target = tvm.target.Target("llvm")
    start = perf_counter()
    with target:
        if fuse:
            mod = relax.get_pipeline("zero")(mod)
        mod = relax.pipeline.default_build_pipeline()(mod)
    graph = perf_counter() - start
    programs = sum(isinstance(f, tvm.tirx.PrimFunc) for f in mod.functions.values())
    built = relax.build(mod, target=target, relax_pipeline=tvm.transform.Sequential([]))
    with tempfile.TemporaryDirectory() as folder:
        for library in built.mod.imports:
            library.write_to_file(str(Path(folder, "kernels.o")), "o")
    return {"seconds": perf_counter() - start, "graph": graph, "count": programs}


def measure_shape(name: str, count: int) -> dict[str, Any]:
    """Processor seconds to parse and build the program `name` of `count` operators in this process."""
    import relaxpy
    from benchmarks.program_shapes import shapes

    text = shapes()[name](count)
    relaxpy.build(relaxpy.parse(shapes()["layers"](8)), cache=False)  # imports, and TVM's first use
    start = process_time()
    mod = relaxpy.parse(text)
    parsed = process_time()
    exe = relaxpy.build(mod, cache=False, jobs=1)
    built = process_time()
    relaxpy.VirtualMachine(exe)["main"]
    report = exe.build_report
    assert report is not None
    return {
        "seconds": built - start,
        "parse": parsed - start,
        "link": process_time() - built,
        "count": len(report.kernels),
        "peak_kernel": max((kernel.seconds for kernel in report.kernels), default=0.0),
        "steps": report.steps,
    }


def in_process(*args: object, limit: float | None = None) -> dict[str, Any]:
    """The output of a measurement in a process of its own; `limit`: seconds it may take."""
    command = [sys.executable, str(Path(__file__)), "--worker", *map(str, args)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {limit:g} s"}
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return {"failed": lines[-1] if lines else f"exit code {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def worker(system: str, model: str, layers: str, option: str = "", edited: str = "") -> None:
    """Measure, and print JSON."""
    if system == "shape":
        result = measure_shape(model, int(layers))
    elif system == "relaxpy":
        result = measure_relaxpy(model, int(layers), option, bool(edited))
    else:
        result = measure_tvm(model, int(layers), option == "fuse")
    print(json.dumps(result))


def builds(model: str) -> dict[str, dict[str, Any]]:
    """System → its figures, for one model."""
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "relaxpy, cold": in_process("relaxpy", model, 32, folder),
            "relaxpy, warm": in_process("relaxpy", model, 32, folder),
            "relaxpy, edited": in_process("relaxpy", model, 32, folder, "edited"),
        }
    if model == "weights":
        return found
    found["tvm.relax"] = in_process("tvm", model, 32, "plain")
    found["tvm.relax, fused"] = in_process("tvm", model, 32, "fuse")
    return found


def graph_passes(layers: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Layers of the decoder → ours and theirs, with warm kernels."""
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        in_process("relaxpy", "prefill", layers[0], folder)  # all layers have the same kernels
        for count in layers:
            ours = in_process("relaxpy", "prefill", count, folder, "edited")
            theirs = in_process("tvm", "prefill", count, "fuse")
            found[str(count)] = {"relaxpy": ours, "tvm.relax, fused": theirs}
    return found


SLOWEST = 300.0
"""Seconds after which a program of one shape is given up."""
STEEP = 2.3
"""A growth that no shape should have. Others on the machine disturb short measurements: a shape above it is measured
again, one build at a time, `TURNS` times at most, and each size's least time of these counts."""
TURNS = 3


def growth(parts: Sequence[str], counts: Sequence[int], jobs: int) -> dict[str, Any]:
    """Shape → count → figures, for the shapes whose names have one of `parts` in them."""
    from benchmarks.program_shapes import shapes

    names = [name for name in shapes() if any(part in name for part in parts)]
    found: dict[str, Any] = {name: {} for name in names}
    for turn in range(1 + TURNS):
        cases = [(name, count) for name in names for count in counts]
        if turn == 1:  # times of builds that shared a core are not compared with others
            found |= {name: {} for name in names}
        with ThreadPoolExecutor(1 if turn else jobs) as pool:
            results = pool.map(lambda case: in_process("shape", *case, limit=SLOWEST), cases)
            for (name, count), figures in zip(cases, results, strict=True):
                print(
                    f"{name}, {count}: {figures.get('seconds', figures.get('failed'))}", flush=True
                )
                figures.pop("steps", None)
                before = found[name].get(str(count), figures)
                if seconds_of(figures) <= seconds_of(before):
                    found[name][str(count)] = figures
        names = [name for name in names if ratio(found[name]) > STEEP]
    return found


def seconds_of(figures: Mapping[str, Any]) -> float:
    """The time of a measurement; infinite for one that failed."""
    return figures.get("seconds", float("inf"))


def ratio(figures: Mapping[str, Any]) -> float:
    """The largest growth a doubling of one shape's times."""
    times = {int(count): each.get("seconds") for count, each in figures.items()}
    pairs = [(times[n], times.get(2 * n)) for n in times if 2 * n in times]
    return max((b / a if a and b else float("inf") for a, b in pairs), default=float("nan"))


def growth_rows(results: Mapping[str, Any]) -> Iterator[list[str]]:
    """A row a shape: seconds a size, growth, the longest kernel, how many kernels."""
    for name, figures in results.items():
        peak = max(each.get("peak_kernel", 0.0) for each in figures.values())
        yield [
            name,
            *(
                f"{each['seconds']:.2f}" if "seconds" in each else each["failed"]
                for each in figures.values()
            ),
            f"{ratio(figures):.2f}",
            f"{peak:.2f}",
            str(max(each.get("count", 0) for each in figures.values())),
        ]


def report_growth(results: Mapping[str, Any]) -> None:
    """Write the table's section of docs/benchmarks.md: chains shortly, the other shapes row by row."""
    counts = list(next(iter(results.values())))
    chains = [name for name in results if name.startswith("chain: ")]
    rows = [row for row in growth_rows(results) if row[0] not in chains]
    notes = []
    for dtype in ("float32", "bfloat16"):
        rows_of = [row for row in growth_rows(results) if row[0] in chains and dtype in row[0]]
        slowest = max(
            rows_of, key=lambda row: seconds_of(results[row[0]][counts[-1]]), default=None
        )
        steepest = max(rows_of, key=lambda row: ratio(results[row[0]]), default=None)
        for what, row in (("slowest", slowest), ("steepest", steepest)):
            if row is not None:
                rows.append([f"{len(rows_of)} chains, {dtype}, the {what}: {row[0][7:]}", *row[1:]])
    notes.append(
        "`python benchmarks/compile.py --models --layers`: processor seconds to parse and build programs of so many "
        "operators, cold, one job. *Growth*: the largest ratio of a time to that of half the operators. "
        "All rows, a chain each of every elementary function among them, are in benchmarks/results/compile.json."
    )
    columns = ["shape", *counts, "growth", "longest kernel, s", "kernels"]
    table = markdown_table(columns, rows, "l" + "r" * (len(columns) - 1))
    replace_section("Compile time by shape of program", "\n\n".join([*notes, table]))


def show(console: Console, results: dict[str, Any]) -> None:
    """Tables of the results."""
    if results["growth"]:
        table = Table(title="programs by shape: seconds of a cold build")
        counts = list(next(iter(results["growth"].values())))
        for column in ("", *counts, "growth", "longest kernel", "kernels"):
            table.add_column(column, justify="left" if not column else "right")
        for row in growth_rows(results["growth"]):
            table.add_row(*row)
        console.print(table)
    for model, systems in results["builds"].items():
        table = Table(title=f"{MODELS[model]}: seconds of a build")
        for column in ("", "in all", "graph", "kernels", "distinct kernels"):
            table.add_column(column, justify="left" if not column else "right")
        for name, figures in systems.items():
            if "failed" in figures:
                table.add_row(name, "failed", figures["failed"][:60])
                continue
            rest = figures["seconds"] - figures["graph"]
            table.add_row(
                name,
                *(f"{figures[k]:.2f}" for k in ("seconds", "graph")),
                f"{rest:.2f}",
                str(figures["count"]),
            )
        console.print(table)
    table = Table(title="graph passes of the decoder, µs a binding")
    for column in ("layers", "bindings", "relaxpy", "tvm.relax, fused"):
        table.add_column(column, justify="right")
    for layers, systems in results["graph"].items():
        bindings = systems["relaxpy"]["bindings"]
        row = [
            f"{each['graph'] / bindings * 1e6:.0f}" if "graph" in each else "failed"
            for each in systems.values()
        ]
        table.add_row(layers, str(bindings), *row)
    console.print(table)


def main() -> None:
    """Measure, print, write."""
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--layers", type=int, nargs="*", default=[2, 8, 32])
    parser.add_argument("--shapes", nargs="*", default=[""], help="parts of the names of shapes")
    parser.add_argument("--counts", type=int, nargs="*", default=[250, 500, 1000, 2000])
    parser.add_argument("--jobs", type=int, default=1, help="shapes measured at a time")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/compile.json")
    options = parser.parse_args()
    kept: dict[str, Any] = {"builds": {}, "graph": {}, "growth": {}}
    if options.json.exists():  # a part measured by itself replaces that part
        kept |= json.loads(options.json.read_text(encoding="utf-8"))
    for model in options.models:
        kept["builds"][model] = builds(model)
    if options.layers:
        kept["graph"] = graph_passes(options.layers)
    if options.shapes:
        kept["growth"] |= growth(options.shapes, options.counts, options.jobs)
    kept["processors"] = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    )
    options.json.parent.mkdir(exist_ok=True)
    options.json.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    show(Console(width=100), kept)
    if options.shapes == [""]:
        report_growth(kept["growth"])


if __name__ == "__main__":
    main()
