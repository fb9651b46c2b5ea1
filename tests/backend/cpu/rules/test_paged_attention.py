"""Paged attention with vectors, against the operator's reference: every option, page sizes, and processors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaxpy.backend.schedule import schedule_kernel
from relaxpy.op.paged_attention import PagedAttention
from relaxpy.target import Target
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise.paged_attention import paged_attention_of
from relaxpy.tir.tvm import tirx
from relaxpy.tir.walk import rewritten
from tests.backend.paged_cases import PAGES, Case
from tests.sweeps import FULL, quick_target, sweep

TARGETS = ("llvm -opt-level=0", "llvm -mcpu=haswell", "llvm -mcpu=x86-64")
CASES = {
    "plain": Case(),
    "shared": Case(heads=6, groups=1, width=5, column=32, size=32),
    "many": Case(heads=20, groups=1, width=3),
    "alone": Case(heads=2, op=PagedAttention(scale=0.3)),
    "everything": Case(op=PagedAttention(causal=False)),
    "everything narrow": Case(op=PagedAttention(causal=False), dtype="bfloat16"),
    "everything in integers": Case(op=PagedAttention(causal=False), pages="int8"),
    "window": Case(op=PagedAttention(window_size=19), size=32),
    "capped": Case(op=PagedAttention(soft_cap=1.5, window_size=1), sinks=True),
    "sinks": Case(sinks=True),
    "narrow": Case(dtype="bfloat16"),
    "words": Case(
        heads=6,
        groups=1,
        width=6,
        column=32,
        size=32,
        dtype="bfloat16",
        op=PagedAttention(soft_cap=1.5),
    ),
    "many words": Case(heads=16, groups=2, width=32, column=64, size=32, dtype="bfloat16"),
    "integers": Case(pages="int8", sinks=True),
    "small integers": Case(dtype="bfloat16", pages="int8"),
    "distances": Case(op=PagedAttention(scale=1.0), reach=37),
    "few distances": Case(
        heads=6, groups=1, width=5, op=PagedAttention(window_size=19), reach=1, pages="int8"
    ),
    "distances in words": Case(
        heads=3, groups=3, width=6, column=32, size=32, dtype="bfloat16", reach=16, sinks=True
    ),
    "spans": Case(spans=True),
    "spans in windows": Case(
        heads=6,
        groups=1,
        width=5,
        op=PagedAttention(window_size=19),
        pages="int8",
        spans=True,
        sinks=True,
    ),
    "spans in words": Case(
        heads=6, groups=2, width=6, column=32, size=32, dtype="bfloat16", spans=True
    ),
}
BATCHES = (([1], [1]), ([40], [40]), ([17, 3, 48, 2], [1, 3, 20, 0]), ([16, 32], [2, 16]))


@pytest.fixture(scope="module", params=[TARGETS[0], *(pytest.param(t, marks=[pytest.mark.slow, sweep]) for t in TARGETS[1:])])  # fmt: skip
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """All cases for this processor, and each for one other; for all in a full sweep."""
    cases = [*CASES]
    if request.param != TARGETS[0] and not FULL:
        cases = [cases[0], *cases[TARGETS.index(request.param) :: len(TARGETS) - 1]]
    target = Target.parse(TARGETS[0])
    if request.param != TARGETS[0]:
        target = quick_target(request.param)
    if not target.is_host_loadable:
        pytest.skip("this machine cannot run it")
    programs: dict[str, PrimFunc] = {}
    for name in cases:
        scheduled = schedule_kernel(CASES[name].program().func, target)
        assert scheduled.rule == "paged_attention"
        programs[name.replace(" ", "_")] = PrimFunc(scheduled.parallel)
    return Kernels(programs, target, schedule=False)


def run(kernels: Kernels, name: str, inputs: dict[str, Any]) -> np.ndarray:
    """The result; nothing is written beyond it."""
    if name.replace(" ", "_") not in kernels:
        pytest.skip("tried for other processors")
    shape = (*inputs["query"].shape[:2], inputs["value_pages"].shape[3])
    size = int(np.prod(shape))
    memory = np.full(size + 64, 77, inputs["query"].dtype)
    kernels.run(name.replace(" ", "_"), list(inputs.values()), [memory[:size].reshape(shape)])
    assert (memory[size:] == 77).all()
    return memory[:size].reshape(shape)


@sweep(3)
@pytest.mark.parametrize("name", CASES)
def test_against_the_reference(kernels: Kernels, name: str) -> None:
    case = CASES[name]
    rtol, atol = (2e-2, 2e-2) if case.dtype == "bfloat16" else (1e-4, 1e-5)
    if case.pages == "int8" and case.dtype == "float32":
        atol = 1e-4  # values are up to 127, and scores hundreds
    for lengths, new in BATCHES:
        inputs = case.inputs(lengths, new)
        found = run(kernels, name, inputs).astype(np.float32)
        wanted = exact(case, inputs)
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)


def exact(case: Case, inputs: dict[str, Any]) -> np.ndarray:
    """The reference; of float32 with integer pages in float64: scores are hundreds, so in float32 the reference itself is
    off by 3e-4."""
    if case.dtype == "float32" and case.pages == "int8":
        inputs = {
            name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in inputs.items()
        }
    return case.op.reference(**inputs).astype(np.float32)


@pytest.mark.parametrize("name", [name for name in CASES if not CASES[name].op.causal])
def test_keys_of_others(kernels: Kernels, name: str) -> None:
    """Without a causal mask the keys are those of a source, such as an encoder's output: more of them than tokens, fewer,
    one, or none, whose tokens give 0; and two sequences may read the same pages."""
    case = CASES[name]
    inputs = case.inputs([33, 7, 0, 1], [1, 40, 3, 2])
    inputs["tables"][1], inputs["lengths"][1] = inputs["tables"][0], 33
    found = run(kernels, name, inputs).astype(np.float32)
    wanted = exact(case, inputs)
    close = 2e-2 if case.dtype == "bfloat16" else 1e-4
    np.testing.assert_allclose(found, wanted, rtol=close, atol=close)
    assert (found[41:44] == 0).all()
    alone = dict(inputs, query=inputs["query"][:1], starts=np.array([0, 1, 1, 1, 1], np.int32))
    np.testing.assert_array_equal(run(kernels, name, alone)[0].astype(np.float32), found[0])


@sweep(9)
@pytest.mark.parametrize("name", CASES)
def test_nan_is_seen_by_those_who_see_its_key(kernels: Kernels, name: str) -> None:
    """A NaN among the queries, keys, values or sinks is in the results that the operator computes from it, and in no
    others: where a segment is a task of its own, too."""
    case, seen = CASES[name], set[str]()
    for lengths, new in (([40], [40]), ([17, 3, 48], [1, 3, 20]), ([140], [1]), ([140], [70])):
        for where, inputs in case.spoiled(lengths, new, pages=20):
            found = np.isnan(run(kernels, name, inputs))
            with np.errstate(invalid="ignore"):
                wanted = np.isnan(case.op.reference(**inputs))
            np.testing.assert_array_equal(found, wanted, err_msg=where)
            seen |= {where} if wanted.any() else set()
    assert len(seen) == len([*case.spoiled([40], [40])])


def test_bits_are_those_of_a_token_alone(kernels: Kernels) -> None:
    """The last token of a sequence in any batch, in any pages, however many of its tokens come with it."""
    case = CASES["plain"]
    together = case.inputs([17, 3, 48, 2], [1, 3, 20, 0])
    found = run(kernels, "plain", together)
    alone = dict(together)
    alone["query"] = together["query"][4:24][-1:]
    alone["starts"] = np.array([0, 1], np.int32)
    moved = np.random.default_rng(5).permutation(PAGES)
    for pages in ("key_pages", "value_pages"):
        alone[pages] = np.empty_like(together[pages])
        alone[pages][moved] = together[pages]
    alone["tables"] = moved[together["tables"][2:3]].astype(np.int32)
    alone["lengths"] = together["lengths"][2:3]
    np.testing.assert_array_equal(run(kernels, "plain", alone)[0], found[23])


@sweep(3)
@pytest.mark.parametrize("name", CASES)
def test_bits_of_a_long_sequence(kernels: Kernels, name: str) -> None:
    """All tokens in one call, in chunks with a neighbour, and one by one: over segments, which are tasks where there
    are few tokens, and with few or many rows in a task."""
    case = CASES[name]
    count, pages = 1300, 1300 // case.size + 8
    whole = case.inputs([count, 20], [count, 20], pages=pages)
    all_tokens = run(kernels, name, whole)

    def is_whole(first: int, end: int, neighbour: int) -> bool:
        """No token attends to one that is not in the part, which none does without spans."""
        lasts = whole.get("lasts", np.zeros(count + 20, np.int32))
        ends = lasts[first:end].max(), lasts[count : count + neighbour].max(initial=-1)
        return ends[0] < end and ends[1] < max(neighbour, 1)

    def part(first: int, end: int, neighbour: int) -> np.ndarray:
        """The tokens from the first on, after so many tokens of the other sequence."""
        given = dict(whole)
        given["query"] = np.concatenate(
            [whole["query"][count : count + neighbour], whole["query"][first:end]]
        )
        given["starts"] = np.array([0, neighbour, neighbour + end - first], np.int32)
        given["tables"] = whole["tables"][[1, 0]]
        given["lengths"] = np.array([neighbour, end], np.int32)
        if "lasts" in whole:
            lasts = whole["lasts"]
            given["lasts"] = np.concatenate([lasts[count : count + neighbour], lasts[first:end]])
        found = run(kernels, name, given)
        np.testing.assert_array_equal(found[:neighbour], all_tokens[count : count + neighbour])
        return found[neighbour:]

    if not case.op.causal:
        alone = dict(whole, query=whole["query"][5:6], starts=np.array([0, 1, 1], np.int32))
        np.testing.assert_array_equal(run(kernels, name, alone)[0], all_tokens[5])
        return
    for token in (0, 1, 15, 63, 64, 511, 512, 513, 1023, 1024, 1298, 1299):
        if is_whole(token, token + 1, 0):
            np.testing.assert_array_equal(part(token, token + 1, 0)[0], all_tokens[token])
    for first, end, neighbour in ((0, 3, 1), (500, 640, 20), (1100, 1300, 3), (1290, 1300, 1)):
        if is_whole(first, end, neighbour):
            np.testing.assert_array_equal(part(first, end, neighbour), all_tokens[first:end])
    last = dict(whole, query=whole["query"][count - 2 : count], lengths=whole["lengths"][:1])
    last |= {"starts": np.array([0, 2], np.int32), "tables": whole["tables"][:1]}
    if "lasts" in whole:
        last["lasts"] = whole["lasts"][count - 2 : count]
    wanted = case.op.reference(**last).astype(np.float32)
    close = 2e-2 if case.dtype == "bfloat16" else 3e-4
    found = all_tokens[count - 2 : count].astype(np.float32)
    np.testing.assert_allclose(found, wanted, rtol=close, atol=close)


def test_nothing_is_trusted(kernels: Kernels) -> None:
    """Pages, lengths and starts out of range read no other memory."""
    inputs = CASES["plain"].inputs([17, 3], [2, 1])
    for name in ("key_pages", "value_pages"):
        inputs[name] = np.nan_to_num(inputs[name])
    for name, value in (
        ("tables", 1 << 30), ("tables", -1), ("lengths", 1 << 30), ("lengths", -5), ("starts", -3),
        ("starts", 1 << 30),
    ):  # fmt: skip
        given = {**inputs, name: np.full_like(inputs[name], value)}
        wanted = CASES["plain"].op.reference(**given)
        np.testing.assert_allclose(run(kernels, "plain", given), wanted, atol=1e-5)


def test_what_is_recognised() -> None:
    """The options are read from the program; one that differs in an operation is another program."""
    form = paged_attention_of(CASES["capped"].program().func)
    assert form is not None
    assert (form.scoring.window, form.scoring.soft_cap, form.scoring.has_sinks) == (1, 1.5, True)
    func = Case().program().func
    assert paged_attention_of(func) is not None

    def other(node: tirx.Sub) -> Any:
        return node.a + node.b

    changed = func.with_body(rewritten(func.body, (tirx.Sub, other)))
    assert paged_attention_of(changed) is None


def test_sizes_that_are_not_whole_vectors() -> None:
    """They are left to the rule for rows."""
    for case in (Case(column=7), Case(size=6)):
        scheduled = schedule_kernel(case.program().func, Target.parse("llvm"))
        assert scheduled.rule == "rows"
