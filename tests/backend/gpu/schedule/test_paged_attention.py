"""Attention over a paged cache by tensor cores on the emulated driver, against the operator's reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.op.paged_attention import PagedAttention
from relaxpy.runtime.devices.image import Image
from relaxpy.target import Target
from tests.backend.paged_cases import Case
from tests.e2e.devices import machine
from tests.runtime.devices.cuda import compiled as cuda
from tests.sweeps import FULL, part, sweep

pytestmark = cuda.needs_cuda
SMALL = Case(heads=4, groups=2, width=16, column=16, size=16, dtype="float16")
CASES = {
    "window": replace(SMALL, heads=6, column=48, size=8, op=PagedAttention(window_size=19)),
    "integers": replace(SMALL, dtype="bfloat16", pages="int8", sinks=True, size=32),
    # Keys and values are no whole number of chunks for each thread.
    "80 and 112": replace(SMALL, heads=2, width=80, column=112),
    "distances": replace(SMALL, reach=37, op=PagedAttention(scale=1.0)),
    "spans": replace(SMALL, spans=True, op=PagedAttention(window_size=23)),
}
if FULL:
    CASES |= {
        "plain": SMALL,
        "llama": Case(heads=8, groups=1, width=64, column=64, size=32, dtype="bfloat16"),
        "wide": Case(heads=4, groups=4, width=128, column=128, size=24, dtype="float16"),
        "everything": replace(SMALL, width=48, size=128, op=PagedAttention(causal=False)),
        "capped": replace(SMALL, op=PagedAttention(soft_cap=1.5, scale=0.3), sinks=True),
        "80 and 112 of integers": replace(
            SMALL, dtype="bfloat16", pages="int8", heads=2, width=112, column=80, size=32
        ),
        "alone": replace(SMALL, heads=40, groups=1),
        "window of integers": replace(
            SMALL, pages="int8", column=48, op=PagedAttention(window_size=40)
        ),
    }
BATCHES = (
    ([1], [1]), ([40], [40]), ([17, 3, 48, 2], [1, 3, 20, 0]), ([16, 32], [2, 16]), ([0, 5], [0, 5]),
    ([130, 65, 1, 64], [70, 1, 1, 64]), ([63], [63]), ([65], [1]), ([200, 7], [9, 2]),
)  # fmt: skip
"""Lengths of sequences, and how many tokens of each are new."""


assembled = cuda.assembled


@pytest.fixture(scope="module", autouse=True)
def device() -> Iterator[None]:
    with cuda.emulated_compiled():
        yield


def inputs(case: Case, lengths: list[int], new: list[int]) -> dict[str, Any]:
    return case.inputs(lengths, new, pages=sum(-(-n // case.size) for n in lengths) + 2)


def rule(case: Case, target: str) -> str:
    return schedule_kernel(case.program().func, Target.parse(target)).rule


@sweep(2)
@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str) -> None:
    """What no sequence has is NaN in the pages."""
    case = CASES[name]
    vm = machine(case.module(), cuda.TARGET)
    for lengths, new in BATCHES:
        x = inputs(case, lengths, new)
        wanted = case.op.reference(**x).astype(np.float32)
        found = vm["main"](*x.values()).numpy().astype(np.float32)
        bound = (2e-3 if case.dtype == "float16" else 1.6e-2) * np.abs(wanted).max(initial=1)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=bound)


@sweep(4)
@pytest.mark.parametrize("name", CASES)
def test_nan_is_seen_by_those_who_see_its_key(name: str) -> None:
    """A NaN among the queries, keys, values or sinks is in all results that the operator computes from it. Keys of the
    same sequence that a token does not attend to are multiplied by 0, which makes NaN of theirs."""
    case = CASES[name]
    vm = machine(case.module(), cuda.TARGET)
    for lengths, new in (([40], [40]), ([17, 3], [1, 3]), ([65], [1])):
        for where, x in case.spoiled(lengths, new, pages=14):
            with np.errstate(invalid="ignore"):
                wanted = np.isnan(case.op.reference(**x))
            found = np.isnan(vm["main"](*x.values()).numpy())
            assert found[wanted].all(), where
            assert where in ("sinks", "bias") or not found[new[0] :].any(), where


def test_nothing_is_trusted() -> None:
    """Pages, lengths and starts out of range read no other memory; a token in no sequence gives 0."""
    vm = machine(SMALL.module(), cuda.TARGET)
    x = inputs(SMALL, [17, 3], [2, 1])
    for name in ("key_pages", "value_pages"):
        x[name] = np.nan_to_num(x[name])
    for name, value in (
        ("tables", 1 << 30), ("tables", -1), ("lengths", 1 << 30), ("lengths", -5), ("starts", -3),
        ("starts", 1 << 30), ("starts", 1),
    ):  # fmt: skip
        given = {**x, name: np.full_like(x[name], value)}
        wanted = SMALL.op.reference(**given)
        found = vm["main"](*given.values()).numpy()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=4e-3)
    none = {**x, "key_pages": x["key_pages"][:0], "value_pages": x["value_pages"][:0]}
    assert not vm["main"](*none.values()).numpy().any()
    nobody = {
        **x,
        "starts": x["starts"][:1],
        "tables": x["tables"][:0],
        "lengths": x["lengths"][:0],
    }
    assert not vm["main"](*nobody.values()).numpy().any()
    empty = {**x, "query": x["query"][:0], "starts": 0 * x["starts"]}
    assert vm["main"](*empty.values()).shape == (0, 4, 16)


@sweep(2)
@pytest.mark.parametrize("invariant", [False, True])
def test_bits(invariant: bool) -> None:
    """A sequence has the bits that it has without others; with `-batch-invariant=1`, also in chunks and alone."""
    case = replace(SMALL, op=PagedAttention(window_size=100))
    vm = machine(case.module(), cuda.TARGET + " -batch-invariant=1" * invariant)
    whole = inputs(case, [150, 20, 9], [150, 20, 1])

    def run(*parts: tuple[int, int, int]) -> list[np.ndarray]:
        """Tokens of sequences, each from a place up to another."""
        first_token = (0, 150, 170)
        given = dict(whole)
        given["query"] = np.concatenate(
            [
                whole["query"][first_token[s] + first : first_token[s] + end]
                for s, first, end in parts
            ]
        )
        counts = [end - first for _, first, end in parts]
        given["starts"] = np.cumsum([0, *counts], dtype=np.int32)
        given["tables"] = whole["tables"][[s for s, *_ in parts]]
        given["lengths"] = np.array([end for *_, end in parts], np.int32)
        found = vm["main"](*given.values()).numpy()
        return np.split(found, given["starts"][1:-1])

    (alone,) = run((0, 0, 150))
    short, other = run((1, 0, 20), (0, 0, 150))
    np.testing.assert_array_equal(other, alone)
    np.testing.assert_array_equal(run((1, 0, 20))[0], short)
    token, neighbour = run((0, 120, 121), (1, 0, 20))
    np.testing.assert_array_equal(run((0, 120, 121))[0], token)
    np.testing.assert_array_equal(neighbour, short)
    if not invariant:
        return
    np.testing.assert_array_equal(token, alone[120:121])
    for first, end in ((0, 1), (3, 20), (63, 66), (100, 150), (149, 150)):
        np.testing.assert_array_equal(run((0, first, end), (1, 0, 3))[0], alone[first:end])


SHAPES = [(32, 8, 128, ""), (32, 4, 64, "int8"), (32, 4, 64, ""), (32, 8, 128, "int8")]


@pytest.mark.usefixtures("assembled")
@pytest.mark.parametrize(
    ("heads", "groups", "width", "pages"),
    part(SHAPES, 4),
)
def test_registers(heads: int, groups: int, width: int, pages: str) -> None:
    """Of Llamas: nothing is spilled, and three groups fit a multiprocessor."""
    case = Case(heads, groups, width, width, 32, dtype="bfloat16", pages=pages)
    objects = relaxpy.build(case.module(), "cuda -arch=sm_80,sm_90").objects
    assert len(objects) == 2
    for image in map(Image.decode, objects):
        assert image.limits["threads"] == 128
        assert image.resources["spills"] == image.resources["stack"] == 0
        assert image.resources["registers"] <= 168
        assert image.resources["shared"] <= 48 * 1024


@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": "float32"}, {"width": 24}, {"column": 144}, {"size": 4}, {"size": 24, "pages": "int8"}, {"heads": 130},
    ],
)  # fmt: skip
def test_what_is_left_to_threads(changed: dict[str, Any]) -> None:
    assert rule(SMALL, "cuda -arch=compute_80") == "paged_attention"
    assert rule(replace(SMALL, **changed), "cuda -arch=compute_80") == "threads"
    assert rule(SMALL, "opencl") == "threads"
