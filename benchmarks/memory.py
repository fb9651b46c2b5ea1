"""Memory: what is planned, what it would be without a plan, and what a process really holds.

    python benchmarks/memory.py                  all of it
    python benchmarks/memory.py --only table2    table 2 of the Relax paper: Llama3-8B in fp16, planned (nothing runs)
    python benchmarks/memory.py --only measured  MiniLM and a decoder of 4 layers, in processes of their own

**Table 2.** Activations of successive prefills of 128, 256, 512 and 1024 tokens, and of successive decodes of batches
of 1, 16, 32 and 64. *Planned*: one plan with these upper bounds, for all of them. *Without*: no plan; every tensor is
allocated when it is made and freed behind its last use, by the paper's pool, which gives memory out again for the same
number of pages. *Least*: what is in use at the busiest moment of the largest call, which no plan gets below. Counted
are intermediate values and the logits (float32, of the last token); not the weights, and not keys and values, which
outlive a call. Weights are parameters here, so that nobody needs 16 GB for it.

**Measured.** The plan beside what the virtual machine counts and what the system says of the process: anonymous memory
that a call at the upper bounds adds to a call of one token, and mapped pages of the file for the weights.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from report import ROOT, markdown_table, replace_section, save, saved
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import relaxpy
from relaxpy.build.pipeline import default_pipeline
from relaxpy.build.plan import memory_plan
from relaxpy.ir import IRModule
from relaxpy.models import bert, llama
from relaxpy.models.checkpoint import read_config
from relaxpy.models.sentence_embedding import default_checkpoint
from relaxpy.runtime.inspect.memory_plan import FunctionPlan, PlannedTensor

MIB = 1 << 20
PAGE = 4096
LLAMA3_8B = llama.LlamaConfig(
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=128256,
    max_position_embeddings=8192,
    dtype="float16",
)
DECODER = llama.LlamaConfig(
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=4,
    num_attention_heads=16,
    num_key_value_heads=4,
    vocab_size=32000,
)
PREFILLS, DECODES, PAST = (128, 256, 512, 1024), (1, 16, 32, 64), 1024
PAPER = {"prefill": (192.7, 149.7), "decode": (150.0, 88.2)}
"""MiB without and with planning, as the paper has them."""


# Table 2


def activations(plan: FunctionPlan, batch: int, config: llama.LlamaConfig) -> list[PlannedTensor]:
    """The tensors of a function, without keys and values: of those that leave the call only the logits."""
    logits = batch * config.vocab_size * 4
    last = plan.length - 1
    found = [t for t in plan.tensors if t.storage >= 0 or t.end < last or t.nbytes == logits]
    assert sum(t.end == last for t in found) == 1, "the logits are the one result of their size"
    return found


def pooled(calls: list[list[PlannedTensor]]) -> int:
    """The bytes that a pool holds in the end. It is asked for every tensor when it is made, and gets it back behind its
    last use; it reuses memory of the same number of pages, and keeps everything (TVM's PooledAllocator)."""
    free: Counter[int] = Counter()
    total = 0
    for tensors in calls:
        ending: dict[int, list[int]] = {}
        for tensor in sorted(tensors, key=lambda t: t.begin):
            for at in sorted(end for end in ending if end < tensor.begin):
                free.update(ending.pop(at))
            size = (tensor.nbytes + PAGE - 1) // PAGE * PAGE
            if free[size]:
                free[size] -= 1
            else:
                total += size
            ending.setdefault(tensor.end, []).append(size)
        for sizes in ending.values():
            free.update(sizes)
    return total


def table2(layers: int) -> dict[str, dict[str, float]]:
    """MiB for prefill and decode."""
    config = llama.LlamaConfig(
        **{
            **vars(LLAMA3_8B),
            "num_hidden_layers": layers,
        }  # the figures are the same for any number of layers
    )
    spec = llama.spec(config)
    mod, _ = llama.Llama(config).export({name: spec[name] for name in ("prefill", "decode")})
    unplanned = default_pipeline(without=["update-in-place", "plan-memory"])
    cases = {
        "prefill": [{"batch": 1, "seq": seq} for seq in PREFILLS],
        "decode": [{"batch": batch, "past": PAST} for batch in DECODES],
    }
    found: dict[str, dict[str, float]] = {}
    for name, sizes in cases.items():
        largest = sizes[-1]
        only = IRModule({name: mod[name]}, mod.attrs, mod.global_infos)
        plan = memory_plan(only, bounds=largest)[name]
        logits = largest["batch"] * config.vocab_size * 4
        calls = [
            activations(
                memory_plan(only, sizes=size, pipeline=unplanned)[name], size["batch"], config
            )
            for size in sizes
        ]
        demand = max(plan.demand(activations(plan, largest["batch"], config)))
        found[name] = {
            "without": pooled(calls) / MIB,
            "planned": (plan.planned + logits) / MIB,
            "least": demand / MIB,
            "paper_without": PAPER[name][0],
            "paper_planned": PAPER[name][1],
        }
    return found


# Measured


@dataclass(frozen=True)
class Case:
    """A model, the function that is called, and its largest sizes."""

    function: str
    bounds: Mapping[str, int]
    inputs: int
    """How many parameters take tokens, (batch, seq) integers each."""
    picture: str = ""
    """Where in the documentation its timeline is kept."""


CASES = {
    "MiniLM, 32 × 128": Case("embed", {"batch": 32, "seq": 128}, 2, "memory.svg"),
    "decoder of 4 layers, prefill 4 × 512": Case("prefill", {"batch": 4, "seq": 512}, 1),
}


def executable(name: str) -> relaxpy.Executable:
    """The model of a case, with weights."""
    case = CASES[name]
    rng = np.random.default_rng(0)
    if case.function == "embed":
        model: Any = bert.BertEncoder(
            bert.BertConfig.from_dict(read_config(default_checkpoint(), "bert"))
        )
        spec = bert.SPEC
    else:
        model, spec = llama.Llama(DECODER), llama.spec(DECODER)
    for _, parameter in model.named_tensors():
        parameter.data = (rng.standard_normal(parameter.shape, np.float32) * 0.02).astype(
            parameter.dtype.numpy
        )
    mod, params = model.export({case.function: spec[case.function]})
    return relaxpy.build(mod, params=params, bounds=case.bounds)


def measured(name: str) -> dict[str, float]:
    """The plan of a case in bytes, and what a fresh process holds."""
    exe = executable(name)
    case = CASES[name]
    plan = exe.memory_plan()
    function = plan[case.function]
    if case.picture:
        (ROOT / "docs" / case.picture).write_text(plan.svg(), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.rxe")
        exe.save(file)
        done = subprocess.run(
            [sys.executable, __file__, "--child", name, str(file)],
            capture_output=True,
            text=True,
            check=True,
        )
    held = json.loads(done.stdout)
    return {
        "weights": plan.weights,
        "planned": function.planned,
        "least": function.least,
        "unshared": function.unshared,
        "results": function.unplanned,
        **held,
    }


def child(name: str, file: str) -> None:
    """In a process of its own: run, and say what is held."""
    case = CASES[name]
    mapped = _status("RssFile")
    exe = relaxpy.load(file)
    loaded = _status("RssFile")
    touched = sum(int(array.reshape(-1).view(np.uint8)[::PAGE].sum()) for array in exe.constants)
    weights = _status("RssFile") - loaded
    vm = relaxpy.VirtualMachine(exe)
    batch, seq = case.bounds["batch"], case.bounds["seq"]
    small = [np.ones((1, 1), np.int64) for _ in range(case.inputs)]
    large = [np.ones((batch, seq), np.int64) for _ in range(case.inputs)]
    for _ in range(3):
        vm[case.function](*small)
    vm.release_memory()  # what the small calls touched of the storage
    before = _status("RssAnon")
    result = vm[case.function](*large)
    anonymous = _status("RssAnon") - before
    use = vm.memory
    print(
        json.dumps(
            {
                "counted_planned": use.planned,
                "counted_results": use.results,
                "counted_peak": use.peak,
                "resident_weights": weights,
                "resident_activations": anonymous,
            }
        )
    )
    del result, mapped, touched


def _status(field: str) -> int:
    """Bytes of a line of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"this system does not say {field}")


# The report


def document(report: dict[str, Any]) -> None:
    """Write the section of docs/benchmarks.md."""
    parts: list[str] = []
    if "table2" in report:
        rows = [
            [
                name,
                *(
                    f"{row[key]:.1f}"
                    for key in ("paper_without", "paper_planned", "without", "planned", "least")
                ),
            ]
            for name, row in report["table2"].items()
        ]
        columns = [
            "Llama3-8B, fp16, MiB",
            "paper, without",
            "paper, planned",
            "without",
            "planned",
            "least",
        ]
        parts.append(
            "Table 2 of the paper: activations of prefills of 128, 256, 512, 1024 tokens in succession, and of decodes "
            "of batches of 1, 16, 32, 64. Counted are intermediate values and the float32 logits of the last token, "
            "not weights, keys and values. *Least* is what is in use at the busiest moment: no plan takes less.\n\n"
            + markdown_table(columns, rows, "lrrrrr")
        )
    if "measured" in report:
        columns = [
            "MiB",
            "weights",
            "planned",
            "results",
            "counted",
            "resident",
            "resident / planned",
        ]
        rows = []
        for name, row in report["measured"].items():
            plan = row["planned"] + row["results"]
            counted = row["counted_planned"] + row["counted_results"]
            resident = row["resident_activations"] + row["resident_weights"]
            total = plan + row["weights"]
            figures = (row["weights"], row["planned"], row["results"], counted, resident)
            rows.append(
                [name, *(f"{figure / MIB:.1f}" for figure in figures), f"{resident / total:.3f}"]
            )
        parts.append(
            "The plan beside what the virtual machine counts (activations and results) and what the process really "
            "holds (with the weights, which are mapped from the file).\n\n"
            + markdown_table(columns, rows, "lrrrrrr")
        )
    parts.append("`python benchmarks/memory.py` writes this section.")
    replace_section("Memory", "\n\n".join(parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", choices=["table2", "measured"])
    parser.add_argument("--layers", type=int, default=LLAMA3_8B.num_hidden_layers)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    report = saved("memory")
    if options.only != "measured":
        report["table2"] = table2(options.layers)
    if options.only != "table2":
        report["measured"] = {name: measured(name) for name in CASES}
    path = save("memory", report)
    document(report)
    console = Console()
    console.print_json(json.dumps(report))
    console.print(f"{path} and docs/benchmarks.md are written")


if __name__ == "__main__":
    main()
