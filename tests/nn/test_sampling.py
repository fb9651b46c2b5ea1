"""Sampling of tokens: against numpy, against transformers' logits processors, and independence of the batch."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.ir import DType
from relaxpy.op.sampling import RandomUniform, SampleFromLogits, philox
from relaxpy.serve import Draw, Sampling, sampling_arguments
from tests.sweeps import full, quick_target, sweep

VOCAB = 75
"""Not whole words of a mask, nor whole vectors."""


class Sampler(nn.Module):
    def sample(self, **arguments: Any) -> Any:
        return nn.sample(**arguments)

    def most_probable(self, logits: Any) -> Any:
        return nn.top_logprobs(logits, 3)


@pytest.fixture(scope="module")
def vm() -> relaxpy.VirtualMachine:
    spec = nn.sampling_spec(VOCAB)
    mod, _ = Sampler().export({"sample": spec, "most_probable": {"logits": spec["logits"]}})
    return relaxpy.VirtualMachine(relaxpy.build(mod, quick_target()))


def run(vm: relaxpy.VirtualMachine, logits: np.ndarray, draws: list[Draw]) -> list[np.ndarray]:
    return [x.numpy() for x in vm["sample"](logits, *sampling_arguments(draws, VOCAB))]


def random_logits(rows: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, VOCAB)) * 3).astype(np.float32)


def random_draw(rng: np.random.Generator) -> Draw:
    """Any options, each of them neutral now and then."""

    def some(value: Any, neutral: Any) -> Any:
        return value if rng.integers(2) else neutral

    words = -(-VOCAB // 32)
    options = Sampling(
        temperature=float(some(rng.uniform(0.2, 3), rng.integers(2))),
        top_k=int(some(rng.integers(1, 90), 0)),
        top_p=float(some(rng.uniform(0.1, 1), 1)),
        min_p=float(some(rng.uniform(0, 0.5), 0)),
        repetition_penalty=float(some(rng.uniform(0.5, 2), 1)),
        presence_penalty=float(some(rng.uniform(-2, 2), 0)),
        frequency_penalty=float(some(rng.uniform(-2, 2), 0)),
        bias={int(t): float(rng.normal()) for t in rng.permutation(VOCAB)[: rng.integers(5)]},
        seed=int(rng.integers(-5, 5)),
    )
    tokens = rng.integers(0, VOCAB, rng.integers(20)).tolist()
    mask = some(rng.integers(-(1 << 31), 1 << 31, words).astype(np.int32) | 1, None)
    return Draw(options, tokens, int(rng.integers(len(tokens) + 1)), int(rng.integers(9)), mask)


def processed(logits: np.ndarray, draw: Draw) -> np.ndarray:
    """A row's logits after bias, penalties and mask, by numpy."""
    x, options = logits.astype(np.float32), draw.sampling
    for token, by in options.bias.items():
        x[token] += np.float32(by)
    for token in set(draw.tokens):
        factor = np.float32(options.repetition_penalty)
        x[token] = x[token] * factor if x[token] < 0 else x[token] / factor
    for token in set(draw.tokens[draw.prompt :]):
        count = np.float32(list(draw.tokens[draw.prompt :]).count(token))
        x[token] -= count * np.float32(options.frequency_penalty)
        x[token] -= np.float32(options.presence_penalty)
    if draw.mask is not None:
        bits = (draw.mask[np.arange(VOCAB) // 32] >> (np.arange(VOCAB) % 32)) & 1
        x[bits == 0] = -np.inf
    return x


def kept(x: np.ndarray, options: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """The tokens that top-k, top-p and min-p keep, greatest first, and their probabilities."""
    order = np.argsort(-x, kind="stable")
    if options.temperature == 0:
        return order[:1], np.ones(1)
    powers = np.exp((x[order].astype(np.float64) - x.max()) / options.temperature)
    powers = powers[: options.top_k or None]
    before = np.cumsum(powers) - powers
    inside = (before < options.top_p * powers.sum()) & (powers >= options.min_p)
    inside[0] = True
    count = int(inside.argmin()) if not inside.all() else len(inside)
    return order[:count], powers[:count] / powers[:count].sum()


def uniform(draw: Draw) -> float:
    place = np.array([draw.sampling.seed]), np.array([draw.request]), np.array([len(draw.tokens)])
    return float(RandomUniform(DType("float64")).reference(*place)[0])


def test_against_numpy(vm: relaxpy.VirtualMachine) -> None:
    """Every option in every row, in one batch; a draw at the edge of a token may round to its neighbour."""
    rng = np.random.default_rng(1)
    draws = [random_draw(rng) for _ in range(400)]
    logits = random_logits(len(draws))
    tokens, probabilities = run(vm, logits, draws)
    differing = 0
    for row, draw in enumerate(draws):
        order, shares = kept(processed(logits[row].copy(), draw), draw.sampling)
        expected = order[min(int((np.cumsum(shares) <= uniform(draw)).sum()), len(order) - 1)]
        differing += tokens[row] != expected
        assert tokens[row] in order or len(order) > 1
    assert differing <= 1
    wide = logits.astype(np.float64)
    wanted = np.take_along_axis(wide, tokens[:, None], 1)[:, 0] - np.log(np.exp(wide).sum(1))
    np.testing.assert_allclose(probabilities, wanted, atol=1e-5)


@sweep(2)
@pytest.mark.parametrize(
    "options",
    [
        Sampling(temperature=0.7),
        Sampling(temperature=1.3, top_k=5),
        Sampling(top_p=0.8),
        Sampling(temperature=2.0, min_p=0.15),
        Sampling(top_k=20, top_p=0.7, min_p=0.02, repetition_penalty=1.7, bias={3: 4.0, 70: -9.0}),
    ],
    ids=["temperature", "top_k", "top_p", "min_p", "all"],
)
def test_against_transformers(vm: relaxpy.VirtualMachine, options: Sampling) -> None:
    """The shares of 20 000 draws are the probabilities after the processors, and nothing else is drawn."""
    torch = pytest.importorskip("torch")
    logits = pytest.importorskip("transformers.generation.logits_process")
    text = [1, 5, 5, 9, 70]
    chain = logits.LogitsProcessorList()
    if options.bias:
        chain.append(
            logits.SequenceBiasLogitsProcessor(
                [[[token], by] for token, by in options.bias.items()]
            )
        )
    if options.repetition_penalty != 1:
        chain.append(logits.RepetitionPenaltyLogitsProcessor(options.repetition_penalty))
    chain.append(logits.TemperatureLogitsWarper(options.temperature))
    if options.top_k:
        chain.append(logits.TopKLogitsWarper(options.top_k))
    if options.top_p < 1:
        chain.append(logits.TopPLogitsWarper(options.top_p))
    if options.min_p:
        chain.append(logits.MinPLogitsWarper(options.min_p))
    row = random_logits(1, 4)
    scores = chain(torch.tensor([text]), torch.from_numpy(row.copy()))
    expected = torch.softmax(scores, -1)[0].double().numpy()
    count = 20_000
    draws = [Draw(options, text, len(text), request) for request in range(count)]
    tokens, _ = run(vm, np.repeat(row, count, 0), draws)
    found = np.bincount(tokens, minlength=VOCAB) / count
    assert set(np.flatnonzero(found)) <= set(np.flatnonzero(expected))
    spread = np.sqrt(expected * (1 - expected) / count)
    assert (np.abs(found - expected) <= 5 * spread + 4 / count).all()  # rare tokens are counts


def test_a_row_is_drawn_alone(vm: relaxpy.VirtualMachine) -> None:
    """Equal seeds, requests and positions give equal tokens in any batch and place; others give other numbers."""
    rng = np.random.default_rng(2)
    draws, logits = [random_draw(rng) for _ in range(40)], random_logits(40)
    together = run(vm, logits, draws)
    for some in ([7], [30, 7, 2], list(range(39, -1, -1))):
        found = run(vm, logits[some], [draws[row] for row in some])
        for one, all_of_them in zip(found, together, strict=True):
            np.testing.assert_array_equal(one, all_of_them[some])
    flat = np.zeros((3 * 50, VOCAB), np.float32)
    seeds = [Draw(Sampling(seed=seed)) for seed in range(50)]
    requests = [Draw(request=request) for request in range(1, 51)]
    positions = [Draw(tokens=[0] * place) for place in range(1, 51)]
    tokens, _ = run(vm, flat, seeds + requests + positions)
    assert all(len(set(part.tolist())) > 15 for part in tokens.reshape(3, 50))


def test_edges(vm: relaxpy.VirtualMachine) -> None:
    """No rows; nothing allowed; logits that are no numbers; one token left; equal logits."""
    assert run(vm, random_logits(0), [])[0].shape == (0,)
    words = np.zeros(3, np.int32)
    only = words.copy()
    only[70 // 32] = 1 << 70 % 32
    logits = random_logits(6)
    logits[1, 5], logits[2, 9], logits[3] = np.nan, np.inf, -np.inf
    logits[5] = 0
    masks = [words, None, None, None, only, None]
    hot = Sampling(temperature=0)
    options = [Sampling(), Sampling(), Sampling(), Sampling(), Sampling(), hot]
    draws = [Draw(o, mask=mask) for o, mask in zip(options, masks, strict=True)]
    tokens, probabilities = run(vm, logits, draws)
    assert tokens.tolist() == [-1, -1, -1, -1, 70, 0]
    assert np.isnan(probabilities).tolist() == [True] * 4 + [False] * 2
    far = dataclasses.replace(hot, bias={VOCAB: 99.0, (1 << 31) - 2: 99.0, 4: 1.0})
    draws = [Draw(far, tokens=[VOCAB, 1 << 30, -1]), Draw(Sampling(min_p=1.0, temperature=100.0))]
    tokens, _ = run(vm, np.array([[0] * VOCAB, range(VOCAB)], np.float32), draws)
    assert tokens.tolist() == [4, VOCAB - 1]


def test_the_most_probable(vm: relaxpy.VirtualMachine) -> None:
    logits = random_logits(4)
    tokens, values = (x.numpy() for x in vm["most_probable"](logits))
    wide = logits.astype(np.float64)
    expected = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    np.testing.assert_array_equal(tokens, np.argsort(-expected, 1)[:, :3])
    np.testing.assert_allclose(values, -np.sort(-expected, 1)[:, :3], atol=1e-5)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000",
         "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
         "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_philox(counter: str, key: str, expected: str) -> None:
    """The known answers of Random123."""
    words = [[np.array([int(w, 16)], np.uint64) for w in text.split()] for text in (counter, key)]
    assert [f"{int(word[0]):08x}" for word in philox(*words)] == expected.split()


@full
def test_large_rows_of_any_shape() -> None:
    """30 000 tokens beside the reference: normal logits, equal ones, few values, one far ahead, a smooth slope that is
    drawn at the far end; every option. The kernel's exponentials may round otherwise, so a draw may be its neighbour."""
    vocab, rng = 30_000, np.random.default_rng(3)
    spec = {
        "logits": nn.spec.Tensor(("rows", vocab), "float32"),
        **{name: nn.spec.Tensor(("rows",), "float32") for name in ("t", "p", "m")},
        "k": nn.spec.Tensor(("rows",), "int64"),
        "u": nn.spec.Tensor(("rows",), "float64"),
    }

    class Draw(nn.Module):
        def forward(self, logits: Any, t: Any, p: Any, m: Any, k: Any, u: Any) -> Any:
            return nn.op.sample_from_logits(logits, t, k, p, m, u)

    mod, _ = Draw().export({"forward": spec})
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, quick_target()))
    peak = np.zeros(vocab)
    peak[777] = 90
    kinds = [
        rng.standard_normal(vocab) * 3, np.full(vocab, -4.25), rng.integers(-2, 2, vocab), peak,
        np.linspace(0, 3e-3, vocab), rng.permutation(np.linspace(-60, 60, vocab)),
    ]  # fmt: skip
    logits = np.repeat(np.array(kinds, np.float32), 8, 0)
    count = len(logits)
    t = rng.choice(np.array([0.3, 1, 5], np.float32), count)
    k = rng.choice(np.array([0, 1, 40, 5000, vocab, 1 << 40]), count)
    p = rng.choice(np.array([0.5, 0.9, 0.999, 1], np.float32), count)
    m = rng.choice(np.array([0, 0, 0.01, 0.5], np.float32), count)
    u = rng.choice(np.array([0.0, 0.5, 0.999999, 1 - 2**-53]), count)
    found = vm["forward"](logits, t, p, m, k, u).numpy()
    expected = SampleFromLogits().reference(logits, t, k, p, m, u)
    for row, (one, other) in enumerate(zip(found, expected, strict=True)):
        order = np.argsort(-logits[row], kind="stable").tolist()
        assert abs(order.index(one) - order.index(other)) <= 1, row
    assert (found == expected).mean() > 0.9
