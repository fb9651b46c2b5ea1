"""Sections of `gpu.py` that compare a model's numbers, and those of NVIDIA's libraries, with the processor's: small
Llamas over paged caches, prompts of different lengths in one step and steps of one token behind them; products and
convolutions with what is fused into them. Convolutions are timed, too, beside cuDNN and torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu_calls import ExpectedCall, load_calls
from benchmarks.gpu_plan import (
    CONVOLUTION_DTYPES,
    DECODED,
    LIBRARIES,
    agreeing_name,
    convolution_name,
    library_name,
)
from benchmarks.gpu_sections import Bench, Item, Result, Section, need_torch
from benchmarks.llm_peers import PAGE
from relaxpy.runtime.inspect.random_tensors import Weight, on_device


@dataclass(frozen=True)
class Steps:
    """The arguments of a decoder's steps, before its caches, and the pages that these must have."""

    given: tuple[tuple[np.ndarray, ...], ...]
    pages: int


def steps_of(prompts: Sequence[int], vocab: int) -> Steps:
    """A step that computes prompts of these lengths, and steps of a token for each. The page tables have the same
    width throughout, so that steps of a token have the same sizes, and are one recording."""
    random = np.random.default_rng(len(prompts))
    width = -(-(max(prompts) + DECODED) // PAGE)
    pages = len(prompts) * width
    tables = random.permutation(pages).astype(np.int32).reshape(1, len(prompts), width)
    lengths = np.zeros(len(prompts), np.int64)
    given: list[tuple[np.ndarray, ...]] = []
    for counts in (prompts, *[[1] * len(prompts)] * DECODED):
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        positions = np.concatenate(
            [np.arange(n, n + more) for n, more in zip(lengths, counts, strict=True)]
        )
        lengths = lengths + counts
        tokens = random.integers(0, vocab, starts[-1])
        rows = starts[1:] - np.int32(1)
        given.append((tokens, positions, starts, tables, lengths.astype(np.int32), rows))
    return Steps(tuple(given), pages)


def decoders(bench: Bench) -> Iterator[Item]:
    """Small decoders beside the processor."""
    for title in bench.plan.agreeing:
        for scheme in bench.plan.agreeing_schemes:
            program = agreeing_name(title, scheme)
            for number, prompts in enumerate(bench.plan.prompts):
                yield (
                    f"{title}, {scheme}, {len(prompts)} prompts of {min(prompts)} to {max(prompts)}",
                    lambda p=program, n=number: _decoder(bench, p, n),
                )


def _decoder(bench: Bench, program: str, number: int) -> Result:
    vm, weights = bench.machine(program), bench.weights(program)
    steps = DECODED + 1
    calls = load_calls(bench.prepared.calls(program))[number * steps : (number + 1) * steps]
    (vocab,) = {shape.vocab for shape in bench.plan.agreeing.values()}
    caches = vm["alloc_pages"](steps_of(bench.plan.prompts[number], vocab).pages)
    before = vm.graphs
    found = _compared(calls, lambda _: lambda *given: vm["step"](*given, caches, *weights))
    return {**found, "replays": vm.graphs.replays - before.replays}


def libraries(bench: Bench) -> Iterator[Item]:
    """What NVIDIA's libraries compute beside the processor."""
    for library in LIBRARIES:
        for dtype in bench.plan.library_dtypes:
            program = library_name(library, dtype)
            yield program, lambda p=program: _library(bench, p)


def _library(bench: Bench, program: str) -> Result:
    vm = bench.machine_of(program)
    calls = load_calls(bench.prepared.calls(program))
    return _compared(calls, lambda call: vm[call.function])


def _compared(
    calls: Sequence[ExpectedCall | str], function_of: Callable[[ExpectedCall], Callable[..., Any]]
) -> Result:
    """The results of calls, and their largest difference in parts of the largest number."""
    wrong: list[str] = []
    skipped: list[str] = []
    largest = 0.0
    for call in calls:
        if isinstance(call, str):
            skipped.append(call)
            continue
        kept: list[Any] = []

        def run(*args: Any, call: ExpectedCall = call, kept: list[Any] = kept) -> Any:
            kept.append(function_of(call)(*args))
            return kept[0]

        if text := call.wrong(run):
            wrong.append(f"{call.label}: {text}")
        got, expected = (np.asarray(x, np.float64) for x in (kept[0].numpy(), call.expected))
        if got.shape == expected.shape:
            largest = max(largest, float(np.abs(got - expected).max() / np.abs(expected).max()))
    count = len(calls) - len(skipped)
    return {"calls": count, "wrong": wrong, "skipped": skipped, "largest": largest}


# Convolutions


def convolutions(bench: Bench) -> Iterator[Item]:
    """Convolutions with a bias and relu: ours, cuDNN's, and torch's."""
    for dtype in CONVOLUTION_DTYPES:
        for number, sizes in enumerate(bench.plan.convolutions):
            batch, channels, size, extent = sizes
            title = f"{batch} × {channels} × {size} × {size} by {extent} × {extent}, {dtype}"
            for library, how in (("", "relaxpy"), ("cudnn", "relaxpy with cuDNN")):
                program = convolution_name(dtype, library)
                yield (
                    f"{title}: {how}",
                    lambda p=program, n=number, d=dtype, s=sizes: _convolution(bench, p, n, d, s),
                )
            yield f"{title}: torch", lambda d=dtype, s=sizes: _torch(bench, d, s)


def _convolution(
    bench: Bench, program: str, number: int, dtype: str, sizes: tuple[int, int, int, int]
) -> Result:
    batch, channels, size, extent = sizes
    vm = bench.machine_of(program)
    data, weight, bias = on_device(
        vm,
        [
            Weight((batch, channels, size, size), dtype, 1.0),
            Weight((channels, channels, extent, extent), dtype, (channels * extent**2) ** -0.5),
            Weight((channels, 1, 1), dtype, 1.0),
        ],
    )
    seconds, calls = bench.seconds(lambda: vm[f"f{number}"](data, weight, bias), vm.synchronise)
    return _rate(seconds, calls, sizes)


def _torch(bench: Bench, dtype: str, sizes: tuple[int, int, int, int]) -> Result:
    torch = need_torch()
    batch, channels, size, extent = sizes
    made = {"dtype": getattr(torch, dtype), "device": "cuda"}
    data = torch.randn(batch, channels, size, size, **made)
    weight = torch.randn(channels, channels, extent, extent, **made)
    bias = torch.randn(channels, **made)
    torch.backends.cudnn.allow_tf32 = False

    def run() -> Any:
        found = torch.nn.functional.conv2d(data, weight, bias, padding=extent // 2)
        return torch.nn.functional.relu_(found)

    seconds, calls = bench.seconds(run, torch.cuda.synchronize)
    return _rate(seconds, calls, sizes)


def _rate(seconds: float, calls: int, sizes: tuple[int, int, int, int]) -> Result:
    batch, channels, size, extent = sizes
    operations = 2 * batch * channels**2 * size**2 * extent**2
    return {"us": seconds * 1e6, "tflops": operations / seconds / 1e12, "calls": calls}


SECTIONS: dict[str, Section] = {
    "agreement": (0.08, decoders),
    "libraries": (0.04, libraries),
    "convolutions": (0.04, convolutions),
}
"""As `gpu_sections.SECTIONS`."""
