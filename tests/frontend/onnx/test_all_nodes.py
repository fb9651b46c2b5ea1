"""ONNX's own tests of operators, a part of them: through the interpreter as they are, and with symbols for all sizes,
and built. `make test-onnx` runs all, in all three ways; what is not equal is listed, with reasons, in differences.txt.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest

import relaxpy
from tests import logged
from tests.frontend.onnx.node_suite import (
    Outcome,
    cases,
    has_our_dtypes,
    imported,
    outcome,
    table,
)
from tests.frontend.onnx.older_versions import in_older_version, older
from tests.sweeps import part, sweep

DIFFERENCES = Path(__file__).with_name("differences.txt")
WAYS = {"": {}, " widened": {"wide": True}, " built": {"build": True}}
"""How a case is run."""
KINDS = ("refused", "rounded")
"""What a reason may be given for; wrong numbers have none."""


@cache
def reasons() -> dict[str, str]:
    """The beginning of a case's name, its way, and kind → why it is not equal."""
    lines = DIFFERENCES.read_text(encoding="utf-8").splitlines()
    pairs = (line.split(": ", 1) for line in lines if line and not line.startswith("#"))
    return {key: reason for key, reason in pairs}


def is_listed(found: Outcome, way: str) -> bool:
    """Is there a reason? That of a case run as it is holds for the other ways, too."""
    for key in reasons():
        *name, kind = key.split(" ")
        if kind == found.kind and found.name.startswith(name[0]) and name[1:] in ([], way.split()):
            return True
    return False


def unlisted(outcomes: list[tuple[str, Outcome]]) -> list[str]:
    return [
        f"{found.name}{way} {found.kind}: {found.text}"
        for way, found in outcomes
        if found.kind not in ("equal", "dtype") and not is_listed(found, way)
    ]


@cache
def names() -> list[str]:
    """The cases. ONNX computes all of them when it lists them, which takes seconds."""
    return [name for name, case in cases().items() if has_our_dtypes(case)]


@sweep
@pytest.mark.parametrize("way", WAYS)
def test_operators_are_onnxs(way: str) -> None:
    every = {"": 19, " widened": 74, " built": 122}[way]
    found = [(way, outcome(name, **WAYS[way])) for name in part(names(), every)]
    assert not unlisted(found)


@sweep
def test_older_versions() -> None:
    pytest.importorskip("onnxruntime")
    assert not [problem for each in part(older(), 47) if (problem := in_older_version(*each))]


@pytest.mark.parametrize(
    "name",
    [
        "test_attention_3d_softcap",  # the width of a head is in the scale
        "test_attention_4d_gqa_softcap",  # heads share keys
        "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",
    ],
)
def test_attention_whose_sizes_are_symbols(name: str) -> None:
    assert outcome(name, wide=True).kind == "equal"


def test_the_list_has_reasons_for_what_is_refused_or_rounded_only() -> None:
    for key, reason in reasons().items():
        name, *way, kind = key.split(" ")
        assert kind in KINDS
        assert way in ([], ["widened"], ["built"])
        assert any(each.startswith(name) for each in names()), name
        assert reason


def items() -> Iterator[str]:
    for way in WAYS:
        yield from (f"{name}{way}" for name in names())


def main(log: Path) -> None:
    """Run all that the log has not, and print what became of them."""

    def work(item: str) -> dict[str, object]:
        name, _, way = item.partition(" ")
        found = asdict(outcome(name, **WAYS[f" {way}" if way else ""]))
        return {**found, "outcome": found["kind"]}

    program, _ = imported(cases()["test_add"], wide=False)
    relaxpy.build(
        program.mod, target="llvm -opt-level=0"
    )  # a copy of this process need not load the compiler
    records = logged.run(log, list(items()), work, seconds=120)
    outcomes: list[tuple[str, Outcome]] = []
    for record in records:
        name, _, way = record["item"].partition(" ")
        text = str(record.get("text", ""))
        known = tuple(record.get("constants", ()))
        outcomes.append((f" {way}" if way else "", Outcome(name, record["outcome"], text, known)))
    for way in WAYS:
        print(f"as they are:{way}" if not way else f"{way.strip()}:")  # noqa: T201
        print(table([found for each, found in outcomes if each == way]))  # noqa: T201
    missing = unlisted(outcomes)
    print("\n".join(missing))  # noqa: T201
    sys.exit(bool(missing))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
