"""The contracts of `tests/e2e/products.py` and `tests/e2e/attentions.py` as cases, for every target, run whole:

    python -m tests.e2e.product_cases --log FILE [--targets AVX2;opencl] [--families bits] [--minutes 30] [--part 0/2]

prints a table. Cases that the log has are not run again: what was interrupted goes on. Their order is that of a seed, so
that a part of them is of everything, and `--first 600` goes on where another machine was.

Widths are grouped by *form*. A kernel cuts its columns into pieces, of a vector or a tile: of two widths with as many
pieces, or with about as many and equally many modulo what panels have of them, and with the same kind of remainder
(none, one column, all but one, others) the kernels are the same but for numbers (`test_widths_of_a_form`). Instruction sets whose
kernels are the same are grouped as well. Of each form every group builds two widths, a packed one and one whose weight
is an argument, in turn: all widths are of some case of each family. Attention is built with heads of all widths.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import BuildError
from tests.backend.cpu.levels import LEVELS, running
from tests.device_emulation import fake_metal
from tests.device_emulation.runner import COMPILER
from tests.e2e import attentions
from tests.e2e.attentions import ATTENTIONS
from tests.e2e.products import (
    EVERY_ROW,
    FAMILIES,
    FEW_ROWS,
    MANY_COLUMNS_ROWS,
    MANY_ROWS,
    OPEN,
    VOCABULARIES,
    WIDTHS,
    Family,
    problems,
)
from tests.runtime.devices.cuda import compiled as cuda
from tests.runtime.devices.cuda import emulation
from tests.runtime.devices.opencl import support as opencl
from tests.runtime.devices.webgpu import support as webgpu

ATTENTION = "attention"
"""The way of cases whose widths are those of heads."""
TOGETHER = 8
"""Widths that are built together."""
MANY_ON_DEVICES = 70
"""More rows than narrow tiles have."""
OPEN_ROWS = (1, 3, 8, 9, 16, 33, 40)
"""Numbers of rows of kernels for any width."""
OPTIMISED = 8
"""One of so many cases is built with LLVM's optimisations: the schedules are the same."""

RAGGED = 32001, 50257
"""Vocabularies with one column beside whole vectors: of each group."""
THREE = "three processors"
ALIKE = (
    ("SSE2",), ("SSE2, 32 registers as NEON's",), ("AVX2", "AVX-VNNI"),
    ("AVX-512", "AVX512_VNNI", "AVX512_BF16", "AMX"), (THREE,),
)  # fmt: skip
"""Instruction sets of which floats have the same kernels."""
_OWN: Mapping[str, Sequence[tuple[str, ...]]] = {
    "bfloat16": (("AVX512_BF16",), ("AMX",)),
    "bfloat16, odd depths": (("AVX512_BF16",),),
    **{
        name: (("AVX-VNNI",), ("AVX512_VNNI", "AVX512_BF16"), ("AMX",))
        for name, family in FAMILIES.items()
        if family.is_integer
    },
    **{
        name: (("AVX-VNNI",), ("AVX512_VNNI", "AMX"), ("AVX512_BF16",))
        for name, family in FAMILIES.items()
        if family.activations
    },
}
"""Family → the groups that differ."""
DEVICES = ("opencl", "vulkan", "webgpu", "cuda", "metal")


@dataclass(frozen=True)
class Case:
    """Widths of a family that are built together."""

    target: str
    """An instruction set, or a device."""
    family: str
    widths: tuple[int, ...]
    way: str
    option: str = ""
    """Of the target."""

    @property
    def key(self) -> str:
        return json.dumps(asdict(self))

    @property
    def number(self) -> int:
        """A number that is the same in every process."""
        return zlib.crc32(self.key.encode())


@dataclass(frozen=True)
class Outcome:
    """What a case found."""

    checked: int
    """Pairs of a width and a number of rows, or of a width of heads and lengths."""
    wrong: tuple[str, ...]
    seconds: float
    """Of a processor."""
    refused: str = ""
    """Why nothing was run."""


def form_of(width: int, piece: int, exact: int) -> tuple[int, ...]:
    """What is the same for widths whose kernels differ in numbers only. Up to `exact` pieces are told apart."""
    pieces, rest = -(-width // piece), width % piece
    if pieces == 1:
        # Less than half of a piece is not packed.
        return pieces, width if width in (1, piece - 1, piece) else -1, int(2 * width > piece)
    if pieces <= exact:
        return pieces, rest if rest in (0, 1, piece - 1) else -1
    # Panels and tasks have some pieces each, and what tasks share depends on how many there are.
    return pieces % exact, pieces.bit_length(), int(rest == 0)


def form_on(target: str, family: Family, way: str, width: int) -> tuple[int, ...]:
    """The form of a width on a target: of vectors, of which panels have 2 to 4; of panels of experts, 4 columns or
    less, of which tasks have 8; or of tiles of devices, which read several columns at a time."""
    if target in DEVICES:
        return *form_of(width, 64, 2), width % 4
    if family.experts and (family.activations is None or way == "given"):
        columns = next(n for n in (4, 2, 1) if width % n == 0)
        return columns, *form_of(width // columns, 8, 4)
    bits = 64 if family.dtype == "float64" else 32
    vector = {"SSE2": 128, "SSE2, 32 registers as NEON's": 128, "AVX2": 256, "AVX-VNNI": 256}
    return form_of(width, vector.get(target, 512) // bits, 12)


def forms(target: str, family: Family, way: str) -> list[list[int]]:
    """The widths of each form."""
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for width in WIDTHS:
        found[form_on(target, family, way, width)].append(width)
    return [*found.values()]


def groups_of(name: str) -> list[tuple[str, ...]]:
    """The groups of instruction sets that have the same kernels of a family."""
    own = _OWN.get(name, ())
    apart = {level for each in own for level in each}
    shared = [tuple(level for level in each if level not in apart) for each in ALIKE]
    return [each for each in (*shared, *own) if each]


def cases_on_processors(name: str) -> Iterator[Case]:
    family, groups = FAMILIES[name], groups_of(name)
    draw, seen = random.Random(zlib.crc32(name.encode())), set[int]()
    chosen: dict[tuple[str, str], list[int]] = defaultdict(list)
    for levels in groups:
        # All three have the same plain kernels as alone.
        for kind in ("packed",) if levels == (THREE,) else ("given", "packed"):
            for each in forms(levels[0], family, kind):
                way = kind if kind == "given" else draw.choice(("packed", "constant"))
                width = draw.choice([width for width in each if width not in seen] or each)
                seen.add(width)
                chosen[draw.choice(levels), way].append(width)
    single = [level for levels in groups for level in levels if level != THREE]
    for width in WIDTHS:
        if width not in seen:
            chosen[draw.choice(single), "packed"].append(width)
    for (level, way), widths in chosen.items():
        yield from _together(level, name, sorted(widths), way)
    if family.scheme is None:
        # One kernel for all widths, where something is added and where not.
        for levels, start in product(groups, range(0, len(WIDTHS), 100)):
            yield Case(levels[0], name, tuple(WIDTHS[start : start + 100]), OPEN)
    if family.experts or family.is_integer:
        return
    for vocabulary in VOCABULARIES:
        yield Case(draw.choice(single), name, (vocabulary,), "packed")
    for levels in groups:
        yield Case(draw.choice(levels), name, (draw.choice(RAGGED),), "packed")


def cases_of_attention(name: str) -> Iterator[Case]:
    widths, draw = attentions.WIDTHS, random.Random(zlib.crc32(name.encode()))
    apart = [("AVX512_BF16",), ("AMX",)] if ATTENTIONS[name].dtype != "float32" else []
    known = {level for each in apart for level in each}
    for levels in (*(tuple(x for x in each if x not in known) for each in ALIKE), *apart):
        mixed = draw.sample(widths, len(widths))
        for start in range(0, len(mixed), TOGETHER):
            part = tuple(sorted(mixed[start : start + TOGETHER]))
            yield Case(draw.choice(levels), name, part, ATTENTION)
    tiles = [width for width in widths if width % 16 == 0 and width <= 128]
    for device in DEVICES:
        others = draw.sample([width for width in widths if width % 16], TOGETHER)
        for part in (tiles, sorted(others)):
            yield Case(device, name, tuple(part), ATTENTION)


def cases_on_devices(name: str) -> Iterator[Case]:
    family = FAMILIES[name]
    draw = random.Random(zlib.crc32(name.encode()))
    for number, device in enumerate(DEVICES):
        chosen: dict[str, list[int]] = defaultdict(list)
        for at, each in enumerate(forms(device, family, "given")):
            # Few rows have a kernel of their own unless a row must have the same bits among others.
            option = ("-batch-invariant=1", "")[(at + number) % 2]
            chosen[option].append(draw.choice(each))
        for option, widths in chosen.items():
            yield from _together(device, name, sorted(widths), "given", option)
    if name in ("float32", "8 bits", "bfloat16"):
        for device in DEVICES:
            yield Case(device, name, (50257,), "given", "")


def _together(
    target: str, name: str, widths: Sequence[int], way: str, option: str = ""
) -> Iterator[Case]:
    for start in range(0, len(widths), TOGETHER):
        yield Case(target, name, tuple(widths[start : start + TOGETHER]), way, option)


@cache
def all_cases() -> Sequence[Case]:
    """In the order of a seed."""
    found = {case.key: case for name in FAMILIES for case in cases_on_processors(name)}
    found |= {case.key: case for name in FAMILIES for case in cases_on_devices(name)}
    cases = [*found.values()]
    cases += [case for name in ATTENTIONS for case in cases_of_attention(name)]
    random.Random(0).shuffle(cases)
    return cases


def run(case: Case, optimised: bool | None = None) -> Outcome:
    """Build and run a case. By its number it is built with LLVM's optimisations or not, unless that is given."""
    start = _seconds()
    if optimised is None:
        optimised = not case.number % OPTIMISED
    rows: Sequence[Any] | None = None
    if case.way == OPEN:
        rows = OPEN_ROWS
    elif case.target in DEVICES:
        rows = FEW_ROWS if max(case.widths) <= max(WIDTHS) else (1, 9)
    try:
        with _on(case.target, optimised) as (target, without):
            invariant = case.target not in DEVICES or "invariant" in case.option
            many = MANY_ON_DEVICES if case.target in DEVICES else MANY_ROWS
            named = f"{target} {case.option}" if case.option else target
            if case.way == ATTENTION:
                kind = ATTENTIONS[case.family]
                wrong = attentions.problems(kind, case.widths, named, without)
            else:
                family = FAMILIES[case.family]
                wrong = problems(
                    family,
                    case.widths,
                    named,
                    case.way,
                    rows,
                    without,
                    invariant=invariant,
                    many=many,
                )
    except pytest.skip.Exception as skipped:
        return Outcome(0, (), 0, str(skipped.msg))
    except BuildError as error:
        if error.code != "device-dtype":
            return Outcome(0, (f"{case.widths}: {error}",), _seconds() - start)
        return Outcome(0, (), 0, error.message)
    except Exception as error:  # whatever a case raises is its outcome
        return Outcome(0, (f"{case.widths}: {type(error).__name__}: {error}",), _seconds() - start)
    if case.way == ATTENTION:
        rows = attentions.BATCHES if ATTENTIONS[case.family].page else attentions.LENGTHS
    known = EVERY_ROW if max(case.widths) <= max(WIDTHS) else MANY_COLUMNS_ROWS
    checked = len(case.widths) * len(rows or known) * len(without)
    return Outcome(checked, tuple(wrong), _seconds() - start)


@contextmanager
def _on(name: str, optimised: bool) -> Iterator[tuple[Any, Sequence[Sequence[str]]]]:
    """The target, whose kernels run in this process while the context is open, and the features that are missing in
    each of its runs. Skips what is not here."""
    if name not in DEVICES:
        of_three = [level for each, level in LEVELS.items() if each.endswith("of three")]
        level = of_three[0] if name == THREE else LEVELS[name]
        with running(level, optimised) as target:
            yield target, [each.without for each in of_three] if name == THREE else [()]
        return
    with ExitStack() as stack:
        obstacle, enter = _DEVICE[name]
        if reason := obstacle():
            pytest.skip(reason)
        yield enter(stack), [()]


def _emulated_cuda(stack: ExitStack) -> str:
    stack.enter_context(cuda.emulated_compiled())
    return cuda.TARGET


def _emulated_metal(stack: ExitStack) -> str:
    patch = stack.enter_context(pytest.MonkeyPatch.context())
    stack.enter_context(fake_metal.emulated(patch))
    return "metal"


_NO_COMPILER = "" if COMPILER else "no compiler for C++ is here"
_DEVICE: Mapping[str, tuple[Callable[[], str], Callable[[ExitStack], str]]] = {
    "opencl": (opencl.no_device, lambda _: "opencl"),
    "vulkan": (webgpu.no_device, lambda _: "vulkan"),
    "webgpu": (webgpu.no_device, lambda _: "webgpu"),
    "cuda": (lambda: _NO_COMPILER or emulation.obstacle(), _emulated_cuda),
    "metal": (lambda: _NO_COMPILER, _emulated_metal),
}
"""Device → why it is not here, and its target, which is there until the stack ends."""


def _seconds() -> float:
    """Of a processor, those of compilers included."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def table(outcomes: Mapping[str, Mapping[str, Any]], cases: Sequence[Case]) -> str:
    """Cases, pairs of a width and a number of rows, wrong ones and seconds, by target and family."""
    lines = ["| target | family | cases | widths × rows | wrong | seconds |", "| --- | --- | ---: | ---: | ---: | ---: |"]  # fmt: skip
    found: dict[tuple[str, str], list[Any]] = defaultdict(lambda: [0, 0, 0, 0, 0.0, ""])
    for case in cases:
        own = found[case.target, case.family]
        own[1] += 1
        outcome = outcomes.get(case.key)
        if outcome is not None:
            each = [1, outcome["checked"], len(outcome["wrong"]), outcome["seconds"]]
            own[0], own[2], own[3], own[4] = (
                x + y for x, y in zip((own[0], *own[2:5]), each, strict=True)
            )
            own[5] = own[5] or outcome["refused"]
    for (target, family), (done, count, checked, wrong, seconds, refused) in sorted(found.items()):
        what = refused or f"{checked}"
        lines.append(
            f"| {target} | {family} | {done} of {count} | {what} | {wrong} | {seconds:.0f} |"
        )
    whole = np.sum([each[:5] for each in found.values()], axis=0)
    lines.append(f"| all | all | {whole[0]:.0f} of {whole[1]:.0f} | {whole[2]:.0f} | {whole[3]:.0f} | {whole[4]:.0f} |")  # fmt: skip
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="the products of all kinds of weights")
    parser.add_argument(
        "--log", type=Path, required=True, help="the outcomes, a line for each case"
    )
    parser.add_argument("--targets", default="", help="their names, separated by ';'")
    parser.add_argument("--families", default="", help="a part of their names")
    parser.add_argument("--minutes", type=float, default=1e9, help="no case begins afterwards")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--first", type=int, default=0, help="cases before this one are left out")
    parser.add_argument("--part", default="0/1", help="K/N: every N-th case, from number K on")
    given = parser.parse_args(arguments)
    targets = [each.strip() for each in given.targets.split(";") if each]
    first, every = map(int, given.part.split("/"))
    cases = [
        case
        for case in all_cases()[given.first :]
        if (not targets or case.target in targets) and given.families in case.family
    ]
    given.log.parent.mkdir(parents=True, exist_ok=True)
    if given.jobs > 1:
        command = [sys.executable, "-m", "tests.e2e.product_cases", "--log", str(given.log)]
        command += ["--targets", given.targets, "--families", given.families]
        command += ["--minutes", str(given.minutes), "--first", str(given.first), "--part"]
        parts = [f"{number}/{given.jobs}" for number in range(given.jobs)]
        for process in [subprocess.Popen([*command, each]) for each in parts]:
            process.wait()
    else:
        _run_all(cases[first::every], given.log, 60 * given.minutes)
    if given.part != "0/1":
        return 0
    outcomes = _read(given.log)
    print(table(outcomes, cases))
    return int(any(each["wrong"] for each in outcomes.values()))


def _run_all(cases: Sequence[Case], log: Path, seconds: float) -> None:
    """Run the cases that the log has not. None begins after so many seconds."""
    known, begun = _read(log), time.monotonic()
    for case in (each for each in cases if each.key not in known):
        if time.monotonic() - begun > seconds:
            return
        outcome = run(case)
        with log.open("a") as file:
            file.write(json.dumps({"case": case.key, **asdict(outcome)}) + "\n")
        for each in outcome.wrong:
            print(f"{case.target}, {case.family}, {case.way} {case.option}: {each}", flush=True)


def _read(log: Path) -> dict[str, dict[str, Any]]:
    """The outcomes of a log, by case."""
    lines = log.read_text().splitlines() if log.exists() else []
    return {each["case"]: each for each in map(json.loads, lines)}


if __name__ == "__main__":
    raise SystemExit(main())
