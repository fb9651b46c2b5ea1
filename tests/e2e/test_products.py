"""Products of rows with weights of every kind: numbers, bits of a row among others, and NaN, at widths of all remainders
(`tests/e2e/products.py`), for every instruction set (`tests/backend/cpu/levels.py`) and kind of device that is here, CUDA
and Metal emulated.

`make test` builds two widths for one of nine pairs of a kind and an instruction set, and one for one of twenty pairs of a
kind and a device; `make test-slow` more of them for all pairs. `make test-products` runs all cases
(`tests/e2e/product_cases.py`), two hours of a core.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from relaxpy.backend.cpu import backend as cpu
from relaxpy.backend.schedule import ScheduledKernel
from tests.backend.cpu.levels import LEVELS, running
from tests.e2e import product_cases
from tests.e2e.product_cases import DEVICES, THREE, Case, all_cases, forms
from tests.e2e.products import (
    FAMILIES,
    OPEN,
    VOCABULARIES,
    WAYS,
    WIDTHS,
    Family,
    Product,
    problems,
)
from tests.sweeps import FULL, part, sweep


@pytest.fixture(autouse=True)
def modules_round_trip() -> None:
    """Other tests print and parse these modules."""


def draw_of(*names: str) -> random.Random:
    return random.Random(zlib.crc32(" ".join(names).encode()))


@sweep(2)
@pytest.mark.parametrize(
    ("name", "level"), part([(name, level) for name in FAMILIES for level in LEVELS], 31)
)
def test_on_processors(name: str, level: str) -> None:
    """Widths of which the vectors are left over when panels have four, and others."""
    own, draw = LEVELS[level], draw_of(name, level)
    ragged = [n for n in WIDTHS if n > 144 and -(-n // 16) % 4 in (1, 2)]
    widths = sorted([draw.choice(ragged), *draw.sample(WIDTHS, 5 if FULL else 1)])
    way = WAYS[(len(name) + len(level)) % len(WAYS)]
    with running(own) as target:
        found = problems(FAMILIES[name], widths, target, way, without=[own.without])
    assert not found, "\n".join(found)


@pytest.mark.parametrize("level", ["AVX-VNNI", "AVX512_VNNI"])
def test_llvm_chooses_no_instruction_that_is_emulated(level: str) -> None:
    """A product of one column is a loop of which LLVM makes dot products by itself."""
    with running(LEVELS[level], optimised=False) as target:
        found = problems(FAMILIES["int8 by uint8"], [1], target, "packed")
    assert not found, "\n".join(found)


PLAIN = [name for name, family in FAMILIES.items() if family.scheme is None]


@sweep
@pytest.mark.parametrize(("name", "level"), part([(n, x) for n in PLAIN for x in LEVELS], 75))
def test_kernels_for_any_width(name: str, level: str) -> None:
    own = LEVELS[level]
    with running(own) as target:
        found = problems(
            FAMILIES[name],
            WIDTHS[:: 5 if FULL else 19],
            target,
            OPEN,
            (1, 9, 40),
            without=[own.without],
        )
    assert not found, "\n".join(found)


@sweep
@pytest.mark.parametrize("name", part(("8 bits", "float32", "int8 by 4 bits"), 3))
def test_a_head_of_a_vocabulary(name: str) -> None:
    """GPT-2's, on this processor."""
    found = problems(FAMILIES[name], [50257], "llvm -opt-level=0", "packed")
    assert not found, "\n".join(found)


@sweep(2)
@pytest.mark.parametrize(
    ("name", "device"), part([(name, device) for name in FAMILIES for device in DEVICES], 18)
)
def test_on_devices(name: str, device: str) -> None:
    """With `-batch-invariant=1`, which promises the bits of a row, and without, where few rows have a kernel of their
    own."""
    draw = draw_of(name, device)
    widths = draw.sample([n for n in WIDTHS if n % 4], 4 if FULL else 1)
    options = ["-batch-invariant=1", ""]
    for option in options if FULL else [draw.choice(options)]:
        outcome = product_cases.run(Case(device, name, tuple(widths), "given", option))
        if not outcome.checked and not outcome.wrong:
            pytest.skip(outcome.refused)
        assert not outcome.wrong, "\n".join(outcome.wrong)


def test_every_width_and_vocabulary_is_in_a_case() -> None:
    for name, family in FAMILIES.items():
        on = [case for case in all_cases() if case.family == name]
        known = [case for case in on if case.target not in DEVICES and case.way != OPEN]
        widths = {width for case in known for width in case.widths}
        assert widths >= {*WIDTHS}, name
        assert family.experts or family.is_integer or widths >= {*VOCABULARIES}, name
        assert {case.target for case in on} == {*DEVICES, THREE, *LEVELS} - {
            each for each in LEVELS if each.endswith("of three")
        }


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The scheduled products that are built in the test, without their numbers."""
    found: list[str] = []
    schedule: Callable[..., ScheduledKernel] = cpu.schedule_by_rules

    def scheduled(*args: object) -> ScheduledKernel:
        kernel = schedule(*args)
        if kernel.rule == "elementwise":
            # A packer.
            return kernel
        text = re.sub(r"\d+(\.\d+)?", "#", f"{kernel.rule} {kernel.parallel}")
        # `1 <= n` of a positive n is `n == 1` of the other side.
        found.append(re.sub(r"T\.int#\(#\) <= (\w+)|(\w+) == T\.int#\(#\)", r"\1\2 ? #", text))
        return kernel

    monkeypatch.setattr(cpu, "schedule_by_rules", scheduled)
    return found


@sweep
@pytest.mark.parametrize("seed", part(range(60), 20))
def test_widths_of_a_form(seed: int, texts: list[str]) -> None:
    """The kernels of two widths of a form differ in numbers only, and those of an instruction set from those of
    another that is said to have the same."""
    draw = random.Random(seed)
    name = draw.choice([*FAMILIES])
    levels = draw.choice([each for each in product_cases.groups_of(name) if THREE not in each])
    way, family = draw.choice(("given", "packed")), FAMILIES[name]
    one, *others = draw.choice([each for each in forms(levels[0], family, way) if len(each) > 4])
    # With as many remainders: the depth, and whether something is added, go by the width.
    alike = [
        n for n in others if n % 2 == one % 2 and n % 3 == one % 3 and n % 12 // 6 == one % 12 // 6
    ]
    built: list[list[str]] = []
    for width, level in ((one, levels[0]), (draw.choice(alike or [one]), levels[-1])):
        texts.clear()
        with running(LEVELS[level], optimised=False) as target:
            problems(family, [width], target, way, (1,))
        built.append(sorted(texts))
    assert built[0] == built[1]


def test_a_log_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cases that it has are not run again; what is wrong in one is in the table, and the exit says so."""
    ran: list[Case] = []

    def run(case: Case) -> product_cases.Outcome:
        ran.append(case)
        return product_cases.Outcome(4, ("wrong",) if len(ran) == 1 else (), 0.5)

    monkeypatch.setattr(product_cases, "run", run)
    log, given = tmp_path / "log", ["--targets", "AMX;metal", "--families", "int8 by uint8"]
    assert product_cases.main(["--log", str(log), *given]) == 1
    count = len(ran)
    assert {case.target for case in ran} == {"AMX", "metal"}
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-2]))
    assert product_cases.main(["--log", str(log), *given]) == 1
    assert len(ran) == count + 2
    printed = capsys.readouterr().out
    assert f"| all | all | {count} of {count} | {4 * count} | 1 | {count / 2:.0f} |" in printed


def test_what_it_finds() -> None:
    """Columns that are others', a row that depends on the number of rows, and a NaN that becomes a number."""
    product = Product(Family(), 37)
    weight, bias = product.weights().values()

    def exact(x: np.ndarray) -> np.ndarray:
        # Each row by itself: the bits of numpy's products depend on the number of rows.
        rows = [np.maximum((row * weight).sum(1) + bias, 0) for row in x]
        return np.array(rows, np.float32).reshape(-1, 37)

    def shifted(x: np.ndarray) -> np.ndarray:
        found = exact(x)
        found[:, 20:] = found[:, 19:-1] if len(x) > 8 else found[:, 20:]
        return found

    assert not [*product.problems(exact)]
    found = "\n".join(product.problems(shifted))
    assert "columns 20, 21, 22, 23, … 36 (17 of them) are wrong" in found
    assert "the first 8 rows have other bits" in found

    def finite(x: np.ndarray) -> np.ndarray:
        return np.nan_to_num(exact(x))

    assert "is lost" in "\n".join(product.problems(finite))
