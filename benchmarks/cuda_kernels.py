"""Every kernel of every model as machine code for two generations of NVIDIA's GPUs: registers, spills, shared memory,
occupancy, and floating-point operations a byte.

    python benchmarks/cuda_kernels.py                    a table; writes benchmarks/results/cuda_kernels.json
    python benchmarks/cuda_kernels.py --docs             also into docs/targets.md
    python benchmarks/cuda_kernels.py --only Llama       models whose names match; the results of others stay

Kernels are compiled by NVRTC without the cache. No GPU is needed, nothing runs, and nothing is said about speed.
Operations and bytes are those of the tensor programs: an operand counts once, however often a kernel reads it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.cuda_occupancy import MULTIPROCESSORS
from benchmarks.gpu_models import Model, models
from benchmarks.report import ROOT, markdown_table, replace_section, save, saved

PAGE = ROOT / "docs" / "targets.md"
SECTION = "Kernels for CUDA"
ARCHS = tuple(MULTIPROCESSORS)
COLUMNS = (
    "kernel", "rule", "threads", "registers", "spills", "shared", "occupancy", "FLOPs a byte",
)  # fmt: skip


@dataclass(frozen=True)
class OnArch:
    """A kernel as it was compiled for an architecture."""

    registers: int
    """Of a thread."""
    spills: int
    """Bytes that a thread stores for lack of registers."""
    shared: int
    """Bytes of a block."""
    occupancy: float


@dataclass(frozen=True)
class Row:
    """A kernel of a model."""

    kernel: str
    rule: str
    threads: int
    """Of a block."""
    on: Mapping[str, OnArch]
    """By architecture."""
    intensity: Mapping[str, float | None]
    """Case → operations a byte; None where the program's operations are not known, or it is not called."""


@dataclass(frozen=True)
class Compiled:
    """The kernels of a model."""

    model: str
    cases: tuple[str, ...]
    seconds: float
    """Of a cold build."""
    rows: tuple[Row, ...]


def compiled(model: Model) -> Compiled:
    """Build a model for all architectures."""
    import relaxpy

    mod, weights = model.program()
    start = perf_counter()
    exe = relaxpy.build(mod, f"cuda -arch={','.join(ARCHS)}", weights, cache=False)
    seconds = perf_counter() - start
    return Compiled(model.name, tuple(model.cases), seconds, tuple(rows_of(exe, model.cases)))


def rows_of(exe: Any, cases: Mapping[str, Mapping[str, int]]) -> Iterator[Row]:
    """The kernels of an executable, equal ones once."""
    from relaxpy.explain.compiled import equal_kernels
    from relaxpy.runtime.devices.image import Image

    # A time is of a kernel for one architecture: `linear (sm_80)`.
    rules = {time.name.partition(" (")[0]: time.rule for time in exe.build_report.kernels}
    intensities = {case: intensities_of(exe, sizes) for case, sizes in cases.items()}
    for same in equal_kernels(exe):
        names = [info.name for info in same]
        on: dict[str, OnArch] = {}
        threads = 1
        for image in same[0].images:
            arch = exe.requirements[image.needs].arch
            made = Image.decode(exe.objects[image.object])
            threads = made.limits["threads"]
            registers, shared = made.resources["registers"], made.resources["shared"]
            shared += made.limits.get("dynamic-shared", 0)
            occupancy = MULTIPROCESSORS[arch].occupancy(threads, registers, shared)
            on[arch] = OnArch(registers, made.resources["spills"], shared, occupancy)
        rule = next(rules[name] for name in names if name in rules)
        yield Row(
            names[0],
            rule,
            threads,
            {arch: on[arch] for arch in ARCHS},
            {
                case: next((found[n] for n in names if n in found), None)
                for case, found in intensities.items()
            },
        )


def intensities_of(exe: Any, sizes: Mapping[str, int]) -> dict[str, float | None]:
    """Kernel → operations a byte, over all its calls."""
    from relaxpy.runtime.inspect.launches import launches

    totals: dict[str, tuple[int, int]] = {}
    unknown: set[str] = set()
    for each in launches(exe.functions, exe.kernels, exe.libraries, exe.packed, sizes):
        if each.flops is None or not each.nbytes:
            unknown.add(each.name)
            continue
        flops, nbytes = totals.get(each.name, (0, 0))
        totals[each.name] = flops + each.flops, nbytes + each.nbytes
    return {
        **{name: flops / nbytes for name, (flops, nbytes) in totals.items()},
        **dict.fromkeys(unknown),
    }


def both(values: Sequence[str]) -> str:
    """The values, or the one that all of them are."""
    return values[0] if len({*values}) == 1 else " / ".join(values)


def cells(row: Row) -> list[str]:
    """A row of the table."""
    on = [*row.on.values()]
    intensity = [_number(value) for value in row.intensity.values()]
    return [
        f"`{row.kernel}`",
        row.rule,
        str(row.threads),
        both([str(each.registers) for each in on]),
        both([str(each.spills) for each in on]),
        both([str(each.shared) for each in on]),
        both([f"{each.occupancy:.0%}" for each in on]),
        both(intensity),
    ]


def table(found: Compiled) -> str:
    """The rows in Markdown."""
    return markdown_table(COLUMNS, [cells(row) for row in found.rows], "llrrrrrr")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


SUMMARY = ("model", "kernels", "most registers", "spills", "most shared", "least occupancy")


def summary(found: Sequence[Compiled]) -> str:
    """A row for each model: the extremes of its kernels."""
    rows: list[list[str]] = []
    for each in found:
        by_arch = [[row.on[arch] for row in each.rows] for arch in ARCHS]
        rows.append([
            each.model,
            str(len(each.rows)),
            both([str(max(on.registers for on in kernels)) for kernels in by_arch]),
            both([str(sum(on.spills for on in kernels)) for kernels in by_arch]),
            both([str(max(on.shared for on in kernels)) for kernels in by_arch]),
            both([f"{min(on.occupancy for on in kernels):.0%}" for kernels in by_arch]),
        ])  # fmt: skip
    return markdown_table(SUMMARY, rows, "lrrrrr")


def page_section(found: Sequence[Compiled], families: Sequence[Compiled] = ()) -> str:
    """The section of docs/targets.md: a table for each model, and one for all families."""
    models, found = found, (*found, *families)
    rows = [row for each in found for row in each.rows]
    spilled = [row for row in rows if any(on.spills for on in row.on.values())]
    seconds = sum(each.seconds for each in found)
    spills = (
        "None spills registers."
        if not spilled
        else (
            f"{len(spilled)} spill{'s' * (len(spilled) == 1)} registers: "
            f"{', '.join(f'`{row.kernel}`' for row in spilled)}."
        )
    )
    parts = [
        f"`python benchmarks/cuda_kernels.py --docs` compiles {len(rows)} kernels of {len(found)} models to machine "
        f"code for {' and '.join(ARCHS)} in {seconds:.0f} s, cold, without a GPU. {spills} *Registers* are a thread's, "
        "*spills* and *shared* memory bytes of a thread and of a block. *Occupancy* is the share of a "
        "multiprocessor's 64 warps that blocks of the kernel can fill. Two values are those of "
        f"{' and '.join(ARCHS)}; two *FLOPs a byte* those of the cases in the heading. Operations and bytes are the "
        "tensor program's. Decoders have two layers here, since the others repeat their kernels. Nothing ran.",
    ]
    if families:
        about = "a row each; decoders are small: 512 wide, two layers, bfloat16, over pages"
        parts += [f"**Other models** ({about})", summary(families)]
    for each in models:
        title = f"**{each.model}** ({'; '.join(each.cases)}), {len(each.rows)} kernels, {each.seconds:.1f} s"
        parts += [title, table(each)]
    return "\n\n".join(parts)


def read(found: Mapping[str, Any]) -> Compiled:
    """The results of a model, as they were saved."""
    rows = (
        Row(
            row["kernel"], row["rule"], row["threads"],
            {arch: OnArch(**on) for arch, on in row["on"].items()}, row["intensity"],
        )
        for row in found["rows"]
    )  # fmt: skip
    return Compiled(found["model"], tuple(found["cases"]), found["seconds"], tuple(rows))


def main() -> None:
    """Compile, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--docs", action="store_true", help="also write docs/targets.md")
    parser.add_argument("--only", default="", metavar="REGEX", help="models whose names match")
    given = parser.parse_args()
    every = models()
    before = {each["model"]: read(each) for each in saved("cuda_kernels").get("models", [])}
    found = {model.name: before[model.name] for model in every if model.name in before}
    for model in every:
        if not re.search(given.only, model.name):
            continue
        found[model.name] = compiled(model)
        print(f"{model.name}: {found[model.name].seconds:.1f} s", flush=True)
        print(table(found[model.name]), flush=True)
    names = [model.name for model in every if model.name in found]
    save("cuda_kernels", {"models": [asdict(found[name]) for name in names]})
    if given.docs:
        if missing := {model.name for model in every} - {*names}:
            parser.error(f"--docs needs all models; there are no results of {', '.join(missing)}")
        own, others = ([found[m.name] for m in every if m.is_family == side] for side in (0, 1))
        replace_section(SECTION, page_section(own, others), PAGE)


if __name__ == "__main__":
    main()
